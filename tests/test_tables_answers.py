"""Text, identifiers and unknown labels together with calibration, thresholds, refusal, many files and export."""

import csv
import io
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from articles import COLUMNS, articles, csv_of
from samples import one_sentence
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

from mlrh import automatic, persistence
from mlrh._indicators import UNKNOWN
from mlrh._words import impossible_note
from mlrh.automatic import choose
from mlrh.cli import app
from mlrh.data import DataError, MultilabelData, load_digit_scenes, read, schema_of
from mlrh.estimators import auto
from mlrh.export import to_onnx

DATA = load_digit_scenes(120, part="train")
HIDDEN = np.random.default_rng(0).random(DATA.Y.shape) < 0.05
Y = np.where(HIDDEN, UNKNOWN, DATA.Y).astype(np.int8)
FAST = {"scores": "linear", "quality": "fast", "label_space": "cardinality", "n_folds": 2, "n_jobs": 1}
TRAIN, _ = articles(120)
TEST, _ = articles(30, seed=1)


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (1.0, 100.0))


def known(Y):
    return MultilabelData(DATA.X, Y, DATA.feature_names, DATA.label_names, "digits")


def run(*arguments):
    """The finished command, which must have gone well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_the_temperature_is_that_of_held_out_rows_without_unknown_labels(monkeypatch):
    given = []
    original = automatic.calibration_of
    monkeypatch.setattr(automatic, "calibration_of", lambda *parts: given.append(parts) or original(*parts))
    model = choose(known(Y), calibrate=True, thresholds="f1_macro", **FAST)
    distributions, truths = given[-1]  # those of all folds come last
    is_complete = ~HIDDEN.any(axis=1)
    found = sorted(map(tuple, np.vstack(truths).tolist()))
    assert found == sorted(map(tuple, Y[is_complete].tolist()))

    def loss(log_temperature):
        tempered = [distribution.temper(np.exp(log_temperature)) for distribution in distributions]
        return -sum(own.log_prob(truth).sum() for own, truth in zip(tempered, truths, strict=True))

    # Rows that are imagined for safety count as much as one row of these.
    assert np.log(model.rule.temperature) == pytest.approx(minimize_scalar(loss).x, abs=0.1)
    assert np.isfinite(model.rule.thresholds).all()
    assert all(np.isfinite(values).all() for values in model.validation.values())
    (note,) = [note for note in model.settings["notes"] if "unknown labels" in note]
    assert note.endswith("the measures are those of the other rows, which calibration and thresholds are by.")


@pytest.mark.parametrize("options", [{"calibrate": True}, {"thresholds": "f1_micro"}, {"refuse_below": 0.5}])
@pytest.mark.parametrize("n_complete", [0, 5])
def test_a_rule_needs_complete_rows_in_two_folds(monkeypatch, options, n_complete):
    first, second = np.arange(60), np.arange(60, 120)
    monkeypatch.setattr(auto.MLRHAuto, "_folds", lambda self, task: [(first, second), (second, first)])
    hidden = DATA.Y.copy()
    rows = np.arange(n_complete, 120)  # so that all complete rows are in one fold
    hidden[rows, rows % 10] = UNKNOWN
    with pytest.raises(DataError, match=f"^digits: .*, and {n_complete} of 120 rows have such labels") as raised:
        choose(known(hidden), **options, **FAST)
    assert one_sentence(raised)


def test_a_share_of_no_rows_needs_no_note():
    assert impossible_note(float("nan"), "the model") == ""
    assert "6% of the true sets" in impossible_note(0.06, "the model")


def test_a_table_of_text_is_calibrated_refused_saved_and_appended_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text(csv_of(TRAIN))
    (tmp_path / "test.csv").write_text(csv_of(TEST))
    options = ("--quality", "fast", "--scores", "linear", "--folds", "2", "--jobs", "1", "--time", "600")
    run("fit", "train.csv", "--labels", "tags", *options, "--calibrate", "--refuse-below", "0.9")
    model = persistence.load("train.mlrh")
    answer = model.answer(model.distribution(read("test.csv", (), schema=model.schema)))
    assert model.rule.temperature != 1 and 0 < answer.is_answered.sum() < len(TEST)
    rows = list(csv.DictReader(io.StringIO(run("predict", "train.mlrh", "test.csv").stdout)))
    assert list(rows[0]) == ["row", "id", "url", "labels", "probability", "answered"]
    run("predict", "train.mlrh", "test.csv", "--append", "-o", "answered.parquet")
    found = pq.read_table("answered.parquet").to_pylist()
    assert list(found[0]) == [*COLUMNS, "labels", "probability", "answered"]
    for own in (rows, found):
        assert [int(row["answered"]) for row in own] == answer.is_answered.astype(int).tolist()
        assert all(row["answered"] in (1, "1") or not row["labels"] for row in own)
        np.testing.assert_allclose([float(row["probability"]) for row in own], answer.probability, rtol=1e-5)
    assert [[row[name] for name in COLUMNS] for row in found] == TEST
    with pytest.raises(ValueError, match="text or dates can't be exported") as raised:
        to_onnx(model)
    assert one_sentence(raised)


# Many files


def parts_in(folder, columns, n_files=2):
    """CSV files of 40 rows with a number, these columns (functions of a row's number) and two labels."""
    random = np.random.default_rng(0)
    for number in range(n_files):
        lines = [",".join(["x", *columns, "a", "b"])]
        for row in range(40 * number, 40 * number + 40):
            x = random.normal()
            labels = int(x + random.normal() > 0), int(x - random.normal() < 0)
            lines.append(",".join(map(str, [x, *(own(row) for own in columns.values()), *labels])))
        (folder / f"part{number}.csv").write_text("\n".join(lines))


MANY = ("--labels", "a,b", "-o", "m.mlrh", "--folds", "2", "--jobs", "1", "--time", "600")


def test_identifiers_of_many_files_are_told_once_and_carried_to_their_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts_in(tmp_path, {"song_id": lambda row: 1000 + row, "code": lambda row: 7 + row % 3 * 40 + row // 40})
    result = run("fit", "part*.csv", *MANY, "--nominal", "code")
    assert result.stderr.count("'song_id' is called an identifier") == 1
    schema = persistence.load("m.mlrh").schema
    assert schema.kept == ("song_id",) and schema.feature_names == ("x", "code")
    assert sorted(schema.categories["code"], key=int) == ["7", "8", "47", "48", "87", "88"]  # of both files
    run("predict", "m.mlrh", "part*.csv", "-o", "answers")
    with open(os.path.join("answers", "part1.csv"), newline="") as file:
        assert [row["song_id"] for row in csv.DictReader(file)] == [str(1040 + row) for row in range(40)]


@pytest.mark.parametrize(
    "column, option",
    [(lambda row: f"2024-01-{row % 28 + 1:02d}", ()), (lambda row: f"the word {row}", ("--text", "c"))],
    ids=["dates", "text"],
)
@pytest.mark.filterwarnings("ignore:part0.csv. column 'c' holds dates")
def test_text_and_dates_in_many_files_are_refused_for_workers_by_a_sentence_that_says_what_to_do(
    tmp_path, monkeypatch, column, option
):
    monkeypatch.chdir(tmp_path)
    parts_in(tmp_path, {"c": column})
    with pytest.raises(DataError) as raised:
        schema_of(["part0.csv", "part1.csv"], ["a", "b"], columns=dict.fromkeys(option[1:], "text"))
    assert str(raised.value) == (
        "part0.csv: features of files that are read one by one must be numbers or nominal, and column 'c' holds text "
        "or dates; leave it out (--ignore), name it as nominal (--nominal), or fit without workers."
    )
    run("fit", "part*.csv", *MANY, "--ignore", "c")
    assert persistence.load("m.mlrh").schema.feature_names == ("x",)
