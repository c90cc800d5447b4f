"""Second half of the forward pass, on the GPU: log-partition, loss and what the backward pass needs of some rows.

`chunks` has left power sums and lists of heavy labels of the rows' chunks. Each row has LANES lanes, S for each
chunk, and all numbers are tiles (ROWS, LANES); what belongs to a whole row is the same in all of its lanes. Lane c S +
s takes the labels s, s + S, ... of the lists of chunk c. If PARTIAL, rows with labels that are not known go through it
all once more (part 1) with the labels that are known to be present, `fixed` ones, beside the sets of the others.

The backward pass writes two kinds of labels one by one: those of the target set, and likely ones, of odds above 1. A
likely label is listed with the gradient that it gets, marginal - target, which takes the product of all others: the
polynomial for light labels would cancel.
"""

# Tuples grow in loops that Triton unrolls.
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl

from mlrh.torch._triton.layout import (
    UNKNOWN,
    computable,
    in_likely,
    in_numbers,
    in_scratch,
    in_targets,
    in_totals,
)
from mlrh.torch._triton.polynomials import (
    coefficients_of,
    combined,
    constant,
    heaviest_size,
    newton,
    over_lanes,
    scaled_label,
    shifted,
    size_weight,
    times_label,
    times_lane,
    weighted_sum,
)
from mlrh.torch._triton.tilt import NO_LABEL, next_tilt, sigmoid, slope


@triton.jit
def finish(
    scores, targets, log_weights, scratch, loss, numbers, values, pmf, counts, labels_of, first, n_rows, n_labels,
    n_chunks, stride, n_groups, start, group_step, tile_step, n_indices, min_labels, log_bound,
    MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr, TILE_ROWS: tl.constexpr,
    ARRIVALS: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr, DENSE: tl.constexpr,
    PARTIAL: tl.constexpr, INDICES: tl.constexpr, REDUCED: tl.constexpr,
):  # fmt: skip
    """Sum of the losses of ROWS rows of this program's group from `first` on, in float64.

    Writes what the backward pass needs of them, and the losses unless REDUCED. Each step is a function of its own that
    finds its numbers in memory: the time that Triton compiles grows with the cube of a function's length.
    """
    n_parts = 1
    if DENSE or INDICES:
        n_parts = _read_targets(
            scores, targets, log_weights, scratch, counts, labels_of, first, n_rows, n_labels, n_chunks, stride,
            n_groups, start, group_step, tile_step, n_indices, MAX_LABELS, HEAVY, LIKELY, TILE_ROWS, ARRIVALS, ROWS, S,
            LANES, DENSE, PARTIAL,
        )  # fmt: skip
    n_listed = 0
    for part in range(n_parts):
        n_here = _sum_over_sets(
            scratch, numbers, values, pmf, counts, labels_of, log_weights, part, first, n_rows, n_chunks, n_groups,
            start, group_step, tile_step, min_labels, log_bound, MAX_LABELS, HEAVY, LIKELY, TILE_ROWS, ARRIVALS, ROWS,
            S, LANES, PARTIAL, not (DENSE or INDICES),
        )  # fmt: skip
        n_listed = tl.maximum(n_listed, n_here)
    tl.debug_barrier()  # lists are read by other threads than wrote them
    if n_listed > 0:
        store_values(
            scores, targets, scratch, numbers, values, counts, labels_of, first, n_parts, n_listed, n_rows, n_labels,
            n_chunks, stride, start, group_step, tile_step, n_indices, MAX_LABELS, HEAVY, LIKELY, TILE_ROWS, ARRIVALS,
            ROWS, S, LANES, DENSE, PARTIAL, INDICES,
        )  # fmt: skip
    return _sum_losses(
        scratch, loss, counts, labels_of, first, n_rows, n_chunks, n_groups, group_step, tile_step, LIKELY, TILE_ROWS,
        ARRIVALS, ROWS, S, LANES, DENSE or INDICES, PARTIAL, REDUCED,
    )  # fmt: skip


