"""Polynomials of the kernels: products over labels of 1 + x z up to degree MAX_LABELS, tuples of float64 coefficients.

Entry j belongs to the sets of j labels. It is a tile (ROWS, LANES): what belongs to a whole row is the same in all of
its lanes, and where the labels of a row are split over lanes each lane has the product of its own. One shape for all
saves moving numbers between threads. The functions run on the GPU, in registers; the only array they know is that of
the log-weights.
"""

# Tuples grow in loops that Triton unrolls.
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def constant(number, MAX_LABELS: tl.constexpr):
    """The polynomial `number`, of full length."""
    result = (number,)
    for _ in tl.static_range(MAX_LABELS):
        result += (number * 0,)
    return result


@triton.jit
def newton(powers, MAX_LABELS: tl.constexpr):
    """Elementary symmetric polynomials e_j of the light odds from power sums: j e_j = sum_i (-1)^(i-1) e_{j-i} p_i.

    Takes (-1)^(i-1) p_i. Once e_j is known, its part in all later sums is added; `pending` begins with the next one.
    """
    result, pending = reversed_(constant(powers[0] * 0 + 1, MAX_LABELS), MAX_LABELS + 1), powers
    for j in range(MAX_LABELS):
        value = tl.maximum(pending[0], 0.0) / (j + 1)
        following = ()
        for i in tl.static_range(MAX_LABELS - 1):
            following += (pending[i + 1] + value * powers[i],)
        following += (value * powers[MAX_LABELS - 1],)
        pending = following
        result = shifted(result, value, MAX_LABELS + 1)
    return result


@triton.jit
def shifted(entries, last, N: tl.constexpr):
    """The N entries without the first, and a last one.

    In a loop, that is how a number that the loop counts gets to or from entries that Triton has by constants alone.
    """
    result = ()
    for i in tl.static_range(1, N):
        result += (entries[i],)
    result += (last,)
    return result


@triton.jit
def reversed_(entries, N: tl.constexpr):
    """The N entries, last one first."""
    result = ()
    for i in tl.static_range(N):
        result += (entries[N - 1 - i],)
    return result


@triton.jit
def horner(result, number, polynomial, MAX_LABELS: tl.constexpr):
    """z result + number polynomial: a step of the product with a polynomial whose entries come last one first."""
    following = (number * polynomial[0],)
    for j in tl.static_range(1, MAX_LABELS + 1):
        following += (number * polynomial[j] + result[j - 1],)
    return following


@triton.jit
def times_lane(polynomial, lanes, source, MAX_LABELS: tl.constexpr):
    """Product with the polynomial that `lanes` has in the lanes `source`, up to degree MAX_LABELS."""
    result = constant(polynomial[0] * 0, MAX_LABELS)
    lanes = reversed_(lanes, MAX_LABELS + 1)
    for _ in range(MAX_LABELS + 1):
        result = horner(result, tl.gather(lanes[0], source, axis=1), polynomial, MAX_LABELS)
        lanes = shifted(lanes, lanes[0], MAX_LABELS + 1)
    return result


@triton.jit
def times_label(polynomial, off, on, MAX_LABELS: tl.constexpr):
    """Product with off + on z."""
    result = (polynomial[0] * off,)
    for j in tl.static_range(1, MAX_LABELS + 1):
        result += (polynomial[j] * off + polynomial[j - 1] * on,)
    return result


@triton.jit
def scaled_label(z):
    """(1 + x z) / max(1, x) of labels with odds x = exp(z), as off and on; 1 and 0 for z = -inf."""
    small = tl.exp(-tl.abs(z))
    return tl.where(z > 0, small, 1.0), tl.where(z > 0, 1.0, small)


@triton.jit
def combined(lanes, MAX_LABELS: tl.constexpr):
    """Products over all other lanes for each lane, and over all lanes of a row; no difference is taken.

    A scan around the ring of lanes: windows of 1, 2, 4, ... lanes are doubled, and those that begin 1, 2, 4, ... lanes
    further on make up all lanes but the own one. All of it takes log2(LANES) steps. The product over all lanes is that
    of lane 0: rounding differs between lanes.
    """
    LANES: tl.constexpr = lanes[0].shape[1]
    lane = tl.arange(0, LANES)[None, :] + tl.zeros(lanes[0].shape, tl.int32)
    window, others = lanes, constant(lanes[0] * 0 + 1, MAX_LABELS)
    width = 1
    while width < LANES:
        ahead = (lane + width) % LANES  # around the ring
        others = times_lane(others, window, ahead, MAX_LABELS)
        window = times_lane(window, window, ahead, MAX_LABELS)
        width *= 2
    return others, window


@triton.jit
def over_lanes(numbers):
    """The sum over the lanes of a row, in all of them."""
    return tl.broadcast_to(tl.sum(numbers, axis=1, keep_dims=True), numbers.shape)


@triton.jit
def heaviest_size(polynomial, log_weights, tilt, fixed, MAX_LABELS: tl.constexpr):
    """Logarithm of the largest term of weights exp(log_weights[j + fixed] - tilt j) and polynomial, less at most log 2.

    0 where no size of the row has a term.
    """
    heaviest = tilt * 0 - float("inf")
    for j in range(MAX_LABELS + 1):
        log_term = _log_weight(log_weights, j, tilt, fixed, MAX_LABELS) + _log_power_of_two(polynomial[0])
        heaviest = tl.maximum(heaviest, tl.where(polynomial[0] > 0, log_term, float("-inf")))
        polynomial = shifted(polynomial, polynomial[0], MAX_LABELS + 1)
    return tl.where(heaviest > float("-inf"), heaviest, 0.0)


@triton.jit
def size_weight(log_weights, j, tilt, fixed, heaviest, MAX_LABELS: tl.constexpr):
    """Weight of the sets of j labels beside the fixed ones, times exp(-heaviest)."""
    return tl.exp(tl.minimum(_log_weight(log_weights, j, tilt, fixed, MAX_LABELS) - heaviest, 600.0))


@triton.jit
def _log_weight(log_weights, j, tilt, fixed, MAX_LABELS: tl.constexpr):
    size = fixed + j
    biases = tl.load(log_weights + size, mask=size <= MAX_LABELS, other=float("-inf")).to(tl.float64)
    return biases - tilt * j


@triton.jit
def _log_power_of_two(number):
    """Logarithm of the largest power of two up to a positive number, near enough for a reference."""
    exponent = (number.to(tl.int64, bitcast=True) >> 52) - 1023
    return exponent.to(tl.float64) * 0.6931471805599453


@triton.jit
def coefficients_of(polynomial, log_weights, tilt, fixed, heaviest, MAX_LABELS: tl.constexpr):
    """c_i = sum_j weight_j e_{j-1-i}, last one first, and sum_j weight_j e_j; with `size_weight` and e the polynomial.

    The marginal of a label with odds x is x (c_0 - c_1 x + ...). Read from the end they are the product of e with the
    weights from the end.
    """
    result = constant(tilt * 0, MAX_LABELS)
    for j in range(MAX_LABELS + 1):
        weight = size_weight(log_weights, j, tilt, fixed, heaviest, MAX_LABELS)
        result = horner(result, weight, polynomial, MAX_LABELS)
    return result


@triton.jit
def weighted_sum(coefficients, polynomial, MAX_LABELS: tl.constexpr):
    """sum_i c_i polynomial_i for coefficients that come last one first."""
    value = coefficients[MAX_LABELS - 1] * polynomial[0]
    for j in tl.static_range(1, MAX_LABELS):
        value += coefficients[MAX_LABELS - 1 - j] * polynomial[j]
    return value
