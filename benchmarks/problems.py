"""The public sets as a user would prepare them, the same for every competitor.

Binary words (sparse) stay as they are, a CSR matrix of 0 and 1; numbers (dense) are standardised by their mean and
standard deviation. A label that no training row has is left out: separate regressions refuse it or have no optimum.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from mlrh.data import load


@dataclass(frozen=True, eq=False)
class Problem:
    """Features and indicator matrix of the training rows."""

    name: str
    X: Any
    Y: np.ndarray

    def __str__(self):
        form = "sparse" if sparse.issparse(self.X) else "dense"
        rows, features = self.X.shape
        largest = int(self.Y.sum(axis=1).max())
        return f"{self.name} ({rows:,} x {features:,} {form}, K={self.Y.shape[1]}, M={largest})"


@lru_cache(maxsize=2)
def public(name, part="train") -> Problem:
    """A public set by name, prepared."""
    data = load(name, part=part)
    return prepared(name, data.X, data.Y)


def first_fold(name, n_splits=5) -> Problem:
    """Training rows of the first fold of a shuffled KFold over all rows, prepared."""
    data = load(name)
    rows, _ = next(KFold(n_splits, shuffle=True, random_state=0).split(data.X))
    return prepared(name, data.X[rows], data.Y[rows])


def prepared(name, X, Y) -> Problem:
    """A problem with features as a user would prepare them and the labels that some but not all rows have."""
    X = sparse.csr_array(X) if sparse.issparse(X) else StandardScaler().fit_transform(X)
    total = Y.sum(axis=0)
    # As int64: OneVsRestClassifier numbers labels in the type of Y, and mixes them up beyond 127 of int8.
    return Problem(name, X, Y[:, (total > 0) & (total < len(Y))].astype(np.int64, order="C"))


def synthetic(n_samples, n_features, n_labels, *, max_size=2, density=None, seed=0) -> Problem:
    """Normal features (with a density: sparse) and sets of 1 to max_size labels that linear scores make likely."""
    rng = np.random.default_rng(seed)
    if density is None:
        X = rng.standard_normal((n_samples, n_features))
    else:
        X = sparse.csr_array(
            sparse.random_array((n_samples, n_features), density=density, format="csr", random_state=rng)
        )
    coef = rng.standard_normal((n_features, n_labels)) / np.sqrt(n_features)
    scores = np.asarray(X @ coef) + rng.gumbel(size=(n_samples, n_labels))
    order = np.argsort(-scores, axis=1)[:, :max_size]
    sizes = rng.integers(1, max_size + 1, n_samples)
    Y = np.zeros((n_samples, n_labels), np.int64)
    np.put_along_axis(Y, order, (np.arange(max_size) < sizes[:, None]).astype(np.int64), axis=1)
    return Problem("synthetic", X, Y)
