"""Labels of a row that the backward pass writes one by one: those of the target set, and likely ones, of odds above 1.

A likely label is listed with the gradient that it gets, marginal - target, which takes the product of all others: the
polynomial for light labels would cancel. The functions run on the GPU, in the program that finishes a row.
"""

import triton
import triton.language as tl

from mlrh.torch.kernels_layout import UNKNOWN, computable, in_likely, in_scratch
from mlrh.torch.kernels_polynomials import heavy_score, marginal_of_light, marginal_of_likely


@triton.jit
def dense_target(
    scores, targets, target_counts, target_labels, rows, cells, chunks, mine, n_labels, stride,
    MAX_LABELS: tl.constexpr, LENGTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Size of each row's target set, the sum of its scores (NaN if a target isn't 1), whether chunks have unknown ones.

    From lists of LENGTH labels for each chunk.
    """
    slots = tl.arange(0, LANES)[None, None, :]
    count = tl.load(target_counts + cells[:, None] + chunks, mask=mine, other=0).to(tl.int32)
    unknown = count >= UNKNOWN
    count = count % UNKNOWN
    given = slots < tl.minimum(count, MAX_LABELS)[:, :, None]
    lists = ((cells[:, None] + chunks) * LENGTH)[:, :, None]
    label = tl.load(target_labels + lists + slots, mask=given, other=0)
    where = (rows[:, None] * n_labels + chunks * stride)[:, :, None] + label
    present = computable(tl.load(targets + where, mask=given, other=0)) == 1
    score = computable(tl.load(scores + where, mask=given, other=0)).to(tl.float64)
    score = tl.where(present | (given == 0), score, float("nan"))
    return tl.sum(count, axis=1), tl.sum(tl.sum(score, axis=2), axis=1), unknown


@triton.jit
def listed_target(scores, targets, rows, n_labels, n_indices, LANES: tl.constexpr):
    """Size of each row's target set and the sum of its scores, from labels padded with -1; NaN if one is no label."""
    label = _listed(targets, rows, n_indices, LANES)
    given = (label >= 0) & (label < n_labels)
    score = computable(tl.load(scores + (rows * n_labels)[:, None] + label, mask=given, other=0)).to(tl.float64)
    score = tl.where(label >= n_labels, float("nan"), score)
    return tl.sum((label >= 0).to(tl.int32), axis=1), tl.sum(score, axis=1)


@triton.jit
def store_likely(
    scratch, targets, values, counts, labels_of, base, weights, tilt, n_busy, free_coefficients, free_tilt, n_read,
    rows, cells, chunks, mine, known, n_rows, n_labels, n_chunks, stride, n_indices, MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr, LIKELY: tl.constexpr, TARGET_LANES: tl.constexpr, SIZES: tl.constexpr, DENSE: tl.constexpr,
    PARTIAL: tl.constexpr, INDICES: tl.constexpr,
):  # fmt: skip
    """Write the likely labels of all sets; an unknown one has its marginal among the free labels for a target.

    That is right if it isn't likely there, too: such labels `store_free` lists once more.
    """
    _, _, heavy_counts, heavy_scores, heavy_labels = in_scratch(scratch, 0, n_rows, n_chunks, MAX_LABELS, HEAVY)
    values, counts, labels_of = in_likely(values, counts, labels_of, 0, n_rows, n_chunks, LIKELY)
    if n_busy == 0:
        tl.store(counts + cells[:, None] + chunks, (cells * 0)[:, None] + chunks * 0, mask=mine & known[:, None])
    for chunk in range(n_busy):
        count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
        place = count * 0
        for slot in range(tl.max(count, axis=0)):
            score = heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY)
            likely = score + tilt > 0
            if tl.max(likely.to(tl.int32), axis=0) > 0:
                value = marginal_of_likely(
                    base, weights, heavy_counts, heavy_scores, cells, n_busy, tilt, chunk * HEAVY + slot, MAX_LABELS,
                    HEAVY, SIZES,
                )  # fmt: skip
                wanted = known & likely & (place < LIKELY)
                label = tl.load(heavy_labels + (cells + chunk) * HEAVY + slot, mask=wanted, other=0).to(tl.int32)
                if DENSE:
                    where = rows * n_labels + chunk * stride + label
                    target = computable(tl.load(targets + where, mask=wanted, other=0))
                    value -= ((target != 0) & (target == target)).to(tl.float64)
                    if PARTIAL:  # noqa: SIM102, a constant
                        if n_read > 0:
                            of_free = marginal_of_light(free_coefficients, score + free_tilt, SIZES)
                            value -= tl.where(target == target, 0.0, of_free)
                if INDICES:
                    listed = _listed(targets, rows, n_indices, TARGET_LANES)
                    value -= tl.max((listed == (chunk * stride + label)[:, None]).to(tl.float64), axis=1)
                tl.store(labels_of + (cells + chunk) * LIKELY + place, label.to(tl.int16), mask=wanted)
                tl.store(values + (cells + chunk) * LIKELY + place, value.to(scratch.dtype.element_ty), mask=wanted)
            place += likely.to(tl.int32)
        tl.store(counts + cells + chunk, place, mask=known)


