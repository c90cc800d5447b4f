"""How long does a linear fit take beside one logistic regression per label? To a relative gap of 1e-4, at C = 1.

We fit with default settings; the competitor counts at its fastest setting that reaches the gap to its own optimum.
"""

from contextlib import ExitStack
from functools import partial

import numpy as np
from scipy import sparse

from benchmarks import ladders, problems
from benchmarks.adapters import libmultilabel, ours, scikit_learn
from benchmarks.fits import beside
from benchmarks.table import attempted, broken

QUESTION = "linear fit"
SETS = ("emotions", "yeast", "scene", "medical", "corel5k", "tmc2007-500", "bibtex", "delicious")
QUICK_SETS = ("emotions", "medical")
TARGET = 2.0  # of each set; the geometric mean has one of its own
MEAN_TARGET = 1.0


def measure(repeats, context):
    """Yields a line for each data set."""
    for name in QUICK_SETS if context.quick else SETS:
        yield from attempted(QUESTION, name, _of_set(name, repeats, context))


def _of_set(name, repeats, context):
    yield from lines(problems.public(name), repeats, context)


def lines(problem, repeats, context):
    """Yields the line of a problem, after one that says loudly which competitor is missing."""
    with ExitStack() as stack:
        climbed = scikit_learn.linear(problem)
        try:
            climbed.insert(0, stack.enter_context(libmultilabel.linear(problem)))
        except libmultilabel.UnavailableError as error:
            yield broken(QUESTION, f"{problem.name}, LibMultiLabel", str(error))
        context.tell(f"{problem}")
        found = ladders.finalists(climbed, tell=context.tell)
        limits = {"target": TARGET, "floor": partial(floor, context.machine, problem)}
        yield beside(found, QUESTION, problem, *ours.linear(problem), repeats, context, **limits)


def floor(machine, problem, n_iter) -> float:
    """Seconds of so many evaluations: two products with X, the recurrence and its adjoint; X and scores moved twice."""
    (n_samples, _), (_, n_labels) = problem.X.shape, problem.Y.shape
    entries = problem.X.nnz if sparse.issparse(problem.X) else problem.X.size
    max_labels = int(np.max(problem.Y.sum(axis=1)))
    flops = 4 * entries * n_labels + 6 * n_samples * n_labels * max_labels
    n_bytes = 2 * n_bytes_of(problem.X) + 2 * 8 * n_samples * n_labels
    return (n_iter + 1) * machine.floor(n_bytes=n_bytes, flops=flops)


def n_bytes_of(X) -> int:
    """Bytes of a dense or CSR matrix."""
    return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sparse.issparse(X) else X.nbytes
