"""The space of groups: disjoint groups of labels, each with a smallest and a largest number of labels; the rest free.

A set is one set of every group, chosen independently given the scores. So Z is a product of the partitions of
cardinality spaces, log-probabilities add up, and numbers of labels are convolved. Every group has a learned bias per
size. Known labels are known to their group alone.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from mlrh._indicators import merged
from mlrh._parallel import map_blocks
from mlrh.spaces._kernels import expected_metrics
from mlrh.spaces._label_names import NamesLabels, as_labels, index_of, place_of_names
from mlrh.spaces.base import checked_bias
from mlrh.spaces.cardinality import CardinalitySpace, sizes_in_words
from mlrh.spaces.independent import IndependentLabels

FREE = -1  # the group of a label in no group
TABLE_ENTRIES = 2**21  # of a table P(t, r) over the rows of a block: 16 MB
MAX_COMBINATIONS = 4096  # of numbers of labels per group that are compared for the best answer: about a second


class GroupSpace(NamesLabels):
    """Every set with an allowed number of labels of each group, with a bias per group and size.

    Answers cost as much as those of a cardinality space per group. Labels in no group are free: independent of all
    others given the scores.

    Parameters
    ----------
    groups : list of (labels, least, most)
        Disjoint groups: label indices, or label names, and the smallest and the largest number of labels that a set has
        of the group. (["red", "blue"], 1, 1) says: exactly one of the two. Names are those of the labels of y (column
        names of a DataFrame, members of label sets); a fit resolves them.
    n_labels : int, optional
        Number of labels, where they are given by index. None: as many as y has in a fit; before a fit, up to the
        highest label of a group.
    bias : array of shape (n_biases,), optional
        Biases of the sizes least, ..., most of the first group, then of the second, and so on. A fit learns them.

    Examples
    --------
    >>> from mlrh.spaces import GroupSpace
    >>> space = GroupSpace([([0, 1], 1, 1)], n_labels=3)  # one of labels 0 and 1; label 2 as it likes
    >>> space.distribution([[1.0, 1.0, 0.0]]).marginals().tolist()
    [[0.5, 0.5, 0.5]]
    >>> space.distribution([[2.0, 0.0, -1.0]]).mode().tolist()
    [[1, 0, 0]]
    """

    def __init__(self, groups, n_labels=None, *, bias=None):
        self.groups = _checked_groups(groups)
        self._given_n_labels = n_labels
        self.bias = np.zeros(sum(most - least + 1 for _, least, most in self.groups))
        if not self._are_named:
            self.n_labels = _checked_n_labels(self.groups, n_labels)
            self._parts = _parts(self.groups, self.n_labels)
        elif n_labels is not None:
            raise ValueError(f"n_labels belongs to groups of label indices; got {n_labels!r} and label names.")
        if bias is not None:
            self._set_bias(checked_bias(bias, "bias", len(self.bias), "group and size"))

    def __repr__(self):
        n_labels = "" if self._given_n_labels is None else f", n_labels={self._given_n_labels}"
        return f"GroupSpace({self.groups}{n_labels})"

    def for_targets(self, Y, *, classes, rows=None):
        """This space with the labels of Y, if every row has an allowed number of labels of each group."""
        space = self._with_labels_of(Y.shape[1], classes)
        for number, (labels, least, most) in enumerate(space.groups):
            own = Y[:, labels]
            present, possible = np.count_nonzero(own == 1, axis=1), np.count_nonzero(own != 0, axis=1)
            wrong = np.flatnonzero((present > most) | (possible < least))
            if len(wrong):
                first = wrong[0]
                names = ", ".join(repr(name) for name in np.asarray(classes)[labels[:3]].tolist())
                more = ", ..." if len(labels) > 3 else ""
                raise ValueError(
                    f"Row {first if rows is None else rows[first]} of y has {present[first]} labels of group {number} "
                    f"({names}{more}), which takes {sizes_in_words(least, most)}; {len(wrong)} of {len(Y)} rows break "
                    "this rule. Correct or drop these rows, or change the limits of the group."
                )
        return space

    def with_indices(self, classes):
        return self._with_labels_of(len(classes), classes) if self._are_named else self

    def _with_labels_of(self, n_labels, classes):
        if self._are_named:
            places = place_of_names(classes)
            groups = [([index_of(name, places) for name in labels], *limits) for labels, *limits in self.groups]
            return GroupSpace(groups, n_labels, bias=self.bias)
        if self._given_n_labels not in (None, n_labels) or self.n_labels > n_labels:
            raise ValueError(f"The label space has {self.n_labels} labels and y has {n_labels}; they must be as many.")
        return GroupSpace(self.groups, n_labels, bias=self.bias)

    def to_dict(self):
        # A number for every label, so that a file can't ask for more labels than it holds numbers.
        listed = [label for labels, _, _ in self.groups for label in labels]
        groups = np.repeat(range(len(self.groups)), [len(labels) for labels, _, _ in self.groups])
        if self._are_named:
            names, group_of = listed, groups
        else:
            names, group_of = None, np.full(self.n_labels, FREE)
            group_of[listed] = groups
        limits = np.array([limits for _, *limits in self.groups])
        is_open = self._given_n_labels is None
        return {"group_of": group_of, "limits": limits, "names": names, "is_open": is_open, "bias": self.bias}

    @classmethod
    def from_dict(cls, values):
        """The space of `to_dict`."""
        group_of, limits, names = np.asarray(values["group_of"]), np.asarray(values["limits"]), values["names"]
        is_right = group_of.ndim == 1 and group_of.dtype.kind == "i" and limits.dtype.kind == "i" and limits.ndim == 2
        is_right = is_right and limits.shape[1] == 2 and isinstance(names, list | None)
        if not is_right or not (names is None or len(names) == len(group_of)):
            raise ValueError("A space of groups needs a group for every label, and two limits for every group.")
        # By one sort: a look at every label for each group would take minutes where a file has many of both.
        order = np.argsort(group_of, kind="stable")
        starts = np.searchsorted(group_of[order], np.arange(len(limits) + 1))
        members = [own.tolist() for own in np.split(order, starts)[1:-1]]
        labels = members if names is None else [[names[label] for label in own] for own in members]
        groups = [(own, *pair) for own, pair in zip(labels, limits.tolist(), strict=True)]
        n_labels = None if names is not None or values["is_open"] else len(group_of)
        return cls(groups, n_labels, bias=values["bias"])

    def describe(self):
        n_free = self.n_labels - sum(len(labels) for labels, _, _ in self.groups)
        words = [f"{sizes_in_words(least, most)} of {len(labels)}" for labels, least, most in self.groups]
        return f"groups: {', '.join(words)}{f', {n_free} free' if n_free else ''}; with a bias per group and size"

    def with_bias(self, bias):
        """The same space with biases (n_biases,): the sizes of the first group, then those of the second, ...."""
        other = copy(self)
        other._set_bias(np.array(bias, np.float64))
        return other

    # What a fit asks.

    @property
    def operations_per_score(self):
        return 2.5 * max(most + 1 for _, _, most in self.groups)

    def with_jobs(self, n_jobs):
        return self._mapped(lambda part: part.with_jobs(n_jobs))

    def bias_counts(self, Y, weights):
        return np.concatenate([part.space.bias_counts(part.of(Y), weights) for part in self._parts[: len(self.groups)]])

    def absorbed_biases(self):
        """Biases a + c |y| of each group that scores can take over, a common constant first."""
        blocks = [part.space.absorbed_biases() for part in self._parts[: len(self.groups)]]
        columns = np.zeros((self.n_biases, 1 + 2 * len(blocks)))
        columns[:, 0] = 1.0
        for number, (own, block) in enumerate(zip(self._slices(), blocks, strict=True)):
            columns[own, 1 + 2 * number : 3 + 2 * number] = block
        return columns

    def log_count(self):
        return float(sum(part.space.log_count() for part in self._parts))

    def sizes(self):
        smallest, largest = np.sum([part.space.sizes() for part in self._parts], axis=0)
        return int(smallest), int(largest)

    def shift_invariant_labels(self):
        return [np.array(labels) for labels, least, most in self.groups if least == most]

    def undetermined(self, Y):
        parts = list(enumerate(self._parts[: len(self.groups)]))
        return [f"in group {number}, {text}" for number, part in parts for text in part.space.undetermined(part.of(Y))]

    def curvature_bound(self, *, moving_bias):
        """The largest bound of a group: labels and biases of different groups are independent."""
        return max(part.space.curvature_bound(moving_bias=moving_bias) for part in self._parts)

    def independence(self, scores):
        """The smallest one of a group: a common shift of its labels has the least curvature."""
        return min(part.space.independence(scores[part.labels]) for part in self._parts)

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), weights @ P(size of each group) (n_biases,)."""
        answers = [part.space.expectations(part.of(scores), weights) for part in self._parts]
        log_partition = np.sum([log_sums for log_sums, _, _ in answers], axis=0)
        marginals = self._placed([own for _, own, _ in answers], scores.dtype)
        marginals[np.isneginf(log_partition)] = np.nan  # where one group has no possible set, the row has none
        return log_partition, marginals, np.concatenate([sizes for _, _, sizes in answers])

    def curvature(self, scores, direction, bias_direction, weights):
        slices = [*self._slices(), slice(0, 0)]  # the free labels have no biases
        answers = [
            part.space.curvature(part.of(scores), part.of(direction), bias_direction[own], weights)
            for part, own in zip(self._parts, slices, strict=False)
        ]
        return self._placed([own for own, _ in answers], scores.dtype), np.concatenate([sizes for _, sizes in answers])

    # What a distribution asks.

    def cardinality_pmf(self, scores):
        """P(|y| = j), (n_samples, n_labels + 1): the convolution of the groups' numbers of labels."""
        pmfs = [part.space.cardinality_pmf(part.of(scores)).astype(np.float64, copy=False) for part in self._parts]
        return reduce(_convolved, pmfs).astype(scores.dtype)

    def entropy(self, scores):
        return np.sum([part.space.entropy(part.of(scores)) for part in self._parts], axis=0)

    def mode(self, scores):
        """The most probable set of each row; ties go to the smaller set and the lower label, in every group."""
        return self._placed([part.space.mode(part.of(scores)) for part in self._parts], np.int8)

    def log_prob(self, scores, Y):
        return np.sum([part.space.log_prob(part.of(scores), part.of(Y)) for part in self._parts], axis=0)

    def top_sets(self, scores, n):
        """The n most probable sets: those of the first group and the next are combined, then of the third, ....

        If i better sets of one group and j of the other are left out, i j better combinations are. So the pairs with
        (i + 1) (j + 1) <= n hold the n best.
        """
        best = np.zeros((len(scores), 1, self.n_labels), np.int8), np.zeros((len(scores), 1), scores.dtype)
        for part in self._parts:
            own, own_log_probs = part.space.top_sets(part.of(scores), n)
            i, j = (index.ravel() for index in np.indices((best[0].shape[1], n)))
            i, j = i[(i + 1) * (j + 1) <= n], j[(i + 1) * (j + 1) <= n]
            log_probs = best[1][:, i] + own_log_probs[:, j]
            counts = best[0].sum(axis=2, dtype=np.int64)[:, i] + own.sum(axis=2, dtype=np.int64)[:, j]
            order = np.lexsort((counts, -log_probs), axis=1)[:, :n]
            sets = np.take_along_axis(best[0], i[order][:, :, None], axis=1)
            sets[:, :, part.labels] = np.take_along_axis(own, j[order][:, :, None], axis=1)
            best = sets, np.take_along_axis(log_probs, order, axis=1)
        sets, log_probs = np.zeros((len(scores), n, self.n_labels), np.int8), np.full((len(scores), n), -np.inf)
        sets[:, : best[0].shape[1]] = best[0] * (best[1] > -np.inf)[:, :, None]
        log_probs[:, : best[1].shape[1]] = best[1]
        return sets, log_probs.astype(scores.dtype)

    def listed(self, scores):
        sets, log_probs = self._without_knowledge()._all_sets().sets, 0.0
        # Not by one bias per set: in the sum of the groups' biases, small ones would be lost beside large ones.
        for part in self._parts:
            own, values = part.space.listed(part.of(scores))
            place = {labels.tobytes(): i for i, labels in enumerate(own)}
            log_probs = log_probs + values[:, [place[labels.tobytes()] for labels in part.of(sets)]]
        return sets, log_probs

    def sample(self, scores, n, random_state):
        sets = np.empty((len(scores), n, self.n_labels), np.int8)
        for part in self._parts:
            sets[:, :, part.labels] = part.space.sample(part.of(scores), n, random_state)
        return sets

    def joint_marginals(self, scores):
        marginals = self.marginals(scores)
        joint = marginals[:, :, None] * marginals[:, None, :]  # labels of different groups are independent
        for part in self._parts:
            joint[:, part.labels[:, None], part.labels] = part.space.joint_marginals(part.of(scores))
        return joint

    def any_of(self, scores, groups):
        probs = [part.space.any_of(part.of(scores), part.of(groups)).astype(np.float64) for part in self._parts]
        with np.errstate(divide="ignore"):  # log(0) where a group surely has one
            # 1 - prod (1 - P), by logarithms: a tiny probability keeps its digits.
            return -np.expm1(np.sum(np.log1p(-np.minimum(probs, 1.0)), axis=0)).astype(scores.dtype)

    def expected(self, scores, Y, metric):
        values = np.empty(len(scores))

        def work(rows):
            space, counts = self._of_rows(rows), np.count_nonzero(Y[rows], axis=1)
            overlaps = reduce(_convolved_tables, (part.overlaps(scores[rows], Y[rows]) for part in space._parts))
            options = {"n_labels": self.n_labels, "sizes": self.sizes()}
            values[rows] = expected_metrics.expected_by_overlaps(overlaps, counts, metric, **options)

        map_blocks(work, len(scores), rows_per_block=self._rows_per_block(), n_jobs=1)
        return values

    def best(self, scores, metric, limits):
        """The best sets for a metric; exact for F1, and up to MAX_COMBINATIONS numbers of labels per group.

        Two labels of a group can be swapped without changing a size, so the best set has the highest scores of each
        group: only how many of each must be tried. Beyond MAX_COMBINATIONS it is the best of some candidates.
        """
        n_combinations = prod(part.space.n_labels + 1 for part in self._parts)
        if metric is expected_metrics.f1_of_counts or n_combinations > MAX_COMBINATIONS:
            return self._best_of_candidates(scores, metric, limits)
        sets = np.empty(scores.shape, np.int8)

        def work(rows):
            sets[rows] = self._of_rows(rows)._best_of_combinations(scores[rows], metric, limits)

        map_blocks(work, len(scores), rows_per_block=self._rows_per_block(), n_jobs=1)
        return sets

    def _best_of_combinations(self, scores, metric, limits):
        """The best sets of the m highest scores of each group, over all m per group; smaller sets are tried first."""
        n_rows = len(scores)
        tops = [
            [part.space.likeliest(part.of(scores), np.full(n_rows, m)) for m in range(part.space.n_labels + 1)]
            for part in self._parts
        ]
        tables = [
            [part.space.overlaps(part.of(scores), top) for top in own]
            for part, own in zip(self._parts, tops, strict=True)
        ]
        best, options = expected_metrics.Best(*scores.shape), {"n_labels": self.n_labels, "sizes": self.sizes()}
        numbers = np.indices([len(own) for own in tops]).reshape(len(tops), -1).T
        sizes = numbers.sum(axis=1)
        # By size and then by the numbers of the first groups, so that ties go to the smaller set.
        for combination in numbers[np.argsort(sizes, kind="stable")]:
            m = int(combination.sum())
            if limits[0] <= m <= limits[1]:
                chosen = [own[j] for own, j in zip(tables, combination, strict=True)]
                overlaps = reduce(_convolved_tables, chosen)
                values = expected_metrics.expected_by_overlaps(overlaps, np.full(n_rows, m), metric, **options)
                best.offer(values, self._placed([own[j] for own, j in zip(tops, combination, strict=True)], np.int8))
        return best.sets

    def modes_within(self, scores, low, high):
        """Which rows have possible sets of low to high labels, and the most probable of these sets.

        Groups are added one after the other; for every number of labels so far, the heaviest set is kept.
        """
        n_rows = len(scores)
        values, sets = np.zeros((n_rows, 1)), np.zeros((n_rows, 1, self.n_labels), np.int8)
        for part in self._parts:
            own_values, own_sets = part.heaviest_by_size(scores, high)
            n_before, n_own = values.shape[1], own_values.shape[1]
            n_sizes = min(n_before + n_own - 1, high + 1)
            grown, grown_sets = np.full((n_rows, n_sizes), -np.inf), np.zeros((n_rows, n_sizes, self.n_labels), np.int8)
            for before in range(n_before):
                for own in range(min(n_own, n_sizes - before)):
                    total = values[:, before] + own_values[:, own]
                    better = total > grown[:, before + own]
                    grown[better, before + own] = total[better]
                    grown_sets[better, before + own] = sets[better, before]
                    grown_sets[np.ix_(better, [before + own], part.labels)] = own_sets[better, own][:, None]
            values, sets = grown, grown_sets
        admissible = np.where(np.arange(values.shape[1]) >= low, values, -np.inf)
        # argmax takes the first: ties go to the smaller set.
        size = np.argmax(admissible, axis=1)
        return np.isfinite(admissible).any(axis=1), sets[np.arange(n_rows), size]

    # Knowledge of some labels.

    def fits(self, known):
        return np.all([part.space.fits(part.of(known)) for part in self._parts], axis=0)

    def given(self, known):
        other = self._with_spaces([part.space.given(part.of(known)) for part in self._parts])
        other.known = known if self.known is None else merged(self.known, known)
        return other

    def _without_knowledge(self):
        other = self._mapped(lambda space: space._without_knowledge())
        other.known = None
        return other

    @property
    def _are_named(self):
        return isinstance(self.groups[0][0][0], str)

    def _slices(self):
        """Where the biases of each group are."""
        ends = np.cumsum([most - least + 1 for _, least, most in self.groups]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def _set_bias(self, bias):
        bias.setflags(write=False)
        self.bias = bias
        if not self._are_named:
            parts = zip(self._parts, self._slices(), strict=False)
            grouped = [replace(part, space=part.space.with_bias(bias[own])) for part, own in parts]
            self._parts = [*grouped, *self._parts[len(grouped) :]]

    def _with_spaces(self, spaces):
        other = copy(self)
        other._parts = [replace(part, space=space) for part, space in zip(self._parts, spaces, strict=True)]
        return other

    def _mapped(self, change):
        return self._with_spaces([change(part.space) for part in self._parts])

    def _placed(self, values, dtype):
        """Values (n_samples, n_own) of every part, in their columns of one array (n_samples, n_labels)."""
        result = np.empty((len(values[0]), self.n_labels), dtype)
        for part, own in zip(self._parts, values, strict=True):
            result[:, part.labels] = own
        return result

    def _rows_per_block(self):
        """As many rows as a table P(t, r) of TABLE_ENTRIES has room for; t and r are at most the largest size."""
        return max(1, TABLE_ENTRIES // (self.sizes()[1] + 1) ** 2)


@dataclass(frozen=True, eq=False)
class _Part:
    """The labels of a group, or all free labels, as indices, and their space."""

    labels: np.ndarray
    space: Any

    def of(self, array):
        """The columns of these labels, contiguous."""
        return np.ascontiguousarray(array[:, self.labels])

    def overlaps(self, scores, Y):
        return self.space.overlaps(self.of(scores), self.of(Y))

    def heaviest_by_size(self, scores, most):
        """The heaviest sets of 0, ..., most labels (n_samples, n_sizes, n_own), and how much they weigh; -inf if none.

        Log-probabilities, not log-weights: near the most probable set they are small, however large the scores are.
        """
        own, n_sizes = self.of(scores).astype(np.float64), min(self.space.n_labels, most) + 1
        values = np.full((len(own), n_sizes), -np.inf)
        sets = np.zeros((len(own), n_sizes, self.space.n_labels), np.int8)
        for size in range(n_sizes):
            possible, sets[:, size] = self.space.modes_within(own, size, size)
            values[possible, size] = self.space.log_prob(own, sets[:, size])[possible]
        return values, sets


def _parts(groups, n_labels):
    """One _Part per group, and one for the labels in no group if there are any."""
    parts = [
        _Part(np.array(labels), CardinalitySpace(len(labels), least, most, learn_bias=True))
        for labels, least, most in groups
    ]
    free = np.setdiff1d(np.arange(n_labels), np.concatenate([part.labels for part in parts]))
    return [*parts, _Part(free, IndependentLabels(len(free)))] if len(free) else parts


def _checked_groups(groups):
    """The groups as [(labels, least, most), ...] of lists and integers; else a ValueError."""
    checked: list[tuple[list, int, int]] = []
    for number, group in enumerate(groups):
        if not isinstance(group, tuple | list) or len(group) != 3:
            raise ValueError(f"A group must be (labels, least, most); group {number} is {group!r}.")
        labels, (least, most) = as_labels(group[0], f"The labels of group {number}"), group[1:]
        is_count = [isinstance(limit, Integral) and not isinstance(limit, bool) for limit in (least, most)]
        if not all(is_count) or not 0 <= least <= most <= len(labels):
            raise ValueError(
                f"The limits of a group must be integers with 0 <= least <= most <= its number of labels, here "
                f"{len(labels)}; group {number} has least={least!r}, most={most!r}."
            )
        # Ascending indices, so that ties within a group go to the lower label.
        ordered = labels if isinstance(labels[0], str) else sorted(labels)
        checked.append((ordered, int(least), int(most)))
    if not checked:
        raise ValueError("A space of groups needs at least one group; got none. Without groups, all labels are free.")
    _check_disjoint(checked)
    return checked


def _check_disjoint(groups):
    if len({type(labels[0]) for labels, _, _ in groups}) > 1:
        raise ValueError("Groups must be given by label indices or by label names; got both.")
    group_of: dict = {}
    for number, (labels, _, _) in enumerate(groups):
        for label in labels:
            if label in group_of:
                both = f"in groups {group_of[label]} and {number}"
                where = f"twice in group {number}" if group_of[label] == number else both
                raise ValueError(f"A label must be in one group at most; label {label!r} is {where}.")
            group_of[label] = number


def _checked_n_labels(groups, n_labels):
    lowest, highest = min(min(labels) for labels, _, _ in groups), max(max(labels) for labels, _, _ in groups)
    if n_labels is None and lowest >= 0:
        return highest + 1
    if not isinstance(n_labels, Integral) or lowest < 0 or highest >= n_labels:
        raise ValueError(
            f"Label indices of groups must lie in 0..n_labels - 1; got {lowest} to {highest} and n_labels={n_labels!r}."
        )
    return int(n_labels)


def _convolved(a, b):
    """Convolution along the last axis, (n_rows, n_a + n_b - 1); a sum of positive terms, so no digits are lost."""
    result = np.zeros((len(a), a.shape[1] + b.shape[1] - 1))
    for j in range(b.shape[1]):
        result[:, j : j + a.shape[1]] += a * b[:, j, None]
    return result


def _convolved_tables(a, b):
    """Convolution along the last two axes."""
    result = np.zeros((len(a), a.shape[1] + b.shape[1] - 1, a.shape[2] + b.shape[2] - 1))
    for t in range(b.shape[1]):
        for r in range(b.shape[2]):
            result[:, t : t + a.shape[1], r : r + a.shape[2]] += a * b[:, t, r, None, None]
    return result
