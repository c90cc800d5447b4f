"""A few letters for each row that tell whether it is the same row again. Knows nothing of labels and of files."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from scipy import sparse

N_BYTES = 5  # ten letters; two different rows share them once in 10^12
LETTERS = str.maketrans("0123456789", "ghijklmnop")  # a spreadsheet takes 12e45678 for a number


class Fingerprints(Sequence[str]):
    """Ten letters per row that depend on the names and values of its features, and on nothing else.

    The order of the columns, that of nominal values, and whether zeros are stored don't matter. A row's letters are
    worked out when they are asked for.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
    names : sequence of str
    categories : mapping of str to sequence of str, optional
        The values of nominal features, whose columns hold their indices.
    """

    def __init__(self, X, names: Sequence[str], categories: Mapping[str, Sequence[str]] | None = None):
        self._X: Any = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X, np.float64)
        order = sorted(range(len(names)), key=lambda column: names[column])
        self._rank = np.argsort(order).astype("<i8")
        self._start = blake2b(json.dumps([names[column] for column in order]).encode(), digest_size=N_BYTES)
        values = categories or {}
        self._nominal = [(column, values[names[column]]) for column in order if names[column] in values]
        self._is_number = np.ones(len(names), bool)
        self._is_number[[column for column, _ in self._nominal]] = False

    def __len__(self):
        return self._X.shape[0]

    def __getitem__(self, index):
        row = self._X[[index]]
        row = row.toarray()[0] if sparse.issparse(row) else row[0]
        columns = np.flatnonzero((row != 0) & self._is_number)
        columns = columns[np.argsort(self._rank[columns])]
        numbers = np.where(np.isnan(row[columns]), np.nan, row[columns])  # one NaN of the many that there are
        words = [None if np.isnan(row[column]) else str(values[int(row[column])]) for column, values in self._nominal]
        letters = self._start.copy()
        for part in (self._rank[columns].tobytes(), numbers.astype("<f8").tobytes(), json.dumps(words).encode()):
            letters.update(part)
        return letters.hexdigest().translate(LETTERS)
