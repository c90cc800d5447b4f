"""A record holds what can be computed anew from the same fold."""

import json
import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from experiment_samples import TINY, TINY_GRID, small_dataset
from scipy import sparse
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, log_loss
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.data import load_digit_scenes
from mlrh.experiments import _methods as methods
from mlrh.experiments import _protocol as plans
from mlrh.experiments import _public as public
from mlrh.experiments._protocol import run_task
from mlrh.experiments._records import KEY, key_of
from mlrh.experiments._reproduce import digit_scenes, multiclass_datasets
from mlrh.metrics import evaluate


def scaled_fold(dataset, n_folds, seed, fold):
    train, test = dataset.split(n_folds, seed, fold)
    scaler = StandardScaler().fit(dataset.data.X[train])
    X, Y = dataset.data.X, dataset.data.Y
    return scaler.transform(X[train]), Y[train], scaler.transform(X[test]), Y[test]


def test_the_record_of_a_linear_fit_holds_its_metrics_sizes_and_confidences():
    dataset = small_dataset()
    task = plans.nested_tasks(dataset, TINY, ["mlrh-linear"])[3]
    (record,) = run_task(task, dataset, TINY)
    assert json.loads(json.dumps(record)) == record
    assert (record["dataset"], record["method"], record["seed"], record["fold"]) == ("small", "MLRH-WTA (linear)", 0, 3)
    X, Y, X_test, Y_test = scaled_fold(dataset, 5, 0, 3)
    model = MLRHClassifier(C=record["settings"]["C"]).fit(X, Y)
    predicted, distribution = model.predict(X_test), model.distribution(X_test)
    assert record["metrics"]["exact_match"] == pytest.approx(accuracy_score(Y_test, predicted))
    assert record["metrics"]["hamming_loss"] == pytest.approx(hamming_loss(Y_test, predicted))
    assert record["metrics"]["f1_micro"] == pytest.approx(f1_score(Y_test, predicted, average="micro"))
    log_prob = np.maximum(distribution.log_prob(Y_test), np.log(1e-6))
    assert record["metrics"]["set_log_loss"] == pytest.approx(-log_prob.mean(), abs=1e-6)
    assert record["true_sizes"] == np.bincount(Y_test.sum(axis=1), minlength=4).tolist()
    assert record["predicted_sizes"] == np.bincount(predicted.sum(axis=1), minlength=4).tolist()
    confidence = np.exp(distribution.log_prob(predicted))
    counts, sums, correct = np.transpose(record["confidence"])
    assert counts.sum() == len(Y_test)
    assert sums.sum() == pytest.approx(confidence.sum(), abs=1e-4)
    assert correct.sum() == pytest.approx(record["metrics"]["exact_match"] * len(Y_test))
    np.testing.assert_array_equal(counts, np.histogram(confidence, np.linspace(0, 1, 11))[0])


def test_one_task_of_two_decisions_makes_two_records_with_the_keys_it_promised():
    dataset = small_dataset()
    task = plans.nested_tasks(dataset, TINY, ["mlrh-rbf"])[0]
    records = run_task(task, dataset, TINY)
    assert [record["method"] for record in records] == ["MLRH-WTA (RBF)", "MLRH-MP (RBF)"]
    assert list(map(key_of, records)) == task.keys


def test_the_papers_search_scores_br_svm_on_the_test_rows_at_every_setting():
    dataset = small_dataset()
    (record,) = run_task(plans.paper_search_tasks(dataset, TINY)[2], dataset, TINY)
    X, Y, X_test, Y_test = scaled_fold(dataset, 5, 0, 2)
    settings = product(TINY_GRID["rbf"]["gamma"], TINY_GRID["rbf"]["C"])
    models = [OneVsRestClassifier(SVC(C=C, gamma=gamma / 4)).fit(X, Y) for gamma, C in settings]
    expected = [accuracy_score(Y_test, model.predict(X_test)) for model in models]
    np.testing.assert_allclose(np.ravel(record["scores"]), expected)
    assert np.shape(record["scores"]) == (2, 2)


def test_the_objective_of_every_solver_ends_at_the_same_value():
    dataset = small_dataset()
    last = [run_task(task, dataset, TINY)[0]["history"][-1] for task in plans.descent_tasks(dataset)]
    assert len(last) == 3
    np.testing.assert_allclose(last, last[0], rtol=1e-6)


