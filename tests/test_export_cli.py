"""`mlrh export`: models of `mlrh fit`, with numbers, nominal columns and missing values, and plain classifiers."""

import json
from copy import copy
from dataclasses import replace

import numpy as np
import onnx
import pytest
from exported import run
from samples import make_multilabel
from scipy import sparse
from sklearn.base import clone

from mlrh import MLRHClassifier, PooledSets, persistence
from mlrh.automatic import choose
from mlrh.cli import app
from mlrh.data import MultilabelData
from mlrh.export import to_onnx

COLOURS = ("red", "green", "blue")


def table(n_rows=60, *, is_sparse=False):
    """Rows with two numbers, one of them missing here and there, and a nominal column between them."""
    X, Y = make_multilabel(n_rows, n_features=2, n_labels=3, max_labels=2)
    colour = np.where(np.arange(n_rows) % 7 == 0, np.nan, np.argmax(Y, axis=1) * 1.0)
    X = np.column_stack([X[:, 0], colour, np.where(np.arange(n_rows) % 5 == 0, np.nan, X[:, 1])])
    names = ("height", "colour", "width"), ("a", "b", "c")
    return MultilabelData(sparse.csr_array(X) if is_sparse else X, Y, *names, "things", {"colour": COLOURS})


def model_of(data):
    options = {"quality": "fast", "scores": "linear", "label_space": "cardinality", "n_folds": 2, "n_jobs": 1}
    return choose(data, **options)


@pytest.fixture(scope="module")
def model():
    return model_of(table())


def inputs_of(data, dtype=np.float64):
    X = data.X.toarray() if sparse.issparse(data.X) else data.X
    words = [COLOURS[int(code)] if code == code else "" for code in X[:, 1]]
    return {"X": X[:, [0, 2]].astype(dtype), "colour": np.array(words, object)[:, None]}


