"""What is known of the labels of each row: int8 arrays of 1 (present), 0 (absent) and UNKNOWN."""

import numpy as np

UNKNOWN = -1


def as_known(values, shape):
    """A new int8 array of that shape of 1, 0 and NaN (or masked entries), which become UNKNOWN; else one error."""
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


def merged(known, more):
    """Both together; where they contradict each other, `more` holds (see `contradict`)."""
    return np.where(more == UNKNOWN, known, more)


def contradict(known, more):
    """Whether a label of the row is present by one and absent by the other, (n_rows,)."""
    return ((known != more) & (known != UNKNOWN) & (more != UNKNOWN)).any(axis=1)
