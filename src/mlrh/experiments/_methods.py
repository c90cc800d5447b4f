"""The methods that are compared, each with its grid: from training rows to predictions for test rows.

Every hyperparameter is chosen by inner cross validation on the training rows, by exact match. A family is one search
that serves several methods: winner-take-all and marginals are two decisions of the same fits. At the end the three
programs for multiclass logistic regression of the paper's Table 5.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import SVC

from mlrh import decisions
from mlrh.automatic import DecisionScorer
from mlrh.baselines import (
    IBLR,
    CCnet,
    CorrLog,
    LabelPowerset,
    MLkNN,
    OrConstant,
    ProbabilisticChain,
    chain_set_log_proba,
    independent_set_log_proba,
)
from mlrh.estimators import KernelMLRHClassifier, MLRHAuto, MLRHClassifier
from mlrh.estimators.cv import SEARCH_TOL, best_index, validation_scores
from mlrh.estimators.kernel import gamma_scale
from mlrh.spaces.base import MAX_ENUMERATED

CHAINED = next(iter(signature(ClassifierChain).parameters))  # "estimator" from scikit-learn 1.7 on


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
    scores: np.ndarray | None = None  # of the labels (n_samples, n_labels), higher for a more likely one


@dataclass(frozen=True)
class Family:
    """Methods that share one search.

    names : the methods, in the order of the outcomes
    grid : its part of the grids of a Profile
    outcomes : (rows, grid, settings or None) -> {name: Outcome}; given settings replace the search
    """

    names: tuple[str, ...]
    grid: str
    outcomes: Callable[..., Mapping[str, Outcome]]
    cost: float  # how long it takes, roughly; long ones start first


def _mlrh(grid_name, estimator, by_name, cost=1.0):
    """Family of an MLRH classifier under several decisions {method name: decision}."""

    def outcomes(rows, grid, settings=None):
        scorers = [DecisionScorer(decision, "exact_match") for decision in by_name.values()]
        chosen = settings or chosen_by_path(estimator, rows, grid, scorers)
        fitted: dict[tuple, tuple] = {}
        result = {}
        for (name, decision), setting in zip(by_name.items(), chosen, strict=True):
            key = tuple(sorted(setting.items()))
            if key not in fitted:
                fitted[key] = timed(clone(estimator).set_params(**absolute(setting, rows)).fit, rows.X, rows.Y)
            model, fit_seconds = fitted[key]
            (distribution, predicted), predict_seconds = timed(_decided, model, rows.X_test, decision)
            log_prob, log_confidence = distribution.log_prob(rows.Y_test), distribution.log_prob(predicted)
            scores = distribution.marginals()
            result[name] = Outcome(predicted, log_prob, log_confidence, setting, fit_seconds, predict_seconds, scores)
        return result

    return Family(tuple(by_name), grid_name, outcomes, cost)


def _automatic(name, cost):
    """Family of MLRHAuto, which chooses for itself by the inner folds."""

    def outcomes(rows, grid, settings=None):
        auto = MLRHAuto(cv=rows.inner, random_state=rows.seed, n_jobs=1, **grid)
        model, fit_seconds = timed(auto.fit, rows.X, rows.Y)
        (distribution, predicted), predict_seconds = timed(_decided, model, rows.X_test, "exact_match")
        log_prob, log_confidence = distribution.log_prob(rows.Y_test), distribution.log_prob(predicted)
        chosen, scores = {"model": model.leaderboard_[0]["model"]}, distribution.marginals()
        return {name: Outcome(predicted, log_prob, log_confidence, chosen, fit_seconds, predict_seconds, scores)}

    return Family((name,), "automatic", outcomes, cost)


def _decided(model, X, decision):
    distribution = model.distribution(X)
    return distribution, decisions.BY_NAME[decision](distribution)


def chosen_by_path(estimator, rows, grid, scorers):
    """The best setting for each scorer: {"C": ..., "gamma": in units}."""
    gammas = grid.get("gamma")
    scores = validation_scores(
        clone(estimator).set_params(tol=SEARCH_TOL),
        rows.X,
        rows.Y,
        Cs=grid["C"],
        settings=[{"gamma": gamma * rows.gamma_unit} for gamma in gammas] if gammas else ({},),
        splits=rows.inner,
        scorers=scorers,
    )
    chosen = []
    for of_scorer in scores:
        gamma, C = best_index(of_scorer)
        chosen.append({"C": grid["C"][C]} | ({"gamma": gammas[gamma]} if gammas else {}))
    return chosen


def absolute(setting, rows):
    """The setting with gamma as the estimators take it."""
    return setting | ({"gamma": setting["gamma"] * rows.gamma_unit} if "gamma" in setting else {})


def _svm(name, wrap, cost):
    """Family of support vector machines behind a wrapper such as OneVsRestClassifier."""

    def outcomes(rows, grid, settings=None):
        if settings:
            setting = settings[0]
        else:
            scores = [svm_scores(wrap, rows.X, rows.Y, split, grid, rows.gamma_unit) for split in rows.inner]
            gamma, C = best_index(np.array(scores))
            setting = {"C": grid["C"][C], "gamma": grid["gamma"][gamma]}
        model, fit_seconds = timed(wrap(SVC(**absolute(setting, rows))).fit, rows.X, rows.Y)
        predicted, predict_seconds = timed(model.predict, rows.X_test)
        values = model.decision_function(rows.X_test) if hasattr(model, "decision_function") else None
        return {name: Outcome(np.asarray(predicted), None, None, setting, fit_seconds, predict_seconds, values)}

    return Family((name,), "rbf", outcomes, cost)


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


def _searched(name, grid_name, estimator, parameter, log_prob_of, *, seeded=(), most_labels=None, cost=1.0):
    """Family of an estimator one of whose parameters GridSearchCV chooses; `seeded` ones are set to the rows' seed.

    What else the grid has is a fixed parameter beside the chosen one. Probabilities of labels are asked for where there
    are at most most_labels.
    """
    prefix, _, own = parameter.rpartition("__")
    prefix = f"{prefix}__" if prefix else ""

    def outcomes(rows, grid, settings=None):
        fixed = {prefix + other: value for other, value in grid.items() if other != own}
        model = clone(estimator).set_params(**fixed, **dict.fromkeys(seeded, rows.seed))
        setting = settings[0] if settings else {parameter: grid[own][0]}
        if not settings and len(grid[own]) > 1:
            search = GridSearchCV(model, {parameter: grid[own]}, cv=rows.inner, scoring="accuracy", refit=False)
            setting = search.fit(rows.X, rows.Y).best_params_
        model, fit_seconds = timed(clone(model).set_params(**setting).fit, rows.X, rows.Y)
        predicted, predict_seconds = timed(model.predict, rows.X_test)
        predicted = np.asarray(predicted).astype(np.int8)
        log_prob, log_confidence = (log_prob_of(model, rows.X_test, Y) for Y in (rows.Y_test, predicted))
        plain = {name.rpartition("__")[2]: value for name, value in setting.items()}
        is_asked = most_labels is None or rows.Y.shape[1] <= most_labels
        scores = np.asarray(model.predict_proba(rows.X_test)) if is_asked else None
        return {name: Outcome(predicted, log_prob, log_confidence, plain, fit_seconds, predict_seconds, scores)}

    return Family((name,), grid_name, outcomes, cost)


def of_independent_labels(model, X, Y):
    return independent_set_log_proba(model.predict_proba(X), Y)


def of_pairs(model, X, Y):
    """None where CorrLog has too many labels to sum over all sets."""
    return None if model.label_space_ is None else model.set_log_proba(X, Y)


def timed(function, *arguments):
    begin = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - begin


LOGISTIC = LogisticRegression(max_iter=2000)
# The most probable set of a chain is found where its probability is at least that. Exact search would never end on data
# sets of a hundred labels, where every set is improbable; with this, it takes at most 100 steps per label and row.
EPSILON = 0.01
FAMILIES = {
    "mlrh-rbf": _mlrh(
        "rbf", KernelMLRHClassifier(n_jobs=1), {"MLRH-WTA (RBF)": "exact_match", "MLRH-MP (RBF)": "hamming"}, cost=4
    ),
    "mlrh-rbf-observed": _mlrh(
        "rbf",
        KernelMLRHClassifier(label_space="observed", n_jobs=1),
        {"MLRH-WTA (RBF, observed)": "exact_match", "MLRH-MP (RBF, observed)": "hamming"},
        cost=5,
    ),
    "mlrh-rbf-open": _mlrh(
        "rbf",
        KernelMLRHClassifier(label_space="open", n_jobs=1),
        {"MLRH-WTA (RBF, open)": "exact_match", "MLRH-MP (RBF, open)": "hamming"},
        cost=8,
    ),
    "mlrh-linear": _mlrh("linear", MLRHClassifier(n_jobs=1), {"MLRH-WTA (linear)": "exact_match"}),
    "mlrh-linear-observed": _mlrh(
        "linear", MLRHClassifier(label_space="observed", n_jobs=1), {"MLRH-WTA (linear, observed)": "exact_match"}
    ),
    "mlrh-linear-open": _mlrh(
        "linear", MLRHClassifier(label_space="open", n_jobs=1), {"MLRH-WTA (linear, open)": "exact_match"}, cost=2
    ),
    "mlrh-auto": _automatic("MLRH (automatic)", cost=20),
    "br-svm": _svm("BR-SVM (RBF)", OneVsRestClassifier, cost=3),
    "lp-svm": _svm("LP-SVM (RBF)", LabelPowerset, cost=2),
    "lp-lr": _searched("LP-LR", "linear", LabelPowerset(LOGISTIC), "estimator__C", LabelPowerset.set_log_proba, cost=3),
    "br-lr": _searched("BR-LR", "linear", OneVsRestClassifier(LOGISTIC), "estimator__C", of_independent_labels),
    "cc-lr": _searched(
        "CC-LR", "linear", ClassifierChain(OrConstant(LOGISTIC)), f"{CHAINED}__estimator__C", chain_set_log_proba
    ),
    "lp-rf": _searched(
        "LP-RF",
        "forest",
        LabelPowerset(RandomForestClassifier()),
        "estimator__min_samples_leaf",
        LabelPowerset.set_log_proba,
        seeded=["estimator__random_state"],
        cost=2,
    ),
    "ml-knn": _searched("ML-kNN", "neighbours", MLkNN(), "n_neighbors", of_independent_labels, cost=0.5),
    "iblr": _searched("IBLR-ML", "neighbours", IBLR(), "n_neighbors", of_independent_labels, cost=0.5),
    "iblr-plus": _searched("IBLR-ML+", "neighbours", IBLR(with_features=True), "n_neighbors", of_independent_labels),
    "corrlog": _searched("CorrLog", "linear", CorrLog(), "C", of_pairs, most_labels=MAX_ENUMERATED, cost=2),
    # It chooses its penalties itself, label by label, so that there is only one value of cv.
    "ccnet": _searched(
        "CCnet", "nets", CCnet(epsilon=EPSILON), "cv", CCnet.set_log_proba, most_labels=MAX_ENUMERATED, cost=4
    ),
    "pcc-lr": _searched(
        "PCC-LR",
        "linear",
        ProbabilisticChain(LOGISTIC, epsilon=EPSILON),
        "estimator__C",
        ProbabilisticChain.set_log_proba,
        most_labels=MAX_ENUMERATED,
        cost=2,
    ),
}
_SET = "one exact model of the label set (this package)"
OPEN_SETS = "all sets of the sizes of training, with a bias for those it shows"
_PER_LABEL = "one classifier per label (binary relevance)"
_PER_SET = "each label set of training as a class of its own (label powerset)"
_CHAIN = "labels one after another, each with those before it as features (a chain)"
MEANINGS = {  # of the names of methods
    "MLRH-WTA (RBF)": f"{_SET}, RBF kernel, all sets of the sizes of training; answers with the most probable set",
    "MLRH-MP (RBF)": f"{_SET}, RBF kernel, the same sets; answers with the labels more likely than not",
    "MLRH-WTA (RBF, observed)": f"{_SET}, RBF kernel, the sets that training shows; the most probable set",
    "MLRH-MP (RBF, observed)": f"{_SET}, RBF kernel, the sets that training shows; the labels more likely than not",
    "MLRH-WTA (RBF, open)": f"{_SET}, RBF kernel, {OPEN_SETS}; the most probable set",
    "MLRH-MP (RBF, open)": f"{_SET}, RBF kernel, {OPEN_SETS}; the labels more likely than not",
    "MLRH-WTA (linear)": f"{_SET}, linear scores, all sets of the sizes of training; the most probable set",
    "MLRH-WTA (linear, observed)": f"{_SET}, linear scores, the sets that training shows; the most probable set",
    "MLRH-WTA (linear, open)": f"{_SET}, linear scores, {OPEN_SETS}; the most probable set",
    "MLRH (automatic)": f"{_SET}, MLRHAuto: kind of scores, label space, settings and a pool, chosen by held-out rows",
    "BR-SVM (RBF)": f"{_PER_LABEL}: support vector machines with an RBF kernel",
    "LP-SVM (RBF)": f"{_PER_SET}: support vector machines with an RBF kernel",
    "LP-LR": f"{_PER_SET}: logistic regression",
    "BR-LR": f"{_PER_LABEL}: logistic regressions",
    "CC-LR": f"{_CHAIN}: logistic regressions, decided one by one",
    "LP-RF": f"{_PER_SET}: random forest",
    "ML-kNN": "the labels of the nearest rows, weighed by Bayes' rule for each label",
    "IBLR-ML": "logistic regressions on the labels of the nearest rows",
    "IBLR-ML+": "logistic regressions on the labels of the nearest rows and on the features",
    "CorrLog": "logistic regression with a weight for every pair of labels, fitted by its pseudolikelihood",
    "CCnet": f"{_CHAIN}: elastic nets, the most probable set",
    "PCC-LR": f"{_CHAIN}: logistic regressions, the most probable set",
}


# Table 5: unpenalised multiclass logistic regression by three programs. The training folds of Iris and Wine are nearly
# separable, so the likelihood often has no maximum, and what a program returns depends on where it stops: by its cap on
# the iterations or by its own tolerance. Both are part of the result.

MAX_ITER = {"mm": 100, "scikit-learn": 100, "statsmodels": 100}
PROGRAM_NAMES = {"mm": "MM algorithm", "scikit-learn": "Scikit-learn", "statsmodels": "Statsmodels"}


def _by_mm(X, y, max_iter):
    """The paper's algorithm with its own step, twice the safe one."""
    model = MLRHClassifier(C=np.inf, solver="mm", mm_step="paper", max_iter=max_iter, n_jobs=1).fit(X, y)
    return model.coef_.T, model.intercept_, model.n_iter_


