"""What L-BFGS remembers: steps and gradient changes, and the direction they give. Knows only vectors and a metric.

The entries i, i + n_blocks, i + 2 n_blocks, ... of a vector are one block. Each block has an inverse Hessian of its
own, as if the blocks were problems of their own that happen to take their steps together: with one block per label,
every pair of vectors teaches n_labels curvatures instead of one. That is right where the Hessian hardly couples the
blocks; one block is L-BFGS as everyone knows it.
"""

import math

import numpy as np

from mlrh.compiled import kernel

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
