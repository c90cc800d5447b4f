"""The classifiers against scikit-learn and statsmodels in the special cases, and their own promises."""

import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.discrete.discrete_model import MNLogit

from mlrh import KernelMLRHClassifier, MLRHClassifier

BOTH = pytest.mark.parametrize("classifier", [MLRHClassifier, KernelMLRHClassifier])
TIGHT = {"tol": 1e-16, "max_iter": 10_000}


def make_multilabel(n_samples=200, n_features=6, n_labels=4, *, min_labels=1, max_labels=3, seed=0):
    """Rows drawn from the model itself."""
    from mlrh.label_space import CardinalitySpace

    rng = np.random.RandomState(seed)
    X = rng.normal(size=(n_samples, n_features))
    scores = X @ rng.normal(size=(n_features, n_labels))
    return X, CardinalitySpace(n_labels, min_labels, max_labels).sample(scores, 1, rng)[:, 0].astype(np.int64)


@pytest.mark.parametrize("C", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_three_classes_equal_multinomial_logistic_regression(load, C):
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    ours = MLRHClassifier(C=C, **TIGHT).fit(X, y)
    theirs = LogisticRegression(C=C, tol=1e-9, solver="newton-cg", max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_two_classes_equal_binary_logistic_regression():
    X, y = load_iris(return_X_y=True)
    X, y = X[50:], np.array(["versicolor", "virginica"])[y[50:] - 1]
    ours = MLRHClassifier(C=2.0, **TIGHT).fit(X, y)
    theirs = LogisticRegression(C=2.0, tol=1e-10, solver="newton-cholesky", max_iter=1000).fit(X, y)
    assert ours.coef_.shape == (1, 4)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-5)
    assert ours.classes_.tolist() == ["versicolor", "virginica"]


def test_all_sizes_equal_separate_binary_logistic_regressions():
    X, Y = make_multilabel()
    ours = MLRHClassifier(min_labels=0, max_labels=4, C=0.7, **TIGHT).fit(X, Y)
    theirs = MultiOutputClassifier(LogisticRegression(C=0.7, tol=1e-10, solver="newton-cholesky")).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, np.vstack([e.coef_ for e in theirs.estimators_]), atol=1e-5)
    marginals = np.column_stack([proba[:, 1] for proba in theirs.predict_proba(X)])
    np.testing.assert_allclose(ours.predict_proba(X), marginals, atol=1e-6)


def test_the_unpenalised_fit_equals_statsmodels_on_overlapping_classes():
    rng = np.random.RandomState(0)
    y = np.arange(240) % 3
    X = rng.normal(size=(240, 3)) + 0.8 * np.eye(3)[y]
    ours = MLRHClassifier(C=np.inf, **TIGHT).fit(X, y)
    theirs = MNLogit(y, np.column_stack([np.ones(len(X)), X])).fit(method="newton", tol=1e-12, disp=0)
    np.testing.assert_allclose((ours.coef_[1:] - ours.coef_[0]).T, theirs.params[1:], atol=1e-5)
    np.testing.assert_allclose(ours.intercept_[1:] - ours.intercept_[0], theirs.params[0], atol=1e-5)


@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_linear_kernel_equals_the_linear_classifier(label_space):
    X, Y = make_multilabel()
    options = {"label_space": label_space, "C": 0.5, **TIGHT}
    linear = MLRHClassifier(**options).fit(X, Y)
    kernel = KernelMLRHClassifier(kernel="linear", **options).fit(X, Y)
    np.testing.assert_allclose(kernel.decision_function(X[:50] + 1), linear.decision_function(X[:50] + 1), atol=1e-5)
    np.testing.assert_allclose(kernel.dual_coef_ @ X, linear.coef_, atol=1e-5)


def test_precomputed_and_callable_kernels_equal_the_named_one():
    X, Y = make_multilabel()
    train, test = X[:150], X[150:]

    def gaussian(A, B):
        return np.exp(-0.3 * ((A[:, None, :] - B[None, :, :]) ** 2).sum(axis=2))

    named = KernelMLRHClassifier(gamma=0.3, **TIGHT).fit(train, Y[:150]).predict_proba(test)
    called = KernelMLRHClassifier(kernel=gaussian, **TIGHT).fit(train, Y[:150]).predict_proba(test)
    given = KernelMLRHClassifier(kernel="precomputed", **TIGHT).fit(gaussian(train, train), Y[:150])
    np.testing.assert_allclose(called, named, atol=1e-8)
    np.testing.assert_allclose(given.predict_proba(gaussian(test, train)), named, atol=1e-8)


