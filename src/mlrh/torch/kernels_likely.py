"""Labels of a row that the backward pass writes one by one: those of the target set, and likely ones, of odds above 1.

A likely label is listed with the gradient that it gets, marginal - target, which takes the product of all others: the
polynomial for light labels would cancel. The functions run on the GPU, in the program that finishes a row;
`kernels_rows` says how the labels in the lists of a row's chunks are split over its lanes.
"""

import triton
import triton.language as tl

from mlrh.torch.kernels_layout import UNKNOWN, computable, in_likely, in_numbers, in_scratch
from mlrh.torch.kernels_polynomials import over_lanes, scaled_label, times_label, weighted_sum


@triton.jit
def dense_target(
    scores, targets, target_counts, target_labels, rows, cells, chunk, n_labels, stride, MAX_LABELS: tl.constexpr,
    LENGTH: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Size of each row's target set, the sum of its scores (NaN if a target isn't 1), whether chunks have unknown ones.

    From lists of LENGTH labels for each chunk.
    """
    given = tl.load(target_counts + cells, mask=cells >= 0, other=0).to(tl.int32)
    unknown, count = given >= UNKNOWN, given % UNKNOWN
    listed = tl.minimum(count, MAX_LABELS)
    total = rows.to(tl.float64) * 0
    for block in range(tl.max(tl.max((listed + (S - 1)) // S, axis=1), axis=0)):
        slot, there = _slot(cells, listed, block, S)
        label = tl.load(target_labels + cells * LENGTH + slot, mask=there, other=0)
        where = rows * n_labels + chunk * stride + label
        present = computable(tl.load(targets + where, mask=there, other=0)) == 1
        score = computable(tl.load(scores + where, mask=there, other=0)).to(tl.float64)
        total += tl.where(there & (present == 0), float("nan"), score)
    one_of_chunk = tl.arange(0, cells.shape[1])[None, :] % S == 0
    return over_lanes(tl.where(one_of_chunk, count, 0)), over_lanes(total), unknown


@triton.jit
def listed_target(scores, targets, rows, lane, n_labels, n_indices, LANES: tl.constexpr):
    """Size of each row's target set and the sum of its scores, from labels padded with -1; NaN if one is no label."""
    size, total = lane * 0, rows.to(tl.float64) * 0
    for start in range(0, n_indices, LANES):
        label = tl.load(targets + rows * n_indices + start + lane, mask=start + lane < n_indices, other=-1)
        given = (label >= 0) & (label < n_labels)
        score = computable(tl.load(scores + rows * n_labels + label, mask=given, other=0)).to(tl.float64)
        total += tl.where(label >= n_labels, float("nan"), score)
        size += (label >= 0).to(tl.int32)
    return over_lanes(size), over_lanes(total)


@triton.jit
def listed_score(heavy_scores, cells, listed, block, HEAVY: tl.constexpr, S: tl.constexpr):
    """Scores of the heavy labels in a block of S for each chunk, -inf where there is none."""
    slot, given = _slot(cells, listed, block, S)
    return tl.load(heavy_scores + cells * HEAVY + slot, mask=given, other=float("-inf")).to(tl.float64)


