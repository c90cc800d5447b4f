"""Whatever the bytes, a reader gives a DataError that names the file, or what a slow and obvious parser reads."""

import gzip
import io
import re
import time
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import words
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from mlrh.data._readers import FORMATS, read
from mlrh.data.containers import DataError

DENSE = (
    "@relation 'toy set'\n% note\n@attribute a numeric\n@attribute 'b c' {red,'dark blue',\"it's\"}\n"
    "@attribute n {1,0}\n@attribute y {0,1}\n@attribute z {no,yes}\n\n@data\n"
)
SEEDS = {
    "arff": DENSE + "1.5,red,0,1,no\n?,'dark blue',1,0,yes\n-2e-3,\"it's\",1,1,no\n",
    "sparse": DENSE + "{0 1.5,3 1}\n{}\n{ 1 'dark blue',2 0, 4 yes }\n{1 red,0 ?}\n",
    "libsvm": "0,5 1:0.2 9:1\n 3:-1e-3 # note\n7 2:4 1:nan\n2:1\n",
    "csv": 'a,"b, c",y,z\n1.5,red,0,no\n,"dark ""blue""\nsea",1,yes\n-2e-3,,1,no\n',
}
LABELS = ["y", "z"]
FILE = "fuzz.data"
WORDS = ["nan", "inf", "1e999", "1e5", "-C 1", "@data\n", "@attribute q real\n", "{0 1}", "'x'", "\u00a0", "\x1f"]
PIECES = st.one_of(st.text(max_size=3), st.sampled_from("'\"\\,{}%?\n\r\t 01_\0:#;"), st.sampled_from(WORDS))

# Spellings that are right in some column, so that many mutants remain readable.
PLAIN = "0 1 ? 1.0 '1' -0 +1e0 nan .5 2. red 'red' yes NO False 'no' 5 1:3 4:.5 3:0 0:2 0,7 -1 007"
CELLS = st.sampled_from([*PLAIN.split(), '"it\'s"', "'it\\'s'", "", "'dark blue'", '"dark blue"', " 1 "])
TOKEN = re.compile(r"""'[^'\n]*'|"[^"\n]*"|[\w.?:+-]+""")


class Named(io.BytesIO):
    name = FILE


