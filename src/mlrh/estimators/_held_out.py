"""Cross validation of any classifier: the task, its folds, and its answers for held-out rows.

Shared by CalibratedSets, TunedThresholds and PooledSets, which are built around other classifiers, and by chains.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logit
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from mlrh import decisions
from mlrh._indicators import UNKNOWN, as_indicator
from mlrh._sklearn import check_sample_weight, num_samples, safe_split
from mlrh.estimators import _device, _features, _targets
from mlrh.model_selection import MultilabelStratifiedKFold
from mlrh.spaces import CardinalitySpace, LabelSetDistribution, LabelSpace

N_FOLDS = 5  # scikit-learn's default


@dataclass(frozen=True, eq=False)
class Task:
    """The estimator and all training rows, with y as the estimator takes it and as an indicator matrix Y.

    weights_name is the name of the weights in the estimator's fit; None where no weights are passed.
    """

    estimator: Any
    X: Any
    y: np.ndarray
    Y: np.ndarray
    form: _targets.Targets
    weights: np.ndarray
    weights_name: str | None

    def fit(self, rows=None):
        """A clone of the estimator fitted to the rows with these numbers, all by default."""
        rows = np.arange(len(self.Y)) if rows is None else rows
        estimator = clone(self.estimator)
        X, y = safe_split(estimator, self.X, self.y, rows)
        options = {} if self.weights_name is None else {self.weights_name: self.weights[rows]}
        try:
            return estimator.fit(X, y, **options)
        except ValueError as error:
            constant = np.flatnonzero(np.ptp(self.Y[rows], axis=0) == 0)
            if len(constant) == 0:
                raise
            raise ValueError(
                f"{error} (All or none of the rows of this fit have label {constant[0]}. If the estimator can't take "
                "that, wrap what it fits per label in mlrh.baselines.OrConstant, use other folds, or drop the label.)"
            ) from error

    def answer(self, train, held_out, question):
        """question(fitted, X), with the estimator fitted to the rows train and X the held-out rows.

        Warnings are ignored: the fit to all rows gives its own.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = self.fit(train)
            X, _ = safe_split(fitted, self.X, self.y, held_out, train)
            return question(fitted, X)

    def never(self, rows=None):
        """Which labels none of the rows with these numbers has, (n_labels,)."""
        rows = np.arange(len(self.Y)) if rows is None else rows
        return ~(self.Y[rows][self.weights[rows] > 0] == 1).any(axis=0)


def task(estimator, X, form, Y, sample_weight, *, partly_known=False) -> Task:
    """The Task of the training rows, checked; form and Y are those of y. With partly_known, Y may hold UNKNOWN."""
    _targets.check_same_length(X, Y)
    if not partly_known:
        _check_every_label_known(Y)
    weights = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    name = None if sample_weight is None else name_of_weights(estimator)
    spaces = {key: value for key, value in estimator.get_params().items() if isinstance(value, LabelSpace)}
    if (weights == 0).any() and (form.is_one_class_per_row or not spaces):
        form, Y = _shown(form, Y, weights > 0)  # but an instance says itself which labels there are
    if spaces and not form.is_one_class_per_row:
        # The estimator gets an array, whose columns have no names.
        by_index = {key: space.with_indices(form.classes) for key, space in spaces.items()}
        estimator = clone(estimator).set_params(**by_index)
    y = form.decode(Y) if form.is_one_class_per_row else _with_nan(Y)
    y = y[:, 0] if Y.shape[1] == 1 and y.ndim == 2 else y
    return Task(estimator, X, y, Y, form, weights, name)


def _with_nan(Y):
    """Y as estimators take it: whole numbers, or NaN where a label is unknown."""
    return np.where(Y == UNKNOWN, np.nan, Y) if (Y == UNKNOWN).any() else Y.astype(np.int64)


