"""One contract that every solver keeps, and what is particular to mm."""

import ast
import functools
import gc
import weakref
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh._indicators import UNKNOWN
from mlrh.fitting import solvers
from mlrh.fitting.design import Design
from mlrh.fitting.objective import Objective
from mlrh.fitting.solvers import base
from mlrh.fitting.solvers.base import PenalisedObjective, SmoothObjective
from mlrh.spaces import CardinalitySpace, ObservedSpace

SOLVERS = {
    "mm": solvers.mm,
    "mm paper": functools.partial(solvers.mm, step="paper"),
    "lbfgs": solvers.lbfgs,
    "newton-cg": solvers.newton_cg,
    "prox-newton": solvers.prox_newton,
}
PROBLEMS = {
    "plain": (CardinalitySpace(4, 1, 3), 1.0),
    "softmax": (CardinalitySpace(4, 1, 1), 1.0),
    "independent": (CardinalitySpace(4, 0, 4), 1.0),
    "unpenalised": (CardinalitySpace(4, 1, 3), 0.0),
    "size bias": (CardinalitySpace(4, 1, 3, learn_bias=True), 1.0),
    "observed": (ObservedSpace(np.unique(np.random.RandomState(7).randint(0, 2, (9, 4)), axis=0)), 1.0),
    "partly known": (CardinalitySpace(4, 1, 3), 1.0),
    "partly known, size bias": (CardinalitySpace(4, 1, 3, learn_bias=True), 1.0),
}
TOO_SLOW = {("mm", "partly known, size bias")}  # thousands of iterations
CASES = [
    (s, p)
    for s in SOLVERS
    for p, (space, _) in PROBLEMS.items()
    if (s != "mm paper" or not space.learns_bias) and (s, p) not in TOO_SLOW
]


@functools.cache
def make_objective(problem, weighted=True):
    space, alpha = PROBLEMS[problem]
    rng = np.random.RandomState(0)
    X = rng.normal(size=(120, 5)) * [1, 2, 0.5, 1, 1] + 1.0
    truth = space.with_bias(1.5 * rng.normal(size=space.n_biases)) if space.learns_bias else space
    Y = truth.sample(X @ rng.normal(size=(5, 4)) * 0.7, 1, rng)[:, 0]
    weights = rng.uniform(0.2, 3.0, size=120) if weighted else np.ones(120)
    if problem.startswith("partly known"):
        Y = np.where(rng.uniform(size=Y.shape) < 0.3, UNKNOWN, Y).astype(np.int8)
    return Objective(Design(X, weights, fit_intercept=True), space, Y, alpha=alpha)


@functools.cache
def solve(solver, problem, tol=1e-18, max_iter=50_000):
    objective = make_objective(problem)
    return SOLVERS[solver](objective, objective.start(), tol=tol, max_iter=max_iter)


def scores(objective, parameters):
    coef, intercept, _ = objective.split(objective.canonical(parameters))
    return objective.design.scores(coef, intercept)


@pytest.mark.parametrize(("solver", "problem"), CASES)
def test_solver_reaches_the_common_optimum(solver, problem):
    objective, solution = make_objective(problem), solve(solver, problem)
    reference = solve("newton-cg", problem)
    assert solution.converged
    assert solution.value == pytest.approx(reference.value, rel=1e-10)
    found, expected = (scores(objective, own.parameters) for own in (solution, reference))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("solver", "problem"), CASES)
def test_solver_never_increases_the_objective(solver, problem):
    history = np.array(solve(solver, problem).history)
    assert len(history) > 2
    assert np.diff(history).max() <= 1e-14 * abs(history[0])