@triton.jit
def list_likely(
    heavy_scores, heavy_labels, marginals, likely_labels, others, coefficients, inverse, tilt, log_bound, cells, listed,
    wanted, n_blocks, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Write the likely labels of each chunk and their marginals; returns the number of them in each lane's chunk.

    From the products `others` over the heavy labels of all other lanes, and the coefficients of the light labels.
    """
    count = listed * 0
    for block in range(n_blocks):
        likely = listed_score(heavy_scores, cells, listed, block, HEAVY, S) + tilt > 0
        place, n_here = _places(likely.to(tl.int32), S)
        place += count
        count += n_here
        if tl.max(tl.max(n_here, axis=1), axis=0) > 0:
            rest = others
            for other in range(n_blocks):
                z = listed_score(heavy_scores, cells, listed, other, HEAVY, S) + tilt
                off, on = scaled_label(tl.where((z > log_bound) & (other != block), z, float("-inf")))
                rest = times_label(rest, off, on, MAX_LABELS)
            value = tl.minimum(inverse * weighted_sum(coefficients, rest, MAX_LABELS), 1.0)
            stored = wanted & likely & (place < LIKELY)
            slot, _ = _slot(cells, listed, block, S)
            label = tl.load(heavy_labels + cells * HEAVY + slot, mask=stored, other=0)
            tl.store(likely_labels + cells * LIKELY + place, label.to(tl.int16), mask=stored)
            tl.store(marginals + cells * LIKELY + place, value, mask=stored)
    return count


@triton.jit
def _places(flags, S: tl.constexpr):
    """How many lanes of the same chunk before each have a flag of 1, and how many of the chunk have one."""
    if S == 1:
        before, total = flags * 0, flags
    else:
        lane = tl.arange(0, flags.shape[1])[None, :] + flags * 0
        up_to = tl.cumsum(flags, axis=1)
        start = tl.gather(up_to - flags, lane // S * S, axis=1)
        before, total = up_to - flags - start, tl.gather(up_to, lane // S * S + (S - 1), axis=1) - start
    return before, total


@triton.jit
def store_values(
    scores, targets, scratch, numbers, values, counts, labels_of, rows, cells, chunk, known, is_read, n_parts, n_listed,
    n_rows, n_labels, n_chunks, stride, n_groups, n_indices, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr,
    LIKELY: tl.constexpr, S: tl.constexpr, DENSE: tl.constexpr, PARTIAL: tl.constexpr, INDICES: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the listed labels: marginal - target in part 0, and where labels are unknown in part 1.

    There they are listed once more by what is likely among the free ones: marginal in all sets - marginal in those that
    agree. In part 0 the target of an unknown label is its marginal among the free ones, right if it isn't likely there.
    """
    for part in range(n_parts):
        wanted = tl.where(part == 0, known, is_read)
        _, _, _, _, _, marginals = in_scratch(scratch, part, n_rows, n_chunks, n_groups, MAX_LABELS, HEAVY, LIKELY)
        own_values, own_counts, own_labels = in_likely(values, counts, labels_of, part, n_rows, n_chunks, LIKELY)
        listed = tl.load(own_counts + cells, mask=wanted & (cells >= 0), other=0).to(tl.int32)
        for block in range((n_listed + (S - 1)) // S):
            slot, given = _slot(cells, tl.minimum(listed, LIKELY), block, S)
            label = tl.load(own_labels + cells * LIKELY + slot, mask=given, other=0).to(tl.int32)
            value = tl.load(marginals + cells * LIKELY + slot, mask=given, other=0).to(tl.float64)
            where = rows * n_labels + chunk * stride + label
            if DENSE:
                target = computable(tl.load(targets + where, mask=given & (part == 0), other=0))
                value -= ((target != 0) & (target == target)).to(tl.float64)
            if INDICES:
                value -= _is_listed(targets, rows, chunk * stride + label, n_indices)
            if PARTIAL:  # noqa: SIM102, a constant: otherwise what follows is not compiled
                if n_parts > 1:
                    score = computable(tl.load(scores + where, mask=given, other=0)).to(tl.float64)
                    of_other, likely = _marginal_of_light(numbers, 1 - part, score, rows, is_read, n_rows, MAX_LABELS)
                    if part == 0:
                        value -= tl.where(target == target, 0.0, of_other)
                    else:
                        of_listed = _marginal_of_listed(
                            scratch, values, counts, labels_of, label, cells, n_rows, n_chunks, n_groups, MAX_LABELS,
                            HEAVY, LIKELY,
                        )  # fmt: skip
                        value = tl.where(likely, of_listed, of_other) - value
            tl.store(own_values + cells * LIKELY + slot, value.to(scratch.dtype.element_ty), mask=given)


@triton.jit
def _marginal_of_light(numbers, part, score, rows, is_read, n_rows, MAX_LABELS: tl.constexpr):
    """Marginals in a part of labels with odds up to 1 there, and whether they are above."""
    tilt, coefficients = in_numbers(numbers, part, n_rows, MAX_LABELS)
    z = score + tl.load(tilt + rows, mask=is_read, other=0).to(tl.float64)
    odds = tl.exp(tl.minimum(z, 0.0))
    value = odds * 0
    for i in range(MAX_LABELS):
        place = coefficients + rows * MAX_LABELS + (MAX_LABELS - 1 - i)
        value = tl.load(place, mask=is_read, other=0).to(tl.float64) - odds * value
    return odds * value, z > 0


@triton.jit
def _marginal_of_listed(
    scratch, values, counts, labels_of, label, cells, n_rows, n_chunks, n_groups, MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr, LIKELY: tl.constexpr,
):  # fmt: skip
    """Marginals in all sets of labels that are likely there, by their place in the list."""
    _, _, _, _, _, marginals = in_scratch(scratch, 0, n_rows, n_chunks, n_groups, MAX_LABELS, HEAVY, LIKELY)
    _, own_counts, own_labels = in_likely(values, counts, labels_of, 0, n_rows, n_chunks, LIKELY)
    count = tl.load(own_counts + cells, mask=cells >= 0, other=0)
    value = label.to(tl.float64) * 0
    for slot in range(LIKELY):
        is_it = tl.load(own_labels + cells * LIKELY + slot, mask=slot < count, other=-1) == label
        value = tl.where(is_it, tl.load(marginals + cells * LIKELY + slot, mask=is_it, other=0).to(tl.float64), value)
    return value


@triton.jit
def _is_listed(targets, rows, label, n_indices):
    """1 where labels are among the row's target labels, else 0."""
    result = label.to(tl.float64) * 0
    for i in range(n_indices):
        result = tl.where(tl.load(targets + rows * n_indices + i) == label, 1.0, result)
    return result


@triton.jit
def _slot(cells, listed, block, S: tl.constexpr):
    """The place in its chunk's list that each lane takes in a block, and whether the list is that long."""
    slot = tl.arange(0, cells.shape[1])[None, :] % S + block * S
    return slot, (slot < listed) & (cells >= 0)