def folds(cv, task) -> list:
    """Pairs of row numbers (training rows, held-out rows of positive weight), for folds that hold out such rows."""
    present = np.flatnonzero(task.weights > 0)
    if cv is None or isinstance(cv, Integral):
        n_folds = min(N_FOLDS, len(present)) if cv is None else int(cv)
        if not 2 <= n_folds <= len(present):
            raise ValueError(
                f"Cross validation needs from 2 folds to as many as rows of positive weight; got {n_folds} folds for "
                f"n_samples={len(present)}."
            )
        stratified = MultilabelStratifiedKFold(n_folds, shuffle=True, random_state=0).split(
            task.Y[present], task.Y[present]
        )
        splits = [(present[train], present[held_out]) for train, held_out in stratified]
    else:
        splits = list(check_cv(cv).split(task.X, task.y))
    numbered = map(_as_numbers, splits)
    result = [(train, held_out[task.weights[held_out] > 0]) for train, held_out in numbered]
    result = [fold for fold in result if len(fold[1])]
    if len(result) < 2:
        raise ValueError(f"cv must give at least 2 folds with held-out rows of positive weight; got {len(result)}.")
    return result


def first_fold(folds) -> np.ndarray:
    """For every held-out row of every fold in turn, the first fold that holds it out, (n_held_out,).

    Folds may repeat rows. A choice for a row is then made without the rows whose first fold is the same.
    """
    rows, fold = (
        np.concatenate([rows for _, rows in folds]),
        np.repeat(np.arange(len(folds)), [len(r) for _, r in folds]),
    )
    _, first, place = np.unique(rows, return_index=True, return_inverse=True)
    if len(np.unique(fold[first])) < 2:
        raise ValueError(
            "The rows of each fold are judged by the rows of other folds, so that folds must hold out different rows; "
            f"here the first fold holds out all {len(first)}. Use folds that don't overlap."
        )
    return fold[first][place]


def validated_rows(meta, X):
    """X for the estimator within a meta-estimator, which must be fitted; names and number of columns as in training."""
    check_is_fitted(meta)
    _device.refuse(X, type(meta).__name__)
    _features.check(X)
    shape = getattr(X, "shape", ())
    if len(shape) == 1 and hasattr(meta, "n_features_in_"):
        raise ValueError(f"X must have a column per feature; got shape {shape}. Reshape your data to a matrix.")
    return validate_data(meta, X, reset=False, skip_check_array=True)


def name_of_weights(estimator):
    """The name of sample_weight in the estimator's fit; in a pipeline the name of its last step comes first."""
    if isinstance(estimator, Pipeline):
        step, last = estimator.steps[-1]
        return f"{step}__{name_of_weights(last)}"
    if _is_search(estimator):  # hands on what its fit gets
        return name_of_weights(estimator.estimator)
    if not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(f"sample_weight must be None, because {type(estimator).__name__}.fit doesn't take it.")
    return "sample_weight"


def label_scores(fitted, X, never, method) -> np.ndarray:
    """The values that a method of a classifier gives to the labels, (n_samples, n_labels), from any form of answer.

    A list holds a matrix per label with a column per class. It has a single column where training showed one class:
    `never` (n_labels,) says for which labels that class was 0.
    """
    answer = getattr(fitted, method)(X)
    if isinstance(answer, list | tuple):
        answer = np.column_stack([_of_label(part, absent) for part, absent in zip(answer, never, strict=True)])
    scores = np.asarray(answer.toarray() if sparse.issparse(answer) else answer, np.float64)
    if len(never) == 1:
        scores = scores[:, None] if scores.ndim == 1 else scores[:, -1:]
    if scores.shape != (num_samples(X), len(never)):
        raise ValueError(
            f"The estimator's {method} must give {len(never)} labels to each of {num_samples(X)} rows; "
            f"got shape {scores.shape}. Wrap it in OneVsRestClassifier if it takes one class per row only."
        )
    check_finite(scores)
    return scores


def raised_thresholds(task, fitted, thresholds) -> np.ndarray:
    """Thresholds (n_labels,) for the marginals of a fitted classifier, raised where its label space needs it."""
    every = np.arange(len(task.Y))
    X, _ = safe_split(fitted, task.X, task.y, every[:1], every)
    last, features = _last_step(fitted, X)
    return last.distribution(features).raised_thresholds(thresholds) if hasattr(last, "distribution") else thresholds


