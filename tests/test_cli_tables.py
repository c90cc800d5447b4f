"""The table people have, from file to predictions: text, dates, identifiers and tags by the command line."""

import csv
import io
import json
import os
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from articles import COLUMNS, WORDS, articles, csv_of
from rich.console import Console
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

from mlrh import MLRHClassifier, persistence
from mlrh.automatic import Model, choose
from mlrh.cli import app
from mlrh.cli._inputs import read_with_cells
from mlrh.cli._models import _tell
from mlrh.data import DataError, read, schema_of
from mlrh.estimators import auto
from mlrh.metrics import NAMES
from mlrh.persistence import ModelFileError
from mlrh.web._server import make_session

TRAIN, TRAIN_SETS = articles(260)
TEST, TEST_SETS = articles(150, seed=1)
FAST = ("--quality", "fast", "--scores", "linear", "--folds", "2", "--jobs", "1", "--time", "600")


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (1.0, 100.0))


def run(*arguments):
    """The finished command, which must have gone well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    """A folder with train.csv, test.csv, the model of the former, and what was told when it was fitted."""
    place = tmp_path_factory.mktemp("news")
    (place / "train.csv").write_text(csv_of(TRAIN))
    (place / "test.csv").write_text(csv_of(TEST))
    grid, auto.LINEAR_C = auto.LINEAR_C, (1.0, 100.0)
    try:
        result = run("fit", place / "train.csv", "--labels", "tags", "-o", place / "news.mlrh", *FAST)
    finally:
        auto.LINEAR_C = grid
    (place / "told.txt").write_text(result.stderr)
    return place


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def sets_of(rows):
    return [set(filter(None, row["labels"].split(";"))) for row in rows]


def share_right(found, expected):
    return np.mean([own == other for own, other in zip(found, expected, strict=True)])


def test_a_table_with_text_and_tags_is_predicted_as_well_as_by_a_pipeline_of_ones_own(news):
    predicted = rows_of(run("predict", news / "news.mlrh", news / "test.csv").stdout)
    titles = [[row[COLUMNS.index("title")] for row in rows] for rows in (TRAIN, TEST)]
    own = make_pipeline(TfidfVectorizer(), MLRHClassifier()).fit(titles[0], TRAIN_SETS)
    plain = share_right(own.predict(titles[1]), TEST_SETS)
    assert plain > 0.7
    assert share_right(sets_of(predicted), TEST_SETS) >= plain - 0.02


def test_each_choice_is_told_in_one_line(news):
    told = [
        line.partition("train.csv: ")[2] for line in (news / "told.txt").read_text().splitlines() if "Note: " in line
    ]
    assert told[:5] == [
        "column 'tags' holds label sets, separated by ';': 5 labels.",
        "column 'id' is called an identifier and has another number in every row, so it is kept aside and no feature.",
        "column 'title' is text, and counts by its words and letters.",
        "column 'published' holds dates, and counts as days and by parts of the calendar.",
        "column 'url' holds links, so it is kept aside and no feature.",
    ]
    words = " ".join((news / "told.txt").read_text().split())
    assert "features 1 number, standardised; 1 nominal, one 0/1 column per value; published in days, by month" in words
    assert "by weekday; title by 65 words and" in words


def test_identifiers_are_carried_to_the_predictions(news, tmp_path):
    predicted = rows_of(run("predict", news / "news.mlrh", news / "test.csv").stdout)
    assert list(predicted[0]) == ["row", "id", "url", "labels", "probability"]
    assert [row["id"] for row in predicted] == [row[0] for row in TEST]
    also = rows_of(run("predict", news / "news.mlrh", news / "test.csv", "--id", "section", "--id", "title").stdout)
    assert [row["section"] for row in also] == [row[5] for row in TEST]
    assert sets_of(also) == sets_of(predicted)
    (tmp_path / "few.csv").write_text(csv_of([row[1:6] for row in TEST], COLUMNS[1:6]))  # no id: then none is carried
    without = rows_of(run("predict", news / "news.mlrh", tmp_path / "few.csv").stdout)
    assert list(without[0]) == ["row", "url", "labels", "probability"] and sets_of(without) == sets_of(predicted)


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
def test_append_keeps_the_columns_of_the_file_as_they_are(news, tmp_path, to):
    expected = rows_of(run("predict", news / "news.mlrh", news / "test.csv").stdout)
    output = tmp_path / f"answered.{to}"
    for _ in range(2):  # the second replaces the first
        run("predict", news / "news.mlrh", news / "test.csv", "--append", "-o", output)
    if to == "csv":
        found = rows_of(output.read_text())
    elif to == "jsonl":
        found = [json.loads(line) for line in output.read_text().splitlines()]
    else:
        found = pq.read_table(output).to_pylist()
    assert list(found[0]) == [*COLUMNS, "labels", "probability"]
    assert [[row[name] for name in COLUMNS] for row in found] == TEST
    labels = sets_of(found) if to == "csv" else [set(row["labels"]) for row in found]
    assert labels == sets_of(expected)
    np.testing.assert_allclose(
        [float(row["probability"]) for row in found], [float(row["probability"]) for row in expected], rtol=1e-5
    )


def test_a_parquet_file_with_lists_and_structs_is_answered_and_tagged_with_them_as_json(news, tmp_path):
    frame = pd.DataFrame(TEST[:3], columns=COLUMNS).astype({"id": int, "length": int})
    lists = [["art", "tech"], [], None]
    structs = [{"by": "Ann", "on": date(2024, 3, 31)}, {"by": None, "on": None}, None]
    table = pa.Table.from_pandas(frame.drop(columns="tags"))
    table = table.append_column("tags", pa.array(lists)).append_column("about", pa.array(structs))
    pq.write_table(table, tmp_path / "test.parquet")
    expected = rows_of(run("predict", news / "news.mlrh", news / "test.csv").stdout)[:3]
    found = rows_of(run("predict", news / "news.mlrh", tmp_path / "test.parquet", "--append").stdout)
    assert [row["tags"] for row in found] == ['["art", "tech"]', "[]", ""]
    assert [row["about"] for row in found] == [
        '{"by": "Ann", "on": "2024-03-31"}',
        '{"by": null, "on": null}',
        "",
    ]
    assert sets_of(found) == sets_of(expected)
    model = persistence.load(news / "news.mlrh")
    data = read_with_cells(str(tmp_path / "test.parquet"), None, model.schema)
    session, _ = make_session(model, data, output=str(tmp_path / "confirmed.csv"), show=["about"])
    assert [cell["text"] for cell in session.row(1)["cells"]] == ['{"by": "Ann", "on": "2024-03-31"}']


def test_numbers_that_json_has_no_word_for_are_null_and_identifiers_beyond_64_bits_are_text(news, tmp_path):
    frame = pd.DataFrame(TEST[:3], columns=COLUMNS).astype({"length": int}).drop(columns="tags")
    frame["id"], frame["z"] = np.array([2**63, 2**63 + 1, 2**64 - 1], np.uint64), [np.inf, np.nan, 0.5]
    frame.to_parquet(tmp_path / "test.parquet", index=False)
    predict = ("predict", news / "news.mlrh", tmp_path / "test.parquet", "--append", "-o")
    run(*predict, tmp_path / "found.jsonl")
    run(*predict, tmp_path / "found.parquet")
    lines = (tmp_path / "found.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["z"] for line in lines] == [None, None, 0.5]
    found = pq.read_table(tmp_path / "found.parquet").to_pylist()
    assert [row["id"] for row in found] == [str(2**63), str(2**63 + 1), str(2**64 - 1)]


def test_cells_that_a_spreadsheet_would_run_are_guarded_where_they_are_appended(news, tmp_path):
    rows = [row[:6] for row in TEST[:2]]
    rows[0][1] = "=HYPERLINK(1)"
    (tmp_path / "new.csv").write_text(csv_of(rows, COLUMNS[:6]))
    found = rows_of(run("predict", news / "news.mlrh", tmp_path / "new.csv", "--append").stdout)
    assert found[0]["title"] == "'=HYPERLINK(1)" and found[1]["title"] == rows[1][1]


def test_append_refuses_a_column_that_predictions_have(news, tmp_path, failure):
    (tmp_path / "new.csv").write_text(csv_of(TEST[:3], [*COLUMNS[:6], "labels"]))
    line = failure("predict", news / "news.mlrh", tmp_path / "new.csv", "--append")
    assert "new has a column 'labels', and so have the predictions; rename it" in line


def test_predictions_of_text_in_parts_are_those_at_once(news, monkeypatch):
    at_once = run("predict", news / "news.mlrh", news / "test.csv", "--top", "2").stdout
    monkeypatch.setattr("mlrh.cli._models.TEXTS_PER_CHUNK", 7)
    assert run("predict", news / "news.mlrh", news / "test.csv", "--top", "2").stdout == at_once


def test_the_same_rows_as_json_lines_and_as_a_data_frame_are_answered_alike(news, tmp_path):
    frame = pd.DataFrame(TEST, columns=COLUMNS).astype({"id": int, "length": int})
    frame.to_json(tmp_path / "test.jsonl", orient="records", lines=True)
    expected = run("predict", news / "news.mlrh", news / "test.csv").stdout
    assert run("predict", news / "news.mlrh", tmp_path / "test.jsonl").stdout == expected
    model = persistence.load(news / "news.mlrh")
    predicted = np.asarray(model.predict(frame))
    names = np.array(model.schema.label_names)
    assert [set(names[row == 1]) for row in predicted] == sets_of(rows_of(expected))


def test_evaluate_measures_a_column_of_tags(news, tmp_path):
    predicted = sets_of(rows_of(run("predict", news / "news.mlrh", news / "test.csv").stdout))
    measured = json.loads(run("evaluate", news / "news.mlrh", news / "test.csv", "--json").stdout)
    assert measured["exact_match"] == pytest.approx(share_right(predicted, TEST_SETS))
    rows = [list(row) for row in TEST]
    rows[0][-1] += ";gossip"
    (tmp_path / "other.csv").write_text(csv_of(rows))
    result = run("evaluate", news / "news.mlrh", tmp_path / "other.csv", "--json")
    assert "1 of 150 rows have labels that the model doesn't know (gossip)" in result.stderr
    expected = share_right(predicted[1:], TEST_SETS[1:]) * 149 / 150
    assert json.loads(result.stdout)["exact_match"] == pytest.approx(expected)


def test_options_say_otherwise_than_what_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text(csv_of(TRAIN[:60]))
    said = ("--text", "section", "--nominal", "published", "--number", "id", "--ignore", "url", "--id", "title")
    result = run("fit", "train.csv", "--labels", "tags", "--separator", ";", *said, *FAST)
    schema = persistence.load("train.mlrh").schema
    assert schema.feature_names == ("id", "published", "length", "section")
    assert schema.texts == ("section",) and list(schema.categories) == ["published"] and schema.kept == ("title",)
    assert "kept aside" not in result.stderr and "label sets" not in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--labels", "tags", "--text", "title", "--ignore", "title"), "named by two options, --text and --ignore;"),
        (("--labels", "tags", "--text", "titel"), "has no column 'titel', which is named as text"),
        (("--labels", "tags,section", "--separator", ";"), "A separator is for one column of label sets"),
    ],
)
def test_options_that_can_not_be_are_one_sentence(tmp_path, monkeypatch, failure, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text(csv_of(TRAIN[:5]))
    assert message in failure("fit", "train.csv", *arguments)


def test_files_that_are_read_one_by_one_refuse_a_column_of_tags(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,tags\n1,u;v\n2,v\n")
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    with (
        pytest.warns(UserWarning, match="'tags' holds label sets"),
        pytest.raises(DataError, match="must have a column of 0 and 1 for each label, not label sets; convert them"),
    ):
        schema_of(paths, ["tags"])


@pytest.mark.parametrize("n_complete, n_folds", [(0, 0), (1, 1), (30, 3)])
def test_measures_are_those_of_the_folds_with_complete_rows(tmp_path, n_complete, n_folds):
    random = np.random.default_rng(0)
    x, Y = random.normal(size=40), random.integers(0, 2, (40, 2)).astype(object)
    incomplete = np.arange(n_complete, 40)
    Y[incomplete, incomplete % 2] = ""
    pd.DataFrame({"x": x, "y": Y[:, 0], "z": Y[:, 1]}).to_csv(tmp_path / "train.csv", index=False)
    file = tmp_path / "train.mlrh"
    told = run(
        "fit", tmp_path / "train.csv", "--labels", "y,z", "--unknown", "", *FAST, "--folds", "3", "-o", file
    ).stderr
    assert "nan" not in told
    folds = [own for own in persistence.load(file).validation["f1_example"] if not np.isnan(own)]
    assert len(folds) == n_folds
    figures = [f"{np.mean(folds):.3f}"] if folds else []
    figures += [f"{np.std(folds, ddof=1):.3f}"] if len(folds) > 1 else []
    (line,) = [line for line in told.splitlines() if line.startswith(NAMES["f1_example"])]
    assert line.removeprefix(NAMES["f1_example"]).split() == figures


def test_the_share_of_impossible_sets_is_that_of_the_folds_with_complete_rows(news):
    model = persistence.load(news / "news.mlrh")
    model = replace(model, validation={**model.validation, "impossible_share": [np.nan, 0.4]})
    text = io.StringIO()
    _tell(Console(file=text, width=200), model, model.classifier)
    assert "Note: 40% of the true sets are impossible to the model" in text.getvalue()


def test_unknown_labels_of_a_file_count_by_what_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    names, hidden = sorted(WORDS), random.random((len(TRAIN), len(WORDS))) < 0.2
    rows = [
        [row[1], *("" if hide else int(name in own) for name, hide in zip(names, hides, strict=True))]
        for row, own, hides in zip(TRAIN, TRAIN_SETS, hidden, strict=True)
    ]
    (tmp_path / "train.csv").write_text(csv_of(rows, ["title", *names]))
    result = run("fit", "train.csv", "--labels", ",".join(names), "--unknown", "", *FAST)
    n_incomplete = int(hidden.any(axis=1).sum())
    assert f"{n_incomplete} of {len(TRAIN)} rows have unknown labels" in result.stderr
    assert f"{hidden.sum()} of 1,300 unknown" in " ".join(result.stderr.split())
    (tmp_path / "test.csv").write_text(csv_of(TEST))
    found = share_right(sets_of(rows_of(run("predict", "train.mlrh", "test.csv").stdout)), TEST_SETS)
    # A model of the complete rows alone, a third of all, is what there was before.
    rows = [row for row, own in zip(rows, hidden, strict=True) if not own.any()]
    text = csv_of(rows, ["title", *names])
    complete = read(io.BytesIO(text.encode()), names, columns={"title": "text"}, format="csv")
    fewer = choose(complete, scores="linear", quality="fast", n_folds=2)
    test = read(tmp_path / "test.csv", (), schema=fewer.schema)
    sets = [{fewer.schema.label_names[k] for k in np.flatnonzero(row)} for row in np.asarray(fewer.predict(test))]
    assert found > share_right(sets, TEST_SETS)


@pytest.mark.skipif(not os.environ.get("MLRH_DATA"), reason="needs a folder with the public data sets")
def test_a_public_set_is_fitted_by_its_name(tmp_path, monkeypatch, failure):
    monkeypatch.chdir(tmp_path)
    result = run("fit", "flags", *FAST)
    assert "flags: 194 rows, 19 features, 7 labels" in " ".join(result.stderr.split())
    assert len(persistence.load("flags.mlrh").schema.label_names) == 7
    assert "leave out all options on columns but --ignore" in failure("fit", "flags", "--text", "landmass")
    assert "did you mean 'flags'" in failure("fit", "flag")


def test_compare_takes_text_and_tags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text(csv_of(TRAIN[:100]))
    run("compare", "train.csv", "--labels", "tags", "--method", "mlrh-linear", "--jobs", "1", "-o", "out")
    records = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    titles = [row[1] for row in TRAIN[:100]]
    own = make_pipeline(TfidfVectorizer(), MLRHClassifier(C=10))
    plain = share_right(own.fit(titles[:80], TRAIN_SETS[:80]).predict(titles[80:]), TRAIN_SETS[80:100])
    assert np.mean([record["metrics"]["exact_match"] for record in records]) > plain - 0.15  # 20 rows: one is 5 points


def test_the_tagging_page_shows_the_text_and_the_date_of_a_row(news, tmp_path):
    model = persistence.load(news / "news.mlrh")
    data = read(news / "test.csv", (), schema=model.schema)
    session, _ = make_session(model, data, output=str(tmp_path / "confirmed.csv"))
    row = session.row(1)
    assert {cell["name"]: cell["text"] for cell in row["cells"]}["title"] == TEST[0][1]
    shown = {feature["name"]: feature["value"] for feature in row["features"]}
    assert shown["published"] == TEST[0][2] and "title" not in shown


# Model files


def test_a_model_of_text_is_the_same_from_its_file(tmp_path):
    columns = {"id": "id", "title": "text", "published": "date", "url": "ignored"}
    data = read(io.BytesIO(csv_of(TRAIN[:60]).encode()), ["tags"], separator=";", columns=columns, format="csv")
    model = choose(data, scores="linear", quality="fast", n_folds=2)
    persistence.save(model, tmp_path / "model.mlrh")
    again = persistence.load(tmp_path / "model.mlrh")
    np.testing.assert_array_equal(again.distribution(data).marginals(), model.distribution(data).marginals())
    assert again.schema == model.schema and again.table.words == model.table.words


BAD = {
    "a word twice": ({"words": lambda own: {"title": (own["title"][0], *own["title"])}}, "tuples of distinct texts"),
    "no text": ({"words": lambda own: {"title": (1, *own["title"][1:])}}, "tuples of distinct texts"),
    "a list": ({"pieces": lambda own: {"title": list(own["title"])}}, "tuples of distinct texts"),
    "another part": ({"parts": lambda own: {"published": ("year",)}}, "parts of the calendar"),
    "fewer words": ({"words": lambda own: {"title": own["title"][1:]}}, "of other features than it names"),
    "another column": ({"words": lambda own: {"body": own["title"]}}, "needs a schema"),
    "no column": ({"words": lambda own: {}}, "needs a schema|of other features"),
}


@pytest.mark.parametrize("changes, message", BAD.values(), ids=BAD)
def test_a_file_whose_words_are_not_those_of_the_model_is_refused(news, tmp_path, changes, message):
    model = persistence.load(news / "news.mlrh")
    table = replace(model.table, **{name: change(getattr(model.table, name)) for name, change in changes.items()})
    forged = object.__new__(Model)
    vars(forged).update(vars(model), table=table)
    with pytest.raises(ModelFileError, match=message):  # what `save` writes is loaded once, by the same checks
        persistence.save(forged, tmp_path / "forged.mlrh")


@pytest.mark.parametrize(
    "changes",
    [
        {"texts": ("title", "title")},
        {"texts": ("nobody",)},
        {"dates": ("section",)},
        {"kept": ("title",)},
        {"tags": ("tags",)},
        {"texts": ["title"]},
    ],
)
def test_a_file_whose_names_contradict_each_other_is_refused(news, tmp_path, changes):
    model = persistence.load(news / "news.mlrh")
    forged = object.__new__(Model)
    vars(forged).update(vars(model), schema=replace(model.schema, **changes))
    with pytest.raises(ModelFileError):
        persistence.save(forged, tmp_path / "forged.mlrh")


def test_text_of_words_that_never_come_again_leaves_nothing_to_learn_from():
    data = read(io.BytesIO(b"t,y\nfox,0\nowl,1\n"), ["y"], columns={"t": "text"}, format="csv")
    with pytest.raises(DataError, match="has no feature"):
        choose(data)
