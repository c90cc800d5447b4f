"""Tables whose labels are partly unknown, or written otherwise than in training, by every command that reads labels."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from samples import make_multilabel
from typer.testing import CliRunner

from mlrh import persistence
from mlrh.automatic import choose
from mlrh.cli import app
from mlrh.cli._decided import fit_command
from mlrh.data import MultilabelData, read, write
from mlrh.estimators import auto
from mlrh.web._store import Fingerprints, Store

X, Y = make_multilabel(90, n_features=4, n_labels=3, seed=5)
NAMES, LABELS = ("w", "x", "y", "z"), ("red", "round", "soft")
HIDDEN = np.random.default_rng(0).random(Y.shape) < 0.1
PARTLY = np.where(HIDDEN, -1, Y).astype(np.int8)
COMPLETE = ~HIDDEN.any(axis=1)
FAST = ("--quality", "fast", "--scores", "linear", "--label-space", "cardinality", "--folds", "2", "--jobs", "1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with things.csv, where some labels are empty cells, and complete.csv, the rows that have them all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto, "LINEAR_C", (0.1, 1.0))
    write(MultilabelData(X, PARTLY, NAMES, LABELS, "things"), "things.csv")
    write(MultilabelData(X[COMPLETE], PARTLY[COMPLETE], NAMES, LABELS, "complete"), "complete.csv")
    return tmp_path


@pytest.fixture
def model(folder):
    model = choose(read("complete.csv", LABELS), scores="linear", label_space="cardinality", n_folds=2, n_jobs=1)
    persistence.save(model, "model.mlrh")
    return model


def run(*arguments):
    """The finished command, which must have gone well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def evaluated(*arguments):
    return json.loads(run("evaluate", "model.mlrh", *arguments, "--json").stdout)


def test_evaluate_measures_the_rows_whose_labels_are_all_known(model):
    assert evaluated("things.csv", "--unknown", "") == evaluated("complete.csv")
    n_left = int((~COMPLETE).sum())
    told = " ".join(run("evaluate", "model.mlrh", "things.csv", "--unknown", "").stderr.split())
    assert f"Note: things: {n_left} of 90 rows have unknown labels and are left out." in told


def test_compare_is_that_of_the_rows_whose_labels_are_all_known(folder):
    for name in ("things", "complete"):
        options = ("--labels", ",".join(LABELS), "--unknown", "", "--method", "mlrh-linear", "--jobs", "1", "-o", name)
        run("compare", f"{name}.csv", *options)
    found = [
        [json.loads(line) for line in (folder / name / "records.jsonl").read_text().splitlines()]
        for name in ("things", "complete")
    ]
    # The plan is a hash of the numbers of the data.
    by_fold = [{record["fold"]: (record["plan"], record["metrics"]) for record in records} for records in found]
    assert by_fold[0] == by_fold[1] and len(by_fold[0]) == 5


def test_rows_without_any_complete_one_are_refused_in_one_sentence(model, failure):
    write(MultilabelData(X[~COMPLETE], PARTLY[~COMPLETE], NAMES, LABELS, "none"), "none.csv")
    line = failure("evaluate", "model.mlrh", "none.csv", "--unknown", "")
    assert "rows have unknown labels, so that there is none to measure on; complete some." in line
    assert "none.csv, line " in failure("evaluate", "model.mlrh", "none.csv")
    assert "(--unknown, or unknown= in Python, takes unknown ones)" in failure("evaluate", "model.mlrh", "none.csv")


def sets_file(path, separator):
    lines = [",".join([*NAMES, "tags"])]
    for values, own in zip(X, Y, strict=True):
        tags = separator.join(name for name, value in zip(LABELS, own, strict=True) if value)
        lines.append(",".join([*map(repr, values.tolist()), tags]))
    Path(path).write_text("\n".join(lines) + "\n")


def test_evaluate_reads_label_sets_with_any_separator_for_any_model(model, failure):
    write(MultilabelData(X, Y.astype(np.int8), NAMES, LABELS, "all"), "all.csv")
    expected = evaluated("all.csv")
    sets_file("sets.csv", " / ")
    assert evaluated("sets.csv", "--labels", "tags", "--separator", " / ") == expected
    line = failure("evaluate", "model.mlrh", "sets.csv", "--separator", " / ")
    assert "--separator is for one column of label sets; name that column with --labels." in line
    sets_file("training.csv", ";")
    own = choose(read("training.csv", ["tags"], separator=";"), scores="linear", label_space="cardinality", n_jobs=1)
    persistence.save(own, "model.mlrh")
    expected = evaluated("training.csv")
    assert evaluated("sets.csv", "--separator", " / ") == expected
    assert evaluated("sets.csv") != expected  # read with the model's own separator, they are other labels


def test_rows_of_also_may_have_unknown_labels(model, failure):
    store = Store("confirmed.csv", LABELS, Fingerprints(X[COMPLETE], NAMES))
    for row in range(1, 31):
        store.keep(row, Y[COMPLETE][row - 1].astype(float))
    decided = ("fit", "complete.csv", "--decided", "confirmed.csv", "-o", "both.mlrh")
    also = ("--also", "things.csv", "--unknown", "")
    for like in ((), ("--like", "model.mlrh")):
        run(*decided, *also, *(like or FAST))
        assert persistence.load("both.mlrh").settings["n_rows"] == 120
    assert "--unknown is for the labels in --also" in failure(*decided, "--unknown", "")
    assert "--unknown is for the labels in --also" in failure("tag", "model.mlrh", "complete.csv", "--unknown", "")
    command = fit_command("model.mlrh", "a.csv", "b.csv", "c.mlrh", also="things.csv", unknown="", format=None)
    assert command[-6:] == ["--also", "things.csv", "--unknown", "", "--", "a.csv"]


def test_the_comparison_that_fit_recommends_is_of_the_same_table():
    said = ["--labels", "red,round", "--unknown", "", "--ignore", "soft", "--nominal", "w"]
    told = run("fit", "things.csv", *said, *FAST).stderr
    (line,) = [line for line in told.splitlines() if line.startswith("For an estimate that isn't: ")]
    given = shlex.split(line.partition(": ")[2])
    assert given[:3] == ["mlrh", "compare", "things.csv"]
    assert given[-2:] == ["--method", "mlrh-auto"]
    pairs = [sorted(zip(own[::2], own[1::2], strict=True)) for own in (given[3:-2], said)]
    assert pairs[0] == pairs[1]


def test_a_public_set_says_itself_what_is_known(failure):
    assert "leave out all options on columns but --ignore" in failure("fit", "emotions", "--unknown", "")
