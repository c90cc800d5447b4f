"""The benchmarks count what they say they count: turns, medians, gaps to a certified optimum. They run, in small."""

import json
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reference import enumerate_sizes, sets_of_sizes
from scipy import sparse
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

from benchmarks import (
    cross_validation,
    elastic_net,
    fits,
    growth,
    inference,
    ladders,
    machine,
    memory,
    one_row,
    optimum,
    problems,
    reference,
    run,
    startup,
    table,
    timing,
)
from benchmarks.adapters import libmultilabel, ours, scikit_learn, support_vectors
from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.spaces import CardinalitySpace

ROOT = Path(__file__).parents[1]
MACHINE = machine.Machine("a machine", 2, 1, bandwidth=1e10, gemm_rate=1e11, load=0.0, versions={})
CONTEXT = SimpleNamespace(machine=MACHINE, quick=True, tell=lambda message: None)


@pytest.fixture(scope="module")
def problem():
    return problems.synthetic(120, 6, 4, max_size=3)


@pytest.fixture
def without_libmultilabel(monkeypatch, tmp_path):
    monkeypatch.setenv("MLRH_LIBMULTILABEL", str(tmp_path / "nothing"))


def returning(seconds, log=None, name=None):
    """A call that takes the listed seconds, one after the other, by its own account."""
    turns = iter(seconds)

    def call():
        if log is not None:
            log.append(name)
        return next(turns), None

    return call


def test_calls_take_turns_and_count_by_the_median_of_their_turns():
    log = []
    calls = {
        "ours": returning([9, 4.0, 5.0, 90.0], log, "ours"),
        "theirs": returning([9, 3.0, 1.0, 2.0], log, "theirs"),
    }
    runs = timing.interleaved(calls, 3)
    assert log == ["ours", "theirs"] * 4  # the first turn warms up
    assert runs["ours"].seconds == (4.0, 5.0, 90.0) and runs["ours"].median == 5.0
    assert runs["theirs"].median == 2.0


@pytest.mark.parametrize(
    ("seconds", "turns"), [(0.01, timing.MAX_REPEATS), (0.25, 8), (1.0, 5), (19.0, 5), (21.0, timing.SLOW_REPEATS)]
)
def test_short_calls_get_more_turns_and_slow_ones_three(seconds, turns):
    calls = {"ours": returning([seconds] * 100)}
    assert len(timing.interleaved(calls, 5, warm_up=False)["ours"].seconds) == turns


