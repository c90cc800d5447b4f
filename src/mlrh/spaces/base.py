"""The contract of a label space, and the distribution of the label set that a space gives to every row of scores.

P(y | scores) = exp(sum_k y_k scores_k + b(y)) / Z over the sets of a space, 0 elsewhere. Scores (n_samples, n_labels)
come in, arrays go out; sets are int8 matrices of 0 and 1. `LabelSpace` says what a space must define and has exact
defaults for the rest. `LabelSetDistribution` is a space with scores: what users ask, with every argument checked.
"""

import heapq
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from mlrh._indicators import UNKNOWN, as_indicator, as_known, contradict, merged
from mlrh.spaces._kernels import expected_metrics
from mlrh.spaces._kernels.expected_metrics import check_metric, metric_function

# Largest magnitude of scores and biases: sums over labels stay far from overflow, which begins at 1.8e308.
LARGEST_SCORE = 1e100
# The same for spaces that add scores and biases up as floats: a sum of 1e6 is right to 1e-10, where terms cancel, too.
LARGEST_IN_FLOATS = 1e6
JOINT_ENTRIES = 2**23  # P(y_k = 1, |y| = j) of a block of rows: 64 MB
MAX_ENUMERATED = 14  # labels up to which the defaults list all sets: 2**14 of them, a few megabytes
# Change of a score in a central difference. The error of the formula is about STEP**2 = 1e-10, that of rounding about
# eps / STEP = 2e-11: a larger or smaller step would make one of them worse.
STEP = 1e-5


