"""Minimisers of an objective: (objective, start, *, tol, max_iter, report, **options) -> Solution."""

from mlrh.fitting.solvers.base import (
    OPTIONS,
    PenalisedObjective,
    SmoothObjective,
    Solution,
    arrive,
    best_of,
    check_pairing,
    iterate,
    line_search,
    solver,
)
from mlrh.fitting.solvers.lbfgs import MetricOfPath, lbfgs
from mlrh.fitting.solvers.mm import mm
from mlrh.fitting.solvers.newton_cg import newton_cg
from mlrh.fitting.solvers.prox_newton import prox_newton

__all__ = [
    "BY_NAME",
    "OPTIONS",
    "MetricOfPath",
    "PenalisedObjective",
    "SmoothObjective",
    "Solution",
    "arrive",
    "best_of",
    "check_pairing",
    "iterate",
    "lbfgs",
    "line_search",
    "mm",
    "newton_cg",
    "prox_newton",
    "solver",
]

BY_NAME = {"mm": mm, "lbfgs": lbfgs, "newton-cg": newton_cg, "prox-newton": prox_newton}
