"""Bytes of data files, in and out: opening, decompression, UTF-8, and errors that name the path.

Knows nothing of formats.
"""

import contextlib
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mlrh._budget import VARIABLE, max_bytes
from mlrh._files import replacing
from mlrh.data.containers import DataError

GZIP_MAGIC = b"\x1f\x8b"
UNPACK = "decompress it first, or use gzip"
PACKED = {  # how files begin that can't be read, and what to say of them
    rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)": f"is compressed with bzip2; {UNPACK}",
    rb"\xfd7zXZ\x00": f"is compressed with xz; {UNPACK}",
    rb"\x28\xb5\x2f\xfd": f"is compressed with zstd; {UNPACK}",
    rb"7z\xbc\xaf\x27\x1c": f"is a 7z archive; {UNPACK}",
    rb"PK(?:\x03\x04|\x05\x06)": "is a ZIP archive; unpack it first (an Excel file is one too: export it as CSV)",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "is an old Excel file or the like; export it as CSV",
}
SHOWN = 40  # characters of a cell or line that a message quotes
# What a file may take follows its own size too, so that a small one is read in seconds, whatever is in it.
UNPACKED_PER_BYTE = 32  # tables of numbers pack to a third or a tenth, those of mostly zeros to a thirtieth
SMALL_UNPACKED = 2**25  # 32 MiB, to which any file may unpack
MEMORY_PER_BYTE = 8  # that is unpacked: a number of ten characters is a string and a float, twice
PIECE = 2**20  # bytes that are unpacked or read from a stream at once
# Bytes that a line counts for beside its text. As a string, its number and a place in two lists it takes 160; the rest
# stands for time, up to 10 microseconds a line, so that a small packed file of short lines is not read for minutes.
LINE = 512
CHARACTER = 64  # bytes that a character of a line may take once it is split: 1:1 and a space are a list of two strings


@dataclass(frozen=True)
class Source:
    """A file's decompressed content with what its name tells.

    Attributes
    ----------
    where : str
        What messages call the file.
    stem, suffix : str
        Parts of the file's name without a final .gz; the suffix is lower case and has its dot.
    folder : Path or None
        None for a stream.
    content : bytes
    budget : int
        Bytes of memory that reading the file may take.
    """

    where: str
    stem: str
    suffix: str
    folder: Path | None
    content: bytes
    budget: int = field(default_factory=max_bytes)

    def afford(self, n_bytes: int, what: str) -> None:
        """Raise a DataError where so many bytes of memory, which `what` needs, are more than the file may take."""
        if n_bytes > self.budget:
            raise too_large(self.where, f"{what} would take {_size(n_bytes)} of memory", n_bytes, self.budget)

    def error(self, what: str, line: int | None = None) -> DataError:
        """A DataError that names the file and the line."""
        return DataError(f"{self.where}: {what}" if line is None else f"{self.where}, line {line}: {what}")

    def text(self) -> str:
        """The content as text: UTF-8 without its byte order mark and without NUL."""
        try:
            text = self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            byte = self.content[error.start]
            what = f"byte 0x{byte:02x} is not UTF-8; convert the file to UTF-8."
            raise self.error(what, _line_of(self.content, error.start)) from error
        place = self.content.find(b"\0")
        if place >= 0:
            what = "a NUL byte is no text; the file is damaged or in another format."
            raise self.error(what, _line_of(self.content, place))
        return text

    def lines(self) -> list[str]:
        """The text's lines; they may end as on Unix, Windows or old Macs."""
        text = self.text().replace("\r\n", "\n").replace("\r", "\n")
        n_lines = text.count("\n") + 1
        self.afford(n_lines * LINE, f"its {n_lines} lines")
        lines = text.split("\n")
        longest = max(map(len, lines))
        self.afford(longest * CHARACTER, f"a line of {longest} characters")
        return lines


def too_large(where: str, what: str, needed: int, allowed: int) -> DataError:
    """The error of a file that would take more memory than it may."""
    rule = f"the limit for this file is {_size(allowed)}"
    return DataError(f"{where}: {what}, and {rule}; if you trust it, set {VARIABLE} to {needed} or more.")


