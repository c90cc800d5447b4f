"""Comparison methods that scikit-learn lacks, and the probability of a label set under those that it has.

Knows the forms of y, and nothing of the joint model, its label spaces or its solvers.
"""

from abc import abstractmethod
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, _fit_context, clone
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import assert_all_finite, column_or_1d, get_tags
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    has_fit_parameter,
    validate_data,
)

from mlrh import targets
from mlrh.indicator import as_indicator


def independent_set_log_proba(marginals, Y) -> np.ndarray:
    """Logarithm of the probability of each row's label set if the labels were independent, (n_samples,).

    It is sum_k log(p_k) over the labels of the set plus sum_k log(1 - p_k) over the others; -inf where a label with
    marginal 0 is in the set or one with marginal 1 is not.

    Parameters
    ----------
    marginals : array of shape (n_samples, n_labels)
        P(y_k = 1 | x), as predict_proba of a OneVsRestClassifier gives them.
    Y : indicator matrix of shape (n_samples, n_labels)

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh.baselines import independent_set_log_proba
    >>> np.exp(independent_set_log_proba([[0.5, 0.2]], [[1, 0]])).round(3)
    array([0.4])
    """
    marginals, Y = np.asarray(marginals, np.float64), as_indicator(Y, "Y")
    if marginals.shape != Y.shape:
        raise ValueError(f"marginals and Y must have the same shape; got {marginals.shape} and {Y.shape}.")
    bad = ~((marginals >= 0) & (marginals <= 1))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        found = marginals[row, column]
        raise ValueError(f"marginals must hold probabilities; got {found} in row {row}, column {column}.")
    with np.errstate(divide="ignore"):
        return np.where(Y, np.log(marginals), np.log1p(-marginals)).sum(axis=1)


def chain_set_log_proba(chain, X, Y) -> np.ndarray:
    """Logarithm of the probability of each row's label set under a fitted ClassifierChain, (n_samples,).

    It is sum_j log P(y_j | x, y_1, ..., y_{j-1}) in the order of the chain, each link given the set's own earlier
    labels as in training. (The chain's predict_proba gives each link the labels predicted before it instead.)

    Parameters
    ----------
    chain : sklearn.multioutput.ClassifierChain
        Fitted on an indicator matrix, with an estimator that has predict_proba.
    X : array or sparse matrix of shape (n_samples, n_features)
    Y : indicator matrix of shape (n_samples, n_labels)

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multioutput import ClassifierChain
    >>> from mlrh.baselines import chain_set_log_proba
    >>> X, Y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
    >>> chain = ClassifierChain(LogisticRegression()).fit(X, Y)
    >>> sets = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> print(round(np.exp(chain_set_log_proba(chain, X[[2, 2, 2, 2]], sets)).sum(), 6))
    1.0
    """
    check_is_fitted(chain)
    Y = as_indicator(Y, "Y")
    _check_chain(chain, Y)
    X = validate_data(chain, X, accept_sparse="csr", reset=False)
    targets.check_same_length(X, Y)
    earlier = Y[:, chain.order_]
    log_proba = np.zeros(len(Y))
    for place, (link, label) in enumerate(zip(chain.estimators_, chain.order_, strict=True)):
        given = earlier[:, :place]
        features = sparse.hstack([X, given], format="csr") if sparse.issparse(X) else np.hstack([X, given])
        log_proba += _log_proba_of_classes(link, features, Y[:, label])
    return log_proba


