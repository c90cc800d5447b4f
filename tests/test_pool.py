"""PooledSets: its weights against their definition, its answers against those of its members."""

from functools import cache

import numpy as np
import pytest
from samples import FORMS, assert_in_form, make_multilabel
from scipy import sparse
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from mlrh import CalibratedSets, KernelMLRHClassifier, MLRHClassifier, PooledSets, TunedThresholds, persistence
from mlrh.baselines import LabelPowerset
from mlrh.estimators.pool import largest_likelihood
from mlrh.model_selection import MultilabelStratifiedKFold
from mlrh.spaces.mixture import geometric_likelihood

X, Y = make_multilabel(120)
TRAIN, TEST = slice(0, 90), slice(90, 120)
LINEAR, BAYES = MLRHClassifier(C=0.01), LabelPowerset(GaussianNB(var_smoothing=0.5))
PAIR = [("linear", LINEAR), ("bayes", BAYES)]
FOLDS = list(KFold(3).split(X[TRAIN]))


def fitted(**params):
    return PooledSets(**{"estimators": PAIR, "cv": FOLDS, **params}).fit(X[TRAIN], Y[TRAIN])


@cache
def default_pool():
    return fitted()


CHECKED = [
    PooledSets([("linear", MLRHClassifier()), ("bayes", LabelPowerset(GaussianNB()))], cv=2),
    PooledSets([("one", MLRHClassifier()), ("other", MLRHClassifier(C=0.1))], pooling="geometric", weights="equal"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(CHECKED)
def test_scikit_learn_check_passes(estimator, check):
    check(estimator)


@pytest.mark.parametrize("seed", range(5))
def test_weights_of_two_members_are_those_of_the_largest_likelihood(seed):
    rng = np.random.default_rng(seed)
    log_probs, rows = -5 * rng.random((40, 2)), rng.random(40)
    log_probs[rng.random((40, 2)) < 0.1] = -np.inf
    possible = np.isfinite(log_probs).any(axis=1)

    def loss(w):
        with np.errstate(divide="ignore"):
            return -rows[possible] @ np.log(np.exp(log_probs[possible]) @ [w, 1 - w])

    best = minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-12})
    weights = largest_likelihood(log_probs[possible], rows[possible])
    assert weights.sum() == pytest.approx(1)
    # The likelihood is within 1e-6 of the largest, per unit of weight.
    assert loss(weights[0]) <= best.fun + 1.1e-6 * rows[possible].sum()


def test_no_other_weights_of_many_members_are_more_likely():
    rng = np.random.default_rng(1)
    log_probs = rng.normal(scale=3, size=(200, 6))
    weights = largest_likelihood(log_probs, np.ones(200))
    value = np.log(np.exp(log_probs) @ weights).mean()
    others = np.vstack([np.eye(6), rng.dirichlet(np.full(6, 0.3), 500)])
    assert (np.log(np.exp(log_probs) @ others.T).mean(axis=0) <= value + 1.1e-6).all()


def test_log_probabilities_of_minus_100_000_are_no_trouble():
    log_probs = np.array([[0.0, -1.0], [0.0, 1.0], [0.0, -np.inf]])
    shifted = log_probs - np.array([[1e5], [1e5], [2e5]])
    expected = largest_likelihood(log_probs, np.ones(3))
    np.testing.assert_allclose(largest_likelihood(shifted, np.ones(3)), expected, rtol=1e-9)


@pytest.mark.parametrize(
    "members",
    [PAIR, [("bayes", BAYES), ("linear", LabelPowerset(LogisticRegression(C=0.02)))]],
    ids=["all", "seen sets"],
)
def test_weights_come_from_rows_that_members_were_not_fitted_to(members):
    log_probs = []
    for train, rows in FOLDS:
        models = [clone(member).fit(X[train], Y[train]) for _, member in members]
        log_probs.append(np.stack([model.distribution(X[rows]).log_prob(Y[rows]) for model in models], axis=1))
    log_probs = np.concatenate(log_probs)
    possible = np.isfinite(log_probs).any(axis=1)
    assert possible.all() == (members is PAIR)  # a set that no member of a fold has seen doesn't count
    expected = largest_likelihood(log_probs[possible], np.ones(possible.sum()))
    pool = PooledSets(members, cv=FOLDS).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_allclose(pool.weights_, expected, rtol=1e-9)
    assert 0.05 < pool.weights_[0] < 0.95  # both members count