@pytest.mark.parametrize(("solver", "problem"), CASES)
def test_solution_tells_the_truth_about_itself(solver, problem):
    objective = make_objective(problem)
    solution = solve(solver, problem, tol=1e-6)
    value, gradient = objective.value_and_gradient(solution.parameters)
    left = 0.5 * gradient @ objective.metric(objective.typical_curvature())(gradient)
    assert solution.converged
    assert left <= 1e-6 * objective.scale
    assert solution.value == value == solution.history[-1]
    assert solution.n_iter == len(solution.history) - 1
    assert solution.gradient_norm >= np.sqrt(2 * left / objective.scale) * (1 - 1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_too_few_iterations_are_not_called_converged(solver):
    solution = solve(solver, "plain", max_iter=2)
    assert not solution.converged
    assert solution.n_iter == 2


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_tolerance_of_zero_ends_at_the_rounding_floor_and_says_so(solver):
    solution = solve(solver, "plain", tol=0.0, max_iter=20_000)
    assert solution.n_iter < 20_000
    assert solution.converged and solution.at_rounding_floor
    assert solution.value == pytest.approx(solve("newton-cg", "plain").value, rel=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_near_the_optimum_takes_fewer_iterations(solver):
    objective = make_objective("plain")
    cold = solve(solver, "plain", tol=1e-10)
    near = cold.parameters + 1e-3
    warm = SOLVERS[solver](objective, near, tol=1e-10, max_iter=5000)
    assert warm.n_iter < cold.n_iter
    assert SOLVERS[solver](objective, cold.parameters, tol=1e-10, max_iter=5000).n_iter == 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_report_hears_of_every_iteration(solver):
    heard = []
    objective = make_objective("plain")
    solution = SOLVERS[solver](
        objective, objective.start(), tol=1e-8, max_iter=500, report=lambda *line: heard.append(line)
    )
    assert [line[0] for line in heard] == list(range(1, solution.n_iter + 1))
    assert [line[1] for line in heard] == list(solution.history[1:])


@pytest.mark.parametrize("problem", ["size bias", "observed"])
def test_the_paper_step_is_refused_where_it_can_go_uphill(problem):
    objective = make_objective(problem)
    with pytest.raises(ValueError, match="use mm_step='safe'"):
        solvers.mm(objective, objective.start(), tol=1e-6, max_iter=10, step="paper")


def test_a_quarter_goes_uphill_where_labels_attract_each_other():
    """Why the paper's step is refused: all or nothing of 6 labels, whose covariance reaches 6/4."""
    space = ObservedSpace([[0] * 6, [1] * 6])
    X, Y = np.ones((2, 1)), np.array([[1] * 6, [0] * 6], np.int8)
    objective = Objective(Design(X, np.ones(2), fit_intercept=False), space, Y, alpha=0.0)
    start = np.array([0.1] * 6 + [0.0] * 8)  # coefficients, the intercepts that stay 0, and a bias per set
    stepped = start - objective.metric(0.25)(objective.value_and_gradient(start)[1])
    safe = start - objective.metric(objective.curvature_bound())(objective.value_and_gradient(start)[1])
    assert objective.value(stepped) > objective.value(start) > objective.value(safe)


def test_the_paper_step_takes_about_half_the_iterations_of_the_safe_one():
    assert solve("mm paper", "plain").n_iter < 0.7 * solve("mm", "plain").n_iter


@pytest.mark.parametrize(
    ("problem", "labels"), [("size bias", np.arange(1, 4)), ("observed", PROBLEMS["observed"][0].sets)]
)
def test_learned_biases_meet_the_conditions_that_pick_them(problem, labels):
    bias = make_objective(problem).split(solve("newton-cg", problem).parameters)[2]
    assert np.abs(bias).max() > 0.01
    assert bias.sum() == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(bias @ labels, 0.0, atol=1e-9)


def test_the_conditions_on_biases_lose_nothing_of_the_objective():
    """Without the projection the ridge alone would pick the same optimum: its gradient along it is zero there."""
    objective, solution = make_objective("size bias"), solve("newton-cg", "size bias")
    coef, intercept, bias = objective.split(solution.parameters)
    for c in (-0.1, 0.1):
        moved = np.concatenate([coef.ravel(), intercept - c, bias + c * np.arange(1, 4) + 0.05])
        assert objective.value(moved) > solution.value


def doubt_every_step(monkeypatch, first_wait):
    monkeypatch.setattr(import_module("mlrh.fitting.solvers.lbfgs"), "MAX_DOUBTS", -1)
    monkeypatch.setattr(import_module("mlrh.fitting.solvers.lbfgs"), "FIRST_WAIT", first_wait)


def sparse_objective(alpha=0.01):
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 30), density=0.2, random_state=rng, format="csr")
    space = CardinalitySpace(5, 0, 5)
    Y = space.sample(X @ rng.normal(size=(30, 5)) * 3, 1, np.random.RandomState(0))[:, 0]
    return Objective(Design(X, np.ones(200), fit_intercept=True), space, Y, alpha=alpha)


