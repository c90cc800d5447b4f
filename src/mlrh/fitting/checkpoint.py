"""A file that remembers what every pass over the rows answered, so that a fit that was killed can go on.

Solvers are deterministic: asked again from the start, they ask the same questions. So the answers of the passes are the
whole state of a fit, whichever solver it uses. A fit that finds them in the file makes no pass for them and reaches the
last of them at once. Each answer is added to the end with a checksum, and is on the disk before the fit goes on; one
that a crash has cut off is left out when the file is read.
"""

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

from mlrh._files import lock, replacing
from mlrh._parallel import kernel

MAGIC = b"mlrh-checkpoint-1\n"
LONGEST_LINE = 2**20  # bytes of a line of JSON: names of many labels are only kept as a digest


def check_folder(path) -> None:
    """Raise a ValueError where the folder of a checkpoint is not there."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ValueError(
            f"The folder of a checkpoint must exist; there is no folder {folder}, so create it or choose another file."
        )


class Checkpoint:
    """The answers of one fit in a file.

    Parameters
    ----------
    path : path
        A new file, or the file of an earlier run of the same fit.
    problem : mapping of str to str
        What the fit is about, by name. A file of another problem is a ValueError that says what differs.
    """

    def __init__(self, path, problem: Mapping[str, str]):
        self._path, self._is_replaying = Path(path), True
        with ExitStack() as cleanup:
            try:
                cleanup.callback(lock(self._path))
            except BlockingIOError:
                raise ValueError(f"{path} is in use by another fit; give each fit a checkpoint of its own.") from None
            if not self._path.exists() or self._path.stat().st_size == 0:
                with replacing(self._path) as (file,):
                    file.write(MAGIC + _line(dict(problem)))
            self._file: BinaryIO = cleanup.enter_context(open(self._path, "r+b"))
            self._size = self._path.stat().st_size
            self._read_head(problem)
            self.close = cleanup.pop_all().close  # nothing failed: the file stays open, and locked, until then

    def answer(self, question: str, arguments, ask: Callable[[], tuple]) -> tuple:
        """ask(), a tuple of arrays of float64, or what it answered to the same question in the run before."""
        place = _digest(question, arguments)
        if self._is_replaying:
            start = self._file.tell()
            found = self._next()
            if found is not None and found[0] == place:
                return found[1]
            # The end; or, where rounding differs from the run before, the first answer that is of no use any more.
            self._is_replaying = False
            self._file.seek(start)
            self._file.truncate()
        answer = ask()
        self._add(place, answer)
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _read_head(self, problem):
        found = self._file.readline(LONGEST_LINE) if self._file.read(len(MAGIC)) == MAGIC else b""
        try:
            before = json.loads(found)
            differing = [name for name in {**before, **problem} if before.get(name) != problem.get(name)]
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{self._path} is no checkpoint of a fit; choose another file.") from None
        if differing:
            raise ValueError(
                f"{self._path} is the checkpoint of another fit, which differs in {', '.join(differing)}; give the "
                "same data and parameters to go on with it, or another file to start anew."
            )

    def _next(self):
        """The place and the arrays of the next answer; None where there is none, or only a part of it."""
        try:
            record = json.loads(self._file.readline(LONGEST_LINE))
            shapes, place, check = record["shapes"], record["place"], record["check"]
            sizes = [8 * math.prod(shape) for shape in shapes]
        except (ValueError, TypeError, KeyError):
            return None
        if min(sizes, default=0) < 0 or sum(sizes) > self._size - self._file.tell():
            return None
        content = self._file.read(sum(sizes))
        if zlib.crc32(content) != check:
            return None
        ends = np.cumsum(sizes)
        parts = (content[end - size : end] for size, end in zip(sizes, ends, strict=True))
        arrays = (np.frombuffer(part).reshape(shape).copy() for part, shape in zip(parts, shapes, strict=True))
        return place, tuple(arrays)

    def _add(self, place, answer):
        content = b"".join(np.ascontiguousarray(part, np.float64).tobytes() for part in answer)
        shapes = [list(np.shape(part)) for part in answer]
        self._file.write(_line({"place": place, "shapes": shapes, "check": zlib.crc32(content)}) + content)
        self._file.flush()
        os.fsync(self._file.fileno())


def _line(values) -> bytes:
    return json.dumps(values).encode() + b"\n"


def digest_of(*values: Any) -> str:
    """A short text that differs where any of the values does: arrays, numbers, texts, and lists of these."""
    total = hashlib.sha256()
    for value in values:
        _add_value(total, value)
    return total.hexdigest()[:32]


def _add_value(total, value):
    if isinstance(value, list | tuple):
        total.update(f"list {len(value)}".encode())
        for own in value:
            _add_value(total, own)
        return
    array = np.asarray(value)
    if array.dtype == object:
        array = np.asarray(repr(array.tolist()))
    total.update(f"{array.dtype.str}{array.shape}".encode())
    total.update(np.ascontiguousarray(array).tobytes())


def _digest(question, arguments):
    return digest_of(question, *arguments)


KEYS = 1024  # words of 8 bytes that are multiplied and added up to one: few enough to stay in the cache
LOW, HALF = np.uint64(2**32 - 1), np.uint64(32)


class DigestOfRows:
    """A short text that differs where any bit of the rows does, or their order; `add` is told them chunk by chunk.

    A cryptographic digest of all bytes would take longer than a pass. So blocks of KEYS words are first multiplied and
    added up to one word each, by NH (of the message code UMAC): two blocks that differ have the same sum with a chance
    of 2^-32. Only the sums are digested, in order.
    """

    def __init__(self):
        self._total = hashlib.blake2b(digest_size=16)
        self._keys = np.frombuffer(hashlib.shake_128(b"rows").digest(8 * KEYS), np.uint64)

    def add(self, X, Y, weights):
        """Note further rows: X dense or CSR, Y and weights (n_samples, ...)."""
        parts = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        self._total.update(f"{X.shape}".encode())
        for array in (*parts, Y, weights):
            self._add_array(np.ascontiguousarray(array))

    def text(self) -> str:
        return self._total.hexdigest()

    def _add_array(self, array):
        self._total.update(f"{array.dtype.str}{array.shape}".encode())
        content = array.reshape(-1).view(np.uint8)
        whole = len(content) // 8 * 8
        words = content[:whole].view(np.uint64)
        sums = np.empty(-(-len(words) // KEYS), np.uint64)
        _add_up_words(words, self._keys, sums)
        self._total.update(sums.tobytes())
        self._total.update(content[whole:])


@kernel
def _add_up_words(words, keys, sums):
    """Write sum_i (low_i + low key_i) (high_i + high key_i) of each block; halves modulo 2^32, the sum modulo 2^64."""
    for block in range(len(sums)):
        first, total = block * len(keys), np.uint64(0)
        for i in range(min(len(keys), len(words) - first)):
            word, key = words[first + i], keys[i]
            total += ((word + key) & LOW) * (((word >> HALF) + (key >> HALF)) & LOW)
        sums[block] = total
