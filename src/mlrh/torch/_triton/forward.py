"""Triton kernel of the forward pass, one launch: chunks of rows are read, and rows are finished where all were.

A group of GROUP_ROWS rows, tiles that lie tile_step apart, is read by ARRIVALS programs, TILES tiles each. The one that
ends last finishes the rows, while others still read; the one that finishes the last group adds the losses up.

Who is last is found out by counters that need no initial value: a launch that set them to zero would take longer than
the counting, and counters kept from call to call would have to be shared out among threads, streams and graphs. So they
lie in memory of the call itself, whatever that held: a word counts only if it begins with TAG. One program opens a
counter when it starts, but others need not wait for that: who finds no TAG opens it as well. The last to come leaves 0,
so that a replayed graph finds no TAG of its own.
"""

import triton
import triton.language as tl

from mlrh.torch._triton.chunks import moments
from mlrh.torch._triton.layout import in_counters
from mlrh.torch._triton.rows import finish
from mlrh.torch._triton.tilt import slope

COUNTS = tl.constexpr(1 << 24)  # a word counts in its last 24 bits
TAG = tl.constexpr(0x5A3D96E1C7)  # 40 bits that memory which isn't a counter begins with only by chance


# Numbers that say nothing of how memory is to be read: another batch size or min_labels is no other kernel.
FREE = ["n_rows", "n_groups", "start", "group_step", "tile_step", "n_indices", "min_labels", "n_averaged"]


@triton.jit(do_not_specialize=FREE)
def forward(
    scores, targets, log_weights, scratch, loss, total_loss, numbers, values, pmf, counts, labels_of, n_rows, n_labels,
    n_chunks, stride, n_groups, start, group_step, tile_step, n_indices, min_labels, log_bound, n_averaged,
    MAX_LABELS: tl.constexpr, HEAVY: tl.constexpr, LIKELY: tl.constexpr, TILE_ROWS: tl.constexpr, LABELS: tl.constexpr,
    TILES: tl.constexpr, ARRIVALS: tl.constexpr, GROUP_ROWS: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr,
    LANES: tl.constexpr, DENSE: tl.constexpr, PARTIAL: tl.constexpr, INDICES: tl.constexpr, FULL: tl.constexpr,
    REDUCED: tl.constexpr,
):  # fmt: skip
    """One program: TILES tiles of TILE_ROWS rows and one chunk, and perhaps the rows of its group, ROWS at once.

    If REDUCED, groups leave the sums of their losses in `loss`, which become one number.
    """
    group, part = tl.program_id(0) // ARRIVALS, tl.program_id(0) % ARRIVALS
    if REDUCED:  # noqa: SIM102, a constant
        if tl.program_id(0) == 0:
            open_counter(in_counters(scratch))
    if ARRIVALS > 1:  # noqa: SIM102, a constant
        if part == 0:
            open_counter(in_counters(scratch) + 1 + group)
    origin = slope(log_weights, min_labels, MAX_LABELS)
    for i in range(TILES):
        tile = group * group_step + (part // n_chunks * TILES + i) * tile_step
        again = 1
        for reading in range(2 if PARTIAL else 1):
            if again > 0:
                again = moments(
                    scores, targets, scratch, counts, labels_of, tile * TILE_ROWS, part % n_chunks, reading, origin,
                    n_rows, n_labels, n_chunks, stride, start, min_labels, log_bound, MAX_LABELS, HEAVY, LIKELY,
                    TILE_ROWS, LABELS, DENSE, PARTIAL, FULL,
                )  # fmt: skip
    ends = True
    if ARRIVALS > 1:
        ends = is_last(in_counters(scratch) + 1 + group, ARRIVALS)
    else:
        tl.debug_barrier()
    if ends:
        total = tl.zeros((), tl.float64)
        for first in range(0, GROUP_ROWS, ROWS):
            total += finish(
                scores, targets, log_weights, scratch, loss, numbers, values, pmf, counts, labels_of, first, n_rows,
                n_labels, n_chunks, stride, n_groups, start, group_step, tile_step, n_indices, min_labels, log_bound,
                MAX_LABELS, HEAVY, LIKELY, TILE_ROWS, ARRIVALS, ROWS, S, LANES, DENSE, PARTIAL, INDICES, REDUCED,
            )  # fmt: skip
        if REDUCED:
            tl.store(loss + group, total)
            if is_last(in_counters(scratch), n_groups):
                _store_total(loss, total_loss, n_groups, n_averaged)


@triton.jit
def _store_total(loss, total_loss, n_groups, n_averaged):
    """Write the sum of what all groups have left over n_averaged, added in the same order in every run."""
    BLOCK: tl.constexpr = 256
    sums = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_groups, BLOCK):
        groups = start + tl.arange(0, BLOCK)
        sums += tl.load(loss + groups, mask=groups < n_groups, other=0, cache_modifier=".cg").to(tl.float64)
    tl.store(total_loss, tl.sum(sums, axis=0) / n_averaged)


@triton.jit
def open_counter(counter):
    """Make the count 0, unless the counter is open."""
    empty = tl.zeros((), tl.int64) + TAG * COUNTS
    expected = empty * 0  # as the last call left it, if the memory was its
    found = tl.atomic_cas(counter, expected, empty, sem="relaxed", scope="gpu")
    while (found != expected) & (found // COUNTS != TAG):
        expected = found
        found = tl.atomic_cas(counter, expected, empty, sem="relaxed", scope="gpu")


@triton.jit
def is_last(counter, n_arrivals):
    """Whether this program is the last of n_arrivals; then it sees what the others wrote before they came here."""
    tl.debug_barrier()
    found = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    while found // COUNTS != TAG:  # what was added to a counter that isn't open is lost
        open_counter(counter)
        found = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    is_it = found % COUNTS == n_arrivals - 1
    if is_it:
        tl.atomic_xchg(counter, 0, sem="relaxed", scope="gpu")
    return is_it
