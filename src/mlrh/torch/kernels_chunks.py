"""Triton kernel of the first half of the forward pass: power sums and lists of heavy labels, for each chunk of a row.

A label with score s has odds x = exp(s + tilt), and the sets of j labels weigh exp(-tilt j) e_j(x). Light labels (x up
to a bound) enter through their power sums, sum x^i, which `kernels_rows` turns into e_j; the few heavy ones are listed.
`kernels` launches the kernels and says what each array is.
"""

import triton
import triton.language as tl


@triton.jit
def moments(
    scores,
    targets,
    log_weights,
    scratch,
    counts,
    labels_of,
    n_rows,
    n_labels,
    n_chunks,
    stride,
    min_labels,
    log_bound,
    MAX_LABELS: tl.constexpr,
    HEAVY: tl.constexpr,
    LIKELY: tl.constexpr,
    ROWS: tl.constexpr,
    LABELS: tl.constexpr,
    DENSE: tl.constexpr,
    FULL: tl.constexpr,
):
    """One program: chunk of `stride` labels in ROWS rows, read once into registers."""
    tilts, sums, heavy_counts, heavy_scores, heavy_labels = in_scratch(scratch, n_rows, n_chunks, MAX_LABELS, HEAVY)
    n_done, _, _, target_counts = in_counts(counts, n_rows, n_chunks)
    if tl.program_id(0) == 0:
        tl.store(n_done, 0)
    _, target_labels = in_labels(labels_of, n_rows, n_chunks, LIKELY)
    chunk = tl.program_id(0) % n_chunks
    rows = (tl.program_id(0) // n_chunks) * ROWS + tl.arange(0, ROWS)
    labels = tl.arange(0, LABELS)
    cells = rows.to(tl.int64) * n_chunks + chunk
    known = rows < n_rows
    there = (labels < stride) & (chunk * stride + labels < n_labels)
    if FULL:
        there = labels >= 0
    offsets = (rows.to(tl.int64) * n_labels + chunk * stride)[:, None] + labels[None, :]
    inside = known[:, None] & there[None, :]
    if DENSE:
        present = tl.load(targets + offsets, mask=inside, other=0, eviction_policy="evict_first") != 0
        _list_targets(present, cells, known, target_counts, target_labels, MAX_LABELS, ROWS, LABELS)
    tile = tl.load(scores + offsets, mask=inside, other=0, eviction_policy="evict_last").to(sums.dtype.element_ty)
    if not FULL:
        tile = tl.where(there[None, :], tile, float("-inf"))
    n_there = tl.minimum(stride, n_labels - chunk * stride)
    tilt, top = _chunk_tilt(tile, n_there, slope(log_weights, min_labels, MAX_LABELS), min_labels, MAX_LABELS)
    # A chunk of so few labels lists them all and leaves the tilt to the others.
    idle = (n_chunks > 1) & (n_there <= min_labels)
    tl.store(tilts + cells, tl.where(idle, float("inf"), tilt), mask=known)
    count = (cells * 0).to(tl.int32)
    if tl.max(top + tilt, axis=0) > log_bound:
        heavy = tile + tilt[:, None] > log_bound
        row_scores = scores + rows.to(tl.int64) * n_labels + chunk * stride
        count = _list_heavy(heavy, row_scores, cells, known, heavy_scores, heavy_labels, HEAVY, ROWS, LABELS)
        tile = tl.where(heavy, float("-inf"), tile)
    tl.store(heavy_counts + cells, count.to(heavy_counts.dtype.element_ty), mask=known)
    _store_sums(exp(tile + tilt[:, None]), sums + cells * MAX_LABELS, known, MAX_LABELS)


@triton.jit
def _store_sums(odds, sums, known, MAX_LABELS: tl.constexpr):
    """Write the sums of the first MAX_LABELS powers, each the product of two powers of half the height."""
    tl.store(sums, tl.sum(odds, axis=1), mask=known)
    half = odds
    for i in tl.static_range(1, MAX_LABELS // 2 + 1):
        tl.store(sums + (2 * i - 1), tl.sum(half * half, axis=1), mask=known)
        if 2 * i < MAX_LABELS:
            following = half * odds
            tl.store(sums + 2 * i, tl.sum(half * following, axis=1), mask=known)
            half = following


@triton.jit
def _list_targets(
    present, cells, known, target_counts, target_labels, MAX_LABELS: tl.constexpr, ROWS: tl.constexpr,
    LABELS: tl.constexpr,
):  # fmt: skip
    """Write the first MAX_LABELS labels of each row's set; the count stops at MAX_LABELS + 1, too many."""
    words = _packed(present, ROWS, LABELS)
    label = _first_label(words, LABELS)
    count = label * 0
    slot = 0
    while (tl.min(label, axis=0) < LABELS) & (slot <= MAX_LABELS):
        found = label < LABELS
        where = target_labels + cells * MAX_LABELS + count
        tl.store(where, label.to(tl.int16), mask=known & found & (count < MAX_LABELS))
        count += found.to(tl.int32)
        words, label = _next_label(words, label, LABELS)
        slot += 1
    tl.store(target_counts + cells, count, mask=known)


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
    BITS: tl.constexpr = min(LABELS, 16)
    bits = tl.reshape(present.to(tl.int32), (ROWS, LABELS // BITS, BITS)) << tl.arange(0, BITS)[None, None, :]
    return tl.sum(bits, axis=2)


@triton.jit
def _next_label(words, label, LABELS: tl.constexpr):
    """Words without their lowest label, and the label that is lowest then."""
    BITS: tl.constexpr = LABELS // words.shape[1]
    position = tl.arange(0, words.shape[1])[None, :]
    words = tl.where(position == (label // BITS)[:, None], words & (words - 1), words)
    return words, _first_label(words, LABELS)


@triton.jit
def _first_label(words, LABELS: tl.constexpr):
    """Lowest label of each row, LABELS where there is none; the place of a bit is the exponent of its word's float."""
    BITS: tl.constexpr = LABELS // words.shape[1]
    position = tl.arange(0, words.shape[1])[None, :]
    place = ((words & -words).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    return tl.min(tl.where(words == 0, LABELS, position * BITS + place), axis=1)


@triton.jit
def slope(log_weights, min_labels, MAX_LABELS: tl.constexpr):
    """Slope of the line through the log-weights of the smallest and the largest size: the tilt they stand for."""
    first = tl.load(log_weights + min_labels)
    last = tl.load(log_weights + MAX_LABELS)
    return (last - first) / tl.maximum(MAX_LABELS - min_labels, 1)


@triton.jit
def _chunk_tilt(tile, n_there, origin, min_labels, MAX_LABELS: tl.constexpr):
    """Tilts (ROWS,) that bring the expected number of labels near the sizes that matter, and the largest scores.

    A tilt is `origin` where that number, sum sigmoid(s + tilt), lies between min_labels and MAX_LABELS there, else
    within 1/2 of the end that is violated. Where all odds are light at sum x = MAX_LABELS, that tilt does as well and
    needs no further pass.
    """
    origin = origin.to(tile.dtype)
    top = tl.max(tile, axis=1)
    log_sum = top + tl.log(tl.sum(exp(tile - top[:, None]), axis=1))
    tilt = tl.log(log_sum * 0 + MAX_LABELS) - log_sum
    easy = (tilt <= origin) & (top + tilt <= -0.6931472)
    if tl.min(easy.to(tl.int32), axis=0) == 0:
        number = _expected(tile, log_sum * 0 + origin)
        goal = tl.where(number > MAX_LABELS, MAX_LABELS, tl.minimum(tl.maximum(min_labels, 1), n_there)).to(tile.dtype)
        fits = (number >= min_labels - 0.5) & (number <= MAX_LABELS + 0.5)
        near = (number > 0.5 * goal) & (number < 2 * goal)
        start = tl.where(fits | near, origin, tl.log(goal) - log_sum)
        active = ~(easy | fits)
        if tl.max((active & ~near).to(tl.int32), axis=0) > 0:
            number = _expected(tile, start)
        solved = _solve(tile, start, number, goal, active)
        tilt = tl.where(easy, tilt, solved)
    return tilt, top


@triton.jit
def _solve(tile, tilt, number, goal, active):
    """Tilts with sum sigmoid(s + tilt) within 1/2 of goal, by doubling steps and then bisection, for active rows."""
    active = active & (tl.abs(number - goal) > 0.5)
    low, high, step = tilt * 0 - float("inf"), tilt * 0 + float("inf"), tilt * 0 + 0.25
    while tl.max(active.to(tl.int32), axis=0) > 0:
        tilt, low, high, step, active = next_tilt(tilt, number, goal, low, high, step, active)
        number = _expected(tile, tilt)
        active = active & (tl.abs(number - goal) > 0.5)
    return tilt


@triton.jit
def next_tilt(tilt, number, goal, low, high, step, active):
    """The next tilt to try and its bracket; a row whose bracket has no float between ends at the lower bound.

    Steps are doubled because the number is a staircase in the tilt, with steps as wide as the gaps between scores.
    """
    short = number < goal
    low = tl.where(active & short, tilt, low)
    high = tl.where(active & (number > goal), tilt, high)
    growth = tl.where(short, tl.log(goal / tl.maximum(number, 1e-30)), 0.0)
    step = tl.where(active, tl.maximum(2 * step, growth), step)
    outside = tl.where(high == float("inf"), tilt + step, tilt - step)
    closed = (low > -float("inf")) & (high < float("inf"))
    following = tl.where(closed, 0.5 * tl.where(closed, low, 0.0) + 0.5 * tl.where(closed, high, 0.0), outside)
    stuck = (following == low) | (following == high)
    following = tl.where(stuck, low, following)
    return tl.where(active, following, tilt), low, high, step, active & ~stuck


@triton.jit
def _expected(tile, tilt):
    return tl.sum(sigmoid(tile + tilt[:, None]), axis=1)


@triton.jit
def sigmoid(z):
    small = exp(-tl.abs(z))
    return tl.where(z > 0, 1.0, small) / (1.0 + small)


@triton.jit
def exp(z):
    """tl.exp would spend three more instructions on results that are not normal numbers."""
    return tl.exp2(z * 1.4426950408889634)


@triton.jit
def in_scratch(scratch, n_rows, n_chunks, MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr):
    """Where tilts, sums, heavy_counts, heavy_scores and heavy_labels begin."""
    n_cells = _long(n_rows) * n_chunks
    sums = scratch + n_cells
    heavy_counts = sums + n_cells * MAX_LABELS
    heavy_scores = heavy_counts + n_cells
    return scratch, sums, heavy_counts, heavy_scores, heavy_scores + n_cells * HEAVY


@triton.jit
def in_numbers(numbers, n_rows, MAX_LABELS: tl.constexpr):
    """Where tilt, coefficients and likely_marginals begin."""
    coefficients = numbers + _long(n_rows)
    return numbers, coefficients, coefficients + _long(n_rows) * MAX_LABELS


@triton.jit
def in_counts(counts, n_rows, n_chunks):
    """Where n_done, sizes, likely_counts and target_counts begin."""
    sizes = counts + 4
    likely_counts = sizes + _long(n_rows)
    return counts, sizes, likely_counts, likely_counts + _long(n_rows) * n_chunks


@triton.jit
def in_labels(labels_of, n_rows, n_chunks, LIKELY: tl.constexpr):
    """Where likely_labels and target_labels begin."""
    return labels_of, labels_of + _long(n_rows) * n_chunks * LIKELY


@triton.jit
def _long(number):
    return tl.program_id(0).to(tl.int64) * 0 + number
