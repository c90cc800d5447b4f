"""From the cells of a column, as text, to numbers and back: measurements, dates, codes of words, and labels.

What a cell's quotes mean and how it says that it is missing is told by a function `plain` that gives the cell's value,
or None for a missing one.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import UNKNOWN
from mlrh.data._sources import Source, shown
from mlrh.data.containers import DataError, MultilabelData, date_text, days_of, listed

Plain = Callable[[str], str | None]
HOW = "name the label columns, the one column of tags, or a MULAN XML file (--labels, or labels= in Python)"
LABEL_WORDS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
MAX_INDICATORS = 2**31  # cells of Y, 2 GiB; more is rather a number to predict than a list of labels
ENTRY = 100  # bytes that an entry of a sparse matrix takes while it is made: row, column and value, three times
DECLARED_IDENTIFIER_ROWS = 20  # with another declared value in each of so many rows; in fewer it may be chance


class AbsentLabelError(DataError):
    """A label that a file has no column for."""


class BadCellError(ValueError):
    """A cell that its column doesn't allow; position counts within the cells given."""

    def __init__(self, position: int, what: str):
        super().__init__(what)
        self.position = position


def number(text: str) -> float:
    """The number that a text spells in ASCII, or a ValueError; nan and inf are numbers here."""
    if not text.isascii() or "_" in text:
        raise ValueError(f"not a number: {text!r}")
    return float(text)


def spelled_numbers(values: Sequence[str]) -> np.ndarray | None:
    """The distinct finite numbers that all the values spell, or None if they don't."""
    try:
        numbers = np.array([number(value) for value in values])
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() and len(np.unique(numbers)) == len(values) else None


def is_number(text: str) -> bool:
    """Whether a text spells a number."""
    try:
        number(text)
    except ValueError:
        return False
    return True


class Numbers:
    """A numeric column: NaN where missing; `allowed` restricts the numbers to those a nominal attribute declares."""

    def __init__(self, plain: Plain, allowed: np.ndarray | None = None):
        self._plain, self._allowed = plain, allowed
        self.omitted = 0.0 if allowed is None else float(allowed[0])

    def encode(self, cells: Sequence[str]) -> np.ndarray:
        """The cells' numbers, or BadCellError."""
        values = _floats(cells)
        if values is None:
            values = np.array([self._one(position, cell) for position, cell in enumerate(cells)], np.float64)
        _refuse(np.isinf(values), cells, "finite")
        if self._allowed is not None:
            listed = _listed([f"{value:g}" for value in self._allowed])
            _refuse(~(np.isin(values, self._allowed) | np.isnan(values)), cells, f"one of {listed}")
        return values

    def _one(self, position, cell):
        text = self._plain(cell)
        try:
            return np.nan if text is None else number(text)
        except ValueError:
            raise BadCellError(position, f"must be a number; found {shown(cell.strip())}.") from None


class Ignored:
    """A column that no one asked for: whatever its cells hold is 0."""

    omitted = 0.0

    def encode(self, cells: Sequence[str]) -> np.ndarray:
        """Zeros, as many as there are cells."""
        return np.zeros(len(cells))


class _Lookup:
    """Codes of cells by a table that remembers every spelling it has met; `_code` gives that of a new one."""

    _code: Callable
    omitted: float

    def __init__(self, plain: Plain):
        self._plain = plain
        self._known: dict[str, float] = {}

    def encode(self, cells: Sequence[str]) -> np.ndarray:
        """The cells' codes, or BadCellError."""
        known = self._known
        for position, cell in enumerate(cells):
            if cell not in known:
                known[cell] = self._code(position, cell)
        return np.fromiter(map(known.__getitem__, cells), np.float64, len(cells))


