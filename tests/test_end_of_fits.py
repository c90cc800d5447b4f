"""How fits end and what they compile: the last step, an early metric, and a word where kernels are compiled."""

from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from numba import njit
from scipy import sparse

from mlrh import MLRHClassifier
from mlrh._parallel import telling_of_compilation
from mlrh.estimators import _base
from mlrh.fitting import solvers
from mlrh.fitting.design import Design
from mlrh.fitting.objective import Objective
from mlrh.fitting.solvers.base import State, enough_for, iterate
from mlrh.fitting.solvers.lbfgs import COARSE, EARLY, Lbfgs, Memory, in_stages
from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace


def objective_of(is_sparse, n_samples=300, alpha=0.1):
    rng = np.random.default_rng(0)
    X = sparse.random_array((n_samples, 25), density=0.3, random_state=rng, format="csr")
    space = CardinalitySpace(6, 0, 4)
    Y = space.sample(X @ rng.normal(size=(25, 6)) * 3, 1, np.random.RandomState(0))[:, 0]
    design = Design(X if is_sparse else X.toarray(), np.ones(n_samples), fit_intercept=True)
    return Objective(design, space, Y, alpha=alpha)


def optimum(objective):
    return solvers.newton_cg(objective, objective.start(), tol=1e-15, max_iter=200).value


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["lbfgs", "mm"])
def test_a_fit_ends_with_far_less_left_than_tol_allows(name, is_sparse):
    objective = objective_of(is_sparse)
    solution = solvers.BY_NAME[name](objective, objective.start(), tol=1e-4, max_iter=2000)
    assert solution.converged
    # The last step solves the quadratic model to about a tenth, so that a small share of what was allowed is left.
    assert solution.value - optimum(objective) < 0.05 * 1e-4 * objective.scale


@pytest.mark.parametrize(
    ("value", "tol", "expected"),
    [
        (50.0, 1e-5, 5e-4),
        (-50.0, 1e-5, 5e-4),
        (0.1, 1e-5, 1e-5),
        (50.0, 1e-17, 1e-15),
        (0.1, 1e-17, 1e-15),
        (50.0, 0.0, 0.0),
    ],
)
def test_tol_is_relative_to_the_value_or_a_hundredth_of_the_scale_within_the_digits_of_the_scale(value, tol, expected):
    assert enough_for(SimpleNamespace(scale=100.0), value, tol) == pytest.approx(expected)


@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("name", ["lbfgs", "newton-cg"])
def test_tol_is_a_share_of_the_objective_where_a_fit_explains_nearly_all(name, tol):
    objective = objective_of(is_sparse=False, n_samples=50, alpha=1e-2)
    solution = solvers.BY_NAME[name](objective, objective.start(), tol=tol, max_iter=2000)
    assert solution.converged and solution.value < 0.2 * objective.scale
    assert solution.value - optimum(objective) <= 3 * tol * solution.value
    assert 0.5 * solution.gradient_norm**2 * objective.scale <= tol * solution.value * (1 + 1e-9)


def test_the_last_step_does_not_exceed_max_iter():
    objective = objective_of(is_sparse=False)
    whole = solvers.lbfgs(objective, objective.start(), tol=1e-3, max_iter=500)
    for max_iter in range(whole.n_iter + 1):
        short = solvers.lbfgs(objective, objective.start(), tol=1e-3, max_iter=max_iter)
        assert short.n_iter == max_iter and short.value == whole.history[max_iter]


def test_a_report_that_asks_for_the_end_is_heard_at_the_last_step():
    objective = objective_of(is_sparse=False)
    n_iter = solvers.lbfgs(objective, objective.start(), tol=1e-4, max_iter=500).n_iter
    last = solvers.lbfgs(
        objective, objective.start(), tol=1e-4, max_iter=500, report=lambda iteration, *_: iteration == n_iter
    )
    assert last.stopped and last.n_iter == n_iter


