"""CSV and Parquet files: tables whose label columns the caller names. pyarrow is imported only for Parquet."""

import ast
import csv
import importlib
import io
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import SEPARATORS, UNKNOWN, plain_separator
from mlrh.data._columns import (
    HOW,
    BadCellError,
    Dates,
    LabelChoice,
    Labels,
    Nominal,
    Numbers,
    Texts,
    check_names,
    commonest,
    is_number,
    number,
    number_texts,
    value_texts,
)
from mlrh.data._kinds import Plan, data_set, in_words, of_words
from mlrh.data._pages import DELTA_BYTE_ARRAY, pages_of
from mlrh.data._sources import Source, shown, writing
from mlrh.data.containers import DAY, FIRST_DAYS, LAST_DAYS, DataError, MultilabelData, Schema, listed

DELIMITERS = ",;\t|"
SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?[ \t]*(?=[\r\n])', re.IGNORECASE)  # Excel's own first line
CELL = 100  # bytes that a cell takes while it is read: a string and its place in two lists, a float in two arrays
LONGEST_CELL = 131072  # characters: what Python's csv module reads unless a program raises its limit
ARROW_CELL = 48  # bytes that a cell of a Parquet file takes: as Arrow has it, at most 16, as a float, and in X
ARROW_PAGE = 4096  # bytes for a page itself, so that pages without values come to an end too
SAMPLED = 20  # records that decide about the delimiter
REPEAT_SAMPLE = 1000  # numbers of a column by which it is found out whether they repeat; or up to twice as many
CERTAINLY_MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})  # in lower case; as in pandas
MISSING = CERTAINLY_MISSING | {"?", "-"}  # a dash may have meant a zero, so these are told
# Numbers as people write them, which could be read in two ways: 1,5E-05; 1.234,5; 1 234; 10%; $5.
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
GROUPED = r"[0-9]{1,3}(?:[., '\u00a0\u202f][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+"
DRESSED = re.compile(rf"[$€£¥]?\s?[+-]?\s?[$€£¥]?\s?(?:{GROUPED})(?:[eE][+-]?[0-9]+)?\s?[%$€£¥]?")
BACKSLASH = "\\"
# A list of names as text, as pandas writes one to CSV (['a', 'b']) or as JSON; and what is meant as one.
QUOTED = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
NAMES_TEXT = re.compile(rf"\[\s*+(?:{QUOTED}(?:\s*+,\s*+{QUOTED})*+\s*+)?+\]", re.DOTALL)
LIST_TEXT = re.compile(r"\s*+\[\s*+(?:['\"].*|-?[0-9]++\s*+,[-0-9,\s]*)?\]\s*", re.DOTALL)
# The start of a file by which other formats are told; in quotes it is none.
OTHER_START = re.compile(r"\ufeff|[@%#0-9]|PAR1|BZh|PK|7z")
NEEDS_QUOTES = re.compile(r'[,;\t|"\r\n]|^\s|\s$|^$')


def read_csv(source: Source, choice: LabelChoice | None, schema: Schema | None = None, **options) -> MultilabelData:
    """The data set of a CSV file with a header; the delimiter is a comma, semicolon, tab or |, whichever fits.

    With a schema it has the schema's features only, as it says. options are those of `Plan`.
    """
    choice, plan = required(choice, source), Plan(schema, **options)
    names, rows, lines = _records(source, plan.wanted(choice))
    table = _CsvTable(names, rows, lines, source)
    del rows  # a pointer per cell
    data = data_set(table, choice, plan)
    # Words that turned out to be text or an identifier are told as such, and may well be numbers.
    features = set(data.feature_names).difference(data.texts)
    told = [what for name, what in table.told.items() if name in features]
    if told:
        warnings.warn(f"{source.where}: {listed(told, 3)}.", UserWarning, stacklevel=2)
    return data


