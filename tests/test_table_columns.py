"""Columns of tables as people have them: tags, text, dates, identifiers, unknown labels; said, or found out."""

import io
import warnings
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer

from mlrh import MLRHClassifier
from mlrh._indicators import SEPARATORS
from mlrh.automatic import make_preprocessor
from mlrh.cli._output import joined
from mlrh.data import DataError, Schema, read, write
from mlrh.data._tables import labels_in
from mlrh.data.containers import date_text, days_of, from_frame
from mlrh.estimators._table_features import DAYS, MONTHS, TableFeatures, expanded

TABLES = ["csv", "jsonl", "parquet"]
N_ROWS = 40
ANIMALS, PLACES = ["fox", "cat", "dog", "owl", "hen", "cow"], ["wood", "house", "yard", "barn"]
TAGS = [{"wild"}, {"tame", "small"}, set(), {"tame"}, {"wild", "small"}]


def titles(n_rows=N_ROWS):
    """Different texts of three words and a number."""
    return [f"{ANIMALS[i % 6]} in {PLACES[i % 4]} {i // 2}" for i in range(n_rows)]


def articles(n_rows=N_ROWS):
    """A table as people have it, and its label sets."""
    sets = [TAGS[i % len(TAGS)] for i in range(n_rows)]
    moments = pd.date_range("2023-11-20 06:30", periods=n_rows, freq="31h")
    return {
        "id": list(range(500, 500 + n_rows)),
        "title": titles(n_rows),
        "published": [str(moment) for moment in moments],
        "url": [f"https://example.org/{i % 30}" for i in range(n_rows)],
        "length": [float(i % 7) for i in range(n_rows)],
        "section": [("north", "south", "east")[i % 3] for i in range(n_rows)],
        "tags": [";".join(sorted(own)) for own in sets],
    }, sets


def saved(tmp_path, suffix, columns):
    """The path of a file with these columns."""
    path = tmp_path / f"toy.{suffix}"
    frame = pd.DataFrame(columns)
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        pq.write_table(pa.table(columns), path)
    return path


