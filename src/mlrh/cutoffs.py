"""The search for thresholds: all distinct cut-offs of given scores for a metric. Knows nothing of classifiers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

MAX_SWEEPS = 100  # over the labels, in coordinate ascent; each sweep but the last improves, and a handful is usual
TIE = 1e-12  # relative; values this close are equal: sums over rows in another order differ by less
METRICS = {  # and the groups of entries whose values are averaged
    "f1_macro": "labels",
    "f1_micro": "all",
    "f1_example": "rows",
    "jaccard_macro": "labels",
    "jaccard_micro": "all",
    "jaccard": "rows",
    "hamming": "labels",
    "exact_match": "rows",
}


@dataclass(frozen=True)
class Ends:
    """The interval of possible scores, the usual threshold in it, and the method that gives them."""

    low: float
    high: float
    default: float
    method: str


PROBABILITIES = Ends(0.0, 1.0, 0.5, "predict_proba")
DECISION_VALUES = Ends(-np.inf, np.inf, 0.0, "decision_function")


@dataclass(frozen=True)
class Metric:
    """The mean over groups of entries, "labels", "rows" or "all", of value(tp, fp, fn, size); beta2 is beta squared."""

    value: Callable
    over: str
    beta2: float = 1.0


@dataclass(frozen=True, eq=False)
class Rows:
    """Held-out rows of positive weight: scores and truth (n_rows, n_labels), weights and number of the fold."""

    scores: np.ndarray
    Y: np.ndarray
    weights: np.ndarray
    fold: np.ndarray
    ends: Ends

    def take(self, rows):
        return replace(self, scores=self.scores[rows], Y=self.Y[rows], weights=self.weights[rows], fold=self.fold[rows])


def metric_of(name, beta):
    if name not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(map(repr, METRICS))}; got {name!r}.")
    if not 1e-6 <= beta <= 1e6:  # beyond, the square drowns the other counts
        raise ValueError(f"beta must lie between 1e-6 and 1e6; got {beta}.")
    if name.startswith("f1"):
        # A row that has no label and gets none is right; a label or a pool without any has nothing to be right about.
        empty = 1.0 if name == "f1_example" else 0.0
        return Metric(partial(_f_beta, beta2=float(beta) ** 2, empty=empty), METRICS[name], float(beta) ** 2)
    if beta != 1:
        raise ValueError(f"beta belongs to the F metrics and must be 1 with metric={name!r}; got {beta}.")
    value = {"hamming": _share_right, "exact_match": _all_right}.get(name)
    return Metric(value or partial(_jaccard, empty=1.0 if name == "jaccard" else 0.0), METRICS[name])


def _f_beta(tp, fp, fn, size, *, beta2, empty):
    return _ratio((1.0 + beta2) * tp, (1.0 + beta2) * tp + beta2 * fn + fp, empty)


def _jaccard(tp, fp, fn, size, *, empty):
    return _ratio(tp, tp + fp + fn, empty)


def _share_right(tp, fp, fn, size):
    return 1.0 - (fp + fn) / size


def _all_right(tp, fp, fn, size):
    return ((fp == 0) & (fn == 0)).astype(np.float64)


def _ratio(numerator, denominator, empty):
    return np.divide(numerator, denominator, out=np.full(np.shape(denominator), empty), where=denominator > 0)


def scores_of(rows, sets, metric):
    """The metric of predicted sets over all rows, and in each fold."""
    in_folds = [_score(rows.take(rows.fold == k), sets[rows.fold == k], metric) for k in np.unique(rows.fold)]
    return _score(rows, sets, metric), np.array(in_folds)


def _score(rows, sets, metric):
    """The metric of predicted sets (n_rows, n_labels)."""
    truth, weights, shares = _in_groups(rows, metric, rows.Y)
    answer = _in_groups(rows, metric, sets)[0]
    tp, fp, fn = (
        (cell * weights).sum(axis=1) for cell in (truth * answer, (1.0 - truth) * answer, truth * (1.0 - answer))
    )
    return float(shares @ metric.value(tp, fp, fn, weights.sum(axis=1)))


def _in_groups(rows, metric, values):
    """Values (n_rows, n_labels) by group (n_groups, size), weights of the entries, and shares of the groups.

    Rows are averaged by their weights; in the other groups, weights multiply the counts.
    """
    values = values.astype(np.float64)
    if metric.over == "rows":
        return values, np.ones(values.shape), rows.weights / rows.weights.sum()
    weights = np.broadcast_to(rows.weights[:, None], values.shape)
    if metric.over == "labels":
        return values.T, weights.T, np.full(values.shape[1], 1.0 / values.shape[1])
    return values.reshape(1, -1), weights.reshape(1, -1), np.ones(1)


def tune(rows, metric, own):
    """Thresholds (n_labels,), the best for labels in the mask own, the best common one for others; and that one."""
    common = float(_best_common(rows, metric))
    thresholds = np.full(len(own), common)
    if not own.any() or len(own) == 1:
        return thresholds, common
    improve = {"labels": _each_by_itself, "all": _by_dinkelbach, "rows": _by_coordinate_ascent}[metric.over]
    return improve(rows, metric, np.flatnonzero(own), thresholds), common


def seen_in_every_fold(rows):
    """Which labels some row has and some row lacks in every fold."""
    parts = [rows.Y[rows.fold == fold] for fold in np.unique(rows.fold)]
    return np.all([part.any(axis=0) & ~part.all(axis=0) for part in parts], axis=0)


def _best_common(rows, metric):
    """The best threshold for all labels, by one pass through all entries from the highest score down.

    An entry changes the value of its own group only, so the metric after each entry is a cumulative sum of changes.
    """
    scores = _in_groups(rows, metric, rows.scores)[0]
    truth, weights, shares = _in_groups(rows, metric, rows.Y)
    order = np.argsort(-scores, axis=1, kind="stable")
    scores, truth, weights = (np.take_along_axis(values, order, axis=1) for values in (scores, truth, weights))
    values = _values_of_tops(metric, truth, weights)
    changes = (shares[:, None] * np.diff(values, axis=1)).ravel()
    cuts = _Cuts(scores.ravel(), rows.ends)
    return cuts.best(_from_zero(changes[cuts.order]))[0]


def _values_of_tops(metric, truth, weights):
    """The metric's value in each group where its 0, 1, ... first entries are taken, (n_groups, size + 1)."""
    tp, fp = _from_zero(truth * weights), _from_zero((1.0 - truth) * weights)
    # Less the last sum, not the total by another order of additions: fn must end at exactly 0.
    return metric.value(tp, fp, tp[:, -1:] - tp, weights.sum(axis=1, keepdims=True))


