"""Names and cells from strangers: what a spreadsheet would run, a terminal would obey, or a reader would misread."""

import csv
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from samples import one_sentence

from mlrh import cli
from mlrh.cli import _output
from mlrh.cli._experiments import _on_bar
from mlrh.data import DataError, MultilabelData, read, write
from mlrh.data._tables import guarded, unguarded
from mlrh.web import known_of
from mlrh.web._store import Store

DANGEROUS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\t0", "'=1", "''=1", "-", "--1", "-1;2"]
HARMLESS = ["-1.5", "+3", "-1e-5", "a=b", "happy", "'quoted'", "", " =1", "1-2"]
CONTROL = "a\x1b]0;x\x07\x9b31m\u202eb\r\x08"


# Formulas


@given(st.one_of(st.text(), st.text("'=+-@\t\r1.e"), st.sampled_from(DANGEROUS + HARMLESS)))
def test_a_guarded_text_is_no_formula_and_comes_back(text):
    assert unguarded(guarded(text)) == text
    assert guarded(text)[:1] not in tuple("=+-@\t\r") or re.fullmatch(
        r"[+-][0-9.e+\-infaINFAty]+", guarded(text).rstrip()
    )


def test_texts_are_guarded_where_a_spreadsheet_would_run_them_and_numbers_stay_numbers():
    assert [guarded(text) for text in DANGEROUS] == [f"'{text}" for text in DANGEROUS]
    assert [guarded(text) for text in HARMLESS] == HARMLESS


def cells_of(text):
    return list(csv.reader(io.StringIO(text, newline="")))


def test_no_cell_of_predictions_is_a_formula_and_every_name_can_be_had_back(tmp_path):
    path = tmp_path / "sets.csv"
    chunks = [
        [{"row": 1, "labels": DANGEROUS + HARMLESS[:-3], "probability": 0.5, **{f"P({n})": 0.1 for n in DANGEROUS}}]
    ]
    columns = ["row", "labels", "probability", *(f"P({name})" for name in DANGEROUS)]
    _output.write_predictions(chunks, columns, str(path), "csv")
    header, row = cells_of(path.read_bytes().decode())
    assert all(cell[:1] not in tuple("=+-@\t\r") for cell in [*header, *row])
    # A spreadsheet that splits at semicolons finds none either.
    pieces = re.findall(r"(?:[^;\\]|\\.)+", row[1], re.DOTALL)
    assert all(piece[:1] not in tuple("=@\t\r") for piece in pieces)
    names = [unguarded(re.sub(r"\\(.)", r"\1", piece, flags=re.DOTALL)) for piece in pieces]
    assert names == [name for name in DANGEROUS + HARMLESS[:-3] if name]


@pytest.mark.parametrize("name", [*DANGEROUS, *HARMLESS[:-3]])
def test_a_file_of_decisions_has_no_formula_and_is_gone_on_from(name, tmp_path):
    path = tmp_path / "c.csv"
    Store(path, [name or "x", "sad"], ["x" * 10] * 2).keep(1, np.array([1, np.nan]))
    header = cells_of(path.read_bytes().decode())[0]
    assert header[1] == guarded(name or "x")
    again = Store(path, [name or "x", "sad"], ["x" * 10] * 2)
    assert again.known[0, 0] == 1
    assert known_of(path, 2, [name or "x", "sad"])[0, 0] == 1


# Terminals


def test_control_characters_are_shown_as_python_writes_them_and_other_letters_stay():
    assert _output.visible(CONTROL) == r"a\x1b]0;x\x07\x9b31m\u202eb\r\x08"
    assert _output.visible("é ß 漢字 🎵\nnext") == "é ß 漢字 🎵\nnext"


