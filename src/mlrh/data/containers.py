"""The form in which every data source hands over a multilabel data set, and rows of a DataFrame in that form.

A saved model names `mlrh.data.containers.Schema`, so that this module keeps its name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from numbers import Number
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
    texts, dates : tuple of str
        Names of the features that are text, and of those that are dates.
    kept : tuple of str
        Names of columns that are no features, and are carried to predictions, such as identifiers.
    tags : tuple of str
        Where one column holds the label sets: its name and the separator ("" for lists); otherwise empty.
    """

    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelData:
    """Features and label sets of the same rows, with their names.

    Attributes
    ----------
    X : array or CSR matrix of shape (n_samples, n_features), float64
        A missing value is NaN. A nominal feature holds the index of its value in `categories`, a text that of its text
        in `texts`, a date the days since 1970 (UTC).
    Y : array of shape (n_samples, n_labels), int8
        Indicator matrix: 1 where the row has the label, 0 where it has not, -1 where that is not known.
    feature_names, label_names : tuple of str
        Names of the columns of X and Y.
    name : str
        What the set is called in messages and tables.
    categories : mapping of str to tuple of str
        The values of each nominal feature, by the feature's name.
    parent_names : mapping of str to str
        The parent of each label that has one, where labels form a hierarchy.
    texts : mapping of str to sequence of str
        The different texts of each text feature, by the feature's name.
    dates : tuple of str
        Names of the features that are dates.
    kept : mapping of str to array of shape (n_samples,), of objects
        Columns that are no features, as they are in the file, such as identifiers.
    tags : tuple of str
        As in `Schema`.
    counts : tuple of (int, int)
        First column and end of each block of X that counts the words or letters of a text; see `TableFeatures`.
    """

    X: Any
    Y: np.ndarray
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    name: str
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parent_names: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dates: tuple[str, ...] = ()
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    counts: tuple[tuple[int, int], ...] = ()

    @property
    def schema(self) -> Schema:
        """The names alone."""
        columns = tuple(self.texts), self.dates, tuple(self.kept), self.tags
        return Schema(self.feature_names, self.label_names, self.categories, *columns)

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
        kept = {name: values[index] for name, values in self.kept.items()}
        return replace(self, X=self.X[index], Y=self.Y[index], kept=kept)

    def words(self, name: str) -> Sequence[str] | None:
        """The values of a nominal feature or the texts of a text, whose indices X holds; None for other features."""
        return self.categories.get(name, self.texts.get(name))

    def without(self, names) -> "MultilabelData":
        """The same set without some features; a name that isn't one is a DataError."""
        unknown = [name for name in names if name not in self.feature_names]
        if unknown:
            raise DataError(f"{self.name} has no feature {unknown[0]!r} to leave out; correct the name.")
        kept = [column for column, name in enumerate(self.feature_names) if name not in set(names)]
        feature_names = tuple(self.feature_names[column] for column in kept)
        categories = {name: values for name, values in self.categories.items() if name in feature_names}
        texts = {name: values for name, values in self.texts.items() if name in feature_names}
        dates = tuple(name for name in self.dates if name in feature_names)
        X = self.X[:, kept]
        return replace(self, X=X, feature_names=feature_names, categories=categories, texts=texts, dates=dates)

    def conform(self, schema: Schema) -> "MultilabelData":
        """The same rows with the schema's features in its order and coding; other features are dropped.

        A feature the data lack is a DataError, and so is a numeric feature where the schema has a nominal one, a text
        or dates, and the other way round. A nominal value the schema doesn't know becomes NaN. Labels stay as they are.
        """
        position = {name: column for column, name in enumerate(self.feature_names)}
        _refuse_absent(schema, position, self.name)
        places = [position[name] for name in schema.feature_names]
        # Where the columns are these already, they are not copied.
        X = self.X if places == list(range(self.X.shape[1])) else self.X[:, places]
        texts = {}
        for column, name in enumerate(schema.feature_names):
            own, wanted, where = self.words(name), schema.categories.get(name), f"{self.name}: feature {name!r}"
            if name in schema.texts:
                texts[name] = _texts(X, column, own, where)
            elif (name in self.dates) != (name in schema.dates):
                _refuse_other_dates(X, column, name in schema.dates, where)
            elif own != wanted:
                X = _recoded(X, column, own, wanted, where)
        categories, names = dict(schema.categories), schema.feature_names
        return replace(self, X=X, feature_names=names, categories=categories, texts=texts, dates=schema.dates)

    def __repr__(self):
        n_samples, n_features = self.X.shape
        return f"MultilabelData({self.name!r}: {n_samples} rows, {n_features} features, {self.Y.shape[1]} labels)"


