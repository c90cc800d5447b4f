"""What the comparison methods share: forms of y, checks, and weights passed on to the inner estimator."""

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from mlrh._sklearn import check_sample_weight
from mlrh.estimators import _features, _targets


class _SetClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose y has any of the forms of mlrh.estimators._targets; a subclass predicts indicator matrices."""

    _targets: _targets.Targets
    classes_: np.ndarray
    predict_proba: Any

    def predict(self, X):
        """Label sets for the rows of X in the form of the y of training."""
        sets = self._predict_sets(X)
        return self._targets.decode(sets, X)

    @available_if(lambda self: hasattr(self, "predict_proba"))
    def decision_function(self, X) -> np.ndarray:
        """predict_proba - 1/2, above 0 where a label is more likely than not; for two classes as y (n_samples,).

        Unlike log-odds it is always finite, so that rankings such as roc_auc_score can use it.
        """
        scores = self.predict_proba(X) - 0.5
        return scores[:, 1] if self._targets.is_one_class_per_row and len(self.classes_) == 2 else scores

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right."""
        predicted = self._predict_sets(X)  # before y is looked at: raises NotFittedError first
        return self._targets.share_right(predicted, y, sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @abstractmethod
    def _predict_sets(self, X) -> np.ndarray: ...


def _for_estimator(meta, X):
    """X unchanged, as the estimator validates it; only names and number of features are compared with training."""
    check_is_fitted(meta)
    _features.check(X)
    shape = getattr(X, "shape", ())
    if len(shape) == 1 and hasattr(meta, "n_features_in_"):
        raise ValueError(f"X must have a column per feature; got shape {shape}. Reshape your data to a matrix.")
    return validate_data(meta, X, reset=False, skip_check_array=True)


def _weights_to_pass_on(estimator, sample_weight, X):
    """Weights of the rows (n_samples,), and the keyword arguments that pass them to the estimator's fit, if given."""
    weights = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if sample_weight is None:
        return weights, {}
    if not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(f"sample_weight must be None, because {type(estimator).__name__}.fit doesn't take it.")
    return weights, {"sample_weight": weights}


def _has_proba(meta, estimator):
    """Whether the fitted estimator, or else the one to be fitted, has predict_proba."""
    fitted = getattr(meta, "estimator_", None)
    return hasattr(estimator if fitted is None else fitted, "predict_proba")


def _log_proba(estimator, X):
    """Logarithms of the estimator's probabilities; by its predict_log_proba if it has one, which is more exact."""
    with np.errstate(divide="ignore"):
        if hasattr(estimator, "predict_log_proba"):
            return estimator.predict_log_proba(X)
        return np.log(estimator.predict_proba(X))
