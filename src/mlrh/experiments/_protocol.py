"""What is run, and what is kept of it: data sets, profiles, tasks, and the records of a task.

A task is one family of methods on one outer fold; preprocessing is fitted to its training part.
"""

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier

from mlrh import __version__
from mlrh.automatic import make_preprocessor
from mlrh.data import MultilabelData
from mlrh.estimators import MLRHClassifier
from mlrh.estimators.cv import best_index
from mlrh.experiments._methods import FAMILIES, MAX_ITER, PROGRAMS, Rows, measure_program, svm_scores
from mlrh.experiments._public import JUDGED, MAX_SECONDS
from mlrh.experiments._records import key_of
from mlrh.metrics import evaluate, ranking, size_counts

N_FOLDS, N_MULTICLASS_FOLDS = 5, 4
AGAIN = 30.0  # seconds after which a method that is out of time is stopped once more: time enough to clean up
NESTED, SEARCH, PAPER, MULTICLASS, DESCENT = "nested", "paper search", "paper", "multiclass", "descent"
PUBLIC = "public"
MAX_DESCENT = 500  # iterations
DESCENDING = ("mm", "lbfgs", "newton-cg")  # the solvers whose descent is shown
PAPER_FAMILIES = ("mlrh-rbf", "br-svm", "lp-lr")
REPRODUCED_FAMILIES = (  # of `reproduce`, as in the published report; `compare` has all
    *("mlrh-rbf", "mlrh-rbf-observed", "mlrh-linear", "mlrh-linear-observed", "br-svm", "lp-svm", "lp-lr", "br-lr"),
    *("cc-lr", "lp-rf", "ml-knn"),
)


@dataclass(frozen=True)
class Profile:
    """How thorough a run is: the seeds of the outer folds, the number of inner folds, and the grids of the methods."""

    name: str
    seeds: tuple[int, ...]
    inner_folds: int
    n_multiclass_seeds: int
    grids: dict[str, dict[str, Any]]


# What the methods choose from; gamma is in units of 1 / (n_features * variance of the features). Fixed before the first
# run and not touched since: a record's key depends on the grid, so another value here is another experiment.
QUICK_GRIDS: dict[str, dict[str, Any]] = {
    "rbf": {"C": (1.0, 10.0, 100.0), "gamma": (0.3, 1.0)},
    "linear": {"C": (0.01, 0.1, 1.0, 10.0)},
    "forest": {"n_estimators": 200, "min_samples_leaf": (1, 3)},
    "neighbours": {"n_neighbors": (5, 10, 20)},
    "nets": {"cv": (3,), "Cs": (0.01, 0.1, 1.0, 10.0), "l1_ratios": (0.1, 0.5, 0.9)},
    "automatic": {"time_budget": None},  # so that the choice does not depend on the machine
}
FULL_GRIDS: dict[str, dict[str, Any]] = {
    "rbf": {"C": (0.3, 3.0, 30.0, 300.0), "gamma": (0.1, 0.3, 1.0, 3.0)},
    "linear": {"C": (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)},
    "forest": {"n_estimators": 200, "min_samples_leaf": (1, 3)},
    "neighbours": {"n_neighbors": (5, 10, 15, 20, 30)},
    "nets": {"cv": (5,), "Cs": (0.001, 0.01, 0.1, 1.0, 10.0, 100.0), "l1_ratios": (0.1, 0.5, 0.9)},
    "automatic": {"time_budget": None},
}
# At most six settings each, for the comparison on public sets; a pool has as many of its members in all.
LINEAR_C = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
PUBLIC_GRIDS: dict[str, dict[str, Any]] = {
    "linear": {"C": LINEAR_C},
    "rbf": {"C": (1.0, 10.0, 100.0), "gamma": (0.3, 1.0)},
    "svm": {"C": (1.0, 10.0, 100.0), "gamma": (0.3, 1.0)},
    "boosted": {"n_estimators": (200,), "learning_rate": (0.05,), "max_depth": (3, 6), "reg_lambda": (5.0, 20.0)},
    "pooled": {
        "rbf": {"C": (1.0, 10.0, 100.0), "gamma": (0.3,)},
        "boosted": {"n_estimators": (200,), "learning_rate": (0.05,), "max_depth": (6,), "reg_lambda": (5.0,)},
        "forest": {"n_estimators": (200,), "min_samples_leaf": (3,), "max_features": (0.3,)},
    },
    "automatic": {"time_budget": (60.0,), "quality": ("best",)},  # seconds, for all measures together
    "forest": {"n_estimators": (200,), "min_samples_leaf": (1, 3)},
    "extra": {"n_estimators": (200,), "min_samples_leaf": (1, 3), "max_features": (0.3,)},
    "neighbours": {"n_neighbors": (5, 10, 15, 20, 30, 50)},
    "iblr": {"n_neighbors": (5, 10, 20), "C": (0.1, 1.0)},
    "nets": {"cv": (3,), "Cs": (LINEAR_C,), "l1_ratios": ((0.5,),)},  # CCnet chooses for each label by itself
    "boomer": {"loss": ("logistic-decomposable", "logistic-non-decomposable"), "max_rules": (125, 250, 500)},
}
# Sets with one split have time for a longer search. They have hundreds of labels or many rows, and so half as many
# rounds of boosting.
FEWER_ROUNDS = {"n_estimators": (100,), "learning_rate": (0.1,), "reg_lambda": (5.0,)}
PUBLISHED_GRIDS = {
    **PUBLIC_GRIDS,
    "automatic": {"time_budget": (600.0,), "quality": ("best",)},
    "boosted": {**FEWER_ROUNDS, "max_depth": (3, 6)},
    "pooled": {**PUBLIC_GRIDS["pooled"], "boosted": {**FEWER_ROUNDS, "max_depth": (6,)}},
}
# Sets of more than 5,000 rows: support vector machines are linear, kernels of mlrh approximated, and a pool has a
# linear member in place of one with a kernel.
LARGE_GRIDS = {
    **PUBLISHED_GRIDS,
    "svm": {"C": LINEAR_C},
    "rbf": {**PUBLIC_GRIDS["rbf"], "kernel_approximation": "nystroem", "n_components": 1000},
    "pooled": {"linear": {"C": (0.1, 1.0, 10.0)}, **{k: v for k, v in PUBLISHED_GRIDS["pooled"].items() if k != "rbf"}},
}
PROFILES = {
    "quick": Profile("quick", (0,), 3, 10, QUICK_GRIDS),
    "full": Profile("full", (0, 1, 2, 3, 4), 5, 50, FULL_GRIDS),
}


