"""Set confidence that can be trusted: calibrated by cross validation, and answers only where it is high enough.

Around any classifier that gives a distribution of the label set, or probabilities of labels. Knows nothing of fitting.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import brentq
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, _fit_context
from sklearn.isotonic import IsotonicRegression
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags, indexable
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh import decisions, held_out, metrics, targets
from mlrh.indicator import as_indicator
from mlrh.label_space import CardinalitySpace, LabelSetDistribution

TEMPERATURES = (0.01, 1e4)  # the lowest and the highest that is chosen
RESOLUTION = np.finfo(np.float64).eps  # the least probability; 1 less this is the largest one
N_HONEST = 10  # groups of folds at most, so that one row per fold isn't one calibration per row


def isotonic_map(confidence, correct, *, sample_weight=None) -> IsotonicRegression:
    """The non-decreasing function of confidence that fits best to whether rows are right, a fitted IsotonicRegression.

    One imagined right row below all others and one wrong row above, each of weight 1, keep it from 0 and 1.

    Parameters
    ----------
    confidence : array of shape (n_samples,)
        Probabilities that the model gave to what it predicted for rows that it was not fitted to.
    correct : array of shape (n_samples,)
        Whether (1 or True) the prediction was right.
    sample_weight : array of shape (n_samples,), optional

    Examples
    --------
    >>> from mlrh.calibration import isotonic_map
    >>> isotonic_map([0.2, 0.4, 0.8, 0.8], [0, 0, 1, 1]).predict([0.1, 0.4, 0.9]).round(2)
    array([0.33, 0.33, 0.67])
    """
    confidence, correct = np.r_[-1.0, confidence, 2.0], np.r_[1.0, correct, 0.0]
    weights = None if sample_weight is None else np.r_[1.0, sample_weight, 1.0]
    return IsotonicRegression(out_of_bounds="clip").fit(confidence, correct, sample_weight=weights)


def _calibrates_distributions(meta):
    if meta.method != "temperature":
        raise AttributeError(
            f"method={meta.method!r} calibrates the confidence only; use method='temperature' for a calibrated "
            "distribution, or estimator_ for the one without calibration."
        )
    return True


@dataclass(frozen=True, eq=False)
class Selected:
    """Label sets for the rows that were answered, and only these.

    sets : of the answered rows in their order, in the form of y: as many as `rows`
    rows : numbers of the answered rows
    answered : whether each row of X is answered, (n_samples,)
    confidence : of every row of X, (n_samples,)
    """

    sets: Any
    rows: np.ndarray
    answered: np.ndarray
    confidence: np.ndarray


class CalibratedSets(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier whose confidence, the probability that its set is exactly right, is calibrated by cross validation.

    The estimator is fitted once per fold, and once more to all rows. What it says of the held-out rows, pooled over the
    folds, decides how its probabilities are corrected:

    - "temperature": one number T; every distribution becomes proportional to P(y)^(1/T). T maximises the likelihood of
      the true sets of the held-out rows, which is concave in 1/T, so there is one best T; it lies where their mean
      log-loss equals the mean entropy, and within 0.01 to 10,000. The whole distribution is calibrated, and the most
      probable set stays. True sets that the estimator holds impossible (`outside_share_`) can't be made likelier by any
      T and are left out, so the confidence then is that of a set being right where the true one is possible at all.
    - "isotonic": the confidence is mapped by the non-decreasing function that fits best, in the least squares sense, to
      whether the held-out sets are right (`isotonic_map`). It can mend any monotone error, rows held impossible
      included, but needs more rows (a few hundred) and says nothing of other sets than the predicted one. It is
      constant over intervals, so many rows share a confidence, and kept from 0 and 1, however few rows the ends have.

    Parameters
    ----------
    estimator : classifier
        With a `distribution`, as MLRHClassifier; also as the last step of a pipeline, or in a search such as
        GridSearchCV. Or with predict_proba of any usual form, a matrix (n_samples, n_labels) or a list of one matrix
        per label: then labels are taken as independent given x, the confidence is the product over labels, and
        probabilities of 0 and 1 count as 2.2e-16 and 1 less that.
    method : {"temperature", "isotonic"}, default="temperature"
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        None (5, or fewer where rows are fewer) and int: that many shuffled folds, over which each label is spread as
        evenly as the others allow, rarest first.
    n_jobs : int, default=None
        Processes over folds, as in joblib.

    Attributes
    ----------
    temperature_ : float
        1 with method="isotonic".
    calibrator_ : IsotonicRegression, or None with method="temperature"
    confidence_, correct_ : arrays of shape (n_held_out,)
        Confidence in the set of each held-out row, calibrated by other folds only, and whether the set is right.
    raw_confidence_, raw_correct_ : arrays of shape (n_held_out,)
        The same without calibration. (Sets are the same, too, unless the estimator's decision depends on the
        temperature, as that for F1 does.)
    rows_ : array of shape (n_held_out,)
        Which rows of training these are.
    calibration_error_, raw_calibration_error_ : float
        Expected calibration error of both, over 15 bins of equal numbers of rows. Chance alone makes it positive: 0.03
        to 0.05 for 1,000 rows.
    risk_coverage_ : mlrh.metrics.RiskCoverage
        Of confidence_ and correct_.
    outside_share_ : float
        Share of the held-out rows whose true set the estimator holds impossible.
    estimator_ : the estimator, fitted to all rows
    classes_ : array
        Names of the labels, or the classes of y.
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from mlrh import MLRHClassifier
    >>> from mlrh.calibration import CalibratedSets
    >>> X, Y = make_multilabel_classification(400, n_classes=4, allow_unlabeled=False, random_state=0)
    >>> clf = CalibratedSets(MLRHClassifier(C=100)).fit(X[:300], Y[:300])
    >>> bool(clf.temperature_ > 1)  # the classifier was too sure
    True
    >>> selected = clf.select(X[300:], min_confidence=0.6)
    >>> len(selected.sets) == len(selected.rows)  # the other rows have no answer, not even an empty one
    True
    """

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit", "predict"])],
        "method": [StrOptions({"temperature", "isotonic"})],
        "cv": ["cv_object"],
        "n_jobs": [Integral, None],
    }
    estimator_: Any
    _targets: targets.Targets

    def __init__(self, estimator, *, method="temperature", cv=None, n_jobs=None):
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to each fold and to all rows, and calibrate its confidence.

        Parameters
        ----------
        X : whatever the estimator takes, with n_samples rows
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            The estimator gets an array of 0 and 1, or the classes.
        sample_weight : array of shape (n_samples,), optional
            Passed on to the estimator, and the weights of the rows in the calibration: a row of weight 2 counts as the
            row twice, one of weight 0 as absent.

        Returns
        -------
        self
        """
        X = indexable(validate_data(self, X, skip_check_array=True))[0]
        form, Y = targets.encode(y)
        task = held_out.task(self.estimator, X, form, Y, sample_weight)
        folds = held_out.folds(self.cv, task)
        parts = Parallel(n_jobs=self.n_jobs)(delayed(_part_of_fold)(task, *fold) for fold in folds)
        self._calibrate(parts)
        self.rows_ = np.concatenate([rows for _, rows in folds])
        self.estimator_, self._never = task.fit(), task.never()
        self._targets, self.classes_ = task.form, task.form.classes
        return self

    def predict(self, X):
        """Label sets for the rows of X by the estimator's own decision, in the form of the y of training."""
        sets = self._answers(X).sets(self.temperature_)
        return self._targets.decode(sets, X)

    def confidence(self, X) -> np.ndarray:
        """Calibrated probability that the predicted set of each row is exactly right, (n_samples,)."""
        return self._calibration.confidence(self._answers(X))

    def select(self, X, min_confidence) -> Selected:
        """Label sets for the rows of X whose confidence is at least min_confidence, and no answer for the others.

        Examples
        --------
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from mlrh import MLRHClassifier
        >>> from mlrh.calibration import CalibratedSets
        >>> X, Y = make_multilabel_classification(300, n_classes=4, allow_unlabeled=False, random_state=0)
        >>> clf = CalibratedSets(MLRHClassifier()).fit(X[:250], Y[:250])
        >>> selected = clf.select(X[250:], clf.threshold_for_risk(0.4))
        >>> bool(selected.confidence[selected.answered].min() > selected.confidence[~selected.answered].max())
        True
        """
        if not isinstance(min_confidence, Real) or np.isnan(float(min_confidence)):
            raise ValueError(f"min_confidence must be a number; got {min_confidence!r}.")
        answers = self._answers(X)
        confidence = self._calibration.confidence(answers)
        answered = confidence >= min_confidence
        rows = np.flatnonzero(answered)
        sets = answers.sets(self.temperature_)[rows]
        return Selected(
            self._targets.decode(sets, X.iloc[rows] if hasattr(X, "iloc") else None), rows, answered, confidence
        )

    def threshold_for_risk(self, risk, *, assurance=None) -> float:
        """The lowest confidence from which on at most a share `risk` of held-out sets is wrong; inf if there is none.

        Without assurance that is what the held-out rows show (`risk_coverage_`): the best of many thresholds on the
        same rows, so that new rows tend to have a somewhat higher risk.

        With an assurance such as 0.95 it is the lowest of the thresholds that answer 5 %, 10 %, ..., 100 % of the
        held-out rows whose exact upper bound on the risk is at most `risk`, where all 20 bounds hold together with that
        probability (`mlrh.metrics.assured_threshold`). This is about new rows like those of training, answered by the
        models of the folds. It does not cover what changes when the estimator is fitted to all rows (usually for the
        better), that models of different folds share rows, rows of another kind, nor the risk within a group of rows
        or for a single label. Every row must have the same weight and be held out once.
        """
        check_is_fitted(self)
        if assurance is None:
            return self.risk_coverage_.largest_coverage(risk).threshold
        if len(np.unique(self.rows_)) < len(self.rows_) or np.ptp(self._weights) > 0:
            raise ValueError(
                "An assurance must have rows of equal weight that are held out once each, which is not so here; fit "
                "without sample_weight and with folds that don't overlap, or leave assurance out."
            )
        return metrics.assured_threshold(self.confidence_, self.correct_, risk=risk, assurance=assurance)

    @available_if(_calibrates_distributions)
    def distribution(self, X) -> LabelSetDistribution:
        """The calibrated distribution of the label set of each row of X; with method="temperature" only.

        Columns are those of classes_; two classes as y are one label, the second class.
        """
        return self._answers(X).distribution.temper(self.temperature_)

    @available_if(_calibrates_distributions)
    def predict_proba(self, X) -> np.ndarray:
        """Calibrated marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x).

        With method="temperature" only; estimator_.predict_proba has the others.
        """
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row and len(self.classes_) == 2:
            return distribution.cardinality_pmf()
        return distribution.marginals()

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right."""
        predicted = self._answers(X).sets(self.temperature_)  # first, so that what isn't fitted says so
        return self._targets.share_right(predicted, y, sample_weight)

    def __sklearn_tags__(self):
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = own.input_tags, own.classifier_tags or tags.classifier_tags
        tags.target_tags.multi_output = own.target_tags.multi_output
        return tags

    def _calibrate(self, parts):
        """Set the calibration and what the held-out rows say of it."""
        weights = np.concatenate([part.weights for part in parts])
        outside = np.concatenate([~part.inside for part in parts])
        if outside.all() and self.method == "temperature":
            raise ValueError(
                f"A temperature needs held-out rows whose set the estimator holds possible; it excludes all "
                f"{len(outside)}. Use method='isotonic', a larger label space or more rows."
            )
        self._weights, self.outside_share_ = weights, float(np.average(outside, weights=weights))
        raw = [(part.answers.confidence(1.0), part.correct(1.0)) for part in parts]
        honest = [(c.confidence(part.answers), part.correct(c.temperature)) for part, c in self._honest(parts)]
        self.raw_confidence_, self.raw_correct_ = (np.concatenate(arrays) for arrays in zip(*raw, strict=True))
        self.confidence_, self.correct_ = (np.concatenate(arrays) for arrays in zip(*honest, strict=True))
        self.raw_calibration_error_ = self._error(self.raw_confidence_, self.raw_correct_)
        self.calibration_error_ = self._error(self.confidence_, self.correct_)
        self.risk_coverage_ = metrics.risk_coverage(self.confidence_, self.correct_, sample_weight=weights)
        self._calibration = CALIBRATIONS[self.method](parts)
        self.temperature_, self.calibrator_ = self._calibration.temperature, self._calibration.regression

    def _honest(self, parts):
        """Each part with a calibration by others, without the part's own group of folds."""
        group = np.arange(len(parts)) % N_HONEST
        chosen = {
            number: CALIBRATIONS[self.method]([part for part, g in zip(parts, group, strict=True) if g != number])
            for number in np.unique(group)
        }
        return [(part, chosen[number]) for part, number in zip(parts, group, strict=True)]

    def _error(self, confidence, correct):
        return metrics.expected_calibration_error(confidence, correct, sample_weight=self._weights)

    def _answers(self, X):
        check_is_fitted(self)
        return _ask(self.estimator_, held_out.validated_rows(self, X), self._targets, self._never)


