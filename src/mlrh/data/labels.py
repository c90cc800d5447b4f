"""Which columns of a file are labels: names given by the caller, by a MULAN XML file or by a MEKA relation name."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from mlrh.data.containers import DataError
from mlrh.data.sources import Source, load, shown

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
HOW = "name the label columns or a MULAN XML file (--labels, or labels= in Python)"
LIST = "the list of labels"


@dataclass(frozen=True)
class LabelChoice:
    """Names of labels; `in_order` says whether their order counts or the file's does."""

    names: tuple[str, ...]
    in_order: bool
    origin: str


def label_choice(labels: Any) -> LabelChoice | None:
    """What the argument `labels` of a reader chooses: None, the path of an XML file, or a sequence of names."""
    if labels is None:
        return None
    if isinstance(labels, str | Path):
        return read_xml(labels)
    names = tuple(labels)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"labels must be names, the path of an XML file or None; found {wrong[0]!r} among them.")
    _refuse_repeats(names, LIST)
    return LabelChoice(names, True, LIST)


def label_columns(choice: LabelChoice, names: Sequence[str], source: Source, *, other: Mapping[str, int] | None = None):
    """Columns and names of the chosen labels.

    Parameters
    ----------
    names : sequence of str
        Names of the file's columns.
    other : mapping of str to int, optional
        Columns by a second spelling of their name, for labels that no name equals.
    """
    position = {**(other or {}), **{name: column for column, name in enumerate(names)}}
    absent = [name for name in choice.names if name not in position]
    if absent:
        what = f"has no column {shown(absent[0])}, which {choice.origin} names as a label; correct one of the two."
        raise source.error(what)
    found = [(position[name], name) for name in choice.names]
    if len({column for column, _ in found}) < len(found):
        raise source.error(f"two of the labels that {choice.origin} names are the same column; name each once.")
    return found if choice.in_order else sorted(found)


def meka_labels(relation: str, n_columns: int, source: Source) -> range | None:
    """Columns that the option -C n of a MEKA relation name declares as labels, or None where it can't be trusted."""
    options = list(MEKA.finditer(relation))
    if not options or MOVES_COLUMNS.search(relation, options[-1].end()):
        return None
    n_labels = int(options[-1][1])
    if n_labels == 0 or abs(n_labels) > n_columns:
        what = f"the relation name says -C {n_labels}, but there are {n_columns} attributes; correct it, or {HOW}."
        raise source.error(what)
    return range(n_labels) if n_labels > 0 else range(n_columns + n_labels, n_columns)


def xml_beside(source: Source) -> Path | None:
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
    """The label names of a MULAN XML file, in its order; nested labels count like others."""
    source = load(path)
    names: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = _Collector(source, parser, names)
    parser.StartDoctypeDeclHandler = lambda *_: _refuse_doctype(source, parser)
    try:
        parser.Parse(source.content, True)
    except expat.ExpatError as error:
        raise source.error(f"is not well-formed XML ({expat.ErrorString(error.code)}).", error.lineno) from error
    except (LookupError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise source.error(f"its XML can't be decoded ({error}); convert it to UTF-8.") from error
    _refuse_repeats(names, source.where)
    return LabelChoice(tuple(names), False, source.where)


def xml_text(names: Sequence[str], where: str) -> str:
    """A MULAN XML file that names the labels."""
    for name in names:
        if NOT_XML.search(name):
            raise DataError(f"{where}: XML can't hold the label name {shown(name)}; rename it or use layout='meka'.")
    escapes = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    lines = [f"<label name={quoteattr(name, escapes)}></label>" for name in names]
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<labels xmlns="{NAMESPACE}">'
    return "\n".join([head, *lines, "</labels>\n"])


class _Collector:
    """Appends the name of every label element to `names` and refuses files that aren't about labels."""

    def __init__(self, source, parser, names):
        self._source, self._parser, self._names, self._inside = source, parser, names, False

    def __call__(self, tag, attributes):
        element, line = tag.rsplit(" ", 1)[-1], self._parser.CurrentLineNumber
        if not self._inside and element != "labels":
            raise self._source.error(f"the root must be <labels>, as in MULAN files; found <{element[:40]}>.", line)
        self._inside = True
        if element == "label":
            if "name" not in attributes:
                raise self._source.error("a <label> needs the attribute name.", line)
            self._names.append(attributes["name"])


def _refuse_doctype(source, parser):
    # Entities of a document type can expand to any size.
    raise source.error("a document type (<!DOCTYPE>) is not allowed; remove it.", parser.CurrentLineNumber)


def _refuse_repeats(names, where):
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{where}: the label {shown(name)} is named twice; name each label once.")
        seen.add(name)


def _shorter_stems(stem):
    yield stem
    while PART.search(stem):
        stem = PART.sub("", stem)
        yield stem