@triton.jit
def _rows_of_group(
    first, n_rows, n_chunks, group_step, tile_step, TILE_ROWS: tl.constexpr, ARRIVALS: tl.constexpr, ROWS: tl.constexpr,
    S: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Rows (0 for those beyond the last), whether they are there, their cells (-1 beyond the last chunk), and lanes."""
    lane = tl.arange(0, LANES)[None, :] + tl.zeros((ROWS, LANES), tl.int32)
    row, group = first + tl.arange(0, ROWS), tl.program_id(0) // ARRIVALS
    row = (group * group_step + row // TILE_ROWS * tile_step) * TILE_ROWS + row % TILE_ROWS
    rows = row[:, None] + lane * 0
    known = rows < n_rows
    rows = tl.where(known, rows, 0).to(tl.int64)
    return rows, known, tl.where(lane // S < n_chunks, rows * n_chunks + lane // S, -1), lane


@triton.jit
def _known_in_chunks(target_counts, cells):
    """Number of labels known to be present in each lane's chunk, and whether there are unknown ones."""
    given = tl.load(target_counts + cells, mask=cells >= 0, other=0).to(tl.int32)
    return given % UNKNOWN, given >= UNKNOWN


@triton.jit
def _known_in_rows(target_counts, cells, S: tl.constexpr):
    """The same for rows."""
    count, unknown = _known_in_chunks(target_counts, cells)
    one_of_chunk = tl.arange(0, cells.shape[1])[None, :] % S == 0
    return over_lanes(tl.where(one_of_chunk, count, 0)), over_lanes(unknown.to(tl.int32)) > 0


@triton.jit(noinline=True)
def _read_targets(
    scores, targets, log_weights, scratch, counts, labels_of, first, n_rows, n_labels, n_chunks, stride, n_groups,
    start, group_step, tile_step, n_indices, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr,
    TILE_ROWS: tl.constexpr, ARRIVALS: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr,
    DENSE: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """1, or 2 if a row has unknown labels or too many; writes sizes and scores of the target sets.

    Where labels are unknown, chunks without such labels get lists of no free label. Lists of targets are read here, for
    `list_likely` may write over them.
    """
    rows, known, cells, lane = _rows_of_group(
        first, n_rows, n_chunks, group_step, tile_step, TILE_ROWS, ARRIVALS, ROWS, S, LANES
    )
    sizes, target_counts, target_labels = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)
    if DENSE:
        size, score = dense_target(
            scores, targets, target_counts, target_labels, rows, cells, lane // S, n_labels, stride, MAX_LABELS,
            LIKELY if PARTIAL else MAX_LABELS, S,
        )  # fmt: skip
    else:
        size, score = listed_target(scores, targets, rows, lane, n_labels, n_indices, LANES)
    log_weight = tl.load(log_weights + size, mask=size <= MAX_LABELS, other=float("-inf")).to(tl.float64)
    n_parts = 1
    if PARTIAL:
        unknown = _known_in_rows(target_counts, cells, S)[1]
        n_parts = 1 + _largest((known & (unknown | (size > MAX_LABELS))).to(tl.int32))
        log_weight = tl.where(unknown, 0.0, log_weight)  # the log-partition of the free labels takes its place
        size = tl.where(unknown, MAX_LABELS + 1, size)  # targets are to be read again
        if n_parts > 1:
            places = in_scratch(scratch, 1, n_rows, n_chunks, start, MAX_LABELS, HEAVY, LIKELY)
            empty = (cells >= 0) & (lane % S == 0) & (_known_in_chunks(target_counts, cells)[1] == 0)
            tl.store(places[0] + cells, float("inf"), mask=empty)  # tilts
            tl.store(places[2] + cells, 0.0, mask=empty)  # heavy_counts
    tl.store(in_totals(scratch, 0, n_rows, n_groups) + rows, score + log_weight, mask=known & (lane == 0))
    tl.store(sizes + rows, size, mask=known & (lane == 0))
    tl.debug_barrier()
    return n_parts


@triton.jit(noinline=True)
def _sum_losses(
    scratch, loss, counts, labels_of, first, n_rows, n_chunks, n_groups, group_step, tile_step, LIKELY: tl.constexpr,
    TILE_ROWS: tl.constexpr, ARRIVALS: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr,
    TARGETS: tl.constexpr, PARTIAL: tl.constexpr, REDUCED: tl.constexpr,
):  # fmt: skip
    """Sum of the losses, log-partitions without targets; writes the losses unless REDUCED."""
    rows, known, cells, lane = _rows_of_group(
        first, n_rows, n_chunks, group_step, tile_step, TILE_ROWS, ARRIVALS, ROWS, S, LANES
    )
    stored = known & (lane == 0)
    value = tl.load(in_totals(scratch, 1, n_rows, n_groups) + rows)
    if TARGETS:
        score = tl.load(in_totals(scratch, 0, n_rows, n_groups) + rows)
        if PARTIAL:
            target_counts = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)[1]
            unknown = _known_in_rows(target_counts, cells, S)[1]
            score += tl.load(in_totals(scratch, 2, n_rows, n_groups) + rows, mask=unknown, other=0)
        # Where no set is possible at all, the difference of two infinities would be NaN.
        impossible = (value == float("-inf")) & (score == float("-inf"))
        value = tl.where(impossible, float("inf"), value - score)
        if PARTIAL:
            value = tl.where(unknown & (value < 0), 0.0, value)  # rounding
    if not REDUCED:
        tl.store(loss + rows, value, mask=stored)
    return tl.sum(tl.sum(tl.where(stored, value, 0.0), axis=1), axis=0)


