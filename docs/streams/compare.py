"""How near partial_fit comes to fit, after 1, 3 and 5 passes, in calls of 1 to 5,000 rows, and what it costs.

Run it with `python docs/streams/compare.py`, with the data sets at hand; it takes several minutes. Training parts,
rows shuffled once (seed 0), dense features standardised, C=1 and all else by default. The gap is that of the
objective, relative to fit's at tol=1e-9; times are CPU times of the process, as multiples of one evaluation of the
objective and its gradient on all rows. With --small, only 1 MiB of rows is kept, and no call has a single row. With
--others, two textbook methods with the same features and number of passes take the place of partial_fit.
"""

import sys
import time
import warnings

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from mlrh import MLRHClassifier, streaming
from mlrh.data import load
from mlrh.design import Design
from mlrh.label_space import CardinalitySpace
from mlrh.objective import Objective

DATA = ("emotions", "scene", "yeast", "tmc2007-500", "bibtex")
CHUNKS = (1, 50, 500, 5000)
PASSES = (1, 3, 5)


def rows_of(name):
    """X, standardised where it is dense, and Y of the training part, shuffled."""
    data = load(name, part="train")
    X = sparse.csr_array(data.X) if sparse.issparse(data.X) else StandardScaler().fit_transform(data.X)
    order = np.random.RandomState(0).permutation(len(data.Y))
    return X[order], np.asarray(data.Y)[order]


class Yardstick:
    """The objective of fit: its lowest value, and what an evaluation costs."""

    def __init__(self, X, Y):
        self.X, self.Y = X, Y
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.fitted = MLRHClassifier(tol=1e-9, n_jobs=1).fit(X, Y)
        sizes = self.fitted.min_labels_, self.fitted.max_labels_
        self.space = CardinalitySpace(Y.shape[1], *sizes, n_jobs=1)
        design = Design(X, np.ones(len(Y)), fit_intercept=True)
        objective = Objective(design, self.space, Y.astype(np.int8), alpha=1.0, learn_bias=False)
        start = objective.start()
        self.evaluation = np.median([self._seconds(lambda: objective.value_and_gradient(start)) for _ in range(7)])

    def gap(self, coef, intercept):
        """Relative gap of coefficients (n_labels, n_features) and intercepts."""
        scores = np.asarray(self.X @ coef.T) + intercept
        loss = self.space.log_partition(scores).sum() - (self.Y * scores).sum()
        return (loss + np.square(coef).sum() / 2) / self.fitted.objective_ - 1

    @staticmethod
    def _seconds(call):
        begin = time.process_time()
        call()
        return time.process_time() - begin


def partial_fits(X, Y, chunk):
    """Coefficients, intercepts and CPU seconds after each pass."""
    model = MLRHClassifier(n_jobs=1)
    for _ in range(max(PASSES)):
        begin = time.process_time()
        for start in range(0, len(Y), chunk):
            rows = slice(start, start + chunk)
            model.partial_fit(X[rows], Y[rows], classes=range(Y.shape[1]))
        yield model.coef_, model.intercept_, time.process_time() - begin


def adagrad(X, Y, chunk, space):
    """AdaGrad with averaged iterates, at the best of five rates by the last pass: `chunk` rows in a minibatch."""
    return [_adagrad(X, Y, chunk, space, rate) for rate in (0.01, 0.03, 0.1, 0.3, 1.0)]


def _adagrad(X, Y, chunk, space, rate):
    shape = (Y.shape[1], X.shape[1] + 1)
    weights, mean, squares, n_steps = np.zeros(shape), np.zeros(shape), np.full(shape, 1e-8), 0
    for _ in range(max(PASSES)):
        begin = time.process_time()
        for start in range(0, len(Y), chunk):
            rows = slice(start, start + chunk)
            gradient = _gradient(X[rows], Y[rows], weights, space) * (len(Y) / len(Y[rows]))
            gradient[:, :-1] += weights[:, :-1]
            squares += gradient**2
            weights = weights - rate * gradient / np.sqrt(squares)
            n_steps += 1
            mean = mean + (weights - mean) * (2 / (n_steps + 1))  # late iterates count more
        yield mean[:, :-1], mean[:, -1], time.process_time() - begin


