"""The memory of L-BFGS against the matrices it stands for."""

import numpy as np
import pytest

from mlrh.fitting.solvers.base import State
from mlrh.fitting.solvers.lbfgs import Lbfgs, Memory

SIZE, N = 4, 12


def pairs_of(n_pairs, seed=0, n=N):
    """Steps and gradient changes of a quadratic, and the metric's inverse."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n))
    hessian = root @ root.T + np.eye(n)
    steps = rng.normal(size=(n_pairs, n))
    return steps, steps @ hessian, np.diag(rng.uniform(0.5, 2, size=n))


def inverse_by_updates(steps, changes, inverse_metric):
    """The textbook's inverse Hessian: the scaled metric, then one rank-two update per pair."""
    factor = steps[-1] @ changes[-1] / (changes[-1] @ inverse_metric @ changes[-1])
    inverse = factor * inverse_metric
    for step, change in zip(steps, changes, strict=True):
        projector = np.eye(len(step)) - np.outer(step, change) / (step @ change)
        inverse = projector @ inverse @ projector.T + np.outer(step, step) / (step @ change)
    return inverse


def remembering(steps, changes, inverse_metric, n_blocks=1):
    memory = Memory(steps.shape[1], size=SIZE, n_blocks=n_blocks)
    for step, change in zip(steps, changes, strict=True):
        memory.add(step, change, inverse_metric @ change)
    return memory


@pytest.mark.parametrize("n_pairs", [1, 2, SIZE, SIZE + 3])
def test_the_direction_is_that_of_the_rank_two_updates_by_the_last_pairs(n_pairs):
    steps, changes, inverse_metric = pairs_of(n_pairs)
    gradient = np.random.default_rng(9).normal(size=N)
    got = remembering(steps, changes, inverse_metric).direction(gradient, inverse_metric @ gradient)
    expected = -inverse_by_updates(steps[-SIZE:], changes[-SIZE:], inverse_metric) @ gradient
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_pairs", [1, 3, SIZE + 2])
def test_interleaved_blocks_are_remembered_as_if_each_were_alone(n_pairs):
    apart = [pairs_of(n_pairs, seed) for seed in range(3)]
    steps, changes = (np.stack([block[i] for block in apart], axis=2).reshape(n_pairs, -1) for i in range(2))
    inverse_metric = np.diag(np.stack([np.diag(block[2]) for block in apart], axis=1).ravel())
    gradient = np.random.default_rng(9).normal(size=3 * N)
    together = remembering(steps, changes, inverse_metric, n_blocks=3).direction(gradient, inverse_metric @ gradient)
    for i, block in enumerate(apart):
        alone = remembering(*block).direction(gradient[i::3], block[2] @ gradient[i::3])
        np.testing.assert_allclose(together[i::3], alone, rtol=1e-10, atol=1e-12)


def test_without_pairs_the_direction_is_minus_the_solved_gradient():
    memory = Memory(N, size=SIZE)
    memory.add(np.ones(N), np.ones(N), np.ones(N))
    memory.forget()
    np.testing.assert_array_equal(memory.direction(np.ones(N), np.full(N, 3.0)), np.full(N, -3.0))


@pytest.mark.parametrize("flipped", [0, 1, 2])
def test_a_pair_counts_for_nothing_in_a_block_that_bends_down(flipped):
    apart = [pairs_of(3, seed) for seed in range(2)]
    steps, changes = (np.stack([block[i] for block in apart], axis=2).reshape(3, -1) for i in range(2))
    changes[flipped, 1::2] *= -1
    gradient = np.random.default_rng(9).normal(size=2 * N)
    got = remembering(steps, changes, np.eye(2 * N), n_blocks=2).direction(gradient, gradient)
    for i, kept in ((0, [0, 1, 2]), (1, [j for j in range(3) if j != flipped])):
        alone = remembering(steps[kept, i::2], changes[kept, i::2], np.eye(N))
        np.testing.assert_allclose(got[i::2], alone.direction(gradient[i::2], gradient[i::2]), rtol=1e-9, atol=1e-11)


class Apart:
    """1/2 sum c x^2 with the same curvature c in a block, and a metric that takes it for 1."""

    rescales_early = renews_cheaply = False

    def __init__(self, curvatures):
        self._curvatures = np.tile(curvatures, N)

    def n_blocks(self):
        return len(self._curvatures) // N

    def value_and_gradient(self, parameters):
        gradient = self._curvatures * parameters
        return 0.5 * float(parameters @ gradient), gradient

    def rounding_error(self, parameters, value):
        return 1e-15 * value


def test_a_label_that_goes_too_far_takes_a_shorter_step_and_the_others_their_own():
    objective, start = Apart([1.0, 1000.0, 1.0]), np.random.default_rng(0).normal(size=3 * N)
    value, gradient = objective.value_and_gradient(start)
    begin = State(start, value, gradient, gradient)
    run = Lbfgs(objective, len(start), lambda gradient: gradient, Memory)
    reached = run.move(begin, -gradient)
    np.testing.assert_allclose(
        reached.parameters, 0.0, atol=1e-12
    )  # one step for all would leave the others far from 0
