"""PooledSets: several classifiers as one distribution of the label set, weighted by how likely they make held-out sets.

How classifiers are fitted to folds, and in which form they answer, is up to `_held_out`.
"""

from copy import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import minimize
from sklearn.base import MetaEstimatorMixin
from sklearn.utils import Bunch, get_tags, indexable
from sklearn.utils.validation import validate_data

from mlrh import decisions
from mlrh._sklearn import StrOptions, fit_context, safe_indexing
from mlrh.estimators import _device, _features, _held_out, _targets, _whole_fit
from mlrh.spaces import CardinalitySpace, LabelSetDistribution, Mixture, geometric_mean
from mlrh.spaces.mixture import checked_weights, geometric_likelihood

# EM ends where no other weights could raise the mean log-likelihood of a held-out row by more than this: far below
# what the choice of the rows makes of it.
TOLERANCE = 1e-6
# After t iterations that is at most log(n_members) / t; so many are seldom needed and take about a second.
MAX_ITER = 100_000


class PooledSets(MetaEstimatorMixin, _targets.SetClassifier):
    """Several classifiers pooled into one distribution of the label set.

    Errors that members don't share cancel out, so that a pool of different models with about equal scores is often
    better than each of them. With weights="held-out" each member is fitted once per fold, and in the end to all rows.
    The weights are those that make the held-out true sets most likely; this is a concave problem, so that there is one
    best value. A held-out row whose set all members hold impossible doesn't count.

    - pooling="mixture": P(y) = sum_c w_c P_c(y), of any members. See `mlrh.spaces.Mixture` for what is exact.
    - pooling="geometric": P(y) proportional to prod_c P_c(y)^w_c, of members with scores in label spaces with the same
      sets: scores and biases are averaged. It is surer where members agree, and all answers are as fast as a member's.

    Parameters
    ----------
    estimators : list of (name, classifier)
        Each with a `distribution`, as MLRHClassifier and LabelPowerset have; also as the last step of a pipeline, or in
        a search such as GridSearchCV. Or with predict_proba: then its labels are taken as independent given x.
    weights : {"held-out", "equal"} or numbers, default="held-out"
        Numbers, one per member, are scaled to sum to 1. Nothing is held out for them or for "equal".
    pooling : {"mixture", "geometric"}, default="mixture"
    cv : int, splitter, iterable of (training rows, held-out rows) or None, default=None
        Of weights="held-out". An int, or None for 5 (or fewer, where rows are fewer): that many shuffled folds, over
        which labels and label sets are spread evenly.
    decision, answer_sizes : see MLRHClassifier
        What predict answers, from the pooled distribution.
    n_jobs : int, default=None
        Processes over members and folds, as in joblib.

    Attributes
    ----------
    weights_ : array of shape (n_members,)
        Sums to 1.
    estimators_ : list of the members, fitted to all rows
    named_estimators_ : the same by name
    classes_ : array
        Names of the labels, or the classes of y.
    n_features_in_, feature_names_in_ : of X, where it has them

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from mlrh import KernelMLRHClassifier, PooledSets
    >>> from mlrh.baselines import LabelPowerset
    >>> X, Y = make_multilabel_classification(200, n_classes=4, random_state=0)
    >>> trees = LabelPowerset(RandomForestClassifier(50, random_state=0))
    >>> pool = PooledSets([("kernel", KernelMLRHClassifier(label_space="observed")), ("trees", trees)])
    >>> pool.fit(X[:150], Y[:150]).predict_proba(X[150:]).shape
    (50, 4)
    >>> bool(pool.weights_.sum().round(12) == 1)
    True
    """

    _parameter_constraints: dict = {
        "estimators": [list, tuple],
        "weights": [StrOptions({"held-out", "equal"}), "array-like"],
        "pooling": [StrOptions({"mixture", "geometric"})],
        "cv": ["cv_object"],
        "decision": [StrOptions(set(decisions.BY_NAME)), tuple, callable],
        "answer_sizes": [None, tuple, list],
        "n_jobs": [Integral, None],
    }
    estimators_: list

    def __init__(
        self,
        estimators,
        *,
        weights="held-out",
        pooling="mixture",
        cv=None,
        decision="exact_match",
        answer_sizes=None,
        n_jobs=None,
    ):
        self.estimators = estimators
        self.weights = weights
        self.pooling = pooling
        self.cv = cv
        self.decision = decision
        self.answer_sizes = answer_sizes
        self.n_jobs = n_jobs

    def get_params(self, deep=True) -> dict[str, Any]:
        """Parameters by name; with deep, also the members by their names and their parameters as name__parameter."""
        params = super().get_params(deep=False)
        for name, member in self._by_name().items() if deep else ():
            params[name] = member
            if hasattr(member, "get_params"):
                params.update((f"{name}__{key}", value) for key, value in member.get_params().items())
        return params

    def set_params(self, **params) -> Self:
        """Set parameters of the pool, whole members by their names, or parameters of members as name__parameter."""
        self.estimators = params.pop("estimators", self.estimators)
        if self._by_name().keys() & params.keys():
            self.estimators = [(name, params.pop(name, member)) for name, member in self.estimators]
        return super().set_params(**params)

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y, sample_weight=None) -> Self:
        """Fit all members, and choose their weights.

        Parameters
        ----------
        X : whatever the members take, with n_samples rows
        y : indicator matrix, list of label sets, or classes of shape (n_samples,)
            The members get an array of 0 and 1, or the classes. A matrix may hold NaN where a label is unknown, if the
            members take it and weights are not to be learned on held-out rows.
        sample_weight : array of shape (n_samples,), optional
            Passed on to all members, and the weights of the held-out rows: a row of weight 2 counts as the row twice,
            one of weight 0 as absent.

        Returns
        -------
        self
        """
        self._check_members()
        _device.refuse(X, type(self).__name__)
        _features.check(X)
        fitted = copy(self)  # if this fit fails, self keeps the last one
        X = indexable(validate_data(fitted, X, skip_check_array=True))[0]
        form, Y = _targets.encode(y, partly_known=True)
        # Other weights need no held-out rows, and so no row whose labels are all known.
        options = {"partly_known": not (isinstance(self.weights, str) and self.weights == "held-out")}
        tasks = [_held_out.task(member, X, form, Y, sample_weight, **options) for _, member in self.estimators]
        self._check_decision(tasks[0].form)
        fitted.weights_ = self._chosen_weights(tasks)
        fitted.estimators_ = Parallel(n_jobs=self.n_jobs)(delayed(task.fit)() for task in tasks)
        fitted._never, fitted._targets, fitted.classes_ = tasks[0].never(), tasks[0].form, tasks[0].form.classes
        fitted.distribution(safe_indexing(X, [0]))  # raises here, not later, where members can't be pooled
        _whole_fit.keep(self, vars(fitted), without=vars(self))
        return self

    @property
    def named_estimators_(self):
        """The fitted members by name."""
        return Bunch(**dict(zip([name for name, _ in self.estimators], self.estimators_, strict=True)))

    def distribution(self, X) -> LabelSetDistribution:
        """The pooled distribution of the label set of each row of X.

        Columns are those of classes_; with two classes as y there is one label, the second class.
        """
        X = _held_out.validated_rows(self, X)
        members = [_held_out.distribution_of(member, X, self._targets, self._never) for member in self.estimators_]
        pool = Mixture if self.pooling == "mixture" else geometric_mean
        return pool(members, self.weights_)

    def predict_proba(self, X) -> np.ndarray:
        """Marginals P(y_k = 1 | x) (n_samples, n_labels); for classes as y, P(class | x) (n_samples, n_classes)."""
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row and len(self.classes_) == 2:
            return distribution.cardinality_pmf()
        return distribution.marginals()

    def __sklearn_is_fitted__(self):
        """Whether a fit has ended."""
        return hasattr(self, "estimators_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inputs = [get_tags(member).input_tags for member in self._by_name().values()]
        tags.input_tags.sparse = all(tag.sparse for tag in inputs)
        tags.input_tags.allow_nan = all(tag.allow_nan for tag in inputs)
        tags.input_tags.pairwise = any(tag.pairwise for tag in inputs)
        tags.classifier_tags.multi_label = True
        return tags

    def _predict_sets(self, X):
        distribution = self.distribution(X)
        if self._targets.is_one_class_per_row:
            return decisions.exact_match(distribution)
        return decisions.resolve(self.decision, self.answer_sizes)(distribution)

    def _by_name(self):
        """The members by name; none where `estimators` is no list of pairs, which is an error in fit only."""
        try:
            return dict(self.estimators)
        except (TypeError, ValueError):
            return {}

    def _check_members(self):
        """Raise a ValueError unless estimators are pairs of distinct names and classifiers."""
        members = self.estimators
        are_pairs = all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in members)
        if not members or not are_pairs or not all(hasattr(member, "fit") for _, member in members):
            raise ValueError(f"estimators must be a list of pairs (name, classifier), at least one; got {members!r}.")
        names, own = [name for name, _ in members], self.get_params(deep=False)
        for place, name in enumerate(names):
            if not isinstance(name, str) or "__" in name or name in own or name in names[:place]:
                raise ValueError(
                    "Names of estimators must be distinct strings without '__' that are no parameters of PooledSets; "
                    f"got {name!r} in {names}."
                )

    def _check_decision(self, form):
        """Raise the ValueError of a decision or answer_sizes that predict would raise later."""
        n_labels = _held_out.n_labels(form)
        if not form.is_one_class_per_row:
            decisions.check(self.decision, self.answer_sizes, CardinalitySpace(n_labels, 0, n_labels))

    def _chosen_weights(self, tasks):
        """The weights of the members, (n_members,)."""
        if not isinstance(self.weights, str):
            return checked_weights(self.weights, 1, len(tasks))[0]
        if self.weights == "equal":
            return np.full(len(tasks), 1 / len(tasks))
        folds = _held_out.folds(self.cv, tasks[0])
        work = [delayed(_part)(task, *fold) for fold in folds for task in tasks]
        parts = Parallel(n_jobs=self.n_jobs)(work)
        choose = _weights_of_mixture if self.pooling == "mixture" else _weights_of_geometric_mean
        return choose([parts[start : start + len(tasks)] for start in range(0, len(parts), len(tasks))])