class _CsvTable:
    """The columns of a CSV file, see `Table`; `told` are sentences on columns that mix numbers and words, by name."""

    def __init__(self, names, rows, lines, source):
        self.names, self.all_names, self.n_rows, self.source = names, names, len(rows), source
        self._columns, self._lines = list(zip(*rows, strict=True)), lines
        self.told: dict[str, str] = {}

    def labels(self, column, unknown):
        return self._encoded(column, lambda cells: label_cells(cells, unknown)[0])

    def sets(self, column, choice):
        return self._encoded(column, lambda cells: sets_in(cells, choice))

    def feature(self, column, kind, model):
        categories = None if model is None else model.categories.get(self.names[column])
        values, encoder = self._encoded(column, _encode_as(kind, categories))
        # Of a model's own nominal features the values are known; dates and texts hold numbers as they like.
        is_plain = isinstance(encoder, Numbers) or (type(encoder) is Nominal and kind is None)
        mixed = _mixed(self._columns[column], values, encoder) if is_plain else None
        if mixed is not None:
            position, what = mixed
            cell, line = shown(self._columns[column][position].strip()), self._lines[position]
            name = self.names[column]
            self.told[name] = f"column {shown(name)} {what} (line {line}: {cell})"
        return values, encoder

    def kept(self, column):
        return np.array([*self._columns[column], None], object)[:-1]  # the None keeps NumPy from making it text

    def _encoded(self, column, encode):
        try:
            return encode(self._columns[column])
        except BadCellError as error:
            what = f"column {shown(self.names[column])} {error}"
            raise self.source.error(what, self._lines[error.position]) from error


def _mixed(cells, values, encoder):
    """Where a column mixes numbers and words: the position of the first cell that isn't like most, and what it is."""
    if isinstance(encoder, Numbers) and not np.isnan(values).all():
        missing = np.flatnonzero(np.isnan(values)).tolist()
        others = [place for place in missing if cells[place].strip().lower() not in CERTAINLY_MISSING]
        return (others[0], f"holds numbers, and words in {len(others)} rows that count as missing") if others else None
    if isinstance(encoder, Nominal) and encoder.found and any(map(is_number, encoder.values)):
        others = [place for place, cell in enumerate(cells) if is_number(cell)]
        return others[0], f"holds words, and numbers in {len(others)} rows that count as words"
    return None


# Label sets in one column


def sets_in(cells: Sequence[str], choice: LabelChoice) -> tuple[list | None, str | None]:
    """The label sets that cells list and their separator: the one of the choice, or the one that is plain.

    Where a cell is a list as Python or JSON writes it, all are to be, and the separator is "", as of lists. A cell that
    is none is a BadCellError then.
    """
    if any(map(LIST_TEXT.fullmatch, cells)):
        return _sets_in_lists(cells, choice)
    separator = choice.separator
    if not separator:
        separator = plain_separator(cells) or (None if separator is None else SEPARATORS[0])
    if separator is None:
        return None, None
    sets = {cell: None if cell.strip() == choice.unknown else labels_in(cell, separator) for cell in set(cells)}
    return [sets[cell] for cell in cells], separator


def _sets_in_lists(cells, choice):
    """The label sets of cells that are lists as text, and "" as their separator; a BadCellError where one is none."""
    lists = {cell: _list_in(cell) for cell in set(cells)}
    is_unknown = [cell.strip() == choice.unknown for cell in cells]
    for place, cell in enumerate(cells):
        if cell.strip() and lists[cell] is None and not is_unknown[place]:
            what = "holds lists as text, so that each must be a list of names such as ['a', 'b']"
            raise BadCellError(place, f"{what}; found {shown(cell.strip())}. Write a;b in place of lists.")
    sets, separator = listed_sets([lists[cell] for cell in cells], choice)
    return [None if unknown else own for own, unknown in zip(sets, is_unknown, strict=True)], separator


