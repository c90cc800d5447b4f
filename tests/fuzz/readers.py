"""Data files, mutated byte by byte and made by a grammar: `read` gives a data set or one sentence that names the file.

Never another exception or warning, the end of the process, ten seconds or a gigabyte.
"""

import gzip
import io
import json
import tempfile
import time
import warnings
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from mlrh.data import DataError, Schema, read

from . import CORPUS
from ._limits import Worker
from ._mutations import LONGEST, NUMBERS, mutant

SECONDS = 10  # for one case
MEMORY = 2**30  # for one case, beyond the imports
LABELS = ("y", "z")
SUFFIXES = (".arff", ".libsvm", ".csv", ".jsonl", ".parquet")
SCHEMA = Schema(("a", "b c"), LABELS, {"b c": ("red", "dark blue")})


class Case(NamedTuple):
    """A file, and how it is read; `xml` is the content of a file of labels beside it, if any."""

    suffix: str
    content: bytes
    labels: tuple[str, ...] | None = None
    xml: bytes | None = None
    schema: Schema | None = None


def run(seconds: float, seed: int, most: float = inf) -> int:
    """The number of cases tried; an AssertionError names the seed of the first with a fault."""
    corpus = kept()
    with tempfile.TemporaryDirectory() as folder:
        warm_up = [case for case in corpus if case.suffix in SUFFIXES]
        with Worker(partial(fault_of, folder), warm_up, seconds=SECONDS, memory=MEMORY) as worker:
            end = time.monotonic() + seconds
            for case in corpus:
                fault = worker.fault(case)
                assert fault is None, f"{case.suffix} of the corpus: {fault}\n{shown(case)}"
            for number in count():
                if number >= most or time.monotonic() > end:
                    return len(corpus) + number
                case = drawn(Random(seed + number), corpus)
                fault = worker.fault(case)
                again = f"python -m tests.fuzz --seconds 1 --only readers --seed {seed + number}"
                assert fault is None, f"{again}\n{fault}\n{shown(case)}"


def shown(case: Case) -> str:
    """The case in full where it is short, for a message."""
    return repr(case._replace(content=case.content[:2000], xml=None if case.xml is None else case.xml[:2000]))


def fault_of(folder: str, case: Case) -> str | None:
    """What is wrong with how a file is read; other exceptions and warnings come out as they are."""
    path, beside = Path(folder, f"case{case.suffix}"), Path(folder, "case.xml")
    path.write_bytes(case.content)
    if case.xml is not None:
        beside.write_bytes(case.xml)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)  # of what is dropped or counts as missing
            data = read(path, case.labels, schema=case.schema)
    except DataError as error:
        if isinstance(error.__cause__, MemoryError):  # `read` makes a sentence of what Arrow lacks, too
            return "needed more memory than a file may take"
        return fault_of_sentence(str(error), folder)
    finally:
        path.unlink()
        beside.unlink(missing_ok=True)
    return fault_of_data(data)


def fault_of_sentence(sentence: str, folder: str) -> str | None:
    # What a schema asks for and the set lacks is said of the set, which is called by the file's stem.
    if not sentence.startswith((f"{folder}/case", "case lacks ", "case: ")):
        return f"the error doesn't begin with the file: {sentence!r}"
    if "\n" in sentence or "\r" in sentence or len(sentence) > len(folder) + 600:
        return f"the error isn't one sentence: {sentence!r}"
    return None