class Nominal(_Lookup):
    """A nominal column: indices of the declared values, or of the values found, in order of appearance."""

    def __init__(self, plain: Plain, declared: Sequence[str] | None = None):
        super().__init__(plain)
        self.found = declared is None
        # A cell that a sparse row omits is the first declared value; where none is declared it is missing.
        self.omitted = np.nan if declared is None else 0.0
        self._codes = {value: code for code, value in enumerate(declared or ())}

    @property
    def values(self) -> tuple[str, ...]:
        """The values, in the order of their codes."""
        return tuple(self._codes)

    def _code(self, position, cell):
        text = self._plain(cell)
        if text is None:
            return np.nan
        if self.found:
            return self._codes.setdefault(text, len(self._codes))
        if text not in self._codes:
            raise BadCellError(position, f"must be one of {_listed(self.values)}; found {shown(cell.strip())}.")
        return self._codes[text]


class Texts(Nominal):
    """A column of text: indices of the different texts, in order of appearance."""


class Dates(_Lookup):
    """A column of dates: days since 1970, NaN where missing."""

    omitted = np.nan

    def _code(self, position, cell):
        text = self._plain(cell)
        try:
            return np.nan if text is None else days_of(text)
        except ValueError:
            what = "must be a date such as 2024-03-31 or 2024-03-31 18:05"
            raise BadCellError(position, f"{what}; found {shown(cell.strip())}.") from None


class Labels(_Lookup):
    """A label column: 0 and 1, also as false and true or no and yes; `declared` are the values an attribute allows.

    Cells that equal the text `unknown`, if given, are UNKNOWN.
    """

    def __init__(self, plain: Plain, declared: Sequence[str] | None = None, unknown: str | None = None):
        super().__init__(plain)
        self._unknown = unknown
        allowed = [0, 1] if declared is None else [label_value(value) for value in declared]
        self._allowed = {value for value in allowed if value is not None}
        self.omitted = float(allowed[0] or 0)

    def _code(self, position, cell):
        if self._unknown is not None and cell.strip() == self._unknown:
            return UNKNOWN
        text = self._plain(cell)
        if text is None:
            what = "has no value; a label must be 0 or 1 in every row"
            raise BadCellError(position, f"{what} (--unknown, or unknown= in Python, takes unknown ones).")
        value = label_value(text)
        if value is None or value not in self._allowed:
            must = "0 or 1" if len(self._allowed) == 2 else f"{min(self._allowed)}, the only declared value"
            raise BadCellError(position, f"must be {must}; found {shown(cell.strip())}.")
        return value


def label_value(text: str) -> int | None:
    """0 or 1 if the text says so, else None."""
    word = text.strip().lower()
    if word in LABEL_WORDS:
        return LABEL_WORDS[word]
    try:
        value = number(word)
    except ValueError:
        return None
    return int(value) if value in (0.0, 1.0) else None


# Label sets in one column


def check_separator(separator: str) -> None:
    """Raise a ValueError unless the text can separate labels."""
    if not separator or "\\" in separator:
        raise ValueError(f"A separator of labels must be a text without a backslash, such as ';'; got {separator!r}.")


def indicators(sets: Sequence[tuple[str, ...] | None], known: Sequence[str], source: Source):
    """Y and the names of its labels: those of `known` first, then others that occur, sorted; a set of None is UNKNOWN.

    Returns
    -------
    Y : array of shape (n_rows, n_labels), int8
    names : tuple of str
    """
    found = {label for own in sets if own for label in own}
    names = (*known, *sorted(found.difference(known)))
    check_size_of_indicators(len(sets), len(names), source)
    place = {name: column for column, name in enumerate(names)}
    Y = np.zeros((len(sets), len(names)), np.int8)
    for row, own in enumerate(sets):
        Y[row, [place[label] for label in own] if own is not None else slice(None)] = UNKNOWN if own is None else 1
    return Y, names


# Which columns are labels


@dataclass(frozen=True)
class LabelChoice:
    """Names of labels; `in_order` says whether their order counts or the file's does.

    parent_names holds the parent of each label that has one. With a separator, the one name is that of a column of
    label sets ("" for lists); with None that is found out. Cells of labels that equal `unknown` are UNKNOWN.
    """

    names: tuple[str, ...]
    in_order: bool
    origin: str
    parent_names: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    unknown: str | None = None


