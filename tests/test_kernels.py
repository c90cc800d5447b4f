"""Kernels: equal to the linear classifier and to each other where they must be, refused where they are none."""

import numpy as np
import pytest
from samples import TIGHT, make_multilabel

from mlrh import KernelMLRHClassifier, MLRHClassifier

X, Y = make_multilabel()


@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_linear_kernel_equals_the_linear_classifier(label_space):
    options = {"label_space": label_space, "C": 0.5, **TIGHT}
    linear = MLRHClassifier(**options).fit(X, Y)
    kernel = KernelMLRHClassifier(kernel="linear", **options).fit(X, Y)
    np.testing.assert_allclose(kernel.decision_function(X[:50] + 1), linear.decision_function(X[:50] + 1), atol=1e-5)
    np.testing.assert_allclose(kernel.dual_coef_ @ X, linear.coef_, atol=1e-5)


def test_precomputed_and_callable_kernels_equal_the_named_one():
    train, test = X[:150], X[150:]

    def gaussian(A, B):
        return np.exp(-0.3 * ((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2))

    named = KernelMLRHClassifier(gamma=0.3, **TIGHT).fit(train, Y[:150]).predict_proba(test)
    called = KernelMLRHClassifier(kernel=gaussian, **TIGHT).fit(train, Y[:150]).predict_proba(test)
    given = KernelMLRHClassifier(kernel="precomputed", **TIGHT).fit(gaussian(train, train), Y[:150])
    np.testing.assert_allclose(called, named, atol=1e-8)
    np.testing.assert_allclose(given.predict_proba(gaussian(test, train)), named, atol=1e-8)


def test_gamma_scale_and_auto_are_those_of_svc():
    for gamma, value in (("scale", 1 / (6 * X.var())), ("auto", 1 / 6)):
        by_name, by_value = (KernelMLRHClassifier(gamma=g).fit(X, Y).decision_function(X) for g in (gamma, value))
        np.testing.assert_allclose(by_name, by_value, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "rows", "message"),
    [
        (
            {"kernel": lambda A, B: A @ B.T * np.nan},
            X,
            "must return finite numbers of shape .*; got values that are",
        ),
        ({"kernel": lambda A, B: A[:, :3]}, X, r"of shape \(200, 200\); got shape \(200, 3\)"),
        ({"kernel": lambda A, B: A @ np.tri(6) @ B.T}, X, "must be symmetric; entries differ by up to"),
        ({"kernel": "precomputed"}, X, r"must be square in fit; got shape \(200, 6\)"),
        ({"kernel": "precomputed"}, X @ X.T + np.tri(200), "must be symmetric"),
        ({"kernel": "sigmoid", "gamma": 1.0, "coef0": -1.0}, X, "must be positive semidefinite"),
    ],
)
def test_what_is_no_kernel_is_one_clear_error(options, rows, message):
    with pytest.raises(ValueError, match=message):
        KernelMLRHClassifier(**options).fit(rows, Y)


def test_a_kernel_that_rounding_eats_up_is_named():
    with pytest.warns(UserWarning, match="rounding hides a part of it"):
        KernelMLRHClassifier(kernel="linear").fit(X + 1e7, Y)


def test_a_precomputed_kernel_with_rows_of_weight_zero_predicts_as_without_them():
    weights = (np.arange(200) % 3 > 0).astype(float)
    kept = weights > 0
    weighted = KernelMLRHClassifier(kernel="precomputed").fit(X @ X.T, Y, weights)
    without = KernelMLRHClassifier(kernel="precomputed").fit(X[kept] @ X[kept].T, Y[kept])
    np.testing.assert_allclose(weighted.predict_proba(X @ X.T), without.predict_proba(X @ X[kept].T), atol=1e-9)
    np.testing.assert_array_equal(weighted.support_, np.flatnonzero(kept))


def test_changing_the_training_rows_after_the_fit_changes_no_prediction():
    X, Y = make_multilabel(n_samples=40)
    clf = KernelMLRHClassifier().fit(X, Y)
    new = X[:5].copy()
    before = clf.predict_proba(new)
    X[:] = 0.0
    np.testing.assert_array_equal(clf.predict_proba(new), before)
