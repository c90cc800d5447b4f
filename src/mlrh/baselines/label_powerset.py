"""Label powerset: every label set of training is a class."""

from copy import copy
from typing import Any, Self

import numpy as np
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from mlrh._sklearn import HasMethods, fit_context, num_samples
from mlrh.baselines._base import _has_proba, _log_proba, _SetClassifier, _weights_to_pass_on
from mlrh.estimators import _device, _features, _targets, _whole_fit
from mlrh.estimators._held_out import validated_rows
from mlrh.spaces import LabelSetDistribution, listed_sets
from mlrh.spaces.observed import distinct_sets


class LabelPowerset(MetaEstimatorMixin, _SetClassifier):
    """Label powerset: each distinct label set of training is one class of a multiclass classifier.

    It answers only with sets seen in training. With one class per row as y it is the classifier itself. If training
    shows one set only, that set is always the answer, and nothing is fitted.

    Parameters
    ----------
    estimator : classifier, default=None
        None is LogisticRegression().

    Attributes
    ----------
    sets_ : array of shape (n_sets, n_labels)
        The distinct sets of the rows of positive weight, smaller ones first, then those with lower labels.
    estimator_ : the fitted estimator, whose classes are the rows of sets_; None where there is one set only
    classes_ : array
        Names of the labels, or the classes of y.
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from mlrh.baselines import LabelPowerset
    >>> X = [[0.0], [1.0], [4.0], [5.0], [9.0], [10.0]]
    >>> y = [{"rain"}, {"rain"}, {"rain", "sun"}, {"rain", "sun"}, {"sun"}, {"sun"}]
    >>> clf = LabelPowerset().fit(X, y)
    >>> [sorted(labels) for labels in clf.predict([[0.5], [4.5], [11.0]])]
    [['rain'], ['rain', 'sun'], ['sun']]
    """

    _parameter_constraints: dict = {"estimator": [HasMethods(["fit", "predict"]), None]}
    estimator_: Any

    def __init__(self, estimator=None):
        self.estimator = estimator

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to X and the label sets of y, in any of the forms of MLRHClassifier.

        Parameters
        ----------
        X : whatever the estimator takes, with n_samples rows
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
        sample_weight : array of shape (n_samples,), optional
            Passed on to the estimator; a row of weight 0 shows no set.

        Returns
        -------
        self
        """
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X = validate_data(fitted, X, skip_check_array=True)
        form, Y = _targets.encode(y)
        _targets.check_same_length(X, Y)
        weights, options = _weights_to_pass_on(self._chosen(), sample_weight, X)
        support = np.flatnonzero(weights > 0)
        form, shown = form.seen_in(Y[support]) if len(support) < len(Y) else (form, Y)
        sets, codes_of_support = distinct_sets(shown)
        # Rows of weight 0 get the class 0: a class of their own would become a possible answer.
        codes = np.zeros(len(Y), np.int64)
        codes[support] = codes_of_support
        fitted.estimator_ = clone(self._chosen()).fit(X, codes, **options) if len(sets) > 1 else None
        fitted._targets, fitted.classes_, fitted.sets_ = form, form.classes, sets
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    @available_if(lambda self: _has_proba(self, self._chosen()))
    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        X = validated_rows(self, X)
        proba = np.ones((num_samples(X), 1)) if self.estimator_ is None else self.estimator_.predict_proba(X)
        if self._targets.is_one_class_per_row:
            return proba
        return np.clip(proba @ self.sets_, 0.0, 1.0)

    @available_if(lambda self: _has_proba(self, self._chosen()))
    def distribution(self, X) -> LabelSetDistribution:
        """The distribution of the label set of each row of X: the sets of training with the classes' probabilities."""
        log_proba = self._log_proba(X)
        return listed_sets(self.sets_, log_proba)

    @available_if(lambda self: _has_proba(self, self._chosen()))
    def set_log_proba(self, X, Y) -> np.ndarray:
        """Logarithm of the probability of each row's label set, (n_samples,); -inf for a set not seen in training.

        Y holds one set per row of X, in the form of the y of training.
        """
        log_proba = self._log_proba(X)
        Y, unknown = self._targets.partial_indicator(Y)
        _targets.check_same_length(log_proba, Y)
        code_of = {row.tobytes(): code for code, row in enumerate(self.sets_)}
        codes = np.array([code_of.get(row.tobytes(), -1) for row in Y], np.int64)
        return np.where((codes < 0) | unknown, -np.inf, log_proba[np.arange(len(Y)), codes])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._chosen()).input_tags
        return tags

    def _predict_sets(self, X):
        X = validated_rows(self, X)
        codes = np.zeros(num_samples(X), np.int64) if self.estimator_ is None else self.estimator_.predict(X)
        return self.sets_[codes]

    def _log_proba(self, X):
        """Logarithms of the probabilities of the sets, (n_samples, n_sets)."""
        X = validated_rows(self, X)
        return np.zeros((num_samples(X), 1)) if self.estimator_ is None else _log_proba(self.estimator_, X)

    def _chosen(self):
        return LogisticRegression() if self.estimator is None else self.estimator
