"""What is written is read again bit for bit; formats are found by content; no half-written file stays."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from data_files import dense, words
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from mlrh import MLRHClassifier
from mlrh.data import MultilabelData
from mlrh.data._readers import read, write
from mlrh.data.containers import DataError

ARFF = b"@relation toy\n@attribute a numeric\n@attribute y {0,1}\n@data\n1,0\n2,1\n"
CSV = b"a,y\n1,0\n2,1\n"
LIBSVM = b"1:1\n1 1:2\n"
# No digits: texts that spell numbers come back as numbers.
TEXT = st.text(st.sampled_from("aZ'\"\\%{}, ;\t\n\r?é𝄞#:&<>-\u2028\x85@"), min_size=1, max_size=6)
NAMED = TEXT.filter(str.strip)
NUMBERS = st.one_of(st.floats(allow_infinity=False), st.sampled_from([0.0, 1.0, -0.0, 5e-324, 1.7976931348623157e308]))


@st.composite
def data_sets(draw, nominal=True, missing=True, min_labels=1):
    """Sets of a few rows with odd names and values."""
    n_rows, n_features, n_labels = (draw(st.integers(*limits)) for limits in ((1, 5), (1, 4), (min_labels, 3)))
    names = draw(st.lists(NAMED, min_size=n_features + n_labels, max_size=n_features + n_labels, unique=True))
    X, categories = np.zeros((n_rows, n_features)), {}
    for column in range(n_features):
        if nominal and draw(st.booleans()):
            values = draw(st.lists(NAMED, min_size=1, max_size=4, unique=True))
            categories[names[column]] = tuple(values)
            cells = st.one_of(st.just(np.nan), st.integers(0, len(values) - 1))
        else:
            cells = NUMBERS if missing else NUMBERS.filter(lambda number: number == number)
        X[:, column] = draw(st.lists(cells, min_size=n_rows, max_size=n_rows))
    flags = st.lists(st.integers(0, 1), min_size=n_rows * n_labels, max_size=n_rows * n_labels)
    Y = np.array(draw(flags), np.int8).reshape(n_rows, n_labels)
    return MultilabelData(X, Y, tuple(names[:n_features]), tuple(names[n_features:]), "toy", categories)


def assert_same(found, data):
    assert (found.feature_names, found.label_names, found.name) == (data.feature_names, data.label_names, data.name)
    assert dict(found.categories) == dict(data.categories)
    assert np.array_equal(found.Y, data.Y) and found.Y.dtype == np.int8
    # equal_nan alone takes -0.0 for 0.0.
    assert np.array_equal(dense(found.X), dense(data.X), equal_nan=True)
    if not sparse.issparse(found.X) and not sparse.issparse(data.X):
        assert np.array_equal(np.signbit(found.X) & (found.X == 0), np.signbit(data.X) & (data.X == 0))


def round_trip(data, file, labels=None, **options):
    with TemporaryDirectory() as folder:
        write(data, Path(folder) / file, **options)
        assert not [name for name in os.listdir(folder) if "tmp" in name]
        return read(Path(folder) / file, labels)


@settings(deadline=None, max_examples=60)
@given(data_sets(), st.sampled_from(["mulan", "meka"]), st.booleans(), st.sampled_from(["", ".gz"]))
def test_arff_gives_back_what_was_written(data, layout, as_sparse, ending):
    data = replace(data, X=sparse.csr_array(data.X)) if as_sparse else data
    found = round_trip(data, f"toy.arff{ending}", layout=layout)
    assert sparse.issparse(found.X) == as_sparse
    assert_same(found, data)


@settings(deadline=None, max_examples=60)
@given(data_sets(min_labels=0))
def test_parquet_gives_back_what_was_written(data):
    assert_same(round_trip(data, "toy.parquet", data.label_names), data)


@settings(deadline=None, max_examples=60)
@given(data_sets(min_labels=0), st.sampled_from(["", ".gz"]))
def test_csv_gives_back_the_same_cells(data, ending):
    found = round_trip(data, f"toy.csv{ending}", data.label_names)
    expected = words(data)
    for name, cells in expected.items():
        if all(cell is None or str(cell).strip() in ("?", "-") for cell in cells):  # only words for missing values
            expected[name] = [None] * len(cells)
    assert words(found) == expected
    assert np.array_equal(found.Y, data.Y) and found.label_names == data.label_names


@settings(deadline=None, max_examples=60)
@given(data_sets(nominal=False, missing=False), st.sampled_from(["libsvm", "svm", "txt", "txt.gz"]), st.booleans())
def test_libsvm_gives_back_the_numbers_and_the_labels_that_occur(data, suffix, as_sparse):
    occurs = data.Y.any(axis=0)
    sent = replace(data, X=sparse.csr_matrix(data.X)) if as_sparse else data
    found = round_trip(sent, f"toy.{suffix}")
    assert np.array_equal(found.X.toarray(), data.X)
    assert np.array_equal(found.Y, data.Y[:, occurs])
    assert found.label_names == tuple(str(label) for label in np.flatnonzero(occurs))


@pytest.mark.parametrize("first", ["0", "1"])
def test_libsvm_keeps_names_that_are_numbers(tmp_path, first):
    names = tuple(str(int(first) + place) for place in range(4))
    X = sparse.csr_array(([1.0], ([1], [2])), shape=(3, 4))
    data = MultilabelData(X, np.array([[1, 0], [0, 1], [0, 0]], np.int8), names, ("-3", "12"), "toy")
    write(data, tmp_path / "toy.svm")
    assert_same(read(tmp_path / "toy.svm"), data)


def test_a_sparse_set_written_as_table_comes_back_dense(tmp_path):
    X = np.array([[0, 1.5], [np.nan, 0]])
    data = MultilabelData(sparse.csr_array(X), np.array([[1], [0]], np.int8), ("a", "b"), ("y",), "toy")
    for suffix in ("csv", "parquet"):
        write(data, tmp_path / f"toy.{suffix}")
        np.testing.assert_array_equal(read(tmp_path / f"toy.{suffix}", ["y"]).X, X)


@pytest.mark.parametrize("suffix", ["arff", "svm"])
def test_sparse_features_suit_estimators_that_take_32_bit_indices_only(tmp_path, suffix):
    X = sparse.csr_array(np.eye(6))
    Y = np.array([[1, 0, 1, 0, 0, 1]], np.int8).T
    write(MultilabelData(X, Y, tuple("abcdef"), ("y",), "toy"), tmp_path / f"toy.{suffix}")
    data = read(tmp_path / f"toy.{suffix}")
    LogisticRegression(solver="liblinear").fit(data.X, data.Y.ravel())
    assert data.X.indices.dtype == data.X.indptr.dtype == np.int32


def test_a_set_read_from_sparse_arff_can_be_fitted(tmp_path):
    rng = np.random.RandomState(0)
    X, Y = (rng.random_sample((30, 4)) < 0.3) * 1.0, (rng.random_sample((30, 3)) < 0.5).astype(np.int8)
    names = tuple("abcd"), tuple("xyz")
    write(MultilabelData(sparse.csr_array(X), Y, *names, "toy"), tmp_path / "toy.arff")
    data = read(tmp_path / "toy.arff")
    fitted = MLRHClassifier().fit(data.X, data.Y)
    np.testing.assert_allclose(fitted.coef_, MLRHClassifier().fit(X, Y).coef_, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "labels", "feature"),
    [(ARFF, ["y"], "a"), (CSV, ["y"], "a"), (LIBSVM, None, "1"), (b"% note\n" + ARFF, ["y"], "a")],
)
@pytest.mark.parametrize("file", ["toy", "toy.dat", "toy.txt"])
@pytest.mark.parametrize("zipped", [False, True])
def test_formats_and_compression_are_found_by_content(tmp_path, content, labels, feature, file, zipped):
    path = tmp_path / file
    path.write_bytes(gzip.compress(content) if zipped else content)
    data = read(path, labels)
    assert dense(data.X).tolist() == [[1], [2]] and data.Y.tolist() == [[0], [1]]
    assert data.feature_names == (feature,) and data.name == "toy"


def test_content_that_is_certain_comes_before_the_suffix_and_a_given_format_before_both(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_bytes(ARFF)
    assert read(path, ["y"]).X.tolist() == [[1], [2]]
    with pytest.raises(DataError, match=r"toy\.csv, line 1: "):
        read(path, ["y"], format="libsvm")


def test_a_binary_stream_is_read_and_named():
    data = read(io.BytesIO(gzip.compress(ARFF)), ["y"], name="from a pipe")
    assert data.name == "from a pipe" and data.Y.tolist() == [[0], [1]]
    with pytest.raises(DataError, match=r"^stream: the file is empty"):
        read(io.BytesIO(b""))
    with pytest.raises(TypeError, match="opened in binary mode"):
        read(io.StringIO("a,y\n"), ["y"])


def test_an_open_file_finds_the_xml_beside_it(tmp_path):
    write(MultilabelData(np.ones((2, 1)), np.eye(2, dtype=np.int8), ("a",), ("p", "q"), "toy"), tmp_path / "toy.arff")
    with open(tmp_path / "toy.arff", "rb") as file:
        assert read(file).label_names == ("p", "q")


def test_n_features_must_agree_with_the_file(tmp_path):
    assert read(io.BytesIO(CSV), ["y"], n_features=1).X.shape == (2, 1)
    with pytest.raises(DataError, match="has 1 features; n_features asks for 3"):
        read(io.BytesIO(CSV), ["y"], n_features=3)


NOISE = np.random.RandomState(0).bytes(1000)  # which compresses to itself


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place:][1:]


@pytest.mark.parametrize(
    "content, words",
    [
        *((gzip.compress(ARFF * 20)[:cut], "the gzip file ends too early") for cut in (5, 30, -9, -1)),
        *((flipped(gzip.compress(NOISE), place), "") for place in (3, 20, -6, -2)),
        (gzip.compress(ARFF) + b"garbage", "the gzip file is damaged"),
    ],
    ids=range(9),  # the time that gzip writes differs between the processes that collect
)
def test_a_truncated_or_damaged_gzip_file_is_an_error(tmp_path, content, words):
    path = tmp_path / "toy.arff.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"toy.arff.gz.*{words}"):
        read(path, ["y"])


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("toy.csv", content)
    return file.getvalue()


@pytest.mark.parametrize(("pack", "words"), [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (zipped, "ZIP archive")])
@pytest.mark.parametrize("file", ["toy.csv", "toy"])
def test_other_compression_is_named(tmp_path, pack, words, file):
    (tmp_path / file).write_bytes(pack(CSV))
    with pytest.raises(DataError, match=rf"{file}: the file is .*{words}; \w+ it first"):
        read(tmp_path / file, ["y"])


@pytest.mark.parametrize("file", ["toy.txt", "toy.svm"])
def test_the_counts_above_a_file_for_extreme_classification_are_named(tmp_path, file):
    (tmp_path / file).write_bytes(b"2 5 2\n0,1 0:2 3:1\n1 2:3\n")
    with pytest.raises(DataError, match=rf"{file}, line 1: the first line, '2 5 2', counts rows"):
        read(tmp_path / file)


@pytest.mark.parametrize(
    "source, options, error, words",
    [
        ("nothing.arff", {}, DataError, "nothing.arff: no such file"),
        (".", {}, DataError, "is a folder; give the path of a file in it"),
        ("a\0b", {}, DataError, "can't be read"),
        (CSV, {"labels": Path("labels.xml")}, DataError, "labels.xml: no such file"),
        (CSV, {"labels": ["y"], "format": "xls"}, ValueError, "format must be one of 'arff', .* or None; got 'xls'"),
        (LIBSVM, {"n_features": 0}, ValueError, "n_features must be a positive integer or None; got 0"),
        (CSV, {"labels": ["y", "y"]}, DataError, "labels: the label 'y' is named twice"),
        (CSV, {"labels": [3]}, TypeError, "labels must be names, the path of an XML file or None; found 3"),
    ],
)
def test_sources_and_arguments_of_no_use_are_errors(source, options, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        read(source if isinstance(source, str) else io.BytesIO(source), **options)


def small(**changes):
    data = MultilabelData(np.ones((2, 2)), np.eye(2, dtype=np.int8), ("a", "b"), ("p", "q"), "toy")
    return replace(data, **changes)


REFUSED = {  # what is changed, the suffixes, and the message; the file lies in a folder that there is, but for "folder"
    "infinite": ({"X": np.array([[1, np.inf], [0, 0]])}, "arff csv parquet svm", "X holds an infinite value"),
    "same names": ({"label_names": ("a", "q")}, "arff csv parquet", "two columns are called 'a'"),
    "bad code": ({"categories": {"a": ("x",)}}, "arff csv parquet", "feature 'a' must be coded 0 to 0"),
    "nominal": ({"categories": {"a": ("x", "y")}}, "svm", "can't hold the nominal feature 'a'"),
    "missing": ({"X": np.full((2, 2), np.nan)}, "svm", "can't hold missing values"),
    "NUL": ({"feature_names": ("a", "\0")}, "arff csv", "NUL"),
    "surrogate": ({"feature_names": ("a", "\ud800")}, "arff csv parquet", "can't be written as UTF-8"),
    "XML": ({"label_names": ("p", "\x01")}, "arff", "XML can't hold the label name"),
    "empty value": ({"categories": {"a": ("x", "")}}, "csv", "can't hold an empty nominal value"),
    "suffix": ({}, "xls gz", "the suffix must be one of .arff, .libsvm"),
    "folder": ({}, "arff csv parquet svm", "can't be written"),
    "gz": ({}, "parquet.gz", "Parquet files are compressed inside"),
    "meka": ({"Y": np.zeros((2, 0), np.int8), "label_names": ()}, "arff", "layout 'meka' needs at least one label"),
    "weka": ({}, "arff", "layout must be 'mulan' or 'meka'; got 'weka'"),
}


@pytest.mark.parametrize("case, suffix", [(case, suffix) for case in REFUSED for suffix in REFUSED[case][1].split()])
def test_what_a_format_cannot_hold_is_an_error_and_leaves_no_file(tmp_path, case, suffix):
    changes, _, message = REFUSED[case]
    options = {"layout": case} if case in ("meka", "weka") else {}
    with pytest.raises(ValueError if case == "weka" else DataError, match=message):
        write(small(**changes), tmp_path / ("nowhere" if case == "folder" else "") / f"toy.{suffix}", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_looks_like_an_option_of_meka_does_not_move_the_labels(tmp_path):
    write(small(name="x: -C 1"), tmp_path / "toy.arff")
    assert read(tmp_path / "toy.arff").label_names == ("p", "q")


@pytest.mark.parametrize("suffix", ["arff", "csv", "csv.gz", "svm", "parquet"])
def test_a_full_disk_is_told_with_the_path_and_leaves_no_file(tmp_path, suffix):
    resource = pytest.importorskip("resource")
    path = tmp_path / f"toy.{suffix}"
    X = np.random.RandomState(0).standard_normal((500, 20))
    data = MultilabelData(X, np.ones((500, 1), np.int8), tuple(map(str, range(1, 21))), ("0",), "toy")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(DataError, match=rf"toy.{suffix}: can't be written \(File too large\)"):
            write(data, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_equal_sets_give_equal_compressed_files(tmp_path):
    for name in ("one", "two"):
        write(small(), tmp_path / f"{name}.csv.gz")
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "two.csv.gz").read_bytes()
