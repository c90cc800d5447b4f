"""The methods that are compared, each with its grid: from training rows to predictions for test rows.

Every hyperparameter is chosen by inner cross validation on the training rows, by exact match. A family is one search
that serves several methods: winner-take-all and marginals are two decisions of the same fits.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, ParameterGrid
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import SVC

from mlrh import decisions
from mlrh.baselines import LabelPowerset, MLkNN, OrConstant, chain_set_log_proba, independent_set_log_proba
from mlrh.estimators import KernelMLRHClassifier, MLRHClassifier
from mlrh.estimators.cv import best_index, validation_scores
from mlrh.estimators.kernel import gamma_scale

# Fixed before the first run. gamma is in units of 1 / (n_features * variance of the scaled training features).
GRIDS: dict[str, dict[str, Any]] = {
    "quick": {
        "rbf": {"C": (1.0, 10.0, 100.0), "gamma": (0.3, 1.0)},
        "linear": {"C": (0.01, 0.1, 1.0, 10.0)},
        "forest": {"n_estimators": 200, "min_samples_leaf": (1, 3)},
        "neighbours": {"n_neighbors": (5, 10, 20)},
    },
    "full": {
        "rbf": {"C": (0.3, 3.0, 30.0, 300.0), "gamma": (0.1, 0.3, 1.0, 3.0)},
        "linear": {"C": (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)},
        "forest": {"n_estimators": 200, "min_samples_leaf": (1, 3)},
        "neighbours": {"n_neighbors": (5, 10, 15, 20, 30)},
    },
}
CHAINED = next(iter(signature(ClassifierChain).parameters))  # "estimator" from scikit-learn 1.7 on
SEARCH_TOL = 1e-5  # of the fits that only serve to choose; the final fit has the default


@dataclass(frozen=True)
class Rows:
    """Scaled training and test rows of one outer fold, and the inner splits of the training rows."""

    X: Any
    Y: np.ndarray
    X_test: Any
    Y_test: np.ndarray
    inner: list
    seed: int

    @property
    def gamma_unit(self) -> float:
        """What gamma="scale" means for the training rows."""
        return gamma_scale(self.X)


@dataclass(frozen=True)
class Outcome:
    """What one method answers for the test rows; log probabilities are None where it has none."""

    predicted: np.ndarray
    log_prob: np.ndarray | None  # of the true sets
    log_confidence: np.ndarray | None  # of the predicted sets
    settings: dict
    fit_seconds: float
    predict_seconds: float


@dataclass(frozen=True)
class Family:
    """Methods that share one search.

    names : the methods, in the order of the outcomes
    grid : its part of GRIDS
    outcomes : (rows, grid, settings or None) -> {name: Outcome}; given settings replace the search
    """

    names: tuple[str, ...]
    grid: str
    outcomes: Callable[..., Mapping[str, Outcome]]
    cost: float = field(default=1.0)  # how long it takes, roughly; long ones start first


def _mlrh(estimator, by_name):
    """Outcomes of an MLRH classifier under several decisions {method name: decision}."""

    def outcomes(rows, grid, settings=None):
        chosen = settings or _chosen_by_path(estimator, rows, grid, list(by_name.values()))
        fitted: dict[tuple, tuple] = {}
        result = {}
        for (name, decision), setting in zip(by_name.items(), chosen, strict=True):
            key = tuple(sorted(setting.items()))
            if key not in fitted:
                fitted[key] = _timed(clone(estimator).set_params(**_absolute(setting, rows)).fit, rows.X, rows.Y)
            model, fit_seconds = fitted[key]
            (distribution, predicted), predict_seconds = _timed(_decided, model, rows.X_test, decision)
            log_prob, log_confidence = distribution.log_prob(rows.Y_test), distribution.log_prob(predicted)
            result[name] = Outcome(predicted, log_prob, log_confidence, setting, fit_seconds, predict_seconds)
        return result

    return outcomes


def _decided(model, X, decision):
    distribution = model.distribution(X)
    return distribution, decisions.BY_NAME[decision](distribution)


def _chosen_by_path(estimator, rows, grid, names):
    """The best setting for each decision: {"C": ..., "gamma": in units}."""
    gammas = grid.get("gamma")
    scores = validation_scores(
        clone(estimator).set_params(tol=SEARCH_TOL),
        rows.X,
        rows.Y,
        Cs=grid["C"],
        settings=[{"gamma": gamma * rows.gamma_unit} for gamma in gammas] if gammas else ({},),
        splits=rows.inner,
        scorers=[_ExactMatch(name) for name in names],
    )
    chosen = []
    for of_decision in scores:
        gamma, C = best_index(of_decision)
        chosen.append({"C": grid["C"][C]} | ({"gamma": gammas[gamma]} if gammas else {}))
    return chosen


@dataclass(frozen=True)
class _ExactMatch:
    """Scorer: share of rows whose set is right under a decision."""

    decision: str

    def __call__(self, model, X, Y):
        return float((_decided(model, X, self.decision)[1] == Y).all(axis=1).mean())


def _absolute(setting, rows):
    """The setting with gamma as the estimators take it."""
    return setting | ({"gamma": setting["gamma"] * rows.gamma_unit} if "gamma" in setting else {})


def _svm(name, wrap):
    """Outcomes of support vector machines behind a wrapper such as OneVsRestClassifier."""

    def outcomes(rows, grid, settings=None):
        setting = settings[0] if settings else _chosen_svm(wrap, rows, grid)
        model, fit_seconds = _timed(wrap(SVC(**_absolute(setting, rows))).fit, rows.X, rows.Y)
        predicted, predict_seconds = _timed(model.predict, rows.X_test)
        return {name: Outcome(np.asarray(predicted), None, None, setting, fit_seconds, predict_seconds)}

    return outcomes


def _chosen_svm(wrap, rows, grid):
    scores = np.array([svm_scores(wrap, rows.X, rows.Y, split, grid, rows.gamma_unit) for split in rows.inner])
    gamma, C = best_index(scores)
    return {"C": grid["C"][C], "gamma": grid["gamma"][gamma]}


def svm_scores(wrap, X, Y, split, grid, unit) -> np.ndarray:
    """Exact match on the held-out rows of a split, (n_gammas, n_Cs); one kernel matrix serves all C."""
    train, held_out = split
    scores = np.empty((len(grid["gamma"]), len(grid["C"])))
    for i, gamma in enumerate(grid["gamma"]):
        gram = rbf_kernel(X[train], gamma=gamma * unit)
        cross = rbf_kernel(X[held_out], X[train], gamma=gamma * unit)
        for j, C in enumerate(grid["C"]):
            model = wrap(SVC(kernel="precomputed", C=C)).fit(gram, Y[train])
            scores[i, j] = (model.predict(cross) == Y[held_out]).all(axis=1).mean()
    return scores


def _searched(name, make, grid_of, log_prob_of):
    """Outcomes of an estimator whose parameters GridSearchCV chooses."""

    def outcomes(rows, grid, settings=None):
        estimator, candidates = make(grid, rows.seed), grid_of(grid)
        if settings:
            setting = settings[0]
        elif len(ParameterGrid(candidates)) == 1:
            setting = ParameterGrid(candidates)[0]
        else:
            search = GridSearchCV(estimator, candidates, cv=rows.inner, scoring="accuracy", refit=False)
            setting = search.fit(rows.X, rows.Y).best_params_
        model, fit_seconds = _timed(clone(estimator).set_params(**setting).fit, rows.X, rows.Y)
        predicted, predict_seconds = _timed(model.predict, rows.X_test)
        predicted = np.asarray(predicted).astype(np.int8)
        log_prob, log_confidence = (
            log_prob_of(model, rows.X_test, rows.Y_test),
            log_prob_of(model, rows.X_test, predicted),
        )
        plain = {parameter.rsplit("__", 1)[-1]: value for parameter, value in setting.items()}
        return {name: Outcome(predicted, log_prob, log_confidence, plain, fit_seconds, predict_seconds)}

    return outcomes


def _of_independent_labels(model, X, Y):
    return independent_set_log_proba(model.predict_proba(X), Y)


def _of_powerset(model, X, Y):
    return model.set_log_proba(X, Y)


def _logistic():
    return LogisticRegression(max_iter=2000)


def _timed(function, *arguments):
    begin = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - begin


FAMILIES = {
    "mlrh-rbf": Family(
        ("MLRH-WTA (RBF)", "MLRH-MP (RBF)"),
        "rbf",
        _mlrh(KernelMLRHClassifier(n_jobs=1), {"MLRH-WTA (RBF)": "exact_match", "MLRH-MP (RBF)": "hamming"}),
        cost=4,
    ),
    "mlrh-rbf-observed": Family(
        ("MLRH-WTA (RBF, observed)", "MLRH-MP (RBF, observed)"),
        "rbf",
        _mlrh(
            KernelMLRHClassifier(label_space="observed", n_jobs=1),
            {"MLRH-WTA (RBF, observed)": "exact_match", "MLRH-MP (RBF, observed)": "hamming"},
        ),
        cost=5,
    ),
    "mlrh-linear": Family(
        ("MLRH-WTA (linear)",),
        "linear",
        _mlrh(MLRHClassifier(n_jobs=1), {"MLRH-WTA (linear)": "exact_match"}),
    ),
    "mlrh-linear-observed": Family(
        ("MLRH-WTA (linear, observed)",),
        "linear",
        _mlrh(MLRHClassifier(label_space="observed", n_jobs=1), {"MLRH-WTA (linear, observed)": "exact_match"}),
    ),
    "br-svm": Family(("BR-SVM (RBF)",), "rbf", _svm("BR-SVM (RBF)", OneVsRestClassifier), cost=3),
    "lp-svm": Family(("LP-SVM (RBF)",), "rbf", _svm("LP-SVM (RBF)", LabelPowerset), cost=2),
    "lp-lr": Family(
        ("LP-LR",),
        "linear",
        _searched(
            "LP-LR",
            lambda grid, seed: LabelPowerset(_logistic()),
            lambda grid: {"estimator__C": grid["C"]},
            _of_powerset,
        ),
        cost=3,
    ),
    "br-lr": Family(
        ("BR-LR",),
        "linear",
        _searched(
            "BR-LR",
            lambda grid, seed: OneVsRestClassifier(_logistic()),
            lambda grid: {"estimator__C": grid["C"]},
            _of_independent_labels,
        ),
    ),
    "cc-lr": Family(
        ("CC-LR",),
        "linear",
        _searched(
            "CC-LR",
            lambda grid, seed: ClassifierChain(OrConstant(_logistic())),
            lambda grid: {f"{CHAINED}__estimator__C": grid["C"]},
            chain_set_log_proba,
        ),
    ),
    "lp-rf": Family(
        ("LP-RF",),
        "forest",
        _searched(
            "LP-RF",
            lambda grid, seed: LabelPowerset(RandomForestClassifier(grid["n_estimators"], random_state=seed)),
            lambda grid: {"estimator__min_samples_leaf": grid["min_samples_leaf"]},
            _of_powerset,
        ),
        cost=2,
    ),
    "ml-knn": Family(
        ("ML-kNN",),
        "neighbours",
        _searched(
            "ML-kNN",
            lambda grid, seed: MLkNN(),
            lambda grid: {"n_neighbors": grid["n_neighbors"]},
            _of_independent_labels,
        ),
        cost=0.5,
    ),
}
