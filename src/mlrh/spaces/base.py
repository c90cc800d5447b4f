"""Label spaces: which label sets are possible, what biases they carry, and exact answers about P(y | scores).

P(y | scores) = exp(sum_k y_k scores_k + bias(y)) / Z over the sets of a space, 0 elsewhere. A space knows nothing of
features or of fitting: scores (n_samples, n_labels) come in, probabilities go out. Indicator results are int8.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol

import numpy as np
from sklearn.utils import check_random_state

from mlrh._indicators import UNKNOWN, as_indicator, as_known
from mlrh.spaces._kernels.expected_metrics import metric_function

LARGEST_SCORE = 1e100


class Answers(Protocol):
    """What a distribution asks of a space; scores, and whatever else is given, have one row per sample.

    `known` is of 1, 0 and UNKNOWN, `groups` of booleans; both are (n_samples, n_labels), as scores and Y are. The
    attribute says what the space takes as known already, None if nothing.
    """

    known: np.ndarray | None

    def log_partition(self, scores): ...
    def marginals(self, scores): ...
    def cardinality_pmf(self, scores): ...
    def mode(self, scores): ...
    def log_prob(self, scores, Y): ...
    def top_sets(self, scores, n): ...
    def sample(self, scores, n, random_state): ...
    def entropy(self, scores): ...
    def joint_marginals(self, scores): ...
    def any_of(self, scores, groups): ...
    def expected(self, scores, Y, metric): ...
    def fits(self, known): ...
    def given(self, known): ...
    def temper(self, temperature): ...


@dataclass(frozen=True, eq=False)
class LabelSetDistribution:
    """The distribution of the label set of every row of scores: what you can ask of P(y | x).

    Made by `distribution` of a label space or of a fitted classifier, or by `condition` of another distribution.
    """

    space: Answers
    scores: np.ndarray

    def log_partition(self) -> np.ndarray:
        """Logarithm of the normalising sum Z, (n_samples,); after `condition`, over the sets that are left."""
        return self.space.log_partition(self.scores)

    def marginals(self) -> np.ndarray:
        """P(y_k = 1), (n_samples, n_labels)."""
        return self.space.marginals(self.scores)

    def joint_marginals(self) -> np.ndarray:
        """P(y_j = 1, y_k = 1), (n_samples, n_labels, n_labels), with the marginals on the diagonal.

        Costs O(n_labels^2 * max_labels) per row, in an observed space O(n_labels^2 * n_sets).
        """
        return self.space.joint_marginals(self.scores)

    def any_of(self, group) -> np.ndarray:
        """P(at least one label of a group), (n_samples,); also a tiny one to full relative precision.

        The group is a list of distinct label indices, or a mask of n_labels booleans.
        """
        mask = _group_mask(group, self.scores.shape[1])
        return self.space.any_of(self.scores, np.broadcast_to(mask, self.scores.shape))

    def cardinality_pmf(self) -> np.ndarray:
        """P(|y| = j) for j = 0, ..., n_labels, (n_samples, n_labels + 1)."""
        return self.space.cardinality_pmf(self.scores)

    def size_tail(self, m: int) -> np.ndarray:
        """P(|y| >= m), (n_samples,)."""
        if not isinstance(m, Integral):
            raise ValueError(f"The smallest size m must be an integer; got {m!r}.")
        return np.minimum(self.cardinality_pmf()[:, max(int(m), 0) :].sum(axis=1), 1.0)

    def entropy(self) -> np.ndarray:
        """Entropy of the label set in nats, (n_samples,): 0 where one set is certain, at most log(number of sets)."""
        return self.space.entropy(self.scores)

    def mode(self) -> np.ndarray:
        """The most probable set of each row, (n_samples, n_labels).

        Ties: the lower label and the smaller set win, in an observed space the set listed first.
        """
        return self.space.mode(self.scores)

    def log_prob(self, Y) -> np.ndarray:
        """Log-probability of one set per row, Y (n_samples, n_labels) -> (n_samples,); -inf outside the space."""
        return self.space.log_prob(self.scores, _sets_of_rows(Y, self.scores.shape))

    def prob(self, Y) -> np.ndarray:
        """Probability that one set per row is exactly right, Y (n_samples, n_labels) -> (n_samples,)."""
        return np.exp(self.log_prob(Y))

    def top_sets(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The n most probable sets of each row, best first, and their log-probabilities.

        Returns sets (n_samples, n, n_labels) and log_probs (n_samples, n). Where a space has fewer than n sets, the
        rest is filled with empty sets of log-probability -inf.
        """
        return self.space.top_sets(self.scores, _positive_count(n))

    def sample(self, n: int = 1, random_state=None) -> np.ndarray:
        """n independent sets per row, (n_samples, n, n_labels)."""
        return self.space.sample(self.scores, _positive_count(n), check_random_state(random_state))

    def expected(self, metric, Y) -> np.ndarray:
        """Expected metric of one predicted set per row if the truth has this distribution, (n_samples,); exact.

        The metric is a function f(tp, fp, fn) of arrays of counts, the numbers of labels rightly predicted, wrongly
        predicted and missed; or "exact_match", "hamming" (the share of right labels), "f1" or "jaccard".
        """
        function = metric_function(metric, self.scores.shape[1])
        return self.space.expected(self.scores, _sets_of_rows(Y, self.scores.shape), function)

    def condition(self, known) -> "LabelSetDistribution":
        """The distribution given what is known of each row, as exact and as able as this one.

        known (n_samples, n_labels) is 1 where a label is known to be present, 0 where it is known to be absent, and NaN
        (or masked) elsewhere. Label space and biases stay; sets that contradict what is known have probability 0.

        Examples
        --------
        >>> from mlrh.spaces import CardinalitySpace
        >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution([[2.0, 0.0, -1.0]])
        >>> d.condition([[float("nan"), 1, float("nan")]]).marginals().round(3).tolist()
        [[0.844, 1.0, 0.042]]
        """
        known = as_known(known, self.scores.shape)
        fits = self.space.fits(known)
        if not fits.all():
            row = int(np.argmin(fits))
            raise ValueError(
                f"What is known must leave at least one possible set; row {row} ({_in_words(known[row])}) leaves none "
                "in this label space. Correct the row or set it to NaN."
            )
        return LabelSetDistribution(self.space.given(known), self.scores)

    def temper(self, temperature) -> "LabelSetDistribution":
        """The distribution proportional to P(y)^(1/temperature), over the same sets and as able as this one.

        Scores and biases are divided by the temperature: above 1 it brings the sets closer to equally probable ones,
        below 1 it makes the likely ones likelier, and the order of sets by probability stays. What `condition` was told
        stays known.

        Examples
        --------
        >>> from mlrh.spaces import CardinalitySpace
        >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution([[2.0, 0.0, -1.0]])
        >>> d.prob([[1, 0, 0]]).round(3), d.temper(2).prob([[1, 0, 0]]).round(3)
        (array([0.384]), array([0.292]))
        """
        temperature = _checked_temperature(temperature)
        with np.errstate(over="ignore", under="ignore"):  # what is too large is refused by its place
            scores = (self.scores / np.float64(temperature)).astype(self.scores.dtype)
            space = self.space.temper(temperature)
        return LabelSetDistribution(space, checked_scores(scores, scores.shape[1]))

    def log_prob_of_known(self, known) -> np.ndarray:
        """Log-probability of what is known of each row, known as for `condition` -> (n_samples,); -inf if impossible.

        By P(known) = P(y) / P(y | known) for the y most probable given what is known: two accurate numbers of
        ordinary size, where the difference of two log-partitions could cancel.
        """
        known = as_known(known, self.scores.shape)
        fits = self.space.fits(known)
        given = LabelSetDistribution(self.space.given(np.where(fits[:, None], known, UNKNOWN)), self.scores)
        likeliest = given.mode()
        log_probs = np.minimum(self.log_prob(likeliest) - given.log_prob(likeliest), 0.0)
        log_probs[~fits] = -np.inf
        return log_probs


