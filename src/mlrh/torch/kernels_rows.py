"""Triton kernel of the second half of the forward pass: log-partition, loss and what the backward pass needs of a row.

A polynomial is a tile (ROWS, SIZES) of float64: entry j belongs to the sets of j labels, and those beyond MAX_LABELS
are zero. Loops over labels only run over heavy ones.
"""

import triton
import triton.language as tl

from mlrh.torch.kernels_chunks import in_counts, in_labels, in_numbers, in_scratch, next_tilt, sigmoid, slope


@triton.jit
def finish(
    scores,
    targets,
    log_weights,
    scratch,
    loss,
    total_loss,
    numbers,
    pmf,
    counts,
    labels_of,
    n_rows,
    n_labels,
    n_chunks,
    stride,
    n_indices,
    min_labels,
    n_averaged,
    MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr,
    LIKELY: tl.constexpr,
    TARGET_LANES: tl.constexpr,
    ROWS: tl.constexpr,
    SIZES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DENSE: tl.constexpr,
    INDICES: tl.constexpr,
    REDUCED: tl.constexpr,
):
    """One program: ROWS rows, in float64.

    If REDUCED, a program leaves the sum of its losses in `loss`, and the one that ends last adds them up.
    """
    tilts, sums, heavy_counts, heavy_scores, heavy_labels = in_scratch(scratch, n_rows, n_chunks, MAX_LABELS, HEAVY)
    tilt, coefficients, likely_marginals = in_numbers(numbers, n_rows, MAX_LABELS)
    n_done, sizes, likely_counts, target_counts = in_counts(counts, n_rows, n_chunks)
    likely_labels, target_labels = in_labels(labels_of, n_rows, n_chunks, LIKELY)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = rows < n_rows
    rows = tl.where(known, rows, 0).to(tl.int64)
    cells = rows * n_chunks
    chunks = tl.arange(0, CHUNKS)[None, :]
    mine = (chunks < n_chunks) & (rows >= 0)[:, None]
    of_chunks = tl.load(tilts + cells[:, None] + chunks, mask=mine, other=float("inf")).to(tl.float64)
    listed = tl.load(heavy_counts + cells[:, None] + chunks, mask=mine, other=0).to(tl.int32)
    tl.store(likely_counts + cells[:, None] + chunks, listed * 0, mask=mine & known[:, None])
    n_busy = tl.where(tl.max(tl.max(listed, axis=1), axis=0) > 0, n_chunks, 0)  # none where no label is heavy
    own = tl.min(of_chunks, axis=1)
    if CHUNKS > 1:
        sums_of_chunks = tl.load(sums + (cells[:, None] + chunks) * MAX_LABELS, mask=mine, other=0).to(tl.float64)
        origin = slope(log_weights, min_labels, MAX_LABELS).to(tl.float64)
        own = _row_tilt(
            own, of_chunks, sums_of_chunks, heavy_counts, heavy_scores, cells, n_busy, origin, min_labels, MAX_LABELS,
            HEAVY,
        )  # fmt: skip
    own = own.to(tilt.dtype.element_ty).to(tl.float64)
    tl.store(tilt + rows, own, mask=known)
    shift = tl.where(of_chunks < float("inf"), own[:, None] - of_chunks, 0.0)
    powers = _power_sums(sums, cells, chunks, mine, shift, MAX_LABELS, SIZES, CHUNKS)
    base = _newton(powers, MAX_LABELS, SIZES)
    base, _ = _multiply(base, heavy_counts, heavy_scores, cells, n_busy, own, -1, False, MAX_LABELS, HEAVY, SIZES)
    full, scale = _multiply(base, heavy_counts, heavy_scores, cells, n_busy, own, -1, True, MAX_LABELS, HEAVY, SIZES)
    weights, heaviest = _size_weights(full, log_weights, own, MAX_LABELS, SIZES)
    total = tl.sum(weights * full, axis=1)
    weights = weights / total[:, None]
    _store_pmf(pmf, weights * full, rows, known, MAX_LABELS, SIZES)
    _store_coefficients(coefficients, full, weights, rows, known, MAX_LABELS, SIZES)
    value = heaviest + tl.log(total) + scale
    if DENSE:
        size, score = _dense_target(
            scores, targets, target_counts, target_labels, rows, cells, chunks, mine, n_labels, stride, MAX_LABELS,
            TARGET_LANES,
        )  # fmt: skip
    if INDICES:
        size, score = _listed_target(scores, targets, rows, n_labels, n_indices, TARGET_LANES)
    if DENSE or INDICES:
        tl.store(sizes + rows, size, mask=known)
        log_weight = tl.load(log_weights + size, mask=size <= MAX_LABELS, other=float("-inf")).to(tl.float64)
        value = value - score - log_weight
    if REDUCED:
        tl.store(loss + tl.program_id(0), tl.sum(tl.where(known, value, 0.0), axis=0))
    else:
        tl.store(loss + rows, value, mask=known)
    _store_likely(
        base, weights, heavy_counts, heavy_scores, heavy_labels, likely_counts, likely_labels, likely_marginals, cells,
        n_busy, own, known, MAX_LABELS, HEAVY, LIKELY, SIZES,
    )  # fmt: skip
    if REDUCED:
        tl.debug_barrier()
        if tl.atomic_add(n_done, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
            _store_total(loss, total_loss, n_averaged)


@triton.jit
def _store_total(loss, total_loss, n_averaged):
    """Write the sum of what all programs have left over n_averaged, added in the same order in every run."""
    BLOCK: tl.constexpr = 1024
    sums = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, tl.num_programs(0), BLOCK):
        programs = start + tl.arange(0, BLOCK)
        left = tl.load(loss + programs, mask=programs < tl.num_programs(0), other=0, cache_modifier=".cg")
        sums += left.to(tl.float64)
    tl.store(total_loss, tl.sum(sums, axis=0) / n_averaged)


