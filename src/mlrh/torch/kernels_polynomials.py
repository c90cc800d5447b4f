"""Polynomials of the kernels: products over labels of 1 + x z up to degree MAX_LABELS, tiles (ROWS, SIZES) of float64.

Entry j belongs to the sets of j labels; entries beyond MAX_LABELS are zero. The functions run on the GPU, read what
`moments` left of a row, and write nothing.
"""

import triton
import triton.language as tl


@triton.jit
def power_sums(sums, cells, chunks, mine, shift, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr, CHUNKS: tl.constexpr):
    """Sums of i-th powers of the light odds in entry i, those of the chunks brought to the row's tilt; entry 0 is 0."""
    powers = tl.arange(0, SIZES)[None, None, :]
    used = mine[:, :, None] & (powers >= 1) & (powers <= MAX_LABELS)
    where = ((cells[:, None] + chunks) * MAX_LABELS)[:, :, None] + powers - 1
    part = tl.load(sums + where, mask=used, other=0).to(tl.float64)
    if CHUNKS > 1:
        part = part * tl.exp(shift[:, :, None] * powers)
    return tl.sum(part, axis=1)


@triton.jit
def newton(powers, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    """Elementary symmetric polynomials of the light odds: j e_j = sum_i (-1)^(i-1) e_{j-i} p_i."""
    entries = tl.arange(0, SIZES)[None, :]
    signed = tl.where(entries % 2 == 1, powers, -powers)
    inverse = 1.0 / tl.maximum(entries, 1).to(tl.float64)
    result = tl.where(entries == 0, 1.0, tl.zeros_like(powers))
    for j in range(1, MAX_LABELS + 1):
        value = tl.sum(shifted(result, j - entries) * signed, axis=1)
        result = tl.where(entries == j, tl.maximum(value, 0.0)[:, None] * inverse, result)
    return result


@triton.jit
def shifted(tile, indices):
    """Entries of each row at indices (1, SIZES), 0 where an index is negative."""
    indices = indices + tl.zeros(tile.shape, tl.int32)
    return tl.where(indices >= 0, tl.gather(tile, tl.maximum(indices, 0), axis=1), 0.0)


@triton.jit
def multiply(
    polynomial, heavy_counts, heavy_scores, cells, n_busy, tilt, left_out, LIKELY_ONES: tl.constexpr,
    MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Product with (1 + x z) / max(1, x) over the heavy labels with x > 1, or over those with x <= 1.

    Leaves out the one in position `left_out` of the list; also returns the logarithm of the product of max(1, x).
    """
    entries = tl.arange(0, SIZES)[None, :]
    scale = tilt * 0
    for chunk in range(n_busy):
        count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
        for slot in range(tl.max(count, axis=0)):
            z = heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY) + tilt
            wanted = (z > 0) if LIKELY_ONES else (z <= 0)
            z = tl.where(wanted & (count * 0 + chunk * HEAVY + slot != left_out), z, float("-inf"))
            scale += tl.maximum(z, 0.0)
            small = tl.exp(-tl.abs(z))
            off, on = tl.where(z > 0, small, 1.0), tl.where(z > 0, 1.0, small)
            polynomial = polynomial * off[:, None] + shifted(polynomial, entries - 1) * on[:, None]
            polynomial = tl.where(entries <= MAX_LABELS, polynomial, 0.0)
    return polynomial, scale


@triton.jit
def size_weights(polynomial, log_weights, tilt, fixed, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    """exp(log_weights[j + fixed] - tilt j) over the term that counts most, and the logarithm of that term.

    Zero and 0 where no size of the row has a term.
    """
    entries = tl.arange(0, SIZES)[None, :]
    size = entries + fixed[:, None]
    biases = tl.load(log_weights + size, mask=size <= MAX_LABELS, other=float("-inf")).to(tl.float64)
    log_weight = biases - tilt[:, None] * entries
    log_term = tl.where(polynomial > 0, log_weight + tl.log(tl.maximum(polynomial, 1e-300)), float("-inf"))
    heaviest = tl.max(log_term, axis=1)
    heaviest = tl.where(heaviest > float("-inf"), heaviest, 0.0)
    return tl.exp(tl.minimum(log_weight - heaviest[:, None], 600.0)), heaviest


@triton.jit
def coefficients_of(full, weights, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    """c_i = sum_j weights_j e_{j-1-i} in entry i: the marginal of a label with odds x is x (c_0 - c_1 x + ...)."""
    entries = tl.arange(0, SIZES)[None, :]
    result = tl.zeros_like(full)
    for i in range(MAX_LABELS):
        value = tl.minimum(tl.sum(weights * shifted(full, entries - 1 - i), axis=1), 1e30)
        result = tl.where(entries == i, value[:, None], result)
    return result


@triton.jit
def marginal_of_light(coefficients, z, SIZES: tl.constexpr):
    """Marginals (ROWS,) of labels with odds exp(z) up to 1; those of others are not right."""
    entries = tl.arange(0, SIZES)[None, :]
    power = tl.exp(tl.minimum(z, 0.0)[:, None] * (entries + 1))
    return tl.sum(tl.where(entries % 2 == 0, power, -power) * coefficients, axis=1)


@triton.jit
def marginal_of_likely(
    base, weights, heavy_counts, heavy_scores, cells, n_busy, tilt, position, MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Marginals (ROWS,) of the heavy labels at a position: weights_j times the product of all others, no difference."""
    others, _ = multiply(
        base, heavy_counts, heavy_scores, cells, n_busy, tilt, position, True, MAX_LABELS, HEAVY, SIZES
    )
    entries = tl.arange(0, SIZES)[None, :]
    return tl.minimum(tl.sum(weights * shifted(others, entries - 1), axis=1), 1.0)


@triton.jit
def heavy_score(heavy_scores, cells, slot, count, HEAVY: tl.constexpr):
    return tl.load(heavy_scores + cells * HEAVY + slot, mask=slot < count, other=float("-inf")).to(tl.float64)