def _list_in(cell):
    """The names of a list as Python or JSON writes it; None where the cell is something else."""
    if not NAMES_TEXT.fullmatch(cell.strip()):
        return None
    with suppress(ValueError):
        return json.loads(cell)
    with suppress(ValueError, SyntaxError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a backslash before a letter that needs none
        return ast.literal_eval(cell.strip())
    return None


def listed_sets(lists: Sequence, choice: LabelChoice) -> tuple[list, str]:
    """The label sets of lists of names, and "" as their separator; a BadCellError where one is something else.

    Of a list that is None nothing is known if the choice says so, as of an empty text. Blanks around a name don't
    count, and a name may come twice, as in a text.
    """
    absent = None if choice.unknown == "" else ()
    return [absent if own is None else _listed_set(own, place) for place, own in enumerate(lists)], ""


def _listed_set(labels, position):
    if not isinstance(labels, list) or not all(isinstance(label, str) and label.strip() for label in labels):
        raise BadCellError(position, "must be a list of names of labels.")
    return tuple(label.strip() for label in labels)


def labels_in(cell: str, separator: str) -> tuple[str, ...]:
    r"""The labels that a cell lists; blanks around them don't count.

    As in the predictions of `mlrh predict`, a separator or backslash within a name has a backslash before it, and a
    name that a spreadsheet would run a single quote.

    >>> labels_in(r"calm; rock\; roll;'=1+1;", ";")
    ('calm', 'rock; roll', '=1+1')
    """
    if BACKSLASH not in cell:
        pieces = cell.split(separator)
    else:
        pieces = [""]
        token = re.compile(rf"\\(\\|{re.escape(separator)})|({re.escape(separator)})|(.)", re.DOTALL)
        for escaped, is_end, other in token.findall(cell):
            if is_end:
                pieces.append("")
            else:
                pieces[-1] += escaped or other
    return tuple(unguarded(piece.strip()) for piece in pieces if piece.strip())


def csv_text(data: MultilabelData, where: Any) -> Iterator[str]:
    """The lines of a CSV file: features, what is kept, then labels; an unknown label is an empty cell."""
    check_names(data, where)
    names = [*data.feature_names, *data.kept, *data.label_names]
    _check_holdable(data, names, where)
    first, *others = map(_csv_cell, names)
    yield ",".join([f'"{first}"' if OTHER_START.match(first) else first, *others]) + "\n"
    words = {name: list(map(_csv_cell, values)) for name, values in {**data.categories, **data.texts}.items()}
    for row in range(len(data.Y)):
        values = data.X[[row]].toarray().ravel() if sparse.issparse(data.X) else data.X[row]
        cells = value_texts(values, data.feature_names, words, missing="", dates=data.dates)
        cells += ["" if own[row] is None else _csv_cell(str(own[row])) for own in data.kept.values()]
        cells += ["" if label == UNKNOWN else str(label) for label in data.Y[row].tolist()]
        # A line of one empty cell would be blank, and blank lines are skipped.
        yield (",".join(cells) or '""') + "\n"


def _check_holdable(data, names, where):
    """Raise a DataError for what `read_csv` would refuse, or take for something else."""
    values = [value for own in (*data.categories.values(), *data.texts.values()) for value in own]
    values += [str(value) for own in data.kept.values() for value in own if value not in (None, "")]
    if not names or not all(name.strip() for name in names):
        raise DataError(f"{where}: a CSV file needs columns and a name for each; rename them before writing.")
    if not len(data.Y):
        raise DataError(f"{where}: a CSV file needs at least one row.")
    if not all(value.strip() for value in values):
        raise DataError(f"{where}: a CSV file can't hold an empty nominal value; rename it or use ARFF or Parquet.")
    if any("\0" in text for text in (*names, *values)):
        raise DataError(f"{where}: a CSV file can't hold a name or value with a NUL character; rename it.")
    if max(map(len, (*names, *values))) > LONGEST_CELL:
        most = LONGEST_CELL
        raise DataError(f"{where}: a cell of a CSV file has at most {most} characters; shorten the names and values.")
    if all(map(is_number, names)) and not all(name.strip().isdigit() for name in names):
        raise DataError(f"{where}: one column of a CSV file at least must have a name that is no number; rename one.")
    if len(names) == 1 and SEPARATOR_LINE.match(f"{names[0]}\n"):
        raise DataError(
            f"{where}: {shown(names[0])} is no name in a CSV file, where it tells the separator; rename it."
        )
    for column in data.nominal:
        _check_words(data, column, where)


def _check_words(data, column, where):
    """Raise a DataError where `read_csv` would take the words of a nominal feature for faulty numbers."""
    name = data.feature_names[column]
    values = data.X[:, [column]].toarray().ravel() if sparse.issparse(data.X) else data.X[:, column]
    own = data.categories[name]
    try:
        _feature_cells(["" if value != value else own[int(value)] for value in values.tolist()])
    except BadCellError as error:
        what = f"row {error.position + 1} of feature {shown(name)} {error}"
        raise DataError(f"{where}: {what.removesuffix('.')}, as read from CSV; use ARFF or Parquet.") from error


def required(choice, source):
    """The choice of labels, or a DataError where there is none."""
    if choice is None:
        raise source.error(f"nothing says which columns are labels; {HOW}.")
    return choice


def _records(source, wanted):
    """Names of the columns, rows of cells, and the line on which each row begins.

    `wanted` are the names of the columns that will be looked at, or None for all.
    """
    text = source.text()
    n_cells = max(map(text.count, DELIMITERS)) + max(map(text.count, "\r\n")) + 1
    source.afford(n_cells * CELL, f"{n_cells} cells")
    said = SEPARATOR_LINE.match(text)
    # What remains of the line that says the delimiter is blank, so that lines are counted as in the file.
    text = text[said.end() :] if said else text
    reader = _reader(text, said[1] if said else _delimiter(text))
    names, rows, lines = None, [], []
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise source.error(f"can't be split into cells ({error}); is a quote not closed?", line) from error
        if record is None:
            break
        if names is None and record:
            names = _header(record, wanted, source, line)
        elif names is not None and record:
            if len(record) != len(names):
                what = f"found {len(record)} cells where the header names {len(names)} columns; is it cut?"
                raise source.error(what, line)
            rows.append(record)
            lines.append(line)
    if not rows:
        raise source.error("has no rows; a header with the names of the columns and at least one row are needed.")
    return names, rows, lines


def _reader(text, delimiter):
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)


