"""Thresholds for the labels of any classifier, chosen for a metric by cross validation without refitting per threshold.

Knows the forms of y and what classifiers answer with, and nothing of the joint model, its label spaces or its solvers.
"""

import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, _fit_context, clone
from sklearn.model_selection import check_cv
from sklearn.utils import get_tags, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metaestimators import _safe_split, available_if
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from mlrh import targets
from mlrh.cutoffs import (
    DECISION_VALUES,
    METRICS,
    PROBABILITIES,
    Rows,
    metric_of,
    scores_of,
    seen_in_every_fold,
    tune,
)
from mlrh.indicator import as_indicator

N_FOLDS = 5


def best_thresholds(Y, scores, *, metric="f1_macro", per_label=True, beta=1.0, sample_weight=None) -> np.ndarray:
    """Thresholds (n_labels,) that maximise a metric of the sets {k: scores[i, k] > thresholds[k]}.

    All distinct cut-offs of the scores are tried, by sorting and cumulative counts. One threshold for all labels is
    exact, in O(N log N) for N = n_samples * n_labels. One per label is exact for the macro and micro averages and for
    Hamming, in O(N log N) too (times the few steps of Dinkelbach's iteration for the micro average); for averages over
    rows and exact match, which couple the labels, it is found by coordinate ascent from the best common threshold:
    never worse than that one, but not always the best.

    A threshold lies halfway between two scores, or between a score and the end of [0, 1]; where even a score of 0 is to
    be taken, just below 0. Of thresholds that do equally well the one nearest to 1/2 is chosen. Scores outside [0, 1]
    are taken for values of a decision function, without ends: the nearest to 0 is chosen, and a threshold that takes
    all or none of the scores is next to the lowest or the highest.

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
    >>> from mlrh.thresholds import best_thresholds
    >>> best_thresholds([[1, 0], [1, 1], [0, 0]], [[0.3, 0.2], [0.4, 0.8], [0.1, 0.5]])
    array([0.2 , 0.65])
    """
    Y, scores = as_indicator(Y, "Y"), np.asarray(scores, np.float64)
    if scores.shape != Y.shape or not Y.size:
        raise ValueError(f"Y and scores must have the same shape, not empty; got {Y.shape} and {scores.shape}.")
    _check_finite(scores)
    weights = _check_sample_weight(sample_weight, Y, dtype=np.float64, ensure_non_negative=True)
    ends = PROBABILITIES if scores.min() >= 0 and scores.max() <= 1 else DECISION_VALUES
    rows = Rows(scores, Y, weights, np.zeros(len(Y), np.int64), ends).take(weights > 0)
    return tune(rows, metric_of(metric, beta), np.full(Y.shape[1], bool(per_label)))[0]


