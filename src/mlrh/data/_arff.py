"""ARFF files, dense and sparse, in and out; labels are named in XML (MULAN) or counted in the relation (MEKA)."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

import numpy as np
from scipy import sparse

from mlrh.data._columns import (
    ENTRY,
    HOW,
    BadCellError,
    Ignored,
    LabelChoice,
    Labels,
    Nominal,
    Numbers,
    check_names,
    check_size_of_indicators,
    csr,
    described,
    label_columns,
    label_value,
    refuse_repeats,
    refuse_what_only_tables_hold,
    spelled_numbers,
    value_texts,
)
from mlrh.data._sources import Source, load, parts_of, shown
from mlrh.data.containers import DataError, MultilabelData, Schema

CELLS_PER_CHUNK = 2**18  # some 20 MB as Python's texts, and enough rows for NumPy to pay
IDENTIFIER_ROWS = 2  # for string attributes; a nominal one would be declared with its values


def read_arff(source: Source, choice: LabelChoice | None, schema: Schema | None = None) -> MultilabelData:
    """The data set of an ARFF file; X is CSR where the first row is sparse, {index value, ...}, else an array.

    With a schema it has the schema's features only, of the types that the file declares.
    """
    lines = source.lines()
    header = _header(lines, source)
    choice = _choice(header, choice, source)
    labels = _labels(header, choice, source)
    encoders = _encoders(header.attributes, labels, schema, source)
    texts = enumerate(map(str.strip, lines[header.n_lines :]), header.n_lines + 1)
    rows = [(line, row) for line, row in texts if row and not row.startswith("%")]
    if not rows:
        raise source.error("has no rows after @data; the file is incomplete.")
    names = [attribute.name for attribute in header.attributes]
    taken = {column for column, _ in labels}
    features = [column for column in range(len(names)) if column not in taken]
    matrices = _sparse_matrices if rows[0][1].startswith("{") else _dense_matrices
    X, Y = matrices(rows, names, encoders, [column for column, _ in labels], source)
    described_features = [(names[column], encoders[column]) for column in features]
    label_names = [name for _, name in labels]
    rows_of = IDENTIFIER_ROWS if schema is None else None
    options = {"features": described_features, "label_names": label_names, "source": source}
    data = described(X, Y, **options, identifier_rows=rows_of)
    return data if choice is None else replace(data, parent_names=choice.parent_names)


def _choice(header, choice, source):
    """The caller's choice of labels, else None where the relation name says -C n, else that of the XML beside."""
    if choice is not None or _meka_labels(header.relation, len(header.attributes), source) is not None:
        return choice
    path = _xml_beside(source)
    if path is None:
        what = "nothing says which attributes are labels (no usable -C n in the relation name, no XML beside it)"
        raise source.error(f"{what}; {HOW}.")
    return read_xml(path)


def _labels(header, choice, source):
    """Columns and names of the labels: those of the choice, or -C n of the relation name."""
    attributes = header.attributes
    if choice is None:
        columns = _meka_labels(header.relation, len(attributes), source)
        return [(column, attributes[column].name) for column in columns or ()]
    other = {attribute.other: column for column, attribute in enumerate(attributes)}
    return label_columns(choice, [attribute.name for attribute in attributes], source, other=other)


def _encoders(attributes, labels, schema, source):
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
    # Two numbers are a measurement or a flag; three or more are often codes, of a country say, and stay nominal.
    allowed = spelled_numbers(attribute.values) if len(attribute.values) <= 2 else None
    return Nominal(plain, attribute.values) if allowed is None else Numbers(plain, allowed)


def _dense_matrices(rows, names, encoders, labels, source):
    """X and Y of rows that list every value."""
    features = sorted(set(range(len(names))) - set(labels))
    # A row that is cut must not make room for all the values that it should have had.
    for line, row in rows:
        if row.count(",") + 1 < len(names):
            _dense_cells([(line, row)], len(names), source)
    source.afford(8 * len(rows) * len(names), f"{len(rows)} rows of {len(names)} values")
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
            cells = _split_cells(row)
        except ValueError as error:
            raise source.error(str(error), line) from error
        if len(cells) != n_columns:
            what = f"has {len(cells)} values where {n_columns} attributes are declared; is it cut?"
            raise source.error(what, line)
        split.append(cells)
    return list(chain.from_iterable(split))


