"""Models with an L1 or elastic-net penalty: the optimum of others in special cases, and exact zeros."""

import numpy as np
import pytest
from penalised import SPACES, TIGHT, enumerated, make_rows, penalty, saga
from scipy import sparse
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale

from mlrh import MLRHClassifier, MLRHClassifierCV
from mlrh.spaces import LabelSpace

X, Y, weights = make_rows()

RATIOS = pytest.mark.parametrize("l1_ratio", [0.5, 1.0])


def softmax_objective(model, X, y, C, l1_ratio):
    scores = X @ model.coef_.T + model.intercept_
    return (logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]).sum() + penalty(model.coef_, C, l1_ratio)


def separate_objective(coef, intercept, X, Y, weights, C, l1_ratio):
    scores = X @ coef.T + intercept
    return weights @ (np.logaddexp(0, scores) - Y * scores).sum(axis=1) + penalty(coef, C, l1_ratio)


@RATIOS
@pytest.mark.parametrize("C", [0.05, 1.0, 30.0])
def test_one_class_per_row_equals_the_softmax_regression_of_saga(C, l1_ratio):
    X, y = load_iris(return_X_y=True)
    X = scale(X)
    theirs = saga(X, y, C=C, l1_ratio=l1_ratio)
    ours = MLRHClassifier(C=C, l1_ratio=l1_ratio, **TIGHT).fit(X, y)
    best = softmax_objective(theirs, X, y, C, l1_ratio)
    assert softmax_objective(ours, X, y, C, l1_ratio) == pytest.approx(best, rel=1e-8)
    assert ours.objective_ == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-4)
    np.testing.assert_array_equal(ours.coef_ == 0, np.abs(theirs.coef_) < 2e-4)
    assert (ours.coef_ == 0).any()


@RATIOS
def test_two_classes_equal_the_binary_regression_of_saga(l1_ratio):
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :12]
    theirs = saga(X, y, C=0.1, l1_ratio=l1_ratio)
    ours = MLRHClassifier(C=0.1, l1_ratio=l1_ratio, **TIGHT).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


@RATIOS
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_labels", [2, 5])
def test_sets_of_any_size_equal_one_saga_per_label(l1_ratio, fit_intercept, n_labels):
    sizes = {"min_labels": 0, "max_labels": n_labels}
    X, Y, weights = make_rows(n_labels=n_labels, **sizes)
    options = {"C": 0.2, "l1_ratio": l1_ratio, "fit_intercept": fit_intercept}
    fits = [saga(X, Y[:, k], weights=weights, **{**options, "tol": 1e-10}) for k in range(n_labels)]
    coef, intercept = np.array([fit.coef_[0] for fit in fits]), np.array([float(fit.intercept_[0]) for fit in fits])
    ours = MLRHClassifier(**options, **sizes, **TIGHT).fit(X, Y, weights)
    best = separate_objective(coef, intercept, X, Y, weights, 0.2, l1_ratio)
    assert ours.objective_ == pytest.approx(best, rel=1e-8)
    np.testing.assert_allclose(ours.coef_, coef, atol=1e-5)
    np.testing.assert_array_equal(ours.coef_ == 0, np.abs(coef) < 1e-6)
    assert np.count_nonzero(ours.coef_ == 0) > 5


@RATIOS
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_the_conditions_of_the_optimum_hold_by_enumeration(space, l1_ratio, form):
    X, Y, weights = make_rows()
    X[:, ::3] += 2.0
    X[:, 1::3] *= X[:, 1::3] > 0.5
    C = 0.3
    model = MLRHClassifier(C=C, l1_ratio=l1_ratio, **SPACES[space], **TIGHT).fit(form(X), Y, weights)
    loss, d_coef, d_intercept, d_sets = enumerated(model, X, Y, weights)
    alpha, l1, is_zero = (1 - l1_ratio) / C, l1_ratio / C, model.coef_ == 0
    assert 5 < np.count_nonzero(is_zero) < is_zero.size - 5
    assert np.abs(d_coef[is_zero]).max() < l1
    rest = d_coef + alpha * model.coef_ + l1 * np.sign(model.coef_)
    np.testing.assert_allclose(rest[~is_zero], 0.0, atol=1e-4)
    if model.fit_intercept:
        np.testing.assert_allclose(d_intercept, 0.0, atol=1e-4)
    if space == "observed":
        np.testing.assert_allclose(d_sets + LabelSpace.bias_ridge * model.set_bias_, 0.0, atol=1e-4)
        loss += LabelSpace.bias_ridge / 2 * np.square(model.set_bias_).sum()
    loss += LabelSpace.bias_ridge / 2 * np.square(model.size_bias_).sum() if space == "size bias" else 0.0
    assert model.objective_ == pytest.approx(loss + penalty(model.coef_, C, l1_ratio), rel=1e-7)


