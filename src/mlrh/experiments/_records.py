"""Results of experiments in a file that survives a kill at any moment: one JSON record per line, appended and synced.

Knows nothing of what is in a record but its key.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

CONTENTS = {"metrics", "scores", "history"}  # a record has one of them
KEY = ("plan", "dataset", "protocol", "method", "seed", "fold")


def key_of(record) -> tuple:
    """What tells a record from all others."""
    return tuple(record[name] for name in KEY)


class RecordFile:
    """Records in the order they were finished; a key occurs once.

    Opening takes a lock, so that two runs can't compute the same records side by side, and cuts off a last line that a
    kill left unfinished.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise FileExistsError(f"{self.path.parent} is a file; name a folder for the records.") from error
        self._file = open(self.path, "ab")  # noqa: SIM115  closed by close()
        try:
            _lock(self._file)
        except BlockingIOError:
            self._file.close()
            raise BlockingIOError(
                f"Another run is writing to {self.path}; wait for it or name another folder."
            ) from None
        content = self.path.read_bytes()
        self._file.truncate(content.rfind(b"\n") + 1)
        self.records = read_records(self.path)
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
        new = [record for record in records if key_of(record) not in self._keys]
        if not new:
            return
        self._file.write("".join(json.dumps(record, sort_keys=True) + "\n" for record in new).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records += new
        self._keys.update(key_of(record) for record in new)


def read_records(path: Path) -> list[dict]:
    """The complete records of a file, without taking its lock."""
    content = Path(path).read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [_parse(line, path, number) for number, line in enumerate(lines, start=1)]


def _parse(line, path, number):
    try:
        record = json.loads(line)
        is_record = [type(part) for part in key_of(record)] == [str] * 4 + [int] * 2 and CONTENTS & set(record)
    except (ValueError, KeyError, TypeError):
        is_record = False
    if not is_record:
        raise ValueError(f"{path}, line {number}: not a record of a run; delete the line, or the file to start anew.")
    return record


def _lock(file):
    try:
        import fcntl
    except ImportError:  # not on Windows, where two runs must not be given one folder
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