@dataclass(frozen=True, eq=False)
class _Part:
    """Held-out rows of a fold as one member sees them: distribution, true sets, and weights.

    The weight is 0 where the fold's member doesn't know the class of the row.
    """

    distribution: LabelSetDistribution
    truth: np.ndarray
    weights: np.ndarray


def _part(task, train, rows):
    """The _Part of a member that is fitted to the rows train."""

    def question(fitted, X):
        form, truth, is_known = _held_out.form_and_truth(task, fitted, rows)
        distribution = _held_out.distribution_of(fitted, X, form, task.never(train))
        return _Part(distribution, truth, task.weights[rows] * is_known)

    return task.answer(train, rows, question)


def _weights_of_mixture(folds):
    """The weights of the largest held-out likelihood, by EM; `folds` holds a list of all members' parts per fold."""
    log_probs = np.concatenate(
        [np.stack([part.distribution.log_prob(part.truth) for part in parts], axis=1) for parts in folds]
    )
    weights = np.concatenate([parts[0].weights for parts in folds])
    _check_any(_that_count(log_probs, weights))
    return largest_likelihood(log_probs, weights)


def _that_count(log_probs, sample_weight):
    """The rows of positive weight that are possible for some member."""
    return (sample_weight > 0) & (log_probs > -np.inf).any(axis=1)


