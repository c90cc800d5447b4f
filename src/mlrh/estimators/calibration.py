"""CalibratedSets: the confidence in a label set, calibrated by cross validation, and answers only where it is high.

How classifiers are fitted to folds, and in which form they answer, is up to `_held_out`.
"""

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import brentq
from sklearn.base import MetaEstimatorMixin
from sklearn.isotonic import IsotonicRegression
from sklearn.utils import get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh import metrics
from mlrh._sklearn import HasMethods, StrOptions, fit_context
from mlrh.estimators import _device, _features, _held_out, _targets, _whole_fit
from mlrh.estimators._held_out import Answers, ask
from mlrh.spaces import LabelSetDistribution

TEMPERATURES = (0.01, 1e4)  # the lowest and the highest that may be chosen
N_IMAGINED = 4  # imagined rows, drawn from the model as it is: they hold the temperature near 1 where true rows are few
N_HONEST = 10  # groups of folds at most: leave-one-out folds would otherwise need one calibration per row


def isotonic_map(confidence, correct, *, sample_weight=None) -> IsotonicRegression:
    """The non-decreasing function from confidence to the share of right rows that fits best: an IsotonicRegression.

    One imagined right row below all others and one imagined wrong row above them keep the function away from 0 and 1.
    Each has weight 1, or the mean weight of the rows of positive weight if that is less.

    Parameters
    ----------
    confidence : array of shape (n_samples,)
        Probabilities that the model gave to what it predicted for rows that it was not fitted to.
    correct : array of shape (n_samples,)
        Whether (1 or True) the prediction was right.
    sample_weight : array of shape (n_samples,), optional

    Examples
    --------
    >>> from mlrh.estimators.calibration import isotonic_map
    >>> isotonic_map([0.2, 0.4, 0.8, 0.8], [0, 0, 1, 1]).predict([0.1, 0.4, 0.9]).round(2)
    array([0.33, 0.33, 0.67])
    """
    confidence, correct, weights = metrics.present_rows(confidence, correct, sample_weight)
    # -1 and 2 lie outside all confidences. The two rows break the order, so the regression pools them with the ends.
    confidence, correct = np.r_[-1.0, confidence, 2.0], np.r_[1.0, correct, 0.0]
    weights = np.r_[_imagined_weight(weights), weights, _imagined_weight(weights)]
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

    sets : label sets of the answered rows, in the form of y; as many as `rows`
    rows : numbers of the answered rows
    answered : whether each row of X is answered, (n_samples,)
    confidence : of every row of X, (n_samples,)
    """

    sets: Any
    rows: np.ndarray
    answered: np.ndarray
    confidence: np.ndarray


class CalibratedSets(MetaEstimatorMixin, _targets.SetClassifier):
    """A classifier whose confidence, the probability that its set is exactly right, is calibrated by cross validation.

    The estimator is fitted once per fold, and once more to all rows. Its answers for the held-out rows of all folds
    decide how its probabilities are corrected:

    - "temperature": one number T; every distribution becomes proportional to P(y)^(1/T). T maximises the likelihood of
      the true sets of the held-out rows and of 4 imagined rows, drawn from the distributions as they are. The imagined
      rows prevent an extreme T where rows are few, and hardly matter among hundreds. The log-likelihood is concave in
      1/T, so there is one best T, searched from 0.01 to 10,000. The whole distribution is calibrated, and the most
      probable set stays. A true set that the estimator holds impossible is impossible at any T, so such rows are left
      out. The confidence is lowered by their share (`outside_share_`), alike for all rows; the distribution is not.
    - "isotonic": the confidence is mapped by the non-decreasing function that fits best, by least squares, to whether
      the held-out sets are right (`isotonic_map`). It corrects any monotone error, also for rows whose set was held
      impossible. But it needs more rows (a few hundred), and says nothing of sets other than the predicted one. It is
      constant over intervals, so many rows share a confidence, and it stays away from 0 and 1.

    Parameters
    ----------
    estimator : classifier
        With a `distribution`, as MLRHClassifier has; also as the last step of a pipeline, or in a search such as
        GridSearchCV. Or with predict_proba, a matrix (n_samples, n_labels) or a list of one matrix per label: then
        labels are taken as independent given x, the confidence is the product over labels, and probabilities of 0 and 1
        count as 2.2e-16 and 1 - 2.2e-16.
    method : {"temperature", "isotonic"}, default="temperature"
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        An int, or None for 5 (or fewer, where rows are fewer): that many shuffled folds, over which labels are spread
        evenly, rarest first. Folds may repeat rows, but the first one must not hold out all of them.
    n_jobs : int, default=None
        Processes over folds, as in joblib.

    Attributes
    ----------
    temperature_ : float
        1 with method="isotonic".
    calibrator_ : IsotonicRegression, or None with method="temperature"
    confidence_, correct_ : arrays of shape (n_held_out,)
        Confidence in the set of each held-out row, calibrated by rows of other folds only, and whether the set is
        right. Where folds repeat rows, a row counts to the first fold that holds it out.
    raw_confidence_, raw_correct_ : arrays of shape (n_held_out,)
        The same without calibration. (The sets are the same unless the estimator's decision depends on the temperature,
        as the one for F1 does.)
    rows_ : array of shape (n_held_out,)
        Which rows of training these are.
    calibration_error_, raw_calibration_error_ : float
        Expected calibration error of both, over 15 bins of equal numbers of rows. Chance alone makes it positive: 0.03
        to 0.05 for 1,000 rows.
    risk_coverage_ : mlrh.metrics.RiskCoverage
        Of confidence_ and correct_.
    outside_share_ : float
        Share of the held-out rows whose true set the estimator of the fold holds impossible.
    estimator_ : the estimator, fitted to all rows
    classes_ : array
        Names of the labels, or the classes of y.
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from mlrh import MLRHClassifier
    >>> from mlrh.estimators.calibration import CalibratedSets
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

    def __init__(self, estimator, *, method="temperature", cv=None, n_jobs=None):
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.n_jobs = n_jobs

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to each fold and to all rows, and calibrate its confidence.

        Parameters
        ----------
        X : whatever the estimator takes, with n_samples rows
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            With every label known. The estimator gets an array of 0 and 1, or the classes.
        sample_weight : array of shape (n_samples,), optional
            Passed on to the estimator (of a pipeline to the last step, of a search to its estimator), and the weights
            of the rows in the calibration: a row of weight 2 counts as the row twice, one of weight 0 as absent.
            Imagined rows have weight 1, or the mean weight of the others if that is less.

        Returns
        -------
        self
        """
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X = indexable(validate_data(fitted, X, skip_check_array=True))[0]
        form, Y = _targets.encode(y, partly_known=True)
        task = _held_out.task(self.estimator, X, form, Y, sample_weight)
        folds = _held_out.folds(self.cv, task)
        groups = _groups(folds)
        parts = Parallel(n_jobs=self.n_jobs)(delayed(_part_of_fold)(task, *fold) for fold in folds)
        fitted._calibrate(parts, groups)
        fitted.rows_ = np.concatenate([rows for _, rows in folds])
        fitted.estimator_, fitted._never = task.fit(), task.never()
        fitted._targets, fitted.classes_ = task.form, task.form.classes
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    def confidence(self, X) -> np.ndarray:
        """Calibrated probability that the predicted set of each row is exactly right, (n_samples,).

        With method="temperature" that is P(set) under `distribution` times 1 - `outside_share_`, since the distribution
        is only right if the true set is possible at all.
        """
        check_is_fitted(self)
        return self._calibration.confidence(self._answers(X))

    def select(self, X, min_confidence) -> Selected:
        """Label sets for the rows of X whose confidence is at least min_confidence, and no answer for the others.

        Examples
        --------
        >>> from sklearn.datasets import make_multilabel_classification
        >>> from mlrh import MLRHClassifier
        >>> from mlrh.estimators.calibration import CalibratedSets
        >>> X, Y = make_multilabel_classification(300, n_classes=4, allow_unlabeled=False, random_state=0)
        >>> clf = CalibratedSets(MLRHClassifier()).fit(X[:250], Y[:250])
        >>> selected = clf.select(X[250:], clf.threshold_for_risk(0.4))
        >>> bool(selected.confidence[selected.answered].min() > selected.confidence[~selected.answered].max())
        True
        """
        _check_min_confidence(min_confidence)
        answers = self._answers(X)
        confidence = self._calibration.confidence(answers)
        answered = confidence >= min_confidence
        rows = np.flatnonzero(answered)
        sets = answers.sets(self.temperature_)[rows]
        return Selected(
            self._targets.decode(sets, X.iloc[rows] if hasattr(X, "iloc") else None), rows, answered, confidence
        )

    def threshold_for_risk(self, risk, *, assurance=None) -> float:
        """The lowest confidence at or above which at most a share `risk` of held-out sets is wrong; inf if none is.

        Without assurance, that is what the held-out rows show (`risk_coverage_`). It is the best of many thresholds on
        the same rows, so new rows tend to have a somewhat higher risk.

        With an assurance such as 0.95, 20 thresholds are tried, which answer 5 %, 10 %, ..., 100 % of the held-out
        rows. Each has an exact upper bound on its risk, and all bounds hold together with that probability. The lowest
        threshold whose bound is at most `risk` is returned (`mlrh.metrics.assured_threshold`). This is about new rows
        like those of training, answered by the models of the folds. It does not cover: what changes when the estimator
        is fitted to all rows (usually for the better), that models of different folds share training rows, rows of
        another kind, and the risk within a group of rows or for one label. Every row must have the same weight and be
        held out once.
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
        """The calibrated distribution of the label set of each row of X; only with method="temperature".

        Columns are those of classes_; with two classes as y there is one label, the second class.
        """
        return self._answers(X).distribution.temper(self.temperature_)

    @available_if(_calibrates_distributions)
    def predict_proba(self, X) -> np.ndarray:
        """Calibrated marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x).

        Only with method="temperature"; estimator_.predict_proba has those without calibration.
        """
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row and len(self.classes_) == 2:
            return distribution.cardinality_pmf()
        return distribution.marginals()

    def __sklearn_tags__(self):
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = own.input_tags, own.classifier_tags or tags.classifier_tags
        tags.target_tags.multi_output = own.target_tags.multi_output
        return tags

    def _calibrate(self, parts, groups):
        """Set the calibration, and the attributes that measure it on held-out rows."""
        weights = np.concatenate([part.weights for part in parts])
        outside = np.concatenate([~part.inside for part in parts])
        if outside.all() and self.method == "temperature":
            raise ValueError(f"{_all_outside(len(outside))} Use method='isotonic', a larger label space or more rows.")
        self._weights, self.outside_share_ = weights, float(np.average(outside, weights=weights))
        calibrate = CALIBRATIONS[self.method]
        raw = [(part.answers.confidence(1.0), part.correct(1.0)) for part in parts]
        self.raw_confidence_, self.raw_correct_ = (np.concatenate(arrays) for arrays in zip(*raw, strict=True))
        self.confidence_, self.correct_ = _honest(calibrate, parts, groups)
        self.raw_calibration_error_ = self._error(self.raw_confidence_, self.raw_correct_)
        self.calibration_error_ = self._error(self.confidence_, self.correct_)
        self.risk_coverage_ = metrics.risk_coverage(self.confidence_, self.correct_, sample_weight=weights)
        self._calibration = calibrate(parts)
        self.temperature_, self.calibrator_ = self._calibration.temperature, self._calibration.regression

    def _error(self, confidence, correct):
        return metrics.expected_calibration_error(confidence, correct, sample_weight=self._weights)

    def _predict_sets(self, X):
        """Sets by the estimator's own decision."""
        return self._answers(X).sets(self.temperature_)

    def _answers(self, X):
        X = _held_out.validated_rows(self, X)
        return ask(self.estimator_, X, self._targets, self._never)


