"""TunedThresholds: thresholds for the labels of any classifier, chosen for a metric by cross validation.

The classifier is fitted once per fold. All thresholds are tried on its scores of the held-out rows: sorted from the
highest down, each further entry that is taken changes the counts by one, so all cut-offs cost one cumulative sum.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import MetaEstimatorMixin
from sklearn.utils import get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from mlrh._indicators import as_indicator
from mlrh._sklearn import HasMethods, Interval, StrOptions, check_sample_weight, fit_context
from mlrh.estimators import _device, _features, _held_out, _targets, _whole_fit
from mlrh.spaces import LabelSetDistribution

MAX_SWEEPS = 100  # over the labels, in coordinate ascent: bounds the time; a handful is usual
TIE = 1e-12  # values this close, relative to their magnitude, are equal: the order of a sum over rows changes less
METRICS = {  # names, and the groups of entries over which values are averaged
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
    """The interval of possible scores, the usual threshold, and the classifier's method that gives the scores."""

    low: float
    high: float
    default: float
    method: str


PROBABILITIES = Ends(0.0, 1.0, 0.5, "predict_proba")
DECISION_VALUES = Ends(-np.inf, np.inf, 0.0, "decision_function")


def best_thresholds(Y, scores, *, metric="f1_macro", per_label=True, beta=1.0, sample_weight=None) -> np.ndarray:
    """Thresholds (n_labels,) that maximise a metric of the sets {k: scores[i, k] > thresholds[k]}.

    All distinct cut-offs of the scores are tried, by sorting and cumulative counts. One threshold for all labels is
    exact, in O(N log N) for N = n_samples * n_labels. One per label is exact for macro and micro averages and for
    Hamming, in O(N log N) too (times the few steps of Dinkelbach's iteration for the micro average). Averages over rows
    and exact match couple the labels: there, thresholds per label are found by coordinate ascent from the best common
    threshold. They are never worse than that one, but not always the best.

    A threshold lies halfway between two scores, or between a score and the end of [0, 1]; if even a score of 0 is to be
    taken, just below 0. Ties go to the threshold nearest to 1/2. If any score lies outside [0, 1], scores are values of
    a decision function, which has no ends: ties go to the threshold nearest to 0, and a threshold that takes all or
    none of the scores lies next to the lowest or the highest.

    Parameters
    ----------
    Y : indicator matrix of shape (n_samples, n_labels)
    scores : array of shape (n_samples, n_labels)
        Probabilities of rows that the model was not fitted to, or any other scores.
    metric, per_label, beta : as for TunedThresholds
    sample_weight : array of shape (n_samples,), optional
        A row of weight 2 counts as the row twice, one of weight 0 as absent.

    Examples
    --------
    >>> from mlrh.estimators.thresholds import best_thresholds
    >>> best_thresholds([[1, 0], [1, 1], [0, 0]], [[0.3, 0.2], [0.4, 0.8], [0.1, 0.5]])
    array([0.2 , 0.65])
    """
    Y, scores = as_indicator(Y, "Y"), np.asarray(scores, np.float64)
    if scores.shape != Y.shape or not Y.size:
        raise ValueError(f"Y and scores must have the same shape, not empty; got {Y.shape} and {scores.shape}.")
    _held_out.check_finite(scores)
    weights = check_sample_weight(sample_weight, Y, dtype=np.float64, ensure_non_negative=True)
    ends = PROBABILITIES if scores.min() >= 0 and scores.max() <= 1 else DECISION_VALUES
    rows = Rows(scores, Y, weights, np.zeros(len(Y), np.int64), ends).take(weights > 0)
    return tune(rows, metric_of(metric, beta), np.full(Y.shape[1], bool(per_label)))[0]


def thresholds_of(distributions, truths, metric) -> np.ndarray:
    """Thresholds (n_labels,) for marginals that held-out rows ask for, as in TunedThresholds.

    Parameters
    ----------
    distributions : list of LabelSetDistribution, one for each fold
    truths : list of indicator matrices, the true sets of their rows
    metric : as for TunedThresholds
    """
    marginals = np.vstack([distribution.marginals() for distribution in distributions]).astype(np.float64)
    fold = np.repeat(np.arange(len(truths)), list(map(len, truths)))
    rows = Rows(marginals, np.vstack(truths), np.ones(len(fold)), fold, PROBABILITIES)
    raised = distributions[0].take(slice(0, 1)).raised_thresholds
    return tune(rows, metric_of(metric, 1.0), seen_in_every_fold(rows), raised)[0]