def stacked(parts: Sequence[MultilabelData]) -> MultilabelData:
    """One data set of the rows of several with the same features and labels, called as the first."""
    first, texts = parts[0], dict[str, Sequence[str]]()
    if sparse.issparse(first.X):  # such data have no texts
        X = sparse.csr_array(sparse.vstack([sparse.csr_array(part.X) for part in parts]))
    else:
        X = np.concatenate([part.X.toarray() if sparse.issparse(part.X) else part.X for part in parts])
    ends = np.cumsum([len(part.Y) for part in parts])
    for name in first.texts:
        column, own = first.feature_names.index(name), list[str]()
        for part, end in zip(parts, ends, strict=True):
            # X has the numbers of texts; those of a part come after the ones before.
            X[end - len(part.Y) : end, column] += len(own)
            own += part.texts[name]
        texts[name] = own
    common = [name for name in first.kept if all(name in part.kept for part in parts)]
    kept = {name: np.concatenate([part.kept[name] for part in parts]) for name in common}
    return replace(first, X=X, Y=np.concatenate([part.Y for part in parts]), texts=texts, kept=kept)


def _refuse_absent(schema, names, who):
    absent = [name for name in schema.feature_names if name not in names]
    if absent:
        raise DataError(f"{who} lacks {len(absent)} of the model's features: {listed(absent)}.")


def _values(X, column):
    return X[:, [column]].toarray().ravel() if sparse.issparse(X) else X[:, column]


def _texts(X, column, own, where):
    """The texts of a column, which are the words that it has; a column of missing values only has none."""
    if own is None and not np.isnan(_values(X, column)).all():
        raise DataError(f"{where} must be text, as in training; found numbers.")
    return own or ()


def _refuse_other_dates(X, column, is_wanted, where):
    """Raise a DataError where dates stand for something else or something else for dates; missing values fit both."""
    if not np.isnan(_values(X, column)).all():
        found = "something else" if is_wanted else "dates"
        raise DataError(f"{where} must {'' if is_wanted else 'not '}be dates, as in training; found {found}.")


def _recoded(X, column, own, wanted, where):
    """X with one column's codes changed from the values `own` to `wanted`; None stands for a numeric column."""
    values = _values(X, column)
    if wanted is None:
        codes = _numbers(values, own, where)
    elif own is None:
        codes = _codes_of_numbers(values, wanted, where)
    else:
        codes_of = {value: code for code, value in enumerate(wanted)}
        new = np.array([codes_of.get(value, np.nan) for value in own] + [np.nan])
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
    spelled = _spelled(wanted)
    if not spelled:
        raise DataError(f"{where} must be one of {', '.join(wanted[:5])}, as in training; found numbers.")
    return np.array([spelled.get(value, np.nan) for value in values])


def _spelled(values):
    """The codes of the values that spell numbers, by these numbers."""
    spelled = {}
    for code, value in enumerate(values):
        try:
            spelled[float(value)] = code
        except ValueError:
            continue
    return spelled


# Dates as numbers

DATE = re.compile(
    r"(?:(?P<year>[0-9]{4})[-/](?P<month>[0-9]{1,2})[-/](?P<day>[0-9]{1,2})"
    r"|(?P<d>[0-9]{1,2})\.(?P<m>[0-9]{1,2})\.(?P<y>[0-9]{4}))"
    r"(?:[T ]{1,2}(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,9}))?)?"
    r" ?(?P<zone>Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
)
DAY = 86_400  # seconds
FIRST_DAY = date(1970, 1, 1).toordinal()
FIRST_DAYS, LAST_DAYS = 1 - FIRST_DAY, date.max.toordinal() + 1 - FIRST_DAY  # of the years 1 to 9999