def check_finite(scores):
    """Raise a ValueError that names the first place where scores (n_samples, n_labels) are not finite."""
    bad = ~np.isfinite(scores)
    if bad.any():
        row, label = np.argwhere(bad)[0]
        raise ValueError(f"Scores must be finite; got {scores[row, label]} for label {label} of row {row}.")


def _check_every_label_known(Y):
    unknown = (Y == UNKNOWN).any(axis=1)
    if unknown.any():
        raise ValueError(
            f"y needs every label known, since held-out sets are compared with it; {np.count_nonzero(unknown)} rows "
            f"have NaN or masked entries, the first is row {int(np.argmax(unknown))}. Drop these rows."
        )


def _shown(form, Y, present):
    """Form and matrix without labels or classes that only rows of weight 0 have; such a row gets another class."""
    shown = form.seen_in(Y[present])[0]
    if form.kind == "sets":
        return shown, Y[:, Y[present].any(axis=0)]
    return shown, shown.partial_indicator(form.decode(Y))[0] if form.is_one_class_per_row else Y


def _as_numbers(split):
    return tuple(np.flatnonzero(rows) if rows.dtype == bool else rows for rows in map(np.asarray, split))


def _of_label(part, absent):
    """The values (n_samples,) that one matrix of a list gives to its label."""
    part = np.asarray(part, np.float64)
    if part.ndim == 2 and part.shape[1] == 1:
        return 1.0 - part[:, 0] if absent else part[:, 0]
    return part[:, 1] if part.ndim == 2 else part


