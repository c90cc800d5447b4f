"""The objective against finite differences, enumeration and its own rules."""

import numpy as np
import pytest
import reference
from scipy import sparse
from scipy.special import logsumexp

from mlrh._indicators import UNKNOWN
from mlrh.fitting import metric as feature_metric
from mlrh.fitting.design import Design, GramFeatures
from mlrh.fitting.metric import MAX_FACTORED, CoefficientMetric, coefficient_metric
from mlrh.fitting.objective import Objective
from mlrh.fitting.solvers import newton_cg
from mlrh.spaces import CardinalitySpace, ObservedSpace

SPACES = {
    "plain": CardinalitySpace(4, 1, 3),
    "softmax": CardinalitySpace(4, 1, 1),
    "independent": CardinalitySpace(4, 0, 4),
    "fixed bias": CardinalitySpace(4, 0, 3, [0.3, -1.0, 2.0, 0.5, 0.0]),
    "size bias": CardinalitySpace(4, 1, 3, learn_bias=True),
    "observed": ObservedSpace([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 1, 1, 0], [0, 1, 0, 1]]),
}


@pytest.fixture(params=SPACES)
def problem(request):
    return make_problem(SPACES[request.param])


@pytest.fixture(params=[*SPACES, *(f"{name}, partly known" for name in SPACES)])
def any_problem(request):
    name, _, hidden = request.param.partition(", ")
    return make_problem(SPACES[name], hidden_share=0.4 if hidden else 0.0)


def make_problem(space, *, alpha=0.7, fit_intercept=True, convert=np.asarray, weighted=True, hidden_share=0.0):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(30, 5)) + 1.0
    Y = space.sample(rng.normal(size=(30, 4)), 1, rng)[:, 0]
    Y[np.random.RandomState(1).uniform(size=Y.shape) < hidden_share] = UNKNOWN
    weights = rng.uniform(0.5, 2.0, size=30) if weighted else np.ones(30)
    design = Design(convert(X), weights, fit_intercept=fit_intercept)
    objective = Objective(design, space, Y, alpha=alpha)
    parameters = 0.5 * rng.normal(size=len(objective.start()))
    return objective, determined(objective, parameters), X, Y, weights


def objective_of(X, Y, space, *, alpha=1.0, fit_intercept=True):
    """An objective of rows of weight 1."""
    design = Design(X, np.ones(X.shape[0]), fit_intercept=fit_intercept)
    return Objective(design, space, Y, alpha=alpha)


def determined(objective, parameters):
    """Parameters whose biases meet the conditions that the objective keeps them to."""
    bias = objective.split(parameters)[2]
    if len(bias):
        absorbed = objective.space.absorbed_biases()
        bias -= absorbed @ np.linalg.lstsq(absorbed, bias, rcond=None)[0]
    return parameters


def test_value_is_the_weighted_loss_over_all_sets_plus_the_penalty(any_problem):
    objective, parameters, X, Y, weights = any_problem
    coef, intercept, bias = objective.split(parameters)
    scores = (X - np.average(X, axis=0, weights=weights)) @ coef + intercept
    space = objective.space_at(parameters)
    sets = space.top_sets(np.zeros((1, 4)), 16)
    sets = sets[0][0][np.isfinite(sets[1][0])].astype(float)
    log_weights = scores @ sets.T + np.array([bias_of(space, y) for y in sets])
    agree = ((Y[:, None] == sets) | (Y[:, None] == UNKNOWN)).all(axis=2)
    loss = logsumexp(log_weights, axis=1) - logsumexp(np.where(agree, log_weights, -np.inf), axis=1)
    expected = weights @ loss + 0.35 * (coef**2).sum() + 0.05 * (bias**2).sum()
    assert objective.value(parameters) == pytest.approx(expected, rel=1e-9)


def bias_of(space, y):
    if hasattr(space, "size_bias"):
        return space.size_bias[int(y.sum())]
    return space.set_bias[[(row == y).all() for row in space.sets].index(True)]


