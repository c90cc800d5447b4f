"""How much memory there is, and how much of it a file may take, so that a small hostile one can't fill it."""

import os
from pathlib import Path

VARIABLE = "MLRH_MAX_BYTES"
SHARE = 4  # reading needs a copy or two, and then something is to be done with the data
UNKNOWN = 2**32  # bytes of memory where the system doesn't say: 4 GiB, a small machine


def max_bytes() -> int:
    """Bytes that one file may take in memory: MLRH_MAX_BYTES, or a quarter of the memory that is available."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return (available() or UNKNOWN) // SHARE
    if not (given.isascii() and given.isdecimal() and len(given) <= 18 and int(given) > 0):
        raise ValueError(f"{VARIABLE} must be a whole number of bytes from 1 to 10^18 - 1; got {given[:40]!r}.")
    return int(given)


def available() -> int | None:
    """Bytes of memory that are free or can be made so, at most what a container may use; None where nothing says it."""
    known = [limit for limit in (_of_machine(), *_limits_of_container()) if limit is not None]
    return min(known, default=None)


def _of_machine():
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not POSIX
        return None


def _limits_of_container():
    """The limits of a control group, of version 2 and of version 1."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            yield int(Path("/sys/fs/cgroup", name).read_text())
        except (OSError, ValueError):  # no such file, or no limit ("max")
            continue