def _from_zero(changes):
    """Cumulative sums along the last axis, from 0 before the first."""
    sums = np.zeros((*changes.shape[:-1], changes.shape[-1] + 1))
    np.cumsum(changes, axis=-1, out=sums[..., 1:])
    return sums


class _Cuts:
    """All ways to cut scores (n,) in two: order from the highest down, how many are taken, and the thresholds."""

    def __init__(self, scores, ends):
        self.order = np.argsort(-scores, kind="stable")
        ranked, self._default = scores[self.order], ends.default
        self.taken = np.flatnonzero(np.concatenate([[True], ranked[1:] < ranked[:-1], [True]]))
        upper, lower = np.append(ends.high, ranked)[self.taken], np.append(ranked, ends.low)[self.taken]
        middle = 0.5 * lower + 0.5 * upper
        # Between neighbours among the floating-point numbers there is no middle, but the lower one does not exceed it.
        self.thresholds = np.where((middle < upper) & (middle >= lower), middle, lower)
        if not ends.low < self.thresholds[-1] < ranked[-1]:
            self.thresholds[-1] = np.nextafter(ranked[-1], -np.inf)

    def best(self, values):
        """The threshold and value of the cut with the highest of values (n + 1,), by how many are taken.

        Of equals, the nearest to the usual threshold.
        """
        room = TIE * np.abs(values).max()
        values = values[self.taken]
        equal = np.flatnonzero(values >= values.max() - room)
        place = equal[np.argmin(np.abs(self.thresholds[equal] - self._default))]
        return self.thresholds[place], values[place]


