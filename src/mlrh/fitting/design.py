"""From features to scores and back, and cheaper coordinates for features: row space and Gram features.

Dense and CSR features go through the same methods. With an intercept, features are centred: dense ones in a copy,
sparse ones implicitly. The intercept is then the mean score. Its curvature separates from that of the coefficients,
and a large mean of a feature costs no digits.
"""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import linalg, sparse

from mlrh.fitting import _products

FLOAT32_RANGE = (1e-10, 1e10)  # of features and weights: weighted squares of 1e8 rows are then in that of float32
CONSTANT = 1e-12  # times its mean: a centred column with no larger entry is constant but for rounding
FAR = 4.0  # standard deviations of a mean from 0 from which on subtracting it implicitly would cost digits


class Design:
    """Features X (n_samples, n_features) of rows with weights, with or without an intercept.

    n_leading is a promise: columns from this one on add little to those before, so a metric may use their diagonal
    only. keep_gram keeps the Gram matrix for further fits to the same rows. n_jobs is the number of threads of products
    with sparse features and with few labels; other products use the threads of BLAS.
    """

    is_on_device = False

    def __init__(self, X, weights, *, fit_intercept, n_leading=None, keep_gram=False, n_jobs=None):
        self.weights, self.fit_intercept = weights, fit_intercept
        self.n_samples, self.n_features = X.shape
        self.n_leading = self.n_features if n_leading is None else n_leading
        self.total_weight = weights.sum()
        # Features too large to be summed or squared are reported by `metric.check_squares`, in words.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = weights @ X / self.total_weight if fit_intercept else np.zeros(self.n_features)
            self.mean = np.asarray(mean, np.float64)
            self.shift = np.zeros(self.n_features)  # what is still to be subtracted from the stored features
            if sparse.issparse(X) and fit_intercept:
                self.X, self.shift = _centre_full_columns(X, self.mean)
            else:
                self.X = (X - self.mean).astype(X.dtype, copy=False) if fit_intercept else X
        self.is_shifted = bool(self.shift.any())
        self.n_jobs = n_jobs
        self._keep_gram, self._grams = keep_gram, {}

    @property
    def dtype(self):
        """The type of the features, float64 or float32."""
        return self.X.dtype

    @property
    def is_sparse(self):
        return sparse.issparse(self.X)

    @property
    def n_entries(self):
        """Number of stored features of all rows."""
        return self.X.nnz if self.is_sparse else self.X.size

    @cached_property
    def _transposed(self):
        """X' of sparse features: products with it need the columns one after the other."""
        return sparse.csr_array(self.X.T)

    @cached_property
    def in_float32(self):
        """The same rows with sparse features, and so scores, in float32; None where its range is too small for them.

        It is large enough where weights and the largest entry of each column are in FLOAT32_RANGE. Of a column that is
        constant, centring leaves rounding errors alone, which may be as small as they like.
        """
        low, high = FLOAT32_RANGE
        largest = self.largest_entries()
        of_columns = largest[largest > CONSTANT * np.abs(self.mean)]
        if not all((low < own).all() and (own < high).all() for own in (of_columns, self.weights)):
            return None
        other = copy(self)
        other.X, other._transposed, other._grams = _in_float32(self.X), _in_float32(self._transposed), {}
        return other

    def of_rows(self, rows):
        """The design of some rows, given by numbers."""
        options = {"fit_intercept": self.fit_intercept, "n_leading": self.n_leading, "n_jobs": self.n_jobs}
        return Design(self.X[rows], self.weights[rows], **options)

    def scores(self, coef, intercept):
        """(X - mean) @ coef + intercept in the type of X; coef (n_features, n_labels), intercept (n_labels,)."""
        if self.is_sparse:
            scores = _products.multiply_sparse(self.X, coef, n_jobs=self.n_jobs)
        elif _products.are_thin(self.X, coef):
            scores = _products.multiply_thin(self.X, coef, n_jobs=self.n_jobs)
        elif coef.shape[1] < _products.FEW_LABELS:
            scores = np.ascontiguousarray((coef.T.astype(self.X.dtype, copy=False) @ self.X.T).T)
        else:
            scores = self.X @ coef.astype(self.X.dtype, copy=False)
        # (X - shift) coef = X coef - shift'coef: one number per label, so that a sparse X stays sparse.
        scores += intercept - self.shift @ coef if self.is_shifted else intercept
        return scores

    def pull_back(self, residuals):
        """Gradients in coef (n_features, n_labels) and intercept (n_labels,) from residuals, the gradient in scores.

        They are (X - mean)' @ residuals, and the sum of the residuals over rows.
        """
        total = residuals.sum(axis=0, dtype=np.float64)
        if self.is_sparse:
            coef = self._transposed_product(residuals).astype(np.float64, copy=False)
        elif _products.are_thin(self.X, residuals):
            coef = _products.multiply_thin_transposed(self.X, residuals, n_jobs=self.n_jobs)
        else:
            coef = np.asarray((residuals.T @ self.X).T, np.float64)
        if self.is_shifted:
            coef -= np.outer(self.shift, total)
        return coef, total if self.fit_intercept else np.zeros_like(total)

    def _transposed_product(self, factor):
        """X' @ factor of sparse features."""
        return _products.multiply_sparse(self._transposed, factor, n_jobs=self.n_jobs)

    def gram(self, n_columns=None):
        """(X - mean)' diag(weights) (X - mean), (n_columns, n_columns) in float64, for all columns or the first ones.

        The caller may change the array: with keep_gram, a copy is returned.
        """
        n_columns = self.n_features if n_columns is None else n_columns
        if n_columns not in self._grams:
            gram = self._make_gram(self.X[:, :n_columns], self.shift[:n_columns])
            if not self._keep_gram:
                return gram
            self._grams[n_columns] = gram
        return self._grams[n_columns].copy()

    def gram_with(self, weights, n_columns=None):
        """`gram` of dense features with other weights, none negative, about the mean of the design's own weights."""
        return _dense_gram(self.X[:, :n_columns], weights)

    def squared_norms(self, weights=None):
        """The diagonal of `gram` (n_features,), without forming it; with these weights instead of the design's."""
        if weights is not None:
            return self.squared_norms_by_label(weights[:, None])[:, 0]
        if not sparse.issparse(self.X):
            if np.ptp(self.weights) > 0:
                return np.einsum("i,ij,ij->j", self.weights, self.X, self.X)
            # In less than half the time; in float64, as the weights are.
            return self.weights[0] * np.einsum("ij,ij->j", self.X, self.X, dtype=np.float64)
        # sum w (x - m)^2 = sum w x^2 - (sum w) m^2, as m is the weighted mean; rounding may bring it below 0.
        squares = self.weights @ self.X.multiply(self.X)
        return np.maximum(np.asarray(squares) - self.total_weight * self.shift**2, 0.0)

    def squared_norms_by_label(self, weights):
        """`squared_norms` (n_features, n_labels) for weights of rows (n_samples, n_labels), about the same mean."""
        if not self.is_sparse:
            return np.maximum(np.einsum("ik,ij,ij->jk", weights, self.X, self.X, optimize=True), 0.0)
        squared = self._transposed.copy()
        squared.data = np.square(squared.data)
        squares = _products.multiply_sparse(squared, weights, n_jobs=self.n_jobs)
        if self.is_shifted:
            # sum w (x - m)^2 = sum w x^2 + m (m sum w - 2 sum w x): m is not the mean under these weights.
            along = _products.multiply_sparse(self._transposed, weights, n_jobs=self.n_jobs)
            squares += self.shift[:, None] * (np.outer(self.shift, weights.sum(axis=0)) - 2 * along)
        return np.maximum(squares, 0.0)

    def _make_gram(self, X, shift):
        if not sparse.issparse(X):
            return _dense_gram(X, self.weights)
        # Equal weights are multiplied in at the end, which spares a weighted copy of X.
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
        """(X - mean) (X - mean)', the inner products of the rows, (n_samples, n_samples) in float64."""
        X, ones = self.X.astype(np.float64, copy=False), np.ones(self.n_samples)
        products = X @ X.T
        products = products.toarray() if sparse.issparse(products) else products
        if self.is_shifted:
            along = X @ self.shift
            products -= np.outer(along, ones) + np.outer(ones, along) - self.shift @ self.shift
        return products

    def largest_entries(self):
        """Largest magnitude in each column of the stored X, (n_features,)."""
        largest = abs(self.X).max(axis=0)
        return largest.toarray().ravel() if sparse.issparse(largest) else np.asarray(largest)


