"""Where the arrays of the kernels begin in the tensors that are launched with; `plan` says what each array is.

Arrays that exist once for all sets and, where labels may be unknown, once more for the sets that agree with what is
known, take a part: 0 or 1. The functions run on the GPU and know sizes alone.
"""

import triton
import triton.language as tl

UNKNOWN = tl.constexpr(64)  # added to the number of target labels of a chunk in which labels are unknown


@triton.jit
def in_counters(scratch):
    """Where the counters begin: that of groups that are finished, then one of arrivals in each group."""
    return scratch.to(tl.pointer_type(tl.int64), bitcast=True)


@triton.jit
def in_totals(scratch, kind, n_rows, n_groups):
    """Where totals of rows begin, float64: 0 scores of the target sets, 1 and 2 log-partitions of parts 0 and 1."""
    words = scratch.to(tl.pointer_type(tl.float64), bitcast=True)
    return words + 1 + n_groups + kind * _long(n_rows)


@triton.jit
def in_scratch(
    scratch, part, n_rows, n_chunks, start, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr
):
    """Where tilts, sums, heavy_counts, heavy_scores, heavy_labels and likely_marginals begin, `start` numbers on."""
    n_cells = _long(n_rows) * n_chunks
    tilts = scratch + start + part * n_cells * (2 + MAX_LABELS + 2 * HEAVY + LIKELY)
    sums = tilts + n_cells
    heavy_counts = sums + n_cells * MAX_LABELS
    heavy_scores = heavy_counts + n_cells
    heavy_labels = heavy_scores + n_cells * HEAVY
    return tilts, sums, heavy_counts, heavy_scores, heavy_labels, heavy_labels + n_cells * HEAVY


@triton.jit
def in_numbers(numbers, part, n_rows, MAX_LABELS: tl.constexpr):
    """Where tilt and coefficients begin."""
    tilt = numbers + part * _long(n_rows) * (1 + MAX_LABELS)
    return tilt, tilt + _long(n_rows)


@triton.jit
def in_likely(values, counts, labels_of, part, n_rows, n_chunks, LIKELY: tl.constexpr):
    """Where likely_values, likely_counts and likely_labels begin."""
    n_cells = _long(n_rows) * n_chunks
    values, labels = values + part * n_cells * LIKELY, labels_of + part * n_cells * LIKELY
    return values, counts + _long(n_rows) + (1 + part) * n_cells, labels


@triton.jit
def in_targets(counts, labels_of, n_rows, n_chunks, LIKELY: tl.constexpr):
    """Where sizes, target_counts and target_labels begin."""
    n_cells = _long(n_rows) * n_chunks
    return counts, counts + _long(n_rows), labels_of + n_cells * LIKELY


@triton.jit
def computable(given):
    """Numbers of less than 4 bytes as float32, others as they are; NaN of 2 bytes can't be told everywhere."""
    if given.dtype.primitive_bitwidth < 32:
        given = given.to(tl.float32)
    return given


@triton.jit
def _long(number):
    return tl.program_id(0).to(tl.int64) * 0 + number
