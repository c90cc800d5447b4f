"""Pools of distributions: P(y) = sum_c w_c P_c(y), and the normalised product of P_c(y)^w_c within one label space.

Members need not have the same label space: a mixture asks them only what any LabelSetDistribution answers. Weights may
differ from row to row, as they do once something is known.
"""

import numpy as np
from sklearn.utils import check_random_state

from mlrh._indicators import UNKNOWN, as_known
from mlrh.spaces._kernels.expected_metrics import Best, check_metric, f1_of_counts, metric_function
from mlrh.spaces._kernels.expected_metrics import best_f1_by_sizes as best_f1
from mlrh.spaces.base import (
    LabelSetDistribution,
    _check_fits,
    _checked_temperature,
    _positive_count,
    _sets_of_rows,
    highest_labels,
)
from mlrh.spaces.listed import listed_sets
from mlrh.spaces.observed import distinct_sets

FIRST_WALKED = 8  # sets of each member that a search looks at first: enough for nearly all rows where members are sure
GROWTH = 4  # how many times as many it looks at next; repeating the shorter searches then costs a third at most
# Sets of each member after which a search ends. For two members in cardinality spaces that is 0.2 s per row with 40
# labels and 3 s with 400; flat members could otherwise take hours.
MAX_WALKED = 10_000
AT_ONCE = 2**14  # sets of all members that are compared at a time: a few megabytes
ROUNDING = 1e-12  # log-probabilities this near are equal but for rounding
N_TOP = 10  # most probable sets that are candidates for the best answer; members are seldom surer of more
ROWS_LISTED = 256  # rows listed at a time for the entropy: 32 MB where 14 labels have 2**14 sets
JOINT_ENTRIES = 2**23  # P(y_k = 1, |y| = j) of a block of rows: 64 MB


