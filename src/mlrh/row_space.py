"""Coordinates of the span of the rows of a design with fewer rows than features; knows nothing of labels.

The penalised optimum lies in that span, so it can be found in as many coordinates as there are rows. `features`
(n_samples, rank) give the same centred scores with coefficients z as X does with `expand(z)`; `reduce` is the way back.
"""

import numpy as np
from scipy import linalg, sparse

from mlrh.gram_features import GramFeatures

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
