"""How long do log-partition and marginals of 20,000 rows take beside one pass of expit over the same scores?

Scores as in a fitted model (normal, deviation 2, so low that two labels are expected; then two labels of each row get
4) and as in one that starts (standard normal: more labels are expected than a set may have, rows must be tilted).
Ours uses all cores, as it does by default; expit has one. Checked against `reference` before it is timed.
"""

from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks import reference
from benchmarks.table import raced
from mlrh.spaces import CardinalitySpace

QUESTION = "inference"
TARGETS = {3: 3.0, 25: 6.0}
LABELS = (6, 22, 100, 1000)
N_ROWS = 20_000
EXPECTED = 2.0  # labels of a row of a fitted model
ACCURATE = 1e-10


def measure(repeats, context):
    """Yields a line for each number of labels, largest size and kind of scores; M = K where K is below 25."""
    for largest, target in TARGETS.items():
        for n_labels in (6, 100) if context.quick else LABELS:
            if n_labels <= largest and n_labels < LABELS[1]:
                continue  # six labels: M = K is only another way to say M = 3
            for kind in ("fitted", "start"):
                size = (500 if context.quick else N_ROWS, n_labels)
                yield line(size, min(largest, n_labels), kind, repeats, context, target=target)


def line(size, max_labels, kind, repeats, context, *, target):
    """The line of scores of a size and kind."""
    n_rows, n_labels = size
    scores, ones = scores_of(kind, size), np.ones(n_rows)
    space = CardinalitySpace(n_labels, 1, max_labels)
    error = largest_error(space, scores[:5])
    context.tell(f"inference K={n_labels} M={max_labels} {kind}: error {error:.1e}")
    case = f"{n_rows:,} rows, K={n_labels}, M={max_labels}, scores of a {kind} model".replace("a start", "a starting")
    functions = partial(space.expectations, scores, ones), "scipy.special.expit", partial(expit, scores)
    note = "" if error <= ACCURATE else f"marginals off by {error:.1e}"
    more = {"floor": floor(context.machine, size, max_labels), "reached": error <= ACCURATE, "note": note}
    return raced(QUESTION, case, *functions, repeats, target=target, **more)


def scores_of(kind, size, seed=0):
    """Scores (n_rows, n_labels) of a "fitted" model or of one at the "start"."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(size)
    if kind == "start":
        return scores
    scores *= 2
    row = scores[0]
    scores += brentq(lambda shift: expit(row + shift).sum() - min(EXPECTED, 0.5 * size[1]), -100, 100)
    np.put_along_axis(scores, rng.integers(0, size[1], (size[0], 2)), 4.0, axis=1)
    return scores


def largest_error(space, scores):
    """Of marginals, absolute, and of log-partitions, relative to the larger of them and 1."""
    log_partition, marginals, _ = space.expectations(scores, np.ones(len(scores)))
    errors = []
    for row, own_log_partition, own_marginals in zip(scores, log_partition, marginals, strict=True):
        exact_log_partition, exact = reference.expectations(row, space.min_labels, space.max_labels)
        errors.append(np.abs(own_marginals - exact).max())
        errors.append(abs(own_log_partition - exact_log_partition) / max(1.0, abs(exact_log_partition)))
    return float(max(errors))


def floor(machine, size, max_labels) -> float:
    """Seconds to read scores and write marginals once, or of 3 flops per label and size forwards and 5 backwards."""
    n_entries = size[0] * size[1]
    return machine.floor(n_bytes=2 * 8 * n_entries, flops=8 * n_entries * max_labels)
