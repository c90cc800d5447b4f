"""An objective where only coefficients that aren't zero may move: on such a face even an L1 penalty is smooth.

Has the part of the objective's protocol that conjugate gradients ask for. Knows nothing of how its steps are used.
"""

import numpy as np
from scipy import linalg

from mlrh.feature_metric import MAX_FACTORED, reciprocals

MAX_WORK = 100  # products with the Hessian that the factors of a metric may cost at most


class Faces:
    """The faces of one objective. What they share, the features' Gram matrix, is computed when it is first needed."""

    def __init__(self, objective):
        self.objective = objective
        self._gram = None

    def at(self, parameters):
        """The face of the parameters: all intercepts and biases are free, and coefficients that aren't zero."""
        free = np.ones(len(parameters), bool)
        self.objective.split(free)[0][...] = self.objective.split(parameters)[0] != 0
        return Face(self.objective, free)

    def metric(self, face, diagonal, shares):
        """The function that solves with what the Hessian is like on a face.

        For the coefficients of a label that is its share (n_labels,) of the Gram matrix plus their ridge, for the rest
        (for all, where that would be too large to factorise) the diagonal.
        """
        objective, inverse = self.objective, face.free * reciprocals(diagonal)
        factors = self._factors(objective.split(face.free)[0], shares)

        def solve(gradient):
            solved = objective.determined(inverse * gradient)
            coef, right = objective.split(solved)[0], objective.split(gradient)[0]
            for k, (members, factor) in enumerate(factors):
                coef[members, k] = linalg.cho_solve(factor, right[members, k], check_finite=False)
            return solved

        return solve

    def _factors(self, free, shares):
        """For each label its free coefficients, and the Cholesky factor of their part of the metric."""
        design, alpha = self.objective.design, self.objective.alpha
        members = [np.flatnonzero(free[:, k]) for k in range(len(shares))]
        work = sum(len(m) ** 3 for m in members)
        if design.n_features > MAX_FACTORED or work > MAX_WORK * design.X.size * len(shares):
            return []
        if self._gram is None:
            self._gram = design.gram()
        return [(m, _factor(share * self._gram[np.ix_(m, m)], alpha)) for m, share in zip(members, shares, strict=True)]


class Face:
    """An objective whose Hessian moves and shows nothing but what is `free`, a mask of its parameters."""

    def __init__(self, objective, free):
        self._objective, self.free = objective, free

    def hessian(self, parameters):
        """The function direction -> Hessian @ direction at the parameters, on the face."""
        product = self._objective.hessian(parameters)
        return lambda direction: self.free * product(direction)


def _factor(matrix, alpha):
    """A Cholesky factor; columns that repeat each other, which an L1 penalty alone leaves singular, are told apart."""
    matrix[np.diag_indices_from(matrix)] += alpha + 1e-8 * np.diag(matrix) + 1e-300
    return linalg.cho_factor(matrix, overwrite_a=True, check_finite=False)
