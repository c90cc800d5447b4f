"""Label spaces as ONNX graphs: scores (n_rows, n_labels) in float64 in, exact answers about P(y | scores) out.

`in_graph(space, scores)` gives an object with the answers that an exported model has: `marginals`, `sizes`
(P(|y| = j)), `mode`, `log_prob` of a set per row, and `likeliest` labels. Sets are 0 and 1 in float64. Spaces without
an entry in `IN_GRAPH`, such as one that you wrote, are written as the list of their sets, up to 14 labels.

The numbers are those of `mlrh.spaces` by other means. Recurrences are in logarithms, which have no limits of range, and
of labels that are tilted (see `_Cardinality`), which keeps the numbers that matter near 0, where they are exact.
"""

from collections.abc import Callable
from functools import cached_property, reduce
from typing import Any

import numpy as np

from mlrh.export._graph import INT64, NEVER
from mlrh.spaces import (
    CardinalitySpace,
    GroupSpace,
    HierarchySpace,
    ObservedSpace,
    OpenSpace,
    metric_function,
)
from mlrh.spaces.base import LARGEST_IN_FLOATS

MAX_LISTED = 14  # labels up to which a space lists its sets
# In the open space T = 1 + sum (exp(bias) - 1) q loses exp(-lowest bias) of 16 digits: here 4, which leaves 1e-12.
LOWEST_BIAS = -10.0
TIE = 1e-13  # as in mlrh.decisions: values that differ by less than this share count as equal


def in_graph(space, scores):
    """The distribution of a label space and scores, as nodes of the graph of the scores."""
    # By the class itself: one that is derived from it may have other sets.
    return IN_GRAPH.get(type(space), _as_list)(space, scores)


def largest_score(space) -> float:
    """The largest magnitude of scores for which the graph of a space is right."""
    if type(space) in (CardinalitySpace, GroupSpace):
        return space.largest_score
    return min(space.largest_score, LARGEST_IN_FLOATS)  # the other graphs add up scores as floats


def listed(space) -> ObservedSpace:
    """The same sets and weights as a list of sets."""
    if space.n_labels > MAX_LISTED:
        raise ValueError(
            f"{space!r} can be exported only as the list of its sets, which takes at most {MAX_LISTED} labels; got "
            f"{space.n_labels}. Use a cardinality, observed or open space, groups, or a hierarchy without limits, or "
            "use the model in Python."
        )
    # At scores of 0 the log-probability of a set is its bias less log Z, which is the same for all sets.
    sets, log_probs = space.distribution(np.zeros((1, space.n_labels))).listed()
    return ObservedSpace(sets, log_probs[0])


class _InGraph:
    """What the distributions have in common: the likeliest labels, by marginals unless a space knows better."""

    marginals: Any

    def __init__(self, space, scores):
        self.space, self.scores, self.graph = space, scores, scores.graph
        self.n_labels = space.n_labels

    @cached_property
    def ranks(self):
        """The place of each label (n_rows, n_labels) when the likeliest comes first, from 0 on."""
        return _ranks(self.marginals, self.n_labels)[1]

    def likeliest(self, counts):
        """The counts (n_rows, 1) likeliest labels of each row, as sets."""
        return (self.ranks < counts).number()

    def mode_within(self, low, high):
        """The most probable sets of low to high labels; None if there are no such sets."""
        return _Listed(listed(self.space), self.scores).mode_within(low, high)

    def all_sets(self):
        """All sets as an array (n_sets, n_labels)."""
        return listed(self.space).sets

    def log_probs(self, sets):
        """Log-probabilities (n_rows, n_sets) of constant sets, an array (n_sets, n_labels)."""
        return _Listed(listed(self.space), self.scores).log_probs(sets)

    def best(self, metric, limits):
        """The sets of limits[0] to limits[1] labels with the highest expected metric f(tp, fp, fn)."""
        raise ValueError(
            f"Decisions for a metric are exported for a cardinality space (and F1 for a list of sets); got "
            f"{self.space!r}. Use 'exact_match', 'hamming' or ('top', k)."
        )

    def best_f1(self, limits):
        """The sets of limits[0] to limits[1] labels with the highest expected F1."""
        return self.best(None, limits)


def _ranks(values, n_labels):
    """Labels by falling value, and the rank of each label: two arrays (n_rows, n_labels) of int64."""
    _, order = values.descending(n_labels)
    return order, values.graph.node("TopK", order, [n_labels], n_outputs=2, axis=-1, largest=0)[1]