class OrConstant(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """The estimator, or the only class where training shows just one.

    ClassifierChain and MultiOutputClassifier fit one estimator per label. Many estimators refuse a label that all rows
    or none have, as rare labels do in small training sets; wrapped in OrConstant they answer with what all rows have.
    One case is left, which scikit-learn refuses: a constant label in a ClassifierChain with cv and with predict_proba
    as its chain_method.

    Parameters
    ----------
    estimator : classifier

    Attributes
    ----------
    classes_ : array
        The classes of training. A single class that is 0 or 1 is a constant label, with classes_ 0 and 1 and so two
        columns of predict_proba.
    constant_ : the only class, or None
    estimator_ : the fitted estimator, or None
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multioutput import ClassifierChain
    >>> from mlrh.baselines import OrConstant
    >>> chain = ClassifierChain(OrConstant(LogisticRegression()))
    >>> chain.fit([[0.0], [1.0], [2.0]], [[0, 0], [1, 0], [1, 0]]).predict([[5.0]])
    array([[1., 0.]])
    """

    _parameter_constraints: dict = {"estimator": [HasMethods(["fit", "predict"])]}
    constant_: Any
    estimator_: Any

    def __init__(self, estimator):
        self.estimator = estimator

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to X and classes y (n_samples,), unless all rows of positive weight have the same class."""
        X, y = validate_data(self, X, y, skip_check_array=True)
        y = column_or_1d(y, warn=True)
        weights, options = _weights_to_pass_on(self.estimator, sample_weight, X)
        targets.check_same_length(X, y)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        seen = np.unique(y[weights > 0])
        self.estimator_, self.constant_ = None, None
        if len(seen) == 1:
            self.constant_ = seen[0]
            self.classes_ = np.array([0, 1], seen.dtype) if seen[0] in (0, 1) else seen
        else:
            self.estimator_ = clone(self.estimator).fit(X, y, **options)
            self.classes_ = self.estimator_.classes_
        return self

    def predict(self, X):
        """Classes of the rows of X, (n_samples,)."""
        X = _for_estimator(self, X)
        return np.repeat(self.constant_, _num_samples(X)) if self.estimator_ is None else self.estimator_.predict(X)

    @available_if(lambda self: _has_proba(self, self.estimator))
    def predict_proba(self, X):
        """Probabilities of the classes, (n_samples, n_classes); 1 for a constant."""
        X = _for_estimator(self, X)
        if self.estimator_ is None:
            return np.tile((self.classes_ == self.constant_).astype(np.float64), (_num_samples(X), 1))
        return self.estimator_.predict_proba(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        tags.classifier_tags.multi_class = get_tags(self.estimator).classifier_tags.multi_class
        return tags


class _SetClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose y has any of the forms of mlrh.targets; a subclass predicts indicator matrices."""

    _targets: targets.Targets
    classes_: np.ndarray
    predict_proba: Any

    def predict(self, X):
        """Label sets for the rows of X in the form of the y of training."""
        sets = self._predict_sets(X)
        return self._targets.decode(sets, X)

    @available_if(lambda self: hasattr(self, "predict_proba"))
    def decision_function(self, X) -> np.ndarray:
        """predict_proba less 1/2, above 0 where more likely than not; for two classes as y, of the second (n_samples,).

        Finite where log-odds are not, so that rankings such as roc_auc_score can use it.
        """
        scores = self.predict_proba(X) - 0.5
        return scores[:, 1] if self._targets.is_one_class_per_row and len(self.classes_) == 2 else scores

    def score(self, X, y, sample_weight=None) -> float:
        """Share of rows whose predicted set is exactly right."""
        predicted = self._predict_sets(X)  # first, so that what isn't fitted says so
        return self._targets.share_right(predicted, y, sample_weight)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @abstractmethod
    def _predict_sets(self, X) -> np.ndarray: ...


class LabelPowerset(MetaEstimatorMixin, _SetClassifier):
    """Label powerset: each distinct label set of training is one class of a multiclass classifier.

    It answers only with sets seen in training. With one class per row as y it is the classifier itself. Where training
    shows one set only, that is the answer, and nothing is fitted.

    Parameters
    ----------
    estimator : classifier, default=None
        None is LogisticRegression().

    Attributes
    ----------
    sets_ : array of shape (n_sets, n_labels)
        The distinct sets of the rows of positive weight, smaller ones first, then those with lower labels.
    estimator_ : the fitted estimator, whose classes are the rows of sets_; None where there is one set only
    classes_ : array
        Names of the labels, or the classes of y.
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from mlrh.baselines import LabelPowerset
    >>> X = [[0.0], [1.0], [4.0], [5.0], [9.0], [10.0]]
    >>> y = [{"rain"}, {"rain"}, {"rain", "sun"}, {"rain", "sun"}, {"sun"}, {"sun"}]
    >>> clf = LabelPowerset().fit(X, y)
    >>> [sorted(labels) for labels in clf.predict([[0.5], [4.5], [11.0]])]
    [['rain'], ['rain', 'sun'], ['sun']]
    """

    _parameter_constraints: dict = {"estimator": [HasMethods(["fit", "predict"]), None]}
    estimator_: Any

    def __init__(self, estimator=None):
        self.estimator = estimator

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the estimator to X and the label sets of y, in any of the forms of MLRHClassifier.

        Parameters
        ----------
        X : whatever the estimator takes, with n_samples rows
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
        sample_weight : array of shape (n_samples,), optional
            Passed on to the estimator; a row of weight 0 shows no set.

        Returns
        -------
        self
        """
        X = validate_data(self, X, skip_check_array=True)
        form, Y = targets.encode(y)
        targets.check_same_length(X, Y)
        weights, options = _weights_to_pass_on(self._chosen(), sample_weight, X)
        support = np.flatnonzero(weights > 0)
        form, shown = form.seen_in(Y[support]) if len(support) < len(Y) else (form, Y)
        sets, codes_of_support = _distinct_sets(shown)
        # A row of weight 0 has no influence whatever its class, but a class of its own would still become an answer.
        codes = np.zeros(len(Y), np.int64)
        codes[support] = codes_of_support
        self.estimator_ = clone(self._chosen()).fit(X, codes, **options) if len(sets) > 1 else None
        self._targets, self.classes_, self.sets_ = form, form.classes, sets
        return self

    @available_if(lambda self: _has_proba(self, self._chosen()))
    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        X = _for_estimator(self, X)
        proba = np.ones((_num_samples(X), 1)) if self.estimator_ is None else self.estimator_.predict_proba(X)
        if self._targets.is_one_class_per_row:
            return proba
        return np.clip(proba @ self.sets_, 0.0, 1.0)

    @available_if(lambda self: _has_proba(self, self._chosen()))
    def set_log_proba(self, X, Y) -> np.ndarray:
        """Logarithm of the probability of each row's label set, (n_samples,); -inf for a set not seen in training.

        Y holds one set per row of X, in the form of the y of training.
        """
        X = _for_estimator(self, X)
        log_proba = np.zeros((_num_samples(X), 1)) if self.estimator_ is None else _log_proba(self.estimator_, X)
        Y, unknown = self._targets.partial_indicator(Y)
        targets.check_same_length(log_proba, Y)
        code_of = {row.tobytes(): code for code, row in enumerate(self.sets_)}
        codes = np.array([code_of.get(row.tobytes(), -1) for row in Y], np.int64)
        return np.where((codes < 0) | unknown, -np.inf, log_proba[np.arange(len(Y)), codes])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._chosen()).input_tags
        return tags

    def _predict_sets(self, X):
        X = _for_estimator(self, X)
        codes = np.zeros(_num_samples(X), np.int64) if self.estimator_ is None else self.estimator_.predict(X)
        return self.sets_[codes]

    def _chosen(self):
        return LogisticRegression() if self.estimator is None else self.estimator


class MLkNN(_SetClassifier):
    """ML-kNN: for each label, Bayes' rule on how many of the nearest training rows have it.

    For each label, P(y = 1 | c) is proportional to P(y = 1) P(c | y = 1), where c counts the neighbours with the label;
    both factors are smoothed frequencies in training, with each training row left out of its own neighbours. With one
    class per row as y, the probabilities of the classes are these, scaled to sum to one. Where distances tie, the order
    of the training rows can decide who is a neighbour.

    Parameters
    ----------
    n_neighbors : int, default=10
        Where training has no more rows than that, all the other rows are neighbours.
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

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y) -> Self:
        """Fit to X (n_samples, n_features), dense or sparse, and y in any of the forms of MLRHClassifier."""
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        form, Y = targets.encode(y)
        targets.check_same_length(X, Y)
        if len(Y) < 2:
            raise ValueError("Neighbours of training rows need at least 2 rows; got n_samples=1.")
        n_neighbors = min(self.n_neighbors, len(Y) - 1)
        self.neighbors_ = NearestNeighbors(n_neighbors=n_neighbors, metric=self.metric, n_jobs=self.n_jobs).fit(X)
        self._Y, self.n_neighbors_ = Y, n_neighbors
        self.prior_ = (self.smoothing + Y.sum(axis=0, dtype=np.int64)) / (2 * self.smoothing + len(Y))
        self.count_proba_ = self._count_proba(self._counts(None))
        self._targets, self.classes_ = form, form.classes
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
        """Labels more likely than not; of three or more classes the most likely one."""
        marginals = self._marginals(X)
        if self._targets.is_one_class_per_row and len(self.classes_) > 2:
            return (marginals.argmax(axis=1)[:, None] == np.arange(len(self.classes_))).astype(np.int8)
        return (marginals > 0.5).astype(np.int8)

    def _marginals(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        counts, labels = self._counts(X), np.arange(len(self.prior_))
        absent = (1.0 - self.prior_) * self.count_proba_[0, labels, counts]
        present = self.prior_ * self.count_proba_[1, labels, counts]
        return present / (present + absent)

    def _counts(self, X):
        """How many neighbours of each row have each label; None: of the training rows, each among the others."""
        graph = self.neighbors_.kneighbors_graph(X, mode="connectivity")
        return (graph.astype(np.int32) @ self._Y.astype(np.int32)).astype(np.int64)

    def _count_proba(self, counts):
        n_labels, n_counts = counts.shape[1], self.n_neighbors_ + 1
        cells = np.arange(n_labels) * n_counts + counts
        has_label = self._Y.astype(bool)
        table = np.array([np.bincount(cells[rows], minlength=n_labels * n_counts) for rows in (~has_label, has_label)])
        smoothed = self.smoothing + table.reshape(2, n_labels, n_counts)
        return smoothed / smoothed.sum(axis=2, keepdims=True)


def _distinct_sets(Y):
    """The distinct rows of Y, smaller sets first, then those with lower labels, and the place of each row of Y."""
    distinct, place = np.unique(Y, axis=0, return_inverse=True)
    # By decreasing place within a size: the larger of two rows in sorted order has the lower labels.
    order = np.lexsort([-np.arange(len(distinct)), distinct.sum(axis=1, dtype=np.int64)])
    return distinct[order], np.argsort(order)[place.ravel()]


def _for_estimator(meta, X):
    """X as it is, for the estimator validates it; only names and number of features are held to those of training."""
    check_is_fitted(meta)
    shape = getattr(X, "shape", ())
    if len(shape) == 1 and hasattr(meta, "n_features_in_"):
        raise ValueError(f"X must have a column per feature; got shape {shape}. Reshape your data to a matrix.")
    return validate_data(meta, X, reset=False, skip_check_array=True)


def _weights_to_pass_on(estimator, sample_weight, X):
    """Weights of the rows, and the argument that hands them to the estimator's fit where there are any."""
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if sample_weight is None:
        return weights, {}
    if not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(f"sample_weight must be None, because {type(estimator).__name__}.fit doesn't take it.")
    return weights, {"sample_weight": weights}


def _has_proba(meta, estimator):
    """Whether the fitted estimator, or else the one to be fitted, has predict_proba."""
    fitted = getattr(meta, "estimator_", None)
    return hasattr(estimator if fitted is None else fitted, "predict_proba")


def _log_proba(estimator, X):
    """Logarithms of the estimator's probabilities; its own where it has them, as they are more exact."""
    with np.errstate(divide="ignore"):
        if hasattr(estimator, "predict_log_proba"):
            return estimator.predict_log_proba(X)
        return np.log(estimator.predict_proba(X))


def _log_proba_of_classes(estimator, X, y):
    """log P(y_i | x_i) of the estimator; -inf for a class that it doesn't know."""
    log_proba = _log_proba(estimator, X)
    found = y[:, None] == np.asarray(estimator.classes_, np.int64)
    return np.where(found, log_proba, -np.inf).max(axis=1)


def _check_chain(chain, Y):
    if Y.shape[1] != len(chain.estimators_):
        raise ValueError(f"Y must have {len(chain.estimators_)} columns, one per link; got {Y.shape[1]}.")
    if any(not np.isin(link.classes_, (0, 1)).all() for link in chain.estimators_):
        raise ValueError("The chain must be fitted on an indicator matrix; a link has other classes than 0 and 1.")
    if not all(hasattr(link, "predict_proba") for link in chain.estimators_):
        raise ValueError(f"The chain's estimator must have predict_proba; {chain.estimator} has none.")
    if chain.cv is not None and chain.chain_method_ != "predict":
        raise ValueError(
            "With cv, the links must be trained on labels for a set to have a probability; use chain_method='predict' "
            f"in place of {chain.chain_method_!r}."
        )