@pytest.mark.parametrize("space", SPACES)
def test_without_the_l1_penalty_the_optimum_is_that_of_lbfgs(space):
    smooth = MLRHClassifier(solver="lbfgs", **SPACES[space], **TIGHT).fit(X, Y, weights)
    for options in ({"solver": "prox-newton"}, {"l1_ratio": 1e-9}):
        model = MLRHClassifier(**options, **SPACES[space], **TIGHT).fit(X, Y, weights)
        np.testing.assert_allclose(model.coef_, smooth.coef_, atol=1e-5)
        assert model.objective_ == pytest.approx(smooth.objective_, rel=1e-7)


@RATIOS
@pytest.mark.parametrize("space", ["sizes 1 to 3", "observed"])
def test_all_coefficients_are_zero_up_to_the_strength_that_the_null_model_tells(space, l1_ratio):
    """C_max = l1_ratio / the largest gradient in a coefficient where there are only intercepts and biases."""
    null = MLRHClassifier(**SPACES[space], **TIGHT).fit(np.zeros_like(X), Y, weights)
    largest = np.abs(enumerated(null, X, Y, weights)[1]).max()
    options = {"l1_ratio": l1_ratio, **SPACES[space], **TIGHT}
    below = MLRHClassifier(C=0.999 * l1_ratio / largest, **options).fit(X, Y, weights)
    above = MLRHClassifier(C=1.001 * l1_ratio / largest, **options).fit(X, Y, weights)
    np.testing.assert_array_equal(below.coef_, 0.0)
    assert np.count_nonzero(above.coef_) == 1
    np.testing.assert_allclose(below.predict_proba(X), null.predict_proba(X), atol=1e-6)


def test_a_weight_of_two_equals_the_row_twice():
    weights = np.random.RandomState(0).randint(0, 3, len(Y))
    options = {"C": 0.5, "l1_ratio": 0.6, "size_bias": True, "max_labels": 3, **TIGHT}
    weighted = MLRHClassifier(**options).fit(X, Y, weights)
    repeated = MLRHClassifier(**options).fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights, axis=0))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-6)
    np.testing.assert_array_equal(weighted.coef_ == 0, repeated.coef_ == 0)


@pytest.mark.parametrize("sizes", [(1, 3), (1, 1), (2, 2), (0, 5)])
def test_the_order_of_labels_changes_nothing(sizes):
    X, Y, weights = make_rows(min_labels=sizes[0], max_labels=sizes[1])
    order = np.array([3, 0, 4, 2, 1])
    options = {"C": 0.5, "l1_ratio": 0.9, "min_labels": sizes[0], "max_labels": sizes[1], **TIGHT}
    plain = MLRHClassifier(**options).fit(X, Y, weights)
    permuted = MLRHClassifier(**options).fit(X, Y[:, order], weights)
    np.testing.assert_allclose(permuted.coef_, plain.coef_[order], atol=1e-6)
    np.testing.assert_array_equal(permuted.coef_ == 0, plain.coef_[order] == 0)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_float32_gives_the_model_of_float64(form):
    wide = MLRHClassifier(C=0.3, l1_ratio=0.9, tol=1e-7).fit(form(X), Y, weights)
    narrow = MLRHClassifier(C=0.3, l1_ratio=0.9, tol=1e-6).fit(form(X.astype(np.float32)), Y, weights)
    assert narrow.coef_.dtype == np.float32
    np.testing.assert_allclose(narrow.coef_, wide.coef_, atol=5e-3)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@RATIOS
def test_constant_columns_have_no_coefficient_and_shifts_of_others_no_effect(form, l1_ratio):
    shifted = np.column_stack([X + 1000.0, np.full(len(X), 1 / 3), np.zeros(len(X)), np.full(len(X), 1e6)])
    plain = MLRHClassifier(C=0.5, l1_ratio=l1_ratio, **TIGHT).fit(form(X), Y, weights)
    moved = MLRHClassifier(C=0.5, l1_ratio=l1_ratio, **TIGHT).fit(form(shifted), Y, weights)
    np.testing.assert_array_equal(moved.coef_[:, -3:], 0.0)
    np.testing.assert_allclose(moved.coef_[:, :-3], plain.coef_, atol=1e-5)


def test_a_warm_start_gives_up_what_constant_columns_had():
    X, Y, _ = make_rows()
    model = MLRHClassifier(C=0.5, l1_ratio=1.0, warm_start=True, **TIGHT).fit(X, Y)
    assert model.coef_[:, 0].any()
    X[:, 0] = 7.0
    np.testing.assert_array_equal(model.fit(X, Y).coef_[:, 0], 0.0)


