"""What data leave undetermined, degenerate or badly scaled: the rules hold, and the optimum is still found."""

import warnings

import numpy as np
import pandas as pd
import pytest
from samples import BOTH, TIGHT, make_multilabel
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from mlrh import KernelMLRHClassifier, MLRHClassifier

X, Y = make_multilabel()


EXCLUDED = "Row {} of y has {} labels, which {} excludes, as it does 1 of 3 rows; set {}"


@pytest.mark.parametrize(
    ("options", "Y", "message"),
    [
        ({"min_labels": 1}, [[1, 0], [0, 0], [1, 1]], EXCLUDED.format(1, 0, "min_labels=1", "min_labels=0")),
        ({"max_labels": 1}, [[1, 0], [0, 1], [1, 1]], EXCLUDED.format(2, 2, "max_labels=1", "max_labels=2")),
        ({"max_labels": 3}, [[1, 0], [0, 1], [1, 1]], "max_labels=3, n_labels=2"),
        ({"min_labels": 2, "max_labels": 1}, [[1, 1]] * 3, "min_labels must be at most max_labels; got 2 and 1"),
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


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
@pytest.mark.parametrize(("size", "max_labels"), [(1, 3), (2, "auto")])
def test_rows_all_of_the_smallest_or_largest_size_keep_the_intercepts_finite(solver, size, max_labels):
    X, Y = make_multilabel(min_labels=size, max_labels=size)
    with pytest.warns(UserWarning, match=f"the only size of the training rows: {size}, at the limit") as caught:
        fitted = MLRHClassifier(min_labels=1, max_labels=max_labels, solver=solver).fit(X, Y)
    assert len(caught) == 1
    assert np.abs(fitted.intercept_).max() < 1e3
    assert fitted.distribution(X).cardinality_pmf()[:, size].min() > 0.98


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
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # there may be no optimum without penalty
def test_degenerate_features_give_finite_coefficients_and_probabilities(classifier, case, C):
    X, Y = make_multilabel()
    X = DEGENERATE[case](X)
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


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
@pytest.mark.parametrize("case", RESCALED)
def test_the_unpenalised_fit_does_not_depend_on_the_scale_or_origin_of_columns(case, solver, make):
    plain = MLRHClassifier(C=np.inf).fit(X, Y)
    moved = make(RESCALED[case](X))
    rescaled = MLRHClassifier(C=np.inf, solver=solver, max_iter=5000).fit(moved, Y)
    assert rescaled.objective_ == pytest.approx(plain.objective_, rel=1e-6)
    np.testing.assert_allclose(rescaled.predict_proba(moved), plain.predict_proba(X), atol=2e-3)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("offset", [300.0, 2000.0])
def test_float32_features_far_from_the_origin_are_fitted_as_float64_ones(offset, make):
    X, Y = make_multilabel()
    X = (X + offset).astype(np.float32)
    single, double = MLRHClassifier().fit(make(X), Y), MLRHClassifier().fit(X.astype(np.float64), Y)
    assert single.objective_ == pytest.approx(double.objective_, rel=1e-5)
    np.testing.assert_allclose(single.coef_, double.coef_, atol=2e-3)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_with_fewer_rows_than_features_a_huge_column_hides_no_other(make, dtype):
    X, Y = make_multilabel(60, 100)
    huge = np.column_stack([X + 100, 1e5 * X[:, :1]]).astype(dtype)
    assert MLRHClassifier().fit(make(huge), Y).objective_ <= MLRHClassifier().fit(X, Y).objective_ * 1.001


def test_a_sparse_column_of_years_counts_as_it_does_in_a_dense_matrix():
    rng = np.random.RandomState(3)
    X = rng.normal(size=(3000, 4))
    Y = (rng.random_sample((3000, 2)) < expit(3 * X[:, :2])).astype(int)
    X[:, 0] = 2000 + np.round(X[:, 0])
    X[:2, 0] = 0.0  # two years are missing, so the column is not quite full
    X = X.astype(np.float32)
    dense, csr = MLRHClassifier(min_labels=0).fit(X, Y), MLRHClassifier(min_labels=0).fit(sparse.csr_array(X), Y)
    assert csr.objective_ == pytest.approx(dense.objective_, rel=1e-4)
    assert csr.score(sparse.csr_array(X), Y) == pytest.approx(dense.score(X, Y), abs=0.01)


@pytest.mark.parametrize("options", [{"C": np.inf}, {"l1_ratio": 0.5}], ids=str)
@pytest.mark.parametrize(("scale", "words"), [(1e200, "too large to be squared"), (1e-160, "too small to be squared")])
def test_features_whose_squares_are_no_numbers_are_an_error(scale, words, options):
    with pytest.raises(ValueError, match=words):
        MLRHClassifier(**options).fit(X * [1, 1, 1, 1, 1, scale], Y)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_float32_features_may_be_very_large_or_small(scale):
    plain = MLRHClassifier(C=np.inf).fit(X, Y)
    rescaled = MLRHClassifier(C=np.inf).fit((X * scale).astype(np.float32), Y)
    assert rescaled.objective_ == pytest.approx(plain.objective_, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"label_space": "observed"}], ids=str)
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
@pytest.mark.parametrize("C", [1.0, 100.0, 1e4, 1e6])
def test_a_fit_called_converged_is_as_near_the_optimum_as_its_tolerance_says(C, solver, options):
    """As many features as rows: the weaker the penalty, the flatter the valley in which the optimum lies."""
    X, Y = make_multilabel(60, 60)
    best = MLRHClassifier(C=C, solver="newton-cg", tol=1e-13, **options).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if solver != "mm" else "ignore", ConvergenceWarning)
        found = MLRHClassifier(C=C, solver=solver, **options).fit(X, Y)
    claims_convergence = solver != "mm" or found.n_iter_ < found.max_iter
    gap = (found.objective_ - best.objective_) / (found.tol * 60 * found.label_space_.log_count())
    assert gap <= 3 or not claims_convergence


