"""CSV and Parquet files: tables whose label columns the caller names. pyarrow is imported only for Parquet."""

import csv
import importlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from mlrh.data._columns import (
    HOW,
    BadCellError,
    Ignored,
    LabelChoice,
    Labels,
    Nominal,
    Numbers,
    check_names,
    commonest,
    described,
    label_columns,
    number,
    value_texts,
)
from mlrh.data._pages import DELTA_BYTE_ARRAY, pages_of
from mlrh.data._sources import Source, shown, writing
from mlrh.data.containers import DataError, MultilabelData, Schema, listed

DELIMITERS = ",;\t|"
SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?[ \t]*(?=[\r\n])', re.IGNORECASE)  # Excel's own first line
CELL = 100  # bytes that a cell takes while it is read: a string and its place in two lists, a float in two arrays
LONGEST_CELL = 131072  # characters: what Python's csv module reads unless a program raises its limit
ARROW_CELL = 48  # bytes that a cell of a Parquet file takes: as Arrow has it, at most 16, as a float, and in X
ARROW_PAGE = 4096  # bytes for a page itself, so that pages without values come to an end too
SAMPLED = 20  # records that decide about the delimiter
IDENTIFIER_ROWS = 21  # fewer rows may have different values by chance
CERTAINLY_MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})  # in lower case; as in pandas
MISSING = CERTAINLY_MISSING | {"?", "-"}  # a dash may have meant a zero, so these are told
# Numbers as people write them, which could be read in two ways: 1,5E-05; 1.234,5; 1 234; 10%; $5.
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")
GROUPED = r"[0-9]{1,3}(?:[., '\u00a0\u202f][0-9]{3})+(?:[.,][0-9]+)?|[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+"
DRESSED = re.compile(rf"[$€£¥]?\s?[+-]?\s?[$€£¥]?\s?(?:{GROUPED})(?:[eE][+-]?[0-9]+)?\s?[%$€£¥]?")
FORMULA = re.compile(r"'*[=+\-@\t\r]")
# The start of a file by which other formats are told; in quotes it is none.
OTHER_START = re.compile(r"\ufeff|[@%#0-9]|PAR1|BZh|PK|7z")
NEEDS_QUOTES = re.compile(r'[,;\t|"\r\n]|^\s|\s$|^$')


def read_csv(source: Source, choice: LabelChoice | None, schema: Schema | None = None) -> MultilabelData:
    """The data set of a CSV file with a header; the delimiter is a comma, semicolon, tab or |, whichever fits.

    With a schema it has the schema's features only, as numbers or nominal as the schema says.
    """
    choice = required(choice, source)
    wanted = None if schema is None else {*schema.feature_names, *choice.names}
    names, rows, lines = _records(source, wanted)
    columns = list(zip(*rows, strict=True))
    del rows  # a pointer per cell

    def encoded(column, encode):
        try:
            return encode(columns[column])
        except BadCellError as error:
            what = f"column {shown(names[column])} {error}"
            raise source.error(what, lines[error.position]) from error

    told: list[str] = []

    def feature(column):
        values, encoder = encoded(column, _encode_as(names[column], schema, wanted))
        # Of a model's own nominal features the values are known.
        of_model = schema is not None and isinstance(encoder, Nominal)
        mixed = None if of_model else _mixed(columns[column], values, encoder)
        if mixed is not None:
            position, what = mixed
            cell, line = shown(columns[column][position].strip()), lines[position]
            told.append(f"column {shown(names[column])} {what} (line {line}: {cell})")
        return values, encoder

    data = _data_set(
        (len(lines), names),
        lambda column: encoded(column, label_cells)[0],
        feature,
        choice=choice,
        schema=schema,
        source=source,
    )
    if told:
        warnings.warn(f"{source.where}: {listed(told, 3)}.", UserWarning, stacklevel=2)
    return data


def _mixed(cells, values, encoder):
    """Where a column mixes numbers and words: the position of the first cell that isn't like most, and what it is."""
    if isinstance(encoder, Numbers) and not np.isnan(values).all():
        missing = np.flatnonzero(np.isnan(values)).tolist()
        others = [place for place in missing if cells[place].strip().lower() not in CERTAINLY_MISSING]
        return (others[0], f"holds numbers, and words in {len(others)} rows that count as missing") if others else None
    if isinstance(encoder, Nominal) and encoder.found and any(map(_is_number, encoder.values)):
        others = [place for place, cell in enumerate(cells) if _is_number(cell)]
        return others[0], f"holds words, and numbers in {len(others)} rows that count as words"
    return None


def _data_set(shape, label, feature, *, choice, schema, source):
    """The data set of a table: `label` gives the cells of a column as 0 and 1, `feature` its values and encoder."""
    n_rows, names = shape
    labels = label_columns(choice, names, source)
    Y = np.empty((n_rows, len(labels)), np.int8)
    for place, (column, _) in enumerate(labels):
        Y[:, place] = label(column)
    taken = {column for column, _ in labels}
    columns = [column for column in range(len(names)) if column not in taken]
    X, features = np.empty((n_rows, len(columns))), []
    for place, column in enumerate(columns):
        X[:, place], encoder = feature(column)
        features.append((names[column], encoder))
    label_names, identifier_rows = [name for _, name in labels], IDENTIFIER_ROWS if schema is None else None
    return described(X, Y, features=features, label_names=label_names, source=source, identifier_rows=identifier_rows)


