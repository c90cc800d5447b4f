"""The commands that run experiments, and the list of data sets, as a user sees them."""

import os

import pytest
from experiment_samples import small_dataset
from typer.testing import CliRunner

from mlrh.cli import app
from mlrh.cli._experiments import METHODS, left_in_words
from mlrh.data import write
from mlrh.experiments._methods import FAMILIES

invoke = CliRunner().invoke
PYTHON = (
    "list[",
    "<str",
    "<bool",
    "<path",
    "<int",
    "<float",
    "INTEGER",
    "FLOAT",
    "<list",
)  # of either release of typer


@pytest.fixture
def songs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(small_dataset(n_samples=40).data, tmp_path / "songs.csv")
    return tmp_path


def test_datasets_lists_the_eleven_public_sets_with_their_numbers(tmp_path, monkeypatch):
    monkeypatch.delenv("MLRH_DATA", raising=False)
    monkeypatch.setenv("MLRH_CACHE", str(tmp_path))
    result = invoke(app, ["datasets"])
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert len(rows) == 12
    assert rows["delicious"][:5] == ["16105", "500", "983", "19.020", "25"]
    assert all("downloaded" in line for line in result.stdout.splitlines()[1:])


@pytest.mark.skipif(not os.environ.get("MLRH_DATA"), reason="set MLRH_DATA to a folder with the public data sets")
def test_datasets_says_which_are_in_the_folder():
    result = invoke(app, ["datasets"])
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:]] == ["folder"] * 11


def test_compare_prints_a_table_and_writes_a_report(songs):
    options = ["--labels", "a,b,c", "--method", "mlrh-linear", "--method", "br-lr", "--jobs", "1"]
    result = invoke(app, ["compare", "songs.csv", *options])
    assert result.exit_code == 0, result.stderr
    assert "MLRH-WTA (linear)" in result.stdout and "BR-LR" in result.stdout
    found = {path.name for path in (songs / "songs-comparison").iterdir()}
    assert found == {"records.jsonl", "report.html", "report.md"}
    assert len((songs / "songs-comparison" / "records.jsonl").read_text().splitlines()) == 10


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["compare", "songs.csv", "--labels", "a,b,c", "--method", "magic"], "Unknown method 'magic'; the methods are"),
        (["compare", "songs.csv", "--labels", "a,zebra"], "zebra"),
        (["compare", "songs.csv"], "label"),
        (["compare", "nowhere.arff"], "nowhere.arff"),
        (["reproduce", "--data", "scen", "--jobs", "1", "-o", "out"], "scen"),
        (["datasets", "--data-dir", "nowhere"], "must be an existing folder"),
    ],
)
def test_an_error_is_one_sentence_that_names_what_is_wrong(songs, arguments, words):
    error = invoke(app, arguments).exception
    assert isinstance(error, ValueError | OSError) and words in str(error) and "\n" not in str(error)
    assert not (songs / "out").exists()


def test_the_help_lists_every_method():
    assert METHODS.split(", ") == list(FAMILIES)


@pytest.mark.parametrize("command", [command.callback.__name__ for command in app.registered_commands])
def test_the_help_speaks_of_files_and_columns_not_of_types_of_python(command):
    text = invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    options = [line for line in text.splitlines() if " --" in line and "--help" not in line]
    assert options and not [line for line in options if any(word in line for word in PYTHON)]


def test_the_options_of_fit_stand_in_panels_by_what_they_are_about():
    text = invoke(app, ["fit", "--help"], env={"COLUMNS": "120", "TERM": "dumb"}).stdout
    panels = ["Options", "What columns hold", "How the model is chosen", "How rows are answered"]
    panels += ["Rows that were tagged by hand", "Several files"]
    starts = [text.index(f"─ {panel} ─") for panel in panels]
    assert starts == sorted(starts)
    for option, place in {
        "--output": 0,
        "--text": 1,
        "--time": 2,
        "--refuse-below": 3,
        "--like": 4,
        "--memory": 5,
    }.items():
        assert f" {option} " in text[starts[place] : [*starts, None][place + 1]]


def test_too_few_rows_for_the_folds_are_refused(tmp_path):
    write(small_dataset(n_samples=12).data, tmp_path / "few.csv")
    result = invoke(app, ["compare", str(tmp_path / "few.csv"), "--labels", "a,b,c"])
    assert "few has 12 rows" in str(result.exception)


@pytest.mark.parametrize("seconds, words", [(None, ""), (0.2, "1 s left"), (75, "75 s left"), (1000, "17 min left")])
def test_the_time_left_is_said_in_words(seconds, words):
    assert left_in_words(seconds) == words
