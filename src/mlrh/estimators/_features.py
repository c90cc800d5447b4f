"""X at the border: what scikit-learn's own checks let pass, refused with a sentence."""

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from mlrh.estimators import _device
from mlrh.estimators._device import LARGEST_FLOAT32

LARGEST_FLOAT32_SUM = 1e37  # the same where rows have weights


def validated(estimator, X, *, reset):
    """X as an array, tensor or CSR matrix of float64 or float32; with reset, the estimator notes its columns."""
    if _device.stays(X):
        return _device.validated(estimator, X, reset=reset)
    check(X)
    X = validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
    if reset and X.dtype == np.float32:
        _check_float32(X)
    return X


def check(X):
    """Raise a ValueError where X has masked entries, or is a sparse matrix whose arrays contradict each other."""
    if isinstance(X, np.ma.MaskedArray):
        n_masked = np.count_nonzero(np.ma.getmaskarray(X))
        if n_masked:
            raise ValueError(
                f"X must have a value in every place; got {n_masked} masked entries. Fill them in, for example with "
                "SimpleImputer after X.filled(numpy.nan)."
            )
    elif sparse.issparse(X):
        problem = _contradiction(X)
        if problem is not None:
            raise ValueError(
                f"X must be a valid sparse matrix; got one where {problem}. Build it anew from its entries."
            )


def _contradiction(X):
    """What is wrong with the arrays of a sparse matrix, or None: compiled code would read or write beyond them."""
    # SciPy's check_format would do for most formats, but takes 80 microseconds for one row.
    if X.format == "coo":
        return _outside(X.row, X.shape[0]) or _outside(X.col, X.shape[1])
    if X.format not in ("csr", "csc", "bsr"):
        return None
    n_major, n_minor = X.shape[::-1] if X.format == "csc" else X.shape
    if X.format == "bsr":
        n_major, n_minor = n_major // X.blocksize[0], n_minor // X.blocksize[1]
    ends = X.indptr
    if len(ends) != n_major + 1 or ends[0] != 0 or (ends[1:] < ends[:-1]).any():
        return f"indptr must be {n_major + 1} numbers that start with 0 and don't fall"
    if not ends[-1] <= len(X.indices) == len(X.data):
        return "indptr, indices and data must be of lengths that fit each other"
    return _outside(X.indices[: ends[-1]], n_minor)


def _outside(indices, n):
    is_inside = len(indices) == 0 or (indices.min() >= 0 and indices.max() < n)
    return None if is_inside else f"indices must lie in 0..{n - 1}"


def check_float32_sums(X, weights):
    """Raise a ValueError where sums of weights times features in float32 could leave its range."""
    check_float32_largest(dtype_of(X), _largest(X), weights.sum())


def check_float32_largest(dtype, largest, total_weight):
    """`check_float32_sums` for the largest magnitude of a feature of this type and the sum of the weights."""
    if dtype == np.float32 and largest * total_weight > LARGEST_FLOAT32_SUM:
        raise ValueError(
            f"In float32, the largest feature times the sum of sample_weight must be at most {LARGEST_FLOAT32_SUM:g}; "
            f"got {largest:g} and {total_weight:g}. Scale them, or convert X to float64."
        )


def _check_float32(X):
    if _largest(X) > LARGEST_FLOAT32:
        raise ValueError(
            f"Features in float32 must be at most {LARGEST_FLOAT32:g} in magnitude; got {_largest(X):g}. Scale them, "
            "for example with StandardScaler, or convert X to float64."
        )


def dtype_of(X):
    """The type of the numbers of X, an array or a tensor, in NumPy."""
    return np.dtype(str(X.dtype).removeprefix("torch."))


def _largest(X):
    if _device.is_tensor(X):
        return float(X.abs().max())
    values = X.data if sparse.issparse(X) else X
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
