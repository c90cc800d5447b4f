"""Counters by which the programs of one launch find out who of them is the last; they need no initial value.

A launch that set counters to zero would take longer than the counting, and counters kept from call to call would have
to be shared out among threads, streams and graphs. So they lie in memory of the call itself, whatever that held: a word
counts only if it begins with TAG. One program opens a counter when it starts, but others need not wait for that: who
finds no TAG opens it as well. The last to come leaves 0, so that a replayed graph finds no TAG of its own. Memory that
isn't a counter begins with these 40 bits only by chance.
"""

import triton
import triton.language as tl

COUNTS = tl.constexpr(1 << 24)
TAG = tl.constexpr(0x5A3D96E1C7)


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