class _Cardinality(_InGraph):
    """The cardinality space, by two Scans over the labels from the highest score down.

    With any threshold x, log p_k and log q_k are those of independent labels with scores s_k - x, and a set weighs
    prod p_k prod q_k exp(x (|y| - j) + b_|y| - b_j), j being the size of the most probable set. With x between the
    j-th and the next score, this set has log p and log q near 0 in all places, and so has all that comes near it. The
    forward Scan sums over the labels so far, by their number; the backward one over those that follow.
    """

    def __init__(self, space, scores):
        super().__init__(space, scores)
        least, most = space.sizes()
        self.least, self.most = least, most
        self.bias = np.full(most + 1, NEVER)
        self.bias[least:] = space.size_bias[least : most + 1]
        self.order, self._own_ranks = _ranks(scores, self.n_labels)
        self.descending = scores.take_along(self.order)
        self.mode_size = self._mode_size()
        threshold = self._threshold()
        moved = scores - threshold
        # log p = -log(1 + exp(-x)) and log q = -log(1 + exp(x)); neither is found as log(1 - the other).
        self.log_p, self.log_q = -((-moved).softplus()), -(moved.softplus())
        steps = self.graph.value(np.arange(most + 1.0)) - self.mode_size.number()
        of_mode = self.graph.value(self.bias).take(self.mode_size, 0)
        self.size_weights = threshold * steps + (self.graph.value(self.bias) - of_mode)
        self._never = scores.columns(0, 1) * 0.0 + NEVER

    @property
    def ranks(self):
        """By score: the order of the marginals, without their rounding."""
        return self._own_ranks

    def _mode_size(self):
        """The size of the most probable set, (n_rows, 1): of equally good ones the smaller."""
        inner = self.bias[self.least :]
        if np.ptp(inner) == 0:
            n_positive = (self.scores > 0.0).number().sum(1, keepdims=True)
            clipped = self.graph.minimum(self.graph.maximum(n_positive, float(self.least)), float(self.most))
            return clipped.cast(INT64)

        # As in mlrh.spaces: the scores that a size adds to the best one so far, not totals, which would round a small
        # score away next to large ones.
        def body(graph, states, inputs):
            (best, of_best, gain), (score, bias, size) = states, inputs
            gain = gain + score
            is_better = gain + (bias - of_best) > 0.0
            states = ((size, best), (bias, of_best), (gain * 0.0, gain))
            return [graph.where(is_better, new, old) for new, old in states], []

        nothing = self.scores.columns(0, 1) * 0.0
        added = self.descending.columns(self.least, self.most).transposed(1, 0).unsqueeze(2)
        sizes = np.arange(self.least + 1.0, self.most + 1.0)
        inputs = [added, self.graph.value(inner[1:]), self.graph.value(sizes)]
        (best, _, _), _ = self.graph.scan(body, [nothing + float(self.least), nothing + inner[0], nothing], inputs)
        return best.cast(INT64)

    def _threshold(self):
        """x of the class, (n_rows, 1): as near as can be to where neighbouring sizes weigh the same by their biases."""
        ends = np.concatenate([[-np.inf], self.bias[self.least :], [-np.inf]])
        lowest, highest = -(ends[1:-1] - ends[:-2]), -(ends[2:] - ends[1:-1])
        by_bias = np.zeros(self.most + 1)
        by_bias[self.least :] = np.maximum(lowest, np.minimum(highest, 0.0))
        end = self.scores.columns(0, 1) * 0.0
        padded = self.graph.concat(end - NEVER, self.descending, end + NEVER, axis=1)
        last, first = padded.take_along(self.mode_size), padded.take_along(self.mode_size + 1)
        wanted = self.graph.value(by_bias).take(self.mode_size, 0)
        return self.graph.maximum(self.graph.minimum(wanted, last), first)

    def _by_label(self, values):
        """Values (n_rows, n_labels) as inputs of a Scan over labels from the highest score down."""
        return values.take_along(self.order).transposed(1, 0).unsqueeze(2)

    @cached_property
    def _start(self):
        """Sums over no label at all: log 1 for the size 0, log 0 for all others, (n_rows, most + 1)."""
        return self.scores.columns(0, 1) * 0.0 + np.r_[0.0, np.full(self.most, NEVER)]

    def _with_label(self, graph, sums, log_p, log_q, never):
        """Log-sums (n_rows, most + 1) by size, with one label more."""
        one_more = graph.concat(never, sums.columns(0, self.most), axis=1)
        return graph.log_add(sums + log_q, one_more + log_p)

    @cached_property
    def _forward(self):
        """Log-sums over the labels before each one, (n_labels, n_rows, most + 1), and over all, (n_rows, most + 1)."""

        def body(graph, states, inputs, never):
            (sums,), (log_p, log_q) = states, inputs
            return [self._with_label(graph, sums, log_p, log_q, never)], [sums]

        inputs = [self._by_label(self.log_p), self._by_label(self.log_q)]
        (every,), (before,) = self.graph.scan(body, [self._start], inputs, fixed=[self._never])
        return before, every

    @cached_property
    def _log_partition(self):
        """(n_rows, 1)"""
        return (self._forward[1] + self.size_weights).log_sum_exp(1, keepdims=True)

    @cached_property
    def marginals(self):
        def body(graph, states, inputs, never, log_partition):
            (after,), (before, log_p, log_q) = states, inputs
            taken = graph.concat(after.columns(1, self.most + 1), never, axis=1) + log_p
            marginal = ((before + taken).log_sum_exp(1, keepdims=True) - log_partition).exp()
            return [graph.log_add(after + log_q, taken)], [graph.minimum(marginal, 1.0)]

        inputs = [self._forward[0], self._by_label(self.log_p), self._by_label(self.log_q)]
        fixed = [self._never, self._log_partition]
        _, (marginals,) = self.graph.scan(body, [self.size_weights], inputs, fixed=fixed, reverse=True)
        return marginals.squeeze(2).transposed(1, 0).take_along(self.ranks)

    @cached_property
    def sizes(self):
        own = (self._forward[1] + self.size_weights - self._log_partition).exp()
        return _padded(self.graph.minimum(own, 1.0), self.n_labels - self.most)

    @cached_property
    def mode(self):
        return self.likeliest(self.mode_size)

    def log_prob(self, sets):
        counts = sets.sum(1, keepdims=True).cast(INT64)
        weights = _padded(self.size_weights, self.n_labels - self.most, NEVER).take_along(counts)
        own = (sets * self.log_p + (-sets + 1.0) * self.log_q).sum(1, keepdims=True)
        return own + weights - self._log_partition

    def mode_within(self, low, high):
        low, high = max(low, self.least), min(high, self.most)
        if low > high:
            return None
        return _Cardinality(CardinalitySpace(self.n_labels, low, high, self.space.size_bias), self.scores).mode

    def log_probs(self, sets):
        own = self.log_p @ sets.T.astype(float) + self.log_q @ (1.0 - sets.T)
        weights = _padded(self.size_weights, self.n_labels - self.most, NEVER)
        return own + weights.take(np.count_nonzero(sets, axis=1), 1) - self._log_partition

    def best(self, metric, limits):
        """The m highest scores, for the best m: exact for every metric (see mlrh.decisions).

        The truth has t of the first m labels and r of the others with the log-probability before[t] + after[r] +
        size_weights[t + r] - log Z; a backward Scan over m has `after` as its state.
        """
        return self.likeliest(_first_of_best(self._expected_of_tops(metric), limits))

    def best_f1(self, limits):
        return self.best(metric_function("f1", self.n_labels), limits)

    def _expected_of_tops(self, metric):
        """E[f] of the answers made of the m highest scores, m = 0, ..., n_labels, (n_rows, n_labels + 1)."""
        n = self.most + 1
        total = np.add.outer(np.arange(n), np.arange(n))
        weights = _padded(self.size_weights, 1, NEVER).take(np.minimum(total, n).ravel(), 1)
        weights = (weights - self._log_partition).reshaped(0, n, n)

        def body(graph, states, inputs, never, weights):
            (after,), (before, log_p, log_q, table) = states, inputs
            share = (before.unsqueeze(2) + after.unsqueeze(1) + weights).exp()
            value = (share * table).reshaped(0, n * n).sum(1, keepdims=True)
            return [self._with_label(graph, after, log_p, log_q, never)], [value]

        before, every = self._forward
        # Step m sums over the labels from m on, and then takes label m - 1 into its state; step 0 has none to take.
        first = (self._never - NEVER).unsqueeze(0)
        inputs = [self.graph.concat(first, self._by_label(own), axis=0) for own in (self.log_p, self.log_q)]
        tables = self.graph.value(_table(metric, self.n_labels, (self.least, self.most)))
        prefixes = self.graph.concat(before, every.unsqueeze(0), axis=0)
        inputs = [prefixes, *inputs, tables]
        _, (values,) = self.graph.scan(body, [self._start], inputs, fixed=[self._never, weights], reverse=True)
        return values.squeeze(2).transposed(1, 0)

    def joint_by_size(self):
        """P(y_k = 1, |y| = j), (n_rows, n_labels), of j = 1, ..., most: a list."""
        n = self.most + 1
        # Pairs of numbers of labels before and after a label, by the size of the whole set.
        size = np.add.outer(np.arange(n), np.arange(n)).ravel() + 1
        gather = (size[:, None] == np.arange(1, n)).astype(float)
        weights = _padded(self.size_weights, 1, NEVER).take(np.minimum(size, n), 1) - self._log_partition
        weights = weights.reshaped(0, n, n)

        def body(graph, states, inputs, never, weights):
            (after,), (before, log_p, log_q) = states, inputs
            share = (before.unsqueeze(2) + after.unsqueeze(1) + weights + log_p.unsqueeze(2)).exp()
            own = share.reshaped(0, n * n) @ gather
            return [self._with_label(graph, after, log_p, log_q, never)], [own]

        inputs = [self._forward[0], self._by_label(self.log_p), self._by_label(self.log_q)]
        _, (joint,) = self.graph.scan(body, [self._start], inputs, fixed=[self._never, weights], reverse=True)
        # (labels by score, rows, sizes) -> a value (rows, labels) for each size
        joint = joint.transposed(2, 1, 0)
        return [joint.take(j, 0).take_along(self.ranks) for j in range(self.most)]