@pytest.mark.parametrize(("min_labels", "max_labels"), [(0, 6), (1, 1)], ids=["separate", "coupled"])
def test_dense_features_get_new_diagonals_early_where_labels_share_one_memory(min_labels, max_labels):
    rng, space = np.random.default_rng(0), CardinalitySpace(6, min_labels, max_labels)
    X = rng.normal(size=(200, 12))
    Y = space.sample(X @ rng.normal(size=(12, 6)) - 2 * np.arange(6), 1, np.random.RandomState(0))[:, 0]
    objective = Objective(Design(X, np.ones(200), fit_intercept=True), space, Y, alpha=0.1)
    start = objective.start() + 0.1
    usual, found = objective.metric(), objective.metric(at=start, rescaled=True)
    squares, _ = objective.rows.diagonal_curvatures(*objective._at(start))
    solved, before = (own(np.ones(len(start))) for own in (found, usual))
    # A matrix per label with the correlations of the usual one and these diagonals.
    gram = objective.design.gram() * objective.typical_curvature() + 0.1 * np.eye(12)
    for k in range(6):
        scale = np.sqrt((squares[:, k] + 0.1) / np.diag(gram))
        expected = np.linalg.solve(scale[:, None] * gram * scale, np.ones(12))
        np.testing.assert_allclose(objective.split(solved)[0][:, k], expected, rtol=1e-9)
    assert not np.allclose(solved, before)
    assert objective.rescales_early == (max_labels == 1)
    with mock.patch.object(objective, "metric", wraps=objective.metric) as metric:
        solution = solvers.lbfgs(objective, objective.start(), tol=1e-9, max_iter=500)
    assert solution.converged and solution.value == pytest.approx(optimum(objective), rel=1e-8)
    assert len(metric.call_args_list) == (2 if max_labels == 1 else 1)


def test_sparse_features_get_a_metric_by_their_curvatures_early(monkeypatch):
    objective, reached = objective_of(is_sparse=True), []
    metric = mock.Mock(side_effect=objective.metric)
    monkeypatch.setattr(objective, "metric", metric)
    solution = solvers.lbfgs(
        objective, objective.start(), tol=1e-12, max_iter=500, report=lambda *line: reached.append(line[3])
    )
    first, second = metric.call_args_list[:2]
    assert first == mock.call()
    np.testing.assert_array_equal(second.kwargs["at"], reached[EARLY - 1])
    assert solution.value == pytest.approx(optimum(objective), rel=1e-10)


def test_a_metric_of_a_start_near_the_optimum_is_not_made_anew_early():
    objective = objective_of(is_sparse=True)
    metric_at = mock.Mock(side_effect=Objective.metric_near)
    near = solvers.lbfgs(objective, objective.start(), tol=1e-3, max_iter=500).parameters
    with mock.patch.object(Objective, "metric", autospec=True, side_effect=Objective.metric) as metric:
        solvers.lbfgs(objective, near, tol=1e-8, max_iter=20, metric_at=metric_at)
    assert metric_at.call_count == metric.call_count == 1


def test_the_independence_of_labels_is_that_of_the_enumeration():
    space, scores = CardinalitySpace(5, 1, 3), np.array([0.3, -1.0, 2.0, 0.0, -0.5])
    sets = np.array([[(number >> k) & 1 for k in range(5)] for number in range(32)])
    sets = sets[(sets.sum(axis=1) >= 1) & (sets.sum(axis=1) <= 3)]
    probs = np.exp(sets @ scores) / np.exp(sets @ scores).sum()
    sizes, marginals = sets.sum(axis=1), probs @ sets
    variance = probs @ sizes**2 - (probs @ sizes) ** 2
    assert space.independence(scores) == pytest.approx(variance / (marginals * (1 - marginals)).sum(), rel=1e-12)


def test_compiling_is_told_once_and_only_where_something_is_compiled():
    @njit
    def doubled(x):
        return 2 * x

    told = []
    with telling_of_compilation(lambda: told.append(1)):
        assert told == []
        assert (doubled(2), doubled(0.5)) == (4, 1.0)  # two types: compiled twice
    assert told == [1]
    with telling_of_compilation(lambda: told.append(2)):
        doubled(3)
    assert told == [1]


def test_verbose_says_on_standard_error_that_kernels_are_compiled(monkeypatch, capsys):
    @contextmanager
    def compiling(tell):
        tell()
        yield

    monkeypatch.setattr(_base, "telling_of_compilation", compiling)
    X, Y = np.arange(8.0)[:, None], np.tile([[1, 0], [0, 1]], (4, 1))
    fitted = MLRHClassifier(verbose=1).fit(X, Y)
    printed = capsys.readouterr()
    assert printed.err == f"[MLRHClassifier] {_base.COMPILING}\n"
    assert len(printed.out.splitlines()) == fitted.n_iter_
    several = MLRHClassifier(label_space="open", verbose=1)  # two fits choose a strength before the third
    for fit in (several.fit, lambda X, Y: several.fit_chunks([(X, Y)])):
        fit(X, Y)
        assert capsys.readouterr().err == f"[MLRHClassifier] {_base.COMPILING}\n"
    MLRHClassifier().fit(X, Y)
    assert capsys.readouterr().err == ""


