"""LIBSVM multilabel text, `label,label index:value ...`. Knows nothing of compression or suffixes."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from mlrh.data._columns import (
    ENTRY,
    BadCellError,
    LabelChoice,
    Numbers,
    check_finite,
    check_size_of_indicators,
    commonest,
    csr,
    number_texts,
    refuse_what_only_tables_hold,
)
from mlrh.data._sources import Source, shown
from mlrh.data.containers import DataError, MultilabelData, Schema

LABEL = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")
INDEX = re.compile(r"[0-9]{1,18}")
PLAIN_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
MAX_FEATURES = 2_000_000  # unless n_features asks for more: every feature has a name, and a typo must not fill memory
PAIRS_PER_CHUNK = 2**18
NAME = 64  # bytes of a feature's name, a short string and its place


def read_libsvm(
    source: Source, choice: LabelChoice | None, n_features: int | None = None, schema: Schema | None = None
) -> MultilabelData:
    """The data set of a LIBSVM multilabel file, X as CSR; feature names are the indices, label names the label ids.

    Indices count from 1 unless index 0 occurs, which makes the whole file count from 0. What follows # is a comment;
    lines without anything else are skipped. Labels are integers; those not chosen are left out. With a schema whose
    features are numbers the columns are these, and its labels come first and may be absent.
    """
    labels, rows, indices, values, lines = _parsed(source)
    if not labels:
        raise source.error("has no rows; the file is incomplete.")
    ids, names = _label_ids(labels, choice, schema, source)
    Y = _indicators(labels, ids, source)
    if schema is not None and schema.feature_names and all(map(PLAIN_INDEX.fullmatch, schema.feature_names)):
        X = _columns_of(schema, rows, indices, values, len(labels))
        return MultilabelData(X, Y, schema.feature_names, names, source.stem)
    first = 0 if len(indices) and indices.min() == 0 else 1
    n_columns = _n_columns(indices, first, n_features, (rows, lines), source)
    source.afford(n_columns * NAME, f"the names of {n_columns} features")
    X = csr(values, rows, indices - first, (len(labels), n_columns))
    return MultilabelData(X, Y, tuple(map(str, range(first, first + n_columns))), names, source.stem)


def libsvm_text(data: MultilabelData, where: Any) -> Iterator[str]:
    """Lines of a LIBSVM file; label names that aren't ascending integers become 0, 1, ..., feature names 1, 2, ...."""
    refuse_what_only_tables_hold(data, where)
    _check_holdable(data, where)
    X = sparse.csr_array(data.X).copy()
    X.sum_duplicates()
    X.eliminate_zeros()
    ids, n_columns = _written_ids(data.label_names), X.shape[1]
    first = 0 if data.feature_names[0] == "0" else 1
    # An explicit zero in the first row keeps the number of columns, and index 0 where counting starts there.
    kept = {0, n_columns - 1} if first == 0 else {n_columns - 1}
    for row in range(X.shape[0]):
        own = slice(X.indptr[row], X.indptr[row + 1])
        entries = dict(zip(X.indices[own].tolist(), number_texts(X.data[own], ""), strict=True))
        if row == 0 or not entries:
            entries = dict.fromkeys(kept, "0") | entries
        labels = ",".join(ids[label] for label in np.flatnonzero(data.Y[row]).tolist())
        yield f"{labels} " + " ".join(f"{first + column}:{entries[column]}" for column in sorted(entries)) + "\n"


def _parsed(source):
    """Label sets of the rows; arrays of row, index and value of the entries; line numbers of the rows."""
    numbers = Numbers(str.strip)
    labels: list[list[int]] = []
    lines, parts, rows, indices, cells = [], [], [], [], []
    n_pairs = source.content.count(b":")
    source.afford(n_pairs * ENTRY, f"{n_pairs} index:value pairs")
    for line, text in enumerate(source.lines(), 1):
        tokens = text.partition("#")[0].split()
        if not tokens:
            continue
        try:
            own_labels, own_indices, own_cells = _row(tokens)
        except ValueError as error:
            raise source.error(str(error), line) from error
        rows.extend([len(labels)] * len(own_indices))
        indices.extend(own_indices)
        cells.extend(own_cells)
        labels.append(own_labels)
        lines.append(line)
        if len(cells) >= PAIRS_PER_CHUNK:
            parts.append(_arrays(rows, indices, cells, numbers, (lines, source)))
            rows, indices, cells = [], [], []
    parts.append(_arrays(rows, indices, cells, numbers, (lines, source)))
    return (labels, *(np.concatenate(part) for part in zip(*parts, strict=True)), lines)


