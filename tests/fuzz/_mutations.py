"""Small changes of bytes, and the numbers and marks that readers stumble over."""

import gzip
from random import Random

LONGEST = 20_000  # rows, columns or bytes where a case repeats something
MEGABYTE = 1_000_000  # the same, now and then: so large may a file be whose reading must not take long
UNPACKED = 2**27  # bytes that a gzip bomb unpacks to, from about 128 KB
RARELY = 0.02  # share of such large cases, each of which takes as long as hundreds of small ones
NUMBERS = [
    *("0", "1", "0", "1", "-0", "+1", ".5", "2.", "007", "1e308", "1e999", "-1e-400", "nan", "inf", "-inf", "NaN"),
    *("1_000", "0x10", "1,5", "50%", "\uff11", "2147483648", "4294967296", "99999999999999999999", "-1", "1e5"),
    "9" * 400,
]
MARKS = [
    *("'", '"', "\\", "{", "}", "%", "#", ":", ",", ";", "\t", "?", "\n", "\r", "\r\n", "\0", "\x1f", "\x85", "\xa0"),
    *("\u2028", "\ufeff", "\ud800", "é", "'it\\'s'", '"x ""y"""', "@data\n", "<", "&amp;", "-->", "=", "sep=;\n"),
]


def mutant(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """The bytes after one to four changes; gzip is opened for it, half of the time."""
    if content.startswith(b"\x1f\x8b") and random.random() < RARELY:
        inner = gzip.decompress(content)
        return gzip.compress(inner + inner[_part(random, inner)].ljust(1) * (UNPACKED // 256), 1, mtime=0)
    if content.startswith(b"\x1f\x8b") and random.random() < 0.5:
        return gzip.compress(mutant(random, gzip.decompress(content), others), 1, mtime=0)
    for _ in range(random.randint(1, 4)):
        content = random.choice(CHANGES)(random, content, others)
    return content


def _place(random, content):
    return random.randint(0, len(content))


def _part(random, content):
    start = _place(random, content)
    return slice(start, start + int(2 ** random.uniform(0, 8)))


def _flipped(random, content, others):
    place = _place(random, content)
    return (
        content[:place]
        + bytes(byte ^ 1 << random.randrange(8) for byte in content[place : place + 1])
        + content[place + 1 :]
    )


def _set(random, content, others):
    place = _place(random, content)
    return (
        content[:place] + bytes([random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])]) + content[place + 1 :]
    )


def _inserted(random, content, others):
    place = _place(random, content)
    return content[:place] + random.choice([*NUMBERS, *MARKS]).encode("utf-8", "surrogatepass") + content[place:]


def _respelled(random, content, others):
    """Another number, word or mark in place of a few bytes."""
    part = _part(random, content)
    return (
        content[: part.start]
        + random.choice([*NUMBERS, *MARKS]).encode("utf-8", "surrogatepass")
        + content[part.stop :]
    )


def _deleted(random, content, others):
    part = _part(random, content)
    return content[: part.start] + content[part.stop :]


def _repeated(random, content, others):
    part = _part(random, content)
    longest = MEGABYTE if random.random() < RARELY else LONGEST
    times = random.choice([1, 2, 10, longest // max(1, part.stop - part.start)])
    return content[: part.stop] + content[part] * times + content[part.stop :]


def _moved(random, content, others):
    part, place = _part(random, content), _place(random, content)
    return content[:place] + content[part] + content[place:]


def _cut(random, content, others):
    return content[: _place(random, content)]


def _spliced(random, content, others):
    other = random.choice(others or [content])
    return content[: _place(random, content)] + other[_place(random, other) :]


CHANGES = (
    _flipped,
    _flipped,
    _set,
    _set,
    _inserted,
    _respelled,
    _respelled,
    _deleted,
    _repeated,
    _moved,
    _cut,
    _spliced,
)