def test_gamma_scale_and_auto_are_those_of_svc():
    X, Y = make_multilabel()
    for gamma, value in (("scale", 1 / (6 * X.var())), ("auto", 1 / 6)):
        by_name, by_value = (KernelMLRHClassifier(gamma=g).fit(X, Y).decision_function(X) for g in (gamma, value))
        np.testing.assert_allclose(by_name, by_value, atol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda A, B: A @ B.T * np.nan, "must return finite numbers of shape .*; got values that are not finite"),
        (lambda A, B: A[:, :3], r"of shape \(200, 200\); got shape \(200, 3\)"),
        (lambda A, B: A @ np.tri(6) @ B.T, "must be symmetric; entries differ by up to"),
    ],
)
def test_a_kernel_function_that_is_none_is_one_clear_error(kernel, message):
    X, Y = make_multilabel()
    with pytest.raises(ValueError, match=message):
        KernelMLRHClassifier(kernel=kernel).fit(X, Y)


def test_a_precomputed_kernel_that_is_not_square_or_symmetric_is_an_error():
    X, Y = make_multilabel()
    with pytest.raises(ValueError, match=r"must be square in fit; got shape \(200, 6\)"):
        KernelMLRHClassifier(kernel="precomputed").fit(X, Y)
    with pytest.raises(ValueError, match="must be symmetric"):
        KernelMLRHClassifier(kernel="precomputed").fit(X @ X.T + np.tri(200), Y)


def test_an_indefinite_kernel_is_an_error_that_says_so():
    X, Y = make_multilabel()
    with pytest.raises(ValueError, match="must be positive semidefinite"):
        KernelMLRHClassifier(kernel="sigmoid", gamma=1.0, coef0=-1.0).fit(X, Y)


@BOTH
@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"label_space": "observed"}])
def test_weight_two_counts_as_the_row_twice_and_weight_zero_as_absent(classifier, options):
    X, Y = make_multilabel(80)
    weights = np.random.RandomState(1).randint(0, 3, size=80).astype(float)
    Y[0], weights[0] = 1, 0.0  # a set of four labels that only a row of weight 0 has
    repeated = np.repeat(np.arange(80), weights.astype(int))
    weighted = classifier(**options, **TIGHT).fit(X, Y, sample_weight=weights)
    doubled = classifier(**options, **TIGHT).fit(X[repeated], Y[repeated])
    assert weighted.max_labels_ == doubled.max_labels_ == 3
    np.testing.assert_allclose(weighted.decision_function(X), doubled.decision_function(X), atol=1e-5)
    np.testing.assert_allclose(weighted.predict_proba(X), doubled.predict_proba(X), atol=1e-6)


@BOTH
def test_float32_features_give_float32_results_near_the_float64_ones(classifier):
    X, Y = make_multilabel()
    double, single = classifier().fit(X, Y), classifier().fit(X.astype(np.float32), Y)
    proba = single.predict_proba(X.astype(np.float32))
    assert proba.dtype == single.intercept_.dtype == single.decision_function(X.astype(np.float32)).dtype == np.float32
    assert getattr(single, "coef_", single.intercept_).dtype == np.float32
    np.testing.assert_allclose(proba, double.predict_proba(X), atol=2e-3)


@BOTH
def test_csr_features_give_the_same_model_as_dense_ones(classifier):
    X, Y = make_multilabel()
    X[np.abs(X) < 0.7] = 0.0
    dense, csr = classifier(**TIGHT).fit(X, Y), classifier(**TIGHT).fit(sparse.csr_array(X), Y)
    np.testing.assert_allclose(csr.predict_proba(sparse.csr_matrix(X)), dense.predict_proba(X), atol=1e-8)


def test_more_features_than_rows_give_the_same_model_as_the_kernel_side():
    X, Y = make_multilabel(40, 100)
    linear, kernel = MLRHClassifier(**TIGHT).fit(X, Y), KernelMLRHClassifier(kernel="linear", **TIGHT).fit(X, Y)
    np.testing.assert_allclose(linear.decision_function(X), kernel.decision_function(X), atol=1e-6)
    gradient = X.T @ (linear.predict_proba(X) - Y) + linear.coef_.T
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)


