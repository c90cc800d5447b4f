"""The forms of y: what the user gave <-> the indicator matrix everything else works on.

Forms: an indicator matrix (array, nested list, pandas or polars DataFrame, sparse), a list of label sets, or one class
per row. `encode` recognises the form once; the `Targets` it returns turn later y and predictions to and fro.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d


def encode(y):
    """Targets that describe the form of y, and its indicator matrix (n_samples, n_labels), int8.

    One class per row becomes one label per class, or a single label, the second class, where there are two.
    """
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    if sparse.issparse(y):
        targets = Targets("sparse", np.arange(y.shape[1]), dtype=y.dtype, container=type(y).__name__)
    elif hasattr(y, "columns") and len(y.columns) > 1:
        targets = Targets("frame", np.asarray(list(y.columns)), container=type(y).__module__.split(".")[0])
    elif _looks_like_label_sets(y):
        targets = _label_set_targets(y)
    else:
        values = np.asarray(y)
        if values.ndim == 2 and values.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
                "(n_samples,), for example using ravel().",
                DataConversionWarning,
                stacklevel=4,
            )
            y = values[:, 0]
        targets = _class_targets(y) if values.ndim < 2 or values.shape[1] == 1 else _matrix_targets(values)
    return targets, targets.indicator(y)


@dataclass
class Targets:
    """The form of y in training: `kind` is "sparse", "frame", "sets", "classes" or "matrix"."""

    kind: str
    classes: np.ndarray
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.int64))
    container: str = ""

    @property
    def is_one_class_per_row(self):
        return self.kind == "classes"

    def indicator(self, y):
        """y of this form as an indicator matrix (n_samples, n_labels), int8; a class or label unknown is an error."""
        matrix, unknown = self.partial_indicator(y)
        if unknown.any():
            row = int(np.argmax(unknown))
            raise ValueError(f"y holds a label in row {row} that was not seen in training; labels are {self._names()}.")
        return matrix

    def partial_indicator(self, y):
        """The indicator matrix, and which rows hold a class or label that training did not show."""
        if self.kind == "sets":
            return self._from_sets(y)
        if self.kind == "classes":
            return self._from_classes(y)
        values = y.toarray() if sparse.issparse(y) else np.asarray(y)
        _check_zero_one(values)
        if values.shape[1] != len(self.classes):
            raise ValueError(f"y must have {len(self.classes)} columns, as in training; got {values.shape[1]}.")
        return np.ascontiguousarray(values, dtype=np.int8), np.zeros(len(values), bool)

    def decode(self, sets, X=None):
        """Predicted sets (n_samples, n_labels) in the form of y; a pandas DataFrame takes the index of X."""
        if self.kind == "classes":
            columns = sets[:, 0].astype(np.int64) if len(self.classes) == 2 else sets.argmax(axis=1)
            return self.classes[columns]
        if self.kind == "sets":
            make = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}[self.container]
            names = self.classes.tolist()
            return [make(names[k] for k in np.flatnonzero(row)) for row in sets]
        if self.kind == "frame":
            return self._frame(sets, X)
        if self.kind == "sparse":
            return getattr(sparse, self.container)(sets.astype(self.dtype))
        return sets.astype(self.dtype)

    def _from_sets(self, y):
        column = {label: k for k, label in enumerate(self.classes.tolist())}
        matrix = np.zeros((len(y), len(column)), np.int8)
        unknown = np.zeros(len(y), bool)
        for i, labels in enumerate(y):
            for label in labels:
                if label in column:
                    matrix[i, column[label]] = 1
                else:
                    unknown[i] = True
        return matrix, unknown

    def _from_classes(self, y):
        values = column_or_1d(np.asarray(y))
        unknown = ~np.isin(values, self.classes)
        codes = np.searchsorted(self.classes, np.where(unknown, self.classes[0], values))
        columns = np.arange(len(self.classes))[1 if len(self.classes) == 2 else 0 :]
        return (codes[:, None] == columns).astype(np.int8), unknown

    def _frame(self, sets, X):
        values = sets.astype(np.int64)
        if self.container == "polars":
            import polars

            return polars.DataFrame(values, schema=[str(name) for name in self.classes], orient="row")
        import pandas

        index = X.index if hasattr(X, "index") and hasattr(X, "iloc") else None
        return pandas.DataFrame(values, columns=self.classes, index=index)

    def _names(self):
        names = [repr(name) for name in self.classes.tolist()]
        return ", ".join(names if len(names) <= 8 else [*names[:7], f"... ({len(names)} in all)"])


def _looks_like_label_sets(y):
    """Whether rows are sets, or sequences that aren't rows of 0 and 1 (and so can only be names of labels)."""
    if (isinstance(y, np.ndarray) and y.dtype != object) or not isinstance(y, Iterable) or hasattr(y, "columns"):
        return False
    rows = list(y)
    if any(isinstance(row, set | frozenset) for row in rows):
        return True
    if not rows or not all(isinstance(row, list | tuple) for row in rows):
        return False
    return any(isinstance(label, str) for row in rows for label in row) or len({len(row) for row in rows}) > 1


def _label_set_targets(y):
    kinds = {type(row) for row in y}
    container = kinds.pop().__name__ if len(kinds) == 1 else "set"
    if container not in ("set", "frozenset", "tuple", "list"):
        raise ValueError(f"Label sets must be sets, tuples or lists of labels; got a {container}.")
    labels = {label for row in y for label in row}
    if container in ("tuple", "list") and not all(isinstance(label, str) for label in labels):
        found = next(label for label in labels if not isinstance(label, str))
        raise ValueError(
            f"Label sets given as lists or tuples must hold strings; found {found!r}. Use sets for other labels, "
            "or equal-length rows of 0 and 1 for an indicator matrix."
        )
    try:
        ordered = sorted(labels)
    except TypeError:
        raise ValueError("Labels must be of one type that can be sorted, all strings or all integers.") from None
    if not ordered:
        raise ValueError("y holds no label at all; at least one label set must not be empty.")
    names = np.empty(len(ordered), object)
    names[:] = ordered
    return Targets("sets", names if isinstance(ordered[0], str) else np.asarray(ordered), container=container)


def _class_targets(y):
    values = column_or_1d(np.asarray(y))
    assert_all_finite(values, input_name="y")
    check_classification_targets(values)
    classes = np.unique(values)
    if len(classes) < 2:
        raise ValueError(f"y must hold at least 2 classes; it holds only one class: {classes[0]!r}.")
    return Targets("classes", classes, dtype=classes.dtype)


def _matrix_targets(values):
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"y must have one dimension, or two with a column per label; got shape {values.shape}.")
    _check_zero_one(values)
    return Targets("matrix", np.arange(values.shape[1]), dtype=values.dtype)


def _check_zero_one(values):
    with np.errstate(invalid="ignore"):
        bad = ~((values == 0) | (values == 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"y must contain only 0 and 1 when it is a matrix; found {values[row, column]!r} in row {row}, column "
            f"{column}. Binarize it with MultiLabelBinarizer."
        )
