"""How long does a fit take beside separate models, one per label? Linear, and with an RBF kernel; at C = 1.

A linear fit is asked twice: to equal accuracy, where each side counts at its fastest tolerance that reaches a relative
gap of 1e-4 to its own optimum, and at the default tolerances of both sides. With the kernel we fit by default. Linear
fits are held against logistic regressions, fits with gamma="scale" against support vector machines, each with the dual
objective that libsvm minimises.
"""

from contextlib import ExitStack
from functools import partial

import numpy as np
from scipy import sparse

from benchmarks import ladders, problems
from benchmarks.adapters import libmultilabel, ours, scikit_learn, support_vectors
from benchmarks.optimum import ENOUGH
from benchmarks.table import attempted, broken, compared
from benchmarks.timing import interleaved, turns

LINEAR, DEFAULTS, RBF = "linear fit", "linear fit at defaults", "RBF fit"
SETS = ("emotions", "yeast", "scene", "medical", "corel5k", "tmc2007-500", "bibtex", "delicious")
QUICK_SETS = ("emotions", "medical")
TARGETS = {LINEAR: 0.8, DEFAULTS: 1.0, RBF: 0.5}  # of each set; geometric means of linear fits have their own


def measure_linear(repeats, context, question=LINEAR):
    """Yields a line for each data set."""
    for name in QUICK_SETS if context.quick else SETS:
        lines = partial(linear_lines, repeats=repeats, context=context, question=question)
        yield from attempted(question, name, lambda name=name, lines=lines: lines(problems.public(name)))


def measure_defaults(repeats, context):
    """The same at the default tolerances of both sides."""
    yield from measure_linear(repeats, context, DEFAULTS)


def measure_rbf(repeats, context):
    """Yields a line for each data set: scene, the 1,925 training rows of a fold, and yeast, all rows."""
    for name in ("emotions",) if context.quick else ("scene", "yeast"):
        problem = problems.first_fold if name == "scene" else partial(problems.public, part="all")
        yield from attempted(RBF, name, lambda name=name, of=problem: [rbf_line(of(name), repeats, context)])


def linear_lines(problem, repeats, context, question=LINEAR):
    """Yields the line of a problem, after one that says loudly which competitor is missing."""
    with ExitStack() as stack:
        climbed = scikit_learn.linear(problem)
        try:
            climbed.insert(0, stack.enter_context(libmultilabel.linear(problem)))
        except libmultilabel.UnavailableError as error:
            yield broken(question, f"{problem.name}, LibMultiLabel", str(error))
        floor = partial(linear_floor, context.machine, problem)
        yield beside(question, problem, climbed, ours.linear(problem), repeats, context, floor=floor)


def rbf_line(problem, repeats, context):
    """The line of a problem; its floor are the kernel matrix, one half of it, and one Cholesky factorisation."""
    n_samples, n_features = problem.X.shape
    least = context.machine.floor(flops=n_samples**2 * n_features + n_samples**3 / 3)
    climbed = support_vectors.kernel(problem)
    return beside(RBF, problem, climbed, ours.kernel(problem), repeats, context, floor=lambda n_iter: least)


def beside(question, problem, climbed, own, repeats, context, *, floor):
    """The line of a problem: our own ladder in turns with the finalists of the others, whichever is the fastest.

    floor(n_iter) is the seconds that so many iterations need.
    """
    context.tell(str(problem))
    options = {"tell": context.tell}
    found = (ladders.at_defaults if question == DEFAULTS else ladders.finalists)(climbed, **options)
    if not found:
        return broken(question, str(problem), f"no competitor reached a gap of {ENOUGH:g}")
    settings = (ladders.finalists if question == LINEAR else ladders.at_defaults)([own], limit=1, **options)
    if not settings:
        return broken(question, str(problem), f"no tolerance of ours reached a gap of {ENOUGH:g}")
    (setting,) = settings
    _, fitted = setting.call()
    calls = {each.name: each.call for each in (setting, *found)}
    runs = interleaved(calls, repeats, warm_up=False)
    best = min(found, key=lambda each: runs[each.name].median)
    seconds = runs[setting.name].median, best.name, runs[best.name].median
    note = "; ".join(filter(None, (f"ours at tol={setting.step:.2g}", turns(runs[setting.name], repeats))))
    told = {"gap": setting.gap, "their_gap": best.gap, "floor": floor(fitted.n_iter_), "note": note}
    return compared(question, str(problem), *seconds, target=TARGETS[question], reached=setting.gap <= ENOUGH, **told)


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
