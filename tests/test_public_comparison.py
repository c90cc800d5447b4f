"""The comparison on public sets: every method is tuned for each measure, and runs within its time and memory."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiment_samples import TINY, small_dataset
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score, hamming_loss, make_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import SVC, LinearSVC
from typer.testing import CliRunner

import mlrh
from mlrh import PooledSets
from mlrh.baselines import LabelPowerset, independent_set_log_proba
from mlrh.cli import app
from mlrh.data import load
from mlrh.experiments import _boomer, _public, read_records
from mlrh.experiments import _protocol as plans
from mlrh.experiments import _reproduce as module
from mlrh.experiments._protocol import PUBLIC_GRIDS, SUITES, run_task
from mlrh.experiments._public import JUDGED, MEASURES, mean_of_trees
from mlrh.experiments._records import key_of
from mlrh.experiments._reproduce import compare_suite
from mlrh.metrics import evaluate

TREES = {"n_estimators": (5,), "min_samples_leaf": (1, 3)}
GRIDS = {
    "linear": {"C": (0.1, 1.0)},
    "rbf": {"C": (1.0, 10.0), "gamma": (0.3, 1.0)},
    "svm": {"C": (1.0, 10.0), "gamma": (0.3, 1.0)},
    "boosted": {"n_estimators": (5, 10), "max_depth": (2,)},
    "pooled": {
        "rbf": {"C": (1.0, 10.0), "gamma": (0.3,)},
        "linear": {"C": (0.1, 1.0)},
        "boosted": {"n_estimators": (5,), "max_depth": (2,)},
        "forest": TREES,
    },
    "automatic": {"time_budget": (1.0,), "quality": ("fast",)},
    "forest": TREES,
    "extra": {**TREES, "max_features": (0.3,)},
    "neighbours": {"n_neighbors": (3, 5)},
    "iblr": {"n_neighbors": (3, 5), "C": (0.1, 1.0)},
    "nets": {"cv": (2,), "Cs": ((0.1, 1.0),), "l1_ratios": ((0.5,),)},
    "boomer": {"loss": ("logistic-decomposable", "logistic-non-decomposable"), "max_rules": (2, 8)},
}
PROFILE = replace(TINY, grids=GRIDS)
DATASET = small_dataset(n_samples=150)
TASK = plans.public_tasks(DATASET, PROFILE, ["BR-LR"])[0]
ROWS = plans._rows(TASK, DATASET, PROFILE, plans.N_FOLDS)
ALWAYS = [method for method in JUDGED if method not in ("MLRH (automatic)", "BOOMER")]


def result_of(method, rows=ROWS):
    return JUDGED[method].results(rows, GRIDS[JUDGED[method].grid])


@pytest.mark.slow
@pytest.mark.parametrize("method", ALWAYS)
def test_every_method_beats_the_most_frequent_set(method):
    sets, counts = np.unique(ROWS.Y, axis=0, return_counts=True)
    floor = evaluate(ROWS.Y_test, np.tile(sets[counts.argmax()], (len(ROWS.Y_test), 1)))
    found = result_of(method)
    assert found["metrics"]["exact_match"] > floor["exact_match"]
    assert found["metrics"]["hamming_loss"] < floor["hamming_loss"]
    assert found["metrics"]["f1_example"] > floor["f1_example"]
    assert found["settings"].keys() == found["metrics"].keys() & MEASURES.keys()
    assert ("set_log_loss" in found["metrics"]) == ("SVM" not in method)
    json.dumps(found["settings"])  # goes into a record


def test_a_method_of_others_is_tuned_for_each_measure_as_a_grid_search_would():
    found = result_of("BR-LR")
    model, grid = OneVsRestClassifier(LogisticRegression(max_iter=2000)), {"estimator__C": [0.1, 1.0]}
    scorers = {
        "exact_match": "accuracy",
        "hamming_loss": make_scorer(hamming_loss, greater_is_better=False),
        "f1_example": make_scorer(f1_score, average="samples", zero_division=1.0),
    }
    for measure, scorer in scorers.items():
        search = GridSearchCV(model, grid, cv=ROWS.inner, scoring=scorer).fit(ROWS.X, ROWS.Y)
        assert found["settings"][measure] == {"C": search.best_params_["estimator__C"]}
        own = evaluate(ROWS.Y_test, search.predict(ROWS.X_test))[measure]
        assert found["metrics"][measure] == pytest.approx(own)
    fitted = model.set_params(estimator__C=found["settings"]["set_log_loss"]["C"]).fit(ROWS.X, ROWS.Y)
    log_probs = independent_set_log_proba(fitted.predict_proba(ROWS.X_test), ROWS.Y_test)
    expected = -np.maximum(log_probs, np.log(1e-6)).mean()
    assert found["metrics"]["set_log_loss"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "method, wrap", [("BR-SVM", OneVsRestClassifier), ("CC-SVM", ClassifierChain), ("LP-SVM", LabelPowerset)]
)
def test_support_vectors_have_an_rbf_kernel_and_are_linear_where_the_grid_has_no_gamma(method, wrap):
    measure = JUDGED[method].results.args[0]
    for setting, base in (
        ({"C": 10.0, "gamma": 0.3}, SVC(C=10.0, gamma=0.3 * ROWS.gamma_unit)),
        ({"C": 0.1}, LinearSVC(C=0.1)),
    ):
        (found,) = measure([setting], ROWS)
        expected = evaluate(ROWS.Y_test, wrap(base).fit(ROWS.X, ROWS.Y).predict(ROWS.X_test).astype(int))
        assert found.metrics == pytest.approx({name: expected[name] for name in found.metrics})


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
@pytest.mark.parametrize("per_batch", [1, 3, 100])
def test_trees_in_batches_are_those_of_the_whole_forest(kind, per_batch, monkeypatch):
    Y = np.column_stack([ROWS.Y, np.zeros(len(ROWS.Y), int)])  # a label that nobody has
    forest = kind(7, random_state=0, min_samples_leaf=2)
    monkeypatch.setattr(_public, "MAX_TREE_BYTES", per_batch * 8 * 2 * Y.shape[1] * 2 * len(Y))
    marginals, _ = mean_of_trees(forest, ROWS.X, Y, ROWS.X_test)
    whole = forest.fit(ROWS.X, Y).predict_proba(ROWS.X_test)
    expected = np.column_stack([*(part[:, 1] for part in whole[:-1]), np.zeros(len(ROWS.X_test))])
    np.testing.assert_allclose(marginals, expected, atol=1e-12)
    codes = ROWS.Y @ [1, 2, 4] - (ROWS.Y @ [1, 2, 4]).min()
    proba, _ = mean_of_trees(forest, ROWS.X, codes, ROWS.X_test)
    np.testing.assert_allclose(proba, forest.fit(ROWS.X, codes).predict_proba(ROWS.X_test), atol=1e-12)


def test_a_pool_answers_as_the_pool_of_its_members_at_the_settings_and_weights_on_record():
    found = result_of("MLRH (pooled)")
    for measure, setting in found["settings"].items():
        members = [
            ("smooth", _public._smooth(setting["smooth"], ROWS)),
            ("boosted", _public._boosted(setting["boosted"], ROWS)),
            ("forest", _public._forest_of_sets(setting["forest"], ROWS)),
        ]
        pool = PooledSets(members, weights=setting["weights"]).fit(ROWS.X, ROWS.Y)
        own = _public.judged(pool.distribution(ROWS.X_test), ROWS.Y_test)
        # The weights on record have three decimals.
        assert found["metrics"][measure] == pytest.approx(own[measure], rel=5e-3)


def test_one_search_of_the_automatic_method_serves_all_measures(monkeypatch):
    searched, original = [], mlrh.MLRHAuto._search
    monkeypatch.setattr(mlrh.MLRHAuto, "_search", lambda *args: searched.append(1) or original(*args))
    grid = {"time_budget": (None,), "quality": ("fast",), "scores": ("linear",)}
    found = JUDGED["MLRH (automatic)"].results(ROWS, grid)
    assert len(searched) == 1
    options = {"quality": "fast", "scores": "linear", "time_budget": None, "random_state": ROWS.seed}
    metrics = {"exact_match": "exact_match", "hamming_loss": "hamming", "f1_example": "f1", "set_log_loss": "log_loss"}
    for measure, metric in metrics.items():
        own = mlrh.MLRHAuto(metric=metric, **options).fit(ROWS.X, ROWS.Y)
        log_probs = own.distribution(ROWS.X_test).log_prob(ROWS.Y_test)
        expected = evaluate(ROWS.Y_test, own.predict(ROWS.X_test), log_probs)[measure]
        assert found["metrics"][measure] == pytest.approx(expected)
        assert found["settings"][measure]["model"] == own.leaderboard_[0]["model"]


def test_the_grids_have_at_most_six_settings_and_fit_the_methods():
    for profile in SUITES["public"].values():
        for name, grid in profile.grids.items():
            if name != "pooled":
                # What is no tuple is not chosen.
                assert np.prod([len(values) for values in grid.values() if isinstance(values, tuple)]) <= 6, name
        pooled = profile.grids["pooled"]
        counts = {part: np.prod([len(values) for values in grid.values()]) for part, grid in pooled.items()}
        assert sum(counts.values()) <= 6
        assert {judged.grid for judged in JUDGED.values()} <= profile.grids.keys()
    large = {"bibtex", "tmc2007-500"}  # 7,395 and 28,596 rows
    for name, profile in SUITES["public"].items():
        assert ("gamma" in profile.grids["svm"]) == ("rbf" in profile.grids["pooled"]) == (name not in large)
    assert PUBLIC_GRIDS["nets"]["Cs"] == (PUBLIC_GRIDS["linear"]["C"],)


@pytest.mark.skipif(not os.environ.get("MLRH_DATA"), reason="MLRH_DATA names no folder with the public sets")
@pytest.mark.parametrize("name", SUITES["public"])
def test_published_records_are_of_the_grids_and_data_of_now(name):
    known = {
        key for task in plans.public_tasks(module.public_dataset(name), SUITES["public"][name]) for key in task.keys
    }
    published = Path(__file__).parents[1] / "docs" / "comparison" / "records.jsonl"
    assert [r for r in read_records(published) if r["dataset"] == name and key_of(r) not in known] == []


@pytest.mark.skipif(not os.environ.get("MLRH_DATA"), reason="MLRH_DATA names no folder with the public sets")
@pytest.mark.parametrize("name", plans.PUBLISHED_SPLITS)
def test_the_large_sets_are_split_as_published(name):
    dataset = module.public_dataset(name)
    assert dataset.one_split
    ends = {"train": slice(None, dataset.n_train_only), "test": slice(dataset.n_train_only, None)}
    for part, rows in ends.items():
        published = load(name, part)
        np.testing.assert_array_equal(dataset.data.Y[rows], published.Y)
        assert (dataset.data.X[rows] != published.X).nnz == 0


# BOOMER

FAKE = """
import os, signal
import numpy as np

