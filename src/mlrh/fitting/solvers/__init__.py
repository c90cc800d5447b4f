"""Minimisers of an objective: (objective, start) -> Solution."""

from mlrh.fitting.solvers.base import Solution
from mlrh.fitting.solvers.lbfgs import MetricOfPath, lbfgs
from mlrh.fitting.solvers.mm import mm
from mlrh.fitting.solvers.newton_cg import newton_cg
from mlrh.fitting.solvers.prox_newton import prox_newton

__all__ = ["MetricOfPath", "Solution", "lbfgs", "mm", "newton_cg", "prox_newton"]