@triton.jit
def _row_tilt(
    lowest, of_chunks, sums_of_chunks, heavy_counts, heavy_scores, cells, n_busy, origin, min_labels,
    MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr,
):  # fmt: skip
    """Tilts (ROWS,) of whole rows by the rule of `_chunk_tilt`; none is above those of the row's chunks.

    There light labels stay light, and their expected number is their sum of odds, nearly.
    """
    raised = lowest > origin
    goal = tl.where(raised, tl.maximum(min_labels, 1), MAX_LABELS).to(tl.float64)
    tilt = tl.where(raised, origin, lowest)
    number = _row_expected(of_chunks, sums_of_chunks, heavy_counts, heavy_scores, cells, n_busy, tilt, HEAVY)
    active = tl.where(raised, number < min_labels - 0.5, number > goal + 0.5)
    low, high = tilt * 0 - float("inf"), tilt * 0 + float("inf")
    step = 0.5 * tl.abs(tl.log(tl.maximum(number, 0.1) / goal)) + 0.01  # doubled it does at once, for light labels
    while tl.max(active.to(tl.int32), axis=0) > 0:
        tilt, low, high, step, active = next_tilt(tilt, number, goal, low, high, step, active)
        number = _row_expected(of_chunks, sums_of_chunks, heavy_counts, heavy_scores, cells, n_busy, tilt, HEAVY)
        active = active & (tl.abs(number - goal) > 0.5)
    return tilt


@triton.jit
def _row_expected(of_chunks, sums_of_chunks, heavy_counts, heavy_scores, cells, n_busy, tilt, HEAVY: tl.constexpr):
    number = tl.sum(sums_of_chunks * tl.exp(tilt[:, None] - of_chunks), axis=1)
    for chunk in range(n_busy):
        count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
        for slot in range(tl.max(count, axis=0)):
            number += sigmoid(_heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY) + tilt)
    return number


@triton.jit
def _heavy_score(heavy_scores, cells, slot, count, HEAVY: tl.constexpr):
    return tl.load(heavy_scores + cells * HEAVY + slot, mask=slot < count, other=float("-inf")).to(tl.float64)


@triton.jit
def _power_sums(sums, cells, chunks, mine, shift, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr, CHUNKS: tl.constexpr):
    """Sums of i-th powers of the light odds in entry i, those of the chunks brought to the row's tilt; entry 0 is 0."""
    powers = tl.arange(0, SIZES)[None, None, :]
    used = mine[:, :, None] & (powers >= 1) & (powers <= MAX_LABELS)
    where = ((cells[:, None] + chunks) * MAX_LABELS)[:, :, None] + powers - 1
    part = tl.load(sums + where, mask=used, other=0).to(tl.float64)
    if CHUNKS > 1:
        part = part * tl.exp(shift[:, :, None] * powers)
    return tl.sum(part, axis=1)


