"""Data conform to a model's schema by name, whatever their own order and coding."""

import io
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from mlrh.data import DataError, MultilabelData, Schema, read
from mlrh.data.containers import from_frame

SCHEMA = Schema(("size", "colour"), ("a",), {"colour": ("red", "green")})


def data(X, names, categories=None):
    X = np.array(X, dtype=float)
    return MultilabelData(X, np.zeros((len(X), 0), np.int8), names, (), "new.csv", categories or {})


def test_columns_are_chosen_by_name_and_nominal_values_recoded():
    given = data(
        [[0, 7, 1.5], [1, 8, 2.5], [2, 9, 3.5], [np.nan, 9, 4.5]],
        ("colour", "extra", "size"),
        {"colour": ("green", "blue", "red")},
    )
    found = given.conform(SCHEMA)
    assert found.feature_names == ("size", "colour")
    np.testing.assert_array_equal(found.X, [[1.5, 1], [2.5, np.nan], [3.5, 0], [4.5, np.nan]])
    np.testing.assert_array_equal(given.X[:, 0], [0, 1, 2, np.nan])  # what was given is as it was


@pytest.mark.parametrize("values, codes", [(("red", "green"), [0, 1, 0]), (("green", "red"), [1, 0, 1])])
def test_a_sparse_matrix_stays_sparse_and_is_recoded_where_its_zeros_mean_another_value(values, codes):
    dense = data([[0, 2], [1, 0], [0, 0]], ("colour", "size"), {"colour": values})
    found = replace(dense, X=sparse.csr_matrix(dense.X)).conform(SCHEMA)
    assert sparse.issparse(found.X)
    np.testing.assert_array_equal(found.X.toarray(), np.column_stack([[2, 0, 0], codes]))


def test_a_feature_that_is_missing_is_named():
    with pytest.raises(DataError, match=r"new\.csv lacks 1 of the model's features: colour\."):
        data([[1.0]], ("size",)).conform(SCHEMA)


def test_nominal_values_that_spell_numbers_serve_as_numbers():
    schema = Schema(("size",), ("a",))
    found = data([[0], [1], [np.nan]], ("size",), {"size": ("2.5", "10")}).conform(schema)
    np.testing.assert_array_equal(found.X, [[2.5], [10], [np.nan]])
    with pytest.raises(DataError, match="'size' must be a number, as in training; found values large"):
        data([[0]], ("size",), {"size": ("large",)}).conform(schema)


def test_numbers_serve_as_nominal_values_that_spell_them():
    schema = Schema(("code",), ("a",), {"code": ("1", "2", "x")})
    np.testing.assert_array_equal(data([[2], [1], [3]], ("code",)).conform(schema).X, [[1], [0], [np.nan]])
    np.testing.assert_array_equal(
        data([[np.nan]], ("colour",)).conform(Schema(("colour",), (), SCHEMA.categories)).X, [[np.nan]]
    )
    with pytest.raises(DataError, match="must be one of red, green, as in training; found numbers"):
        data([[1.0]], ("colour",)).conform(Schema(("colour",), (), SCHEMA.categories))


def test_rows_are_those_of_the_index_in_its_order():
    given = data([[1], [2], [3]], ("size",))
    np.testing.assert_array_equal(given.rows([2, 0]).X, [[3], [1]])


def test_nominal_columns_are_known_by_position():
    assert data([[1, 2, 3]], ("a", "b", "c"), {"c": ("x",), "a": ("y",)}).nominal == [0, 2]


def test_features_can_be_left_out_by_name():
    given = data([[1, 2, 3]], ("a", "b", "c"), {"c": ("x",), "a": ("y",)}).without(["a"])
    assert given.feature_names == ("b", "c")
    assert dict(given.categories) == {"c": ("x",)}
    np.testing.assert_array_equal(given.X, [[2, 3]])
    with pytest.raises(DataError, match="has no feature 'z' to leave out"):
        given.without(["z"])


# DataFrames


@pytest.mark.parametrize("frame_of", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_columns_are_taken_by_name_and_coded_as_in_training(frame_of):
    frame = frame_of({"colour": ["green", "blue", None, "red"], "extra": [1, 2, 3, 4], "size": [1.5, None, 3.0, 4.0]})
    found = from_frame(frame, SCHEMA)
    np.testing.assert_array_equal(found.X, [[1.5, 1], [np.nan, np.nan], [3, np.nan], [4, 0]])
    assert found.Y.shape == (4, 0)


def test_missing_values_of_pandas_are_missing():
    frame = pd.DataFrame({"size": pd.array([1, pd.NA], dtype="Int64"), "colour": pd.Categorical(["red", None])})
    np.testing.assert_array_equal(from_frame(frame, SCHEMA).X, [[1, 0], [np.nan, np.nan]])


ZIPS = Schema(("zip",), ("a",), {"zip": ("10115", "20095")})


@pytest.mark.parametrize("frame_of", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
@pytest.mark.parametrize(
    "cells", [[10115, 20095, None], [10115.0, 20095.0, 1.5], ["10115", "20095", ""], [10115, 20095, 1]]
)
def test_nominal_values_that_spell_numbers_are_found_whatever_type_a_frame_has(frame_of, cells):
    from_file = read(io.BytesIO(b"zip\n10115\n20095\nNA\n"), (), format="csv", schema=ZIPS)
    np.testing.assert_array_equal(from_frame(frame_of({"zip": cells}), ZIPS).X, from_file.X)
    np.testing.assert_array_equal(from_file.X[:, 0], [0, 1, np.nan])


def test_numbers_too_large_for_a_float_and_lists_are_no_nominal_value():
    frame = pd.DataFrame({"zip": [10**400, [10115], Decimal("20095.0")]}, dtype=object)
    np.testing.assert_array_equal(from_frame(frame, ZIPS).X[:, 0], [np.nan, np.nan, 1])


def test_blank_texts_of_a_frame_are_missing_numbers_and_dates_as_in_csv():
    schema = Schema(("size", "day"), ("a",), dates=("day",))
    frame = pd.DataFrame({"size": ["", 2.5, " "], "day": ["1970-01-03", "", " "]})
    from_file = read(io.BytesIO(frame.to_csv(index=False).encode()), (), format="csv", schema=schema)
    np.testing.assert_array_equal(from_frame(frame, schema).X, from_file.X)
    np.testing.assert_array_equal(from_file.X, [[np.nan, 2], [2.5, np.nan], [np.nan, np.nan]])


def test_a_column_that_is_missing_or_holds_text_is_named():
    with pytest.raises(DataError, match="lacks 1 of the model's features: colour"):
        from_frame(pd.DataFrame({"size": [1]}), SCHEMA)
    with pytest.raises(DataError, match="'size' of the DataFrame must hold numbers"):
        from_frame(pd.DataFrame({"size": ["large"], "colour": ["red"]}), SCHEMA)
