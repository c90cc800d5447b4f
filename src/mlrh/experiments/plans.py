"""What is to be run: data sets, profiles and tasks. A task is one family of methods on one outer fold."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.model_selection import KFold

from mlrh.data import MultilabelData
from mlrh.estimators.cv import best_index
from mlrh.experiments.methods import FAMILIES, GRIDS
from mlrh.experiments.multiclass import MAX_ITER, PROGRAMS
from mlrh.experiments.records import key_of

N_FOLDS, N_MULTICLASS_FOLDS = 5, 4
NESTED, SEARCH, PAPER, MULTICLASS, DESCENT = "nested", "paper search", "paper", "multiclass", "descent"
MAX_DESCENT = 500  # iterations
DESCENDING = ("mm", "lbfgs", "newton-cg")  # the solvers whose descent is shown
PAPER_FAMILIES = ("mlrh-rbf", "br-svm", "lp-lr")


@dataclass(frozen=True)
class Profile:
    """How thorough a run is: the grids (by name), the seeds of the outer folds, and the number of inner folds."""

    name: str
    seeds: tuple[int, ...]
    inner_folds: int
    n_multiclass_seeds: int

    @property
    def grids(self) -> dict:
        return GRIDS[self.name]


PROFILES = {"quick": Profile("quick", (0,), 3, 10), "full": Profile("full", (0, 1, 2, 3, 4), 5, 50)}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set under a name. With `n_train_only`, folds train on rows before it and test on the others."""

    name: str
    data: MultilabelData
    n_train_only: int | None = None

    def split(self, n_folds, seed, fold):
        """Indices of the training and the test rows of an outer fold."""
        n_rows, first = self.data.X.shape[0], self.n_train_only
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
        for name, value in (("nominal", self.data.nominal), ("n_train_only", self.n_train_only)):
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
        if self.protocol in (SEARCH, MULTICLASS, DESCENT):
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
