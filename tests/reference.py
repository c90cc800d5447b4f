"""Brute force over label sets in 60-digit arithmetic, and random cases to try it on; knows nothing of the package.

One row at a time, every set written out: slow, and too simple to be wrong.
"""

from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)


def sets_of_sizes(n_labels, min_labels, max_labels):
    """All sets of these sizes as rows of 0 and 1: smaller sets first, then those of lower labels."""
    chosen = [c for size in range(min_labels, max_labels + 1) for c in combinations(range(n_labels), size)]
    return np.array([[int(k in labels) for k in range(n_labels)] for labels in chosen], np.int8)


def enumerate_sizes(scores, min_labels, max_labels, size_bias=None):
    """Enumeration of one row of scores over all sets of min_labels to max_labels labels."""
    sets = sets_of_sizes(len(scores), min_labels, max_labels)
    return enumerate_sets(scores, sets, None if size_bias is None else np.asarray(size_bias)[sets.sum(axis=1)])


def enumerate_sets(scores, sets, set_bias=None):
    """Enumeration of one row of scores over the listed sets; biases are floats, or sums of floats from `exact_sums`."""
    set_bias = np.zeros(len(sets)) if set_bias is None else set_bias
    with localcontext(DIGITS):
        scores = [Decimal(float(s)) for s in scores]
        log_weights = [
            sum(
                (s for s, y in zip(scores, labels, strict=True) if y),
                b if isinstance(b, Decimal) else Decimal(float(b)),
            )
            for labels, b in zip(sets, set_bias, strict=True)
        ]
        log_partition = sum(w.exp() for w in log_weights).ln()
        probs = [(w - log_partition).exp() for w in log_weights]
        return Enumeration(np.asarray(sets), log_weights, log_partition, probs)


def exact_sums(*parts):
    """Sums (n,) of arrays of floats (n,) in 60 digits: in float64, small biases beside huge ones would lose theirs."""
    with localcontext(DIGITS):
        rows = zip(*parts, strict=True)
        return np.array([sum((Decimal(float(value)) for value in row), Decimal(0)) for row in rows], dtype=object)


@dataclass(frozen=True)
class Enumeration:
    """A distribution over listed sets; its answers are floats, rounded at the very end."""

    sets: np.ndarray
    exact_log_weights: list
    exact_log_partition: Decimal
    exact_probs: list

    def log_partition(self):
        return float(self.exact_log_partition)

    def log_probs(self):
        with localcontext(DIGITS):
            return np.array([float(w - self.exact_log_partition) for w in self.exact_log_weights])

    def marginals(self):
        return np.array([self.mean(column) for column in self.sets.T])

    def cardinality_pmf(self):
        sizes = self.sets.sum(axis=1)
        return np.array([self.mean(sizes == size) for size in range(self.sets.shape[1] + 1)])

    def best_sets(self):
        """Every set of the highest weight, in the order of the list."""
        best = max(self.exact_log_weights)
        return self.sets[[w == best for w in self.exact_log_weights]]

    def mean(self, values):
        """Mean of a function of the set, given by its value at every set."""
        with localcontext(DIGITS):
            return float(self._mean(values))

    def covariance(self, first, second):
        """Covariance of two functions of the set, given by their values at every set."""
        with localcontext(DIGITS):
            first_mean, second_mean = self._mean(first), self._mean(second)
            products = [
                (Decimal(float(a)) - first_mean) * (Decimal(float(b)) - second_mean)
                for a, b in zip(first, second, strict=True)
            ]
            return float(sum(p * product for p, product in zip(self.exact_probs, products, strict=True)))

    def _mean(self, values):
        return sum(p * Decimal(float(v)) for p, v in zip(self.exact_probs, values, strict=True))


def central_difference(function, step=1e-5):
    """Derivative at 0 of a function of one number, which may return an array."""
    return (function(step) - function(-step)) / (2 * step)


@dataclass(frozen=True)
class Case:
    """A cardinality space and one row of scores."""

    scores: np.ndarray
    min_labels: int
    max_labels: int
    size_bias: np.ndarray | None

    @property
    def bias(self):
        return np.zeros(len(self.scores) + 1) if self.size_bias is None else self.size_bias

    def enumerate(self):
        return enumerate_sizes(self.scores, self.min_labels, self.max_labels, self.size_bias)

    def scale(self):
        """What rounding errors of log-weights are relative to: all scores and the largest bias."""
        return max(1.0, np.abs(self.scores).sum(), np.abs(self.bias).max())