@triton.jit
def _newton(powers, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    """Elementary symmetric polynomials of the light odds: j e_j = sum_i (-1)^(i-1) e_{j-i} p_i."""
    entries = tl.arange(0, SIZES)[None, :]
    signed = tl.where(entries % 2 == 1, powers, -powers)
    inverse = 1.0 / tl.maximum(entries, 1).to(tl.float64)
    result = tl.where(entries == 0, 1.0, tl.zeros_like(powers))
    for j in range(1, MAX_LABELS + 1):
        value = tl.sum(_entries(result, j - entries) * signed, axis=1)
        result = tl.where(entries == j, tl.maximum(value, 0.0)[:, None] * inverse, result)
    return result


@triton.jit
def _entries(tile, indices):
    """Entries of each row at indices (1, SIZES), 0 where an index is negative."""
    indices = indices + tl.zeros(tile.shape, tl.int32)
    return tl.where(indices >= 0, tl.gather(tile, tl.maximum(indices, 0), axis=1), 0.0)


@triton.jit
def _multiply(
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
            z = _heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY) + tilt
            wanted = (z > 0) if LIKELY_ONES else (z <= 0)
            z = tl.where(wanted & (count * 0 + chunk * HEAVY + slot != left_out), z, float("-inf"))
            scale += tl.maximum(z, 0.0)
            small = tl.exp(-tl.abs(z))
            off, on = tl.where(z > 0, small, 1.0), tl.where(z > 0, 1.0, small)
            polynomial = polynomial * off[:, None] + _entries(polynomial, entries - 1) * on[:, None]
            polynomial = tl.where(entries <= MAX_LABELS, polynomial, 0.0)
    return polynomial, scale


@triton.jit
def _size_weights(polynomial, log_weights, tilt, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    """exp(log_weights[j] - tilt j) over the term that counts most, and the logarithm of that term."""
    entries = tl.arange(0, SIZES)
    biases = tl.load(log_weights + entries, mask=entries <= MAX_LABELS, other=float("-inf")).to(tl.float64)
    log_weight = biases[None, :] - tilt[:, None] * entries[None, :]
    log_term = tl.where(polynomial > 0, log_weight + tl.log(tl.maximum(polynomial, 1e-300)), float("-inf"))
    heaviest = tl.max(log_term, axis=1)
    return tl.exp(tl.minimum(log_weight - heaviest[:, None], 600.0)), heaviest


@triton.jit
def _store_pmf(pmf, value, rows, known, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    entries = tl.arange(0, SIZES)[None, :]
    where = pmf + (rows * (MAX_LABELS + 1))[:, None] + entries
    tl.store(where, value, mask=known[:, None] & (entries <= MAX_LABELS))


@triton.jit
def _store_coefficients(coefficients, full, weights, rows, known, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    """c_i = sum_j weights_j e_{j-1-i} / Z: the marginal of a label with odds x is x (c_0 - c_1 x + c_2 x^2 - ...)."""
    entries = tl.arange(0, SIZES)[None, :]
    for i in range(MAX_LABELS):
        value = tl.sum(weights * _entries(full, entries - 1 - i), axis=1)
        tl.store(coefficients + rows * MAX_LABELS + i, tl.minimum(value, 1e30), mask=known)


@triton.jit
def _dense_target(
    scores, targets, target_counts, target_labels, rows, cells, chunks, mine, n_labels, stride,
    MAX_LABELS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Size of each row's target set and the sum of its scores, from the list of its labels; NaN if one isn't 1."""
    slots = tl.arange(0, LANES)[None, None, :]
    count = tl.load(target_counts + cells[:, None] + chunks, mask=mine, other=0)
    given = slots < tl.minimum(count, MAX_LABELS)[:, :, None]
    lists = ((cells[:, None] + chunks) * MAX_LABELS)[:, :, None]
    label = tl.load(target_labels + lists + slots, mask=given, other=0)
    where = (rows[:, None] * n_labels + chunks * stride)[:, :, None] + label
    present = tl.load(targets + where, mask=given, other=1).to(tl.float64)
    present = tl.where(present == 1, present, float("nan"))
    score = tl.load(scores + where, mask=given, other=0).to(tl.float64)
    return tl.sum(count, axis=1), tl.sum(tl.sum(score * present, axis=2), axis=1)


@triton.jit
def _listed_target(scores, targets, rows, n_labels, n_indices, LANES: tl.constexpr):
    """Size of each row's target set and the sum of its scores, from labels padded with -1; NaN if one is no label."""
    slots = tl.arange(0, LANES)[None, :]
    there = (slots < n_indices) & (rows >= 0)[:, None]
    label = tl.load(targets + (rows * n_indices)[:, None] + slots, mask=there, other=-1)
    given = (label >= 0) & (label < n_labels)
    score = tl.load(scores + (rows * n_labels)[:, None] + label, mask=given, other=0).to(tl.float64)
    score = tl.where(label >= n_labels, float("nan"), score)
    return tl.sum((label >= 0).to(tl.int32), axis=1), tl.sum(score, axis=1)


@triton.jit
def _store_likely(
    base, weights, heavy_counts, heavy_scores, heavy_labels, likely_counts, likely_labels, likely_marginals, cells,
    n_busy, tilt, known, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Write labels with x > 1 and their marginals: weights_j times the product of all others, nothing subtracted."""
    entries = tl.arange(0, SIZES)[None, :]
    for chunk in range(n_busy):
        count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
        position = count * 0
        for slot in range(tl.max(count, axis=0)):
            likely = _heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY) + tilt > 0
            if tl.max(likely.to(tl.int32), axis=0) > 0:
                others, _ = _multiply(
                    base, heavy_counts, heavy_scores, cells, n_busy, tilt, chunk * HEAVY + slot, True, MAX_LABELS,
                    HEAVY, SIZES,
                )  # fmt: skip
                marginal = tl.sum(weights * _entries(others, entries - 1), axis=1)
                where, wanted = (cells + chunk) * LIKELY + position, known & likely & (position < LIKELY)
                label = tl.load(heavy_labels + (cells + chunk) * HEAVY + slot, mask=wanted, other=0)
                tl.store(likely_labels + where, label.to(tl.int16), mask=wanted)
                tl.store(likely_marginals + where, tl.minimum(marginal, 1.0), mask=wanted)
            position += likely.to(tl.int32)
        tl.store(likely_counts + cells + chunk, position, mask=known)