def load(source: Any) -> Source:
    """The content of a path or of a binary file object, decompressed if its first bytes say that it is gzip."""
    if hasattr(source, "read"):
        name = getattr(source, "name", None)
        path = Path(name) if isinstance(name, str) and not name.startswith("<") else None
        where = str(path or name or "stream")
        content = _content_of(source, where)
    else:
        path = Path(source)
        where, content = str(path), _content_at(path)
    unpacked, budget = _limits(len(content))
    content = _decompressed(content, where, unpacked)
    for start, what in PACKED.items():
        if re.match(start, content):
            raise DataError(f"{where}: the file {what}.")
    if not content:
        raise DataError(f"{where}: the file is empty.")
    stem, suffix, _ = parts_of(path.name if path else where.strip("<>"))
    return Source(where, stem, suffix, path.parent if path else None, content, budget)


def parts_of(name: str) -> tuple[str, str, bool]:
    """Stem, lower-case suffix, and whether a final .gz followed them."""
    zipped = name.lower().endswith(".gz")
    plain = Path(name[:-3] if zipped else name)
    return plain.stem, plain.suffix.lower(), zipped


def shown(text: str) -> str:
    """The text in quotes, cut where it is long."""
    return repr(text) if len(text) <= SHOWN else repr(text[:SHOWN]) + "..."


def write_texts(texts: Mapping[Path, Iterable[str]]) -> None:
    """Write UTF-8 files, gzip where the name says so, and put them in place only once all are complete."""
    with writing(*texts) as files:
        for (path, pieces), file in zip(texts.items(), files, strict=True):
            try:
                zipped = parts_of(path.name)[2]
                # Without a name and a time in its header the same data give the same bytes.
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) if zipped else contextlib.nullcontext(file) as out:
                    out.writelines(piece.encode("utf-8") for piece in pieces)
                file.flush()
            except OSError as error:
                raise _not_written(path, error) from error
            except UnicodeEncodeError as error:
                raise DataError(f"{path}: {shown(error.object)} can't be written as UTF-8; rename it.") from error


@contextlib.contextmanager
def writing(*paths: Path) -> Iterator[list[IO[bytes]]]:
    """`replacing`, where a full disk and the like are a DataError that names the path."""
    try:
        with replacing(*paths) as files:
            yield files
    except OSError as error:
        raise _not_written(error.filename or paths[0], error) from error


def _not_written(path, error):
    return DataError(f"{path}: can't be written ({_reason(error)}); choose another place.")


def _limits(size):
    """Bytes that a file of this size may unpack to, and bytes of memory that reading it may take."""
    if os.environ.get(VARIABLE):  # who sets it means it
        return max_bytes(), max_bytes()
    unpacked = max(SMALL_UNPACKED, UNPACKED_PER_BYTE * size)
    return min(unpacked, max_bytes()), min(MEMORY_PER_BYTE * unpacked, max_bytes())


def _content_of(file, where):
    pieces, size, most = [], 0, max_bytes()
    while piece := file.read(PIECE):
        if not isinstance(piece, bytes):
            raise TypeError(f"source must be a path or a file opened in binary mode; reading it gave {type(piece)}.")
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise too_large(where, f"holds more than {_size(most)}", size, most)
    return b"".join(pieces)


def _content_at(path):
    try:
        with open(path, "rb") as file:
            status, most = os.fstat(file.fileno()), max_bytes()
            if not stat.S_ISREG(status.st_mode):  # a pipe, or a device that never ends
                return _content_of(file, str(path))
            if status.st_size > most:
                raise too_large(str(path), f"holds {_size(status.st_size)}", status.st_size, most)
            return file.read()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder; give the path of a file in it.") from error
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: can't be read ({_reason(error)}).") from error


def _decompressed(content, where, most):
    if not content.startswith(GZIP_MAGIC):
        return content
    pieces, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while piece := file.read(PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    what = f"its {_size(len(content))} unpack to more than {_size(most)}"
                    raise too_large(where, what, size, most)
    except EOFError as error:
        raise DataError(f"{where}: the gzip file ends too early; copy or download it again.") from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{where}: the gzip file is damaged ({error}); copy or download it again.") from error
    return b"".join(pieces)


def _size(n_bytes):
    """A number of bytes in words."""
    return f"{n_bytes / 2**20:,.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes:,} bytes"


def _reason(error):
    return getattr(error, "strerror", None) or str(error)


def _line_of(content, place):
    before = content[:place]
    return 1 + before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n")
