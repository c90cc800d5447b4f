"""How long the open space takes to answer, with the sets that the training rows of bibtex show.

    MLRH_DATA=folder python docs/open-space/inference.py

One thread, seconds of the processor: marginals of 10,000 rows, and what goes through the trie, by row.
"""

import time

import numpy as np

from mlrh.data import load
from mlrh.spaces import OpenSpace

N_ROWS, N_SLOW, TURNS = 10_000, 40, 5


def main():
    rng = np.random.default_rng(0)
    sets = np.unique(load("bibtex", "train").Y, axis=0)
    sizes, n_labels = sets.sum(axis=1), sets.shape[1]
    space = OpenSpace(n_labels, int(sizes.min()), int(sizes.max()), sets, rng.normal(size=len(sets)), n_jobs=1)
    scores = rng.normal(-4, 2, (N_ROWS, n_labels))
    took = seconds(lambda: space.marginals(scores))
    print(f"{N_ROWS:,} rows, {n_labels} labels, {len(sets):,} sets: {took:.2f} s")
    few = space.distribution(scores[:N_SLOW])
    questions = {
        "entropy": few.entropy,
        "any_of": lambda: few.any_of([0, 3]),
        "sample": lambda: few.sample(1, random_state=0),
    }
    for name, question in questions.items():
        print(f"{name}: {1000 * seconds(question) / N_SLOW:.0f} ms per row")


def seconds(call):
    """The median of some turns, after one that loads the compiled code."""
    call()
    found = []
    for _ in range(TURNS):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return float(np.median(found))


if __name__ == "__main__":
    main()
