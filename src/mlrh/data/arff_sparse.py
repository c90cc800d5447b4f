"""Rows {index value, ...} of sparse ARFF files as matrices. Knows nothing of the header's grammar."""

import re

import numpy as np

from mlrh.data.arff_header import QUOTED
from mlrh.data.columns import BadCellError, check_size_of_indicators, csr
from mlrh.data.sources import Source, shown

# Possessive repeats never backtrack, so that time grows with the length of a line only.
PAIR = r"""[0-9]{1,9}\s++[^\s,'"{}]++\s*+"""
PLAIN_ROW = re.compile(rf"\{{\s*+(?:{PAIR}(?:,\s*+{PAIR})*+)?+\}}")
ENTRY = re.compile(rf"""\s*+([^\s,'"]++)\s++({QUOTED}|(?!['"])[^\s,]++)\s*+(,|\Z)""", re.DOTALL)
INDEX = re.compile(r"[0-9]{1,9}")
ENTRIES_PER_CHUNK = 2**18
MAX_FILLED = 2**27  # entries that omitted values other than 0 may add


def sparse_matrices(rows, names, encoders, labels, source: Source):
    """CSR X and indicator matrix Y of rows that leave out what is an attribute's first value.

    Parameters
    ----------
    rows : list of (line, text)
    names, encoders : lists, one item for each attribute
    labels : list of int
        Columns of the labels, in the order of Y.
    """
    check_size_of_indicators(len(rows), len(labels), source)
    places, columns, values = _entries(rows, names, encoders, source)
    omitted = np.array([encoder.omitted for encoder in encoders])
    is_label = np.zeros(len(names), bool)
    is_label[labels] = True
    target = np.cumsum(~is_label) - 1
    target[labels] = np.arange(len(labels))
    marks = is_label[columns]
    Y = np.tile(omitted[labels].astype(np.int8), (len(rows), 1))
    Y[places[marks], target[columns[marks]]] = values[marks]
    entries = places[~marks], target[columns[~marks]], values[~marks]
    return _csr(entries, omitted[~is_label], len(rows), source), Y


def _csr(entries, omitted, n_rows, source):
    """CSR matrix of (row, column, value) entries; a column whose omitted value isn't 0 is filled up with it."""
    rows, columns, values = entries
    filled = np.flatnonzero(omitted != 0)
    if len(filled) * n_rows > MAX_FILLED:
        what = f"{len(filled)} attributes whose first value isn't 0 make the sparse rows dense; declare 0 first."
        raise source.error(what)
    if len(filled):
        place = np.full(len(omitted), -1)
        place[filled] = np.arange(len(filled))
        listed = place[columns] >= 0
        absent = np.ones((n_rows, len(filled)), bool)
        absent[rows[listed], place[columns[listed]]] = False
        more_rows, more = np.nonzero(absent)
        rows, columns = np.concatenate([rows, more_rows]), np.concatenate([columns, filled[more]])
        values = np.concatenate([values, omitted[filled[more]]])
    return csr(values, rows, columns, (n_rows, len(omitted)))


def _entries(rows, names, encoders, source):
    """Arrays of the row, column and value of every listed entry."""
    parts, start, tokens, counts = [], 0, [], []
    for place, (line, row) in enumerate(rows):
        own = _tokens(row, len(names), line, source)
        tokens.extend(own)
        counts.append(len(own) // 2)
        if len(tokens) >= 2 * ENTRIES_PER_CHUNK or place == len(rows) - 1:
            places = np.repeat(np.arange(start, place + 1), counts)
            columns = np.fromiter(map(int, tokens[::2]), np.int64, len(places))
            _check_indices(places, columns, rows, names, source)
            values = _encoded(places, columns, tokens[1::2], (rows, names, encoders, source))
            parts.append((places, columns, values))
            start, tokens, counts = place + 1, [], []
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def _tokens(row, n_columns, line, source):
    """Indices and cells of a row, by turns."""
    if PLAIN_ROW.fullmatch(row):
        return row[1:-1].replace(",", " ").split()
    try:
        return _careful_tokens(row, n_columns)
    except ValueError as error:
        raise source.error(str(error), line) from error


def _careful_tokens(row, n_columns):
    """Indices and cells of a row that holds quotes or a fault."""
    if not (row.startswith("{") and row.endswith("}")):
        raise ValueError(f"a row of a sparse file must be {{index value, ...}}; found {shown(row)} (is it cut?).")
    body, tokens, place = row[1:-1], [], 0
    while True:
        match = ENTRY.match(body, place)
        if match is None:
            raise ValueError(f"expected an index and a value at {shown(body[place:])} (is a quote not closed?).")
        if not INDEX.fullmatch(match[1]):
            raise ValueError(f"an index must be a number from 0 to {n_columns - 1}; found {shown(match[1])}.")
        tokens += [match[1], match[2]]
        if not match[3]:
            return tokens
        place = match.end()


def _check_indices(places, columns, rows, names, source):
    """Raise a DataError for an index that no attribute has or that a row lists twice."""
    n_columns = len(names)
    if len(columns) and columns.max() >= n_columns:
        entry = int(np.argmax(columns >= n_columns))
        what = f"index {columns[entry]} is out of range; {n_columns} attributes are declared, counted from 0."
        raise source.error(what, rows[places[entry]][0])
    keys = np.sort(places * n_columns + columns)
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        place, column = divmod(int(repeated[0]), n_columns)
        raise source.error(f"index {column} is listed twice; list each index once.", rows[place][0])


def _encoded(places, columns, cells, context):
    """Values of the entries' cells, converted together where their columns share an encoder."""
    rows, names, encoders, source = context
    groups = {encoder: group for group, encoder in enumerate(dict.fromkeys(encoders))}
    group = np.array([groups[encoder] for encoder in encoders])[columns]
    values, order = np.empty(len(cells)), np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(cells) else []:
        encoder = encoders[columns[members[0]]]
        try:
            values[members] = encoder.encode([cells[member] for member in members.tolist()])
        except BadCellError as error:
            entry = members[error.position]
            raise source.error(f"{shown(names[columns[entry]])} {error}", rows[places[entry]][0]) from error
    return values
