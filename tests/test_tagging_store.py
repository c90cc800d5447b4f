"""The file of decisions: what it holds, which rows it is about, and what it is not overwritten by."""

import csv
import doctest
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from mlrh.data import DataError
from mlrh.web import known_of
from mlrh.web._store import Fingerprints, Store

NAN = np.nan

# Fingerprints


def test_a_fingerprint_is_that_of_the_same_names_and_values_in_any_form_and_order():
    X = np.array([[1.0, 0, 2, 0], [0, NAN, 1, 1], [-0.5, 3, 0, 2], [0, 0, 0, NAN]])
    categories = {"d": ("red", "blue", "grey")}
    own = list(Fingerprints(X, list("abcd"), categories))
    assert len(set(own)) == 4 and all(re.fullmatch("[a-p]{10}", letters) for letters in own)
    assert list(Fingerprints(sparse.csr_array(X), list("abcd"), categories)) == own
    recoded = np.column_stack([[2, 1, 0, NAN], X[:, 2], -0.0 + X[:, 0], X[:, 1]])
    recoded[recoded == 0] = -0.0
    assert list(Fingerprints(recoded, list("dcab"), {"d": ("grey", "blue", "red", "pink")})) == own
    assert list(Fingerprints(X[::-1], list("abcd"), categories)) == own[::-1]


def test_a_fingerprint_differs_with_any_value_any_word_and_any_name():
    X, names, categories = np.array([[1.0, 0.0, 2.0]]), ["a", "b", "c"], {"c": ("red", "blue", "grey")}
    texts = {Fingerprints(X, names, categories)[0]}
    for column, value in [(0, 1 + 2**-52), (0, 0.0), (0, NAN), (1, 1.0), (2, 1.0), (2, NAN)]:
        other = X.copy()
        other[0, column] = value
        texts.add(Fingerprints(other, names, categories)[0])
    texts.add(Fingerprints(X, names)[0])
    texts.add(Fingerprints(X, names, {"c": ("red", "blue", "gray")})[0])
    texts.add(Fingerprints(X, ["a", "e", "c"], categories)[0])
    assert len(texts) == 10


# The file

LETTERS = ["abcdefghij", "bbbbbbbbbb", "cccccccccc", "dddddddddd", "eeeeeeeeee"]


def keep(store, row, first=1.0):
    """Keep a row of which only the first label is known."""
    store.keep(row, np.array([first, NAN, NAN]))


def kept(path, *changes, names=("happy", "sad; blue", 'a "b"'), fingerprints=LETTERS):
    store = Store(path, names, fingerprints)
    for row, values in changes:
        store.keep(row, np.array(values, float))
    return store


def test_the_file_holds_what_was_kept_and_gives_it_back(tmp_path):
    path = tmp_path / "confirmed.csv"
    kept(path, (4, [1, NAN, 0]), (2, [NAN, 0, NAN]), (4, [1, 1, 0]))
    with path.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["row", "happy", "sad; blue", 'a "b"', "row_fingerprint"],
            ["2", "", "0", "", "bbbbbbbbbb"],
            ["4", "1", "1", "0", "dddddddddd"],
        ]
    expected = np.full((5, 3), NAN)
    expected[1, 1], expected[3] = 0, [1, 1, 0]
    np.testing.assert_array_equal(known_of(path, 5), expected)
    np.testing.assert_array_equal(kept(path).known, expected)
    frame = pd.read_csv(path, index_col="row").drop(columns="row_fingerprint").reindex(range(1, 6))
    np.testing.assert_array_equal(frame.to_numpy(float), expected)


@pytest.mark.parametrize("name", ["confirmed.csv", "confirmed.csv.gz"])
def test_a_store_goes_on_from_the_file_of_another(tmp_path, name):
    kept(tmp_path / name, (1, [1, NAN, NAN]))
    kept(tmp_path / name, (3, [0, NAN, NAN]))
    np.testing.assert_array_equal(known_of(tmp_path / name, 3)[:, 0], [1, NAN, 0])