def call(*arguments):
    app([*map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_a_model_of_a_table_takes_numbers_and_words_and_answers_as_it_did(model, tmp_path, is_sparse):
    data = table(is_sparse=is_sparse)
    model = model_of(data) if is_sparse else model
    persistence.save(model, tmp_path / "things.mlrh")
    call("export", tmp_path / "things.mlrh")
    exported = onnx.load(tmp_path / "things.onnx")
    onnx.checker.check_model(exported, full_check=True)
    answers, distribution = run(exported, inputs_of(data)), model.distribution(data)
    np.testing.assert_array_equal(answers["label"], model.predict(data))
    np.testing.assert_allclose(answers["probabilities"], distribution.marginals(), rtol=0, atol=1e-6)
    about = {entry.key: json.loads(entry.value) for entry in exported.metadata_props}
    assert about == {"labels": ["a", "b", "c"], "features": ["height", "colour", "width"]}


def test_a_pool_answers_for_missing_words_as_it_did(model):
    data = table()
    best = model.classifier.best_estimator_  # with its encoder
    members = [(f"C={C}", clone(best).set_params(mlrhclassifier__C=C)) for C in (0.1, 10.0)]
    chosen = copy(model.classifier)
    chosen.best_estimator_ = PooledSets(members, weights=[0.5, 0.5]).fit(data.X, data.Y)
    pool = replace(model, classifier=chosen)
    answers = run(to_onnx(pool), inputs_of(data))
    np.testing.assert_allclose(answers["probabilities"], pool.distribution(data).marginals(), rtol=0, atol=1e-6)


def test_a_value_that_training_did_not_show_counts_as_missing(model):
    exported, inputs = to_onnx(model), inputs_of(table())
    missing = {**inputs, "colour": np.full((60, 1), "", object)}
    unknown = {**inputs, "colour": np.full((60, 1), "purple", object)}
    expected = run(exported, missing)["probabilities"]
    np.testing.assert_array_equal(run(exported, unknown)["probabilities"], expected)
    assert np.abs(run(exported, inputs)["probabilities"] - expected).max() > 0.01


def renamed(model, name):
    """The model with another name of its nominal column."""
    names, categories = ("height", name, "width"), {name: COLOURS}
    return replace(model, schema=replace(model.schema, feature_names=names, categories=categories))


@pytest.mark.parametrize("name", ["table", "columns_LabelEncoder_0", "model_X", "model_label", "a b/ü"])
def test_a_nominal_column_has_any_name_that_is_no_output(model, name):
    inputs = inputs_of(table())
    expected = run(to_onnx(model), inputs)
    answers = run(to_onnx(renamed(model, name)), {"X": inputs["X"], name: inputs["colour"]})
    for output in expected:
        np.testing.assert_array_equal(answers[output], expected[output])


@pytest.mark.parametrize("name", ["X", "label", "probabilities", "scores", "sizes", "set_probability", ""])
def test_a_nominal_column_by_the_name_of_an_output_or_of_the_matrix_gets_a_sentence(model, tmp_path, name):
    persistence.save(renamed(model, name), tmp_path / "things.mlrh")
    with pytest.raises(ValueError, match=rf"by the name '{name}', .*; rename the column"):
        call("export", tmp_path / "things.mlrh")


def test_float32_is_taken_and_given(model, tmp_path):
    data = table()
    persistence.save(model, tmp_path / "things.mlrh")
    call("export", tmp_path / "things.mlrh", "--output", tmp_path / "small.onnx", "--float32")
    answers = run(onnx.load(tmp_path / "small.onnx"), inputs_of(data, np.float32))
    assert answers["probabilities"].dtype == np.float32
    np.testing.assert_allclose(answers["probabilities"], model.distribution(data).marginals(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_nominal_columns_alone_give_the_type_that_is_asked_for(dtype):
    data = table()
    codes, names = np.column_stack([data.X[:, 1], np.arange(60.0) % 3]), ("colour", "other")
    data = MultilabelData(codes, data.Y, names, ("a", "b", "c"), "things", dict.fromkeys(names, COLOURS))
    model = model_of(data)
    words = np.array([*COLOURS, ""], object)[np.nan_to_num(codes, nan=3).astype(int)]
    answers = run(to_onnx(model, dtype=dtype), {"colour": words[:, :1], "other": words[:, 1:]})
    assert {answers[name].dtype for name in answers if name != "label"} == {np.dtype(dtype)}
    tolerance = 1e-10 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(answers["probabilities"], model.distribution(data).marginals(), rtol=0, atol=tolerance)


def test_a_classifier_that_was_saved_in_python_is_exported(tmp_path):
    X, Y = make_multilabel(60)
    model = MLRHClassifier().fit(X, Y)
    persistence.save(model, tmp_path / "plain.mlrh")
    call("export", tmp_path / "plain.mlrh", "-o", tmp_path / "plain.onnx")
    call("export", tmp_path / "plain.mlrh", "-o", tmp_path / "plain.onnx")  # an ONNX file is replaced
    np.testing.assert_array_equal(run(onnx.load(tmp_path / "plain.onnx"), {"X": X})["label"], model.predict(X))


@pytest.mark.parametrize("name", ["notes.onnx", "notes.json", "notes.txt"])
def test_a_file_that_is_no_onnx_file_is_not_replaced(tmp_path, name):
    X, Y = make_multilabel(60)
    persistence.save(MLRHClassifier().fit(X, Y), tmp_path / "plain.mlrh")
    (tmp_path / name).write_text("my notes")
    with pytest.raises(ValueError, match="exists and is not an ONNX file"):
        call("export", tmp_path / "plain.mlrh", "-o", tmp_path / name)
    assert (tmp_path / name).read_text() == "my notes"


def test_a_full_disk_is_told_with_the_path(model, tmp_path):
    resource = pytest.importorskip("resource")
    persistence.save(model, tmp_path / "things.mlrh")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            call("export", tmp_path / "things.mlrh")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(tmp_path / "things.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["things.mlrh"]


def test_standard_output_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="can't be written to standard output; give its name with --output"):
        call("export", "plain.mlrh", "-o", "-")
    assert list(tmp_path.iterdir()) == []
