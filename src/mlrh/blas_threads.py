"""How many threads BLAS has while a solver runs; knows nothing of solvers.

Threads that meet after every small product cost more time than they save, many times more where cores are shared.
"""

import os
from contextlib import contextmanager
from functools import cache
from threading import Lock

from threadpoolctl import ThreadpoolController

MIN_OPERATIONS = 200_000_000  # in one product, below which a second thread has no time to help


@contextmanager
def suited_to(operations):
    """BLAS with one thread where a product has so few operations, and as it was again behind the block.

    The number of threads belongs to the process: of blocks in several threads at a time, the first one sets it and
    restores it, and the others take what they find.
    """
    if operations >= MIN_OPERATIONS or not _state.taken.acquire(blocking=False):
        yield
        return
    taken = _state.taken
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        taken.release()


@cache
def _controller():
    """Finding the libraries takes milliseconds, so it is done once; numpy's and scipy's are loaded by then."""
    return ThreadpoolController()


class _State:
    """Whether somebody has set the number of threads; a forked child has nobody who would give it back."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.taken = Lock()


_state = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_state.begin)
