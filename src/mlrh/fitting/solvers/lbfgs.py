"""lbfgs: limited-memory BFGS in the metric of the objective, one memory for all labels or one for each.

The entries i, i + n_blocks, i + 2 n_blocks, ... of a vector are one block. Each block has an inverse Hessian of its
own, as if the blocks were separate problems that take their steps together. With one block per label, every pair of
step and gradient change teaches n_labels curvatures instead of one. That is right where the Hessian hardly couples the
blocks. With one block it is ordinary L-BFGS.

What one label has learned may send it far too far, and a search along the direction would then cut the step of all. So
where the value rises, each label whose own slope has turned takes a shorter step, as far as that slope would be 0.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from mlrh._parallel import kernel
from mlrh.fitting.solvers.base import (
    State,
    arrive,
    best_of,
    enough_for,
    falls_enough,
    iterate,
    line_search,
    solver,
)

MEMORY = 5  # pairs of step and gradient change that are kept; each adds two vectors to memory and work of an iteration
SHORT = 0.4  # a step shorter than this share of the proposed one casts doubt on separate memories
MAX_DOUBTS = 1.5  # beyond it one memory serves all labels: two short steps in a row count 1.7, a single one 1
EARLY = 4  # iterations after which the diagonals of a metric are made anew: it saves up to a third of those that follow
FIRST_WAIT = 25  # iterations with one memory before separate ones are tried again; 2.5 times as many the next time
MAX_SHORTER = 4  # times that labels with separate memories get shorter steps, before the step of all is cut
# The least and the most of its step that a label keeps each time: 37 evaluations on 4,000 rows of delicious, where at
# least 0.1 took 39 and at most 0.9 took 42.
SHARES = (0.02, 0.5)
COARSE = 1e-6  # of the scale, down to which an objective in float32 serves: about the rounding of its sums
MAX_AGE = 14.0  # a metric serves penalties down to this many times weaker than the one it was made for


@solver(needs={"metric", "hessian"}, options=("metric_at",))
def lbfgs(objective, start, *, tol, max_iter, metric_at=None, report=None):
    """The Solution by limited-memory BFGS, whose initial inverse Hessian is the inverse of the metric, scaled.

    Equivalent to L-BFGS after a change of variables that makes the metric the identity, without forming its root. It
    keeps one memory per label where the objective says that labels are loosely coupled, and one for all once steps have
    to be cut short. Where that pays, the metric gets new diagonals after a few iterations, when the parameters have
    seen the data, and separate memories are tried again nearer to the optimum, with those there. Its own estimate of
    the decrease left is that of its quadratic model, or the decrease of the last two iterations if that is larger.

    metric_at(objective, start) returns the metric at a start that is near the optimum and has smaller coefficients (as
    on a path of weaker and weaker penalties): the curvature there tells more than the typical one.
    """
    begin = best_of(start, lambda parameters: State(parameters, *objective.value_and_gradient(parameters)))
    metric = objective.metric() if metric_at is None else metric_at(objective, begin.parameters)
    rough = objective.in_float32
    run = Lbfgs(rough, len(begin.parameters), metric, Memory, is_near=metric_at is not None)
    return in_stages(run, begin, rough, objective, tol=tol, max_iter=max_iter, report=report)


def in_stages(run, state, rough, objective, *, tol, max_iter, report):
    """The Solution of a run that works on the rough objective down to COARSE, and then on the objective itself.

    They may be the same. The end is checked by products with the Hessian of the rough one, which takes few digits.
    Where the rough one has met `tol` by that, only the gradient of the objective must agree. A run that is interrupted
    or stopped before the second part has the value of the rough one, and has not converged.
    """

    def advanced(stage, begin, *, n_done=0, least=0.0):
        def told(iteration, value, left, parameters):
            return report(n_done + iteration, value, left, parameters)

        run.objective, begin = stage, replace(begin, solved=run.solve(begin.gradient))
        limits = {"tol": tol, "max_iter": max_iter - n_done, "report": None if report is None else told}
        options = {"model": rough, "may_stay": n_done == 0, "least": least}
        # The end is checked with the metric alone: the memory knows nothing of flat directions that it has not seen.
        return iterate(stage, begin, run.propose, run.move, run.solve, **limits, **options)

    if rough is objective:
        return advanced(objective, state)
    least = COARSE * objective.scale
    found = advanced(rough, state, least=least)
    meets_tol = found.converged and not found.at_rounding_floor and enough_for(rough, found.value, tol) >= least
    if not (found.interrupted or found.stopped):
        try:
            begin = arrive(objective, found.parameters, run.solve)
            history = found.history[:-1]
            if meets_tol and begin.left <= enough_for(objective, begin.value, tol):
                norm = max(found.gradient_norm, math.sqrt(2 * begin.left / objective.scale))
                return replace(found, value=begin.value, history=(*history, begin.value), gradient_norm=norm)
            last = advanced(objective, begin, n_done=found.n_iter)
            left = last.gradient_norm if math.isfinite(last.gradient_norm) else found.gradient_norm
            n_iter, history = found.n_iter + last.n_iter, (*history, *last.history)
            return replace(last, n_iter=n_iter, history=history, gradient_norm=left)
        except KeyboardInterrupt:  # in between; `iterate` tells of those within
            found = replace(found, interrupted=True)
    return replace(found, converged=False)


class MetricOfPath:
    """The metric at the start of each fit on a path of weaker and weaker penalties, made anew now and then.

    It serves until the penalty is MAX_AGE times weaker than the one it was made for.

    A somewhat old metric costs a few more iterations; making a new one takes as long as several, unless it is cheap.
    """

    def __init__(self):
        self._alpha, self._solve = np.inf, None

    def __call__(self, objective, start):
        if objective.renews_cheaply or not objective.alpha <= self._alpha <= MAX_AGE * objective.alpha:
            self._alpha, self._solve = objective.alpha, objective.metric(at=start)
        return self._solve


class Lbfgs:
    """What lbfgs keeps from one iteration to the next: the metric, the memory, and whether separate memories pay.

    is_near says that the metric is already one at parameters that have seen the data.
    """

    def __init__(self, objective, n_parameters, metric, memory, *, is_near=False):
        self.objective, self._metric, self._new_memory = objective, metric, memory
        self._n_iter, self._wait = 0, float(FIRST_WAIT)
        self._renewal = EARLY if objective.rescales_early and not is_near else np.inf
        self._begin_anew(n_parameters)

    def _begin_anew(self, n_parameters):
        n_blocks = self.objective.n_blocks()
        self._memory, self._doubts = self._new_memory(n_parameters, size=MEMORY, n_blocks=n_blocks), 0.0

    def solve(self, gradient):
        return self._metric(gradient)

    def propose(self, state, history):
        direction = self._memory.direction(state.gradient, state.solved)
        decrease = history[-3:][0] - history[-1]
        seen = decrease if decrease > self.objective.rounding_error(state.parameters, state.value) else 0.0
        return direction, max(-0.5 * float(state.gradient @ direction), seen)

    def move(self, state, direction):
        direction, end = self._suited_to_blocks(state, direction)
        following = line_search(self.objective, state, direction, self.solve, end=end)
        if following is None:
            self._memory.forget()
            following = line_search(self.objective, state, -state.solved, self.solve)
        if following is None:
            return None
        self._n_iter += 1
        if self._n_iter >= self._renewal:
            return self._renewed(following)
        step = following.parameters - state.parameters
        if following.value >= state.value and following.left > 0.5 * state.left:
            self._memory.forget()  # near the rounding floor gradient changes are noise: remembering them leads nowhere
            return following
        is_short = len(self._memory) > 0 and step @ step < SHORT**2 * (direction @ direction)
        # Doubts fade, so that only short steps in quick succession add up.
        self._doubts = 0.7 * self._doubts + is_short
        if self._memory.n_blocks > 1 and self._doubts > MAX_DOUBTS:
            self._memory = self._new_memory(len(step), size=MEMORY)
            if self.objective.renews_cheaply:
                self._renewal, self._wait = min(self._renewal, self._n_iter + self._wait), 2.5 * self._wait
        self._memory.add(step, following.gradient - state.gradient, following.solved - state.solved)
        return following

    def _suited_to_blocks(self, state, direction):
        """The direction, shorter for blocks that it takes too far, and the State at its end, or None if not known."""
        if self._memory.n_blocks == 1:
            return direction, None
        allowance = self.objective.rounding_error(state.parameters, state.value)
        for _ in range(MAX_SHORTER):
            end = arrive(self.objective, state.parameters + direction, self.solve)
            before = self._memory.slopes(state.gradient, direction)
            if falls_enough(state, end, before.sum(), allowance):
                return direction, end
            after = self._memory.slopes(end.gradient, direction)
            has_turned = (before < 0) & (after > 0)
            if not has_turned.any():
                return direction, end
            zero = np.divide(before, before - after, out=np.ones_like(before), where=has_turned)
            direction = self._memory.scaled(direction, np.where(has_turned, np.clip(zero, *SHARES), 1.0))
        return direction, None

    def _renewed(self, state):
        """The state with the metric at its parameters; the memory starts anew, since it belongs to the old metric."""
        self._renewal = np.inf
        only_diagonals = {} if self.objective.renews_cheaply else {"rescaled": True}
        self._metric = self.objective.metric(at=state.parameters, **only_diagonals)
        self._begin_anew(len(state.parameters))
        return replace(state, solved=self.solve(state.gradient))


EPSILON = float(np.finfo(np.float64).eps)  # below this share of |step| |change|, their product is rounding error


class Memory:
    """The last `size` pairs of step and gradient change, for one metric.

    For a step s and gradient change y it keeps s, z (y solved with the metric) and inner products, but not y itself.
    The direction is a combination of all s, all z and the solved gradient. Its factors follow from the products
    s_i'y_j (i <= j) and z_i'y_j, so the two loops of L-BFGS run over numbers instead of long vectors.
    """

    def __init__(self, n_parameters, *, size, n_blocks=1):
        self.size, self.n_blocks = size, n_blocks
        self._vectors: Any = np.empty((2, size, n_parameters // n_blocks, n_blocks))
        self.forget()

    def forget(self):
        """Drop all pairs."""
        self._order: list[int] = []  # places of the pairs, the oldest first
        self._step_change = np.zeros((self.size, self.size, self.n_blocks))
        self._solved_change = np.zeros((self.size, self.size, self.n_blocks))
        self._factor = np.ones(self.n_blocks)

    def __len__(self):
        return len(self._order)

    def add(self, step, change, solved_change):
        """Keep a step, the change of the gradient along it, and the solution of that with the metric.

        The pair replaces the oldest if there are `size`. It is ignored in blocks where the curvature along the step is
        not positive.
        """
        place = len(self._order) if len(self._order) < self.size else self._order.pop(0)
        steps, solved = self._vectors
        blocks = (-1, self.n_blocks)
        steps[place], solved[place] = step.reshape(blocks), solved_change.reshape(blocks)
        self._order.append(place)
        # Products with the change itself: the difference of products with two gradients would cancel near the optimum.
        products = self._products(change)
        squares = self._squares(step) * self._squares(change)
        order = np.array(self._order)
        _keep_products(order, products, squares, self._step_change, self._solved_change, self._factor)

    def direction(self, gradient, solved):
        """Minus the estimated inverse Hessian times the gradient; solved is the gradient solved with the metric."""
        if not self._order:
            return -solved
        factors = np.empty((2, len(self), self.n_blocks))
        order, along = np.array(self._order), self._products(gradient)
        _fill_factors(order, along, self._step_change, self._solved_change, self._factor, factors)
        return self._combine(factors, solved)

    def slopes(self, gradient, direction):
        """The slope of the value along a direction, (n_blocks,): how much each block adds to it."""
        return (gradient * direction).reshape(-1, self.n_blocks).sum(axis=0)

    def scaled(self, vector, factors):
        """The vector with each block times its factor (n_blocks,)."""
        return (vector.reshape(-1, self.n_blocks) * factors).ravel()

    def _squares(self, vector):
        """The squared length of a vector, block by block."""
        return self.slopes(vector, vector)

    def _products(self, vector):
        """Inner products of all steps and all solved changes with a vector, (2, n_pairs, n_blocks), as stored."""
        kept, blocks = self._vectors[:, : len(self)], vector.reshape(-1, self.n_blocks)
        if self.n_blocks == 1:
            return (kept[..., 0] @ vector)[..., None]
        result = np.zeros((2, len(self), self.n_blocks))
        _add_products(kept, blocks, result)
        return result

    def _combine(self, factors, solved):
        """The stored vectors times their factors (2, n_pairs, n_blocks), less the scaled `solved`, as a flat vector."""
        kept, start = self._vectors[:, : len(self)], -self._factor * solved.reshape(-1, self.n_blocks)
        if self.n_blocks == 1:
            return start.ravel() + (factors[0, :, 0] @ kept[0, ..., 0] + factors[1, :, 0] @ kept[1, ..., 0])
        _add_combination(kept, factors, start)
        return start.ravel()


@kernel
def _keep_products(order, products, squares, step_change, solved_change, factor):
    """Write the products of the last pair with all pairs, block by block; 0 where its curvature is not positive.

    products (2, n_pairs, n_blocks) are those with its gradient change; squares (n_blocks,) is the squared length of its
    step times that of the change.
    """
    last = order[-1]
    for b in range(len(factor)):
        curvature, stretched = products[0, last, b], products[1, last, b]
        bends = curvature > EPSILON * math.sqrt(squares[b]) and stretched > 0
        for place in order:
            step_change[place, last, b] = products[0, place, b] if bends else 0.0
            solved_change[place, last, b] = products[1, place, b] if bends else 0.0
            solved_change[last, place, b] = solved_change[place, last, b]
        if bends:
            # The usual scale of the initial inverse Hessian, s'y / y'z: right along the last step.
            factor[b] = curvature / stretched


@kernel
def _fill_factors(order, along, step_change, solved_change, factor, factors):
    """Write the factors of steps and solved changes in the direction: the two loops of L-BFGS, on products alone.

    First loop: share_i = s_i'q / s_i'y_i with q = -gradient less the shares taken before (newest pair first). Second
    loop: r = factor * metric^-1 q, to which each pair adds (share_i - y_i'r / s_i'y_i) s_i (oldest first).
    """
    n = len(order)
    shares, corrections = np.zeros((n, len(factor))), np.zeros((n, len(factor)))
    for i in range(n - 1, -1, -1):
        for b in range(len(factor)):
            own, total = step_change[order[i], order[i], b], along[0, order[i], b]
            for j in range(i + 1, n):
                total += shares[j, b] * step_change[order[i], order[j], b]
            shares[i, b] = -total / own if own > 0 else 0.0
    for i in range(n):
        for b in range(len(factor)):
            own, ahead = step_change[order[i], order[i], b], along[1, order[i], b]
            for j in range(n):
                ahead += shares[j, b] * solved_change[order[i], order[j], b]
            ahead *= -factor[b]
            for j in range(i):
                ahead += corrections[j, b] * step_change[order[j], order[i], b]
            corrections[i, b] = shares[i, b] - ahead / own if own > 0 else 0.0
            factors[0, order[i], b], factors[1, order[i], b] = corrections[i, b], -factor[b] * shares[i, b]


@kernel
def _add_products(vectors, blocks, result):
    """Add the products, column by column, of vectors (2, n, n_rows, n_blocks) and blocks (n_rows, n_blocks)."""
    for r in range(blocks.shape[0]):
        for kind in range(2):
            for i in range(vectors.shape[1]):
                for b in range(blocks.shape[1]):
                    result[kind, i, b] += vectors[kind, i, r, b] * blocks[r, b]


@kernel
def _add_combination(vectors, factors, result):
    """Add the vectors (2, n, n_rows, n_blocks) times their factors (2, n, n_blocks) to the result, row by row."""
    for r in range(result.shape[0]):
        for kind in range(2):
            for i in range(vectors.shape[1]):
                for b in range(result.shape[1]):
                    result[r, b] += factors[kind, i, b] * vectors[kind, i, r, b]
