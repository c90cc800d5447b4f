"""Rows of a stream kept within a budget of memory: all while they fit, then a uniform sample of the distinct ones.

Which rows are kept depends on their hashes alone, so that a row shown again is found again and counted, not kept twice.
Knows nothing of models: X and Y are rows of numbers.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

LARGEST = np.uint64(2**64 - 1)


def row_hashes(X, Y):
    """64-bit hashes of the rows of X and Y together, (n_rows,); the same for dense, CSR, float32 and float64 X."""
    labels = (Y.astype(np.int64) + 3).astype(np.uint64) @ _multipliers(Y.shape[1], seed=1)
    return mixed(_row_sums(X) + labels)


def mixed(codes):
    """The codes, uint64, with every bit depending on every other: the finaliser of splitmix64."""
    codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return codes ^ (codes >> np.uint64(31))


@dataclass(frozen=True)
class RowSample:
    """The distinct rows with hashes up to LARGEST >> level; every method returns another sample.

    weights says with what total weight each row counts, repeated with what weight it has been shown again since.
    parts holds (X, Y) in the order of arrival; hashes are sorted, and places says where each one's row is.
    """

    parts: tuple[tuple[Any, np.ndarray], ...] = ()
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    repeated: np.ndarray = field(default_factory=lambda: np.zeros(0))
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    level: int = 0

    @property
    def is_complete(self):
        """Whether no row was left out."""
        return self.level == 0

    def rows(self):
        """X and Y of all rows kept."""
        return self.parts[0] if len(self.parts) == 1 else _stacked(self.parts)

    def alike(self, X):
        """X in the type and format of the rows kept, if there are any; sparse X as a CSR array."""
        first = self.parts[0][0] if self.parts else X
        if sparse.issparse(first):
            X = sparse.csr_array(X)
        elif sparse.issparse(X):
            X = X.toarray()
        return X.astype(first.dtype, copy=False)

    def repeat(self, weights, hashes):
        """The sample after rows that may all have been shown before, no more often than they count; else None.

        Rows whose hashes are too high to be kept say nothing.
        """
        distinct, _, shown = self._totals(weights, hashes)
        is_known, places = self._find(distinct)
        if not is_known.all():
            return None
        repeated = self.repeated.copy()
        repeated[places] += shown
        return None if (repeated > self.weights * (1 + 1e-9)).any() else replace(self, repeated=repeated)

    def holds(self, hashes):
        """Which of the rows with these hashes are kept, (n_rows,)."""
        return self._find(hashes)[0]

    def would_keep_any(self, hashes):
        """Whether rows with some of these hashes are kept, so that they tell if they have been shown before."""
        return bool((hashes <= LARGEST >> np.uint64(self.level)).any())

    def count_repeated(self):
        """The sample where rows shown again count as more rows."""
        return replace(self, weights=self.weights + self.repeated, repeated=np.zeros_like(self.repeated))

    def forget_repeated(self):
        """The sample where rows shown again don't count."""
        return replace(self, repeated=np.zeros_like(self.repeated))

    def add(self, X, Y, weights, hashes, *, max_bytes):
        """The sample after more rows, thinned by half as often as it takes to need no more than max_bytes."""
        distinct, first, shown = self._totals(weights, hashes)
        is_known, places = self._find(distinct)
        counted = self.weights.copy()
        counted[places] += shown[is_known]
        fresh = np.flatnonzero(~is_known)
        fresh = fresh[np.argsort(first[fresh])]  # in the order of arrival
        chosen = first[fresh]
        at = np.searchsorted(self.hashes, np.sort(distinct[fresh]))
        new_places = len(counted) + np.argsort(distinct[fresh])
        sample = RowSample(
            _merged((*self.parts, (X[chosen], Y[chosen])) if len(chosen) else self.parts),
            np.concatenate([counted, shown[fresh]]),
            np.concatenate([self.repeated, np.zeros(len(fresh))]),
            np.insert(self.hashes, at, np.sort(distinct[fresh])),
            np.insert(self.places, at, new_places),
            self.level,
        )
        while sample._n_bytes() > max_bytes and len(sample.weights) > 1:
            sample = sample._thinned()
        return sample

    def _totals(self, weights, hashes):
        """Distinct hashes that belong to this level, sorted; where each is first; and their total weights."""
        low = np.flatnonzero(hashes <= LARGEST >> np.uint64(self.level))
        distinct, first, inverse = np.unique(hashes[low], return_index=True, return_inverse=True)
        return distinct, low[first], np.bincount(inverse, weights=weights[low], minlength=len(distinct))

    def _find(self, distinct):
        """Which of the hashes are kept, and where the rows of those are."""
        at = np.searchsorted(self.hashes, distinct)
        is_known = at < len(self.hashes)
        is_known[is_known] = self.hashes[at[is_known]] == distinct[is_known]
        return is_known, self.places[at[is_known]]

    def _thinned(self):
        """The sample of the rows that belong to the next level, about half of them."""
        level = self.level + 1
        n_left = max(np.searchsorted(self.hashes, LARGEST >> np.uint64(level), side="right"), 1)
        stay = np.sort(self.places[:n_left])
        X, Y = self.rows()
        places = np.searchsorted(stay, self.places[:n_left])
        hashes = self.hashes[:n_left].copy()
        return RowSample(((X[stay], Y[stay]),), self.weights[stay], self.repeated[stay], hashes, places, level)

    def _n_bytes(self):
        return sum(_bytes_of(X) + Y.nbytes for X, Y in self.parts) + 32 * len(self.weights)


def _row_sums(X):
    """Sums over columns of the bits of each value, folded, times a number of the column; a zero counts nothing."""
    multipliers = _multipliers(X.shape[1], seed=0)
    if not sparse.issparse(X):
        return _folded(X) @ multipliers
    terms = _folded(X.data) * multipliers[X.indices]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    return sums[X.indptr[1:]] - sums[X.indptr[:-1]]


def _folded(values):
    """Bits of float64 values with those of high order spread to the low ones: 1.0 has no others."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # the sum makes -0.0 a 0.0
    bits ^= bits >> np.uint64(32)
    bits ^= bits >> np.uint64(16)
    return bits


def _multipliers(n, *, seed):
    """n odd numbers that look random; the same for the same seed."""
    return mixed(np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed << 32)) | np.uint64(1)


def _merged(parts):
    """The same rows in parts that at least halve in size, so that adding one row copies few of the others."""
    parts = list(parts)
    while len(parts) > 1 and len(parts[-2][1]) <= 2 * len(parts[-1][1]):
        parts[-2:] = [_stacked(parts[-2:])]
    return tuple(parts)


def _stacked(parts):
    X, Y = zip(*parts, strict=True)
    return sparse.vstack(X, format="csr") if sparse.issparse(X[0]) else np.concatenate(X), np.concatenate(Y)


def _bytes_of(X):
    return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sparse.issparse(X) else X.nbytes