RESOLUTION = np.finfo(np.float64).eps  # probabilities are kept this far from 0 and 1, so that their logits are finite


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of a fitted classifier for some rows: their distribution, its own sets, and its decision.

    The decision is a function of the distribution, or None where the predicted sets are the same at any temperature.
    """

    distribution: LabelSetDistribution
    own_sets: np.ndarray
    decision: Callable | None

    def sets(self, temperature):
        """Predicted sets (n_samples, n_labels)."""
        if self.decision is None or temperature == 1:
            return self.own_sets
        return self.decision(self.distribution.temper(temperature))

    def confidence(self, temperature):
        """Probabilities of the predicted sets, (n_samples,)."""
        probs = self.distribution.temper(temperature).prob(self.sets(temperature))
        return np.minimum(probs.astype(np.float64), 1.0)


def ask(fitted, X, form, never):
    """The Answers of a fitted classifier for the rows of X.

    form is that of the y it was fitted to. never (n_labels,) says which labels none of its training rows had.
    """
    predicted = fitted.predict(X)
    own_sets = form.indicator(predicted) if form.is_one_class_per_row else _as_sets(predicted, len(form.classes))
    last, _ = _last_step(fitted, X)
    decision = _decision(last, form) if hasattr(last, "distribution") else None
    return Answers(distribution_of(fitted, X, form, never), own_sets, decision)


def distribution_of(fitted, X, form, never) -> LabelSetDistribution:
    """The distribution of the label set of each row of X by a fitted classifier; form and never as for `ask`.

    Without a distribution of its own, its labels are independent, with the marginals of its predict_proba.
    """
    last, features = _last_step(fitted, X)
    if hasattr(last, "distribution"):
        return last.distribution(features)
    if not hasattr(fitted, "predict_proba"):
        raise ValueError(f"The estimator must have distribution or predict_proba once fitted; {fitted!r} has neither.")
    never = np.zeros(n_labels(form), bool) if form.is_one_class_per_row else never
    return _independent(label_scores(fitted, X, never, "predict_proba"), form)


def distribution(model, X) -> LabelSetDistribution:
    """The distribution of the label set of each row of X, by a fitted model that has such a classifier at its end.

    Parameters
    ----------
    model : classifier of mlrh, or one inside pipelines, searches such as GridSearchCV, or FrozenEstimator
        Also CalibratedSets (its calibrated distribution), TunedThresholds, PooledSets, and a Model of `mlrh fit`.
    X : rows as the model takes them

    Examples
    --------
    >>> import mlrh
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [{"a"}, {"a", "b"}, {"a", "b"}, {"b"}]
    >>> pipeline = make_pipeline(StandardScaler(), mlrh.MLRHClassifier()).fit(X, y)
    >>> mlrh.distribution(pipeline, [[1.4]]).mode()
    array([[1, 1]], dtype=int8)
    """
    if hasattr(model, "fit"):  # a Model of `mlrh fit` has none, and is always fitted
        check_is_fitted(model)
    if not has_distribution(model):
        raise ValueError(
            "model must end in a classifier that has a distribution of label sets, as those of mlrh do (CalibratedSets "
            f"only with method='temperature'); got {type(model).__name__}."
        )
    last, features = _last_step(model, X)
    return last.distribution(features)


def form_and_truth(task, fitted, rows):
    """The form of y in which a classifier of one fold answers; and the true sets of some rows in that form.

    Last comes which rows have a class that the fold's classifier knows: one class per row may be new to it.
    """
    if not task.form.is_one_class_per_row:
        return task.form, task.Y[rows], np.ones(len(rows), bool)
    form = replace(task.form, classes=np.asarray(fitted.classes_))
    is_known = np.isin(task.y[rows], form.classes)
    truth = np.zeros((len(rows), n_labels(form)), np.int8)
    if is_known.any():
        truth[is_known] = form.indicator(task.y[rows][is_known])
    return form, truth, is_known


def n_labels(form):
    """Number of columns of the sets for a form of y: two classes are one label."""
    return 1 if form.is_one_class_per_row and len(form.classes) == 2 else len(form.classes)


def _as_sets(predicted, n_columns):
    predicted = np.asarray(predicted.toarray() if hasattr(predicted, "toarray") else predicted)
    return as_indicator(predicted.reshape(-1, n_columns), "The estimator's predictions")


def has_distribution(model) -> bool:
    """Whether a model, fitted or not, ends in a classifier that has a distribution of label sets."""
    return hasattr(model, "distribution") or ((inner := _inner(model)) is not None and has_distribution(inner))


def _last_step(fitted, X):
    """The classifier inside pipelines and searches, and the features that it gets for X."""
    inner = None if hasattr(fitted, "distribution") else _inner(fitted)
    if inner is None:
        return fitted, X
    is_longer = isinstance(fitted, Pipeline) and len(fitted) > 1
    return _last_step(inner, fitted[:-1].transform(X) if is_longer else X)


def _inner(model):
    """What a pipeline, a search or a FrozenEstimator hands its rows to; None where the model is none of these."""
    if isinstance(model, Pipeline):
        return model[-1]
    if isinstance(model, FrozenEstimator):
        return model.estimator
    if hasattr(model, "best_estimator_"):
        return model.best_estimator_
    return model.estimator if _is_search(model) else None


def _is_search(estimator):
    # The class that all searches have is private, these two parameters are not.
    params = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    return {"refit", "error_score"} <= params.keys()


def _decision(classifier, form):
    """The classifier's decision as a function of the distribution; None where a temperature doesn't change it."""
    decision = getattr(classifier, "decision", "exact_match")
    if form.is_one_class_per_row or decision == "exact_match":
        return None
    return decisions.resolve(decision, getattr(classifier, "answer_sizes", None))


def _independent(probabilities, form):
    """The distribution of independent labels, or of one class per row, with these probabilities."""
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError(
            f"The estimator's predict_proba must lie from 0 to 1; got {probabilities.min()} to {probabilities.max()}."
        )
    clipped, n_columns = np.clip(probabilities, RESOLUTION, 1 - RESOLUTION), probabilities.shape[1]
    if form.is_one_class_per_row and len(form.classes) != 2:
        return CardinalitySpace(n_columns, 1, 1).distribution(np.log(clipped))
    return CardinalitySpace(n_columns, 0, n_columns).distribution(logit(clipped))
