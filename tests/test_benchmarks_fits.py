"""Linear fits are asked twice, to equal accuracy and at the defaults; and what a tolerance buys is told."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from benchmarks import fits, ladders, machine, optimum, problems, run, startup, tolerances
from benchmarks.adapters import ours, scikit_learn
from mlrh import MLRHClassifier

MACHINE = machine.Machine("a machine", 2, 1, bandwidth=1e10, gemm_rate=1e11, load=0.0, versions={})
CONTEXT = SimpleNamespace(machine=MACHINE, quick=True, tell=lambda message: None)


@pytest.fixture(scope="module")
def problem():
    return problems.synthetic(120, 6, 4, max_size=3)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("MLRH_LIBMULTILABEL", str(tmp_path / "nothing"))
    monkeypatch.setattr(scikit_learn, "VARIANTS", ("OneVsRest",))


def ladder(name, outcomes, default):
    """A ladder whose steps have these gaps and seconds; in between nothing is reached."""
    return ladders.Ladder(
        name,
        "tol=",
        tuple(outcomes),
        ("alone",),
        lambda step, variant: (outcomes.get(step, (1, 1))[1], SimpleNamespace(n_iter_=1, step=step)),
        lambda fitted: outcomes.get(fitted.step, (1, 1))[0],
        default,
    )


OURS = ladder("ours", {1e-3: (1e-2, 0.1), 1e-5: (1e-5, 2.0), 1e-7: (1e-8, 4.0)}, 1e-7)
THEIRS = ladder("theirs", {1e-1: (1e-2, 1.0), 1e-2: (1e-3, 2.5), 1e-4: (1e-5, 5.0)}, 1e-2)


def line_of(question, own=OURS):
    problem = problems.synthetic(20, 2, 2)
    return fits.beside(question, problem, [THEIRS], own, 1, CONTEXT, floor=float)


def test_to_equal_accuracy_each_side_counts_at_its_fastest_tolerance_that_reaches_the_gap():
    line = line_of(fits.LINEAR)
    assert (line.ours, line.theirs, line.ratio) == (2.0, 5.0, 0.4)
    assert line.competitor == "theirs, tol=0.0001, alone" and line.note == "ours at tol=1e-05"
    assert (line.gap, line.their_gap) == (1e-5, 1e-5) and line.target == 0.8 and line.passes


def test_at_the_defaults_each_side_counts_with_its_own_tolerance():
    line = line_of(fits.DEFAULTS)
    assert (line.ours, line.theirs, line.ratio) == (4.0, 2.5, 1.6)
    assert line.competitor == "theirs, tol=0.01, alone" and line.note == "ours at tol=1e-07"
    assert (line.gap, line.their_gap) == (1e-8, 1e-3) and line.target == 1.0 and not line.passes


def test_a_side_of_ours_that_never_reaches_the_gap_fails_loudly():
    line = line_of(fits.LINEAR, ladder("ours", {1e-3: (1e-2, 0.1)}, 1e-3))
    assert line.passes is False and "no tolerance of ours reached a gap of 0.0001" in line.note
    assert not line_of(fits.DEFAULTS, ladder("ours", {1e-3: (1e-2, 0.1)}, 1e-3)).passes  # fast, and too far off


def test_the_default_tolerances_are_those_of_the_estimators(problem):
    assert ours.linear(problem).default == MLRHClassifier().tol
    assert {own.default for own in scikit_learn.linear(problem)} == {1e-4}


def test_both_questions_are_measured_and_have_a_mean_of_their_own(problem, monkeypatch):
    monkeypatch.setattr(problems, "public", lambda name: problem)
    monkeypatch.setattr(fits, "QUICK_SETS", ("one",))
    lines = [*fits.measure_linear(1, CONTEXT), *fits.measure_defaults(1, CONTEXT)]
    measured = [line for line in lines if line.ratio is not None]
    assert [line.question for line in measured] == ["linear fit", "linear fit at defaults"]
    assert all(0 <= line.gap <= optimum.ENOUGH and line.reached for line in measured)
    means = [line for line in run.with_means(measured) if "geometric mean" in line.case]
    assert [(line.question, line.target) for line in means] == [("linear fit", 0.4), ("linear fit at defaults", 0.6)]
    assert [line.ratio for line in means] == pytest.approx([line.ratio for line in measured])


def test_defaults_are_tried_in_all_variants_unless_far_slower():
    tried = []
    two = ("alone", "both")
    fast, slow = (
        ladders.Ladder(name, "tol=", (0.1,), two, lambda step, variant, s=s: (s, None), lambda result: 0.0, 0.5)
        for name, s in (("fast", 2.0), ("slow", 7.0))
    )
    found = ladders.at_defaults([fast, slow], tell=tried.append)
    assert [setting.name for setting in found] == ["fast, tol=0.5, alone", "fast, tol=0.5, both"]
    assert len(tried) == 3  # two of the fast one, one of the slow


def test_what_a_tolerance_buys_is_the_distance_to_an_optimum_found_otherwise(problem):
    best = MLRHClassifier(tol=1e-14).fit(problem.X, problem.Y)
    bought = tolerances.measured(problem)
    for tol, (gap, difference, n_iter) in zip(tolerances.TOLERANCES, bought, strict=True):
        fitted = MLRHClassifier(tol=tol).fit(problem.X, problem.Y)
        assert n_iter == fitted.n_iter_
        # The tight solve of the benchmark stops at 1e-10 of the loss: its probabilities are right to about 1e-5.
        assert gap == pytest.approx((fitted.objective_ - best.objective_) / best.objective_, abs=1e-8)
        expected = np.abs(fitted.predict_proba(problem.X) - best.predict_proba(problem.X)).max()
        assert difference == pytest.approx(expected, abs=2e-5)
    with pytest.warns(ConvergenceWarning):
        rough = MLRHClassifier(max_iter=2).fit(problem.X, problem.Y)
    gap, difference = tolerances.beside(best, rough, problem)
    assert gap == pytest.approx((rough.objective_ - best.objective_) / best.objective_, rel=1e-6)
    assert difference == np.abs(rough.predict_proba(problem.X) - best.predict_proba(problem.X)).max() > 1e-4


def test_the_default_is_the_loosest_tolerance_that_keeps_both_limits_on_all_sets():
    good, far, off = (1e-6, 1e-3, 9), (2e-5, 1e-3, 9), (1e-6, 2e-2, 9)
    assert tolerances.loosest([[far, good, good, good, good], [far, far, off, good, good]]) == "tol=1e-07"
    assert tolerances.loosest([[good] * 5]) == "tol=0.0001"
    assert tolerances.loosest([[off] * 5]) == "none of them"


def test_the_table_of_tolerances_has_a_column_for_each(problem, monkeypatch, capsys):
    monkeypatch.setattr(problems, "public", lambda name: problem)
    tolerances.main(["--sets", "emotions"])
    header, rule, line, _, last = capsys.readouterr().out.splitlines()
    assert header.count("|") == rule.count("|") == line.count("|") == 7
    assert "tol=1e-07" in header and str(problem) in line and last.startswith("The loosest")


@pytest.mark.parametrize(("first", "passes"), [(7.5, False), (5.4, True)])
def test_the_first_fit_ever_is_held_to_five_seconds_of_compiling_in_an_empty_cache(first, passes, monkeypatch):
    def printed(program, env):
        assert "sparse.csr_array(problem.X) if True" in program
        assert Path(env["NUMBA_CACHE_DIR"]).is_dir() and not list(Path(env["NUMBA_CACHE_DIR"]).iterdir())
        return [first, 0.5]

    monkeypatch.setattr(startup, "_printed", printed)
    line = startup.first_ever("open space", "emotions", True, "MLRHClassifier(label_space='open')", CONTEXT)
    assert (line.ours, line.theirs, line.passes) == (first - 0.5, 5.0, passes)