def _each_by_itself(rows, metric, own, thresholds):
    """The metric is a mean over labels: the best threshold of each is the best for the metric."""
    thresholds = thresholds.copy()
    for label in own:
        cuts = _Cuts(rows.scores[:, label], rows.ends)
        truth, weights = rows.Y[cuts.order, label].astype(np.float64)[None], rows.weights[cuts.order][None]
        thresholds[label] = cuts.best(_values_of_tops(metric, truth, weights)[0])[0]
    return thresholds


def _by_dinkelbach(rows, metric, own, thresholds):
    """The pooled F-beta is (1 + b2) tp / (b2 n_positive + n_taken), a ratio of sums over the labels.

    The best sets maximise the sum of (1 + b2) tp - F n_taken at F the best ratio, label by label; raising F from the
    ratio reached before ends there (Dinkelbach's iteration). The pooled Jaccard index is F1 / (2 - F1), which rises
    with F1, so that the same thresholds are best.
    """
    f_beta = replace(metric, value=partial(_f_beta, beta2=metric.beta2, empty=0.0))
    columns = []
    for label in own:
        cuts = _Cuts(rows.scores[:, label], rows.ends)
        weights = rows.weights[cuts.order]
        columns.append((label, cuts, _from_zero(rows.Y[cuts.order, label] * weights), _from_zero(weights)))
    reached = _score(rows, rows.scores > thresholds, f_beta)
    while True:
        candidate = thresholds.copy()
        for label, cuts, tp, taken in columns:
            candidate[label] = cuts.best((1.0 + metric.beta2) * tp - reached * taken)[0]
        score = _score(rows, rows.scores > candidate, f_beta)
        if score <= reached + TIE:
            return thresholds
        thresholds, reached = candidate, score


def _by_coordinate_ascent(rows, metric, own, thresholds):
    """One label after the other gets the best threshold given those of the others, until none improves.

    Whether a row has one label more or less changes the value of that row only, so the metric over all cut-offs of a
    label is again a cumulative sum of changes.
    """
    thresholds, shares = thresholds.copy(), rows.weights / rows.weights.sum()
    truth, sets = rows.Y.astype(bool), rows.scores > thresholds
    columns = {label: _Cuts(rows.scores[:, label], rows.ends) for label in _frequent_first(rows, own)}
    tp, n_taken, n_true = (truth & sets).sum(axis=1), sets.sum(axis=1), truth.sum(axis=1)
    for _ in range(MAX_SWEEPS):
        improved = False
        for label, cuts in columns.items():
            has, gets = truth[:, label], sets[:, label]
            tp, n_taken = tp - (has & gets), n_taken - gets
            without = _value_of_rows(metric, tp, n_taken, n_true)
            changes = shares * (_value_of_rows(metric, tp + has, n_taken + 1, n_true) - without)
            threshold, value = cuts.best(_from_zero(changes[cuts.order]))
            if value > changes[gets].sum() + TIE:
                thresholds[label], improved = threshold, True
                gets = sets[:, label] = rows.scores[:, label] > threshold
            tp, n_taken = tp + (has & gets), n_taken + gets
        if not improved:
            break
    return thresholds


def _value_of_rows(metric, tp, n_taken, n_true):
    return metric.value(tp, n_taken - tp, n_true - tp, None)


def _frequent_first(rows, labels):
    """The labels from the most frequent to the rarest, so that the order of columns plays no part."""
    frequency, mean = rows.weights @ rows.Y[:, labels], rows.weights @ rows.scores[:, labels]
    return labels[np.lexsort([-mean, -frequency])]