@triton.jit(noinline=True)
def _sum_over_sets(
    scratch, numbers, values, pmf, counts, labels_of, log_weights, part, first, n_rows, n_chunks, n_groups, start,
    group_step, tile_step, min_labels, log_bound, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr,
    TILE_ROWS: tl.constexpr, ARRIVALS: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr,
    PARTIAL: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The largest number of likely labels in a chunk; writes log-partitions, tilts, coefficients and lists.

    Of the sizes that the log-weights are for, `fixed` labels are there already.
    """
    rows, wanted, cells, lane = _rows_of_group(
        first, n_rows, n_chunks, group_step, tile_step, TILE_ROWS, ARRIVALS, ROWS, S, LANES
    )
    fixed = lane * 0
    if PARTIAL:  # noqa: SIM102, a constant: otherwise what follows is not compiled
        if part > 0:
            target_counts = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)[1]
            fixed, unknown = _known_in_rows(target_counts, cells, S)
            wanted = wanted & (unknown | (fixed > MAX_LABELS))
    tilts, sums, heavy_counts, heavy_scores, heavy_labels, marginals = in_scratch(
        scratch, part, n_rows, n_chunks, start, MAX_LABELS, HEAVY, LIKELY
    )
    several: tl.constexpr = LANES > S
    mine = (cells >= 0) & (lane % S == 0)  # one lane of each chunk
    of_chunks = tl.load(tilts + cells, mask=cells >= 0, other=float("inf")).to(tl.float64)
    is_nan = over_lanes((of_chunks != of_chunks).to(tl.int32)) > 0  # a score is NaN or inf
    of_chunks = tl.where(is_nan, 0.0, of_chunks)
    listed = tl.load(heavy_counts + cells, mask=cells >= 0, other=0).to(tl.int32)
    n_blocks = _largest((listed + (S - 1)) // S)
    origin = slope(log_weights, min_labels, MAX_LABELS).to(tl.float64)
    summed = (mine if several else cells >= 0) & (of_chunks < float("inf"))
    if several:
        tilt = tl.broadcast_to(tl.min(of_chunks, axis=1, keep_dims=True), of_chunks.shape)
        of_light = tl.load(sums + cells * MAX_LABELS, mask=summed, other=0).to(tl.float64)
        lowest = tl.maximum(min_labels - fixed, 0)
        # Where all chunks are idle all labels are listed, and there may be too few of them.
        n_listed = over_lanes(tl.where(mine, listed, 0))
        lowest = tl.where(tilt < float("inf"), lowest, tl.minimum(lowest, n_listed))
        highest = tl.maximum((MAX_LABELS - fixed).to(tl.float64), NO_LABEL)
        tilt = _row_tilt(
            tilt, of_chunks, of_light, heavy_scores, cells, listed, n_blocks, origin, lowest, highest, HEAVY, S
        )
    else:
        tilt, log_bound = tl.where(of_chunks < float("inf"), of_chunks, origin), float("-inf")
    tilt = tilt.to(numbers.dtype.element_ty).to(tl.float64)
    shift = tl.where(summed, tilt - of_chunks, 0.0)
    base = newton(
        _power_sums(
            sums + cells * MAX_LABELS, summed, shift, heavy_scores, cells, listed, n_blocks, tilt, log_bound,
            MAX_LABELS, HEAVY, S, several,
        ),
        MAX_LABELS,
    )  # fmt: skip
    full, others = base, constant(tilt * 0 + 1, MAX_LABELS)
    scale, n_heavy = _heavy_scale(heavy_scores, cells, listed, n_blocks, tilt, log_bound, HEAVY, S)
    if n_heavy > 0:
        lanes = _lane_products(heavy_scores, cells, listed, n_blocks, tilt, log_bound, MAX_LABELS, HEAVY, S)
        others, window = combined(lanes, MAX_LABELS)
        full = times_lane(base, window, lane * 0, MAX_LABELS)
    heaviest = heaviest_size(full, log_weights, tilt, fixed, MAX_LABELS)
    coefficients = coefficients_of(full, log_weights, tilt, fixed, heaviest, MAX_LABELS)
    total = coefficients[MAX_LABELS]
    inverse = 1.0 / tl.where(total > 0, total, 1.0)
    stored = wanted & (lane == 0)
    _store_numbers(numbers, part, tilt, inverse, coefficients, rows, stored, n_rows, MAX_LABELS)
    if ALONE:
        for j in range(MAX_LABELS + 1):
            weight = size_weight(log_weights, j, tilt, fixed, heaviest, MAX_LABELS)
            tl.store(pmf + rows * (MAX_LABELS + 1) + j, full[0] * weight * inverse, mask=stored)
            full = shifted(full, full[0], MAX_LABELS + 1)
    _, likely_counts, likely_labels = in_likely(values, counts, labels_of, part, n_rows, n_chunks, LIKELY)
    n_likely, largest = listed * 0, 0
    if n_heavy > 0:
        of_base = coefficients_of(base, log_weights, tilt, fixed, heaviest, MAX_LABELS)
        n_likely = list_likely(
            heavy_scores, heavy_labels, marginals, likely_labels, others, of_base, inverse, tilt, log_bound, cells,
            listed, wanted, n_blocks, MAX_LABELS, HEAVY, LIKELY, S,
        )  # fmt: skip
        largest = _largest(n_likely)
    tl.store(likely_counts + cells, n_likely, mask=mine & wanted)
    value = heaviest + tl.log(tl.maximum(total, 1e-300)) + scale
    value = tl.where(is_nan, float("nan"), tl.where(total > 0, value, float("-inf")))
    tl.store(in_totals(scratch, 1 + part, n_rows, n_groups) + rows, value, mask=stored)
    return largest


@triton.jit
def _largest(numbers):
    """The largest number of all rows and lanes."""
    return tl.max(tl.max(numbers, axis=1), axis=0)


@triton.jit
def _power_sums(
    sums, summed, shift, heavy_scores, cells, listed, n_blocks, tilt, log_bound, MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr, S: tl.constexpr, SEVERAL: tl.constexpr,
):  # fmt: skip
    """Sums of the powers 1, ..., MAX_LABELS of the light odds, every second one negative.

    Those of several chunks are brought to the row's tilt, and listed labels that are light by that tilt join them.
    """
    result = constant(shift * 0, MAX_LABELS - 1)
    growth = tl.exp(shift)
    scale = growth
    for i in range(MAX_LABELS):
        power = tl.load(sums + i, mask=summed, other=0).to(tl.float64)
        if SEVERAL:
            power, scale = power * scale, scale * growth
            for block in range(n_blocks):
                z = listed_score(heavy_scores, cells, listed, block, HEAVY, S) + tilt
                power += tl.exp((i + 1) * tl.where(z > log_bound, float("-inf"), z))
            power = over_lanes(power)
        result = shifted(result, tl.where(i % 2 == 0, power, -power), MAX_LABELS)
    return result


@triton.jit
def _heavy_scale(heavy_scores, cells, listed, n_blocks, tilt, log_bound, HEAVY: tl.constexpr, S: tl.constexpr):
    """log prod max(1, x) over the listed labels of each row, and whether any of all rows is heavy by the row's tilt."""
    scale, heavy = tilt * 0, listed * 0
    for block in range(n_blocks):
        z = listed_score(heavy_scores, cells, listed, block, HEAVY, S) + tilt
        scale, heavy = scale + tl.maximum(z, 0.0), heavy | (z > log_bound).to(tl.int32)
    return over_lanes(scale), _largest(heavy)


@triton.jit
def _lane_products(
    heavy_scores, cells, listed, n_blocks, tilt, log_bound, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr,
    S: tl.constexpr,
):  # fmt: skip
    """Products of (1 + x z) / max(1, x) over the heavy labels of each lane."""
    lanes = constant(tilt * 0 + 1, MAX_LABELS)
    for block in range(n_blocks):
        z = listed_score(heavy_scores, cells, listed, block, HEAVY, S) + tilt
        off, on = scaled_label(tl.where(z > log_bound, z, float("-inf")))
        lanes = times_label(lanes, off, on, MAX_LABELS)
    return lanes


@triton.jit
def _store_numbers(numbers, part, tilt, inverse, coefficients, rows, stored, n_rows, MAX_LABELS: tl.constexpr):
    """Write tilts and coefficients, which come last one first."""
    tilts, where = in_numbers(numbers, part, n_rows, MAX_LABELS)
    tl.store(tilts + rows, tilt, mask=stored)
    for i in range(MAX_LABELS):
        value = tl.minimum(coefficients[0] * inverse, 1e30)
        tl.store(where + rows * MAX_LABELS + (MAX_LABELS - 1 - i), value, mask=stored)
        coefficients = shifted(coefficients, coefficients[0], MAX_LABELS + 1)


@triton.jit
def _row_tilt(
    tilt, of_chunks, of_light, heavy_scores, cells, listed, n_blocks, origin, lowest, highest, HEAVY: tl.constexpr,
    S: tl.constexpr,
):  # fmt: skip
    """Tilts of whole rows by the rule of `chunk_tilt`, from the lowest of the row's chunks.

    No tilt is above those of the chunks. There light labels stay light, and their expected number is their sum of odds,
    nearly. Where all chunks are idle that lowest tilt is infinite.
    """
    raised = tilt > origin
    tilt = tl.where(raised, origin, tilt)
    number = _row_expected(of_chunks, of_light, heavy_scores, cells, listed, n_blocks, tilt, HEAVY, S)
    above = number > highest + 0.5
    goal = tl.where(above, highest, tl.maximum(lowest, 1)).to(tl.float64)
    active = above | (raised & (number < lowest - 0.5))
    low, high = tilt * 0 - float("inf"), tilt * 0 + float("inf")
    step = 0.5 * tl.abs(tl.log(tl.maximum(number, 0.1) / goal)) + 0.01  # doubled it does at once, for light labels
    while _largest(active.to(tl.int32)) > 0:
        tilt, low, high, step, active = next_tilt(tilt, number, goal, low, high, step, active)
        number = _row_expected(of_chunks, of_light, heavy_scores, cells, listed, n_blocks, tilt, HEAVY, S)
        active = active & (tl.abs(number - goal) > 0.5)
    return tilt


@triton.jit
def _row_expected(
    of_chunks, of_light, heavy_scores, cells, listed, n_blocks, tilt, HEAVY: tl.constexpr, S: tl.constexpr
):
    number = of_light * tl.exp(tilt - of_chunks)
    for block in range(n_blocks):
        number += sigmoid(listed_score(heavy_scores, cells, listed, block, HEAVY, S) + tilt)
    return over_lanes(number)


@triton.jit
def dense_target(
    scores, targets, target_counts, target_labels, rows, cells, chunk, n_labels, stride, MAX_LABELS: tl.constexpr,
    LENGTH: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Size of each row's target set, and the sum of its scores, NaN if a target isn't 1.

    From lists of LENGTH labels for each chunk.
    """
    listed = tl.minimum(_known_in_chunks(target_counts, cells)[0], MAX_LABELS)
    total = rows.to(tl.float64) * 0
    for block in range(tl.max(tl.max((listed + (S - 1)) // S, axis=1), axis=0)):
        slot, there = _slot(cells, listed, block, S)
        label = tl.load(target_labels + cells * LENGTH + slot, mask=there, other=0)
        where = rows * n_labels + chunk * stride + label
        present = computable(tl.load(targets + where, mask=there, other=0)) == 1
        score = computable(tl.load(scores + where, mask=there, other=0)).to(tl.float64)
        total += tl.where(there & (present == 0), float("nan"), score)
    return _known_in_rows(target_counts, cells, S)[0], over_lanes(total)


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

    From the products `others` over the heavy labels of all other lanes, and the coefficients of the light labels. Each
    lane takes its likely labels one after the other, whatever their blocks: most heavy labels of large sets aren't.
    """
    count, block = listed * 0, listed * 0 - 1
    n_more = 1
    while n_more > 0:
        block = _next_likely(heavy_scores, cells, listed, block, tilt, n_blocks, HEAVY, S)
        likely = block < n_blocks
        place, n_here = _places(likely.to(tl.int32), S)
        n_more = _largest(n_here)
        if n_more > 0:
            place += count
            count += n_here
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
def _next_likely(heavy_scores, cells, listed, after, tilt, n_blocks, HEAVY: tl.constexpr, S: tl.constexpr):
    """The first block after that of each lane in which its label is likely; n_blocks where there is none."""
    found = after * 0 + n_blocks
    for block in range(n_blocks):
        is_it = listed_score(heavy_scores, cells, listed, block, HEAVY, S) + tilt > 0
        found = tl.where(is_it & (block > after), tl.minimum(found, block), found)
    return found


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


@triton.jit(noinline=True)
def store_values(
    scores, targets, scratch, numbers, values, counts, labels_of, first, n_parts, n_listed, n_rows, n_labels, n_chunks,
    stride, start, group_step, tile_step, n_indices, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr,
    LIKELY: tl.constexpr, TILE_ROWS: tl.constexpr, ARRIVALS: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr,
    LANES: tl.constexpr, DENSE: tl.constexpr, PARTIAL: tl.constexpr, INDICES: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the listed labels: marginal - target in part 0, and where labels are unknown in part 1.

    There they are listed once more by what is likely among the free ones: marginal in all sets - marginal in those that
    agree. In part 0 the target of an unknown label is its marginal among the free ones, right if it isn't likely there.
    """
    rows, known, cells, lane = _rows_of_group(
        first, n_rows, n_chunks, group_step, tile_step, TILE_ROWS, ARRIVALS, ROWS, S, LANES
    )
    is_read, chunk = known, lane // S
    if PARTIAL:
        target_counts = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)[1]
        size, unknown = _known_in_rows(target_counts, cells, S)
        is_read = known & (unknown | (size > MAX_LABELS))
    for part in range(n_parts):
        wanted = tl.where(part == 0, known, is_read)
        _, _, _, _, _, marginals = in_scratch(scratch, part, n_rows, n_chunks, start, MAX_LABELS, HEAVY, LIKELY)
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
                            scratch, values, counts, labels_of, label, cells, n_rows, n_chunks, start, MAX_LABELS,
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
    scratch, values, counts, labels_of, label, cells, n_rows, n_chunks, start, MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr, LIKELY: tl.constexpr,
):  # fmt: skip
    """Marginals in all sets of labels that are likely there, by their place in the list."""
    _, _, _, _, _, marginals = in_scratch(scratch, 0, n_rows, n_chunks, start, MAX_LABELS, HEAVY, LIKELY)
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
