"""First half of the forward pass, on the GPU: power sums and lists of heavy labels, for each chunk of a row.

A label with score s has odds x = exp(s + tilt), and the sets of j labels weigh exp(-tilt j) e_j(x). Light labels (x up
to a bound) enter through their power sums, sum x^i, which `rows` turns into e_j; the few heavy ones are listed.
`plan` launches the kernels and says what each array is.
"""

import triton
import triton.language as tl

from mlrh.torch._triton.layout import UNKNOWN, computable, in_scratch, in_targets
from mlrh.torch._triton.tilt import NO_LABEL, chunk_tilt, easy_tilt, exp

WITHOUT = tl.constexpr(1 << 16)  # above all words of 16 labels


@triton.jit(noinline=True)
def moments(
    scores, targets, scratch, counts, labels_of, first_row, chunk, part, origin, n_rows, n_labels, n_chunks, stride,
    start, min_labels, log_bound, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr,
    ROWS: tl.constexpr, LABELS: tl.constexpr, DENSE: tl.constexpr, PARTIAL: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Write tilts, sums and lists of one chunk of `stride` labels in ROWS rows, which is read once into registers.

    Returns whether the chunk is to be read once more, for part 1: if PARTIAL, NaN in dense targets are labels that are
    not known, and part 1 is of those alone. The part is no constant, so that both are one piece of code.
    """
    _, target_counts, target_labels = in_targets(counts, labels_of, n_rows, n_chunks, LIKELY)
    rows, labels = first_row + tl.arange(0, ROWS), tl.arange(0, LABELS)
    cells = rows.to(tl.int64) * n_chunks + chunk
    known = rows < n_rows
    there = (labels < stride) & (chunk * stride + labels < n_labels)
    if FULL:
        there = labels >= 0
    starts = tl.minimum(rows, n_rows - 1).to(tl.int64) * n_labels + chunk * stride
    offsets = starts[:, None] + labels[None, :]
    # With a mask each load would be waited for before the next one starts.
    inside = None if FULL else there[None, :] & (rows >= 0)[:, None]
    nothing = None if FULL else 0
    read = tl.load(scores + offsets, mask=inside, other=nothing, eviction_policy="evict_last")
    if DENSE:
        given = tl.load(targets + offsets, mask=inside, other=nothing, eviction_policy="evict_first")
    tile = read.to(scratch.dtype.element_ty)
    if not FULL:
        tile = tl.where(there[None, :], tile, float("-inf"))
    n_there = rows * 0 + tl.minimum(stride, n_labels - chunk * stride)
    lowest, highest = rows * 0 + min_labels, rows.to(tl.float32) * 0 + MAX_LABELS
    unknown = part * 0
    if DENSE:
        if part == 0:
            unknown = _list_targets(
                given, cells, known, target_counts, target_labels, MAX_LABELS, LIKELY, ROWS, LABELS, PARTIAL
            )
        elif PARTIAL:
            tl.debug_barrier()  # counts of part 0 are read by other threads than wrote them
            free = computable(given)
            free = free != free
            n_there = tl.sum(free.to(tl.int32), axis=1)
            tile = tl.where(free, tile, tl.where(n_there == 0, 0.0, float("-inf"))[:, None])
            count = tl.load(target_counts + cells, mask=known, other=0).to(tl.int32) % UNKNOWN
            lowest = tl.maximum(min_labels - count, 0)
            highest = tl.maximum((MAX_LABELS - count).to(tl.float32), NO_LABEL)
    _store_moments(
        tile, n_there, origin, lowest, highest, scores + starts, cells, known, log_bound, scratch, part, n_rows,
        n_chunks, start, MAX_LABELS, HEAVY, LIKELY, ROWS, LABELS,
    )  # fmt: skip
    return unknown


@triton.jit
def _store_moments(
    tile, n_there, origin, lowest, highest, row_scores, cells, known, log_bound, scratch, part, n_rows, n_chunks,
    start, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr, ROWS: tl.constexpr,
    LABELS: tl.constexpr,
):  # fmt: skip
    """Write tilts, power sums and heavy labels of n_there labels, of which `lowest` to `highest` are wanted.

    Where no label is heavy, one exponential of a label serves the choice of the tilt and the sums. That is the rule for
    small sets; for others the registers that it takes cost more.
    """
    tilts, sums, heavy_counts, heavy_scores, heavy_labels, _ = in_scratch(
        scratch, part, n_rows, n_chunks, start, MAX_LABELS, HEAVY, LIKELY
    )
    sums += cells * MAX_LABELS
    top = tl.max(tile, axis=1)
    none = top == float("-inf")  # no label of the chunk is possible: as if it had none
    odds = exp(tile - tl.where(none, 0.0, top)[:, None])
    log_sum = tl.where(none, 0.0, top + tl.log(tl.sum(odds, axis=1)))
    tilt, easy = easy_tilt(top, log_sum, origin.to(tile.dtype), highest)
    easy = easy | none
    count = (cells * 0).to(tl.int32)
    all_light = tl.min((easy & (top + tilt <= log_bound)).to(tl.int32), axis=0)
    if MAX_LABELS > 8:
        all_light = 0
    if all_light > 0:
        unit = exp(top + tilt)
    else:
        unit = top * 0 + 1
        tilt = chunk_tilt(tile, log_sum, tilt, easy, tl.maximum(n_there, 1), origin, lowest, highest)
        if tl.max(top + tilt, axis=0) > log_bound:
            heavy = tile + tilt[:, None] > log_bound
            count = _list_heavy(heavy, row_scores, cells, known, heavy_scores, heavy_labels, HEAVY, ROWS, LABELS)
            tile = tl.where(heavy, float("-inf"), tile)
        odds = exp(tile + tilt[:, None])
    _store_sums(odds, unit, sums, known, MAX_LABELS)
    # A chunk of so few labels lists them all and leaves the tilt to the others.
    idle = none | (n_there == 0) | ((n_chunks > 1) & (n_there <= lowest))
    # A score of NaN or inf makes the sum of odds NaN; a tilt of NaN tells that to `_sum_over_sets`.
    tilt = tl.where(log_sum == log_sum, tl.where(idle, float("inf"), tilt), float("nan"))
    tl.store(tilts + cells, tilt, mask=known)
    tl.store(heavy_counts + cells, tl.where(n_there == 0, 0, count).to(heavy_counts.dtype.element_ty), mask=known)


@triton.jit
def _store_sums(odds, unit, sums, known, MAX_LABELS: tl.constexpr):
    """Write the sums of the first MAX_LABELS powers of unit * odds, each the product of powers of half the height.

    Four sums at once, so that one needn't wait for the other; all in one piece would take long to compile for large
    sets.
    """
    below, half, scale = odds * 0 + 1, odds, unit
    for i in tl.range(1, (MAX_LABELS + 1) // 2 + 1, loop_unroll_factor=2):
        tl.store(sums + (2 * i - 2), scale * tl.sum(half * below, axis=1), mask=known)
        scale = scale * unit
        tl.store(sums + (2 * i - 1), scale * tl.sum(half * half, axis=1), mask=known & (2 * i <= MAX_LABELS))
        scale = scale * unit
        below, half = half, half * odds


@triton.jit
def _list_targets(
    given, cells, known, target_counts, target_labels, MAX_LABELS: tl.constexpr, LIKELY: tl.constexpr,
    ROWS: tl.constexpr, LABELS: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Write the first MAX_LABELS labels of each row's set and their number; returns 1 if any is unknown, else 0.

    The number stops at MAX_LABELS + 1, too many.
    """
    LENGTH: tl.constexpr = LIKELY if PARTIAL else MAX_LABELS
    if PARTIAL:
        given = computable(given)
        words = _packed_partly(given, ROWS, LABELS)
        unknown = words >= WITHOUT
        words = words % WITHOUT
        label = tl.min(tl.where(unknown, -1, _labels_of(words, LABELS)), axis=1)  # one search, which all warps wait for
        unknown = label < 0
        any_unknown = (tl.min(label, axis=0) < 0).to(tl.int32)
        if any_unknown > 0:
            label = _first_label(words, LABELS)
    else:
        words = _packed(given != 0, ROWS, LABELS)
        label, any_unknown = _first_label(words, LABELS), 0
    count = label * 0
    slot = 0
    while (tl.min(label, axis=0) < LABELS) & (slot <= MAX_LABELS):
        found = label < LABELS
        where = target_labels + cells * LENGTH + count
        tl.store(where, label.to(tl.int16), mask=known & found & (count < MAX_LABELS))
        count += found.to(tl.int32)
        words, label = _next_label(words, label, LABELS)
        slot += 1
    written = count
    if PARTIAL:
        written = tl.where(unknown, count + UNKNOWN, count)
    tl.store(target_counts + cells, written, mask=known)
    return any_unknown


@triton.jit
def _list_heavy(
    heavy, row_scores, cells, known, heavy_scores, heavy_labels, HEAVY: tl.constexpr, ROWS: tl.constexpr,
    LABELS: tl.constexpr,
):  # fmt: skip
    """Write the heavy labels and their scores; returns their number (ROWS,), which the tilt keeps below HEAVY."""
    words = _packed(heavy, ROWS, LABELS)
    label = _first_label(words, LABELS)
    count = label * 0
    slot = 0
    while (tl.min(label, axis=0) < LABELS) & (slot < HEAVY):
        found = known & (label < LABELS)
        tl.store(heavy_scores + cells * HEAVY + count, tl.load(row_scores + label, mask=found, other=0), mask=found)
        tl.store(heavy_labels + cells * HEAVY + count, label.to(heavy_labels.dtype.element_ty), mask=found)
        count += found.to(tl.int32)
        words, label = _next_label(words, label, LABELS)
        slot += 1
    return count


@triton.jit
def _packed(present, ROWS: tl.constexpr, LABELS: tl.constexpr):
    """Words of up to 16 labels, a bit for each, so that a search for the next label is over few numbers."""
    return tl.sum(_bits(present, ROWS, LABELS), axis=2)


@triton.jit
def _packed_partly(given, ROWS: tl.constexpr, LABELS: tl.constexpr):
    """The same of targets; a label that is unknown adds WITHOUT to its word."""
    bits = _bits(tl.abs(given) > 0, ROWS, LABELS)
    unknown = tl.reshape(given != given, bits.shape)
    return tl.sum(tl.where(unknown, WITHOUT, bits), axis=2)


@triton.jit
def _bits(present, ROWS: tl.constexpr, LABELS: tl.constexpr):
    BITS: tl.constexpr = LABELS if LABELS < 16 else 16
    return tl.reshape(present.to(tl.int32), (ROWS, LABELS // BITS, BITS)) << tl.arange(0, BITS)[None, None, :]


@triton.jit
def _next_label(words, label, LABELS: tl.constexpr):
    """Words without their lowest label, and the label that is lowest then."""
    BITS: tl.constexpr = LABELS // words.shape[1]
    position = tl.arange(0, words.shape[1])[None, :]
    words = tl.where(position == (label // BITS)[:, None], words & (words - 1), words)
    return words, _first_label(words, LABELS)


@triton.jit
def _first_label(words, LABELS: tl.constexpr):
    """Lowest label of each row, LABELS where there is none."""
    return tl.min(_labels_of(words, LABELS), axis=1)


@triton.jit
def _labels_of(words, LABELS: tl.constexpr):
    """Lowest label of each word, LABELS where there is none; the place of a bit is the exponent of its word's float."""
    BITS: tl.constexpr = LABELS // words.shape[1]
    position = tl.arange(0, words.shape[1])[None, :]
    place = ((words & -words).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    return tl.where(words == 0, LABELS, position * BITS + place)
