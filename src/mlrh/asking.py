"""What any fitted classifier says of label sets: a distribution of the set, its own sets, and how it decides.

Knows pipelines, searches and the usual forms of predict_proba, and nothing of what the answers are for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logit
from sklearn.pipeline import Pipeline

from mlrh import decisions, held_out
from mlrh.indicator import as_indicator
from mlrh.label_space import CardinalitySpace, LabelSetDistribution

RESOLUTION = np.finfo(np.float64).eps  # the least probability; 1 less this is the largest one


@dataclass(frozen=True, eq=False)
class Answers:
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


def ask(fitted, X, form, never):
    """The answers of a fitted classifier to rows X.

    form is that of the y it was fitted to; never (n_labels,) says which labels none of its training rows had.
    """
    predicted = fitted.predict(X)
    own_sets = form.indicator(predicted) if form.is_one_class_per_row else _as_sets(predicted, len(form.classes))
    last, features = _last_step(fitted, X)
    if hasattr(last, "distribution"):
        return Answers(last.distribution(features), own_sets, _decision(last, form))
    if not hasattr(fitted, "predict_proba"):
        raise ValueError(f"The estimator must have distribution or predict_proba once fitted; {fitted!r} has neither.")
    never = np.zeros(n_labels(form), bool) if form.is_one_class_per_row else never
    return Answers(_independent(held_out.label_scores(fitted, X, never, "predict_proba"), form), own_sets, None)


def n_labels(form):
    """Columns of the sets for a form of y: two classes are one label."""
    return 1 if form.is_one_class_per_row and len(form.classes) == 2 else len(form.classes)


def _as_sets(predicted, n_columns):
    predicted = np.asarray(predicted.toarray() if hasattr(predicted, "toarray") else predicted)
    return as_indicator(predicted.reshape(-1, n_columns), "The estimator's predictions")


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
    clipped, n_columns = np.clip(probabilities, RESOLUTION, 1 - RESOLUTION), probabilities.shape[1]
    if form.is_one_class_per_row and len(form.classes) != 2:
        return CardinalitySpace(n_columns, 1, 1).distribution(np.log(clipped))
    return CardinalitySpace(n_columns, 0, n_columns).distribution(logit(clipped))
