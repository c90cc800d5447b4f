"""Probabilistic classifier chains: the distribution of a chain, asked for its most probable sets by best-first search.

P(y | x) = prod_j P(y_j | x, y_1, ..., y_{j-1}), in the order of the chain. A prefix is the values of the first labels
of that order; its probability bounds that of every set that begins with it.
"""

import heapq
from abc import abstractmethod
from collections import defaultdict
from copy import copy
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh._sklearn import HasMethods, Interval, StrOptions, fit_context
from mlrh.baselines._base import _log_proba, _SetClassifier
from mlrh.baselines.chains import with_labels
from mlrh.baselines.or_constant import OrConstant
from mlrh.estimators import _device, _features, _held_out, _targets, _whole_fit
from mlrh.spaces import LabelSetDistribution, listed_sets
from mlrh.spaces.base import MAX_ENUMERATED

MAX_VALUES = 2**23  # entries of one matrix of features and earlier labels: 64 MiB, of which a link makes a few copies
ORDER = ["array-like", StrOptions({"random"}), None]
EPSILON = [Interval(Real, 0, 1, closed="left")]


class _Chain(_SetClassifier):
    """A chain of classifiers and its distribution; a subclass says how a link is fitted."""

    order: Any
    epsilon: float
    random_state: Any

    @abstractmethod
    def _link_fitter(self, task):
        """A function (features, label) -> a link fitted to the features and the label of the task's rows."""

    def _fit(self, X, y, estimator, sample_weight):
        """Fit the links; estimator is what gets the weights, if they are given."""
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X = validate_data(fitted, X, accept_sparse="csr", dtype=np.float64)
        form, Y = _targets.encode(y)
        task = _held_out.task(estimator, X, form, Y, sample_weight)
        form, Y = task.form, task.Y
        order = self._order(Y.shape[1])
        fitted._targets, fitted.classes_, fitted.order_ = form, form.classes, order
        fit_link = fitted._link_fitter(task)
        before = [Y[:, order[:place]] for place in range(Y.shape[1])]
        fitted.links_ = [fit_link(with_labels(X, own), label) for own, label in zip(before, order, strict=True)]
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    def distribution(self, X) -> LabelSetDistribution:
        """The distribution of the label set of each row of X, a list of all sets: for at most 14 labels.

        Three or more classes as y are a label each, in any number; of two classes the second one is the label.
        """
        X = self._validated(X)
        if self._is_single and len(self.classes_) > 2:
            return listed_sets(np.eye(len(self.classes_), dtype=np.int8), self._class_log_weights(X))
        self._check_listable()
        return self._listed(X)

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes).

        They are sums over all sets, so there may be at most 14 labels (any number of classes).
        """
        X = self._validated(X)
        if self._is_single and len(self.classes_) == 2:
            return np.exp(self._link_log_proba(0, X, np.zeros((X.shape[0], 0), np.int8)))
        if self._is_single:
            return softmax(self._class_log_weights(X), axis=1)
        self._check_listable()
        n_labels = len(self.order_)
        n_rows = max(1, MAX_VALUES // (n_labels << n_labels))  # whose sets are listed at a time
        parts = [self._listed(X[begin : begin + n_rows]).marginals() for begin in range(0, X.shape[0], n_rows)]
        return np.concatenate(parts)

    def set_log_proba(self, X, Y) -> np.ndarray:
        """Logarithm of the probability of each row's label set, (n_samples,); Y has the form of the y of training."""
        X = self._validated(X)
        Y, unknown = self._targets.partial_indicator(Y)
        _targets.check_same_length(X, Y)
        if self._is_single and len(self.classes_) > 2:
            log_proba = log_softmax(self._class_log_weights(X), axis=1)[np.arange(len(Y)), Y.argmax(axis=1)]
        else:
            log_proba = self._log_prob(X, Y)
        return np.where(unknown, -np.inf, log_proba)

    def top_sets(self, X, n) -> tuple[np.ndarray, np.ndarray]:
        """The n most probable sets of each row, best first, and their log-probabilities.

        Exact, by best-first search over prefixes. Returns sets (n_samples, n, n_labels), with columns as in classes_,
        and log_probs (n_samples, n). What has no probability above 0 is filled with empty sets of log-probability
        -inf. Where y has one class per row, ask predict_proba.
        """
        X = self._validated(X)
        self._check_asked_for_sets(n)
        sets = np.zeros((X.shape[0], n, len(self.order_)), np.int8)
        log_probs = np.full((X.shape[0], n), -np.inf)
        for row, found in enumerate(self._search(X, n, np.inf)[0]):
            for place, (cost, prefix) in enumerate(found):
                sets[row, place, self.order_], log_probs[row, place] = np.frombuffer(prefix, np.int8), -cost
        return sets, log_probs

    def sample(self, X, n=1, random_state=None) -> np.ndarray:
        """n independent sets per row, (n_samples, n, n_labels), drawn label by label in the order of the chain."""
        X = self._validated(X)
        self._check_asked_for_sets(n)
        random_state, rows = check_random_state(random_state), np.repeat(np.arange(X.shape[0]), n)
        drawn = np.zeros((len(rows), len(self.order_)), np.int8)
        for place in range(len(self.order_)):
            proba = np.exp(self._link_log_proba(place, X, drawn[:, :place], rows)[:, 1])
            drawn[:, place] = random_state.random_sample(len(rows)) < proba
        return self._by_label(drawn).reshape(X.shape[0], n, -1)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _is_single(self):
        return self._targets.is_one_class_per_row

    def _validated(self, X):
        check_is_fitted(self)
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)

    def _order(self, n_labels):
        if self.order is None:
            return np.arange(n_labels)
        if isinstance(self.order, str):
            return check_random_state(self.random_state).permutation(n_labels)
        order = np.asarray(self.order)
        if not np.array_equal(np.sort(order), np.arange(n_labels)):
            raise ValueError(
                f"order must hold the numbers of the labels, 0 to {n_labels - 1}, each once; got {order.tolist()}."
            )
        return order

    def _check_asked_for_sets(self, n):
        if self._is_single:
            raise ValueError("The model was fitted to one class per row, which makes no sets; ask predict_proba.")
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"The number of sets must be a positive integer; got {n!r}.")

    def _by_label(self, values):
        """Values in the order of the chain (n, n_labels), in the order of the labels."""
        result = np.empty_like(values)
        result[:, self.order_] = values
        return result

    def _link_log_proba(self, place, X, earlier, rows=None):
        """log P(y_j = 0 or 1 | x, earlier labels) of the link at the place, (n, 2), for `rows` of X, in parts."""
        rows, link = np.arange(len(earlier)) if rows is None else rows, self.links_[place]
        n_rows = max(1, MAX_VALUES // (X.shape[1] + place))
        parts = [
            self._log_proba_of(link, with_labels(X[rows[begin : begin + n_rows]], earlier[begin : begin + n_rows]))
            for begin in range(0, len(rows), n_rows)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 2))

    def _log_proba_of(self, link, features):
        return _log_proba(link, features)

    def _log_prob(self, X, Y):
        """log P(y | x) of one set per row, (n_samples,)."""
        values, log_prob = Y[:, self.order_], np.zeros(len(Y))
        for place in range(len(self.order_)):
            log_prob += self._link_log_proba(place, X, values[:, :place])[np.arange(len(Y)), values[:, place]]
        return log_prob

    def _class_log_weights(self, X):
        """log P of the set of each class alone, (n_samples, n_classes): these sets are the only ones possible."""
        each = np.eye(len(self.classes_), dtype=np.int8)
        log_weights = np.column_stack([self._log_prob(X, np.tile(alone, (X.shape[0], 1))) for alone in each])
        # Links that are sure of each other's contrary, as trees can be, leave no class; then all are equally likely.
        log_weights[np.isneginf(log_weights).all(axis=1)] = 0.0
        return log_weights

    def _check_listable(self):
        n_labels = len(self.order_)
        if n_labels > MAX_ENUMERATED:
            raise ValueError(
                f"Distribution and marginals of a chain are made of all label sets, for at most {MAX_ENUMERATED} "
                f"labels; got {n_labels}. Ask predict, set_log_proba, top_sets or sample."
            )

    def _listed(self, X):
        """All sets with their probabilities; each link splits every prefix in two."""
        n_rows, n_labels = X.shape[0], len(self.order_)
        rows, prefixes, log_probs = np.arange(n_rows), np.zeros((n_rows, 0), np.int8), np.zeros(n_rows)
        for place in range(n_labels):
            log_probs = (log_probs[:, None] + self._link_log_proba(place, X, prefixes, rows)).ravel()
            last = np.tile(np.array([[0], [1]], np.int8), (len(rows), 1))
            rows, prefixes = np.repeat(rows, 2), np.hstack([np.repeat(prefixes, 2, axis=0), last])
        sets = self._by_label(prefixes[: 2**n_labels])  # of the first row; the others have the same
        by_size = np.argsort(np.count_nonzero(sets, axis=1), kind="stable")  # ties go to the smaller set
        return listed_sets(sets[by_size], log_probs.reshape(n_rows, -1)[:, by_size])

    def _predict_sets(self, X):
        X = self._validated(X)
        if self._is_single and len(self.classes_) > 2:
            best = self._class_log_weights(X).argmax(axis=1)
            return (best[:, None] == np.arange(len(self.classes_))).astype(np.int8)
        max_cost = -np.log(self.epsilon) if self.epsilon > 0 else np.inf
        found, ends = self._search(X, 1, max_cost)
        modes = np.zeros((X.shape[0], len(self.order_)), np.int8)
        for row, sets in enumerate(found):
            if sets:
                modes[row] = np.frombuffer(sets[0][1], np.int8)
        self._complete(X, modes, [row for row, sets in enumerate(found) if not sets], ends)
        return self._by_label(modes)

    def _search(self, X, n_sets, max_cost):
        """Best-first search for the n_sets most probable sets of each row; the cost of a prefix is -log P.

        A prefix taken from a row's heap is the most probable one left there, so a whole set that is taken is the most
        probable set left. Each round takes one prefix per row and asks each link once for all rows. Prefixes that cost
        more than max_cost are not followed. Returns, for each row, a list of (cost, set), and a list of the prefixes
        that were followed but neither of whose continuations was. Values are bytes, in the order of the chain.
        """
        n_rows, n_labels = X.shape[0], len(self.order_)
        heaps: list[list] = [[(0.0, b"")] for _ in range(n_rows)]
        found: list[list] = [[] for _ in range(n_rows)]
        ends: list[list] = [[] for _ in range(n_rows)]
        active = list(range(n_rows))
        while active:
            taken: dict[int, list] = defaultdict(list)
            still = []
            for row in active:
                while heaps[row] and len(heaps[row][0][1]) == n_labels and len(found[row]) < n_sets:
                    found[row].append(heapq.heappop(heaps[row]))
                if heaps[row] and len(found[row]) < n_sets:
                    cost, prefix = heapq.heappop(heaps[row])
                    taken[len(prefix)].append((row, cost, prefix))
                    still.append(row)
            for place, prefixes in taken.items():
                for (row, cost, prefix), log_proba in zip(prefixes, self._next(place, X, prefixes), strict=True):
                    both = [(cost - log_p, prefix + value) for log_p, value in zip(log_proba, VALUES, strict=True)]
                    # A label of probability 0 is not followed either, whatever max_cost is.
                    followed = [child for child in both if child[0] <= max_cost and child[0] < np.inf]
                    for child in followed:
                        heapq.heappush(heaps[row], child)
                    if not followed:
                        ends[row].append((cost, prefix))
            active = still
        return found, ends

    def _next(self, place, X, prefixes):
        """log P of both values of the label at the place, given prefixes [(row, cost, prefix), ...]."""
        rows = np.array([row for row, _, _ in prefixes])
        earlier = np.frombuffer(b"".join(prefix for _, _, prefix in prefixes), np.int8).reshape(len(rows), place)
        return self._link_log_proba(place, X, earlier, rows).tolist()

    def _complete(self, X, modes, rows, ends):
        """Write into modes, for the rows, the best of the sets that continue their ends by the likelier value each."""
        started = [(row, cost, prefix) for row in rows for cost, prefix in ends[row]]
        for place in range(len(self.order_)):
            here = [i for i, (_, _, prefix) in enumerate(started) if len(prefix) == place]
            log_probas = self._next(place, X, [started[i] for i in here]) if here else []
            for i, (absent, present) in zip(here, log_probas, strict=True):
                row, cost, prefix = started[i]
                started[i] = (row, cost - max(absent, present), prefix + VALUES[present > absent])
        # The best comes last and stays; ties go to the set that the search would take first.
        for row, _, prefix in sorted(started, key=lambda end: (end[1], end[2]), reverse=True):
            modes[row] = np.frombuffer(prefix, np.int8)


