"""The Gram matrix of a kernel as features: a kernel model is a linear one. Knows nothing of kernels or labels."""

import numpy as np
from scipy import linalg


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