def test_repeated_columns_share_a_coefficient():
    options = {"C": 0.5, **TIGHT}
    once = MLRHClassifier(l1_ratio=1.0, **options).fit(X, Y)
    twice = MLRHClassifier(l1_ratio=1.0, **options).fit(np.hstack([X, X]), Y)
    assert twice.objective_ == pytest.approx(once.objective_, rel=1e-9)
    np.testing.assert_allclose(twice.coef_[:, :12] + twice.coef_[:, 12:], once.coef_, atol=1e-5)
    halves = MLRHClassifier(l1_ratio=0.5, **options).fit(np.hstack([X, X]), Y).coef_
    np.testing.assert_allclose(halves[:, :12], halves[:, 12:], atol=1e-5)


@RATIOS
def test_fewer_rows_than_features_still_has_zeros_of_the_features_own(l1_ratio):
    X, Y, weights = make_rows(40, 100)
    model = MLRHClassifier(C=1.0, l1_ratio=l1_ratio, **TIGHT).fit(X, Y, weights)
    d_coef = enumerated(model, X, Y, weights)[1]
    assert np.count_nonzero(model.coef_) < 200
    assert np.abs(d_coef[model.coef_ == 0]).max() < l1_ratio


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_the_scale_of_features_is_that_of_the_penalty(factor):
    plain = MLRHClassifier(C=0.5, l1_ratio=1.0, **TIGHT).fit(X, Y, weights)
    scaled = MLRHClassifier(C=0.5 / factor, l1_ratio=1.0, **TIGHT).fit(X * factor, Y, weights)
    np.testing.assert_allclose(scaled.coef_ * factor, plain.coef_, atol=1e-5)


def test_scores_of_1e5_are_fitted():
    X, Y, _ = make_rows(max_labels=2)
    X[0] *= 1e5
    model = MLRHClassifier(C=1.0, l1_ratio=0.5, fit_intercept=False, **TIGHT).fit(X, Y)
    loss, d_coef, *_ = enumerated(model, X, Y, np.ones(len(Y)))
    rest = d_coef + 0.5 * model.coef_ + 0.5 * np.sign(model.coef_)
    assert np.isfinite(loss)
    np.testing.assert_allclose(rest[model.coef_ != 0], 0.0, atol=1e-2)
    assert np.abs(d_coef[model.coef_ == 0]).max() < 0.5 + 1e-2


@pytest.mark.filterwarnings("ignore:The training rows don't determine:UserWarning")
def test_a_label_that_no_row_has_keeps_coefficients_of_zero_and_a_finite_intercept():
    X, Y, _ = make_rows()
    Y[:, 2] = 0
    model = MLRHClassifier(C=1.0, l1_ratio=0.5, min_labels=0).fit(X, Y)
    np.testing.assert_array_equal(model.coef_[2], 0.0)
    assert -25 < model.intercept_[2] < -6


def test_hidden_labels_of_independent_sets_equal_saga_on_the_known_rows():
    X, Y, _ = make_rows(min_labels=0, max_labels=5)
    known = np.where(np.random.RandomState(3).uniform(size=Y.shape) < 0.3, np.nan, Y)
    model = MLRHClassifier(C=0.3, l1_ratio=0.7, min_labels=0, max_labels=5, **TIGHT).fit(X, known)
    for k in range(5):
        rows = ~np.isnan(known[:, k])
        theirs = saga(X[rows], Y[rows, k], C=0.3, l1_ratio=0.7)
        np.testing.assert_allclose(model.coef_[k], theirs.coef_[0], atol=1e-5)


def test_without_a_penalty_the_share_of_l1_does_not_matter():
    X, Y, _ = make_rows(max_labels=2)
    plain = MLRHClassifier(C=np.inf).fit(X, Y)
    np.testing.assert_array_equal(MLRHClassifier(C=np.inf, l1_ratio=0.5).fit(X, Y).coef_, plain.coef_)


def test_a_path_of_c_has_the_scores_of_single_fits():
    train, held_out = np.arange(100), np.arange(100, 150)
    options = {"l1_ratio": 0.8, "tol": 1e-10}
    path = MLRHClassifierCV(Cs=[0.03, 0.3, 3.0], cv=[(train, held_out)], scoring="log_prob", **options).fit(X, Y)
    for C, score in zip(path.Cs_, path.scores_[0], strict=True):
        single = MLRHClassifier(C=C, **options).fit(X[train], Y[train])
        log_probs = single.distribution(X[held_out]).log_prob(Y[held_out])
        assert score == pytest.approx(np.maximum(log_probs, np.log(1e-6)).mean(), abs=1e-5)
