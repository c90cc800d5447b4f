"""IBLR-ML and IBLR-ML+: logistic regression on the labels of the nearest rows."""

from numbers import Integral, Real
from typing import Self

import numpy as np
from scipy import sparse
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from mlrh._sklearn import Interval, fit_context
from mlrh.baselines._base import _log_proba
from mlrh.baselines._neighbours import _OfNeighbours
from mlrh.baselines.or_constant import OrConstant

MAX_ITER = 2000  # of a logistic regression: features that are not scaled take more than the default of 100


class IBLR(_OfNeighbours):
    """IBLR-ML: one logistic regression per label on the share of the nearest training rows that has each label.

    log-odds(y_k = 1 | x) = intercept_k + sum_j coef_kj share_j(x), where share_j(x) is the share of the n_neighbors
    nearest training rows that have label j. No training row is its own neighbour. IBLR-ML+ (with_features=True) adds
    the features themselves, sum_d coef_kd x_d. The paper maximises the likelihood alone; C=inf does so, too, but where
    rows can be separated that has no maximum. With one class per row as y, the probabilities of the classes are those
    of the labels, scaled to sum to one. A label that all training rows have, or none, is always answered so.

    Parameters
    ----------
    n_neighbors : int, default=10
        If training has no more rows than that, all the other rows are neighbours.
    with_features : bool, default=False
        False is IBLR-ML, True is IBLR-ML+.
    C : float, default=1.0
        As for LogisticRegression: the inverse strength of the L2 penalty on coefficients.
    metric : str or callable, default="euclidean"
        As for sklearn.neighbors.NearestNeighbors.
    n_jobs : int, default=None
        As for sklearn.neighbors.NearestNeighbors.

    Attributes
    ----------
    n_neighbors_ : int
    neighbors_ : the fitted NearestNeighbors
    regressions_ : the fitted MultiOutputClassifier, with one OrConstant(LogisticRegression) per label
    classes_ : array
        Names of the labels, or the classes of y. For two classes the second one is the label.
    n_features_in_, feature_names_in_ : of X

    References
    ----------
    W. Cheng and E. Hüllermeier, "Combining instance-based learning and logistic regression for multilabel
    classification", Machine Learning 76 (2009), 211-225.

    Examples
    --------
    >>> from mlrh.baselines import IBLR
    >>> X = [[0.0], [1.0], [2.0], [7.0], [8.0], [9.0]]
    >>> Y = [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [1, 1]]
    >>> IBLR(n_neighbors=2).fit(X, Y).predict([[1.5], [7.5]])
    array([[1, 0],
           [1, 1]])
    """

    _parameter_constraints: dict = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "with_features": ["boolean"],
        "C": [Interval(Real, 0, None, closed="right")],
        "metric": [str, callable],
        "n_jobs": [Integral, None],
    }

    def __init__(self, n_neighbors=10, *, with_features=False, C=1.0, metric="euclidean", n_jobs=None):
        self.n_neighbors = n_neighbors
        self.with_features = with_features
        self.C = C
        self.metric = metric
        self.n_jobs = n_jobs

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y) -> Self:
        """Fit to X (n_samples, n_features), dense or sparse, and y in any of the forms of MLRHClassifier."""
        if self.with_features and self.metric == "precomputed":
            raise ValueError("with_features=True needs features, which metric='precomputed' replaces by distances.")
        return self._fit_to_neighbours(X, y)

    def _learn(self, X, Y):
        regression = OrConstant(LogisticRegression(C=self.C, max_iter=MAX_ITER))
        self.regressions_ = MultiOutputClassifier(regression).fit(self._attributes(X, self._shares(None)), Y)

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        log_marginals = self._log_marginals(X)
        if not self._targets.is_one_class_per_row:
            return np.exp(log_marginals)
        if len(self.classes_) == 2:
            return np.hstack([-np.expm1(log_marginals), np.exp(log_marginals)])
        return softmax(log_marginals, axis=1)  # stays right where all marginals are below the smallest number

    def _marginals(self, X):
        return np.exp(self._log_marginals(X))

    def _log_marginals(self, X):
        X = self._checked(X)
        attributes = self._attributes(X, self._shares(X))
        return np.column_stack([_log_proba(each, attributes)[:, 1] for each in self.regressions_.estimators_])

    def _shares(self, X):
        """Share of the neighbours with each label, (n_samples, n_labels); X=None: of each training row."""
        graph = self.neighbors_.kneighbors_graph(X, mode="connectivity")
        return (graph @ self._Y.astype(np.float64)) / self.n_neighbors_

    def _attributes(self, X, shares):
        """What the logistic regressions see."""
        if not self.with_features:
            return shares
        return sparse.hstack([shares, X], format="csr") if sparse.issparse(X) else np.hstack([shares, X])