@dataclass(frozen=True, eq=False)
class _Part:
    """Held-out rows of a fold: answers, true sets, whether the fold's classifier knows their class, weights."""

    answers: Answers
    truth: np.ndarray
    is_known: np.ndarray
    weights: np.ndarray

    @cached_property
    def inside(self):
        """Whether the true sets are possible, (n_samples,)."""
        return self.is_known & np.isfinite(self.answers.distribution.log_prob(self.truth))

    def correct(self, temperature):
        return (self.answers.sets(temperature) == self.truth).all(axis=1) & self.is_known

    def without(self, rows):
        """The same part with weight 0 for a mask of rows."""
        return replace(self, weights=np.where(rows, 0.0, self.weights))

    def slope(self, temperature):
        """Derivative in 1/T of the log-likelihood of the true sets that are possible, and roughly its rounding error.

        d log P(y) / d(1/T) = s(y) - E[s] = T (log P(y) + entropy), where s(y) is the score of a set with its bias:
        log P(y) = s(y)/T - log Z, and the entropy is log Z - E[s]/T.
        """
        tempered, weights = self.answers.distribution.temper(temperature), self.weights[self.inside]
        entropies = tempered.entropy()
        log_prob, entropy = (
            temperature * float(weights @ values[self.inside].astype(np.float64))
            for values in (tempered.log_prob(self.truth), entropies)
        )
        return log_prob + entropy, 10 * np.finfo(entropies.dtype).eps * (entropy - log_prob)


