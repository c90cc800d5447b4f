"""From a distribution to label sets: the best answer for a metric.

Every decision takes `min_labels` and `max_labels`, limits on the size of the answer, and finds the best within them.
Without limits only `exact_match` keeps to the sizes of the label space. All others may answer with an empty set (`top`
only with k=0), or with more labels than the label space allows. Answers are int8 (n_samples, n_labels). Ties go to the
smaller set and the lower label; values that differ by less than 1e-13 of their magnitude count as equal.
"""

from functools import partial
from numbers import Integral

import numpy as np

__all__ = ["BY_NAME", "best", "check", "exact_match", "expected", "f1", "hamming", "jaccard", "resolve", "top"]


def exact_match(distribution, *, min_labels=None, max_labels=None):
    """The sets most likely to be right as a whole (winner-take-all), always sets of the label space.

    Where no set of the label space is within the limits, no answer can be right. Then it is the likeliest labels, as
    many as in the most probable set, or the nearest number within the limits. A mixture ends its search after 10,000
    sets of each member, with the best so far (`Mixture.top_sets_and_gap` says where).
    """
    low, high = _limits(distribution, min_labels, max_labels)
    modes = distribution.mode()
    counts = np.count_nonzero(modes, axis=1)
    # Only rows whose mode breaks the limits need another answer: first the fallback, then the best possible set.
    outside = np.flatnonzero((counts < low) | (counts > high))
    if len(outside):
        modes[outside] = distribution.likeliest(np.clip(counts, low, high))[outside]
        possible, sets = distribution.modes_within(low, high)
        within = outside[possible[outside]]
        modes[within] = sets[within]
    return modes


def hamming(distribution, *, min_labels=None, max_labels=None):
    """The sets with the fewest expected wrong labels: every label with a marginal above 1/2.

    Such a set may lie outside the label space, and may be empty. To meet the limits, the likeliest of the other labels
    are added, or the least likely left out.
    """
    low, high = _limits(distribution, min_labels, max_labels)
    # A label adds 1 - p wrong entries in expectation if it is taken and p if not, whatever the others are.
    sets = (distribution.marginals() > 0.5).astype(np.int8)
    counts = np.count_nonzero(sets, axis=1)
    outside = np.flatnonzero((counts < low) | (counts > high))
    if len(outside):
        sets[outside] = distribution.likeliest(np.clip(counts, low, high))[outside]
    return sets


def f1(distribution, *, min_labels=None, max_labels=None):
    """The sets with the highest expected F1, 2 tp / (2 tp + fp + fn), 1 for an empty answer to an empty truth.

    Exact in every label space of mlrh, and in mixtures. The answer is empty only where an empty truth is likely.
    """
    return distribution.best("f1", _limits(distribution, min_labels, max_labels))


def jaccard(distribution, *, min_labels=None, max_labels=None):
    """The sets with the highest expected Jaccard index, tp / (tp + fp + fn), 1 for an empty answer to an empty truth.

    Exact in a cardinality space; elsewhere as `best` says.
    """
    return distribution.best("jaccard", _limits(distribution, min_labels, max_labels))


def top(distribution, k, *, min_labels=None, max_labels=None):
    """The k likeliest labels of each row: the most right ones that k labels can have in expectation."""
    low, high = _limits(distribution, min_labels, max_labels)
    n_rows, n_labels = distribution.shape
    if not _is_count(k) or k > n_labels:
        raise ValueError(f"k must be an integer from 0 to the number of labels, {n_labels}; got {k!r}.")
    return distribution.likeliest(np.full(n_rows, np.clip(k, low, high)))