def test_a_row_that_is_open_again_leaves_the_file(tmp_path):
    kept(tmp_path / "c.csv", (1, [1, NAN, NAN]), (2, [1, 1, NAN]), (1, [NAN] * 3))
    assert [line.split(",")[0] for line in (tmp_path / "c.csv").read_text().splitlines()] == ["row", "2"]


def test_a_file_that_pandas_wrote_again_is_read(tmp_path):
    kept(tmp_path / "c.csv", (1, [1, NAN, 0]), (4, [1, 1, 0]))
    before = known_of(tmp_path / "c.csv", 5)
    pd.read_csv(tmp_path / "c.csv").to_csv(tmp_path / "c.csv", index=False)
    assert "1.0" in (tmp_path / "c.csv").read_text()
    np.testing.assert_array_equal(known_of(tmp_path / "c.csv", 5), before)


def test_decisions_about_other_rows_are_refused_in_one_sentence_and_stay(tmp_path):
    path = tmp_path / "c.csv"
    kept(path, (2, [1, NAN, 0]), (3, [1, 1, 0]), (5, [0, NAN, NAN]))
    before = path.read_bytes()
    with pytest.raises(
        DataError, match=r"c\.csv, line 3: .*: 2 of 3 have other features here, row 3 first; choose"
    ) as no:
        kept(path, fingerprints=[*LETTERS[:2], *LETTERS[3:], "f" * 10])
    assert "\n" not in str(no.value) and path.read_bytes() == before


def test_rows_that_came_after_the_decided_ones_are_no_other_rows(tmp_path):
    kept(tmp_path / "c.csv", (2, [1, NAN, 0]), fingerprints=LETTERS[:3])
    store = kept(tmp_path / "c.csv", (5, [1, NAN, 0]))
    assert (store.n_decided, store.n_unsure) == (1, 0)


@pytest.mark.parametrize(
    "text, n_unsure",
    [
        ("row,a,b\n1,1,\n3,0,1\n", 2),  # by hand
        ("row,a,b,row_fingerprint\n3,0,1,cccccccccc\n1,1,,\n", 1),  # sorted otherwise, and one line added by hand
        ("row,row_fingerprint,a,b\n1, abcdefghij ,1,\n3,cccccccccc,0,1\n", 0),  # columns moved in a spreadsheet
    ],
)
def test_a_file_with_or_without_fingerprints_is_gone_on_from_and_has_them_then(tmp_path, text, n_unsure):
    path = tmp_path / "c.csv"
    path.write_text(text)
    np.testing.assert_array_equal(known_of(path, 3), [[1, NAN], [NAN, NAN], [0, 1]])
    store = kept(path, (2, [1, 1]), names=["a", "b"])
    assert (store.n_decided, store.n_unsure) == (2, n_unsure)
    lines = ["row,a,b,row_fingerprint", "1,1,,abcdefghij", "2,1,1,bbbbbbbbbb", "3,0,1,cccccccccc"]
    assert path.read_text().splitlines() == lines


@pytest.mark.parametrize("name", ["a\rb", "a\nb", "\r", 'a"\r\n,b', " a ", "#", "é\x85\u2028", "row", "1"])
def test_a_file_whose_labels_have_odd_names_is_gone_on_from(tmp_path, name):
    kept(tmp_path / "c.csv", (1, [1, NAN]), names=[name, "sad"])
    again = kept(tmp_path / "c.csv", (2, [NAN, 0]), names=[name, "sad"])
    np.testing.assert_array_equal(again.known[:2], [[1, NAN], [NAN, NAN]])
    np.testing.assert_array_equal(known_of(tmp_path / "c.csv", 2, [name, "sad"]), [[1, NAN], [NAN, 0]])


@pytest.mark.parametrize("name", ["a\0b", "\ud83d", "row_fingerprint"])
def test_a_label_whose_name_a_csv_file_can_not_hold_is_refused_before_anything_is_decided(tmp_path, name):
    with pytest.raises(DataError, match="rename it") as refusal:
        Store(tmp_path / "c.csv", ["sad", name], LETTERS)
    assert "\n" not in str(refusal.value) and not list(tmp_path.iterdir())


