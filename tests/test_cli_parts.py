"""`mlrh fit` and `mlrh predict` over many files: here, and by workers of a cluster."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import running_in_session, wait_until
from samples import make_multilabel

from mlrh.__main__ import main
from mlrh.cli._parts import client_of
from mlrh.data import FileParts, MultilabelData, write
from mlrh.persistence import load, save

LABELS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with three CSV files of rows of one model, of different scales by column."""
    folder = tmp_path_factory.mktemp("parts")
    X, Y = make_multilabel(360)
    X = X * np.arange(1, 7)
    for number, rows in enumerate((slice(0, 150), slice(150, 240), slice(240, 360))):
        data = MultilabelData(X[rows], Y[rows].astype(np.int8), tuple("uvwxyz"), tuple(LABELS), "part")
        write(data, folder / f"part{number}.csv")
    return folder


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mlrh", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0


def fit_arguments(folder, output):
    return ["fit", folder / "part*.csv", "--labels", ",".join(LABELS), "--folds", "2", "--jobs", "1", "-o", output]


@pytest.fixture(scope="module")
def model_file(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "here.mlrh"
    with pytest.MonkeyPatch.context() as patch:
        run(patch, *fit_arguments(folder, path), "--label-space", "cardinality")
    return path


def test_a_fit_to_several_files_is_the_optimum_for_all_rows(folder, model_file):
    model = load(model_file)
    with FileParts(sorted(folder.glob("part*.csv")), LABELS) as parts:
        X, Y = (np.concatenate(own) for own in zip(*parts, strict=True))
    assert model.settings["n_rows"] == 360 and model.schema.feature_names == tuple("uvwxyz")
    local = type(model.classifier)(**model.classifier.get_params()).fit(model.preprocessor.transform(X), Y)
    assert model.classifier.objective_ == pytest.approx(local.objective_, rel=1e-8)
    # The fit stops within tol of the optimum; coefficients are then right to the root of it.
    np.testing.assert_allclose(model.classifier.coef_, local.coef_, atol=1e-3 * np.abs(local.coef_).max())


def test_predictions_for_several_files_are_those_for_each_and_finished_ones_are_kept(
    folder, model_file, tmp_path, monkeypatch, capsys
):
    answers, one = tmp_path / "answers", tmp_path / "one.csv"
    run(monkeypatch, "predict", model_file, folder / "part*.csv", "--output", answers)
    assert sorted(path.name for path in answers.glob("[!.]*")) == ["part0.csv", "part1.csv", "part2.csv"]
    run(monkeypatch, "predict", model_file, folder / "part1.csv", "--output", one)
    assert (answers / "part1.csv").read_bytes() == one.read_bytes()
    assert capsys.readouterr().err.count("Written: ") == 4
    # Interrupted before the last one, and with the second file's rows changed since:
    (answers / "part2.csv").unlink()
    os.utime(folder / "part1.csv", (time.time() + 5, time.time() + 5))
    untouched = (answers / "part0.csv").stat().st_mtime_ns
    run(monkeypatch, "predict", model_file, folder / "part*.csv", "--output", answers)
    told = capsys.readouterr().err
    assert told.count("Finished before: ") == 1 and told.count("Written: ") == 2
    assert (answers / "part0.csv").stat().st_mtime_ns == untouched
    os.utime(folder / "part1.csv", (time.time() - 60, time.time() - 60))


@pytest.mark.parametrize("options", [["--marginals"], ["--top", "2"], ["--id", "u"], ["--append"], ["--format", "csv"]])
def test_answers_that_were_made_with_other_options_are_made_anew(
    options, folder, model_file, tmp_path, monkeypatch, capsys
):
    answers, direct = tmp_path / "answers", tmp_path / "direct"
    command = ["predict", model_file, folder / "part*.csv", "--output"]
    run(monkeypatch, *command, answers)
    capsys.readouterr()
    run(monkeypatch, *command, answers, *options)
    assert capsys.readouterr().err.count("Written: ") == 3
    run(monkeypatch, *command, direct, *options)
    for number in range(3):
        name = f"part{number}.csv"
        assert (answers / name).read_bytes() == (direct / name).read_bytes()


def test_answers_that_a_stopped_command_with_other_options_left_are_made_anew(
    folder, model_file, tmp_path, monkeypatch, capsys
):
    answers, first = tmp_path / "answers", folder / "part0.csv"
    run(monkeypatch, "predict", model_file, folder / "part*.csv", "--output", answers)
    # As if it had been stopped after the first file:
    run(monkeypatch, "predict", model_file, f"{first}*", "--output", answers, "--marginals")
    capsys.readouterr()
    run(monkeypatch, "predict", model_file, folder / "part*.csv", "--output", answers, "--marginals")
    told = capsys.readouterr().err
    assert told.count("Finished before: ") == 1 and told.count("Written: ") == 2
    assert all("P(a)" in (answers / f"part{number}.csv").read_text() for number in range(3))


def test_answers_of_another_model_are_made_anew_however_old_its_file_is(
    folder, model_file, tmp_path, monkeypatch, capsys
):
    answers, direct, other = tmp_path / "answers", tmp_path / "direct", tmp_path / "other.mlrh"
    model = load(model_file)
    model.classifier.coef_ *= -1
    save(model, other)
    os.utime(other, (1e9, 1e9))
    run(monkeypatch, "predict", model_file, folder / "part*.csv", "--output", answers)
    capsys.readouterr()
    run(monkeypatch, "predict", other, folder / "part*.csv", "--output", answers)
    assert capsys.readouterr().err.count("Written: ") == 3
    run(monkeypatch, "predict", other, folder / "part1.csv*", "--output", direct)
    assert (answers / "part1.csv").read_bytes() == (direct / "part1.csv").read_bytes()


def test_answers_for_rows_of_another_folder_are_made_anew_and_further_files_leave_the_others(
    folder, model_file, tmp_path, monkeypatch, capsys
):
    answers, elsewhere, rows = tmp_path / "answers", tmp_path / "elsewhere", (folder / "part1.csv").read_bytes()
    elsewhere.mkdir()
    for name in ("part0.csv", "other.csv"):
        (elsewhere / name).write_bytes(rows)
        os.utime(elsewhere / name, (1e9, 1e9))
    command = ["predict", model_file, "--output", answers]
    run(monkeypatch, *command, folder / "part0.csv*")
    run(monkeypatch, *command, folder / "part*.csv")
    run(monkeypatch, *command, elsewhere / "other*")
    assert capsys.readouterr().err.count("Finished before: ") == 1
    run(monkeypatch, *command, elsewhere / "part*")
    assert "Written: " in capsys.readouterr().err
    assert (answers / "part0.csv").read_bytes() == (answers / "other.csv").read_bytes()
    run(monkeypatch, *command, folder / "part*.csv")
    assert capsys.readouterr().err.count("Written: ") == 3


def test_what_does_not_fit_together_is_one_sentence(folder, model_file, tmp_path, failure):
    labels = ["--labels", ",".join(LABELS)]
    assert "No file matches" in failure("fit", tmp_path / "*.csv", *labels, "-o", tmp_path / "m.mlrh")
    assert "needs a name; give it with --output" in failure("fit", folder / "part*.csv", *labels)
    target = ["-o", tmp_path / "m.mlrh"]
    assert "need all rows in memory" in failure("fit", folder / "part*.csv", *labels, *target, "--kernel", "rbf")
    assert "say how many with --workers" in failure("fit", folder / "part*.csv", *labels, *target, "--memory", "1GB")
    one = folder / "part0.csv"
    assert "say how many with --workers" in failure("fit", one, *labels, *target, "--memory", "1GB")
    assert "say how many with --workers" in failure("predict", model_file, one, "--memory", "1GB")
    for memory in ("inf", "4XB", "4", "0GB", "-4GB", "1e9GB", "99MB"):
        wanted = f"--memory must be a size such as 500MB or 4GB, and at least 100MB; got {memory!r}."
        assert wanted in failure("fit", one, *labels, *target, "--workers", "1", f"--memory={memory}")
    both = ["--workers", "1", "--scheduler", "tcp://127.0.0.1:1"]
    assert "give one of them" in failure("fit", folder / "part*.csv", *labels, *target, *both)
    assert "give a folder with --output, not -" in failure("predict", model_file, folder / "part*.csv")


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 3])
def test_as_many_workers_start_as_are_asked_for(n_workers):
    with client_of(None, n_workers, "1GB") as client:
        assert len(client.nthreads()) == n_workers