def test_a_member_that_only_remembers_its_rows_gets_hardly_any_weight():
    noise = np.random.default_rng(0).normal(size=(90, 3))
    remembers = LabelPowerset(KNeighborsClassifier(1))
    pool = PooledSets([("remembers", remembers), ("shares", MLRHClassifier(C=1e-3))]).fit(noise, Y[TRAIN])
    assert pool.named_estimators_.remembers.score(noise, Y[TRAIN]) == 1
    assert pool.weights_[0] < 0.3


def test_folds_by_number_are_stratified_over_label_sets():
    splits = list(MultilabelStratifiedKFold(3, shuffle=True, random_state=0).split(Y[TRAIN], Y[TRAIN]))
    np.testing.assert_array_equal(fitted(cv=3).weights_, fitted(cv=splits).weights_)


@pytest.mark.parametrize("weights, expected", [("equal", [0.5, 0.5]), ([3, 1], [0.75, 0.25]), ((0.0, 2.0), [0, 1])])
def test_a_pool_is_the_mixture_of_its_members(weights, expected):
    pool = fitted(weights=weights)
    np.testing.assert_array_equal(pool.weights_, expected)
    parts = [clone(member).fit(X[TRAIN], Y[TRAIN]).distribution(X[TEST]) for _, member in PAIR]
    probs = sum(w * part.prob(Y[TEST]) for w, part in zip(expected, parts, strict=True))
    np.testing.assert_allclose(pool.distribution(X[TEST]).prob(Y[TEST]), probs, rtol=1e-10)
    marginals = sum(w * part.marginals() for w, part in zip(expected, parts, strict=True))
    np.testing.assert_allclose(pool.predict_proba(X[TEST]), marginals, rtol=1e-10)
    every = (np.arange(16)[:, None] >> np.arange(4) & 1).astype(np.int8)
    tables = [np.stack([part.prob(np.tile(y, (30, 1))) for y in every], axis=1) for part in parts]
    highest = sum(w * table for w, table in zip(expected, tables, strict=True)).max(axis=1)
    predicted = pool.predict(X[TEST])
    np.testing.assert_allclose(pool.distribution(X[TEST]).prob(predicted), highest, rtol=1e-10)
    assert pool.score(X[TEST], Y[TEST]) == (predicted == Y[TEST]).all(axis=1).mean()


@pytest.mark.parametrize("decision", ["hamming", "f1", ("top", 2), lambda tp, fp, fn: -(fp + 2.0 * fn)])
def test_predictions_follow_the_decision_within_the_answer_sizes(decision):
    pool = fitted(weights="equal", decision=decision, answer_sizes=(1, 2))
    sizes = pool.predict(X[TEST]).sum(axis=1)
    assert ((sizes >= 1) & (sizes <= 2)).all()
    if decision == "hamming":
        free = pool.set_params(answer_sizes=None).predict(X[TEST])
        np.testing.assert_array_equal(free, pool.predict_proba(X[TEST]) > 0.5)


@pytest.mark.parametrize("form", FORMS)
def test_y_may_have_any_form(form):
    pool = PooledSets(PAIR, cv=FOLDS).fit(X[TRAIN], FORMS[form](Y[TRAIN]))
    np.testing.assert_allclose(pool.weights_, default_pool().weights_, rtol=1e-6)
    assert_in_form(pool.predict(X[TEST]), default_pool().predict(X[TEST]), form)


