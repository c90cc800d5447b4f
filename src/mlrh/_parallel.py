"""Threads over blocks of rows, the threads of BLAS, and how kernels are compiled."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from threading import Lock

from joblib import cpu_count
from joblib.parallel import get_active_backend
from numba import njit
from numba.core import event  # the one way to be told when a kernel is compiled
from numba.extending import register_jitable
from threadpoolctl import ThreadpoolController


def map_blocks(work, n_rows, *, rows_per_block, n_jobs=None):
    """Results of work(slice) over consecutive blocks of rows, in order.

    The blocks depend only on rows_per_block, so a sum over the results doesn't depend on n_jobs.
    """
    blocks = [slice(start, min(start + rows_per_block, n_rows)) for start in range(0, n_rows, rows_per_block)]
    # With a single block the number of cores is not asked for: that takes longer than the work on a few rows.
    threads = min(effective_threads(n_jobs if len(blocks) > 1 or n_jobs == 0 else 1), len(blocks))
    if threads <= 1:
        return [work(rows) for rows in blocks]
    results, left = [None] * len(blocks), iter(range(len(blocks)))

    def take_blocks():
        try:
            for i in left:
                results[i] = work(blocks[i])
        finally:
            deque(left, maxlen=0)  # empties the iterator: after an error or Ctrl-C no thread takes another block

    # Every thread, the calling one too, takes the next block when it is free: one task per block would cost more than
    # small blocks do. Tasks run in copies of the context, so that numpy.errstate holds in all threads.
    pool, others = _pool(max(threads, _n_cores()) - 1), []
    try:
        for _ in range(threads - 1):
            others.append(pool.submit(copy_context().run, take_blocks))
        take_blocks()
    finally:
        deque(left, maxlen=0)
        # Tasks that have not begun are cancelled, not waited for: they may be queued behind one that waits for this
        # call, which would be a deadlock.
        begun = [other for other in others if not other.cancel()]
        errors = [other.exception() for other in begun]
    for error in filter(None, errors):
        raise error
    return results


_n_cores = cache(cpu_count)  # joblib reads files to find out


@cache
def _pool(n_threads):
    """Threads of this process, kept from call to call: starting them takes longer than many calls do."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="mlrh")


def _forget_threads():
    _pool.cache_clear()
    _n_cores.cache_clear()


# A forked child has none of its parent's threads. (Windows doesn't fork.)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def effective_threads(n_jobs=None):
    """Number of threads for n_jobs: None is all usable cores, negative counts from their end as in joblib.

    Always 1 inside a joblib worker, whose siblings use the other cores.
    """
    if n_jobs == 0:
        raise ValueError("n_jobs must not be 0; use None for all cores, or the number of threads.")
    if n_jobs == 1 or (getattr(get_active_backend()[0], "nesting_level", 0) or 0) > 0:
        return 1
    if n_jobs is None:
        return _n_cores()
    return n_jobs if n_jobs > 0 else max(1, _n_cores() + 1 + n_jobs)


BLOCK_OPERATIONS = 500_000  # of one block: about a millisecond, short enough to share out, long enough to be worth it
MIN_OPERATIONS = 200_000_000  # of one product; below, it is over before a second thread could help


@contextmanager
def blas_suited_to(operations):
    """A block in which BLAS has one thread if a product has fewer than MIN_OPERATIONS; afterwards as before.

    The number of threads belongs to the process. If several threads are in such blocks at a time, the first one sets
    and restores it, and the others leave it as it is.
    """
    if operations >= MIN_OPERATIONS or not _blas.taken.acquire(blocking=False):
        yield
        return
    taken = _blas.taken
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        taken.release()


@cache
def _controller():
    """The controller of the BLAS libraries. Finding them takes milliseconds, so it is done once."""
    return ThreadpoolController()


class _Blas:
    """The lock of the number of BLAS threads; a forked child starts with a new one, as no thread would release it."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.taken = Lock()


_blas = _Blas()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_blas.begin)


def kernel(function):
    """The function, compiled at its first call, and cached on disk if possible.

    numba refuses to cache where neither the package's folder nor the user's cache can be written. Every process then
    compiles anew, unless NUMBA_CACHE_DIR names a folder that can be written.
    """
    try:
        return njit(function, nogil=True, cache=True)
    except RuntimeError:
        return njit(function, nogil=True)


def kernel_part(function):
    """The function for kernels to call: compiled with them, without an entry from Python.

    An entry unpacks and checks every array, which takes longer to compile than most of these functions themselves.
    """
    return register_jitable(function)


@contextmanager
def telling_of_compilation(tell):
    """A block in which tell() is called once, before the first kernel that has to be compiled."""
    with event.install_listener("numba:compile", _FirstCompilation(tell)):
        yield


class _FirstCompilation(event.Listener):
    def __init__(self, tell):
        self._tell, self._is_told = tell, False

    def on_start(self, _):
        if not self._is_told:
            self._is_told = True
            self._tell()

    def on_end(self, _):
        pass