FORMS = {
    "array": lambda Y: Y,
    "list": lambda Y: Y.tolist(),
    "sparse": sparse.csr_matrix,
    "pandas": lambda Y: pd.DataFrame(Y, columns=list("abcd")),
    "polars": lambda Y: pl.DataFrame(Y, schema=list("abcd"), orient="row"),
    "sets": lambda Y: [{"abcd"[k] for k in np.flatnonzero(row)} for row in Y],
}


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_predict_answers_in_the_form_of_y_with_the_same_sets(classifier, form):
    X, Y = make_multilabel()
    expected = classifier().fit(X, Y).predict(X)
    fitted = classifier().fit(X, FORMS[form](Y))
    predicted = fitted.predict(X)
    assert type(predicted) is (np.ndarray if form == "list" else type(FORMS[form](Y)))
    if form == "sets":
        assert predicted == FORMS["sets"](expected)
    else:
        dense = predicted.toarray() if form == "sparse" else np.asarray(predicted)
        np.testing.assert_array_equal(dense, expected)
    assert fitted.score(X, FORMS[form](Y)) == (expected == Y).all(axis=1).mean()
    assert fitted.classes_.tolist() == (list("abcd") if form in ("pandas", "polars", "sets") else [0, 1, 2, 3])


def test_polars_features_are_taken_with_their_names():
    X, Y = make_multilabel()
    names = [f"f{d}" for d in range(6)]
    fitted = MLRHClassifier().fit(pl.DataFrame(X, schema=names), Y)
    assert fitted.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(fitted.predict(pl.DataFrame(X, schema=names)), MLRHClassifier().fit(X, Y).predict(X))


def test_a_set_with_a_label_unknown_to_training_never_scores():
    X, Y = make_multilabel()
    sets = FORMS["sets"](Y)
    fitted = MLRHClassifier(C=1e4).fit(X, sets)
    right = [labels | {"new"} for labels in fitted.predict(X)]
    assert fitted.score(X, right) == 0.0


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_the_default_decision_is_never_empty_or_oversized(classifier, label_space):
    X, Y = make_multilabel()
    fitted = classifier(label_space=label_space).fit(X, Y)
    sizes = fitted.predict(30 * np.random.RandomState(5).normal(size=(500, 6))).sum(axis=1)
    assert sizes.min() >= 1
    assert sizes.max() <= 3


def test_decisions_are_the_mode_and_the_marginals_above_one_half():
    X, Y = make_multilabel()
    fitted = MLRHClassifier().fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(X), fitted.distribution(X).mode())
    fitted.set_params(decision="hamming")
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict_proba(X) > 0.5)


def test_classes_are_predicted_one_per_row_under_every_decision():
    X, y = load_iris(return_X_y=True)
    fitted = MLRHClassifier(C=1e-4, decision="hamming").fit(X, y)
    assert fitted.predict_proba(X).max() < 0.5
    assert set(fitted.predict(X)) <= {0, 1, 2}


def test_the_observed_space_learns_that_labels_attract_each_other():
    rng = np.random.RandomState(0)
    Y = np.array([[1, 1, 0], [0, 0, 1]])[rng.randint(0, 2, size=200)]
    X = rng.normal(size=(200, 2))
    sets, marginals = {}, {}
    for label_space in ("cardinality", "observed"):
        fitted = MLRHClassifier(label_space=label_space).fit(X, Y)
        joint = np.exp(fitted.distribution(X).log_prob(np.tile([1, 1, 0], (200, 1))))
        sets[label_space], marginals[label_space] = joint.mean(), fitted.predict_proba(X)[:, :2].prod(axis=1).mean()
    assert sets["observed"] > 1.5 * marginals["observed"]
    assert sets["cardinality"] < 1.1 * marginals["cardinality"]


@pytest.mark.parametrize(
    ("options", "Y", "message"),
    [
        (
            {"min_labels": 1},
            [[1, 0], [0, 0], [1, 1]],
            r"Row 1 of y has 0 labels, which min_labels=1 excludes, as it does 1 of 3 rows; set min_labels=0",
        ),
        (
            {"max_labels": 1},
            [[1, 0], [0, 1], [1, 1]],
            r"Row 2 of y has 2 labels, which max_labels=1 excludes, as it does 1 of 3 rows; set max_labels=2",
        ),
        ({"max_labels": 3}, [[1, 0], [0, 1], [1, 1]], "max_labels=3, n_labels=2"),
        (
            {"min_labels": 2, "max_labels": 1},
            [[1, 1], [1, 1], [1, 1]],
            "Row 0 of y has 2 labels, which max_labels=1 excludes",
        ),
        ({"min_labels": 2, "max_labels": 1}, [[1, 0], [1, 0], [0, 1]], "Row 0 of y has 1 labels, which min_labels=2"),
    ],
)
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_rows_that_the_sizes_exclude_are_named_with_the_remedy(options, Y, message, label_space):
    with pytest.raises(ValueError, match=message):
        MLRHClassifier(label_space=label_space, **options).fit(np.eye(3), np.array(Y))


