"""What does a fit on a Dask cluster cost beside one in memory? One worker, two workers, and a pass without rows.

Workers are processes of this machine with one thread each, and so is the fit in memory. Partitions are read from .npy
files in a temporary folder before the clock starts, as they would be from a data lake; a fit then checks them, looks at
them and solves. dask-ml is no dependency: its line is measured where it is installed.
"""

import importlib.util
import logging
import statistics
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from scipy import sparse

from benchmarks.chunks import binary_objective
from benchmarks.problems import Problem, public, synthetic
from benchmarks.table import attempted, compared
from benchmarks.timing import interleaved, quietly, timed
from mlrh import MLRHClassifier
from mlrh.dask import DaskMLRHClassifier

QUESTION = "dask"
TARGET, TARGET_TWO, TARGET_PASS = 1.4, 1 / 1.5, 0.030
DENSE, DENSE_QUICK = (200_000, 500, 20), (1_000, 10, 4)
REPEATED = 20  # how often the rows of tmc2007-500 are repeated
N_PARTS = 16
N_PASSES = 20


def measure(repeats, context):
    """Yields a line for each claim of docs/scale-dask.md about times."""
    for part in (dense_times, sparse_times, passes, beside_dask_ml):
        with tempfile.TemporaryDirectory() as folder:
            name = part.__name__.replace("_", " ")
            yield from attempted(QUESTION, name, part, Path(folder), repeats, context)


