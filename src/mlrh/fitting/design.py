"""The linear part: features in, scores out, and back.

Knows nothing of labels or probabilities. Dense and CSR features go through the same products. With an intercept,
features are centred (dense ones in a copy, sparse ones implicitly), so that the intercept stands for the mean score:
its curvature separates from that of the coefficients, and a large mean costs no digits.
"""

import numpy as np
from scipy import linalg, sparse

from mlrh.fitting import _products

FEW_LABELS = 32  # with fewer, BLAS multiplies faster with X on the right, and leaves time to be saved
MIN_ENTRIES = 200_000  # of X, below which BLAS is as fast with few labels, too


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept.

    n_leading promises that the columns beyond so many add little to those before. keep_gram keeps the Gram matrix for
    further fits to the same rows. n_jobs is for products with sparse features and with few labels; others have the
    threads of BLAS.
    """

    def __init__(self, X, weights, *, fit_intercept, n_leading=None, keep_gram=False, n_jobs=None):
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
        self._keep_gram, self._grams = keep_gram, {}
        self._transposed = sparse.csr_array(self.X.T) if sparse.issparse(self.X) else None

    def scores(self, coef, intercept):
        """(X - mean) @ coef + intercept in the type of X; coef (n_features, n_labels), intercept (n_labels,)."""
        if self._transposed is not None:
            scores = _products.multiply_sparse(self.X, coef, n_jobs=self._n_jobs)
        elif self._is_thin(coef):
            scores = _products.multiply_thin(self.X, coef, n_jobs=self._n_jobs)
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
            products = _products.multiply_sparse(self._transposed, residuals, n_jobs=self._n_jobs)
            coef = products.astype(np.float64, copy=False)
        elif self._is_thin(residuals):
            coef = _products.multiply_thin_transposed(self.X, residuals, n_jobs=self._n_jobs)
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

        The array is the caller's to change; with keep_gram, another one stays here for the next call.
        """
        n_columns = self.n_features if n_columns is None else n_columns
        if n_columns not in self._grams:
            gram = self._make_gram(self.X[:, :n_columns], self.shift[:n_columns])
            if not self._keep_gram:
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
        squares = _products.multiply_sparse(squared, weights, n_jobs=self._n_jobs)
        if self.is_shifted:
            along = _products.multiply_sparse(self._transposed, weights, n_jobs=self._n_jobs)
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


MAX_DENSE = 40_000_000  # entries of a matrix that may be made dense
MAX_NOISE = 1e-8  # in scores, from rounding in products of rows


def row_space(design, C):
    """An `OrthogonalRows` or `GramRows` of the design, or None where its features are cheaper as they are.

    For penalties of 1/C or more.
    """
    n_samples, n_features = design.n_samples, design.n_features
    if n_samples >= n_features or n_samples * n_features > MAX_DENSE:
        return None
    if not sparse.issparse(design.X):
        return OrthogonalRows(design)
    if GramRows.pays(design, C):
        return GramRows(design)
    return OrthogonalRows(design) if design.X.nnz > n_samples**2 else None


class OrthogonalRows:
    """Orthogonal coordinates by QR: products of rows would square the ratio between large and small columns."""

    def __init__(self, design):
        X = design.X.toarray() - design.shift if sparse.issparse(design.X) else design.X
        basis, triangle, order = linalg.qr(
            X.T.astype(np.float64), mode="economic", pivoting=True, overwrite_a=True, check_finite=False
        )
        pivots = np.abs(np.diag(triangle))
        rank = np.count_nonzero(pivots > max(X.shape) * np.finfo(np.float64).eps * pivots[0])
        self.n_leading, self._basis = None, basis[:, :rank]
        self.features = np.empty((len(order), rank))
        self.features[order] = triangle[:rank].T

    def expand(self, z):
        """Coefficients of X (n_features, n_labels) from those of the features."""
        return self._basis @ z

    def reduce(self, coef):
        """Coefficients of the features that give the scores nearest to those of X with coef."""
        return self._basis.T @ coef