def _delimiter(text):
    """The delimiter that splits the first records into the same number of cells, more than one if possible."""

    def fit(delimiter):
        try:
            records = [record for record in islice(_reader(text, delimiter), SAMPLED) if record]
        except csv.Error:
            return (False, 0, 0)
        counts = [len(record) for record in records] or [0]
        # A quoted cell that holds the wrong delimiter leaves its quotes in two pieces.
        quotes = sum('"' in cell for record in records for cell in record)
        return (counts[0] > 1 and len(set(counts)) == 1, -quotes, counts[0])

    return max(DELIMITERS, key=fit)


def _header(names, wanted, source, line):
    refuse_unnamed(names, wanted, source, line)
    if not all(map(is_number, names)) or (wanted and not wanted.isdisjoint(names)):
        return names
    if not all(name.strip().isdigit() for name in names):
        raise source.error("the first line must hold the names of the columns; found numbers only.", line)
    what = "the first line holds whole numbers only, taken as names of columns; if it is a row, put names above it."
    warnings.warn(f"{source.where}: {what}", UserWarning, stacklevel=2)
    return names


def refuse_unnamed(names, wanted, source, line=None):
    """Raise a DataError where a column has no name or two have the same; of `wanted` columns only, unless None."""
    if wanted is not None:
        names = [name for name in names if name in wanted]
    if not all(name.strip() for name in names):
        place = next(place for place, name in enumerate(names, 1) if not name.strip())
        raise source.error(f"column {place} has no name; name it or leave it out (pandas: index=False).", line)
    if len(set(names)) < len(names):
        raise source.error(f"two columns are called {shown(commonest(names))}; rename one.", line)


def _present(cell):
    """The cell itself, or None where it is empty."""
    return cell if cell.strip() else None


def label_cells(cells, unknown=None):
    """0 and 1 of a label column, UNKNOWN for cells that equal a text, and its encoder."""
    encoder = Labels(_present, unknown=unknown)
    return encoder.encode(cells), encoder


def _encode_as(kind, categories):
    """The function that gives a column's values and encoder: as a kind says, or by the cells where it is None."""
    if kind == "nominal" and categories is not None:
        return known_cells(categories)
    return {None: _feature_cells, "number": _number_cells, "nominal": _nominal_cells}.get(
        kind, partial(_word_cells, kind)
    )


def _word_cells(kind, cells):
    """Values and encoder of a column that must be text or dates."""
    encoder = Texts(_present) if kind == "text" else Dates(_if_not_missing)
    return encoder.encode(cells), encoder


def _nominal_cells(cells):
    nominal = Nominal(_present)
    return nominal.encode(cells), nominal


def known_cells(categories: Sequence[str]) -> Callable:
    """The function that gives codes and encoder of cells whose values are, or should be, the categories.

    A number may be spelled otherwise than in the categories. A word for a missing value is one unless it is a category.
    """
    spelled = {number(value): value for value in categories if is_number(value)}
    known = set(categories)

    def plain(cell):
        if cell in known:
            return cell
        if _is_missing(cell):
            return None
        return spelled.get(number(cell), cell) if is_number(cell) else cell

    def encode(cells):
        nominal = Nominal(plain)
        return nominal.encode(cells), nominal

    return encode


def _number_cells(cells):
    """Values and encoder of a column that must hold numbers."""
    numbers = Numbers(_if_not_missing)
    try:
        return numbers.encode(cells), numbers
    except BadCellError:
        _refuse_dressed_numbers(cells)
        raise


