"""ARFF files, dense and sparse, with labels as MULAN or MEKA mark them. Knows nothing of compression or suffixes."""

from itertools import chain
from typing import Any

import numpy as np

from mlrh.data.arff_header import Attribute, Header, parse_header, plain, split_cells
from mlrh.data.arff_sparse import sparse_matrices
from mlrh.data.columns import (
    BadCellError,
    Ignored,
    Labels,
    Nominal,
    Numbers,
    described,
    label_value,
    spelled_numbers,
)
from mlrh.data.containers import MultilabelData, Schema
from mlrh.data.labels import HOW, LabelChoice, label_columns, meka_labels, read_xml, xml_beside
from mlrh.data.sources import Source, shown

CELLS_PER_CHUNK = 2**18
IDENTIFIER_ROWS = 2  # of a string attribute: nominal ones are declared as such


def read_arff(source: Source, choice: LabelChoice | None, schema: Schema | None = None) -> MultilabelData:
    """The data set of an ARFF file; X is CSR where the first row is sparse, {index value, ...}, else an array.

    With a schema it has the schema's features only, of the types that the file declares.
    """
    lines = source.lines()
    header = parse_header(lines, source)
    labels = _labels(header, choice, source)
    encoders = _encoders(header.attributes, labels, schema, source)
    rows = [(line, row) for line, text in enumerate(lines[header.n_lines :], header.n_lines + 1) if (row := _row(text))]
    if not rows:
        raise source.error("has no rows after @data; the file is incomplete.")
    names = [attribute.name for attribute in header.attributes]
    taken = {column for column, _ in labels}
    features = [column for column in range(len(names)) if column not in taken]
    matrices = sparse_matrices if rows[0][1].startswith("{") else _dense_matrices
    X, Y = matrices(rows, names, encoders, [column for column, _ in labels], source)
    described_features = [(names[column], encoders[column]) for column in features]
    label_names = [name for _, name in labels]
    rows_of = IDENTIFIER_ROWS if schema is None else None
    return described(X, Y, features=described_features, label_names=label_names, source=source, identifier_rows=rows_of)


def _row(text):
    row = text.strip()
    return "" if row.startswith("%") else row


def _labels(header: Header, choice: LabelChoice | None, source: Source) -> list[tuple[int, str]]:
    """Columns and names of the labels: the caller's choice, else -C n of the relation name, else the XML beside."""
    attributes = header.attributes
    if choice is None:
        columns = meka_labels(header.relation, len(attributes), source)
        if columns is not None:
            return [(column, attributes[column].name) for column in columns]
        path = xml_beside(source)
        if path is None:
            what = "nothing says which attributes are labels (no usable -C n in the relation name, no XML beside it)"
            raise source.error(f"{what}; {HOW}.")
        choice = read_xml(path)
    other = {attribute.other: column for column, attribute in enumerate(attributes)}
    return label_columns(choice, [attribute.name for attribute in attributes], source, other=other)


def _encoders(attributes: list[Attribute], labels, schema: Schema | None, source: Source) -> list:
    """One encoder per attribute, shared by equal declarations so that their cells can be converted together."""
    of_labels = dict(labels)
    wanted = None if schema is None else set(schema.feature_names)
    shared: dict = {"ignored": Ignored()}
    encoders = []
    for column, attribute in enumerate(attributes):
        is_label = column in of_labels
        key: Any = column if attribute.kind in ("string", "date") else (is_label, attribute.values)
        if not is_label and wanted is not None and attribute.name not in wanted:
            key = "ignored"
        if key not in shared:
            shared[key] = _label_encoder(attribute, source) if is_label else _feature_encoder(attribute, source)
        encoders.append(shared[key])
    return encoders


def _label_encoder(attribute, source):
    if attribute.values is not None and any(label_value(value) is None for value in attribute.values):
        what = f"label {shown(attribute.name)} must have the values 0 and 1 (or false and true, no and yes)"
        raise source.error(f"{what}; it declares {shown(', '.join(attribute.values))}.", attribute.line)
    return Labels(plain, attribute.values)


def _feature_encoder(attribute, source):
    if attribute.kind == "date":
        what = f"attribute {shown(attribute.name)} is of type date, which is not supported"
        raise source.error(f"{what}; remove it or make it numeric.", attribute.line)
    if attribute.kind == "numeric":
        return Numbers(plain)
    if attribute.kind == "string":
        return Nominal(plain)
    # Two numbers are an amount or its absence; more of them are as often codes of a country or a place.
    allowed = spelled_numbers(attribute.values) if len(attribute.values) <= 2 else None
    return Nominal(plain, attribute.values) if allowed is None else Numbers(plain, allowed)


def _dense_matrices(rows, names, encoders, labels, source):
    """X and Y of rows that list every value."""
    features = sorted(set(range(len(names))) - set(labels))
    X, Y = np.empty((len(rows), len(features))), np.empty((len(rows), len(labels)), np.int8)
    step = max(1, CELLS_PER_CHUNK // len(names))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        cells = _dense_cells(chunk, len(names), source)
        here = slice(start, start + len(chunk))
        for target, columns in ((X, features), (Y, labels)):
            for place, column in enumerate(columns):
                try:
                    target[here, place] = encoders[column].encode(cells[column :: len(names)])
                except BadCellError as error:
                    raise source.error(f"{shown(names[column])} {error}", chunk[error.position][0]) from error
    return X, Y


def _dense_cells(chunk, n_columns, source):
    """The cells of the rows, one row after the other."""
    split = []
    for line, row in chunk:
        try:
            cells = split_cells(row)
        except ValueError as error:
            raise source.error(str(error), line) from error
        if len(cells) != n_columns:
            what = f"has {len(cells)} values where {n_columns} attributes are declared; is it cut?"
            raise source.error(what, line)
        split.append(cells)
    return list(chain.from_iterable(split))
