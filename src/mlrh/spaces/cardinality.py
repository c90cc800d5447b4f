"""The cardinality space: every set of an admissible size, with a bias per size.

Z = sum_j exp(size_bias[j]) e_j(exp(scores)), with e_j the elementary symmetric polynomials. The recurrences of
`_kernels` give it in O(n_labels * max_labels) per row. Where some labels of a row are known, the others again have a
cardinality space (`ConditionedCardinality`).
"""

from copy import copy
from dataclasses import dataclass, replace
from math import comb
from numbers import Integral
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

from mlrh._indicators import UNKNOWN, contradict, has_unknown, label_counts, merged
from mlrh.spaces._kernels import dispatch, expected_metrics
from mlrh.spaces.base import LabelSpace, checked_bias, highest_labels

CERTAIN = 2e100  # stands for the score of a known label: larger than LARGEST_SCORE, so it outranks every other
TARGET_ENTRIES = 2**22  # of joint marginals that are copied at a time: bounds the copy to 32 MB


class CardinalitySpace(LabelSpace):
    """Every set of at least min_labels and at most max_labels labels, with a bias per size.

    Answers cost O(n_labels * max_labels) per row, never an enumeration of sets.

    Parameters
    ----------
    n_labels, min_labels, max_labels : int
        0 <= min_labels <= max_labels <= n_labels.
    size_bias : array of shape (n_labels + 1,), optional
        Added to the score of a set of j labels, at most 1e100 in magnitude; entries outside min_labels..max_labels
        don't matter.
    learn_bias : bool
        Whether a fit learns the biases of the admissible sizes, or leaves them as they are.
    n_jobs : int, optional
        Threads over rows. None: all usable cores, 1 inside a joblib worker.

    Examples
    --------
    >>> from mlrh.spaces import CardinalitySpace
    >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution([[2.0, 0.0, -1.0]])
    >>> d.mode().tolist()
    [[1, 0, 0]]
    >>> d.marginals().round(3).tolist()
    [[0.91, 0.455, 0.18]]
    """

    def __init__(self, n_labels, min_labels, max_labels, size_bias=None, *, learn_bias=False, n_jobs=None):
        check_limits(n_labels, min_labels, max_labels)
        self.n_labels, self.min_labels, self.max_labels = n_labels, min_labels, max_labels
        self.size_bias = bias = checked_bias(size_bias, "size_bias", n_labels + 1, f"size 0..{n_labels}")
        self.learns_bias, self.n_jobs = learn_bias, n_jobs
        self.bias = bias[min_labels : max_labels + 1]
        # The kernels read admissibility off the bias: a size with bias -inf has weight 0.
        self._kernel_bias = bias[: max_labels + 1].copy()
        self._kernel_bias[:min_labels] = -np.inf

    def __repr__(self):
        return f"CardinalitySpace(n_labels={self.n_labels}, min_labels={self.min_labels}, max_labels={self.max_labels})"

    def for_targets(self, Y, *, classes, rows=None):
        """This space, if it has the labels of Y and sizes for all its rows."""
        if Y.shape[1] != self.n_labels:
            raise ValueError(
                f"The label space has {self.n_labels} labels and y has {Y.shape[1]}; they must be as many."
            )
        check_sizes(Y, self.min_labels, self.max_labels, rows)
        return self

    def target_kinds(self, Y):
        """The smallest and the largest number of labels that each row of Y may have."""
        return np.stack(_size_ranges(Y), axis=1)

    def to_dict(self):
        values = {"n_labels": self.n_labels, "min_labels": self.min_labels, "max_labels": self.max_labels}
        return {**values, "size_bias": self.size_bias, "learn_bias": self.learns_bias}

    @classmethod
    def from_dict(cls, values):
        """The space of `to_dict`."""
        # The array must be there: a file without it could ask for any amount of memory.
        return cls(**{**values, "size_bias": np.asarray(values["size_bias"], np.float64)})

    def describe(self):
        bias = ", with a bias per size" if self.learns_bias else ""
        return f"cardinality: all sets of {sizes_in_words(*self.sizes())}{bias}"

    def fitted_attributes(self):
        return {"min_labels_": self.min_labels, "max_labels_": self.max_labels, "size_bias_": self.size_bias}

    def with_bias(self, bias):
        """The same space with biases (n_biases,) for the sizes min_labels, ..., max_labels."""
        size_bias = np.zeros(self.n_labels + 1)
        size_bias[self.min_labels : self.max_labels + 1] = bias
        return self._with_size_bias(size_bias)

    def _with_size_bias(self, size_bias):
        sizes = (self.n_labels, self.min_labels, self.max_labels)
        return CardinalitySpace(*sizes, size_bias, learn_bias=self.learns_bias, n_jobs=self.n_jobs)

    # What a fit asks.

    def with_jobs(self, n_jobs):
        """The same space with another number of threads."""
        if n_jobs == self.n_jobs:
            return self
        other = copy(self)
        other.n_jobs = n_jobs
        return other

    def bias_counts(self, Y, weights):
        """Total weight of the rows of each size, (n_biases,)."""
        offsets = label_counts(Y) - self.min_labels
        return np.bincount(offsets, weights=weights, minlength=self.n_biases)

    def absorbed_biases(self):
        """Biases a + c |y| that scores can take over: columns (n_biases, 2), the constant first."""
        return np.stack([np.ones(self.n_biases), np.arange(self.min_labels, self.max_labels + 1.0)], axis=1)

    def log_count(self):
        """Logarithm of the number of sets."""
        j = np.arange(self.min_labels, self.max_labels + 1)
        # Logarithms of the binomial coefficients: the numbers themselves overflow from about 1,000 labels on.
        return logsumexp(gammaln(self.n_labels + 1) - gammaln(j + 1) - gammaln(self.n_labels - j + 1))

    def sizes(self):
        return self.min_labels, self.max_labels

    def undetermined(self, Y):
        """Sentences on sizes without a finite optimum.

        If all rows have the smallest (or largest) size, intercepts that fall (or rise) together for ever only gain. If
        no row has a size, the bias learned for it falls for ever.
        """
        problems, seen = [], _possible_sizes(Y)
        if len(seen) == 1 and self.min_labels < self.max_labels and seen[0] in (self.min_labels, self.max_labels):
            problems.append(f"the only size of the training rows: {seen[0]}, at the limit of the admissible sizes")
        absent = np.setdiff1d(np.arange(self.min_labels, self.max_labels + 1), seen)
        if self.learns_bias and len(absent):
            problems.append(f"a bias to learn for a size that no training row has: {', '.join(map(str, absent))}")
        return problems

    def curvature_bound(self, *, moving_bias):
        """The smallest c we know with Cov(y) <= c I at all scores; with moving_bias, of labels and sizes together.

        With no or concave biases labels repel each other: off-diagonal covariances are <= 0 and row sums >= 0, so
        Gershgorin's circles give 2 p (1 - p) <= 1/2. Otherwise c is a quarter of the largest squared distance between
        two sets. With moving_bias, two sets of different size also differ in the indicators of their sizes: 2 more.
        """
        # Two sets differ most where they are disjoint and largest, or where together they hold all labels and are
        # smallest; never in more than n_labels.
        distance = min(2 * self.max_labels, 2 * (self.n_labels - self.min_labels), self.n_labels)
        if moving_bias:
            return (distance + 2) / 4
        is_concave = (np.diff(self.bias, n=2) <= 0).all()
        return min(0.5, distance / 4) if is_concave else distance / 4

    def independence(self, scores):
        """Variance of the size over the sum of the labels' variances, for scores (n_labels,): 1 for independent labels.

        Limits on the size make it smaller; labels that attract each other make it larger.
        """
        sizes, row = np.arange(self.max_labels + 1), scores[None].astype(np.float64)
        # By the kernel that a fit needs anyway, so that no other has to be compiled.
        _, (marginals,), pmf = dispatch.expectations(row, self._kernel_bias, np.ones(1), n_jobs=self.n_jobs)
        total = (marginals * (1 - marginals)).sum()
        return float(pmf @ np.square(sizes - pmf @ sizes) / total) if total > 0 else 1.0

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), weights @ P(|y| = j) (n_biases,)."""
        log_partition, marginals, sizes = dispatch.expectations(scores, self._kernel_bias, weights, n_jobs=self.n_jobs)
        return log_partition, marginals, sizes[self.min_labels :]

    def _row_expectations(self, scores):
        """Log-partition (n_samples,), marginals (n_samples, n_labels) and P(|y| = j) (n_samples, max_labels + 1).

        As `expectations`, with the probabilities of sizes row by row.
        """
        return dispatch.row_expectations(scores, self._kernel_bias, n_jobs=self.n_jobs)

    def curvature(self, scores, direction, bias_direction, weights):
        """Derivatives of marginals and of weights @ P(|y| = j) as scores and biases move along the directions."""
        padded = np.zeros(self.max_labels + 1)
        padded[self.min_labels :] = bias_direction
        d_marginals, d_sizes = dispatch.curvature(
            scores, self._kernel_bias, direction, padded, weights, n_jobs=self.n_jobs
        )
        return d_marginals, d_sizes[self.min_labels :]

    # What a distribution asks.

    def log_partition(self, scores):
        return dispatch.log_partition(scores, self._kernel_bias, n_jobs=self.n_jobs)

    def marginals(self, scores):
        return dispatch.expectations(scores, self._kernel_bias, np.zeros(len(scores)), n_jobs=self.n_jobs)[1]

    def cardinality_pmf(self, scores):
        return dispatch.cardinality_pmf(scores, self._kernel_bias, n_jobs=self.n_jobs)

    def mode(self, scores):
        """The most probable set of each row; ties go to the lower label and the smaller set."""
        return dispatch.mode(scores, self._kernel_bias, n_jobs=self.n_jobs)

    def log_prob(self, scores, Y):
        return dispatch.log_prob(scores, self._kernel_bias, Y[:, None, :], n_jobs=self.n_jobs)[:, 0]

    def top_sets(self, scores, n):
        sets, counts = dispatch.top_sets(scores, self._kernel_bias, n, n_jobs=self.n_jobs)
        log_probs = dispatch.log_prob(scores, self._kernel_bias, sets, n_jobs=self.n_jobs)
        log_probs[np.arange(n) >= counts[:, None]] = -np.inf
        # The order of the sets is exact, but two log-probabilities may be out of order by a rounding error.
        return sets, np.minimum.accumulate(log_probs, axis=1)

    def sample(self, scores, n, random_state):
        return dispatch.sample(scores, self._kernel_bias, n, random_state)

    def entropy(self, scores):
        return dispatch.entropy(scores, self._kernel_bias, n_jobs=self.n_jobs)

    def joint_marginals(self, scores):
        return dispatch.joint_marginals(scores, self._kernel_bias, n_jobs=self.n_jobs)

    def any_of(self, scores, groups):
        return dispatch.any_of(scores, self._kernel_bias, groups, n_jobs=self.n_jobs)

    def expected(self, scores, Y, metric):
        scores = scores.astype(np.float64, copy=False)
        pmf = self.cardinality_pmf(scores)
        return expected_metrics.expected_by_counts(scores, pmf, Y, metric, n_jobs=self.n_jobs)

    def overlaps(self, scores, Y):
        """P(the truth has t labels of the answer Y and r others), (n_samples, max t + 1, max r + 1)."""
        scores = scores.astype(np.float64, copy=False)
        return expected_metrics.overlaps_by_counts(scores, self.cardinality_pmf(scores), Y, n_jobs=self.n_jobs)

    def best(self, scores, metric, limits):
        """Sets with the highest expected metric, exact: the m highest scores, for the best m (see `best_by_counts`)."""
        scores = scores.astype(np.float64, copy=False)
        return expected_metrics.best_by_counts(scores, self.cardinality_pmf(scores), metric, limits, n_jobs=self.n_jobs)

    def modes_within(self, scores, low, high):
        space = self._with_sizes(low, high)
        if space is None:
            return np.zeros(len(scores), bool), np.zeros(scores.shape, np.int8)
        return np.ones(len(scores), bool), space.mode(scores)

    def likeliest(self, scores, counts):
        """The counts[i] labels of highest score: the order of the marginals, without their rounding."""
        return highest_labels(scores, counts)

    # Knowledge of some labels.

    def fits(self, known):
        # The present labels must not be too many, and enough labels must be left that are not absent.
        n_present, n_absent = np.count_nonzero(known == 1, axis=1), np.count_nonzero(known == 0, axis=1)
        return (n_present <= self.max_labels) & (n_absent <= self.n_labels - self.min_labels)

    def given(self, known):
        return ConditionedCardinality(self, known)

    def temper(self, temperature):
        return self._with_size_bias(self.size_bias / temperature)

    def _with_sizes(self, low, high):
        """The space of those sets that have low to high labels; None if there are none."""
        low, high = max(low, self.min_labels), min(high, self.max_labels)
        return CardinalitySpace(self.n_labels, low, high, self.size_bias, n_jobs=self.n_jobs) if low <= high else None

    def rest(self, n_present, n_absent):
        """The space of the unknown labels, where n_present labels are known to be present and n_absent to be absent."""
        # A set of j unknown labels has n_present + j labels in all: limits and biases are those of that size.
        n_labels = self.n_labels - n_present - n_absent
        smallest, largest = max(self.min_labels - n_present, 0), min(self.max_labels - n_present, n_labels)
        size_bias = self.size_bias[n_present : n_present + n_labels + 1]
        return CardinalitySpace(n_labels, smallest, largest, size_bias, learn_bias=self.learns_bias, n_jobs=self.n_jobs)

    def count(self):
        """Number of sets."""
        return sum(comb(self.n_labels, j) for j in range(self.min_labels, self.max_labels + 1))


def sizes_in_words(smallest, largest):
    """Such as "1 to 3 labels", "1 label"."""
    if smallest < largest:
        return f"{smallest} to {largest} labels"
    return "1 label" if smallest == 1 else f"{smallest} labels"


@dataclass(frozen=True)
class SizesOfTraining:
    """`label_space="cardinality"`: the cardinality space with given limits, or those of the training rows ("auto").

    The size of a partly known row is taken as the number of labels known to be present.
    """

    min_labels: Any = "auto"
    max_labels: Any = "auto"
    learn_bias: bool = False
    n_jobs: int | None = None

    def for_targets(self, Y, *, classes, rows=None):
        sizes = training_sizes(Y, self.min_labels, self.max_labels, rows)
        return CardinalitySpace(Y.shape[1], *sizes, learn_bias=self.learn_bias, n_jobs=self.n_jobs)

    def target_kinds(self, Y):
        return np.stack(_size_ranges(Y), axis=1)


def training_sizes(Y, min_labels, max_labels, rows=None):
    """Smallest and largest admissible size, from Y where "auto"; an error names the first row that they exclude."""
    if "auto" not in (min_labels, max_labels) and min_labels > max_labels:
        raise ValueError(f"min_labels must be at most max_labels; got {min_labels} and {max_labels}.")
    ranges = _size_ranges(Y)
    smallest = int(ranges[0].min()) if min_labels == "auto" else min_labels
    largest = int(ranges[0].max()) if max_labels == "auto" else max_labels
    _check_ranges(ranges, smallest, largest, rows)
    check_limits(Y.shape[1], smallest, largest)
    return smallest, largest


def check_limits(n_labels, min_labels, max_labels):
    """Raise a ValueError where these can't be the sizes of a space."""
    sizes = (n_labels, min_labels, max_labels)
    if not all(isinstance(size, Integral) for size in sizes) or not 0 <= min_labels <= max_labels <= n_labels:
        raise ValueError(
            "Sizes must be integers with 0 <= min_labels <= max_labels <= n_labels; got "
            f"min_labels={min_labels}, max_labels={max_labels}, n_labels={n_labels}."
        )


