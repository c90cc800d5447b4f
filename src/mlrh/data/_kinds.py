"""From the columns of a table to a data set: what each column is, said by somebody or found out.

Numbers, nominal values, text, dates, identifiers and labels. Knows nothing of formats.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from mlrh._indicators import plain_separator
from mlrh.data._columns import (
    Dates,
    LabelChoice,
    Nominal,
    Numbers,
    Texts,
    described,
    indicators,
    label_columns,
)
from mlrh.data._sources import Source, shown
from mlrh.data.containers import DataError, MultilabelData, Schema, days_of

KINDS = ("number", "nominal", "text", "date", "id", "ignored")
IDENTIFIER_ROWS = 21  # fewer rows may have different values by chance
# Text is what people write freely: many different cells of several words. A list of places to choose from (New York,
# Los Angeles) has several words too, but comes again and again.
TEXT_VALUES = 21
TEXT_SHARE = 0.2  # of the rows with a value, that have another one; titles repeat, but hardly five times each
TEXT_WORDS = 2.0  # of a cell, in the mean
NEARLY = 0.9  # of the rows have a value of their own: some orders come twice, some rows lack a number
LOOKED_AT = 1000  # different words of a column by which it is noted that they look like dates
SLASHED = re.compile(r"[0-9]{1,2}/[0-9]{1,2}/(?:[0-9]{2}|[0-9]{4})(?:[ T].*)?", re.DOTALL)
LINK = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
# id, song_id, song id, songId, ID, and what pandas calls an index without a name; but not paid or valid.
NAMED_ID = re.compile(r"(?:.*[\W_])?(?:id|Id|ID|uuid|UUID|guid|GUID)|.*[a-z](?:Id|ID)|Unnamed: [0-9]+", re.DOTALL)


class Table(Protocol):
    """What the reader of a format tells of the columns of a file; `all_names` are those of unread ones, too."""

    names: Sequence[str]
    all_names: Sequence[str]
    n_rows: int
    source: Source

    def labels(self, column: int, unknown: str | None) -> np.ndarray:
        """0 and 1 of a label column, UNKNOWN for cells that equal a text; else a DataError."""

    def sets(self, column: int, choice: LabelChoice) -> tuple[list | None, str | None]:
        """The label sets of a column and their separator, "" for lists; None where that isn't plain."""

    def feature(self, column: int, kind: str | None, model: Schema | None) -> tuple[np.ndarray, Any]:
        """Values and encoder of a column, of a kind (a model's, if given), or as it looks where that is None."""

    def kept(self, column: int) -> np.ndarray:
        """The cells as objects."""


@dataclass(frozen=True)
class Plan:
    """What is said of the columns of a table, by a model's schema and by name; keep_all keeps all as they are.

    find_ids: identifiers are found, and columns told, also where there are no labels.
    """

    schema: Schema | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    keep_all: bool = False
    find_ids: bool = False

    def wanted(self, choice: LabelChoice) -> set[str] | None:
        """The names of the columns that are looked at; None for all but the ignored ones."""
        if self.schema is None or self.keep_all:
            return None
        return {*self.schema.feature_names, *self.schema.kept, *self.kinds, *choice.names}

    def kinds_of(self, names: Sequence[str]) -> dict[str, str | None]:
        """What is said of each column: one of KINDS, or None where it is to be found out."""
        said = {} if self.schema is None else schema_kinds(self.schema)
        other = None if self.schema is None else "ignored"
        return {name: said.get(name, self.kinds.get(name, other)) for name in names}


def data_set(table: Table, choice: LabelChoice, plan: Plan) -> MultilabelData:
    """The data set of a table, whose columns are told in warnings where they were taken for something special."""
    source, names, schema = table.source, table.names, plan.schema
    columns = label_columns(choice, names, source)
    refuse_absent(plan.kinds, table.all_names, [name for _, name in columns], source)
    Y, label_names, tags = _labels_of(table, columns, choice, schema)
    taken = {column for column, _ in columns}
    kinds = plan.kinds_of(names)
    n_most = sum(kinds[name] not in ("id", "ignored") and place not in taken for place, name in enumerate(names))
    X, features, kept = _Columns(table.n_rows, n_most), list[tuple[str, Any]](), dict[str, np.ndarray]()
    for column, name in enumerate(names):
        kind = kinds[name]
        if plan.keep_all or "id" in (kind, plan.kinds.get(name)):  # a model's feature may be asked for, too
            kept[name] = table.kept(column)
        if column in taken or kind in ("id", "ignored"):
            continue
        values, encoder = table.feature(column, kind, schema)
        if kind is None:
            values, encoder, why = _found(name, values, encoder)
            # Other rows without labels are to be predicted, by a model that knows what they are.
            is_training = bool(label_names) or plan.find_ids
            if why and is_training:
                kept[name] = table.kept(column)
                though = _dates_among(encoder)
                tell(source, f"column {shown(name)} {why}, so it is kept aside and no feature{though}")
                continue
            if is_training:
                _tell_kind(values, encoder, name, source)
        X.append(values)
        features.append((name, encoder))
    data = described(X.whole(), Y, features=features, label_names=label_names, source=source, identifier_rows=None)
    return replace(data, kept=kept, tags=tags)