# Header

# Possessive repeats never backtrack, so that time grows with the length of a line only.
QUOTED = r"""'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+\""""
CELL = re.compile(rf"""\s*+(?:({QUOTED})\s*+|(?!['"])([^,]*+))(,|\Z)""", re.DOTALL)
NAME = re.compile(rf"""(?:({QUOTED})|([^\s{{'"][^\s{{]*+))\s*+(.*)""", re.DOTALL)
NOMINAL = re.compile(rf"""\{{((?:{QUOTED}|[^'"}}]++)*+)\}}\s*+(?:%.*)?""", re.DOTALL)
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
SIMPLE = re.compile(r"[A-Za-z0-9_.+:;/$&()*-][A-Za-z0-9_.+:;/$&()*@#=<>~^|!-]*")
NUMERIC = ("numeric", "real", "integer")


@dataclass(frozen=True)
class _Attribute:
    """A declared column: `values` of a nominal one, else None; `other` is a second spelling of its name.

    Its kind is "numeric", "nominal", "string" or "date".
    """

    name: str
    other: str
    kind: str
    values: tuple[str, ...] | None
    line: int


@dataclass(frozen=True)
class _Header:
    """What stands before the rows; `n_lines` counts the lines up to and with @data."""

    relation: str
    attributes: list[_Attribute]
    n_lines: int


def _header(lines: list[str], source: Source) -> _Header:
    """The declarations of an ARFF file."""
    relation, attributes = "", []
    for line, text in enumerate(lines, 1):
        keyword, rest = _declaration(text)
        if keyword == "@relation":
            relation = plain(rest) or ""
        elif keyword == "@attribute":
            attributes.append(_attribute(rest, line, source))
        elif keyword == "@data" and (not rest or rest.startswith("%")):
            return _Header(relation, _checked(attributes, source), line)
        elif keyword:
            what = f"expected @relation, @attribute or @data; found {shown(text.strip())}."
            raise source.error(what, line)
    raise source.error(f"has no @data line; the file is incomplete after {len(lines)} lines.")


def plain(cell: str) -> str | None:
    """The value of a cell without its quotes and escapes; None for ? and for an empty cell."""
    text = cell.strip()
    if text in ("?", ""):
        return None
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return _unescaped(text[1:-1])
    return text


def _unescaped(text: str) -> str:
    """The text without backslashes that only protect the next character."""
    return ESCAPE.sub(lambda match: ESCAPED.get(match[1], match[1]), text) if "\\" in text else text


def quoted(text: str) -> str:
    """The text as a name or value of an ARFF file, in quotes where it needs them."""
    if "\0" in text:
        raise DataError(f"ARFF can't hold a name or value with a NUL character, {shown(text)}; rename it.")
    if SIMPLE.fullmatch(text):
        return text
    for old, new in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(old, new)
    return f"'{text}'"


def _split_cells(text: str) -> list[str]:
    """Cells of a comma-separated row, quotes kept; ValueError where a quote isn't closed or isn't a whole cell."""
    if "'" not in text and '"' not in text:
        return text.split(",")
    cells, place = [], 0
    while True:
        if not (match := CELL.match(text, place)):
            raise ValueError(f"the quote in {shown(text[place:].strip())} is not closed before the next comma.")
        cells.append(match[1] if match[1] is not None else match[2])
        if not match[3]:
            return cells
        place = match.end()


def _declaration(text):
    """Keyword in lower case and the rest of the line; both empty for blank lines and comments."""
    words = text.strip()
    if not words or words.startswith("%"):
        return "", ""
    keyword, *rest = words.split(None, 1)
    return keyword.lower(), rest[0] if rest else ""


