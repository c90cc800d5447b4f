"""What L-BFGS remembers: steps and gradient changes, and the direction they give. Knows only vectors and a metric.

The entries i, i + n_blocks, i + 2 n_blocks, ... of a vector are one block. Each block has an inverse Hessian of its
own, as if the blocks were problems of their own that happen to take their steps together: with one block per label,
every pair of vectors teaches n_labels curvatures instead of one. That is right where the Hessian hardly couples the
blocks; one block is L-BFGS as everyone knows it.
"""

import numpy as np

from mlrh.compiled import kernel


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
        curvature, stretched = products[0, -1], products[1, -1]
        squares = np.square(steps[place]).sum(axis=0)
        bends = curvature > np.finfo(float).eps * np.sqrt(squares * np.square(change.reshape(blocks)).sum(axis=0))
        bends &= stretched > 0
        self._step_change[self._order, place] = np.where(bends, products[0], 0.0)
        both = np.where(bends, products[1], 0.0)
        self._solved_change[self._order, place] = self._solved_change[place, self._order] = both
        np.divide(curvature, stretched, out=self._factor, where=bends)

    def direction(self, gradient, solved):
        """Minus the inverse Hessian estimate times the gradient, whose solution with the metric is given."""
        if not self._order:
            return -solved
        along_step, along_solved = self._products(gradient)
        step_change = self._step_change[np.ix_(self._order, self._order)]
        solved_change = self._solved_change[np.ix_(self._order, self._order)]
        inverse = np.diagonal(step_change).T.copy()
        np.divide(1.0, inverse, out=inverse, where=inverse > 0)
        shares, corrections = np.zeros_like(along_step), np.zeros_like(along_step)
        for i in reversed(range(len(self))):
            shares[i] = -inverse[i] * (along_step[i] + (shares[i + 1 :] * step_change[i, i + 1 :]).sum(axis=0))
        for i in range(len(self)):
            ahead = -self._factor * (along_solved[i] + (shares * solved_change[i]).sum(axis=0))
            ahead += (corrections[:i] * step_change[:i, i]).sum(axis=0)
            corrections[i] = np.where(inverse[i] > 0, shares[i] - inverse[i] * ahead, 0.0)
        return self._combine(corrections, -self._factor * shares, -self._factor * solved.reshape(-1, self.n_blocks))

    def _products(self, vector):
        """Inner products of every step and solved change with a vector, (2, n_pairs, n_blocks), the oldest first."""
        kept, blocks = self._vectors[:, : len(self)], vector.reshape(-1, self.n_blocks)
        if self.n_blocks == 1:
            return (kept[..., 0] @ vector)[:, self._order, None]
        result = np.zeros((2, len(self), self.n_blocks))
        _add_products(kept, blocks, result)
        return result[:, self._order]

    def _combine(self, of_steps, of_solved, start):
        """start plus the stored vectors times their factors (n_pairs, n_blocks), as a flat vector."""
        kept, factors = self._vectors[:, : len(self)], np.empty((2, len(self), self.n_blocks))
        factors[:, self._order] = of_steps, of_solved
        if self.n_blocks == 1:
            return start.ravel() + (factors[0, :, 0] @ kept[0, ..., 0] + factors[1, :, 0] @ kept[1, ..., 0])
        _add_combination(kept, factors, start)
        return start.ravel()


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
