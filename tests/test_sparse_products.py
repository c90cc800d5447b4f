"""Products with sparse matrices against scipy's."""

import numpy as np
import pytest
from scipy import sparse

from mlrh.fitting import _products
from mlrh.fitting._products import multiply_sparse


@pytest.mark.parametrize("n_columns", [1, 3, 40])
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


def test_a_matrix_without_rows_or_columns_has_an_empty_or_zero_product():
    assert multiply_sparse(sparse.csr_array((0, 3)), np.ones((3, 2))).shape == (0, 2)
    assert multiply_sparse(sparse.csr_array((4, 0)), np.ones((0, 2))).tolist() == [[0.0, 0.0]] * 4


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr(_products, "TARGET_OPERATIONS", 100)
    matrix = sparse.random_array((200, 50), density=0.2, random_state=np.random.default_rng(0), format="csr")
    dense = np.random.default_rng(1).normal(size=(50, 7))
    np.testing.assert_array_equal(multiply_sparse(matrix, dense, n_jobs=1), multiply_sparse(matrix, dense, n_jobs=3))


def test_long_indices_and_views_are_taken_as_they_are():
    matrix = sparse.random_array((20, 30), density=0.3, random_state=np.random.default_rng(0), format="csr")
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    dense = np.random.default_rng(1).normal(size=(9, 30)).T[:, ::2]
    np.testing.assert_allclose(multiply_sparse(matrix, dense), matrix @ dense, rtol=1e-13)
