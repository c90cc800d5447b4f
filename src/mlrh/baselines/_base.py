"""What the comparison methods share: decision scores, and weights and probabilities of the inner estimator."""

from typing import Any

import numpy as np
from scipy.special import log_expit
from sklearn.linear_model import LogisticRegression
from sklearn.utils.metaestimators import available_if

from mlrh._sklearn import check_sample_weight
from mlrh.estimators._held_out import name_of_weights
from mlrh.estimators._targets import SetClassifier


class _SetClassifier(SetClassifier):
    """A classifier of label sets whose decision scores come from its probabilities, where it has them."""

    predict_proba: Any

    @available_if(lambda self: hasattr(self, "predict_proba"))
    def decision_function(self, X) -> np.ndarray:
        """predict_proba - 1/2, above 0 where a label is more likely than not; for two classes as y (n_samples,).

        Unlike log-odds it is always finite, so that rankings such as roc_auc_score can use it.
        """
        scores = self.predict_proba(X) - 0.5
        return scores[:, 1] if self._targets.is_one_class_per_row and len(self.classes_) == 2 else scores

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _weights_to_pass_on(estimator, sample_weight, X):
    """Weights of the rows (n_samples,), and the keyword arguments that pass them to the estimator's fit, if given."""
    weights = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return weights, {} if sample_weight is None else {name_of_weights(estimator): weights}


def _has_proba(meta, estimator):
    """Whether the fitted estimator, or else the one to be fitted, has predict_proba."""
    fitted = getattr(meta, "estimator_", None)
    return hasattr(estimator if fitted is None else fitted, "predict_proba")


def _log_proba(estimator, X):
    """Logarithms of the estimator's probabilities; by its predict_log_proba if it has one, which is more exact."""
    if _is_binary_logistic(estimator):
        # Its predict_log_proba takes the logarithm of the probability, which is 0 from log-odds of -745 on.
        log_odds = estimator.decision_function(X)
        return log_expit(np.column_stack([-log_odds, log_odds]))
    with np.errstate(divide="ignore"):
        if hasattr(estimator, "predict_log_proba"):
            return estimator.predict_log_proba(X)
        return np.log(estimator.predict_proba(X))


def _is_binary_logistic(estimator):
    """Whether decision_function is the log-odds: with "multinomial", which old versions have, it is half of them."""
    if not isinstance(estimator, LogisticRegression) or len(estimator.classes_) != 2:
        return False
    return estimator.get_params().get("multi_class") != "multinomial"
