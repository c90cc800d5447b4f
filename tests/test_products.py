"""Products with matrices of few columns against numpy's, and with sparse ones against scipy's."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from mlrh.fitting import _products
from mlrh.fitting._products import MIN_ENTRIES, multiply_sparse, multiply_thin, multiply_thin_transposed
from mlrh.fitting.design import Design

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n_columns", [1, 7, 8, 9, 31])
@pytest.mark.parametrize("n_rows", [0, 1, 8, 29])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_numpys(n_columns, n_rows, dtype):
    matrix = RNG.normal(size=(n_rows, 13)).astype(dtype)
    right, left = RNG.normal(size=(13, n_columns)), RNG.normal(size=(n_rows, n_columns))
    product = multiply_thin(matrix, right)
    assert product.dtype == dtype
    accuracy = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(product, matrix @ right, rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(
        multiply_thin_transposed(matrix, left), matrix.T.astype(float) @ left, rtol=1e-13, atol=1e-13
    )


def test_matrices_without_columns_have_products_of_zeros():
    assert multiply_thin(np.empty((3, 0)), np.empty((0, 2))).tolist() == [[0.0, 0.0]] * 3
    assert multiply_thin_transposed(np.empty((3, 0)), np.ones((3, 2))).shape == (0, 2)


def test_infinite_and_undefined_entries_stay_where_numpy_has_them():
    matrix, right = RNG.normal(size=(20, 5)), RNG.normal(size=(5, 3))
    matrix[4, 1], matrix[17, 2] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = matrix @ right
    found, finite = multiply_thin(matrix, right), np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    # Sums of five products in two orders, each off by at most five roundings of the sum of the absolute products.
    bound = 10 * np.finfo(float).eps * (np.abs(np.nan_to_num(matrix, posinf=0)) @ np.abs(right))
    assert (np.abs(found[finite] - expected[finite]) <= bound[finite]).all()


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr(_products, "TARGET_ENTRIES", 500)
    monkeypatch.setattr(_products, "TARGET_OPERATIONS", 100)
    matrix, right, left = RNG.normal(size=(203, 20)), RNG.normal(size=(20, 6)), RNG.normal(size=(203, 6))
    words = sparse.random_array((200, 20), density=0.2, random_state=np.random.default_rng(0), format="csr")
    for multiply, *factors in (
        (multiply_thin, matrix, right),
        (multiply_thin_transposed, matrix, left),
        (multiply_sparse, words, right),
    ):
        np.testing.assert_array_equal(multiply(*factors, n_jobs=1), multiply(*factors, n_jobs=3))


def test_sums_of_wide_matrices_stay_small_beside_the_matrix():
    matrix, left = RNG.normal(size=(1600, 3000)), RNG.normal(size=(1600, 31))
    multiply_thin_transposed(matrix, left, n_jobs=1)  # compiled
    tracemalloc.start()
    multiply_thin_transposed(matrix, left, n_jobs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < matrix.nbytes


def test_a_large_design_with_few_labels_has_the_products_of_numpy():
    X = RNG.normal(size=(MIN_ENTRIES // 100 + 1, 100))
    design = Design(X, np.ones(len(X)), fit_intercept=True)
    coef, residuals = RNG.normal(size=(100, 3)), RNG.normal(size=(len(X), 3))
    centred = X - X.mean(axis=0)
    np.testing.assert_allclose(design.scores(coef, np.arange(3.0)), centred @ coef + np.arange(3.0), atol=1e-11)
    gradient, total = design.pull_back(residuals)
    np.testing.assert_allclose(gradient, centred.T @ residuals, atol=1e-10)
    np.testing.assert_allclose(total, residuals.sum(axis=0))


@pytest.mark.parametrize("n_columns", [0, 1, 3, 8, 23, 24, 25, 40])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_is_scipys(n_columns, density, dtype):
    matrix = sparse.random_array(
        (53, 29), density=density, random_state=np.random.default_rng(0), format="csr", dtype=dtype
    )
    dense = np.random.default_rng(1).normal(size=(29, n_columns))
    got = multiply_sparse(matrix, dense)
    assert got.dtype == dtype
    accuracy = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(got, matrix @ dense.astype(dtype), rtol=accuracy, atol=accuracy)


@pytest.mark.parametrize("n_columns", [1, 5, 8, 24])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 30])
def test_rows_of_few_columns_get_nothing_from_their_neighbours(n_columns, n_rows):
    matrix, dense = sparse.eye_array(n_rows, format="csr"), RNG.normal(size=(n_rows, n_columns))
    dense[n_rows // 2] = np.nan
    np.testing.assert_array_equal(multiply_sparse(matrix, dense), dense)


def test_a_matrix_without_rows_or_columns_has_an_empty_or_zero_product():
    assert multiply_sparse(sparse.csr_array((0, 3)), np.ones((3, 2))).shape == (0, 2)
    assert multiply_sparse(sparse.csr_array((4, 0)), np.ones((0, 2))).tolist() == [[0.0, 0.0]] * 4


def test_long_indices_and_views_are_taken_as_they_are():
    matrix = sparse.random_array((20, 30), density=0.3, random_state=np.random.default_rng(0), format="csr")
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    dense = np.random.default_rng(1).normal(size=(9, 30)).T[:, ::2]
    np.testing.assert_allclose(multiply_sparse(matrix, dense), matrix @ dense, rtol=1e-13)


@pytest.mark.parametrize("n_columns", [1, 9])
@pytest.mark.parametrize(("n_rows", "n_entries"), [(29, 29), (29, 13), (400, 400)])
def test_products_with_a_triangle_are_those_with_its_zeros(n_rows, n_entries, n_columns):
    matrix = np.tril(RNG.normal(size=(n_rows, n_entries)))
    right, left = RNG.normal(size=(n_entries, n_columns)), RNG.normal(size=(n_rows, n_columns))
    np.testing.assert_allclose(multiply_thin(matrix, right, is_triangular=True), matrix @ right, atol=1e-12)
    np.testing.assert_allclose(multiply_thin_transposed(matrix, left, is_triangular=True), matrix.T @ left, atol=1e-12)


def test_a_triangle_is_not_read_above_its_diagonal():
    # A block begins at its own row, and takes six rows at a time: entries beyond the sixth are never looked at.
    matrix, beyond = np.tril(RNG.normal(size=(400, 400))), np.triu(np.ones((400, 400), bool), 6)
    read = np.where(beyond, np.nan, matrix)
    right = RNG.normal(size=(400, 3))
    np.testing.assert_array_equal(
        multiply_thin(read, right, is_triangular=True), multiply_thin(matrix, right, is_triangular=True)
    )
    np.testing.assert_array_equal(
        multiply_thin_transposed(read, right, is_triangular=True),
        multiply_thin_transposed(matrix, right, is_triangular=True),
    )