def _attribute(text, line, source):
    match = NAME.fullmatch(text)
    if match is None:
        what = f"expected a name and a type after @attribute; found {shown(text)} (is a quote not closed?)."
        raise source.error(what, line)
    name, other = (_unescaped(match[1][1:-1]), match[1][1:-1]) if match[1] else (match[2], _unescaped(match[2]))
    if match[3].startswith("{"):
        return _Attribute(name, other, "nominal", _declared(match[3], name, line, source), line)
    return _Attribute(name, other, _kind(match[3], name, line, source), None, line)


def _kind(text, name, line, source):
    words = text.partition("%")[0].lower().split()
    if words and words[0] == "relational":
        what = f"attribute {shown(name)} is of type relational, which is not supported; remove it or make it numeric."
        raise source.error(what, line)
    if words and words[0] == "date":
        return "date"
    if len(words) != 1 or words[0] not in (*NUMERIC, "string"):
        what = f"attribute {shown(name)} must be numeric, string or {{a list of values}}; found {shown(text)}."
        raise source.error(what, line)
    return "string" if words[0] == "string" else "numeric"


def _declared(text, name, line, source):
    where = f"the values of attribute {shown(name)}"
    match = NOMINAL.fullmatch(text)
    if match is None:
        raise source.error(f"{where} must stand in one pair of braces; found {shown(text)}.", line)
    try:
        cells = [cell.strip() for cell in _split_cells(match[1])]
    except ValueError as error:
        raise source.error(f"{where}: {error}", line) from error
    if any(not cell or (cell[0] not in "'\"" and len(cell.split()) > 1) for cell in cells):
        raise source.error(f"{where} must not be empty, and need quotes where they hold spaces.", line)
    values = tuple(cell if cell == "?" else str(plain(cell)) for cell in cells)
    if len(set(values)) < len(values):
        raise source.error(f"{where} must differ; one is declared twice.", line)
    return values


def _checked(attributes, source):
    if not attributes:
        raise source.error("declares no attributes; a line such as '@attribute name numeric' must precede @data.")
    lines: dict[str, int] = {}
    for attribute in attributes:
        before = lines.setdefault(attribute.name, attribute.line)
        if before != attribute.line:
            what = f"attribute {shown(attribute.name)} was declared before, in line {before}; rename one."
            raise source.error(what, attribute.line)
    return attributes


# Sparse rows, {index value, ...}

PAIR = r"""[0-9]{1,9}\s++[^\s,'"{}]++\s*+"""
PLAIN_ROW = re.compile(rf"\{{\s*+(?:{PAIR}(?:,\s*+{PAIR})*+)?+\}}")
LISTED = re.compile(rf"""\s*+([^\s,'"]++)\s++({QUOTED}|(?!['"])[^\s,]++)\s*+(,|\Z)""", re.DOTALL)
INDEX = re.compile(r"[0-9]{1,9}")
ENTRIES_PER_CHUNK = 2**18  # as CELLS_PER_CHUNK


def _sparse_matrices(rows, names, encoders, labels, source: Source):
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
    if len(filled):
        what = f"{len(filled)} attributes whose first value isn't 0 make the sparse rows dense (declare 0 first), which"
        source.afford(len(filled) * n_rows * ENTRY, what)
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
    n_entries = source.content.count(b",") + len(rows)
    source.afford(n_entries * ENTRY, f"{n_entries} entries")
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
        match = LISTED.match(body, place)
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


# Writing


def arff_texts(data: MultilabelData, path: Path, layout: str) -> dict[Path, Iterator[str]]:
    """Paths and contents of the files that hold a data set as ARFF: for MULAN the XML with the labels too."""
    if layout not in ("mulan", "meka"):
        raise ValueError(f"layout must be 'mulan' or 'meka'; got {layout!r}.")
    refuse_what_only_tables_hold(data, path)
    check_names(data, path)
    if not len(data.Y) or not (data.feature_names or data.label_names):
        raise DataError(f"{path}: an ARFF file needs at least one row and one attribute.")
    name = data.name.replace("\0", "")
    if layout == "meka":
        if not data.label_names:
            raise DataError(f"{path}: layout 'meka' needs at least one label; use layout='mulan'.")
        return {path: _file(data, f"{name}: -C {len(data.label_names)}", labels_first=True)}
    xml = path.with_name(parts_of(path.name)[0] + ".xml")
    if xml == path:
        raise DataError(f"{path}: the labels' XML file has this name; choose another for the ARFF file.")
    relation = "data" if MEKA.search(name) else name
    return {xml: iter([_xml_text(data, str(xml))]), path: _file(data, relation, labels_first=False)}


