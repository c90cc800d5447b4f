"""One run -> one record: a task's rows, with preprocessing fitted to the training part, and what is kept of results."""

import json
import time
import warnings
from collections import Counter
from datetime import UTC, datetime

import numpy as np
from scipy import sparse
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier

from mlrh import __version__
from mlrh.automatic import make_preprocessor
from mlrh.estimators import MLRHClassifier
from mlrh.experiments import multiclass
from mlrh.experiments.methods import FAMILIES, Rows, svm_scores
from mlrh.experiments.plans import (
    DESCENT,
    MAX_DESCENT,
    MULTICLASS,
    N_FOLDS,
    N_MULTICLASS_FOLDS,
    SEARCH,
    Dataset,
    Profile,
    Task,
)
from mlrh.metrics import evaluate, size_counts

N_BINS = 10  # of equal width, of the confidences on record


def run_task(task: Task, dataset: Dataset, profile: Profile) -> list[dict]:
    """The records of a task, one for each of its methods."""
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = _RESULTS.get(task.protocol, _method_results)(task, dataset, profile)
    shared = {
        "plan": task.plan,
        "dataset": task.dataset,
        "protocol": task.protocol,
        "seed": task.seed,
        "fold": task.fold,
        "profile": profile.name,
        "version": __version__,
        "task_seconds": round(time.perf_counter() - begin, 3),
        "warnings": dict(Counter(warning.category.__name__ for warning in caught)),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return [{**shared, **result} for result in results]


def _method_results(task, dataset, profile):
    rows = _rows(task, dataset, profile, N_FOLDS)
    settings = json.loads(task.settings) if task.settings else None
    family = FAMILIES[task.family]
    outcomes = family.outcomes(rows, profile.grids[family.grid], settings)
    n_train = len(rows.Y)
    return [
        {"method": name, "n_train": n_train, **_described(outcome, rows.Y_test)} for name, outcome in outcomes.items()
    ]


def _described(outcome, Y):
    """The part of a record that tells how good an outcome is."""
    correct = (outcome.predicted == Y).all(axis=1)
    metrics = evaluate(Y, outcome.predicted, outcome.log_prob)
    return {
        "settings": outcome.settings,
        "metrics": {name: round(float(value), 9) for name, value in metrics.items()},
        "fit_seconds": round(outcome.fit_seconds, 4),
        "predict_seconds": round(outcome.predict_seconds, 4),
        "n_test": len(Y),
        "true_sizes": [int(count) for count in size_counts(Y, Y.shape[1])],
        "predicted_sizes": [int(count) for count in size_counts(outcome.predicted, Y.shape[1])],
        "confidence": None if outcome.log_confidence is None else _binned(np.exp(outcome.log_confidence), correct),
    }


def _binned(confidence, correct):
    """[count, sum of confidences, number correct] in N_BINS bins of equal width over [0, 1]."""
    place = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    members = [place == b for b in range(N_BINS)]
    return [
        [int(member.sum()), round(float(confidence[member].sum()), 6), int(correct[member].sum())] for member in members
    ]


def _search_results(task, dataset, profile):
    """Exact match of BR-SVM on the test rows at every setting of the grid."""
    rows = _rows(task, dataset, profile, N_FOLDS)
    stack = sparse.vstack if sparse.issparse(rows.X) else np.vstack
    X, Y, n_train = stack([rows.X, rows.X_test]), np.vstack([rows.Y, rows.Y_test]), len(rows.Y)
    split = np.arange(n_train), np.arange(n_train, len(Y))
    scores = svm_scores(OneVsRestClassifier, X, Y, split, profile.grids["rbf"], rows.gamma_unit)
    return [{"method": task.family, "scores": scores.round(9).tolist()}]


def _multiclass_results(task, dataset, profile):
    rows = _rows(task, dataset, profile, N_MULTICLASS_FOLDS)
    y, y_test = rows.Y.argmax(axis=1), rows.Y_test.argmax(axis=1)
    metrics = multiclass.measure(task.family, rows.X, y, rows.X_test, y_test)
    return [{"method": task.family, "metrics": metrics, "n_test": len(y_test)}]


def _descent_results(task, dataset, profile):
    """The objective after every iteration of one solver, for linear MLRH on all rows."""
    X = make_preprocessor(dataset.data).fit_transform(dataset.data.X)
    model = MLRHClassifier(solver=task.family, max_iter=MAX_DESCENT, n_jobs=1).fit(X, dataset.data.Y)
    return [{"method": task.family, "history": [float(f"{value:.10g}") for value in model.history_]}]


_RESULTS = {SEARCH: _search_results, MULTICLASS: _multiclass_results, DESCENT: _descent_results}


def _rows(task, dataset, profile, n_folds):
    """The rows of an outer fold, with the preprocessing fitted to its training part."""
    data = dataset.data
    train, test = dataset.split(n_folds, task.seed, task.fold)
    preprocessor = make_preprocessor(data)
    X = preprocessor.fit_transform(data.X[train])
    inner = list(KFold(profile.inner_folds, shuffle=True, random_state=task.seed).split(train))
    return Rows(X, data.Y[train], preprocessor.transform(data.X[test]), data.Y[test], inner, task.seed)