def fault_of_data(data) -> str | None:
    """What contradicts itself in a data set."""
    n_rows, n_features = data.X.shape
    values = data.X.data if sparse.issparse(data.X) else data.X
    rules = {
        "X and Y have as many rows": len(data.Y) == n_rows > 0,
        "each feature has a name of its own": len(data.feature_names) == n_features == len(set(data.feature_names)),
        "each label has a name of its own": len(data.label_names) == data.Y.shape[1] == len(set(data.label_names)),
        "Y holds 0 and 1": data.Y.dtype == np.int8 and bool(np.isin(data.Y, [0, 1]).all()),
        "X holds finite numbers and NaN": values.dtype == np.float64 and not np.isinf(values).any(),
        "a nominal value has a name": all(map(partial(_is_coded, data), (*data.categories, *data.texts))),
        "what is kept has a value for each row": all(len(values) == n_rows for values in data.kept.values()),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    return f"a data set in which it isn't true that {' and '.join(broken)}" if broken else None


def _is_coded(data, name):
    """Whether a nominal feature holds only indices of its values."""
    column = data.X[:, [data.feature_names.index(name)]]
    codes = column.data if sparse.issparse(column) else column.ravel()
    return bool(np.isin(codes[~np.isnan(codes)], range(len(data.words(name)))).all())


# Cases


def kept() -> list[Case]:
    """The files of the corpus, read as their names say: with the labels y and z, but for LIBSVM."""
    cases = []
    for path in sorted((CORPUS / "readers").iterdir()):
        suffix = "".join(path.suffixes)
        if suffix == ".xml":
            continue
        beside = path.with_suffix(".xml")
        xml = beside.read_bytes() if beside.exists() else None
        labels = None if xml is not None or ".libsvm" in suffix else ("y", "z")
        cases.append(Case(suffix, path.read_bytes(), labels, xml))
    return cases


def drawn(random: Random, corpus: list[Case]) -> Case:
    """A mutant of the corpus, or a file by the grammar; sometimes of both kinds, packed, or read otherwise."""
    if random.random() < 0.5:
        case = random.choice(corpus)
        case = case._replace(content=mutant(random, case.content, [other.content for other in corpus]))
        if case.xml is not None and random.random() < 0.3:
            case = case._replace(xml=mutant(random, case.xml, []))
    else:
        case = made(random)
        if random.random() < 0.3:
            case = case._replace(content=mutant(random, case.content, []))
    if random.random() < 0.1:
        case = case._replace(content=gzip.compress(case.content, 1, mtime=0))
    if random.random() < 0.1:
        case = case._replace(suffix=random.choice([*SUFFIXES, ".txt", ""]))
    if random.random() < 0.15:
        case = case._replace(labels=random.choice([None, (), ("y",), ("z", "y"), ("1", "0"), ("nobody",)]))
    return case._replace(schema=SCHEMA) if random.random() < 0.1 else case


# Grammar: what is right in some place, so that many cases come far

WORDS = ["a", "b c", "y", "z", "red", "dark blue", "no", "yes", "true", "FALSE", "", " ", "NA", "é", "x" * 300]
NAMES = ["y", "z", "a", "b c", "a", "'it\\'s'", "é", "1", "0", "{", "", "q" * 300]


def made(random: Random) -> Case:
    """A file of a format by its grammar, mostly right."""
    suffix = random.choice(SUFFIXES)
    if suffix == ".parquet":
        return Case(suffix, _parquet(random), ("y", "z"))
    text, labels = {".arff": _arff, ".libsvm": _libsvm, ".csv": _csv, ".jsonl": _jsonl}[suffix](random), ("y", "z")
    if random.random() < 0.1:
        text = text.replace("\n", random.choice(["\r", "\r\n", "\n\n"]))
    content = text.encode(random.choice(["utf-8"] * 18 + ["utf-8-sig", "utf-16"]), "surrogatepass")
    if suffix == ".libsvm":
        return Case(suffix, content)
    xml = _xml(random).encode("utf-8", "surrogatepass") if suffix == ".arff" and random.random() < 0.3 else None
    return Case(suffix, content, labels if xml is None else None, xml)


def _how_many(random, most=6):
    """Mostly a few, seldom very many."""
    return LONGEST // 10 if random.random() < 0.005 else random.randint(0, most)


def _cell(random):
    return random.choice([random.choice(NUMBERS), random.choice(WORDS), random.choice("01")])


def _quoted(random, text):
    """The text, mostly in quotes where it needs them."""
    needs = not text or any(mark in text for mark in " ,'\"{}%;\t\n")
    if random.random() > (0.95 if needs else 0.1):
        return text
    return random.choice(["'{}'", '"{}"']).format(text)


KINDS = ["numeric", "numeric", "real", "integer % note", "string", "{0,1}", "{1,0}", "{no,yes}", "{red,'dark blue'}"]
KINDS += ["{1,2,3}", "{x}", "{?}", "{a,a}", "{}", "{a,,b}", "{'a", 'date "yyyy-MM-dd"', "relational", "", "{1e0,1}"]
RELATIONS = ["t", "'t: -C 2'", "'t: -C -2'", "'t: -C 99'", "'t: -C 0'", "'t: -C 2 -unsupervised.Remove-R1'", "", "'"]


def _arff(random):
    # Whatever else is declared, there are mostly the labels y and z, so that rows are reached.
    names = random.sample(NAMES, random.randint(0, 4)) + (["y", "z"] if random.random() < 0.9 else [])
    names += [f"f{number}" for number in range(_how_many(random, 2))]
    names = list(dict.fromkeys(names)) if random.random() < 0.95 else names
    kinds = [
        random.choice(KINDS[:9] if random.random() < 0.95 else KINDS) if name not in LABELS else "{0,1}"
        for name in names
    ]
    lines = [f"@relation {random.choice(RELATIONS)}"]
    lines += [f"@attribute {_quoted(random, name)} {kind}" for name, kind in zip(names, kinds, strict=True)]
    lines.append(random.choice(["@data", "@DATA", "@data % rows", ""] if random.random() < 0.1 else ["@data"]))
    row = _sparse_row if random.random() < 0.4 else _dense_row
    rows = [row(random, kinds) for _ in range(random.randint(1, 4))]
    lines += rows * (LONGEST // 10 // max(1, len(names)) if random.random() < 0.01 else 1)
    return "\n".join(lines) + random.choice(["", "\n", "\n\n% end"])


def _arff_cell(random, kind):
    if random.random() < 0.05:
        return _cell(random)
    if random.random() < 0.1:
        return "?"
    values = kind.strip("{}").split(",")
    return random.choice(values) if kind.startswith("{") else random.choice(NUMBERS[:13])


def _dense_row(random, kinds):
    cells = [_arff_cell(random, kind) for kind in kinds]
    return ",".join(cells[:-1] if random.random() < 0.02 else cells)


def _sparse_row(random, kinds):
    places = sorted(random.sample(range(len(kinds)), random.randint(0, min(len(kinds), 5))))
    places += [random.choice([-1, 0, len(kinds), 10**9])] if random.random() < 0.03 else []
    kind_of = dict(enumerate(kinds))
    pairs = ",".join(f"{place} {_arff_cell(random, kind_of.get(place, 'numeric'))}" for place in places)
    return random.choice(["{%s}", "{ %s }", "{%s}"]) % pairs if random.random() < 0.98 else "{" + pairs


def _libsvm(random):
    lines = []
    for _ in range(random.randint(1, 5)):
        labels = ",".join(
            random.choice(["0", "1", "5", "-3", "7.0", _cell(random)]) for _ in range(random.randint(0, 3))
        )
        indices = sorted({random.randint(0, 9) for _ in range(_how_many(random))})
        if random.random() < 0.05:
            indices.append(random.choice([10**5, 2_000_000, 2**31, 10**18, 10**30, -1]))
        values = [random.choice(NUMBERS[:10]) if random.random() < 0.97 else _cell(random) for _ in indices]
        pairs = " ".join(f"{index}:{value}" for index, value in zip(indices, values, strict=True))
        lines.append(f"{labels} {pairs}{random.choice(['', '', ' # note', ' '])}")
    return "\n".join(lines * (LONGEST // 10 if random.random() < 0.01 else 1)) + "\n"


def _csv(random):
    mark = random.choice(",,,,;\t|")
    names = random.sample(NAMES, random.randint(0, 5)) + [*LABELS] + [f"f{k}" for k in range(_how_many(random, 2))]
    names = list(dict.fromkeys(names)) if random.random() < 0.95 else names
    lines = [f"sep={mark}"] if random.random() < 0.05 else []
    lines.append(mark.join(_csv_cell(random, name, mark) for name in names))
    columns = [random.choice([["0", "1"], NUMBERS[:10], WORDS, [*NUMBERS, *WORDS]]) for _ in names]
    for _ in range(random.randint(0, 5) or LONGEST // 100):
        cells = [
            random.choice("01") if name in LABELS else random.choice(own)
            for name, own in zip(names, columns, strict=True)
        ]
        cells = cells[:-1] if random.random() < 0.01 else cells
        lines.append(mark.join(_csv_cell(random, cell, mark) for cell in cells))
    return "\n".join(lines) + random.choice(["", "\n"])


DEEP = ["[" * LONGEST, '{"a":' * LONGEST, "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500]
VALUES = ["1", "-2.5e3", "0", "true", "false", "null", '"red"', '"2024-03-31"', '""', '"\\ud800"', "NaN", "-Infinity"]
VALUES += ["1e999", "9" * 400, "9" * 5000, "[]", '["a", "b"]', '{"q": [1]}', '"' + "x" * 300 + '"', *DEEP[2:]]


def _jsonl(random):
    names = [*random.sample(NAMES[4:], random.randint(0, 3)), "a"]
    columns = {name: random.choice([VALUES[:3], VALUES[:6], VALUES[5:9], VALUES]) for name in dict.fromkeys(names)}
    lines = []
    for _ in range(random.randint(0, 5) or LONGEST // 100):
        pairs = {name: random.choice(own) for name, own in columns.items() if random.random() < 0.9}
        pairs |= {name: random.choice(["0", "1", "true", '"yes"']) for name in LABELS if random.random() < 0.99}
        lines.append("{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in pairs.items()) + "}")
    if random.random() < 0.1:
        lines.append(random.choice(["[1]", "1", "", "{}", '{"a": 1, "a": 2}', *DEEP]))
    if random.random() < 0.02:  # another key in each line
        lines = [f'{{"k{number}": 1, "y": 1, "z": 0}}' for number in range(LONGEST // 10)]
    return "\n".join(lines) + random.choice(["", "\n"])


def _csv_cell(random, text, mark):
    needs = any(one in text for one in f'{mark}"\n\r')
    return '"' + text.replace('"', '""') + '"' if random.random() < (0.98 if needs else 0.1) else text


def _xml(random):
    names = [random.choice([*NAMES, "y", "z", "y", "z"]) for _ in range(random.randint(0, 3))] + ["y", "z"]
    names = list(dict.fromkeys(names))
    labels = [
        random.choice(
            ['<label name="{}"/>', '<label name="{}"></label>', '<label name="{}"><label name="y2"/></label>']
        )
        for _ in names
    ]
    body = "\n".join(label.format(name) for label, name in zip(labels, names, strict=True))
    if random.random() < 0.1:  # what a parser may be led to: entities that grow, other files, depth
        body = (
            random.choice(["&b;", '<label name="&b;"/>', "<label>" * LONGEST, "<a/>" * LONGEST, "<![CDATA[", "<!--"])
            + body
        )
    entities = '<!DOCTYPE labels [<!ENTITY a "xxxxxxxxxx"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>\n'
    outside = '<!DOCTYPE labels [<!ENTITY b SYSTEM "file:///etc/hostname">]>\n'
    head = random.choice(
        ['<?xml version="1.0"?>\n', '<?xml version="1.0" encoding="latin-1"?>\n', "", entities, outside]
    )
    root = random.choice(["labels"] * 18 + ["label", "nothing"])
    return f'{head}<{root} xmlns="http://mulan.sourceforge.net/labels">\n{body}\n</{root}>'


TYPES = [
    *(pa.float64(), pa.float64(), pa.float32(), pa.int64(), pa.uint64(), pa.int8(), pa.bool_(), pa.string()),
    *(pa.large_string(), pa.float16(), pa.decimal128(38, 3), pa.dictionary(pa.int8(), pa.string()), pa.null()),
    *(pa.dictionary(pa.int32(), pa.int64()), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.duration("s")),
    *(pa.list_(pa.float64()), pa.struct([("q", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.time64("us")),
]


def _parquet(random):
    names = [*random.sample(NAMES, random.randint(0, 4)), *LABELS]
    names = list(dict.fromkeys(names)) if random.random() < 0.9 else names
    n_rows = LONGEST if random.random() < 0.01 else random.randint(0, 5)
    columns = [_arrow_column(random, name in LABELS, n_rows) for name in names]
    table = pa.table(columns, names=names)
    if random.random() < 0.1:
        table = table.replace_schema_metadata({"pandas": random.choice(PANDAS)})
    file = io.BytesIO()
    pq.write_table(
        table,
        file,
        compression=random.choice(["none", "snappy", "gzip", "zstd"]),
        version=random.choice(["1.0", "2.6"]),
        row_group_size=random.choice([1, 2, None]) if n_rows < 9 else None,
        use_dictionary=random.random() < 0.7,
        write_page_checksum=random.random() < 0.5,
        data_page_version=random.choice(["1.0", "2.0"]),
    )
    return file.getvalue()


PANDAS = [
    "{",
    "[]",
    '{"index_columns": ["a"]}',
    '{"index_columns": 5}',
    '{"index_columns": [{"kind": "range"}]}',
    "null",
    "[" * 100_000,
]


def _arrow_column(random, is_label, n_rows):
    kind = random.choice(TYPES[3:8] if is_label and random.random() < 0.9 else TYPES)
    values = [_arrow_value(random, kind, is_label) for _ in range(min(n_rows, 50))]
    values = values * (n_rows // max(1, len(values))) + values[: n_rows % max(1, len(values))]
    return pa.array(values, kind)


def _arrow_value(random, kind, is_label):
    if pa.types.is_null(kind) or random.random() < (0.02 if is_label else 0.15):
        return None
    if pa.types.is_dictionary(kind):
        return _arrow_value(random, kind.value_type, is_label)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return random.choice(["0", "1", "no", "yes"]) if is_label else random.choice(WORDS)
    if is_label and pa.types.is_integer(kind):
        return random.randint(0, 1)
    if pa.types.is_floating(kind):
        number = random.choice([0.0, 1.0, -1.5, 6e4, float("nan")] * 9 + [float("inf")])
        return np.float16(number) if pa.types.is_float16(kind) else number
    return VALUES_OF[kind](random)


VALUES_OF = {
    pa.int64(): lambda random: random.choice([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
    pa.uint64(): lambda random: random.choice([0, 1, 2**64 - 1]),
    pa.int8(): lambda random: random.randint(-128, 127),
    pa.bool_(): lambda random: random.random() < 0.5,
    pa.decimal128(38, 3): lambda random: random.randint(-9, 9),
    pa.binary(): lambda random: random.choice([b"", b"\xff", b"red"]),
    pa.date32(): lambda random: random.randint(-9, 9),
    pa.timestamp("us", "UTC"): lambda random: random.randint(-9, 9),
    pa.duration("s"): lambda random: random.randint(-9, 9),
    pa.list_(pa.float64()): lambda random: random.choice([[], [1.0], [None, 2.0]]),
    pa.struct([("q", pa.int64())]): lambda random: {"q": random.randint(0, 9)},
    pa.map_(pa.string(), pa.int64()): lambda random: [("k", 1)],
    pa.time64("us"): lambda random: random.randint(0, 9),
}
