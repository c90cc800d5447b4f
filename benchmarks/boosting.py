"""How long do boosted trees under one model of the label set take beside separate fits? At most 1.5 times as long.

Ours is MLRHBoostingClassifier with the open label space. Theirs is XGBClassifier for one label after the other, with
the same number of trees and the same settings. Both use the same number of threads.

    python -m benchmarks.boosting

prints how long fits of several sizes take with all cores as threads of XGBoost beside one, on idle cores and beside a
process per core that never waits.
"""

import multiprocessing
import statistics
import time
from contextlib import contextmanager

import numpy as np
import xgboost

from benchmarks import problems
from benchmarks.table import attempted, raced
from mlrh import MLRHBoostingClassifier
from mlrh.estimators.boosting import OF_BOOSTER

QUESTION = "boosted fit"
TARGET = 1.5
CASES = ("emotions", "scene", "yeast")
N_ROUNDS = 100


def measure(repeats, context):
    """Yields a line per case: seconds of both (median of interleaved runs) and their ratio."""
    for name in CASES[:1] if context.quick else CASES:
        context.tell(name)
        yield from attempted(QUESTION, name, _lines, name, repeats, 10 if context.quick else N_ROUNDS)


def _lines(name, repeats, n_rounds):
    problem = problems.public(name)
    X, Y = problem.X, problem.Y
    ours = MLRHBoostingClassifier(n_estimators=n_rounds, random_state=0, n_jobs=1)
    settings = {own: getattr(ours, own) for own in OF_BOOSTER}
    theirs = xgboost.XGBClassifier(n_estimators=n_rounds, tree_method="hist", random_state=0, n_jobs=1, **settings)

    def separate():
        for column in Y.T:
            theirs.fit(X, column)

    rows, features = X.shape
    case = f"{name} ({rows:,} x {features}, K={Y.shape[1]}), {n_rounds} rounds"
    yield raced(QUESTION, case, lambda: ours.fit(X, Y), "XGBClassifier per label", separate, repeats, target=TARGET)


SIZES = {(2000, 50): 40, (5000, 100): 20, (20_000, 100): 10, (50_000, 200): 5}  # rows and features: rounds


def main():
    """Prints a line per size."""
    for (n_rows, n_features), n_rounds in SIZES.items():
        X, Y = synthetic(n_rows, n_features)
        ratios = []
        for n_busy in (0, multiprocessing.cpu_count()):
            with busy(n_busy):
                one, every = (seconds(X, Y, n_rounds, n_jobs) for n_jobs in (1, -1))
            ratios.append(f"{one:6.2f} {every:6.2f} ({every / one:4.1f})")
        print(f"{n_rows:6,} x {n_features:3}: one thread, all (ratio); idle {ratios[0]}, busy {ratios[1]}", flush=True)


def synthetic(n_rows, n_features, n_labels=10):
    """Normal features, and the labels with linear scores above 1, the highest at least."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_features))
    scores = X @ rng.standard_normal((n_features, n_labels)) * 2 / n_features**0.5
    return X, (scores >= np.minimum(scores.max(axis=1, keepdims=True), 1)).astype(int)


def seconds(X, Y, n_rounds, n_jobs):
    """Median seconds of three fits after one that is not counted."""
    model = MLRHBoostingClassifier(n_estimators=n_rounds, n_jobs=n_jobs, label_space="cardinality", random_state=0)
    took = []
    for _ in range(4):
        begin = time.perf_counter()
        model.fit(X, Y)
        took.append(time.perf_counter() - begin)
    return statistics.median(took[1:])


@contextmanager
def busy(n_processes):
    """A block beside which so many processes compute."""
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(n_processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()


def _spin():
    while True:
        pass


if __name__ == "__main__":
    main()
