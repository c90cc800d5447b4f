"""X at the border: what scikit-learn's own checks let pass, refused with a sentence."""

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

# Of float32 features in a fit: with weights of 1e15, sums over 1e8 rows stay below 3.4e38, where float32 ends.
LARGEST_FLOAT32 = 1e15


def validated(estimator, X, *, reset):
    """X as an array or CSR matrix of float64 or float32; with reset, the estimator notes its columns."""
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
    if X.format == "coo":
        for indices, n in zip((X.row, X.col), X.shape, strict=True):
            if len(indices) and not (indices.min() >= 0 and indices.max() < n):
                return f"indices must lie in 0..{n - 1}"
    elif hasattr(X, "check_format"):
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            return str(error).rstrip(".")
    return None


def _check_float32(X):
    values = X.data if sparse.issparse(X) else X
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    if largest > LARGEST_FLOAT32:
        raise ValueError(
            f"Features in float32 must be at most {LARGEST_FLOAT32:g} in magnitude; got {largest:g}. Scale them, for "
            "example with StandardScaler, or convert X to float64."
        )
