"""Rows spread over Python threads in blocks; knows nothing of what is done to them."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache

from joblib import cpu_count
from joblib.parallel import get_active_backend


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
