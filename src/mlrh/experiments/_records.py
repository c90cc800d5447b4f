"""Results of experiments in a file that survives a kill at any moment: one JSON record per line, appended and synced.

Knows nothing of what is in a record but its key.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from mlrh._files import naming, sync_folder

CONTENTS = {"metrics", "scores", "history"}  # a record has one of them
KEY = ("plan", "dataset", "protocol", "method", "seed", "fold")


def key_of(record) -> tuple:
    """What tells a record from all others."""
    return tuple(record[name] for name in KEY)


class RecordFile:
    """Records in the order they were finished; a key occurs once.

    Opening takes a lock, so that two runs can't compute the same records side by side, and cuts off a last line that a
    kill left unfinished. A file that holds something else is a ValueError, and stays as it is.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise FileExistsError(f"{self.path.parent} is a file; name a folder for the records.") from error
        # Without a buffer: after a write that failed, closing would try it again.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by close()
        try:
            _lock(self._file)
            self.records = self._on_file()
        except BlockingIOError:
            self._file.close()
            raise BlockingIOError(
                f"Another run is writing to {self.path}; wait for it or name another folder."
            ) from None
        except BaseException:
            self._file.close()
            raise
        self._keys = {key_of(record) for record in self.records}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __contains__(self, key):
        return key in self._keys

    def close(self):
        """Give the lock back."""
        self._file.close()

    def append(self, records: Iterable[dict]):
        """Write those records whose key is new, in one piece, and return when they are on the disk."""
        new: dict[tuple, dict] = {}
        for record in records:
            if key_of(record) not in self._keys:
                new.setdefault(key_of(record), record)
        if not new:
            return
        self._write("".join(json.dumps(record, sort_keys=True) + "\n" for record in new.values()).encode())
        self.records += new.values()
        self._keys.update(new)

    def _on_file(self):
        """The records of the file, which then ends with a whole line."""
        content = self.path.read_bytes()
        records, rest = _read(content, self.path)
        if rest and _is_record(rest):
            self._write(b"\n")
        elif rest:
            with naming(self.path):
                self._file.truncate(len(content) - len(rest))
        sync_folder(self.path.parent)
        return records

    def _write(self, content):
        """Append the content to the file, or nothing where there is no room for all of it."""
        size, left = os.fstat(self._file.fileno()).st_size, memoryview(content)
        with naming(self.path):
            try:
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except BaseException:
                self._file.truncate(size)
                raise


def read_records(path: Path) -> list[dict]:
    """The complete records of a file, without taking its lock."""
    return _read(Path(path).read_bytes(), path)[0]


def _read(content, path):
    """The records, and what comes after the last end of a line: nothing, a record, or one that a kill cut off."""
    *lines, rest = content.split(b"\n")
    if rest and (_is_record(rest) or not _is_cut_off(rest)):
        lines.append(rest)
    records = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
    places: dict[tuple, int] = {}
    for number, record in enumerate(records, start=1):
        before = places.setdefault(key_of(record), number)
        if before != number:
            raise ValueError(f"{path}, line {number}: the same task is on record in line {before}; delete one of them.")
    return records, rest


def _is_cut_off(text):
    """Whether the text may be the start of a record."""
    try:
        json.loads(text)
    except ValueError:
        return text[:2] == b'{"'[: len(text)]
    return False


def _parse(line, path, number):
    if not _is_record(line):
        raise ValueError(f"{path}, line {number}: not a record of a run; delete the line, or the file to start anew.")
    return json.loads(line)


def _is_record(text):
    try:
        record = json.loads(text)
        return [type(part) for part in key_of(record)] == [str] * 4 + [int] * 2 and not CONTENTS.isdisjoint(record)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _lock(file):
    try:
        import fcntl
    except ImportError:  # not on Windows, where two runs must not be given one folder
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