class TunedThresholds(MetaEstimatorMixin, _targets.SetClassifier):
    """A classifier that predicts the labels whose probability exceeds a threshold chosen for a metric.

    The estimator is fitted once per fold, and once more to all rows. The thresholds are chosen among all distinct
    cut-offs of its scores for the held-out rows of all folds (`best_thresholds` says which choices are exact). On these
    rows they are never worse than 1/2 for every label.

    Where the estimator's label space is a hierarchy, a label's threshold is raised to its parent's, so that every
    answer holds the parents of its labels.

    Rare labels: if all held-out rows of some fold have a label, or none has it, the label gets the best common
    threshold instead of its own, since too few rows tell about it. With very many folds that is every label.

    Parameters
    ----------
    estimator : classifier
        With predict_proba, a matrix (n_samples, n_labels) or a list of one matrix per label; or else with a
        decision_function, where 0 takes the place of 1/2.
    metric : str, default="f1_macro"
        "f1_macro", "f1_micro", "f1_example" (F-beta averaged over labels, pooled, averaged over rows), "jaccard_macro",
        "jaccard_micro", "jaccard" (over rows), "hamming" (share of right entries, 1 - Hamming loss) or "exact_match".
        0/0 counts as in mlrh.metrics: 1 for a row without labels, true or predicted, 0 in macro and micro averages.
    per_label : bool, default=True
        One threshold per label; False: the same for all.
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        An int, or None for 5 (or fewer, where rows are fewer): that many shuffled folds, over which labels are spread
        evenly, rarest first. Folds may repeat rows, but the first one must not hold out all of them.
    beta : float, default=1.0
        Weight of recall against precision in the F metrics; 1 with all others.
    n_jobs : int, default=None
        Processes over folds, as in joblib.

    Attributes
    ----------
    thresholds_ : array of shape (n_labels,)
    common_threshold_ : float
        The best one for all labels.
    has_own_threshold_ : array of shape (n_labels,), bool
    best_score_ : float
        The metric on all held-out rows at thresholds_. Optimistic, since the same rows chose them.
    cv_scores_ : array of shape (n_folds,)
        The same in each fold.
    honest_score_, honest_scores_ : float, array of shape (n_folds,)
        With the thresholds of each fold chosen by rows of the other folds only. Where folds repeat rows, a row counts
        to the first fold that holds it out.
    default_score_, default_scores_ : float, array of shape (n_folds,)
        At 1/2 (at 0 for a decision function).
    score_spread_ : float
        Standard deviation of honest_scores_.
    estimator_ : the estimator, fitted to all rows
    classes_ : array
        Names of the labels, or the two classes of y. For two classes the second one is the label.
    n_features_in_, feature_names_in_ : of X, where it has them

    Notes
    -----
    In a fold without a label its F and Jaccard index are 0, so for macro averages the scores of folds tend to be lower
    than that of all rows; best_score_, honest_score_ and default_score_ compare with each other.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from mlrh import MLRHClassifier
    >>> from mlrh.estimators.thresholds import TunedThresholds
    >>> X, Y = make_multilabel_classification(200, n_classes=4, allow_unlabeled=False, random_state=0)
    >>> clf = TunedThresholds(MLRHClassifier(C=0.01), metric="f1_macro").fit(X, Y)
    >>> bool(clf.best_score_ >= max(clf.honest_score_, clf.default_score_))
    True
    >>> clf.predict(X[:2]).shape
    (2, 4)
    """

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit"])],
        "metric": [StrOptions(set(METRICS))],
        "per_label": ["boolean"],
        "cv": ["cv_object"],
        "beta": [Interval(Real, 0, None, closed="neither")],
        "n_jobs": [Integral, None],
    }
    estimator_: Any

    def __init__(self, estimator, *, metric="f1_macro", per_label=True, cv=None, beta=1.0, n_jobs=None):
        self.estimator = estimator
        self.metric = metric
        self.per_label = per_label
        self.cv = cv
        self.beta = beta
        self.n_jobs = n_jobs

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to each fold and to all rows, and choose the thresholds.

        Parameters
        ----------
        X : whatever the estimator takes, with n_samples rows
        y : indicator matrix, list of label sets, or two classes of shape (n_samples,)
            With every label known. The estimator gets an array of 0 and 1, or the classes.
        sample_weight : array of shape (n_samples,), optional
            Passed on to the estimator (of a pipeline to the last step, of a search to its estimator), and the weights
            of the rows in the metric; a row of weight 0 is absent.

        Returns
        -------
        self
        """
        metric = metric_of(self.metric, self.beta)
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X = indexable(validate_data(fitted, X, skip_check_array=True))[0]
        form, Y = _targets.encode(y, partly_known=True)
        _check_estimator(self.estimator, form)
        task = _held_out.task(self.estimator, X, form, Y, sample_weight)
        folds = _held_out.folds(self.cv, task)
        first_fold = _held_out.first_fold(folds)
        answers = Parallel(n_jobs=self.n_jobs)(delayed(_scores_of_fold)(task, *fold) for fold in folds)
        fitted.estimator_, fitted._never = task.fit(), task.never()
        raised = partial(_held_out.raised_thresholds, task, fitted.estimator_)
        fitted._choose(_pooled(task, folds, answers), first_fold, metric, raised)
        fitted._targets, fitted.classes_ = task.form, task.form.classes
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    @available_if(lambda self: _gives_probabilities_of_labels(self))
    def predict_proba(self, X) -> np.ndarray:
        """The estimator's P(y_k = 1 | x), (n_samples, n_labels), once fitted to labels.

        Not available with two classes as y, where predict may contradict the larger probability; use
        estimator_.predict_proba(X) there.
        """
        return self._scores(X)

    @available_if(lambda self: _held_out.has_distribution(getattr(self, "estimator_", self.estimator)))
    def distribution(self, X) -> LabelSetDistribution:
        """The estimator's distribution of the label set of each row of X, which thresholds don't change."""
        return _held_out.distribution(self.estimator_, _held_out.validated_rows(self, X))

    def decision_function(self, X) -> np.ndarray:
        """The estimator's probability, or decision value, less the threshold: above 0 where predict takes the label.

        Shape (n_samples, n_labels); with two classes as y (n_samples,).
        """
        scores = self._scores(X) - self.thresholds_
        return scores[:, 0] if self._targets.is_one_class_per_row else scores

    def __sklearn_tags__(self):
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = own.input_tags
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = own.classifier_tags is not None and own.classifier_tags.multi_label
        return tags

    def _choose(self, rows, first_fold, metric, raised):
        """Set the thresholds, and the attributes that measure them on held-out rows."""
        self.has_own_threshold_ = self.per_label & seen_in_every_fold(rows)
        self.thresholds_, self.common_threshold_ = tune(rows, metric, self.has_own_threshold_, raised)
        honest = np.empty(rows.Y.shape, bool)
        for fold in np.unique(first_fold):
            here = first_fold == fold
            others = rows.take(~here)
            own = self.per_label & seen_in_every_fold(others)
            honest[here] = rows.scores[here] > tune(others, metric, own, raised)[0]
        self.best_score_, self.cv_scores_ = scores_of(rows, rows.scores > self.thresholds_, metric)
        self.honest_score_, self.honest_scores_ = scores_of(rows, honest, metric)
        self.default_score_, self.default_scores_ = scores_of(rows, rows.scores > rows.ends.default, metric)
        self.score_spread_ = float(np.std(self.honest_scores_, ddof=1))

    def _predict_sets(self, X):
        return (self._scores(X) > self.thresholds_).astype(np.int8)

    def _scores(self, X):
        X = _held_out.validated_rows(self, X)
        return _scores(self.estimator_, X, self._never)


def _check_estimator(estimator, form):
    if form.is_one_class_per_row and len(form.classes) > 2:
        raise ValueError(
            "Only binary classification is supported. For one class per row there must be 2 classes, got "
            f"{len(form.classes)}: thresholds would choose several classes or none."
        )
    if not any(hasattr(estimator, ends.method) for ends in (PROBABILITIES, DECISION_VALUES)):
        raise ValueError(f"The estimator must have predict_proba or decision_function; {estimator!r} has neither.")


def _scores_of_fold(task, train, rows):
    """Scores (n_held_out, n_labels) of held-out rows by the estimator fitted to the training rows, and their Ends."""
    never = task.never(train)
    return task.answer(train, rows, lambda fitted, X: (_scores(fitted, X, never), _ends(fitted)))


def _pooled(task, folds, answers):
    """The Rows held out by all folds."""
    numbers = np.concatenate([rows for _, rows in folds])
    scores = np.vstack([scores for scores, _ in answers])
    fold = np.repeat(np.arange(len(folds)), [len(rows) for _, rows in folds])
    return Rows(scores, task.Y[numbers], task.weights[numbers], fold, answers[0][1])


def _gives_probabilities_of_labels(meta):
    form, estimator = getattr(meta, "_targets", None), getattr(meta, "estimator_", None)
    return form is not None and not form.is_one_class_per_row and hasattr(estimator, "predict_proba")


def _ends(fitted):
    return PROBABILITIES if hasattr(fitted, "predict_proba") else DECISION_VALUES


def _scores(fitted, X, never):
    """Probabilities of the labels (n_samples, n_labels), or else their decision values."""
    return _held_out.label_scores(fitted, X, never, _ends(fitted).method)


@dataclass(frozen=True)
class Metric:
    """The mean of value(tp, fp, fn, size) over groups of entries: "labels", "rows" or "all" (one group).

    beta2 is beta squared.
    """

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
    if not 1e-6 <= beta <= 1e6:  # beyond, beta squared rounds the other counts away
        raise ValueError(f"beta must lie between 1e-6 and 1e6; got {beta}.")
    if name.startswith("f1"):
        # 0/0: a row that has no label and gets none is right, so 1; for a label, or all entries, it is 0 by convention.
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
    """The metric of predicted sets over all rows, and in each fold (n_folds,)."""
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
    """Values (n_rows, n_labels) by group (n_groups, size), weights of the entries, shares of the groups (n_groups,).

    Where groups are rows, their mean is weighted. In other groups, weights multiply the counts.
    """
    values = values.astype(np.float64)
    if metric.over == "rows":
        return values, np.ones(values.shape), rows.weights / rows.weights.sum()
    weights = np.broadcast_to(rows.weights[:, None], values.shape)
    if metric.over == "labels":
        return values.T, weights.T, np.full(values.shape[1], 1.0 / values.shape[1])
    return values.reshape(1, -1), weights.reshape(1, -1), np.ones(1)


def tune(rows, metric, own, raised=None):
    """Thresholds (n_labels,): the best for labels in the mask own, the best common one for others; and that one.

    raised(thresholds) raises them where labels imply each other. Where the common threshold is then better, it is used
    for all: it needs no raising.
    """
    common = float(_best_common(rows, metric))
    thresholds = np.full(len(own), common)
    if not own.any() or len(own) == 1:
        return thresholds, common
    improve = {"labels": _each_by_itself, "all": _by_dinkelbach, "rows": _by_coordinate_ascent}[metric.over]
    best = improve(rows, metric, np.flatnonzero(own), thresholds)
    kept = best if raised is None else raised(best)
    if (kept != best).any() and _score(rows, rows.scores > kept, metric) < _score(rows, rows.scores > common, metric):
        kept = thresholds
    return kept, common


def seen_in_every_fold(rows):
    """Which labels are present in some row and absent from some row of every fold, (n_labels,)."""
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
    # Subtracted from the last cumulative sum: a total added in another order would leave fn a little off 0.
    return metric.value(tp, fp, tp[:, -1:] - tp, weights.sum(axis=1, keepdims=True))


def _from_zero(changes):
    """Cumulative sums along the last axis, with a 0 before the first: one entry more than changes."""
    sums = np.zeros((*changes.shape[:-1], changes.shape[-1] + 1))
    np.cumsum(changes, axis=-1, out=sums[..., 1:])
    return sums


class _Cuts:
    """All ways to cut scores (n,) in two: their order from the highest down, how many are taken, and the thresholds."""

    def __init__(self, scores, ends):
        self.order = np.argsort(-scores, kind="stable")
        ranked, self._default = scores[self.order], ends.default
        self.taken = np.flatnonzero(np.concatenate([[True], ranked[1:] < ranked[:-1], [True]]))
        # The threshold of a cut lies between the last score that is taken and the first that is not.
        upper, lower = np.append(ends.high, ranked)[self.taken], np.append(ranked, ends.low)[self.taken]
        middle = 0.5 * lower + 0.5 * upper
        # Between adjacent floats there is no middle; the lower one is a threshold too, since it does not exceed itself.
        self.thresholds = np.where((middle < upper) & (middle >= lower), middle, lower)
        if not ends.low < self.thresholds[-1] < ranked[-1]:
            self.thresholds[-1] = np.nextafter(ranked[-1], -np.inf)

    def best(self, values):
        """Threshold and value of the best cut; values (n + 1,) are those with 0, 1, ..., n scores taken.

        Ties go to the threshold nearest to the usual one.
        """
        room = TIE * np.abs(values).max()
        values = values[self.taken]
        equal = np.flatnonzero(values >= values.max() - room)
        place = equal[np.argmin(np.abs(self.thresholds[equal] - self._default))]
        return self.thresholds[place], values[place]


def _each_by_itself(rows, metric, own, thresholds):
    """Thresholds for a mean over labels: the best one of each label."""
    thresholds = thresholds.copy()
    for label in own:
        cuts = _Cuts(rows.scores[:, label], rows.ends)
        truth, weights = rows.Y[cuts.order, label].astype(np.float64)[None], rows.weights[cuts.order][None]
        thresholds[label] = cuts.best(_values_of_tops(metric, truth, weights)[0])[0]
    return thresholds


def _by_dinkelbach(rows, metric, own, thresholds):
    """Thresholds for the F-beta of all entries, by Dinkelbach's iteration.

    F = (1 + b2) tp / (b2 n_positive + n_taken) is a ratio of sums over labels. If F is the best ratio, the best sets
    maximise the sum of (1 + b2) tp - F n_taken, which each label does for itself. The iteration starts with the ratio
    reached so far and repeats with the one that follows, until it no longer rises. The Jaccard index of all entries is
    F1 / (2 - F1), which rises with F1, so the same thresholds are best.
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
    """Thresholds by coordinate ascent: each label in turn gets the best one given the others, until none improves.

    One label more or less in a row changes the value of that row only, so the metric at all cut-offs of a label is
    again a cumulative sum of changes.
    """
    thresholds, shares = thresholds.copy(), rows.weights / rows.weights.sum()
    truth, sets = rows.Y.astype(bool), rows.scores > thresholds
    columns = {label: _Cuts(rows.scores[:, label], rows.ends) for label in _frequent_first(rows, own)}
    tp, n_taken, n_true = (truth & sets).sum(axis=1), sets.sum(axis=1), truth.sum(axis=1)
    for _ in range(MAX_SWEEPS):
        improved = False
        for label, cuts in columns.items():
            has, gets = truth[:, label], sets[:, label]
            # Counts of each row without this label; then what taking the label changes in the row's value.
            tp, n_taken = tp - (has & gets), n_taken - gets
            without = _value_of_rows(metric, tp, n_taken, n_true)
            changes = shares * (_value_of_rows(metric, tp + has, n_taken + 1, n_true) - without)
            threshold, value = cuts.best(_from_zero(changes[cuts.order]))
            # Only a true gain moves a threshold, so that the sweeps end.
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
    """The labels from the most frequent to the rarest, so that the order of columns does not matter."""
    frequency, mean = rows.weights @ rows.Y[:, labels], rows.weights @ rows.scores[:, labels]
    return labels[np.lexsort([-mean, -frequency])]