def test_automatic_sizes_are_what_training_shows_and_min_labels_is_the_remedy():
    X = np.random.RandomState(0).normal(size=(6, 2))
    Y = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1], [1, 1, 0], [0, 1, 1]])
    by_chance = MLRHClassifier().fit(X, Y)
    assert (by_chance.min_labels_, by_chance.max_labels_) == (2, 3)
    assert by_chance.predict(100 * X).sum(axis=1).min() == 2
    remedied = MLRHClassifier(min_labels=1).fit(X, Y)
    assert remedied.min_labels_ == 1
    assert np.isfinite(remedied.distribution(X).log_prob(np.tile([1, 0, 0], (6, 1)))).all()


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_label_without_both_values_gives_one_warning_that_names_it(classifier, label_space):
    X, Y = make_multilabel()
    Y = pd.DataFrame(np.column_stack([Y, np.zeros(200, int)]), columns=["a", "b", "c", "d", "never"])
    with pytest.warns(UserWarning, match="absent from every training row: label 'never'") as caught:
        fitted = classifier(label_space=label_space).fit(X, Y)
    assert len(caught) == 1
    assert np.isfinite(fitted.intercept_).all()
    assert fitted.predict_proba(X)[:, 4].max() < 1e-4
    assert fitted.predict(X)["never"].sum() == 0


def test_a_label_always_present_is_named_and_predicted():
    X, Y = make_multilabel()
    Y = np.column_stack([Y, np.ones(200, int)])
    with pytest.warns(UserWarning, match="present in every training row: label 4"):
        fitted = MLRHClassifier().fit(X, Y)
    assert np.isfinite(fitted.intercept_).all()
    assert fitted.predict_proba(X)[:, 4].min() > 1 - 1e-4


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
def test_the_intercept_of_an_absent_label_is_where_the_tiny_penalty_holds_it(solver):
    """With all sizes labels are independent: N sigmoid(b) + 1e-10 N b = 0 for a label that no row has."""
    X, Y = make_multilabel()
    Y[:, 3] = 0
    with pytest.warns(UserWarning, match="absent from every training row: label 3"):
        fitted = MLRHClassifier(min_labels=0, max_labels=4, solver=solver, tol=1e-16).fit(X, Y)
    expected = brentq(lambda b: expit(b) + 1e-10 * b, -30, -10)
    assert fitted.intercept_[3] == pytest.approx(expected, abs=0.05)
    np.testing.assert_allclose(fitted.coef_[3], 0.0, atol=1e-5)


def test_rows_all_of_the_largest_size_keep_the_intercepts_finite():
    X, Y = make_multilabel(min_labels=2, max_labels=2)
    with pytest.warns(UserWarning, match="the only size of the training rows: 2, at the limit"):
        fitted = MLRHClassifier(min_labels=1).fit(X, Y)
    assert np.abs(fitted.intercept_).max() < 1e3
    assert fitted.distribution(X).cardinality_pmf()[:, 2].min() > 0.98


def test_labels_that_every_row_has_are_named():
    with pytest.warns(UserWarning, match="present in every training row: label 0, 1"):
        fitted = MLRHClassifier().fit(np.eye(3), np.ones((3, 2), int))
    assert fitted.predict(np.eye(3)).tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
def test_rows_all_of_the_smallest_size_keep_the_intercepts_finite(solver):
    X, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="the only size of the training rows: 1, at the limit") as caught:
        fitted = MLRHClassifier(min_labels=1, max_labels=3, solver=solver).fit(X, np.eye(3, dtype=int)[y])
    assert len(caught) == 1
    assert np.abs(fitted.intercept_).max() < 1e3
    assert fitted.distribution(X).cardinality_pmf()[:, 1].min() > 0.98


def test_a_size_that_nobody_has_gets_a_finite_bias():
    X, Y = make_multilabel(max_labels=4)
    rows = np.isin(Y.sum(axis=1), [1, 3])
    with pytest.warns(UserWarning, match="a bias to learn for a size that no training row has: 2"):
        fitted = MLRHClassifier(size_bias=True).fit(X[rows], Y[rows])
    assert np.isfinite(fitted.size_bias_).all()
    assert fitted.size_bias_[2] < -1
    assert fitted.distribution(X).cardinality_pmf()[:, 2].max() < 0.2
    assert fitted.size_bias_[1:4].sum() == pytest.approx(0, abs=1e-9)


