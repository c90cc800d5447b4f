"""Exported models of `mlrh fit` have its calibration, thresholds and refusal: they answer as `mlrh predict` does."""

from copy import copy
from dataclasses import replace

import numpy as np
import onnx
import pytest
from exported import run as answers_of
from pyarrow import parquet
from samples import make_multilabel
from typer.testing import CliRunner

from mlrh import KernelMLRHClassifier, MLRHClassifier, PooledSets, persistence
from mlrh.automatic import AnswerRule, choose
from mlrh.cli import app
from mlrh.data import MultilabelData
from mlrh.estimators import auto
from mlrh.export import to_onnx

LABELS = ("red", "round", "soft")
N_ROWS = 90


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (1.0, 100.0))


@pytest.fixture
def columns(tmp_path, monkeypatch):
    """Writes things.csv, and returns its features: two numbers and a word, each missing here and there."""
    monkeypatch.chdir(tmp_path)
    X, Y = make_multilabel(N_ROWS, n_features=3, n_labels=3, max_labels=2)
    Y[0] = 1  # the only row with this set, which an observed space of the other rows holds impossible
    rows = np.arange(N_ROWS)
    numbers = np.where((rows % np.array([[5], [11]]) == 0).T, np.nan, X[:, :2])
    words = np.where(rows % 7 == 0, "", np.array(["oak", "elm", "ash"])[np.digitize(X[:, 2], [-0.5, 0.5])])
    lines = [",".join(["height", "tree", "width", *LABELS])]
    for (height, width), tree, labels in zip(numbers.tolist(), words, Y.tolist(), strict=True):
        cells = ["" if np.isnan(value) else repr(value) for value in (height, width)]
        lines.append(",".join([cells[0], tree, cells[1], *map(str, labels)]))
    (tmp_path / "things.csv").write_text("\n".join(lines) + "\n")
    return {"X": numbers, "tree": words.astype(object)[:, None]}


def command(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)


def predicted():
    """What `mlrh predict` writes, by the names of the outputs of an exported model."""
    command("predict", "things.mlrh", "things.csv", "--marginals", "--output", "things.parquet")
    rows = parquet.read_table("things.parquet").to_pydict()
    sets = [[int(name in labels) for name in LABELS] for labels in rows["labels"]]
    marginals = np.column_stack([rows[f"P({name})"] for name in LABELS])
    answered = {"answered": rows["answered"]} if "answered" in rows else {}
    return {"label": sets, "probabilities": marginals, "set_probability": rows["probability"], **answered}


FIT = ("fit", "things.csv", "--labels", ",".join(LABELS), "--scores", "linear", "--folds", "2", "--jobs", "1")
FIT += ("--quality", "fast", "--time", "600")
OPTIONS = {
    "calibration": ("--label-space", "observed", "--calibrate"),
    "thresholds": ("--label-space", "open", "--thresholds", "f1_macro"),
    "refusal": ("--label-space", "cardinality", "--metric", "f1", "--refuse-below", "0.5"),
    "all": ("--label-space", "observed", "--calibrate", "--thresholds", "f1_macro", "--refuse-below", "0.5"),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_an_exported_model_answers_as_predict_does(columns, options):
    command(*FIT, *options)
    rule, expected = persistence.load("things.mlrh").rule, predicted()
    if "--calibrate" in options:
        assert rule.temperature != 1 and rule.inside_share < 1
    assert (rule.thresholds is not None) == ("--thresholds" in options)
    if "--refuse-below" in options:
        assert 0 < sum(expected["answered"]) < N_ROWS
    assert_exported_alike(columns, expected)


def test_a_model_of_several_files_is_exported_with_its_rule(columns, tmp_path):
    lines = (tmp_path / "things.csv").read_text().splitlines(keepends=True)
    for number, rows in enumerate((lines[1:46], lines[46:])):
        (tmp_path / f"part{number}.csv").write_text("".join([lines[0], *rows]))
    options = ("--labels", ",".join(LABELS), "--label-space", "observed", "--folds", "2", "--jobs", "1")
    command("fit", "part*.csv", *options, "--calibrate", "--refuse-below", "0.5", "--output", "things.mlrh")
    assert_exported_alike(columns, predicted())


def assert_exported_alike(columns, expected):
    """`mlrh export` writes files that answer with these values, in float64 and in float32."""
    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 1e-5)):
        command("export", "things.mlrh", "--output", "things.onnx", *["--float32"] * (dtype is np.float32))
        exported = onnx.load("things.onnx")
        onnx.checker.check_model(exported, full_check=True)
        found = answers_of(exported, {**columns, "X": columns["X"].astype(dtype)})
        assert set(found) - {"sizes", "scores"} == set(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)


RULES = {
    "a temperature": {"temperature": 2.5, "inside_share": 0.9},
    "thresholds": {"thresholds": np.array([0.2, 0.3, 0.6])},
    "refusal": {"inside_share": 0.9, "refuse_below": 0.4},
    "refusal of all rows": {"refuse_below": 1.0},
}


@pytest.fixture(scope="module")
def data():
    X, Y = make_multilabel(60, n_features=3, n_labels=3, max_labels=2)
    return MultilabelData(X, Y.astype(np.int8), ("x", "y", "z"), LABELS, "things")


@pytest.fixture(scope="module")
def pool(data):
    """A model whose classifier is a pool."""
    model = choose(data, quality="fast", scores="linear", label_space="observed", n_folds=2, n_jobs=1)
    members = [("linear", MLRHClassifier()), ("kernel", KernelMLRHClassifier(label_space="observed"))]
    classifier = copy(model.classifier)
    classifier.best_estimator_ = PooledSets(members, weights=[0.4, 0.6]).fit(data.X, data.Y)
    return replace(model, classifier=classifier)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_is_in_the_graph_of_a_pool(data, pool, rule):
    model = replace(pool, rule=AnswerRule(**rule))
    answer, found = model.answer(model.distribution(data)), answers_of(to_onnx(model), {"X": data.X})
    np.testing.assert_array_equal(found["label"], answer.sets)
    np.testing.assert_allclose(found["set_probability"], answer.probability, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(found.get("answered", np.ones(60)), answer.is_answered)
