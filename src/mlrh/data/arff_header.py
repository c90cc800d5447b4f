"""The grammar of ARFF up to @data: quotes, attribute declarations, relation name. Knows nothing of rows or labels."""

import re
from dataclasses import dataclass

from mlrh.data.containers import DataError
from mlrh.data.sources import Source, shown

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
class Attribute:
    """A declared column: `values` of a nominal one, else None; `other` is a second spelling of its name.

    Its kind is "numeric", "nominal", "string" or "date".
    """

    name: str
    other: str
    kind: str
    values: tuple[str, ...] | None
    line: int


@dataclass(frozen=True)
class Header:
    """What stands before the rows; `n_lines` counts the lines up to and with @data."""

    relation: str
    attributes: list[Attribute]
    n_lines: int


def parse_header(lines: list[str], source: Source) -> Header:
    """The declarations of an ARFF file."""
    relation, attributes = "", []
    for line, text in enumerate(lines, 1):
        keyword, rest = _declaration(text)
        if keyword == "@relation":
            relation = plain(rest) or ""
        elif keyword == "@attribute":
            attributes.append(_attribute(rest, line, source))
        elif keyword == "@data" and (not rest or rest.startswith("%")):
            return Header(relation, _checked(attributes, source), line)
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
        return unescaped(text[1:-1])
    return text


def unescaped(text: str) -> str:
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


def split_cells(text: str) -> list[str]:
    """Cells of a comma-separated row, quotes kept; ValueError where a quote isn't closed or isn't a whole cell."""
    if "'" not in text and '"' not in text:
        return text.split(",")
    cells, place = [], 0
    while True:
        match = CELL.match(text, place)
        if match is None:
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
    name, other = (unescaped(match[1][1:-1]), match[1][1:-1]) if match[1] else (match[2], unescaped(match[2]))
    if match[3].startswith("{"):
        return Attribute(name, other, "nominal", _declared(match[3], name, line, source), line)
    return Attribute(name, other, _kind(match[3], name, line, source), None, line)


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
        cells = [cell.strip() for cell in split_cells(match[1])]
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
        if attribute.name in lines:
            what = (
                f"attribute {shown(attribute.name)} was declared before, in line {lines[attribute.name]}; rename one."
            )
            raise source.error(what, attribute.line)
        lines[attribute.name] = attribute.line
    return attributes
