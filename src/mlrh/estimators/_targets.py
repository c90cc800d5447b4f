"""The forms of y: from what the user gave to the indicator matrix that everything else works on, and back.

Forms: an indicator matrix (array, nested list, pandas or polars DataFrame, sparse), a list of label sets, or one class
per row. `encode` recognises the form once. The `Targets` it returns convert a later y, and predictions back, as
`SetClassifier` does for every classifier here.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets

from mlrh._indicators import UNKNOWN, as_indicator, as_partly_known, has_unknown, plain_separator
from mlrh._sklearn import check_sample_weight, num_samples
from mlrh._warnings import warn

SET_TYPES = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}


def encode(y, *, partly_known=False):
    """Targets that describe the form of y, and its indicator matrix (n_samples, n_labels), int8.

    One class per row becomes one label per class, or a single label, the second class, where there are two. With
    partly_known, an indicator matrix may hold NaN or masked entries, which become UNKNOWN.
    """
    y = y if partly_known and _is_masked_matrix(y) else _plain(y)
    if sparse.issparse(y) and y.shape[1] > 0:
        targets = Targets("sparse", np.arange(y.shape[1]), dtype=str(y.dtype), container=type(y).__name__)
    elif hasattr(y, "columns"):
        targets = _frame_targets(y)
    elif _looks_like_label_sets(y):
        targets = _label_set_targets(y)
    else:
        targets = _class_targets(y) if y.ndim == 1 else _matrix_targets(y)
    return targets, targets.indicator(y, partly_known=partly_known)


def check_same_length(X, Y):
    """Raise a ValueError unless X and Y have as many rows."""
    n_rows, n_targets = num_samples(X), num_samples(Y)
    if n_rows != n_targets:
        raise ValueError(f"X and y must have the same number of rows; got {n_rows} and {n_targets}.")


def check_any(support):
    """Raise a ValueError unless there is a row to learn from."""
    if len(support) == 0:
        raise ValueError("y must show a label of at least one row of positive weight; every entry is NaN or masked.")


def check_every_label_known(names, Y):
    """Raise a ValueError that names the first label that is unknown in every row."""
    if not has_unknown(Y):
        return
    never = np.flatnonzero((Y == UNKNOWN).all(axis=0))
    if len(never):
        name = names[never].tolist()[0]
        raise ValueError(
            f"Every label must be known, present or absent, in at least one row; label {name!r} is NaN or masked in "
            "all of them. Leave its column out of y."
        )


def constant_labels(names, Y):
    """Sentences on labels that all rows have, or none: nothing says how these depend on the features."""
    problems, lowest = [], Y.min(axis=0)
    unsure = lowest == UNKNOWN
    lowest[unsure] = ~(Y[:, unsure] == 0).any(axis=0)
    for is_constant, state in ((Y.max(axis=0) < 1, "absent from"), (lowest == 1, "present in")):
        constant = np.flatnonzero(is_constant)
        if len(constant):
            listed = [repr(name) for name in names[constant].tolist()]
            more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
            problems.append(f"{state} every training row: label {', '.join(listed[:10])}{more}")
    return problems


@dataclass(frozen=True)
class Targets:
    """The form of y in training: `kind` is "sparse", "frame", "sets", "classes" or "matrix"."""

    kind: str
    classes: np.ndarray
    dtype: str = "int64"
    container: str = ""

    def __post_init__(self):
        # A model file says what the parts are, and the container is looked up by its name: it must be that of one.
        np.dtype(self.dtype)
        is_known = self.kind in FORMS and isinstance(self.classes, np.ndarray)
        if self.kind == "sets":
            is_known = is_known and self.container in SET_TYPES
        if self.kind == "sparse":
            is_known = is_known and issubclass(getattr(sparse, self.container), sparse.sparray | sparse.spmatrix)
        if not is_known:
            raise ValueError(f"y of kind {self.kind!r} in a {self.container!r}")

    @property
    def is_one_class_per_row(self):
        return self.kind == "classes"

    def indicator(self, y, *, partly_known=False):
        """y of this form as an indicator matrix (n_samples, n_labels), int8; an unseen class or label is an error."""
        matrix, unseen = self.partial_indicator(y, partly_known=partly_known)
        if unseen.any():
            row = int(np.argmax(unseen))
            raise ValueError(f"y holds a label in row {row} that was not seen in training; labels are {self._names()}.")
        return matrix

    def partial_indicator(self, y, *, partly_known=False):
        """The indicator matrix, and which rows hold a class or label that training did not show.

        With partly_known, NaN and masked entries of a matrix become UNKNOWN.
        """
        is_matrix = self.kind not in ("sets", "classes") and np.ndim(y) == 2
        plain = y if is_matrix or sparse.issparse(y) else _plain(y)
        if self.kind == "sets":
            return self._from_sets(_rows_of_labels(plain if isinstance(plain, list) else y))
        if _looks_like_label_sets(plain):
            raise ValueError(f"y must have the form it had in training, {FORMS[self.kind]}; got a list of label sets.")
        y = plain
        if self.kind == "classes":
            return self._from_classes(y)
        if self.kind == "frame" and hasattr(y, "columns"):
            y = self._by_name(y)
        matrix = as_partly_known(y, "y") if partly_known else as_indicator(y, "y")
        if matrix.shape[1] != len(self.classes):
            raise ValueError(f"y must have {len(self.classes)} columns, as in training; got {matrix.shape[1]}.")
        return matrix, np.zeros(len(matrix), bool)

    def share_right(self, predicted, y, sample_weight=None) -> float:
        """Share of the rows of y whose predicted set (n_samples, n_labels) is exactly right."""
        truth, unseen = self.partial_indicator(y)
        check_same_length(predicted, truth)
        weights = check_sample_weight(sample_weight, predicted, dtype=np.float64)
        return float(np.average((truth == predicted).all(axis=1) & ~unseen, weights=weights))

    def seen_in(self, Y):
        """These targets and Y without the classes, or labels of sets, that no row of Y has."""
        if self.kind not in ("classes", "sets"):
            return self, Y
        if self.kind == "sets":
            seen = Y.any(axis=0)
            if not seen.any():
                raise ValueError("y must hold a label in some row of positive weight; all label sets there are empty.")
            return replace(self, classes=self.classes[seen]), np.ascontiguousarray(Y[:, seen])
        seen = np.array([not Y.all(), Y.any()]) if Y.shape[1] == 1 else Y.any(axis=0)
        if seen.sum() < 2:
            raise ValueError("y must hold at least 2 classes among the rows of positive weight; it holds only one.")
        kept = replace(self, classes=self.classes[seen])
        return kept, kept.indicator(self.decode(Y))

    def decode(self, sets, X=None):
        """Predicted sets (n_samples, n_labels) in the form of y; a pandas DataFrame has the index of X."""
        if self.kind == "classes":
            columns = sets[:, 0].astype(np.int64) if len(self.classes) == 2 else sets.argmax(axis=1)
            return self.classes[columns]
        if self.kind == "sets":
            names = self.classes.tolist()
            return [SET_TYPES[self.container](names[k] for k in np.flatnonzero(row)) for row in sets]
        values = sets.astype(self.dtype)
        if self.kind == "frame":
            return self._frame(values, X)
        return getattr(sparse, self.container)(values) if self.kind == "sparse" else values

    def _from_sets(self, y):
        column = {label: k for k, label in enumerate(self.classes.tolist())}
        matrix = np.zeros((len(y), len(column)), np.int8)
        unseen = np.zeros(len(y), bool)
        for i, labels in enumerate(y):
            for label in labels:
                if label in column:
                    matrix[i, column[label]] = 1
                else:
                    unseen[i] = True
        return matrix, unseen

    def _from_classes(self, y):
        if getattr(y, "ndim", 2) != 1:
            raise ValueError(f"y must have the form it had in training, {FORMS['classes']}; got shape {y.shape}.")
        unseen = ~np.isin(y, self.classes)
        if unseen.all() and len(y):
            raise ValueError(f"y holds no class of training; classes are {self._names()}.")
        codes = np.searchsorted(self.classes, np.where(unseen, self.classes[0], y))
        columns = np.arange(len(self.classes))[1 if len(self.classes) == 2 else 0 :]
        return (codes[:, None] == columns).astype(np.int8), unseen

    def _by_name(self, frame):
        if set(frame.columns) != set(self.classes.tolist()):
            raise ValueError(f"y must have the columns it had in training: {self._names()}.")
        return frame[self.classes.tolist()]

    def _frame(self, values, X):
        if self.container == "polars":
            import polars

            return polars.DataFrame(values, schema=self.classes.tolist(), orient="row")
        import pandas

        index = X.index if hasattr(X, "index") and hasattr(X, "iloc") else None
        return pandas.DataFrame(values, columns=self.classes.tolist(), index=index)

    def _names(self):
        names = [repr(name) for name in self.classes.tolist()]
        return ", ".join(names if len(names) <= 8 else [*names[:7], f"... ({len(names)} in all)"])


class SetClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose y has any of the forms, kept as `_targets` in fit; a subclass predicts indicator matrices."""

    _targets: Targets
    classes_: np.ndarray

    def predict(self, X):
        """Label sets for the rows of X, in the form of the y of training."""
        sets = self._predict_sets(X)
        return self._targets.decode(sets, X)

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right, whatever predictions are to maximise."""
        predicted = self._predict_sets(X)  # before y is looked at: raises NotFittedError first
        return self._targets.share_right(predicted, y, sample_weight)

    @abstractmethod
    def _predict_sets(self, X) -> np.ndarray: ...


FORMS = {
    "sparse": "an indicator matrix",
    "frame": "a DataFrame with a column per label",
    "sets": "a list of label sets",
    "classes": "one class per row",
    "matrix": "an indicator matrix",
}


def _is_masked_matrix(y):
    return np.ma.is_masked(y) and np.ndim(y) == 2 and np.shape(y)[1] > 1


def _plain(y):
    """y as a sparse matrix, a DataFrame of several columns, a list of label sets, or an array."""
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    if sparse.issparse(y) or (hasattr(y, "columns") and len(y.columns) != 1):
        return y
    if np.ma.is_masked(y):
        raise ValueError("y must not have masked entries, unless it is a matrix of labels to fit to; drop these rows.")
    y = y.to_list() if hasattr(y, "to_list") else y  # a Series
    if not hasattr(y, "__len__") and not hasattr(y, "__array__"):
        raise ValueError(f"y must be a sequence, an array or a DataFrame; got a {type(y).__name__}.")
    values = _array(y)
    if values.ndim == 2 and values.shape[1] == 1 and not _looks_like_label_sets(y):
        _check_column(values[:, 0])
        warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples,), "
            "for example using ravel().",
            DataConversionWarning,
        )
        values = values[:, 0]
        y = values
    rows = values.tolist() if values.dtype == object else y
    if isinstance(rows, list):
        rows = [row.tolist() if isinstance(row, np.ndarray) and row.ndim == 1 else row for row in rows]
    return rows if _looks_like_label_sets(rows) else values


def _check_column(values):
    missing = [i for i, value in enumerate(values) if _is_missing(value)]
    if missing:
        raise ValueError(
            f"A y of one column holds one class per row, and row {missing[0]} has none ({values[missing[0]]!r}). For "
            "one label that is not known of every row, give y as a sparse matrix."
        )


def _array(y):
    """y as an array; of objects where its rows have different lengths, as label sets do."""
    try:
        return np.asarray(y)
    except ValueError:
        values = np.empty(len(y), object)
        for i, row in enumerate(y):
            values[i] = row
        return values


def _looks_like_label_sets(y):
    """Whether some row is a set, holds a string, or has another length: then rows hold labels, not 0 and 1."""
    if not isinstance(y, list | tuple):
        return False
    sequences = [row for row in y if isinstance(row, list | tuple)]
    return (
        any(isinstance(row, set | frozenset) for row in y)
        or any(isinstance(label, str) for row in sequences for label in row)
        or len({len(row) for row in sequences}) > 1
    )


def _rows_of_labels(y):
    rows = y.to_list() if hasattr(y, "to_list") else list(y)
    for i, row in enumerate(rows):
        if type(row).__name__ not in SET_TYPES:
            raise ValueError(
                f"Every row of y must be a set, tuple or list of labels where one is; row {i} is {row!r}. "
                "Write a single label as {label}."
            )
    return rows


def _label_set_targets(y):
    y = _rows_of_labels(y)
    kinds = {type(row).__name__ for row in y}
    names = _label_names(y, only_strings=bool(kinds & {"tuple", "list"}))
    return Targets("sets", names, container=kinds.pop() if len(kinds) == 1 else "set")


def _label_names(y, *, only_strings):
    """The labels of all sets, sorted."""
    labels: dict = {}
    for i, row in enumerate(y):
        if only_strings and len(set(row)) < len(row):
            raise ValueError(
                f"A label set holds each label once; row {i} of y is {list(row)!r}. For an indicator matrix, give "
                "numbers 0 and 1, not strings."
            )
        for label in row:
            if _is_missing(label) or (only_strings and not isinstance(label, str)):
                raise ValueError(
                    f"Labels must be strings, or any one sortable type inside sets; row {i} of y holds {label!r}. For "
                    "an indicator matrix, give rows of 0 and 1 of equal length."
                )
            labels.setdefault(label, i)
    if not labels:
        raise ValueError("y holds no label at all; at least one label set must not be empty.")
    first = type(next(iter(labels)))
    try:
        ordered = sorted(labels)
    except TypeError:
        label, i = next((label, i) for label, i in labels.items() if not isinstance(label, first))
        raise ValueError(
            f"Labels must be of one type that can be sorted; row {i} of y holds {label!r} beside labels of type "
            f"{first.__name__}."
        ) from None
    if all(isinstance(label, Integral) for label in ordered):
        return np.array(ordered)
    names = np.empty(len(ordered), object)
    for k, label in enumerate(ordered):
        names[k] = label
    return names


def _frame_targets(y):
    names = list(y.columns)
    if len(set(names)) < len(names) or any(isinstance(name, tuple) for name in names):
        raise ValueError(f"The columns of y name the labels and must be single, distinct names; got {names}.")
    dtype = "bool" if np.asarray(y).dtype == bool else "int64"
    classes = np.empty(len(names), object)
    classes[:] = names
    return Targets("frame", classes, dtype=dtype, container=type(y).__module__.split(".")[0])


def _class_targets(values):
    if values.dtype == object:
        missing = [i for i, value in enumerate(values) if _is_missing(value)]
        if missing:
            raise ValueError(f"y must not have missing values; row {missing[0]} is {values[missing[0]]!r}.")
    else:
        assert_all_finite(values, input_name="y")
    if values.dtype.kind == "S":
        raise ValueError("Classes must be strings or numbers, not bytes; decode them first.")
    check_classification_targets(values)
    classes = np.unique(values)
    if len(classes) < 2:
        found = f"only one class: {classes.tolist()[0]!r}" if len(classes) else "no row"
        raise ValueError(f"y must hold at least 2 classes; it holds {found}.")
    _tell_of_joined_labels(classes)
    return Targets("classes", classes)


def _tell_of_joined_labels(classes):
    """Warn where classes look like label sets that were joined to texts, such as "health;tech"."""
    if classes.dtype.kind not in "OU" or not all(isinstance(name, str) for name in classes):
        return
    separator = plain_separator(classes)
    if separator is None:
        return
    joined = [name for name in classes.tolist() if separator in name]
    parts = [part.strip() for name in classes.tolist() for part in name.split(separator)]
    # Labels come again in other sets. So do parts of plain texts with commas, such as "Paris, France", but not alone.
    is_repeated = len(set(parts)) < len(parts)
    if is_repeated and (separator != "," or not set(parts).isdisjoint(classes.tolist())):
        warn(
            f"The classes of y look like label sets, such as {joined[0]!r}, but each is one class. For label sets "
            f"give y as a list of sets, [set(labels.split({separator!r})) for labels in y], or as the matrix that "
            "MultiLabelBinarizer makes of them."
        )


def _matrix_targets(values):
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"y must have one dimension, or two with a column per label; got shape {values.shape}.")
    dtype = values.dtype if values.dtype.kind in "biuf" else np.dtype(np.int64)
    return Targets("matrix", np.arange(values.shape[1]), dtype=str(dtype))


def _is_missing(value):
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value, an array has several
        return True


PLACED = ("matrix", "sparse")  # forms whose columns have a place but no name


def declared(y, classes):
    """Targets of the form of y, with the classes or labels that are declared for all rows to come.

    classes are the classes of one class per row, the labels of label sets, or the names of the columns of a matrix.
    """
    if classes is None:
        raise ValueError(
            "classes must be given at the first call of partial_fit: the names of all labels, or all classes, that y "
            "will ever hold."
        )
    names = _names(classes)
    form = _form(y, names)
    if form.kind == "classes":
        if len(names) < 2:
            raise ValueError(f"classes must hold at least 2 classes; got {names!r}.")
        return encode(np.asarray(names))[0]
    if form.kind == "sets":
        return replace(form, classes=encode([set(names)])[0].classes)
    if len(names) != len(form.classes):
        raise ValueError(f"classes must name the {len(form.classes)} columns of y; got {len(names)} names.")
    if form.kind in PLACED:
        _check_ordered(classes)
        return replace(form, classes=np.asarray(names))
    if set(names) != set(form.classes.tolist()) and names != list(range(len(names))):
        raise ValueError(f"classes must be the names of y's columns, {form.classes.tolist()!r}; got {names!r}.")
    return form


def check_same(form, classes):
    """Raise a ValueError unless the classes are those of the form; in the same order, if columns have no names."""
    names, known = _names(classes), form.classes.tolist()
    if form.kind in PLACED:
        _check_ordered(classes)
    is_other = names != known if form.kind in PLACED else set(names) != set(known) and names != list(range(len(known)))
    if is_other:
        raise ValueError(
            f"classes must stay what they were at the first call of partial_fit, {known!r}; got {names!r}."
        )


def _check_ordered(classes):
    if isinstance(classes, set | frozenset):
        raise ValueError(f"classes must be in the order of y's columns, so give a list, not a set; got {classes!r}.")


def _names(classes):
    """The names as a list, sorted if they come as a set."""
    is_set = isinstance(classes, set | frozenset)
    try:
        values = np.asarray(list(classes) if is_set else classes, dtype=object)  # numbers stay numbers
        names = values.tolist()
        ordered = sorted(names)
        is_list = values.ndim == 1 and 0 < len(set(names)) == len(names)
    except (TypeError, ValueError):
        is_list = False
    if not is_list:
        raise ValueError(
            "classes must be a list of distinct names in one dimension, all of one type that can be sorted; got "
            f"{classes!r}."
        )
    return ordered if is_set else names


def _form(y, names):
    """The form of y. Rows of one call may show a single class, or no label; then the declared names are added."""
    try:
        return encode(y, partly_known=True)[0]
    except ValueError as error:
        for more in (lambda: [*np.ravel(y).tolist(), *names], lambda: [*y, set(names)]):
            try:
                return encode(more())[0]
            except (TypeError, ValueError):
                continue
        raise error