def test_gradient_equals_finite_differences(any_problem):
    objective, parameters, *_ = any_problem
    gradient = objective.value_and_gradient(parameters)[1]
    rng = np.random.RandomState(1)
    for _ in range(10):
        direction = determined(objective, rng.normal(size=len(parameters)))
        slope = reference.central_difference(lambda t, way=direction: objective.value(parameters + t * way))
        assert gradient @ direction == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_hessian_product_equals_differences_of_gradients(any_problem):
    objective, parameters, *_ = any_problem
    direction = determined(objective, np.random.RandomState(2).normal(size=len(parameters)))
    change = reference.central_difference(lambda t: objective.value_and_gradient(parameters + t * direction)[1])
    np.testing.assert_allclose(objective.hessian(parameters)(direction), change, rtol=1e-5, atol=1e-5)


def test_hessian_is_symmetric_and_positive_semidefinite(problem):
    objective, parameters, *_ = problem
    product = objective.hessian(parameters)
    matrix = np.array([product(unit) for unit in np.eye(len(parameters))])
    kept = len(parameters) - objective.n_biases
    np.testing.assert_allclose(matrix[:kept, :kept], matrix[:kept, :kept].T, atol=1e-10)
    assert np.linalg.eigvalsh(matrix[:kept, :kept])[0] > 0


def test_majoriser_bounds_the_hessian_at_random_parameters(any_problem):
    objective, parameters, *_ = any_problem
    solve = objective.majoriser(objective.curvature_bound())
    inverse = np.array([solve(unit) for unit in np.eye(len(parameters))])
    bound = np.linalg.inv(inverse)
    rng = np.random.RandomState(3)
    for scale in (0.0, 0.3, 1.0, 3.0):
        product = objective.hessian(determined(objective, scale * rng.normal(size=len(parameters))))
        hessian = np.array([product(unit) for unit in np.eye(len(parameters))])
        hessian = 0.5 * (hessian + hessian.T)
        assert np.linalg.eigvalsh(bound - hessian)[0] > -1e-9