def label_columns(choice: LabelChoice, names: Sequence[str], source: Source, *, other: Mapping[str, int] | None = None):
    """Columns and names of the chosen labels.

    Parameters
    ----------
    names : sequence of str
        Names of the file's columns.
    other : mapping of str to int, optional
        Columns by a second spelling of their name, for labels that no name equals.
    """
    position = {**(other or {}), **{name: column for column, name in enumerate(names)}}
    absent = [name for name in choice.names if name not in position]
    if absent:
        # Of a bounded number of short names: the time grows with the squares of their lengths.
        alike = get_close_matches(absent[0][:100], [name for name in names[:1000] if len(name) < 100], n=1)
        hint = f"did you mean {shown(alike[0])}?" if alike else f"it has {listed(list(map(shown, names)))}."
        what = f"has no column {shown(absent[0])}, which {choice.origin} names as a label; {hint}"
        raise AbsentLabelError(str(source.error(what)))
    found = [(position[name], name) for name in choice.names]
    if len({column for column, _ in found}) < len(found):
        raise source.error(f"two of the labels that {choice.origin} names are the same column; name each once.")
    return found if choice.in_order else sorted(found)


def refuse_repeats(names: Sequence[str], where: str) -> None:
    """Raise a DataError where a label is named twice."""
    if len(set(names)) < len(names):
        raise DataError(f"{where}: the label {shown(commonest(names))} is named twice; name each label once.")


def commonest(names: Sequence) -> Any:
    """What is listed most often, the first of equals."""
    return Counter(names).most_common(1)[0][0]


def check_size_of_indicators(n_rows: int, n_labels: int, source: Source) -> None:
    """Raise a DataError where Y would be too large to hold."""
    if n_rows * n_labels > MAX_INDICATORS:
        what = f"{n_rows} rows with {n_labels} different labels are too many"
        raise source.error(f"{what}; choose fewer labels (--labels, or labels= in Python).")
    source.afford(n_rows * n_labels, f"the {n_labels} labels of {n_rows} rows")


def csr(values, rows, columns, shape) -> sparse.csr_array:
    """CSR array of the entries without explicit zeros; its indices have 32 bits where they can.

    Several scikit-learn estimators take no others, and scipy keeps the 64 bits it is given.
    """
    index = np.int32 if max(*shape, len(values)) < 2**31 else np.int64
    X = sparse.csr_array((values, (rows.astype(index), columns.astype(index))), shape=shape)
    X.eliminate_zeros()
    X.sort_indices()
    return X


def described(X, Y, *, features, label_names, source, identifier_rows) -> MultilabelData:
    """The data set of the matrices, without columns that are ignored or only identify the row.

    Parameters
    ----------
    features : list of (name, encoder)
        One for each column of X.
    identifier_rows : int or None
        A nominal column is an identifier where all of at least so many rows have different values (declared ones: at
        least DECLARED_IDENTIFIER_ROWS). None: where a schema names the features, there are no identifiers among them.
    """
    kept = []
    for column, (name, encoder) in enumerate(features):
        if isinstance(encoder, Ignored):
            continue
        # Rows without labels are to be predicted: there a feature of the model may have another value in every row.
        if label_names and identifier_rows and identifies(encoder, X, column, identifier_rows):
            what = f"{source.where}: column {name!r} has another value in every row and was dropped as an identifier."
            warnings.warn(what, UserWarning, stacklevel=2)
        else:
            kept.append(column)
    if len(kept) < len(features):
        X = X[:, kept]
    features = [features[column] for column in kept]
    texts = {name: encoder.values for name, encoder in features if isinstance(encoder, Texts)}
    words = {name: encoder.values for name, encoder in features if isinstance(encoder, Nominal)}
    categories = {name: values for name, values in words.items() if name not in texts}
    names, dates = tuple(name for name, _ in features), tuple(n for n, own in features if isinstance(own, Dates))
    about: dict[str, Any] = {"texts": texts, "dates": dates}
    return MultilabelData(X, Y, names, tuple(label_names), source.stem, categories, **about)


