"""Coordinates of the rows of a design: the same scores, the same optimum, whichever way they are made."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics.pairwise import rbf_kernel

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.fitting.design import (
    Design,
    GramFeatures,
    GramRows,
    OrthogonalRows,
    PivotedDesign,
    row_space,
    triangular_design,
)

RNG = np.random.default_rng(0)


def few_rows(n_samples=12, n_features=40, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return sparse.random_array((n_samples, n_features), density=density, random_state=rng, format="csr")


def design_of(X, *, fit_intercept=True, weights=None):
    return Design(X, np.ones(X.shape[0]) if weights is None else weights, fit_intercept=fit_intercept)


@pytest.mark.parametrize("kind", [OrthogonalRows, GramRows])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_coordinates_give_the_centred_scores_of_the_coefficients_they_stand_for(kind, fit_intercept):
    X = few_rows()
    design = design_of(X, fit_intercept=fit_intercept, weights=RNG.uniform(0.5, 2, size=12))
    rows = kind(design)
    z = RNG.normal(size=(rows.features.shape[1], 3))
    centred = X.toarray() - (design.mean if fit_intercept else 0)
    np.testing.assert_allclose(rows.features @ z, centred @ rows.expand(z), atol=1e-12)
    np.testing.assert_allclose(np.square(z).sum(), np.square(rows.expand(z)).sum(), rtol=1e-10)
    np.testing.assert_allclose(rows.reduce(rows.expand(z)), z, atol=1e-10)


@pytest.mark.parametrize("kind", [OrthogonalRows, GramRows])
def test_rows_that_repeat_or_are_empty_have_fewer_coordinates_and_the_same_scores(kind):
    X = sparse.vstack([few_rows(), few_rows()[:5], sparse.csr_array((2, 40))], format="csr")
    rows = kind(design_of(X, fit_intercept=False))
    assert rows.features.shape == (19, 12)
    np.testing.assert_allclose(rows.features @ rows.features.T, (X @ X.T).toarray(), atol=1e-12)


def kernel_rows(n_samples, gamma=0.5, seed=0):
    return GramFeatures(rbf_kernel(np.random.default_rng(seed).normal(size=(n_samples, 4)), gamma=gamma))


def rows_of_kind(kind, n_samples):
    if kind == "kernel":
        return kernel_rows(n_samples)
    repeated = few_rows(n_samples - 5, 2 * n_samples)
    X = sparse.vstack([repeated, repeated[:5]], format="csr")  # fewer coordinates than rows
    return (OrthogonalRows if kind == "orthogonal" else GramRows)(design_of(X, fit_intercept=False))


@pytest.mark.parametrize("n_labels", [3, 40])
@pytest.mark.parametrize(
    "n_samples", [30, 300]
)  # in one step; in several, and large enough for the kernels of few labels
@pytest.mark.parametrize("kind", ["orthogonal", "products", "kernel"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_a_triangle_in_the_order_of_its_pivots_is_the_design_of_its_rows(kind, n_samples, n_labels, fit_intercept):
    rng, factors = np.random.default_rng(1), rows_of_kind(kind, n_samples)
    weights, options = rng.uniform(0.5, 2, size=n_samples), {"fit_intercept": fit_intercept}
    found = triangular_design(factors, weights, **options)
    expected = Design(factors.features, weights, n_leading=factors.n_leading, **options)
    assert isinstance(found, PivotedDesign) and found.n_leading == expected.n_leading
    coef, residuals = rng.normal(size=(expected.n_features, n_labels)), rng.normal(size=(n_samples, n_labels))
    intercept, curvatures = rng.normal(size=n_labels), rng.uniform(size=(n_samples, n_labels))
    some = rng.permutation(n_samples)[:7]
    for ask in (
        lambda design: design.mean,
        lambda design: design.scores(coef, intercept),
        lambda design: design.pull_back(residuals)[0],
        lambda design: design.pull_back(residuals)[1],
        lambda design: design.gram(),
        lambda design: design.gram(5),
        lambda design: design.gram_with(curvatures[:, 0], 5),
        lambda design: design.squared_norms(),
        lambda design: design.squared_norms(curvatures[:, 0]),
        lambda design: design.squared_norms_by_label(curvatures),
        lambda design: design.of_rows(some).scores(coef, intercept),
    ):
        np.testing.assert_allclose(ask(found), ask(expected), rtol=1e-9, atol=1e-10)


def test_features_whose_means_are_far_from_0_are_centred_entry_by_entry():
    nearly_constant = kernel_rows(30, gamma=1e-6)  # the first column is 1 to six digits
    assert type(triangular_design(nearly_constant, np.ones(30), fit_intercept=True)) is Design
    assert type(triangular_design(nearly_constant, np.ones(30), fit_intercept=False)) is PivotedDesign


def test_row_products_are_those_of_centred_rows():
    X = few_rows()
    centred = X.toarray() - X.toarray().mean(axis=0)
    np.testing.assert_allclose(design_of(X).row_products(), centred @ centred.T, atol=1e-13)
    np.testing.assert_allclose(design_of(X.toarray()).row_products(), centred @ centred.T, atol=1e-13)


def test_sparse_rows_far_fewer_than_features_are_worth_their_products():
    assert isinstance(row_space(design_of(few_rows()), 1.0), GramRows)
    assert isinstance(row_space(design_of(few_rows().toarray()), 1.0), OrthogonalRows)


def test_rows_so_long_that_their_products_lose_digits_are_left_alone_or_made_orthogonal():
    long = few_rows() * 1e4
    assert row_space(design_of(long), 1.0) is None
    assert isinstance(row_space(design_of(few_rows(density=0.9) * 1e4), 1.0), OrthogonalRows)
    assert row_space(design_of(few_rows()), 1e8) is None
    assert row_space(design_of(few_rows()), np.inf) is None


def test_as_many_rows_as_features_have_no_coordinates_of_their_own():
    assert row_space(design_of(few_rows(40)), 1.0) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_fit_to_few_sparse_rows_is_that_to_the_same_rows_made_dense(dtype):
    X = few_rows(60, 150, density=0.05).astype(dtype)
    Y = (X.toarray()[:, :5] + X.toarray()[:, 5:10] > 0).astype(int)
    Y[Y.sum(axis=1) == 0, 0] = 1
    assert isinstance(row_space(design_of(X), 10.0), GramRows)
    sparse_fit, dense_fit = (MLRHClassifier(C=10, tol=1e-12).fit(own, Y) for own in (X, X.toarray()))
    accuracy = 1e-5 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(sparse_fit.coef_, dense_fit.coef_, atol=accuracy)
    np.testing.assert_allclose(sparse_fit.intercept_, dense_fit.intercept_, atol=accuracy)
    again = MLRHClassifier(C=10, tol=1e-9, warm_start=True).fit(X, Y)
    assert again.fit(X, Y).n_iter_ <= 2


@pytest.mark.parametrize("C", [1e16, np.inf])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_that_only_a_tiny_feature_tells_apart_are_told_apart_where_the_penalty_lets_them(C):
    rows = few_rows(20, 60, seed=1).toarray()
    X = np.vstack([rows, rows])
    X[:, 0] = np.repeat([0.0, 1e-8], 20)
    Y = np.zeros((40, 2), int)
    Y[:20, 0] = Y[20:, 1] = 1
    sparse_fit, dense_fit = (MLRHClassifier(C=C).fit(own, Y) for own in (sparse.csr_array(X), X))
    assert sparse_fit.objective_ <= 1.01 * dense_fit.objective_ + 1e-6


def test_features_without_any_variation_print_nothing(capfd):
    Y = np.array([[1, 0], [0, 1], [1, 1]] * 2)
    for X in (np.zeros((6, 20)), sparse.csr_array((6, 20)), np.ones((6, 20))):
        MLRHClassifier().fit(X, Y)
    assert capfd.readouterr() == ("", "")


def kernel_of(kind):
    """An RBF kernel of 90 rows, one with two rows that occur twice, and a linear one of rank 4."""
    X = np.random.default_rng(5).normal(size=(90, 4))
    if kind == "rows twice":
        X[[40, 80]] = X[[3, 7]]
    return X @ X.T if kind == "low rank" else rbf_kernel(X, gamma=1.0)


@pytest.mark.parametrize("kind", ["distinct rows", "rows twice", "low rank"])
def test_features_with_every_third_row_first_have_the_inner_products_of_the_kernel(kind):
    gram = kernel_of(kind)
    before = gram.copy()
    found = GramFeatures(gram, evenly=True)
    # Backward error of Cholesky, and what was added to the diagonal: a few times 90 eps of the largest entry.
    np.testing.assert_allclose(found.features @ found.features.T, gram, atol=1e-12 * gram.max())
    np.testing.assert_array_equal(gram, before)
    assert found.rank == (4 if kind == "low rank" else 90)
    if kind != "low rank":
        np.testing.assert_array_equal(found.order[:30], np.arange(0, 90, 3))


@pytest.mark.parametrize("kind", ["distinct rows", "rows twice", "low rank"])
def test_dual_coefficients_of_features_with_every_third_row_first_give_their_scores(kind):
    gram = kernel_of(kind)
    found = GramFeatures(gram, evenly=True)
    scores = gram @ np.random.default_rng(6).normal(size=(90, 3))
    coef = found.from_scores(scores)
    # A pivot of rounding errors is about 1e-6, by which rounding errors of 1e-16 are divided.
    np.testing.assert_allclose(found.features @ coef, scores, atol=1e-8 * np.abs(scores).max())
    np.testing.assert_allclose(gram @ found.to_dual(coef), scores, atol=1e-8 * np.abs(scores).max())


def test_a_kernel_fit_does_not_depend_on_which_rows_come_first():
    X = np.random.default_rng(7).normal(size=(90, 4))
    X[[40, 80]] = X[[3, 7]]
    Y = (X[:, :3] + X[:, 1:] > 0).astype(int)
    Y[Y.sum(axis=1) == 0, 0] = 1
    order = np.argsort(X[:, 0])
    own, sorted_rows = (KernelMLRHClassifier(C=100, tol=1e-12).fit(X[rows], Y[rows]) for rows in (slice(None), order))
    np.testing.assert_allclose(own.predict_proba(X), sorted_rows.predict_proba(X), atol=1e-6)
