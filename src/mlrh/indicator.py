"""Indicator matrices: 1 where the row has the label, 0 elsewhere."""

from numbers import Real

import numpy as np
from scipy import sparse


def as_indicator(values, name):
    """A new int8 array (n_samples, n_labels) of the values, which may be sparse or hold booleans; else one error."""
    values = values.toarray() if sparse.issparse(values) else np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"{name} must be a matrix with a column per label; got shape {values.shape}.")
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
