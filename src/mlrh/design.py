"""The linear part: features in, scores out, and the matrices that tell how strongly the scores move.

Knows nothing of labels or probabilities. Dense and CSR features go through the same products. With an intercept,
features are centred (dense ones in a copy, sparse ones implicitly), so that the intercept stands for the mean score:
its curvature separates from that of the coefficients, and a large mean costs no digits.
"""

import numpy as np
from scipy import linalg, sparse

MAX_FACTORED = 6000  # features, or rows if they are fewer, beyond which a dense factor costs too much memory


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept."""

    def __init__(self, X, weights, *, fit_intercept):
        self.weights, self.fit_intercept = weights, fit_intercept
        self.n_samples, self.n_features = X.shape
        self.total_weight = weights.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = weights @ X / self.total_weight if fit_intercept else np.zeros(self.n_features)
            self.mean = np.asarray(mean, np.float64)
            self.is_shifted = fit_intercept and sparse.issparse(X)
            self.X = X if self.is_shifted or not fit_intercept else (X - self.mean).astype(X.dtype)

    def scores(self, coef, intercept):
        """(X - mean) @ coef + intercept in the type of X; coef (n_features, n_labels), intercept (n_labels,)."""
        scores = self.X @ coef.astype(self.X.dtype, copy=False)
        scores += intercept - self.mean @ coef if self.is_shifted else intercept
        return scores

    def pull_back(self, residuals):
        """Gradients in coef and intercept of a function whose gradient in the scores is given."""
        total = residuals.sum(axis=0, dtype=np.float64)
        coef = np.asarray(self.X.T @ residuals, np.float64)
        if self.is_shifted:
            coef -= np.outer(self.mean, total)
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
        return gram - self.total_weight * np.outer(self.mean, self.mean) if self.is_shifted else gram

    def squared_norms(self):
        """The diagonal of `gram`, without forming it."""
        squared = self.X.multiply(self.X) if sparse.issparse(self.X) else np.square(self.X)
        norms = np.asarray(self.weights @ squared, np.float64)
        return np.maximum(norms - self.total_weight * self.mean**2, 0.0) if self.is_shifted else norms


class CoefficientMetric:
    """Solves with curvature * gram + alpha I, factorised once.

    The matrix is first scaled to a diagonal of ones, so that columns of very different scale keep their digits. With
    alpha = 0 it may be singular: then the solution of smallest norm on that scale, so that coefficients that the
    features leave undetermined stay where they started. Beyond MAX_FACTORED features only the diagonal is used.
    """

    def __init__(self, design, *, curvature, alpha):
        self.is_full = design.n_features <= MAX_FACTORED
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = curvature * (design.gram() if self.is_full else design.squared_norms())
        if not np.isfinite(matrix).all():
            raise ValueError("The features are too large to be squared; scale them, for example with StandardScaler.")
        if not self.is_full:
            self._scale = np.sqrt(reciprocals(matrix + alpha))[:, None]
            return
        matrix[np.diag_indices_from(matrix)] += alpha
        self._scale = np.sqrt(reciprocals(np.diag(matrix)))[:, None]
        matrix *= self._scale
        matrix *= self._scale.T
        self._factor = _factor(matrix, np.finfo(design.X.dtype).eps)

    def solve(self, gradient):
        """Solution for a right-hand side (n_features, n_labels)."""
        scaled = self._scale * gradient
        if not self.is_full:
            return self._scale * scaled
        cholesky, vectors, inverse_values = self._factor
        if cholesky is not None:
            return self._scale * linalg.cho_solve(cholesky, scaled, check_finite=False)
        return self._scale * (vectors @ (inverse_values[:, None] * (vectors.T @ scaled)))


class RowSpace:
    """Coordinates of the span of the rows of a design with fewer rows than features.

    The penalised optimum lies in that span, so it can be found in as many coordinates as there are rows. `features`
    (n_samples, rank) give the same scores with coefficients z as X does with `expand(z)`; `reduce` is the way back.
    """

    def __init__(self, design):
        self.X = design.X
        if sparse.issparse(self.X):
            products = (self.X @ self.X.T).toarray().astype(np.float64)
            self.features, self._back = gram_features(products)
        else:
            # Orthogonal coordinates by QR: products would square the ratio between large and small columns.
            basis, triangle, order = linalg.qr(self.X.T.astype(np.float64), mode="economic", pivoting=True)
            pivots = np.abs(np.diag(triangle))
            rank = np.count_nonzero(pivots > max(self.X.shape) * np.finfo(np.float64).eps * pivots[0])
            self._basis = basis[:, :rank]
            self.features = np.empty((len(order), rank))
            self.features[order] = triangle[:rank].T

    def expand(self, z):
        return self.X.T @ (self._back @ z) if sparse.issparse(self.X) else self._basis @ z

    def reduce(self, coef):
        return self._back.T @ (self.X @ coef) if sparse.issparse(self.X) else self._basis.T @ coef


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


def reciprocals(values):
    """1 / values, 0 where a value is 0 or nearly so."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 1e-300)


def _factor(matrix, eps):
    """(cholesky, None, None) where that is safe, else (None, eigenvectors, inverse eigenvalues) of the range."""
    try:
        cholesky = linalg.cho_factor(matrix, check_finite=False)
    except linalg.LinAlgError:
        pass
    else:
        pivots = np.diag(cholesky[0])
        if len(pivots) == 0 or pivots.min() ** 2 > 10 * len(pivots) * eps:
            return cholesky, None, None
    values, vectors = linalg.eigh(matrix, check_finite=False)
    kept = values > 10 * len(values) * eps * max(values[-1], 0.0)
    return None, vectors[:, kept], 1.0 / values[kept]
