"""lbfgs: limited-memory BFGS in the metric of the objective, one memory for all labels or one for each.

The entries i, i + n_blocks, i + 2 n_blocks, ... of a vector are one block. Each block has an inverse Hessian of its
own, as if the blocks were problems of their own that happen to take their steps together: with one block per label,
every pair of vectors teaches n_labels curvatures instead of one. That is right where the Hessian hardly couples the
blocks; one block is L-BFGS as everyone knows it.
"""

import math
from dataclasses import replace

import numpy as np

from mlrh._parallel import kernel
from mlrh.fitting.solvers.base import State, best_of, iterate, line_search, solver

MEMORY = 5  # pairs of steps and gradient changes that lbfgs keeps
SHORT = 0.4  # of the step that lbfgs proposes: taking less casts doubt on separate memories
MAX_DOUBTS = 1.5  # two short steps in a row are more, single ones less; beyond, one memory serves all labels
FIRST_WAIT = 25  # iterations with one memory until separate ones are tried again, the next time 2.5 times as many
MAX_AGE = 14.0  # of the penalty for which a metric was made, over the one it serves


@solver(needs={"metric", "hessian"}, options=("metric_at",))
def lbfgs(objective, start, *, tol, max_iter, metric_at=None, report=None):
    """Limited-memory BFGS whose initial inverse Hessian is the metric of the stopping rule, scaled.

    Equivalent to L-BFGS after a change of variables that makes the metric the identity, without forming its root. It
    remembers per label where the objective says that labels are loosely coupled, until steps have to be cut short. That
    is tried again nearer to the optimum, with the metric there, where a metric is cheap. Its own estimate of the
    decrease left is that of its quadratic model, or the decreases of the last two iterations if they were larger.

    metric_at(objective, start) gives the metric of a start that is near the optimum and no more confident, so that its
    curvature is worth looking at.
    """
    begin = best_of(start, lambda parameters: State(parameters, *objective.value_and_gradient(parameters)))
    run = _Lbfgs(objective, begin, objective.metric() if metric_at is None else metric_at(objective, begin.parameters))
    # Checked with the metric alone: what the memory holds hides the flat directions that it has not seen.
    return iterate(objective, run.begin, run.propose, run.move, run.solve, tol=tol, max_iter=max_iter, report=report)


class MetricOfPath:
    """The metric at a start, for fits with weaker and weaker penalties: kept until they are MAX_AGE times weaker.

    A metric that is somewhat old takes few iterations more, and a new one as long as several, unless it is cheap.
    """

    def __init__(self):
        self._alpha, self._solve = np.inf, None

    def __call__(self, objective, start):
        if objective.renews_cheaply or not objective.alpha <= self._alpha <= MAX_AGE * objective.alpha:
            self._alpha, self._solve = objective.alpha, objective.metric(at=start)
        return self._solve


class _Lbfgs:
    """What lbfgs knows from one iteration to the next: the metric, the memory, and doubts in separate memories."""

    def __init__(self, objective, begin, metric):
        self._objective, self._metric = objective, metric
        self._n_iter, self._renewal, self._wait = 0, np.inf, float(FIRST_WAIT)
        self._begin_anew(len(begin.parameters))
        self.begin = replace(begin, solved=metric(begin.gradient))

    def _begin_anew(self, n_parameters):
        self._memory, self._doubts = Memory(n_parameters, size=MEMORY, n_blocks=self._objective.n_blocks()), 0.0

    def solve(self, gradient):
        return self._metric(gradient)

    def propose(self, state, history):
        direction = self._memory.direction(state.gradient, state.solved)
        decrease = history[-3:][0] - history[-1]
        seen = decrease if decrease > self._objective.rounding_error(state.parameters, state.value) else 0.0
        return direction, max(-0.5 * float(state.gradient @ direction), seen)

    def move(self, state, direction):
        following = line_search(self._objective, state, direction, self.solve)
        if following is None:
            self._memory.forget()
            following = line_search(self._objective, state, -state.solved, self.solve)
        if following is None:
            return None
        self._n_iter += 1
        if self._n_iter >= self._renewal:
            return self._renewed(following)
        step = following.parameters - state.parameters
        if following.value >= state.value and following.left > 0.5 * state.left:
            self._memory.forget()  # at the end rounding rules: what is remembered of such steps leads nowhere
            return following
        is_short = len(self._memory) > 0 and step @ step < SHORT**2 * (direction @ direction)
        self._doubts = 0.7 * self._doubts + is_short
        if self._memory.n_blocks > 1 and self._doubts > MAX_DOUBTS:
            self._memory = Memory(len(step), size=MEMORY)
            self._renewal = self._n_iter + self._wait if self._objective.renews_cheaply else np.inf
        self._memory.add(step, following.gradient - state.gradient, following.solved - state.solved)
        return following

    def _renewed(self, state):
        """The state by the metric at its parameters, with nothing remembered of the way there."""
        self._renewal, self._wait = np.inf, 2.5 * self._wait
        self._metric = self._objective.metric(at=state.parameters)
        self._begin_anew(len(state.parameters))
        return replace(state, solved=self.solve(state.gradient))