def test_lbfgs_tries_separate_memories_again_with_the_metric_where_it_is(monkeypatch):
    doubt_every_step(monkeypatch, first_wait=3)
    objective = sparse_objective()
    metrics, waits = objective.metric, []

    def noted(*arguments, at=None):
        waits.append(None if at is None else np.abs(at).sum())
        return metrics(*arguments, at=at)

    monkeypatch.setattr(objective, "metric", noted)
    renewed = solvers.lbfgs(objective, objective.start(), tol=1e-14, max_iter=500)
    assert len(waits) == len(set(waits)) >= 3  # at the start and at other parameters
    optimum = solvers.newton_cg(sparse_objective(), objective.start(), tol=1e-14, max_iter=500)
    assert renewed.converged
    np.testing.assert_allclose(renewed.parameters, optimum.parameters, atol=1e-5)


def test_lbfgs_keeps_its_metric_where_another_one_costs_much(monkeypatch):
    doubt_every_step(monkeypatch, first_wait=1)
    objective = make_objective("independent")
    metric = mock.Mock(side_effect=objective.metric)
    monkeypatch.setattr(objective, "metric", metric)
    solvers.lbfgs(objective, objective.start(), tol=1e-10, max_iter=100)
    assert metric.call_count == 1


@pytest.mark.parametrize("is_sparse, n_metrics", [(False, 3), (True, 6)])
def test_a_path_renews_its_metric_where_the_penalty_is_much_weaker_or_a_metric_is_cheap(is_sparse, n_metrics):
    X = np.random.RandomState(0).normal(size=(60, 5))
    Y = (np.arange(60)[:, None] % 4 == np.arange(4)).astype(np.int8)
    design = Design(sparse.csr_array(X) if is_sparse else X, np.ones(60), fit_intercept=True)
    metric_of_path, found = solvers.MetricOfPath(), []
    for alpha in (10.0, 3.0, 1.0, 0.5, 0.2, 1e-5):  # 14 times weaker than 10 is 0.7, than 0.5 is 0.04
        objective = Objective(design, CardinalitySpace(4, 1, 3), Y, alpha=alpha)
        start = objective.start() + 0.1
        with mock.patch.object(Objective, "metric", autospec=True, side_effect=Objective.metric) as metric:
            found.append(metric_of_path(objective, start))
        assert [call.kwargs["at"] is start for call in metric.call_args_list] == [True] * metric.call_count
    assert len({id(solve) for solve in found}) == n_metrics
    stronger = Objective(design, CardinalitySpace(4, 1, 3), Y, alpha=10.0)
    assert metric_of_path(stronger, stronger.start() + 0.1) is not found[-1]


def test_a_metric_does_not_keep_its_objective_in_memory():
    design, Y = Design(np.eye(6), np.ones(6), fit_intercept=True), np.eye(2, dtype=np.int8)[[0, 1] * 3]
    objective = Objective(design, CardinalitySpace(2, 1, 1), Y, alpha=1.0)
    solve, gone = objective.metric(at=objective.start() + 0.1), weakref.ref(objective)
    del objective
    gc.collect()
    assert gone() is None and len(solve(np.ones(14))) == 14


@pytest.mark.parametrize("classifier", [MLRHClassifier, KernelMLRHClassifier])
@pytest.mark.parametrize(
    ("needs", "options", "message"),
    [({"teleport"}, (), "solver='own' needs teleport of an objective"), ((), ("momentum",), "asks for the options")],
)
def test_a_solver_that_does_not_fit_is_refused_before_anything_is_computed(classifier, needs, options, message):
    @solvers.solver(needs=needs, options=options)
    def own(objective, start, *, tol, max_iter, report=None, **options):
        raise AssertionError

    with pytest.raises(ValueError, match=message):
        classifier(solver=own).fit(np.eye(4), np.eye(4, dtype=int))


def test_solvers_ask_an_objective_only_for_what_the_protocol_lists():
    listed = {*dir(PenalisedObjective), *SmoothObjective.__annotations__, *PenalisedObjective.__annotations__}
    asked = set()
    for path in Path(base.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and "objective" in (getattr(node.value, n, "") for n in ("id", "attr")):
                asked.add(node.attr)
    assert {"value_and_gradient", "n_labels"} <= asked <= listed
