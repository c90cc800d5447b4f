"""Arrays given as chunks: sparse ones of any kind, weights of another length, mapped ones, columns held twice."""

import sys
from pathlib import Path

import numpy as np
import pytest
from samples import make_multilabel, one_sentence
from scipy import sparse

from mlrh import MLRHClassifier
from mlrh.estimators import _chunks
from mlrh.fitting._products import add_weighted_squares

X, Y = make_multilabel(120, 6, 4)
X = np.where(X > 0, X, 0.0)


@pytest.mark.parametrize("form", [sparse.csc_array, sparse.coo_array, sparse.csc_matrix])
def test_a_sparse_matrix_of_any_kind_is_cut_into_its_rows(form, monkeypatch):
    monkeypatch.setattr(_chunks, "CHUNK_BYTES", 2000)
    expected = MLRHClassifier(tol=1e-12).fit_chunks((X, Y))
    chunked = MLRHClassifier(tol=1e-12).fit_chunks((form(X), form(Y)))
    assert chunked.objective_ == pytest.approx(expected.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.coef_, expected.coef_, atol=1e-5)


@pytest.mark.parametrize("n_weights", [119, 121, 60])
def test_weights_of_another_length_than_the_rows_are_refused(n_weights):
    with pytest.raises(ValueError, match=f"got 120 and {n_weights}") as raised:
        MLRHClassifier().fit_chunks((X, Y, np.ones(n_weights)))
    assert one_sentence(raised)


def repeated():
    """X as CSR that holds each of its entries in ten pieces."""
    whole = sparse.csr_array(X)
    return sparse.csr_array(
        (np.repeat(whole.data / 10, 10), np.repeat(whole.indices, 10), whole.indptr * 10), shape=whole.shape
    )


def test_an_l1_penalty_over_rows_that_hold_a_column_several_times_is_that_of_their_sums():
    options = {"l1_ratio": 0.5, "C": 0.5, "tol": 1e-12}
    expected = MLRHClassifier(**options).fit(X, Y)
    chunked = MLRHClassifier(**options).fit_chunks([(repeated()[:50], Y[:50]), (repeated()[50:], Y[50:])])
    assert chunked.objective_ == pytest.approx(expected.objective_, rel=1e-8)
    np.testing.assert_allclose(chunked.coef_, expected.coef_, atol=1e-5)


@pytest.mark.parametrize("function", [add_weighted_squares, add_weighted_squares.py_func])
def test_sums_of_squares_of_a_column_held_several_times_stay_within_their_arrays(function):
    rows, weights = repeated(), np.linspace(1, 2, 120)
    sums, places = np.zeros((2, 2)), np.array([0, 0, 1, 0, 0, 0])
    function(rows.data, rows.indices, rows.indptr, places, weights, sums)  # as Python, an index beyond an array fails
    z = np.column_stack([np.ones(120), X[:, 2]])
    np.testing.assert_allclose(sums, z.T @ (weights[:, None] * z), rtol=1e-12)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps is of Linux")
def test_the_entries_of_a_mapped_sparse_matrix_are_read_before_they_are_worked_on(tmp_path):
    n_rows, n_entries = 1000, 2_000_000
    arrays = {
        "data": np.ones(n_entries),
        "indices": np.tile(np.arange(2000, dtype=np.int32), n_rows),
        "indptr": np.arange(n_rows + 1, dtype=np.int32) * 2000,
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    data, indices, indptr = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays)
    whole = sparse.csr_array((data, indices, indptr), shape=(n_rows, 2000), copy=False)
    before = mapped_kilobytes(tmp_path / "data.npy")
    next(iter(_chunks.Source(lambda: iter([(whole, np.zeros((n_rows, 1)))]))))
    assert before < 1000 and mapped_kilobytes(tmp_path / "data.npy") > 15_000


def mapped_kilobytes(path) -> int:
    """How much of a mapped file this process has in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return next(int(own.split()[1]) for own in lines if own.startswith("Rss:"))
    raise AssertionError(f"{path} is not mapped")


@pytest.mark.parametrize("n_columns", [0, 1, 3])
def test_each_kind_of_target_is_kept_once_and_counted(n_columns):
    class Told:
        def target_kinds(self, Y):
            return Y[:, :n_columns].astype(np.int64)

    kinds = _chunks.Kinds(Told())
    for chunk, rows in enumerate((slice(0, 50), slice(50, 120))):
        kinds.add(Y[rows].astype(np.int8), chunk, np.arange(len(Y[rows])))
    counted = kinds.Y[kinds.counts > 0, :n_columns]
    expected = {tuple(row): int((Y[:, :n_columns] == row).all(axis=1).sum()) for row in Y[:, :n_columns]}
    assert dict(zip(map(tuple, counted), kinds.counts[kinds.counts > 0], strict=True)) == expected
