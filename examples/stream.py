"""Fit to rows that come in chunks, of a file that is read piece by piece, and compare with a fit to all of them.

Run it with `python examples/stream.py`.
"""

import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

from mlrh import MLRHClassifier
from mlrh.data import load_digit_scenes


def chunks_of(path, n_labels, chunk=250):
    """X and Y of `chunk` lines of a CSV file at a time; the labels are the last columns."""
    with open(path) as file:
        while lines := list(islice(file, chunk)):
            values = np.loadtxt(lines, delimiter=",", ndmin=2)
            yield values[:, :-n_labels], values[:, -n_labels:].astype(int)


def main(n_train=2000, n_test=1000):
    train, test = load_digit_scenes(n_train, part="train"), load_digit_scenes(n_test, part="test")
    n_labels = train.Y.shape[1]
    print("rows shown  exact match  log-likelihood of the test rows")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.csv"
        np.savetxt(path, np.hstack([train.X, train.Y]), fmt="%g", delimiter=",")
        model = MLRHClassifier(C=0.01)
        for X, Y in chunks_of(path, n_labels):
            model.partial_fit(X, Y, classes=range(n_labels))
            print_measures(model.n_samples_seen_, model, test)
    print_measures("fit", MLRHClassifier(C=0.01).fit(train.X, train.Y), test)


def print_measures(name, model, test):
    log_likelihood = model.distribution(test.X).log_prob(test.Y).mean()
    print(f"{name:>10}  {model.score(test.X, test.Y):11.3f}  {log_likelihood:31.4f}")


if __name__ == "__main__":
    main()