class _Listed(_InGraph):
    """The observed space: a sum over its sets. Their log-weights (n_rows, n_sets) may be given, as those of a pool."""

    def __init__(self, space, scores, log_weights=None):
        super().__init__(space, scores)
        self.sets = space.sets.astype(np.float64)
        self.relative = self._relative() if log_weights is None else log_weights

    def _relative(self):
        """Log-weights of the sets (n_rows, n_sets) less that of a heavy one, from what the two sets differ in.

        Scores that both sets have could be huge, and would take digits from the others.
        """
        bias = self.graph.value(self.space.bias)
        heavy = (self.scores @ self.sets.T + bias).argmax(1)
        own = self.graph.value(self.sets).take(heavy.squeeze(1), 0)
        more, less = (self.scores * (-own + 1.0)) @ self.sets.T, (self.scores * own) @ (1.0 - self.sets.T)
        return more - less + (bias - bias.take(heavy, 0))

    @cached_property
    def _log_probs(self):
        return self.relative - self.relative.log_sum_exp(1, keepdims=True)

    @cached_property
    def probs(self):
        return self._log_probs.exp()

    @cached_property
    def marginals(self):
        return self.graph.minimum(self.probs @ self.sets, 1.0)

    @cached_property
    def sizes(self):
        return self.graph.minimum(self.probs @ _one_hot(self.sets.sum(axis=1), self.n_labels + 1), 1.0)

    @cached_property
    def mode(self):
        return self.graph.value(self.sets).take(self.relative.argmax(1).squeeze(1), 0)

    def mode_within(self, low, high):
        counts = self.sets.sum(axis=1)
        inside = (counts >= low) & (counts <= high)
        if not inside.any():
            return None
        best = self.relative.take(np.flatnonzero(inside), 1).argmax(1)
        return self.graph.value(self.sets[inside]).take(best.squeeze(1), 0)

    def log_prob(self, sets):
        return (self.probs * _equal(sets, self.sets)).sum(1, keepdims=True).log()

    def all_sets(self):
        return self.space.sets

    def log_probs(self, sets):
        place = {row.tobytes(): number for number, row in enumerate(self.space.sets)}
        found = [place.get(row.tobytes(), len(place)) for row in sets]
        return _padded(self._log_probs, 1, NEVER).take(found, 1)

    def best_f1(self, limits):
        counts = self.sets.sum(axis=1).astype(int)
        every = range(1, int(counts.max()) + 1)
        joint = [self.probs.take(np.flatnonzero(counts == j), 1) @ self.sets[counts == j] for j in every]
        # Where the empty set is the only one, nothing is gained by any label.
        joint = joint or [self.marginals]
        return _best_f1(joint, self.sizes.columns(0, 1), self.n_labels, limits)


