"""Tasks in processes, one thread each: results as they finish. Ctrl-C and a worker that dies are dealt with here."""

import ctypes
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

# How joblib tells, in the text of a traceback, that large arrays couldn't be written for the processes to map.
NO_ROOM = re.compile(r"_memmapping_reducer.*^OSError: \[Errno \d+\] ([^\n]*)", re.DOTALL | re.MULTILINE)
PR_SET_PDEATHSIG = 1  # of prctl: the signal that a process gets when its parent ends


def as_finished(
    work: Callable, tasks: Sequence, *, n_jobs: int
) -> Generator[tuple[int | None, Any, list[int]], None, None]:
    """(index of a finished task, its result, indices of running tasks) as it happens.

    The index is None where tasks have begun and none is finished yet. Tasks are read from the sequence as their turn
    comes (n_jobs ahead), so that those that wait can still be replaced. An exception of `work` is raised here. Where a
    worker dies, for want of memory say, the tasks that were running are tried again one by one, so that only the one to
    blame is lost: its result is a ChildProcessError. Leaving the loop, by Ctrl-C say, ends the workers.
    """
    if n_jobs == 1:
        for place, task in enumerate(tasks):
            yield None, None, [place]
            yield place, _on_one_thread(work, task), []
        return
    waiting = list(range(len(tasks)))
    while waiting:
        suspects = yield from _until_a_death(work, tasks, waiting, n_jobs)
        for place in suspects:
            waiting.remove(place)
            if (yield from _until_a_death(work, tasks, [place], 1)):
                yield place, ChildProcessError("its process died, perhaps for want of memory"), []


def _until_a_death(work, tasks, waiting, n_jobs):
    """The events of the waiting tasks, which leave the list as they finish; returns those that ran as a worker died."""
    running: list[int] = []

    def begun(places):
        for place in places:
            running.append(place)
            yield delayed(_in_worker)(work, tasks[place], place)

    # So few are sent ahead that what is sent is what runs. A pool of one would be no process at all.
    options = {"batch_size": 1, "pre_dispatch": n_jobs, "return_as": "generator_unordered"}
    parallel = Parallel(max(n_jobs, 2), "loky", initializer=_begin_worker, initargs=(STARTER,), **options)
    results: Any = None
    try:
        with _interrupts_delayed():
            results = parallel(begun(list(waiting)))
        yield None, None, list(running)
        for place, result in results:
            running.remove(place)
            waiting.remove(place)
            yield place, result, list(running)
    except BrokenProcessPool:
        return list(running)
    except Exception as error:
        reason = NO_ROOM.search(str(error.__cause__))
        if reason is None:
            raise
        raise OSError(
            f"Rows can't be handed to processes by way of the folder for temporary files ({reason[1]}); name one with "
            "more room in the variable JOBLIB_TEMP_FOLDER, or use one process."
        ) from error
    finally:
        if results is not None:
            with warnings.catch_warnings():
                # This ends workers that still compute, and joblib would warn that their work is lost.
                warnings.simplefilter("ignore", UserWarning)
                results.close()
    return []


def _in_worker(work, task, place):
    return place, _on_one_thread(work, task)


def _on_one_thread(work, task):
    with threadpool_limits(1):
        return work(task)


class _Starter:
    """Arrives in a worker as (number of the process that started it, whether the main thread did).

    A worker is started when it is needed, by whatever thread then needs it, and that thread pickles this. The object
    itself is always the same, since joblib ends the workers of other threads where arguments have changed.
    """

    def __reduce__(self):
        return tuple, ((os.getpid(), threading.current_thread() is threading.main_thread()),)


STARTER = _Starter()


def _begin_worker(starter):
    """A worker that heard Ctrl-C too would end with a traceback of its own; the parent ends it quietly."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, by_main_thread = starter
    end_with(parent, by_lasting_thread=by_main_thread)


def end_with(parent: int, *, by_lasting_thread: bool = True) -> None:
    """End this process as soon as its parent, the process of that number, has ended, by whatever signal.

    Linux does so, also where compiled code holds Python's lock for minutes, but takes for the parent the thread that
    started this process: by_lasting_thread says that it lasts as long as the parent. A thread does so elsewhere, and
    for a parent that has ended already.
    """
    if sys.platform == "linux" and by_lasting_thread:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent):
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextmanager
def _interrupts_delayed():
    """Ctrl-C waits until the block ends; processes that are started in it never hear it, not even while they start."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    for tracker in ("multiprocessing.resource_tracker", "joblib.externals.loky.backend.resource_tracker"):
        # Both are processes whose start would end the delay, so they must run before.
        with suppress(ImportError, AttributeError):
            import_module(tracker).ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