# Five seeds for the sets that everybody compares on, two for other small ones. The larger sets have one split, the
# published one, and three inner folds.
SUITES = {
    "public": {
        **{name: Profile("public", (0, 1, 2, 3, 4), 5, 0, PUBLIC_GRIDS) for name in ("emotions", "scene", "yeast")},
        **{name: Profile("public", (0, 1), 5, 0, PUBLIC_GRIDS) for name in ("birds", "medical", "flags", "cal500")},
        "corel5k": Profile("public", (0,), 3, 0, PUBLISHED_GRIDS),
        **{name: Profile("public", (0,), 3, 0, LARGE_GRIDS) for name in ("bibtex", "tmc2007-500")},
    }
}
PUBLISHED_SPLITS = ("corel5k", "bibtex", "tmc2007-500")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set under a name.

    With `n_train_only`, folds train on rows before it and test on the others; with `one_split`, on all of them.
    """

    name: str
    data: MultilabelData
    n_train_only: int | None = None
    one_split: bool = False

    @property
    def n_folds(self):
        """Number of outer folds of a seed."""
        return 1 if self.one_split else N_FOLDS

    def split(self, n_folds, seed, fold):
        """Indices of the training and the test rows of an outer fold."""
        n_rows, first = self.data.X.shape[0], self.n_train_only
        if self.one_split and first is not None:
            return np.arange(first), np.arange(first, n_rows)
        if first is None:
            return _nth_fold(n_rows, n_folds, seed, fold)
        train, _ = _nth_fold(first, n_folds, seed, fold)
        _, test = _nth_fold(n_rows - first, n_folds, seed, fold)
        return train, first + test

    def digest(self) -> str:
        """A hash of the numbers, and of what else decides how they are used."""
        X, Y = self.data.X, self.data.Y
        content = hashlib.sha256()
        for part in (*((X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)), Y):
            content.update(f"{part.shape} {part.dtype}".encode())
            content.update(np.ascontiguousarray(part).tobytes())
        ways: dict[str, Any] = {"nominal": self.data.nominal, "counts": self.data.counts}
        ways |= {"n_train_only": self.n_train_only, "one_split": self.one_split}
        for name, value in ways.items():
            if value:
                content.update(f"{name} {value}".encode())
        return content.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """One family on one outer fold. `settings` (JSON, one for each method of the family) replace the search."""

    plan: str
    dataset: str
    protocol: str
    family: str
    seed: int
    fold: int
    settings: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods it makes a record of."""
        if self.protocol in (SEARCH, MULTICLASS, DESCENT, PUBLIC):
            return (self.family,)
        return FAMILIES[self.family].names

    @property
    def keys(self) -> list[tuple]:
        """The keys of its records."""
        return [(self.plan, self.dataset, self.protocol, method, self.seed, self.fold) for method in self.methods]


