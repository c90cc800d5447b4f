"""prox_newton and its parts: what every solver promises, and the minima that its steps are made of."""

import numpy as np
import pytest
from penalised import SPACES, TIGHT, make_rows
from scipy import sparse
from scipy.optimize import minimize_scalar

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.fitting.design import Design
from mlrh.fitting.objective import Objective, _cheapest_shift
from mlrh.fitting.solvers._coordinate_descent import columns_of, descend
from mlrh.spaces import CardinalitySpace

X, Y, weights = make_rows()
SMOOTH = ("lbfgs", "newton-cg", "mm")


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("hidden", [0.0, 0.3])
def test_the_objective_never_increases(space, hidden):
    known = np.where(np.random.RandomState(0).uniform(size=Y.shape) < hidden, np.nan, Y)
    known[:60] = Y[:60]
    model = MLRHClassifier(C=3.0, l1_ratio=0.7, tol=1e-12, **SPACES[space]).fit(X, known, weights)
    assert model.n_iter_ > 3
    assert np.diff(model.history_).max() <= 1e-13 * model.history_[0]
    assert model.objective_ == model.history_[-1]


def test_prox_newton_reaches_the_optimum_of_a_kernel_model_too():
    X, Y, _ = make_rows(60)
    smooth = KernelMLRHClassifier(**TIGHT).fit(X, Y)
    model = KernelMLRHClassifier(solver="prox-newton", **TIGHT).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X), smooth.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("C", [1.0, 100.0, 1e4])
def test_a_fit_ends_where_hardly_more_than_tol_is_left(C):
    X, Y, weights = make_rows(120, 120)
    X[:, 60:] = X[:, :60] + 0.05 * X[:, 60:]
    found = MLRHClassifier(C=C, l1_ratio=0.5, tol=1e-6).fit(X, Y, weights)
    best = MLRHClassifier(C=C, l1_ratio=0.5, tol=1e-13, max_iter=5000).fit(X, Y, weights)
    assert 0 <= found.objective_ - best.objective_ < 3e-6 * weights.sum() * np.log(25)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        *((MLRHClassifier(solver=s), f"solver='{s}' minimises smooth .* got 0.5. Use solver='auto'") for s in SMOOTH),
        (KernelMLRHClassifier(), r"no coefficients of features .* got 0.5. Use MLRHClassifier"),
    ],
    ids=repr,
)
def test_smooth_solvers_and_kernel_models_refuse_the_l1_penalty(model, message):
    with pytest.raises(ValueError, match=message):
        model.set_params(l1_ratio=0.5).fit(X, Y)


def test_a_fit_does_not_depend_on_the_number_of_threads():
    X, Y, _ = make_rows(2000, 300)
    one, two = (MLRHClassifier(C=0.1, l1_ratio=0.5, n_jobs=n).fit(X, Y) for n in (1, 2))
    np.testing.assert_array_equal(one.coef_, two.coef_)


@pytest.mark.parametrize(("l1", "alpha"), [(1.0, 0.0), (0.3, 2.0), (1e-9, 1.0), (5.0, 1e-3)])
@pytest.mark.parametrize("n_labels", [1, 2, 5, 6])
def test_the_shift_over_labels_minimises_the_penalty(l1, alpha, n_labels):
    coef = np.random.RandomState(n_labels).normal(size=(8, n_labels)).round(1)
    coef[3], coef[4, ::2] = 0.0, 0.0

    def cost(t, row):
        return l1 * np.abs(row - t).sum() + alpha / 2 * np.square(row - t).sum()

    for row, t in zip(coef, _cheapest_shift(coef, l1, alpha), strict=True):
        best = minimize_scalar(cost, args=(row,), bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}).fun
        assert cost(t, row) <= best + 1e-8


def test_an_interval_of_shifts_ends_where_a_coefficient_is_zero():
    coef = np.array([[-3.0, -2.0, 0.0, 0.0], [-1.0, 2.0, 3.0, -4.0], [0.0, 0.0, 2.0, 3.0]])
    np.testing.assert_array_equal(_cheapest_shift(coef, 1.0, 0.0), [0.0, -1.0, 0.0])


def test_curvatures_are_those_of_the_hessian():
    design = Design(X, weights, fit_intercept=True)
    objective = Objective(design, CardinalitySpace(5, 1, 3), Y.astype(np.int8), alpha=0.3, l1=1.0)
    parameters = np.random.RandomState(0).normal(size=len(objective.start()))
    value, gradient, variances, misfit, _ = objective.with_curvatures(parameters)
    hessian, unit = objective.hessian(parameters), np.eye(len(parameters))
    diagonal = [unit[i] @ hessian(unit[i]) for i in range(12 * 5)]
    np.testing.assert_allclose((np.square(design.X).T @ variances + 0.3).ravel(), diagonal, rtol=1e-9)
    assert value == objective.value(parameters)
    np.testing.assert_array_equal(gradient, objective.value_and_gradient(parameters)[1])
    assert misfit.min() == 0.0 < misfit.max()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("ridge", [0.1, np.inf])
def test_coordinate_descent_ends_at_the_minimum_of_its_model(form, ridge):
    rng = np.random.RandomState(0)
    X, weights, gradient = rng.normal(size=(40, 6)), rng.uniform(size=40), 5 * rng.normal(size=6)
    start = np.array([0.5, 0, -2, 0, 1, 0])
    coef = start.copy()
    limits = (10_000, 0.0)
    offset, decrease = descend(
        columns_of(form(X)), np.arange(6), weights, coef, gradient, (3.0, ridge), (7.0, 0.2), limits
    )

    def model(coef, offset):
        moved = X @ (coef - start) + offset
        smooth = gradient @ (coef - start) + (3.0 * offset if ridge < np.inf else 0.0)
        ridges = 0.1 * np.square(coef - start).sum() + (0.5 * ridge * offset**2 if ridge < np.inf else 0.0)
        return smooth + 0.5 * weights @ np.square(moved) + ridges + 7.0 * np.abs(coef).sum()

    found = model(coef, offset)
    assert decrease == pytest.approx(model(start, 0.0) - found, rel=1e-9)
    assert 0 < np.count_nonzero(coef) < 6
    for _ in range(200):
        step = 1e-3 * rng.normal(size=6) * rng.randint(0, 2, 6)
        assert model(coef + step, offset + 1e-3 * rng.normal() * (ridge < np.inf)) >= found - 1e-12


def test_rare_labels_and_columns_with_few_entries_take_few_iterations():
    """There the curvature at the start says little of the way, and a full step would go far too far."""
    rng = np.random.default_rng(1)
    X = sparse.random_array((300, 400), density=0.01, random_state=rng, format="csr")
    Y = np.zeros((300, 20), int)
    Y[np.arange(300), np.minimum(rng.geometric(0.2, 300), 20) - 1] = 1
    assert MLRHClassifier(C=10.0, l1_ratio=1.0).fit(X, Y).n_iter_ < 40