def _by_scikit_learn(X, y, max_iter):
    model = LogisticRegression(C=np.inf, max_iter=max_iter).fit(X, y)
    return model.coef_.T, model.intercept_, int(model.n_iter_.max())


def _by_statsmodels(X, y, max_iter):
    """MNLogit by BFGS: its default, Newton's method, meets a singular matrix on separable rows."""
    from statsmodels.discrete.discrete_model import MNLogit  # an optional extra

    steps: list = []
    model = MNLogit(y, np.column_stack([np.ones(len(X)), X]))
    fitted = model.fit(method="bfgs", maxiter=max_iter, disp=False, callback=steps.append)
    parameters = np.column_stack([np.zeros(1 + X.shape[1]), np.asarray(fitted.params)])
    return parameters[1:], parameters[0], len(steps)


PROGRAMS = {"mm": _by_mm, "scikit-learn": _by_scikit_learn, "statsmodels": _by_statsmodels}


def available_programs() -> list[str]:
    """The programs that are installed."""
    return [program for program in PROGRAMS if program != "statsmodels" or find_spec("statsmodels")]


def measure_program(program, X, y, X_test, y_test) -> dict[str, float]:
    """Accuracy on the test rows, log-loss of the training rows and iterations of a program on classes 0, 1, ...."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that there may be no convergence is known beforehand
        coef, intercept, n_iter = PROGRAMS[program](X, y, MAX_ITER[program])
    log_prob = log_softmax(X @ coef + intercept, axis=1)[np.arange(len(y)), y]
    predicted = (X_test @ coef + intercept).argmax(axis=1)
    return {
        "accuracy": float((predicted == y_test).mean()),
        "train_log_loss": -float(log_prob.mean()),
        "n_iter": n_iter,
    }
