"""CorrLog: logistic models of the labels, joined by a weight for each pair of labels."""

from copy import copy
from numbers import Integral, Real
from typing import Self

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from mlrh._sklearn import Interval, check_sample_weight, fit_context
from mlrh._warnings import warn
from mlrh.baselines._base import _SetClassifier
from mlrh.estimators import _device, _features, _targets, _whole_fit
from mlrh.spaces import LabelSetDistribution, ObservedSpace
from mlrh.spaces.base import MAX_ENUMERATED

MAX_VALUES = 2**22  # messages held at a time: 32 MiB
MAX_ROUNDS = 100  # of messages: on a tree about 30 beyond its length are enough, in cycles they may never settle
ROUNDING = 64 * np.finfo(np.float64).eps  # a relative decrease that is rounding error, as LogisticRegression has it
SETTLED = 1e-9  # a largest change of a message, as a share of the largest pair weight, that no decision depends on


class CorrLog(_SetClassifier):
    """CorrLog: P(y | x) proportional to exp(sum_k y_k (w_k x + b_k) + sum_{j<k} a_jk y_j y_k), with an elastic net.

    Given the other labels, each label is a logistic regression on the features and on those labels. Training maximises
    the product of these conditional probabilities (the pseudo-likelihood), with L1 and L2 penalties on w and a:
    C * sum of log-losses + sum of |w|_1 l1_ratio + |w|^2 (1 - l1_ratio) / 2, and the same on a, each pair once.
    (Labels are 0 and 1 here, -1 and 1 in the paper: the same models, with w / 2 and a / 4 there.)

    Answers are exact, by a sum over all sets, where up to 14 labels vary in training. Beyond that, predict looks for
    the most probable set by max-product messages between labels, and then changes single labels as long as that gives
    a more probable set. On a tree of pairs that is the most probable set, otherwise it may be another one; there are no
    probabilities. With three or more classes as y, one per row, no row has a pair of labels, so a is left out:
    P(class | x) is proportional to exp(w x + b), for any number of classes. A label that all training rows have, or
    none, is always answered so.

    Parameters
    ----------
    C : float, default=1.0
        As for LogisticRegression: the inverse strength of the penalty on w.
    l1_ratio : float, default=0.5
        Share of L1 in the penalty, from 0 (only L2) to 1 (only L1).
    C_pairs : float, default=None
        The same as C, for a; None: as C.
    tol : float, default=1e-6
        The fit ends where no entry of the gradient of the mean loss is larger than that, with each parameter in a unit
        that makes its curvature about 1.
    max_iter : int, default=1000

    Attributes
    ----------
    coef_ : array of shape (n_labels, n_features)
        w.
    pair_coef_ : array of shape (n_labels, n_labels)
        a, symmetric, with zeros on the diagonal.
    intercept_ : array of shape (n_labels,)
        b; infinite for a constant label.
    label_space_ : ObservedSpace of the possible sets with their sums of a; None where there are too many to list
    n_iter_ : int
    classes_ : array
        Names of the labels, or the classes of y. For two classes the second one is the label.
    n_features_in_, feature_names_in_ : of X

    References
    ----------
    W. Bian, B. Xie and D. Tao, "CorrLog: Correlated logistic models for joint prediction of multiple labels", AISTATS
    2012. The elastic net: Q. Li, B. Xie, J. You, W. Bian and D. Tao, "Correlated logistic model with elastic net
    regularization for multilabel image classification", IEEE Transactions on Image Processing 25 (2016), 3801-3813.

    Examples
    --------
    >>> from mlrh.baselines import CorrLog
    >>> X = [[0.0], [1.0], [4.0], [5.0], [9.0], [10.0]]
    >>> y = [{"rain"}, {"rain"}, {"rain", "wind"}, {"rain", "wind"}, {"sun"}, {"sun"}]
    >>> clf = CorrLog(C=10).fit(X, y)
    >>> [sorted(labels) for labels in clf.predict([[0.5], [4.5], [11.0]])]
    [['rain'], ['rain', 'wind'], ['sun']]
    """

    _parameter_constraints: dict = {
        "C": [Interval(Real, 0, None, closed="neither")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "C_pairs": [Interval(Real, 0, None, closed="neither"), None],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, C=1.0, *, l1_ratio=0.5, C_pairs=None, tol=1e-6, max_iter=1000):
        self.C = C
        self.l1_ratio = l1_ratio
        self.C_pairs = C_pairs
        self.tol = tol
        self.max_iter = max_iter

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit to X (n_samples, n_features), dense or sparse, and y in any of the forms of MLRHClassifier.

        sample_weight (n_samples,), if given, counts each row that often; a row of weight 0 is left out.
        """
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X = validate_data(fitted, X, accept_sparse="csr", dtype=np.float64)
        form, Y = _targets.encode(y)
        _targets.check_same_length(X, Y)
        weights = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if (weights == 0).any():
            shown = np.flatnonzero(weights > 0)
            X, weights = X[shown], weights[shown]
            form, Y = form.seen_in(Y[shown])
        fitted._targets, fitted.classes_ = form, form.classes
        fitted._fit_weights(X, Y, weights)
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    def distribution(self, X) -> LabelSetDistribution:
        """The distribution of the label set of each row of X, a LabelSetDistribution; for at most 14 labels that vary.

        Three or more classes as y are a label each, in any number; of two classes the second one is the label.
        """
        scores = self._scores(X)
        if self.label_space_ is None:
            raise ValueError(
                f"Probabilities of CorrLog are sums over all label sets, for at most {MAX_ENUMERATED} labels that vary "
                f"in training; got {np.count_nonzero(np.isfinite(self.intercept_))}. Only predict works beyond that."
            )
        return self.label_space_.distribution(scores)

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row and len(self.classes_) == 2:
            return distribution.cardinality_pmf()
        return distribution.marginals()

    def set_log_proba(self, X, Y) -> np.ndarray:
        """Logarithm of the probability of each row's label set, (n_samples,); Y has the form of the y of training."""
        distribution = self.distribution(X)
        Y, unknown = self._targets.partial_indicator(Y)
        return np.where(unknown, -np.inf, distribution.log_prob(np.where(unknown[:, None], 0, Y)))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _predict_sets(self, X):
        scores = self._scores(X)
        if self.label_space_ is not None:
            return self.label_space_.distribution(scores).mode()
        sets = np.tile((self.intercept_ > 0).astype(np.int8), (len(scores), 1))
        free = np.flatnonzero(np.isfinite(self.intercept_))
        n_rows = max(1, MAX_VALUES // len(free) ** 2)
        for begin in range(0, len(scores), n_rows):
            part = scores[begin : begin + n_rows, free]
            sets[begin : begin + n_rows, free] = likely_sets(part, self.pair_coef_[np.ix_(free, free)])
        return sets

    def _scores(self, X):
        """w x + b, (n_samples, n_labels); 0 for a constant label."""
        check_is_fitted(self)
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return X @ self.coef_.T + np.where(np.isfinite(self.intercept_), self.intercept_, 0.0)

    def _listed(self, free):
        """The possible sets with their sums of pair weights, as a label space; None if there are too many."""
        if self._targets.is_one_class_per_row and len(self.classes_) > 2:
            return ObservedSpace(np.eye(len(self.classes_), dtype=np.int8))
        if len(free) > MAX_ENUMERATED:
            return None
        sets = np.tile(self.intercept_ > 0, (2 ** len(free), 1)).astype(np.int8)
        sets[:, free] = np.arange(2 ** len(free))[:, None] >> np.arange(len(free)) & 1
        sets = sets[np.argsort(sets.sum(axis=1), kind="stable")]  # ties go to the smaller set
        return ObservedSpace(sets, 0.5 * ((sets @ self.pair_coef_) * sets).sum(axis=1))

    def _fit_weights(self, X, Y, weights):
        """Set w, a and b, and the space of the possible sets."""
        varies = Y.min(axis=0) < Y.max(axis=0)
        n_labels = Y.shape[1]
        self.coef_, self.pair_coef_ = np.zeros((n_labels, X.shape[1])), np.zeros((n_labels, n_labels))
        # Without a penalty on it, the intercept of a constant label grows without end, and its weights are best at 0.
        self.intercept_ = np.where(Y.min(axis=0) == 1, np.inf, -np.inf)
        free, self.n_iter_ = np.flatnonzero(varies), 0
        if len(free):
            has_pairs = not self._targets.is_one_class_per_row
            coef, pairs, intercept = self._maximised(X, Y[:, free].astype(np.float64), weights, has_pairs=has_pairs)
            self.coef_[free], self.pair_coef_[np.ix_(free, free)], self.intercept_[free] = coef, pairs, intercept
        self.label_space_ = self._listed(free)

    def _maximised(self, X, Y, weights, *, has_pairs):
        """w, a and b of the largest penalised pseudo-likelihood."""
        C_pairs = self.C if self.C_pairs is None else self.C_pairs
        objective = _Objective(X, Y, weights, has_pairs=has_pairs, strengths=(1 / self.C, 1 / C_pairs))
        parameters, self.n_iter_ = objective.minimum(self.l1_ratio, tol=self.tol, max_iter=self.max_iter)
        if self.n_iter_ >= self.max_iter:
            warn(
                f"CorrLog stopped after max_iter={self.max_iter} iterations before it converged. Scale the features, "
                "or raise max_iter or tol.",
                ConvergenceWarning,
            )
        return objective.parts(parameters)


class _Objective:
    """The mean over rows of -log P(y_k | x, other labels), summed over the labels, with penalties.

    It is the objective of CorrLog divided by C and the sum of the weights, so that its size is that of one row.
    Parameters are w, then a above its diagonal, then b.
    """

    def __init__(self, X, Y, weights, *, has_pairs, strengths):
        self.X, self.Y, self.share = X, Y, weights[:, None] / weights.sum()
        n_labels = Y.shape[1]
        self.pairs = np.triu_indices(n_labels, 1 if has_pairs else n_labels)  # none from the n_labels-th diagonal on
        self.n_coef = n_labels * X.shape[1]
        self.n_penalised = self.n_coef + len(self.pairs[0])
        self.strength = np.repeat(strengths, [self.n_coef, len(self.pairs[0])]) / weights.sum()

    def parts(self, parameters):
        """w (n_labels, n_features), a (n_labels, n_labels) and b (n_labels,)."""
        n_labels = self.Y.shape[1]
        above = np.zeros((n_labels, n_labels))
        above[self.pairs] = parameters[self.n_coef : self.n_penalised]
        return parameters[: self.n_coef].reshape(n_labels, -1), above + above.T, parameters[self.n_penalised :]

    def loss(self, parameters):
        """The loss without penalties, and its gradient."""
        coef, pair_coef, intercept = self.parts(parameters)
        scores = self.X @ coef.T + self.Y @ pair_coef + intercept
        # -log P(y_k | x, other labels) = log(1 + exp(score)) - y_k score.
        value = float((self.share * (np.logaddexp(0.0, scores) - self.Y * scores)).sum())
        residual = self.share * (expit(scores) - self.Y)
        by_pair = residual.T @ self.Y  # a_jk is in the scores of both j and k
        gradient = [(self.X.T @ residual).T.ravel(), (by_pair + by_pair.T)[self.pairs], residual.sum(axis=0)]
        return value, np.concatenate(gradient)

    def minimum(self, l1_ratio, *, tol, max_iter):
        """The best parameters, and the number of iterations.

        Every penalised parameter is the difference of two that are at least 0, so that L-BFGS-B takes the L1 penalty as
        a linear function. One of the two ends at exactly 0, and both where the parameter is 0.
        """
        l1, l2 = l1_ratio * self.strength, (1 - l1_ratio) * self.strength
        n_penalised, n_labels = self.n_penalised, self.Y.shape[1]

        unit = self.units(l2)
        own = unit[:n_penalised]

        def joined(positions):
            up, down, intercept = np.split(positions, [n_penalised, 2 * n_penalised])
            return own * (up - down), own * (up + down), unit[n_penalised:] * intercept

        def value_and_gradient(positions):
            penalised, total, intercept = joined(positions)
            value, gradient = self.loss(np.concatenate([penalised, intercept]))
            slope = gradient[:n_penalised] + l2 * penalised
            value += float(l1 @ total) + 0.5 * float(l2 @ penalised**2)
            scaled = [own * (l1 + slope), own * (l1 - slope), unit[n_penalised:] * gradient[n_penalised:]]
            return value, np.concatenate(scaled)

        start = np.zeros(2 * n_penalised + n_labels)
        bounds = [(0, None)] * (2 * n_penalised) + [(None, None)] * n_labels
        # Each iteration needs one or two evaluations, so that the number of these is no limit of its own.
        options = {"maxiter": max_iter, "maxfun": 20 * max_iter, "gtol": tol, "ftol": ROUNDING}
        found = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        penalised, _, intercept = joined(found.x)
        return np.concatenate([penalised, intercept]), int(found.nit)

    def units(self, l2):
        """Units of the parameters in which each has a curvature of about 1, so that their scale makes no fit slow.

        The curvature of a log-loss along its score is at most 1/4, and close to it where nothing is known.
        """
        squares = self.X.multiply(self.X) if sparse.issparse(self.X) else self.X**2
        of_features = np.asarray(squares.T @ self.share).ravel() / 4
        of_labels = (self.Y.T @ self.share).ravel() / 4
        of_pairs = of_labels[self.pairs[0]] + of_labels[self.pairs[1]]
        n_labels = self.Y.shape[1]
        curvature = np.concatenate([np.tile(of_features, n_labels), of_pairs, np.full(n_labels, 0.25)])
        curvature[: self.n_penalised] += l2
        return 1 / np.sqrt(np.where(curvature > 0, curvature, 1.0))


def likely_sets(scores, pairs) -> np.ndarray:
    """Sets (n_samples, n_labels) of large weight scores y + y pairs y / 2: max-product messages, then single changes.

    The message of label i to label j is by how much the best weight of i's side grows if j is present. Half of the old
    message is kept in each round, which lets messages in cycles settle more often.
    """
    messages = np.zeros((len(scores), *pairs.shape))  # [row, from, to]
    settled = SETTLED * max(np.abs(pairs).max(), np.finfo(np.float64).tiny)
    for _ in range(MAX_ROUNDS):
        # What label i knows without the label j that it writes to.
        known = (scores + messages.sum(axis=1))[:, :, None] - messages.transpose(0, 2, 1)
        change = 0.5 * (np.maximum(known + pairs, 0.0) - np.maximum(known, 0.0) - messages)
        messages += change
        if np.abs(change).max() <= settled:
            break
    return _improved(scores, pairs, (scores + messages.sum(axis=1) > 0).astype(np.int8))


def _improved(scores, pairs, sets):
    """The sets after changes of one label at a time, each to its likelier value given the others, until none is left.

    Every change makes a set more probable, so this ends. (The slack keeps rounding from undoing a change for ever.)
    """
    slack = 1e-12 * (np.abs(scores) + np.abs(pairs).sum(axis=0))
    while True:
        changed = False
        for label in range(sets.shape[1]):
            gain = scores[:, label] + sets @ pairs[label]  # of the label's presence
            flips = np.where(sets[:, label] == 1, -gain, gain) > slack[:, label]
            sets[flips, label] ^= 1
            changed |= bool(flips.any())
        if not changed:
            return sets