@dataclass(frozen=True, eq=False)
class _Calibration:
    """From answers to confidence: by a temperature and the share of possible rows, or mapped by a regression."""

    temperature: float = 1.0
    inside_share: float = 1.0
    regression: IsotonicRegression | None = None

    def confidence(self, answers):
        confidence = self.inside_share * answers.confidence(self.temperature)
        return confidence if self.regression is None else self.regression.predict(confidence)


def calibration_of(distributions, truths) -> _Calibration:
    """The temperature and the share of possible rows that held-out rows ask for, as in CalibratedSets.

    Parameters
    ----------
    distributions : list of LabelSetDistribution, one for each fold
    truths : list of indicator matrices, the true sets of their rows
    """
    every = zip(distributions, truths, strict=True)
    parts = [_Part(Answers(d, Y, None), Y, np.ones(len(Y), bool), np.ones(len(Y))) for d, Y in every]
    if not any(part.inside.any() for part in parts):
        raise ValueError(f"{_all_outside(sum(map(len, truths)))} Use a larger label space or more rows.")
    return _by_temperature(parts)


def _all_outside(n_rows):
    return f"A temperature needs held-out rows whose set the estimator holds possible; it excludes all {n_rows}."


def _by_temperature(parts):
    """The temperature of the largest likelihood of true and imagined rows, and the share of possible rows."""
    parts = [part for part in parts if part.weights.any()]
    inside, weights = (np.concatenate(arrays) for arrays in zip(*((p.inside, p.weights) for p in parts), strict=True))
    imagined = N_IMAGINED * _imagined_weight(weights[weights > 0])
    share = imagined / (weights[inside].sum() + imagined)
    return _Calibration(_temperature(parts, share), float(np.average(inside, weights=weights)))


