"""Metrics of the coefficients: approximations of the Hessian that are cheap to solve with.

All are curvature * gram + alpha I, with a full or partial Gram matrix or its diagonal, with one curvature for all
labels or one for each. They precondition solvers, and measure gradients for the stopping rule.
"""

from copy import copy

import numpy as np
from scipy import linalg

from mlrh._parallel import blas_suited_to
from mlrh.fitting import _products

MAX_INVERTED = 1024  # features up to which the inverse soon pays: a product with it is far faster than a solve
MAX_OWN = 300  # features up to which a matrix for each label soon pays
MIN_PIVOT = 1e-4  # of a matrix with a diagonal of ones: its condition is near 1e8 there, its inverse right to 8 digits
MAX_FACTORED = 6000  # features beyond which a dense factor of their Gram matrix takes too much memory (6000^2: 288 MB)


def coefficient_metric(design, *, curvature, alpha, n_leading=None):
    """An object whose `solve` solves with curvature * gram + alpha I, or with an approximation of it.

    Beyond MAX_FACTORED features, and where there is a curvature per label, it is the diagonal.
    """
    if np.ndim(curvature) or design.n_features > MAX_FACTORED:
        return DiagonalMetric(design, curvature=curvature, alpha=alpha)
    return CoefficientMetric(design, curvature=curvature, alpha=alpha, n_leading=n_leading)


def diagonal_pays(design, operations_per_score):
    """Whether the diagonal is the better metric: solving with a full matrix costs more than the rest of an evaluation.

    The rest is products with sparse features and operations_per_score operations for each score. Sparse features are
    rarely so alike that the diagonal needs many more iterations; but where a full matrix costs little, it is used.
    """
    rest = design.n_entries + design.n_samples * operations_per_score if design.is_sparse else np.inf
    return design.n_features**2 > rest


def needs_gram(design, operations_per_score, *, alpha, l1):
    """Whether a fit by the default solver will ask for the Gram matrix of the features."""
    if design.n_features > MAX_FACTORED:
        return False
    return l1 > 0 or alpha == 0 or not diagonal_pays(design, operations_per_score)


class CoefficientMetric:
    """Solves with curvature * gram + alpha I, factorised once.

    The matrix is first scaled to a diagonal of ones, so that columns of very different scale keep their digits. With
    alpha = 0 it may be singular. Then `solve` gives the solution of smallest norm on that scale, so that coefficients
    that the features leave undetermined stay where they started.

    With n_leading, only the first n_leading columns are factorised; for the others the diagonal is used. With rows, the
    curvatures of the rows (n_samples,), dense features are weighted by these instead of the weights of the design.
    """

    def __init__(self, design, *, curvature, alpha, n_leading=None, rows=None):
        with blas_suited_to(_n_operations(design)):
            with np.errstate(over="ignore", invalid="ignore"):
                matrix = design.gram(n_leading) if rows is None else design.gram_with(rows, n_leading)
                behind = design.squared_norms(rows)[len(matrix) :] if len(matrix) < design.n_features else np.zeros(0)
            if rows is None:
                check_squares(np.concatenate([np.diag(matrix), behind]), design)
            matrix *= curvature
            matrix[np.diag_indices_from(matrix)] += alpha
            self._scale = _scale_to_ones(matrix)
            self._factor = _factor(matrix, np.finfo(design.dtype).eps)
            self._inverse = _inverse(self._factor[0])
        self._scale_behind = np.sqrt(reciprocals(curvature * behind + alpha))[:, None]

    def with_diagonals(self, diagonals):
        """The metric with a matrix per label: the correlations of this one, and these diagonals (n_features, n_labels).

        Diagonals are positive.
        """
        other = copy(self)
        scale = np.sqrt(reciprocals(diagonals))
        other._scale, other._scale_behind = scale[: len(self._scale)], scale[len(self._scale) :]
        return other

    def solve(self, gradient):
        """Solution for a right-hand side (n_features, n_labels)."""
        n_leading = len(self._scale)
        leading = self._scale * self._solve_correlations(self._scale * gradient[:n_leading])
        if n_leading == len(gradient):
            return leading
        return np.concatenate([leading, self._scale_behind**2 * gradient[n_leading:]])

    def _solve_correlations(self, scaled):
        if self._inverse is not None:
            if _products.are_thin(self._inverse, scaled):
                return _products.multiply_thin(self._inverse, scaled, n_jobs=1)
            return self._inverse @ scaled
        cholesky, vectors, inverse_values = self._factor
        if len(scaled) == 0:  # SciPy before 1.14 refuses systems without unknowns
            return scaled
        if cholesky is not None:
            return linalg.cho_solve(cholesky, scaled, check_finite=False)
        return vectors @ (inverse_values[:, None] * (vectors.T @ scaled))


