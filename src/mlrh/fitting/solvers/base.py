"""Minimisers of an objective: (objective, start) -> Solution. They see only the objective's protocol.

All of them stop by one rule: the decrease of the objective that is left is estimated to be at most tol times the loss
of the uniform distribution. The estimate is the larger of two: half the squared length of the gradient in the
objective's metric, which no scale of the features disturbs, and the solver's own. Where both are small enough, the
Newton decrement has the last word (or the penalty, if its curvature alone bounds what is left): the curvature may be
far below the typical one, as it is near separable data. None of them increases the objective by more than its rounding
error.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from mlrh import _parallel

MEMORY = 5  # pairs of steps and gradient changes that lbfgs keeps
SHORT = 0.4  # of the step that lbfgs proposes: taking less casts doubt on separate memories
MAX_DOUBTS = 1.5  # two short steps in a row are more, single ones less; beyond, one memory serves all labels
FIRST_WAIT = 25  # iterations with one memory until separate ones are tried again, the next time 2.5 times as many
MAX_AGE = 14.0  # of the penalty for which a metric was made, over the one it serves
MAX_PRODUCTS = 30  # with the Hessian, to check that a claim of convergence is true
MAX_INNER = 200  # products with the Hessian in one step of newton_cg
PATIENCE = 100  # iterations in a row that gain no more than rounding error, in value and gradient, to give up after


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped: parameters, value and gradient length there, and how it came about.

    `gradient_norm` is sqrt(2 * estimated decrease left / scale); `history` holds the value at the start and after
    every iteration. `interrupted` says that a KeyboardInterrupt ended it, after the last complete iteration, `stopped`
    that its report asked for it.
    """

    parameters: np.ndarray
    value: float
    gradient_norm: float
    n_iter: int
    converged: bool
    history: tuple
    interrupted: bool = False
    stopped: bool = False


@dataclass(frozen=True)
class _State:
    parameters: np.ndarray
    value: float
    gradient: np.ndarray
    solved: np.ndarray  # the gradient, solved with the metric

    @property
    def left(self):
        """Estimated decrease left by the metric."""
        return 0.5 * float(self.gradient @ self.solved)


def _arrive(objective, parameters, solve):
    value, gradient = objective.value_and_gradient(parameters)
    return _State(parameters, value, gradient, solve(gradient))


def newton_decrease(objective, state, precondition, enough):
    """A step towards the minimum of the quadratic model, and the decrease that the model predicts for it.

    The predictions of conjugate gradients only grow: they end when the prediction is enough, or when five products in
    a row have added less than a tenth to it. Small gains at first mean nothing: flat directions come late.
    """
    step, decrease, small_gains = np.zeros_like(state.parameters), 0.0, 0
    for step, gain, _ in islice(_conjugate_gradients(objective, state, precondition), MAX_PRODUCTS):  # noqa: B007
        decrease += gain
        small_gains = small_gains + 1 if gain < 0.1 * decrease else 0
        if decrease > enough or small_gains == 5:
            break
    return step, decrease


def _conjugate_gradients(objective, state, precondition):
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
        self.reached, self.left, self.history = (state, 0), np.inf, [state.value]

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
    return Solution(
        parameters=state.parameters,
        value=state.value,
        gradient_norm=float(np.sqrt(2 * progress.left / objective.scale)),
        n_iter=n_iter,
        converged=bool(progress.left <= tol * objective.scale) and not interrupted,
        history=tuple(progress.history[: n_iter + 1]),
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
        if left <= enough or n_iter >= max_iter or stalled >= PATIENCE:
            return False
        following = move(state, direction)
        if following is None:
            return False
        gained = state.value - following.value > objective.rounding_error(state.value)
        stalled = 0 if gained or following.left < 0.95 * smallest else stalled + 1
        smallest = smallest if stalled else following.left
        correction = max(0.9 * correction, 1.0)
        progress.move_to(following)


def _extrapolated_decrease(history, rounding_error):
    """What is left if decreases go on to shrink by the factor of the last two; 0 before there are two."""
    if len(history) < 3:
        return 0.0
    before, last = history[-3] - history[-2], history[-2] - history[-1]
    if last <= rounding_error:
        return 0.0
    return last**2 / (before - last) if before > last else np.inf


def _line_search(objective, state, direction, solve):
    """The state at a step that meets the Wolfe conditions, or None if there is none.

    Values are compared with an allowance for their rounding error, so that steps near the optimum are judged by the
    slope, which stays accurate there.
    """
    slope = float(state.gradient @ direction)
    if not slope < 0:
        return None
    allowance = objective.rounding_error(state.value)
    low, high, step = 0.0, np.inf, 1.0
    best = None
    for _ in range(30):
        reached = _arrive(objective, state.parameters + step * direction, solve)
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