def outcome(content, labels, format=None):
    """The data set, or None where the reader gives a DataError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return read(Named(content), labels, format=format)
        except DataError as error:
            assert FILE in str(error) and "\n" not in str(error) and len(str(error)) < 600
            return None


@st.composite
def respelled(draw, text, after):
    """The text with some tokens after a mark exchanged for others."""
    for _ in range(draw(st.integers(1, 3))):
        tokens = list(TOKEN.finditer(text, text.find(after) + len(after)))
        if tokens:
            token = draw(st.sampled_from(tokens))
            text = text[: token.start()] + draw(CELLS) + text[token.end() :]
    return text


@st.composite
def mutated(draw, text):
    """The text after a few cuts, insertions, deletions and swaps."""
    for _ in range(draw(st.integers(1, 3))):
        start, stop = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
        match draw(st.sampled_from(["cut", "insert", "delete", "swap", "repeat"])):
            case "cut":
                text = text[:stop]
            case "insert":
                text = text[:start] + draw(PIECES) + text[start:]
            case "delete":
                text = text[:start] + text[min(stop, start + 8) :]
            case "swap":
                text = text[:start] + text[stop : stop + 5] + text[start:stop] + text[stop + 5 :]
            case "repeat":
                text = text[:stop] + text[start:stop] + text[stop:]
    return text


class FaultError(Exception):
    """What the reference parsers refuse."""


def after_quote(text):
    """The place after the quote that closes the one with which the text begins."""
    place = 1
    while place < len(text) and text[place] != text[0]:
        place += 2 if text[place] == "\\" else 1
    if place >= len(text):
        raise FaultError
    return place + 1


def cells_of(text):
    """(cell, was it quoted) of a comma-separated text, one cell after the other."""
    text = text.lstrip()
    is_quoted = text[:1] in ("'", '"')
    stop = after_quote(text) if is_quoted else (text + ",").index(",")
    cell, rest = text[:stop].strip(), text[stop:].lstrip()
    if is_quoted:
        escapes = {"n": "\n", "r": "\r", "t": "\t"}
        cell = re.sub(r"\\(.)", lambda match: escapes.get(match[1], match[1]), cell[1:-1], flags=re.DOTALL)
    if rest and rest[0] != ",":
        raise FaultError
    return [(cell, is_quoted), *(cells_of(rest[1:]) if rest else [])]


def number_of(text):
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?nan", text.strip(), re.ASCII | re.IGNORECASE):
        raise FaultError
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise FaultError
    return value


def spells_numbers(values):
    try:
        numbers = [number_of(value) for value in values]
    except FaultError:
        return False
    return len(values) <= 2 and len(set(numbers)) == len(numbers) and not any(number != number for number in numbers)


def arff_value(cell, quoted, declared):
    """What a cell stands for: a number, a word, a missing value."""
    if not quoted and cell in ("?", ""):
        return None
    if declared == "numeric":
        return number_of(cell)
    if declared == "string":
        return cell
    if spells_numbers(declared):
        value = number_of(cell)
        if value == value and value not in [float(one) for one in declared]:
            raise FaultError
        return value
    if cell not in declared:
        raise FaultError
    return cell


def label_of(value):
    word = str(value).strip().lower()
    number = {"false": 0, "no": 0, "true": 1, "yes": 1}.get(word)
    number = number_of(word) if number is None else number
    if number not in (0, 1):
        raise FaultError
    return int(number)


def arff_rows(text):
    """Names and declared types of the columns, and for each row a list of what its cells stand for."""
    names, types, rows, in_data = [], [], [], False
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.strip()
        if not line or line[0] == "%":
            continue
        if in_data:
            rows.append(arff_row(line, types, isinstance(rows[0], dict) if rows else line[0] == "{"))
        elif line.lower().split()[0] == "@attribute":
            name, kind = declaration(line.split(None, 1)[1])
            names.append(name)
            types.append(kind)
        in_data = in_data or line.lower().split()[0] == "@data"
    return names, types, rows


def declaration(text):
    if text[0] in "'\"":
        stop = after_quote(text)
        name, kind = cells_of(text[:stop])[0][0], text[stop:].strip()
    else:
        stop = next((place for place, char in enumerate(text) if char.isspace() or char == "{"), len(text))
        name, kind = text[:stop], text[stop:].strip()
    if kind[0] == "{":
        return name, [cell for cell, _ in cells_of(kind[1 : end_of_list(kind)])]
    return name, "string" if kind.split("%")[0].strip().lower() == "string" else "numeric"


def end_of_list(kind):
    """The place of the first closing brace outside quotes."""
    place = 0
    while kind[place] != "}":
        place += after_quote(kind[place:]) if kind[place] in "'\"" else 1
    return place


def arff_row(line, types, as_sparse):
    if not as_sparse:
        return cells_of(line)
    entries = {}
    inner = line[1:-1].strip()
    while inner:
        index = inner.split(None, 1)[0]
        rest = inner[len(index) :].lstrip()
        stop = after_quote(rest) if rest[:1] in ("'", '"') else (rest + ",").index(",")
        entries[int(index)] = cells_of(rest[:stop])[0]
        inner = rest[stop:].lstrip().removeprefix(",").strip()
    return entries


def reference_arff(text):
    """Features as lists of numbers, words and None, by name; Y as a list of rows."""
    names, types, rows = arff_rows(text)
    table = []
    for row in rows:
        values = []
        for column, kind in enumerate(types):
            if isinstance(row, dict) and column not in row:
                first = {"numeric": 0.0, "string": None}.get(kind) if isinstance(kind, str) else kind[0]
                values.append(float(first) if isinstance(kind, list) and spells_numbers(kind) else first)
            else:
                cell, quoted = row[column]
                values.append(arff_value(cell, quoted, "string" if names[column] in LABELS else kind))
        table.append(values)
    Y = [[label_of(values[names.index(label)]) for label in LABELS] for values in table]
    return {name: [values[k] for values in table] for k, name in enumerate(names) if name not in LABELS}, Y


def reference_libsvm(text):
    """Dictionaries of values by index and sets of labels, row by row."""
    entries, sets = [], []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        tokens = line.split("#")[0].split()
        if tokens:
            sets.append(set() if ":" in tokens[0] else {int(float(label)) for label in tokens[0].split(",")})
            pairs = [token.split(":") for token in tokens if ":" in token]
            entries.append({int(index): number_of(value) for index, value in pairs})
    return entries, sets


def assert_arff_equals_reference(content, data):
    columns, Y = reference_arff(content.decode("utf-8-sig"))
    found = words(data)
    for name, column in columns.items():
        cells = [None if cell != cell else cell for cell in column]
        if name in found:
            assert found[name] == cells
        else:
            assert len(set(cells)) == len(cells) > 1
    assert data.Y.tolist() == Y


def assert_libsvm_equals_reference(content, data):
    entries, sets = reference_libsvm(content.decode("utf-8-sig"))
    found = words(data)
    for row, (own, labels) in enumerate(zip(entries, sets, strict=True)):
        for name, column in found.items():
            value = own.get(int(name), 0.0)
            assert column[row] == (None if value != value else value)
        assert {name for name, flag in zip(data.label_names, data.Y[row], strict=True) if flag} == set(map(str, labels))
    assert all(str(index) in found for own in entries for index in own)


@pytest.mark.parametrize("seed, n_rows", [("arff", 3), ("sparse", 4)])
def test_the_arff_seeds_are_read_as_the_reference_reads_them(seed, n_rows):
    data = outcome(SEEDS[seed].encode(), LABELS)
    assert data.X.shape == (n_rows, 3)
    assert_arff_equals_reference(SEEDS[seed].encode(), data)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(["arff", "sparse"]).flatmap(lambda s: st.one_of(respelled(SEEDS[s], "@data"), mutated(SEEDS[s])))
)
def test_a_mutated_arff_file_is_an_error_or_what_the_reference_reads(text):
    content = text.encode("utf-8", "surrogatepass")
    data = outcome(content, LABELS, "arff")
    if data is not None:
        assert_arff_equals_reference(content, data)


@settings(deadline=None, max_examples=300)
@given(st.one_of(mutated(SEEDS["libsvm"]), respelled(SEEDS["libsvm"], "")))
def test_a_mutated_libsvm_file_is_an_error_or_what_the_reference_reads(text):
    content = text.encode("utf-8", "surrogatepass")
    data = outcome(content, None, "libsvm")
    if data is not None and data.X.shape[1] < 1000:
        assert_libsvm_equals_reference(content, data)


def assert_error_or_consistent(content, labels, format):
    data = outcome(content, labels, format)
    if data is None:
        return
    n_rows, n_features = data.X.shape
    assert data.Y.shape == (n_rows, len(data.label_names)) and n_rows > 0
    assert len(data.feature_names) == n_features == len(set(data.feature_names))
    assert np.isin(data.Y, [0, 1]).all()
    values = data.X.data if sparse.issparse(data.X) else data.X
    assert not np.isinf(values).any() and values.dtype == np.float64


@settings(deadline=None, max_examples=200)
@given(st.one_of(mutated(SEEDS["csv"]), respelled(SEEDS["csv"], "\n")))
def test_a_mutated_csv_file_is_an_error_or_consistent(text):
    assert_error_or_consistent(text.encode("utf-8", "surrogatepass"), LABELS, "csv")


FILE_OF_A_TABLE = io.BytesIO()
TABLE = pa.table({"a": [1.5, None], "b": pa.array(["x", "y"]).dictionary_encode(), "y": [1, 0], "z": [True, False]})
pq.write_table(TABLE, FILE_OF_A_TABLE, write_page_checksum=True)
PARQUET = FILE_OF_A_TABLE.getvalue()


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, len(PARQUET) - 1), st.integers(0, 255)), min_size=1, max_size=3), st.booleans()
)
def test_a_mutated_parquet_file_is_an_error_or_consistent(changes, cut):
    content = bytearray(PARQUET)
    for place, byte in changes:
        content[place] = byte
    assert_error_or_consistent(bytes(content[: changes[0][0]] if cut else content), LABELS, "parquet")


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(st.binary(max_size=80), st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass"))),
    st.sampled_from([None, *FORMATS]),
    st.sampled_from([None, (), ("y",)]),
    st.booleans(),
)
def test_arbitrary_bytes_are_an_error_or_consistent(content, format, labels, zipped):
    assert_error_or_consistent(gzip.compress(content, mtime=0) if zipped else content, labels, format)


@settings(deadline=None, max_examples=200)
@given(mutated("<?xml version='1.0'?>\n<labels>\n<label name='y'/>\n<label name='z'></label>\n</labels>"))
def test_a_mutated_xml_file_is_an_error_or_names_columns(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "labels.xml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        data = read(Named(SEEDS["arff"].encode()), path)
    except DataError as error:
        assert "labels.xml" in str(error) or FILE in str(error)
    else:
        assert list(data.label_names) == [name for name in ("y", "z") if name in data.label_names]


LONG = 1_000_000
HEAD = "@relation t\n@attribute a numeric\n@attribute s string\n@attribute y {0,1}\n@data\n"
LONG_LINES = {
    "one number": HEAD + "1" * LONG,
    "open quote": HEAD + "1,'" + "x" * LONG,
    "escapes": HEAD + "1,'" + "\\'" * (LONG // 2),
    "closed quotes": HEAD + "'a'," * (LONG // 4),
    "spaces": HEAD + "1" + " " * LONG + "x",
    "commas": HEAD + "," * LONG,
    "open brace": HEAD + "{" + "0 1," * (LONG // 4),
    "repeated index": HEAD + "{" + "0 1," * (LONG // 4) + "0 1}",
    "sparse quotes": HEAD + "{" + "1 'a'," * (LONG // 6) + "0 1}",
    "values": "@relation t\n@attribute a {" + "x," * (LONG // 2) + "x}\n@data\nx\n",
    "open values": "@relation t\n@attribute a {" + "'x'," * (LONG // 4),
    "name": "@relation t\n@attribute '" + "\\'" * (LONG // 2) + "\n@data\n1\n",
    "blank": HEAD + "\n" * (LONG // 5),
    "libsvm": "1 " + "1:1 " * (LONG // 4),
    "libsvm label": "1," * (LONG // 2) + " 1:1",
    "csv": "a,y\n" + '"' * LONG,
    "csv cells": "a,y\n" + "1," * (LONG // 2),
    "comments": "%\n" * (LONG // 10) + "x",
    "hashes": "#\n" * (LONG // 10) + "x",
}


@pytest.mark.parametrize("case", LONG_LINES)
def test_a_million_characters_of_nonsense_take_seconds_not_hours(case):
    start = time.process_time()
    assert outcome(LONG_LINES[case].encode(), ["y"]) is None
    assert time.process_time() - start < 5