def test_the_paper_bound_of_a_quarter_is_not_a_majoriser():
    space = CardinalitySpace(2, 1, 1)
    covariance = np.array(
        [space.curvature(np.zeros((1, 2)), unit[None], np.zeros(1), np.ones(1))[0][0] for unit in np.eye(2)]
    )
    assert np.linalg.eigvalsh(covariance)[-1] == pytest.approx(0.5)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_csr_features_give_the_same_value_gradient_and_curvature(fit_intercept):
    space = SPACES["size bias"]
    dense, parameters, *_ = make_problem(space, fit_intercept=fit_intercept)
    csr, *_ = make_problem(space, fit_intercept=fit_intercept, convert=sparse.csr_array)
    direction = np.random.RandomState(5).normal(size=len(parameters))
    assert csr.value(parameters) == pytest.approx(dense.value(parameters), rel=1e-13)
    for function in (lambda o: o.value_and_gradient(parameters)[1], lambda o: o.hessian(parameters)(direction)):
        np.testing.assert_allclose(function(csr), function(dense), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(csr.metric(0.2)(direction), dense.metric(0.2)(direction), rtol=1e-9, atol=1e-12)


def test_metric_solves_with_the_weighted_gram_matrix_and_the_ridge():
    objective, parameters, X, _, weights = make_problem(SPACES["plain"])
    centred = X - np.average(X, axis=0, weights=weights)
    matrix = 0.3 * centred.T @ (weights[:, None] * centred) + 0.7 * np.eye(5)
    coef = objective.split(parameters)[0]
    solved = objective.split(objective.metric(0.3)(parameters))[0]
    np.testing.assert_allclose(solved, np.linalg.solve(matrix, coef), rtol=1e-10)


def test_metric_of_rank_deficient_features_gives_the_smallest_solution():
    X = np.random.RandomState(0).normal(size=(20, 3)) @ np.array([[1.0, 0, 1, 2], [0, 1, 1, 0], [0, 0, 0, 1]])
    design = Design(X, np.ones(20), fit_intercept=False)
    gradient = X.T @ np.random.RandomState(1).normal(size=(20, 2))
    solved = CoefficientMetric(design, curvature=1.0, alpha=0.0).solve(gradient)
    np.testing.assert_allclose(X.T @ X @ solved, gradient, rtol=1e-8)
    norms = np.linalg.norm(X, axis=0)[:, None]
    np.testing.assert_allclose(norms * solved, np.linalg.pinv(X / norms.T) @ np.linalg.pinv(X.T) @ gradient, rtol=1e-8)


def test_metric_of_very_many_features_is_the_diagonal_and_mm_refuses_it():
    n_features = MAX_FACTORED + 1
    X = sparse.random_array((20, n_features), density=0.01, random_state=np.random.default_rng(0), format="csr")
    design = Design(X, np.ones(20), fit_intercept=False)
    gradient = np.ones((n_features, 2))
    expected = 1.0 / (0.5 * X.multiply(X).sum(axis=0) + 2.0)
    solved = coefficient_metric(design, curvature=0.5, alpha=2.0).solve(gradient)
    np.testing.assert_allclose(solved, np.tile(expected[:, None], 2), rtol=1e-12)
    objective = objective_of(X, np.eye(2, dtype=np.int8)[[0, 1] * 10], CardinalitySpace(2, 1, 1), fit_intercept=False)
    with pytest.raises(ValueError, match="Use solver='lbfgs'"):
        objective.majoriser(0.5)


@pytest.mark.parametrize("rank", [1, 4, 9, 12])
def test_gram_features_reproduce_the_gram_matrix_and_their_map_inverts_them(rank):
    factor = np.random.RandomState(0).normal(size=(12, rank))
    found = GramFeatures(factor @ factor.T)
    assert found.features.shape == (12, rank)
    np.testing.assert_allclose(found.features @ found.features.T, factor @ factor.T, atol=1e-12)
    np.testing.assert_allclose(factor @ factor.T @ found.to_dual(np.eye(rank)), found.features, atol=1e-10)
    np.testing.assert_allclose(found.from_scores(found.features), np.eye(rank), atol=1e-10)


@pytest.mark.parametrize("smallest", [-1.0, -4e-8])
def test_an_eigenvalue_below_minus_a_hundred_millionth_of_the_largest_is_an_error_and_rounding_is_none(smallest):
    with pytest.raises(ValueError, match=f"positive semidefinite; its smallest eigenvalue is {smallest:.0g}"):
        GramFeatures(np.diag([2.0, 1.0, smallest]))
    assert GramFeatures(np.diag([2.0, 1.0, -1e-9])).features.shape == (3, 2)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_squared_norms_are_the_diagonal_of_the_gram_matrix(convert):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(30, 5)) + 1.0
    X[rng.random_sample(X.shape) < 0.3] = 0.0
    for weights in (rng.uniform(0.5, 2.0, size=30), np.full(30, 3.0)):
        design = Design(convert(X), weights, fit_intercept=True)
        np.testing.assert_allclose(design.squared_norms(), np.diag(design.gram()), rtol=1e-12)


def test_squared_norms_of_features_in_float32_are_summed_in_float64():
    X = np.full((100_000, 1), 0.1, np.float32)
    design = Design(X, np.ones(len(X)), fit_intercept=False)
    np.testing.assert_allclose(design.squared_norms(), [len(X) * float(X[0, 0]) ** 2], rtol=1e-12)


def test_independence_compares_the_variance_of_the_size_with_that_of_independent_labels():
    scores = np.array([0.3, -1.0, 0.8, -0.2])
    sets = reference.sets_of_sizes(4, 1, 2)
    probs = np.exp(sets @ scores) / np.exp(sets @ scores).sum()
    sizes, marginals = sets.sum(axis=1), probs @ sets
    variance = probs @ sizes**2 - (probs @ sizes) ** 2
    expected = variance / (marginals * (1 - marginals)).sum()
    assert CardinalitySpace(4, 1, 2).independence(scores) == pytest.approx(expected, rel=1e-12)
    assert CardinalitySpace(4, 0, 4).independence(scores) == pytest.approx(1.0, rel=1e-12)
    assert CardinalitySpace(4, 2, 2).independence(scores) == pytest.approx(0.0, abs=1e-12)


def test_labels_are_blocks_of_their_own_only_where_sizes_leave_them_free():
    X, Y = np.random.RandomState(0).normal(size=(40, 3)), np.eye(6, dtype=np.int8)[np.arange(40) % 6]
    assert objective_of(X, Y, CardinalitySpace(6, 0, 6)).n_blocks() == 6
    assert objective_of(X, Y, CardinalitySpace(6, 1, 1)).n_blocks() == 1
    assert objective_of(X, Y, CardinalitySpace(6, 0, 6, learn_bias=True)).n_blocks() == 1
    assert objective_of(X, Y, ObservedSpace(np.eye(6, dtype=np.int8))).n_blocks() == 1