class LabelMetric:
    """Solves with X' diag(curvatures of the label's scores) X + alpha I of dense features, a matrix for each label."""

    def __init__(self, inverses):
        self._inverses = inverses

    @classmethod
    def at(cls, design, *, curvatures, alpha):
        """The metric for curvatures (n_samples, n_labels); None where a matrix can't be inverted safely."""
        inverses = np.empty((curvatures.shape[1], design.n_features, design.n_features))
        with blas_suited_to(_n_operations(design)):
            for inverse, own in zip(inverses, curvatures.T, strict=True):
                matrix = design.gram_with(own)
                matrix[np.diag_indices_from(matrix)] += alpha
                scale = _scale_to_ones(matrix)
                found = _inverse(_factor(matrix, np.finfo(design.dtype).eps)[0])
                if found is None:
                    return None
                inverse[:] = scale * found * scale.T
        return cls(inverses)

    @staticmethod
    def pays(design, n_labels):
        """Whether n_labels matrices take no more time than some 30 evaluations, nor more memory than a fit itself."""
        n_samples, n_features = design.n_samples, design.n_features
        # Features, scores and marginals of the rows, and the vectors of a solver (25 of the length of coef).
        held = 2 * n_samples * (n_features + n_labels) + 25 * n_features * n_labels
        return n_features <= MAX_OWN and n_labels * n_features**2 <= held

    def solve(self, gradient):
        """Solution for a right-hand side (n_features, n_labels)."""
        return np.matmul(self._inverses, gradient.T[:, :, None])[:, :, 0].T


class DiagonalMetric:
    """Solves with the diagonal of curvature * gram + alpha I; the curvature is one number, or one per label."""

    def __init__(self, design, *, curvature, alpha):
        with np.errstate(over="ignore", invalid="ignore"):
            squares = design.squared_norms()
        check_squares(squares, design)
        self._inverse = reciprocals(np.outer(squares, curvature) + alpha)

    def with_diagonals(self, diagonals):
        """The metric of these diagonals (n_features, n_labels)."""
        other = copy(self)
        other._inverse = reciprocals(diagonals)
        return other

    def solve(self, gradient):
        """Solution for a right-hand side (n_features, n_labels)."""
        return self._inverse * gradient


def _scale_to_ones(matrix):
    """Scale a matrix to a diagonal of ones, in place; returns the factors of rows and columns (n, 1)."""
    scale = np.sqrt(reciprocals(np.diag(matrix)))[:, None]
    matrix *= scale
    matrix *= scale.T
    return scale


def reciprocals(values):
    """1 / values; 0 where a value is 0 or so small that the reciprocal would overflow, so that nothing moves there."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 1e-300)


def check_squares(squares, design):
    """Raise a ValueError where the squares of features overflow or underflow."""
    if not np.isfinite(squares).all():
        raise ValueError("The features are too large to be squared; scale them, for example with StandardScaler.")
    if (squares < 1e-290).any() and (design.largest_entries()[squares < 1e-290] > 0).any():
        raise ValueError("Some features are too small to be squared; scale them, for example with StandardScaler.")


def _n_operations(design):
    """About how many operations a Gram matrix and its factor take."""
    return max(design.n_entries, design.n_features**2) * design.n_features


def _factor(matrix, eps):
    """(cholesky, None, None) where that is safe, else (None, eigenvectors, inverse eigenvalues) of nonzero eigenvalues.

    The matrix, symmetric with a diagonal of ones, is overwritten.
    """
    try:
        # In place: the transpose is the same matrix, with its columns one after the other, as LAPACK wants them.
        cholesky = linalg.cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError:
        pass
    else:
        pivots = np.diag(cholesky[0])
        # Squared pivots near n * eps are rounding errors: the matrix is singular, and a solve would return noise.
        if len(pivots) == 0 or pivots.min() ** 2 > 10 * len(pivots) * eps:
            return cholesky, None, None
    # Cholesky has overwritten one triangle and the diagonal; the other triangle is still there. (A column of zeros had
    # 0 on the diagonal, not 1; that does not matter, as its scale is 0.)
    matrix[np.diag_indices_from(matrix)] = 1.0
    values, vectors = linalg.eigh(matrix, lower=True, overwrite_a=True, check_finite=False)
    kept = values > 10 * len(values) * eps * max(values[-1], 0.0)
    return None, vectors[:, kept], 1.0 / values[kept]


def _inverse(cholesky):
    """The inverse of a matrix with a diagonal of ones, from its Cholesky factor; None if inexact or too large."""
    if (
        cholesky is None
        or not 0 < len(cholesky[0]) <= MAX_INVERTED
        or np.diag(cholesky[0]).min(initial=1.0) < MIN_PIVOT
    ):
        return None
    inverse, _ = linalg.lapack.dpotri(cholesky[0], lower=cholesky[1])
    inverse = np.tril(inverse)
    inverse += np.tril(inverse, -1).T
    return inverse
