"""JSON lines: a table with one JSON object per line, whose keys are columns. A key that a line lacks is missing there.

What a file may take is settled before and while it is read: short keys can make a few bytes a large table.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import UNKNOWN
from mlrh.data._columns import (
    BadCellError,
    Dates,
    LabelChoice,
    Nominal,
    Numbers,
    Texts,
    check_names,
    commonest,
    label_columns,
    value_texts,
)
from mlrh.data._kinds import Plan, data_set, in_words
from mlrh.data._sources import Source, shown
from mlrh.data._tables import CELL, known_cells, label_cells, listed_sets, refuse_unnamed, required, sets_in
from mlrh.data.containers import DataError, MultilabelData, Schema

VALUE = 100  # bytes that a value takes: an object, and its place in a dict with its key


def read_jsonl(source: Source, choice: LabelChoice | None, schema: Schema | None = None, **options) -> MultilabelData:
    """The data set of a file of JSON lines; a column is numbers, or words that are what they look like, as in CSV.

    With a schema it has the schema's features only, as it says. options are those of `Plan`.
    """
    choice, plan = required(choice, source), Plan(schema, **options)
    records, lines = _records(source)
    names = list(dict.fromkeys(name for record in records for name in record))
    wanted = plan.wanted(choice)
    refuse_unnamed(names, wanted, source)
    n_columns = len(names) if wanted is None else len(wanted)
    source.afford(len(records) * n_columns * CELL, f"{len(records)} rows of {n_columns} columns")
    label_columns(choice, names, source)  # before what the columns hold
    return data_set(_JsonTable(names, records, lines, source), choice, plan)


def jsonl_text(data: MultilabelData, where: Any) -> Iterator[str]:
    """The lines of a file: features, what is kept, then labels; missing values and unknown labels are null."""
    check_names(data, where)
    if not len(data.Y):
        raise DataError(f"{where}: a file of JSON lines needs at least one row.")
    words = {**data.categories, **data.texts}
    names, is_number = data.feature_names, [n not in words and n not in data.dates for n in data.feature_names]
    for row in range(len(data.Y)):
        values = data.X[[row]].toarray().ravel() if sparse.issparse(data.X) else data.X[row]
        texts = value_texts(values, names, words, missing="", dates=data.dates)
        cells = [
            None if v != v else v if plain else t for v, t, plain in zip(values.tolist(), texts, is_number, strict=True)
        ]
        labels = [None if label == UNKNOWN else label for label in data.Y[row].tolist()]
        kept = {name: own[row] for name, own in data.kept.items()}
        record = {**dict(zip(names, cells, strict=True)), **kept, **dict(zip(data.label_names, labels, strict=True))}
        yield json.dumps(record, ensure_ascii=False) + "\n"


class _JsonTable:
    """The columns of a file of JSON lines, see `Table`."""

    def __init__(self, names, records, lines, source):
        self.names, self.all_names, self.n_rows, self.source = names, names, len(records), source
        self._records, self._lines = records, lines

    def labels(self, column, unknown):
        cells = [_label_text(value) for value in self._values(column)]
        if None in cells:
            self._refuse(column, cells.index(None), "must be 0 or 1; found a list or an object.")
        try:
            return label_cells(cells, unknown)[0]
        except BadCellError as error:
            self._refuse(column, error.position, str(error))

    def sets(self, column, choice):
        values = self._values(column)
        try:
            if any(isinstance(value, list) for value in values):
                return listed_sets(values, choice)
            cells = [_label_text(value) for value in values]
            return (None, None) if None in cells else sets_in(cells, choice)
        except BadCellError as error:
            self._refuse(column, error.position, str(error))

    def feature(self, column, kind, model):
        values = self._values(column)
        others = [row for row, value in enumerate(values) if isinstance(value, dict | list)]
        if others:
            what = (
                f"must be a number or a text; found {'a list' if isinstance(values[others[0]], list) else 'an object'}"
            )
            self._refuse(column, others[0], f"{what}. Ignore the column, or leave it out.")
        try:
            return _encoded(values, kind, None if model is None else model.categories.get(self.names[column]))
        except BadCellError as error:
            self._refuse(column, error.position, str(error))

    def kept(self, column):
        array = np.empty(self.n_rows, object)
        for row, value in enumerate(self._values(column)):
            array[row] = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
        return array

    def _values(self, column):
        return [record.get(self.names[column]) for record in self._records]

    def _refuse(self, column, row, what):
        raise self.source.error(f"column {shown(self.names[column])} {what}", self._lines[row])


def _records(source):
    """The object of each line that isn't blank, and the numbers of the lines."""
    text = source.text()
    n_values = text.count(":") + text.count(",") + text.count("[")
    source.afford(n_values * VALUE, f"{n_values} values")
    records, lines = [], []
    for line, own in enumerate(source.lines(), 1):
        if own.strip():
            records.append(_object(own, line, source))
            lines.append(line)
    if not records:
        raise source.error("has no rows; a JSON object per line is needed.")
    return records, lines


def _object(text, line, source):
    """The object of a line; a DataError where it is none, or names a key twice."""

    def of_pairs(pairs):
        if len(dict(pairs)) < len(pairs):
            raise source.error(
                f"the key {shown(commonest([key for key, _ in pairs]))} stands twice in an object.", line
            )
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=of_pairs)
    except DataError:
        raise
    except json.JSONDecodeError as error:
        raise source.error(f"is not JSON ({error.msg}, character {error.pos + 1}); write an object.", line) from error
    except RecursionError as error:
        raise source.error("is nested too deeply; write an object of numbers and texts.", line) from error
    except ValueError as error:  # a whole number of thousands of digits
        raise source.error("holds a number of too many digits; shorten it.", line) from error
    if not isinstance(value, Mapping):
        what = "a list; write each of its objects on a line of its own" if isinstance(value, list) else "something else"
        raise source.error(f'must be a JSON object such as {{"a": 1}}; found {what}.', line)
    return value


def _label_text(value):
    """A label as a cell of CSV has it; None for what is none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return None if isinstance(value, dict | list) else str(value)


def _encoded(values, kind, categories):
    """Values and encoder of a column of numbers, truth values, texts and None, of a kind or as they are."""
    words = [row for row, value in enumerate(values) if isinstance(value, str)]
    numbers = [row for row, value in enumerate(values) if value is not None and not isinstance(value, str)]
    if kind == "nominal" and categories is not None:
        return known_cells(categories)([_label_text(value) for value in values])
    if kind in ("text", "date") and numbers:
        raise BadCellError(numbers[0], f"must be {in_words(kind)}; found the number {shown(str(values[numbers[0]]))}.")
    if kind == "number" or (kind is None and not words):
        if words:
            raise BadCellError(words[0], f"must be a number; found {shown(values[words[0]])}.")
        return _floats(values), Numbers(str)
    if kind is None and numbers:
        row = min(words, numbers, key=len)[0]  # of the kind that is rarer
        found = shown(str(values[row]))
        raise BadCellError(row, f"must hold numbers or words, not both; found {found} beside the other kind.")
    encoder = {"text": Texts, "date": Dates}.get(kind, Nominal)(_present)
    return encoder.encode([_label_text(value) for value in values]), encoder


def _present(cell):
    return cell if cell.strip() else None


def _floats(values):
    """The numbers, NaN where there is none; a BadCellError where one isn't finite."""
    array = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value is not None:
            try:
                array[row] = float(value)
            except OverflowError:
                array[row] = np.inf
            if np.isinf(array[row]):
                raise BadCellError(row, f"must be finite; found {shown(str(value))}.")
    return array
