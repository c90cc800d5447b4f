"""What the pages of a Parquet file say of themselves, read before anything is unpacked; see the Parquet format.

A page of a few bytes can unpack to gigabytes, whatever the file's metadata say, and Arrow unpacks it as a whole.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

DELTA_BYTE_ARRAY = 7  # number of the encoding in which a string is a prefix of the one before it and some more
# Fields of the metadata: groups of rows, the columns in them, what is known of a column, and of that what is needed.
GROUPS, CHUNKS, METADATA, PATH, SIZE, DATA_PLACE, DICTIONARY_PLACE = 4, 1, 3, 3, 7, 9, 11
# Fields of a page header, and of the headers of the three kinds of pages with values in it.
UNPACKED, PACKED, DATA, DICTIONARY, DATA_2 = 2, 3, 5, 7, 8
ENCODING = {DATA: 2, DICTIONARY: 2, DATA_2: 4}
N_VALUES = 1
# What is kept of the metadata and of a page header: numbers of fields, with what is kept of the structs in them.
NOTHING: Mapping[int, Any] = {}
OF_CHUNK = {METADATA: dict.fromkeys((PATH, SIZE, DATA_PLACE, DICTIONARY_PLACE), NOTHING)}
OF_FILE = {GROUPS: {CHUNKS: OF_CHUNK}}
OF_PAGE = {
    **dict.fromkeys((UNPACKED, PACKED), NOTHING),
    **{kind: dict.fromkeys((N_VALUES, encoding), NOTHING) for kind, encoding in ENCODING.items()},
}
# Types of Thrift's compact protocol.
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
VARINT_FIRST = frozenset((I16, I32, I64, BINARY))  # begin with a whole number of one byte or more
MAX_DEPTH = 16  # of structs within structs; page headers have three


class Page(NamedTuple):
    """Bytes after unpacking, number of values, and the number of their encoding."""

    unpacked: int
    n_values: int
    encoding: int


def pages_of(content: bytes, columns: set[str]) -> Iterator[Page]:
    """The pages of the columns, by the file's own metadata; a ValueError where they can't be followed."""
    # Not by pyarrow's view of the metadata: it ends the process where they contradict themselves.
    end = len(content) - 8  # before the size of the metadata and the four letters at the end
    try:
        metadata, _ = _struct(content, end - int.from_bytes(content[end : end + 4], "little"), OF_FILE)
        chunks = [chunk[METADATA] for group in metadata[GROUPS] for chunk in group[CHUNKS]]
        names = [chunk[PATH][0].decode() for chunk in chunks]  # what follows are parts of a list
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the metadata at its end are damaged") from error
    for name, chunk in zip(names, chunks, strict=True):
        if name in columns:
            yield from _pages_of_chunk(content, chunk)


def _pages_of_chunk(content, chunk):
    try:
        # Writers without a dictionary may store 0 for its place.
        place = min(start for start in (chunk.get(DATA_PLACE), chunk.get(DICTIONARY_PLACE)) if start)
        stop = min(place + chunk[SIZE], len(content))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError("the metadata of a column are damaged") from error
    while place < stop:
        try:
            header, place = _struct(content, place, OF_PAGE)
            page, size = _page(header), header[PACKED]
        except (LookupError, TypeError) as error:
            raise ValueError("the header of a page is damaged") from error
        if size < 0 or page.unpacked < 0 or page.n_values < 0:
            raise ValueError("a page has a negative size")
        yield page
        place += size


def _page(header):
    kind = next((kind for kind in ENCODING if kind in header), None)
    if kind is None:  # a page without values, such as an index
        return Page(header[UNPACKED], 0, 0)
    return Page(header[UNPACKED], header[kind][N_VALUES], header[kind][ENCODING[kind]])


# Thrift's compact protocol: whole numbers, strings, lists and structs are kept, anything else is skipped. A file has
# thousands of such structs. So whole numbers and strings, which most fields are, are read without further calls.


def _struct(content, place, wanted, depth=0):
    """The wanted fields by their numbers, and the place after all of them."""
    fields: dict[int, Any] = {}
    number = 0
    if depth > MAX_DEPTH:
        raise LookupError("structs are nested too deep")
    while (head := content[place]) != STOP:
        place += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, place = _integer(content, place)
        if kind in VARINT_FIRST:
            value = content[place]
            place += 1
            if value > 127:
                value, place = _unsigned(content, place - 1)
            if kind == BINARY:
                if number in wanted:
                    fields[number] = content[place : place + value]
                place += value
            elif number in wanted:
                fields[number] = (value >> 1) ^ -(value & 1)
        else:
            value, place = _value(content, place, kind, wanted.get(number, NOTHING), depth)
            if number in wanted:
                if kind == STRUCT and not wanted[number]:
                    raise LookupError("a struct stands where a number or a list should be")
                fields[number] = value
    return fields, place + 1


def _value(content, place, kind, wanted, depth):
    if kind in (TRUE, FALSE):
        return None, place
    if kind == BYTE:
        return None, place + 1
    if kind in (I16, I32, I64):
        return _integer(content, place)
    if kind == DOUBLE:
        return None, place + 8
    if kind == BINARY:
        size, place = _unsigned(content, place)
        return content[place : place + size], place + size
    if kind in (LIST, SET):
        return _list(content, place, wanted, depth)
    if kind == STRUCT:
        return _struct(content, place, wanted, depth + 1)
    raise LookupError(f"no value has the type {kind}")


def _list(content, place, wanted, depth):
    size, kind = content[place] >> 4, content[place] & 15
    place += 1
    values = []
    if size == 15:
        size, place = _unsigned(content, place)
    for _ in range(size):
        # A truth value has a byte of its own here.
        value, place = (None, place + 1) if kind in (TRUE, FALSE) else _value(content, place, kind, wanted, depth)
        content[place - 1]  # ends with the content, whatever the size says
        values.append(value)
    return values, place


def _unsigned(content, place):
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise LookupError("a number has more than 64 bits")


def _integer(content, place):
    value, place = _unsigned(content, place)
    return (value >> 1) ^ -(value & 1), place