def nested_tasks(dataset, profile, families=tuple(FAMILIES)) -> list[Task]:
    """The families on all outer folds, every hyperparameter chosen by inner cross validation."""
    digest = dataset.digest()
    plans = {family: _plan(digest, NESTED, family, profile) for family in families}
    return [
        Task(plans[family], dataset.name, NESTED, family, seed, fold)
        for seed in profile.seeds
        for fold in range(N_FOLDS)
        for family in families
    ]


def public_tasks(dataset, profile, methods=tuple(JUDGED)) -> list[Task]:
    """The methods of the comparison on public sets, on all outer folds; of all methods seed by seed.

    Each method's first fold of a seed comes before the others, so that one that is out of time is known early.
    """
    digest = dataset.digest()
    plans = {m: _plan(digest, PUBLIC, m, [profile.inner_folds, profile.grids[JUDGED[m].grid]]) for m in methods}
    return [
        Task(plans[method], dataset.name, PUBLIC, method, seed, fold)
        for seed in profile.seeds
        for folds in (range(1), range(1, dataset.n_folds))
        for method in methods
        for fold in folds
    ]


def paper_search_tasks(dataset, profile) -> list[Task]:
    """BR-SVM at every setting of the grid on the outer folds themselves, as the paper tuned."""
    plan = _plan(dataset.digest(), SEARCH, "br-svm", profile)
    return [Task(plan, dataset.name, SEARCH, "br-svm", seed, fold) for seed in profile.seeds for fold in range(N_FOLDS)]


def paper_tasks(dataset, profile, records) -> list[Task]:
    """The paper's methods at the one setting at which BR-SVM does best on the folds of a seed, by mean exact match."""
    searches, digest, tasks = paper_search_tasks(dataset, profile), dataset.digest(), []
    by_key = {key_of(record): record for record in records}
    for seed in profile.seeds:
        keys = [key for task in searches if task.seed == seed for key in task.keys]
        if not all(key in by_key for key in keys):
            continue  # a search that failed
        gamma, C = best_index(np.array([by_key[key]["scores"] for key in keys]))
        grid = profile.grids["rbf"]
        both = {"C": grid["C"][C], "gamma": grid["gamma"][gamma]}
        for family in PAPER_FAMILIES:
            own = both if FAMILIES[family].grid == "rbf" else {"estimator__C": both["C"]}
            settings = json.dumps([own] * len(FAMILIES[family].names), sort_keys=True)
            plan = _plan(digest, PAPER, family, settings)
            tasks += [Task(plan, dataset.name, PAPER, family, seed, fold, settings) for fold in range(N_FOLDS)]
    return tasks


def multiclass_tasks(dataset, profile, programs=tuple(PROGRAMS)) -> list[Task]:
    """The programs for multiclass logistic regression on folds of many seeds."""
    digest = dataset.digest()
    return [
        Task(_plan(digest, MULTICLASS, program, MAX_ITER[program]), dataset.name, MULTICLASS, program, seed, fold)
        for program in programs
        for seed in range(profile.n_multiclass_seeds)
        for fold in range(N_MULTICLASS_FOLDS)
    ]


def descent_tasks(dataset) -> list[Task]:
    """Each solver on all rows, for the objective by iteration."""
    plan = _plan(dataset.digest(), DESCENT, "", MAX_DESCENT)
    return [Task(plan, dataset.name, DESCENT, solver, 0, 0) for solver in DESCENDING]


def _plan(digest, protocol, family, depends_on):
    """A hash of all but the code that a record's numbers depend on; records of other plans are left alone."""
    if isinstance(depends_on, Profile):
        depends_on = [depends_on.inner_folds, depends_on.grids[FAMILIES[family].grid]]
    return hashlib.sha256(json.dumps([digest, protocol, family, depends_on]).encode()).hexdigest()[:16]


def _nth_fold(n_rows, n_folds, seed, fold):
    return list(KFold(n_folds, shuffle=True, random_state=seed).split(np.empty(n_rows)))[fold]


# From a task to its records

N_BINS = 10  # of equal width, of the confidences on record


def run_task(task: Task, dataset: Dataset, profile: Profile) -> list[dict]:
    """The records of a task, one for each of its methods."""
    begin, used = time.perf_counter(), _seconds_of_all_processes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = _RESULTS.get(task.protocol, _method_results)(task, dataset, profile)
    warned = Counter(warning.category.__name__ for warning in caught)
    times = time.perf_counter() - begin, _seconds_of_all_processes() - used
    return _on_record(task, profile, results, times, warned)


