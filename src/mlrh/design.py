"""The linear part: features in, scores out, and back.

Knows nothing of labels or probabilities. Dense and CSR features go through the same products. With an intercept,
features are centred (dense ones in a copy, sparse ones implicitly), so that the intercept stands for the mean score:
its curvature separates from that of the coefficients, and a large mean costs no digits.
"""

import numpy as np
from scipy import linalg, sparse

from mlrh.sparse_products import multiply

MAX_DENSE = 40_000_000  # entries of a matrix that may be made dense
FEW_LABELS = 32  # with fewer, BLAS multiplies faster with X on the right


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept.

    n_leading promises that the columns beyond so many add little to those before. n_jobs is for products with sparse
    features; those with dense ones have threads of their own.
    """

    def __init__(self, X, weights, *, fit_intercept, n_leading=None, n_jobs=None):
        self.weights, self.fit_intercept = weights, fit_intercept
        self.n_samples, self.n_features = X.shape
        self.n_leading = self.n_features if n_leading is None else n_leading
        self.total_weight = weights.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            mean = weights @ X / self.total_weight if fit_intercept else np.zeros(self.n_features)
            self.mean = np.asarray(mean, np.float64)
            self.shift = np.zeros(self.n_features)  # what is still to be subtracted from the stored features
            if sparse.issparse(X) and fit_intercept:
                self.X, self.shift = _centre_full_columns(X, self.mean)
            else:
                self.X = (X - self.mean).astype(X.dtype, copy=False) if fit_intercept else X
        self.is_shifted = bool(self.shift.any())
        self._n_jobs = n_jobs
        self.keeps_gram, self._grams = False, {}
        self._transposed = sparse.csr_array(self.X.T) if sparse.issparse(self.X) else None

    def scores(self, coef, intercept):
        """(X - mean) @ coef + intercept in the type of X; coef (n_features, n_labels), intercept (n_labels,)."""
        if self._transposed is not None:
            scores = multiply(self.X, coef, n_jobs=self._n_jobs)
        elif coef.shape[1] < FEW_LABELS:
            scores = np.ascontiguousarray((coef.T.astype(self.X.dtype, copy=False) @ self.X.T).T)
        else:
            scores = self.X @ coef.astype(self.X.dtype, copy=False)
        scores += intercept - self.shift @ coef if self.is_shifted else intercept
        return scores

    def pull_back(self, residuals):
        """Gradients in coef and intercept of a function whose gradient in the scores is given."""
        total = residuals.sum(axis=0, dtype=np.float64)
        if self._transposed is None:
            coef = np.asarray((residuals.T @ self.X).T, np.float64)
        else:
            coef = multiply(self._transposed, residuals, n_jobs=self._n_jobs).astype(np.float64, copy=False)
        if self.is_shifted:
            coef -= np.outer(self.shift, total)
        return coef, total if self.fit_intercept else np.zeros_like(total)

    def gram(self, n_columns=None):
        """(X - mean)' diag(weights) (X - mean), in float64 throughout, for all columns of X or the first ones.

        The array is the caller's to change; with keeps_gram, another one stays here for the next call.
        """
        n_columns = self.n_features if n_columns is None else n_columns
        if n_columns not in self._grams:
            gram = self._make_gram(self.X[:, :n_columns], self.shift[:n_columns])
            if not self.keeps_gram:
                return gram
            self._grams[n_columns] = gram
        return self._grams[n_columns].copy()

    def squared_norms(self):
        """The diagonal of `gram`, without forming it."""
        squared = self.X.multiply(self.X) if sparse.issparse(self.X) else np.square(self.X)
        return np.maximum(np.asarray(self.weights @ squared) - self.total_weight * self.shift**2, 0.0)

    def _make_gram(self, X, shift):
        is_sparse, unit = sparse.issparse(X), self.weights[0] if np.ptp(self.weights) == 0 else None
        step = self.n_samples if is_sparse or X.dtype == np.float64 else 4096
        gram = 0.0
        for start in range(0, self.n_samples, step):
            rows = X[start : start + step].astype(np.float64, copy=False)
            if unit is None:
                weights = self.weights[start : start + step]
                part = rows.T @ (sparse.diags_array(weights) @ rows if is_sparse else rows * weights[:, None])
            else:
                part = rows.T @ rows
            gram += part.toarray() if is_sparse else part
        if unit not in (None, 1.0):
            gram *= unit
        if self.is_shifted:
            gram -= self.total_weight * np.outer(shift, shift)
        return gram

    def largest_entries(self):
        """Largest magnitude in each column of X."""
        largest = abs(self.X).max(axis=0)
        return largest.toarray().ravel() if sparse.issparse(largest) else np.asarray(largest)


class RowSpace:
    """Coordinates of the span of the rows of a design with fewer rows than features.

    The penalised optimum lies in that span, so it can be found in as many coordinates as there are rows. `features`
    (n_samples, rank) give the same centred scores with coefficients z as X does with `expand(z)`; `reduce` is the way
    back. Orthogonal coordinates by QR: products of rows would square the ratio between large and small columns.
    """

    def __init__(self, design):
        X = design.X.toarray() - design.shift if sparse.issparse(design.X) else design.X
        basis, triangle, order = linalg.qr(
            X.T.astype(np.float64), mode="economic", pivoting=True, overwrite_a=True, check_finite=False
        )
        pivots = np.abs(np.diag(triangle))
        rank = np.count_nonzero(pivots > max(X.shape) * np.finfo(np.float64).eps * pivots[0])
        self._basis = basis[:, :rank]
        self.features = np.empty((len(order), rank))
        self.features[order] = triangle[:rank].T

    @staticmethod
    def pays(design):
        """Whether there are fewer rows than features, and few enough entries to be held densely.

        Where sparse features have fewer entries than the square that takes their place, they are cheaper as they are.
        """
        if design.n_samples >= design.n_features or design.n_samples * design.n_features > MAX_DENSE:
            return False
        return not sparse.issparse(design.X) or design.X.nnz > design.n_samples**2

    def expand(self, z):
        """Coefficients of X (n_features, n_labels) from those of the features."""
        return self._basis @ z

    def reduce(self, coef):
        """Coefficients of the features that give the scores nearest to those of X with coef."""
        return self._basis.T @ coef


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