def check_sizes(Y, smallest, largest, rows=None):
    """Raise a ValueError that names the first row of Y with fewer or more labels than allowed."""
    _check_ranges(_size_ranges(Y), smallest, largest, rows)


def _check_ranges(ranges, smallest, largest, rows):
    """The same for rows of these `_size_ranges`."""
    present, possible = ranges
    # A partly known row is excluded only if no completion of it has an admissible size.
    for counts, excluded, name, limit, needed in (
        (possible, np.flatnonzero(possible < smallest), "min_labels", smallest, possible.min()),
        (present, np.flatnonzero(present > largest), "max_labels", largest, present.max()),
    ):
        if len(excluded):
            first = excluded[0]
            has = "has" if present[first] == possible[first] else f"has at {'most' if counts is possible else 'least'}"
            raise ValueError(
                f"Row {first if rows is None else rows[first]} of y {has} {counts[first]} labels, which {name}={limit} "
                f"excludes, as it does {len(excluded)} of {len(counts)} rows; set {name}={needed} or {name}='auto', or "
                "drop these rows."
            )
    if smallest > largest:
        raise ValueError(f"min_labels must not exceed max_labels; got {smallest} and {largest}.")


def _size_ranges(Y):
    """The smallest and the largest number of labels that each row may have, (n_samples,) each."""
    most = label_counts(Y)
    return label_counts(Y == 1) if has_unknown(Y) else most, most


