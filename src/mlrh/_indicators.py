"""Label sets as int8 matrices: 1 where a row has the label, 0 where it has not, UNKNOWN where that is not known."""

from collections.abc import Iterable
from numbers import Number, Real

import numpy as np
from scipy import sparse


def as_indicator(values, name):
    """A new int8 array (n_samples, n_labels) of 0 and 1 from values, sparse or boolean too; else a ValueError."""
    values = values.toarray() if sparse.issparse(values) else np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"{name} must be a matrix with a column per label; got shape {values.shape}.")
    if values.dtype.kind in "biu" and 0 <= values.min(initial=0) <= values.max(initial=0) <= 1:
        return np.array(values, dtype=np.int8, order="C")  # without masks as large as the matrix
    if values.dtype.kind in "biuf":
        bad = ~((values == 0) | (values == 1))
    else:
        bad = np.array([[not (isinstance(v, Real | np.bool_) and v in (0, 1)) for v in row] for row in values])
    if bad.any():
        row, column = np.argwhere(bad)[0]
        found = values[row, column]
        found = found.item() if isinstance(found, np.generic) else found
        raise ValueError(
            f"{name} must contain only 0 and 1, 1 where the row has the label; found {found!r} in row {row}, column "
            f"{column}. MultiLabelBinarizer makes such a matrix of label sets."
        )
    return np.array(values, dtype=np.int8, order="C")


UNKNOWN = -1


def has_unknown(Y) -> bool:
    """Whether some entry of an int8 matrix is UNKNOWN; takes a quarter of the time of a mask, and no memory."""
    return int(Y.min(initial=0)) == UNKNOWN


def label_counts(Y):
    """Number of entries of each row that are not 0, (n_samples,); with many labels in a third of NumPy's time."""
    Y = Y if Y.dtype.kind in "bui" else Y != 0
    return np.bitwise_count(np.packbits(Y, axis=1)).sum(axis=1, dtype=np.intp)


def any_known(Y):
    """Whether some entry of each row is known, (n_rows,)."""
    return (Y != UNKNOWN).any(axis=1) if has_unknown(Y) else np.full(len(Y), Y.shape[1] > 0)


def as_known(values, shape):
    """A new int8 array of that shape from 1, 0 and NaN (or masked entries), which become UNKNOWN; else a ValueError."""
    try:
        numbers = np.ma.filled(np.ma.asarray(values, np.float64), np.nan)
    except (TypeError, ValueError):
        raise ValueError(f"known must be a matrix of 1, 0 and NaN with a column per label; got {values!r}.") from None
    if numbers.shape != shape:
        raise ValueError(f"known must have shape {shape}, one row per sample; got {numbers.shape}.")
    bad = ~((numbers == 0) | (numbers == 1) | np.isnan(numbers))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"known must contain only 1 (present), 0 (absent) and NaN (unknown); found {numbers[row, column]} in row "
            f"{row}, column {column}."
        )
    return np.where(np.isnan(numbers), UNKNOWN, numbers).astype(np.int8)


def as_partly_known(values, name):
    """A new int8 matrix of 1, 0 and UNKNOWN from an indicator matrix that may hold NaN, None or masked entries.

    Anything else is a ValueError, as in `as_indicator`.
    """
    if sparse.issparse(values):
        is_complete = values.dtype.kind != "f" or not np.isnan(values.data).any()
        return as_indicator(values, name) if is_complete else as_partly_known(values.toarray(), name)
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else False
    values = np.asarray(values)
    missing = mask | _is_missing(values)
    if not np.any(missing):
        return as_indicator(values, name)
    known = as_indicator(np.where(missing, 0, values), name)
    known[missing] = UNKNOWN
    return known


def merged(known, more):
    """What is known by either, (n_rows, n_labels); `more` wins where they contradict each other (see `contradict`)."""
    return np.where(more == UNKNOWN, known, more)


def contradict(known, more):
    """Whether some label of a row is present by one and absent by the other, (n_rows,)."""
    return ((known != more) & (known != UNKNOWN) & (more != UNKNOWN)).any(axis=1)


def _is_missing(values):
    """Mask of missing values: NaN, and among objects also None and pandas.NA."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype != object:
        return False
    flat = [_has_no_value(value) for value in values.ravel()]
    return np.array(flat, bool).reshape(values.shape)


def _has_no_value(value):
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, Number) and bool(value != value))


SEPARATORS = (";", "|", ",")


def plain_separator(texts: Iterable[str]) -> str | None:
    """The one separator of the usual ones that occurs in texts that list labels; None where none or several do."""
    found = {sign for text in texts for sign in SEPARATORS if sign in text}
    return found.pop() if len(found) == 1 else None
