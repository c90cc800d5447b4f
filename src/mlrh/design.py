"""The linear part: features in, scores out, and back.

Knows nothing of labels or probabilities. Dense and CSR features go through the same products. With an intercept,
features are centred (dense ones in a copy, sparse ones implicitly), so that the intercept stands for the mean score:
its curvature separates from that of the coefficients, and a large mean costs no digits.
"""

import numpy as np
from scipy import sparse

from mlrh import sparse_products, thin_products

FEW_LABELS = 32  # with fewer, BLAS multiplies faster with X on the right, and leaves time to be saved
MIN_ENTRIES = 200_000  # of X, below which BLAS is as fast with few labels, too


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept.

    n_leading promises that the columns beyond so many add little to those before. n_jobs is for products with sparse
    features and with few labels; others have the threads of BLAS.
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
            scores = sparse_products.multiply(self.X, coef, n_jobs=self._n_jobs)
        elif self._is_thin(coef):
            scores = thin_products.multiply(self.X, coef, n_jobs=self._n_jobs)
        elif coef.shape[1] < FEW_LABELS:
            scores = np.ascontiguousarray((coef.T.astype(self.X.dtype, copy=False) @ self.X.T).T)
        else:
            scores = self.X @ coef.astype(self.X.dtype, copy=False)
        scores += intercept - self.shift @ coef if self.is_shifted else intercept
        return scores

    def pull_back(self, residuals):
        """Gradients in coef and intercept of a function whose gradient in the scores is given."""
        total = residuals.sum(axis=0, dtype=np.float64)
        if self._transposed is not None:
            products = sparse_products.multiply(self._transposed, residuals, n_jobs=self._n_jobs)
            coef = products.astype(np.float64, copy=False)
        elif self._is_thin(residuals):
            coef = thin_products.multiply_transposed(self.X, residuals, n_jobs=self._n_jobs)
        else:
            coef = np.asarray((residuals.T @ self.X).T, np.float64)
        if self.is_shifted:
            coef -= np.outer(self.shift, total)
        return coef, total if self.fit_intercept else np.zeros_like(total)

    def _is_thin(self, factor):
        """Whether a product of dense features with this is worth a kernel of its own.

        With more features its sums leave the cache, with fewer the vectors of labels are as long as X.
        """
        is_large = self.X.size >= MIN_ENTRIES and 16 <= self.n_features <= 4096
        return is_large and factor.shape[1] < FEW_LABELS and self.X.flags.c_contiguous

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

    def gram_with(self, weights, n_columns=None):
        """`gram` of dense features with other weights, none of them negative, about the same mean."""
        return _dense_gram(self.X[:, :n_columns], weights)

    def squared_norms(self, weights=None):
        """The diagonal of `gram`, without forming it; with other weights than the design's if these are given."""
        if weights is not None:
            return self.squared_norms_by_label(weights[:, None])[:, 0]
        if not sparse.issparse(self.X):
            return np.maximum(np.einsum("i,ij,ij->j", self.weights, self.X, self.X), 0.0)
        squares = self.weights @ self.X.multiply(self.X)
        return np.maximum(np.asarray(squares) - self.total_weight * self.shift**2, 0.0)

    def squared_norms_by_label(self, weights):
        """`squared_norms` (n_features, n_labels) for weights of rows (n_samples, n_labels), about the same mean."""
        if self._transposed is None:
            return np.maximum(np.einsum("ik,ij,ij->jk", weights, self.X, self.X, optimize=True), 0.0)
        squared = self._transposed.copy()
        squared.data = np.square(squared.data)
        squares = sparse_products.multiply(squared, weights, n_jobs=self._n_jobs)
        if self.is_shifted:
            along = sparse_products.multiply(self._transposed, weights, n_jobs=self._n_jobs)
            squares += self.shift[:, None] * (np.outer(self.shift, weights.sum(axis=0)) - 2 * along)
        return np.maximum(squares, 0.0)

    def _make_gram(self, X, shift):
        if not sparse.issparse(X):
            return _dense_gram(X, self.weights)
        rows = X.astype(np.float64, copy=False)
        unit = self.weights[0] if np.ptp(self.weights) == 0 else None
        products = rows.T @ (rows if unit is not None else sparse.diags_array(self.weights) @ rows)
        gram = products.toarray()
        if unit not in (None, 1.0):
            gram *= unit
        if self.is_shifted:
            gram -= self.total_weight * np.outer(shift, shift)
        return gram

    def row_products(self):
        """(X - mean) (X - mean)', the inner products of the rows, in float64."""
        X, ones = self.X.astype(np.float64, copy=False), np.ones(self.n_samples)
        products = X @ X.T
        products = products.toarray() if sparse.issparse(products) else products
        if self.is_shifted:
            along = X @ self.shift
            products -= np.outer(along, ones) + np.outer(ones, along) - self.shift @ self.shift
        return products

    def largest_entries(self):
        """Largest magnitude in each column of X."""
        largest = abs(self.X).max(axis=0)
        return largest.toarray().ravel() if sparse.issparse(largest) else np.asarray(largest)


def _dense_gram(X, weights):
    """X' diag(weights) X in float64; BLAS does half of the work, since both factors are the same."""
    unit = weights[0] if np.ptp(weights) == 0 else None
    step = max(len(X), 1) if X.dtype == np.float64 and unit is not None else 4096
    gram = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), step):
        rows = X[start : start + step].astype(np.float64, copy=False)
        if unit is None:
            rows = rows * np.sqrt(weights[start : start + step])[:, None]
        gram += rows.T @ rows
    if unit not in (None, 1.0):
        gram *= unit
    return gram


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
