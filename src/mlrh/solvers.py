"""Minimisers of an objective: (objective, start) -> Solution. They see only the objective's protocol.

All of them stop by one rule: half the squared length of the gradient in the metric typical_curvature * gram + ridges,
which estimates the decrease that is left whatever the scale of the features, is at most tol times the loss of the
uniform distribution. None of them increases the objective by more than its rounding error.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

MEMORY = 10  # pairs of steps and gradient changes that lbfgs keeps
PATIENCE = 100  # iterations in a row that gain no more than rounding error, in value and gradient, to give up after


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: parameters, value and gradient length there, and how it came about.

    `gradient_norm` is sqrt(2 * estimated decrease left / scale); `history` holds the value at the start and after
    every iteration.
    """

    parameters: np.ndarray
    value: float
    gradient_norm: float
    n_iter: int
    converged: bool
    history: tuple


def mm(objective, start, *, tol, max_iter, step="safe", report=None):
    """Majorisation-minimisation: parameters -= (c gram + ridges)^-1 gradient, factorised once.

    step="safe": c bounds the curvature everywhere, so every step decreases the objective. step="paper": c = 1/4, the
    bound for one label alone, twice the step; it is still never uphill where the joint bound is 1/2.
    """
    bound = objective.curvature_bound()
    if step == "paper" and bound > 0.5:
        raise ValueError(
            "mm_step='paper' can increase the objective unless labels repel each other (no learned size bias, no "
            "observed label space); use mm_step='safe'."
        )
    curvature = min(bound, 0.25) if step == "paper" else bound
    solve = objective.majoriser(curvature)
    # solve is shorter than the metric of the stopping rule by at most this ratio.
    stretch = max(curvature / objective.typical_curvature(), 1.0)

    def advance(state):
        parameters = state.parameters - state.solved
        return _arrive((parameters, *objective.value_and_gradient(parameters)), solve)

    return _iterate(objective, start, solve, advance, stretch=stretch, tol=tol, max_iter=max_iter, report=report)


def lbfgs(objective, start, *, tol, max_iter, report=None):
    """Limited-memory BFGS whose initial inverse Hessian is the metric of the stopping rule, scaled.

    Equivalent to L-BFGS after a change of variables that makes the metric the identity, without forming its root.
    """
    solve = objective.metric(objective.typical_curvature())
    pairs: deque = deque(maxlen=MEMORY)

    def advance(state):
        moved = _line_search(objective, state, _two_loop(state, pairs, solve)) if pairs else None
        if moved is None:
            pairs.clear()
            moved = _line_search(objective, state, -state.solved)
        if moved is None:
            return None
        after = _arrive(moved, solve)
        step, change = after.parameters - state.parameters, after.gradient - state.gradient
        product = step @ change
        if product > np.finfo(float).eps * np.linalg.norm(step) * np.linalg.norm(change):
            pairs.append((step, change, product, product / (change @ (after.solved - state.solved))))
        return after

    return _iterate(objective, start, solve, advance, tol=tol, max_iter=max_iter, report=report)


def newton_cg(objective, start, *, tol, max_iter, report=None):
    """Newton's method; its systems are solved by conjugate gradients preconditioned with the metric."""
    solve = objective.metric(objective.typical_curvature())
    shape = (len(start), len(start))
    preconditioner = LinearOperator(shape, matvec=solve, dtype=np.float64)
    first: list[float] = []

    def advance(state):
        first.append(state.left)
        accuracy = min(0.3, (state.left / first[0]) ** 0.25)
        hessian = LinearOperator(shape, matvec=objective.hessian(state.parameters), dtype=np.float64)
        direction, _ = cg(hessian, -state.gradient, rtol=accuracy, maxiter=200, M=preconditioner)
        moved = _line_search(objective, state, direction) or _line_search(objective, state, -state.solved)
        return None if moved is None else _arrive(moved, solve)

    return _iterate(objective, start, solve, advance, tol=tol, max_iter=max_iter, report=report)


@dataclass(frozen=True)
class _State:
    parameters: np.ndarray
    value: float
    gradient: np.ndarray
    solved: np.ndarray  # the gradient, solved with the metric

    @property
    def left(self):
        return 0.5 * float(self.gradient @ self.solved)


def _arrive(moved, solve):
    parameters, value, gradient = moved
    return _State(parameters, value, gradient, solve(gradient))


def _iterate(objective, start, solve, advance, *, tol, max_iter, report, stretch=1.0):
    """Advance until the rule is met, the iterations are used up, or rounding allows no further step."""
    state = _arrive((start, *objective.value_and_gradient(start)), solve)
    history = [state.value]
    limit = tol * objective.scale
    stalled, smallest = 0, state.left
    while state.left * stretch > limit and len(history) <= max_iter and stalled < PATIENCE:
        following = advance(state)
        if following is None:
            break
        gained = state.value - following.value > objective.noise * abs(following.value)
        stalled = 0 if gained or following.left < 0.95 * smallest else stalled + 1
        smallest = smallest if stalled else following.left
        state = following
        history.append(state.value)
        if report is not None:
            report(len(history) - 1, state.value, state.left * stretch / objective.scale)
    left = state.left * stretch
    norm = float(np.sqrt(2 * left / objective.scale))
    return Solution(state.parameters, state.value, norm, len(history) - 1, bool(left <= limit), tuple(history))


def _two_loop(state, pairs, solve):
    """Minus the inverse Hessian estimate times the gradient."""
    direction = -state.gradient
    used = []
    for step, change, product, _ in reversed(pairs):
        share = (step @ direction) / product
        direction = direction - share * change
        used.append(share)
    direction = pairs[-1][3] * solve(direction)
    for (step, change, product, _), share in zip(pairs, reversed(used), strict=True):
        direction = direction + (share - (change @ direction) / product) * step
    return direction


def _line_search(objective, state, direction):
    """Parameters, value and gradient at a step that meets the Wolfe conditions, or None if there is none.

    Values are compared with an allowance for their rounding error, so that steps near the optimum are judged by the
    slope, which stays accurate there.
    """
    slope = float(state.gradient @ direction)
    if not slope < 0:
        return None
    allowance = objective.noise * abs(state.value)
    low, high, step = 0.0, np.inf, 1.0
    best = None
    for _ in range(30):
        parameters = state.parameters + step * direction
        value, gradient = objective.value_and_gradient(parameters)
        excess = value - state.value - step * slope
        if not value <= state.value + 1e-4 * step * slope + allowance:
            high = step
        elif gradient @ direction < 0.9 * slope:
            low, best = step, (parameters, value, gradient)
        else:
            return parameters, value, gradient
        if high == np.inf:
            step *= 4
        elif best is not None or not np.isfinite(excess):
            step = 0.5 * (low + high)
        else:
            step = float(np.clip(-0.5 * slope * step**2 / excess, 0.1 * high, 0.5 * high))
    return best
