"""Every form of y goes to the indicator matrix and back."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from mlrh.estimators import _targets

MATRIX = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]])
SET_TYPES = (set, frozenset, tuple, list)


def round_trip(y):
    form, matrix = _targets.encode(y)
    return form, matrix, form.decode(matrix)


@pytest.mark.parametrize("dtype", [int, float, bool, np.uint8])
def test_an_indicator_array_comes_back_in_its_own_type(dtype):
    form, matrix, back = round_trip(MATRIX.astype(dtype))
    for found in (matrix, back, *round_trip(MATRIX.tolist())[1:]):
        np.testing.assert_array_equal(found, MATRIX)
    assert back.dtype == dtype
    assert form.classes.tolist() == [0, 1, 2]


def test_a_frame_of_booleans_comes_back_as_one():
    frame = pd.DataFrame(MATRIX.astype(bool), columns=["a", "b", "c"])
    pd.testing.assert_frame_equal(round_trip(frame)[2], frame)


@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_a_sparse_matrix_comes_back_as_the_same_kind_of_sparse_matrix(make):
    _, matrix, back = round_trip(make(MATRIX))
    np.testing.assert_array_equal(matrix, MATRIX)
    assert type(back) is make
    np.testing.assert_array_equal(back.toarray(), MATRIX)


def test_the_columns_of_a_pandas_frame_name_the_labels_and_its_index_follows_X():
    form, matrix = _targets.encode(pd.DataFrame(MATRIX, columns=["a", "b", "c"]))
    X = pd.DataFrame({"x": [0.0, 1.0, 2.0]}, index=[7, 8, 9])
    back = form.decode(matrix, X)
    pd.testing.assert_frame_equal(
        back, pd.DataFrame(MATRIX, columns=["a", "b", "c"], index=[7, 8, 9]), check_dtype=False
    )


def test_a_polars_frame_comes_back_as_a_polars_frame():
    frame = pl.DataFrame(MATRIX, schema=["a", "b", "c"], orient="row")
    form, matrix, back = round_trip(frame)
    np.testing.assert_array_equal(matrix, MATRIX)
    assert form.classes.tolist() == ["a", "b", "c"] and back.equals(frame)


@pytest.mark.parametrize(
    ("y", "expected", "classes"),
    [
        *(([kind(row) for row in ("ac", "b", "ab", "")], [*MATRIX, [0, 0, 0]], list("abc")) for kind in SET_TYPES),
        ([{10, 30}, {20}, {10, 20}], MATRIX, [10, 20, 30]),
        ([["b"], ["a"], ["b"]], [[0, 1], [1, 0], [0, 1]], ["a", "b"]),
        ([{(1, 2)}, {(3, 4), (1, 2)}], [[1, 0], [1, 1]], [(1, 2), (3, 4)]),
        ([set(np.flatnonzero(row)) for row in MATRIX], MATRIX, [0, 1, 2]),
    ],
    ids=["set", "frozenset", "tuple", "list", "integers", "one string each", "tuples", "integers of numpy"],
)
def test_label_sets_come_back_as_they_were_given(y, expected, classes):
    form, matrix, back = round_trip(y)
    np.testing.assert_array_equal(matrix, expected)
    assert form.classes.tolist() == classes and not form.is_one_class_per_row
    assert back == y and type(back[0]) is type(y[0])


@pytest.mark.parametrize("y", [[2, 5, 9, 5], ["x", "y", "z", "y"], np.array(["x", "y", "z", "y"], object)])
def test_three_classes_become_one_label_each(y):
    form, matrix, back = round_trip(y)
    np.testing.assert_array_equal(matrix, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(back, y)
    assert form.is_one_class_per_row


def test_two_classes_become_one_label_for_the_second():
    _, matrix, back = round_trip(["no", "yes", "no"])
    np.testing.assert_array_equal(matrix, [[0], [1], [0]])
    assert back.tolist() == ["no", "yes", "no"]


@pytest.mark.parametrize("y", [np.array([[1], [2], [3]]), pd.DataFrame({"only": [1, 2, 3]})])
def test_a_column_is_taken_as_classes_with_a_warning(y):
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        form, matrix = _targets.encode(y)
    np.testing.assert_array_equal(matrix, np.eye(3))
    assert form.is_one_class_per_row


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([[0, 2], [1, 0]]), r"only 0 and 1, 1 where the row has the label; found 2 in row 0, column 1"),
        (np.array([[0, np.nan], [1, 0]]), r"found .*nan.* in row 0, column 1"),
        ([(1, 2), (3,)], "row 0 of y holds 1. For an indicator matrix, give rows of 0 and 1"),
        ([{"a"}, {1}], "of one type that can be sorted; row 1 of y holds 1 beside labels of type str"),
        ([{"a"}, {None}], "row 1 of y holds None"),
        ([{1.0}, {float("nan")}], "row 1 of y holds nan"),
        ([{"a"}, "abc", {"b"}], r"row 1 is 'abc'. Write a single label as \{label\}"),
        ([["a", "b"], "ca"], "row 1 is 'ca'"),
        ([{"a"}, None], "row 1 is None"),
        ([{"a"}, {"b": 1}], "row 1 is {'b': 1}"),
        (({"a"} for _ in range(3)), "must be a sequence, an array or a DataFrame; got a generator"),
        ([], "at least 2 classes; it holds no row"),
        (["x", "y", None], "must not have missing values; row 2 is None"),
        (pd.Series([True, None, False], dtype="boolean"), "must not have missing values; row 1"),
        (pd.DataFrame({"a": [1, None], "b": [0, 1]}, dtype="Int64"), "found <NA> in row 1, column 0"),
        (np.array([["0", "1"], ["1", "0"]]), "found '0' in row 0, column 0"),
        (pd.DataFrame([[0, 1, 1]], columns=["a", "b", "a"]), r"distinct names; got \['a', 'b', 'a'\]"),
        (pd.DataFrame([[0, 1]], columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])), "single, distinct names"),
        (np.ma.masked_array([[0, 1]], mask=[[True, False]]), "must not have masked entries"),
        ([set(), set()], "holds no label at all"),
        ([3, 3, 3], "at least 2 classes; it holds only one class"),
        ([0.5, 1.5, 0.25], "continuous"),
        (np.zeros((2, 2, 2)), "one dimension, or two"),
        (np.zeros((2, 0)), "one dimension, or two"),
        (None, "requires y to be passed"),
        ([1.0, np.nan, 2.0], "contains NaN"),
        (np.array([b"a", b"b"]), "not bytes; decode them"),
        ([["1", "", "0", "1"], ["0", "1", "0", "0"]], r"once; row 0 of y is .* give numbers 0 and 1, not strings"),
        ([("yes", "no", "no"), ("no", "no", "yes")], r"once; row 0 of y is .* give numbers 0 and 1, not strings"),
    ],
)
def test_a_y_of_no_known_form_is_one_clear_error(y, message):
    with pytest.raises(ValueError, match=message):
        _targets.encode(y)


def test_a_label_unknown_to_training_is_an_error_or_marked():
    form, _ = _targets.encode([{"a"}, {"b"}])
    with pytest.raises(ValueError, match="row 1 that was not seen in training; labels are 'a', 'b'"):
        form.indicator([{"a"}, {"c"}])
    matrix, unknown = form.partial_indicator([{"a"}, {"b", "c"}])
    assert unknown.tolist() == [False, True]
    np.testing.assert_array_equal(matrix, [[1, 0], [0, 1]])


def test_the_columns_of_a_frame_are_matched_by_name():
    frame = pd.DataFrame(MATRIX, columns=["a", "b", "c"])
    form, matrix = _targets.encode(frame)
    np.testing.assert_array_equal(form.indicator(frame[["c", "a", "b"]]), matrix)
    with pytest.raises(ValueError, match="columns it had in training: 'a', 'b', 'c'"):
        form.indicator(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize(
    ("y", "other", "message"),
    [
        (MATRIX, [{"a"}, {"b"}], "an indicator matrix; got a list of label sets"),
        (["x", "y", "z"], [{"x"}, {"y"}], "one class per row; got a list of label sets"),
        (["x", "y", "z"], MATRIX, r"one class per row; got shape \(3, 3\)"),
        (MATRIX, ["x", "y"], "a matrix with a column per label"),
        ([{"a"}, {"b"}], ["a", "b"], "row 0 is 'a'"),
        (MATRIX, MATRIX[:, :2], "must have 3 columns, as in training; got 2"),
        (MATRIX[:, :2], MATRIX, "must have 2 columns, as in training; got 3"),
    ],
)
def test_another_form_than_in_training_is_an_error(y, other, message):
    with pytest.raises(ValueError, match=message):
        _targets.encode(y)[0].indicator(other)


def test_classes_and_labels_that_no_row_has_are_dropped():
    form, matrix = _targets.encode(["x", "y", "z", "x"])
    kept, reduced = form.seen_in(matrix[[0, 1]])
    assert kept.classes.tolist() == ["x", "y"]
    np.testing.assert_array_equal(reduced, [[0], [1]])
    form, matrix = _targets.encode([{"a"}, {"b", "c"}])
    assert form.seen_in(matrix[:1])[0].classes.tolist() == ["a"]
    with pytest.raises(ValueError, match="at least 2 classes among the rows of positive weight"):
        form, matrix = _targets.encode(["x", "y"])
        form.seen_in(matrix[:1])


def test_decoding_and_encoding_leave_the_input_unchanged():
    y = MATRIX.copy()
    form, matrix = _targets.encode(y)
    matrix[:] = 0
    form.decode(matrix)[:] = 5
    np.testing.assert_array_equal(y, MATRIX)


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize(
    "make",
    [
        pd.Series,
        lambda sets: pl.Series([sorted(labels) for labels in sets]),
        lambda sets: pd.DataFrame({"y": sets}),
        lambda sets: pd.Series([np.array(sorted(labels), object) for labels in sets]),
        lambda sets: [np.array(sorted(labels)) for labels in sets],
        tuple,
    ],
    ids=["series", "polars series", "one-column frame", "series of arrays", "list of arrays", "tuple of sets"],
)
def test_label_sets_in_unusual_wrappings_are_taken_in_training_and_after(make):
    sets = [{"a", "c"}, {"b"}, {"a", "b"}]
    form, matrix = _targets.encode(make(sets))
    np.testing.assert_array_equal(matrix, MATRIX)
    np.testing.assert_array_equal(form.indicator(make(sets)), MATRIX)


def test_a_sparse_column_is_compared_with_a_dense_one():
    form, _ = _targets.encode(sparse.csr_array([[1], [0], [1]]))
    np.testing.assert_array_equal(form.indicator(np.array([[1], [0], [1]])), [[1], [0], [1]])


def test_classes_none_of_which_training_showed_are_an_error():
    form, _ = _targets.encode([0, 1, 2])
    with pytest.raises(ValueError, match="no class of training; classes are 0, 1, 2"):
        form.partial_indicator(["0", "1"])