@pytest.mark.parametrize("program", list(methods.PROGRAMS))
def test_on_classes_that_overlap_all_programs_find_the_same_classifier(program):
    X, y = make_blobs(300, centers=3, cluster_std=4.0, random_state=0)
    best = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(X[:200], y[:200])
    found = methods.measure_program(program, X[:200], y[:200], X[200:], y[200:])
    assert found["accuracy"] == pytest.approx(best.score(X[200:], y[200:]), abs=0.011)
    assert found["train_log_loss"] == pytest.approx(log_loss(y[:200], best.predict_proba(X[:200])), rel=1e-3)
    assert 0 < found["n_iter"] <= methods.MAX_ITER[program]


def test_a_multiclass_record_holds_the_accuracy_on_a_fold_of_four():
    iris, _ = multiclass_datasets()
    task = next(t for t in plans.multiclass_tasks(iris, TINY) if t.family == "scikit-learn" and t.fold == 1)
    (record,) = run_task(task, iris, TINY)
    X, Y, X_test, Y_test = scaled_fold(iris, 4, 0, 1)
    model = LogisticRegression(C=np.inf).fit(X, Y.argmax(axis=1))
    assert record["metrics"]["accuracy"] == pytest.approx(model.score(X_test, Y_test.argmax(axis=1)))


# Tasks


def test_outer_folds_are_those_of_a_shuffled_kfold():
    dataset = small_dataset()
    for fold, (train, test) in enumerate(KFold(5, shuffle=True, random_state=3).split(dataset.data.X)):
        ours = dataset.split(5, 3, fold)
        np.testing.assert_array_equal(ours[0], train)
        np.testing.assert_array_equal(ours[1], test)


def test_folds_of_digit_scenes_train_on_the_train_part_and_test_each_scene_of_the_test_part_once():
    dataset = digit_scenes()
    tested = []
    for fold in range(5):
        train, test = dataset.split(5, 0, fold)
        np.testing.assert_array_equal(dataset.data.X[train], load_digit_scenes(1000, part="train").X[train])
        tested += test.tolist()
    assert sorted(tested) == list(range(1000, 1500))


def test_every_family_has_a_task_on_every_fold_of_every_seed_and_no_key_twice():
    profile = replace(TINY, seeds=(0, 7))
    tasks = plans.nested_tasks(small_dataset(), profile)
    assert {(t.family, t.seed, t.fold) for t in tasks} == set(product(methods.FAMILIES, (0, 7), range(5)))
    keys = [key for task in tasks for key in task.keys]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("make_sparse", [False, True])
def test_changed_data_make_another_plan(make_sparse):
    def plan(change):
        dataset = small_dataset()
        X = dataset.data.X.copy()
        X[5, 1] += change
        data = replace(dataset.data, X=sparse.csr_array(X) if make_sparse else X)
        return plans.nested_tasks(replace(dataset, data=data), TINY)[0].plan

    assert plan(0.0) == plan(0.0) != plan(1e-9)


def test_columns_that_turn_nominal_and_rows_that_only_train_make_another_plan():
    dataset = small_dataset()
    nominal = replace(dataset, data=replace(dataset.data, categories={"x1": ("a", "b")}))
    assert dataset.digest() not in (nominal.digest(), replace(dataset, n_train_only=30).digest())


def test_another_grid_or_number_of_inner_folds_makes_another_plan():
    before = plans.nested_tasks(small_dataset(), TINY)
    assert before[0].plan != plans.nested_tasks(small_dataset(), replace(TINY, inner_folds=3))[0].plan
    smaller = replace(TINY, grids={**TINY_GRID, "rbf": {"C": (1.0, 10.0), "gamma": (0.3,)}})
    after = plans.nested_tasks(small_dataset(), smaller)
    changed = {b.family for b, a in zip(before, after, strict=True) if a.plan != b.plan}
    assert changed == {family for family, found in methods.FAMILIES.items() if found.grid == "rbf"}


def test_the_papers_tuning_takes_the_setting_with_the_best_mean_of_br_svm_over_the_folds():
    dataset = small_dataset()
    # Fold 0 alone prefers gamma 0.3 and C 10, the mean prefers gamma 1 and C 1.
    records = [
        {**dict(zip(KEY, task.keys[0], strict=True)), "scores": [[0.1, 0.2 if task.fold else 0.9], [0.6, 0.1]]}
        for task in plans.paper_search_tasks(dataset, TINY)
    ]
    tasks = plans.paper_tasks(dataset, TINY, records)
    settings = {task.family: json.loads(task.settings) for task in tasks}
    both = {"C": 1.0, "gamma": 1.0}
    assert settings == {"mlrh-rbf": [both, both], "br-svm": [both], "lp-lr": [{"estimator__C": 1.0}]}
    assert plans.paper_tasks(dataset, TINY, records[:-1]) == []


