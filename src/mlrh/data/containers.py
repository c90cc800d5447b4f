"""The form in which every data source hands over a multilabel data set. Knows nothing of where it came from."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False, repr=False)
class MultilabelData:
    """Features and label sets of the same rows, with their names.

    Attributes
    ----------
    X : array of shape (n_samples, n_features)
    Y : array of shape (n_samples, n_labels), int8
        Indicator matrix: 1 where the row has the label.
    feature_names, label_names : tuple of str
        Names of the columns of X and Y.
    name : str
        What the set is called in messages and tables.
    """

    X: np.ndarray
    Y: np.ndarray
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    name: str

    def __repr__(self):
        n_samples, n_features = self.X.shape
        return f"MultilabelData({self.name!r}: {n_samples} rows, {n_features} features, {self.Y.shape[1]} labels)"