@BOTH
@pytest.mark.parametrize("C", [1.0, np.inf])
def test_one_size_for_all_gives_coefficients_and_intercepts_that_sum_to_zero(classifier, C):
    X, Y = make_multilabel(min_labels=2, max_labels=2)
    options = {"kernel": "linear"} if classifier is KernelMLRHClassifier else {}
    fitted = classifier(C=C, **options).fit(X, Y)
    weights = fitted.coef_ if classifier is MLRHClassifier else fitted.dual_coef_
    np.testing.assert_allclose(weights.sum(axis=0), 0.0, atol=1e-9)
    assert fitted.intercept_.sum() == pytest.approx(0.0, abs=1e-9)


def test_size_biases_without_a_penalty_meet_the_same_conditions():
    X, Y = make_multilabel()
    bias = MLRHClassifier(size_bias=True, C=np.inf, tol=1e-14).fit(X, Y).size_bias_
    assert np.abs(bias).max() > 1e-3
    assert bias.sum() == pytest.approx(0.0, abs=1e-9)
    assert bias @ np.arange(5) == pytest.approx(0.0, abs=1e-9)


DEGENERATE = {
    "rank deficient": lambda X: np.column_stack([X, X[:, 0] + X[:, 1]]),
    "constant columns": lambda X: np.column_stack([X, np.ones(len(X)), np.zeros(len(X))]),
    "all zero": np.zeros_like,
    "more features than rows": lambda X: np.tile(X, (1, 60)),
    "of very different scale": lambda X: X * 10.0 ** np.arange(-6, 6, 2),
    "far from the origin": lambda X: X + 1e6,
}


