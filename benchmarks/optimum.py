"""Objectives at C = 1 as each fit states it, and how far from its own optimum a fit ended.

All objectives are loss + |coef|^2 / 2, so that a gradient bounds the distance to the optimum whoever found the point:
objective - optimum <= |gradient in coef|^2 / 2 + |gradient in the intercept|_1 * REACH if the best intercepts lie
within REACH. Written with NumPy and public methods only; how anything is fitted is not known here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

ENOUGH = 1e-4  # relative gap that a fit must reach to count
CERTAIN = 1e-5  # relative uncertainty of an optimum above which no gap can be told
REACH = 1.0


@dataclass(frozen=True)
class Point:
    """An objective's value somewhere, and by how much the optimum may be lower."""

    value: float
    slack: float


class Optimum:
    """The least value of an objective, found by a tight solve when it is first asked for."""

    def __init__(self, solve: Callable[[], Point]):
        self._solve, self._lower = solve, None

    def gap(self, value) -> float:
        """Relative distance of a value to the optimum, at most."""
        if self._lower is None:
            self._lower = certified(self._solve())
        return (value - self._lower) / abs(self._lower)


def certified(point: Point, *, within=CERTAIN) -> float:
    """A lower bound of the optimum; an error where the tight solve wasn't tight."""
    if not point.slack <= within * abs(point.value):
        raise ValueError(
            f"An optimum must be known to {within:.0e} of its value; the tight solve ended at {point.value:.6g} with "
            f"{point.slack:.2g} still to be had. Tighten it."
        )
    return point.value - point.slack


def separate(X, Y, coef, intercept, *, intercept_is_penalised) -> Point:
    """One logistic regression per label: coef (n_labels, n_features), intercept (n_labels,)."""
    scores = np.asarray(X @ coef.T) + intercept
    value = (np.logaddexp(0.0, scores) - Y * scores).sum() + 0.5 * np.square(coef).sum()
    residuals = expit(scores) - Y
    in_coef, in_intercept = np.asarray(X.T @ residuals).T + coef, residuals.sum(axis=0)
    if intercept_is_penalised:
        value += 0.5 * np.square(intercept).sum()
        slack = 0.5 * (np.square(in_coef).sum() + np.square(in_intercept + intercept).sum())
        return Point(float(value), float(slack))
    return Point(float(value), float(0.5 * np.square(in_coef).sum() + REACH * np.abs(in_intercept).sum()))


def joint(classifier: Any, X, Y) -> Point:
    """A fitted MLRHClassifier of the training rows."""
    coef, distribution = classifier.coef_, classifier.distribution(X)
    residuals = distribution.marginals() - Y
    value = -distribution.log_prob(Y).sum() + 0.5 * np.square(coef).sum()
    slack = 0.5 * np.square(np.asarray(X.T @ residuals).T + coef).sum() + REACH * np.abs(residuals.sum(axis=0)).sum()
    return Point(float(value), float(slack))


def joint_kernel(classifier: Any, gram, X, Y) -> Point:
    """A fitted KernelMLRHClassifier of the training rows, whose kernel matrix is given; |coef|^2 is dual' gram dual."""
    dual, distribution = classifier.dual_coef_.T, classifier.distribution(X)
    residuals = distribution.marginals() - Y
    value = -distribution.log_prob(Y).sum() + 0.5 * np.vdot(dual, gram @ dual)
    in_dual = residuals + dual
    slack = 0.5 * np.vdot(in_dual, gram @ in_dual) + REACH * np.abs(residuals.sum(axis=0)).sum()
    return Point(float(value), float(slack))


def support_vector(gram, y, dual, intercept) -> Point:
    """A support vector machine's dual objective, negated; y of -1 and 1, dual = y times multiplier, (n_samples,).

    What libsvm minimises. The slack is the duality gap at C = 1.
    """
    scores = gram @ dual
    square = float(dual @ scores)
    negated_dual = 0.5 * square - float(np.abs(dual).sum())
    primal = 0.5 * square + float(np.maximum(0.0, 1.0 - y * (scores + intercept)).sum())
    return Point(negated_dual, primal + negated_dual)
