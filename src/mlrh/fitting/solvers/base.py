"""What solvers share: the protocol of an objective, `Solution`, the stopping rule, conjugate gradients, line search.

All solvers stop by one rule: the decrease that is left is estimated to be at most tol times the value, so that tol is a
relative gap (`enough_for` says what it is where the value is near 0). The estimate is the larger of two: half the
squared length of the gradient in the objective's metric, which does not depend on the scale of the features, and the
solver's own. Where both are small enough, the Newton decrement is computed to confirm it, since the curvature may be
far below the typical one, as near separable data. The step that comes with it is the last one. It is not needed where
the curvature of the penalty alone bounds what is left by far less. No solver increases the objective by more than its
rounding error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from mlrh import _parallel
from mlrh.fitting.design import Design

MAX_PRODUCTS = 30  # with the Hessian, to confirm that what is left is small: bounds the price of the check
CLEAR = 0.1  # of what is allowed: where the penalty alone leaves no more than that, nothing has to be confirmed
LEAST = 0.01  # of the scale: the least value that tol is relative to
EPSILON = float(np.finfo(np.float64).eps)
PATIENCE = 100  # iterations in a row without a gain beyond rounding error, in value or gradient, before giving up

OPTIONS = ("step", "n_jobs", "metric_at")  # that an estimator can give a solver, by its own parameters or its path


class SmoothObjective(Protocol):
    """All that a solver may ask of an objective; parameters, gradients and directions are flat vectors.

    `offers` names the parts that not every objective has: "hessian", "metric", "majoriser" (a metric that bounds the
    Hessian everywhere) and "l1" (the members of `PenalisedObjective`). A solver declares which of them it needs.
    """

    offers: frozenset[str]
    alpha: float  # strength of the L2 penalty on coefficients
    l1: float  # strength of the L1 penalty, which values and derivatives leave out
    scale: float  # the loss of a model that knows nothing
    n_labels: int
    n_operations: int  # of one product with the features
    renews_cheaply: bool  # whether a metric at other parameters costs no more than a few evaluations
    rescales_early: bool  # whether new diagonals of the metric pay after a few iterations
    in_float32: Any  # the objective in float32 where it pays to begin with that, else itself

    # Value and gradient, both without the L1 penalty.
    def value_and_gradient(self, parameters) -> tuple[float, np.ndarray]: ...
    # The function direction -> Hessian @ direction.
    def hessian(self, parameters) -> Callable[[np.ndarray], np.ndarray]: ...
    # The function gradient -> solution with an approximation of the Hessian, at typical or given parameters; `rescaled`
    # asks for new diagonals only.
    def metric(self, curvature=None, *, at=None, rescaled=False) -> Callable[[np.ndarray], np.ndarray]: ...
    # The same with a matrix that bounds the Hessian everywhere, if the curvature is at least `curvature_bound`.
    def majoriser(self, curvature) -> Callable[[np.ndarray], np.ndarray]: ...
    # A bound of the variance of the labels in any direction, at all parameters; and its typical size.
    def curvature_bound(self) -> float: ...
    def typical_curvature(self) -> float: ...
    # Into how many blocks (entries i, i + n_blocks, ...) the parameters fall that hardly depend on each other.
    def n_blocks(self) -> int: ...
    # How much the value can still fall, at most; infinite where that is not known.
    def decrease_bound(self, gradient) -> float: ...
    # Expected rounding error of a value.
    def rounding_error(self, parameters, value) -> float: ...


class PenalisedObjective(SmoothObjective, Protocol):
    """What a solver of the L1 penalty asks as well: which parameters are coefficients, and each label's curvatures."""

    design: Design  # features, and products with them
    ridges: np.ndarray  # the strength of the L2 penalty on each parameter
    targets: np.ndarray  # X'Y, (n_features, n_labels)
    models_by_sums: bool  # whether `with_models` gives the labels' own models, and spares a pass

    # Coefficients, intercept and biases, as views.
    def split(self, parameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
    # One representative of parameters that give the same probabilities.
    def canonical(self, parameters) -> np.ndarray: ...
    # A direction without its part along biases that scores absorb.
    def determined(self, direction) -> np.ndarray: ...
    def l1_penalty(self, parameters) -> float: ...
    # The labels' own models by sums over rows, or None where `design.X` has the rows (see `Rows.own_models`).
    def own_models(self, parameters, members, shares) -> list[np.ndarray] | None: ...
    # `with_curvatures`, and sums for the labels' own models over these members or None (see `Rows.with_models`).
    def with_models(self, parameters, members) -> tuple[tuple, list | None]: ...
    # Value, gradient, curvatures of scores, misfit, curvatures of biases (see `RowsInMemory.with_curvatures`).
    def with_curvatures(self, parameters) -> tuple[float, np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped, and why.

    `gradient_norm` is sqrt(2 * estimated decrease left / scale); `history` holds the value at the start and after every
    iteration. `converged`: the stopping rule is met, or what is left is rounding error of the value. The latter is
    `at_rounding_floor`: no tolerance can be reached beyond that. `interrupted`: a KeyboardInterrupt ended the fit; the
    parameters are those of the last complete iteration. `stopped`: `report` asked for the end.
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
    """Declare what a solver needs of an objective (`SmoothObjective.offers`) and which OPTIONS it takes."""

    def declare(function):
        function.needs, function.options = frozenset(needs), tuple(options)
        return function

    return declare


def check_pairing(name, function, *, offers, l1_ratio):
    """Raise a ValueError unless the solver fits the objective, before anything is computed."""
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
    unknown = sorted(set(getattr(function, "options", ())) - set(OPTIONS))
    if unknown:
        raise ValueError(f"solver={name!r} asks for the options {unknown}; an estimator has {list(OPTIONS)} to give.")


@dataclass(frozen=True)
class State:
    """Where a solver is: parameters, value, gradient, and the gradient solved with the metric."""

    parameters: np.ndarray
    value: float
    gradient: np.ndarray
    solved: np.ndarray | None = None  # the gradient, solved with the metric

    @property
    def left(self):
        """Estimated decrease left by the metric."""
        return 0.5 * float(self.gradient @ self.solved)


def unit_of_tol(objective, value):
    """What tol is relative to: the value, or LEAST of the scale where that is more.

    Without a penalty the value may go to 0, and the decrease that is left with it: their ratio would never be small.
    """
    return max(abs(value), LEAST * objective.scale)


def enough_for(objective, value, tol):
    """The decrease that may be left at a value: tol in its unit, but no digits of the scale that a float can't hold."""
    return max(tol * unit_of_tol(objective, value), min(tol, EPSILON) * objective.scale)


def arrive(objective, parameters, solve):
    """The State at the parameters: value, gradient, and the gradient solved with the metric."""
    value, gradient = objective.value_and_gradient(parameters)
    return State(parameters, value, gradient, solve(gradient))


def best_of(start, evaluate):
    """evaluate(start), or of several starts (n_starts, n_parameters) the result with the lowest value."""
    states = [evaluate(parameters) for parameters in np.atleast_2d(start)]
    return min(states, key=lambda state: state.value if np.isfinite(state.value) else np.inf)


def newton_decrease(objective, state, precondition, enough):
    """A step towards the minimum of the quadratic model, and the decrease that the model predicts for it.

    Conjugate gradients predict more with every product. They end when the prediction is more than enough, or when five
    products in a row have each added less than a tenth. Fewer would not do: flat directions come late.
    """
    step, decrease, small_gains = 0.0 * state.parameters, 0.0, 0
    for step, gain, _ in islice(conjugate_gradients(objective, state, precondition), MAX_PRODUCTS):  # noqa: B007
        decrease += gain
        small_gains = small_gains + 1 if gain < 0.1 * decrease else 0
        if decrease > enough or small_gains == 5:
            break
    return step, decrease


def conjugate_gradients(objective, state, precondition):
    """Yields (step so far, gain of the last product, residual) of conjugate gradients on the quadratic model.

    One product with the Hessian per step. The gain is what the product added to the decrease of the model. Ends where
    the model does not curve upwards.
    """
    hessian = objective.hessian(state.parameters)
    residual, step = -state.gradient, 0.0 * state.parameters
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
    """How far a solver has come: the last state with its number, the decrease left, and the values so far.

    `reached` is a pair that is set in one assignment, so that a KeyboardInterrupt finds both parts of one iteration.
    """

    def __init__(self, state):
        self.reached, self.left, self.history, self.is_stuck = (state, 0), np.inf, [state.value], False

    def move_to(self, state):
        self.history.append(state.value)
        self.reached = state, len(self.history) - 1


def iterate(
    objective, state, propose, move, precondition, *, tol, max_iter, report, model=None, may_stay=True, least=0.0
):
    """The Solution that `_advance` reaches, or had reached when it was interrupted.

    `model` is an objective whose Hessian serves the quadratic model in place of that of the objective. A start that
    meets the rule stays where it is, if it may. A decrease of `least` may be left whatever tol asks.
    """
    progress, interrupted, stopped = _Progress(state), False, False
    options = {"tol": tol, "max_iter": max_iter, "report": report, "model": model or objective}
    options |= {"may_stay": may_stay, "least": least}
    try:
        with _parallel.blas_suited_to(objective.n_operations):
            stopped = _advance(progress, objective, propose, move, precondition, **options)
    except KeyboardInterrupt:
        interrupted = True
    state, n_iter = progress.reached
    # What is left is less than the rounding error of the value: no further step could be seen to decrease it.
    at_floor = bool(progress.is_stuck and progress.left <= objective.rounding_error(state.parameters, state.value))
    return Solution(
        parameters=state.parameters,
        value=state.value,
        gradient_norm=float(np.sqrt(2 * progress.left / objective.scale)),
        n_iter=n_iter,
        converged=bool(at_floor or progress.left <= max(enough_for(objective, state.value, tol), least))
        and not interrupted,
        history=tuple(progress.history[: n_iter + 1]),
        at_rounding_floor=at_floor,
        interrupted=interrupted,
        stopped=stopped,
    )


def _advance(progress, objective, propose, move, precondition, *, tol, max_iter, report, model, may_stay, least):
    """Whether report asked for the end; runs until then, or until the rule is met, iterations are used up, or stuck.

    report(iteration, value, share left, parameters) is called after every iteration, and ends the fit by returning
    True. propose(state, history) returns a direction and the solver's own estimate of the decrease left. move(state,
    direction) returns the next state, or None if rounding allows no further step.

    precondition solves with about the Hessian. If given, an estimate that is small enough is checked by the quadratic
    model, unless the objective's own bound already confirms it. An estimate found too low is corrected by a factor,
    which also applies to the iterations that follow, a tenth less in each: so not every one of them is checked. Once an
    estimate is confirmed, the step of the model is taken: for one evaluation more, far less is left than was asked for.
    """
    history = progress.history
    stalled, smallest, correction = 0, progress.reached[0].left, 1.0
    while True:
        state, n_iter = progress.reached
        enough, unit = max(enough_for(objective, state.value, tol), least), unit_of_tol(objective, state.value)
        direction, estimate = propose(state, history)
        left, step = correction * max(state.left, estimate), None
        if precondition is not None and 0 < left <= enough < objective.decrease_bound(state.gradient) / CLEAR:
            step, decrease = newton_decrease(model, state, precondition, enough)
            if decrease > left:
                correction *= decrease / left
                direction, left = step, decrease
        progress.left = left
        if report is not None and n_iter > 0 and report(n_iter, state.value, left / unit, state.parameters):
            return True
        if left <= enough and step is not None and n_iter < max_iter and not (may_stay and n_iter == 0):
            return _take_last(progress, objective, step, precondition, enough=enough, report=report)
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


def _take_last(progress, objective, step, solve, *, enough, report):
    """Move along the step, unless that leaves too much by the metric; whether report asked for the end."""
    state, n_iter = progress.reached
    following = line_search(objective, state, step, solve)
    if following is None or following.left > enough:
        return False
    progress.move_to(following)
    progress.left = max(progress.left, following.left)  # not less than before: the model there is not computed
    share = progress.left / unit_of_tol(objective, following.value)
    return report is not None and bool(report(n_iter + 1, following.value, share, following.parameters))


def falls_enough(state, reached, slope, allowance):
    """Whether the value falls by enough along a step with this slope; the allowance is for its rounding error."""
    return reached.value <= state.value + 1e-4 * slope + allowance


def line_search(objective, state, direction, solve, *, end=None):
    """The State at a step that meets the Wolfe conditions, or None if there is none.

    Values are compared with an allowance for their rounding error. So steps near the optimum are judged by the slope,
    which is still accurate there. `end` is the State at the end of the direction, where that is known already.
    """
    slope = float(state.gradient @ direction)
    if not slope < 0:
        return None
    allowance = objective.rounding_error(state.parameters, state.value)
    low, high, step = 0.0, np.inf, 1.0
    best = None
    # Sufficient decrease (1e-4) and curvature (0.9) have the usual constants for quasi-Newton steps. 30 halvings make
    # the step a billionth of the proposed one: then the direction is of no use.
    for _ in range(30):
        reached = end or arrive(objective, state.parameters + step * direction, solve)
        excess, end = reached.value - state.value - step * slope, None
        if not falls_enough(state, reached, step * slope, allowance):
            high = step
        elif reached.gradient @ direction < 0.9 * slope:
            low, best = step, reached
        else:
            return reached
        # Too short: four times as long, or half of the bracket. Too long: the minimum of the parabola through the value
        # and slope at 0 and the value here, not outside a tenth to a half of the step.
        if high == np.inf:
            step *= 4
        elif best is not None or not np.isfinite(excess):
            step = 0.5 * (low + high)
        else:
            step = float(np.clip(-0.5 * slope * step**2 / excess, 0.1 * high, 0.5 * high))
    return best
