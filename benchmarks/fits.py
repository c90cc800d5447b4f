"""How long does a fit take beside separate models, one per label? Linear, and with an RBF kernel; at C = 1.

To a relative gap of 1e-4: we fit with default settings, the competitor counts at its fastest setting that reaches the
gap to its own optimum. Linear fits are held against logistic regressions, fits with gamma="scale" against support
vector machines, each with the dual objective that libsvm minimises.
"""

from contextlib import ExitStack
from functools import partial

import numpy as np
from scipy import sparse

from benchmarks import ladders, problems
from benchmarks.adapters import libmultilabel, ours, scikit_learn, support_vectors
from benchmarks.optimum import ENOUGH
from benchmarks.table import attempted, broken, compared
from benchmarks.timing import interleaved, timed, turns

LINEAR, RBF = "linear fit", "RBF fit"
SETS = ("emotions", "yeast", "scene", "medical", "corel5k", "tmc2007-500", "bibtex", "delicious")
QUICK_SETS = ("emotions", "medical")
TARGETS = {LINEAR: 2.0, RBF: 1.0}  # of each set; the geometric mean of linear fits has one of its own


def measure_linear(repeats, context):
    """Yields a line for each data set."""
    for name in QUICK_SETS if context.quick else SETS:
        yield from attempted(LINEAR, name, lambda name=name: linear_lines(problems.public(name), repeats, context))


def measure_rbf(repeats, context):
    """Yields a line for each data set: scene, the 1,925 training rows of a fold, and yeast, all rows."""
    for name in ("emotions",) if context.quick else ("scene", "yeast"):
        problem = problems.first_fold if name == "scene" else partial(problems.public, part="all")
        yield from attempted(RBF, name, lambda name=name, of=problem: [rbf_line(of(name), repeats, context)])


def linear_lines(problem, repeats, context):
    """Yields the line of a problem, after one that says loudly which competitor is missing."""
    with ExitStack() as stack:
        climbed = scikit_learn.linear(problem)
        try:
            climbed.insert(0, stack.enter_context(libmultilabel.linear(problem)))
        except libmultilabel.UnavailableError as error:
            yield broken(LINEAR, f"{problem.name}, LibMultiLabel", str(error))
        floor = partial(linear_floor, context.machine, problem)
        yield beside(LINEAR, problem, climbed, *ours.linear(problem), repeats, context, floor=floor)


def rbf_line(problem, repeats, context):
    """The line of a problem; its floor are the kernel matrix, one half of it, and one Cholesky factorisation."""
    n_samples, n_features = problem.X.shape
    least = context.machine.floor(flops=n_samples**2 * n_features + n_samples**3 / 3)
    climbed = support_vectors.kernel(problem)
    return beside(RBF, problem, climbed, *ours.kernel(problem), repeats, context, floor=lambda n_iter: least)


def beside(question, problem, climbed, fit, gap_of, repeats, context, *, floor):
    """The line of a problem: fit() in turns with the finalists of the ladders, whichever of them is the fastest.

    gap_of(fitted) is the relative distance to the optimum; floor(n_iter) the seconds that so many iterations need.
    """
    context.tell(str(problem))
    found = ladders.finalists(climbed, tell=context.tell)
    if not found:
        return broken(question, str(problem), f"no competitor reached a gap of {ENOUGH:g}")
    seconds, fitted = timed(fit)()
    gap = gap_of(fitted)
    context.tell(f"  mlrh: {seconds:.3g} s, {fitted.n_iter_} iterations, gap {gap:.1e}")
    calls = {"ours": timed(fit), **{setting.name: setting.call for setting in found}}
    runs = interleaved(calls, repeats, warm_up=False)
    best = min(found, key=lambda setting: runs[setting.name].median)
    seconds = runs["ours"].median, best.name, runs[best.name].median
    told = {"gap": gap, "their_gap": best.gap, "floor": floor(fitted.n_iter_), "note": turns(runs["ours"], repeats)}
    return compared(question, str(problem), *seconds, target=TARGETS[question], reached=gap <= ENOUGH, **told)


def linear_floor(machine, problem, n_iter) -> float:
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