def _possible_sizes(Y):
    """The sizes that at least one row may have, ascending."""
    least, most = _size_ranges(Y)
    n_sizes = int(most.max()) + 2
    # How many rows have ranges that begin at each size, less those that have ended before it.
    open_ranges = np.cumsum(np.bincount(least, minlength=n_sizes) - np.bincount(most + 1, minlength=n_sizes))
    return np.flatnonzero(open_ranges > 0)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows with the same numbers of labels known to be present and absent, and the space of their unknown labels.

    rows (n_rows,) are row numbers; free (n_rows, n_free) holds the indices of each row's unknown labels.
    """

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


class ConditionedCardinality(LabelSpace):
    """The cardinality space `space` given `known` (n_samples, n_labels), for scores of the same rows.

    Let a labels of a row be known to be present and c to be absent. Its other labels have a cardinality space again: of
    n_labels - a - c labels, with sizes and size_bias moved down by a. Rows with the same a and c are answered together
    by that space, so every answer is as exact as without knowledge, and nearly as fast.
    """

    known: np.ndarray

    def __init__(self, space, known):
        self.space, self.known = space, known
        self.n_labels, self.bias, self.learns_bias = space.n_labels, space.bias, space.learns_bias
        self._present = known == 1
        self._impossible = ~space.fits(known)  # rows that agree with no set: weights of 0, and no marginals
        self._parts = _parts(space, known, np.flatnonzero(~self._impossible))

    def for_targets(self, Y, *, classes, rows=None):
        return self.space.for_targets(Y, classes=classes, rows=rows)

    def to_dict(self):
        return self.space.to_dict()

    def with_bias(self, bias):
        """The same knowledge of the same rows, with biases (n_biases,) of the space."""
        other = copy(self)
        other.space = self.space.with_bias(bias)
        other.bias = other.space.bias
        other._parts = [replace(part, space=other.space.rest(part.n_present, part.n_absent)) for part in self._parts]
        return other

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), weights @ P(|y| = j) (n_biases,)."""
        # Every set that is left holds the present labels, so Z = exp(sum of their scores) * Z of the free labels.
        log_partition = self._score_of_present(scores)
        marginals, sizes = self._present.astype(scores.dtype), np.zeros(self.n_labels + 1)
        for part in self._parts:
            log_sums, free_marginals, some = part.space.expectations(part.of_free(scores), weights[part.rows])
            log_partition[part.rows] += log_sums
            marginals[part.rows[:, None], part.free] = free_marginals
            sizes[part.sizes] += some
        log_partition[self._impossible], marginals[self._impossible] = -np.inf, np.nan
        return log_partition.astype(scores.dtype), marginals, sizes[self.space.min_labels : self.space.max_labels + 1]

    def _row_expectations(self, scores):
        """As that of the space, part by part."""
        log_partition, marginals = self._score_of_present(scores), self._present.astype(scores.dtype)
        pmf = np.zeros((len(scores), self.space.max_labels + 1), scores.dtype)
        for part in self._parts:
            log_sums, free_marginals, sizes = part.space._row_expectations(part.of_free(scores))
            log_partition[part.rows] += log_sums
            marginals[part.rows[:, None], part.free] = free_marginals
            pmf[part.rows, part.n_present : part.n_present + sizes.shape[1]] = sizes
        log_partition[self._impossible], marginals[self._impossible] = -np.inf, np.nan
        return log_partition.astype(scores.dtype), marginals, pmf

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
        result[self._impossible] = -np.inf
        return result.astype(scores.dtype)

    def marginals(self, scores):
        result = self._present.astype(scores.dtype)
        for part in self._parts:
            result[part.rows[:, None], part.free] = part.space.marginals(part.of_free(scores))
        result[self._impossible] = np.nan
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
        # In blocks: the full array would otherwise exist twice while known labels are filled in.
        n_rows = max(1, TARGET_ENTRIES // max(1, self.n_labels**2))
        for part in self._parts:
            for start in range(0, len(part.rows), n_rows):
                block = part.only(slice(start, start + n_rows))
                joint[block.rows] = self._joint_marginals_of(block, scores)
        return joint

    def any_of(self, scores, groups):
        probs = self._per_row(scores.dtype, lambda part: part.space.any_of(part.of_free(scores), part.of_free(groups)))
        # A present label of the group makes it certain; absent ones are not free, and so are left out above.
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
        # Known labels add the same to every set, so the order and the probabilities are those of the free labels.
        sets, log_probs = self._repeat_present(n), np.empty((len(scores), n), scores.dtype)
        for part in self._parts:
            best, log_probs[part.rows] = part.space.top_sets(part.of_free(scores), n)
            _place(sets, part, best)
            # Places without a set are empty sets, also of the labels that are present.
            sets[part.rows, part.space.count() :] = 0
        return sets, log_probs

    def sample(self, scores, n, random_state):
        sets = self._repeat_present(n)
        for part in self._parts:
            _place(sets, part, part.space.sample(part.of_free(scores), n, random_state))
        return sets

    def expected(self, scores, Y, metric):
        # Given its size, a set still weighs exp(sum of its scores), with scores that make the known labels certain.
        clamped, pmf = self._clamped(scores), self.cardinality_pmf(scores.astype(np.float64, copy=False))
        return expected_metrics.expected_by_counts(clamped, pmf, Y, metric, n_jobs=self.space.n_jobs)

    def overlaps(self, scores, Y):
        clamped, pmf = self._clamped(scores), self.cardinality_pmf(scores.astype(np.float64, copy=False))
        return expected_metrics.overlaps_by_counts(clamped, pmf, Y, n_jobs=self.space.n_jobs)

    def best(self, scores, metric, limits):
        clamped, pmf = self._clamped(scores), self.cardinality_pmf(scores.astype(np.float64, copy=False))
        return expected_metrics.best_by_counts(clamped, pmf, metric, limits, n_jobs=self.space.n_jobs)

    def modes_within(self, scores, low, high):
        space, sets = self.space._with_sizes(low, high), np.zeros(scores.shape, np.int8)
        rows = np.zeros(len(scores), bool) if space is None else space.fits(self.known)
        if rows.any():
            sets[rows] = space.given(self.known[rows]).mode(scores[rows])
        return rows, sets

    def likeliest(self, scores, counts):
        return highest_labels(self._clamped(scores), counts)

    def sizes(self):
        return self.space.sizes()

    def _clamped(self, scores):
        """Scores in float64, with CERTAIN or -CERTAIN where a label is known."""
        return np.where(self._present, CERTAIN, np.where(self.known == 0, -CERTAIN, scores.astype(np.float64)))

    def fits(self, known):
        return self.space.fits(merged(self.known, known)) & ~contradict(self.known, known)

    def given(self, known):
        return self.space.given(merged(self.known, known))

    def _without_knowledge(self):
        return self.space

    def temper(self, temperature):
        return ConditionedCardinality(self.space.temper(temperature), self.known)

    def _score_of_present(self, scores):
        """Sum of the scores of the labels known to be present, (n_samples,), in float64."""
        return np.where(self._present, scores, 0.0).sum(axis=1, dtype=np.float64)

    def _per_row(self, dtype, answer):
        """answer(part), one number per row, of all parts together: (n_samples,)."""
        result = np.empty(len(self.known), dtype)
        for part in self._parts:
            result[part.rows] = answer(part)
        return result

    def _repeat_present(self, n):
        """Sets (n_samples, n, n_labels) of the labels known to be present, to be filled up with free ones."""
        return np.repeat(self._present[:, None, :].astype(np.int8), n, axis=1)

    def _joint_marginals_of(self, part, scores):
        """Joint marginals (n_rows, n_labels, n_labels) of the rows of a part."""
        joint = np.zeros((len(part.rows), self.n_labels, self.n_labels), scores.dtype)
        each = np.arange(len(part.rows))[:, None, None]
        joint[each, part.free[:, :, None], part.free[:, None, :]] = part.space.joint_marginals(part.of_free(scores))
        present = self._present[part.rows]
        # P(y_j = 1, y_k = 1) is P(y_k = 1) where label j is known to be present.
        marginals = np.where(present, 1.0, np.einsum("ikk->ik", joint))
        joint = np.where(present[:, :, None], marginals[:, None, :], joint)
        return np.where(present[:, None, :], marginals[:, :, None], joint)


def _parts(space, known, possible):
    """One _Part for every pair of counts (labels present, labels absent) that occurs among the possible rows."""
    counts = np.stack([np.count_nonzero(known == 1, axis=1), np.count_nonzero(known == 0, axis=1)], axis=1)[possible]
    # Rows are grouped by one sort: row numbers in the order of their pair, cut where the next pair begins.
    pairs, members = np.unique(counts, axis=0, return_inverse=True)
    order, ends = np.argsort(members.ravel(), kind="stable"), np.cumsum(np.bincount(members.ravel()))
    result = []
    for (n_present, n_absent), rows in zip(pairs.tolist(), np.split(possible[order], ends)[:-1], strict=True):
        free = np.nonzero(known[rows] == UNKNOWN)[1].reshape(len(rows), -1)
        result.append(_Part(rows, space.rest(n_present, n_absent), free, n_present, n_absent))
    return result


def _place(sets, part, free_sets):
    """Write sets of the free labels (n_rows, n, n_free) into their columns of sets (n_samples, n, n_labels)."""
    each = np.arange(sets.shape[1])[None, :, None]
    sets[part.rows[:, None, None], each, part.free[:, None, :]] = free_sets