@pytest.mark.parametrize("names", [["a", "b", "c"], ["b", "a", "b"]])
def test_classes_are_pooled_as_classes(names):
    X, codes = load_iris(return_X_y=True)
    y = np.array(names)[codes]
    members = [("linear", LogisticRegression(max_iter=1000)), ("bayes", GaussianNB())]
    pool = PooledSets(members, weights=[1, 3]).fit(X, y)
    expected = sum(w * m.fit(X, y).predict_proba(X) for w, (_, m) in zip([0.25, 0.75], members, strict=True))
    np.testing.assert_allclose(pool.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_array_equal(pool.predict(X), np.unique(names)[expected.argmax(axis=1)])
    assert pool.score(X, y) > 0.9


def test_a_class_that_a_fold_lacks_does_not_count_there():
    y = np.array(["a", "b"])[(X[:, 0] > 0).astype(int)]
    y[:2] = "c"
    pool = PooledSets([("linear", MLRHClassifier()), ("bayes", GaussianNB())], cv=KFold(3)).fit(X, y)
    assert pool.weights_.sum() == pytest.approx(1)
    assert pool.predict_proba(X).shape == (120, 3)


def test_members_may_be_pipelines_searches_and_independent_labels():
    search = GridSearchCV(MLRHClassifier(), {"C": [0.1, 1.0]}, cv=2)
    pipeline = make_pipeline(StandardScaler(), KernelMLRHClassifier())
    separate = OneVsRestClassifier(LogisticRegression())
    members = [("search", search), ("pipeline", pipeline), ("separate", separate)]
    pool = PooledSets(members, weights="equal").fit(X[TRAIN], Y[TRAIN])
    marginals = [clone(member).fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]) for _, member in members]
    np.testing.assert_allclose(pool.predict_proba(X[TEST]), np.mean(marginals, axis=0), atol=1e-12)


def test_sparse_rows_and_kernel_matrices_go_to_the_members():
    linear = PooledSets([("one", MLRHClassifier(tol=1e-12)), ("other", MLRHClassifier(tol=1e-12, C=0.1))])
    np.testing.assert_allclose(
        clone(linear).fit(sparse.csr_array(X), Y).predict_proba(sparse.csr_array(X)),
        linear.fit(X, Y).predict_proba(X),
        atol=1e-6,
    )
    gram = rbf_kernel(X, gamma=0.1)
    given = KernelMLRHClassifier(kernel="precomputed")
    by_matrix = PooledSets([("one", given), ("other", clone(given).set_params(C=0.1))], cv=3).fit(gram, Y)
    own = KernelMLRHClassifier(gamma=0.1)
    by_rows = PooledSets([("one", own), ("other", clone(own).set_params(C=0.1))], cv=3).fit(X, Y)
    np.testing.assert_allclose(by_matrix.predict_proba(gram), by_rows.predict_proba(X), atol=1e-5)


def test_a_row_of_weight_two_counts_twice_and_one_of_weight_zero_is_absent():
    weights = np.arange(90) % 3
    repeats = np.repeat(np.arange(90), weights)
    member = [("linear", MLRHClassifier(tol=1e-12)), ("bayes", LabelPowerset(GaussianNB()))]
    weighted = PooledSets(member, cv=FOLDS).fit(X[TRAIN], Y[TRAIN], sample_weight=weights)
    folds = [tuple(np.flatnonzero(np.isin(repeats, rows)) for rows in fold) for fold in FOLDS]
    repeated = PooledSets(member, cv=folds).fit(X[TRAIN][repeats], Y[TRAIN][repeats])
    np.testing.assert_allclose(weighted.weights_, repeated.weights_, atol=1e-4)
    np.testing.assert_allclose(weighted.predict_proba(X[TEST]), repeated.predict_proba(X[TEST]), atol=1e-4)


def test_parameters_of_members_are_set_by_name_as_in_a_voting_classifier():
    pool = PooledSets(PAIR, weights="equal")
    assert pool.get_params()["linear__C"] == 0.01 and pool.get_params()["bayes"] is BAYES
    assert "linear" not in pool.get_params(deep=False)
    other = clone(pool).set_params(linear__C=0.5, bayes=MLRHClassifier(C=7), weights=[1, 2])
    assert dict(other.estimators)["linear"].C == 0.5 and dict(other.estimators)["bayes"].C == 7
    assert pool.estimators is PAIR and LINEAR.C == 0.01 and other.weights == [1, 2]
    with pytest.raises(ValueError, match="Invalid parameter 'trees'"):
        other.set_params(trees=BAYES)
    search = GridSearchCV(pool, {"linear__C": [1e-4, 1.0], "weights": ["equal", (1, 0)]}, cv=2).fit(X[TRAIN], Y[TRAIN])
    assert search.best_params_["linear__C"] == 1.0


