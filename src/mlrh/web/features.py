"""The few features of a row that stand out among the rows. Knows nothing of labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

SHOWN = 10


class Features:
    """Features of single rows, those farthest from their mean over all rows first.

    The deviation is in standard deviations of the column. A nominal value counts as its 0/1 column would, so that a
    rare value stands out. In sparse rows only what is stored counts; missing values are left out.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
    names : sequence of str
    categories : mapping of str to sequence of str, optional
        The values of nominal features, whose columns hold their indices.
    """

    def __init__(self, X, names: Sequence[str], categories: Mapping[str, Sequence[str]] | None = None):
        self._X: Any = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X, np.float64)
        self._names, self._categories = names, categories or {}
        self._mean, self._deviation = _moments(self._X)

    def __call__(self, index: int) -> list[dict[str, Any]]:
        """At most SHOWN features of a row: name, value in words, and deviation (None where the column is constant)."""
        columns, values = self._values(index)
        deviations = np.array([self._in_deviations(*pair) for pair in zip(columns, values, strict=True)])
        order = np.argsort(-np.abs(np.nan_to_num(deviations)), kind="stable")[:SHOWN]
        return [
            {
                "name": self._names[columns[place]],
                "value": self._in_words(columns[place], values[place]),
                "deviation": float(deviations[place]) if np.isfinite(deviations[place]) else None,
            }
            for place in order
        ]

    def _values(self, index):
        """Columns and values of the row that are there."""
        if sparse.issparse(self._X):
            row = self._X[[index]]
            columns, values = row.indices, row.data
        else:
            columns, values = np.arange(self._X.shape[1]), self._X[index]
        there = ~np.isnan(values)
        return columns[there].tolist(), values[there].tolist()

    def _in_deviations(self, column, value):
        mean, deviation = self._mean[column], self._deviation[column]
        if self._names[column] in self._categories:
            share = self._share(column, value)
            mean, deviation, value = share, np.sqrt(share * (1 - share)), 1.0
        return (value - mean) / deviation if deviation > 0 else np.nan

    def _share(self, column, value):
        """Share of the rows with that value."""
        values = self._X[:, [column]]
        values = values.toarray() if sparse.issparse(values) else values
        return float((values == value).mean())

    def _in_words(self, column, value):
        words = self._categories.get(self._names[column])
        return f"{value:.4g}" if words is None else str(words[int(value)])


def _moments(X):
    """Mean and standard deviation of each column over what is not missing."""
    n_rows = X.shape[0]
    if sparse.issparse(X):
        missing = np.isnan(X.data)
        n_there = n_rows - np.bincount(X.indices[missing], minlength=X.shape[1])
        filled = X.copy()
        filled.data[missing] = 0.0
        squares = filled.copy()
        squares.data **= 2
        n_there = np.maximum(n_there, 1)
        mean = np.asarray(filled.sum(axis=0)).ravel() / n_there
        square = np.asarray(squares.sum(axis=0)).ravel() / n_there
        return mean, _root(square - mean**2, square)
    there = ~np.isnan(X)
    n_there = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, X, 0.0).sum(axis=0) / n_there
    centred = np.where(there, X - mean, 0.0)
    return mean, _root((centred**2).sum(axis=0) / n_there, mean**2)


def _root(variance, scale):
    """Standard deviations; 0 where the variance is a rounding error of the scale."""
    return np.sqrt(np.where(variance > 1e-12 * scale, variance, 0.0))
