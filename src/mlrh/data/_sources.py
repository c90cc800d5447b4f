"""Bytes of data files, in and out: opening, decompression, UTF-8, and errors that name the path.

Knows nothing of formats.
"""

import contextlib
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
    """

    where: str
    stem: str
    suffix: str
    folder: Path | None
    content: bytes

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
        return self.text().replace("\r\n", "\n").replace("\r", "\n").split("\n")


def load(source: Any) -> Source:
    """The content of a path or of a binary file object, decompressed if its first bytes say that it is gzip."""
    if hasattr(source, "read"):
        name = getattr(source, "name", None)
        path = Path(name) if isinstance(name, str) and not name.startswith("<") else None
        where, content = str(path or name or "stream"), _content_of(source)
    else:
        path = Path(source)
        where, content = str(path), _content_at(path)
    content = _decompressed(content, where)
    for start, what in PACKED.items():
        if re.match(start, content):
            raise DataError(f"{where}: the file {what}.")
    if not content:
        raise DataError(f"{where}: the file is empty.")
    stem, suffix, _ = parts_of(path.name if path else where.strip("<>"))
    return Source(where, stem, suffix, path.parent if path else None, content)


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


def _content_of(file):
    content = file.read()
    if not isinstance(content, bytes):
        raise TypeError(f"source must be a path or a file opened in binary mode; reading it gave {type(content)}.")
    return content


def _content_at(path):
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder; give the path of a file in it.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: can't be read ({_reason(error)}).") from error


def _decompressed(content, where):
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise DataError(f"{where}: the gzip file ends too early; copy or download it again.") from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{where}: the gzip file is damaged ({error}); copy or download it again.") from error


def _reason(error):
    return getattr(error, "strerror", None) or str(error)


def _line_of(content, place):
    before = content[:place]
    return 1 + before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n")
