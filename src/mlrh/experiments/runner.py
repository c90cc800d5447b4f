"""Tasks over processes, one thread each: records are appended as they finish, and progress is told."""

import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import joblib
from threadpoolctl import threadpool_limits

from mlrh.experiments.methods import FAMILIES
from mlrh.experiments.plans import Dataset, Profile, Task
from mlrh.experiments.protocol import run_task
from mlrh.experiments.records import RecordFile

DIED = "its process died, perhaps for want of memory"
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Progress:
    """What a run tells whenever a task begins or ends; `failure` is the reason why the finished one has no record."""

    n_done: int
    n_tasks: int
    running: tuple[Task, ...]
    seconds_left: float | None
    finished: Task | None = None
    failure: str = ""


def run(
    tasks: Iterable[Task],
    datasets: dict[str, Dataset],
    profile: Profile,
    *,
    file: RecordFile,
    n_jobs: int | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> list[str]:
    """Compute what the record file lacks of the tasks; returns one sentence per task that failed.

    An interrupt or any other exception stops the workers; the records finished until then are in the file.
    """
    tasks = list(tasks)
    pending = [task for task in tasks if not all(key in file for key in task.keys)]
    pending.sort(key=lambda task: -_expected_cost(task, datasets))
    n_jobs = min(n_jobs or joblib.cpu_count(), len(pending)) or 1
    durations, failures, n_done = _Durations(datasets), [], len(tasks) - len(pending)
    waiting = list(pending)
    outcomes = _in_processes(pending, datasets, profile, n_jobs) if n_jobs > 1 else _here(pending, datasets, profile)
    for task, outcome, running in outcomes:
        if task is not None:
            waiting.remove(task)
            n_done += 1
        failure = outcome if isinstance(outcome, str) else ""
        if failure and task is not None:
            failures.append(
                f"{', '.join(task.methods)} on {task.dataset}, seed {task.seed}, fold {task.fold}: {failure}"
            )
        elif task is not None:
            file.append(outcome)
            durations.add(task, outcome[0]["task_seconds"])
        left = durations.left(waiting, n_jobs)
        report(Progress(n_done, len(tasks), tuple(running), left, task, failure))
    return failures


def _expected_cost(task, datasets):
    """Long tasks start first, so that no worker is left alone at the end."""
    family = FAMILIES.get(task.family)
    return datasets[task.dataset].data.X.shape[0] ** 2 * (family.cost if family else 1.0)


def _here(tasks, datasets, profile):
    for task in tasks:
        yield None, None, [task]
        with threadpool_limits(1):
            yield task, _outcome(task, datasets[task.dataset], profile), []


def _in_processes(tasks, datasets, profile, n_jobs) -> Iterator[tuple]:
    """(finished task or None, its records or the reason why there are none, running tasks), as it happens.

    Where a worker dies, for want of memory say, the tasks that were running are tried again one by one, so that only
    the one to blame is lost.
    """
    waiting = list(tasks)
    with _one_thread_per_worker():
        while waiting:
            suspects, waiting = yield from _in_pool(waiting, datasets, profile, n_jobs)
            for task in suspects:
                died, _ = yield from _in_pool([task], datasets, profile, 1)
                if died:
                    yield task, DIED, []


def _in_pool(tasks, datasets, profile, n_jobs):
    """Like _in_processes, but ends when a worker dies; returns the tasks that were running then, and those to come."""
    executor = ProcessPoolExecutor(
        n_jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin_worker,
        initargs=(datasets, profile, os.getpid()),
    )
    queue = list(reversed(tasks))
    running: dict[Future, Task] = {}
    try:
        while queue or running:
            while queue and len(running) < n_jobs:
                running[executor.submit(_work, queue[-1])] = queue[-1]
                queue.pop()
                yield None, None, list(running.values())
            for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                outcome = future.result()
                task = running.pop(future)
                yield task, outcome, list(running.values())
        return [], []
    except BrokenProcessPool:
        return list(running.values()), queue[::-1]
    finally:
        _stop(executor)


def _stop(executor):
    """End the workers at once: what they are computing has no record yet."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


_worker: dict = {}


def _begin_worker(datasets, profile, parent):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends the workers
    _worker.update(datasets=datasets, profile=profile)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent):
    """A worker whose parent was killed would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(task):
    return _outcome(task, _worker["datasets"][task.dataset], _worker["profile"])


def _outcome(task, dataset, profile):
    try:
        return run_task(task, dataset, profile)
    except Exception as error:  # one method that can't take the data must not end the comparison
        return f"{type(error).__name__}: {error}".splitlines()[0]


class _one_thread_per_worker:  # noqa: N801  reads as a context
    """Sets the variables that numerical libraries read when a worker loads them."""

    def __enter__(self):
        self._before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))

    def __exit__(self, *_):
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Durations:
    """How long tasks took, by data set and family, to say how long the rest will take."""

    def __init__(self, datasets):
        self._datasets = datasets
        self._seconds = defaultdict(list)
        self._per_cost = [0.0, 0.0]  # seconds and expected costs of all tasks that are finished

    def add(self, task, seconds):
        self._seconds[task.dataset, task.family].append(seconds)
        self._per_cost[0] += seconds
        self._per_cost[1] += _expected_cost(task, self._datasets)

    def left(self, waiting, n_jobs):
        """Estimated seconds for the tasks that are not finished; None before anything is."""
        if not self._seconds:
            return None
        return sum(self._expected(task) for task in waiting) / n_jobs

    def _expected(self, task):
        seen = self._seconds.get((task.dataset, task.family))
        if seen:
            return sum(seen) / len(seen)
        seconds, costs = self._per_cost
        return seconds / costs * _expected_cost(task, self._datasets)