def test_a_timed_call_gives_the_seconds_of_one_of_its_calls(monkeypatch):
    clock = iter([10.0, 16.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert timing.timed(lambda: "result", calls=3)() == (2.0, "result")


def ladder(name, outcomes, variants=("alone",)):
    """A ladder whose steps have these gaps and seconds; in between nothing is reached."""
    return ladders.Ladder(
        name,
        "tol=",
        tuple(outcomes),
        variants,
        lambda step, variant: (outcomes.get(step, (1, 1))[1], step),
        lambda step: outcomes.get(step, (1, 1))[0],
    )


def test_a_competitor_that_does_not_reach_the_gap_does_not_count():
    fast = ladder("fast", {0.1: (1e-1, 0.001), 0.01: (1.01e-4, 0.002)})
    slow = ladder("slow", {0.1: (1e-3, 0.1), 0.01: (0.99e-4, 0.5)})
    assert [setting.name for setting in ladders.finalists([fast, slow])] == ["slow, tol=0.01, alone"]
    assert ladders.finalists([fast]) == []


def test_a_competitor_counts_at_its_fastest_setting_that_reaches_the_gap():
    quick = ladder("quick", {1.0: (1e-3, 2.0), 0.1: (1e-5, 3.0), 0.01: (1e-9, 9.0)}, ("alone", "both"))
    slow = ladder("slow", {1.0: (1e-5, 4.0), 0.1: (1e-9, 8.0)})
    found = ladders.finalists([slow, quick])
    assert [(setting.name, setting.seconds) for setting in found] == [
        ("quick, tol=0.1, alone", 3.0),
        ("quick, tol=0.1, both", 3.0),
        ("slow, tol=1, alone", 4.0),
    ]


def test_a_tolerance_between_the_steps_counts_where_it_is_enough_and_faster():
    found = ladders.finalists([ladder("a", {0.04: (1e-3, 2.0), 0.01: (1e-6, 4.0), 0.02: (5e-5, 3.0)})])
    assert [(setting.name, setting.seconds) for setting in found] == [("a, tol=0.02, alone", 3.0)]


def test_a_ladder_ends_where_looser_steps_take_far_longer_than_the_best():
    tried = []
    hopeless = ladder("hopeless", {0.1: (1e-2, 50.0), 0.01: (1e-5, 60.0)})
    found = ladders.finalists([ladder("good", {0.1: (1e-5, 3.0)}), hopeless], tell=tried.append)
    assert [setting.ladder.name for setting in found] == ["good"]
    assert not any("hopeless, tol=0.01" in message for message in tried)


@pytest.mark.parametrize("is_penalised", [True, False])
def test_the_optimum_of_separate_regressions_is_that_of_another_solver(problem, is_penalised):
    def value(parameters):
        coef, intercept = parameters[:24].reshape(4, 6), parameters[24:]
        point = optimum.separate(problem.X, problem.Y, coef, intercept, intercept_is_penalised=is_penalised)
        scores = problem.X @ coef.T + intercept
        penalty = 0.5 * (coef**2).sum() + (0.5 * (intercept**2).sum() if is_penalised else 0)
        assert point.value == pytest.approx(np.log1p(np.exp(np.where(problem.Y, -scores, scores))).sum() + penalty)
        return point.value

    best = minimize(value, np.zeros(28), method="BFGS").fun
    found = scikit_learn._tight(problem, is_penalised)
    assert found.value == pytest.approx(best, rel=1e-6)
    assert optimum.certified(found) <= best * (1 + 1e-9)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_what_is_left_to_be_had_is_never_more_than_the_slack(problem, scale):
    rng = np.random.default_rng(0)
    coef = scale * rng.standard_normal((4, 6))
    point = optimum.separate(problem.X, problem.Y, coef, np.zeros(4), intercept_is_penalised=True)
    assert point.value - point.slack <= scikit_learn._tight(problem, True).value


def test_our_objective_is_that_of_an_enumeration_and_its_gap_refers_to_the_true_optimum(problem):
    own = ours.linear(problem)
    (_, fitted), gap_of = own.run(own.default, *own.variants), own.gap
    sets = sets_of_sizes(4, 1, 3)
    scores = fitted.decision_function(problem.X)
    log_partition = np.log(np.exp(scores @ sets.T).sum(axis=1))
    value = (log_partition - (scores * problem.Y).sum(axis=1)).sum() + 0.5 * (fitted.coef_**2).sum()
    assert optimum.joint(fitted, problem.X, problem.Y).value == pytest.approx(value, rel=1e-12)
    best = MLRHClassifier(tol=1e-14).fit(problem.X, problem.Y).objective_
    assert gap_of(fitted) == pytest.approx((value - best) / best, abs=optimum.CERTAIN)
    with pytest.warns(ConvergenceWarning):
        coarse = MLRHClassifier(max_iter=1).fit(problem.X, problem.Y)
    assert gap_of(coarse) == pytest.approx((coarse.objective_ - best) / best, abs=optimum.CERTAIN)
    assert gap_of(coarse) > optimum.ENOUGH


def test_our_kernel_objective_is_the_one_that_the_fit_reports(problem):
    own = ours.kernel(problem)
    (_, fitted), gap_of = own.run(own.default, *own.variants), own.gap
    gram = rbf_kernel(problem.X, gamma=fitted._gamma)
    assert optimum.joint_kernel(fitted, gram, problem.X, problem.Y).value == pytest.approx(fitted.objective_, rel=1e-9)
    with pytest.warns(ConvergenceWarning):
        coarse = KernelMLRHClassifier(max_iter=1).fit(problem.X, problem.Y)
    best = KernelMLRHClassifier(tol=1e-13).fit(problem.X, problem.Y).objective_
    assert gap_of(coarse) == pytest.approx((coarse.objective_ - best) / best, abs=optimum.CERTAIN)
    assert gap_of(coarse) > optimum.ENOUGH
    assert 0 <= gap_of(fitted) < optimum.ENOUGH


def test_the_objective_of_a_support_vector_machine_ends_at_a_closed_duality_gap(problem):
    gram, y = rbf_kernel(problem.X, gamma=0.2), 2.0 * problem.Y[:, 0] - 1.0
    points = []
    for tol in (1e-1, 1e-8):
        machine_ = SVC(gamma=0.2, tol=tol).fit(problem.X, y)
        dual = np.zeros(len(y))
        dual[machine_.support_] = machine_.dual_coef_[0]
        points.append(optimum.support_vector(gram, y, dual, machine_.intercept_[0]))
    loose, tight = points
    assert tight.slack < 1e-5 * abs(tight.value) < loose.slack
    assert loose.value - loose.slack <= tight.value <= loose.value


def test_an_optimum_that_is_not_known_well_enough_is_an_error():
    with pytest.raises(ValueError, match="must be known to 1e-05 of its value"):
        optimum.certified(optimum.Point(100.0, 0.01))
    with pytest.raises(ValueError, match="must be known"):
        optimum.certified(optimum.Point(100.0, float("nan")))


def test_the_optimum_is_solved_for_once():
    calls = []
    truth = optimum.Optimum(lambda: calls.append(1) or optimum.Point(10.0, 0.0))
    assert truth.gap(11.0) == pytest.approx(0.1) and truth.gap(10.0) == 0.0
    assert len(calls) == 1


def test_every_solver_of_scikit_learn_reaches_the_gap_to_its_own_optimum(problem, monkeypatch):
    monkeypatch.setattr(scikit_learn, "VARIANTS", ("OneVsRest", "MultiOutput"))
    climbed = scikit_learn.linear(problem)
    assert [own.name for own in climbed] == [f"scikit-learn {s}" for s in ("liblinear", "newton-cholesky", "lbfgs")]
    for own in climbed:
        (*_, setting) = ladders.finalists([own])
        assert 0 <= setting.gap <= optimum.ENOUGH
        loosest = own.gap(own.run(own.steps[0], "OneVsRest")[1])
        assert loosest > setting.gap or setting.step == own.steps[0]


@pytest.mark.slow
def test_more_labels_than_an_int8_can_number_keep_their_order():
    many = problems.synthetic(150, 3, 140, max_size=9)
    point = scikit_learn._tight(problems.prepared("many", many.X, many.Y.astype(np.int8)), True)
    assert point.slack < optimum.CERTAIN * point.value


def test_more_features_than_rows_add_the_dual_solver_and_drop_large_hessians():
    wide = problems.synthetic(30, 700, 3)
    assert [own.name for own in scikit_learn.linear(wide)] == [
        f"scikit-learn {s}" for s in ("liblinear", "liblinear dual", "lbfgs")
    ]


STAND_IN = """
import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

def train_1vsrest(y, x, options, verbose):
    assert isinstance(x, sparse.csr_matrix) and "-s 0 -c 1 -B 1" in options and not verbose
    tol = float(options.split("-e ")[1])
    columns = [LogisticRegression(solver="liblinear", tol=tol).fit(x, column) for column in y.toarray().T]
    weights = [np.append(own.coef_, own.intercept_) for own in columns]
    return type("Model", (), {"weights": np.asmatrix(np.array(weights).T)})
"""


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """An environment whose libmultilabel has the same interface with scikit-learn's liblinear behind it."""
    package, program = tmp_path / "packages" / "libmultilabel", tmp_path / "bin" / "python"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "linear.py").write_text("import warnings; warnings.simplefilter('ignore')\n" + STAND_IN)
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec "{sys.executable}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("MLRH_LIBMULTILABEL", str(tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_libmultilabel_runs_in_its_own_process_and_is_judged_by_its_weights(problem):
    with libmultilabel.linear(problem) as own:
        (setting,) = ladders.finalists([own])
        seconds, weights = setting.call()
    fitted = LogisticRegression(solver="liblinear", tol=setting.step).fit(problem.X, problem.Y[:, 2])
    assert weights[:-1, 2] == pytest.approx(fitted.coef_[0]) and weights[-1, 2] == pytest.approx(fitted.intercept_[0])
    assert 0 <= setting.gap <= optimum.ENOUGH and 0 < seconds < 10


@pytest.mark.usefixtures("without_libmultilabel")
def test_a_missing_environment_is_said_loudly_and_the_rest_is_measured(problem, monkeypatch):
    monkeypatch.setattr(scikit_learn, "VARIANTS", ("OneVsRest",))
    missing, line = fits.linear_lines(problem, 2, CONTEXT)
    assert missing.note.startswith("NOT MEASURED: LibMultiLabel has no environment") and missing.passes is False
    assert "python -m benchmarks.adapters.libmultilabel" in missing.note
    assert line.ratio == pytest.approx(line.ours / line.theirs)
    assert line.reached and 0 <= line.gap <= 1e-4 and 0 <= line.their_gap <= 1e-4
    assert "scikit-learn" in line.competitor


def test_an_environment_that_does_not_work_is_said_loudly(problem, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    monkeypatch.setenv("MLRH_LIBMULTILABEL", str(tmp_path))
    with pytest.raises(libmultilabel.UnavailableError, match="status 3"), libmultilabel.linear(problem):
        pass


def test_a_fit_that_misses_the_gap_does_not_pass_however_fast_it_is():
    fast = table.compared("linear fit", "a set", 1.0, "theirs", 10.0, target=2.0, gap=1e-3, reached=np.bool_(False))
    assert fast.ratio == 0.1 and fast.passes is False
    assert table.compared("linear fit", "a set", 1.0, "theirs", 10.0, target=2.0).passes is True
    assert table.compared("start", "a set", 1.0, "theirs", 10.0, target=None).passes is None


def test_the_geometric_mean_fails_where_a_case_is_missing():
    lines = [table.compared("linear fit", "a", r, "them", 1.0, target=2.0) for r in (0.5, 1.0, 1.6)]
    mean = table.geometric_mean(lines, "linear fit", target=1.0)
    assert mean.ratio == pytest.approx(0.8 ** (1 / 3)) and mean.passes
    lost = table.geometric_mean([*lines, table.broken("linear fit", "b", "no data")], "linear fit", target=1.0)
    assert lost.ratio == pytest.approx(mean.ratio) and not lost.passes and "without 1 of 4" in lost.note
    assert table.geometric_mean(lines, "growth", target=1.0) is None


def test_a_set_that_fails_leaves_the_others(monkeypatch, capsys):
    def public(name):
        raise ValueError(f"{name} is not here")

    monkeypatch.setattr(problems, "public", public)
    notes = [line.note for line in fits.measure_linear(1, CONTEXT)]
    assert notes == [f"NOT MEASURED: ValueError: {name} is not here" for name in fits.QUICK_SETS]


def test_a_line_comes_back_from_json_and_is_shown_in_markdown():
    line = table.compared("growth", "a", 0.1, "them", 0.3, target=1.0, gap=1e-5, floor=0.05, note="a | b")
    assert table.from_dict(json.loads(json.dumps(table.to_dict(line)))) == line
    assert table.markdown([line]).splitlines()[-1] == (
        "| growth | a | 100 ms | them; a / b | 300 ms | 0.33 | 1.00 | yes | 1e-05 | 50 ms | 2.0 |"
    )


@pytest.mark.parametrize(("value", "shown"), [(12.345, "12.3 s"), (0.0123, "12.3 ms"), (4.2e-5, "42 us"), (0, "0 us")])
def test_seconds_are_shown_in_a_fitting_unit(value, shown):
    assert table.amount(value, "s") == shown


@pytest.mark.parametrize(("n_labels", "min_labels", "max_labels"), [(1, 0, 1), (5, 1, 3), (6, 2, 2), (6, 0, 6)])
def test_the_reference_equals_the_sum_over_all_label_sets(n_labels, min_labels, max_labels):
    scores = 3 * np.random.default_rng(n_labels).standard_normal(n_labels)
    log_partition, marginals = reference.expectations(scores, min_labels, max_labels)
    expected = enumerate_sizes(scores, min_labels, max_labels)
    assert log_partition == pytest.approx(expected.log_partition(), rel=1e-14)
    assert marginals == pytest.approx(np.array(expected.marginals()), rel=1e-14)


@pytest.mark.parametrize("kind", ["fitted", "start"])
def test_inference_is_timed_where_its_answers_are_right(kind, monkeypatch):
    line = inference.line((50, 30), 4, kind, 2, CONTEXT, target=3.0)
    assert line.ratio == pytest.approx(line.ours / line.theirs) and line.reached
    assert line.floor == pytest.approx(max(16 * 1500 / 1e10, 8 * 1500 * 4 / 1e11))
    monkeypatch.setattr(reference, "expectations", lambda scores, low, high: (0.0, np.full(len(scores), 0.5)))
    wrong = inference.line((50, 30), 4, kind, 2, CONTEXT, target=1e9)
    assert not wrong.passes and "marginals off" in wrong.note


@pytest.mark.slow
def test_scores_of_a_fitted_model_expect_few_labels_and_those_of_a_start_half_of_them():
    space = CardinalitySpace(200, 0, 200)
    fitted, start = (
        space.distribution(inference.scores_of(kind, (40, 200))).marginals() for kind in ("fitted", "start")
    )
    assert 2 < fitted.sum(axis=1).mean() < 6
    assert start.sum(axis=1).mean() == pytest.approx(100, rel=0.02)


def test_the_slope_is_the_power_of_a_power_law():
    sizes = np.array(growth.FACTORS)
    assert growth.slope(sizes, 0.01 * sizes**1.3) == pytest.approx(1.3)
    assert growth.FACTORS[-1] == 16 * growth.FACTORS[0]


def test_growth_tells_slopes_in_rows_labels_and_sizes():
    lines = [
        growth.slope_line("inference", growth.inference_call, growth.INFERENCE_QUICK, symbol, 1, CONTEXT)
        for symbol in growth.SYMBOLS
    ]
    assert [line.case.split(" (")[0][11:] for line in lines] == ["N=200..3,200", "K=16..256", "M=1..16"]
    assert all(line.ratio == line.ours and line.target == 1.1 for line in lines)
    fit = growth.slope_line("fit", growth.fit_call, growth.FIT_QUICK, "n_labels", 1, CONTEXT)
    assert np.isfinite(fit.ratio)


def test_fits_whose_growth_is_measured_make_the_same_number_of_iterations():
    for n_samples in (100, 400):
        assert growth.fit_call(n_samples, 5, 20, 3)().n_iter_ == growth.N_ITER


def test_many_labels_are_held_to_linear_growth_and_to_the_reference():
    times, errors = list(growth.many_labels(64, 2, CONTEXT))[::2], list(growth.many_labels(64, 1, CONTEXT))[1::2]
    assert [line.competitor for line in times] == ["16 times M=4", "8 times M=4"]
    assert all(line.passes and line.ours < 1e-12 for line in errors)


@pytest.mark.parametrize(
    ("X", "n_bytes"),
    [(np.zeros((10, 4)), 320), (sparse.csr_array(np.eye(10, 4)), 4 * 8 + 4 * 4 + 11 * 4)],
    ids=["dense", "csr"],
)
def test_the_memory_allowed_follows_its_formula(X, n_bytes):
    problem = problems.Problem("a", X, np.zeros((10, 3), np.int8))
    assert memory.budget(problem) == 3 * (n_bytes + 8 * 30) + 25 * 8 * 12 + 2 * 8 * 4**2


@pytest.mark.slow
def test_the_peak_of_a_fit_is_that_of_a_process_of_its_own():
    (line,) = memory.measure(1, CONTEXT)
    X_and_scores = 8 * 4000 * (100 + 30) / 2**20
    assert 0.3 * X_and_scores < line.ours < 10 * X_and_scores
    assert line.ratio == pytest.approx(line.ours / line.theirs)


def test_one_row_is_held_against_logistic_regression(problem):
    line = one_row.line(problem, 1, CONTEXT)
    assert 1e-6 < line.ours < 1 and "LogisticRegression" in line.competitor and line.target == 3.0


def test_a_later_process_must_compile_nothing(monkeypatch):
    for compiled, passes in ((0.0, True), (2.0, False)):
        fits = iter([[9.0, 0.1, 30.0], [0.4, 0.1, 0.0], [0.5, 0.1, compiled], [0.6, 0.1, 0.0]])
        monkeypatch.setattr(startup, "_fits", lambda fits=fits: next(fits))
        counted, times = startup.first_fit(3, CONTEXT)
        assert counted.ours == compiled and counted.passes is passes
        assert times.ratio == pytest.approx(5.0) and times.target is None


def test_functions_are_counted_as_they_are_compiled():
    program = "from numba import njit\nf = njit(lambda x: x + 1)\nf(1), f(2), f(1.0)\nprint(n_compiled())"
    answer = subprocess.run([sys.executable, "-c", startup.COUNT + program], check=True, capture_output=True, text=True)
    assert answer.stdout == "2\n"  # for integers and for floats


def test_what_an_import_adds_is_the_median_of_the_differences_within_a_turn():
    assert startup.difference(timing.Runs((5.0, 9.0, 7.0)), timing.Runs((4.0, 5.0, 1.0))) == 4.0
    lost = startup.added("import mlrh", -0.1, 2.0)
    assert (lost.ours, lost.note) == (0.0, "lost in the noise")


def test_an_rbf_fit_is_held_against_support_vector_machines(problem, monkeypatch):
    monkeypatch.setattr(support_vectors, "VARIANTS", ("MultiOutput",) * 3)
    line = fits.rbf_line(problem, 1, CONTEXT)
    assert 0 <= line.gap <= 1e-4 and -1e-12 <= line.their_gap <= 1e-4 and "SVC" in line.competitor
    assert line.floor == pytest.approx((120**2 * 6 + 120**3 / 3) / 1e11)


def test_the_choice_of_C_is_the_same_search_on_both_sides(problem, monkeypatch):
    monkeypatch.setattr(cross_validation, "cpu_count", lambda: None)
    searches = cross_validation.partial(cross_validation._linear, [0.1, 1.0])
    line = cross_validation.line("linear", problem, searches, 1, CONTEXT)
    assert line.reached and "differs by 0.0e+00" in line.note and line.target == pytest.approx(1 / 3)


def test_features_are_prepared_as_stated_and_labels_without_two_classes_left_out():
    rng = np.random.default_rng(0)
    Y = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 0, 1, 0]], np.int8)
    dense = problems.prepared("a", 5 + 3 * rng.standard_normal((3, 2)), Y)
    assert dense.X.mean(axis=0) == pytest.approx([0, 0], abs=1e-12) and dense.X.std(axis=0) == pytest.approx([1, 1])
    assert dense.Y.tolist() == [[1, 0], [0, 1], [1, 0]]
    words = sparse.csr_array(np.array([[1.0, 0], [0, 1], [1, 1]]))
    assert (words != problems.prepared("b", words, Y).X).nnz == 0
    assert str(dense) == "a (3 x 2 dense, K=2, M=1)"


