"""Milliseconds per row that the decision for F1 takes on one thread, as the number of labels grows.

Run it with `python docs/decisions/cost.py`; rows of 400, the median of seven calls after a first one that compiles.
"""

import time

import numpy as np

from mlrh import decisions
from mlrh.spaces import CardinalitySpace


def milliseconds_per_row(n_labels, max_labels, n_rows=400):
    scores = np.random.default_rng(0).normal(size=(n_rows, n_labels)) - 5
    distribution = CardinalitySpace(n_labels, 1, max_labels, n_jobs=1).distribution(scores)
    seconds = []
    for _ in range(8):
        begin = time.perf_counter()
        decisions.f1(distribution)
        seconds.append(time.perf_counter() - begin)
    return 1e3 * np.median(seconds[1:]) / n_rows


if __name__ == "__main__":
    for max_labels in (4, 16):
        costs = [f"{milliseconds_per_row(n_labels, max_labels):.3f}" for n_labels in (125, 250, 500, 1000)]
        print(f"M = {max_labels}, K = 125, 250, 500, 1000: {', '.join(costs)} ms per row")