class GramRows:
    """Coordinates by Cholesky of the products of rows, for sparse ones: these are quickly had."""

    def __init__(self, design):
        self._design, self._factors = design, GramFeatures(design.row_products())
        self.features, self.n_leading = self._factors.features, self._factors.n_leading

    @staticmethod
    def pays(design, C):
        """Whether products of sparse rows keep the digits of scores, and coordinates are less work than coefficients.

        What rounding takes from a product of rows, times coefficients of rows up to C, is the noise in scores. For each
        label, an iteration takes two products with a square matrix instead of one with few entries, and handles vectors
        (about 30 of them, and slower by a number) of the length of rows instead of features.
        """
        n_samples, n_features = design.n_samples, design.n_features
        with np.errstate(over="ignore"):
            largest = float(np.asarray(design.X.multiply(design.X).sum(axis=1)).max())
        noise = np.finfo(np.float64).eps * n_samples * largest * C
        return noise <= MAX_NOISE and n_samples**2 < 500 * (n_features - n_samples)

    def expand(self, z):
        """Coefficients of X (n_features, n_labels) from those of the features."""
        dual = self._factors.to_dual(z)  # of the size of C, and cancelling: in float64
        return self._design.X.T.astype(np.float64) @ dual - np.outer(self._design.shift, dual.sum(axis=0))

    def reduce(self, coef):
        """Coefficients of the features that give the scores of X with coef."""
        return self._factors.from_scores(self._design.scores(coef, np.zeros(coef.shape[1])))


class GramFeatures:
    """Features whose inner products are the Gram matrix, and the way from their coefficients to dual ones and back.

    gram = L L' by Cholesky with pivoting, in a tenth of the time of an eigendecomposition: the rows of L, in the order
    of the pivots, are the `features` (n_samples, rank). Optimising in these coordinates avoids the square of the Gram
    matrix's condition number, and the later a column, the less it adds. `lost` bounds what is left of the diagonal when
    the pivots end in rounding errors.
    """

    def __init__(self, gram):
        largest = max(np.diag(gram).max(initial=0.0), 0.0)
        self.lost = largest * len(gram) * np.finfo(np.float64).eps
        # The transpose is equal, and has its columns one after the other, as LAPACK wants them and gives back L'.
        factor, pivots, rank, _ = linalg.lapack.dpstrf(gram.T, tol=self.lost, lower=0)
        rank = int(rank) if largest > 0 else 0
        for column in range(len(gram)):
            factor[column + 1 :, column] = 0.0
        order, rows = pivots - 1, factor.T[:, :rank]
        _check_rest(gram, rows, order, largest)
        self.features = np.empty((len(gram), rank))
        self.features[order] = rows
        self.rank, self._triangle, self._kept = rank, factor[:rank, :rank], order[:rank]

    @property
    def n_leading(self):
        """As many columns as a metric needs: pivots fall, and a third of them hardly takes more iterations than all."""
        return max(self.rank // 3, min(self.rank, 500))

    def to_dual(self, coef):
        """Dual coefficients (n_samples, n_labels) with gram @ dual = features @ coef: those of other rows are 0."""
        dual = np.zeros((len(self.features), coef.shape[1]))
        dual[self._kept] = self._solve(coef)
        return dual

    def from_scores(self, scores):
        """Coefficients (rank, n_labels) of features that give these scores (n_samples, n_labels) in the rows kept."""
        return self._solve(scores[self._kept], trans=1)

    def _solve(self, right, trans=0):
        """Solution with L', or with L if transposed; in float64."""
        if self.rank == 0:
            return np.zeros((0, right.shape[1]))
        return linalg.lapack.dtrtrs(self._triangle, np.asarray(right, np.float64), lower=0, trans=trans)[0]


def _check_rest(gram, rows, order, largest):
    """Raise where what the pivots have left of the Gram matrix is more than rounding: then it isn't semidefinite."""
    rest = order[rows.shape[1] :]
    left = gram[np.ix_(rest, rest)] - rows[rows.shape[1] :] @ rows[rows.shape[1] :].T
    if len(rest) and max(np.abs(left).max(), -np.diag(gram).min()) > 1e-8 * largest:
        values = linalg.eigvalsh(gram, check_finite=False)
        if values[0] < -1e-8 * max(values[-1], 0.0):
            raise ValueError(
                f"The kernel matrix must be positive semidefinite; its smallest eigenvalue is {values[0]:.3g} and its "
                f"largest {values[-1]:.3g}. Choose another kernel (sigmoid often fails) or other parameters."
            )
