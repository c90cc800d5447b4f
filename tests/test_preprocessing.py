"""Encoding, filling and scaling, against the formulas."""

import warnings

import numpy as np
import pytest
from scipy import sparse

from mlrh.automatic import make_preprocessor
from mlrh.data import MultilabelData


def data_of(X, categories=None):
    names = tuple(f"x{d}" for d in range(X.shape[1]))
    return MultilabelData(X, np.ones((X.shape[0], 1), np.int8), names, ("a",), "test", categories or {})


def test_dense_numbers_are_standardised_and_missing_ones_are_the_median():
    X = np.array([[1.0, 10.0], [2.0, np.nan], [6.0, 30.0], [3.0, 80.0]])
    filled = np.array([[1.0, 10.0], [2.0, 30.0], [6.0, 30.0], [3.0, 80.0]])
    expected = (filled - filled.mean(axis=0)) / filled.std(axis=0)
    np.testing.assert_allclose(make_preprocessor(data_of(X)).fit_transform(X), expected)


def test_sparse_columns_stay_sparse_and_are_divided_by_their_largest_magnitude():
    X = sparse.csr_array(np.array([[0.0, -4.0], [1.0, 0.0], [0.0, 2.0]]))
    found = make_preprocessor(data_of(X)).fit_transform(X)
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), [[0, -1], [1, 0], [0, 0.5]])


def test_a_nominal_column_becomes_one_column_per_value_and_missing_is_a_value():
    X = np.array([[0.0, 5.0], [2.0, 7.0], [np.nan, 9.0], [0.0, 7.0]])
    found = make_preprocessor(data_of(X, {"x0": ("red", "green", "blue")})).fit_transform(X)
    np.testing.assert_array_equal(found[:, :3], [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(found[:, 3], (X[:, 1] - 7) / np.sqrt(2))


def test_a_nominal_value_that_training_lacks_becomes_zeros():
    X = np.array([[0.0], [1.0], [1.0]])
    preprocessor = make_preprocessor(data_of(X, {"x0": ("red", "green", "blue")})).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(preprocessor.transform(np.array([[2.0]])), [[0, 0]])


def test_a_column_missing_throughout_becomes_zeros():
    X = np.array([[np.nan, 1.0], [np.nan, 2.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = make_preprocessor(data_of(X)).fit_transform(X)
    np.testing.assert_array_equal(found, [[0, -1], [0, 1]])


def test_a_sparse_nominal_column_stays_sparse():
    X = sparse.csr_array(np.array([[0.0, 3.0], [1.0, 0.0]]))
    found = make_preprocessor(data_of(X, {"x0": ("no", "yes")})).fit_transform(X)
    assert sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), [[1, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize("missing", [True, False])
def test_new_rows_with_missing_numbers_are_filled_also_where_training_had_none(missing):
    X = np.array([[1.0], [2.0], [6.0], [np.nan if missing else 2.0]])
    preprocessor = make_preprocessor(data_of(X)).fit(X)
    np.testing.assert_allclose(preprocessor.transform([[np.nan]]), preprocessor.transform([[2.0]]))