def test_the_floor_is_the_longer_of_moving_and_computing():
    assert MACHINE.floor(n_bytes=1e10, flops=1e10) == 1.0
    assert MACHINE.floor(n_bytes=1e9, flops=1e12) == 10.0
    measured = machine.measure(1, quick=True)
    assert measured.bandwidth > 1e8 and measured.gemm_rate > 1e8 and measured.name


# One run of all questions: what breaks or is interrupted leaves the rest, and the page comes from what was kept.


@pytest.fixture
def asked(monkeypatch):
    """run.main with the questions' answers replaced by given ones, on a machine that needs no measuring."""
    answers = {}
    monkeypatch.setattr(run, "limit_blas", lambda n_threads: None)
    monkeypatch.setattr(run, "measure", lambda blas_threads, quick: MACHINE)
    monkeypatch.setattr(run, "answer", lambda question, repeats, context: answers[question]())
    return answers


def fine(question, ratio=0.5):
    return lambda: iter([table.compared(question, "a case", ratio, "them", 1.0, target=1.0)])


def test_one_question_that_breaks_leaves_the_others(asked, tmp_path, capsys):
    asked.update({question: fine(question) for question in run.QUESTIONS})

    def fails():
        yield table.compared("growth", "first", 0.5, "them", 1.0, target=1.0)
        raise RuntimeError("no more")

    asked["growth"] = fails
    assert run.main(["--output", str(tmp_path / "a" / "b.json")]) == 1
    record = json.loads((tmp_path / "a" / "b.json").read_text())
    assert [line["question"] for line in record["lines"]].count("growth") == 2
    assert {line["question"] for line in record["lines"]} == set(run.QUESTIONS)
    assert [own["machine"]["name"] for own in record["runs"]] == ["a machine"]
    assert "NOT MEASURED: RuntimeError: no more" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_run_keeps_what_was_measured(asked, tmp_path, capsys):
    def interrupted():
        yield table.compared("inference", "first", 0.5, "them", 1.0, target=1.0)
        raise KeyboardInterrupt

    asked.update({"linear fit": fine("linear fit"), "inference": interrupted})
    options = ["--only", "linear fit", "--only", "inference", "--output", str(tmp_path / "b.json")]
    assert run.main(options) == 130
    assert [line["case"] for line in json.loads((tmp_path / "b.json").read_text())["lines"]] == ["a case", "first"]
    assert "geometric mean of 1 cases" in capsys.readouterr().out