def csv_text(data: MultilabelData, where: Any) -> Iterator[str]:
    """The lines of a CSV file: features, then labels."""
    check_names(data, where)
    names = [*data.feature_names, *data.label_names]
    _check_holdable(data, names, where)
    first, *others = map(_csv_cell, names)
    yield ",".join([f'"{first}"' if OTHER_START.match(first) else first, *others]) + "\n"
    words = {name: list(map(_csv_cell, values)) for name, values in data.categories.items()}
    for row in range(len(data.Y)):
        values = data.X[[row]].toarray().ravel() if sparse.issparse(data.X) else data.X[row]
        cells = value_texts(values, data.feature_names, words, missing="") + list(map(str, data.Y[row].tolist()))
        # A line of one empty cell would be blank, and blank lines are skipped.
        yield (",".join(cells) or '""') + "\n"


def _check_holdable(data, names, where):
    """Raise a DataError for what `read_csv` would refuse, or take for something else."""
    values = [value for own in data.categories.values() for value in own]
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
    if all(map(_is_number, names)) and not all(name.strip().isdigit() for name in names):
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
    if not all(map(_is_number, names)) or (wanted and not wanted.isdisjoint(names)):
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


def _is_number(text):
    try:
        number(text)
    except ValueError:
        return False
    return True


def _present(cell):
    """The cell itself, or None where it is empty."""
    return cell if cell.strip() else None


def label_cells(cells):
    """0 and 1 of a label column, and its encoder."""
    encoder = Labels(_present)
    return encoder.encode(cells), encoder


def _encode_as(name, schema, wanted):
    """The function that gives a feature's values and encoder: by its cells, or by what the schema says of it."""
    if schema is None:
        return _feature_cells
    if name not in wanted:
        return lambda cells: (0.0, Ignored())
    return known_cells(schema.categories[name]) if name in schema.categories else _number_cells


def known_cells(categories: Sequence[str]) -> Callable:
    """The function that gives codes and encoder of cells whose values are, or should be, the categories.

    A number may be spelled otherwise than in the categories. A word for a missing value is one unless it is a category.
    """
    spelled = {number(value): value for value in categories if _is_number(value)}
    known = set(categories)

    def plain(cell):
        if cell in known:
            return cell
        if _is_missing(cell):
            return None
        return spelled.get(number(cell), cell) if _is_number(cell) else cell

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
    """Values and encoder of a column: numbers if all cells are, nominal if most aren't, else the fault is a typo."""
    numbers = Numbers(_if_not_missing)
    try:
        return numbers.encode(cells), numbers
    except BadCellError:
        present = [cell for cell in cells if not _is_missing(cell)]
        if 2 * sum(map(_is_number, present)) > len(present):
            raise
    _refuse_dressed_numbers(cells)
    nominal = Nominal(_present)
    return nominal.encode(cells), nominal


def _if_not_missing(cell):
    return None if _is_missing(cell) else cell


def _is_missing(cell):
    return cell.strip().lower() in MISSING


def _refuse_dressed_numbers(cells):
    """Raise a BadCellError where most cells are numbers, but for commas, signs of percent or money and the like."""
    texts = {position: cell.strip() for position, cell in enumerate(cells) if not _is_missing(cell)}
    others = {position: text for position, text in texts.items() if not _is_number(text)}
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


def guarded(text: str) -> str:
    """The text with a single quote before what a spreadsheet would run (= + - @, a tab or CR first), unless a number.

    One more quote comes before a text that looks like a guarded one, so that `unguarded` gives every text back.
    """
    return f"'{text}" if FORMULA.match(text) and not _is_number(text) else text