def test_fitted_members_have_their_names_and_the_parameters_stay_unfitted():
    pool = default_pool()
    assert pool.named_estimators_["bayes"] is pool.estimators_[1]
    assert list(pool.named_estimators_) == ["linear", "bayes"]
    assert not hasattr(LINEAR, "coef_") and not hasattr(PooledSets(PAIR), "named_estimators_")


@pytest.mark.slow
def test_processes_give_the_same_pool():
    np.testing.assert_allclose(
        fitted(n_jobs=2).predict_proba(X[TEST]), default_pool().predict_proba(X[TEST]), rtol=1e-10
    )


def test_a_saved_pool_predicts_the_same(tmp_path):
    members = [("linear", LINEAR), ("sets", LabelPowerset(LogisticRegression(C=0.1)))]
    for params in ({"cv": FOLDS}, {"decision": "f1", "weights": [0.3, 0.7], "cv": 3}):
        pool = PooledSets(members, **params).fit(X[TRAIN], Y[TRAIN])
        persistence.save(pool, tmp_path / "pool.mlrh")
        loaded = persistence.load(tmp_path / "pool.mlrh")
        np.testing.assert_array_equal(loaded.predict_proba(X[TEST]), pool.predict_proba(X[TEST]))
        np.testing.assert_array_equal(loaded.predict(X[TEST]), pool.predict(X[TEST]))
        np.testing.assert_array_equal(loaded.weights_, pool.weights_)


def test_a_pool_with_too_few_weights_is_no_model_file(tmp_path):
    pool = fitted(weights="equal", estimators=[("one", LINEAR), ("other", MLRHClassifier())])
    pool.weights_ = pool.weights_[:1]
    with pytest.raises(persistence.ModelFileError, match="weights_"):
        persistence.save(pool, tmp_path / "pool.mlrh")


def test_a_pool_is_calibrated_and_thresholded_as_any_classifier():
    pool = PooledSets(PAIR, weights="equal")
    clf = CalibratedSets(pool, cv=2).fit(X[TRAIN], Y[TRAIN])
    powers = np.exp(clf.estimator_.distribution(X[TEST]).listed()[1]) ** (1 / clf.temperature_)
    confidence = powers.max(axis=1) / powers.sum(axis=1) * (1 - clf.outside_share_)
    np.testing.assert_allclose(clf.confidence(X[TEST]), confidence, rtol=1e-8)
    isotonic = CalibratedSets(pool, cv=2, method="isotonic").fit(X[TRAIN], Y[TRAIN])
    assert ((isotonic.confidence(X[TEST]) > 0) & (isotonic.confidence(X[TEST]) < 1)).all()
    thresholds = TunedThresholds(pool, cv=2).fit(X[TRAIN], Y[TRAIN])
    above = thresholds.estimator_.predict_proba(X[TEST]) > thresholds.thresholds_
    np.testing.assert_array_equal(thresholds.predict(X[TEST]), above)


GEOMETRIC = [("weak", MLRHClassifier(C=0.01, size_bias=True)), ("strong", MLRHClassifier(C=10, size_bias=True))]


@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_a_geometric_pool_averages_scores_and_biases(label_space):
    members = [(name, MLRHClassifier(C=C, label_space=label_space)) for name, C in (("weak", 0.01), ("strong", 10))]
    pool = PooledSets(members, pooling="geometric", weights=[1, 3]).fit(X[TRAIN], Y[TRAIN])
    weak, strong = (member.distribution(X[TEST]) for member in pool.estimators_)
    d = pool.distribution(X[TEST])
    np.testing.assert_allclose(d.scores, 0.25 * weak.scores + 0.75 * strong.scores, rtol=1e-12)
    np.testing.assert_allclose(d.space.bias, 0.25 * weak.space.bias + 0.75 * strong.space.bias, rtol=1e-12)