class _Columns:
    """Columns that become a matrix, several at a time: one alone would write 8 bytes into each line of the cache."""

    AT_A_TIME = 16

    def __init__(self, n_rows, n_most):
        self._X, self._n, self._waiting = np.empty((n_rows, n_most)), 0, list[np.ndarray]()

    def append(self, values):
        self._waiting.append(values)
        if len(self._waiting) == self.AT_A_TIME:
            self._write()

    def whole(self):
        """The matrix of the columns so far."""
        self._write()
        return self._X if self._n == self._X.shape[1] else self._X[:, : self._n].copy()

    def _write(self):
        if self._waiting:
            end = self._n + len(self._waiting)
            self._X[:, self._n : end] = np.array(self._waiting).T
            self._n, self._waiting = end, []


def _found(name, values, encoder):
    """Values and encoder of a column of which nobody said what it is; and why it is an identifier, or ""."""
    if isinstance(encoder, Numbers):
        how_many = _rows_of_their_own(values) if NAMED_ID.fullmatch(name) and _are_whole(values) else ""
        return values, encoder, f"is called an identifier and has another number in {how_many}" if how_many else ""
    if type(encoder) is not Nominal:
        return values, encoder, ""
    kind = kind_of_words(encoder.values, int(np.count_nonzero(~np.isnan(values)))) if encoder.found else "nominal"
    if kind == "link":
        return values, encoder, "holds links"
    values, encoder = of_words(values, encoder, kind)
    how_many = _rows_of_their_own(values) if type(encoder) is Nominal else ""
    return values, encoder, f"has another value in {how_many}" if how_many else ""


def _tell_kind(values, encoder, name, source):
    """Tell what a column was taken for where that isn't plain, or where it looks like something else."""
    if isinstance(encoder, Texts):
        tell(source, f"column {shown(name)} is text, and counts by its words and letters")
    elif isinstance(encoder, Dates):
        tell(source, f"column {shown(name)} holds dates, and counts as days and by parts of the calendar")
    elif isinstance(encoder, Numbers) and _follow_each_other(values):
        what = "is a number as a feature, though nearly every row has its own"
        tell(source, f"column {shown(name)} {what}; --id keeps it aside, --number keeps it")
    elif though := _dates_among(encoder):
        tell(source, f"column {shown(name)} counts as words{though}")


def _dates_among(encoder):
    """What is to be said where most words are dates, or look like dates of which nobody knows what is the month."""
    if not isinstance(encoder, Nominal) or not encoder.found:
        return ""
    words = encoder.values[:LOOKED_AT]
    if 2 * sum(map(_is_date, words)) > len(words):
        return ", though most of them are dates; --date says that all must be, --nominal that they are words"
    if 2 * sum(bool(SLASHED.fullmatch(word.strip())) for word in words) > len(words):
        return ", though most look like dates; write them as 2024-03-31, or say --nominal or --ignore"
    return ""


def tell(source: Source, what: str) -> None:
    """Warn of what was found out about a column."""
    warnings.warn(f"{source.where}: {what}.", UserWarning, stacklevel=2)


def _labels_of(table, columns, choice, schema):
    """Y, the names of its labels, and the column and separator of label sets, if they stand in one column."""
    sets = separator = None
    if len(columns) == 1:
        column, name = columns[0]
        sets, separator = _sets_of(table, column, choice)
    if sets is None:
        Y = np.empty((table.n_rows, len(columns)), np.int8)
        for place, (column, _) in enumerate(columns):
            Y[:, place] = table.labels(column, choice.unknown)
        return Y, tuple(name for _, name in columns), ()
    Y, label_names = indicators(sets, () if schema is None else schema.label_names, table.source)
    if choice.separator is None:
        by = f"separated by {shown(separator)}" if separator else "as lists"
        tell(table.source, f"column {shown(name)} holds label sets, {by}: {len(label_names)} labels")
    elif schema is None and (other := plain_separator(label_names)) and Y.sum(axis=1).max() <= 1:
        what = f"so each cell is one label; {shown(other)} looks like its separator"
        tell(table.source, f"column {shown(name)} has no {shown(choice.separator)} in it, {what}")
    return Y, label_names, (name, separator)


