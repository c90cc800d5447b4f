"""Triton kernel of the second half of the forward pass: log-partition, loss and what the backward pass needs of a row.

A polynomial is a tile (ROWS, SIZES) of float64: entry j belongs to the sets of j labels, and those beyond MAX_LABELS
are zero. Loops over labels only run over heavy ones. If PARTIAL, rows with labels that are not known go through it all
once more (part 1) with the labels that are known to be present, `fixed` ones, beside the sets of the others.
"""

import triton
import triton.language as tl

from mlrh.torch.kernels_layout import in_header, in_numbers, in_scratch, in_targets
from mlrh.torch.kernels_likely import dense_target, listed_target, store_free, store_likely
from mlrh.torch.kernels_polynomials import coefficients_of, heavy_score, multiply, newton, power_sums, size_weights
from mlrh.torch.kernels_tilt import NO_LABEL, next_tilt, sigmoid, slope


@triton.jit
def finish(
    scores,
    targets,
    log_weights,
    scratch,
    loss,
    total_loss,
    numbers,
    values,
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
    PARTIAL: tl.constexpr,
    INDICES: tl.constexpr,
    REDUCED: tl.constexpr,
):
    """One program: ROWS rows, in float64.

    If REDUCED, a program leaves the sum of its losses in `loss`, and the one that ends last adds them up.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = rows < n_rows
    rows = tl.where(known, rows, 0).to(tl.int64)
    cells = rows * n_chunks
    chunks = tl.arange(0, CHUNKS)[None, :]
    mine = (chunks < n_chunks) & (rows >= 0)[:, None]
    sizes, target_counts, target_labels = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)
    if DENSE:
        size, score, in_part = dense_target(
            scores, targets, target_counts, target_labels, rows, cells, chunks, mine, n_labels, stride, MAX_LABELS,
            LIKELY if PARTIAL else MAX_LABELS, TARGET_LANES,
        )  # fmt: skip
    elif INDICES:
        size, score = listed_target(scores, targets, rows, n_labels, n_indices, TARGET_LANES)
    tilt, base, weights, full, value, n_busy = _sum_over_sets(
        scratch, 0, log_weights, rows * 0, cells, chunks, mine, n_rows, n_chunks, min_labels, MAX_LABELS, HEAVY, SIZES,
        CHUNKS, numbers.dtype.element_ty,
    )  # fmt: skip
    coefficients = coefficients_of(full, weights, MAX_LABELS, SIZES)
    _store_numbers(numbers, 0, tilt, coefficients, rows, known, n_rows, MAX_LABELS, SIZES)
    free_tilt, free_coefficients, n_read = tilt, coefficients, 0
    if not (DENSE or INDICES):
        _store_pmf(pmf, weights * full, rows, known, MAX_LABELS, SIZES)
    if DENSE or INDICES:
        log_weight = tl.load(log_weights + size, mask=size <= MAX_LABELS, other=float("-inf")).to(tl.float64)
        if PARTIAL:
            unknown = tl.max(in_part.to(tl.int32), axis=1) > 0
            is_read = known & (unknown | (size > MAX_LABELS))
            n_read = tl.max(is_read.to(tl.int32), axis=0)
            if n_read > 0:
                _clear(scratch, cells, chunks, mine & (in_part == 0), n_rows, n_chunks, MAX_LABELS, HEAVY)
                free_tilt, free_base, free_weights, free_full, of_free, n_free = _sum_over_sets(
                    scratch, 1, log_weights, size, cells, chunks, mine, n_rows, n_chunks, min_labels, MAX_LABELS, HEAVY,
                    SIZES, CHUNKS, numbers.dtype.element_ty,
                )  # fmt: skip
                free_coefficients = coefficients_of(free_full, free_weights, MAX_LABELS, SIZES)
                _store_numbers(numbers, 1, free_tilt, free_coefficients, rows, is_read, n_rows, MAX_LABELS, SIZES)
                log_weight = tl.where(unknown, of_free, log_weight)
                store_free(
                    scratch, values, counts, labels_of, base, weights, coefficients, tilt, n_busy, free_base,
                    free_weights, free_tilt, n_free, cells, chunks, mine, is_read, n_rows, n_chunks, MAX_LABELS, HEAVY,
                    LIKELY, SIZES,
                )  # fmt: skip
            size = tl.where(is_read, MAX_LABELS + 1, size)
        tl.store(sizes + rows, size, mask=known)
        value = value - score - log_weight
        if PARTIAL:
            value = tl.where(unknown & (value < 0), 0.0, value)  # rounding
    if REDUCED:
        tl.store(loss + tl.program_id(0), tl.sum(tl.where(known, value, 0.0), axis=0))
    else:
        tl.store(loss + rows, value, mask=known)
    store_likely(
        scratch, targets, values, counts, labels_of, base, weights, tilt, n_busy, free_coefficients, free_tilt, n_read,
        rows, cells, chunks, mine, known, n_rows, n_labels, n_chunks, stride, n_indices, MAX_LABELS, HEAVY, LIKELY,
        TARGET_LANES, SIZES, DENSE, PARTIAL, INDICES,
    )  # fmt: skip
    if REDUCED:
        tl.debug_barrier()
        if tl.atomic_add(in_header(scratch), 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
            _store_total(loss, total_loss, n_averaged)


@triton.jit
def _sum_over_sets(
    scratch, part, log_weights, fixed, cells, chunks, mine, n_rows, n_chunks, min_labels, MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr, SIZES: tl.constexpr, CHUNKS: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """Tilts, polynomials without and with the labels that have odds above 1, log-partitions.

    In this order: tilts (ROWS,), polynomials without such labels, weights of the sizes over the partition, polynomials
    of all labels, log-partitions (ROWS,) and the number of chunks to look for heavy labels in. Of the sizes that the
    log-weights are for, `fixed` labels (ROWS,) are there already.
    """
    tilts, sums, heavy_counts, heavy_scores, _ = in_scratch(scratch, part, n_rows, n_chunks, MAX_LABELS, HEAVY)
    of_chunks = tl.load(tilts + cells[:, None] + chunks, mask=mine, other=float("inf")).to(tl.float64)
    listed = tl.load(heavy_counts + cells[:, None] + chunks, mask=mine, other=0).to(tl.int32)
    n_busy = tl.where(tl.max(tl.max(listed, axis=1), axis=0) > 0, n_chunks, 0)  # none where no label is heavy
    summed = mine & (of_chunks < float("inf"))
    tilt = tl.min(of_chunks, axis=1)
    origin = slope(log_weights, min_labels, MAX_LABELS).to(tl.float64)
    if CHUNKS > 1:
        of_light = tl.load(sums + (cells[:, None] + chunks) * MAX_LABELS, mask=summed, other=0).to(tl.float64)
        lowest = tl.maximum(min_labels - fixed, 0)
        # Where all chunks are idle all labels are listed, and there may be too few of them.
        lowest = tl.where(tilt < float("inf"), lowest, tl.minimum(lowest, tl.sum(listed, axis=1)))
        highest = tl.maximum((MAX_LABELS - fixed).to(tl.float64), NO_LABEL)
        tilt = _row_tilt(
            tilt, of_chunks, of_light, heavy_counts, heavy_scores, cells, n_busy, origin, lowest, highest, HEAVY
        )
    else:
        tilt = tl.where(tilt < float("inf"), tilt, origin)
    tilt = tilt.to(ROUNDED).to(tl.float64)
    shift = tl.where(summed, tilt[:, None] - of_chunks, 0.0)
    powers = power_sums(sums, cells, chunks, summed, shift, MAX_LABELS, SIZES, CHUNKS)
    base = newton(powers, MAX_LABELS, SIZES)
    base, _ = multiply(base, heavy_counts, heavy_scores, cells, n_busy, tilt, -1, False, MAX_LABELS, HEAVY, SIZES)
    full, scale = multiply(base, heavy_counts, heavy_scores, cells, n_busy, tilt, -1, True, MAX_LABELS, HEAVY, SIZES)
    weights, heaviest = size_weights(full, log_weights, tilt, fixed, MAX_LABELS, SIZES)
    total = tl.sum(weights * full, axis=1)
    log_partition = heaviest + tl.log(tl.maximum(total, 1e-300)) + scale
    weights = weights / tl.where(total > 0, total, 1.0)[:, None]
    return tilt, base, weights, full, tl.where(total > 0, log_partition, float("-inf")), n_busy


@triton.jit
def _clear(scratch, cells, chunks, empty, n_rows, n_chunks, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr):
    """Write that chunks without unknown labels have no free ones; behind a barrier, where lists of targets end, too."""
    tilts, _, heavy_counts, _, _ = in_scratch(scratch, 1, n_rows, n_chunks, MAX_LABELS, HEAVY)
    where = cells[:, None] + chunks
    tl.store(tilts + where, float("inf"), mask=empty)
    tl.store(heavy_counts + where, 0.0, mask=empty)
    tl.debug_barrier()


@triton.jit
def _store_numbers(
    numbers, part, tilt, coefficients, rows, known, n_rows, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr
):
    tilts, where = in_numbers(numbers, part, n_rows, MAX_LABELS)
    tl.store(tilts + rows, tilt, mask=known)
    entries = tl.arange(0, SIZES)[None, :]
    wanted = known[:, None] & (entries < MAX_LABELS)
    tl.store(where + (rows * MAX_LABELS)[:, None] + entries, coefficients, mask=wanted)


@triton.jit
def _store_pmf(pmf, value, rows, known, MAX_LABELS: tl.constexpr, SIZES: tl.constexpr):
    entries = tl.arange(0, SIZES)[None, :]
    where = pmf + (rows * (MAX_LABELS + 1))[:, None] + entries
    tl.store(where, value, mask=known[:, None] & (entries <= MAX_LABELS))


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
    tilt, of_chunks, of_light, heavy_counts, heavy_scores, cells, n_busy, origin, lowest, highest, HEAVY: tl.constexpr
):
    """Tilts (ROWS,) of whole rows by the rule of `chunk_tilt`, from the lowest of the row's chunks.

    No tilt is above those of the chunks. There light labels stay light, and their expected number is their sum of odds,
    nearly. Where all chunks are idle that lowest tilt is infinite.
    """
    raised = tilt > origin
    tilt = tl.where(raised, origin, tilt)
    number = _row_expected(of_chunks, of_light, heavy_counts, heavy_scores, cells, n_busy, tilt, HEAVY)
    above = number > highest + 0.5
    goal = tl.where(above, highest, tl.maximum(lowest, 1)).to(tl.float64)
    active = above | (raised & (number < lowest - 0.5))
    low, high = tilt * 0 - float("inf"), tilt * 0 + float("inf")
    step = 0.5 * tl.abs(tl.log(tl.maximum(number, 0.1) / goal)) + 0.01  # doubled it does at once, for light labels
    while tl.max(active.to(tl.int32), axis=0) > 0:
        tilt, low, high, step, active = next_tilt(tilt, number, goal, low, high, step, active)
        number = _row_expected(of_chunks, of_light, heavy_counts, heavy_scores, cells, n_busy, tilt, HEAVY)
        active = active & (tl.abs(number - goal) > 0.5)
    return tilt


@triton.jit
def _row_expected(of_chunks, of_light, heavy_counts, heavy_scores, cells, n_busy, tilt, HEAVY: tl.constexpr):
    number = tl.sum(of_light * tl.exp(tilt[:, None] - of_chunks), axis=1)
    for chunk in range(n_busy):
        count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
        for slot in range(tl.max(count, axis=0)):
            number += sigmoid(heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY) + tilt)
    return number