def unguarded(text: str) -> str:
    """The text that `guarded` was given."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def _csv_cell(text):
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


# Parquet


def read_parquet(source: Source, choice: LabelChoice | None, schema: Schema | None = None) -> MultilabelData:
    """The data set of a Parquet file; strings and dictionaries are nominal, booleans 0 and 1.

    With a schema it has the schema's features only; any type is allowed elsewhere.
    """
    choice = required(choice, source)
    wanted = None if schema is None else {*schema.feature_names, *choice.names}
    table, declared = _table(source, choice, wanted)
    if not table.num_rows:
        raise source.error("has no rows.")
    names = table.column_names
    return _data_set(
        (table.num_rows, names),
        lambda column: _arrow_labels(table.column(column), names[column], source),
        lambda column: _arrow_feature(table.column(column), names[column], names[column] in declared, source),
        choice=choice,
        schema=schema,
        source=source,
    )


def write_parquet(data: MultilabelData, path: Path) -> None:
    """Write a Parquet file: float64 features, nominal ones as dictionaries with all their values, int8 labels."""
    check_names(data, path)
    if not all(name.strip() for name in (*data.feature_names, *data.label_names)) or not len(data.Y):
        raise DataError(
            f"{path}: a Parquet file needs a name for each column, and a row; rename columns before writing."
        )
    pyarrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    X = data.X.tocsc() if sparse.issparse(data.X) else data.X
    columns = []
    for column, name in enumerate(data.feature_names):
        values = X[:, [column]].toarray().ravel() if sparse.issparse(X) else X[:, column]
        columns.append(_arrow_column(values, data.categories.get(name), pyarrow))
    columns += [pyarrow.array(labels) for labels in data.Y.T]
    try:
        table = pyarrow.table(columns, names=[*data.feature_names, *data.label_names])
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: {shown(error.object)} can't be written as UTF-8; rename it.") from error
    with writing(path) as (file,):
        parquet.write_table(table, file, write_page_checksum=True)


def _table(source, choice, wanted):
    """The table of the columns that are looked at, strings as dictionaries; names of those that the file has so."""
    pyarrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    options = {"page_checksum_verification": True}
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(source.content), **options)
        refuse_unnamed(file.schema_arrow.names, wanted, source)
        columns = _columns_to_read(file.schema_arrow, choice, wanted, source)
        _afford_table(file.metadata, set(columns), source)
        # A value that many rows share is then one string, as in the file.
        strings = [name for name, kind in columns.items() if _is_string(kind)]
        reader = pyarrow.BufferReader(source.content)
        file = parquet.ParquetFile(reader, metadata=file.metadata, read_dictionary=strings, **options)
        table = file.read(columns=list(columns)).select(list(columns))
        table.validate(full=True)
    except DataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:200].rstrip(". ")
        raise source.error(f"is not a readable Parquet file ({reason}); copy or export it again.") from error
    return table, columns.keys() - set(strings)


def _columns_to_read(schema, choice, wanted, source):
    """Names and types of the columns that are looked at; a DataError where one can't be read."""
    left_out = _index_columns(schema, choice, source) if wanted is None else set(schema.names) - wanted
    columns = {name: kind for name, kind in zip(schema.names, schema.types, strict=True) if name not in left_out}
    types = _pyarrow("pyarrow.types")
    for name, kind in columns.items():
        value = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_null(value) or _is_numeric(value, types) or _is_string(value)):
            what = f"column {shown(name)} has the type {kind}; only numbers, booleans and strings are read."
            raise source.error(what)
    return columns


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


def _index_columns(schema, choice, source):
    """Names of the columns that hold the index of a pandas table, with a warning: they say where a row was."""
    try:
        listed = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        index = {name for name in listed if isinstance(name, str)}  # a dict in its place describes a plain count
    except (ValueError, TypeError, LookupError, RecursionError):
        return set()
    names = [name for name in schema.names if name in index and name not in choice.names]
    if names:
        what = f"column {', '.join(map(shown, names))} is the index of a pandas table and was dropped"
        warnings.warn(f"{source.where}: {what}; reset_index() makes it a feature.", UserWarning, stacklevel=2)
    return set(names)


def _arrow_feature(column, name, declared, source):
    """Values and encoder of an Arrow column; `declared` says whether the file has a dictionary of its values."""
    types = _pyarrow("pyarrow.types")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if _is_string(kind):
        return _arrow_nominal(column, declared)
    return _arrow_numbers(column, kind, name, source), None


def _is_string(kind):
    types = _pyarrow("pyarrow.types")
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _arrow_numbers(column, kind, name, source):
    pyarrow, types = _pyarrow("pyarrow"), _pyarrow("pyarrow.types")
    if types.is_boolean(kind):
        column = column.cast(pyarrow.bool_()).cast(pyarrow.int8())
    values = column.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
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


def _arrow_labels(column, name, source):
    """0 and 1 of a label column."""
    types = _pyarrow("pyarrow.types")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if _is_numeric(kind, types) or types.is_null(kind):  # null is the type of a column without any value
        values = _arrow_numbers(column, kind, name, source)
        if ((values == 0) | (values == 1)).all():  # as in most files: spares a text for every cell
            return values.astype(np.int8)
        cells = ["" if value != value else str(value) for value in values.tolist()]
    else:
        codes, nominal = _arrow_nominal(column, declared=False)
        cells = ["" if code != code else nominal.values[int(code)] for code in codes.tolist()]
    try:
        return label_cells(cells)[0]
    except BadCellError as error:
        raise source.error(f"row {error.position + 1}, column {shown(name)} {error}") from error


def _arrow_column(values, categories, pyarrow):
    if categories is None:
        return pyarrow.array(values)
    missing = np.isnan(values)
    codes = pyarrow.array(np.where(missing, 0, values).astype(np.int32), mask=missing)
    return pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(list(categories), pyarrow.string()))


def _pyarrow(module):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError("Parquet files need pyarrow, which is not installed; run: pip install pyarrow") from error