class _Open(_InGraph):
    """The open space: the cardinality space, corrected by a sum over the seen sets (see mlrh.spaces.open).

    With q_s the probability of a seen set in the cardinality space, T = 1 + sum_s (exp(bias_s) - 1) q_s. All terms are
    relative to the largest of 1 and exp(bias_s) q_s, so that none overflows.
    """

    def __init__(self, space, scores):
        super().__init__(space, scores)
        least, most = space.sizes()
        self.cardinality = _Cardinality(CardinalitySpace(space.n_labels, least, most, space.size_bias), scores)
        self.sets, self.bias = space.sets, np.asarray(space.set_bias)
        self.log_q = self.cardinality.log_probs(self.sets)
        self.log_weights = self.log_q + self.bias
        largest = self.graph.maximum(self.log_weights.max(1, keepdims=True), 0.0)
        self.weights = (self.log_weights - largest).exp()
        self.change = self.weights - (self.log_q - largest).exp()
        base = (-largest).exp()
        total = base + self.change.sum(1, keepdims=True)
        self.share, self.log_total = base / total, total.log() + largest
        self.change = self.change / total

    @cached_property
    def marginals(self):
        return self._corrected(self.cardinality.marginals, self.sets.astype(float))

    @cached_property
    def sizes(self):
        return self._corrected(self.cardinality.sizes, _one_hot(self.sets.sum(axis=1), self.n_labels + 1))

    def _corrected(self, of_cardinality, of_sets):
        values = of_cardinality * self.share + self.change @ of_sets
        return self.graph.minimum(self.graph.maximum(values, 0.0), 1.0)

    def log_prob(self, sets):
        bias = (_equal(sets, self.sets) * self.bias).sum(1, keepdims=True)
        return self.cardinality.log_prob(sets) + bias - self.log_total

    def log_probs(self, sets):
        place = {row.tobytes(): bias for row, bias in zip(self.sets, self.bias, strict=True)}
        bias = np.array([place.get(row.tobytes(), 0.0) for row in sets])
        return self.cardinality.log_probs(sets) + bias - self.log_total

    def mode_within(self, low, high):
        counts, space = self.sets.sum(axis=1), self.space
        low, high = max(low, space.min_labels), min(high, space.max_labels)
        if low > high:
            return None
        inside = (counts >= low) & (counts <= high)
        sets, bias = self.sets[inside], self.bias[inside]
        return in_graph(OpenSpace(self.n_labels, low, high, sets, bias, space.size_bias), self.scores).mode

    @cached_property
    def mode(self):
        """The heaviest of the seen sets and of all sets but those with a negative bias.

        A seen set with another bias weighs at least as much as without it, so it does no harm among all sets.
        """
        heaviest = self.log_weights.argmax(1)
        seen = self.graph.value(self.sets.astype(float)).take(heaviest.squeeze(1), 0)
        other = _mode_without(self.cardinality, self.sets[self.bias < 0])
        if other is None:
            return seen
        is_better = self.cardinality.log_prob(other) > self.log_weights.take_along(heaviest)
        return self.graph.where(is_better, other, seen)

    def best_f1(self, limits):
        counts = self.sets.sum(axis=1)
        joint = [
            own * self.share + self.change.take(np.flatnonzero(counts == j), 1) @ self.sets[counts == j].astype(float)
            for j, own in enumerate(self.cardinality.joint_by_size(), start=1)
        ]
        return _best_f1(joint or [self.marginals], self.sizes.columns(0, 1), self.n_labels, limits)


