"""How near does partial_fit come to fit? Within 1% of its objective after three passes.

Public sets, all of whose rows are kept, in calls of 50 and of 500 rows; and a memory-mapped array of which a sample is
kept, passed as it is. The order of rows is shuffled once; everything else is by default.
"""

import tempfile
import warnings
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks import optimum
from benchmarks.problems import Problem, public, synthetic
from benchmarks.table import compared
from mlrh import MLRHClassifier, streaming

QUESTION = "stream"
TARGET = 1.0
ALLOWED = 1.0  # per cent of the objective
N_PASSES = 3
SETS = ("emotions", "scene", "yeast", "tmc2007-500", "bibtex")
CHUNKS = (50, 500)
LARGE = {"n_samples": 60_000, "n_features": 1_000, "n_labels": 10}  # 458 MiB; about four rows are kept for each feature
QUICK_BYTES = 2**15  # kept of 45,000
QUICK = {"n_samples": 400, "n_features": 10, "n_labels": 5}


def measure(repeats, context):
    """Yields a line for each set and size of the calls, and one for the mapped array; nothing here is timed."""
    for name in () if context.quick else SETS:
        problem = public(name)
        least = optimum.Optimum(lambda problem=problem: _least(problem))
        for chunk in CHUNKS:
            yield line(f"{problem}, calls of {chunk} rows", problem, least, chunk, context)
    problem = synthetic(**(QUICK if context.quick else LARGE))
    least = optimum.Optimum(lambda: _least(problem))
    kept = mock.patch.object(streaming, "MAX_BYTES", QUICK_BYTES if context.quick else streaming.MAX_BYTES)
    with tempfile.TemporaryDirectory() as folder, kept:
        mapped = Problem(problem.name, _mapped(problem.X, Path(folder) / "X"), problem.Y)
        yield line(f"{problem}, memory-mapped, one call a pass", mapped, least, len(problem.Y), context)


def line(case, problem, least, chunk, context, n_passes=N_PASSES):
    """The line of one problem: how far passes over it end from the optimum, of what is allowed."""
    model = passed(problem, chunk, n_passes)
    gap = 100 * least.gap(optimum.joint(model, problem.X, problem.Y).value)
    context.tell(f"{case}: {gap:.3g}% after {n_passes} passes")
    allowed = f"fit's optimum, after {n_passes} passes"
    return compared(QUESTION, case, gap, allowed, ALLOWED, target=TARGET, unit="%")


def passed(problem, chunk, n_passes):
    """The classifier after passes over the shuffled rows in calls of `chunk` rows; of a mapped X as it is."""
    X, Y = problem.X, problem.Y
    if chunk < len(Y):
        order = np.random.default_rng(0).permutation(len(Y))
        X, Y = X[order], Y[order]
    model = MLRHClassifier()
    for _ in range(n_passes):
        for start in range(0, len(Y), chunk):
            rows = slice(start, start + chunk)
            model.partial_fit(X[rows], Y[rows], classes=range(Y.shape[1]))
    return model


def _least(problem):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optimum.joint(MLRHClassifier(tol=1e-10, max_iter=5000).fit(problem.X, problem.Y), problem.X, problem.Y)


def _mapped(array, path):
    array.tofile(path)
    return np.memmap(path, dtype=array.dtype, mode="r", shape=array.shape)