@pytest.mark.slow
def test_workers_fit_and_predict_the_same_as_this_process(folder, model_file, tmp_path, monkeypatch):
    by_workers = tmp_path / "workers.mlrh"
    local_cluster = ["--workers", "2", "--memory", "2GB"]
    run(monkeypatch, *fit_arguments(folder, by_workers), "--label-space", "cardinality", *local_cluster)
    here, there = load(model_file), load(by_workers)
    assert there.settings == here.settings
    np.testing.assert_allclose(there.classifier.coef_, here.classifier.coef_, rtol=1e-6)
    run(monkeypatch, "predict", by_workers, folder / "part*.csv", "-o", tmp_path / "there", *local_cluster)
    run(monkeypatch, "predict", by_workers, folder / "part*.csv", "-o", tmp_path / "here")
    for number in range(3):
        name = f"part{number}.csv"
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


@pytest.mark.slow
def test_a_scheduler_that_is_named_has_the_files_fitted_and_answered(folder, model_file, tmp_path, monkeypatch):
    target = tmp_path / "scheduler.mlrh"
    with client_of(None, 2, "2GB") as client:
        named = ["--scheduler", client.scheduler.address]
        run(monkeypatch, *fit_arguments(folder, target), "--label-space", "cardinality", *named)
        run(monkeypatch, "predict", target, folder / "part*.csv", "-o", tmp_path / "there", *named)
        assert len(client.nthreads()) == 2  # a cluster of others goes on
    np.testing.assert_allclose(load(target).classifier.coef_, load(model_file).classifier.coef_, rtol=1e-6)
    run(monkeypatch, "predict", target, folder / "part0.csv", "-o", tmp_path / "here.csv")
    assert (tmp_path / "there" / "part0.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_too(folder, tmp_path):
    command = [sys.executable, "-m", "mlrh", *map(str, fit_arguments(folder, tmp_path / "m.mlrh")), "--workers", "2"]
    program = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    # The program, two workers, and the tracker of their resources.
    wait_until(lambda: len(running_in_session(program.pid)) >= 4)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to all of them
    assert program.wait(timeout=120) == 130
    wait_until(lambda: not running_in_session(program.pid), seconds=30)
    assert not (tmp_path / "m.mlrh").exists()