class ProbabilisticChain(MetaEstimatorMixin, _Chain):
    """Probabilistic classifier chain: predicts the most probable set of a chain, not the greedy one.

    The links are those of scikit-learn's ClassifierChain, whose predict decides label by label and can miss the most
    probable set. Here it is found exactly by best-first search over prefixes (uniform-cost search). That is quick where
    one set stands out, and takes up to 2^n_labels steps where none does; then set epsilon. With one class per row as y,
    the sets of one class each are the only ones possible, and their probabilities are scaled to sum to one. A label
    that all training rows have, or none, is always answered so.

    Parameters
    ----------
    estimator : classifier with predict_proba, default=None
        None is LogisticRegression().
    order : array-like of shape (n_labels,), "random" or None, default=None
        Numbers of the labels in the order of the chain; None: as they come.
    epsilon : float, default=0.0
        Prefixes less probable than that are not followed, so predict takes at most n_labels / epsilon steps per row.
        0 finds the most probable set always, epsilon > 0 finds it if its probability is at least epsilon. Otherwise the
        prefixes where the search ended are continued greedily, and the best of these sets is the answer. From 0.5 on it
        is the answer of a plain chain. The other methods are exact whatever epsilon is.
    random_state : int, RandomState or None, default=None
        For order="random".

    Attributes
    ----------
    links_ : list of OrConstant around the fitted estimators, in the order of the chain
    order_ : array of shape (n_labels,)
    classes_ : array
        Names of the labels, or the classes of y. For two classes the second one is the label.
    n_features_in_, feature_names_in_ : of X

    References
    ----------
    K. Dembczyński, W. Cheng and E. Hüllermeier, "Bayes optimal multilabel classification via probabilistic classifier
    chains", ICML 2010. The search and epsilon: K. Dembczyński, W. Waegeman and E. Hüllermeier, "An analysis of chaining
    in multi-label classification", ECAI 2012; compared with others by D. Mena, E. Montañés, J. R. Quevedo and J. J. del
    Coz, "Using A* for inference in probabilistic classifier chains", IJCAI 2015.

    Examples
    --------
    >>> from mlrh.baselines import ProbabilisticChain
    >>> X = [[0.0], [1.0], [4.0], [5.0], [9.0], [10.0]]
    >>> y = [{"rain"}, {"rain"}, {"rain", "sun"}, {"rain", "sun"}, {"sun"}, {"sun"}]
    >>> chain = ProbabilisticChain().fit(X, y)
    >>> [sorted(labels) for labels in chain.predict([[0.5], [4.5], [11.0]])]
    [['rain'], ['rain', 'sun'], ['sun']]
    >>> sets, log_probs = chain.top_sets([[4.5]], 2)
    >>> sets[0].tolist()
    [[1, 1], [1, 0]]
    """

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit", "predict_proba"]), None],
        "order": ORDER,
        "epsilon": EPSILON,
        "random_state": ["random_state"],
    }

    def __init__(self, estimator=None, *, order=None, epsilon=0.0, random_state=None):
        self.estimator = estimator
        self.order = order
        self.epsilon = epsilon
        self.random_state = random_state

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit the links to X (n_samples, n_features), dense or sparse, and y in any of the forms of MLRHClassifier.

        sample_weight (n_samples,), if given, is passed on to every link; a row of weight 0 is left out.
        """
        return self._fit(X, y, self._chosen(), sample_weight)

    def _link_fitter(self, task):
        link = OrConstant(self._chosen())
        options = {} if task.weights_name is None else {"sample_weight": task.weights}
        return lambda features, label: clone(link).fit(features, task.Y[:, label], **options)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self._chosen()).input_tags.sparse
        return tags

    def _chosen(self):
        return LogisticRegression() if self.estimator is None else self.estimator


VALUES = (b"\x00", b"\x01")  # of the next label of a prefix