def test_metric_of_sparse_features_is_the_diagonal_with_each_labels_own_curvature():
    X = sparse.random_array((30, 40), density=0.05, random_state=np.random.default_rng(0), format="csr")
    Y = (np.random.RandomState(0).random_sample((30, 3)) < [0.1, 0.4, 0.8]).astype(np.int8)
    objective = objective_of(X, Y, CardinalitySpace(3, 0, 3), alpha=0.5, fit_intercept=False)
    frequency = (Y.sum(axis=0) + 0.5) / 31
    own = frequency * (1 - frequency)
    solved = objective.split(objective.metric()(np.ones(41 * 3)))[0]
    np.testing.assert_allclose(solved, 1 / (X.multiply(X).sum(axis=0)[:, None] * own + 0.5), rtol=1e-12)


def test_a_label_nobody_has_starts_where_its_ridge_leaves_no_slope():
    X, Y = np.zeros((20, 1)), np.zeros((20, 2), np.int8)
    Y[:7, 0] = 1
    objective = objective_of(X, Y, CardinalitySpace(2, 0, 2))
    gradient = objective.split(objective.value_and_gradient(objective.start())[1])[1]
    assert abs(gradient[1]) < 1e-14


def test_a_label_that_is_unknown_in_every_row_starts_at_even_odds():
    Y = np.array([[1, 0, UNKNOWN], [0, 1, UNKNOWN]], np.int8)
    objective = objective_of(np.ones((2, 1)), Y, CardinalitySpace(3, 0, 3))
    assert objective.split(objective.start())[1][2] == 0.0


def test_a_full_metric_is_used_for_sparse_features_where_inference_costs_more():
    X = sparse.random_array((60, 12), density=0.1, random_state=np.random.default_rng(0), format="csr")
    Y = (np.random.RandomState(0).random_sample((60, 9)) < 0.3).astype(np.int8)
    objective = objective_of(X, Y, CardinalitySpace(9, 0, 9), alpha=0.5, fit_intercept=False)
    coef = np.random.RandomState(1).normal(size=(12, 9))
    solved = objective.split(objective.metric()(np.append(coef.ravel(), np.zeros(9))))[0]
    matrix = objective.typical_curvature() * (X.T @ X).toarray() + 0.5 * np.eye(12)
    np.testing.assert_allclose(solved, np.linalg.solve(matrix, coef), rtol=1e-10)


def test_the_bound_of_what_is_left_is_no_less_than_what_is_left(problem):
    objective, parameters, *_ = problem
    optimum = newton_cg(objective, objective.start(), tol=1e-13, max_iter=200)
    for share in (1.0, 0.1, 1e-3):
        near = optimum.parameters + share * determined(objective, parameters)
        value, gradient = objective.value_and_gradient(near)
        assert value - optimum.value <= objective.decrease_bound(gradient) + objective.rounding_error(parameters, value)


def test_nothing_bounds_what_is_left_without_a_penalty_or_with_unknown_labels():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(8, 2)), (rng.random((8, 3)) < 0.5).astype(np.int8)
    Y[:, 0] = 1
    space, gradient, unknown = CardinalitySpace(3, 1, 3), np.zeros(3 * 3), Y.copy()
    unknown[0, 1] = UNKNOWN
    assert objective_of(X, Y, space).decrease_bound(gradient) == 0
    assert objective_of(X, Y, space, alpha=0.0).decrease_bound(gradient) == np.inf
    assert objective_of(X, unknown, space).decrease_bound(gradient) == np.inf


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_a_metric_solves_as_well_by_its_inverse_as_by_its_factor(monkeypatch, scale):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)) * [1, scale, 1e3, 1]
    design, gradient = Design(X, np.ones(30), fit_intercept=True), rng.normal(size=(4, 3))
    by_inverse = coefficient_metric(design, curvature=0.2, alpha=0.1).solve(gradient)
    monkeypatch.setattr(feature_metric, "MAX_INVERTED", 0)
    by_factor = coefficient_metric(design, curvature=0.2, alpha=0.1).solve(gradient)
    np.testing.assert_allclose(by_inverse, by_factor, rtol=1e-9)