def _feature_cells(cells):
    """Values and encoder of a column: numbers or dates if all cells are, nominal if most aren't, else it is a typo."""
    numbers = Numbers(_if_not_missing)
    try:
        return numbers.encode(cells), numbers
    except BadCellError:
        present = [cell for cell in cells if not _is_missing(cell)]
        if 2 * sum(map(is_number, present)) > len(present):
            raise
    dates = Dates(_if_not_missing)
    with suppress(BadCellError):
        return dates.encode(cells), dates
    _refuse_dressed_numbers(cells)
    return _nominal_cells(cells)


def _if_not_missing(cell):
    return None if _is_missing(cell) else cell


def _is_missing(cell):
    return cell.strip().lower() in MISSING


def _refuse_dressed_numbers(cells):
    """Raise a BadCellError where most cells are numbers, but for commas, signs of percent or money and the like."""
    texts = {position: cell.strip() for position, cell in enumerate(cells) if not _is_missing(cell)}
    others = {position: text for position, text in texts.items() if not is_number(text)}
    dressed = [position for position, text in others.items() if DRESSED.fullmatch(text)]
    if not dressed or 2 * (len(others) - len(dressed)) >= len(texts):
        return
    found = texts[dressed[0]]
    has_comma = DECIMAL_COMMA.fullmatch(found)
    rule = "must have decimal points, not commas" if has_comma else "must be plain numbers such as 1234.5"
    raise BadCellError(dressed[0], f"{rule}; found {shown(found)}.")


def csv_line(cells: Iterable) -> str:
    """A line of a CSV file; cells with a comma, a quote or an end of a line in them, CR too, stand in quotes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)  # quotes what holds a character of the terminator
    return text.getvalue().removesuffix("\r\n") + "\n"


# Cells that a spreadsheet takes for formulas, and runs

FORMULA = re.compile(r"'*[=+\-@\t\r]")


def guarded(text: str) -> str:
    """The text with a single quote before what a spreadsheet would run (= + - @, a tab or CR first); -1.5 stays.

    One more quote comes before a text that looks like a guarded one, so that `unguarded` gives every text back.
    """
    is_signed_number = text[:1] in ("+", "-") and is_number(text)
    return f"'{text}" if FORMULA.match(text) and not is_signed_number else text


def unguarded(text: str) -> str:
    """The text that `guarded` was given."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def _csv_cell(text):
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


# Parquet


def read_parquet(source: Source, choice: LabelChoice | None, schema: Schema | None = None, **options) -> MultilabelData:
    """The data set of a Parquet file; dictionaries are nominal, booleans 0 and 1, days and moments dates.

    Strings are what they look like, as in CSV. With a schema it has the schema's features only; any type is allowed
    elsewhere. options are those of `Plan`.
    """
    choice, plan = required(choice, source), Plan(schema, **options)
    arrow, declared, all_names = _table(source, choice, plan)
    table = _ArrowTable(arrow, declared, all_names, source)
    if not table.n_rows:
        raise source.error("has no rows.")
    return data_set(table, choice, plan)


class _ArrowTable:
    """The columns of a Parquet file, see `Table`; `declared` are the names of those that are dictionaries there."""

    def __init__(self, table, declared, all_names, source):
        self.names, self.all_names, self.n_rows, self.source = table.column_names, all_names, table.num_rows, source
        self._table, self._declared = table, declared

    def labels(self, column, unknown):
        return _arrow_labels(self._table.column(column), self.names[column], unknown, self.source)

    def sets(self, column, choice):
        values, name = self._table.column(column), shown(self.names[column])
        kind = _value_type(values.type)
        try:
            if _is_list(values.type):
                return listed_sets(values.to_pylist(), choice)
            if _pyarrow("pyarrow.types").is_null(kind):  # no row has a value
                return sets_in([""] * self.n_rows, choice)
            if _is_string(kind):
                return sets_in(_arrow_texts(values), choice)
        except BadCellError as error:
            raise self.source.error(f"row {error.position + 1}, column {name} {error}") from error
        if choice.separator is None:
            return None, None
        rule = "must hold texts or lists, since a separator of labels is given"
        raise self.source.error(f"column {name} {rule}; its type is {kind}.")

    def feature(self, column, kind, model):
        values, name = self._table.column(column), self.names[column]
        # What a model has otherwise than the file is settled, or refused, when the data are made to conform.
        is_settled = model is not None and kind in ("number", "nominal")
        return _arrow_feature(values, name, None if is_settled else kind, self)

    def is_declared(self, name):
        """Whether the file has a dictionary of the column's values."""
        return name in self._declared

    def kept(self, column):
        plain = map(_kept_value, self._table.column(column).to_pylist())
        return np.array([*(None if own != own else own for own in plain), None], object)[:-1]


