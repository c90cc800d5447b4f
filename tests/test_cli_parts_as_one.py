"""Several files with text, dates, tags or unknown labels are fitted to as the one table that they are parts of."""

import io
import json

import numpy as np
import pytest
from articles import COLUMNS, WORDS, articles, csv_of
from typer.testing import CliRunner

from mlrh import persistence
from mlrh.cli import app
from mlrh.data import DataError, read
from mlrh.data._parts import read_as_one
from mlrh.estimators import auto

ROWS, SETS = articles(150)
CUTS = slice(0, 60), slice(60, 100), slice(100, 150)
FAST = ("--quality", "fast", "--scores", "linear", "--folds", "2", "--jobs", "1", "--time", "600")
LATE = "west"  # a section that only later files have


@pytest.fixture(autouse=True)
def parts(tmp_path, monkeypatch):
    """A folder with all.csv and its three parts; the first lacks a section and a tag that others have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto, "LINEAR_C", (1.0, 100.0))
    rows = [list(row) for row in ROWS]
    for row in rows[CUTS[0]]:
        row[5] = "north" if row[5] == LATE else row[5]
        row[6] = row[6].replace("art;", "").replace("art", "")
    (tmp_path / "all.csv").write_text(csv_of(rows))
    for number, own in enumerate(CUTS):
        (tmp_path / f"part{number}.csv").write_text(csv_of(rows[own]))
    return [str(tmp_path / f"part{number}.csv") for number in range(3)]


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_file_without_any_label_has_rows_without_labels_or_is_refused_where_some_are_unknown(parts, tmp_path):
    empty = tmp_path / "part3.csv"
    empty.write_text(csv_of([[*row[:6], ""] for row in ROWS[:3]]))
    found = read_as_one([parts[0], str(empty)], ["tags"])
    assert (found.Y[-3:] == 0).all()
    with pytest.raises(
        DataError, match="no row lists a label, so that rows without labels and unknown ones look alike"
    ):
        read_as_one([parts[0], str(empty)], ["tags"], unknown="")


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_parts_are_read_as_the_table_they_are_parts_of(parts):
    whole, found = read("all.csv", ["tags"]), read_as_one(parts, ["tags"])
    assert found.feature_names == whole.feature_names and found.dates == whole.dates == ("published",)
    order = [found.label_names.index(name) for name in whole.label_names]
    assert sorted(found.label_names) == sorted(whole.label_names) and found.label_names[-1] == "art"
    np.testing.assert_array_equal(found.Y[:, order], whole.Y)
    for column, name in enumerate(whole.feature_names):
        if whole.words(name) is None:
            np.testing.assert_array_equal(found.X[:, column], whole.X[:, column])
        else:
            texts = [[own.words(name)[int(code)] for code in own.X[:, column]] for own in (found, whole)]
            assert texts[0] == texts[1], name
    assert found.categories["section"][-1] == LATE
    assert list(found.kept) == ["id", "url"] and found.kept["id"].tolist() == whole.kept["id"].tolist()


def test_a_fit_to_parts_is_that_to_the_whole_table(parts):
    told = run("fit", "part*.csv", "--labels", "tags", "-o", "parts.mlrh", *FAST).stderr
    assert told.count("column 'title' is text") == 1 and "part0.csv: column 'title' is text" in " ".join(told.split())
    assert "part*.csv: 150 rows" in " ".join(told.split()) and "mlrh compare" not in told
    run("fit", "all.csv", "--labels", "tags", "-o", "all.mlrh", *FAST)
    found = [json.loads(run("evaluate", name, "all.csv", "--json").stdout) for name in ("parts.mlrh", "all.mlrh")]
    # The labels have another order, and so have the folds.
    assert found[0]["exact_match"] == pytest.approx(found[1]["exact_match"], abs=0.05)
    model = persistence.load("parts.mlrh")
    assert model.settings["n_rows"] == 150 and model.schema.texts == ("title",)
    assert model.schema.tags == ("tags", ";")


def test_unknown_labels_of_parts_are_unknown_in_the_whole(tmp_path, failure):
    names = sorted(WORDS)
    for number, own in enumerate(CUTS):
        rows = []
        for row, tags in zip(ROWS[own], SETS[own], strict=True):
            rows.append([row[4], *("?" if k == number else int(name in tags) for k, name in enumerate(names))])
        (tmp_path / f"numbers{number}.csv").write_text(csv_of(rows, ["length", *names]))
    paths = [f"numbers{number}.csv" for number in range(3)]
    found = read_as_one(paths, names, unknown="?")
    expected = np.array([[name in tags for name in names] for tags in SETS], np.int8)
    for number, own in enumerate(CUTS):
        expected[own, number] = -1
    np.testing.assert_array_equal(found.Y, expected)
    labels = ",".join(names)
    told = run("fit", "numbers*.csv", "--labels", labels, "--unknown", "?", "-o", "m.mlrh", *FAST).stderr
    assert "150 of 750 unknown" in " ".join(told.split())
    line = failure("fit", "numbers*.csv", "--labels", labels, "--unknown", "?", "-o", "m.mlrh", "--workers", "2")
    assert "Workers take a column of 0 and 1 for each label" in line


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_tag_that_only_a_later_file_has_is_unknown_where_all_tags_are():
    first = io.BytesIO(b"x,t\n1,u;v\n2,?\n3,v\n")
    second = io.BytesIO(b"x,t\n4,w;u\n5,?\n")
    first.name, second.name = "a.csv", "b.csv"
    found = read_as_one([first, second], ["t"], unknown="?")
    assert found.label_names == ("u", "v", "w")
    assert found.Y.tolist() == [[1, 1, 0], [-1, -1, -1], [0, 1, 0], [1, 0, 1], [-1, -1, -1]]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_file_that_lacks_a_column_is_named(tmp_path, parts):
    (tmp_path / "part1.csv").write_text(csv_of([row[:1] + row[2:] for row in ROWS], COLUMNS[:1] + COLUMNS[2:]))
    with pytest.raises(DataError, match=r"part1\.csv: has no column 'title', which is named as text"):
        read_as_one(parts, ["tags"])
