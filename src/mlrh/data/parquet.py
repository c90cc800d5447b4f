"""Parquet files, by pyarrow, which is imported only when one is read or written."""

import importlib
import json
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

from mlrh.data.columns import BadCellError, Nominal, described
from mlrh.data.containers import DataError, MultilabelData, Schema
from mlrh.data.labels import LabelChoice, label_columns
from mlrh.data.sources import Source, shown, writing
from mlrh.data.tables import IDENTIFIER_ROWS, label_cells, refuse_unnamed, required
from mlrh.data.texts import check_names


def read_parquet(source: Source, choice: LabelChoice | None, schema: Schema | None = None) -> MultilabelData:
    """The data set of a Parquet file; strings and dictionaries are nominal, booleans 0 and 1.

    With a schema it has the schema's features only; any type is allowed elsewhere.
    """
    choice = required(choice, source)
    wanted = None if schema is None else {*schema.feature_names, *choice.names}
    table = _table(source, wanted)
    if not table.num_rows:
        raise source.error("has no rows.")
    names = table.column_names
    labels = label_columns(choice, names, source)
    Y = np.empty((table.num_rows, len(labels)), np.int8)
    for place, (column, name) in enumerate(labels):
        Y[:, place] = _arrow_labels(table.column(column), name, source)
    taken = {column for column, _ in labels}
    unwanted = _index_columns(table, choice, source) if wanted is None else set(names) - wanted
    features = [column for column in range(len(names)) if column not in taken and names[column] not in unwanted]
    X, encoders = np.empty((table.num_rows, len(features))), []
    for place, column in enumerate(features):
        X[:, place], encoder = _arrow_feature(table.column(column), names[column], source)
        encoders.append((names[column], encoder))
    label_names, identifier_rows = [name for _, name in labels], IDENTIFIER_ROWS if schema is None else None
    return described(X, Y, features=encoders, label_names=label_names, source=source, identifier_rows=identifier_rows)


def write_parquet(data: MultilabelData, path: Path) -> None:
    """Write a Parquet file: float64 features, nominal ones as dictionaries with all their values, int8 labels."""
    check_names(data, path)
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


def _table(source, wanted):
    pyarrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(source.content), page_checksum_verification=True)
        refuse_unnamed(file.schema_arrow.names, wanted, source)
        table = file.read()
        table.validate(full=True)
    except DataError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError, OverflowError) as error:
        reason = str(error).partition("\n")[0][:200].rstrip(". ")
        raise source.error(f"is not a readable Parquet file ({reason}); copy or export it again.") from error
    return table


def _index_columns(table, choice, source):
    """Names of the columns that hold the index of a pandas table, with a warning: they say where a row was."""
    try:
        listed = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, TypeError, LookupError):
        return set()
    names = [name for name in table.column_names if name in listed and name not in choice.names]
    if names:
        what = f"column {', '.join(map(shown, names))} is the index of a pandas table and was dropped"
        warnings.warn(f"{source.where}: {what}; reset_index() makes it a feature.", UserWarning, stacklevel=2)
    return set(names)


def _arrow_feature(column, name, source):
    """Values and encoder of an Arrow column."""
    types = _pyarrow("pyarrow.types")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _arrow_nominal(column)
    return _arrow_numbers(column, kind, name, source), None


def _arrow_numbers(column, kind, name, source):
    pyarrow, types = _pyarrow("pyarrow"), _pyarrow("pyarrow.types")
    if not (types.is_boolean(kind) or types.is_null(kind) or types.is_decimal(kind) or _is_numeric(kind, types)):
        what = f"column {shown(name)} has the type {kind}; only numbers, booleans and strings are read."
        raise source.error(what)
    if types.is_boolean(kind):
        column = column.cast(pyarrow.bool_()).cast(pyarrow.int8())
    values = column.cast(pyarrow.float64(), safe=False).to_numpy().astype(np.float64)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values))) + 1
        raise source.error(f"row {row}, column {shown(name)} must be finite; found {values[row - 1]}.")
    return values


def _is_numeric(kind, types):
    return types.is_integer(kind) or types.is_floating(kind)


def _arrow_nominal(column):
    """Codes of strings: a dictionary's own values where they are distinct, else the values found."""
    types = _pyarrow("pyarrow.types")
    if types.is_dictionary(column.type):
        whole = column.unify_dictionaries().combine_chunks()
        declared = whole.dictionary.to_pylist()
        if None not in declared and len(set(declared)) == len(declared):
            codes = whole.indices.cast("float64", safe=False).to_numpy(zero_copy_only=False)
            return codes, Nominal(lambda text: text, declared)
    nominal = Nominal(lambda text: text)
    return nominal.encode(column.to_pylist()), nominal


def _arrow_labels(column, name, source):
    """0 and 1 of a label column."""
    types = _pyarrow("pyarrow.types")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_boolean(kind) or _is_numeric(kind, types) or types.is_decimal(kind):
        values = _arrow_numbers(column, kind, name, source)
        cells = ["" if value != value else str(value) for value in values.tolist()]
    else:
        cells = ["" if value is None else str(value) for value in column.to_pylist()]
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