def test_a_separator_that_no_cell_has_is_told_with_the_one_that_they_look_to_have(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,tags\n1,a;b\n2,b\n3,c\n")
    told = r"column 'tags' has no '\|' in it, so each cell is one label; ';' looks like its separator\."
    with pytest.warns(UserWarning, match=told):
        data = read(path, ["tags"], separator="|")
    assert data.label_names == ("a;b", "b", "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(path, ["tags"], separator=";").label_names == ("a", "b", "c")


def quietly(*arguments, **options):
    """The data set, without what is told of its columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return read(*arguments, **options)


@pytest.mark.parametrize("suffix", TABLES)
def test_each_column_is_taken_for_what_it_is_and_told_in_one_line(tmp_path, suffix):
    columns, sets = articles()
    with pytest.warns(UserWarning) as caught:
        data = read(saved(tmp_path, suffix, columns), ["tags"])
    told = [str(warning.message).partition(": ")[2] for warning in caught]
    assert told == [
        "column 'tags' holds label sets, separated by ';': 3 labels.",
        "column 'id' is called an identifier and has another number in every row, so it is kept aside and no feature.",
        "column 'title' is text, and counts by its words and letters.",
        "column 'published' holds dates, and counts as days and by parts of the calendar.",
        "column 'url' holds links, so it is kept aside and no feature.",
    ]
    binarizer = MultiLabelBinarizer()
    assert data.Y.tolist() == binarizer.fit_transform(sets).tolist()
    assert data.label_names == tuple(binarizer.classes_)
    assert data.feature_names == ("title", "published", "length", "section")
    assert data.schema.texts == ("title",) and data.schema.dates == ("published",)
    assert data.schema.kept == ("id", "url") and data.schema.tags == ("tags", ";")
    assert [data.texts["title"][int(code)] for code in data.X[:, 0]] == columns["title"]
    expected = pd.to_datetime(columns["published"]).to_numpy("datetime64[s]").astype(np.int64) / 86400
    np.testing.assert_allclose(data.X[:, 1], expected, rtol=1e-15)
    assert [str(own) for own in data.kept["id"]] == [str(own) for own in columns["id"]]
    assert data.kept["url"].tolist() == columns["url"]


def test_columns_of_rows_whose_labels_stand_elsewhere_are_told_as_well(tmp_path):
    columns, _ = articles()
    del columns["tags"]
    with pytest.warns(UserWarning) as caught:
        read(saved(tmp_path, "csv", columns), (), find_ids=True)
    told = [str(warning.message).partition("column ")[2] for warning in caught]
    assert [words.split()[0] for words in told] == ["'id'", "'title'", "'published'", "'url'"]
    assert told[1] == "'title' is text, and counts by its words and letters."
    assert told[2] == "'published' holds dates, and counts as days and by parts of the calendar."


def test_a_new_file_of_a_few_rows_is_read_as_the_model_has_its_columns(tmp_path):
    columns, _ = articles()
    schema = quietly(saved(tmp_path, "csv", columns), ["tags"]).schema
    few = {name: values[:3] for name, values in columns.items()}
    few["title"] = ["a new one", None, columns["title"][0]]
    for suffix in TABLES:
        data = read(saved(tmp_path, suffix, few), (), schema=schema)
        assert data.feature_names == schema.feature_names and data.texts["title"][0] == "a new one"
        assert np.isnan(data.X[1, 0]) and data.categories == schema.categories
        assert list(data.kept) == ["id", "url"]
        labelled = read(saved(tmp_path, suffix, few), schema=schema)
        assert labelled.Y.tolist() == [[0, 0, 1], [1, 1, 0], [0, 0, 0]]


def test_labels_of_sets_that_the_model_does_not_know_come_after_its_own(tmp_path):
    schema = Schema(("a",), ("y", "b"), tags=("tags", ";"))
    path = saved(tmp_path, "csv", {"a": [1, 2], "tags": ["new;b", "y"]})
    data = read(path, schema=schema)
    assert data.label_names == ("y", "b", "new") and data.Y.tolist() == [[0, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    "kind, expected",
    [("text", ("a", "x")), ("nominal", ("a", "x")), ("id", ("a",)), ("ignored", ("a",))],
)
@pytest.mark.parametrize("suffix", TABLES)
def test_what_the_caller_says_of_a_column_counts_and_is_not_told(tmp_path, suffix, kind, expected):
    columns = {"a": [i % 7 for i in range(30)], "x": titles(30), "y": [0, 1] * 15}
    data = read(saved(tmp_path, suffix, columns), ["y"], columns={"x": kind})
    assert data.feature_names == expected
    assert list(data.texts) == (["x"] if kind == "text" else [])
    assert list(data.categories) == (["x"] if kind == "nominal" else [])
    assert list(data.kept) == (["x"] if kind == "id" else [])


@pytest.mark.parametrize("suffix", TABLES)
def test_numbers_can_be_nominal_and_an_identifier_a_number(tmp_path, suffix):
    columns = {"song_id": list(range(30)), "zip": [10115, 80331, 10115] * 10, "y": [0, 1] * 15}
    kinds = {"zip": "nominal", "song_id": "number"}
    data = read(saved(tmp_path, suffix, columns), ["y"], columns=kinds)
    assert data.categories == {"zip": ("10115", "80331")} and data.X[:3].tolist() == [[0, 0], [1, 1], [2, 0]]


@pytest.mark.parametrize(
    "name, is_id", [("ID", True), ("songId", True), ("the id", True), ("paid", False), ("x", False)]
)
def test_whole_numbers_that_differ_are_an_identifier_only_by_their_name(tmp_path, name, is_id):
    path = saved(tmp_path, "csv", {name: list(range(21)), "a": [1.5] * 21, "y": [0] * 21})
    assert quietly(path, ["y"]).feature_names == (("a",) if is_id else (name, "a"))


def told_of(path, **options):
    """What is told of the columns of a file with the label y."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(path, ["y"], **options)
    return [str(warning.message).partition(": ")[2] for warning in caught]


NOTED_DATES = {
    "one is none": ("n.a.", "most of them are dates; --date says that all must be, --nominal that they are words."),
    "slashes": (None, "most look like dates; write them as 2024-03-31, or say --nominal or --ignore."),
}


@pytest.mark.parametrize("other, words", NOTED_DATES.values(), ids=NOTED_DATES)
@pytest.mark.parametrize("suffix", TABLES)
def test_words_that_are_mostly_dates_are_noted(tmp_path, suffix, other, words):
    dates = [f"2024-03-{i % 8 + 10}" if other else f"03/{i % 8 + 10}/2024" for i in range(40)]
    columns = {"when": [*dates[1:], other or dates[0]], "y": [0, 1] * 20}
    path = saved(tmp_path, suffix, columns)
    assert told_of(path) == [f"column 'when' counts as words, though {words}"]
    assert told_of(path, columns={"when": "nominal"}) == []


IDENTIFIERS = {
    "a number twice": ("id", [7, *range(2, 41)], "is called an identifier and has another number in nearly every row"),
    "a number missing": (
        "id",
        [None, *range(2, 41)],
        "is called an identifier and has another number in nearly every row",
    ),
    "far apart": (
        "song_id",
        [700, *range(200, 980, 20)],
        "is called an identifier and has another number in nearly every row",
    ),
    "an index": (
        "Unnamed: 0",
        [i * 7 % 40 for i in range(40)],
        "is called an identifier and has another number in every row",
    ),
    "a word twice": ("order", ["A7", *(f"A{i}" for i in range(2, 41))], "has another value in nearly every row"),
    "a word missing": ("order", [None, *(f"A{i}" for i in range(2, 41))], "has another value in nearly every row"),
}


@pytest.mark.parametrize("name, values, why", IDENTIFIERS.values(), ids=IDENTIFIERS)
@pytest.mark.parametrize("suffix", TABLES)
def test_what_nearly_every_row_has_its_own_of_is_kept_aside_and_told(tmp_path, suffix, name, values, why):
    path = saved(tmp_path, suffix, {name: values, "a": [1.5, 2.5] * 20, "y": [0, 1] * 20})
    assert told_of(path) == [f"column '{name}' {why}, so it is kept aside and no feature."]
    data = quietly(path, ["y"])
    assert data.feature_names == ("a",) and data.schema.kept == (name,)
    kind = "nominal" if name == "order" else "number"
    assert read(path, ["y"], columns={name: kind}).feature_names == (name, "a")


@pytest.mark.parametrize("n_repeated", [4, 5])
def test_words_are_kept_aside_where_nine_rows_of_ten_have_their_own(tmp_path, n_repeated):
    words = [*(f"A{i}" for i in range(40 - n_repeated)), *["A0"] * n_repeated]
    data = quietly(saved(tmp_path, "csv", {"order": words, "a": [1.5, 2.5] * 20, "y": [0, 1] * 20}), ["y"])
    assert data.schema.kept == (("order",) if n_repeated == 4 else ())


def test_words_that_are_kept_aside_are_noted_where_they_look_like_dates(tmp_path):
    dates = [f"{i // 28 + 1}/{i % 28 + 1}/2024" for i in range(40)]
    path = saved(tmp_path, "csv", {"when": dates, "a": [1.5, 2.5] * 20, "y": [0, 1] * 20})
    what = "has another value in every row, so it is kept aside and no feature, though most look like dates"
    assert told_of(path) == [f"column 'when' {what}; write them as 2024-03-31, or say --nominal or --ignore."]


NUMBERED = {
    "a name run together": ("tweetid", [*range(100, 120), *range(122, 142)]),
    "mixed up": ("position", [i * 7 % 40 for i in range(40)]),
    "a number twice": ("position", [7, *range(2, 41)]),
    "a gap": ("position", [None, *range(2, 41)]),
}


@pytest.mark.parametrize("name, numbers", NUMBERED.values(), ids=NUMBERED)
@pytest.mark.parametrize("suffix", TABLES)
def test_numbers_that_look_like_those_of_rows_are_noted(tmp_path, suffix, name, numbers):
    path = saved(tmp_path, suffix, {name: numbers, "y": [0, 1] * 20})
    what = "is a number as a feature, though nearly every row has its own; --id keeps it aside, --number keeps it."
    assert told_of(path) == [f"column '{name}' {what}"]
    assert told_of(path, columns={name: "number"}) == told_of(path, columns={name: "id"}) == []


ORDINARY = {
    "measured": [i * 0.37 % 5 for i in range(40)],
    "counted": [i * 7 % 12 for i in range(40)],
    "far apart": [i * 13 % 997 for i in range(40)],
    "missing": [None] * 40,
}


@pytest.mark.parametrize("numbers", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_numbers_and_words_are_not_noted(tmp_path, numbers):
    words = [("red", "2024-03-31", "blue", "green")[i % 4] for i in range(40)]
    assert told_of(saved(tmp_path, "parquet", {"a": numbers, "w": words, "y": [0, 1] * 20})) == []


def test_a_title_that_is_a_number_is_told_as_text_alone(tmp_path):
    path = saved(tmp_path, "csv", {"title": [*titles(30), "1984"], "y": [0] + [0, 1] * 15})
    with pytest.warns(UserWarning) as caught:
        assert read(path, ["y"]).schema.texts == ("title",)
    (told,) = caught
    assert str(told.message).endswith("column 'title' is text, and counts by its words and letters.")


def test_texts_may_repeat_and_names_of_places_are_nominal(tmp_path):
    places = ["New York", "Los Angeles", "San Jose"]
    columns = {"place": [places[i % 3] for i in range(60)], "title": titles(30) * 2, "y": [0, 1] * 30}
    data = quietly(saved(tmp_path, "csv", columns), ["y"])
    assert list(data.texts) == ["title"] and data.categories == {"place": tuple(places)}


def test_rows_to_predict_keep_columns_that_would_identify_training_rows(tmp_path):
    path = saved(tmp_path, "csv", {"id": list(range(30)), "code": [f"c{i}" for i in range(30)]})
    assert read(path, ()).feature_names == ("id", "code")


# Label sets in one column


@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_separator_that_alone_occurs_is_found(tmp_path, separator):
    path = saved(tmp_path, "csv", {"a": [1, 2, 3], "tags": [f"x{separator} y", "", "y"]})
    with pytest.warns(UserWarning, match="holds label sets, separated by"):
        data = read(path, ["tags"])
    assert data.label_names == ("x", "y") and data.Y.tolist() == [[1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize("cells", [["a,b;c", "a"], ["health", "tech"]])
def test_labels_whose_separator_is_not_plain_need_it_said(tmp_path, cells):
    path = saved(tmp_path, "csv", {"a": [1, 2], "tags": cells})
    with pytest.raises(
        DataError, match=r"must be 0 or 1; found .*; if it lists labels, say what separates them \(--sep"
    ):
        read(path, ["tags"])
    assert read(path, ["tags"], separator=";").Y.sum() == cells[0].count(";") + 2


@given(st.lists(st.lists(st.text("ab;\\'=+ ", min_size=1, max_size=4).filter(lambda name: name == name.strip()))))
def test_label_sets_that_predictions_write_are_read_as_they_were(sets):
    for own in sets:
        assert labels_in(joined(own), ";") == tuple(own)


@pytest.mark.parametrize("separator", ["", "\\", "a\\"])
def test_a_separator_must_be_a_text_without_a_backslash(separator):
    with pytest.raises(ValueError, match="without a backslash"):
        read(io.BytesIO(b"a,t\n1,x\n"), ["t"], separator=separator)


def test_a_separator_is_for_one_column():
    with pytest.raises(ValueError, match="name that column alone"):
        read(io.BytesIO(b"a,t,u\n1,x,y\n"), ["t", "u"], separator=";")


def test_a_parquet_column_of_lists_holds_label_sets(tmp_path):
    table = pa.table({"a": [1, 2, 3], "tags": pa.array([["x", "y"], [], None], pa.list_(pa.string()))})
    pq.write_table(table, tmp_path / "toy.parquet")
    data = quietly(tmp_path / "toy.parquet", ["tags"])
    assert data.Y.tolist() == [[1, 1], [0, 0], [0, 0]] and data.tags == ("tags", "")
    assert quietly(tmp_path / "toy.parquet", ["tags"], unknown="").Y.tolist() == [[1, 1], [0, 0], [-1, -1]]


@pytest.mark.parametrize("suffix", TABLES)
def test_blanks_around_labels_and_repeated_labels_do_not_count_in_any_format(tmp_path, suffix):
    lists = [[" x", "y "], ["x", "x", " x "], []]
    tags = [";".join(own) for own in lists] if suffix == "csv" else lists
    data = quietly(saved(tmp_path, suffix, {"a": [1, 2, 3], "tags": tags}), ["tags"])
    assert data.label_names == ("x", "y") and data.Y.tolist() == [[1, 1], [1, 0], [0, 0]]


AS_TEXT = {
    "pandas": ["['red fox', 'b']", "[]", '["it\'s"]', ""],
    "JSON": ['["red fox","b"]', "[ ]", '["it\'s"]', " "],
    "escapes": [r"['red\x20fox', 'b']", "[]", r"""['it\'s']""", ""],
}


@pytest.mark.parametrize("separator", [None, ","])
@pytest.mark.parametrize("cells", AS_TEXT.values(), ids=AS_TEXT)
@pytest.mark.parametrize("suffix", TABLES)
def test_a_list_of_labels_as_text_is_read_as_a_list(tmp_path, suffix, cells, separator):
    path = saved(tmp_path, suffix, {"a": [1, 2, 3, 4], "tags": cells})
    data = quietly(path, ["tags"], separator=separator)
    assert data.label_names == ("b", "it's", "red fox") and data.tags == ("tags", "")
    assert data.Y.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert quietly(path, schema=data.schema).Y.tolist() == data.Y.tolist()
    assert quietly(path, ["tags"], unknown="").Y.tolist()[3] == [-1, -1, -1]


@pytest.mark.parametrize("other", ["['b' 'c']", "b", "['b', 1]", "['b'", "[['b']]", "['b', 'c]", "[1, 2]"])
@pytest.mark.parametrize("suffix, where", [("csv", "line 3: c"), ("jsonl", "line 2: c"), ("parquet", "row 2, c")])
def test_a_text_beside_lists_of_labels_that_is_none_is_refused_by_row(tmp_path, suffix, where, other):
    path = saved(tmp_path, suffix, {"a": [1, 2], "tags": ["['b', 'c']", other]})
    with pytest.raises(DataError, match=f"{where}olumn 'tags' holds lists as text, so that each must be a list of"):
        quietly(path, ["tags"])


def test_labels_in_brackets_are_no_lists(tmp_path):
    path = saved(tmp_path, "csv", {"a": [1, 2], "tags": ["[draft];b", "[draft]"]})
    assert quietly(path, ["tags"]).label_names == ("[draft]", "b")


@pytest.mark.parametrize("suffix, where", [("jsonl", "line 2: column"), ("parquet", "row 2, column")])
@pytest.mark.parametrize("wrong", [[" "], [None]])
def test_a_list_with_a_blank_label_is_refused_by_row(tmp_path, suffix, where, wrong):
    path = saved(tmp_path, suffix, {"a": [1, 2], "tags": [["x"], ["x", *wrong]]})
    with pytest.raises(DataError, match=f"{where} 'tags' must be a list of names of labels"):
        quietly(path, ["tags"])


@pytest.mark.parametrize("cells, kind", [([0, 1, 1], "int64"), ([0, 1, 2], "int64"), ([True, False, True], "bool")])
def test_a_parquet_column_of_numbers_with_a_separator_is_refused_in_a_sentence(tmp_path, cells, kind):
    path = saved(tmp_path, "parquet", {"a": [1, 2, 3], "tags": cells})
    with pytest.raises(DataError, match=f"column 'tags' must hold texts or lists, since a .* its type is {kind}"):
        read(path, ["tags"], separator=";")


@pytest.mark.parametrize("unknown", [None, ""])
def test_a_parquet_column_without_values_holds_empty_sets_or_unknown_ones(tmp_path, unknown):
    schema = Schema(("a",), ("x", "y"), tags=("tags", ";"))
    path = saved(tmp_path, "parquet", {"a": [1, 2], "tags": [None, None]})
    data = read(path, ["tags"], separator=";", unknown=unknown, schema=schema)
    assert data.Y.tolist() == [[0 if unknown is None else -1] * 2] * 2


@pytest.mark.parametrize("classes", [["tech", "health;tech"], ["tech|usa", "health|tech"], ["tech", "health,tech"]])
def test_classes_that_look_like_label_sets_are_warned_of(classes):
    words = f"look like label sets, such as {classes[1]!r}".replace("|", r"\|")
    with pytest.warns(UserWarning, match=f"{words}.*MultiLabelBinarizer"):
        MLRHClassifier().fit(np.arange(4.0)[:, None], classes * 2)


@pytest.mark.parametrize("places", [["Paris, France", "Rome, Italy"], ["Paris, France", "Lyon, France"]])
def test_classes_that_are_plain_texts_with_commas_are_not_warned_of(places):
    MLRHClassifier().fit(np.arange(4.0)[:, None], places * 2)


# Unknown labels


@pytest.mark.parametrize("suffix", TABLES)
def test_labels_of_a_text_that_says_so_are_unknown(tmp_path, suffix):
    path = saved(tmp_path, suffix, {"a": [1.0, 2.0, 3.0], "y": [1, None, 0], "z": [0, 1, None]})
    assert read(path, ["y", "z"], unknown="").Y.tolist() == [[1, 0], [-1, 1], [0, -1]]
    with pytest.raises(DataError, match=r"has no value; .*--unknown"):
        read(path, ["y", "z"])


def test_a_word_can_stand_for_an_unknown_label():
    data = read(io.BytesIO(b"a,y,z\n1,?,1\n2,0, ? \n"), ["y", "z"], unknown="?")
    assert data.Y.tolist() == [[-1, 1], [0, -1]]


@pytest.mark.parametrize("suffix", TABLES)
def test_a_table_with_everything_comes_back_as_it_was_written(tmp_path, suffix):
    columns, _ = articles()
    data = quietly(saved(tmp_path, "csv", columns), ["tags"])
    data.Y[3, 1], data.X[2, 1] = -1, np.nan
    path = tmp_path / f"again.{suffix}"
    write(data, path)
    again = quietly(path, data.label_names, unknown="")
    assert again.Y.tolist() == data.Y.tolist() and again.feature_names == data.feature_names
    np.testing.assert_array_equal(again.X, data.X)
    assert dict(again.texts) == dict(data.texts) and again.dates == data.dates and again.categories == data.categories
    assert [str(own) for own in again.kept["url"]] == data.kept["url"].tolist()


@pytest.mark.parametrize("suffix", ["arff", "libsvm"])
def test_formats_without_text_and_dates_refuse_them(tmp_path, suffix):
    data = quietly(saved(tmp_path, "csv", articles()[0]), ["tags"])
    with pytest.raises(DataError, match="text can't be written in this format; use CSV"):
        write(data, tmp_path / f"toy.{suffix}")
    with pytest.raises(DataError, match="dates can't be written"):
        write(data.without(["title"]), tmp_path / f"toy.{suffix}")


# Faults


@pytest.mark.parametrize("kind", ["nominal", "text"])
def test_words_that_are_no_utf_8_are_refused_in_a_sentence(tmp_path, kind):
    data = read(io.BytesIO(b"a,x,y\n1,red fox,0\n2,owl,1\n"), ["y"], format="csv", columns={"x": kind})
    words = {"x": ("red \ud800", "owl")}
    data = replace(data, **{"categories" if kind == "nominal" else "texts": words})
    with pytest.raises(DataError, match=r"toy\.parquet: 'red .* can't be written as UTF-8"):
        write(data, tmp_path / "toy.parquet")


def test_an_ignored_column_of_a_parquet_file_may_have_any_type(tmp_path):
    columns = {"a": [1.0, 2.0], "deep": [[1], [2]], "when": pa.array([b"x", b"y"]), "y": [0, 1]}
    pq.write_table(pa.table(columns), tmp_path / "toy.parquet")
    with pytest.raises(DataError, match=r"column 'deep' has the type list.*unless it is ignored"):
        read(tmp_path / "toy.parquet", ["y"])
    data = read(tmp_path / "toy.parquet", ["y"], columns={"deep": "ignored", "when": "ignored"})
    assert data.feature_names == ("a",)


@pytest.mark.parametrize(
    "kinds, message",
    [
        ({"b": "text"}, "has no column 'b', which is named as text; correct the name"),
        ({"y": "id"}, "column 'y' is named as a label and as an identifier; name it once"),
        ({"a": "date"}, r"line 2: column 'a' must be a date such as 2024-03-31 .*; found '1'"),
        ({"w": "number"}, "line 2: column 'w' must be a number; found 'x'"),
    ],
)
def test_a_kind_that_a_column_can_not_be_is_one_sentence(kinds, message):
    with pytest.raises(DataError, match=message):
        read(io.BytesIO(b"a,w,y\n1,x,0\n2,z,1\n"), ["y"], columns=kinds, format="csv")


@pytest.mark.parametrize(
    "columns, message", [({"a": "words"}, "must be one of 'number'"), (["a"], "must be a mapping")]
)
def test_kinds_are_a_mapping_to_known_words(columns, message):
    with pytest.raises((ValueError, TypeError), match=message):
        read(io.BytesIO(b"a,y\n1,0\n"), ["y"], columns=columns)


def test_columns_of_files_that_declare_them_can_only_be_ignored():
    arff = b"@relation r\n@attribute a numeric\n@attribute b string\n@attribute y {0,1}\n@data\n1,u v,0\n2,w,1\n3,w,1\n"
    assert quietly(io.BytesIO(arff), ["y"], columns={"b": "ignored"}).feature_names == ("a",)
    with pytest.raises(DataError, match="'b' can only be ignored; for text"):
        read(io.BytesIO(arff), ["y"], columns={"b": "text"})
    with pytest.raises(DataError, match=r"unknown labels .* are for CSV"):
        read(io.BytesIO(arff), ["y"], unknown="?")


@pytest.mark.parametrize("column, values, what", [("title", [1.0], "must be text"), ("when", [1.0], "must be dates")])
def test_data_whose_columns_are_something_else_do_not_conform(column, values, what):
    schema = Schema(("title", "when"), ("y",), texts=("title",), dates=("when",))
    frame = {"title": ["a b"], "when": ["2024-01-05"], **{column: values}}
    text = "".join(",".join(map(str, row)) + "\n" for row in [list(frame), [own[0] for own in frame.values()]])
    data = quietly(io.BytesIO(text.encode()), (), format="csv")
    with pytest.raises(DataError, match=what):
        data.conform(schema)


# Dates


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1970-01-01",
            "2024-02-29",
            "1899/12/31",
            "2024-03-31T18:05",
            "2024-03-31 18:05:59.250",
            "2024-03-31T18:05:00Z",
        ),
        *("2024-03-31 18:05:00+02:00", "2024-03-31T18:05:00-0530", "0001-01-01", "9999-12-31 23:59:59"),
    ],
)
def test_days_of_a_date_are_those_of_python(text):
    moment = datetime.fromisoformat(text.replace("/", "-"))
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86400
    assert days_of(text) == pytest.approx(expected, rel=1e-15)


def test_a_day_before_its_month_has_dots():
    assert days_of("31.3.2024") == days_of("2024-03-31")


@pytest.mark.parametrize(
    "text",
    [
        "03/04/2024",
        "2024-13-01",
        "2023-02-29",
        "2024-03-31 25:00",
        "20240331",
        "2024",
        "1.5",
        "",
        "2024-3",
        "\u0662\u0660\u0662\u0664-\u0660\u0663-\u0660\u0661",
    ],
)
def test_what_is_no_plain_date_is_none(text):
    with pytest.raises(ValueError):
        days_of(text)


@given(st.datetimes())
def test_a_moment_comes_back_from_its_text(moment):
    days = days_of(moment.isoformat())
    assert days_of(date_text(days)) == pytest.approx(days, abs=1e-9)  # in the year 9999 a float is 5e-10 days wide


def test_parts_of_the_calendar_are_those_of_pandas():
    moments = pd.to_datetime(["1969-12-31 23:30", "2024-02-29 00:00", "2023-07-04 12:59", "2000-01-01 07:00"])
    rows = "".join(f"{moment},1\n" for moment in moments)
    data = quietly(io.BytesIO(f"when,y\n{rows}".encode()), ["y"], format="csv")
    features = expanded(data)
    assert features.feature_names == ("when", "when: month", "when: weekday", "when: hour")
    assert [MONTHS[int(month)] for month in features.X[:, 1]] == list(moments.month_name())
    assert [DAYS[int(day)] for day in features.X[:, 2]] == list(moments.day_name())
    assert features.X[:, 3].tolist() == moments.hour.tolist()


def test_parts_of_the_calendar_that_do_not_differ_are_left_out():
    data = quietly(io.BytesIO(b"when,y\n2024-01-01,0\n2024-01-08,1\n,1\n"), ["y"], format="csv")
    assert expanded(data).feature_names == ("when",)


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "UTC")),
        *(pa.timestamp("ns", "Europe/Berlin"), pa.dictionary(pa.int8(), pa.date32())),
    ],
    ids=str,
)
def test_dates_of_a_parquet_file_may_have_any_type_of_dates(tmp_path, kind):
    days = pa.array([19_000, None, -5], pa.int32()).cast(pa.date32())
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    column = days.cast(value).dictionary_encode() if value != kind else days.cast(kind)
    pq.write_table(pa.table({"when": column, "y": [0, 1, 1]}), tmp_path / "toy.parquet")
    data = quietly(tmp_path / "toy.parquet", ["y"])
    assert data.dates == ("when",)
    np.testing.assert_array_equal(data.X[:, 0], [19_000, np.nan, -5])
    with pytest.raises(DataError, match="column 'when' has the type"):
        read(tmp_path / "toy.parquet", ["when", "y"])


