"""The linear part: features in, scores out, and the matrices that tell how strongly the scores move.

Knows nothing of labels or probabilities. Dense and CSR features go through the same code. Features are centred
implicitly when there is an intercept, which then stands for the mean score: it no longer depends on the coefficients,
so the curvature of the two separates.
"""

import numpy as np
from scipy import linalg, sparse

MAX_FACTORED = 6000  # features, or rows if they are fewer, beyond which a dense factor costs too much memory


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept."""

    def __init__(self, X, weights, *, fit_intercept):
        self.X, self.weights, self.fit_intercept = X, weights, fit_intercept
        self.n_samples, self.n_features = X.shape
        self.total_weight = weights.sum()
        mean = weights @ X / self.total_weight if fit_intercept else np.zeros(self.n_features)
        self.mean = np.asarray(mean, np.float64)

    def scores(self, coef, intercept):
        """(X - mean) @ coef + intercept in the type of X; coef (n_features, n_labels), intercept (n_labels,)."""
        scores = self.X @ coef.astype(self.X.dtype, copy=False)
        scores += intercept - self.mean @ coef
        return scores

    def pull_back(self, residuals):
        """Gradients in coef and intercept of a function whose gradient in the scores is given."""
        total = residuals.sum(axis=0, dtype=np.float64)
        coef = np.asarray(self.X.T @ residuals, np.float64) - np.outer(self.mean, total)
        return coef, total if self.fit_intercept else np.zeros_like(total)

    def gram(self):
        """(X - mean)' diag(weights) (X - mean)."""
        X = self.X
        if np.ptp(self.weights) == 0:
            gram = (X.T @ X) * X.dtype.type(self.weights[0])
        elif sparse.issparse(X):
            gram = X.T @ (sparse.diags_array(self.weights.astype(X.dtype)) @ X)
        else:
            gram = X.T @ (X * self.weights[:, None].astype(X.dtype))
        gram = np.asarray(gram.toarray() if sparse.issparse(gram) else gram, np.float64)
        return gram - self.total_weight * np.outer(self.mean, self.mean)

    def squared_norms(self):
        """The diagonal of `gram`, without forming it."""
        squared = self.X.multiply(self.X) if sparse.issparse(self.X) else np.square(self.X)
        norms = np.asarray(self.weights @ squared, np.float64) - self.total_weight * self.mean**2
        return np.maximum(norms, 0.0)


class CoefficientMetric:
    """Solves with curvature * gram + alpha I, factorised once.

    With alpha = 0 the matrix may be singular: then the solution of smallest norm, so that coefficients that the
    features leave undetermined stay where they started. Beyond MAX_FACTORED features only the diagonal is used.
    """

    def __init__(self, design, *, curvature, alpha):
        self.is_full = design.n_features <= MAX_FACTORED
        if not self.is_full:
            self._inverse_diagonal = reciprocals(curvature * design.squared_norms() + alpha)[:, None]
            return
        matrix = curvature * design.gram()
        matrix[np.diag_indices_from(matrix)] += alpha
        self._factor = _factor(matrix, np.finfo(design.X.dtype).eps)

    def solve(self, gradient):
        """Solution for a right-hand side (n_features, n_labels)."""
        if not self.is_full:
            return self._inverse_diagonal * gradient
        cholesky, vectors, inverse_values = self._factor
        if cholesky is not None:
            return linalg.cho_solve(cholesky, gradient, check_finite=False)
        return vectors @ (inverse_values[:, None] * (vectors.T @ gradient))


def gram_features(gram):
    """Features whose inner products are the Gram matrix, and the map from their coefficients to dual coefficients.

    gram = U diag(values) U' gives features U sqrt(values) and the map U / sqrt(values), both (n_samples, rank):
    optimising in these coordinates avoids the square of the Gram matrix's condition number.
    """
    values, vectors = linalg.eigh(gram, check_finite=False)
    largest = max(values[-1], 0.0)
    if values[0] < -1e-8 * largest or largest < -values[0]:
        raise ValueError(
            f"The kernel matrix must be positive semidefinite; its smallest eigenvalue is {values[0]:.3g} and its "
            f"largest {values[-1]:.3g}. Choose another kernel (sigmoid often fails) or other parameters."
        )
    kept = values > largest * len(values) * np.finfo(np.float64).eps
    roots = np.sqrt(values[kept])
    return vectors[:, kept] * roots, vectors[:, kept] / roots


def _factor(matrix, eps):
    """(cholesky, None, None) where that is safe, else (None, eigenvectors, inverse eigenvalues) of the range."""
    try:
        cholesky = linalg.cho_factor(matrix, check_finite=False)
    except linalg.LinAlgError:
        pass
    else:
        pivots = np.diag(cholesky[0])
        if len(pivots) == 0 or pivots.min() ** 2 > 10 * len(pivots) * eps * pivots.max() ** 2:
            return cholesky, None, None
    values, vectors = linalg.eigh(matrix, check_finite=False)
    kept = values > 10 * len(values) * eps * max(values[-1], 0.0)
    return None, vectors[:, kept], 1.0 / values[kept]


def reciprocals(values):
    """1 / values, 0 where a value is 0."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
