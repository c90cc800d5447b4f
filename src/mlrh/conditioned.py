"""A cardinality space where some labels of each row are known: answers about the others, put beside what is known.

Where a labels are known to be present and c absent, the others have a cardinality space of their own: n_labels - a - c
labels, sizes and size_bias moved down by a. Rows that share a and c are answered together, by that space, so that every
answer is as exact and nearly as fast as without knowledge.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlrh import expected
from mlrh.knowledge import UNKNOWN, contradict, merged

CERTAIN = 2e100  # beyond every score that a distribution takes
TARGET_ENTRIES = 2**22  # of the joint marginals that are held twice


@dataclass(frozen=True, eq=False)
class Part:
    """Rows with the same numbers of known labels, the space of their other labels, and which labels these are."""

    rows: np.ndarray
    space: Any
    free: np.ndarray
    n_present: int
    n_absent: int

    @property
    def sizes(self):
        """The admissible sizes of the whole set, present labels included, as a slice."""
        return slice(self.n_present + self.space.min_labels, self.n_present + self.space.max_labels + 1)

    def only(self, some):
        """The part with some of its rows."""
        return replace(self, rows=self.rows[some], free=self.free[some])

    def of_free(self, array):
        """The columns of the free labels from an array (n_samples, n_labels)."""
        return array[self.rows[:, None], self.free]


class ConditionedCardinality:
    """The cardinality space `space` given `known` (n_samples, n_labels), for scores of the same rows."""

    def __init__(self, space, known):
        self.space, self.known = space, known
        self.n_labels = space.n_labels
        self._present = known == 1
        self._parts = _parts(space, known)

    def with_bias(self, bias):
        """The same knowledge of the same rows, with biases (n_biases,) of the space."""
        other = copy(self)
        other.space = self.space.with_bias(bias)
        other._parts = [replace(part, space=other.space.rest(part.n_present, part.n_absent)) for part in self._parts]
        return other

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), weights @ P(|y| = j) (n_biases,)."""
        log_partition = self._score_of_present(scores)
        marginals, sizes = self._present.astype(scores.dtype), np.zeros(self.n_labels + 1)
        for part in self._parts:
            log_sums, free_marginals, some = part.space.expectations(part.of_free(scores), weights[part.rows])
            log_partition[part.rows] += log_sums
            marginals[part.rows[:, None], part.free] = free_marginals
            sizes[part.sizes] += some
        return log_partition.astype(scores.dtype), marginals, sizes[self.space.min_labels : self.space.max_labels + 1]

    def curvature(self, scores, direction, bias_direction, weights):
        """Derivatives of marginals and of weights @ P(|y| = j) as scores and biases move along the directions."""
        d_marginals, d_sizes, padded = np.zeros_like(scores), np.zeros(self.n_labels + 1), np.zeros(self.n_labels + 1)
        admissible = slice(self.space.min_labels, self.space.max_labels + 1)
        padded[admissible] = bias_direction
        for part in self._parts:
            d_marginals[part.rows[:, None], part.free], some = part.space.curvature(
                part.of_free(scores), part.of_free(direction), padded[part.sizes], weights[part.rows]
            )
            d_sizes[part.sizes] += some
        return d_marginals, d_sizes[admissible]

    def log_partition(self, scores):
        result = self._score_of_present(scores)
        for part in self._parts:
            result[part.rows] += part.space.log_partition(part.of_free(scores))
        return result.astype(scores.dtype)

    def marginals(self, scores):
        result = self._present.astype(scores.dtype)
        for part in self._parts:
            result[part.rows[:, None], part.free] = part.space.marginals(part.of_free(scores))
        return result

    def cardinality_pmf(self, scores):
        result = np.zeros((len(scores), self.n_labels + 1), scores.dtype)
        for part in self._parts:
            pmf = part.space.cardinality_pmf(part.of_free(scores))
            result[part.rows, part.n_present : part.n_present + pmf.shape[1]] = pmf
        return result

    def entropy(self, scores):
        return self._per_row(scores.dtype, lambda part: part.space.entropy(part.of_free(scores)))

    def joint_marginals(self, scores):
        joint = np.empty((len(scores), self.n_labels, self.n_labels), scores.dtype)
        n_rows = max(1, TARGET_ENTRIES // max(1, self.n_labels**2))
        for part in self._parts:
            for start in range(0, len(part.rows), n_rows):
                block = part.only(slice(start, start + n_rows))
                joint[block.rows] = self._joint_marginals_of(block, scores)
        return joint

    def any_of(self, scores, groups):
        probs = self._per_row(scores.dtype, lambda part: part.space.any_of(part.of_free(scores), part.of_free(groups)))
        probs[(groups & self._present).any(axis=1)] = 1.0
        return probs

    def mode(self, scores):
        sets = self._present.astype(np.int8)
        for part in self._parts:
            sets[part.rows[:, None], part.free] = part.space.mode(part.of_free(scores))
        return sets

    def log_prob(self, scores, Y):
        log_probs = self._per_row(scores.dtype, lambda part: part.space.log_prob(part.of_free(scores), part.of_free(Y)))
        log_probs[contradict(self.known, Y)] = -np.inf
        return log_probs

    def top_sets(self, scores, n):
        sets, log_probs = self._repeat_present(n), np.empty((len(scores), n), scores.dtype)
        for part in self._parts:
            best, log_probs[part.rows] = part.space.top_sets(part.of_free(scores), n)
            _place(sets, part, best)
            sets[part.rows, part.space.count() :] = 0
        return sets, log_probs

    def sample(self, scores, n, random_state):
        sets = self._repeat_present(n)
        for part in self._parts:
            _place(sets, part, part.space.sample(part.of_free(scores), n, random_state))
        return sets

    def expected(self, scores, Y, metric):
        scores = scores.astype(np.float64, copy=False)
        clamped = np.where(self._present, CERTAIN, np.where(self.known == 0, -CERTAIN, scores))
        pmf = self.cardinality_pmf(scores)
        return expected.expected_by_counts(clamped, pmf, Y, metric, n_jobs=self.space.n_jobs)

    def fits(self, known):
        return self.space.fits(merged(self.known, known)) & ~contradict(self.known, known)

    def given(self, known):
        return self.space.given(merged(self.known, known))

    def temper(self, temperature):
        return ConditionedCardinality(self.space.temper(temperature), self.known)

    def _score_of_present(self, scores):
        return np.where(self._present, scores, 0.0).sum(axis=1, dtype=np.float64)

    def _per_row(self, dtype, answer):
        result = np.empty(len(self.known), dtype)
        for part in self._parts:
            result[part.rows] = answer(part)
        return result

    def _repeat_present(self, n):
        return np.repeat(self._present[:, None, :].astype(np.int8), n, axis=1)

    def _joint_marginals_of(self, part, scores):
        joint = np.zeros((len(part.rows), self.n_labels, self.n_labels), scores.dtype)
        each = np.arange(len(part.rows))[:, None, None]
        joint[each, part.free[:, :, None], part.free[:, None, :]] = part.space.joint_marginals(part.of_free(scores))
        present = self._present[part.rows]
        marginals = np.where(present, 1.0, np.einsum("ikk->ik", joint))
        joint = np.where(present[:, :, None], marginals[:, None, :], joint)
        return np.where(present[:, None, :], marginals[:, :, None], joint)


def _parts(space, known):
    """One Part for every pair of numbers of labels present and absent."""
    counts = np.stack([np.count_nonzero(known == 1, axis=1), np.count_nonzero(known == 0, axis=1)], axis=1)
    pairs, members = np.unique(counts, axis=0, return_inverse=True)
    order, ends = np.argsort(members.ravel(), kind="stable"), np.cumsum(np.bincount(members.ravel()))
    result = []
    for (n_present, n_absent), rows in zip(pairs.tolist(), np.split(order, ends)[:-1], strict=True):
        free = np.nonzero(known[rows] == UNKNOWN)[1].reshape(len(rows), -1)
        result.append(Part(rows, space.rest(n_present, n_absent), free, n_present, n_absent))
    return result


def _place(sets, part, free_sets):
    """Write sets of the free labels (n_rows, n, n_free) where they belong in sets (n_samples, n, n_labels)."""
    each = np.arange(sets.shape[1])[None, :, None]
    sets[part.rows[:, None, None], each, part.free[:, None, :]] = free_sets
