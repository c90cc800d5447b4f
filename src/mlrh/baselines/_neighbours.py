"""What ML-kNN and IBLR share: the nearest training rows, none of them its own neighbour, and sets from marginals."""

from abc import abstractmethod
from copy import copy
from typing import Any, Self

import numpy as np
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import check_is_fitted

from mlrh.baselines._base import _SetClassifier
from mlrh.estimators import _device, _features, _targets, _whole_fit


class _OfNeighbours(_SetClassifier):
    """A classifier that sees a row by the labels of its nearest training rows."""

    n_neighbors: int
    metric: Any
    n_jobs: int | None

    def _fit_to_neighbours(self, X, y) -> Self:
        """Find the neighbours, let `_learn` add to them, and keep the fit; if it fails, self keeps the last one."""
        fitted = copy(self)
        _device.refuse(X, type(self).__name__)
        X = _features.validated(fitted, X, reset=True)
        form, Y = _targets.encode(y)
        _targets.check_same_length(X, Y)
        if len(Y) < 2:
            raise ValueError("Neighbours of training rows need at least 2 rows; got n_samples=1.")
        n_neighbors = min(self.n_neighbors, len(Y) - 1)
        fitted.neighbors_ = NearestNeighbors(n_neighbors=n_neighbors, metric=self.metric, n_jobs=self.n_jobs).fit(X)
        fitted._Y, fitted.n_neighbors_ = Y, n_neighbors
        fitted._learn(X, Y)
        fitted._targets, fitted.classes_ = form, form.classes
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    @abstractmethod
    def _learn(self, X, Y):
        """Set the other fitted attributes, from the training rows and their neighbours."""

    @abstractmethod
    def _marginals(self, X):
        """P(y_k = 1 | x), (n_samples, n_labels), of rows of X as the user gave them."""

    def _checked(self, X):
        """The features of rows to answer."""
        check_is_fitted(self)
        _device.refuse(X, type(self).__name__)
        return _features.validated(self, X, reset=False)

    def _predict_sets(self, X):
        """Sets of the labels more likely than not; of three or more classes the most likely one."""
        check_is_fitted(self)
        if self._targets.is_one_class_per_row and len(self.classes_) > 2:
            likeliest = self.predict_proba(X).argmax(
                axis=1
            )  # differs also where all marginals are too small for a number
            return (likeliest[:, None] == np.arange(len(self.classes_))).astype(np.int8)
        return (self._marginals(X) > 0.5).astype(np.int8)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags
