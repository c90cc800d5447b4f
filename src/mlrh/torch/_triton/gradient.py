"""Triton kernel of the backward pass: the gradient of each score, from what the forward pass kept of its row."""

import triton
import triton.language as tl

from mlrh.torch._triton.layout import computable, in_likely, in_numbers, in_targets
from mlrh.torch._triton.tilt import exp


@triton.jit(do_not_specialize=["n_rows", "n_indices", "n_averaged"])
def gradient(
    scores, targets, grad, numbers, values, counts, labels_of, result, n_rows, n_labels, n_chunks, stride, n_blocks,
    n_indices, grad_stride, n_averaged, MAX_LABELS: tl.constexpr, LIKELY: tl.constexpr, LIKELY_LANES: tl.constexpr,
    TARGET_LANES: tl.constexpr, ROWS: tl.constexpr, LABELS: tl.constexpr, DENSE: tl.constexpr, PARTIAL: tl.constexpr,
    INDICES: tl.constexpr,
):  # fmt: skip
    """One program: a block of LABELS labels of one chunk in ROWS rows, x (c_0 - c_1 x + ...) for every label.

    Labels with x > 1 and those of the target set, a handful, are written again behind a barrier. Blocks run from the
    last row to the first, because the last scores that the forward pass read are still in the cache.
    """
    tilt, coefficients = in_numbers(numbers, 0, n_rows, MAX_LABELS)
    sizes, target_counts, target_labels = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    chunk = (program // n_blocks) % n_chunks
    rows = (program // n_blocks // n_chunks) * ROWS + tl.arange(0, ROWS)
    known = rows < n_rows
    rows = tl.where(known, rows, 0).to(tl.int64)
    first = chunk * stride + (program % n_blocks) * LABELS
    stop = tl.minimum(tl.minimum(first + LABELS, chunk * stride + stride), n_labels)
    own_tilt = tl.load(tilt + rows)
    factor = tl.load(grad + rows * grad_stride).to(own_tilt.dtype) / n_averaged
    written, n_read = known, 0
    if DENSE:
        is_read = known & (tl.load(sizes + rows) > MAX_LABELS)
        written, n_read = known & (is_read == 0), tl.max(is_read.to(tl.int32), axis=0)
        if n_read > 0:
            _write_with_targets(
                scores, targets, numbers, result, factor, rows, is_read, first, stop, n_rows, n_labels, MAX_LABELS,
                LABELS, PARTIAL,
            )  # fmt: skip
    labels = first + tl.arange(0, LABELS)
    offsets = (rows * n_labels)[:, None] + labels[None, :]
    inside = written[:, None] & (labels < stop)[None, :]
    tile = tl.load(scores + offsets, mask=inside, other=0, eviction_policy="evict_first").to(own_tilt.dtype)
    value = _marginal(tile + own_tilt[:, None], coefficients, rows, known, MAX_LABELS)
    tl.store(result + offsets, factor[:, None] * value, mask=inside)
    tl.debug_barrier()
    cells = rows * n_chunks + chunk
    if DENSE or INDICES:
        _rewrite_targets(
            scores, targets, own_tilt, coefficients, sizes, target_counts, target_labels, result, factor, rows, known,
            cells, first, stop, chunk * stride, n_labels, n_indices, MAX_LABELS, LIKELY if PARTIAL else MAX_LABELS,
            TARGET_LANES, DENSE,
        )  # fmt: skip
    _rewrite_likely(
        values, counts, labels_of, 0, result, factor, rows, known, cells, first, stop, chunk * stride, n_rows, n_labels,
        n_chunks, LIKELY, LIKELY_LANES,
    )  # fmt: skip
    if PARTIAL:  # noqa: SIM102, a constant: otherwise what follows is not compiled
        if n_read > 0:
            tl.debug_barrier()  # these labels may be among those just written
            _rewrite_likely(
                values, counts, labels_of, 1, result, factor, rows, is_read, cells, first, stop, chunk * stride, n_rows,
                n_labels, n_chunks, LIKELY, LIKELY_LANES,
            )  # fmt: skip


@triton.jit
def _write_with_targets(
    scores, targets, numbers, result, factor, rows, is_read, first, stop, n_rows, n_labels, MAX_LABELS: tl.constexpr,
    LABELS: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Write the gradient of rows whose targets are read again: less 1, 0, or the marginal among the free labels.

    In small pieces, so that the registers they take don't slow down the other rows.
    """
    PIECE: tl.constexpr = LABELS // 4 if LABELS >= 512 else LABELS
    tilt, coefficients = in_numbers(numbers, 0, n_rows, MAX_LABELS)
    own_tilt = tl.load(tilt + rows)
    for start in range(first, stop, PIECE):
        labels = start + tl.arange(0, PIECE)
        offsets = (rows * n_labels)[:, None] + labels[None, :]
        inside = is_read[:, None] & (labels < stop)[None, :]
        tile = tl.load(scores + offsets, mask=inside, other=0).to(own_tilt.dtype)
        value = _marginal(tile + own_tilt[:, None], coefficients, rows, is_read, MAX_LABELS)
        given = computable(tl.load(targets + offsets, mask=inside, other=0))
        target = (given != 0).to(own_tilt.dtype)
        if PARTIAL:
            free_tilt, free_coefficients = in_numbers(numbers, 1, n_rows, MAX_LABELS)
            z = tile + tl.load(free_tilt + rows, mask=is_read, other=0)[:, None]
            of_free = _marginal(z, free_coefficients, rows, is_read, MAX_LABELS)
            target = tl.where(given == given, target, of_free)
        tl.store(result + offsets, factor[:, None] * (value - target), mask=inside)


@triton.jit
def _marginal(z, coefficients, rows, known, MAX_LABELS: tl.constexpr):
    """Marginals of labels with z = log x <= 0, by Horner's rule; rows of coefficients go with the first axis of z."""
    odds = exp(tl.minimum(z, 0.0))
    value = tl.load(coefficients + rows * MAX_LABELS + (MAX_LABELS - 1), mask=known, other=0)[:, None] + odds * 0
    # Three steps at once: all of M=4, and for large sets what a step has to wait for without much to compile.
    for i in tl.range(1, MAX_LABELS, loop_unroll_factor=3):
        following = tl.load(coefficients + rows * MAX_LABELS + (MAX_LABELS - 1 - i), mask=known, other=0)
        value = following[:, None] - odds * value
    return odds * value


@triton.jit
def _rewrite_targets(
    scores, targets, tilt, coefficients, sizes, target_counts, target_labels, result, factor, rows, known, cells, first,
    stop, origin, n_labels, n_indices, MAX_LABELS: tl.constexpr, LENGTH: tl.constexpr, LANES: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Write marginal - 1 at the labels of the target set that lie in this block and aren't likely."""
    slots = tl.arange(0, LANES)[None, :]
    if DENSE:
        given = (slots < tl.load(target_counts + cells)[:, None]) & (tl.load(sizes + rows) <= MAX_LABELS)[:, None]
        given = given & (slots < MAX_LABELS)
        label = origin + tl.load(target_labels + (cells * LENGTH)[:, None] + slots, mask=given, other=0)
    else:
        given = (slots < n_indices) & known[:, None]
        label = tl.load(targets + (rows * n_indices)[:, None] + slots, mask=given, other=-1)
    given = given & known[:, None] & (label >= first) & (label < stop)
    where = (rows * n_labels)[:, None] + label
    z = tl.load(scores + where, mask=given, other=0).to(tilt.dtype) + tilt[:, None]
    value = factor[:, None] * (_marginal(z, coefficients, rows, known, MAX_LABELS) - 1.0)
    tl.store(result + where, value, mask=given & (z <= 0))


@triton.jit
def _rewrite_likely(
    values, counts, labels_of, part, result, factor, rows, known, cells, first, stop, origin, n_rows, n_labels,
    n_chunks, LIKELY: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write the listed values at the likely labels that lie in this block."""
    values, counts, labels_of = in_likely(values, counts, labels_of, part, n_rows, n_chunks, LIKELY)
    slots = tl.arange(0, LANES)[None, :]
    count = tl.load(counts + cells, mask=known, other=0)
    given = (slots < count[:, None]) & (slots < LIKELY)
    label = origin + tl.load(labels_of + (cells * LIKELY)[:, None] + slots, mask=given, other=0)
    given = given & (label >= first) & (label < stop)
    value = tl.load(values + (cells * LIKELY)[:, None] + slots, mask=given, other=0).to(factor.dtype)
    tl.store(result + (rows * n_labels)[:, None] + label, factor[:, None] * value, mask=given)