def online_newton(X, Y, chunk, space):
    """Newton-type steps by the Gram matrix of all rows so far and the labels' mean variance: no rate to choose."""
    frequency = Y.mean(axis=0)
    curvature = (frequency * (1 - frequency)).mean()
    weights, gram = np.zeros((Y.shape[1], X.shape[1] + 1)), np.zeros((X.shape[1] + 1, X.shape[1] + 1))
    ridge = np.diag(np.append(np.ones(X.shape[1]), 1e-6))
    factored, inverse, n_rows = 0, None, 0
    for n_passes in range(1, max(PASSES) + 1):
        begin = time.process_time()
        for start in range(0, len(Y), chunk):
            block = _with_ones(X[start : start + chunk])
            gram, n_rows = gram + block.T @ block, n_rows + block.shape[0]
            if n_rows > 1.3 * factored:
                inverse, factored = np.linalg.inv(curvature * gram + n_passes * ridge), n_rows
            rows = slice(start, start + chunk)
            weights = weights - _gradient(X[rows], Y[rows], weights, space) @ inverse
        yield weights[:, :-1], weights[:, -1], time.process_time() - begin


def _gradient(X, Y, weights, space):
    block = _with_ones(X)
    return (space.marginals(block @ weights.T) - Y).T @ block


def _with_ones(X):
    return np.hstack([X.toarray() if sparse.issparse(X) else X, np.ones((X.shape[0], 1))])


def print_row(name, label, yardstick, results):
    """One line of a table: gaps and costs after each of PASSES."""
    results = list(results)
    gaps = [yardstick.gap(*results[n - 1][:2]) for n in PASSES]
    costs = [sum(r[2] for r in results[:n]) / yardstick.evaluation for n in PASSES]
    cells = [f"{100 * gap:.2f}%" for gap in gaps] + [f"{cost:.0f}" for cost in costs]
    print(f"| {name} | {label} | {' | '.join(cells)} |", flush=True)


def print_fit(name, yardstick):
    """The same line for fit itself, by default."""
    model = MLRHClassifier(n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = time.process_time()
        model.fit(yardstick.X, yardstick.Y)
    cost = (time.process_time() - begin) / yardstick.evaluation
    gap = yardstick.gap(model.coef_, model.intercept_)
    print(f"| {name} | fit | {100 * gap:.2f}% | | | {cost:.0f} | | |", flush=True)


def main(arguments):
    if "--small" in arguments:
        streaming.MAX_BYTES, streaming.BLOCK_BYTES = 2**20, 2**17
    names = [name for name in DATA if name in arguments] or DATA
    columns = ["data", "method" if "--others" in arguments else "rows per call"]
    columns += [f"gap after {n}" for n in PASSES] + [f"evaluations by {n}" for n in PASSES]
    print(f"| {' | '.join(columns)} |\n| --- | ---: |{' ---: |' * (len(columns) - 2)}")
    for name in names:
        X, Y = rows_of(name)
        yardstick = Yardstick(X, Y)
        if "--others" in arguments:
            runs = [list(run) for run in adagrad(X, Y, 50, yardstick.space)]
            best = min(runs, key=lambda run: yardstick.gap(*run[-1][:2]))
            print_row(name, "AdaGrad, averaged, best rate", yardstick, best)
            print_row(name, "online Newton", yardstick, online_newton(X, Y, max(50, X.shape[1] // 4), yardstick.space))
            continue
        print_fit(name, yardstick)
        for chunk in CHUNKS["--small" in arguments :]:
            print_row(name, f"{chunk:,}", yardstick, partial_fits(X, Y, chunk))


if __name__ == "__main__":
    main(sys.argv[1:])
