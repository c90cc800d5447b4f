"""Tilts of the kernels: the shift of all scores of a row that brings the expected number of labels near the sizes.

The functions run on the GPU on scores in registers; they know nothing of memory but the log-weights of the sizes.
"""

import triton
import triton.language as tl

NO_LABEL = tl.constexpr(0.25)  # expected number of labels where there is to be none


@triton.jit
def slope(log_weights, min_labels, MAX_LABELS: tl.constexpr):
    """Slope of the line through the log-weights of the smallest and the largest size: the tilt they stand for."""
    first = tl.load(log_weights + min_labels)
    last = tl.load(log_weights + MAX_LABELS)
    return (last - first) / tl.maximum(MAX_LABELS - min_labels, 1)


@triton.jit
def easy_tilt(top, log_sum, origin, highest):
    """The tilt with sum x = highest, and whether it will do: all odds are light then, up to 1/2, and none is raised.

    From the largest scores (ROWS,) and the logarithms of the sums of exp(s).
    """
    tilt = tl.log(log_sum * 0 + highest) - log_sum
    return tilt, (tilt <= origin) & (top + tilt <= -0.6931472)


@triton.jit
def chunk_tilt(tile, log_sum, tilt, easy, n_there, origin, lowest, highest):
    """Tilts (ROWS,) that bring the expected number of labels near the sizes that matter; `tilt` itself where easy.

    A tilt is `origin` where that number, sum sigmoid(s + tilt), lies between the sizes `lowest` and `highest` there,
    else within 1/2 of the end that is violated.
    """
    origin = origin.to(tile.dtype)
    if tl.min(easy.to(tl.int32), axis=0) == 0:
        number = _expected(tile, log_sum * 0 + origin)
        goal = tl.where(number > highest, highest, tl.minimum(tl.maximum(lowest, 1), n_there)).to(tile.dtype)
        fits = (number >= lowest - 0.5) & (number <= highest + 0.5)
        near = (number > 0.5 * goal) & (number < 2 * goal)
        start = tl.where(fits | near, origin, tl.log(goal) - log_sum)
        solved = _solve(tile, start, number, goal, ~(easy | fits), near)
        tilt = tl.where(easy, tilt, solved)
    return tilt


@triton.jit
def _solve(tile, tilt, number, goal, active, counted):
    """Tilts with sum sigmoid(s + tilt) within 1/2 of goal, by doubling steps and then bisection, for active rows.

    `number` is that sum where it is counted already; other rows stay at their tilt for a turn.
    """
    active = active & ((counted == 0) | (tl.abs(number - goal) > 0.5))
    low, high, step = tilt * 0 - float("inf"), tilt * 0 + float("inf"), tilt * 0 + 0.25
    while tl.max(active.to(tl.int32), axis=0) > 0:
        tilt, low, high, step, moves = next_tilt(tilt, number, goal, low, high, step, active & counted)
        number = _expected(tile, tilt)
        active = (moves | (active & (counted == 0))) & (tl.abs(number - goal) > 0.5)
        counted = active
    return tilt


@triton.jit
def next_tilt(tilt, number, goal, low, high, step, active):
    """The next tilt to try and its bracket; a row whose bracket has no float between ends at the lower bound.

    Steps are doubled because the number is a staircase in the tilt, with steps as wide as the gaps between scores.
    """
    short = number < goal
    low = tl.where(active & short, tilt, low)
    high = tl.where(active & (number > goal), tilt, high)
    growth = tl.where(short, tl.log(goal / tl.maximum(number, 1e-30)), 0.0)
    step = tl.where(active, tl.maximum(2 * step, growth), step)
    outside = tl.where(high == float("inf"), tilt + step, tilt - step)
    closed = (low > -float("inf")) & (high < float("inf"))
    following = tl.where(closed, 0.5 * tl.where(closed, low, 0.0) + 0.5 * tl.where(closed, high, 0.0), outside)
    stuck = (following == low) | (following == high)
    following = tl.where(stuck, low, following)
    return tl.where(active, following, tilt), low, high, step, active & ~stuck


@triton.jit
def _expected(tile, tilt):
    return tl.sum(sigmoid(tile + tilt[:, None]), axis=1)


@triton.jit
def sigmoid(z):
    small = exp(-tl.abs(z))
    return tl.where(z > 0, 1.0, small) / (1.0 + small)


@triton.jit
def exp(z):
    """tl.exp would spend three more instructions on results that are not normal numbers."""
    return tl.exp2(z * 1.4426950408889634)