def _file(data, relation, *, labels_first):
    """The lines of an ARFF file."""
    yield f"@relation {quoted(relation or 'data')}\n\n"
    types = {name: "{" + ",".join(map(quoted, values)) + "}" for name, values in data.categories.items()}
    features = [f"@attribute {quoted(name)} {types.get(name, 'numeric')}\n" for name in data.feature_names]
    labels = [f"@attribute {quoted(name)} {{0,1}}\n" for name in data.label_names]
    yield from labels + features if labels_first else features + labels
    yield "\n@data\n"
    yield from _sparse_rows(data, labels_first) if sparse.issparse(data.X) else _dense_rows(data, labels_first)


def _dense_rows(data, labels_first):
    values = {name: list(map(quoted, values)) for name, values in data.categories.items()}
    for row, labels in zip(data.X, data.Y, strict=True):
        features = value_texts(row, data.feature_names, values, missing="?")
        marks = list(map(str, labels.tolist()))
        yield ",".join(marks + features if labels_first else features + marks) + "\n"


def _sparse_rows(data, labels_first):
    X = sparse.csr_array(data.X).copy()
    X.sum_duplicates()
    X.eliminate_zeros()
    values = {name: list(map(quoted, values)) for name, values in data.categories.items()}
    n_features, n_labels = X.shape[1], data.Y.shape[1]
    first_feature, first_label = (n_labels, 0) if labels_first else (0, n_features)
    for row in range(X.shape[0]):
        own = slice(X.indptr[row], X.indptr[row + 1])
        columns = X.indices[own].tolist()
        names = [data.feature_names[column] for column in columns]
        texts = value_texts(X.data[own], names, values, missing="?")
        features = [f"{first_feature + column} {text}" for column, text in zip(columns, texts, strict=True)]
        marks = [f"{first_label + label} 1" for label in np.flatnonzero(data.Y[row]).tolist()]
        yield "{" + ",".join(marks + features if labels_first else features + marks) + "}\n"


# Labels

NAMESPACE = "http://mulan.sourceforge.net/labels"
# Train and test parts share the XML file of the whole set.
PART = re.compile(r"[-_. ](?:train|test|sparse|dense)$", re.IGNORECASE)
MEKA = re.compile(r"(?<![^\s:])-C\s+(-?\d{1,9})(?![\w.])")
# Weka appends the filters that a file went through; most of those for attributes can add, drop or move columns, so that
# an earlier -C no longer fits. These can't.
KEEPS_COLUMNS = (
    "Center|ClassAssigner|MathExpression|MergeManyValues|MergeTwoValues|Normalize|NumericCleaner|NumericToBinary|"
    "NumericToNominal|NumericTransform|RenameAttribute|RenameNominalValues|ReplaceMissingValues|"
    "ReplaceMissingWithUserConstant|ReplaceWithMissingValue|Standardize|StringToNominal|SwapValues"
)
MOVES_COLUMNS = re.compile(rf"\battribute\.(?!(?:{KEEPS_COLUMNS})\b)[A-Z]")
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _meka_labels(relation: str, n_columns: int, source: Source) -> range | None:
    """Columns that the option -C n of a MEKA relation name declares as labels, or None where it can't be trusted."""
    options = list(MEKA.finditer(relation))
    if not options or MOVES_COLUMNS.search(relation, options[-1].end()):
        return None
    n_labels = int(options[-1][1])
    if n_labels == 0 or abs(n_labels) > n_columns:
        what = f"the relation name says -C {n_labels}, but there are {n_columns} attributes; correct it, or {HOW}."
        raise source.error(what)
    return range(n_labels) if n_labels > 0 else range(n_columns + n_labels, n_columns)