class _Groups(_InGraph):
    """Groups of labels: a cardinality space for each, and one for the labels in no group."""

    def __init__(self, space, scores):
        super().__init__(space, scores)
        self.labels: list[list[int]] = []
        self.parts: list[_Cardinality] = []
        start = 0
        for labels, least, most in space.groups:
            size_bias = np.zeros(len(labels) + 1)
            size_bias[least : most + 1] = space.bias[start : start + most - least + 1]
            start += most - least + 1
            self._add(list(labels), CardinalitySpace(len(labels), least, most, size_bias))
        free = sorted(set(range(self.n_labels)) - {label for labels in self.labels for label in labels})
        if free:
            self._add(free, CardinalitySpace(len(free), 0, len(free)))

    def _add(self, labels, space):
        self.labels.append(labels)
        self.parts.append(_Cardinality(space, self.scores.take(labels, 1)))

    def _placed(self, values):
        """Values of the labels of all parts, in the order of the labels."""
        return self.graph.concat(*values, axis=1).take(np.argsort(np.concatenate(self.labels)), 1)

    @cached_property
    def marginals(self):
        return self._placed([part.marginals for part in self.parts])

    @cached_property
    def mode(self):
        return self._placed([part.mode for part in self.parts])

    @cached_property
    def sizes(self):
        def convolved(first, second):
            (own, n), (other, m) = first, second
            total = np.add.outer(np.arange(n), np.arange(m)).ravel()
            pairs = (own.unsqueeze(2) * other.unsqueeze(1)).reshaped(0, n * m)
            return pairs @ _one_hot(total, n + m - 1), n + m - 1

        return reduce(convolved, [(part.sizes, part.n_labels + 1) for part in self.parts])[0]

    def log_prob(self, sets):
        pairs = zip(self.parts, self.labels, strict=True)
        return reduce(lambda a, b: a + b, [part.log_prob(sets.take(labels, 1)) for part, labels in pairs])