def many_words(seed=0, n_rows=300, n_labels=30):
    """Sparse features and more labels than the sums of a product keep in registers."""
    rng = np.random.default_rng(seed)
    X = sparse.random_array((n_rows, 80), density=0.1, random_state=rng, format="csr")
    scores = (X @ rng.normal(size=(80, n_labels))) + rng.gumbel(size=(n_rows, n_labels))
    return X, (scores >= np.sort(scores, axis=1)[:, [-3]]).astype(np.int8) * (rng.random((n_rows, n_labels)) < 0.9)


@pytest.mark.parametrize("tol", [1e-3, 1e-5, 1e-12])
def test_a_fit_that_begins_in_float32_ends_where_one_in_float64_does(tol, monkeypatch):
    X, Y = many_words()
    types = []
    evaluate = Objective.value_and_gradient
    monkeypatch.setattr(
        Objective, "value_and_gradient", lambda self, p: types.append(self.design.dtype.name) or evaluate(self, p)
    )
    model = MLRHClassifier(tol=tol, min_labels=0).fit(X, Y)
    assert types[0] == types[-1] == "float64"
    assert set(types[2:-3]) >= {"float32"}
    optimum = MLRHClassifier(tol=1e-13, min_labels=0, solver="newton-cg").fit(X, Y).objective_
    assert optimum * (1 - 1e-12) <= model.objective_ <= optimum * (1 + tol + 1e-12)
    assert len(model.history_) == model.n_iter_ + 1
    # The value at the last iteration is that of the coefficients, in float64.
    losses = -model.distribution(X).log_prob(Y).sum() + 0.5 * np.square(model.coef_).sum()
    assert losses == pytest.approx(model.objective_, rel=1e-9)


@pytest.mark.parametrize(
    "label_space",
    ["observed", "open", GroupSpace([(range(10), 0, 3)], n_labels=30), HierarchySpace([-1] * 20 + [0] * 10)],
    ids=["observed", "open", "groups", "hierarchy"],
)
def test_fits_in_every_label_space_that_begin_in_float32_end_where_one_in_float64_does(label_space):
    X, Y = many_words()
    Y[:, 0] = Y[:, [0, *range(20, 30)]].max(axis=1)  # as the hierarchy asks
    strength = 1.0 if label_space == "open" else "auto"
    fits = (
        MLRHClassifier(label_space=label_space, set_bias_strength=strength, tol=tol, solver=solver).fit(X, Y)
        for tol, solver in ((1e-5, "lbfgs"), (1e-11, "lbfgs"), (1e-13, "newton-cg"))
    )
    rough, fine, optimum = (model.objective_ for model in fits)
    assert optimum * (1 - 1e-12) <= rough <= optimum * (1 + 1e-5)
    assert fine == pytest.approx(optimum, rel=1e-10)


def test_where_the_two_types_disagree_the_end_is_confirmed_anew(monkeypatch):
    X, Y = many_words()
    weights, space = np.random.default_rng(0).uniform(0.5, 1.5, 300), CardinalitySpace(30, 0, 3)
    objective = Objective(Design(X, np.ones(300), fit_intercept=True), space, Y, alpha=0.01)
    rough = Objective(Design(X, weights, fit_intercept=True), space, Y, alpha=0.01)  # with another optimum
    events, hessian, evaluate = [], Objective.hessian, Objective.value_and_gradient
    monkeypatch.setattr(Objective, "hessian", lambda self, p: events.append("confirmed") or hessian(self, p))
    monkeypatch.setattr(
        Objective, "value_and_gradient", lambda self, p: events.append(self is objective) or evaluate(self, p)
    )
    run = Lbfgs(rough, len(objective.start()), objective.metric(), Memory)
    begin = State(objective.start(), *rough.value_and_gradient(objective.start()))
    found = in_stages(run, begin, rough, objective, tol=1e-3, max_iter=200, report=None)
    first, last = events.index(True), len(events) - 1 - events[::-1].index("confirmed")
    assert "confirmed" in events[:first] and events[first:last].count(True) > 1
    assert found.converged and len(found.history) == found.n_iter + 1
    assert found.value <= optimum(objective) * (1 + 1e-3)


def test_fits_of_few_labels_dense_rows_unknown_labels_and_awkward_features_stay_in_float64():
    X, Y = many_words()
    space = CardinalitySpace(30, 0, 3)
    weights, options = np.ones(300), {"alpha": 1.0}
    known = np.where(np.random.default_rng(1).random(Y.shape) < 0.1, -1, Y).astype(np.int8)
    design = Design(X, weights, fit_intercept=True)
    assert Objective(design, space, Y, **options).in_float32.design.dtype == np.float32
    others = [
        Objective(design, space, known, **options),
        Objective(Design(X.toarray(), weights, fit_intercept=True), space, Y, **options),
        Objective(design, CardinalitySpace(20, 0, 3), Y[:, :20], **options),
        Objective(Design(X.astype(np.float32), weights, fit_intercept=True), space, Y, **options),
        Objective(Design(X * 1e20, weights, fit_intercept=True), space, Y, **options),
        Objective(Design(X * 1e-20, weights, fit_intercept=True), space, Y, **options),
        Objective(Design(X, 1e12 * weights, fit_intercept=True), space, Y, **options),
        Objective(Design(X, 1e-12 * weights, fit_intercept=True), space, Y, **options),
    ]
    assert all(objective.in_float32 is objective for objective in others)