@BOTH
@pytest.mark.parametrize("C", [1.0, np.inf])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_features_give_finite_coefficients_and_probabilities(classifier, case, C):
    X, Y = make_multilabel()
    X = DEGENERATE[case](X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # without a penalty these may have no optimum
        fitted = classifier(C=C, max_iter=200).fit(X, Y)
    weights = fitted.coef_ if hasattr(fitted, "coef_") else fitted.dual_coef_
    assert np.isfinite(weights).all()
    proba = fitted.predict_proba(X)
    assert ((proba >= 0) & (proba <= 1)).all()
    np.testing.assert_allclose(proba.sum(axis=1), fitted.distribution(X).cardinality_pmf() @ np.arange(5), atol=1e-9)


RESCALED = {
    "one column a million times as large": lambda X: X * [1, 1, 1, 1, 1, 1e7],
    "columns of very different scale": lambda X: X * 10.0 ** np.arange(-6, 6, 2),
    "far from the origin": lambda X: X + 1e8,
    "a column of dates in seconds": lambda X: X * [1, 1, 1, 1, 1, 3e7] + [0, 0, 0, 0, 0, 1.7e9],
}


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
@pytest.mark.parametrize("case", RESCALED)
def test_the_unpenalised_fit_does_not_depend_on_the_scale_or_origin_of_columns(case, solver):
    X, Y = make_multilabel()
    plain = MLRHClassifier(C=np.inf).fit(X, Y)
    rescaled = MLRHClassifier(C=np.inf, solver=solver, max_iter=5000).fit(RESCALED[case](X), Y)
    assert rescaled.objective_ == pytest.approx(plain.objective_, rel=1e-6)
    np.testing.assert_allclose(rescaled.predict_proba(RESCALED[case](X)), plain.predict_proba(X), atol=2e-3)


@pytest.mark.parametrize("offset", [300.0, 2000.0])
def test_float32_features_far_from_the_origin_are_fitted_as_float64_ones(offset):
    X, Y = make_multilabel()
    X = (X + offset).astype(np.float32)
    single, double = MLRHClassifier().fit(X, Y), MLRHClassifier().fit(X.astype(np.float64), Y)
    assert single.objective_ == pytest.approx(double.objective_, rel=1e-5)
    np.testing.assert_allclose(single.coef_, double.coef_, atol=2e-3)


def test_with_fewer_rows_than_features_a_huge_column_hides_no_other():
    X, Y = make_multilabel(60, 100)
    huge = np.column_stack([X + 1e6, 1e9 * X[:, :1]])
    assert MLRHClassifier().fit(huge, Y).objective_ <= MLRHClassifier().fit(X, Y).objective_ * (1 + 1e-6)


def test_features_too_large_to_be_squared_are_an_error():
    X, Y = make_multilabel()
    for huge in (X * 1e200, (X * 1e25).astype(np.float32)):
        with pytest.raises(ValueError, match="too large to be squared; scale them"):
            MLRHClassifier().fit(huge, Y)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_the_tolerance_is_kept_where_data_are_nearly_separable(load, solver):
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    found = MLRHClassifier(C=1e4, solver=solver).fit(X, y)
    best = MLRHClassifier(C=1e4, solver="newton-cg", tol=1e-14).fit(X, y)
    assert found.objective_ - best.objective_ <= 20 * found.tol * len(y) * np.log(3)


def test_a_redundant_column_does_not_change_the_unpenalised_predictions():
    X, Y = make_multilabel()
    plain = MLRHClassifier(C=np.inf, **TIGHT).fit(X, Y)
    redundant = DEGENERATE["rank deficient"](X)
    np.testing.assert_allclose(
        MLRHClassifier(C=np.inf, **TIGHT).fit(redundant, Y).predict_proba(redundant), plain.predict_proba(X), atol=1e-6
    )


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_one_row_is_enough_to_predict_it(classifier, label_space):
    with pytest.warns(UserWarning, match="every training row"):
        fitted = classifier(label_space=label_space).fit([[1.0, 2.0]], [[1, 0, 1]])
    assert fitted.predict([[1.0, 2.0]]).tolist() == [[1, 0, 1]]


@BOTH
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
def test_rows_without_any_label_are_learned_as_such(classifier, solver):
    X, _ = make_multilabel(30)
    with pytest.warns(UserWarning, match="absent from every training row: label 0, 1, 2"):
        fitted = classifier(solver=solver).fit(X, np.zeros((30, 3), int))
    assert fitted.predict(X).sum() == 0
    np.testing.assert_array_equal(fitted.predict_proba(X), 0.0)


@BOTH
def test_one_label_is_binary_logistic_regression(classifier):
    X, Y = make_multilabel()
    sets = [{"a"} if row[0] else set() for row in Y]
    options = {"kernel": "linear"} if classifier is KernelMLRHClassifier else {}
    ours = classifier(**options, **TIGHT).fit(X, sets)
    theirs = LogisticRegression(tol=1e-10, solver="newton-cholesky").fit(X, Y[:, 0])
    np.testing.assert_allclose(ours.predict_proba(X)[:, 0], theirs.predict_proba(X)[:, 1], atol=1e-6)
    assert ours.predict(X) == [{"a"} if label else set() for label in theirs.predict(X)]


@BOTH
def test_pipelines_grid_search_and_cross_validation_work(classifier):
    X, Y = make_multilabel()
    frame = pd.DataFrame(X, columns=[f"f{d}" for d in range(6)])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), classifier())
    name = classifier.__name__.lower()
    search = GridSearchCV(pipeline, {f"{name}__C": [1e-4, 1.0]}, cv=3).fit(frame, Y)
    assert search.best_params_ == {f"{name}__C": 1.0}
    assert search.best_estimator_[-1].feature_names_in_.tolist() == list(frame.columns)
    predicted = cross_val_predict(pipeline, frame, Y, cv=3)
    assert predicted.shape == Y.shape
    assert (predicted == Y).all(axis=1).mean() == pytest.approx(
        cross_val_score(pipeline, frame, Y, cv=3).mean(), abs=0.01
    )
    proba = cross_val_predict(pipeline, frame, Y, cv=3, method="predict_proba")
    assert (proba[Y == 1].mean() - proba[Y == 0].mean()) > 0.2


def test_model_selection_refuses_label_sets_by_naming_the_remedy():
    X, Y = make_multilabel()
    with pytest.raises(ValueError, match="MultiLabelBinarizer"):
        GridSearchCV(MLRHClassifier(), {"C": [1.0]}, cv=3).fit(X, [sorted(labels) for labels in FORMS["sets"](Y)])


@BOTH
def test_pickles_are_the_same_and_clones_unfitted(classifier):
    X, Y = make_multilabel()
    fitted = classifier(label_space="observed", C=0.3).fit(X, Y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(X), fitted.predict_proba(X), rtol=1e-13)
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)