def test_no_control_character_of_a_name_reaches_the_terminal(tmp_path, monkeypatch, capsys):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, color_system=None)
    _output.say(console, f"Written: {CONTROL}")
    console.print(_output.facts({"data": CONTROL}))
    with _output.warnings_as_notes(console):
        import warnings

        warnings.warn(CONTROL, UserWarning, stacklevel=1)
    monkeypatch.setattr(sys, "argv", ["mlrh", "fit", f"{CONTROL}.csv", "--labels", CONTROL])
    monkeypatch.chdir(tmp_path)
    assert cli.run() == 2
    text = out.getvalue() + capsys.readouterr().err
    assert text.count(r"\x1b]0;x\x07\x9b31m\u202eb") == 4
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_the_names_on_the_bars_of_experiments_are_shown_as_they_are():
    class Bar:
        def add_task(self, text, **_):
            self.texts = [text]

        def update(self, _, *, running, **__):
            self.texts.append(running)

    class Task:
        dataset, family = f"[red]{CONTROL}", "br-lr"

    class Progress:
        n_tasks, n_done, seconds_left, failure, running = 2, 1, None, "", [Task]

    bar = Bar()
    _on_bar(bar)(f"[b]{CONTROL}", Progress)
    for text in bar.texts:
        assert "\x1b" not in text and r"\x1b" in text and text.startswith(r"\[")


def test_predictions_on_a_terminal_show_control_characters_and_in_a_pipe_stay_as_they_are(monkeypatch):
    for is_terminal in (True, False):
        out = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(out, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stdout", out)
        _output.write_predictions([[{"labels": ["a\x1b[2J"]}]], ["labels"], "-", "csv")
        assert out.buffer.getvalue() == (rb"labels" + b"\n" + (rb"a\x1b[2J" if is_terminal else b"a\x1b[2J") + b"\n")


# What went wrong, in a sentence

SYSTEM = {
    "full disk": (OSError(28, "No space left on device", "out/records.jsonl"), "out/records.jsonl: No space left on"),
    "two files": (OSError(18, "Invalid link", "a", None, "b"), "a and b: Invalid link."),
    "no file": (OSError(28, "No space left on device"), "No space left on device."),
    "own words": (FileExistsError("out is a file; name a folder."), "out is a file; name a folder."),
    "memory": (MemoryError(), "There is not enough memory; use a smaller file"),
    "array": (MemoryError("Unable to allocate 7 TiB"), r"not enough memory \(Unable to allocate 7 TiB\); use"),
}


@pytest.mark.parametrize("case", SYSTEM)
def test_an_error_of_the_system_is_a_sentence_with_the_file_and_exit_code_2(case, monkeypatch, capsys):
    error, words = SYSTEM[case]

    def fail(**_):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert cli.run() == 2
    told = capsys.readouterr().err
    assert re.match(f"Error: .*{words}", told) and "Errno" not in told and told.count("\n") == 1


# What is written can be read


def toy(names=("x",), labels=("y",), categories=None, X=None, n_rows=3):
    X = np.zeros((n_rows, len(names))) if X is None else X
    return MultilabelData(X, np.ones((n_rows, len(labels)), np.int8), names, labels, "toy", categories or {})


REFUSED = {
    "blank feature": (toy(names=("  ",)), ("csv", "parquet"), "a name for each"),
    "blank label": (toy(labels=("\t",)), ("csv", "parquet"), "a name for each"),
    "no rows": (toy(n_rows=0), ("csv", "parquet", "arff"), "row"),
    "numbers": (toy(names=("1.5",), labels=("2",)), ("csv",), "must have a name that is no number"),
    "long name": (toy(names=("x" * 200_000,)), ("csv",), "at most 131072 characters"),
    "separator": (toy(names=("sep=;",), labels=()), ("csv",), "tells the separator"),
    "percent": (toy(categories={"x": ("10%", "20%")}), ("csv",), "row 1 of feature 'x' must be plain numbers"),
    "few words": (
        toy(categories={"x": ("1", "2", "many")}, X=np.array([[0.0], [1], [2]])),
        ("csv",),
        "row 3 of feature 'x' must be a number; found 'many'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_read_would_refuse_write_refuses_and_leaves_no_file(case, tmp_path):
    data, suffixes, words = REFUSED[case]
    for suffix in suffixes:
        with pytest.raises(DataError, match=words) as error:
            write(data, tmp_path / f"toy.{suffix}")
        assert one_sentence(error) and list(tmp_path.iterdir()) == []


STARTS = [
    "\ufeff",
    "\ufeffa",
    "@data",
    "@relation r",
    "% a",
    "# 1:2",
    "PAR1",
    "BZh91AY&SY",
    "PK\x03\x04",
    "1 2 3",
    "0,1 2:3",
]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "arff", "parquet"])
@pytest.mark.parametrize("name", STARTS)
def test_a_first_name_that_looks_like_the_start_of_another_format_comes_back(name, suffix, tmp_path):
    if suffix == "arff" and "\x03" in name:
        name = "PK"
    path = tmp_path / f"toy.{suffix}"
    write(toy(names=(name, "b"), X=np.arange(6.0).reshape(3, 2)), path)
    found = read(path, ["y"])
    assert found.feature_names == (name, "b") and found.X.tolist() == [[0, 1], [2, 3], [4, 5]]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text(max_size=6), min_size=2, max_size=4), st.sampled_from(["csv", "arff", "parquet"]))
