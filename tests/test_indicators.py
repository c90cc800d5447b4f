"""Matrices of label sets: what they may hold, and what is known of their rows."""

import tracemalloc

import numpy as np
import pytest

from mlrh._indicators import UNKNOWN, any_known, as_indicator, has_unknown, label_counts


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (3, 0)])
def test_numbers_of_any_type_become_a_new_matrix_of_int8(dtype, shape):
    values = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype)
    got = as_indicator(values, "y")
    assert got.dtype == np.int8
    assert not np.shares_memory(got, values)
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("bad", [np.int8(-1), np.int64(2), np.uint64(2**63), 0.5, np.nan, np.inf])
def test_the_first_entry_that_is_neither_0_nor_1_is_named(bad):
    values = np.array([[0, 1], [1, 0], [0, 0]]).astype(np.asarray(bad).dtype)
    values[1, 1] = bad
    with pytest.raises(ValueError, match=rf"found {values[1, 1].item()!r} in row 1, column 1"):
        as_indicator(values, "y")


def test_integers_are_checked_without_masks_of_their_size():
    values = np.ones((1000, 1000), np.int8)
    tracemalloc.start()
    as_indicator(values, "y")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * values.nbytes  # the result itself, and no mask


def test_what_is_known_of_rows():
    Y = np.array([[0, 1], [UNKNOWN, 1], [UNKNOWN, UNKNOWN]], np.int8)
    assert has_unknown(Y)
    assert not has_unknown(Y[:1])
    assert not has_unknown(Y[:0])
    assert any_known(Y).tolist() == [True, True, False]
    assert any_known(Y[:1]).tolist() == [True]


@pytest.mark.parametrize("n_labels", [1, 7, 8, 9, 64, 300])
def test_labels_of_rows_are_counted_whatever_the_number_of_columns(n_labels):
    Y = (np.random.default_rng(n_labels).random((40, n_labels)) < 0.3).astype(np.int8)
    assert label_counts(Y).tolist() == Y.astype(int).sum(axis=1).tolist()
    assert label_counts(Y[:, ::-1]).tolist() == label_counts(Y).tolist()
    assert label_counts(-Y).tolist() == label_counts(Y).tolist()  # an unknown label counts, too
    assert len(label_counts(Y[:0])) == 0
