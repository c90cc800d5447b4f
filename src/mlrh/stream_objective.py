"""What a stream minimises: the objective of the rows it keeps, corrected by the gradient of those it has not kept.

Parameters of a stream are flat and last while label spaces and means of features change: coefficients (n_features,
n_labels), intercepts of features that are not centred, and biases of the sizes 0, ..., n_labels. Knows nothing of how
rows come and go.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlrh.design import Design
from mlrh.knowledge import UNKNOWN
from mlrh.objective import BIAS_RIDGE, Objective


@dataclass(frozen=True)
class Settings:
    """What an estimator's parameters say: alpha = 1/C, what is learned, how exactly, on how many threads.

    report is what a solver calls after each iteration, or None.
    """

    alpha: float
    fit_intercept: bool
    learn_bias: bool
    tol: float
    n_jobs: Any = None
    report: Any = None


def zeros(n_features, n_labels):
    """Flat parameters, or a gradient in them, of zeros."""
    return np.zeros((n_features + 2) * n_labels + 1)


def split(flat, n_labels):
    """Coefficients (n_features, n_labels), intercepts (n_labels,) and biases (n_labels + 1,) as views."""
    n_coef = len(flat) - 2 * n_labels - 1
    return flat[:n_coef].reshape(-1, n_labels), flat[n_coef : n_coef + n_labels], flat[n_coef + n_labels :]


def penalty(flat, n_labels, settings):
    """What an objective adds to the loss of all rows."""
    coef, _, bias = split(flat, n_labels)
    return 0.5 * float(settings.alpha * np.square(coef).sum() + BIAS_RIDGE * np.square(bias).sum())


def loss_and_gradient(space, flat, X, Y, weights):
    """The loss of rows at flat parameters, whose biases the space holds, and its gradient, flat."""
    coef, intercept, _ = split(flat, space.n_labels)
    design = Design(X, weights, fit_intercept=False, n_jobs=space.n_jobs)
    scores = design.scores(coef, intercept)
    log_partition, residuals, sizes = space.expectations(scores, weights)
    is_complete = (Y != UNKNOWN).all(axis=1)
    shown = np.where(is_complete[:, None], Y, 0)
    counts = space.bias_counts(Y[is_complete], weights[is_complete])
    loss = weights @ (log_partition.astype(np.float64) - (shown * scores).sum(axis=1)) - counts @ space.bias
    residuals -= shown
    sizes = sizes - counts
    if not is_complete.all():
        rows = np.flatnonzero(~is_complete)
        log_known, expected, known_sizes = space.given(Y[rows]).expectations(scores[rows], weights[rows])
        loss -= weights[rows] @ log_known
        residuals[rows] -= expected
        sizes = sizes - known_sizes
    residuals *= weights[:, None]
    gradient = np.zeros_like(flat)
    in_coef, in_intercept, in_bias = split(gradient, space.n_labels)
    in_coef[:], in_intercept[:] = design.pull_back(residuals)[0], residuals.sum(axis=0, dtype=np.float64)
    in_bias[space.min_labels : space.max_labels + 1] = sizes
    return float(loss), gradient


class StreamObjective(Objective):
    """The objective of rows, plus linear . parameters + damping/2 . |parameters - origin|^2; counts its evaluations.

    linear and origin are flat parameters of a stream, damping is (n_features,); None where nothing is to be corrected.
    """

    def __init__(self, design, space, Y, settings, *, linear=None, origin=None, damping=None):
        super().__init__(design, space, Y, alpha=settings.alpha, learn_bias=settings.learn_bias)
        self.n_evaluations = 0
        self._linear = None if linear is None else self._gradient_from(linear)
        if linear is not None:
            self._origin = self.parameters_from(origin)
            others = np.zeros(self.n_labels + self.n_biases)
            self._damping = np.concatenate([np.repeat(damping, self.n_labels), others])

    def parameters_from(self, flat):
        """The parameters that stand for those of a stream."""
        coef, intercept, bias = split(flat, self.n_labels)
        return self.start_from(coef, intercept + self.design.mean @ coef, bias[self._admissible])

    def parameters_to(self, parameters):
        """The flat parameters of a stream that stand for these."""
        coef, mean_score, bias = self.split(self.canonical(parameters))
        flat = zeros(*coef.shape)
        to_coef, to_intercept, to_bias = split(flat, self.n_labels)
        to_coef[:], to_intercept[:] = coef, mean_score - self.design.mean @ coef
        if self.n_biases:
            to_bias[self._admissible] = bias
        return flat

    def value_and_gradient(self, parameters):
        """Both with the corrections."""
        self.n_evaluations += 1
        value, gradient = super().value_and_gradient(parameters)
        if self._linear is None:
            return value, gradient
        moved = parameters - self._origin
        pull = self._damping * moved
        return value + float(self._linear @ parameters + 0.5 * pull @ moved), gradient + self._linear + pull

    def hessian(self, parameters):
        """The function direction -> Hessian @ direction, with that of the damping."""
        product = super().hessian(parameters)
        if self._linear is None:
            return product
        return lambda direction: product(direction) + self._damping * direction

    @property
    def _admissible(self):
        return slice(self.space.min_labels, self.space.max_labels + 1)

    def _gradient_from(self, flat):
        """A gradient in the parameters of a stream as one in these."""
        coef, intercept, bias = split(flat, self.n_labels)
        intercept = intercept if self.design.fit_intercept else np.zeros(self.n_labels)
        bias = bias[self._admissible] if self.n_biases else np.zeros(0)
        centred = coef - np.outer(self.design.mean, intercept)
        return self.determined(np.concatenate([centred.ravel(), intercept, bias]))