def largest_likelihood(log_probs, sample_weight):
    """Weights w (n_members,) that maximise the mean of log sum_c w_c P_c, by EM; equal ones where no row counts.

    log_probs (n_rows, n_members) are those of the true sets. Rows that all members hold impossible don't count.
    """
    rows = _that_count(log_probs, sample_weight)
    if not rows.any():
        return np.full(log_probs.shape[1], 1 / log_probs.shape[1])
    log_probs, sample_weight = log_probs[rows].astype(np.float64), sample_weight[rows]
    # What all members have in common cancels out; so the largest of each row can be 1, and none underflows for all.
    probs = np.exp(log_probs - log_probs.max(axis=1, keepdims=True))
    share, weights = sample_weight / sample_weight.sum(), np.full(probs.shape[1], 1 / probs.shape[1])
    for _ in range(MAX_ITER):
        # One step is w_c <- w_c gain_c. By concavity no weights are better by more than log(max gain).
        gains = share @ (probs / (probs @ weights)[:, None])
        if gains.max() <= 1 + TOLERANCE:
            break
        weights = weights * gains
    return weights / weights.sum()


def _weights_of_geometric_mean(folds):
    """The weights of the largest held-out likelihood under the geometric mean, a concave function of them."""
    n_members, chosen = len(folds[0]), []
    for parts in folds:
        distributions = [part.distribution for part in parts]
        truth, weights = parts[0].truth, parts[0].weights
        # Members have the same sets, so that the same rows are possible at all weights.
        inside = (weights > 0) & np.isfinite(geometric_mean(distributions, np.ones(n_members)).log_prob(truth))
        chosen.append(([d.take(inside) for d in distributions], truth[inside], weights[inside]))
    _check_any(np.concatenate([weights for _, _, weights in chosen]))
    total = sum(weights.sum() for _, _, weights in chosen)

    def loss(weights):
        # The steps of the search leave the bounds by rounding.
        parts = [geometric_likelihood(d, np.maximum(weights, 0.0), Y, rows) for d, Y, rows in chosen if len(rows)]
        values, slopes = zip(*parts, strict=True)
        return -sum(values) / total, -sum(slopes) / total

    found = minimize(
        loss,
        np.full(n_members, 1 / n_members),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * n_members,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(n_members)},
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    return checked_weights(np.maximum(found.x, 0.0), 1, n_members)[0]


def _check_any(rows):
    if not np.any(rows):
        raise ValueError(
            "weights='held-out' needs held-out rows whose set some member holds possible; the members exclude all of "
            "them. Use weights='equal', larger label spaces or more rows."
        )