class BoomerClassifier:
    def __init__(self, **options):
        self.options = options

    def fit(self, X, Y):
        if os.environ.get("FAKE_BOOMER") == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        while os.environ.get("FAKE_BOOMER") == "hangs":
            np.sort(np.arange(1000.0))
        assert X.dtype == np.float32 and Y.dtype == np.uint8 and self.options["max_rules"] >= 2
        self.X, self.Y = X.astype(float), Y
        return self

    def predict(self, X, max_rules):
        return self.predict_proba(X, max_rules) > 0.5

    def predict_proba(self, X, max_rules):
        ridge = (1.0 if self.options["loss"] == "logistic-decomposable" else 100.0) / max_rules
        coef = np.linalg.solve(self.X.T @ self.X + ridge * np.eye(self.X.shape[1]), self.X.T @ (self.Y - 0.5))
        return np.clip(0.5 + X.astype(float) @ coef, 0.01, 0.99)
"""


def as_the_fake(X, Y, X_test, setting):
    """The marginals of the stand-in for BOOMER: a ridge regression."""
    ridge = (1.0 if setting["loss"] == "logistic-decomposable" else 100.0) / setting["max_rules"]
    model = Ridge(ridge, fit_intercept=False).fit(X, Y - 0.5)
    return np.clip(0.5 + model.predict(X_test), 0.01, 0.99)


@pytest.fixture
def fake_boomer(tmp_path, monkeypatch):
    """An environment whose mlrl.boosting has the same interface with scikit-learn behind it."""
    package, program = tmp_path / "packages" / "mlrl" / "boosting", tmp_path / "bin" / "python"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE)
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "packages"} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("MLRH_BOOMER", str(tmp_path))
    monkeypatch.delenv("FAKE_BOOMER", raising=False)


@pytest.mark.usefixtures("fake_boomer")
def test_boomer_answers_from_its_own_environment_after_each_number_of_rules():
    found = result_of("BOOMER")
    for measure, setting in found["settings"].items():
        marginals = as_the_fake(ROWS.X, ROWS.Y, ROWS.X_test, setting)
        own = evaluate(ROWS.Y_test, marginals > 0.5, independent_set_log_proba(marginals, ROWS.Y_test))
        assert found["metrics"][measure] == pytest.approx(own[measure], rel=1e-4)  # features of 32 bits


@pytest.mark.usefixtures("fake_boomer")
def test_boomer_that_crashes_is_a_failure_and_one_that_takes_too_long_is_out_of_time(monkeypatch):
    task = plans.public_tasks(DATASET, PROFILE, ["BOOMER"])[0]
    monkeypatch.setenv("FAKE_BOOMER", "crashes")
    with pytest.raises(RuntimeError, match="BOOMER ended with status -11"):
        run_task(task, DATASET, PROFILE)
    monkeypatch.setenv("FAKE_BOOMER", "hangs")
    monkeypatch.setattr(_public, "MAX_SECONDS", 2)
    record = run_task(task, DATASET, PROFILE)[0]
    assert record["metrics"] == {} and "out_of_time" in record
    assert record["processor_seconds"] >= 1  # that of the process it started: its limit ends it after at least 1 s


def test_without_an_environment_boomer_is_left_out_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MLRH_BOOMER", str(tmp_path / "nowhere"))
    assert "make boomer" in _boomer.missing()
    monkeypatch.setitem(SUITES["public"], "small", PROFILE)
    report = compare_suite([DATASET], {"small": PROFILE}, ("BR-LR", "BOOMER"), tmp_path / "out", n_jobs=1)
    assert any(sentence.startswith("Left out: BOOMER: BOOMER has no environment") for sentence in report.summary)


# Runs in parts


def test_a_comparison_in_parts_is_that_of_one_run_and_repeats_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES["public"], "small", PROFILE)
    both = ("BR-LR", "ML-kNN")
    whole = compare_suite([DATASET], {"small": PROFILE}, both, tmp_path / "whole", n_jobs=1)
    first = compare_suite([DATASET], {"small": PROFILE}, both[:1], tmp_path / "parts", n_jobs=1)
    assert any("25 of 26 methods (not run on any set)" in sentence for sentence in first.summary)
    computed, original = [], module.run_task
    monkeypatch.setattr(module, "run_task", lambda task, *rest: computed.append(task.family) or original(task, *rest))
    parts = compare_suite([DATASET], {"small": PROFILE}, both, tmp_path / "parts", n_jobs=1)
    assert computed == ["ML-kNN"] * 5
    assert [table.rows for table in parts.sections[1].tables] == [table.rows for table in whole.sections[1].tables]


def test_the_command_runs_the_sets_methods_and_seeds_that_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES["public"], "small", replace(PROFILE, seeds=(0, 1)))
    monkeypatch.setattr(module, "public_dataset", lambda name, data_dir: {"small": DATASET}[name])
    part = ["--sets", "small", "--methods", "ML-kNN", "--methods", "LP-LR", "--seeds", "1", "--jobs", "1"]
    result = CliRunner().invoke(app, ["compare", "--suite", "public", *part, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.exception
    made = {(r["dataset"], r["method"], r["seed"], r["fold"]) for r in read_records(tmp_path / "records.jsonl")}
    assert made == {("small", method, 1, fold) for method in ("ML-kNN", "LP-LR") for fold in range(5)}
    assert "Ranked are 2 methods: small by 5 of 10 splits." in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    "option, words",
    [
        (["--sets", "roses"], "Unknown data set of the suite 'roses'; there are emotions, scene"),
        (["--methods", "guess"], "Unknown method of the suite 'guess'; there are MLRH (linear, cardinality)"),
        (["--labels", "a"], "The sets of a suite say what their columns are; leave out --full"),
        (["--unknown", ""], "The sets of a suite say what their columns are; leave out --full"),
        (["--seeds", "9"], "No set of the suite has folds of seed 9; there are seeds 0, 1, 2, 3, 4."),
    ],
)
def test_a_part_that_does_not_exist_is_an_error(option, words):
    error = CliRunner().invoke(app, ["compare", "--suite", "public", *option]).exception
    assert isinstance(error, ValueError) and str(error).startswith(words)


@pytest.mark.parametrize("option", [["--sets", "emotions"], ["--seeds", "0"]])
def test_a_part_of_a_suite_is_refused_beside_a_file(option):
    error = CliRunner().invoke(app, ["compare", "things.csv", *option]).exception
    assert isinstance(error, ValueError) and str(error).startswith("--sets and --seeds are parts of a suite")