def curved(objective, X, parameters, curvatures):
    """The solution by a dense matrix for each label, for the coefficients alone."""
    gradient = objective.split(parameters)[0]
    centred, ridge = X - objective.design.mean, objective.alpha * np.eye(X.shape[1])
    matrices = [centred.T @ (own[:, None] * centred) + ridge for own in curvatures.T]
    return np.stack([np.linalg.solve(m, g) for m, g in zip(matrices, gradient.T, strict=True)], axis=1)


@pytest.mark.parametrize("is_shared", [False, True])
def test_metric_at_a_start_has_the_curvature_there_of_every_label_or_their_mean_where_that_costs_too_much(
    is_shared, monkeypatch, problem
):
    objective, parameters, X, _, _ = problem
    _, _, variances, misfit, _ = objective.with_curvatures(parameters)
    curvatures = variances + misfit
    if is_shared:
        monkeypatch.setattr(feature_metric, "MAX_OWN", 0)
        curvatures = np.repeat(curvatures.mean(axis=1, keepdims=True), 4, axis=1)
    solved = objective.split(objective.metric(at=parameters)(parameters))[0]
    np.testing.assert_allclose(solved, curved(objective, X, parameters, curvatures), rtol=1e-8)


def test_metric_at_a_start_that_knows_nothing_is_the_usual_one(problem):
    objective, parameters, *_ = problem
    np.testing.assert_array_equal(objective.metric(at=objective.start())(parameters), objective.metric()(parameters))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gram_and_norms_with_other_weights_are_those_of_numpy(dtype):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(5000, 3)).astype(dtype), rng.uniform(size=5000)
    design = Design(X, np.ones(5000), fit_intercept=False)
    expected = X.astype(float).T @ (weights[:, None] * X.astype(float))
    np.testing.assert_allclose(design.gram_with(weights), expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(design.gram_with(weights, 2), expected[:2, :2], rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(design.squared_norms(weights), np.diag(expected), rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("convert", [sparse.csr_array, np.asarray])
def test_squared_norms_by_label_are_those_of_rows_weighted_label_by_label(convert):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(9, 4)) * (rng.random((9, 4)) < 0.4), rng.uniform(size=(9, 3))
    design = Design(convert(X), np.ones(9), fit_intercept=True)
    expected = np.square(X - X.mean(axis=0)).T @ weights
    np.testing.assert_allclose(design.squared_norms_by_label(weights), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n_leading", [None, 2])
def test_a_metric_with_other_diagonals_keeps_its_correlations(n_leading):
    rng = np.random.default_rng(0)
    X, gradient, diagonals = rng.normal(size=(20, 4)), rng.normal(size=(4, 3)), rng.uniform(1, 9, size=(4, 3))
    design = Design(X, np.ones(20), fit_intercept=True)
    metric = CoefficientMetric(design, curvature=0.2, alpha=0.5, n_leading=n_leading).with_diagonals(diagonals)
    matrix = 0.2 * design.gram() + 0.5 * np.eye(4)
    correlations = matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))
    if n_leading:
        correlations[n_leading:] = correlations[:, n_leading:] = 0
        np.fill_diagonal(correlations, 1)
    for k in range(3):
        own = correlations * np.sqrt(np.outer(diagonals[:, k], diagonals[:, k]))
        np.testing.assert_allclose(metric.solve(gradient)[:, k], np.linalg.solve(own, gradient[:, k]), rtol=1e-10)


def test_metric_of_sparse_features_at_parameters_has_the_diagonals_there():
    objective, parameters, X, _, _ = make_problem(CardinalitySpace(4, 1, 3), convert=sparse.csr_array)
    assert objective.renews_cheaply
    _, _, variances, misfit, _ = objective.with_curvatures(parameters)
    diagonals = np.square(X - objective.design.mean).T @ (variances + misfit) + objective.alpha
    solve = objective.metric(at=parameters)
    unit = np.zeros_like(parameters).reshape(-1, 4)
    unit[:5] = np.sqrt(diagonals)
    whitened = np.sqrt(diagonals) * objective.split(solve(unit.ravel()))[0]
    np.testing.assert_allclose(whitened, np.repeat(whitened[:, :1], 4, axis=1), rtol=1e-9)  # the same for every label