@example(["\ufeff", " "], "csv")
def test_names_come_back_or_are_refused(names, suffix):
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, f"toy.{suffix}")
        try:
            write(toy(names=tuple(names[:-1]), labels=(names[-1],)), path)
        except DataError as error:
            assert str(folder) in str(error) or "ARFF can't hold" in str(error)
            return
        import warnings

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*taken as names", UserWarning)
            found = read(path, [names[-1]])
    assert found.feature_names == tuple(names[:-1]) and found.label_names == (names[-1],)


# Columns that mix numbers and words


@pytest.mark.parametrize(
    "cells, words",
    [
        (["1", "-", "3", "-"], r"column 'x' holds numbers, and words in 2 rows that count as missing \(line 3: '-'\)"),
        (["1", "NA", " ? ", "4"], r"and words in 1 rows that count as missing \(line 4: '\?'\)"),
        (
            ["low", "high", "12", "mid"],
            r"column 'x' holds words, and numbers in 1 rows that count as words \(line 4: '12'\)",
        ),
    ],
)
def test_a_column_that_mixes_numbers_and_words_is_told_by_line_and_value(cells, words, tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    with pytest.warns(UserWarning, match=rf"toy\.csv: {'.*' if words[0] == 'a' else ''}{words}\.$") as caught:
        read(path, ["y"])
    assert len(caught) == 1


@pytest.mark.parametrize("cells", [["1", "NA", "", "nan"], ["NA", "DE", "", "-"], ["-", "-", "?", ""]])
def test_a_column_of_one_kind_is_not_told(cells, tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    read(path, ["y"])  # warnings are errors


@pytest.mark.parametrize("content", [b"\x1f\x8b" + b"\xff" * 50, b"PAR1" + b"\xff" * 50, b"\x1f\x8b"])
def test_a_damaged_file_is_not_replaced_by_predictions(content, tmp_path):
    (tmp_path / "sets.csv").write_bytes(content)
    with pytest.raises(ValueError, match="exists and holds no predictions") as error:
        _output.check_replaced(str(tmp_path / "sets.csv"))
    assert one_sentence(error)


def test_a_row_number_of_thousands_of_digits_is_refused_with_its_line(tmp_path):
    path = tmp_path / "decisions.csv"
    path.write_text(f"row,a\n{'1' * 5000},1\n")
    with pytest.raises(DataError, match=r"decisions\.csv, line 2: column row must hold whole numbers; found '1111"):
        known_of(path, 3)