def days_of(text: str) -> float:
    """The days since 1970 (UTC) of a date such as 2024-03-31 or 31.3.2024, with or without a time; else a ValueError.

    03/04/2024 is none: in one country it is in March, in another in April.
    """
    found = DATE.fullmatch(text.strip())
    if found is None or not text.isascii():
        raise ValueError(f"not a date: {text[:40]!r}")
    part = found.groupdict()
    year, month, day = (int(part[long] or part[short]) for long, short in (("year", "y"), ("month", "m"), ("day", "d")))
    hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"no time of day: {text[:40]!r}")
    microseconds = int((part["fraction"] or "0")[:6].ljust(6, "0"))
    seconds = 3600 * hour + 60 * minute + second - _offset(part["zone"])
    return date(year, month, day).toordinal() - FIRST_DAY + (seconds + microseconds / 1e6) / DAY


def date_text(days: float) -> str:
    """The date that `days_of` reads as that many days, with the time unless it is midnight."""
    try:
        moment = datetime(1970, 1, 1) + timedelta(microseconds=round(days * DAY * 1e6))
    except OverflowError:  # beyond the year 9999
        return f"{days:g}"
    return moment.date().isoformat() if moment.time() == time() else moment.isoformat()


def _offset(zone):
    """Seconds that a time zone such as +02:00 is ahead."""
    if zone in (None, "Z", "UTC"):
        return 0
    return (1 if zone[0] == "+" else -1) * (3600 * int(zone[1:3]) + 60 * int(zone[-2:]))


# DataFrames of pandas or polars, neither of which is imported


def from_frame(frame, schema: Schema) -> MultilabelData:
    """The features that the schema names, without labels, and the columns to keep that are there; others are ignored.

    A missing value, and a nominal value the schema doesn't know, become NaN; among numbers and dates a blank text is
    missing, too. A column that is missing, or that holds other text where the schema has numbers or dates, is a
    DataError.
    """
    _refuse_absent(schema, frame.columns, "The DataFrame")
    X, texts = np.empty((len(frame), len(schema.feature_names))), {}
    for column, name in enumerate(schema.feature_names):
        cells = list(frame[name])
        if name in schema.texts:
            codes: dict[str, int] = {}
            X[:, column] = [np.nan if _is_missing(own) else codes.setdefault(str(own), len(codes)) for own in cells]
            texts[name] = tuple(codes)
        elif name in schema.dates:
            X[:, column] = _frame_dates(cells, name)
        else:
            values = schema.categories.get(name)
            X[:, column] = _frame_numbers(cells, name) if values is None else _frame_codes(cells, values)
    kept = {name: _objects(list(frame[name])) for name in schema.kept if name in frame.columns}
    about: dict[str, Any] = {"texts": texts, "dates": schema.dates, "kept": kept}
    Y = np.zeros((len(X), 0), np.int8)
    return MultilabelData(X, Y, schema.feature_names, (), "the DataFrame", schema.categories, **about)


def _objects(cells):
    """An array (n_cells,) of the cells; plain numbers and texts as Python has them."""
    array = np.empty(len(cells), object)
    for place, cell in enumerate(cells):
        array[place] = None if _is_missing(cell) else cell.item() if isinstance(cell, np.generic) else cell
    return array


def _frame_dates(cells, name):
    days = np.full(len(cells), np.nan)
    for place, cell in enumerate(cells):
        if not _is_missing(cell) and not _is_blank(cell):
            try:
                days[place] = days_of(cell if isinstance(cell, str) else cell.isoformat())
            except (AttributeError, ValueError):
                what = f"Column {name!r} of the DataFrame must hold dates such as 2024-03-31, as in training"
                raise DataError(f"{what}; found {str(cell)[:40]!r} in row {place}.") from None
    return days


def _frame_numbers(cells, name):
    try:
        return np.array([np.nan if _is_missing(cell) or _is_blank(cell) else float(cell) for cell in cells])
    except (TypeError, ValueError) as error:
        raise DataError(f"Column {name!r} of the DataFrame must hold numbers, as in training; {error}.") from error


def _frame_codes(cells, values):
    codes, spelled = {value: code for code, value in enumerate(values)}, _spelled(values)

    def code(cell):
        if _is_missing(cell):
            return np.nan
        # pandas makes whole numbers 10115.0 where a cell of the column is missing.
        by_number = spelled.get(cell, np.nan) if isinstance(cell, Number) else np.nan
        return codes.get(str(cell), by_number)

    return np.array([code(cell) for cell in cells], dtype=float)


def _is_missing(cell):
    # pandas.NA compares to nothing; NaN and NaT are unequal to themselves.
    return cell is None or type(cell).__name__ == "NAType" or cell != cell


def _is_blank(cell):
    return isinstance(cell, str) and not cell.strip()
