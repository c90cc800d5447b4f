"""ML-kNN: Bayes' rule on the labels of the nearest rows."""

from copy import copy
from numbers import Integral, Real
from typing import Self

import numpy as np
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import check_is_fitted

from mlrh._sklearn import Interval, fit_context
from mlrh.baselines._base import _SetClassifier
from mlrh.estimators import _device, _features, _targets, _whole_fit


class MLkNN(_SetClassifier):
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
        fitted = copy(self)  # if this fit fails, self keeps the last one
        _device.refuse(X, type(self).__name__)
        X = _features.validated(fitted, X, reset=True)
        form, Y = _targets.encode(y)
        _targets.check_same_length(X, Y)
        if len(Y) < 2:
            raise ValueError("Neighbours of training rows need at least 2 rows; got n_samples=1.")
        n_neighbors = min(self.n_neighbors, len(Y) - 1)
        fitted.neighbors_ = NearestNeighbors(n_neighbors=n_neighbors, metric=self.metric, n_jobs=self.n_jobs).fit(X)
        fitted._Y, fitted.n_neighbors_ = Y, n_neighbors
        fitted.prior_ = (self.smoothing + Y.sum(axis=0, dtype=np.int64)) / (2 * self.smoothing + len(Y))
        fitted.count_proba_ = fitted._count_proba(fitted._counts(None))
        fitted._targets, fitted.classes_ = form, form.classes
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        marginals = self._marginals(X)
        if not self._targets.is_one_class_per_row:
            return marginals
        if len(self.classes_) == 2:
            return np.hstack([1.0 - marginals, marginals])
        return marginals / marginals.sum(axis=1, keepdims=True)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    def _predict_sets(self, X):
        """Sets of the labels more likely than not; of three or more classes the most likely one."""
        marginals = self._marginals(X)
        if self._targets.is_one_class_per_row and len(self.classes_) > 2:
            return (marginals.argmax(axis=1)[:, None] == np.arange(len(self.classes_))).astype(np.int8)
        return (marginals > 0.5).astype(np.int8)

    def _marginals(self, X):
        check_is_fitted(self)
        _device.refuse(X, type(self).__name__)
        X = _features.validated(self, X, reset=False)
        counts, labels = self._counts(X), np.arange(len(self.prior_))
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
