"""CSV files, and what every table whose label columns the caller names has in common. Knows nothing of Parquet."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse

from mlrh.data.columns import BadCellError, Labels, Nominal, Numbers, described, number
from mlrh.data.containers import DataError, MultilabelData
from mlrh.data.labels import HOW, LabelChoice, label_columns
from mlrh.data.sources import Source, shown
from mlrh.data.texts import check_names, value_texts

DELIMITERS = ",;\t"
SAMPLED = 20  # records that decide about the delimiter
IDENTIFIER_ROWS = 21  # fewer rows may have different values by chance
DECIMAL_COMMA = re.compile(r"\s*[+-]?[0-9]+,[0-9]+\s*")
NEEDS_QUOTES = re.compile(r'[,;\t"\r\n]|^\s|\s$|^$')


def read_csv(source: Source, choice: LabelChoice | None) -> MultilabelData:
    """The data set of a CSV file with a header; the delimiter is a comma, a semicolon or a tab, whichever fits."""
    choice = required(choice, source)
    names, rows, lines = _records(source)
    labels = label_columns(choice, names, source)
    columns = list(zip(*rows, strict=True))
    Y = np.empty((len(rows), len(labels)), np.int8)
    for place, (column, name) in enumerate(labels):
        Y[:, place], _ = _encoded(columns[column], label_cells, f"column {shown(name)}", lines, source)
    taken = {column for column, _ in labels}
    features = [column for column in range(len(names)) if column not in taken]
    X, encoders = np.empty((len(rows), len(features))), []
    for place, column in enumerate(features):
        where = f"column {shown(names[column])}"
        X[:, place], encoder = _encoded(columns[column], _feature_cells, where, lines, source)
        encoders.append((names[column], encoder))
    label_names = [name for _, name in labels]
    return described(X, Y, features=encoders, label_names=label_names, source=source, identifier_rows=IDENTIFIER_ROWS)


def csv_text(data: MultilabelData, where: Any) -> Iterator[str]:
    """The lines of a CSV file: features, then labels."""
    check_names(data, where)
    names = [*data.feature_names, *data.label_names]
    if not names or "" in names:
        raise DataError(f"{where}: a CSV file needs columns and a name for each; rename them before writing.")
    if any(not value.strip() for values in data.categories.values() for value in values):
        raise DataError(f"{where}: a CSV file can't hold an empty nominal value; rename it or use ARFF or Parquet.")
    if any("\0" in text for text in (*names, *(value for values in data.categories.values() for value in values))):
        raise DataError(f"{where}: a CSV file can't hold a name or value with a NUL character; rename it.")
    yield ",".join(map(_csv_cell, names)) + "\n"
    words = {name: list(map(_csv_cell, values)) for name, values in data.categories.items()}
    for row in range(len(data.Y)):
        values = data.X[[row]].toarray().ravel() if sparse.issparse(data.X) else data.X[row]
        cells = value_texts(values, data.feature_names, words, missing="") + list(map(str, data.Y[row].tolist()))
        # A line of one empty cell would be blank, and blank lines are skipped.
        yield (",".join(cells) or '""') + "\n"


def required(choice, source):
    """The choice of labels, or a DataError where there is none."""
    if choice is None:
        raise source.error(f"nothing says which columns are labels; {HOW}.")
    return choice


def _records(source):
    """Names of the columns, rows of cells, and the line on which each row begins."""
    text = source.text()
    reader = _reader(text, _delimiter(text))
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
            names = _header(record, source, line)
        elif names is not None and record:
            rows.append(_of_length(record, len(names), source, line))
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


def _header(names, source, line):
    refuse_unnamed(names, source, line)
    if _all_numbers(names) and not all(name.strip().isdigit() for name in names):
        raise source.error("the first line must hold the names of the columns; found numbers only.", line)
    return names


def refuse_unnamed(names, source, line=None):
    """Raise a DataError where a column has no name or two have the same."""
    if not all(name.strip() for name in names):
        place = next(place for place, name in enumerate(names, 1) if not name.strip())
        raise source.error(f"column {place} has no name; name it or leave it out (pandas: index=False).", line)
    if len(set(names)) < len(names):
        repeated = Counter(names).most_common(1)[0][0]
        raise source.error(f"two columns are called {shown(repeated)}; rename one.", line)


def _all_numbers(names):
    return all(_is_number(name) for name in names)


def _is_number(text):
    try:
        number(text)
    except ValueError:
        return False
    return True


def _of_length(record, n_columns, source, line):
    if len(record) != n_columns:
        what = f"found {len(record)} cells where the header names {n_columns} columns; is it cut?"
        raise source.error(what, line)
    return record


def _present(cell):
    """The cell itself, or None where it is empty."""
    return cell if cell.strip() else None


def _encoded(cells, encode, where, lines, source):
    try:
        return encode(cells)
    except BadCellError as error:
        raise source.error(f"{where} {error}", lines[error.position]) from error


def label_cells(cells):
    """0 and 1 of a label column, and its encoder."""
    encoder = Labels(_present)
    return encoder.encode(cells), encoder


def _feature_cells(cells):
    """Values and encoder of a column: numbers if all cells are, nominal if most aren't, else the fault is a typo."""
    numbers = Numbers(_present)
    try:
        return numbers.encode(cells), numbers
    except BadCellError:
        present = [cell for cell in cells if cell.strip()]
        if 2 * sum(map(_is_number, present)) > len(present):
            raise
    _refuse_decimal_commas(cells)
    nominal = Nominal(_present)
    return nominal.encode(cells), nominal


def _refuse_decimal_commas(cells):
    position = next((position for position, cell in enumerate(cells) if DECIMAL_COMMA.fullmatch(cell)), None)
    if position is not None and all(
        DECIMAL_COMMA.fullmatch(cell) or _is_number(cell) for cell in cells if cell.strip()
    ):
        raise BadCellError(position, f"must have decimal points, not commas; found {shown(cells[position].strip())}.")


def _csv_cell(text):
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text
