"""OrConstant: a wrapper that lets a classifier be fitted to a label that all rows have, or none."""

from copy import copy
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import assert_all_finite, column_or_1d, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from mlrh._sklearn import HasMethods, fit_context, num_samples
from mlrh.baselines._base import _has_proba, _log_proba, _weights_to_pass_on
from mlrh.estimators import _device, _features, _targets, _whole_fit
from mlrh.estimators._held_out import validated_rows


class OrConstant(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """The estimator, or the only class where training shows just one.

    ClassifierChain and MultiOutputClassifier fit one estimator per label. Many estimators refuse a label that all rows
    have, or none, which happens with rare labels in small training sets. Wrapped in OrConstant they answer with the
    only class. scikit-learn still refuses one case: a constant label in a ClassifierChain with cv and with
    predict_proba as its chain_method.

    Parameters
    ----------
    estimator : classifier

    Attributes
    ----------
    classes_ : array
        The classes of training. A single class that is 0 or 1 is a constant label, with classes_ 0 and 1 and so two
        columns of predict_proba.
    constant_ : the only class, or None
    estimator_ : the fitted estimator, or None
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multioutput import ClassifierChain
    >>> from mlrh.baselines import OrConstant
    >>> chain = ClassifierChain(OrConstant(LogisticRegression()))
    >>> chain.fit([[0.0], [1.0], [2.0]], [[0, 0], [1, 0], [1, 0]]).predict([[5.0]])
    array([[1., 0.]])
    """

    _parameter_constraints: dict = {"estimator": [HasMethods(["fit", "predict"])]}
    constant_: Any
    estimator_: Any

    def __init__(self, estimator):
        self.estimator = estimator

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to X and classes y (n_samples,), unless all rows of positive weight have the same class."""
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X, y = validate_data(fitted, X, y, skip_check_array=True)
        y = column_or_1d(y, warn=True)
        weights, options = _weights_to_pass_on(self.estimator, sample_weight, X)
        _targets.check_same_length(X, y)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        seen = np.unique(y[weights > 0])
        fitted.estimator_, fitted.constant_ = None, None
        if len(seen) == 1:
            fitted.constant_ = seen[0]
            fitted.classes_ = np.array([0, 1], seen.dtype) if seen[0] in (0, 1) else seen
        else:
            fitted.estimator_ = clone(self.estimator).fit(X, y, **options)
            fitted.classes_ = fitted.estimator_.classes_
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    def predict(self, X):
        """Classes of the rows of X, (n_samples,)."""
        X = validated_rows(self, X)
        return np.repeat(self.constant_, num_samples(X)) if self.estimator_ is None else self.estimator_.predict(X)

    @available_if(lambda self: _has_proba(self, self.estimator))
    def predict_proba(self, X):
        """Probabilities of the classes, (n_samples, n_classes); 1 for a constant."""
        X = validated_rows(self, X)
        if self.estimator_ is None:
            return np.tile((self.classes_ == self.constant_).astype(np.float64), (num_samples(X), 1))
        return self.estimator_.predict_proba(X)

    @available_if(lambda self: _has_proba(self, self.estimator))
    def predict_log_proba(self, X):
        """Logarithms of predict_proba; those of a logistic regression of two classes are finite at any score."""
        X = validated_rows(self, X)
        if self.estimator_ is None:
            return np.where(self.classes_ == self.constant_, 0.0, -np.inf)[None].repeat(num_samples(X), axis=0)
        return _log_proba(self.estimator_, X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        tags.classifier_tags.multi_class = get_tags(self.estimator).classifier_tags.multi_class
        return tags