def test_dates_beyond_the_calendar_are_refused(tmp_path):
    pq.write_table(pa.table({"when": pa.array([2**40]).cast(pa.timestamp("s")), "y": [1]}), tmp_path / "toy.parquet")
    with pytest.raises(DataError, match="column 'when' must hold dates from the year 1 to 9999"):
        read(tmp_path / "toy.parquet", ["y"])


# Texts


def test_text_becomes_the_tfidf_of_scikit_learn_times_the_root_of_its_length(tmp_path):
    columns, _ = articles()
    data = quietly(saved(tmp_path, "csv", {"title": columns["title"], "y": [0, 1] * 20}), ["y"])
    table = TableFeatures.found_in(data)
    X = table.expand(data)
    train, test = np.arange(25), np.arange(25, 40)
    preprocessor = make_preprocessor(X.rows(train)).fit(X.X[train])
    found = preprocessor.transform(X.X[test]).toarray()
    texts, place = np.array(columns["title"]), 0
    for kind, options in (("words", {}), ("pieces", {"analyzer": "char_wb", "ngram_range": (3, 4)})):
        theirs = TfidfVectorizer(vocabulary=getattr(table, kind)["title"], sublinear_tf=True, **options)
        fitted = theirs.fit(texts[train])
        weight = np.sqrt((fitted.transform(texts[train]) > 0).sum(axis=1).mean())  # words of a text, in the mean
        expected = weight * fitted.transform(texts[test]).toarray()
        np.testing.assert_allclose(found[:, place : place + expected.shape[1]], expected, atol=1e-12)
        place += expected.shape[1]
    assert place == found.shape[1] == table.n_features(data.schema)


