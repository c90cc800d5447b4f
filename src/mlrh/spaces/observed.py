"""The observed space: a list of label sets, each with a bias of its own, so that labels may attract each other.

Z is a sum over the list, so every answer is a product of a matrix of probabilities (n_samples, n_sets) with the sets.
Blocks of rows bound the size of that matrix.
"""

from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import UNKNOWN, as_indicator, contradict, merged
from mlrh._parallel import map_blocks
from mlrh.spaces._kernels import expected_metrics
from mlrh.spaces.base import LabelSpace, checked_bias
from mlrh.spaces.cardinality import sizes_in_words, training_sizes


class ObservedSpace(LabelSpace):
    """The listed sets only, each with a bias of its own: labels may attract each other.

    Answers cost O(n_sets * n_labels) per row.

    Parameters
    ----------
    sets : array of shape (n_sets, n_labels)
        Distinct rows of 0 and 1.
    set_bias : array of shape (n_sets,), optional
        Added to the score of each set, at most 1e100 in magnitude.

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
        self.bias = self.set_bias = checked_bias(set_bias, "set_bias", len(sets), "set")
        self.n_labels = sets.shape[1]
        # The bytes of a set are the key under which `_find` looks it up.
        self._index = {row.tobytes(): s for s, row in enumerate(self.sets)}
        if len(self._index) < len(sets):
            raise ValueError("sets must be distinct; got the same set twice. Use numpy.unique(sets, axis=0).")
        dense = self.sets.astype(np.float64)
        # Products with the sets take most of the time. A sparse matrix does less work where few entries are 1, but more
        # per entry, and its set-up is not paid for by a small one.
        self._products = sparse.csr_array(dense) if dense.mean() < 0.1 and dense.size > 10_000 else dense

    def __repr__(self):
        return f"ObservedSpace({self.n_biases} sets of {self.n_labels} labels)"

    def for_targets(self, Y, *, classes, rows=None):
        """This space, if every row of Y agrees with one of its sets."""
        self.check_targets(Y, rows)
        return self

    def to_dict(self):
        return {"sets": self.sets, "set_bias": self.set_bias}

    def describe(self):
        n_sets = f"{self.n_biases} set{'s' if self.n_biases != 1 else ''}"
        return f"observed: {n_sets} of {sizes_in_words(*self.sizes())}, each with a bias"

    def fitted_attributes(self):
        smallest, largest = self.sizes()
        sets = {"sets_": self.sets, "set_bias_": self.set_bias}
        return {"min_labels_": smallest, "max_labels_": largest, **sets}

    def with_bias(self, bias):
        """The same space with biases (n_biases,), one per set."""
        other = copy(self)
        other.bias = other.set_bias = np.array(bias, np.float64)
        return other

    def has_sets_of(self, other):
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

    def sizes(self):
        counts = np.count_nonzero(self.sets, axis=1)
        return int(counts.min()), int(counts.max())

    def curvature_bound(self, *, moving_bias):
        """A quarter of the largest squared distance between two sets; with moving_bias, 2 more for their two biases.

        Found among all pairs of up to 4,096 sets (64 MB of distances); beyond that bounded by the sizes of the two
        largest sets.
        """
        # Two sets differ in at most the sum of their sizes, and in at most all labels.
        sizes = np.sort(self.sets.sum(axis=1, dtype=np.int64))
        distance = min(self.n_labels, sizes[-2:].sum()) if len(sizes) > 1 else 0
        if 1 < len(sizes) <= 4096:
            dense = self.sets.astype(np.float32)
            own = dense.sum(axis=1)
            # |a - b|^2 = |a| + |b| - 2 a'b for vectors of 0 and 1; exact in float32 for such small counts.
            distance = (own[:, None] + own[None, :] - 2 * dense @ dense.T).max()
        return (float(distance) + 2 * moving_bias) / 4

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
            probs = self._probabilities(scores, rows)[1]
            # d P(set) = P(set) (u(set) - E[u]), with u the change of a set's log-weight along the directions.
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
        def work(rows):
            return np.minimum(self._probabilities(scores, rows)[1] @ self._products, 1.0)

        return self._rowwise(scores, work, self.n_labels)

    def cardinality_pmf(self, scores):
        by_size = np.eye(self.n_labels + 1)[self.sets.sum(axis=1, dtype=np.int64)]
        return self._rowwise(scores, lambda rows: self._probabilities(scores, rows)[1] @ by_size, self.n_labels + 1)

    def marginals_by_size(self, scores, sizes):
        counts, joint = np.count_nonzero(self.sets, axis=1), np.zeros((len(sizes), *scores.shape))
        of_size = [(place, counts == size) for place, size in enumerate(sizes)]

        def work(rows):
            probs = self._probabilities(scores, rows)[1]
            for place, some in of_size:
                joint[place, rows] = probs[:, some] @ self.sets[some].astype(np.float64)

        self._over_blocks(work, len(scores))
        return joint

    def mode(self, scores):
        """The most probable set of each row; ties go to the set listed first."""
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
            relative = _log_probabilities(self._log_weights(scores, inside[rows])[0])
            log_probs[inside[rows]] = np.take_along_axis(relative, found[inside[rows], None], axis=1)[:, 0]

        self._over_blocks(work, len(inside))
        return log_probs

    def top_sets(self, scores, n):
        shown = min(n, self.n_biases)
        sets = np.zeros((len(scores), n, self.n_labels), np.int8)
        log_probs = np.full((len(scores), n), -np.inf, scores.dtype)

        def work(rows):
            relative = self._log_weights(scores, rows)[0]
            # A stable sort: ties go to the set listed first, as in `mode`.
            best = np.argsort(-relative, axis=1, kind="stable")[:, :shown]
            is_possible = np.take_along_axis(relative, best, axis=1) > -np.inf
            sets[rows, :shown] = self.sets[best] * is_possible[:, :, None]
            log_probs[rows, :shown] = np.take_along_axis(_log_probabilities(relative), best, axis=1)

        self._over_blocks(work, len(scores))
        return sets, log_probs

    def listed(self, scores):
        every = self._rowwise(
            scores, lambda rows: _log_probabilities(self._log_weights(scores, rows)[0]), self.n_biases
        )
        return self.sets, every

    def sample(self, scores, n, random_state):
        sets = np.empty((len(scores), n, self.n_labels), np.int8)

        def work(rows):
            # The total replaces 1 as the upper end of the draws, since rounding leaves it a little off.
            cumulative = np.cumsum(self._probabilities(scores, rows)[1], axis=1)
            levels = random_state.random_sample((len(cumulative), n)) * cumulative[:, -1:]
            for i, row in enumerate(cumulative):
                sets[rows.start + i] = self.sets[np.searchsorted(row, levels[i], side="right")]

        self._over_blocks(work, len(scores))
        return sets

    def entropy(self, scores):
        return self._rowwise(scores, lambda rows: _entropy(self._log_weights(scores, rows)[0]))

    def joint_marginals(self, scores):
        dense = self.sets.astype(np.float64)
        n_rows, n_labels = scores.shape
        joint = np.empty((n_rows, n_labels, n_labels), scores.dtype)

        def work(rows):
            for i, probs in zip(range(n_rows)[rows], self._probabilities(scores, rows)[1], strict=True):
                joint[i] = np.minimum(dense.T @ (probs[:, None] * dense), 1.0)

        self._over_blocks(work, n_rows)
        return joint

    def any_of(self, scores, groups):
        def work(rows):
            # Summed over the sets that meet the group: 1 - P(none) would lose a tiny probability.
            meets = groups[rows].astype(np.float64) @ self._products.T > 0
            return np.minimum((self._probabilities(scores, rows)[1] * meets).sum(axis=1), 1.0)

        return self._rowwise(scores, work)

    def expected(self, scores, Y, metric):
        values = np.empty(len(scores))

        def work(rows):
            values[rows] = expected_metrics.expected_by_sets(
                self._probabilities(scores, rows)[1], self.sets, Y[rows], metric
            )

        self._over_blocks(work, len(scores))
        return values

    def best(self, scores, metric, limits):
        """The best sets for a metric; exact for F1, else the best of the listed sets and sets of likeliest labels."""
        decide = partial(expected_metrics.best_candidate_by_sets, metric=metric, limits=limits)
        if metric is expected_metrics.f1_of_counts:
            decide = partial(expected_metrics.best_f1_by_sets, limits=limits)
        sets = np.empty(scores.shape, np.int8)

        def work(rows):
            sets[rows] = decide(self._probabilities(scores, rows)[1], self.sets)

        # The table of a metric is made once per block, so blocks have at least 256 rows. No threads over blocks: the
        # products inside use those of BLAS.
        map_blocks(work, len(scores), rows_per_block=max(256, 2**20 // self.n_biases), n_jobs=1)
        return sets

    def modes_within(self, scores, low, high):
        counts = np.count_nonzero(self.sets, axis=1)
        kept = (counts >= low) & (counts <= high)
        if not kept.any():
            return np.zeros(len(scores), bool), np.zeros(scores.shape, np.int8)
        # The mode within the sizes is the mode of the space of those sets alone.
        space = ObservedSpace(self.sets[kept], self.set_bias[kept])
        if self.known is None:
            return np.ones(len(scores), bool), space.mode(scores)
        rows, sets = space.fits(self.known), np.zeros(scores.shape, np.int8)
        sets[rows] = space.given(self.known[rows]).mode(scores[rows])
        return rows, sets

    def fits(self, known):
        every = known if self.known is None else merged(self.known, known)
        result = np.ones(len(known), bool) if self.known is None else ~contradict(self.known, known)

        def work(rows):
            result[rows] &= _agree(every[rows], self._products).any(axis=1)

        self._over_blocks(work, len(known))
        return result

    def _log_weights(self, scores, rows):
        """Log-weights of all sets (n_rows, n_sets) less a reference per row, and the references (n_rows,)."""
        possible = None if self.known is None else _agree(self.known[rows], self._products)
        return _log_weights(scores[rows], self._products, self.set_bias, possible)

    def _probabilities(self, scores, rows):
        """Log-partition and probabilities (n_rows, n_sets)."""
        relative, reference = self._log_weights(scores, rows)
        log_sums, probs = _log_sums_and_probabilities(relative)
        return reference + log_sums, probs

    def _find(self, Y):
        """Index of each row's set in the list, (n_samples,); -1 where it is not in the list."""
        rows = np.ascontiguousarray(Y, dtype=np.int8)
        return np.array([self._index.get(row.tobytes(), -1) for row in rows], np.int64)

    def _over_blocks(self, work, n_rows):
        """Results of work over blocks of rows, one after the other: the products inside use the threads of BLAS."""
        # A block of 2**20 probabilities takes 8 MB.
        return map_blocks(work, n_rows, rows_per_block=max(1, 2**20 // self.n_biases), n_jobs=1)

    def _rowwise(self, scores, function, *shape):
        """function(rows) of all blocks of rows, in one array (n_samples, *shape)."""
        result = np.empty((len(scores), *shape), scores.dtype)

        def work(rows):
            result[rows] = function(rows)

        self._over_blocks(work, len(scores))
        return result


@dataclass(frozen=True)
class SetsOfTraining:
    """`label_space="observed"`: the sets of the complete training rows, smaller sets first, then lower labels."""

    min_labels: Any = "auto"
    max_labels: Any = "auto"

    def for_targets(self, Y, *, classes, rows=None):
        training_sizes(Y, self.min_labels, self.max_labels, rows)  # raises where a row breaks limits that were given
        is_complete = (Y != UNKNOWN).all(axis=1)
        if not is_complete.any():
            raise ValueError(
                "label_space='observed' takes its sets from the rows of y without NaN, and there are none; use "
                "label_space='cardinality'."
            )
        space = ObservedSpace(distinct_sets(Y[is_complete])[0])
        fits = space.fits(Y)
        if not fits.all():
            first = int(np.argmin(fits))
            raise ValueError(
                f"With label_space='observed', every row of y must agree with the set of a complete row; row "
                f"{first if rows is None else rows[first]} agrees with none, as do {len(fits) - fits.sum()} of "
                f"{len(fits)} rows. Use label_space='cardinality', or drop these rows."
            )
        return space

    def target_kinds(self, Y):
        return Y


def distinct_sets(Y):
    """The distinct rows of Y, smaller sets first, then lower labels; and the index of each row of Y among them."""
    distinct, place = np.unique(Y, axis=0, return_inverse=True)
    # Within a size the sorted order is reversed: a row with lower labels has its ones further left and is larger.
    order = np.lexsort([-np.arange(len(distinct)), distinct.sum(axis=1, dtype=np.int64)])
    return distinct[order], np.argsort(order)[place.ravel()]


def _log_weights(scores, sets, set_bias, possible=None):
    """Log-weights of all sets (n_rows, n_sets) less a reference per row, and the references (n_rows,).

    Scores of 1e5 may cancel within a set, or between two sets, to a number that must be right to 1e-12. So scores and
    biases are split into parts, each a multiple of a power of two, and a rest below 64. Sums of one part over labels
    are exact. After each part the highest sum is taken out as the reference. What is left near it has few bits and
    stays exact; what is far below can't come back, since all later parts are smaller. `possible` (n_rows, n_sets) says
    which sets count: the others have weight 0, and are left out of the reference.
    """
    scores = np.asarray(scores, np.float64)
    relative, reference = np.zeros((1, 1)), np.zeros((len(scores), 1))
    if possible is not None:
        relative = np.where(possible, 0.0, -np.inf)
    largest = max(np.abs(scores).max(initial=0.0), np.abs(set_bias).max())
    while largest >= 64:  # sums below are right to about 1e-14 per label as they are
        # Sums of n_labels scores and a bias stay below 2**50 units: integers that float64 holds exactly (up to 2**53).
        unit = 2.0 ** (np.ceil(np.log2(largest * (sets.shape[1] + 1))) - 50)
        part, part_of_bias = np.rint(scores / unit) * unit, np.rint(set_bias / unit) * unit
        relative = relative + (part @ sets.T + part_of_bias)
        highest = relative.max(axis=1, keepdims=True)
        highest = np.where(np.isneginf(highest), 0.0, highest)  # of a row without possible sets
        relative -= highest
        reference += highest
        scores, set_bias, largest = scores - part, set_bias - part_of_bias, unit / 2
    return relative + (scores @ sets.T + set_bias), reference[:, 0]


def _agree(known, sets):
    """Whether each set has every label that is known to be present and none known to be absent, (n_rows, n_sets)."""
    # The product counts a set's present labels less its absent ones: it is the number of present ones only if the set
    # has all of these and none of those.
    signs = (known == 1).astype(np.float64) - (known == 0)
    return signs @ sets.T == np.count_nonzero(known == 1, axis=1)[:, None]


def _log_sums_and_probabilities(relative):
    """Logarithms of the sums of weights (n_rows,), and the probabilities (n_rows, n_sets)."""
    # exp of differences from the highest can't overflow, and the sum is at least 1.
    highest = relative.max(axis=1, keepdims=True)
    highest = np.where(np.isneginf(highest), 0.0, highest)  # without possible sets: a sum of 0, probabilities NaN
    probs = np.exp(relative - highest)
    total = probs.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        probs /= total
        return (highest + np.log(total))[:, 0], probs


def _log_probabilities(relative):
    """Logarithms of the probabilities, (n_rows, n_sets)."""
    highest = relative.max(axis=1, keepdims=True)
    return np.minimum(relative - highest - np.log(np.exp(relative - highest).sum(axis=1, keepdims=True)), 0.0)


def _entropy(relative):
    """Entropy in nats (n_rows,): log Z - E[log weight], with log-weights relative to the heaviest set.

    So both terms are positive and nothing cancels. The heaviest set adds 1 to Z by log1p, which keeps a tiny entropy.
    """
    relative = relative - relative.max(axis=1, keepdims=True)
    weights = np.exp(relative)
    total = weights.sum(axis=1)
    weights[np.arange(len(weights)), relative.argmax(axis=1)] = 0.0
    relative[weights == 0] = 0.0
    return np.log1p(weights.sum(axis=1)) - (weights * relative).sum(axis=1) / total
