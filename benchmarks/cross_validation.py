"""How long does the choice of C take beside GridSearchCV over the same grid and folds? At least 3 times less.

Each with processes over folds (n_jobs) and without, whichever is faster. Both choose by exact match.
"""

from functools import partial

import numpy as np
from joblib import cpu_count
from sklearn.model_selection import GridSearchCV, KFold

from benchmarks import problems
from benchmarks.table import attempted, compared
from benchmarks.timing import interleaved, quietly, timed, turns
from mlrh import KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.estimators.kernel import gamma_scale

QUESTION = "choice of C"
TARGET = 1 / 3
CLOSE = 0.02  # by which mean exact match may differ where another point of the grid is chosen
Cs = np.logspace(-2, 3, 10)


def measure(repeats, context):
    """Yields a line for the linear and one for the kernel classifier on each set."""
    sets = {"linear": ("emotions", "yeast"), "RBF": ("emotions", "scene")}
    for kind, names in ({"linear": ("emotions",)} if context.quick else sets).items():
        for name in names:
            yield from attempted(QUESTION, f"{kind}, {name}", _of_set, kind, name, repeats, context)


def _of_set(kind, name, repeats, context):
    problem, grid = problems.public(name), Cs[::4] if context.quick else Cs
    gammas = [gamma_scale(problem.X) * factor for factor in (0.5, 1.0)]
    searches = partial(_linear, grid) if kind == "linear" else partial(_kernel, grid, gammas)
    yield line(kind, problem, searches, repeats, context)


def line(kind, problem, searches, repeats, context):
    """The line of a problem; searches(folds, n_jobs) gives ours and GridSearchCV, not fitted."""
    folds = list(KFold(5, shuffle=True, random_state=0).split(problem.X))
    calls, results = {}, {}
    for side in (0, 1):
        tried = [_tried(searches, side, n_jobs, folds, problem) for n_jobs in (None, cpu_count())]
        seconds, results[side], calls[side] = min(tried, key=lambda own: own[0])
        context.tell(f"choice of C, {kind}, {problem}: {type(results[side]).__name__} {seconds:.3g} s")
    runs = interleaved({"ours": calls[0], "theirs": calls[1]}, repeats, warm_up=False)
    difference = abs(results[0].best_score_ - results[1].best_score_)
    case, competitor = f"{kind}, {len(folds)} folds, {problem}", f"GridSearchCV, n_jobs={results[1].n_jobs}"
    medians = runs["ours"].median, competitor, runs["theirs"].median
    note = "; ".join(filter(None, (f"best exact match differs by {difference:.1e}", turns(runs["ours"], repeats))))
    return compared(QUESTION, case, *medians, target=TARGET, reached=difference <= CLOSE, note=note)


def _tried(searches, side, n_jobs, folds, problem):
    """Seconds of the second call, its result, and the call that repeats it."""
    call = timed(lambda: quietly(searches(folds, n_jobs)[side].fit, problem.X, problem.Y))
    call()  # the first one starts processes, and in them mlrh
    return *call(), call


def _linear(grid, folds, n_jobs):
    theirs = GridSearchCV(MLRHClassifier(), {"C": list(grid)}, cv=folds, n_jobs=n_jobs)
    return MLRHClassifierCV(Cs=list(grid), cv=folds, n_jobs=n_jobs), theirs


def _kernel(grid, gammas, folds, n_jobs):
    theirs = GridSearchCV(KernelMLRHClassifier(), {"C": list(grid), "gamma": gammas}, cv=folds, n_jobs=n_jobs)
    return KernelMLRHClassifierCV(Cs=list(grid), gammas=gammas, cv=folds, n_jobs=n_jobs), theirs