def test_words_that_one_row_alone_has_do_not_count_and_missing_texts_are_zeros():
    data = read(io.BytesIO(b"t,y\nred fox,0\nred owl,1\n,1\nred fox,0\n"), ["y"], columns={"t": "text"}, format="csv")
    table = TableFeatures.found_in(data)
    assert table.words == {"t": ("fox", "red")}
    X = table.matrix(data).toarray()
    assert X[:, :2].tolist() == [[1, 1], [0, 1], [0, 0], [1, 1]] and not X[2].any()


def test_text_without_a_word_that_comes_again_leaves_the_other_columns_dense():
    data = read(io.BytesIO(b"t,a,y\nfox,1,0\nowl,2,1\n"), ["y"], columns={"t": "text"}, format="csv")
    features = expanded(data)
    assert features.X.tolist() == [[1], [2]] and features.feature_names == ("a",)


def test_names_of_words_are_none_of_the_table(tmp_path):
    columns = {"t": ["red fox", "red owl"] * 2, "t: red": ["a", "b"] * 2, "y": [0, 1] * 2}
    data = read(saved(tmp_path, "csv", columns), ["y"], columns={"t": "text"})
    features = expanded(data)
    assert len(set(features.feature_names)) == features.X.shape[1] and features.nominal == [0]


