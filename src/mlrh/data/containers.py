"""The form in which every data source hands over a multilabel data set, and rows of a DataFrame in that form.

A saved model names `mlrh.data.containers.Schema`, so that this module keeps its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse


class DataError(ValueError):
    """A data file or folder is not what it should be; the message says where and what to do."""


def listed(names, most=5) -> str:
    """The names for a message, those beyond `most` as a number."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True)
class Schema:
    """Names of columns and labels: what a file must offer so that a fitted model can be used on it.

    Attributes
    ----------
    feature_names, label_names : tuple of str
    categories : mapping of str to tuple of str
        For each nominal feature its values; such a column of X holds their indices 0, 1, ....
    """

    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelData:
    """Features and label sets of the same rows, with their names.

    Attributes
    ----------
    X : array or CSR matrix of shape (n_samples, n_features), float64
        A missing value is NaN. A nominal feature holds the index of its value in `categories`.
    Y : array of shape (n_samples, n_labels), int8
        Indicator matrix: 1 where the row has the label.
    feature_names, label_names : tuple of str
        Names of the columns of X and Y.
    name : str
        What the set is called in messages and tables.
    categories : mapping of str to tuple of str
        The values of each nominal feature, by the feature's name.
    parent_names : mapping of str to str
        The parent of each label that has one, where labels form a hierarchy.
    """

    X: Any
    Y: np.ndarray
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    name: str
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parent_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """The names alone."""
        return Schema(self.feature_names, self.label_names, self.categories)

    @property
    def parents(self) -> np.ndarray:
        """The index of each label's parent, (n_labels,), -1 where it has none, as `HierarchySpace` takes it."""
        places = {name: label for label, name in enumerate(self.label_names)}
        return np.array([places.get(self.parent_names.get(name, ""), -1) for name in self.label_names], np.int64)

    @property
    def nominal(self) -> list[int]:
        """Indices of the nominal columns of X."""
        return [column for column, name in enumerate(self.feature_names) if name in self.categories]

    def rows(self, index) -> "MultilabelData":
        """The same set with the rows of the index only, in its order."""
        return replace(self, X=self.X[index], Y=self.Y[index])

    def without(self, names) -> "MultilabelData":
        """The same set without some features; a name that isn't one is a DataError."""
        unknown = [name for name in names if name not in self.feature_names]
        if unknown:
            raise DataError(f"{self.name} has no feature {unknown[0]!r} to leave out; correct the name.")
        kept = [column for column, name in enumerate(self.feature_names) if name not in set(names)]
        feature_names = tuple(self.feature_names[column] for column in kept)
        categories = {name: values for name, values in self.categories.items() if name in feature_names}
        return replace(self, X=self.X[:, kept], feature_names=feature_names, categories=categories)

    def conform(self, schema: Schema) -> "MultilabelData":
        """The same rows with the schema's features in its order and coding; other features are dropped.

        A feature the data lack is a DataError, and so is a numeric feature where the schema has a nominal one and the
        other way round. A nominal value the schema doesn't know becomes NaN. Labels stay as they are.
        """
        position = {name: column for column, name in enumerate(self.feature_names)}
        _refuse_absent(schema, position, self.name)
        X = self.X[:, [position[name] for name in schema.feature_names]]
        for column, name in enumerate(schema.feature_names):
            own, wanted = self.categories.get(name), schema.categories.get(name)
            if own != wanted:
                X = _recoded(X, column, own, wanted, f"{self.name}: feature {name!r}")
        return replace(self, X=X, feature_names=schema.feature_names, categories=dict(schema.categories))

    def __repr__(self):
        n_samples, n_features = self.X.shape
        return f"MultilabelData({self.name!r}: {n_samples} rows, {n_features} features, {self.Y.shape[1]} labels)"


def _refuse_absent(schema, names, who):
    absent = [name for name in schema.feature_names if name not in names]
    if absent:
        raise DataError(f"{who} lacks {len(absent)} of the model's features: {listed(absent)}.")


def _recoded(X, column, own, wanted, where):
    """X with one column's codes changed from the values `own` to `wanted`; None stands for a numeric column."""
    values = X[:, [column]].toarray().ravel() if sparse.issparse(X) else X[:, column]
    if wanted is None:
        codes = _numbers(values, own, where)
    elif own is None:
        codes = _codes_of_numbers(values, wanted, where)
    else:
        new = np.array([wanted.index(value) if value in wanted else np.nan for value in own] + [np.nan])
        codes = new[np.where(np.isnan(values), len(own), values).astype(np.int64)]
    if sparse.issparse(X):
        X = X.tolil()
        X[:, [column]] = codes[:, None]
        return X.tocsr()
    X = np.array(X, np.float64)
    X[:, column] = codes
    return X


def _numbers(values, own, where):
    """The numbers that nominal values spell."""
    try:
        spelled = np.array([float(value) for value in own] + [np.nan])
    except ValueError as error:
        raise DataError(f"{where} must be a number, as in training; found values {', '.join(own[:5])}.") from error
    return spelled[np.where(np.isnan(values), len(own), values).astype(np.int64)]


def _codes_of_numbers(values, wanted, where):
    """Codes of numbers among values that spell numbers; a column of missing values only fits any."""
    if np.isnan(values).all():
        return values
    spelled = {}
    for code, value in enumerate(wanted):
        try:
            spelled[float(value)] = code
        except ValueError:
            continue
    if not spelled:
        raise DataError(f"{where} must be one of {', '.join(wanted[:5])}, as in training; found numbers.")
    return np.array([spelled.get(value, np.nan) for value in values])


# DataFrames of pandas or polars, neither of which is imported


def from_frame(frame, schema: Schema) -> MultilabelData:
    """The features that the schema names, without labels; other columns are ignored.

    A missing value, and a nominal value the schema doesn't know, become NaN. A column that is missing, or that holds
    text where the schema has numbers, is a DataError.
    """
    _refuse_absent(schema, frame.columns, "The DataFrame")
    X = np.empty((len(frame), len(schema.feature_names)))
    for column, name in enumerate(schema.feature_names):
        values = schema.categories.get(name)
        cells = list(frame[name])
        X[:, column] = _frame_numbers(cells, name) if values is None else _frame_codes(cells, values)
    Y = np.zeros((len(X), 0), np.int8)
    return MultilabelData(X, Y, schema.feature_names, (), "the DataFrame", schema.categories)


def _frame_numbers(cells, name):
    try:
        return np.array([np.nan if _is_missing(cell) else float(cell) for cell in cells])
    except (TypeError, ValueError) as error:
        raise DataError(f"Column {name!r} of the DataFrame must hold numbers, as in training; {error}.") from error


def _frame_codes(cells, values):
    codes = {value: code for code, value in enumerate(values)}
    return np.array([np.nan if _is_missing(cell) else codes.get(str(cell), np.nan) for cell in cells], dtype=float)


def _is_missing(cell):
    # pandas.NA compares to nothing; NaN and NaT are unequal to themselves.
    return cell is None or type(cell).__name__ == "NAType" or cell != cell
