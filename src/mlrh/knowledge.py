"""What is known of the labels of each row: int8 arrays of 1 (present), 0 (absent) and UNKNOWN."""

import numpy as np
from scipy import sparse

UNKNOWN = -1


def as_known(values, shape):
    """`as_partly_known` of a matrix that must have this shape."""
    numbers = _numbers(values, "known")
    if numbers.shape != shape:
        raise ValueError(f"known must have shape {shape}, one row per sample; got {numbers.shape}.")
    return _checked(numbers, "known")


def as_partly_known(values, name):
    """A new int8 matrix of 1, 0 and UNKNOWN from one of 1, 0 and NaN, None or masked entries; else one error."""
    numbers = _numbers(values, name)
    if numbers.ndim != 2:
        raise ValueError(f"{name} must be a matrix with a column per label; got shape {numbers.shape}.")
    return _checked(numbers, name)


def merged(known, more):
    """Both together; where they contradict each other, `more` holds (see `contradict`)."""
    return np.where(more == UNKNOWN, known, more)


def contradict(known, more):
    """Whether a label of the row is present by one and absent by the other, (n_rows,)."""
    return ((known != more) & (known != UNKNOWN) & (more != UNKNOWN)).any(axis=1)


def _numbers(values, name):
    """The values as floats, NaN where one is masked or missing."""
    values = values.toarray() if sparse.issparse(values) else values
    try:
        mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else False
        return np.where(mask, np.nan, _with_nan(np.asarray(values)).astype(np.float64))
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a matrix of 1, 0 and NaN with a column per label; got {values!r}.") from None


def _checked(numbers, name):
    unknown = np.isnan(numbers)
    bad = ~((numbers == 0) | (numbers == 1) | unknown)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name} must contain only 1 (present), 0 (absent) and NaN (unknown); found {numbers[row, column]} in row "
            f"{row}, column {column}."
        )
    return np.where(unknown, UNKNOWN, numbers).astype(np.int8)


def _with_nan(values):
    """The values; where they are objects, with NaN for whatever has no value, such as None and pandas.NA."""
    if values.dtype != object:
        return values
    missing = np.array([value is None or type(value).__name__ == "NAType" for value in values.ravel()], bool)
    return np.where(missing.reshape(values.shape), np.nan, values)