def not_run(task: Task, profile: Profile, earlier: dict) -> list[dict]:
    """The record of a task that isn't run, because its method was out of time on an earlier split of the set."""
    out_of_time = {"out_of_time": earlier["out_of_time"], "not_run_after": [earlier["seed"], earlier["fold"]]}
    return _on_record(task, profile, [{"method": task.family, "metrics": {}, **out_of_time}], (0.0, 0.0), {})


def _seconds_of_all_processes():
    """Processor time so far, of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def _on_record(task, profile, results, times, warned):
    """Results with what all records of a task say."""
    seconds, processor_seconds = times
    shared = {
        "plan": task.plan,
        "dataset": task.dataset,
        "protocol": task.protocol,
        "seed": task.seed,
        "fold": task.fold,
        "profile": profile.name,
        "version": __version__,
        "task_seconds": round(seconds, 3),
        "processor_seconds": round(processor_seconds, 3),
        "warnings": dict(warned),
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
    if outcome.scores is not None:
        metrics |= ranking(Y, outcome.scores)
    return {
        "settings": outcome.settings,
        "metrics": {name: round(float(value), 9) for name, value in metrics.items()},
        "fit_seconds": round(outcome.fit_seconds, 4),
        "predict_seconds": round(outcome.predict_seconds, 4),
        "n_test": len(Y),
        "true_sizes": [int(count) for count in size_counts(Y, Y.shape[1])],
        "predicted_sizes": [int(count) for count in size_counts(outcome.predicted, Y.shape[1])],
        "confidence": None if outcome.log_confidence is None else _binned(np.exp(outcome.log_confidence), correct),
        "labels": _label_counts(Y, outcome.predicted),
    }


def _label_counts(Y, predicted):
    """For each label the number of rows that have it, that are answered with it, and both."""
    counts = (cells.sum(axis=0, dtype=np.int64).tolist() for cells in (Y, predicted, Y * predicted))
    return [list(counts) for counts in zip(*counts, strict=True)]


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
    metrics = measure_program(task.family, rows.X, y, rows.X_test, y_test)
    return [{"method": task.family, "metrics": metrics, "n_test": len(y_test)}]


def _descent_results(task, dataset, profile):
    """The objective after every iteration of one solver, for linear MLRH on all rows."""
    X = make_preprocessor(dataset.data).fit_transform(dataset.data.X)
    model = MLRHClassifier(solver=task.family, max_iter=MAX_DESCENT, n_jobs=1).fit(X, dataset.data.Y)
    return [{"method": task.family, "history": [float(f"{value:.10g}") for value in model.history_]}]


def _public_results(task, dataset, profile):
    """All measures of a method, or none where it is out of time."""
    judged = JUDGED[task.family]
    with _at_most(MAX_SECONDS):
        rows = _rows(task, dataset, profile, N_FOLDS)
        found = judged.results(rows, profile.grids[judged.grid])
        metrics = {name: round(float(value), 9) for name, value in found["metrics"].items()}
        others = {"settings": found["settings"], "fit_seconds": round(found["fit_seconds"], 4)}
        return [
            {"method": task.family, "n_train": len(rows.Y), "n_test": len(rows.Y_test), "metrics": metrics, **others}
        ]
    return [{"method": task.family, "metrics": {}, "out_of_time": MAX_SECONDS}]


@contextmanager
def _at_most(seconds):
    """The block, ended after so many seconds of processor time; on systems without such alarms it runs to its end."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    is_over = False

    def stop(*_):
        if not is_over:
            raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    # Again and again: where the first one is raised, compiled code may swallow it (a forest took twice its time).
    signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN)
    try:
        yield
    except TimeoutError:
        pass
    finally:
        is_over = True  # first of all: a stop must not keep the next lines from being run
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


_RESULTS = {
    SEARCH: _search_results,
    MULTICLASS: _multiclass_results,
    DESCENT: _descent_results,
    PUBLIC: _public_results,
}


def _rows(task, dataset, profile, n_folds):
    """The rows of an outer fold, with the preprocessing fitted to its training part."""
    data = dataset.data
    train, test = dataset.split(n_folds, task.seed, task.fold)
    preprocessor = make_preprocessor(data.rows(train))
    X = preprocessor.fit_transform(data.X[train])
    inner = list(KFold(profile.inner_folds, shuffle=True, random_state=task.seed).split(train))
    return Rows(X, data.Y[train], preprocessor.transform(data.X[test]), data.Y[test], inner, task.seed)
