"""Rows with features that say nothing, and optima from elsewhere, for the tests of L1 and elastic-net penalties."""

import numpy as np
import sklearn
from packaging.version import Version
from reference import sets_of_sizes
from samples import make_multilabel
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

TIGHT = {"tol": 1e-13, "max_iter": 3000}
SPACES = {
    "sizes 1 to 3": {},
    "size bias": {"size_bias": True},
    "observed": {"label_space": "observed"},
    "any size": {"min_labels": 0, "max_labels": 5},
    "without an intercept": {"fit_intercept": False},
}


def make_rows(n_samples=150, n_features=12, n_labels=5, seed=1, **options):
    """Rows whose last features say nothing, and weights."""
    X, Y = make_multilabel(n_samples, n_features // 2, n_labels, seed=seed, **options)
    rng = np.random.RandomState(seed + 100)
    return np.hstack([X, rng.normal(size=(n_samples, n_features - n_features // 2))]), Y, rng.uniform(0.3, 2, n_samples)


def saga(X, y, *, C, l1_ratio, weights=None, **options):
    # From 1.8 on the penalty is told by l1_ratio alone.
    named = {} if Version(sklearn.__version__) >= Version("1.8") else {"penalty": "elasticnet"}
    options = {"tol": 1e-9, "max_iter": 200_000, "random_state": 0, **named, **options}
    model = LogisticRegression(solver="saga", C=C, l1_ratio=l1_ratio, **options)
    return model.fit(X, y, sample_weight=weights)


def penalty(coef, C, l1_ratio):
    return (l1_ratio * np.abs(coef).sum() + (1 - l1_ratio) / 2 * np.square(coef).sum()) / C


def enumerated(model, X, Y, weights):
    """Gradients of the loss in coef, intercept and biases, and the loss itself, by writing out every set."""
    is_observed = model.label_space == "observed"
    sets = model.sets_ if is_observed else sets_of_sizes(Y.shape[1], model.min_labels_, model.max_labels_)
    bias = model.set_bias_ if is_observed else model.size_bias_[sets.sum(axis=1)]
    scores = (X @ model.coef_.T + model.intercept_) @ sets.T + bias
    log_partition = logsumexp(scores, axis=1)
    probs = np.exp(scores - log_partition[:, None])
    own = (Y[:, None, :] == sets[None]).all(axis=2)
    loss = weights @ (log_partition - scores[own])
    residual = weights[:, None] * (probs - own)
    return loss, (residual @ sets).T @ X, (residual @ sets).sum(axis=0), residual.sum(axis=0)