@contextmanager
def clients(*n_workers):
    """A client of a cluster of so many workers, for each number."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.ERROR}
    n, *more = n_workers
    with LocalCluster(n_workers=n, **options) as cluster, Client(cluster, set_as_default=False) as client:
        if not more:
            yield (client,)
            return
        with clients(*more) as others:
            yield client, *others


def dense_times(folder, repeats, context):
    """Yields the lines of dense rows."""
    yield from times(folder, synthetic(*(DENSE_QUICK if context.quick else DENSE)), repeats, context)


def sparse_times(folder, repeats, context):
    """Yields the lines of sparse rows."""
    problem = synthetic(500, 30, 4, density=0.2) if context.quick else public("tmc2007-500")
    X = sparse.csr_array(sparse.vstack([problem.X] * REPEATED, format="csr"))
    yield from times(
        folder, Problem(f"{problem.name} x {REPEATED}", X, np.tile(problem.Y, (REPEATED, 1))), repeats, context
    )


def times(folder, problem, repeats, context):
    """Yields one worker beside a fit in memory by one thread, and two beside one: by the clock, and by processor time.

    Where other programs run beside it, two workers don't have two cores, and the clock says little. Processor time of
    this process and of the busiest worker, added up, is what the clock would say at least if they had.
    """
    context.tell(str(problem))
    paths = saved(folder, problem)
    with clients(1, 2) as (one, two):
        noted = {"memory": [], "one": [], "two": []}
        fit = partial(quietly, MLRHClassifier(n_jobs=1).fit, problem.X, problem.Y)
        calls = {"memory": timed(partial(busy, noted["memory"], None, fit))}
        for name, client in (("one", one), ("two", two)):
            held = client.compute([dask.delayed(loaded)(*path) for path in paths])
            fit = partial(quietly, DaskMLRHClassifier(client=client).fit, held)
            calls[name] = timed(partial(busy, noted[name], client, fit))
        runs = interleaved(calls, repeats)
    by_clock = [runs[name].median for name in noted]
    by_processor = [statistics.median(seconds[1:]) for seconds in noted.values()]  # the first turn warms up
    for how, (memory, single, double) in (("", by_clock), (", processor time", by_processor)):
        context.tell(f"in memory {memory:.3g} s, one worker {single:.3g} s, two {double:.3g} s{how}")
        theirs = f"fit in memory, one thread{how}"
        yield compared(QUESTION, f"{problem}, one worker{how}", single, theirs, memory, target=TARGET)
        yield compared(QUESTION, f"{problem}, two workers{how}", double, f"one worker{how}", single, target=TARGET_TWO)


def busy(noted, client, fit):
    """fit(), with the processor time of this process and of the busiest worker of the client, if any, noted."""
    workers = {} if client is None else client.run(time.process_time)
    begin = time.process_time()
    result = fit()
    own = time.process_time() - begin
    ends = {} if client is None else client.run(time.process_time)
    noted.append(own + max((ends[worker] - workers[worker] for worker in workers), default=0.0))
    return result


def saved(folder, problem):
    """Paths of the arrays of N_PARTS parts of a problem, written there."""
    parts = np.array_split(np.arange(len(problem.Y)), N_PARTS)
    paths = [(folder / f"X{i}", folder / f"Y{i}.npy") for i in range(N_PARTS)]
    for (X_path, Y_path), rows in zip(paths, parts, strict=True):
        own = problem.X[rows]
        sparse.save_npz(X_path, own) if sparse.issparse(own) else np.save(X_path, own)
        np.save(Y_path, problem.Y[rows].astype(np.int8))
    return paths


def loaded(X_path, Y_path):
    """The part (X, Y) of two files."""
    dense = X_path.with_suffix(".npy")
    X = np.load(dense) if dense.exists() else sparse.csr_array(sparse.load_npz(X_path.with_suffix(".npz")))
    return X, np.load(Y_path)


def passes(folder, repeats, context):
    """Yields the seconds of a pass over N_PARTS partitions with hardly a row: graph, scheduler, wire."""
    problem = synthetic(10 * N_PARTS, 50, 10)
    chunks = [dask.delayed((problem.X[i::N_PARTS], problem.Y[i::N_PARTS]), traverse=False) for i in range(N_PARTS)]
    with clients(2) as (client,):
        seconds = []
        model = DaskMLRHClassifier(client=client, solver=partial(asking, seconds), min_labels=1, max_labels=2)
        quietly(model.fit, chunks)
    case = f"a pass over {N_PARTS} partitions of 10 rows on two workers"
    context.tell(f"{case}: {1e3 * statistics.median(seconds):.1f} ms")
    yield compared(QUESTION, case, statistics.median(seconds), "what is allowed", TARGET_PASS, target=1.0)


def asking(seconds, objective, start, *, tol, max_iter, report):
    """A solver that only asks for N_PASSES evaluations and notes how long each takes."""
    from mlrh.fitting.solvers import Solution

    call = timed(partial(objective.value_and_gradient, start))
    call()
    for _ in range(N_PASSES):
        elapsed, (value, gradient) = call()
        seconds.append(elapsed)
    norm = float(np.linalg.norm(gradient))
    return Solution(parameters=start, value=value, gradient_norm=norm, n_iter=0, converged=True, history=[value])


def beside_dask_ml(folder, repeats, context):
    """Yields the line of dask-ml's LogisticRegression for one label, the same objective, if it is installed."""
    if importlib.util.find_spec("dask_ml") is None:
        context.tell("dask-ml is not installed, so its line is left out")
        return
    from dask_ml.linear_model import LogisticRegression

    problem = synthetic(*(1_000, 10, 2) if context.quick else (100_000, 100, 2), max_size=1)
    labels = problem.Y[:, 0]
    best = binary_objective(quietly(MLRHClassifier(tol=1e-13).fit, problem.X, labels), problem.X, labels)
    with clients(2) as (client,), client.as_current():
        X, y = (da.from_array(own, chunks=(len(own) // 8, *own.shape[1:])).persist() for own in (problem.X, labels))
        ours = DaskMLRHClassifier(client=client)
        theirs = LogisticRegression(C=1.0, solver="lbfgs")
        calls = {
            "ours": timed(partial(quietly, partial(ours.fit, classes=[0, 1]), X, y)),
            "theirs": timed(partial(theirs.fit, X, y)),
        }
        runs = interleaved(calls, repeats)
    gaps = {}
    for name, model in (("ours", ours.to_local()), ("theirs", theirs)):
        scores = problem.X @ np.ravel(model.coef_) + float(np.ravel(model.intercept_)[0])
        loss = np.logaddexp(0, scores).sum() - scores @ labels + 0.5 * np.square(model.coef_).sum()
        gaps[name] = max(float(loss / best - 1), 0.0)
    told = {"gap": gaps["ours"], "their_gap": gaps["theirs"], "target": None}
    case = f"{problem}, one label, two workers"
    yield compared(QUESTION, case, runs["ours"].median, "dask-ml LogisticRegression", runs["theirs"].median, **told)