class _Hierarchy(_InGraph):
    """A forest without limits: upward once for sums, downward once for marginals, one level of it at a time."""

    def __init__(self, space, scores):
        super().__init__(space, scores)
        self.parents = np.asarray(space.parents)
        depth = np.zeros(self.n_labels, int)
        for label in range(self.n_labels):
            above = self.parents[label]
            while above >= 0:
                depth[label], above = depth[label] + 1, self.parents[above]
        # To each level but that of the roots, from the deepest up: its labels, and a matrix [parent, child].
        self.levels = [
            (np.flatnonzero(depth == d), self._matrix(np.flatnonzero(depth == d))) for d in range(depth.max(), 0, -1)
        ]
        # log of the sum over all sets of a label's descendants, where it is present, with its own score.
        sums = self._upward(lambda values: values.softplus())
        self.log_p, self.log_q = -((-sums).softplus()), -(sums.softplus())

    def _matrix(self, labels):
        matrix = np.zeros((self.n_labels, self.n_labels))
        matrix[self.parents[labels], labels] = 1.0
        return matrix

    def _upward(self, of_children):
        values = self.scores
        for labels, matrix in self.levels:
            values = values + of_children(values.take(labels, 1)) @ matrix[:, labels].T
        return values

    @cached_property
    def marginals(self):
        # log p is that of a label given its parent; those of all ancestors are added.
        values = self.log_p
        for _, matrix in reversed(self.levels):
            values = values + values @ matrix
        return values.exp()

    @cached_property
    def mode(self):
        sets = (self._upward(lambda values: self.graph.maximum(values, 0.0)) > 0.0).number()
        for labels, matrix in reversed(self.levels):
            others = np.ones(self.n_labels)
            others[labels] = 0.0
            sets = sets * (sets @ matrix + others)
        return sets

    def log_prob(self, sets):
        is_child = self.parents >= 0
        matrix = self._matrix(np.flatnonzero(is_child))
        with_parent = sets @ matrix + (~is_child).astype(float)
        own = ((sets * self.log_p + (-sets + 1.0) * self.log_q) * with_parent).sum(1, keepdims=True)
        broken = (sets * (-with_parent + 1.0)).sum(1, keepdims=True)
        return own + broken * NEVER

    @cached_property
    def sizes(self):
        """By the generating function of the number of labels at roots of unity, and the Fourier transform back.

        A label adds q + p z prod over its children of theirs, which is at most 1 in magnitude: nothing is lost.
        """
        n = self.n_labels + 1
        angle = 2 * np.pi * np.arange(n // 2 + 1) / n  # those of the other roots are their conjugates
        cos, sin = np.cos(angle), np.sin(angle)
        p, q = self.log_p.exp(), self.log_q.exp()
        products: dict[int, tuple] = {}
        for label in self._children_first():
            real, imaginary = _times(products.pop(label, None), (self.graph.value(cos), self.graph.value(-sin)))
            own_p, own_q = p.columns(label, label + 1), q.columns(label, label + 1)
            own = (own_p * real + own_q, own_p * imaginary)
            above = int(self.parents[label])
            products[above] = _times(products.get(above), own)
        real, imaginary = products[-1]
        weight = np.where((np.arange(len(angle)) == 0) | (2 * np.arange(len(angle)) == n), 1.0, 2.0) / n
        turns = np.outer(angle, np.arange(n))
        sizes = real @ (weight[:, None] * np.cos(turns)) - imaginary @ (weight[:, None] * np.sin(turns))
        return self.graph.minimum(self.graph.maximum(sizes, 0.0), 1.0)

    def _children_first(self):
        below = [label for labels, _ in self.levels for label in labels.tolist()]
        return [*below, *np.flatnonzero(self.parents < 0).tolist()]


def pooled(members, weights, *, is_mixture, temperature):
    """The pool of distributions in one graph, each of which must list its sets: an observed space, or few labels.

    A mixture is sum_c weight_c P_c, else it is proportional to prod_c P_c^weight_c; a temperature T raises it to 1/T.
    """
    every = np.unique(np.concatenate([member.all_sets() for member in members]), axis=0)
    every = every[np.argsort(every.sum(axis=1), kind="stable")]  # so that ties go to the smaller set
    log_probs = [member.log_probs(every) for member in members]
    if is_mixture:
        parts = [own + float(np.log(weight)) for own, weight in zip(log_probs, weights, strict=True) if weight > 0]
        total = reduce(members[0].graph.log_add, parts)
    else:
        parts = [own * float(weight) for own, weight in zip(log_probs, weights, strict=True) if weight > 0]
        total = reduce(lambda a, b: a + b, parts)
    return _Listed(ObservedSpace(every), members[0].scores, total / temperature)


def _mode_without(cardinality, excluded):
    """The most probable set of a cardinality space but for some excluded ones, an array; None if that leaves none.

    Only rows whose most probable set is excluded need a search. A set that is not excluded leaves the binary tree of
    the excluded ones at one place: it has a path of the tree up to a label, and there goes the other way. The labels
    that follow are free. So the heaviest set is the heaviest of these places, each completed at its best.
    """
    graph, modes = cardinality.graph, cardinality.mode
    if len(excluded) == 0:
        return modes
    exits = _exits(excluded, cardinality.most)
    if len(exits) == 0:
        return None
    is_excluded = _equal(modes, excluded).max(1)
    rows = graph.node("NonZero", is_excluded.cast(INT64)).squeeze(0)
    sets = _best_exit(cardinality, exits, rows)
    return graph.node("ScatterND", modes, rows.unsqueeze(1), sets)


def _exits(excluded, most):
    """Where sets leave the tree of the excluded ones: 1, 0, or -1 for labels that follow, (n_exits, n_labels)."""
    n_labels = excluded.shape[1]
    paths = {tuple(row[:depth]) for row in excluded.tolist() for depth in range(n_labels + 1)}
    found = {}
    for row in excluded.tolist():
        for depth in range(n_labels):
            path = (*row[:depth], 1 - row[depth])
            if path not in paths and sum(path) <= most:
                found[path] = [*path, *[-1] * (n_labels - len(path))]
    return np.array(list(found.values()), np.int64).reshape(-1, n_labels)


def _best_exit(cardinality, exits, rows):
    """The heaviest sets (n_rows, n_labels) of some rows that go through one of the exits."""
    graph, most = cardinality.graph, cardinality.most
    log_p, log_q, ends, never = (
        value.take(rows, 0)
        for value in (cardinality.log_p, cardinality.log_q, cardinality.size_weights, cardinality._never)
    )
    by_label = [value.transposed(1, 0).unsqueeze(2) for value in (log_p, log_q)]

    def backward(inner, states, inputs, never):
        """The best weight of all labels from one on, by the number of labels before it."""
        (after,), (own_p, own_q) = states, inputs
        taken = inner.concat(after.columns(1, most + 1), never, axis=1) + own_p
        return [inner.maximum(after + own_q, taken)], [after]

    (first,), (after,) = graph.scan(backward, [ends], by_label, fixed=[never], reverse=True)
    n_columns = (cardinality.n_labels + 1) * (most + 1)
    completed = graph.concat(first.unsqueeze(0), after, axis=0).transposed(1, 0, 2).reshaped(0, n_columns)
    length, count = (exits >= 0).sum(axis=1), (exits == 1).sum(axis=1)
    values = log_p @ (exits == 1).T.astype(float) + log_q @ (exits == 0).T.astype(float)
    values = values + completed.take(length * (most + 1) + count, 1)
    path = graph.value(exits.astype(float)).take(values.argmax(1).squeeze(1), 0)

    def forward(inner, states, inputs, never):
        """A label as the path has it; after the path, whichever is better."""
        (count,), (own_p, own_q, own_path, own_after) = states, inputs
        place = count.cast(INT64)
        ahead = inner.concat(own_after, never, axis=1)
        is_better = ahead.take_along(place + 1) + own_p > ahead.take_along(place) + own_q
        label = inner.where(own_path >= 0.0, own_path, is_better.number())
        return [count + label], [label]

    inputs = [*by_label, path.transposed(1, 0).unsqueeze(2), after]
    _, (labels,) = graph.scan(forward, [never * 0.0], inputs, fixed=[never])
    return labels.squeeze(2).transposed(1, 0)


def _best_f1(joint, empty, n_labels, limits):
    """The sets with the highest expected F1, from P(y_k = 1, |y| = j) of j = 1, 2, ..., and P(|y| = 0), (n_rows, 1).

    joint is a list of values (n_rows, n_labels). For an answer of m labels E[F1] is a sum over its labels of the gains
    sum_j 2 P(y_k = 1, |y| = j) / (m + j), so the best answer of m labels is the m largest gains. A Scan tries all m.
    """
    graph, tops = empty.graph, np.arange(1, n_labels + 1)
    stacked = graph.concat(*(own.unsqueeze(0) for own in joint), axis=0)
    shares = 2.0 / np.add.outer(tops, np.arange(1, len(joint) + 1))

    def body(inner, states, inputs, stacked):
        share, is_top = inputs
        gains = (stacked * share.reshaped(-1, 1, 1)).sum(0)
        return [], [(gains.descending(n_labels)[0] * is_top).sum(1, keepdims=True)]

    is_top = graph.value((np.arange(n_labels) < tops[:, None]) * 1.0)
    _, (values,) = graph.scan(body, [], [graph.value(shares), is_top], fixed=[stacked])
    # An empty answer has F1 = 1 if the truth is empty, else 0.
    values = graph.concat(empty, values.squeeze(2).transposed(1, 0), axis=1)
    counts = _first_of_best(values, limits)
    own = graph.value(np.vstack([np.zeros(len(joint)), shares])).take(counts.squeeze(1), 0)
    gains = (stacked * own.transposed(1, 0).unsqueeze(2)).sum(0)
    return (_ranks(gains, n_labels)[1] < counts).number()


def _first_of_best(values, limits):
    """The smallest size (n_rows, 1) from limits[0] to limits[1] whose value is the highest but for rounding."""
    low, high = limits
    values = values.columns(low, high + 1)
    near = values.abs().max(1, keepdims=True) * TIE
    return (values >= values.max(1, keepdims=True) - near).cast(INT64).argmax(1) + low


def _table(metric, n_labels, sizes):
    """The metric of an answer of m labels, t of them right, where r more are missed: [m, t, r], 0 where impossible."""
    m, t, r = np.indices((n_labels + 1, sizes[1] + 1, sizes[1] + 1))
    possible = (t <= m) & (m + r <= n_labels) & (t + r >= sizes[0]) & (t + r <= sizes[1])
    table = np.zeros(m.shape)
    table[possible] = metric(t[possible], (m - t)[possible], r[possible])
    return table


def _times(product, other):
    """The product of two complex numbers, each a pair; of nothing and a number, the number."""
    if product is None:
        return other
    (a, b), (c, d) = product, other
    return a * c - b * d, a * d + b * c


def _padded(values, n, filler=0.0):
    """Values with n more columns."""
    if n == 0:
        return values
    return values.graph.concat(values, values.columns(0, 1) * 0.0 + np.full(n, filler), axis=1)


def _equal(sets, others):
    """Which of constant sets (n_others, n_labels) each set (n_rows, n_labels) is, as 0 and 1 (n_rows, n_others)."""
    same = sets @ others.T.astype(float) + (-sets + 1.0) @ (1.0 - others.T)
    return (same > others.shape[1] - 0.5).number()


def _one_hot(places, n):
    return (np.asarray(places)[:, None] == np.arange(n)).astype(float)


def _as_list(space, scores):
    return _Listed(listed(space), scores)


def _open(space, scores):
    if len(space.sets) == 0:
        least, most = space.sizes()
        return _Cardinality(CardinalitySpace(space.n_labels, least, most, space.size_bias), scores)
    if space.set_bias.min() >= LOWEST_BIAS:
        return _Open(space, scores)
    if space.n_labels <= MAX_LISTED:
        return _as_list(space, scores)
    raise ValueError(
        f"An open space of more than {MAX_LISTED} labels is exported with biases of sets of at least {LOWEST_BIAS:g}; "
        f"got {space.set_bias.min():g}. Fit it with a larger set_bias_strength."
    )


def _hierarchy(space, scores):
    is_limited = (space.min_leaves or 0) > 0 or space.max_leaves is not None
    return (_as_list if is_limited else _Hierarchy)(space, scores)


IN_GRAPH: dict[type, Callable] = {
    CardinalitySpace: _Cardinality,
    ObservedSpace: _Listed,
    OpenSpace: _open,
    GroupSpace: _Groups,
    HierarchySpace: _hierarchy,
}
