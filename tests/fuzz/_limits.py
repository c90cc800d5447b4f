"""A process of its own for cases that could take all time, all memory, or the process itself."""

import contextlib
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 120  # to import and to try the warm-up cases on a busy machine
BUSY = 6  # times the limit that a case may take by the clock


class Worker:
    """A process that tries cases one by one and says what is wrong with them.

    Parameters
    ----------
    fault_of : function of a case, which can be imported
        Gives a sentence, or None where all is well. An exception is a fault, too.
    warm_up : sequence of cases
        Tried before memory is limited, so that what is loaded at first use doesn't count.
    seconds : float
        Of processor time for each case; waiting may last longer, because other programs take their share.
    memory : int
        Bytes of address space beyond what the process has after the warm-up.
    """

    def __init__(self, fault_of: Callable[[Any], str | None], warm_up: Sequence, *, seconds: float, memory: int):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, fault_of, warm_up, memory), daemon=True)
        self._process.start()
        theirs.close()
        self._seconds = seconds
        started = self._answer(START_SECONDS)
        assert started is None, f"the warm-up {started}"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._connection.close()
        self._process.kill()
        self._process.join()

    def fault(self, case: Any) -> str | None:
        """What is wrong with a case; None where all is well. After one that took too long the worker is of no use."""
        self._connection.send(case)
        return self._answer(self._seconds)

    def _answer(self, seconds):
        start, end = self._used(), time.monotonic() + BUSY * seconds
        while not self._connection.poll(0.5):
            if self._used() - start > seconds or time.monotonic() > end:
                return f"took longer than {seconds} s"
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            return f"ended its process with exit code {self._process.exitcode}"

    def _used(self):
        """Seconds of processor time that the process has had so far (Linux)."""
        user, system = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def limit_memory(extra: int) -> None:
    """Let this process have no more than so many bytes of address space beyond what it has now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _serve(connection, fault_of, warm_up, memory):
    for case in warm_up:
        _fault(fault_of, case)
    limit_memory(memory)
    connection.send(None)
    with contextlib.suppress(EOFError):  # the other side has closed
        while True:
            connection.send(_fault(fault_of, connection.recv()))


def _fault(fault_of, case):
    try:
        return fault_of(case)
    except BaseException:
        return f"raised {traceback.format_exc()}"