def test_a_file_of_the_same_content_is_written_on_whatever_its_time(tmp_path):
    path = tmp_path / "c.csv"
    store = kept(path, (1, [1, NAN, NAN]))
    os.utime(path, (0, 0))
    keep(store, 2)
    (tmp_path / "copy.csv").write_bytes(path.read_bytes())
    (tmp_path / "copy.csv").replace(path)
    keep(store, 3)
    np.testing.assert_array_equal(known_of(path, 3)[:, 0], [1, 1, 1])


def test_what_another_program_wrote_even_at_the_same_time_and_size_is_not_overwritten(tmp_path):
    path = tmp_path / "c.csv"
    one, other = kept(path, (1, [1, NAN, NAN])), kept(path, (2, [1, NAN, NAN]))
    with pytest.raises(DataError, match="was changed by another program"):
        keep(one, 3)
    keep(other, 4)
    np.testing.assert_array_equal(known_of(path, 5)[:, 0], [1, 1, NAN, 1, NAN])
    state = path.stat()
    path.write_text(path.read_text().replace("1,1,", "1,0,"))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(DataError, match="was changed by another program"):
        keep(other, 5)


def test_a_file_that_was_removed_is_written_again_as_a_whole(tmp_path):
    path = tmp_path / "c.csv"
    store = kept(path, (1, [1, NAN, NAN]))
    path.unlink()
    keep(store, 2, 0.0)
    np.testing.assert_array_equal(known_of(path, 2)[:, 0], [1, 0])


@pytest.mark.parametrize(
    "text, words",
    [
        ("row,happy,sad\n", "line 1: the columns must be row and the labels 'a', 'b'; found 'row', 'happy', 'sad'"),
        ("row,b,a\n", "the columns must be row and the labels 'a', 'b'"),
        ("a,b\n1,1\n", "the columns must be row"),
        ("my notes", "the columns must be row"),
        ("\n\n", "has no header"),
        ("row,a,b\n1,1,0\n4,1,0\n", "line 3: rows must be different numbers from 1 to 3, .*; found 4"),
        ("row,a,b\n0,1,0\n", "line 2: rows must be .* found 0"),
        ("row,a,b\n1,1,0\n1,1,0\n", "line 3: rows must be .* found 1 twice"),
        ("row,a,b\n1,1\n", "line 2: found 2 cells where the header names 3 columns"),
        ("row,a,b\nfirst,1,0\n", "line 2: column row must hold whole numbers; found 'first'"),
        ("row,a,b\n\n1,1,yes\n", "line 3: column 'b' must hold 1, 0 or nothing; found 'yes'"),
        ('row,a,b\n1,"1,0\n', "can't be split into cells"),
        ("row,a,b,row_fingerprint\n1,1,0\n", "line 2: found 3 cells where the header names 4 columns"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_in_one_sentence_and_stays(tmp_path, text, words):
    path = tmp_path / "c.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as refusal:
        Store(path, ["a", "b"], LETTERS[:3])
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)
    assert path.read_text() == text


def test_known_of_refuses_a_file_that_is_not_there_or_has_no_labels(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        known_of(tmp_path / "absent.csv", 3)
    (tmp_path / "c.csv").write_text("row\n1\n")
    with pytest.raises(DataError, match="must be row and one column per label"):
        known_of(tmp_path / "c.csv", 3)


def test_an_empty_file_is_a_start_from_nothing_and_another_suffix_is_refused(tmp_path):
    (tmp_path / "c.csv").touch()
    assert np.isnan(Store(tmp_path / "c.csv", ["a"], LETTERS[:2]).known).all()
    with pytest.raises(DataError, match=r"choose a name that ends in \.csv"):
        Store(tmp_path / "c.parquet", ["a"], LETTERS[:2])


def test_the_example_of_the_page_in_the_docs_prints_what_it_says(tmp_path, monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "tagging.md"
    (table,) = re.findall(r"```csv\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "confirmed.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    results = doctest.testfile(str(page), module_relative=False)
    assert (results.failed, results.attempted) == (0, 9)
