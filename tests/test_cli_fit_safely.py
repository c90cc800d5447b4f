"""What `mlrh fit` and `evaluate` tell: progress in a file too, figures before the model file, tables without gaps."""

import io
import json
import os
import sys
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import make_multilabel
from typer.testing import CliRunner

from mlrh import metrics, persistence
from mlrh.automatic import choose
from mlrh.cli import _experiments, _output, app, run
from mlrh.data import MultilabelData, write
from mlrh.estimators import auto
from mlrh.experiments import RecordFile, Report, read_records
from mlrh.experiments._report import Section

X, Y = make_multilabel(60, n_features=4, n_labels=3, seed=3)
DATA = MultilabelData(X, Y, ("w", "x", "y", "z"), ("red", "round", "soft"), "things")
FIT = ("fit", "things.csv", "--labels", "red,round,soft", "--scores", "linear", "--label-space", "cardinality")
OPTIONS = ("--folds", "2", "--jobs", "1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto, "LINEAR_C", (0.01, 1.0))
    write(DATA, tmp_path / "things.csv")
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_progress_into_a_file_is_a_plain_line_now_and_then(monkeypatch):
    assert "Choosing" not in invoke(*FIT, *OPTIONS).stderr  # a short fit has nothing to tell
    monkeypatch.setattr(_output, "SECONDS_BETWEEN_LINES", 0.0)
    lines = [line for line in invoke(*FIT, *OPTIONS).stderr.splitlines() if line.startswith("Choosing")]
    assert lines == [
        "Choosing: 1 of 3, linear, cardinality with size bias",
        "Choosing: 2 of 3, linear, cardinality with size bias",
        "Choosing: 3 of 3, fit to all rows",
    ]


@pytest.mark.parametrize("place", ["mlrh.automatic.choose", "mlrh.cli._models._tell", "mlrh.persistence.save"])
def test_ctrl_c_before_the_model_is_saved_is_told(place, folder, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stopped)
    result = invoke(*FIT, *OPTIONS)
    assert result.exit_code == 130
    assert result.stderr.endswith("Stopped before the model was saved: there is no file of it.\n")
    assert not (folder / "things.mlrh").exists()


@contextmanager
def no_file_above(n_bytes):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_costs_the_file_and_not_the_figures(folder):
    invoke(*FIT, *OPTIONS)  # compiles what is to be compiled, which would be written too
    (folder / "things.mlrh").unlink()
    with no_file_above(1_000):
        result = invoke(*FIT, *OPTIONS)
    assert isinstance(result.exception, persistence.ModelFileError)
    assert str(result.exception) == "The model can't be written to things.mlrh (File too large)."
    assert "Cross validation of the first, 2 folds:" in result.stderr and "exact match" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["things.csv"]


@pytest.mark.parametrize("files", [("things.csv",), ("part1.csv", "part2.csv")], ids=["one file", "several"])
def test_words_that_cannot_be_written_do_not_cost_the_model(folder, monkeypatch, files):
    for name in files:
        write(DATA, folder / name)
    file = files[0] if len(files) == 1 else "part*.csv"
    monkeypatch.setattr(sys, "argv", ["mlrh", "fit", file, *FIT[2:], *OPTIONS, "--output", "model.mlrh"])
    reading, writing = os.pipe()
    os.close(reading)  # as in: mlrh fit ... 2>&1 | head -3
    with open(writing, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert run() == 0
    assert persistence.load("model.mlrh").settings["n_rows"] == 60 * len(files)


def test_a_full_disk_costs_the_page_of_a_comparison_and_names_it(folder):
    page = Report("Comparison", ("Who wins.",), (Section("Figures", ("x" * 5_000,)),))
    # Not to the standard output of pytest, which is a file and would be full, too.
    full = pytest.raises(OSError, match="File too large")
    with redirect_stdout(io.StringIO()) as printed, no_file_above(1_000), full as error:
        _experiments._publish(page, folder / "out")
    assert "Who wins." in printed.getvalue()
    assert Path(error.value.filename).parent == folder / "out"


def test_a_full_disk_names_the_records_and_keeps_those_it_has(folder):
    record = {"plan": "p", "dataset": "d", "protocol": "nested", "method": "m", "seed": 0, "fold": 0, "metrics": {}}
    with RecordFile(folder / "records.jsonl") as file:
        file.append([record])
        with no_file_above(200), pytest.raises(OSError, match="File too large") as error:
            file.append([{**record, "fold": fold} for fold in range(1, 9)])
    assert error.value.filename == str(folder / "records.jsonl")
    assert read_records(folder / "records.jsonl") == [record]


def test_a_c_at_the_end_of_its_grid_is_noted_by_fit_and_evaluate(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (1e-6, 1e-5, 1e-4))
    told = invoke(*FIT, *OPTIONS).stderr
    note = "Note: The chosen C = 0.0001 is the largest that was tried; beyond it may be a better one."
    assert told.count(note) == 1
    assert note in invoke("evaluate", "things.mlrh", "things.csv").stderr


@pytest.mark.parametrize(("rounds", "which"), [(50, "smallest"), (400, "largest")])
def test_a_number_of_rounds_at_an_end_of_those_tried_is_noted(rounds, which):
    note = f"The chosen number of rounds = {rounds} is the {which} that was tried; beyond it may be a better one."
    assert auto.edge_note({"scores": "boosted", "n_estimators": rounds}) == note
    assert auto.edge_note({"scores": "boosted", "n_estimators": 100}) == ""


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ("linear", "features 4 numbers, standardised; 1 nominal, one 0/1 column per value"),
        ("boosted", "features 4 numbers; 1 nominal, as categories"),
    ],
)
def test_fit_tells_how_the_chosen_model_takes_its_features(scores, told, folder, monkeypatch):
    monkeypatch.setattr(auto, "ROUNDS", (3,))
    lines = (folder / "things.csv").read_text().splitlines()
    kinds = ["kind", *("pqr"[i % 3] for i in range(60))]
    (folder / "things.csv").write_text("\n".join(",".join(both) for both in zip(kinds, lines, strict=True)))
    arguments = ("--labels", "red,round,soft", "--scores", scores, "--label-space", "cardinality", *OPTIONS)
    assert told in " ".join(invoke("fit", "things.csv", *arguments).stderr.split())