def best(distribution, metric, *, min_labels=None, max_labels=None):
    """The sets with the highest expected metric, a function f(tp, fp, fn) or a name of `BY_NAME`.

    The function gets integer arrays of one shape: numbers of labels rightly in the answer, wrongly in it, and wrongly
    left out. It returns numbers, larger for better. It must never fall when a wrong label of the answer is swapped for
    a right one, f(tp + 1, fp, fn) >= f(tp, fp + 1, fn + 1); this is checked.

    In a cardinality space the answer is exact, in O(n_labels * max_labels^2) per row. In an observed space it is the
    best among the observed sets and the sets of the m likeliest labels, m = 0, ..., n_labels; another set may be
    better. In an open space the ten most probable sets take the place of the observed ones. (Exact match, Hamming and
    F1, asked for by name, are exact in both too.) In a space of groups it is exact if the numbers of labels per group
    have up to 4,096 combinations, in a hierarchy without limits on leaves up to 14 labels. Beyond that it is the best
    among the sets of the m likeliest labels and the most probable set. In a mixture (F1 aside) it is the best among its
    members' best answers, its 10 most probable sets and the sets of the m likeliest labels.

    Examples
    --------
    >>> from mlrh import decisions
    >>> from mlrh.spaces import CardinalitySpace
    >>> d = CardinalitySpace(n_labels=3, min_labels=0, max_labels=2).distribution([[0.2, -0.3, -4.0]])
    >>> decisions.best(d, lambda tp, fp, fn: -(fp + 5 * fn)).tolist()  # to miss a label costs as much as five too many
    [[1, 1, 0]]
    """
    if isinstance(metric, str) and metric in BY_NAME:
        return BY_NAME[metric](distribution, min_labels=min_labels, max_labels=max_labels)
    limits = _limits(distribution, min_labels, max_labels)
    return distribution.best(metric, limits)


def expected(distribution, metric, Y):
    """E[metric] (n_samples,) of the predictions Y (n_samples, n_labels) if the truth has the distribution; exact.

    The metric is any function f(tp, fp, fn) of arrays of counts, or "exact_match", "hamming" (the share of right
    labels), "f1" or "jaccard". Costs O(n_labels * max_labels) per row after a table of the metric, in an observed space
    O(n_labels * n_sets).

    Examples
    --------
    >>> from mlrh import decisions
    >>> from mlrh.spaces import CardinalitySpace
    >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution([[2.0, 0.0, -1.0]])
    >>> decisions.expected(d, "f1", [[1, 1, 0]]).round(3).tolist()
    [0.755]
    """
    return distribution.expected(metric, Y)


BY_NAME = {"exact_match": exact_match, "hamming": hamming, "f1": f1, "jaccard": jaccard}


def resolve(decision, answer_sizes=None):
    """The function from a distribution to label sets for the parameters `decision` and `answer_sizes`.

    A decision is a name of `BY_NAME`, ("top", k) or a function f(tp, fp, fn). answer_sizes is None or a pair of limits,
    each a number or None.
    """
    limits = dict(zip(("min_labels", "max_labels"), _pair(answer_sizes), strict=True))
    if isinstance(decision, str) and decision in BY_NAME:
        return partial(BY_NAME[decision], **limits)
    if isinstance(decision, tuple) and len(decision) == 2 and decision[0] == "top" and _is_count(decision[1]):
        return partial(top, k=int(decision[1]), **limits)
    if callable(decision):
        return partial(best, metric=decision, **limits)
    names = ", ".join(map(repr, sorted(BY_NAME)))
    raise ValueError(f"decision must be one of {names}, ('top', k) or a function f(tp, fp, fn); got {decision!r}.")


def check(decision, answer_sizes, space):
    """Raise the ValueError that `resolve(decision, answer_sizes)` would raise later: decides on no rows to find out."""
    resolve(decision, answer_sizes)(space.distribution(np.empty((0, space.n_labels))))


def _limits(distribution, min_labels, max_labels):
    """Smallest and largest size of the answer, as two integers, checked."""
    n_labels = distribution.shape[1]
    low, high = 0 if min_labels is None else min_labels, n_labels if max_labels is None else max_labels
    if not _is_count(low) or not _is_count(high) or low > min(high, n_labels):
        raise ValueError(
            "Limits on the size of the answer must be integers with 0 <= min_labels <= max_labels and min_labels <= "
            f"{n_labels}, the number of labels; got min_labels={min_labels!r}, max_labels={max_labels!r}."
        )
    return int(low), int(min(high, n_labels))


def _pair(answer_sizes):
    sizes = (None, None) if answer_sizes is None else answer_sizes
    is_pair = isinstance(sizes, tuple | list) and len(sizes) == 2
    if not is_pair or not all(size is None or _is_count(size) for size in sizes):
        raise ValueError(
            "answer_sizes must be None or a pair of the smallest and the largest number of labels to answer with, each "
            f"an integer or None; got {answer_sizes!r}."
        )
    return tuple(sizes)


def _is_count(value):
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
