"""Minimisers of an objective: (objective, start) -> Solution. They see only the objective's protocol.

All of them stop by one rule: the decrease of the objective that is left is estimated to be at most tol times the loss
of the uniform distribution. The estimate is the larger of two: half the squared length of the gradient in the
objective's metric, which no scale of the features disturbs, and the solver's own. Where both are small enough, the
Newton decrement has the last word (or the penalty, if its curvature alone bounds what is left): the curvature may be
far below the typical one, as it is near separable data. None of them increases the objective by more than its rounding
error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from mlrh import _parallel

MAX_PRODUCTS = 30  # with the Hessian, to check that a claim of convergence is true
PATIENCE = 100  # iterations in a row that gain no more than rounding error, in value and gradient, to give up after


class Objective(Protocol):
    """All that a solver may ask of an objective; parameters, gradients and directions are flat vectors.

    `offers` names the parts that an objective may lack, and a solver says which of them it needs: "hessian", "metric",
    "majoriser" (a metric that bounds the Hessian everywhere), and "l1" (the members of `PenalisedObjective`).
    """

    offers: frozenset[str]
    alpha: float  # strength of the L2 penalty on coefficients
    l1: float  # strength of the L1 penalty, which values and derivatives leave out
    scale: float  # what a decrease is held against: tol * scale is small
    n_operations: int  # of one product with the features
    renews_cheaply: bool  # whether a metric at other parameters costs no more than a few evaluations

    def value_and_gradient(self, parameters) -> tuple[float, np.ndarray]: ...
    def hessian(self, parameters) -> Callable[[np.ndarray], np.ndarray]: ...
    def metric(self, curvature=None, *, at=None) -> Callable[[np.ndarray], np.ndarray]: ...
    def majoriser(self, curvature) -> Callable[[np.ndarray], np.ndarray]: ...
    def curvature_bound(self) -> float: ...
    def typical_curvature(self) -> float: ...
    def n_blocks(self) -> int: ...
    def decrease_bound(self, gradient) -> float: ...
    def rounding_error(self, parameters, value) -> float: ...


class PenalisedObjective(Objective, Protocol):
    """What a solver of the L1 penalty asks besides: where the coefficients are, and the model of each label's."""

    design: Any  # features: X, mean, shift, total_weight, gram(), squared_norms(), ...
    ridges: np.ndarray  # the strength of the L2 penalty on each parameter

    def split(self, parameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
    def canonical(self, parameters) -> np.ndarray: ...
    def determined(self, direction) -> np.ndarray: ...
    def l1_penalty(self, parameters) -> float: ...
    def with_curvatures(self, parameters) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: parameters, value and gradient length there, and how it came about.

    `gradient_norm` is sqrt(2 * estimated decrease left / scale); `history` holds the value at the start and after
    every iteration. `converged` says that the rule is met, or that all that is left is rounding error of the value
    (`at_rounding_floor`: no tolerance could ask for more). `interrupted` says that a KeyboardInterrupt ended it, after
    the last complete iteration, `stopped` that its report asked for it.
    """

    parameters: np.ndarray
    value: float
    gradient_norm: float
    n_iter: int
    converged: bool
    history: tuple
    at_rounding_floor: bool = False
    interrupted: bool = False
    stopped: bool = False


def solver(*, needs, options=()):
    """Declare what a solver needs of an objective (see `Objective.offers`) and which options of its own it takes."""

    def declare(function):
        function.needs, function.options = frozenset(needs), tuple(options)
        return function

    return declare


def check_pairing(name, function, *, offers, l1_ratio):
    """Raise a ValueError unless the solver fits the objective: a bad pairing fails before anything is computed."""
    needs: frozenset[str] = getattr(function, "needs", frozenset())
    if l1_ratio > 0 and "l1" not in needs:
        raise ValueError(
            f"solver={name!r} minimises smooth objectives, so l1_ratio must be 0; got {l1_ratio}. Use "
            "solver='auto' or 'prox-newton'."
        )
    if not needs <= offers:
        raise ValueError(
            f"solver={name!r} needs {', '.join(sorted(needs - offers))} of an objective, which this one doesn't offer."
        )


@dataclass(frozen=True)
class State:
    parameters: np.ndarray
    value: float
    gradient: np.ndarray
    solved: np.ndarray | None = None  # the gradient, solved with the metric

    @property
    def left(self):
        """Estimated decrease left by the metric."""
        return 0.5 * float(self.gradient @ self.solved)


def arrive(objective, parameters, solve):
    """The state at the parameters."""
    value, gradient = objective.value_and_gradient(parameters)
    return State(parameters, value, gradient, solve(gradient))


def best_of(start, evaluate):
    """evaluate(parameters) at the start, or at the one of several (n_starts, n_parameters) with the lowest value."""
    states = [evaluate(parameters) for parameters in np.atleast_2d(start)]
    return min(states, key=lambda state: state.value if np.isfinite(state.value) else np.inf)


def newton_decrease(objective, state, precondition, enough):
    """A step towards the minimum of the quadratic model, and the decrease that the model predicts for it.

    The predictions of conjugate gradients only grow: they end when the prediction is enough, or when five products in
    a row have added less than a tenth to it. Small gains at first mean nothing: flat directions come late.
    """
    step, decrease, small_gains = np.zeros_like(state.parameters), 0.0, 0
    for step, gain, _ in islice(conjugate_gradients(objective, state, precondition), MAX_PRODUCTS):  # noqa: B007
        decrease += gain
        small_gains = small_gains + 1 if gain < 0.1 * decrease else 0
        if decrease > enough or small_gains == 5:
            break
    return step, decrease


def conjugate_gradients(objective, state, precondition):
    """Steps towards the minimum of the quadratic model, what each adds to its decrease, and the residual left.

    One product with the Hessian per step. Ends where the model does not curve upwards.
    """
    hessian = objective.hessian(state.parameters)
    residual, step = -state.gradient, np.zeros_like(state.parameters)
    solved = precondition(residual)
    direction, square = solved, float(residual @ solved)
    while True:
        product = hessian(direction)
        curvature = float(direction @ product)
        if not curvature > 0:
            return
        step += (square / curvature) * direction
        product *= square / curvature
        residual -= product
        yield step, 0.5 * square**2 / curvature, residual
        solved = precondition(residual)
        before, square = square, float(residual @ solved)
        direction *= square / before
        direction += solved


class _Progress:
    """Where an iteration has come: the last state and its number, set at once, and the values of all before."""

    def __init__(self, state):
        self.reached, self.left, self.history, self.is_stuck = (state, 0), np.inf, [state.value], False

    def move_to(self, state):
        self.history.append(state.value)
        self.reached = state, len(self.history) - 1


def iterate(objective, state, propose, move, precondition, *, tol, max_iter, report):
    """The solution that `_advance` comes to, or came to before it was interrupted."""
    progress, interrupted, stopped = _Progress(state), False, False
    options = {"tol": tol, "max_iter": max_iter, "report": report}
    try:
        with _parallel.blas_suited_to(objective.n_operations):
            stopped = _advance(progress, objective, propose, move, precondition, **options)
    except KeyboardInterrupt:
        interrupted = True
    state, n_iter = progress.reached
    # What is left drowns in the rounding error of the value: on no processor would a further step be a decrease.
    at_floor = bool(progress.is_stuck and progress.left <= objective.rounding_error(state.parameters, state.value))
    return Solution(
        parameters=state.parameters,
        value=state.value,
        gradient_norm=float(np.sqrt(2 * progress.left / objective.scale)),
        n_iter=n_iter,
        converged=bool(at_floor or progress.left <= tol * objective.scale) and not interrupted,
        history=tuple(progress.history[: n_iter + 1]),
        at_rounding_floor=at_floor,
        interrupted=interrupted,
        stopped=stopped,
    )


def _advance(progress, objective, propose, move, precondition, *, tol, max_iter, report):
    """Propose and move until the rule is met, the iterations are used up, or rounding allows no further step.

    Or until report(iteration, value, share left, parameters), called after every iteration, returns True: then it
    returns True, too.

    propose(state, history) gives a direction and the solver's own estimate of the decrease left; move(state, direction)
    gives the state that follows, or None. With precondition, about the inverse of the Hessian, an estimate that is
    small enough is checked by the quadratic model, unless the objective's own bound confirms it; one found too low is
    raised by the same factor in the iterations that follow, a tenth less in each, so that not every one of them is
    checked.
    """
    history, enough = progress.history, tol * objective.scale
    stalled, smallest, correction = 0, progress.reached[0].left, 1.0
    while True:
        state, n_iter = progress.reached
        direction, estimate = propose(state, history)
        left = correction * max(state.left, estimate)
        if precondition is not None and 0 < left <= enough < objective.decrease_bound(state.gradient):
            step, decrease = newton_decrease(objective, state, precondition, enough)
            if decrease > left:
                correction *= decrease / left
                direction, left = step, decrease
        progress.left = left
        if report is not None and n_iter > 0 and report(n_iter, state.value, left / objective.scale, state.parameters):
            return True
        if left <= enough or n_iter >= max_iter:
            return False
        following = None if stalled >= PATIENCE else move(state, direction)
        if following is None:
            progress.is_stuck = True
            return False
        gained = state.value - following.value > objective.rounding_error(state.parameters, state.value)
        stalled = 0 if gained or following.left < 0.95 * smallest else stalled + 1
        smallest = smallest if stalled else following.left
        correction = max(0.9 * correction, 1.0)
        progress.move_to(following)


def line_search(objective, state, direction, solve):
    """The state at a step that meets the Wolfe conditions, or None if there is none.

    Values are compared with an allowance for their rounding error, so that steps near the optimum are judged by the
    slope, which stays accurate there.
    """
    slope = float(state.gradient @ direction)
    if not slope < 0:
        return None
    allowance = objective.rounding_error(state.parameters, state.value)
    low, high, step = 0.0, np.inf, 1.0
    best = None
    for _ in range(30):
        reached = arrive(objective, state.parameters + step * direction, solve)
        excess = reached.value - state.value - step * slope
        if not reached.value <= state.value + 1e-4 * step * slope + allowance:
            high = step
        elif reached.gradient @ direction < 0.9 * slope:
            low, best = step, reached
        else:
            return reached
        if high == np.inf:
            step *= 4
        elif best is not None or not np.isfinite(excess):
            step = 0.5 * (low + high)
        else:
            step = float(np.clip(-0.5 * slope * step**2 / excess, 0.1 * high, 0.5 * high))
    return best