class TunedThresholds(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier that predicts the labels whose probability exceeds a threshold chosen for a metric.

    The estimator is fitted once per fold, and once more to all rows; what it gives the held-out rows, pooled over the
    folds, decides the thresholds over all distinct cut-offs (see `best_thresholds`: which choices are exact and which
    are not). On these rows the thresholds are never worse than 1/2 for every label.

    Rare labels: one that no held-out row of some fold has, or every one, tells too little to have a threshold of its
    own, and takes the best common threshold of all labels. With very many folds that is every label.

    Parameters
    ----------
    estimator : classifier
        With probabilities of any usual form, a matrix (n_samples, n_labels) or a list of one matrix per label; or else
        with a decision_function, where 0 takes the place of 1/2.
    metric : str, default="f1_macro"
        "f1_macro", "f1_micro", "f1_example" (F-beta averaged over labels, pooled, averaged over rows), "jaccard_macro",
        "jaccard_micro", "jaccard" (over rows), "hamming" (share of right entries, 1 - Hamming loss) or "exact_match".
        0/0 counts as in mlrh.metrics: 1 for a row without labels, true or predicted, 0 in macro and micro averages.
    per_label : bool, default=True
        One threshold per label; False: the same for all.
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        None (5, or fewer where rows are fewer) and int: that many shuffled folds, over which each label is spread as
        evenly as the others allow, rarest first.
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
        The metric on all held-out rows at thresholds_. Optimistic, as they were chosen by the same rows.
    cv_scores_ : array of shape (n_folds,)
        The same in each fold.
    honest_score_, honest_scores_ : float, array of shape (n_folds,)
        With the thresholds of each fold chosen by the other folds only.
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
    >>> from mlrh.thresholds import TunedThresholds
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
    _targets: targets.Targets

    def __init__(self, estimator, *, metric="f1_macro", per_label=True, cv=None, beta=1.0, n_jobs=None):
        self.estimator = estimator
        self.metric = metric
        self.per_label = per_label
        self.cv = cv
        self.beta = beta
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to each fold and to all rows, and choose the thresholds.

        Parameters
        ----------
        X : whatever the estimator takes, with n_samples rows
        y : indicator matrix, list of label sets, or two classes of shape (n_samples,)
            The estimator gets an array of 0 and 1, or the classes.
        sample_weight : array of shape (n_samples,), optional
            Passed on to the estimator, and the weights of the rows in the metric; a row of weight 0 is absent.

        Returns
        -------
        self
        """
        metric = metric_of(self.metric, self.beta)
        X = indexable(validate_data(self, X, skip_check_array=True))[0]
        form, Y = targets.encode(y)
        task = _task(self.estimator, X, form, Y, sample_weight)
        folds = _folds(self.cv, task)
        held_out = Parallel(n_jobs=self.n_jobs)(delayed(_held_out_scores)(task, *fold) for fold in folds)
        rows = _pooled(task, folds, held_out)
        self._choose(rows, metric)
        self.estimator_ = task.fit(np.arange(len(task.Y)))
        self._never = ~task.Y[task.weights > 0].any(axis=0)
        self._targets, self.classes_ = task.form, task.form.classes
        return self

    def predict(self, X):
        """Label sets for the rows of X in the form of the y of training."""
        sets = self._predict_sets(X)
        return self._targets.decode(sets, X)

    @available_if(lambda self: _gives_probabilities_of_labels(self))
    def predict_proba(self, X) -> np.ndarray:
        """The estimator's P(y_k = 1 | x), (n_samples, n_labels), once fitted to labels.

        Not with two classes as y: predict would contradict the larger of their probabilities. These are
        estimator_.predict_proba(X).
        """
        return self._scores(X)

    def decision_function(self, X) -> np.ndarray:
        """The estimator's probability, or decision value, less the threshold: above 0 where predict takes the label.

        Shape (n_samples, n_labels); with two classes as y (n_samples,).
        """
        scores = self._scores(X) - self.thresholds_
        return scores[:, 0] if self._targets.is_one_class_per_row else scores

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right, as of every classifier here, whatever the metric."""
        predicted = self._predict_sets(X)  # first, so that what isn't fitted says so
        return self._targets.share_right(predicted, y, sample_weight)

    def __sklearn_tags__(self):
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = own.input_tags
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = own.classifier_tags is not None and own.classifier_tags.multi_label
        return tags

    def _choose(self, rows, metric):
        """Set the thresholds and what the held-out rows say of them."""
        self.has_own_threshold_ = self.per_label & seen_in_every_fold(rows)
        self.thresholds_, self.common_threshold_ = tune(rows, metric, self.has_own_threshold_)
        honest = np.empty(rows.Y.shape, bool)
        for fold in range(rows.fold.max() + 1):
            here = rows.fold == fold
            others = rows.take(~here)
            honest[here] = rows.scores[here] > tune(others, metric, self.per_label & seen_in_every_fold(others))[0]
        self.best_score_, self.cv_scores_ = scores_of(rows, rows.scores > self.thresholds_, metric)
        self.honest_score_, self.honest_scores_ = scores_of(rows, honest, metric)
        self.default_score_, self.default_scores_ = scores_of(rows, rows.scores > rows.ends.default, metric)
        self.score_spread_ = float(np.std(self.honest_scores_, ddof=1))

    def _predict_sets(self, X):
        return (self._scores(X) > self.thresholds_).astype(np.int8)

    def _scores(self, X):
        check_is_fitted(self)
        shape = getattr(X, "shape", ())
        if len(shape) == 1 and hasattr(self, "n_features_in_"):
            raise ValueError(f"X must have a column per feature; got shape {shape}. Reshape your data to a matrix.")
        X = validate_data(self, X, reset=False, skip_check_array=True)
        return _scores(self.estimator_, X, self._never)


@dataclass(frozen=True, eq=False)
class _Task:
    """The estimator and all training rows, with y as the estimator takes it and as an indicator matrix Y."""

    estimator: Any
    X: Any
    y: np.ndarray
    Y: np.ndarray
    form: targets.Targets
    weights: np.ndarray
    passes_weights: bool

    def fit(self, rows):
        """A clone of the estimator fitted to the rows with these numbers."""
        estimator = clone(self.estimator)
        X, y = _safe_split(estimator, self.X, self.y, rows)
        options = {"sample_weight": self.weights[rows]} if self.passes_weights else {}
        try:
            return estimator.fit(X, y, **options)
        except ValueError as error:
            constant = np.flatnonzero(np.ptp(self.Y[rows], axis=0) == 0)
            if len(constant) == 0:
                raise
            raise ValueError(
                f"The estimator must take labels that all or none of its training rows have, as label {constant[0]} "
                f"in all rows or those of a fold; it says {str(error)!r}. Wrap what it fits per label in "
                "mlrh.baselines.OrConstant, use other folds, or drop the label."
            ) from error


def _task(estimator, X, form, Y, sample_weight):
    """The checked training rows."""
    targets.check_same_length(X, Y)
    if form.is_one_class_per_row and len(form.classes) > 2:
        raise ValueError(
            "Only binary classification is supported. For one class per row there must be 2 classes, got "
            f"{len(form.classes)}: thresholds would choose several classes or none."
        )
    if not any(hasattr(estimator, ends.method) for ends in (PROBABILITIES, DECISION_VALUES)):
        raise ValueError(f"The estimator must have predict_proba or decision_function; {estimator!r} has neither.")
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if sample_weight is not None and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(f"sample_weight must be None, because {type(estimator).__name__}.fit doesn't take it.")
    if (weights == 0).any():
        shown = Y[weights > 0]
        form, Y = form.seen_in(shown)[0], Y[:, shown.any(axis=0)] if form.kind == "sets" else Y
    y = form.classes[Y[:, 0].astype(np.int64)] if form.is_one_class_per_row else Y.astype(np.int64)
    y = y[:, 0] if Y.shape[1] == 1 and y.ndim == 2 else y
    return _Task(estimator, X, y, Y, form, weights, passes_weights=sample_weight is not None)


def _folds(cv, task):
    """(training rows, held-out rows of positive weight) of each fold that has any."""
    present = np.flatnonzero(task.weights > 0)
    if cv is None or isinstance(cv, Integral):
        n_folds = min(N_FOLDS, len(present)) if cv is None else int(cv)
        if not 2 <= n_folds <= len(present):
            raise ValueError(
                f"Cross validation needs from 2 folds to as many as rows of positive weight; got {n_folds} folds for "
                f"n_samples={len(present)}."
            )
        fold = _spread_labels(task.Y[present], n_folds)
        splits = [(present[fold != number], present[fold == number]) for number in range(n_folds)]
    else:
        splits = list(check_cv(cv).split(task.X, task.y))
    folds = [(np.asarray(train), np.asarray(held_out)) for train, held_out in splits]
    folds = [(train, held_out[task.weights[held_out] > 0]) for train, held_out in map(_as_numbers, folds)]
    folds = [fold for fold in folds if len(fold[1])]
    if len(folds) < 2:
        raise ValueError(f"cv must give at least 2 folds with held-out rows of positive weight; got {len(folds)}.")
    return folds


def _as_numbers(split):
    return tuple(np.flatnonzero(rows) if rows.dtype == bool else rows for rows in split)


def _spread_labels(Y, n_folds):
    """The fold (n_samples,) of each row, so that rows with and without each label are spread evenly.

    As in iterative stratification: what is rarest is dealt out first, each row to the fold that has the least of it
    and, of these, the fewest rows.
    """
    kinds = np.hstack([Y, 1 - Y]).astype(np.int64)
    fold, in_fold = np.full(len(Y), -1), np.zeros((n_folds, 1 + kinds.shape[1]), np.int64)
    shuffled = np.random.RandomState(0).permutation(len(Y))
    for kind in np.argsort(kinds.sum(axis=0), kind="stable"):
        for row in shuffled[(kinds[shuffled, kind] == 1) & (fold[shuffled] < 0)]:
            fold[row] = np.lexsort([in_fold[:, 0], in_fold[:, 1 + kind]])[0]
            in_fold[fold[row]] += np.append(1, kinds[row])
    return fold


def _held_out_scores(task, train, held_out):
    """Scores of the held-out rows by the estimator fitted to the others; warnings are left to the fit of all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = task.fit(train)
        X, _ = _safe_split(fitted, task.X, task.y, held_out, train)
        never = ~task.Y[train][task.weights[train] > 0].any(axis=0)
        return _scores(fitted, X, never), _ends(fitted)


def _pooled(task, folds, held_out):
    """The held-out rows of all folds."""
    numbers = np.concatenate([rows for _, rows in folds])
    scores = np.vstack([scores for scores, _ in held_out])
    fold = np.repeat(np.arange(len(folds)), [len(rows) for _, rows in folds])
    return Rows(scores, task.Y[numbers], task.weights[numbers], fold, held_out[0][1])


def _gives_probabilities_of_labels(meta):
    form, estimator = getattr(meta, "_targets", None), getattr(meta, "estimator_", None)
    return form is not None and not form.is_one_class_per_row and hasattr(estimator, "predict_proba")


def _ends(fitted):
    return PROBABILITIES if hasattr(fitted, "predict_proba") else DECISION_VALUES


def _scores(fitted, X, never):
    """Probabilities of the labels (n_samples, n_labels), or else their decision values, whatever form they come in.

    Lists hold a matrix per label with a column per class, a single one where training showed one class; never
    (n_labels,) says for which labels that was 0.
    """
    answer = getattr(fitted, _ends(fitted).method)(X)
    if isinstance(answer, list | tuple):
        answer = np.column_stack([_of_label(part, absent) for part, absent in zip(answer, never, strict=True)])
    scores = np.asarray(answer.toarray() if sparse.issparse(answer) else answer, np.float64)
    if len(never) == 1:
        scores = scores[:, None] if scores.ndim == 1 else scores[:, -1:]
    if scores.shape != (_num_samples(X), len(never)):
        raise ValueError(
            f"The estimator's {_ends(fitted).method} must give {len(never)} labels to each of {_num_samples(X)} rows; "
            f"got shape {scores.shape}. Wrap it in OneVsRestClassifier if it takes one class per row only."
        )
    _check_finite(scores)
    return scores


def _of_label(part, absent):
    part = np.asarray(part, np.float64)
    if part.ndim == 2 and part.shape[1] == 1:
        return 1.0 - part[:, 0] if absent else part[:, 0]
    return part[:, 1] if part.ndim == 2 else part


def _check_finite(scores):
    bad = ~np.isfinite(scores)
    if bad.any():
        row, label = np.argwhere(bad)[0]
        raise ValueError(f"Scores must be finite; got {scores[row, label]} for label {label} of row {row}.")