def test_iris_and_wine_have_the_classes_as_single_labels():
    for dataset in multiclass_datasets():
        assert (dataset.data.Y.sum(axis=1) == 1).all() and dataset.data.Y.shape[1] == 3


def test_a_published_split_is_used_as_it_is():
    dataset = replace(small_dataset(), n_train_only=40, one_split=True)
    train, test = dataset.split(5, 3, 0)
    assert (train.tolist(), test.tolist()) == (list(range(40)), list(range(40, 60)))
    assert dataset.n_folds == 1 and dataset.digest() != small_dataset().digest()


def test_a_method_of_the_suite_is_tuned_and_decides_for_each_measure():
    dataset, profile = small_dataset(), TINY
    tasks = plans.public_tasks(dataset, profile, ["MLRH (linear, observed)"])
    assert [(task.seed, task.fold) for task in tasks] == [(0, fold) for fold in range(5)]
    record = run_task(tasks[0], dataset, profile)[0]
    assert record["settings"].keys() == public.MEASURES.keys()
    rows = plans._rows(tasks[0], dataset, profile, plans.N_FOLDS)
    for measure, decision in (("exact_match", "exact_match"), ("hamming_loss", "hamming"), ("f1_example", "f1")):
        model = MLRHClassifier(label_space="observed", decision=decision, **record["settings"][measure]).fit(
            rows.X, rows.Y
        )
        own = evaluate(rows.Y_test, model.predict(rows.X_test), None)[measure]
        assert record["metrics"][measure] == pytest.approx(own)
    model = MLRHClassifier(label_space="observed", **record["settings"]["set_log_loss"]).fit(rows.X, rows.Y)
    log_probs = np.maximum(model.distribution(rows.X_test).log_prob(rows.Y_test), np.log(1e-6))
    assert record["metrics"]["set_log_loss"] == pytest.approx(-log_probs.mean())


def test_what_takes_too_long_is_on_record_as_out_of_time(monkeypatch):
    def compute(rows, grid):
        start = time.process_time()
        while time.process_time() < start + 60:
            np.sort(np.arange(1000.0))

    monkeypatch.setitem(public.JUDGED, "slow", public.Judged("linear", compute))
    monkeypatch.setattr("mlrh.experiments._protocol.MAX_SECONDS", 0.1)
    dataset, profile = small_dataset(), TINY
    record = run_task(plans.public_tasks(dataset, profile, ["slow"])[0], dataset, profile)[0]
    assert record["metrics"] == {} and record["out_of_time"] == 0.1


def test_a_method_that_swallows_the_first_stop_is_out_of_time_at_the_next(monkeypatch):
    monkeypatch.setattr(plans, "AGAIN", 0.05)
    n_stops = 0
    with plans._at_most(0.05):
        while True:
            try:
                sum(range(1000))
            except TimeoutError:
                n_stops += 1
                if n_stops == 3:
                    raise
    assert n_stops == 3


def test_beside_C_and_gamma_a_grid_has_parameters_that_are_not_chosen():
    dataset = small_dataset()
    approximated = {"C": (1.0,), "gamma": (0.3, 1.0), "kernel_approximation": "nystroem", "n_components": 5}
    profile = replace(TINY, grids={**TINY.grids, "rbf": approximated})
    task = plans.public_tasks(dataset, profile, ["MLRH (RBF, observed)"])[0]
    (record,) = run_task(task, dataset, profile)
    setting, rows = record["settings"]["set_log_loss"], plans._rows(task, dataset, profile, plans.N_FOLDS)
    assert set(setting) == {"C", "gamma"}
    setting = {"C": setting["C"], "gamma": setting["gamma"] * rows.gamma_unit}
    model = KernelMLRHClassifier(
        label_space="observed", kernel_approximation="nystroem", n_components=5, random_state=0, **setting
    ).fit(rows.X, rows.Y)
    assert model.dual_coef_.shape[1] == 5
    log_probs = np.maximum(model.distribution(rows.X_test).log_prob(rows.Y_test), np.log(1e-6))
    assert record["metrics"]["set_log_loss"] == pytest.approx(-log_probs.mean())
