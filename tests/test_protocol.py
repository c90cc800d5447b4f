"""A record holds what can be computed anew from the same fold."""

import json

import numpy as np
import pytest
from experiment_samples import TINY, TINY_GRID, small_dataset, tiny_grids  # noqa: F401
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, hamming_loss, log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mlrh import MLRHClassifier
from mlrh.experiments import _methods as multiclass
from mlrh.experiments import _protocol as plans
from mlrh.experiments._protocol import run_task
from mlrh.experiments._reproduce import multiclass_datasets

pytestmark = pytest.mark.usefixtures("tiny_grids")


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
    assert [
        tuple(r[n] for n in ("plan", "dataset", "protocol", "method", "seed", "fold")) for r in records
    ] == task.keys


def test_the_papers_search_scores_br_svm_on_the_test_rows_at_every_setting():
    dataset = small_dataset()
    (record,) = run_task(plans.paper_search_tasks(dataset, TINY)[2], dataset, TINY)
    X, Y, X_test, Y_test = scaled_fold(dataset, 5, 0, 2)
    expected = [
        [
            accuracy_score(Y_test, OneVsRestClassifier(SVC(C=C, gamma=gamma / 4)).fit(X, Y).predict(X_test))
            for C in TINY_GRID["rbf"]["C"]
        ]
        for gamma in TINY_GRID["rbf"]["gamma"]
    ]
    np.testing.assert_allclose(record["scores"], expected)


def test_the_objective_of_every_solver_ends_at_the_same_value():
    dataset = small_dataset()
    last = [run_task(task, dataset, TINY)[0]["history"][-1] for task in plans.descent_tasks(dataset)]
    assert len(last) == 3
    np.testing.assert_allclose(last, last[0], rtol=1e-6)


@pytest.mark.parametrize("program", list(multiclass.PROGRAMS))
def test_on_classes_that_overlap_all_programs_find_the_same_classifier(program):
    X, y = make_blobs(300, centers=3, cluster_std=4.0, random_state=0)
    best = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(X[:200], y[:200])
    found = multiclass.measure_program(program, X[:200], y[:200], X[200:], y[200:])
    assert found["accuracy"] == pytest.approx(best.score(X[200:], y[200:]), abs=0.011)
    assert found["train_log_loss"] == pytest.approx(log_loss(y[:200], best.predict_proba(X[:200])), rel=1e-3)
    assert 0 < found["n_iter"] <= multiclass.MAX_ITER[program]


def test_a_multiclass_record_holds_the_accuracy_on_a_fold_of_four():
    iris, _ = multiclass_datasets()
    task = next(t for t in plans.multiclass_tasks(iris, TINY) if t.family == "scikit-learn" and t.fold == 1)
    (record,) = run_task(task, iris, TINY)
    X, Y, X_test, Y_test = scaled_fold(iris, 4, 0, 1)
    model = LogisticRegression(C=np.inf).fit(X, Y.argmax(axis=1))
    assert record["metrics"]["accuracy"] == pytest.approx(model.score(X_test, Y_test.argmax(axis=1)))