class PivotedDesign(Design):
    """The design of triangular features, such as GramFeatures: products leave out the half that is zeros.

    `X` has the rows in the order of the pivots, and its mean is subtracted implicitly: centred, it would have no zeros.
    All that comes in or goes out is in the order of the rows themselves.

    Parameters
    ----------
    factors : TriangularRows
    weights, fit_intercept, keep_gram, n_jobs
        As for `Design`.
    """

    def __init__(self, factors, weights, *, fit_intercept, keep_gram=False, n_jobs=None):
        self.X, self._order = factors.pivot_rows, factors.order
        self.weights, self.fit_intercept, self.n_jobs = weights, fit_intercept, n_jobs
        self.n_samples, self.n_features = self.X.shape
        self.n_leading = self.n_features if factors.n_leading is None else factors.n_leading
        self.total_weight = weights.sum()
        mean = weights[self._order] @ self.X / self.total_weight if fit_intercept else np.zeros(self.n_features)
        self.mean = self.shift = mean
        self.is_shifted = bool(mean.any())
        self._keep_gram, self._grams = keep_gram, {}

    @property
    def keeps_digits(self):
        """Whether no mean is so far from 0, in standard deviations, that it must be subtracted entry by entry."""
        return bool((np.square(self.mean) * self.total_weight <= FAR**2 * self.squared_norms()).all())

    def of_rows(self, rows):
        places = np.empty(self.n_samples, np.int64)
        places[self._order] = np.arange(self.n_samples)
        options = {"fit_intercept": self.fit_intercept, "n_leading": self.n_leading, "n_jobs": self.n_jobs}
        return Design(self.X[places[rows]], self.weights[rows], **options)

    def scores(self, coef, intercept):
        scores = np.empty((self.n_samples, coef.shape[1]))
        if _products.are_thin(self.X, coef):
            scores[self._order] = _products.multiply_thin(self.X, coef, is_triangular=True, n_jobs=self.n_jobs)
        else:
            for rows in self._blocks():
                scores[self._order[rows]] = self.X[rows, : rows.stop] @ coef[: rows.stop]
        scores += intercept - self.shift @ coef if self.is_shifted else intercept
        return scores

    def pull_back(self, residuals):
        total, own = residuals.sum(axis=0), residuals[self._order]
        if _products.are_thin(self.X, own):
            coef = _products.multiply_thin_transposed(self.X, own, is_triangular=True, n_jobs=self.n_jobs)
        else:
            coef = np.zeros((self.n_features, own.shape[1]))
            for rows in self._blocks():
                coef[: rows.stop] += self.X[rows, : rows.stop].T @ own[rows]
        if self.is_shifted:
            coef -= np.outer(self.shift, total)
        return coef, total if self.fit_intercept else np.zeros_like(total)

    def _blocks(self):
        """Slices of rows: those of the triangle in steps, each of which needs the columns before its end; the rest."""
        step = max(self.n_features // N_STEPS, LEAST_STEP)
        ends = [*range(step, self.n_features, step), self.n_samples]
        return [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def gram_with(self, weights, n_columns=None):
        X, shift, own = self.X[:, :n_columns], self.shift[:n_columns], weights[self._order]
        return _about_mean(_dense_gram(X, own), shift, own @ X, own.sum())

    def _make_gram(self, X, shift):
        return self.gram_with(self.weights, X.shape[1])

    def squared_norms_by_label(self, weights):
        own = weights[self._order]
        squares, along = (np.einsum("ik,ij->jk", own, X, optimize=True) for X in (np.square(self.X), self.X))
        # sum w (x - m)^2 = sum w x^2 + m (m sum w - 2 sum w x)
        centred = squares + self.shift[:, None] * (np.outer(self.shift, weights.sum(axis=0)) - 2 * along)
        return np.maximum(centred, 0.0)

    def squared_norms(self, weights=None):
        own = self.weights if weights is None else weights
        return self.squared_norms_by_label(own[:, None])[:, 0]


def triangular_design(factors, weights, **options):
    """The PivotedDesign of the factors, or the Design of their features where implicit means would cost digits."""
    design = PivotedDesign(factors, weights, **options)
    if design.keeps_digits:
        return design
    return Design(factors.features, weights, n_leading=factors.n_leading, **options)


N_STEPS = 8  # of a triangle in products by BLAS, which then make 9/16 of the work
LEAST_STEP = 64  # rows of a step: fewer don't pay for the calls


@dataclass(frozen=True)
class FeatureSums:
    """What one look at the features of all rows tells; the sums of two parts of the rows are joined by `plus`.

    mean (n_features,) is weighted, and 0 without an intercept. squares (n_features,) are the weighted sums of squared
    distances from it, largest (n_features,) the largest magnitudes of the features as a design stores them: dense ones
    are centred.
    """

    n_samples: int
    n_entries: int
    is_sparse: bool
    dtype: np.dtype
    total_weight: float
    mean: np.ndarray
    squares: np.ndarray
    largest: np.ndarray

    @classmethod
    def of(cls, design):
        """The sums of a design that is a part of the rows, about its own mean."""
        with np.errstate(over="ignore", invalid="ignore"):  # too large features are reported by `metric.check_squares`
            squares = design.squared_norms()
        sizes = (design.n_samples, design.n_entries, design.is_sparse, design.dtype)
        return cls(*sizes, design.total_weight, design.mean, squares, design.largest_entries())

    def plus(self, other):
        """The sums of both parts. The distance of their means adds to the squares, so that no digits cancel."""
        total = self.total_weight + other.total_weight
        share = other.total_weight / total
        with np.errstate(over="ignore", invalid="ignore"):
            gap = other.mean - self.mean
            squares = self.squares + other.squares + self.total_weight * share * np.square(gap)
        return FeatureSums(
            n_samples=self.n_samples + other.n_samples,
            n_entries=self.n_entries + other.n_entries,
            is_sparse=self.is_sparse and other.is_sparse,
            dtype=np.promote_types(self.dtype, other.dtype),
            total_weight=total,
            mean=self.mean + share * gap,
            squares=squares,
            largest=np.maximum.reduce([self.largest, other.largest, np.abs(gap)]),
        )

    @property
    def n_features(self):
        return len(self.mean)

    @cached_property
    def far(self):
        """Columns whose mean lies so far from 0, in standard deviations, that it must be subtracted entry by entry."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.flatnonzero(np.square(self.mean) * self.total_weight > FAR**2 * self.squares)


class PartOfDesign(Design):
    """Features of some rows, about the mean of all rows, whose FeatureSums are `whole`; made anew in every pass.

    So nothing is prepared that only repeated products would pay for. The mean is subtracted implicitly wherever that
    costs no digits: dense features are then not copied.
    """

    def __init__(self, X, weights, whole, *, fit_intercept, n_jobs=None):
        self.weights, self.fit_intercept, self.mean = weights, fit_intercept, whole.mean
        self.n_samples, self.n_features = X.shape
        self.n_leading, self.total_weight = self.n_features, weights.sum()
        # Rows one after the other, as the kernels want them.
        X = X.astype(whole.dtype, copy=False) if sparse.issparse(X) else np.ascontiguousarray(X, whole.dtype)
        if sparse.issparse(X) and len(whole.far):
            self.X, self.shift = _centre_columns(X, whole.mean, whole.far)
        elif len(whole.far):
            self.X, self.shift = (X - whole.mean).astype(X.dtype, copy=False), np.zeros(self.n_features)
        else:
            self.X, self.shift = X, whole.mean
        self.is_shifted = bool(self.shift.any())
        self.n_jobs, self._keep_gram, self._grams = n_jobs, False, {}

    def _transposed_product(self, factor):
        return _products.multiply_sparse_transposed(self.X, factor, n_jobs=self.n_jobs)

    def weighted_squares(self, columns, weights):
        """sum_i w_i z_i z_i' for z = (1, x - mean) of some columns, and weights (n_samples,) of the rows."""
        n, shift = len(columns), self.shift[columns]
        sums = np.zeros((n + 1, n + 1))
        if self.is_sparse:
            places = np.zeros(self.n_features, np.int64)
            places[columns] = np.arange(1, n + 1)
            _products.add_weighted_squares(self.X.data, self.X.indices, self.X.indptr, places, weights, sums)
        elif weights.any():
            rows = np.flatnonzero(weights)  # few where weights are the misfit, which only wrong labels have
            if 2 * len(rows) < len(weights):
                own, weights = self.X[np.ix_(rows, columns)], weights[rows]
            else:
                own = self.X[:, columns]
            sums[0, 0], sums[0, 1:] = weights.sum(), weights @ own
            sums[1:, 0], sums[1:, 1:] = sums[0, 1:], _dense_gram(own, weights)
        _about_mean(sums[1:, 1:], shift, sums[0, 1:], sums[0, 0])
        sums[0, 1:] -= sums[0, 0] * shift
        sums[1:, 0] = sums[0, 1:]
        return sums

    def squared_norms_by_label(self, weights):
        """Sums (n_features, n_labels) of squares for weights of rows (n_samples, n_labels), about the mean of all."""
        squares, along = (self._product_of(power, weights) for power in (2, 1))
        # sum w (x - m)^2 = sum w x^2 + m (m sum w - 2 sum w x)
        return squares + self.shift[:, None] * (np.outer(self.shift, weights.sum(axis=0)) - 2 * along)

    def _product_of(self, power, factor):
        """(X**power)' @ factor, (n_features, n_columns of the factor)."""
        if not self.is_sparse:
            return np.asarray((factor.T @ self.X**power).T, np.float64)
        X = sparse.csr_array((self.X.data**power, self.X.indices, self.X.indptr), shape=self.X.shape, copy=False)
        return _products.multiply_sparse_transposed(X, factor, n_jobs=self.n_jobs)

    def _make_gram(self, X, shift):
        if sparse.issparse(X):
            rows = X.astype(np.float64, copy=False)
            gram = (rows.T @ (sparse.diags_array(self.weights) @ rows)).toarray()
        else:
            gram = _dense_gram(X, self.weights)
        if self.is_shifted:
            # The mean is that of all rows, so that products with the sums of these rows are left.
            _about_mean(gram, shift, np.asarray(self.weights @ X, np.float64), self.total_weight)
        return gram


class SummedDesign:
    """What an objective and its solvers ask of the features of all rows, where these are known by sums alone.

    gram_of_rows() is the sum of the parts' Gram matrices. It is asked for once, unless the matrix is given.
    """

    def __init__(self, whole, *, fit_intercept, gram=None, gram_of_rows=None):
        self.fit_intercept, self._squares, self._largest = fit_intercept, whole.squares, whole.largest
        self.n_samples, self.n_entries, self.is_sparse = whole.n_samples, whole.n_entries, whole.is_sparse
        self.dtype, self.mean, self.total_weight = whole.dtype, whole.mean, whole.total_weight
        self.n_features = self.n_leading = len(whole.mean)
        self.shift = np.zeros(self.n_features)
        self._gram, self._gram_of_rows = gram, gram_of_rows

    def gram(self, n_columns=None):
        """(X - mean)' diag(weights) (X - mean) of all columns, or the first ones; the caller may change it."""
        if self._gram is None:
            self._gram = self._gram_of_rows()
        return self._gram[:n_columns, :n_columns].copy()

    def squared_norms(self):
        """The diagonal of `gram`, (n_features,)."""
        return self._squares.copy()

    def largest_entries(self):
        """At least the largest magnitude in each column, (n_features,)."""
        return self._largest

    @cached_property
    def X(self):
        """Rows that stand for all rows in a label's own quadratic model: mean 0, and the same second moments per row.

        With a factor S'S = gram / total_weight they are sqrt(n) S and -sqrt(n) S for the n rows of S. Where gram is too
        large to factorise, only its diagonal is matched.
        """
        if self.n_features > MAX_STAND_INS:
            half = sparse.diags_array(np.sqrt(self.n_features * self._squares / self.total_weight), format="csr")
            return sparse.vstack([half, -half], format="csr")
        rows = GramFeatures(self.gram() / self.total_weight).features.T
        half = np.sqrt(max(len(rows), 1)) * rows if len(rows) else np.zeros((1, self.n_features))
        return np.concatenate([half, -half])


def _dense_gram(X, weights):
    """X' diag(weights) X in float64; BLAS does half of the work, since both factors are the same."""
    # In blocks of 4,096 rows where a float64 or weighted copy is needed: the copy stays small.
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


def _about_mean(gram, shift, along, total):
    """sum w (x - shift)(x - shift)', from gram = sum w x x', which is changed, along = sum w x and total = sum w."""
    # sum w x x' - s (sum w x)' - (sum w x) s' + (sum w) s s'
    crossed = np.outer(shift, along - 0.5 * total * shift)
    gram -= crossed + crossed.T
    return gram


def _in_float32(matrix):
    """A sparse matrix with entries in float32, and the same indices."""
    return sparse.csr_array((matrix.data.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


def _centre_full_columns(X, mean):
    """A sparse X whose (nearly) full columns are centred, and the means (n_features,) still to subtract implicitly.

    A column with a share z of zeros has a variance of at least z / (1 - z) times its squared mean. So subtracting the
    mean implicitly loses digits only where z is tiny, and there storing the few zeros costs nothing.
    """
    n_stored = np.bincount(X.indices[X.data != 0], minlength=X.shape[1])
    full = np.flatnonzero(n_stored >= 0.999 * X.shape[0])
    return (X, mean) if len(full) == 0 else _centre_columns(X, mean, full)


def _centre_columns(X, mean, full):
    """A sparse X with the columns `full` centred, and the means (n_features,) of the others, still to subtract."""
    shift, is_full = mean.copy(), np.zeros(X.shape[1], bool)
    shift[full], is_full[full] = 0.0, True
    stored = is_full[X.indices]
    if np.count_nonzero(stored) == len(full) * X.shape[0]:  # no zero among them, as in a column of ones
        centred = np.where(stored, X.data - mean[X.indices], X.data).astype(X.dtype)
        return sparse.csr_array((centred, X.indices, X.indptr), shape=X.shape), shift
    rest = np.setdiff1d(np.arange(X.shape[1]), full)
    centred = sparse.csr_array((X[:, full].toarray() - mean[full]).astype(X.dtype))
    order = np.argsort(np.concatenate([rest, full]), kind="stable")
    return sparse.csr_array(sparse.hstack([X[:, rest], centred], format="csc")[:, order]), shift


MAX_STAND_INS = 2000  # features up to which a label's own model of summed rows knows their correlations (4000 rows)
MAX_DENSE = 40_000_000  # entries of a matrix that may be made dense: 320 MB
MAX_NOISE = 1e-8  # error of scores that rounding in products of rows may cause: far below what a fit resolves


def row_space(design, C):
    """An `OrthogonalRows` or `GramRows` of the design, or None where its features are cheaper as they are.

    With more features than rows, optimal coefficients are combinations of the rows: n_samples coordinates are enough.
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


class TriangularRows:
    """Features (n_samples, rank) that are triangular in the `order` of pivots: `pivot_rows` has the rows in it."""

    pivot_rows: np.ndarray
    order: np.ndarray

    @property
    def features(self):
        """The features in the order of the rows themselves."""
        features = np.empty_like(self.pivot_rows)
        features[self.order] = self.pivot_rows
        return features


class OrthogonalRows(TriangularRows):
    """Orthogonal coordinates of the rows by QR.

    The Gram matrix of the rows would give them too, but squares the ratio between large and small columns.
    """

    def __init__(self, design):
        X = design.X.toarray() - design.shift if sparse.issparse(design.X) else design.X
        basis, triangle, order = linalg.qr(
            X.T.astype(np.float64), mode="economic", pivoting=True, overwrite_a=True, check_finite=False
        )
        # Pivots fall; those that are rounding errors of the first belong to rows that depend on others.
        pivots = np.abs(np.diag(triangle))
        rank = np.count_nonzero(pivots > max(X.shape) * np.finfo(np.float64).eps * pivots[0])
        self.n_leading, self._basis = None, basis[:, :rank]
        self.pivot_rows, self.order = np.ascontiguousarray(triangle[:rank].T), order

    def expand(self, z):
        """Coefficients of X (n_features, n_labels) from those of the features."""
        return self._basis @ z

    def reduce(self, coef):
        """Coefficients of the features that give the scores nearest to those of X with coef."""
        return self._basis.T @ coef


class GramRows(TriangularRows):
    """Coordinates by Cholesky of the inner products of rows, which are quick to compute where rows are sparse."""

    def __init__(self, design):
        self._design, self._factors = design, GramFeatures(design.row_products())
        self.pivot_rows, self.order = self._factors.pivot_rows, self._factors.order
        self.n_leading = self._factors.n_leading

    @staticmethod
    def pays(design, C):
        """Whether these coordinates keep the digits of scores, and are less work than the coefficients of X.

        Digits: a product of two rows has a rounding error of about eps times their squared length. Times dual
        coefficients, which are at most C, and summed over rows, that is the noise in scores. Work: for each label, an
        iteration multiplies twice by a square matrix of n_samples^2 entries. In return, about 30 vectors per iteration
        have n_samples entries instead of n_features. An entry of these vectors costs many times one of the product,
        hence the factor 500.
        """
        n_samples, n_features = design.n_samples, design.n_features
        with np.errstate(over="ignore"):
            largest = float(np.asarray(design.X.multiply(design.X).sum(axis=1)).max())
        noise = np.finfo(np.float64).eps * n_samples * largest * C
        return noise <= MAX_NOISE and n_samples**2 < 500 * (n_features - n_samples)

    def expand(self, z):
        """Coefficients of X (n_features, n_labels) from those of the features."""
        dual = self._factors.to_dual(z)  # as large as C, and cancelling in the product: float64 is needed
        return self._design.X.T.astype(np.float64) @ dual - np.outer(self._design.shift, dual.sum(axis=0))

    def reduce(self, coef):
        """Coefficients of the features that give the scores of X with coef."""
        return self._factors.from_scores(self._design.scores(coef, np.zeros(coef.shape[1])))


class GramFeatures(TriangularRows):
    """Features whose inner products are the Gram matrix, and the way from their coefficients to dual ones and back.

    gram = L L' by Cholesky, in a tenth of the time of an eigendecomposition. The rows of L are the features (n_samples,
    rank). In dual coordinates the Hessian would have the square of the Gram matrix's condition number; in these it does
    not. `lost` bounds what is left of the diagonal when only rounding errors remain as pivots.

    evenly : whether every third row comes first, and not the largest pivots; for kernels, whose rows rarely depend on
        each other
    """

    def __init__(self, gram, *, evenly=False):
        self.lost = max(np.diag(gram).max(initial=0.0), 0.0) * len(gram) * np.finfo(np.float64).eps
        factor, order, rank = (_evenly if evenly else _by_pivots)(gram, self.lost)
        self.pivot_rows, self.order = np.ascontiguousarray(factor.T[:, :rank]), order
        self.rank, self._kept, self._triangle = rank, order[:rank], factor[:rank, :rank]
        if 2 * rank > len(gram):
            # LAPACK would copy the leading part at every solve. In the whole of it, made regular, right sides that are
            # filled up with zeros have the same solution.
            factor[np.arange(rank, len(gram)), np.arange(rank, len(gram))] = 1.0
            self._triangle = factor

    @property
    def n_leading(self):
        """Number of columns for a metric: with those of a part of the rows a fit takes hardly more iterations."""
        # A third, and with few columns half: of medical's 333, half of them take 15% less time than all, as much as 60%
        # of them, and a third takes longer again.
        return max(self.rank // 3, min(self.rank // 2, 250))

    def to_dual(self, coef):
        """Dual coefficients (n_samples, n_labels) with gram @ dual = features @ coef; 0 in rows that were no pivot."""
        dual = np.zeros((len(self.order), coef.shape[1]))
        dual[self._kept] = self._solve(coef)
        return dual

    def from_scores(self, scores):
        """Coefficients (rank, n_labels) whose scores equal these scores (n_samples, n_labels) in the pivot rows."""
        return self._solve(scores[self._kept], trans=1)

    def _solve(self, right, trans=0):
        """Solution (rank, n_labels) with L' as the matrix, with trans=1 with L; in float64."""
        if self.rank == 0:
            return np.zeros((0, right.shape[1]))
        filled = np.zeros((len(self._triangle), right.shape[1]), order="F")
        filled[: self.rank] = right
        return linalg.lapack.dtrtrs(self._triangle, filled, lower=0, trans=trans, overwrite_b=1)[0][: self.rank]


MAX_ROUNDED = 0.05  # share of pivots that may be rounding errors, as of rows that occur twice, where all are kept


def _evenly(gram, lost):
    """(L', order of the rows, rank) with every third row first; by pivots where the rank is far below their number.

    A metric of every third row serves fits better than one of the largest pivots, which are those of outliers. The
    factor is found sooner, too. The rounding error that is added to the diagonal makes pivots of rows that depend on
    others small, but safe to divide by.
    """
    order = np.concatenate([np.arange(start, len(gram), 3) for start in range(3)])
    # A quarter of the rows tells in a sixty-fourth of the time where most would be in vain.
    for rows in (order[: max(len(gram) // 4, 1)], order):
        matrix = gram[np.ix_(rows, rows)]
        matrix[np.diag_indices_from(matrix)] += 4 * lost
        # The transpose is the same matrix, with columns one after the other as LAPACK wants them: no copy is made.
        factor, failed = linalg.lapack.dpotrf(matrix.T, lower=0, clean=1, overwrite_a=1)
        if failed or np.count_nonzero(np.diag(factor) ** 2 <= 16 * lost) > MAX_ROUNDED * len(rows):
            return _by_pivots(gram, lost)
    return factor, order, len(gram)


def _by_pivots(gram, lost):
    """(L' with zeros below its diagonal, order of the rows, rank), by Cholesky with pivoting."""
    largest = max(np.diag(gram).max(initial=0.0), 0.0)
    factor, pivots, rank, _ = linalg.lapack.dpstrf(gram.T, tol=lost, lower=0)
    rank = int(rank) if largest > 0 else 0
    # LAPACK leaves the other triangle as it was.
    for column in range(len(gram)):
        factor[column + 1 :, column] = 0.0
    _check_rest(gram, factor.T[:, :rank], pivots - 1, largest)
    return factor, pivots - 1, rank


def _check_rest(gram, rows, order, largest):
    """Raise a ValueError where the Gram matrix is not positive semidefinite.

    Then the factorisation ends early, with more than rounding errors left. The eigenvalues, which take ten times as
    long, are computed only in that case.
    """
    rest = order[rows.shape[1] :]
    left = gram[np.ix_(rest, rest)] - rows[rows.shape[1] :] @ rows[rows.shape[1] :].T
    if len(rest) and max(np.abs(left).max(), -np.diag(gram).min()) > 1e-8 * largest:
        values = linalg.eigvalsh(gram, check_finite=False)
        if values[0] < -1e-8 * max(values[-1], 0.0):
            raise ValueError(
                f"The kernel matrix must be positive semidefinite; its smallest eigenvalue is {values[0]:.3g} and its "
                f"largest {values[-1]:.3g}. Choose another kernel (sigmoid often fails) or other parameters."
            )