def test_many_impossible_true_sets_are_noted(folder):
    always_red = replace(DATA, Y=np.tile(np.array([1, 0, 0], np.int8), (60, 1)))
    model = choose(always_red, scores="linear", label_space="observed", n_folds=2, n_jobs=1)
    persistence.save(model, folder / "one.mlrh")
    share = (Y != [1, 0, 0]).any(axis=1).mean()
    assert f"Note: {share:.0%} of the true sets are impossible to the model" in (
        " ".join(invoke("evaluate", "one.mlrh", "things.csv").stderr.split())
    )


def test_evaluate_has_a_table_of_labels_and_ranking_measures():
    assert invoke(*FIT, *OPTIONS).exit_code == 0
    model = persistence.load("things.mlrh")
    found = json.loads(invoke("evaluate", "things.mlrh", "things.csv", "--json").stdout)
    assert (found["n_rows"], found["n_features"], found["n_labels"]) == (60, 4, 3)
    marginals = model.predict_proba(DATA)
    expected = metrics.ranking(Y, marginals)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert [label["name"] for label in found["labels"]] == ["red", "round", "soft"]
    for label, own in zip(found["labels"], metrics.by_label(Y, model.predict(DATA), marginals), strict=True):
        assert {name: label[name] for name in own} == pytest.approx(own)
    printed = invoke("evaluate", "things.mlrh", "things.csv").stdout
    words = " ".join(printed.split())
    assert words.startswith("data things: 60 rows, 4 features, 3 labels; ")
    assert f"LRAP {expected['lrap']:.4f}" in words and "label rows predicted precision recall F1 AUC" in words
    lines = [line.split()[0] for line in printed.splitlines() if line.startswith(("red", "round", "soft"))]
    assert lines == [DATA.label_names[k] for k in np.argsort(-Y.sum(axis=0), kind="stable")]
    assert "-0.0" not in printed


def test_of_many_labels_the_most_frequent_are_shown_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(_output, "MAX_LABELS", 2)
    invoke(*FIT, *OPTIONS)
    printed = invoke("evaluate", "things.mlrh", "things.csv").stdout
    assert "and 1 label more, all of them with --json" in " ".join(printed.split())


@pytest.mark.parametrize("option", ["--time", "--refuse-below"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1", "much"])
def test_a_number_that_an_option_can_not_have_is_one_sentence(folder, failure, option, value):
    told = failure(*FIT, *OPTIONS, f"{option}={value}")
    assert option in told and told.endswith(".\n")
    assert "Input should be" not in told and "parameter of" not in told
    assert not (folder / "things.mlrh").exists()


def test_a_word_that_an_option_does_not_know_is_told_with_those_it_knows(failure):
    told = failure(*FIT, "--metric", "guess")
    assert "'guess' is not one of 'exact_match', 'hamming', 'f1', 'jaccard', 'log_loss'." in told
    assert "Value error" not in told
