"""scikit-learn's logistic regression, one per label: OneVsRestClassifier and MultiOutputClassifier, three solvers.

liblinear penalises the intercept and the others don't, so they have optima of their own. BLAS has as many threads as
the run gives it; the variants have as many processes or threads over labels as there are cores.
"""

import warnings

import numpy as np
from joblib import cpu_count, parallel_config
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier

from benchmarks.ladders import Ladder
from benchmarks.optimum import Optimum, separate
from benchmarks.timing import timed

STEPS = {
    "liblinear": (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-5),
    "liblinear dual": (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4),
    "newton-cholesky": (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5),
    "lbfgs": (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6),
}
DEFAULT = LogisticRegression().tol
MAX_HESSIAN = 600  # features; with the 1,836 of bibtex newton-cholesky takes 50 times as long as liblinear for a label
VARIANTS = (
    "OneVsRest",
    "OneVsRest with processes",
    "OneVsRest with threads",
    "MultiOutput",
    "MultiOutput with threads",
)
MANY = 10_000  # entries of Y for which processes are worth their start
MAX_ITER = 20_000  # never what ends a fit; the tolerances do


def linear(problem) -> list[Ladder]:
    """A ladder for each solver that suits the problem's size, the one that is usually fastest first."""
    n_samples, n_features = problem.X.shape
    solvers = ["liblinear"]
    solvers += ["liblinear dual"] if n_features > n_samples else []
    solvers += ["newton-cholesky"] if n_features <= MAX_HESSIAN else []
    optima = {penalised: Optimum(lambda p=penalised: _tight(problem, p)) for penalised in (True, False)}
    return [_ladder(problem, solver, optima[solver.startswith("liblinear")]) for solver in [*solvers, "lbfgs"]]


def _ladder(problem, solver, optimum):
    def run(step, variant):
        return timed(lambda: _fit(problem, solver, step, variant))()

    def gap(fitted):
        return optimum.gap(_point(fitted, problem, solver.startswith("liblinear")).value)

    return Ladder(f"scikit-learn {solver}", "tol=", STEPS[solver], VARIANTS, run, gap, DEFAULT)


def _fit(problem, solver, tol, variant):
    name, *jobs = variant.split()
    is_dual = solver == "liblinear dual"
    single = LogisticRegression(solver=solver.split()[0], dual=is_dual, tol=tol, max_iter=MAX_ITER, random_state=0)
    wrapper = OneVsRestClassifier if name == "OneVsRest" else MultiOutputClassifier
    model = wrapper(single, n_jobs=cpu_count() if jobs else None)
    with warnings.catch_warnings(), parallel_config("threading" if "threads" in jobs else "loky"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)  # what a later version will say of liblinear is not our question
        return model.fit(problem.X, problem.Y)


def _point(fitted, problem, intercept_is_penalised):
    coef = np.vstack([single.coef_ for single in fitted.estimators_])
    intercept = np.concatenate([single.intercept_ for single in fitted.estimators_])
    return separate(problem.X, problem.Y, coef, intercept, intercept_is_penalised=intercept_is_penalised)


def _tight(problem, intercept_is_penalised):
    """The point that the solver reaches with a tolerance far below those of the ladder."""
    if intercept_is_penalised:
        solver, tol = "liblinear", 1e-7
    else:
        solver, tol = ("newton-cholesky", 1e-8) if problem.X.shape[1] <= MAX_HESSIAN else ("lbfgs", 1e-8)
    variant = "OneVsRest with processes" if problem.Y.size > MANY else "OneVsRest"
    return _point(_fit(problem, solver, tol, variant), problem, intercept_is_penalised)
