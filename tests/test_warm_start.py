"""Warm starts: fewer iterations to the same model, and none from what no longer fits."""

import signal

import numpy as np
import pandas as pd
import pytest
from samples import BOTH, make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.fitting.objective import Objective

X, Y = make_multilabel()
CLASSIFIERS = (MLRHClassifier, KernelMLRHClassifier)
OBSERVED = {"label_space": "observed"}
SMOOTH = ("lbfgs", "newton-cg", "mm")


@pytest.mark.parametrize(
    "model",
    [classifier(**options) for classifier in CLASSIFIERS for options in ({}, {"size_bias": True}, OBSERVED)]
    + [MLRHClassifier(l1_ratio=0.9, size_bias=True)],
    ids=repr,
)
def test_a_warm_start_takes_fewer_iterations_to_the_same_model(model):
    cold, warm = clone(model).fit(X, Y), clone(model).set_params(warm_start=True).fit(X, Y)
    first = warm.n_iter_
    warm.fit(X, Y)
    assert warm.n_iter_ <= 1 < first == cold.n_iter_
    warm.set_params(C=1.1).fit(X, Y)
    assert warm.n_iter_ < first
    np.testing.assert_allclose(warm.predict_proba(X), cold.set_params(C=1.1).fit(X, Y).predict_proba(X), atol=2e-3)


CHANGES = {
    "features": lambda X, Y: ({}, X[:, :3], Y),
    "labels": lambda X, Y: ({}, X, pd.DataFrame(Y, columns=list("wxyz"))),
    "number of labels": lambda X, Y: ({"min_labels": 0}, X, Y[:, :3]),
    "kernel": lambda X, Y: ({"kernel": "poly"}, X, Y),
    "kernel to a matrix": lambda X, Y: ({"kernel": "precomputed"}, X @ X.T, Y),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_warm_start_with_others_than_before_starts_afresh(change):
    options, X_new, Y_new = CHANGES[change](X, Y)
    for classifier in CLASSIFIERS:
        if "kernel" in options and classifier is MLRHClassifier:
            continue
        warm = classifier(warm_start=True).fit(X, Y).set_params(**options).fit(X_new, Y_new)
        cold = classifier(**options).fit(X_new, Y_new)
        assert warm.n_iter_ == cold.n_iter_
        np.testing.assert_allclose(warm.predict_proba(X_new), cold.predict_proba(X_new), rtol=1e-9)


@BOTH
def test_a_warm_start_without_an_intercept_forgets_the_one_before(classifier):
    warm = classifier(warm_start=True).fit(X + 3, Y).set_params(fit_intercept=False, tol=1e-12).fit(X + 3, Y)
    np.testing.assert_array_equal(warm.intercept_, 0.0)
    cold = classifier(fit_intercept=False, tol=1e-12).fit(X + 3, Y)
    np.testing.assert_allclose(warm.predict_proba(X), cold.predict_proba(X), atol=1e-4)


def test_a_warm_start_with_fewer_rows_than_features_takes_fewer_iterations():
    X, Y = make_multilabel(60, 100)
    warm = MLRHClassifier(warm_start=True).fit(X, Y)
    first = warm.n_iter_
    assert warm.fit(X, Y).n_iter_ <= 1 < first


@pytest.mark.parametrize("warm_start", [False, True])
def test_a_fit_that_fails_leaves_the_one_before_as_it_was(warm_start):
    model = MLRHClassifier(warm_start=warm_start).fit(X, Y)
    before = model.predict_proba(X)
    for bad in ((X * 1e200, Y[:, :3], None), (X, Y[:, :3], np.full(200, -1.0)), (X[:, :2], 2 * Y, None)):
        with pytest.raises(ValueError, match=r"squared|[Nn]egative|must contain only 0 and 1"):
            model.fit(*bad)
        np.testing.assert_array_equal(model.predict_proba(X), before)
        assert model.score(X, Y) > 0
    fresh = MLRHClassifier(warm_start=warm_start, solver="lbfgs", l1_ratio=0.5)
    with pytest.raises(ValueError, match="l1_ratio must be 0"):
        fresh.fit(X, Y)
    np.testing.assert_allclose(fresh.set_params(l1_ratio=0.0).fit(X, Y).predict_proba(X), before)


def interrupted_fit(model, X, Y, monkeypatch):
    """Press Ctrl-C in the middle of the fourth call for the gradient, which then goes on."""
    name = "with_curvatures" if model.l1_ratio else "value_and_gradient"
    method, calls = getattr(Objective, name), []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return method(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Objective, name, interrupted)
        model.fit(X, Y)


@pytest.mark.parametrize(
    "model",
    [classifier(solver=solver, max_iter=5000, tol=1e-5) for classifier in CLASSIFIERS for solver in SMOOTH]
    + [MLRHClassifier(l1_ratio=0.5, tol=1e-9)],
    ids=repr,
)
@pytest.mark.parametrize("hidden", [False, True])
def test_an_interrupted_fit_leaves_a_model_from_which_the_next_one_goes_on(model, hidden, monkeypatch):
    known = np.where(np.random.RandomState(0).uniform(size=Y.shape) < 0.2, np.nan, Y) if hidden else Y
    whole, model = clone(model).fit(X, known), clone(model).set_params(warm_start=True)
    interrupted_fit(model, X, known, monkeypatch)
    assert model.n_iter_ < whole.n_iter_
    assert model.objective_ == pytest.approx(model.history_[-1]) and len(model.history_) == model.n_iter_ + 1
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.fit(X, known).objective_ == pytest.approx(whole.objective_, rel=1e-4)


def test_without_a_warm_start_an_interrupted_fit_leaves_the_model_that_was(monkeypatch):
    names = list("uvwxyz")
    model = MLRHClassifier().fit(pd.DataFrame(X, columns=names), Y)
    before = {name: np.copy(value) for name, value in vars(model).items() if name.endswith("_") and name[0] != "_"}
    interrupted_fit(model, X[:100, :3], Y[:100], monkeypatch)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(model, name), value)
    model.predict(pd.DataFrame(X, columns=names))


def test_an_interrupt_in_the_first_fit_leaves_nothing_that_looks_fitted(monkeypatch):
    model = MLRHClassifier()
    interrupted_fit(model, X, Y, monkeypatch)
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(("first", "then"), [(1e4, 1e-3), (1e4, 0.1), (1e2, 1e-4)])
def test_a_start_far_more_confident_than_the_optimum_costs_few_iterations(convert, first, then):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 15))
    Y = (X @ rng.normal(size=(15, 5)) + 0.1 * rng.normal(size=(300, 5)) > 0).astype(int)
    clf = MLRHClassifier(C=first, warm_start=True, max_iter=5000).fit(convert(X), Y)
    clf.set_params(C=then).fit(convert(X), Y)
    alone = MLRHClassifier(C=then).fit(convert(X), Y)
    assert clf.n_iter_ <= 30
    assert clf.objective_ == pytest.approx(alone.objective_, rel=1e-6)


@pytest.mark.parametrize(("n_features", "dtype"), [(10, np.float64), (400, np.float64), (400, np.float32)])
def test_features_of_another_scale_are_no_error_after_a_warm_start(n_features, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, n_features)).astype(dtype)
    Y = (X[:, :4] > 0).astype(int)
    clf = MLRHClassifier(warm_start=True, tol=1e-3).fit(X, Y)
    with pytest.warns(ConvergenceWarning):
        clf.set_params(max_iter=3).fit(X * dtype(1e4), Y)