def test_a_question_asked_anew_replaces_its_lines_in_what_was_read(asked, tmp_path, capsys):
    asked.update({"growth": fine("growth", 0.9), "one row": fine("one row", 0.4)})
    path, page = tmp_path / "b.json", tmp_path / "page.md"
    assert run.main(["--only", "growth", "--only", "one row", "--output", str(path)]) == 0
    asked["growth"] = fine("growth", 0.25)
    page.write_text(f"before\n{run.BEGIN}\nold\n{run.END}\nafter\n")
    assert run.main(["--read", str(path), "--only", "growth", "--output", str(path), "--write", str(page)]) == 0
    ratios = {line["question"]: line["ratio"] for line in json.loads(path.read_text())["lines"]}
    assert ratios == {"growth": 0.25, "one row": 0.4}
    assert [own["questions"] for own in json.loads(path.read_text())["runs"]] == [["one row"], ["growth"]]
    text = page.read_text()
    assert text.startswith(f"before\n{run.BEGIN}\nMeasured ") and text.endswith(f"{run.END}\nafter\n")
    assert "old" not in text and "a machine, 2 cores, copies 10.0 GB/s" in text and "| 0.25 | 1.00 | yes |" in text
    asked.clear()
    assert run.main(["--read", str(path), "--write", str(page)]) == 0  # asks nothing
    assert page.read_text() == text


