"""The linear part: features in, scores out, and the matrices that tell how strongly the scores move.

Knows nothing of labels or probabilities. Dense and CSR features go through the same products. With an intercept,
features are centred (dense ones in a copy, sparse ones implicitly), so that the intercept stands for the mean score:
its curvature separates from that of the coefficients, and a large mean costs no digits.
"""

import numpy as np
from scipy import linalg, sparse

MAX_FACTORED = 6000  # features beyond which a dense factor of their Gram matrix costs too much memory
MAX_DENSE = 40_000_000  # entries of a matrix that may be made dense


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept.

    has_orthogonal_columns promises that X'X is diagonal, which spares the factorisation of the metric.
    """

    def __init__(self, X, weights, *, fit_intercept, has_orthogonal_columns=False):
        self.has_orthogonal_columns = has_orthogonal_columns and np.ptp(weights) == 0
        self.weights, self.fit_intercept = weights, fit_intercept
        self.n_samples, self.n_features = X.shape
        self.total_weight = weights.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = weights @ X / self.total_weight if fit_intercept else np.zeros(self.n_features)
            self.mean = np.asarray(mean, np.float64)
            self.shift = np.zeros(self.n_features)  # what is still to be subtracted from the stored features
            if sparse.issparse(X) and fit_intercept:
                self.X, self.shift = _centre_full_columns(X, self.mean)
            else:
                self.X = (X - self.mean).astype(X.dtype) if fit_intercept else X
        self.is_shifted = bool(self.shift.any())

    def scores(self, coef, intercept):
        """(X - mean) @ coef + intercept in the type of X; coef (n_features, n_labels), intercept (n_labels,)."""
        scores = self.X @ coef.astype(self.X.dtype, copy=False)
        scores += intercept - self.shift @ coef if self.is_shifted else intercept
        return scores

    def pull_back(self, residuals):
        """Gradients in coef and intercept of a function whose gradient in the scores is given."""
        total = residuals.sum(axis=0, dtype=np.float64)
        # The same product as X.T @ residuals; for dense X and few labels up to twice as fast in this order.
        coef = np.asarray((residuals.T @ self.X).T, np.float64)
        if self.is_shifted:
            coef -= np.outer(self.shift, total)
        return coef, total if self.fit_intercept else np.zeros_like(total)

    def gram(self):
        """(X - mean)' diag(weights) (X - mean), in float64 throughout."""
        gram = np.zeros((self.n_features, self.n_features))
        step = self.n_samples if self.X.dtype == np.float64 or sparse.issparse(self.X) else 4096
        for start in range(0, self.n_samples, step):
            X, weights = self.X[start : start + step].astype(np.float64, copy=False), self.weights[start : start + step]
            if np.ptp(self.weights) == 0:
                part = (X.T @ X) * self.weights[0]
            elif sparse.issparse(X):
                part = X.T @ (sparse.diags_array(weights) @ X)
            else:
                part = X.T @ (X * weights[:, None])
            gram += part.toarray() if sparse.issparse(part) else part
        return gram - self.total_weight * np.outer(self.shift, self.shift) if self.is_shifted else gram

    def spectrum(self):
        """values and root with gram = diag(values) - root root', for orthogonal columns and equal weights."""
        root = np.sqrt(self.total_weight) * self.mean
        return self.squared_norms() + np.square(root), root

    def squared_norms(self):
        """The diagonal of `gram`, without forming it."""
        squared = self.X.multiply(self.X) if sparse.issparse(self.X) else np.square(self.X)
        return np.maximum(np.asarray(self.weights @ squared) - self.total_weight * self.shift**2, 0.0)

    def largest_entries(self):
        """Largest magnitude in each column of X."""
        largest = abs(self.X).max(axis=0)
        return largest.toarray().ravel() if sparse.issparse(largest) else np.asarray(largest)


class CoefficientMetric:
    """Solves with curvature * gram + alpha I, factorised once.

    The matrix is first scaled to a diagonal of ones, so that columns of very different scale keep their digits. With
    alpha = 0 it may be singular: then the solution of smallest norm on that scale, so that coefficients that the
    features leave undetermined stay where they started. Beyond MAX_FACTORED features only the diagonal is used.
    """

    def __init__(self, design, *, curvature, alpha):
        self.is_full = design.n_features <= MAX_FACTORED
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = design.gram() if self.is_full else design.squared_norms()
        _check_squares(np.diag(matrix) if self.is_full else matrix, design)
        matrix = curvature * matrix
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