@triton.jit
def store_free(
    scratch, values, counts, labels_of, base, weights, coefficients, tilt, n_busy, free_base, free_weights, free_tilt,
    n_busy_of_free, cells, chunks, mine, is_read, n_rows, n_chunks, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr,
    LIKELY: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Write the labels that are likely among the free ones: marginal in all sets - marginal in those that agree."""
    _, _, all_counts, all_scores, all_labels = in_scratch(scratch, 0, n_rows, n_chunks, MAX_LABELS, HEAVY)
    _, _, heavy_counts, heavy_scores, heavy_labels = in_scratch(scratch, 1, n_rows, n_chunks, MAX_LABELS, HEAVY)
    values, counts, labels_of = in_likely(values, counts, labels_of, 1, n_rows, n_chunks, LIKELY)
    if n_busy_of_free == 0:
        tl.store(counts + cells[:, None] + chunks, (cells * 0)[:, None] + chunks * 0, mask=mine & is_read[:, None])
    for chunk in range(n_busy_of_free):
        count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
        place = count * 0
        for slot in range(tl.max(count, axis=0)):
            score = heavy_score(heavy_scores, cells + chunk, slot, count, HEAVY)
            likely = score + free_tilt > 0
            if tl.max(likely.to(tl.int32), axis=0) > 0:
                of_free = marginal_of_likely(
                    free_base, free_weights, heavy_counts, heavy_scores, cells, n_busy_of_free, free_tilt,
                    chunk * HEAVY + slot, MAX_LABELS, HEAVY, SIZES,
                )  # fmt: skip
                wanted = is_read & likely & (place < LIKELY)
                label = tl.load(heavy_labels + (cells + chunk) * HEAVY + slot, mask=wanted, other=0)
                position = _position(label, all_counts, all_labels, cells, chunk, HEAVY)
                of_all = marginal_of_likely(
                    base, weights, all_counts, all_scores, cells, n_busy, tilt, position, MAX_LABELS, HEAVY, SIZES
                )
                of_all = tl.where(score + tilt > 0, of_all, marginal_of_light(coefficients, score + tilt, SIZES))
                tl.store(labels_of + (cells + chunk) * LIKELY + place, label.to(tl.int16), mask=wanted)
                tl.store(
                    values + (cells + chunk) * LIKELY + place,
                    (of_all - of_free).to(scratch.dtype.element_ty),
                    mask=wanted,
                )
            place += likely.to(tl.int32)
        tl.store(counts + cells + chunk, place, mask=is_read)


@triton.jit
def _listed(targets, rows, n_indices, LANES: tl.constexpr):
    """Labels of the target sets (ROWS, LANES), padded with -1."""
    slots = tl.arange(0, LANES)[None, :]
    there = (slots < n_indices) & (rows >= 0)[:, None]
    return tl.load(targets + (rows * n_indices)[:, None] + slots, mask=there, other=-1)


@triton.jit
def _position(label, heavy_counts, heavy_labels, cells, chunk, HEAVY: tl.constexpr):
    """Where labels (ROWS,) of a chunk are among its heavy ones, -1 if they aren't."""
    count = tl.load(heavy_counts + cells + chunk).to(tl.int32)
    position = count * 0 - 1
    for slot in range(tl.max(count, axis=0)):
        other = tl.load(heavy_labels + (cells + chunk) * HEAVY + slot, mask=slot < count, other=-1)
        position = tl.where(other == label, chunk * HEAVY + slot, position)
    return position
