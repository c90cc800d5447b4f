"""The methods of the comparison on public sets: each has a setting of its own for every measure it is judged by.

Settings are chosen by the mean of the measure over the inner folds; ties go to the first one of the grid. Methods of
mlrh answer each measure with the decision that fits it, the others with their own predict. Log-loss of the set is for
methods that give probabilities; where these are of single labels, they are multiplied.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import ParameterGrid
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import SVC, LinearSVC

import mlrh
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
from mlrh.estimators import KernelMLRHClassifier, MLRHClassifier
from mlrh.estimators.cv import log_prob
from mlrh.estimators.pool import largest_likelihood
from mlrh.experiments import _boomer
from mlrh.experiments._methods import (
    EPSILON,
    LOGISTIC,
    absolute,
    chosen_by_path,
    of_independent_labels,
    of_pairs,
    timed,
)
from mlrh.metrics import evaluate, set_log_loss
from mlrh.spaces import Mixture, listed_sets
from mlrh.spaces.observed import distinct_sets

# Of processor time, so that other work on the machine changes nothing, for a method on one split; what takes longer is
# out of time.
MAX_SECONDS = 900
MAX_FOREST_SETS = 1000  # of a forest in a pool, whose trees hold a number for each set in every node
MAX_TREE_BYTES = 2**29  # of the trees that are held at a time

MEASURES = {  # the decision and the scorer that fit each measure
    "exact_match": ("exact_match", DecisionScorer("exact_match", "exact_match")),
    "hamming_loss": ("hamming", DecisionScorer("hamming", "hamming")),
    "f1_example": ("f1", DecisionScorer("f1", "f1")),
    "set_log_loss": ("exact_match", log_prob),
}
HIGHER_IS_BETTER = {"exact_match": True, "hamming_loss": False, "f1_example": True, "set_log_loss": False}


@dataclass(frozen=True)
class Judged:
    """A method of the comparison on public sets.

    grid : its part of the grids of a profile
    results : (rows, grid) -> the part of a record with "metrics", "settings" by measure, and the seconds of a fit
    missing : () -> why it can't be run here, a sentence; empty where it can
    """

    grid: str
    results: Callable[..., dict]
    missing: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Measured:
    """The measures of a fit on the test rows, and the seconds it took."""

    metrics: dict[str, float]
    seconds: float


def tuned(measure, rows, grid):
    """Results of a method, each measure at the setting with the best mean over the inner folds.

    measure(settings, rows) gives one Measured per setting. The values of the grid are tuples of candidates.
    """
    settings = list(ParameterGrid(grid))
    folds = [measure(settings, part) for part in _inner(rows)] if len(settings) > 1 else []
    names = [name for name in MEASURES if not folds or name in folds[0][0].metrics]
    chosen = {name: _best(folds, name) if folds else 0 for name in names}
    needed = sorted(set(chosen.values()))
    found = dict(zip(needed, measure([settings[place] for place in needed], rows), strict=True))
    by_measure = {name: (found[place], settings[place]) for name, place in chosen.items()}
    return _results({name: both for name, both in by_measure.items() if name in both[0].metrics})


def _inner(rows):
    """The inner folds, as rows to train and to test with."""
    for train, held_out in rows.inner:
        parts = {"X": rows.X[train], "Y": rows.Y[train], "X_test": rows.X[held_out], "Y_test": rows.Y[held_out]}
        yield replace(rows, **parts, inner=[])


def _best(folds, name):
    """The place of the setting with the best mean of a measure over the folds."""
    sign = 1 if HIGHER_IS_BETTER[name] else -1
    scores = [[sign * found.metrics[name] for found in fold] for fold in folds]
    return int(np.argmax(np.round(np.mean(scores, axis=0), 12)))  # rounded, so that rounding errors decide no tie


def _results(by_measure):
    """The part of a record, from {measure: (Measured, setting)}."""
    metrics = {name: found.metrics[name] for name, (found, _) in by_measure.items()}
    last, _ = list(by_measure.values())[-1]
    if "impossible_share" in last.metrics:
        metrics["impossible_share"] = last.metrics["impossible_share"]
    settings = {name: setting for name, (_, setting) in by_measure.items()}
    return {"metrics": metrics, "settings": settings, "fit_seconds": by_measure["exact_match"][0].seconds}


def _one_by_one(measure_one):
    """The same for a list of settings."""
    return lambda settings, rows: [measure_one(setting, rows) for setting in settings]


# Methods of mlrh: a distribution, and the decision that fits the measure


def judged(distribution, Y) -> dict[str, float]:
    """The measures of a distribution against the true sets, each with the decision that fits it."""
    log_probs, answers = distribution.log_prob(Y), {}
    for decision, _ in MEASURES.values():
        if decision not in answers:
            answers[decision] = evaluate(Y, decisions.BY_NAME[decision](distribution), log_probs)
    metrics = {name: answers[decision][name] for name, (decision, _) in MEASURES.items()}
    return {**metrics, "impossible_share": answers["exact_match"]["impossible_share"]}


def _fitted_and_judged(model, rows):
    model, seconds = timed(model.fit, rows.X, rows.Y)
    return Measured(judged(model.distribution(rows.X_test), rows.Y_test), seconds)


def _by_path(estimator, rows, grid):
    """Results of a linear or kernel MLRH classifier: one path of C per fold serves all measures.

    What the grid has beside C and gamma are parameters that are not chosen.
    """
    fixed = {name: value for name, value in grid.items() if name not in ("C", "gamma")}
    estimator = clone(estimator).set_params(**fixed)
    chosen = chosen_by_path(estimator, rows, grid, [scorer for _, scorer in MEASURES.values()])
    found = {}
    for setting in chosen:
        if tuple(setting.values()) not in found:
            model = clone(estimator).set_params(**absolute(setting, rows))
            found[tuple(setting.values())] = _fitted_and_judged(model, rows)
    return _results({name: (found[tuple(s.values())], s) for name, s in zip(MEASURES, chosen, strict=True)})


def _of_spaces(grid, estimator):
    """A method per label space, by name."""
    words = {"linear": "linear", "rbf": "RBF"}[grid]
    return {
        f"MLRH ({words}, {space})": Judged(grid, partial(_by_path, clone(estimator).set_params(label_space=space)))
        for space in ("cardinality", "observed", "open")
    }


def _boosted(setting, rows):
    """Boosted trees in the open space."""
    return mlrh.MLRHBoostingClassifier(label_space="open", random_state=rows.seed, n_jobs=1, **setting)


def _missing_booster():
    return "" if find_spec("xgboost") else "xgboost is not installed; run: pip install 'xgboost>=2.1'"


def _forest_of_sets(setting, rows):
    return LabelPowerset(ExtraTreesClassifier(random_state=rows.seed, **setting))


def _smooth(setting, rows):
    """The kernel classifier in the open space, or the linear one where the setting has no gamma."""
    if "gamma" in setting:
        return KernelMLRHClassifier(label_space="open", n_jobs=1, **absolute(setting, rows))
    return MLRHClassifier(label_space="open", n_jobs=1, **setting)


def _pooled(rows, grid):
    """A pool of a kernel, a boosted and an extra-trees member, each at its setting of least held-out log-loss.

    The weights are those of largest held-out likelihood, or equal ones: what is better for the measure held out, where
    the weights of a fold are those of the others.
    """
    parts = list(_inner(rows))
    members = _members(rows, parts, grid)
    by_fold = list(zip(*(member.held_out for member in members), strict=True))
    log_probs = [
        np.column_stack([d.log_prob(part.Y_test) for d in own]) for own, part in zip(by_fold, parts, strict=True)
    ]
    equal = np.full(len(members), 1 / len(members))
    folds = []
    for number, part in enumerate(parts):
        others = [*log_probs[:number], *log_probs[number + 1 :]]
        weighted = [Mixture(list(by_fold[number]), weights) for weights in (_likeliest(others), equal)]
        folds.append([Measured(judged(mixture, part.Y_test), 0.0) for mixture in weighted])
    candidates = {"held-out": _likeliest(log_probs), "equal": equal}
    chosen = {name: list(candidates)[_best(folds, name)] for name in MEASURES}
    settings = {member.name: member.setting for member in members}
    # The members are the same under all weights, so they are fitted once.
    fitted, seconds = timed(lambda: [own.make(own.setting, rows).fit(rows.X, rows.Y) for own in members])
    distributions, found = [model.distribution(rows.X_test) for model in fitted], {}
    for name in set(chosen.values()):
        said = {**settings, "weights": candidates[name].round(3).tolist()}
        found[name] = (Measured(judged(Mixture(distributions, candidates[name]), rows.Y_test), seconds), said)
    return _results({name: found[weights] for name, weights in chosen.items()})


def _likeliest(log_probs):
    """The weights of members under which the held-out sets of some folds are most likely."""
    log_probs = np.concatenate(log_probs)
    return largest_likelihood(log_probs, np.ones(len(log_probs)))


@dataclass(frozen=True)
class _Member:
    """A member of a pool at its chosen setting, with its distributions of the held-out rows of the inner folds."""

    name: str
    setting: dict
    make: Callable  # (setting, rows) -> the estimator, not fitted
    held_out: list


def _members(rows, parts, grid):
    """The members of a pool for these rows, whose inner folds are the parts."""
    smooth_grid = grid["rbf"] if "rbf" in grid else grid["linear"]
    estimator = _smooth({name: values[0] for name, values in smooth_grid.items()}, rows)
    (smooth,) = chosen_by_path(estimator, rows, smooth_grid, [log_prob])
    members = [
        _of_least_log_loss("smooth", _smooth, [smooth], parts),
        _of_least_log_loss("boosted", _boosted, ParameterGrid(grid["boosted"]), parts),
    ]
    if len(distinct_sets(rows.Y)[0]) <= MAX_FOREST_SETS:
        members.append(_of_least_log_loss("forest", _forest_of_sets, ParameterGrid(grid["forest"]), parts))
    return members


def _of_least_log_loss(name, make, settings, parts):
    """The member at the setting with the least log-loss of held-out sets."""
    members = []
    for setting in settings:
        held_out = [make(setting, part).fit(part.X, part.Y).distribution(part.X_test) for part in parts]
        members.append(_Member(name, setting, make, held_out))
    losses = [
        np.mean([set_log_loss(d.log_prob(part.Y_test)) for d, part in zip(member.held_out, parts, strict=True)])
        for member in members
    ]
    return members[int(np.argmin(losses))]


def _automatic(rows, grid):
    """MLRHAuto; it chooses by folds of its own, and by log-loss, so that one search serves all measures."""
    (setting,) = ParameterGrid(grid)
    auto = mlrh.MLRHAuto(select_by="log_loss", random_state=rows.seed, n_jobs=1, **setting)
    auto, seconds = timed(auto.fit, rows.X, rows.Y)
    found = Measured(judged(auto.distribution(rows.X_test), rows.Y_test), seconds)
    said = {**setting, "model": auto.leaderboard_[0]["model"]}
    return _results(dict.fromkeys(MEASURES, (found, said)))


# Methods of others: their own answers


def _by_predict(make, log_prob_of=None):
    """The measure of a classifier make(setting, rows) by its own predict; log_prob_of(model, X, Y) may be None."""

    def measure_one(setting, rows):
        model, seconds = timed(make(setting, rows).fit, rows.X, rows.Y)
        log_probs = None if log_prob_of is None else log_prob_of(model, rows.X_test, rows.Y_test)
        return _of_answers(model.predict(rows.X_test), log_probs, rows, seconds)

    return _one_by_one(measure_one)


def _of_answers(predicted, log_probs, rows, seconds):
    predicted = np.asarray(predicted).astype(np.int8)
    found = evaluate(rows.Y_test, predicted, log_probs)
    return Measured({name: found[name] for name in (*MEASURES, "impossible_share") if name in found}, seconds)


def _support_vectors(wrap):
    """The measure of support vector machines behind a wrapper: with an RBF kernel, without a gamma linear ones."""

    def make(setting, rows):
        if "gamma" not in setting:
            return wrap(LinearSVC(**setting))
        setting = absolute(setting, rows)
        # A function in place of "rbf": the kernel matrix is then one product of matrices.
        return wrap(SVC(C=setting["C"], kernel=partial(rbf_kernel, gamma=setting["gamma"])))

    return _by_predict(make)


def _separate_support_vectors(settings, rows):
    """BR-SVM: one kernel matrix serves all labels."""
    plain = _support_vectors(OneVsRestClassifier)
    return [_on_gram(s, rows) if "gamma" in s else plain([s], rows)[0] for s in settings]


def _on_gram(setting, rows):
    gamma = absolute(setting, rows)["gamma"]
    gram, cross = rbf_kernel(rows.X, gamma=gamma), rbf_kernel(rows.X_test, rows.X, gamma=gamma)
    model, seconds = timed(OneVsRestClassifier(SVC(C=setting["C"], kernel="precomputed")).fit, gram, rows.Y)
    return _of_answers(model.predict(cross), None, rows, seconds)


def _forest(kind, over_sets):
    """The measure of a forest: of all labels at once, or with every label set of training as a class."""

    def measure_one(setting, rows):
        forest = kind(random_state=rows.seed, **setting)
        if not over_sets:
            marginals, seconds = mean_of_trees(forest, rows.X, rows.Y, rows.X_test)
            log_probs = independent_set_log_proba(marginals, rows.Y_test)
            return _of_answers(marginals > 0.5, log_probs, rows, seconds)
        sets, codes = distinct_sets(rows.Y)
        proba, seconds = mean_of_trees(forest, rows.X, codes, rows.X_test)
        with np.errstate(divide="ignore"):
            distribution = listed_sets(sets, np.log(proba))
        return _of_answers(distribution.mode(), distribution.log_prob(rows.Y_test), rows, seconds)

    return _one_by_one(measure_one)


def mean_of_trees(forest, X, y, X_test):
    """Mean over the trees of a forest of the probabilities of classes, or of labels where y is a matrix; and seconds.

    Trees are fitted in batches that are thrown away once they are asked: one tree with a number for each label set in
    every node can take 280 MB. They are the trees of the whole forest, since all batches draw from one generator.
    """
    n_values = 2 * y.shape[1] if y.ndim == 2 else 1 + int(y.max())
    bytes_of_tree = 8 * n_values * 2 * len(y)  # as many leaves as rows, and as many nodes above
    n_trees = forest.n_estimators
    size = int(np.clip(MAX_TREE_BYTES // bytes_of_tree, 1, n_trees))
    generator, total, seconds = np.random.RandomState(forest.random_state), 0.0, 0.0
    for begin in range(0, n_trees, size):
        n_here = min(size, n_trees - begin)
        batch = clone(forest).set_params(n_estimators=n_here, random_state=generator)
        batch, took = timed(batch.fit, X, y)
        total, seconds = total + n_here * _probabilities(batch, X_test), seconds + took
    return np.clip(total / n_trees, 0.0, 1.0), seconds


def _probabilities(forest, X):
    """Those of the classes; of several outputs those of 1, which an output may never have."""
    proba = forest.predict_proba(X)
    if not isinstance(proba, list):
        return proba
    pairs = zip(proba, forest.classes_, strict=True)
    return np.column_stack([own[:, -1] if classes[-1] == 1 else np.zeros(len(own)) for own, classes in pairs])


def _by_boomer(rows, grid):
    """BOOMER: one fit per loss serves all numbers of rules."""
    begin = _boomer.processor_seconds()

    def measure(settings, part):
        found = {}
        for loss in {setting["loss"]: None for setting in settings}:
            numbers = [setting["max_rules"] for setting in settings if setting["loss"] == loss]
            left = MAX_SECONDS - (_boomer.processor_seconds() - begin)
            if left <= 0:
                raise TimeoutError
            options = {"numbers_of_rules": numbers, "seed": rows.seed, "max_seconds": left}
            answers, seconds = _boomer.answers(part.X, part.Y, part.X_test, loss=loss, **options)
            for number, (sets, marginals) in zip(numbers, answers, strict=True):
                log_probs = independent_set_log_proba(marginals, part.Y_test)
                found[loss, number] = _of_answers(sets, log_probs, part, seconds)
        return [found[setting["loss"], setting["max_rules"]] for setting in settings]

    return tuned(measure, rows, grid)


def _of_labels(grid, estimator, log_prob_of=of_independent_labels):
    """A method whose settings are parameters of the estimator."""
    return Judged(grid, partial(tuned, _by_predict(lambda s, rows: clone(estimator).set_params(**s), log_prob_of)))


def _logistic(wrap, log_prob_of):
    """A method that is logistic regression behind a wrapper, with C from the linear grid."""
    make = _by_predict(lambda setting, rows: wrap(clone(LOGISTIC).set_params(**setting)), log_prob_of)
    return Judged("linear", partial(tuned, make))


JUDGED = {
    **_of_spaces("linear", MLRHClassifier(n_jobs=1)),
    **_of_spaces("rbf", KernelMLRHClassifier(n_jobs=1, random_state=0)),
    "MLRH (boosted)": Judged(
        "boosted",
        partial(tuned, _one_by_one(lambda setting, rows: _fitted_and_judged(_boosted(setting, rows), rows))),
        missing=_missing_booster,
    ),
    "MLRH (pooled)": Judged("pooled", _pooled, missing=_missing_booster),
    "MLRH (automatic)": Judged("automatic", _automatic),
    "BR-LR": _logistic(OneVsRestClassifier, of_independent_labels),
    "CC-LR": _logistic(lambda own: ClassifierChain(OrConstant(own)), chain_set_log_proba),
    "LP-LR": _logistic(LabelPowerset, LabelPowerset.set_log_proba),
    "BR-SVM": Judged("svm", partial(tuned, _separate_support_vectors)),
    "CC-SVM": Judged("svm", partial(tuned, _support_vectors(lambda own: ClassifierChain(OrConstant(own))))),
    "LP-SVM": Judged("svm", partial(tuned, _support_vectors(LabelPowerset))),
    "RF": Judged("forest", partial(tuned, _forest(RandomForestClassifier, False))),
    "LP-RF": Judged("forest", partial(tuned, _forest(RandomForestClassifier, True))),
    "LP-ET": Judged("extra", partial(tuned, _forest(ExtraTreesClassifier, True))),
    "Extra trees": Judged("forest", partial(tuned, _forest(ExtraTreesClassifier, False))),
    "ML-kNN": _of_labels("neighbours", MLkNN()),
    "IBLR-ML": _of_labels("iblr", IBLR()),
    "IBLR-ML+": _of_labels("iblr", IBLR(with_features=True)),
    "CorrLog": _of_labels("linear", CorrLog(), of_pairs),
    "CCnet": _of_labels("nets", CCnet(epsilon=EPSILON), CCnet.set_log_proba),
    "PCC-LR": _logistic(lambda own: ProbabilisticChain(own, epsilon=EPSILON), ProbabilisticChain.set_log_proba),
    "BOOMER": Judged("boomer", _by_boomer, missing=_boomer.missing),
}
