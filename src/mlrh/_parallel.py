"""Work spread over threads: blocks of rows, the threads of BLAS, and how kernels are compiled."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from threading import Lock

from joblib import cpu_count
from joblib.parallel import get_active_backend
from numba import njit
from threadpoolctl import ThreadpoolController


def map_blocks(work, n_rows, *, rows_per_block, n_jobs=None):
    """Results of work(slice) over consecutive blocks of rows, in order.

    The blocks depend on rows_per_block alone, so whatever is summed over the results doesn't depend on n_jobs.
    """
    blocks = [slice(start, min(start + rows_per_block, n_rows)) for start in range(0, n_rows, rows_per_block)]
    # With a single block nobody asks for the number of cores, which takes longer than a few rows do.
    threads = min(effective_threads(n_jobs if len(blocks) > 1 or n_jobs == 0 else 1), len(blocks))
    if threads <= 1:
        return [work(rows) for rows in blocks]
    results, left = [None] * len(blocks), iter(range(len(blocks)))

    def take_blocks():
        try:
            for i in left:
                results[i] = work(blocks[i])
        finally:
            deque(left, maxlen=0)  # after an error or Ctrl-C nobody finds anything left to do

    # Whoever is free takes the next block, the calling thread too: a task per block would cost more than small ones do.
    # In copies of the context, so that numpy.errstate holds in all threads alike.
    pool, others = _pool(max(threads, _n_cores()) - 1), []
    try:
        for _ in range(threads - 1):
            others.append(pool.submit(copy_context().run, take_blocks))
        take_blocks()
    finally:
        deque(left, maxlen=0)
        # Nobody waits for a task that has not begun: it might be behind one that waits for this call.
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
    return results


_n_cores = cache(cpu_count)  # files are read to tell


@cache
def _pool(n_threads):
    """Threads of this process, kept from call to call: to start them takes longer than many a call."""
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


MIN_OPERATIONS = 200_000_000  # in one product, below which a second thread has no time to help


@contextmanager
def blas_suited_to(operations):
    """BLAS with one thread where a product has so few operations, and as it was again behind the block.

    The number of threads belongs to the process: of blocks in several threads at a time, the first one sets it and
    restores it, and the others take what they find.
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
    """Finding the libraries takes milliseconds, so it is done once; numpy's and scipy's are loaded by then."""
    return ThreadpoolController()


class _Blas:
    """Whether somebody has set the number of threads; a forked child has nobody who would give it back."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.taken = Lock()


_blas = _Blas()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_blas.begin)


def kernel(function):
    """The function compiled at its first call.

    numba refuses to cache where neither the package's folder nor the user's cache can be written; such a process
    compiles anew, unless NUMBA_CACHE_DIR names a folder that can.
    """
    try:
        return njit(function, nogil=True, cache=True)
    except RuntimeError:
        return njit(function, nogil=True)