def test_features_and_weights_of_any_size_have_the_same_optimum():
    X, Y = many_words()
    plain = MLRHClassifier(C=1.0, tol=1e-10, min_labels=0).fit(X, Y)
    for of_features, of_weights in ((1e5, 1e-9), (1e-5, 1e9), (1e9, 1e-9), (1e14, 1e12), (1e-9, 1e9)):
        weights = np.full(len(Y), of_weights)
        design = Design(X * of_features, weights, fit_intercept=True)
        assert (design.in_float32 is not None) == (1e-10 < of_features < 1e10)
        C = 1 / (of_features**2 * of_weights)  # the same penalty beside the loss
        scaled = MLRHClassifier(C=C, tol=1e-10, min_labels=0).fit(X * of_features, Y, sample_weight=weights)
        assert scaled.objective_ / of_weights == pytest.approx(plain.objective_, rel=1e-7)


def test_columns_that_are_constant_and_tiny_entries_beside_large_ones_do_not_keep_a_fit_from_float32():
    X, _ = many_words()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 300)
    design = Design(sparse.csr_array(sparse.hstack([X, np.ones((300, 1))])), weights, fit_intercept=True)
    assert 0 < design.largest_entries()[-1] < 1e-10  # what rounding leaves of the ones
    assert design.in_float32 is not None
    X.data[0] = 1e-30
    assert Design(X, weights, fit_intercept=True).in_float32 is not None


def interrupted_in_float64(monkeypatch):
    """Have the second evaluation in float64, which is the one between the two parts of a fit, end by Ctrl-C."""
    evaluate, calls = Objective.value_and_gradient, []

    def evaluated(self, parameters):
        calls.append(self.design.dtype == np.float64)
        if sum(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(self, parameters)

    monkeypatch.setattr(Objective, "value_and_gradient", evaluated)


def test_what_was_reached_in_float32_is_kept_where_ctrl_c_comes_after_it(monkeypatch):
    X, Y = many_words()
    model = MLRHClassifier(warm_start=True, min_labels=0)
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        interrupted_in_float64(context)
        model.fit(X, Y)
    assert model.n_iter_ > 5
    whole = MLRHClassifier(min_labels=0).fit(X, Y)
    assert model.objective_ == pytest.approx(whole.objective_, rel=1e-4)
    assert len(model.history_) == model.n_iter_ + 1


def test_a_fit_that_is_stopped_in_float32_has_not_converged():
    X, Y = many_words()
    objective = Objective(Design(X, np.ones(300), fit_intercept=True), CardinalitySpace(30, 0, 3), Y, alpha=1.0)
    stop_early = lambda iteration, value, left, parameters: left <= 1e-3  # noqa: E731, as tol in float32 asks
    found = solvers.BY_NAME["lbfgs"](objective, objective.start(), tol=1e-3, max_iter=1000, report=stop_early)
    assert found.stopped and not found.converged


@pytest.mark.parametrize("tol", [1e-5, 1e-8])
def test_float32_goes_no_further_than_its_share_of_the_loss_without_features(tol, monkeypatch):
    X, Y = many_words(n_rows=150)
    objective = Objective(Design(X, np.ones(150), fit_intercept=True), CardinalitySpace(30, 0, 3), Y, alpha=1e-4)
    asked = []

    def noted(stage, *rest, tol, least, **options):
        asked.append((stage.design.dtype.name, least))
        return iterate(stage, *rest, tol=tol, least=least, **options)

    module = import_module("mlrh.fitting.solvers.lbfgs")  # `solvers.lbfgs` is the function
    monkeypatch.setattr(module, "iterate", noted)
    found = solvers.BY_NAME["lbfgs"](objective, objective.start(), tol=tol, max_iter=1000)
    assert found.converged
    assert asked == [("float32", COARSE * objective.scale), ("float64", 0.0)]
    optimum = solvers.BY_NAME["lbfgs"](objective, found.parameters, tol=1e-13, max_iter=3000).value
    assert found.value - optimum <= enough_for(objective, found.value, tol) * 1.01 + 1e-12 * objective.scale