class Mixture(LabelSetDistribution):
    """The mixture P(y) = sum_c weights_c P_c(y) of distributions of the same rows and labels.

    It answers what every LabelSetDistribution does, in float64. The answers are exact, with these limits:

    - `mode`, `top_sets` and `modes_within` walk the members' most probable sets until no other set can win. After
      10,000 sets of each member they stop with the best so far; `top_sets_and_gap` says how much better another set
      could be at most.
    - `best` is exact for F1. For other metrics it is the best of the members' best answers, the most probable sets and
      the sets of the m likeliest labels, compared by their exact expected metric.
    - `entropy` and `temper` list all sets, so that all members must list theirs: observed spaces and label powersets
      do, other label spaces for at most 14 labels.
    - After `condition`, weights follow from the members' log-probabilities of what became known, which are rounded: one
      of -1e6 is right to 1e-10, one of -1e16 leaves the weights open.

    It has no space, scores and log-partition of its own.

    Parameters
    ----------
    members : list of LabelSetDistribution
        Of one shape.
    weights : array of shape (n_members,) or (n_samples, n_members)
        Not negative; scaled to sum to 1.

    Attributes
    ----------
    members : list of LabelSetDistribution
    log_weights : array of shape (n_samples, n_members)
        Logarithms of the weights; `condition` multiplies weights by what each member held of what became known.

    Examples
    --------
    >>> from mlrh.spaces import CardinalitySpace, Mixture, ObservedSpace
    >>> one = CardinalitySpace(n_labels=2, min_labels=0, max_labels=2).distribution([[0.0, 0.0]])
    >>> other = ObservedSpace([[1, 1]]).distribution([[0.0, 0.0]])
    >>> d = Mixture([one, other], [0.5, 0.5])
    >>> d.marginals().tolist(), d.prob([[1, 1]]).round(3).tolist()
    ([[0.75, 0.75]], [0.625])
    """

    def __init__(self, members, weights):
        if not members or len({member.shape for member in members}) > 1:
            shapes = [member.shape for member in members]
            raise ValueError(f"A mixture needs members of one shape (n_samples, n_labels); got {shapes}.")
        with np.errstate(divide="ignore"):
            self._set(members, np.log(checked_weights(weights, members[0].shape[0], len(members))))

    def _set(self, members, log_weights):
        self.members, self.log_weights = list(members), log_weights

    @classmethod
    def _made(cls, members, log_weights):
        """The mixture of checked members with logarithms of weights (n_samples, n_members), which are scaled."""
        mixture = cls.__new__(cls)
        mixture._set(members, log_weights - _log_sum(log_weights)[:, None])
        return mixture

    def __repr__(self):
        return f"Mixture({self.members!r})"

    @property
    def shape(self):
        return self.members[0].shape

    def take(self, rows):
        return Mixture._made([member.take(rows) for member in self.members], self.log_weights[rows])

    def sizes(self):
        smallest, largest = zip(*(member.sizes() for member in self.members), strict=True)
        return min(smallest), max(largest)

    def log_partition(self):
        raise AttributeError("A mixture has no normalising sum of its own; ask its members.")

    @property
    def space(self):
        raise AttributeError("A mixture has no label space of its own, only those of its members; ask `members`.")

    @property
    def scores(self):
        raise AttributeError("A mixture has no scores of its own, only those of its members; ask `members`.")

    # Means over the members.

    def marginals(self):
        return self._mean([member.marginals() for member in self.members])

    def joint_marginals(self):
        return self._mean([member.joint_marginals() for member in self.members])

    def any_of(self, group):
        return self._mean([member.any_of(group) for member in self.members])

    def cardinality_pmf(self):
        return self._mean([member.cardinality_pmf() for member in self.members])

    def expected(self, metric, Y):
        # A metric may be larger than 1, so that the mean is not cut off there.
        return self._weighted([member.expected(metric, Y) for member in self.members])

    def log_prob(self, Y):
        Y = _sets_of_rows(Y, self.shape)
        log_probs = np.stack([member.log_prob(Y) for member in self.members], axis=1)
        return np.minimum(_log_sum(self.log_weights + log_probs), 0.0)

    def log_prob_of_known(self, known):
        return np.minimum(_log_sum(self.log_weights + self._evidence(_as_given(known, self.shape))), 0.0)

    def likeliest(self, counts):
        return highest_labels(self.marginals(), counts)

    def raised_thresholds(self, thresholds):
        """Thresholds raised only as far as all members need it: the mixture has every set that some member has."""
        return np.min([member.raised_thresholds(thresholds) for member in self.members], axis=0)

    def sample(self, n=1, random_state=None):
        n, rng = _positive_count(n), check_random_state(random_state)
        # The member of each draw, then the set from that member.
        cumulative = np.cumsum(np.exp(self.log_weights), axis=1)
        levels = rng.random_sample((self.shape[0], n)) * cumulative[:, -1:]
        chosen = (levels[:, :, None] >= cumulative[:, None, :]).sum(axis=2)
        sets = np.zeros((self.shape[0], n, self.shape[1]), np.int8)
        for place, member in enumerate(self.members):
            sets = np.where((chosen == place)[:, :, None], member.sample(n, rng), sets)
        return sets

    # What is known of some labels.

    def fits(self, known):
        known = _as_given(known, self.shape)
        fits = np.stack([member.fits(known) for member in self.members], axis=1)
        return (fits & (self.log_weights > -np.inf)).any(axis=1)

    def condition(self, known):
        """The mixture given what is known: members are conditioned, and weighted by the probability they gave to it."""
        _check_fits(self.fits(known), as_known(known, self.shape))
        known = _as_given(known, self.shape)
        evidence = self._evidence(known)
        # Where a member holds what is known impossible, its weight is 0, and it is told nothing.
        members = [
            member.condition(np.where(possible[:, None], known, np.nan))
            for member, possible in zip(self.members, (evidence > -np.inf).T, strict=True)
        ]
        return Mixture._made(members, self.log_weights + evidence)

    # Searches for the most probable sets.

    def mode(self):
        return self._search(1)[0][:, 0]

    def top_sets(self, n):
        return self.top_sets_and_gap(n)[:2]

    def top_sets_and_gap(self, n):
        """The n most probable sets of each row, their log-probabilities, and the gap, (n_samples,).

        No other set is more probable than the last of the n by more than the gap. It is 0 where the answer is exact,
        and positive only where a search ended after 10,000 sets of each member.
        """
        return self._search(_positive_count(n))

    def modes_within(self, low, high):
        sets, log_probs, _ = self._search(1, (low, high))
        return log_probs[:, 0] > -np.inf, sets[:, 0]

    def _search(self, n, limits=None):
        """The n most probable sets (of limits[0] to limits[1] labels), their log-probabilities, and the gaps.

        A set that none of the members has among its first m is at most as probable as the mixture of their m-th sets.
        So once the n-th best set so far is as probable as that, no other set can win (Fagin's threshold algorithm).
        """
        n_rows, n_labels = self.shape
        sets, log_probs = np.zeros((n_rows, n, n_labels), np.int8), np.full((n_rows, n), -np.inf)
        gap, is_sure = np.zeros(n_rows), np.zeros(n_rows, bool)
        left, n_walked = np.arange(n_rows), max(n, FIRST_WALKED)
        while len(left):
            n_at_once = max(1, AT_ONCE // (n_walked * len(self.members)))
            for start in range(0, len(left), n_at_once):
                rows = left[start : start + n_at_once]
                sets[rows], log_probs[rows], bound = self.take(rows)._walked(n, n_walked, limits)
                last = log_probs[rows, -1]
                is_sure[rows] = bound <= last + ROUNDING
                gap[rows] = np.where(is_sure[rows], 0.0, np.exp(bound) - np.exp(last))
            left = left[~is_sure[left]] if n_walked < MAX_WALKED else left[:0]
            n_walked = min(GROWTH * n_walked, MAX_WALKED)
        return sets, log_probs, gap

    def _walked(self, n, n_walked, limits):
        """The n best of the members' n_walked most probable sets, and a bound on the log-probability of any other."""
        walked = [member.top_sets(n_walked) for member in self.members]
        lasts = np.stack([log_probs[:, -1] for _, log_probs in walked], axis=1).astype(np.float64)
        sets = np.concatenate([found for found, _ in walked], axis=1)
        possible = np.concatenate(
            [
                (log_probs > -np.inf) & (weights[:, None] > -np.inf)
                for (_, log_probs), weights in zip(walked, self.log_weights.T, strict=True)
            ],
            axis=1,
        )
        if limits is not None:
            sizes = np.count_nonzero(sets, axis=2)
            possible &= (sizes >= limits[0]) & (sizes <= limits[1])
            within, their_possible, their_log_probs = self._members_within(limits)
            sets = np.concatenate([sets, within], axis=1)
            possible = np.concatenate([possible, their_possible & (self.log_weights > -np.inf)], axis=1)
            lasts = np.minimum(lasts, their_log_probs)
        return (*self._best_of(n, sets, possible), _log_sum(self.log_weights + lasts))

    def _members_within(self, limits):
        """Each member's most probable set within the limits, which rows have one, and its log-probability there."""
        answers = [member.modes_within(*limits) for member in self.members]
        log_probs = [
            np.where(possible, member.log_prob(sets), -np.inf)
            for member, (possible, sets) in zip(self.members, answers, strict=True)
        ]
        possible, sets = (np.stack(arrays, axis=1) for arrays in zip(*answers, strict=True))
        return sets, possible, np.stack(log_probs, axis=1)

    def _best_of(self, n, sets, possible):
        """The n most probable of each row's possible sets (n_samples, n_sets, n_labels), and their log-probabilities.

        Sets may come repeatedly. Ties: the smaller set, then lower labels.
        """
        best, best_log_probs = np.zeros((len(sets), n, sets.shape[2]), np.int8), np.full((len(sets), n), -np.inf)
        rows, places = np.nonzero(possible)
        if len(rows) == 0:
            return best, best_log_probs
        flat = sets[rows, places]
        # Row number and labels as bytes: equal sets of a row have equal keys, and keys sort by row, then by labels.
        keys = np.hstack([rows.astype(">u4").view(np.uint8).reshape(-1, 4), np.packbits(flat, axis=1)])
        first = np.unique(np.ascontiguousarray(keys).view(f"V{keys.shape[1]}").ravel(), return_index=True)[1]
        rows, flat = rows[first], flat[first]
        log_probs = self.take(rows).log_prob(flat)
        # A set with lower labels has its ones further left and so the larger key.
        order = np.lexsort([-np.arange(len(rows)), np.count_nonzero(flat, axis=1), -log_probs, rows])
        place = np.arange(len(rows)) - np.searchsorted(rows[order], rows[order])
        kept = order[place < n]
        best[rows[kept], place[place < n]] = flat[kept]
        best_log_probs[rows[kept], place[place < n]] = log_probs[kept]
        return best, best_log_probs

    # Best answers for a metric.

    def best(self, metric, limits):
        function = metric_function(metric, self.shape[1])
        if callable(metric):
            check_metric(function, self.shape[1], self.sizes())
        return self._best_f1(limits) if function is f1_of_counts else self._best_candidate(function, limits)

    def _best_f1(self, limits):
        """The sets of the highest expected F1, exact: only P(y_k = 1, |y| = j) matters."""
        n_rows, n_labels = self.shape
        sets, sizes = np.zeros(self.shape, np.int8), np.arange(1, self.sizes()[1] + 1)
        n_at_once = max(1, JOINT_ENTRIES // ((len(sizes) + 1) * (n_labels + 1)))
        for start in range(0, n_rows, n_at_once):
            some = self.take(slice(start, start + n_at_once))
            joint, empty = some._marginals_by_size(sizes), some.cardinality_pmf()[:, 0]
            sets[start : start + n_at_once] = best_f1(joint, sizes, empty, limits)
        return sets

    def _marginals_by_size(self, sizes):
        weights = np.exp(self.log_weights).T[:, :, None]
        return sum(w * member._marginals_by_size(sizes) for w, member in zip(weights, self.members, strict=True))

    def _best_candidate(self, function, limits):
        best, n_rows = Best(*self.shape), self.shape[0]
        # Ties go to what is offered first, so smaller sets come first.
        for m in range(limits[0], limits[1] + 1):
            candidates = self.likeliest(np.full(n_rows, m))
            best.offer(self.expected(function, candidates), candidates)
        for member in self.members:
            candidates = member.best(function, limits)
            best.offer(self.expected(function, candidates), candidates)
        top, log_probs = self.top_sets(N_TOP)
        for place in range(N_TOP):
            sizes = np.count_nonzero(top[:, place], axis=1)
            allowed = (log_probs[:, place] > -np.inf) & (sizes >= limits[0]) & (sizes <= limits[1])
            candidates = np.where(allowed[:, None], top[:, place], best.sets)
            best.offer(self.expected(function, candidates), candidates)
        return best.sets

    # Answers by listing all sets.

    def listed(self):
        lists = [member.listed() for member in self.members]
        sets, place = distinct_sets(np.concatenate([sets for sets, _ in lists]))
        places = np.split(place, np.cumsum([len(listed) for listed, _ in lists])[:-1])
        log_probs = np.full((self.shape[0], len(sets)), -np.inf)
        for (_, own), columns, log_weights in zip(lists, places, self.log_weights.T, strict=True):
            # A member of weight 0 adds nothing, whatever it answers.
            log_probs[:, columns] = np.logaddexp(log_probs[:, columns], log_weights[:, None] + own)
        return sets, log_probs

    def entropy(self):
        blocks = [slice(start, start + ROWS_LISTED) for start in range(0, self.shape[0], ROWS_LISTED)]
        return np.concatenate([np.zeros(0), *(listed_sets(*self.take(rows).listed()).entropy() for rows in blocks)])

    def temper(self, temperature):
        """The distribution proportional to P(y)^(1/temperature): no mixture, but a list of all sets."""
        temperature = _checked_temperature(temperature)
        return self if temperature == 1 else listed_sets(*self.listed()).temper(temperature)

    def _evidence(self, known):
        return np.stack([member.log_prob_of_known(known) for member in self.members], axis=1)

    def _mean(self, values):
        """The weighted mean of the members' probabilities; rounding may leave a sum of weights a little above 1."""
        return np.minimum(self._weighted(values), 1.0)

    def _weighted(self, values):
        weights = np.exp(self.log_weights).T
        return sum(np.expand_dims(w, tuple(range(1, v.ndim))) * v for w, v in zip(weights, values, strict=True))


def geometric_mean(members, weights) -> LabelSetDistribution:
    """The distribution proportional to prod_c P_c(y)^weights_c, of members with the same label sets.

    Scores and biases are averaged, so that it stays in the family: every answer is as exact as a member's.

    Parameters
    ----------
    members : list of LabelSetDistribution
        Of one shape, each of a label space with the same sets.
    weights : array of shape (n_members,)
        Not negative; scaled to sum to 1.

    Examples
    --------
    >>> from mlrh.spaces import CardinalitySpace, geometric_mean
    >>> space = CardinalitySpace(n_labels=2, min_labels=1, max_labels=2)
    >>> geometric_mean([space.distribution([[2.0, 0.0]]), space.distribution([[0.0, 1.0]])], [0.5, 0.5]).scores.tolist()
    [[1.0, 0.5]]
    """
    spaces: list = [getattr(member, "space", None) for member in members]
    if spaces[0] is None or not all(spaces[0].has_sets_of(space) for space in spaces):
        raise ValueError(
            "A geometric pool needs members with scores in label spaces of the same sets and of one kind; got "
            f"{', '.join(map(repr, spaces))}. Use a mixture."
        )
    weights = checked_weights(weights, 1, len(members))[0]
    bias = sum(weight * space.bias for weight, space in zip(weights, spaces, strict=True))
    scores = sum(weight * member.scores for weight, member in zip(weights, members, strict=True))
    return spaces[0].rebiased(bias).distribution(scores)


def geometric_likelihood(members, weights, Y, sample_weight):
    """Log-likelihood of the sets Y under the geometric mean of members, and its slopes in the weights, (n_members,).

    With s_c(y) the score of a set under member c, biases included, log P(y) is sum_c weights_c s_c(y) - log Z. Its
    derivative in weights_c is s_c(y) - E[s_c], so that the log-likelihood is concave in the weights.
    """
    pooled = geometric_mean(members, weights)
    _, marginals, of_biases = pooled.space.expectations(pooled.scores, sample_weight)
    of_biases = pooled.space.bias_counts(Y, sample_weight) - of_biases
    slopes = [
        sample_weight @ ((Y - marginals) * member.scores).sum(axis=1) + of_biases @ member.space.bias
        for member in members
    ]
    return float(sample_weight @ pooled.log_prob(Y)), np.array(slopes)


def checked_weights(weights, n_rows, n_members):
    """Weights (n_rows, n_members) that sum to 1 in every row; else a ValueError."""
    values = np.asarray(weights, np.float64)
    if values.shape not in ((n_members,), (n_rows, n_members)):
        raise ValueError(f"weights must be {n_members} numbers, one per member; got shape {values.shape}.")
    values = np.broadcast_to(values, (n_rows, n_members))
    totals = values.sum(axis=1, keepdims=True)
    if not ((values >= 0).all() and np.isfinite(totals).all() and (totals > 0).all()):
        raise ValueError(f"weights must be finite, not negative, and not all 0; got {np.asarray(weights).tolist()}.")
    return values / totals


def _as_given(known, shape):
    """What is known as floats, 1, 0 and NaN, once checked."""
    known = as_known(known, shape)
    return np.where(known == UNKNOWN, np.nan, known)


def _log_sum(values):
    """Logarithms of the sums of exp(values) over the last axis; -inf for an empty sum."""
    highest = values.max(axis=-1, keepdims=True)
    highest = np.where(np.isneginf(highest), 0.0, highest)
    with np.errstate(divide="ignore"):
        return (highest + np.log(np.exp(values - highest).sum(axis=-1, keepdims=True)))[..., 0]