class SpectralMetric:
    """Solves with curvature * (diag(values) - root root') + alpha I by Sherman and Morrison's formula; alpha > 0."""

    def __init__(self, values, root, *, curvature, alpha):
        self._inverse = 1.0 / (curvature * values + alpha)
        self._direction = self._inverse * root
        # 1 - curvature root' D^-1 root, as a sum of positive terms: the difference itself would cancel.
        shares = np.square(root) * reciprocals(values)
        self._rest = alpha * (shares @ self._inverse) + max(1.0 - shares.sum(), 0.0)
        self._factor = curvature / self._rest if self.is_accurate else 0.0

    @property
    def is_accurate(self):
        """Whether the formula's denominator is well above rounding error."""
        return self._rest > 1e-10

    def solve(self, gradient):
        """Solution for a right-hand side (n_features, n_labels)."""
        along = self._factor * (self._direction @ gradient)
        return self._inverse[:, None] * gradient + self._direction[:, None] * along


def coefficient_metric(design, *, curvature, alpha):
    """The cheapest object whose `solve` solves with curvature * gram + alpha I."""
    if design.has_orthogonal_columns and alpha > 0:
        spectral = SpectralMetric(*design.spectrum(), curvature=curvature, alpha=alpha)
        if spectral.is_accurate:
            return spectral
    return CoefficientMetric(design, curvature=curvature, alpha=alpha)


class RowSpace:
    """Coordinates of the span of the rows of a design with fewer rows than features.

    The penalised optimum lies in that span, so it can be found in as many coordinates as there are rows. `features`
    (n_samples, rank) give the same centred scores with coefficients z as X does with `expand(z)`; `reduce` is the way
    back. Orthogonal coordinates by QR: products of rows would square the ratio between large and small columns.
    """

    def __init__(self, design):
        X = design.X.toarray() - design.shift if sparse.issparse(design.X) else design.X
        basis, triangle, order = linalg.qr(X.T.astype(np.float64), mode="economic", pivoting=True, check_finite=False)
        pivots = np.abs(np.diag(triangle))
        rank = np.count_nonzero(pivots > max(X.shape) * np.finfo(np.float64).eps * pivots[0])
        self._basis = basis[:, :rank]
        self.features = np.empty((len(order), rank))
        self.features[order] = triangle[:rank].T

    @staticmethod
    def pays(design):
        """Whether there are fewer rows than features, and few enough entries to be held densely."""
        return design.n_samples < design.n_features and design.n_samples * design.n_features <= MAX_DENSE

    def expand(self, z):
        """Coefficients of X (n_features, n_labels) from those of the features."""
        return self._basis @ z

    def reduce(self, coef):
        """Coefficients of the features that give the scores nearest to those of X with coef."""
        return self._basis.T @ coef


def gram_features(gram):
    """Features whose inner products are the Gram matrix, the map of their coefficients to dual ones, and what is lost.

    gram = U diag(values) U' gives features U sqrt(values) and the map U / sqrt(values), both (n_samples, rank):
    optimising in these coordinates avoids the square of the Gram matrix's condition number. Lost are eigenvalues below
    the rounding error of the largest: the last result is that bound.
    """
    values, vectors = linalg.eigh(gram, check_finite=False)
    largest = max(values[-1], 0.0)
    if values[0] < -1e-8 * largest or largest < -values[0]:
        raise ValueError(
            f"The kernel matrix must be positive semidefinite; its smallest eigenvalue is {values[0]:.3g} and its "
            f"largest {values[-1]:.3g}. Choose another kernel (sigmoid often fails) or other parameters."
        )
    lost = largest * len(values) * np.finfo(np.float64).eps
    kept = values > lost
    roots = np.sqrt(values[kept])
    return vectors[:, kept] * roots, vectors[:, kept] / roots, lost


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


def _centre_full_columns(X, mean):
    """A sparse X whose (nearly) full columns are centred, and the means that are left to be subtracted implicitly.

    A column with a share z of zeros has a variance of at least z / (1 - z) of its squared mean, so that the implicit
    way loses digits only where z is tiny; there, storing what is missing costs nothing.
    """
    n_stored = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    full = np.flatnonzero(n_stored >= 0.999 * X.shape[0])
    if len(full) == 0:
        return X, mean
    rest = np.setdiff1d(np.arange(X.shape[1]), full)
    centred = sparse.csr_array((X[:, full].toarray() - mean[full]).astype(X.dtype))
    order = np.argsort(np.concatenate([rest, full]), kind="stable")
    joined = sparse.csr_array(sparse.hstack([X[:, rest], centred], format="csc")[:, order])
    shift = mean.copy()
    shift[full] = 0.0
    return joined, shift


def _check_squares(squares, design):
    if not np.isfinite(squares).all():
        raise ValueError("The features are too large to be squared; scale them, for example with StandardScaler.")
    if (squares < 1e-290).any() and (design.largest_entries()[squares < 1e-290] > 0).any():
        raise ValueError("Some features are too small to be squared; scale them, for example with StandardScaler.")
