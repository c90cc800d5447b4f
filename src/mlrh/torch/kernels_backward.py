"""Triton kernel of the backward pass: the gradient of each score, from what the forward pass kept of its row."""

import triton
import triton.language as tl

from mlrh.torch.kernels_chunks import exp, in_counts, in_labels, in_numbers


@triton.jit
def gradient(
    scores,
    targets,
    grad,
    numbers,
    counts,
    labels_of,
    result,
    n_rows,
    n_labels,
    n_chunks,
    stride,
    n_blocks,
    n_indices,
    grad_stride,
    n_averaged,
    MAX_LABELS: tl.constexpr,
    LIKELY: tl.constexpr,
    LIKELY_LANES: tl.constexpr,
    TARGET_LANES: tl.constexpr,
    ROWS: tl.constexpr,
    LABELS: tl.constexpr,
    DENSE: tl.constexpr,
    INDICES: tl.constexpr,
):
    """One program: a block of LABELS labels of one chunk in ROWS rows, x (c_0 - c_1 x + ...) for every label.

    Labels with x > 1 and those of the target set, a handful, are written again behind a barrier. Blocks run from the
    last row to the first, because the last scores that the forward pass read are still in the cache.
    """
    tilt, coefficients, likely_marginals = in_numbers(numbers, n_rows, MAX_LABELS)
    _, sizes, likely_counts, target_counts = in_counts(counts, n_rows, n_chunks)
    likely_labels, target_labels = in_labels(labels_of, n_rows, n_chunks, LIKELY)
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    chunk = (program // n_blocks) % n_chunks
    rows = (program // n_blocks // n_chunks) * ROWS + tl.arange(0, ROWS)
    known = rows < n_rows
    rows = tl.where(known, rows, 0).to(tl.int64)
    first = chunk * stride + (program % n_blocks) * LABELS
    stop = tl.minimum(tl.minimum(first + LABELS, chunk * stride + stride), n_labels)
    labels = first + tl.arange(0, LABELS)
    offsets = (rows * n_labels)[:, None] + labels[None, :]
    inside = known[:, None] & (labels < stop)[None, :]
    own_tilt = tl.load(tilt + rows)
    factor = tl.load(grad + rows * grad_stride).to(own_tilt.dtype) / n_averaged
    tile = tl.load(scores + offsets, mask=inside, other=0, eviction_policy="evict_first").to(own_tilt.dtype)
    value = _marginal(tile + own_tilt[:, None], coefficients, rows, MAX_LABELS)
    if DENSE:
        crowded = known & (tl.load(sizes + rows) > MAX_LABELS)
        if tl.max(crowded.to(tl.int32), axis=0) > 0:
            value -= (tl.load(targets + offsets, mask=inside & crowded[:, None], other=0) != 0).to(value.dtype)
    tl.store(result + offsets, factor[:, None] * value, mask=inside)
    tl.debug_barrier()
    cells = rows * n_chunks + chunk
    if DENSE or INDICES:
        _rewrite_targets(
            scores, targets, own_tilt, coefficients, sizes, target_counts, target_labels, result, factor, rows, known,
            cells, first, stop, chunk * stride, n_labels, n_indices, MAX_LABELS, TARGET_LANES, DENSE,
        )  # fmt: skip
    _rewrite_likely(
        targets, likely_counts, likely_labels, likely_marginals, result, factor, rows, known, cells, first, stop,
        chunk * stride, n_labels, n_indices, LIKELY, LIKELY_LANES, TARGET_LANES, DENSE, INDICES,
    )  # fmt: skip


@triton.jit
def _marginal(z, coefficients, rows, MAX_LABELS: tl.constexpr):
    """Marginals of labels with z = log x <= 0, by Horner's rule; rows of coefficients go with the first axis of z."""
    odds = exp(tl.minimum(z, 0.0))
    value = tl.load(coefficients + rows * MAX_LABELS + (MAX_LABELS - 1))[:, None] + odds * 0
    for i in tl.static_range(1, MAX_LABELS):
        value = tl.load(coefficients + rows * MAX_LABELS + (MAX_LABELS - 1 - i))[:, None] - odds * value
    return odds * value


@triton.jit
def _rewrite_targets(
    scores, targets, tilt, coefficients, sizes, target_counts, target_labels, result, factor, rows, known, cells, first,
    stop, origin, n_labels, n_indices, MAX_LABELS: tl.constexpr, LANES: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Write marginal - 1 at the labels of the target set that lie in this block and aren't likely."""
    slots = tl.arange(0, LANES)[None, :]
    if DENSE:
        given = (slots < tl.load(target_counts + cells)[:, None]) & (tl.load(sizes + rows) <= MAX_LABELS)[:, None]
        given = given & (slots < MAX_LABELS)
        label = origin + tl.load(target_labels + (cells * MAX_LABELS)[:, None] + slots, mask=given, other=0)
    else:
        given = (slots < n_indices) & known[:, None]
        label = tl.load(targets + (rows * n_indices)[:, None] + slots, mask=given, other=-1)
    given = given & known[:, None] & (label >= first) & (label < stop)
    where = (rows * n_labels)[:, None] + label
    z = tl.load(scores + where, mask=given, other=0).to(tilt.dtype) + tilt[:, None]
    value = factor[:, None] * (_marginal(z, coefficients, rows, MAX_LABELS) - 1.0)
    tl.store(result + where, value, mask=given & (z <= 0))


@triton.jit
def _rewrite_likely(
    targets, likely_counts, likely_labels, likely_marginals, result, factor, rows, known, cells, first, stop, origin,
    n_labels, n_indices, LIKELY: tl.constexpr, LANES: tl.constexpr, TARGET_LANES: tl.constexpr, DENSE: tl.constexpr,
    INDICES: tl.constexpr,
):  # fmt: skip
    """Write the saved marginals, less 1 for a label of the target set."""
    slots = tl.arange(0, LANES)[None, :]
    given = known[:, None] & (slots < tl.load(likely_counts + cells)[:, None]) & (slots < LIKELY)
    label = origin + tl.load(likely_labels + (cells * LIKELY)[:, None] + slots, mask=given, other=0)
    given = given & (label >= first) & (label < stop)
    where = (rows * n_labels)[:, None] + label
    value = tl.load(likely_marginals + (cells * LIKELY)[:, None] + slots, mask=given, other=0)
    if DENSE:
        value -= (tl.load(targets + where, mask=given, other=0) != 0).to(value.dtype)
    if INDICES:
        others = tl.arange(0, TARGET_LANES)[None, :]
        target = tl.load(targets + (rows * n_indices)[:, None] + others, mask=others < n_indices, other=-1)
        value -= tl.max((label[:, :, None] == target[:, None, :]).to(value.dtype), axis=2)
    tl.store(result + where, factor[:, None] * value, mask=given)