def _xml_beside(source: Source) -> Path | None:
    """The MULAN XML file in the same folder: of the file's stem, or of the stem without -train, -test and the like."""
    if source.folder is None:
        return None
    names: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in sorted(source.folder.iterdir(), reverse=True):
            names[path.name.lower()] = path.name
    for stem in _shorter_stems(source.stem):
        exact = source.folder / f"{stem}.xml"
        if exact.is_file():
            return exact
        if f"{stem}.xml".lower() in names:
            return source.folder / names[f"{stem}.xml".lower()]
    return None


def read_xml(path: Any) -> LabelChoice:
    """The label names of a MULAN XML file, in its order; a label inside another has it as its parent."""
    source = load(path)
    names: list[str] = []
    parents: dict[str, str] = {}
    around: list[str] = []  # the labels that are open where the parser is
    parser = expat.ParserCreate(namespace_separator=" ")
    is_root = True

    def refuse(what):
        raise source.error(what, parser.CurrentLineNumber)

    def start(tag, attributes):
        nonlocal is_root
        element = tag.rsplit(" ", 1)[-1]
        if is_root and element != "labels":
            refuse(f"the root must be <labels>, as in MULAN files; found <{element[:40]}>.")
        is_root = False
        if element == "label":
            name = attributes["name"] if "name" in attributes else refuse("a <label> needs the attribute name.")
            if around and parents.get(name, around[-1]) != around[-1]:
                both = f"{shown(parents[name])} and {shown(around[-1])}"
                refuse(f"the label {shown(name)} has two parents, {both}; keep one: only a forest is read.")
            if around:
                parents[name] = around[-1]
            names.append(name)
            around.append(name)

    def end(tag):
        if tag.rsplit(" ", 1)[-1] == "label":
            around.pop()

    parser.StartElementHandler, parser.EndElementHandler = start, end
    # Entities of a document type can expand to any size.
    parser.StartDoctypeDeclHandler = lambda *_: refuse("a document type (<!DOCTYPE>) is not allowed; remove it.")
    try:
        parser.Parse(source.content, True)
    except expat.ExpatError as error:
        raise source.error(f"is not well-formed XML ({expat.ErrorString(error.code)}).", error.lineno) from error
    except DataError:
        raise
    except (LookupError, ValueError) as error:
        raise source.error(f"its XML can't be decoded ({error}); convert it to UTF-8.") from error
    refuse_repeats(names, source.where)
    return LabelChoice(tuple(names), False, source.where, parents)


def _xml_text(data: MultilabelData, where: str) -> str:
    """A MULAN XML file that names the labels, each inside its parent."""
    names, parents = data.label_names, data.parents.tolist()
    for name in names:
        if NOT_XML.search(name):
            raise DataError(f"{where}: XML can't hold the label name {shown(name)}; rename it or use layout='meka'.")
    escapes = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    below: dict[int, list[int]] = {}
    for label, parent in enumerate(parents):
        below.setdefault(parent, []).append(label)
    # Depth first, without recursion; None closes the label that was opened last.
    lines: list[str] = []
    waiting: list[int | None] = list(reversed(below.get(-1, [])))
    while waiting:
        step = waiting.pop()
        if step is None:
            lines.append("</label>")
            continue
        children = below.get(step, [])
        lines.append(f"<label name={quoteattr(names[step], escapes)}>" + ("" if children else "</label>"))
        waiting += [None, *reversed(children)] if children else []
    if sum(line.startswith("<label ") for line in lines) < len(names):
        raise DataError(f"{where}: the parents of the labels must be a forest; parent_names holds a cycle.")
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<labels xmlns="{NAMESPACE}">'
    return "\n".join([head, *lines, "</labels>\n"])


def _shorter_stems(stem):
    yield stem
    while PART.search(stem):
        stem = PART.sub("", stem)
        yield stem