def _kept_value(value):
    """A value of a Parquet file as it is kept: a list or a struct as JSON, dates and the like as text."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value if isinstance(value, str | int | float | None) else str(value)


def write_parquet(data: MultilabelData, path: Path) -> None:
    """Write a Parquet file: float64 features, nominal ones as dictionaries with all their values, int8 labels.

    Texts are strings, dates moments, and unknown labels null. Numbers that rarely repeat are stored one by one: as a
    dictionary, which Arrow makes of any column, they take a fifth more room and half as long again to decode.
    """
    check_names(data, path)
    if not all(name.strip() for name in (*data.feature_names, *data.kept, *data.label_names)) or not len(data.Y):
        raise DataError(
            f"{path}: a Parquet file needs a name for each column, and a row; rename columns before writing."
        )
    pyarrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    X = data.X.tocsc() if sparse.issparse(data.X) else data.X
    columns, repeating = [], [*data.kept, *data.label_names]
    try:
        for column, name in enumerate(data.feature_names):
            values = X[:, [column]].toarray().ravel() if sparse.issparse(X) else X[:, column]
            columns.append(_arrow_column(values, name, data, pyarrow))
            repeating += [name] if data.words(name) is not None or _repeats(values) else []
        columns += [kept_as_arrow(values, pyarrow) for values in data.kept.values()]
        columns += [pyarrow.array(labels, mask=labels == UNKNOWN) for labels in data.Y.T]
        table = pyarrow.table(columns, names=[*data.feature_names, *data.kept, *data.label_names])
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: {shown(error.object)} can't be written as UTF-8; rename it.") from error
    with writing(path) as (file,):
        parquet.write_table(table, file, write_page_checksum=True, use_dictionary=repeating)


def _repeats(values):
    """Whether a column has at most half as many different numbers as rows, as far as a sample tells."""
    sample = values[:: max(1, len(values) // REPEAT_SAMPLE)]
    return 2 * len(np.unique(sample)) <= len(sample)


def _table(source, choice, plan):
    """The table of the columns that are looked at, strings as dictionaries; which the file has so; names of all."""
    pyarrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    options = {"page_checksum_verification": True}
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(source.content), **options)
        refuse_unnamed(file.schema_arrow.names, plan.wanted(choice), source)
        columns = _columns_to_read(file.schema_arrow, choice, plan, source)
        _afford_table(file.metadata, set(columns), source)
        # A value that many rows share is then one string, as in the file.
        strings = [name for name, kind in columns.items() if _is_string(kind)]
        if strings:
            reader = pyarrow.BufferReader(source.content)
            file = parquet.ParquetFile(reader, metadata=file.metadata, read_dictionary=strings, **options)
        # In Arrow's threads, one of the first reads of a process aborted it as it ended, with pyarrow 16 to 19.
        table = file.read(columns=list(columns), use_threads=False).select(list(columns))
        table.validate(full=True)
    except DataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:200].rstrip(". ")
        raise source.error(f"is not a readable Parquet file ({reason}); copy or export it again.") from error
    return table, columns.keys() - set(strings), file.schema_arrow.names


def _columns_to_read(schema, choice, plan, source):
    """Names and types of the columns that are looked at; a DataError where one can't be read."""
    types, kinds = _pyarrow("pyarrow.types"), plan.kinds_of(schema.names)
    ignored = {name for name, kind in kinds.items() if kind == "ignored" and name not in choice.names}
    if plan.schema is None:
        ignored |= _index_columns(schema, choice, plan, source)
    left_out = set() if plan.keep_all else ignored
    columns = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if name not in left_out}
    for name, kind in columns.items():
        value, is_set = _value_type(kind), _is_list(kind) and choice.names == (name,)
        is_date = _is_date(value, types) and name not in choice.names
        if is_set or is_date or types.is_null(value) or _is_numeric(value, types) or _is_string(value):
            continue
        if name not in ignored and kinds[name] != "id":
            what = f"column {shown(name)} has the type {kind}; only numbers, booleans, strings and dates are read"
            raise source.error(f"{what}{'' if plan.schema or name in choice.names else ', unless it is ignored'}.")
    return columns