@dataclass(frozen=True, eq=False)
class _Answers:
    """What a fitted classifier says of rows: the distribution, its own sets, and its decision.

    The decision is a function of the distribution, or None where the classifier's own sets are right at any
    temperature.
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


@dataclass(frozen=True, eq=False)
class _Part:
    """Held-out rows of a fold: answers, true sets, whether the classifier of the fold knows their labels, weights."""

    answers: _Answers
    truth: np.ndarray
    is_known: np.ndarray
    weights: np.ndarray

    @property
    def inside(self):
        """Whether the true sets are possible, (n_samples,)."""
        return self.is_known & np.isfinite(self.answers.distribution.log_prob(self.truth))

    def correct(self, temperature):
        return (self.answers.sets(temperature) == self.truth).all(axis=1) & self.is_known

    def slope(self, temperature, inside):
        """Derivative of the log-likelihood of the true sets by 1/T, each (n_samples,).

        d log P(y) / d(1/T) = T (log P(y) + entropy): with s(y) the score of a set with its bias, log P(y) =
        s(y)/T - log Z and the entropy is log Z - E[s]/T, which leaves s(y) - E[s].
        """
        tempered = self.answers.distribution.temper(temperature)
        slopes = temperature * (tempered.log_prob(self.truth).astype(np.float64) + tempered.entropy())
        return float(self.weights[inside] @ slopes[inside])


@dataclass(frozen=True, eq=False)
class _Calibration:
    """Confidence from answers: at a temperature, then mapped by the regression where there is one."""

    temperature: float = 1.0
    regression: IsotonicRegression | None = None

    def confidence(self, answers):
        confidence = answers.confidence(self.temperature)
        return confidence if self.regression is None else self.regression.predict(confidence)


def _by_temperature(parts):
    """The temperature within TEMPERATURES of the largest likelihood; 1 where none matters."""
    inside = [part.inside for part in parts]

    def slope(log_temperature):
        temperature = np.exp(log_temperature)
        return sum(part.slope(temperature, rows) for part, rows in zip(parts, inside, strict=True))

    lowest, highest = np.log(TEMPERATURES)
    at_lowest, at_highest = slope(lowest), slope(highest)
    if at_lowest >= 0 and at_highest <= 0:
        return _Calibration()
    if at_lowest >= 0 or at_highest <= 0:
        return _Calibration(TEMPERATURES[0] if at_lowest >= 0 else TEMPERATURES[1])
    return _Calibration(float(np.exp(brentq(slope, lowest, highest, xtol=1e-12))))


def _by_isotonic_regression(parts):
    confidence, correct, weights = (
        np.concatenate(arrays)
        for arrays in zip(
            *((part.answers.confidence(1.0), part.correct(1.0), part.weights) for part in parts), strict=True
        )
    )
    return _Calibration(1.0, isotonic_map(confidence, correct, sample_weight=weights))


CALIBRATIONS = {"temperature": _by_temperature, "isotonic": _by_isotonic_regression}


def _part_of_fold(task, train, rows):
    """The held-out rows as the estimator fitted to the others sees them."""
    never = task.never(train)

    def question(fitted, X):
        form = replace(task.form, classes=np.asarray(fitted.classes_)) if task.form.is_one_class_per_row else task.form
        truth, is_known = _truth(task, form, rows)
        return _Part(_ask(fitted, X, form, never), truth, is_known, task.weights[rows])

    return task.answer(train, rows, question)


def _truth(task, form, rows):
    """True sets in the form of one fold, and which rows have a class that it knows."""
    if not form.is_one_class_per_row:
        return task.Y[rows], np.ones(len(rows), bool)
    is_known = np.isin(task.y[rows], form.classes)
    truth = np.zeros((len(rows), _n_labels(form)), np.int8)
    if is_known.any():
        truth[is_known] = form.indicator(task.y[rows][is_known])
    return truth, is_known


def _ask(fitted, X, form, never):
    """The answers of a fitted classifier to rows X."""
    predicted = fitted.predict(X)
    own_sets = form.indicator(predicted) if form.is_one_class_per_row else _as_sets(predicted, _n_labels(form))
    last, features = _last_step(fitted, X)
    if hasattr(last, "distribution"):
        return _Answers(last.distribution(features), own_sets, _decision(last, form))
    if not hasattr(fitted, "predict_proba"):
        raise ValueError(f"The estimator must have distribution or predict_proba once fitted; {fitted!r} has neither.")
    never = np.zeros(_n_labels(form), bool) if form.is_one_class_per_row else never
    return _Answers(_independent(held_out.label_scores(fitted, X, never, "predict_proba"), form), own_sets, None)


def _as_sets(predicted, n_labels):
    predicted = np.asarray(predicted.toarray() if hasattr(predicted, "toarray") else predicted)
    return as_indicator(predicted.reshape(-1, n_labels), "The estimator's predictions")


def _last_step(fitted, X):
    """The classifier within pipelines and searches, and the features that it gets for X."""
    if hasattr(fitted, "best_estimator_"):
        return _last_step(fitted.best_estimator_, X)
    if isinstance(fitted, Pipeline):
        return _last_step(fitted[-1], fitted[:-1].transform(X) if len(fitted) > 1 else X)
    return fitted, X


def _decision(classifier, form):
    decision = getattr(classifier, "decision", "exact_match")
    if form.is_one_class_per_row or decision == "exact_match":
        return None
    return decisions.resolve(decision, classifier.answer_sizes)


def _independent(probabilities, form):
    """The distribution of independent labels, or of one class per row, with these probabilities."""
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError(
            f"The estimator's predict_proba must lie from 0 to 1; got {probabilities.min()} to {probabilities.max()}."
        )
    clipped, n_labels = np.clip(probabilities, RESOLUTION, 1 - RESOLUTION), probabilities.shape[1]
    if form.is_one_class_per_row and len(form.classes) != 2:
        return CardinalitySpace(n_labels, 1, 1).distribution(np.log(clipped))
    return CardinalitySpace(n_labels, 0, n_labels).distribution(logit(clipped))


def _n_labels(form):
    return 1 if form.is_one_class_per_row and len(form.classes) == 2 else len(form.classes)
