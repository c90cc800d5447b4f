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
    """Elementary symmetric polynomials e_j of the light odds from power sums: j e_j = sum_i (-1)^(i-1) e_{j-i} p_i."""
    result = (powers[0] * 0 + 1,)
    for j in tl.static_range(1, MAX_LABELS + 1):
        value = result[j - 1] * powers[0]
        for i in tl.static_range(2, j + 1):
            if i % 2 == 1:
                value += result[j - i] * powers[i - 1]
            else:
                value -= result[j - i] * powers[i - 1]
        result += (tl.maximum(value, 0.0) * (1.0 / j),)
    return result


@triton.jit
def product(one, other, MAX_LABELS: tl.constexpr):
    """Product of two polynomials, up to degree MAX_LABELS."""
    result = ()
    for j in tl.static_range(MAX_LABELS + 1):
        value = one[0] * other[j]
        for i in tl.static_range(1, j + 1):
            value += one[i] * other[j - i]
        result += (value,)
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
    further on make up all lanes but the own one. All of it takes log2(LANES) steps.
    """
    LANES: tl.constexpr = lanes[0].shape[1]
    window, others = lanes, constant(lanes[0] * 0 + 1, MAX_LABELS)
    width = 1
    while width < LANES:
        ahead = _ahead(window, width, MAX_LABELS)
        others, window = product(others, ahead, MAX_LABELS), product(window, ahead, MAX_LABELS)
        width *= 2
    first = tl.arange(0, LANES)[None, :] == 0
    whole = ()
    for j in tl.static_range(MAX_LABELS + 1):  # rounding differs between lanes
        whole += (over_lanes(tl.where(first, window[j], 0.0)),)
    return others, whole


@triton.jit
def _ahead(lanes, width, MAX_LABELS: tl.constexpr):
    """What lies `width` lanes further on, around the ring."""
    LANES: tl.constexpr = lanes[0].shape[1]
    source = ((tl.arange(0, LANES) + width) % LANES)[None, :] + tl.zeros(lanes[0].shape, tl.int32)
    result = ()
    for j in tl.static_range(MAX_LABELS + 1):
        result += (tl.gather(lanes[j], source, axis=1),)
    return result


@triton.jit
def over_lanes(numbers):
    """The sum over the lanes of a row, in all of them."""
    return tl.broadcast_to(tl.sum(numbers, axis=1, keep_dims=True), numbers.shape)


@triton.jit
def size_weights(polynomial, log_weights, tilt, fixed, MAX_LABELS: tl.constexpr):
    """Weights exp(log_weights[j + fixed] - tilt j) times exp(-reference) and that reference, near the largest term.

    The largest term of weights and polynomial lies from 1 to 2. Zero and 0 where no size of the row has a term.
    """
    heaviest, log_weight = tilt * 0 - float("inf"), ()
    for j in tl.static_range(MAX_LABELS + 1):
        size = fixed + j
        biases = tl.load(log_weights + size, mask=size <= MAX_LABELS, other=float("-inf")).to(tl.float64)
        log_weight += (biases - tilt * j,)
        log_term = log_weight[j] + _log_power_of_two(polynomial[j])
        heaviest = tl.maximum(heaviest, tl.where(polynomial[j] > 0, log_term, float("-inf")))
    heaviest = tl.where(heaviest > float("-inf"), heaviest, 0.0)
    weights = ()
    for j in tl.static_range(MAX_LABELS + 1):
        weights += (tl.exp(tl.minimum(log_weight[j] - heaviest, 600.0)),)
    return weights, heaviest


@triton.jit
def _log_power_of_two(number):
    """Logarithm of the largest power of two up to a positive number, near enough for a reference."""
    exponent = (number.to(tl.int64, bitcast=True) >> 52) - 1023
    return exponent.to(tl.float64) * 0.6931471805599453


@triton.jit
def coefficients_of(polynomial, weights, MAX_LABELS: tl.constexpr):
    """c_i = sum_j weights_j e_{j-1-i}, i < MAX_LABELS: the marginal of a label with odds x is x (c_0 - c_1 x + ...)."""
    result = ()
    for i in tl.static_range(MAX_LABELS):
        value = weights[i + 1] * polynomial[0]
        for j in tl.static_range(i + 2, MAX_LABELS + 1):
            value += weights[j] * polynomial[j - 1 - i]
        result += (value,)
    return result


@triton.jit
def weighted_sum(weights, polynomial, N: tl.constexpr):
    """sum_j weights_j polynomial_j over the first N entries."""
    value = weights[0] * polynomial[0]
    for j in tl.static_range(1, N):
        value += weights[j] * polynomial[j]
    return value