ANY_SCALE = st.one_of(
    st.floats(-3, 3, allow_subnormal=False),
    st.floats(-40, 40, allow_subnormal=False),
    st.floats(-1000, 1000, allow_subnormal=False),
    st.floats(-1e5, 1e5, allow_subnormal=False),
    st.sampled_from([0.0, 1e-12, 500.0, 500.3, 1e5, -1e5]),
)
MODERATE = st.floats(-5, 5, allow_subnormal=False)
SMALL_INTEGERS = st.integers(-2, 2).map(float)


@st.composite
def cases(draw, numbers=ANY_SCALE):
    """Cases of 1 to 7 labels, any sizes, with and without a bias."""
    n_labels = draw(st.integers(1, 7))
    min_labels = draw(st.integers(0, n_labels))
    max_labels = draw(st.integers(min_labels, n_labels))
    scores = np.array(draw(st.lists(numbers, min_size=n_labels, max_size=n_labels)))
    size_bias = draw(st.none() | st.lists(numbers, min_size=n_labels + 1, max_size=n_labels + 1).map(np.array))
    return Case(scores, min_labels, max_labels, size_bias)


@st.composite
def listed_sets(draw, numbers=ANY_SCALE):
    """Scores of 1 to 6 labels, distinct sets in any order, and a bias for each."""
    n_labels = draw(st.integers(1, 6))
    every_set = sets_of_sizes(n_labels, 0, n_labels)
    chosen = draw(st.lists(st.integers(0, len(every_set) - 1), min_size=1, max_size=12, unique=True))
    scores = np.array(draw(st.lists(numbers, min_size=n_labels, max_size=n_labels)))
    set_bias = np.array(draw(st.lists(numbers, min_size=len(chosen), max_size=len(chosen))))
    return scores, every_set[chosen], set_bias


@st.composite
def grouped_sets(draw, numbers=ANY_SCALE):
    """Groups [(labels, least, most), ...] of 1 to 6 labels, biases of sizes, scores, all sets, and their biases."""
    n_labels = draw(st.integers(1, 6))
    group_of = np.array(draw(st.lists(st.integers(-1, 2), min_size=n_labels, max_size=n_labels)))
    group_of[draw(st.integers(0, n_labels - 1))] = 0
    groups, sets, bias = [], sets_of_sizes(n_labels, 0, n_labels), []
    for number in np.unique(group_of[group_of >= 0]):
        labels = np.flatnonzero(group_of == number)
        least = draw(st.integers(0, len(labels)))
        groups.append((labels.tolist(), least, draw(st.integers(least, len(labels)))))
        sizes = sets[:, labels].sum(axis=1)
        sets = sets[(sizes >= least) & (sizes <= groups[-1][2])]
        n_sizes = groups[-1][2] - least + 1
        bias.append(np.array(draw(st.lists(numbers, min_size=n_sizes, max_size=n_sizes))))
    sizes = [sets[:, labels].sum(axis=1) - least for labels, least, _ in groups]
    set_bias = exact_sums(*(own[j] for own, j in zip(bias, sizes, strict=True)))
    scores = np.array(draw(st.lists(numbers, min_size=n_labels, max_size=n_labels)))
    return groups, np.concatenate(bias), scores, sets, set_bias


@st.composite
def forest_sets(draw, numbers=ANY_SCALE):
    """Parents of 1 to 6 labels, limits on the number of leaves, scores, and all sets that obey both."""
    n_labels = draw(st.integers(1, 6))
    names, parents = draw(st.permutations(range(n_labels))), np.full(n_labels, -1)
    for place in range(1, n_labels):
        above = draw(st.integers(-1, place - 1))
        parents[names[place]] = -1 if above < 0 else names[above]
    is_leaf = ~np.isin(np.arange(n_labels), parents)
    min_leaves = draw(st.none() | st.integers(0, int(is_leaf.sum())))
    max_leaves = draw(st.none() | st.integers(min_leaves or 0, n_labels))
    sets, children = sets_of_sizes(n_labels, 0, n_labels), np.flatnonzero(parents >= 0)
    counts, most = sets[:, is_leaf].sum(axis=1), n_labels if max_leaves is None else max_leaves
    obeys = (sets[:, children] <= sets[:, parents[children]]).all(axis=1)
    sets = sets[obeys & (counts >= (min_leaves or 0)) & (counts <= most)]
    scores = np.array(draw(st.lists(numbers, min_size=n_labels, max_size=n_labels)))
    return parents, (min_leaves, max_leaves), scores, sets