def _value_type(kind):
    return kind.value_type if _pyarrow("pyarrow.types").is_dictionary(kind) else kind


def _is_list(kind):
    types = _pyarrow("pyarrow.types")
    is_list = types.is_list(kind) or types.is_large_list(kind)
    return is_list and _is_string(_value_type(kind.value_type))


def _is_date(kind, types):
    return types.is_date(kind) or types.is_timestamp(kind)


def _afford_table(metadata, columns, source):
    """Raise a DataError where the columns take too much memory: by the file's metadata, and by its pages."""
    n_rows = metadata.num_rows
    source.afford(n_rows * (len(columns) * ARROW_CELL + CELL), f"{n_rows} rows of {len(columns)} columns")
    n_bytes = n_values = 0
    for n_pages, page in enumerate(pages_of(source.content, columns), 1):
        if page.encoding == DELTA_BYTE_ARRAY:
            what = "a column has the encoding DELTA_BYTE_ARRAY, in which a few bytes can stand for any number of long"
            raise source.error(f"{what} strings; export it with another.")
        n_bytes, n_values = n_bytes + page.unpacked, n_values + page.n_values
        what = f"{n_pages} pages or more, with {n_values} values that unpack to {n_bytes} bytes,"
        source.afford(n_bytes + n_values * ARROW_CELL + n_pages * ARROW_PAGE, what)


def _index_columns(schema, choice, plan, source):
    """Names of the columns that hold the index of a pandas table, with a warning: they say where a row was."""
    try:
        listed = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        index = {name for name in listed if isinstance(name, str)}  # a dict in its place describes a plain count
    except (ValueError, TypeError, LookupError, RecursionError):
        return set()
    names = [name for name in schema.names if name in index and name not in (*choice.names, *plan.kinds)]
    if names:
        what = f"column {', '.join(map(shown, names))} is the index of a pandas table and was dropped"
        warnings.warn(f"{source.where}: {what}; reset_index() makes it a feature.", UserWarning, stacklevel=2)
    return set(names)


def _arrow_feature(column, name, kind, table):
    """Values and encoder of an Arrow column, of a kind or as its type is."""
    types, value = _pyarrow("pyarrow.types"), _value_type(column.type)
    if kind in (None, "number") and _is_numeric(value, types):  # as most columns of large files
        return _arrow_numbers(column, value, name, table.source), Numbers(str)
    if _is_string(value):
        codes, nominal = _arrow_nominal(column, declared=table.is_declared(name) and kind is None)
        if kind == "number":
            raise table.source.error(f"column {shown(name)} must hold numbers; its type is {column.type}.")
        try:
            return of_words(codes, nominal, kind or "nominal")
        except ValueError as error:
            raise table.source.error(f"column {shown(name)} must hold dates such as 2024-03-31; {error}.") from error
    if _is_date(value, types):
        if kind not in (None, "date"):
            raise table.source.error(f"column {shown(name)} must not hold dates; its type is {column.type}.")
        return _arrow_days(column.cast(value), name, table.source), Dates(str)  # no dictionary any more
    if kind not in (None, "number") and not types.is_null(value):
        return _arrow_words(column, name, kind, table)
    encoder = {"text": Texts(str), "date": Dates(str), "nominal": Nominal(str)}.get(kind, Numbers(str))
    return _arrow_numbers(column, value, name, table.source), encoder


def _arrow_words(column, name, kind, table):
    """Values and encoder of numbers that are to be words, such as postal codes."""
    if kind != "nominal":
        raise table.source.error(f"column {shown(name)} must be {in_words(kind)}; its type is {column.type}.")
    values, nominal = _arrow_numbers(column, _value_type(column.type), name, table.source), Nominal(_present)
    return nominal.encode(number_texts(values, "")), nominal