def identifies(encoder, X, column, identifier_rows) -> bool:
    """Whether the column is nominal and has another value in every row, of enough rows."""
    n_rows = X.shape[0]
    if not isinstance(encoder, Nominal) or isinstance(encoder, Texts):
        return False
    if len(encoder.values) < n_rows or n_rows < identifier_rows:
        return False
    if encoder.found:
        return True
    codes = X[:, [column]].toarray() if sparse.issparse(X) else X[:, column]
    return n_rows >= DECLARED_IDENTIFIER_ROWS and len(np.unique(codes[~np.isnan(codes)])) == n_rows


def _floats(cells):
    """The numbers of cells that are all plain ones, else None; float() alone would take 1_000 and other scripts."""
    joined = "".join(cells)
    if not joined.isascii() or "_" in joined:
        return None
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def _listed(values):
    more = ", ..." if len(values) > 5 else ""
    return ", ".join(shown(value).strip("'") for value in values[:5]) + more


def _refuse(wrong, cells, must_be):
    """Raise a BadCellError for the first cell that is wrong."""
    if wrong.any():
        position = int(np.argmax(wrong))
        raise BadCellError(position, f"must be {must_be}; found {shown(cells[position].strip())}.")


# Numbers and codes as text


def check_names(data: MultilabelData, where: Any) -> None:
    """Raise a DataError for what no table can hold: a name used twice, an infinite value, a code without a value."""
    names = (*data.feature_names, *data.kept, *data.label_names)
    if len(set(names)) < len(names):
        raise DataError(f"{where}: two columns are called {shown(commonest(names))}; rename one before writing.")
    check_finite(data, where)
    for column, name in enumerate(data.feature_names):
        words = data.words(name)
        if words is None:
            continue
        values = data.X[:, [column]]
        codes = values.data if sparse.issparse(values) else values
        codes, n_values = codes[~np.isnan(codes)], len(words)
        if ((codes < 0) | (codes >= n_values) | (codes != np.floor(codes))).any():
            raise DataError(f"{where}: feature {shown(name)} must be coded 0 to {n_values - 1}; X holds another code.")


def check_finite(data: MultilabelData, where: Any) -> None:
    """Raise a DataError where X holds an infinite value."""
    values = data.X.data if sparse.issparse(data.X) else data.X
    if np.isinf(values).any():
        raise DataError(f"{where}: X holds an infinite value, which no reader takes; replace it before writing.")


def number_texts(values: np.ndarray, missing: str) -> list[str]:
    """The shortest texts that give back the same numbers bit for bit."""
    return [missing if value != value else repr(value).removesuffix(".0") for value in values.tolist()]


def value_texts(
    values: np.ndarray,
    names: Sequence[str],
    words: Mapping[str, Sequence[str]],
    missing: str,
    dates: Sequence[str] = (),
) -> list[str]:
    """Texts of one row's values: numbers, for the names in `words` the word of that index, for `dates` a date."""
    texts = number_texts(values, missing)
    if words or dates:
        for place, name in enumerate(names):
            if name in words and texts[place] != missing:
                texts[place] = words[name][int(values[place])]
            elif name in dates and texts[place] != missing:
                texts[place] = date_text(values[place])
    return texts


def refuse_what_only_tables_hold(data: MultilabelData, where: Any) -> None:
    """Raise a DataError where a data set holds what ARFF and LIBSVM files don't."""
    held = {
        "text": bool(data.texts),
        "dates": bool(data.dates),
        "unknown labels": bool((data.Y == UNKNOWN).any()),
    }
    for what in (name for name, is_held in held.items() if is_held):
        raise DataError(f"{where}: {what} can't be written in this format; use CSV, JSON lines or Parquet.")
