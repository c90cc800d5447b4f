"""`mlrh fit --decided`: decisions of the tagging page joined to their rows give the model that their labels give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mlrh import automatic, persistence
from mlrh.cli import app
from mlrh.data import load_digit_scenes, write
from mlrh.estimators import auto
from mlrh.web._store import Fingerprints, Store

TRAIN, NEW = load_digit_scenes(60, part="train"), load_digit_scenes(40, part="test")
LABELS = ",".join(NEW.label_names)
ALSO = ("new.csv", "--decided", "confirmed.csv", "--also", "old.csv")
FAST = ("--quality", "fast", "--scores", "linear", "--label-space", "cardinality", "--jobs", "1")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with old.csv, new.csv, a model of the old rows, and confirmed.csv with the labels of all new rows."""
    place = tmp_path_factory.mktemp("scenes")
    write(TRAIN, place / "old.csv")
    write(NEW, place / "new.csv")
    options = {"scores": "linear", "label_space": "cardinality", "quality": "fast", "metric": "f1", "n_jobs": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto, "LINEAR_C", (1.0,))
        persistence.save(automatic.choose(TRAIN, **options), place / "old.mlrh")
    decide(place / "confirmed.csv", NEW.Y.astype(float))
    return place


@pytest.fixture
def scenes(files, tmp_path, monkeypatch):
    """A working folder with these files, where fits try one value of C only."""
    monkeypatch.setattr(auto, "LINEAR_C", (1.0,))
    monkeypatch.chdir(tmp_path)
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def decide(path, known):
    """A file of decisions, written as the page writes it."""
    store = Store(path, NEW.label_names, Fingerprints(NEW.X, NEW.feature_names))
    for row, values in enumerate(known, start=1):
        if not np.isnan(values).all():
            store.keep(row, values)