@BOTH
@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"label_space": "observed"}])
def test_a_warm_start_takes_fewer_iterations_to_the_same_model(classifier, options):
    X, Y = make_multilabel()
    cold = classifier(**options).fit(X, Y)
    warm = classifier(warm_start=True, **options).fit(X, Y)
    first = warm.n_iter_
    warm.fit(X, Y)
    assert warm.n_iter_ <= 1 < first == cold.n_iter_
    warm.set_params(C=1.1).fit(X, Y)
    assert warm.n_iter_ < first
    np.testing.assert_allclose(
        warm.predict_proba(X), classifier(C=1.1, **options).fit(X, Y).predict_proba(X), atol=2e-3
    )


CHANGES = {
    "features": lambda X, Y: ({}, X[:, :3], Y),
    "labels": lambda X, Y: ({}, X, pd.DataFrame(Y, columns=list("wxyz"))),
    "number of labels": lambda X, Y: ({"min_labels": 0}, X, Y[:, :3]),
    "kernel": lambda X, Y: ({"kernel": "poly"}, X, Y),
    "kernel to a matrix": lambda X, Y: ({"kernel": "precomputed"}, X @ X.T, Y),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_warm_start_with_others_than_before_starts_afresh(change):
    X, Y = make_multilabel()
    options, X_new, Y_new = CHANGES[change](X, Y)
    for classifier in (MLRHClassifier, KernelMLRHClassifier):
        if "kernel" in options and classifier is MLRHClassifier:
            continue
        warm = classifier(warm_start=True).fit(X, Y).set_params(**options).fit(X_new, Y_new)
        cold = classifier(**options).fit(X_new, Y_new)
        assert warm.n_iter_ == cold.n_iter_
        np.testing.assert_allclose(warm.predict_proba(X_new), cold.predict_proba(X_new), rtol=1e-9)


@BOTH
def test_a_warm_start_without_an_intercept_forgets_the_one_before(classifier):
    X, Y = make_multilabel()
    warm = classifier(warm_start=True).fit(X + 3, Y).set_params(fit_intercept=False, tol=1e-12).fit(X + 3, Y)
    np.testing.assert_array_equal(warm.intercept_, 0.0)
    cold = classifier(fit_intercept=False, tol=1e-12).fit(X + 3, Y)
    np.testing.assert_allclose(warm.predict_proba(X), cold.predict_proba(X), atol=1e-4)


def test_too_few_iterations_give_a_convergence_warning_that_says_what_to_do():
    X, Y = make_multilabel()
    with pytest.warns(ConvergenceWarning, match=r"after 1 iterations before reaching tol.*Increase max_iter"):
        MLRHClassifier(max_iter=1).fit(X, Y)


def test_fitted_attributes_have_their_names_and_shapes():
    X, Y = make_multilabel()
    plain = MLRHClassifier(size_bias=True).fit(X, Y)
    assert plain.coef_.shape == (4, 6)
    assert plain.intercept_.shape == (4,)
    assert plain.size_bias_.shape == (5,)
    assert (plain.min_labels_, plain.max_labels_, plain.n_features_in_) == (1, 3, 6)
    np.testing.assert_allclose(plain.decision_function(X), X @ plain.coef_.T + plain.intercept_)
    observed = KernelMLRHClassifier(label_space="observed").fit(X, Y)
    np.testing.assert_array_equal(np.unique(observed.sets_, axis=0), np.unique(Y, axis=0))
    assert observed.set_bias_.shape == (len(observed.sets_),)
    assert observed.dual_coef_.shape == (4, 200)
    assert observed.history_[-1] == observed.objective_
    assert len(observed.history_) == observed.n_iter_ + 1


def test_a_refit_leaves_no_attribute_of_the_fit_before():
    X, Y = make_multilabel()
    fitted = MLRHClassifier(label_space="observed").fit(X, Y).set_params(label_space="cardinality").fit(X, Y)
    assert not hasattr(fitted, "sets_")
    assert not hasattr(fitted, "set_bias_")
    fitted.set_params(label_space="observed").fit(X, Y)
    assert not hasattr(fitted, "size_bias_")


def test_observed_sets_are_listed_from_small_to_large_and_low_to_high():
    Y = np.array([[0, 1, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 0, 0]])
    sets = MLRHClassifier(label_space="observed").fit(np.eye(6), Y).sets_
    assert sets.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]]