class LabelSpace(ABC):
    """Which label sets are possible, what biases b(y) they carry, and exact answers about P(y | scores).

    A space is immutable: methods that change something return another space. A space must define the abstract methods.
    All others have defaults here that are exact but slow; a space overrides those that it can answer faster. All
    arguments have one row per sample: `scores`, `Y` (sets), `known` (1, 0 and UNKNOWN, -1) and `groups` (booleans) are
    (n_samples, n_labels).

    Attributes
    ----------
    n_labels : int
    bias : array of shape (n_biases,)
        What b(y) is made of, for example one number per size or per set; empty if there is nothing to learn.
    learns_bias : bool
        Whether a fit changes the biases; else they stay as they are.
    bias_ridge : float, or array of shape (n_biases,)
        How strongly a fit holds each bias to 0: bias_ridge/2 * bias^2, in units of the loss.
    largest_score : float
        Magnitude up to which scores and biases are taken. Beyond it answers could be wrong.
    has_coupled_metric : bool
        Whether `coupled_metric` gives solvers a metric of intercepts and biases together.
    known : array of shape (n_samples, n_labels), or None
        What `given` was told. `expectations` and `mode` answer for the sets that agree with it. Where no set agrees,
        the log-partition is -inf and the marginals are NaN.
    """

    n_labels: int
    bias: np.ndarray = np.zeros(0)
    learns_bias: bool = True
    bias_ridge: Any = 0.1
    largest_score: float = LARGEST_SCORE
    has_coupled_metric: bool = False
    known: np.ndarray | None = None

    # What every space must define.

    @abstractmethod
    def for_targets(self, Y, *, classes, rows=None) -> "LabelSpace":
        """The space that training rows Y ask for; Y (n_samples, n_labels) may hold UNKNOWN.

        classes are the names of the labels. rows are the numbers of these rows in the user's y, for error messages. A
        row that agrees with no set of the space is a ValueError that names it (`check_targets` raises it).
        """

    def target_kinds(self, Y):
        """An array with a row for each row of Y: `for_targets` and `undetermined` need one row of each kind only.

        Rows of Y are of one kind where the rows of this array are equal. The default is Y itself.
        """
        return Y

    def with_indices(self, classes) -> "LabelSpace":
        """The same space with indices in place of label names, if it has any; classes are the names of the labels."""
        return self

    @abstractmethod
    def with_bias(self, bias) -> "LabelSpace":
        """The same space with other biases (n_biases,); what is known of rows may be left out (see `rebiased`)."""

    @abstractmethod
    def expectations(self, scores, weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-partition (n_samples,), marginals (n_samples, n_labels), and d(weights @ log-partition)/d(bias).

        The last is weights @ E[indicator of what carries each bias], (n_biases,).
        """

    @abstractmethod
    def mode(self, scores) -> np.ndarray:
        """The most probable set of each row, int8 (n_samples, n_labels)."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings and arrays from which `from_dict` makes the space again; `known` is left out."""

    @classmethod
    def from_dict(cls, values) -> "LabelSpace":
        """The space that `to_dict` described."""
        return cls(**values)

    def fitted_attributes(self) -> dict[str, Any]:
        """Attributes that a fitted classifier takes over from the space, by name."""
        return {"bias_": self.bias} if self.learns_bias else {}

    def describe(self) -> str:
        """The space in a few words, for people."""
        return type(self).__name__

    def __repr__(self):
        return f"{type(self).__name__}(n_labels={self.n_labels})"

    # Knowledge of some labels.

    def given(self, known) -> "LabelSpace":
        """The space for rows of which some labels are known, added to what is known already."""
        other = copy(self)
        other.known = known if self.known is None else merged(self.known, known)
        return other

    def fits(self, known):
        """Whether at least one set agrees with what is known of each row, (n_samples,)."""
        contradicts = np.zeros(len(known), bool) if self.known is None else contradict(self.known, known)
        nothing = np.zeros(known.shape)
        # Without any agreeing set, the sum over sets is empty and its logarithm -inf, whatever the scores.
        return np.isfinite(self.given(known).log_partition(nothing)) & ~contradicts

    def check_targets(self, Y, rows=None):
        """Raise a ValueError where Y has other labels, or that names its first row that agrees with no set."""
        if Y.shape[1] != self.n_labels:
            raise ValueError(
                f"The label space has {self.n_labels} labels and y has {Y.shape[1]}; they must be as many."
            )
        fits = self.fits(Y)
        if not fits.all():
            row = int(np.argmin(fits)) if rows is None else rows[np.argmin(fits)]
            raise ValueError(
                f"Every row of y must agree with a set of the label space; row {row} agrees with none, as do "
                f"{len(fits) - fits.sum()} of {len(fits)} rows. Correct or drop these rows, or use another label space."
            )

    # What a fit asks.

    @property
    def n_biases(self) -> int:
        """Number of biases, learned or not."""
        return len(self.bias)

    def rebiased(self, bias) -> "LabelSpace":
        """`with_bias`, with what is known of rows: a space may leave that out when it makes itself anew."""
        other = self.with_bias(bias)
        return other if self.known is None or other.known is not None else other.given(self.known)

    @property
    def operations_per_score(self) -> float:
        """About how many operations `expectations` takes for each score: recurrences take 2 to 3 per size or set."""
        return 2.5 * max(self.n_biases, 1)

    def with_jobs(self, n_jobs) -> "LabelSpace":
        """The same space with another number of threads, where it uses threads."""
        return self

    def bias_counts(self, Y, weights):
        """Total weight of the rows of Y whose set carries each bias, (n_biases,)."""
        # Given a whole set, the expectation of an indicator is the indicator of that set.
        return self.given(Y).expectations(np.zeros(Y.shape), weights)[2]

    def absorbed_biases(self):
        """Directions of the biases that scores can take over, as columns (n_biases, n), the constant one first.

        Moving biases along them and scores the other way changes no probability, so only the ridge would hold the
        biases there. A fit leaves these directions out. The default knows of none.
        """
        return np.zeros((self.n_biases, 0))

    def has_sets_of(self, other):
        """Whether another space has the same sets, so that its biases can be carried over."""
        if type(other) is not type(self) or other.n_biases != self.n_biases:
            return False
        own, others = (space.with_bias(np.zeros(space.n_biases)).to_dict() for space in (self, other))
        return own.keys() == others.keys() and all(np.array_equal(own[name], others[name]) for name in own)

    def log_count(self):
        """Logarithm of the number of sets."""
        # Without biases and scores every set weighs exp(0) = 1.
        flat = self.with_bias(np.zeros(self.n_biases))
        return float(flat.log_partition(np.zeros((1, self.n_labels)))[0])

    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest number of labels of a set."""
        flat = self.with_bias(np.zeros(self.n_biases))
        # Where every label scores -1 the smallest set is the most probable one, where every label scores 1 the largest.
        counts = flat.mode(np.outer([-1.0, 1.0], np.ones(self.n_labels))).sum(axis=1, dtype=np.int64)
        return int(counts[0]), int(counts[1])

    def is_shift_invariant(self):
        """Whether adding a constant to all scores of a row changes nothing: true if all sets have one size."""
        smallest, largest = self.sizes()
        return smallest == largest

    def shift_invariant_labels(self) -> list[np.ndarray]:
        """Groups of labels, as indices, to whose scores a constant can be added without changing a probability."""
        return [np.arange(self.n_labels)] if self.is_shift_invariant() else []

    def raised_thresholds(self, thresholds):
        """Thresholds (n_labels,) for marginals, raised so that the labels above them obey what labels imply.

        The default leaves them as they are.
        """
        return thresholds

    def completed(self, Y):
        """Training rows Y as a fit takes them; the default leaves them as they are."""
        return Y

    def undetermined(self, Y) -> list[str]:
        """Sentences on what of this space has no finite optimum for Y (labels never or always present aside)."""
        return []

    def curvature_bound(self, *, moving_bias):
        """A number c with Cov(y) <= c I at all scores; with moving_bias, of labels and biases together.

        The variance of a bounded variable is at most a quarter of its squared range, so c is a quarter of the largest
        squared distance between two sets. That is at most n_labels, and 2 more if each of two sets has a bias that the
        other lacks.
        """
        return (self.n_labels + 2 * moving_bias) / 4

    def curvature(self, scores, direction, bias_direction, weights):
        """Derivatives of marginals and of weights @ E[indicators] as scores and biases move along the directions.

        Returns (n_samples, n_labels) and (n_biases,). By central differences, exact to about 1e-9.
        """
        # The largest entry moves by STEP, whatever the length of the direction.
        largest = max(np.abs(direction).max(initial=0.0), np.abs(bias_direction).max(initial=0.0))
        step = STEP / largest if largest > 0 else 1.0
        up, down = (
            self.rebiased(self.bias + sign * bias_direction).expectations(scores + sign * direction, weights)
            for sign in (step, -step)
        )
        return (up[1] - down[1]) / (2 * step), (up[2] - down[2]) / (2 * step)

    def curvature_at(self, scores, weights):
        """The function (direction, bias_direction) -> `curvature`; a space can keep what all directions share."""
        return lambda direction, bias_direction: self.curvature(scores, direction, bias_direction, weights)

    def independence(self, scores):
        """Variance of the size over the sum of the labels' variances, for scores (n_labels,): 1 for independent labels.

        The default is 0, which promises nothing.
        """
        return 0.0

    def coupled_sums(self, scores, weights):
        """A tuple of sums over rows that `coupled_metric` needs; see `has_coupled_metric`."""
        raise NotImplementedError

    def coupled_metric(self, sums, of_intercept, ridge, absorbed):
        """A function (d_intercept, d_bias) -> steps: solves with about the Hessian of intercepts and biases together.

        From the `coupled_sums` at the same biases. of_intercept (n_labels,) are curvatures that its diagonal must not
        fall short of, ridge (n_labels + n_biases,) is added to it, and steps must not go along the biases `absorbed`
        (n_biases, n). None: intercepts and biases are taken one by one.
        """
        return None

    # What a fit may choose first, on rows that were held out.

    def simpler(self) -> "LabelSpace | None":
        """The space whose fits give the held-out scores that `tuned` asks for; None if there is nothing to choose."""
        return None

    def tuned(self, Y, weights, folds) -> "LabelSpace":
        """The space with what a fit has to choose beforehand, such as the strength of a ridge; by default as it is.

        Its biases are those to start from, beside the mean coefficients of the folds.
        folds is a list of triples: a mask (n_samples,) of the rows that were held out, and of the fit of `simpler` to
        the other rows the scores (n_samples, n_labels) of all rows and the space with its biases.
        """
        return self

    # What a distribution asks.

    def distribution(self, scores) -> "LabelSetDistribution":
        """LabelSetDistribution of scores (n_samples, n_labels)."""
        return LabelSetDistribution(self, checked_scores(scores, self.n_labels, self.largest_score))

    def log_partition(self, scores):
        """Logarithm of the sum over sets, (n_samples,)."""
        with np.errstate(invalid="ignore", divide="ignore"):  # a row that agrees with no set has weights of 0
            return self.expectations(scores, np.zeros(len(scores)))[0]

    def marginals(self, scores):
        """P(y_k = 1), (n_samples, n_labels)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.expectations(scores, np.zeros(len(scores)))[1]

    def log_weight(self, scores, Y):
        """Logarithm of exp(sum_k y_k scores_k + b(y)) of one set per row, (n_samples,); -inf outside the space."""
        # Given a whole set, the partition has a single term: the weight of that set.
        contradicts = np.zeros(len(Y), bool) if self.known is None else contradict(self.known, Y)
        return np.where(contradicts, -np.inf, self.given(Y).log_partition(scores))

    def log_prob(self, scores, Y):
        """Log-probability of one set per row, (n_samples,); -inf outside the space."""
        return np.minimum(self.log_weight(scores, Y) - self.log_partition(scores), 0.0).astype(scores.dtype)

    def top_sets(self, scores, n):
        """The n most probable sets and their log-probabilities, by Lawler's partitioning.

        A part is all sets that agree with some known labels, and its best set is a mode. Taking the best set away
        splits the rest of the part into up to n_labels parts. Each further set costs one call of `mode`, for the new
        parts of all rows together.
        """
        n_rows = len(scores)
        sets, log_probs = np.zeros((n_rows, n, self.n_labels), np.int8), np.full((n_rows, n), -np.inf, scores.dtype)
        nothing = np.full((n_rows, self.n_labels), UNKNOWN, np.int8) if self.known is None else self.known
        heaps: list[list] = [[] for _ in range(n_rows)]
        self._add_parts(heaps, scores, np.arange(n_rows), nothing)
        for place in range(n):
            rows, parts, found = [], [], np.zeros(n_rows, bool)
            for i, heap in enumerate(heaps):
                if heap:
                    # The best set of all parts is the next one; its part is split into what is left of it.
                    _, _, _, known, best = heapq.heappop(heap)
                    sets[i, place] = best
                    found[i] = True
                    others = _other_parts(known, best)
                    rows.append(np.full(len(others), i))
                    parts.append(others)
            # Not log-weight less log-partition: where both are huge, a space may know their difference better.
            log_probs[found, place] = self.log_prob(scores, sets[:, place])[found]
            if not rows or place == n - 1:
                break
            self._add_parts(heaps, scores, np.concatenate(rows), np.concatenate(parts))
        return sets, log_probs

    def _add_parts(self, heaps, scores, rows, known):
        """Push the parts given by `known` and their modes on the heaps of the rows; empty parts drop out."""
        free = self._without_knowledge()
        possible = free.fits(known)
        rows, known = rows[possible], known[possible]
        modes = free.given(known).mode(scores[rows])
        log_weights = free.log_weight(scores[rows], modes)
        for row, own, mode, log_weight in zip(rows, known, modes, log_weights, strict=True):
            # Ties: the smaller set and the lower label come first, as in the spaces that rank their sets.
            place = (-float(log_weight), int(mode.sum()), tuple(-mode))
            heapq.heappush(heaps[row], (*place, own, mode))

    def sample(self, scores, n, random_state):
        """n sets per row, drawn label by label: each with its marginal given the labels drawn before."""
        drawn = np.repeat(np.full(scores.shape, UNKNOWN, np.int8) if self.known is None else self.known, n, axis=0)
        repeated, free = np.repeat(scores, n, axis=0), self._without_knowledge()
        for label in range(self.n_labels):
            marginals = free.given(drawn).marginals(repeated)[:, label]
            drawn[:, label] = random_state.random_sample(len(drawn)) < marginals
        return drawn.reshape(len(scores), n, self.n_labels)

    def joint_marginals(self, scores):
        """P(y_j = 1, y_k = 1) = P(y_j = 1) P(y_k = 1 | y_j = 1), by one conditioning for each label j."""
        marginals, free = self.marginals(scores), self._without_knowledge()
        joint = np.zeros((len(scores), self.n_labels, self.n_labels), scores.dtype)
        for label in range(self.n_labels):
            rows = np.flatnonzero(marginals[:, label] > 0)
            known = np.full(scores.shape, UNKNOWN, np.int8) if self.known is None else self.known.copy()
            known[:, label] = 1
            others = free.given(known[rows]).marginals(scores[rows])
            joint[rows, label] = marginals[rows, label, None] * others
        # (j, k) and (k, j) were computed separately and may differ by rounding.
        return np.minimum(0.5 * (joint + joint.transpose(0, 2, 1)), 1.0)

    def cardinality_pmf(self, scores):
        """P(|y| = j) for j = 0, ..., n_labels, (n_samples, n_labels + 1)."""
        return self._listed().cardinality_pmf(scores)

    def entropy(self, scores):
        """Entropy of the label set in nats, (n_samples,): log Z - E[log weight], one row at a time.

        The mean of b(y) is bias . E[indicators], as `expectations` gives it for a single row.
        """
        log_partition, marginals = self.log_partition(scores), self.marginals(scores)
        known, free = self.known, self._without_knowledge()
        biases = np.zeros(len(scores))
        for i in range(len(scores) if self.n_biases else 0):
            space = free if known is None else free.given(known[i : i + 1])
            biases[i] = space.expectations(scores[i : i + 1], np.ones(1))[2] @ self.bias
        return np.maximum(log_partition - (marginals * scores).sum(axis=1) - biases, 0.0).astype(scores.dtype)

    def listed(self, scores):
        """The sets (n_sets, n_labels) and the log-probability of each for every row, (n_samples, n_sets)."""
        return self._listed().listed(scores)

    def marginals_by_size(self, scores, sizes):
        """P(y_k = 1, |y| = j) of some sizes j, (n_sizes, n_samples, n_labels): one conditioning for each label k."""
        marginals, free = self.marginals(scores), self._without_knowledge()
        joint = np.zeros((len(sizes), *scores.shape))
        for label in range(self.n_labels):
            rows = np.flatnonzero(marginals[:, label] > 0)
            known = np.full(scores.shape, UNKNOWN, np.int8) if self.known is None else self.known.copy()
            known[:, label] = 1
            pmf = free.given(known[rows]).cardinality_pmf(scores[rows])[:, sizes]
            joint[:, rows, label] = (marginals[rows, label, None] * pmf).T
        return joint

    def any_of(self, scores, groups):
        """P(at least one label of each row's group), (n_samples,)."""
        return self._listed().any_of(scores, groups)

    def expected(self, scores, Y, metric):
        """E[f(tp, fp, fn)] of one answer per row, (n_samples,)."""
        return self._listed().expected(scores, Y, metric)

    def best(self, scores, metric, limits):
        """The sets (n_samples, n_labels) of limits[0] to limits[1] labels with the highest E[f(tp, fp, fn)]."""
        return self._listed().best(scores, metric, limits)

    def modes_within(self, scores, low, high):
        """Which rows have possible sets of low to high labels, (n_samples,), and the most probable of these sets."""
        return self._listed().modes_within(scores, low, high)

    def likeliest(self, scores, counts):
        """The counts[i] likeliest labels of each row, as sets; ties go to the lower label."""
        return highest_labels(self.marginals(scores), counts)

    def temper(self, temperature):
        """The space of P(y)^(1/temperature) for scores that are divided by the temperature."""
        return self.rebiased(self.bias / temperature)

    def _best_of_candidates(self, scores, metric, limits):
        """The best answers that a space finds without a list of its sets: exact for F1.

        For other metrics it is the better one of the sets of the m likeliest labels and of the most probable set.
        """
        sets, n_rows = np.empty(scores.shape, np.int8), max(1, JOINT_ENTRIES // (self.n_labels + 1) ** 2)
        for start in range(0, len(scores), n_rows):
            rows = slice(start, start + n_rows)
            sets[rows] = self._of_rows(rows)._best_of_block(scores[rows], metric, limits)
        return sets

    def _best_of_block(self, scores, metric, limits):
        if metric is expected_metrics.f1_of_counts:
            sizes, empty = np.arange(1, self.n_labels + 1), self.cardinality_pmf(scores)[:, 0]
            return expected_metrics.best_f1_by_sizes(self.marginals_by_size(scores, sizes), sizes, empty, limits)
        best = expected_metrics.Best(*scores.shape)
        possible, modes = self.modes_within(scores, *limits)
        sizes = np.where(possible, np.count_nonzero(modes, axis=1), -1)
        # Ties go to what is offered first, so smaller sets come first.
        for m in range(limits[0], limits[1] + 1):
            candidates = self.likeliest(scores, np.full(len(scores), m))
            best.offer(self.expected(scores, candidates, metric), candidates)
            if (sizes == m).any():
                candidates = np.where((sizes == m)[:, None], modes, candidates)
                best.offer(self.expected(scores, candidates, metric), candidates)
        return best.sets

    def _without_knowledge(self):
        """The same space with nothing known, for questions that bring rows and knowledge of their own."""
        other = copy(self)
        other.known = None
        return other

    def _of_rows(self, rows):
        """The space with what is known of some rows, given by numbers, a mask or a slice."""
        return self if self.known is None else self._without_knowledge().given(self.known[rows])

    def _listed(self):
        """The same sets and weights as an ObservedSpace, which answers everything from the list of sets."""
        listed = self._without_knowledge()._all_sets()
        return listed if self.known is None else listed.given(self.known)

    def _all_sets(self):
        """An ObservedSpace of the sets of this space, with their biases."""
        from mlrh.spaces.observed import ObservedSpace  # which is itself a space

        if self.n_labels > MAX_ENUMERATED:
            raise ValueError(
                f"{type(self).__name__} answers this by listing its sets, for at most {MAX_ENUMERATED} labels; got "
                f"{self.n_labels}. Give the space a method of its own for it."
            )
        # The bits of 0, 1, 2, ... are all sets; by size, so that ties go to the smaller set.
        sets = (np.arange(2**self.n_labels)[:, None] >> np.arange(self.n_labels) & 1).astype(np.int8)
        sets = sets[np.argsort(sets.sum(axis=1), kind="stable")]
        # At scores of 0 the log-weight of a set is its bias, and -inf outside the space.
        biases = self.log_weight(np.zeros(sets.shape), sets)
        return ObservedSpace(sets[np.isfinite(biases)], biases[np.isfinite(biases)])


def _other_parts(known, best):
    """What `known` is in each part of the sets that agree with `known` and are not `best`.

    One part per unknown label: the sets that differ from `best` there and equal it at the unknown labels before.
    """
    free = np.flatnonzero(known == UNKNOWN)
    parts = np.tile(known, (len(free), 1))
    for place, label in enumerate(free):
        parts[place:, label] = best[label]
        parts[place, label] = 1 - best[label]
    return parts


def highest_labels(values, counts):
    """Sets of the counts[i] labels of highest value in each row (n_samples, n_labels); ties go to the lower label."""
    sets = np.zeros(values.shape, np.int8)
    order = np.argsort(-values, axis=1, kind="stable")
    np.put_along_axis(sets, order, (np.arange(sets.shape[1]) < counts[:, None]).astype(np.int8), axis=1)
    return sets


@dataclass(frozen=True, eq=False)
class LabelSetDistribution:
    """The distribution of the label set of every row of scores: what you can ask of P(y | x).

    Made by `distribution` of a label space or of a fitted classifier, or by `condition` of another distribution. Scores
    and biases are at most 1e100 in magnitude, in an open space or a hierarchy at most 1e6. A probability below 1e-60
    may come out as 0, except where it is asked for by `log_prob`, `top_sets` or `log_prob_of_known`.
    """

    space: LabelSpace
    scores: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """(n_samples, n_labels)."""
        return self.scores.shape

    def take(self, rows) -> "LabelSetDistribution":
        """The distribution of some rows, given by numbers, a mask or a slice."""
        return LabelSetDistribution(self.space._of_rows(rows), self.scores[rows])

    def fits(self, known) -> np.ndarray:
        """Whether what is known of each row leaves a possible set, known as for `condition` -> (n_samples,)."""
        return self.space.fits(as_known(known, self.scores.shape))

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
        """P(at least one label of a group), (n_samples,); even a tiny one has full relative precision.

        The group is a list of distinct label indices, or a mask of n_labels booleans.
        """
        mask = _group_mask(group, self.scores.shape[1])
        return self.space.any_of(self.scores, np.broadcast_to(mask, self.scores.shape))

    def cardinality_pmf(self) -> np.ndarray:
        """P(|y| = j) for j = 0, ..., n_labels, (n_samples, n_labels + 1)."""
        return self.space.cardinality_pmf(self.scores)

    def _marginals_by_size(self, sizes):
        """P(y_k = 1, |y| = j) of some sizes j, (n_sizes, n_samples, n_labels)."""
        return self.space.marginals_by_size(self.scores, sizes)

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

    def listed(self) -> tuple[np.ndarray, np.ndarray]:
        """All sets (n_sets, n_labels), and the log-probability of each for every row, (n_samples, n_sets).

        A space that is not a list of sets lists them for at most 14 labels; more are a ValueError.
        """
        return self.space.listed(self.scores)

    def sample(self, n: int = 1, random_state=None) -> np.ndarray:
        """n independent sets per row, (n_samples, n, n_labels)."""
        return self.space.sample(self.scores, _positive_count(n), check_random_state(random_state))

    def expected(self, metric, Y) -> np.ndarray:
        """Expected metric of one predicted set per row if the truth has this distribution, (n_samples,); exact.

        The metric is a function f(tp, fp, fn) of arrays of counts: labels rightly predicted, wrongly predicted, and
        missed. Or it is "exact_match", "hamming" (the share of right labels), "f1" or "jaccard".
        """
        function = metric_function(metric, self.scores.shape[1])
        return self.space.expected(self.scores, _sets_of_rows(Y, self.scores.shape), function)

    def best(self, metric, limits) -> np.ndarray:
        """The sets of limits[0] to limits[1] labels with the highest expected metric, as `expected` takes it.

        Whether the answer is exact depends on the label space and the metric (see mlrh.decisions).
        """
        n_labels = self.scores.shape[1]
        function = metric_function(metric, n_labels)
        if callable(metric):  # of the others it is known, and the check takes long where there are thousands of labels
            check_metric(function, n_labels, self.sizes())
        return self.space.best(self.scores, function, limits)

    def modes_within(self, low, high) -> tuple[np.ndarray, np.ndarray]:
        """Which rows have possible sets of low to high labels, (n_samples,), and the most probable of these sets."""
        return self.space.modes_within(self.scores, low, high)

    def likeliest(self, counts) -> np.ndarray:
        """The counts[i] likeliest labels of each row, as sets (n_samples, n_labels)."""
        return self.space.likeliest(self.scores, counts)

    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest number of labels of a set of the label space."""
        return self.space.sizes()

    def raised_thresholds(self, thresholds) -> np.ndarray:
        """Thresholds (n_labels,) for marginals, raised where the label space needs it.

        In a hierarchy a label's threshold is raised to its parent's: the labels above their thresholds then obey it.
        """
        return self.space.raised_thresholds(np.asarray(thresholds, np.float64))

    def condition(self, known) -> "LabelSetDistribution":
        """The distribution given what is known of each row; it answers the same questions, as exactly.

        known (n_samples, n_labels) is 1 where a label is known to be present, 0 where it is known to be absent, and NaN
        (or masked) elsewhere. Label space and biases stay; sets that contradict `known` have probability 0.

        Examples
        --------
        >>> from mlrh.spaces import CardinalitySpace
        >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution([[2.0, 0.0, -1.0]])
        >>> d.condition([[float("nan"), 1, float("nan")]]).marginals().round(3).tolist()
        [[0.844, 1.0, 0.042]]
        """
        known = as_known(known, self.scores.shape)
        _check_fits(self.space.fits(known), known)
        return LabelSetDistribution(self.space.given(known), self.scores)

    def temper(self, temperature) -> "LabelSetDistribution":
        """The distribution proportional to P(y)^(1/temperature), over the same sets.

        Scores and biases are divided by the temperature. Above 1 it evens the probabilities out, below 1 it sharpens
        them; the order of the sets stays. What `condition` was told stays known.

        Examples
        --------
        >>> from mlrh.spaces import CardinalitySpace
        >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution([[2.0, 0.0, -1.0]])
        >>> d.prob([[1, 0, 0]]).round(3), d.temper(2).prob([[1, 0, 0]]).round(3)
        (array([0.384]), array([0.292]))
        """
        temperature = _checked_temperature(temperature)
        with np.errstate(over="ignore", under="ignore"):  # checked_scores reports overflow and its place
            scores = (self.scores / np.float64(temperature)).astype(self.scores.dtype)
            space = self.space.temper(temperature)
        if not np.abs(space.bias).max(initial=0.0) <= space.largest_score:
            raise ValueError(
                f"Biases divided by the temperature must be at most {space.largest_score:g} in magnitude; at a "
                f"temperature of {temperature:g} the largest is {np.abs(space.bias).max():g}. Use a higher temperature."
            )
        return space.distribution(scores)

    def log_prob_of_known(self, known) -> np.ndarray:
        """Log-probability of what is known of each row, known as for `condition` -> (n_samples,); -inf if impossible.

        By P(known) = P(y) / P(y | known), with y the most probable set given what is known. Both log-probabilities are
        accurate and of ordinary size; the difference of two log-partitions, which may be huge, would lose digits.
        """
        known = as_known(known, self.scores.shape)
        fits = self.space.fits(known)
        given = LabelSetDistribution(self.space.given(np.where(fits[:, None], known, UNKNOWN)), self.scores)
        likeliest = given.mode()
        log_probs = np.minimum(self.log_prob(likeliest) - given.log_prob(likeliest), 0.0)
        log_probs[~fits] = -np.inf
        return log_probs


def checked_scores(scores, n_labels, largest):
    """Scores as a contiguous array (n_samples, n_labels) of float32 or float64; an error names the first bad entry."""
    scores = np.asarray(scores)
    if scores.dtype != np.float32:
        scores = scores.astype(np.float64, copy=False)
    if scores.ndim != 2 or scores.shape[1] != n_labels:
        raise ValueError(f"scores must have shape (n_samples, {n_labels}); got {scores.shape}.")
    if not max(float(scores.max(initial=0.0)), -float(scores.min(initial=0.0))) <= largest:
        row, column = np.argwhere(~(np.abs(scores.astype(np.float64)) <= largest))[0]
        raise ValueError(
            f"scores must be finite and at most {largest:g} in magnitude; found {scores[row, column]} in row "
            f"{row}, column {column}."
        )
    return np.ascontiguousarray(scores)


def checked_bias(bias, name, n, per, largest=LARGEST_SCORE):
    """A new read-only array of n biases, 0 for None; else an error that names the first bad entry."""
    bias = np.zeros(n) if bias is None else np.array(bias, np.float64)
    if bias.shape != (n,):
        raise ValueError(f"{name} must be {n} finite numbers, one per {per}; got shape {bias.shape}.")
    bad = ~(np.abs(bias) <= largest)
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"{name} must be {n} finite numbers, at most {largest:g} in magnitude; found {bias[first]} at index "
            f"{first}."
        )
    bias.setflags(write=False)
    return bias


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
    """Booleans (n_labels,). Indices must be distinct, so that a mask written as 0 and 1 is not taken for indices."""
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


def _check_fits(fits, known):
    if not fits.all():
        row = int(np.argmin(fits))
        raise ValueError(
            f"What is known must leave at least one possible set; row {row} ({_in_words(known[row])}) leaves none "
            "in this label space. Correct the row or set it to NaN."
        )


def _in_words(known):
    present, absent = np.flatnonzero(known == 1).tolist(), np.flatnonzero(known == 0).tolist()
    return f"labels {present} present, {absent} absent"