def test_the_page_holds_the_marks_and_a_measured_table():
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    measured = text.partition(run.BEGIN)[2].partition(run.END)[0]
    assert "| " + " | ".join(table.COLUMNS) + " |" in measured and "Measured " in measured


@pytest.mark.parametrize(
    ("option", "message"),
    [("--write", "must be a page with the marks"), ("--read", "must name the JSON file of an earlier run")],
)
def test_a_page_without_marks_or_an_earlier_run_that_is_not_there_is_said_before_anything_is_measured(
    option, message, tmp_path, capsys
):
    with pytest.raises(SystemExit):
        run.main([option, str(tmp_path / "nothing")])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("gap", "their_gap", "passes"), [(1e-5, 9e-5, True), (1e-3, 9e-5, False), (1e-6, 2e-4, True)])
def test_an_elastic_net_is_held_to_the_gap_and_a_competitor_that_misses_it_is_named(gap, their_gap, passes):
    line = elastic_net.judged("c", 1.0, 4.0, 0.1, gap=gap, their_gap=their_gap)
    assert (line.passes, line.ours, line.theirs, line.gap, line.their_gap) == (passes, 1.0, 4.0, gap, their_gap)
    assert ("misses the gap of 0.0001" in line.note) == (their_gap > 1e-4)


def test_every_question_has_a_function_that_measures_it():
    for name in run.QUESTIONS.values():
        module, function = name.split(":")
        assert callable(getattr(import_module(f"benchmarks.{module}"), function))