def test_weights_of_a_geometric_pool_have_the_largest_held_out_likelihood():
    pool = PooledSets(GEOMETRIC, pooling="geometric", cv=FOLDS).fit(X[TRAIN], Y[TRAIN])

    def likelihood(weight):
        total = 0.0
        for train, rows in FOLDS:
            parts = [clone(m).fit(X[train], Y[train]).distribution(X[rows]) for _, m in GEOMETRIC]
            value, slopes = geometric_likelihood(parts, np.array([weight, 1 - weight]), Y[rows], np.ones(len(rows)))
            total += np.array([value, slopes[0] - slopes[1]])
        return total

    at = pool.weights_[0]
    assert 0.01 < at < 0.99
    # The slope vanishes at the weights, and is that of finite differences elsewhere.
    assert abs(likelihood(at)[1]) < 1e-3
    difference = (likelihood(0.3 + 1e-5)[0] - likelihood(0.3 - 1e-5)[0]) / 2e-5
    assert likelihood(0.3)[1] == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize(
    "estimators, message",
    [
        ([], "at least one"),
        ([LINEAR], "pairs"),
        ([("a", LINEAR), ("a", BAYES)], "distinct"),
        ([("a__b", LINEAR)], "without '__'"),
        ([("weights", LINEAR)], "no parameters of PooledSets"),
        ([("a", "linear")], "classifier"),
        ([("a", OneVsRestClassifier(LinearSVC()))], "must have distribution or predict_proba"),
    ],
)
@pytest.mark.parametrize("weights", ["held-out", "equal"])
def test_what_is_no_member_gets_a_sentence(estimators, message, weights):
    with pytest.raises(ValueError, match=message):
        PooledSets(estimators, weights=weights, cv=2).fit(X[TRAIN], Y[TRAIN])


@pytest.mark.parametrize(
    "params, message",
    [
        ({"weights": [1.0]}, "2 numbers, one per member"),
        ({"weights": "best"}, "'weights' parameter"),
        ({"decision": ("top", 9)}, "k must be an integer"),
        ({"answer_sizes": (3, 2)}, "Limits on the size"),
        ({"pooling": "geometric"}, "label spaces of the same sets"),
        ({"pooling": "geometric", "weights": "equal"}, "label spaces of the same sets"),
    ],
)
def test_parameters_that_can_not_work_fail_in_fit(params, message):
    with pytest.raises(ValueError, match=message):
        fitted(**params)


def test_unknown_labels_and_impossible_rows_get_a_sentence():
    unknown = Y[TRAIN].astype(float)
    unknown[3, 0] = np.nan
    with pytest.raises(ValueError, match="every label known"):
        PooledSets(PAIR).fit(X[TRAIN], unknown)
    # Every held-out row has a set that the other fold doesn't show.
    alternating = np.tile([[1, 0], [0, 1]], (10, 1))
    folds = [(np.arange(0, 20, 2), np.arange(1, 20, 2)), (np.arange(1, 20, 2), np.arange(0, 20, 2))]
    with pytest.raises(ValueError, match="members exclude all"):
        PooledSets([("bayes", LabelPowerset())], cv=folds).fit(X[:20], alternating)


def test_a_fit_that_fails_leaves_the_last_one():
    pool = fitted(weights="equal")
    before = pool.predict(X[TEST])
    with pytest.raises(ValueError, match="same number of rows"):
        pool.fit(X[:5], Y[:6])
    np.testing.assert_array_equal(pool.predict(X[TEST]), before)


def test_forests_pool_with_joint_models():
    forest = LabelPowerset(RandomForestClassifier(20, random_state=0))
    members = [("kernel", KernelMLRHClassifier(label_space="observed")), ("trees", forest)]
    pool = PooledSets(members, cv=3).fit(X[TRAIN], Y[TRAIN])
    log_probs = [m.distribution(X[TEST]).log_prob(Y[TEST]) for m in pool.estimators_]
    pooled = pool.distribution(X[TEST]).log_prob(Y[TEST])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(pooled, np.log(pool.weights_ @ np.exp(log_probs)), rtol=1e-9)