def test_a_redundant_column_does_not_change_the_unpenalised_predictions():
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
    sets = [{"a"} if row[0] else set() for row in Y]
    options = {"kernel": "linear"} if classifier is KernelMLRHClassifier else {}
    ours = classifier(**options, **TIGHT).fit(X, sets)
    theirs = LogisticRegression(tol=1e-10, solver="newton-cholesky").fit(X, Y[:, 0])
    np.testing.assert_allclose(ours.predict_proba(X)[:, 0], theirs.predict_proba(X)[:, 1], atol=1e-6)
    assert ours.predict(X) == [{"a"} if label else set() for label in theirs.predict(X)]


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg"])
def test_very_many_features_have_the_same_optimum_by_the_diagonal_metric(solver, make, monkeypatch):
    X, Y = make_multilabel()
    X[np.abs(X) < 0.3] = 0.0
    X[:, 5] += X[:, 4]
    full = MLRHClassifier(C=100.0, tol=1e-7).fit(X, Y)
    monkeypatch.setattr("mlrh.fitting.metric.MAX_FACTORED", 2)
    diagonal = MLRHClassifier(C=100.0, tol=1e-7, solver=solver).fit(make(X), Y)
    assert diagonal.objective_ == pytest.approx(full.objective_, rel=1e-6)


def test_labels_that_are_constant_where_known_are_told_from_those_that_are_not():
    rng = np.random.default_rng(0)
    Y = (rng.random((40, 5)) < 0.5).astype(float)
    Y[:, :2] = 1, 0
    Y[rng.random(Y.shape) < 0.2] = np.nan
    with pytest.warns(UserWarning, match="training row: label 1; present in every training row: label 0\\)"):
        MLRHClassifier(min_labels=0, max_labels=5).fit(rng.normal(size=(40, 3)), Y)