def test_the_largest_weights_are_named():
    X, Y = make_multilabel()
    frame, labels = pd.DataFrame(X, columns=list("uvwxyz")), pd.DataFrame(Y, columns=["a", "b", "c", "d"])
    fitted = MLRHClassifier().fit(frame, labels)
    weights = fitted.largest_weights(2)
    for k, label in enumerate("abcd"):
        best = np.argsort(-np.abs(fitted.coef_[k]))[:2]
        assert weights[label] == [("uvwxyz"[d], fitted.coef_[k, d]) for d in best]
    renamed = fitted.largest_weights(1, feature_names=[f"t{d}" for d in range(6)])
    assert renamed["a"][0][0].startswith("t")
    with pytest.raises(ValueError, match="feature_names must have 6 entries; got 2"):
        fitted.largest_weights(feature_names=["p", "q"])


def test_two_classes_have_the_weights_of_the_second():
    X, y = load_iris(return_X_y=True)
    fitted = MLRHClassifier().fit(X[50:], y[50:])
    assert list(fitted.largest_weights(1)) == [2]


def test_verbose_prints_a_line_per_iteration(capsys):
    X, Y = make_multilabel()
    fitted = MLRHClassifier(verbose=1).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == fitted.n_iter_
    assert "lbfgs iteration 1: objective" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"l1_ratio": 0.5}, "l1_ratio must be 0; got 0.5"),
        ({"C": 0.0}, "'C' parameter"),
        ({"solver": "saga"}, "'solver' parameter"),
        ({"decision": "f2"}, "'decision' parameter"),
        ({"solver": "mm", "mm_step": "paper", "size_bias": True}, "use mm_step='safe'"),
        ({"label_space": "all"}, "'label_space' parameter"),
    ],
)
def test_bad_parameters_are_one_clear_error(arguments, message):
    X, Y = make_multilabel(30)
    with pytest.raises(ValueError, match=message):
        MLRHClassifier(**arguments).fit(X, Y)


def test_weights_of_zero_alone_are_an_error():
    X, Y = make_multilabel(30)
    with pytest.raises(ValueError, match="at least one non-zero"):
        MLRHClassifier().fit(X, Y, sample_weight=np.zeros(30))


def test_a_y_of_another_length_is_an_error():
    X, Y = make_multilabel(30)
    with pytest.raises(ValueError, match="same number of rows; got 30 and 29"):
        MLRHClassifier().fit(X, Y[:-1])
    for y in (Y, FORMS["sets"](Y), Y[:, 0]):
        fitted = MLRHClassifier().fit(X, y)
        with pytest.raises(ValueError, match="same number of rows; got 30 and 1"):
            fitted.score(X, y[:1])
        with pytest.raises(ValueError, match=r"sample_weight.shape == \(4,\), expected \(30,\)"):
            fitted.score(X, y, sample_weight=np.ones(4))


def test_a_class_or_label_of_weight_zero_alone_is_absent():
    X, Y = make_multilabel(90)
    y, weights = np.arange(90) % 3, (np.arange(90) % 3 < 2).astype(float)
    weighted, dropped = MLRHClassifier().fit(X, y, weights), MLRHClassifier().fit(X[y < 2], y[y < 2])
    assert weighted.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(weighted.coef_, dropped.coef_, atol=1e-8)
    sets = FORMS["sets"](Y)
    sets[0], weights = sets[0] | {"only here"}, np.r_[0.0, np.ones(89)]
    assert MLRHClassifier().fit(X, sets, weights).classes_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="at least 2 classes among the rows of positive weight"):
        MLRHClassifier().fit(X, np.arange(90) % 2, (np.arange(90) % 2).astype(float))


def test_a_decision_set_after_the_fit_is_checked():
    X, Y = make_multilabel(30)
    with pytest.raises(ValueError, match="decision must be one of"):
        MLRHClassifier().fit(X, Y).set_params(decision="nope").predict(X)


def test_a_tolerance_that_rounding_forbids_says_so():
    X, Y = make_multilabel()
    with pytest.warns(ConvergenceWarning, match="Rounding errors allow no further decrease; increase tol"):
        MLRHClassifier(tol=0.0).fit(X, Y)


@BOTH
def test_fit_leaves_its_inputs_unchanged(classifier):
    X, Y = make_multilabel(50)
    Y, weights = Y.astype(np.int8), np.linspace(0.1, 1.0, 50)
    before = X.copy(), Y.copy(), weights.copy()
    classifier(label_space="observed").fit(X, Y, sample_weight=weights).predict(X)
    for array, copy in zip((X, Y, weights), before, strict=True):
        np.testing.assert_array_equal(array, copy)