def test_the_memory_for_words_is_limited(monkeypatch):
    data = read(io.BytesIO(b"t,y\nred fox,0\nred owl,1\n"), ["y"], columns={"t": "text"}, format="csv")
    monkeypatch.setenv("MLRH_MAX_BYTES", "100")
    with pytest.raises(
        DataError, match=r"14 characters of column 't' would take 896 bytes.* set MLRH_MAX_BYTES to 896"
    ):
        TableFeatures.found_in(data)


@pytest.mark.parametrize("columns", [None, {"when": "date"}])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_blank_dates_are_missing_in_every_format(tmp_path, suffix, columns):
    table = {"when": ["2024-03-31", "", "  ", None, "1970-01-02"] * 4, "y": [0, 1] * 10}
    data = quietly(saved(tmp_path, suffix, table), ["y"], columns=columns)
    assert data.dates == ("when",)
    np.testing.assert_array_equal(data.X[:5, 0], [19813, np.nan, np.nan, np.nan, 1])


def test_rows_of_a_data_frame_are_read_as_rows_of_a_file(tmp_path):
    columns, _ = articles()
    data = quietly(saved(tmp_path, "csv", columns), ["tags"])
    frame = pd.DataFrame(columns)
    for moments in (frame["published"], pd.to_datetime(frame["published"])):
        found = from_frame(frame.assign(published=moments), data.schema)
        table = TableFeatures.found_in(data)
        expected, own = table.matrix(data), table.matrix(found)
        np.testing.assert_allclose(own.toarray(), expected.toarray(), rtol=1e-15)
        assert found.kept["url"].tolist() == columns["url"]
    with pytest.raises(DataError, match="'published' of the DataFrame must hold dates such as 2024-03-31"):
        from_frame(frame.assign(published="soon"), data.schema)