def _arrow_days(column, name, source):
    """Days since 1970 of dates and moments, NaN where missing."""
    pyarrow, types = _pyarrow("pyarrow"), _pyarrow("pyarrow.types")
    if types.is_date(column.type):
        days = column.cast(pyarrow.date32(), safe=False).cast(pyarrow.int32()).to_numpy().astype(np.float64)
    else:
        # By steps of its unit, which fit into the whole numbers that hold them; microseconds of a far year don't.
        steps = column.cast(pyarrow.int64()).to_numpy().astype(np.float64)
        days = steps / (DAY * {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[column.type.unit])
    if np.nanmin(days, initial=0.0) < FIRST_DAYS or np.nanmax(days, initial=0.0) > LAST_DAYS:
        raise source.error(f"column {shown(name)} must hold dates from the year 1 to 9999.")
    return days


def _arrow_texts(column):
    """The cells of a column of strings as text, missing ones empty."""
    codes, nominal = _arrow_nominal(column, declared=False)
    return ["" if code != code else nominal.values[int(code)] for code in codes.tolist()]


def _is_string(kind):
    types = _pyarrow("pyarrow.types")
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _arrow_numbers(column, kind, name, source):
    pyarrow, types = _pyarrow("pyarrow"), _pyarrow("pyarrow.types")
    if types.is_boolean(kind):
        column = column.cast(pyarrow.bool_()).cast(pyarrow.int8())
    if column.type != pyarrow.float64():
        column = column.cast(pyarrow.float64(), safe=False)
    values = np.asarray(column.to_numpy(), np.float64)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values))) + 1
        raise source.error(f"row {row}, column {shown(name)} must be finite; found {values[row - 1]}.")
    return values


def _is_numeric(kind, types):
    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _arrow_nominal(column, declared):
    """Codes of a column of dictionaries: their own where it is declared with distinct values, else as they appear."""
    whole = column.unify_dictionaries().combine_chunks()
    codes = whole.indices.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    values = whole.dictionary.to_pylist()
    if declared and None not in values and len(set(values)) == len(values):
        return codes, Nominal(lambda text: text, values)
    present = ~np.isnan(codes)
    used, first = np.unique(codes[present].astype(np.int64), return_index=True)
    order = used[np.argsort(first)]
    nominal = Nominal(lambda text: text)
    new = np.full(len(values) + 1, np.nan)  # the last one is for missing cells
    new[order] = nominal.encode([values[code] for code in order.tolist()])
    return new[np.where(present, codes, len(values)).astype(np.int64)], nominal


def _arrow_labels(column, name, unknown, source):
    """0 and 1 of a label column, UNKNOWN for cells that equal a text."""
    types, kind = _pyarrow("pyarrow.types"), _value_type(column.type)
    if _is_list(kind):
        raise source.error(f"column {shown(name)} must be 0 or 1; its type is {kind}.")
    if _is_numeric(kind, types) or types.is_null(kind):  # null is the type of a column without any value
        values = _arrow_numbers(column, kind, name, source)
        if ((values == 0) | (values == 1)).all():  # as in most files: spares a text for every cell
            return values.astype(np.int8)
        cells = ["" if value != value else str(value) for value in values.tolist()]
        unknown = str(number(unknown)) if unknown is not None and is_number(unknown) else unknown
    else:
        cells = _arrow_texts(column)
    try:
        return label_cells(cells, unknown)[0]
    except BadCellError as error:
        raise source.error(f"row {error.position + 1}, column {shown(name)} {error}") from error


def _arrow_column(values, name, data, pyarrow):
    """The column of a feature: numbers, dictionaries of nominal values, strings of texts, moments of dates."""
    missing = np.isnan(values)
    if name in data.dates:
        moments = np.where(missing, 0, np.round(values * (DAY * 1e6))).astype(np.int64)
        return pyarrow.array(moments, pyarrow.timestamp("us"), mask=missing)
    words = data.words(name)
    if words is None:
        return pyarrow.array(values)
    codes = pyarrow.array(np.where(missing, 0, values).astype(np.int32), mask=missing)
    coded = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(list(words), pyarrow.string()))
    return coded.dictionary_decode() if name in data.texts else coded


def kept_as_arrow(values: np.ndarray, pyarrow: Any) -> Any:
    """The column of what is kept, as strings unless all of it is of one type that Arrow has."""
    present = {type(value) for value in values if value is not None}
    if len(present) == 1 and str not in present:
        with suppress(OverflowError):  # of integers beyond 64 bits
            return pyarrow.array(list(values))
    return pyarrow.array([None if value is None else str(value) for value in values], pyarrow.string())


def _pyarrow(module):
    loaded = sys.modules.get(module)
    if loaded is not None:  # asked several times for each column: import_module takes ten times as long to find it
        return loaded
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError("Parquet files need pyarrow, which is not installed; run: pip install pyarrow") from error