def _row(tokens):
    """Label ids, indices and the texts of values of one line."""
    labels = [] if ":" in tokens[0] else [_label(text) for text in tokens.pop(0).split(",")]
    pairs = [token.split(":") for token in tokens]
    for token, pair in zip(tokens, pairs, strict=True):
        if len(pair) == 2 and INDEX.fullmatch(pair[0]):
            continue
        hint = "qid is for ranking and not supported" if pair[0] == "qid" else "an index is a whole number"
        hint = hint if len(pair) == 2 else "is the row cut or a space missing?"
        raise ValueError(f"expected index:value; found {shown(token)} ({hint}).")
    indices = [int(index) for index, _ in pairs]
    if len(set(indices)) < len(indices):
        raise ValueError(f"index {commonest(indices)} is listed twice; list each index once.")
    return labels, indices, [value for _, value in pairs]


def _label(text):
    match = LABEL.fullmatch(text)
    if match is None:
        raise ValueError(f"a label must be a whole number; found {shown(text)}.")
    return int(match[1])


def _arrays(rows, indices, cells, numbers, context):
    lines, source = context
    try:
        values = numbers.encode(cells)
    except BadCellError as error:
        line = lines[rows[error.position]]
        raise source.error(f"the value of index {indices[error.position]} {error}", line) from error
    return np.array(rows, np.int64), np.array(indices, np.int64), values


def _n_columns(indices, first, n_features, context, source):
    """The number of columns: n_features, or as many as the largest index needs."""
    needed = int(indices.max()) + 1 - first if len(indices) else 0
    allowed = MAX_FEATURES if n_features is None else n_features
    if needed > allowed:
        rows, lines = context
        line = lines[rows[np.argmax(indices)]]
        rule = f"the limit is {allowed} columns; correct it, or pass a larger n_features in Python."
        raise source.error(f"index {indices.max()} is too large, {rule}", line)
    return needed if n_features is None else n_features


def _columns_of(schema, rows, indices, values, n_rows):
    """CSR of the schema's columns: what a row leaves out is 0, and an index that the schema lacks is left out."""
    wanted = np.array(list(map(int, schema.feature_names)), np.int64)
    order = np.argsort(wanted)
    columns = order[np.minimum(np.searchsorted(wanted, indices, sorter=order), len(wanted) - 1)]
    known = wanted[columns] == indices
    return csr(values[known], rows[known], columns[known], (n_rows, len(wanted)))


def _label_ids(labels, choice, schema, source):
    """Label ids and names: those found, in ascending order and after the schema's, or those chosen."""
    found = set().union(*labels)
    if choice is None and schema is None:
        return sorted(found), tuple(map(str, sorted(found)))
    if choice is None:
        ids, names = _chosen_ids(LabelChoice(schema.label_names, True, "the model"), source)
        more = sorted(found - set(ids))
        return ids + more, (*names, *map(str, more))
    ids, names = _chosen_ids(choice, source)
    absent = [name for label, name in zip(ids, names, strict=True) if label not in found]
    if absent and schema is None:
        raise source.error(f"no row has the label {shown(absent[0])}, which {choice.origin} names; correct it.")
    return ids, names


def _chosen_ids(choice, source):
    """Ids and names of chosen labels."""
    wrong = next((name for name in choice.names if LABEL.fullmatch(name) is None), None)
    if wrong is not None:
        raise source.error(f"no label can be {shown(wrong)}, which {choice.origin} names; LIBSVM has whole numbers.")
    ids = [_label(name) for name in choice.names]
    if len(set(ids)) < len(ids):
        raise source.error(f"two of the labels that {choice.origin} names are the same number; name each once.")
    return ids, choice.names


def _indicators(labels, ids, source):
    check_size_of_indicators(len(labels), len(ids), source)
    column = {label: place for place, label in enumerate(ids)}
    Y = np.zeros((len(labels), len(ids)), np.int8)
    for row, own in enumerate(labels):
        Y[row, [column[label] for label in own if label in column]] = 1
    return Y


def _check_holdable(data, where):
    if not data.feature_names or not len(data.Y):
        raise DataError(f"{where}: LIBSVM needs at least one row and one feature; use another format.")
    if data.nominal:
        name = data.feature_names[data.nominal[0]]
        raise DataError(f"{where}: LIBSVM can't hold the nominal feature {shown(name)}; use ARFF, CSV or Parquet.")
    check_finite(data, where)
    values = data.X.data if sparse.issparse(data.X) else data.X
    if np.isnan(values).any():
        raise DataError(f"{where}: LIBSVM can't hold missing values; use ARFF, CSV or Parquet, or fill them in.")


def _written_ids(names):
    if all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in names):
        ids = list(map(int, names))
        if ids == sorted(set(ids)):
            return names
    return list(map(str, range(len(names))))
