"""The rows that a stream keeps: hashes, samples, and which repeats they recognise."""

import numpy as np
import pytest
from samples import make_multilabel
from scipy import sparse

from mlrh.row_sample import LARGEST, RowSample, row_hashes

X0, Y0 = make_multilabel()


def test_hashes_do_not_depend_on_how_rows_are_stored():
    X = np.round(X0, 1).astype(np.float32)
    X[np.abs(X) < 0.5] = -0.0
    expected = row_hashes(X, Y0)
    stored = sparse.csr_array(np.where(X == 0, 0, X))
    for same in (X.astype(np.float64), np.asfortranarray(X), stored, sparse.csr_array(stored.astype(np.float64))):
        np.testing.assert_array_equal(row_hashes(same, Y0), expected)
    assert len(np.unique(expected)) == len(np.unique(np.hstack([X, Y0]), axis=0))


def test_hashes_of_all_rows_of_zeros_and_ones_are_distinct():
    X = ((np.arange(2**14)[:, None] >> np.arange(14)) & 1).astype(float)
    hashes = row_hashes(X, np.zeros((2**14, 1), np.int8))
    assert len(np.unique(hashes)) == 2**14
    assert abs((hashes < 2**63).mean() - 0.5) < 0.02


@pytest.mark.parametrize("chunk", [1, 10, 300])
def test_a_sample_holds_the_rows_of_low_hashes_with_their_total_weights(chunk):
    rng = np.random.RandomState(0)
    X, Y = rng.randint(6, size=(300, 3)).astype(float), rng.randint(2, size=(300, 2)).astype(np.int8)
    weights, hashes = rng.uniform(1, 2, size=300), row_hashes(X, Y)
    sample = RowSample()
    for start in range(0, 300, chunk):
        rows = slice(start, start + chunk)
        sample = sample.add(X[rows], Y[rows], weights[rows], hashes[rows], max_bytes=4000)
    assert 0 < sample.level < 4 and sample._n_bytes() <= 4000
    kept_X, kept_Y = sample.rows()
    kept = row_hashes(kept_X, kept_Y)
    limit = LARGEST >> np.uint64(sample.level)
    assert sorted(kept) == sorted(set(hashes[hashes <= limit]))
    np.testing.assert_allclose(sample.weights, [weights[hashes == one].sum() for one in kept])
    np.testing.assert_array_equal(sample.holds(hashes), hashes <= limit)
    assert sample.would_keep_any(hashes) and not sample.would_keep_any(hashes[hashes > limit])


def test_a_repeat_is_refused_where_a_row_is_new_or_shown_too_often():
    X, Y = X0[:10], Y0[:10].astype(np.int8)
    hashes, ones = row_hashes(X, Y), np.ones(10)
    sample = RowSample().add(X[:8], Y[:8], ones[:8], hashes[:8], max_bytes=np.inf)
    assert sample.repeat(ones[:8], hashes[:8]).repeated.tolist() == [1.0] * 8
    assert sample.repeat(ones, hashes) is None
    assert sample.repeat(ones[:8], hashes[:8]).repeat(ones[:1], hashes[:1]) is None