def _sets_of(table, column, choice):
    """Label sets of a column and their separator; (None, None) where it is a column of 0 and 1."""
    if choice.separator is not None:
        return table.sets(column, choice)
    try:
        table.labels(column, choice.unknown)
    except DataError as error:
        sets, separator = table.sets(column, choice)
        if sets is None:
            hint = "if it lists labels, say what separates them (--separator, or separator= in Python)"
            raise DataError(f"{str(error).removesuffix('.')}; {hint}.") from error
        return sets, separator
    return None, None


def kind_of_words(values: Sequence[str], n_present: int) -> str:
    """What the different values of a column are, "date", "text", "link" or "nominal"; n_present rows have a value."""
    present = [value for value in values if value.strip()]  # Parquet has blank ones, as dates they are missing
    if not present:
        return "nominal"
    if all(map(_is_date, present)):
        return "date"
    if all(map(LINK.fullmatch, values)):
        return "link"
    many = len(values) >= TEXT_VALUES and len(values) > TEXT_SHARE * n_present
    is_text = many and sum(len(value.split()) for value in values) >= TEXT_WORDS * len(values)
    return "text" if is_text else "nominal"


def of_words(codes: np.ndarray, nominal: Nominal, kind: str) -> tuple[np.ndarray, Nominal | Dates]:
    """Values and encoder of a column whose words are coded already, as the kind has them."""
    if kind == "text":
        texts = Texts(lambda text: text)
        texts.encode(nominal.values)  # the same codes
        return codes, texts
    if kind == "date":
        days = np.append([days_of(value) if value.strip() else np.nan for value in nominal.values], np.nan)
        return days[np.where(np.isnan(codes), -1, codes).astype(np.int64)], Dates(lambda text: text)
    return codes, nominal


def _rows_of_their_own(values):
    """How many of the rows have a value that no other has, "every row" or "nearly every row"; "" where they are fewer.

    Of such a column nothing can be learned but the rows themselves.
    """
    n_rows, n_values = len(values), len(np.unique(values[~np.isnan(values)]))
    if n_rows < IDENTIFIER_ROWS or n_values < NEARLY * n_rows:
        return ""
    return "every row" if n_values == n_rows else "nearly every row"


def _are_whole(values):
    present = values[~np.isnan(values)]
    return bool((present == np.floor(present)).all())


def _follow_each_other(values):
    """Whether whole numbers nearly all differ, and have nearly no gaps, whatever their order."""
    if not _are_whole(values) or not _rows_of_their_own(values):  # most aren't whole, and need no sorting then
        return False
    first, last = np.nanmin(values), np.nanmax(values)
    return bool(np.count_nonzero(~np.isnan(values)) >= NEARLY * (last - first + 1))


def schema_kinds(schema: Schema) -> dict[str, str]:
    """The kind of each feature of a model and of each column that it keeps."""
    kinds = dict.fromkeys(schema.feature_names, "number")
    kinds.update(dict.fromkeys(schema.categories, "nominal"))
    kinds.update(dict.fromkeys(schema.texts, "text"))
    kinds.update(dict.fromkeys(schema.dates, "date"))
    return {**dict.fromkeys(schema.kept, "id"), **kinds}


def checked_kinds(columns: Any) -> dict[str, str]:
    """The argument `columns` of `read`, or the error that says what it must be."""
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"columns must be a mapping of names of columns to kinds; got {type(columns).__name__}.")
    wrong = [kind for kind in columns.values() if kind not in KINDS]
    if wrong:
        raise ValueError(f"The kind of a column must be one of {', '.join(map(repr, KINDS))}; got {wrong[0]!r}.")
    return dict(columns)


def refuse_absent(kinds: Mapping[str, str], names: Sequence[str], labels: Sequence[str], source: Source) -> None:
    """Raise a DataError where a kind is said of a column that the file lacks, or of a label."""
    for name, kind in kinds.items():
        if name not in names:
            raise source.error(f"has no column {shown(name)}, which is named as {in_words(kind)}; correct the name.")
        if name in labels:
            raise source.error(f"column {shown(name)} is named as a label and as {in_words(kind)}; name it once.")


def in_words(kind: str) -> str:
    """A kind for a sentence."""
    words = {"number": "numbers", "nominal": "nominal", "date": "dates", "id": "an identifier", "ignored": "ignored"}
    return words.get(kind, kind)


def refuse_kinds(kinds: Mapping[str, str], source: Source) -> list[str]:
    """The ignored columns of a file that declares its types itself; a DataError for any other kind."""
    others = [name for name, kind in kinds.items() if kind != "ignored"]
    if others:
        what = f"ARFF and LIBSVM files declare what columns are, so that {shown(others[0])} can only be ignored"
        raise source.error(f"{what}; for text, dates and identifiers use CSV, JSON lines or Parquet.")
    return list(kinds)


def _is_date(value):
    try:
        days_of(value)
    except ValueError:
        return False
    return True
