"""The observed space: listed label sets, each with a bias of its own."""

from copy import copy

import numpy as np
from scipy import sparse

from mlrh._indicators import as_indicator, contradict, merged
from mlrh._parallel import map_blocks
from mlrh.spaces._kernels import expected_metrics, listed
from mlrh.spaces.base import LabelSetDistribution, checked_scores


class ObservedSpace:
    """The listed sets only, each with a bias of its own: labels may attract each other.

    Answers cost O(n_sets * n_labels) per row.

    Parameters
    ----------
    sets : array of shape (n_sets, n_labels)
        Distinct rows of 0 and 1.
    set_bias : array of shape (n_sets,), optional
        Added to the score of each set.

    Examples
    --------
    >>> from mlrh.spaces import ObservedSpace
    >>> space = ObservedSpace([[1, 0, 0], [0, 1, 1]])
    >>> space.distribution([[1.0, 1.0, 0.0]]).marginals().tolist()
    [[0.5, 0.5, 0.5]]
    """

    def __init__(self, sets, set_bias=None):
        self.sets = sets = as_indicator(sets, "sets")
        if len(sets) == 0:
            raise ValueError("sets must have a row for each possible set; got none.")
        self.set_bias = np.zeros(len(sets)) if set_bias is None else np.array(set_bias, np.float64)
        if self.set_bias.shape != (len(sets),) or not np.isfinite(self.set_bias).all():
            raise ValueError(
                f"set_bias must be {len(sets)} finite numbers, one per set; got shape {self.set_bias.shape}."
            )
        self.bias = self.set_bias
        self.n_biases, self.n_labels = sets.shape
        self._index = {row.tobytes(): s for s, row in enumerate(self.sets)}
        if len(self._index) < len(sets):
            raise ValueError("sets must be distinct; got the same set twice. Use numpy.unique(sets, axis=0).")
        dense = self.sets.astype(np.float64)
        self.known: np.ndarray | None = None
        self._products = sparse.csr_array(dense) if dense.mean() < 0.1 and dense.size > 10_000 else dense

    def __repr__(self):
        return f"ObservedSpace({self.n_biases} sets of {self.n_labels} labels)"

    def distribution(self, scores) -> LabelSetDistribution:
        """LabelSetDistribution of scores (n_samples, n_labels)."""
        return LabelSetDistribution(self, checked_scores(scores, self.n_labels))

    def with_bias(self, bias):
        """The same space with biases (n_biases,), one per set."""
        other = copy(self)
        other.bias = other.set_bias = np.array(bias, np.float64)
        return other

    def with_jobs(self, n_jobs):
        """The same space: the products inside have threads of their own."""
        return self

    def has_sets_of(self, other):
        """Whether another space holds the same sets in the same order, so that biases can be carried over."""
        return type(other) is type(self) and np.array_equal(self.sets, other.sets)

    def bias_counts(self, Y, weights):
        """Total weight of the rows that hold each set, (n_biases,)."""
        return np.bincount(self._find(Y), weights=weights, minlength=self.n_biases)

    def absorbed_biases(self):
        """Biases a + u'y that scores can take over: columns (n_biases, 1 + n_labels), the constant first."""
        return np.column_stack([np.ones(self.n_biases), self.sets])

    def log_count(self):
        """Logarithm of the number of sets."""
        return np.log(self.n_biases)

    def is_shift_invariant(self):
        """Whether adding a constant to all scores changes nothing: all sets have one size."""
        return np.ptp(self.sets.sum(axis=1)) == 0

    def curvature_bound(self, *, moving_bias):
        """A quarter of the largest squared distance between two sets, which is 2 more with each set's own entry.

        Found among all pairs of up to 4096 sets, bounded by the sizes of the two largest beyond that.
        """
        sizes = np.sort(self.sets.sum(axis=1, dtype=np.int64))
        distance = min(self.n_labels, sizes[-2:].sum()) if len(sizes) > 1 else 0
        if 1 < len(sizes) <= 4096:
            dense = self.sets.astype(np.float32)
            own = dense.sum(axis=1)
            distance = (own[:, None] + own[None, :] - 2 * dense @ dense.T).max()
        return (float(distance) + 2 * moving_bias) / 4

    def independence(self, scores):
        """How far labels are independent: nothing is promised of listed sets."""
        return 0.0

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), weights @ P(set) (n_biases,)."""
        log_partition, marginals = np.empty(len(scores), scores.dtype), np.empty_like(scores)

        def work(rows):
            log_partition[rows], probs = self._probabilities(scores, rows)
            marginals[rows] = np.minimum(probs @ self._products, 1.0)
            return weights[rows] @ probs

        parts = self._over_blocks(work, len(scores))
        return log_partition, marginals, sum(parts, start=np.zeros(self.n_biases))

    def curvature(self, scores, direction, bias_direction, weights):
        """Derivatives of marginals and of weights @ P(set) as scores and biases move along the directions."""
        d_marginals = np.empty_like(scores)

        def work(rows):
            probs = self.probabilities(scores, rows)
            change = direction[rows].astype(np.float64) @ self._products.T + bias_direction
            change -= (probs * change).sum(axis=1, keepdims=True)
            change *= probs
            d_marginals[rows] = change @ self._products
            return weights[rows] @ change

        parts = self._over_blocks(work, len(scores))
        return d_marginals, sum(parts, start=np.zeros(self.n_biases))

    def log_partition(self, scores):
        return self._rowwise(scores, lambda rows: self._probabilities(scores, rows)[0])

    def marginals(self, scores):
        return self.expectations(scores, np.zeros(len(scores)))[1]

    def cardinality_pmf(self, scores):
        by_size = np.eye(self.n_labels + 1)[self.sets.sum(axis=1, dtype=np.int64)]
        return self._rowwise(scores, lambda rows: self.probabilities(scores, rows) @ by_size, self.n_labels + 1)

    def mode(self, scores):
        best = np.empty(len(scores), np.int64)

        def work(rows):
            best[rows] = np.argmax(self._log_weights(scores, rows)[0], axis=1)

        self._over_blocks(work, len(scores))
        return self.sets[best]

    def log_prob(self, scores, Y):
        found = self._find(Y)
        log_probs = np.full(len(scores), -np.inf, scores.dtype)
        inside = np.flatnonzero(found >= 0)

        def work(rows):
            relative = listed.log_probabilities(self._log_weights(scores, inside[rows])[0])
            log_probs[inside[rows]] = np.take_along_axis(relative, found[inside[rows], None], axis=1)[:, 0]

        self._over_blocks(work, len(inside))
        return log_probs

    def top_sets(self, scores, n):
        shown = min(n, self.n_biases)
        sets = np.zeros((len(scores), n, self.n_labels), np.int8)
        log_probs = np.full((len(scores), n), -np.inf, scores.dtype)

        def work(rows):
            relative = self._log_weights(scores, rows)[0]
            best = np.argsort(-relative, axis=1, kind="stable")[:, :shown]
            is_possible = np.take_along_axis(relative, best, axis=1) > -np.inf
            sets[rows, :shown] = self.sets[best] * is_possible[:, :, None]
            log_probs[rows, :shown] = np.take_along_axis(listed.log_probabilities(relative), best, axis=1)

        self._over_blocks(work, len(scores))
        return sets, log_probs

    def sample(self, scores, n, random_state):
        sets = np.empty((len(scores), n, self.n_labels), np.int8)

        def work(rows):
            cumulative = np.cumsum(self.probabilities(scores, rows), axis=1)
            levels = random_state.random_sample((len(cumulative), n)) * cumulative[:, -1:]
            for i, row in enumerate(cumulative):
                sets[rows.start + i] = self.sets[np.searchsorted(row, levels[i], side="right")]

        self._over_blocks(work, len(scores))
        return sets

    def entropy(self, scores):
        return self._rowwise(scores, lambda rows: listed.entropy(self._log_weights(scores, rows)[0]))

    def joint_marginals(self, scores):
        dense = self.sets.astype(np.float64)
        n_rows, n_labels = scores.shape
        joint = np.empty((n_rows, n_labels, n_labels), scores.dtype)

        def work(rows):
            for i, probs in zip(range(n_rows)[rows], self.probabilities(scores, rows), strict=True):
                joint[i] = np.minimum(dense.T @ (probs[:, None] * dense), 1.0)

        self._over_blocks(work, n_rows)
        return joint

    def any_of(self, scores, groups):
        def work(rows):
            meets = groups[rows].astype(np.float64) @ self._products.T > 0
            return np.minimum((self.probabilities(scores, rows) * meets).sum(axis=1), 1.0)

        return self._rowwise(scores, work)

    def expected(self, scores, Y, metric):
        values = np.empty(len(scores))

        def work(rows):
            values[rows] = expected_metrics.expected_by_sets(
                self.probabilities(scores, rows), self.sets, Y[rows], metric
            )

        self._over_blocks(work, len(scores))
        return values

    def fits(self, known):
        every = known if self.known is None else merged(self.known, known)
        result = np.ones(len(known), bool) if self.known is None else ~contradict(self.known, known)

        def work(rows):
            result[rows] &= listed.agree(every[rows], self._products).any(axis=1)

        self._over_blocks(work, len(known))
        return result

    def given(self, known):
        other = copy(self)
        other.known = known if self.known is None else merged(self.known, known)
        return other

    def temper(self, temperature):
        return self.with_bias(self.set_bias / temperature)

    def _log_weights(self, scores, rows):
        """Logarithms of the weights of all sets relative to each row's reference, and those references."""
        possible = None if self.known is None else listed.agree(self.known[rows], self._products)
        return listed.log_weights(scores[rows], self._products, self.set_bias, possible)

    def probabilities(self, scores, rows):
        """P of every listed set, (number of rows, n_sets), for some rows of the scores."""
        return self._probabilities(scores, rows)[1]

    def _probabilities(self, scores, rows):
        """Log-partition and probabilities (n_rows, n_sets)."""
        relative, reference = self._log_weights(scores, rows)
        log_sums, probs = listed.log_sums_and_probabilities(relative)
        return reference + log_sums, probs

    def _find(self, Y):
        """Index of each row's set, -1 where it isn't one of the space."""
        rows = np.ascontiguousarray(Y, dtype=np.int8)
        return np.array([self._index.get(row.tobytes(), -1) for row in rows], np.int64)

    def _over_blocks(self, work, n_rows):
        """One block after the other: the products inside have threads of their own."""
        return map_blocks(work, n_rows, rows_per_block=max(1, 2**20 // self.n_biases), n_jobs=1)

    def _rowwise(self, scores, function, *shape):
        result = np.empty((len(scores), *shape), scores.dtype)

        def work(rows):
            result[rows] = function(rows)

        self._over_blocks(work, len(scores))
        return result