def fit(*arguments):
    result = CliRunner().invoke(app, ["fit", *map(str, arguments)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stderr


def answers(path):
    return persistence.load(path).distribution(NEW).marginals()


def test_rows_with_decisions_about_every_label_fit_as_rows_with_label_columns(scenes):
    fit("new.csv", "--labels", LABELS, "-o", "labels.mlrh", *FAST)
    told = fit("new.csv", "--decided", "confirmed.csv", "-o", "decided.mlrh", *FAST)
    assert "40 rows" in told and "left out" not in told
    np.testing.assert_array_equal(answers("decided.mlrh"), answers("labels.mlrh"))


def test_rows_nobody_looked_at_are_left_out_and_of_others_counts_what_is_known(scenes):
    known = NEW.Y.astype(float)
    known[30:] = np.nan
    known[29, 1:] = np.nan
    decide("part.csv", known)
    told = fit("new.csv", "--decided", "part.csv", "-o", "part.mlrh", *FAST)
    assert "1 of 30 rows have unknown labels" in told
    Y = np.where(np.isnan(known), -1, known).astype(np.int8)
    options = {"scores": "linear", "label_space": "cardinality", "quality": "fast", "n_jobs": 1}
    expected = automatic.choose(replace(NEW, Y=Y).rows(slice(0, 30)), **options)
    np.testing.assert_array_equal(answers("part.mlrh"), expected.distribution(NEW).marginals())


@pytest.mark.parametrize("like", [(), ("--like", "old.mlrh")])
def test_also_fits_to_the_first_rows_and_the_decided_ones(scenes, like):
    fit("new.csv", "--decided", "confirmed.csv", "--also", "old.csv", "-o", "both.mlrh", *(like or FAST))
    model = persistence.load("both.mlrh")
    assert model.settings["n_rows"] == 100
    both = replace(TRAIN, X=np.concatenate([TRAIN.X, NEW.X]), Y=np.concatenate([TRAIN.Y, NEW.Y]))
    options = {"scores": "linear", "label_space": "cardinality", "quality": "fast", "n_jobs": 1}
    metric = "f1" if like else "exact_match"
    expected = automatic.choose(both, metric=metric, **options)
    np.testing.assert_array_equal(model.distribution(NEW).marginals(), expected.distribution(NEW).marginals())
    assert model.settings["decision"] == metric


def with_tags(path, data, labels, *, n_tags, more=""):
    """A CSV file of features, these labels as columns of 0 and 1, and a column that lists the first n_tags labels."""
    names = np.array(data.label_names[:n_tags])
    tags = [";".join(names[own == 1]) for own in data.Y[:, :n_tags]]
    tags[0] += more
    places = [data.label_names.index(label) for label in labels]
    rows = zip(data.X.tolist(), data.Y[:, places], tags, strict=True)
    cells = [[*map(repr, x), *map(str, y), tag] for x, y, tag in rows]
    lines = [[*data.feature_names, *labels, "tags"], *cells]
    Path(path).write_text("".join(f"{','.join(line)}\n" for line in lines))


def test_a_column_that_lists_decided_labels_is_dropped_and_told(scenes):
    with_tags("tagged.csv", NEW, (), n_tags=3)
    with_tags("first.csv", TRAIN, TRAIN.label_names, n_tags=3)
    decided = ("--decided", "confirmed.csv", "-o", "found.mlrh", *FAST)
    words = "column 'tags' lists decided labels and was dropped; --nominal makes it a feature."
    for given, plain in [
        (("tagged.csv",), ("new.csv",)),
        (("tagged.csv", "--also", "first.csv"), ("new.csv", "--also", "old.csv")),
    ]:
        assert fit(*given, *decided).count(words) == 1
        found = answers("found.mlrh")
        assert words not in fit(*plain, *decided)
        np.testing.assert_array_equal(found, answers("found.mlrh"))


@pytest.mark.parametrize("like", [(), ("--like", "old.mlrh")])
def test_labels_name_the_column_that_lists_those_of_the_first_rows(scenes, like):
    with_tags("first.csv", TRAIN, (), n_tags=10, more="/other")
    Path("first.csv").write_text(Path("first.csv").read_text().replace(";", "/"))
    decided = ("new.csv", "--decided", "confirmed.csv", "-o", "found.mlrh", *(like or FAST))
    told = fit(*decided, "--also", "first.csv", "--labels", "tags", "--separator", "/")
    assert ("first: labels that the file of decisions doesn't have are left out (other)." in told) == (not like)
    found = answers("found.mlrh")
    fit(*decided, "--also", "old.csv")
    np.testing.assert_array_equal(found, answers("found.mlrh"))


def test_a_model_like_one_that_calibrates_and_refuses_does_so_too(scenes, failure):
    rule = ("--calibrate", "--thresholds", "f1_micro", "--refuse-below", "0.2")
    fit("old.csv", "--labels", LABELS, "-o", "ruled.mlrh", *FAST, *rule)
    decided = ("new.csv", "--decided", "confirmed.csv", "--also", "old.csv", "-o", "both.mlrh")
    fit(*decided, "--like", "ruled.mlrh")
    found = persistence.load("both.mlrh")
    fit(*decided, *FAST, *rule)
    expected = persistence.load("both.mlrh")
    assert found.rule.refuse_below == 0.2 and found.rule.temperature == expected.rule.temperature != 1
    np.testing.assert_array_equal(found.rule.thresholds, expected.rule.thresholds)
    line = failure("fit", *decided, "--like", "ruled.mlrh", "--refuse-below", "0.3")
    assert "--like takes all settings from the model; leave out --refuse-below." in line


def test_decisions_about_a_file_without_labels_and_with_an_identifier_are_joined(scenes):
    features = ",".join(NEW.feature_names)
    rows = [",".join(map(repr, values)) for values in NEW.X.tolist()]
    lines = [f"{features},name"] + [f"{row},s{number}" for number, row in enumerate(rows)]
    Path("unlabelled.csv").write_text("\n".join(lines))
    told = fit("unlabelled.csv", "--decided", "confirmed.csv", "-o", "unlabelled.mlrh", *FAST)
    assert "column 'name' has another value in every row" in told
    fit("new.csv", "--labels", LABELS, "-o", "labels.mlrh", *FAST)
    np.testing.assert_array_equal(answers("unlabelled.mlrh"), answers("labels.mlrh"))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("old.csv", "--decided", "confirmed.csv"), "the decisions are about other rows: 40 of 40 have other features"),
        (("new.csv", "--decided", "confirmed.csv", "--ignore", "pixel_0_0"), "say with --like which model they were"),
        (("new.csv", "--decided", "confirmed.csv", "--ignore", "x"), "new.csv: has no column 'x', which is named as"),
        (("new.csv", "--decided", "absent.csv"), "absent.csv: no such file"),
        (("new.csv", "--decided", "new.csv"), "new.csv, line 1: the columns must be row and one column per label"),
        (("new.csv", "--decided", "none.csv"), "the file of decisions has none about its rows; decide some first"),
        (("new.csv", "--decided", "confirmed.csv", "--labels", "digit 1"), "says which labels there are, and what is"),
        ((*ALSO, "--labels", LABELS), "--labels names the one column of --also that lists labels"),
        ((*ALSO, "--separator", ";"), "name that column with --labels"),
        ((*ALSO[:-1], "other.csv"), "Where one column lists its labels, name that with --labels."),
        (("new.csv", "--like", "old.mlrh"), "--like and --also go with --decided"),
        (("new.csv", "--decided", "confirmed.csv", "--like", "old.mlrh", "--seed", "3"), "leave out --seed"),
        (("new.csv", "--decided", "confirmed.csv", "--like", "old.mlrh", "--time", "3"), "leave out --time"),
        (("new.csv", "--decided", "confirmed.csv", "--like", "old.mlrh", "--time", "60"), "leave out --time"),
        (("new.csv", "--decided", "confirmed.csv", "--like", "old.mlrh", "--groups", "g.json"), "leave out --groups"),
        (("new.csv", "--decided", "confirmed.csv", "--like", "old.mlrh", "--ignore", "x"), "leave out options on"),
        (("new.csv", "--decided", "confirmed.csv", "--like", "old.mlrh", "-o", "old.mlrh"), "is also read"),
        (("new.csv", "--decided", "confirmed.csv", "--workers", "2"), "about the rows of one file"),
        (("new.csv", "--decided", "other.csv", "--like", "old.mlrh"), "the columns must be row and the labels"),
    ],
)
def test_a_fault_is_told_in_one_line_and_no_model_is_written(arguments, words, scenes, failure):
    Path("none.csv").write_text(f"row,{LABELS}\n1{',' * 10}\n")
    Path("other.csv").write_text("row,a,b\n1,1,0\n")
    Path("g.json").write_text('[{"labels": ["digit 1", "digit 2"], "least": 0, "most": 1}]')
    before = {path: path.read_bytes() for path in scenes.iterdir()}
    assert words in failure("fit", *arguments)
    assert {path: path.read_bytes() for path in scenes.iterdir()} == before
