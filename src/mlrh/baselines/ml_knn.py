"""ML-kNN: Bayes' rule on the labels of the nearest rows."""

from numbers import Integral, Real
from typing import Self

import numpy as np

from mlrh._sklearn import Interval, fit_context
from mlrh.baselines._neighbours import _OfNeighbours


class MLkNN(_OfNeighbours):
    """ML-kNN: for each label, Bayes' rule on how many of the nearest training rows have it.

    For each label, P(y = 1 | c) is proportional to P(y = 1) P(c | y = 1), where c is the number of neighbours with the
    label. Both factors are smoothed frequencies in training; no training row is its own neighbour. With one class per
    row as y, the probabilities of the classes are these, scaled to sum to one. Where distances tie, the order of the
    training rows can decide which of them are neighbours.

    Parameters
    ----------
    n_neighbors : int, default=10
        If training has no more rows than that, all the other rows are neighbours.
    smoothing : float, default=1.0
        Number of imagined rows added to each count (1 is Laplace's rule).
    metric : str or callable, default="euclidean"
        As for sklearn.neighbors.NearestNeighbors.
    n_jobs : int, default=None
        As for sklearn.neighbors.NearestNeighbors.

    Attributes
    ----------
    n_neighbors_ : int
    prior_ : array of shape (n_labels,)
        P(y = 1).
    count_proba_ : array of shape (2, n_labels, n_neighbors_ + 1)
        P(c | y = 0) and P(c | y = 1) for c = 0, ..., n_neighbors_.
    neighbors_ : the fitted NearestNeighbors
    classes_ : array
        Names of the labels, or the classes of y. For two classes the second one is the label.
    n_features_in_, feature_names_in_ : of X

    References
    ----------
    M.-L. Zhang and Z.-H. Zhou, "ML-KNN: A lazy learning approach to multi-label learning", Pattern Recognition 40
    (2007), 2038-2048.

    Examples
    --------
    >>> from mlrh.baselines import MLkNN
    >>> X = [[0.0], [1.0], [2.0], [7.0], [8.0], [9.0]]
    >>> Y = [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [1, 1]]
    >>> MLkNN(n_neighbors=2).fit(X, Y).predict_proba([[1.5]]).round(2)
    array([[0.83, 0.2 ]])
    """

    _parameter_constraints: dict = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "smoothing": [Interval(Real, 0, None, closed="neither")],
        "metric": [str, callable],
        "n_jobs": [Integral, None],
    }

    def __init__(self, n_neighbors=10, smoothing=1.0, *, metric="euclidean", n_jobs=None):
        self.n_neighbors = n_neighbors
        self.smoothing = smoothing
        self.metric = metric
        self.n_jobs = n_jobs

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y) -> Self:
        """Fit to X (n_samples, n_features), dense or sparse, and y in any of the forms of MLRHClassifier."""
        return self._fit_to_neighbours(X, y)

    def _learn(self, X, Y):
        self.prior_ = (self.smoothing + Y.sum(axis=0, dtype=np.int64)) / (2 * self.smoothing + len(Y))
        self.count_proba_ = self._count_proba(self._counts(None))

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        marginals = self._marginals(X)
        if not self._targets.is_one_class_per_row:
            return marginals
        if len(self.classes_) == 2:
            return np.hstack([1.0 - marginals, marginals])
        return marginals / marginals.sum(axis=1, keepdims=True)

    def _marginals(self, X):
        counts, labels = self._counts(self._checked(X)), np.arange(len(self.prior_))
        absent = (1.0 - self.prior_) * self.count_proba_[0, labels, counts]
        present = self.prior_ * self.count_proba_[1, labels, counts]
        return present / (present + absent)

    def _counts(self, X):
        """Number of neighbours with each label, (n_samples, n_labels); X=None: of each training row."""
        graph = self.neighbors_.kneighbors_graph(X, mode="connectivity")
        return (graph.astype(np.int32) @ self._Y.astype(np.int32)).astype(np.int64)

    def _count_proba(self, counts):
        n_labels, n_counts = counts.shape[1], self.n_neighbors_ + 1
        cells = np.arange(n_labels) * n_counts + counts
        has_label = self._Y.astype(bool)
        table = np.array([np.bincount(cells[rows], minlength=n_labels * n_counts) for rows in (~has_label, has_label)])
        smoothed = self.smoothing + table.reshape(2, n_labels, n_counts)
        return smoothed / smoothed.sum(axis=2, keepdims=True)