def _temperature(parts, share):
    """The best temperature if imagined rows are that share of all rows: slope(T) = share * slope(1), or an end.

    An imagined row is drawn from the distribution of a true row at T = 1. Its slope is E_1[s] - E_T[s] on average: the
    slope of the true row at T less that at 1. True rows of weight n and imagined ones of weight m = n * share /
    (1 - share) together have the slope slope(T) + m/n (slope(T) - slope(1)). That is 0 where slope(T) = share *
    slope(1).
    """

    def slope(temperature):
        return np.sum([part.slope(temperature) for part in parts], axis=0)

    # The slope rises with T: where it is negative at 1 the root lies above, else below; the end there brackets it.
    at_one, rounding = slope(1.0)
    if abs(at_one) <= rounding:
        return 1.0
    left, end = share * at_one, TEMPERATURES[int(at_one < 0)]
    if np.sign(slope(end)[0] - left) == np.sign(at_one):
        return end
    # In log T, since T ranges over six powers of ten.
    return float(np.exp(brentq(lambda log_T: slope(np.exp(log_T))[0] - left, 0.0, np.log(end), xtol=1e-12)))


def _imagined_weight(weights):
    """Weight of an imagined row: 1, as weights count rows; at most the mean, since weights may sum to 1."""
    return min(1.0, weights.mean())


def _by_isotonic_regression(parts):
    confidence, correct, weights = (
        np.concatenate(arrays)
        for arrays in zip(
            *((part.answers.confidence(1.0), part.correct(1.0), part.weights) for part in parts), strict=True
        )
    )
    return _Calibration(regression=isotonic_map(confidence, correct, sample_weight=weights))


CALIBRATIONS = {"temperature": _by_temperature, "isotonic": _by_isotonic_regression}


def _groups(folds):
    """The group of each held-out row, an array per fold: rows with the same first fold are in the same group."""
    _, number = np.unique(_held_out.first_fold(folds), return_inverse=True)
    return np.split(number % N_HONEST, np.cumsum([len(rows) for _, rows in folds])[:-1])


def _honest(calibrate, parts, groups):
    """Confidence in the set of each row, calibrated by rows of other groups only; and whether the sets are right."""
    chosen = {
        number: calibrate([part.without(group == number) for part, group in zip(parts, groups, strict=True)])
        for number in np.unique(np.concatenate(groups))
    }
    results = [_by_groups(part, group, chosen) for part, group in zip(parts, groups, strict=True)]
    return tuple(np.concatenate(arrays) for arrays in zip(*results, strict=True))


def _by_groups(part, group, chosen):
    confidence, correct = np.empty(len(group)), np.empty(len(group), bool)
    for number in np.unique(group):
        rows, calibration = group == number, chosen[number]
        confidence[rows] = calibration.confidence(part.answers)[rows]
        correct[rows] = part.correct(calibration.temperature)[rows]
    return confidence, correct


def _check_min_confidence(value):
    is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not is_number or not (0 <= value <= 1 or value == np.inf):
        raise ValueError(f"min_confidence must be a number from 0 to 1, or infinity to answer nothing; got {value!r}.")


def _part_of_fold(task, train, rows):
    """The _Part of a fold: held-out rows as the estimator fitted to its training rows sees them."""
    never = task.never(train)

    def question(fitted, X):
        form, truth, is_known = _held_out.form_and_truth(task, fitted, rows)
        return _Part(ask(fitted, X, form, never), truth, is_known, task.weights[rows])

    return task.answer(train, rows, question)
