"""Rows of a pandas or polars DataFrame in the coding of a schema. Knows neither package: columns are asked by name."""

import numpy as np

from mlrh.data.containers import DataError, MultilabelData, Schema


def from_frame(frame, schema: Schema) -> MultilabelData:
    """The features that the schema names, without labels; other columns are ignored.

    A missing value, and a nominal value the schema doesn't know, become NaN. A column that is missing, or that holds
    text where the schema has numbers, is a DataError.
    """
    absent = [name for name in schema.feature_names if name not in frame.columns]
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise DataError(f"The DataFrame lacks {len(absent)} of the model's features: {', '.join(absent[:5])}{more}.")
    X = np.empty((len(frame), len(schema.feature_names)))
    for column, name in enumerate(schema.feature_names):
        values = schema.categories.get(name)
        cells = list(frame[name])
        X[:, column] = _numbers(cells, name) if values is None else _codes(cells, values)
    Y = np.zeros((len(X), 0), np.int8)
    return MultilabelData(X, Y, schema.feature_names, (), "the DataFrame", schema.categories)


def _numbers(cells, name):
    try:
        return np.array([np.nan if _is_missing(cell) else float(cell) for cell in cells])
    except (TypeError, ValueError) as error:
        raise DataError(f"Column {name!r} of the DataFrame must hold numbers, as in training; {error}.") from error


def _codes(cells, values):
    codes = {value: code for code, value in enumerate(values)}
    return np.array([np.nan if _is_missing(cell) else codes.get(str(cell), np.nan) for cell in cells], dtype=float)


def _is_missing(cell):
    # pandas.NA compares to nothing; NaN and NaT are unequal to themselves.
    return cell is None or type(cell).__name__ == "NAType" or cell != cell