def checked_scores(scores, n_labels):
    """Scores as a contiguous array of float32 or float64; else one error that names the place."""
    scores = np.asarray(scores)
    if scores.dtype != np.float32:
        scores = scores.astype(np.float64, copy=False)
    if scores.ndim != 2 or scores.shape[1] != n_labels:
        raise ValueError(f"scores must have shape (n_samples, {n_labels}); got {scores.shape}.")
    if not max(float(scores.max(initial=0.0)), -float(scores.min(initial=0.0))) <= LARGEST_SCORE:
        row, column = np.argwhere(~(np.abs(scores.astype(np.float64)) <= LARGEST_SCORE))[0]
        raise ValueError(
            f"scores must be finite and at most {LARGEST_SCORE:g} in magnitude; found {scores[row, column]} in row "
            f"{row}, column {column}."
        )
    return np.ascontiguousarray(scores)


def _sets_of_rows(Y, shape):
    Y = as_indicator(Y, "Y")
    if Y.shape != shape:
        raise ValueError(f"Y must have shape {shape}, one set per row; got {Y.shape}.")
    return Y


def _positive_count(n):
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"The number of sets must be a positive integer; got {n!r}.")
    return int(n)


def _checked_temperature(temperature):
    number = float(temperature) if isinstance(temperature, Real) and not isinstance(temperature, bool) else np.nan
    if not 1e-100 <= number <= 1e100:
        raise ValueError(f"The temperature must be a number from 1e-100 to 1e100; got {temperature!r}.")
    return number


def _group_mask(group, n_labels):
    """Booleans (n_labels,). Indices must be distinct, which also tells them from a mask written as 0 and 1."""
    values = np.asarray(group)
    if values.dtype == bool and values.shape == (n_labels,):
        return values
    indices = values.astype(np.int64) if values.size == 0 or values.dtype.kind in "iu" else None
    if indices is None or indices.ndim != 1 or len(np.unique(indices)) < len(indices):
        raise ValueError(f"group must be distinct label indices or a mask of {n_labels} booleans; got {group!r}.")
    if len(indices) and not (indices.min() >= 0 and indices.max() < n_labels):
        raise ValueError(f"Label indices of a group must lie in 0..{n_labels - 1}; got {group!r}.")
    mask = np.zeros(n_labels, bool)
    mask[indices] = True
    return mask


def _in_words(known):
    present, absent = np.flatnonzero(known == 1).tolist(), np.flatnonzero(known == 0).tolist()
    return f"labels {present} present, {absent} absent"


class LabelSpace(Answers, Protocol):
    """What distributions, objectives and estimators ask of a space; `bias` has one entry per size or per set."""

    n_labels: int
    n_biases: int
    bias: np.ndarray

    def distribution(self, scores): ...
    def with_bias(self, bias): ...
    def with_jobs(self, n_jobs): ...
    def has_sets_of(self, other): ...
    def bias_counts(self, Y, weights): ...
    def absorbed_biases(self): ...
    def log_count(self): ...
    def is_shift_invariant(self): ...
    def curvature_bound(self, *, moving_bias): ...
    def expectations(self, scores, weights): ...
    def curvature(self, scores, direction, bias_direction, weights): ...