EPSILON = float(np.finfo(np.float64).eps)


class Memory:
    """The last `size` pairs of step and gradient change, for one metric.

    Of a gradient change y only its solution z with the metric is kept, and products: with s the steps, the direction
    is a combination of the s, the z and the solved gradient, whose factors follow from s_i'y_j (i <= j) and z_i'y_j.
    """

    def __init__(self, n_parameters, *, size, n_blocks=1):
        self.size, self.n_blocks = size, n_blocks
        self._vectors = np.empty((2, size, n_parameters // n_blocks, n_blocks))
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

        The pair takes the place of the oldest if there are enough. It counts for nothing in blocks that bend down.
        """
        place = len(self._order) if len(self._order) < self.size else self._order.pop(0)
        steps, solved = self._vectors
        blocks = (-1, self.n_blocks)
        steps[place], solved[place] = step.reshape(blocks), solved_change.reshape(blocks)
        self._order.append(place)
        # With the change itself: the difference of the products with two gradients would lose what is left at the end.
        products = self._products(change)
        squares = np.square(steps[place]).sum(axis=0) * np.square(change.reshape(blocks)).sum(axis=0)
        order = np.array(self._order)
        _keep_products(order, products, squares, self._step_change, self._solved_change, self._factor)

    def direction(self, gradient, solved):
        """Minus the inverse Hessian estimate times the gradient, whose solution with the metric is given."""
        if not self._order:
            return -solved
        factors = np.empty((2, len(self), self.n_blocks))
        order, along = np.array(self._order), self._products(gradient)
        _fill_factors(order, along, self._step_change, self._solved_change, self._factor, factors)
        return self._combine(factors, -self._factor * solved.reshape(-1, self.n_blocks))

    def _products(self, vector):
        """Inner products of every step and solved change with a vector, (2, n_pairs, n_blocks), by their places."""
        kept, blocks = self._vectors[:, : len(self)], vector.reshape(-1, self.n_blocks)
        if self.n_blocks == 1:
            return (kept[..., 0] @ vector)[..., None]
        result = np.zeros((2, len(self), self.n_blocks))
        _add_products(kept, blocks, result)
        return result

    def _combine(self, factors, start):
        """start plus the stored vectors times their factors (2, n_pairs, n_blocks), as a flat vector."""
        kept = self._vectors[:, : len(self)]
        if self.n_blocks == 1:
            return start.ravel() + (factors[0, :, 0] @ kept[0, ..., 0] + factors[1, :, 0] @ kept[1, ..., 0])
        _add_combination(kept, factors, start)
        return start.ravel()


@kernel
def _keep_products(order, products, squares, step_change, solved_change, factor):
    """Write what the last pair has in common with all pairs, block by block; nothing where it bends down.

    products (2, n_pairs, n_blocks) are those with its gradient change, squares (n_blocks,) the squared length of its
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
            factor[b] = curvature / stretched


@kernel
def _fill_factors(order, along, step_change, solved_change, factor, factors):
    """Write the factors of steps and solved changes in the direction: the two loops of L-BFGS, on products alone."""
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
