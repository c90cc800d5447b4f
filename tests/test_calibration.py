"""Tempered distributions against enumeration; calibrated confidence against hand-made folds, scikit-learn, new rows."""

import numpy as np
import pandas as pd
import pytest
import reference
import sklearn
from packaging.version import Version
from samples import FORMS, assert_in_form, make_multilabel, marginals_of
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, LeaveOneOut, RepeatedKFold, ShuffleSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from mlrh import KernelMLRHClassifier, MLRHClassifier, decisions
from mlrh.baselines import independent_set_log_proba
from mlrh.estimators import calibration
from mlrh.estimators.calibration import CalibratedSets, isotonic_map
from mlrh.estimators.thresholds import TunedThresholds
from mlrh.metrics import assured_threshold, expected_calibration_error, risk_coverage
from mlrh.spaces import CardinalitySpace, ObservedSpace

X, Y = make_multilabel(80)

RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=3, size=(20, 5))
SETS = reference.sets_of_sizes(5, 1, 4)[::2]
SPACES = {
    "plain": CardinalitySpace(5, 1, 3),
    "size_bias": CardinalitySpace(5, 0, 4, [0.5, -1.0, 0.3, 2.0, -0.7, 1.1]),
    "observed": ObservedSpace(SETS, RNG.normal(size=len(SETS))),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
FOLDS = KFold(4, shuffle=True, random_state=1)


def probabilities(distribution, sets):
    """P of all the sets, (n_samples, n_sets)."""
    return np.column_stack([distribution.prob(np.tile(s, (len(distribution.scores), 1))) for s in sets])


@pytest.mark.parametrize("temperature", [0.3, 1, 4.0])
@every_space
def test_tempered_probabilities_are_powers_of_the_enumerated_ones(space, temperature):
    every = reference.sets_of_sizes(5, 0, 5)
    powers = probabilities(space.distribution(ROWS), every) ** (1 / temperature)
    expected = powers / powers.sum(axis=1, keepdims=True)
    found = space.distribution(ROWS).temper(temperature)
    np.testing.assert_allclose(probabilities(found, every), expected, atol=1e-13)
    np.testing.assert_allclose(found.marginals(), expected @ every, atol=1e-13)


@every_space
def test_what_is_known_stays_known_and_is_tempered_alike(space):
    known = np.full(ROWS.shape, np.nan)
    known[:10, 1], known[5:15, 4] = 1, 0
    every = reference.sets_of_sizes(5, 0, 5)
    given = space.distribution(ROWS).condition(known)
    powers = probabilities(given, every) ** (1 / 2.5)
    expected = powers / powers.sum(axis=1, keepdims=True)
    for found in (given.temper(2.5), space.distribution(ROWS).temper(2.5).condition(known)):
        np.testing.assert_allclose(probabilities(found, every), expected, atol=1e-13)


@every_space
def test_the_order_of_sets_stays_and_extreme_temperatures_give_one_set_or_all_alike(space):
    d = space.distribution(1e4 * ROWS)
    sets, _ = d.top_sets(4)
    assert np.array_equal(d.temper(3e3).top_sets(4)[0], sets)
    cold, hot = d.temper(1e-8), d.temper(1e90)
    np.testing.assert_array_equal(cold.prob(d.mode()), np.ones(20))
    np.testing.assert_allclose(hot.log_prob(d.mode()), np.full(20, -space.log_count()), atol=1e-12)


def test_tempering_leaves_the_distribution_as_it_was_and_keeps_single_precision():
    d = CardinalitySpace(5, 0, 4, np.arange(6.0)).distribution(ROWS.astype(np.float32))
    before = d.marginals()
    assert d.temper(np.float64(2)).scores.dtype == np.float32
    np.testing.assert_array_equal(d.marginals(), before)


@pytest.mark.parametrize("temperature", [0, -1.0, np.nan, np.inf, "2", None, True, 1e-200])
def test_a_temperature_without_meaning_is_an_error(temperature):
    with pytest.raises(ValueError, match=r"The temperature must be a number from 1e-100 to 1e100; got "):
        SPACES["plain"].distribution(ROWS).temper(temperature)


def test_a_temperature_that_makes_scores_too_large_is_an_error_that_names_the_place():
    with pytest.raises(ValueError, match=r"at most 1e\+100 in magnitude; found -inf in row 0, column 1"):
        CardinalitySpace(2, 0, 2).distribution(np.array([[0.0, -1e30]], np.float32)).temper(1e-90)


def held_out_by_hand(estimator, X, Y, folds=FOLDS):
    """[(held-out rows, distribution, own sets)] of a classifier with a distribution."""
    result = []
    for train, rows in folds.split(X):
        fitted = clone(estimator).fit(X[train], Y[train])
        result.append((rows, fitted.distribution(X[rows]), fitted.predict(X[rows])))
    return result


def confidence_and_right(parts, Y):
    return [d.prob(sets) for _, d, sets in parts], [(sets == Y[rows]).all(axis=1) for rows, _, sets in parts]


def best_temperature(parts, Y, weights=None, n_imagined=4):
    """The best one by a search over the likelihood of true and imagined rows, with no use of its derivative."""
    every = reference.sets_of_sizes(Y.shape[1], 0, Y.shape[1])
    weights = np.ones(len(Y)) if weights is None else weights
    w = np.concatenate([weights[rows] for rows, _, _ in parts])
    drawn = np.vstack([probabilities(d, every) for _, d, _ in parts])  # how often the model at T = 1 draws each set

    def loss(log_T):
        tempered = [d.temper(np.exp(log_T)) for _, d, _ in parts]
        true = np.concatenate([d.log_prob(Y[rows]) for d, (rows, _, _) in zip(tempered, parts, strict=True)])
        logs = np.log(
            np.vstack([probabilities(d, every) for d in tempered]), where=drawn > 0, out=np.zeros(drawn.shape)
        )
        inside = np.isfinite(true) & (w > 0)
        imagined = np.average((drawn * logs).sum(axis=1)[inside], weights=w[inside])
        return -(w[inside] @ true[inside]) - n_imagined * min(1, w[w > 0].mean()) * imagined

    return np.exp(minimize_scalar(loss, bounds=(-4, 4), options={"xatol": 1e-10}).x)


@pytest.mark.parametrize(
    "estimator",
    [
        MLRHClassifier(C=100, size_bias=True),
        MLRHClassifier(C=0.002),
        KernelMLRHClassifier(C=50, label_space="observed"),
    ],
    ids=["sizes", "weak", "observed"],
)
def test_the_temperature_maximises_the_likelihood_of_the_held_out_sets_and_four_drawn_from_the_model(estimator):
    X, Y = make_multilabel(80, 8)
    parts = held_out_by_hand(estimator, X, Y)
    clf = CalibratedSets(estimator, cv=FOLDS).fit(X, Y)
    assert clf.temperature_ == pytest.approx(best_temperature(parts, Y), rel=1e-5)
    assert abs(np.log(clf.temperature_)) > 0.05
    np.testing.assert_array_equal(clf.rows_, np.concatenate([rows for rows, _, _ in parts]))
    raw, right = map(np.concatenate, confidence_and_right(parts, Y))
    np.testing.assert_allclose(clf.raw_confidence_, raw, rtol=1e-12)
    np.testing.assert_array_equal(clf.correct_, right)
    assert clf.raw_calibration_error_ == pytest.approx(expected_calibration_error(clf.raw_confidence_, right))


@pytest.mark.parametrize(
    ("data", "model", "folds"),
    [
        (make_multilabel(80, 8), MLRHClassifier(C=100), FOLDS),
        (make_multilabel(60, 6, 6, max_labels=4), MLRHClassifier(label_space="observed"), FOLDS),
        pytest.param(
            make_multilabel(60, 8),
            MLRHClassifier(C=100),
            KFold(20, shuffle=True, random_state=0),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["every set seen", "sets outside", "twenty folds in ten groups"],
)
def test_honest_confidence_has_the_temperature_and_the_share_outside_of_the_other_folds(data, model, folds):
    X, Y = data
    parts = held_out_by_hand(model, X, Y, folds)
    expected = []
    for number, (_, d, sets) in enumerate(parts):
        others = [part for other, part in enumerate(parts) if other % 10 != number % 10]
        inside = np.concatenate([np.isfinite(other.log_prob(Y[rows])) for rows, other, _ in others]).mean()
        expected.append(inside * d.temper(best_temperature(others, Y)).prob(sets))
    clf = CalibratedSets(model, cv=folds).fit(X, Y)
    assert (clf.outside_share_ > 0.1) == (model.label_space == "observed")
    np.testing.assert_allclose(clf.confidence_, np.concatenate(expected), atol=1e-5)
    assert clf.calibration_error_ == expected_calibration_error(clf.confidence_, clf.correct_)
    assert clf.risk_coverage_.area == risk_coverage(clf.confidence_, clf.correct_).area


@pytest.mark.skipif(Version(sklearn.__version__) < Version("1.8"), reason="scikit-learn has temperatures from 1.8 on")
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("estimator", [LogisticRegression(C=100), MLRHClassifier(C=100, tol=1e-12)])
def test_classes_are_tempered_as_by_scikit_learn_but_for_the_imagined_rows(estimator, n_classes, monkeypatch):
    monkeypatch.setattr(calibration, "N_IMAGINED", 0)
    X, y = make_classification(
        200, n_classes=n_classes, n_informative=4, flip_y=0.2, class_sep=0.6, n_clusters_per_class=1, random_state=0
    )
    y = np.array(["no", "perhaps", "yes"])[y]
    theirs = CalibratedClassifierCV(estimator, method="temperature", cv=FOLDS, ensemble=False).fit(X, y)
    clf = CalibratedSets(estimator, cv=FOLDS).fit(X, y)
    np.testing.assert_allclose(clf.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(clf.confidence(X), theirs.predict_proba(X).max(axis=1), atol=1e-6)
    assert np.array_equal(clf.predict(X), theirs.predict(X)) and clf.score(X, y) == theirs.score(X, y)


def test_isotonic_confidence_is_scikit_learns_regression_on_the_held_out_rows_and_two_imagined_ones():
    X, Y = make_multilabel(150, 8)
    parts = held_out_by_hand(MLRHClassifier(C=100), X, Y)
    raw, right = map(np.concatenate, confidence_and_right(parts, Y))
    expected = IsotonicRegression().fit(np.append(raw, [0, 1]), np.append(right, [1, 0]))
    clf = CalibratedSets(MLRHClassifier(C=100), method="isotonic", cv=FOLDS).fit(X, Y)
    fitted = MLRHClassifier(C=100).fit(X, Y)
    confidence = fitted.distribution(X).prob(fitted.predict(X))
    np.testing.assert_allclose(clf.confidence(X), expected.predict(confidence), atol=1e-6)
    np.testing.assert_allclose(isotonic_map(raw, right).predict(confidence), clf.confidence(X), atol=1e-12)
    assert np.array_equal(clf.predict(X), fitted.predict(X)) and clf.temperature_ == 1.0


@pytest.mark.parametrize("right", [0, 1])
def test_isotonic_confidence_of_few_rows_is_neither_zero_nor_one(right):
    found = isotonic_map([0.2, 0.5, 0.5], [right] * 3).predict([0.0, 0.2, 0.5, 1.0])
    np.testing.assert_allclose(found, np.full(4, (1 + 3 * right) / 5))
    separated = isotonic_map([0.2, 0.3, 0.3, 0.7, 0.8, 0.9], [0, 0, 0, 1, 1, 1]).predict([0.0, 0.3, 0.7, 1.0])
    np.testing.assert_allclose(separated, [0.25, 0.25, 0.75, 0.75])


INDEPENDENT = [
    OneVsRestClassifier(LogisticRegression(C=100)),
    MultiOutputClassifier(LogisticRegression()),
    ClassifierChain(LogisticRegression()),
    RandomForestClassifier(n_estimators=10, random_state=0),
    DecisionTreeClassifier(random_state=0),
    KNeighborsClassifier(7),
    make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression())),
]


@pytest.mark.parametrize("estimator", INDEPENDENT, ids=lambda estimator: type(estimator).__name__)
def test_confidence_without_a_distribution_is_the_product_over_labels(estimator):
    raw = np.empty(80)
    for train, rows in FOLDS.split(X):
        fitted = clone(estimator).fit(X[train], Y[train])
        raw[rows] = np.exp(independent_set_log_proba(marginals_of(fitted, X[rows]), fitted.predict(X[rows])))
    clf = CalibratedSets(estimator, cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(clf.raw_confidence_, raw[clf.rows_], atol=1e-12)
    assert np.array_equal(clf.predict(X), clf.estimator_.predict(X))
    assert np.isfinite(clf.temperature_) and np.isfinite(clf.confidence(X)).all()


def test_marginals_of_independent_labels_are_tempered_one_by_one():
    clf = CalibratedSets(OneVsRestClassifier(LogisticRegression(C=1000))).fit(X, Y)
    tempered = expit(logit(clf.estimator_.predict_proba(X)) / clf.temperature_)
    np.testing.assert_allclose(clf.predict_proba(X), tempered, atol=1e-12)
    expected = np.exp(independent_set_log_proba(clf.predict_proba(X), clf.predict(X)))
    np.testing.assert_allclose(clf.confidence(X), expected, atol=1e-12)


def test_certain_answers_that_are_wrong_make_the_temperature_high_and_no_error():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(200, 3)), rng.integers(0, 2, size=(200, 3))
    clf = CalibratedSets(DecisionTreeClassifier(random_state=0)).fit(X, Y)
    assert set(np.unique(np.concatenate(clf.estimator_.predict_proba(X)))) == {0.0, 1.0}
    assert clf.temperature_ > 10
    # With labels by chance, every set of three has one chance in eight.
    assert clf.raw_confidence_.min() > 0.99 and abs(clf.confidence(X) - 1 / 8).max() < 0.05


SIZED, SIZED_10 = MLRHClassifier(size_bias=True), MLRHClassifier(C=10, size_bias=True)
WRAPPED = [
    make_pipeline(StandardScaler(), SIZED_10),
    GridSearchCV(make_pipeline(StandardScaler(), SIZED), {"mlrhclassifier__C": [10]}, cv=2),
    make_pipeline(StandardScaler(), GridSearchCV(SIZED, {"C": [10]}, cv=2)),
    make_pipeline(StandardScaler(), make_pipeline(SIZED_10)),
]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_pipelines_and_searches_are_asked_for_the_distribution_of_their_last_step(wrapped):
    clf = CalibratedSets(wrapped, cv=FOLDS).fit(X, Y)
    raw = np.empty(80)
    for train, rows in FOLDS.split(X):
        scaler = StandardScaler().fit(X[train])
        d = clone(SIZED_10).fit(scaler.transform(X[train]), Y[train])
        raw[rows] = d.distribution(scaler.transform(X[rows])).top_sets(1)[1][:, 0]
    np.testing.assert_allclose(clf.raw_confidence_, np.exp(raw[clf.rows_]), atol=1e-6)
    assert clf.distribution(X).mode().sum(axis=1).max() <= 3


def test_the_most_probable_set_stays_at_every_temperature_and_the_decision_for_f1_moves():
    X, Y = make_multilabel(120, 10, seed=3)
    exact, f1 = (CalibratedSets(MLRHClassifier(C=1000, decision=name)).fit(X, Y) for name in ("exact_match", "f1"))
    assert exact.temperature_ > 1.1
    new = 0.3 * np.random.default_rng(1).normal(size=(500, 10))
    np.testing.assert_array_equal(exact.predict(new), MLRHClassifier(C=1000).fit(X, Y).predict(new))
    np.testing.assert_array_equal(f1.predict(new), decisions.f1(f1.distribution(new)))
    assert (f1.predict(new) != f1.estimator_.predict(new)).any()
    np.testing.assert_array_equal(f1.confidence(new), f1.distribution(new).prob(f1.predict(new)))


def rows_and_new_ones(n_samples, n_features):
    """X, Y to fit and 6,000 new rows of the same true model."""
    X, Y = make_multilabel(6000 + n_samples, n_features, seed=1)
    return X[6000:], Y[6000:], X[:6000], Y[:6000]


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
@pytest.mark.parametrize(
    ("C", "n_samples", "n_features"), [(1e4, 100, 12), (1e-3, 300, 40)], ids=["too sure", "not sure enough"]
)
def test_calibration_brings_confidence_near_the_share_of_right_sets_on_new_rows(C, n_samples, n_features, method):
    X, Y, X_new, Y_new = rows_and_new_ones(n_samples, n_features)
    clf = CalibratedSets(MLRHClassifier(C=C), method=method).fit(X, Y)
    sets = clf.predict(X_new)
    right = (sets == Y_new).all(axis=1)
    raw = clf.estimator_.distribution(X_new).prob(sets)
    before, after = (expected_calibration_error(c, right) for c in (raw, clf.confidence(X_new)))
    assert before > 0.2 and after < 0.08
    assert method == "isotonic" or (clf.temperature_ > 1) == (C > 1)
    assert abs(clf.raw_calibration_error_ - before) < 0.08


def test_rows_held_impossible_are_left_out_of_the_temperature_and_counted():
    X, Y = make_multilabel(60)
    Y[:6] = [[1, 1, 1, 1]] * 3 + [[0, 0, 0, 0]] * 3
    folds = [(np.arange(20, 60), np.arange(20)), (np.arange(6, 40), np.arange(40, 60))]
    model = MLRHClassifier(label_space="observed", C=100)
    clf = CalibratedSets(model, cv=folds).fit(X, Y)
    inside = np.concatenate([(Y[rows, None] == Y[train]).all(axis=2).any(axis=1) for train, rows in folds])
    assert clf.outside_share_ == pytest.approx(1 - inside.mean()) and clf.outside_share_ >= 6 / 40
    rows = clf.rows_[inside]
    kept = [(folds[0][0], np.intersect1d(folds[0][1], rows)), (folds[1][0], np.intersect1d(folds[1][1], rows))]
    assert CalibratedSets(model, cv=kept).fit(X, Y).temperature_ == pytest.approx(clf.temperature_, rel=1e-9)


def test_a_temperature_without_any_possible_row_is_an_error_and_isotonic_is_not():
    X, Y = np.arange(8.0)[:, None], np.eye(8, dtype=int)
    with pytest.raises(ValueError, match=r"it excludes all 8\. Use method='isotonic'"):
        CalibratedSets(MLRHClassifier(label_space="observed"), cv=LeaveOneOut()).fit(X, Y)
    model = MLRHClassifier(label_space="observed")
    clf = CalibratedSets(model, method="isotonic", cv=LeaveOneOut()).fit(X, Y)
    assert clf.outside_share_ == 1.0
    np.testing.assert_allclose(clf.confidence(X), np.full(8, 0.1))


def test_a_class_that_a_fold_does_not_show_counts_as_wrong():
    X, y = load_iris(return_X_y=True)
    rows = np.append(np.arange(100), 149)
    for estimator in (MLRHClassifier(), GaussianNB()):
        clf = CalibratedSets(estimator, cv=KFold(4, shuffle=True, random_state=0)).fit(X[rows], y[rows])
        rare = clf.rows_ == 100
        assert not clf.correct_[rare].any() and clf.outside_share_ == pytest.approx(1 / 101)
        assert clf.predict_proba(X).shape == (150, 3)


def test_an_unknown_class_is_wrong_though_the_answer_is_the_first_class():
    # Without the third class there are two, one label, and the third class has no code of its own.
    rng = np.random.default_rng(0)
    X = np.r_[rng.normal(-3, 1, size=(40, 1)), rng.normal(3, 1, size=(40, 1)), [[-3.0]]]
    clf = CalibratedSets(GaussianNB()).fit(X, np.repeat([0, 1, 2], [40, 40, 1]))
    assert clf.correct_[clf.rows_ < 80].mean() > 0.95 and not clf.correct_[clf.rows_ == 80].any()
    assert not clf.raw_correct_[clf.rows_ == 80].any()


def test_temperatures_stay_within_limits():
    X, y = np.repeat([[-1.0], [1.0]], 20, axis=0), np.repeat([0, 1], 20)
    # All is right, but so unsure that four imagined rows in 44 would still allow a temperature far below 0.01.
    assert CalibratedSets(LogisticRegression(C=1e-6)).fit(X, y).temperature_ == 0.01
    # The classes of each half are turned around in the other, so that every answer is wrong.
    half = np.arange(40) % 2
    halves = [(np.flatnonzero(half), np.flatnonzero(1 - half)), (np.flatnonzero(1 - half), np.flatnonzero(half))]
    turned = CalibratedSets(LogisticRegression(), cv=halves).fit(X, np.where(half, y, 1 - y))
    assert turned.temperature_ == 1e4 and not turned.correct_.any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_slopes_lost_in_rounding_are_no_reason_for_a_temperature(dtype):
    X, Y = np.repeat(np.eye(4), 15, axis=0), np.repeat(np.eye(4, dtype=int), 15, axis=0)
    for C in (1, 100, 1e4):  # the larger C, the surer the model, and the more of the likelihood is rounding
        model = MLRHClassifier(C=C, tol=1e-12 if dtype is np.float64 else 1e-5)
        clf = CalibratedSets(model, cv=FOLDS).fit(X.astype(dtype), Y)
        expected = best_temperature(held_out_by_hand(model, X, Y), Y)
        assert clf.temperature_ == pytest.approx(expected, rel=1e-3 if dtype is np.float64 else 0.05)
    blind = CalibratedSets(DummyClassifier(strategy="uniform", random_state=0)).fit(X, Y[:, 0])
    assert blind.temperature_ == 1.0


def two_clouds(seed, n_samples):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n_samples)
    return rng.normal(size=(n_samples, 4)) + 1.6 * np.eye(4)[0] * (2 * y[:, None] - 1), y


def test_a_temperature_of_twenty_rows_makes_new_rows_likelier_on_average():
    losses = []
    for seed in range(20):
        X, y = two_clouds(seed, 2020)
        clf = CalibratedSets(MLRHClassifier()).fit(X[:20], y[:20])
        truth = np.arange(2000), y[20:]
        losses.append([-np.log(m.predict_proba(X[20:])[truth]).mean() for m in (clf, clf.estimator_)])
    calibrated, raw = np.mean(losses, axis=0)
    assert calibrated < raw


@pytest.mark.parametrize("C", [1, 100])
def test_imagined_rows_move_the_temperature_of_two_hundred_rows_by_less_than_one_percent(C, monkeypatch):
    for seed in (1, 4, 5):
        X, y = two_clouds(seed, 200)
        found = []
        for n_imagined in (0, 4):
            monkeypatch.setattr(calibration, "N_IMAGINED", n_imagined)
            found.append(CalibratedSets(MLRHClassifier(C=C)).fit(X, y).temperature_)
        assert abs(np.log(found[0])) > 0.05 and found[1] == pytest.approx(found[0], rel=0.01)


def test_confidence_allows_for_true_sets_outside_the_label_space():
    X, Y = make_multilabel(6200, 6, 10, min_labels=1, max_labels=5, seed=2)
    clf = CalibratedSets(MLRHClassifier(label_space="observed")).fit(X[:200], Y[:200])
    sets = clf.predict(X[200:])
    given_inside = clf.distribution(X[200:]).prob(sets)
    assert clf.outside_share_ > 0.3
    np.testing.assert_allclose(clf.confidence(X[200:]), (1 - clf.outside_share_) * given_inside, rtol=1e-12)
    right = (sets == Y[200:]).all(axis=1).mean()
    assert abs(clf.confidence(X[200:]).mean() - right) < 0.03 < given_inside.mean() - right


def test_honest_isotonic_confidence_is_mapped_by_the_other_folds():
    X, Y = make_multilabel(150, 8)
    parts = held_out_by_hand(MLRHClassifier(C=100), X, Y)
    raw, right = confidence_and_right(parts, Y)
    expected = []
    for number, confidence in enumerate(raw):
        others = [np.concatenate(values[:number] + values[number + 1 :]) for values in (raw, right)]
        expected.append(isotonic_map(*others).predict(confidence))
    clf = CalibratedSets(MLRHClassifier(C=100), method="isotonic", cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(clf.confidence_, np.concatenate(expected), atol=1e-6)


class ByFirstColumn(ClassifierMixin, BaseEstimator):
    """Always class 1, with a probability from X alone, whatever it is fitted to."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        probability = 0.5 + 0.5 * expit(X[:, 0])
        return np.column_stack([1 - probability, probability])

    def predict(self, X):
        return np.ones(len(X), int)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
@pytest.mark.parametrize(
    "cv", [RepeatedKFold(n_splits=3, n_repeats=4, random_state=0), ShuffleSplit(12, test_size=0.3, random_state=0)]
)
def test_the_class_of_a_row_has_no_part_in_its_own_honest_confidence_though_folds_repeat_rows(cv, method):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 1)), rng.integers(0, 2, 40)
    clf = CalibratedSets(ByFirstColumn(), method=method, cv=cv).fit(X, y)
    for row in np.unique(clf.rows_)[:5]:
        other = CalibratedSets(ByFirstColumn(), method=method, cv=cv).fit(X, np.where(np.arange(40) == row, 1 - y, y))
        here = clf.rows_ == row
        np.testing.assert_array_equal(other.confidence_[here], clf.confidence_[here])
        assert (other.confidence_ != clf.confidence_).any()


def test_a_row_of_weight_two_counts_twice_and_one_of_weight_zero_not_at_all():
    X, Y = make_multilabel(90)
    weights = np.arange(90) % 3
    group = np.arange(90) // 3 % 4
    copies = np.repeat(np.arange(90), weights)
    model = MLRHClassifier(tol=1e-14, max_iter=5000)
    for method in ("temperature", "isotonic"):
        by_weight = CalibratedSets(model, method=method, cv=list(GroupKFold(4).split(X, groups=group)))
        by_copy = CalibratedSets(model, method=method, cv=list(GroupKFold(4).split(copies, groups=group[copies])))
        by_weight.fit(X, Y, sample_weight=weights)
        by_copy.fit(X[copies], Y[copies])
        np.testing.assert_allclose(by_weight.confidence(X), by_copy.confidence(X), atol=1e-6)
        assert by_weight.calibration_error_ == pytest.approx(by_copy.calibration_error_, abs=1e-6)
        assert by_weight.risk_coverage_.area == pytest.approx(by_copy.risk_coverage_.area, abs=1e-6)
    for refusing in (KNeighborsClassifier(), make_pipeline(StandardScaler(), KNeighborsClassifier())):
        with pytest.raises(ValueError, match=r"because KNeighborsClassifier\.fit doesn't take it"):
            CalibratedSets(refusing).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_scaling_weights_of_at_most_one_changes_nothing(method):
    X, y = make_classification(300, n_informative=4, flip_y=0.2, random_state=0)
    weights = 1.0 + np.arange(300) % 2
    expected = CalibratedSets(GaussianNB(), method=method).fit(X, y, sample_weight=weights / 2)
    for scale in (1e-2, 1 / 450, 1e-9):
        clf = CalibratedSets(GaussianNB(), method=method).fit(X, y, sample_weight=scale * weights)
        np.testing.assert_allclose(clf.confidence(X), expected.confidence(X), atol=1e-6)
        np.testing.assert_allclose(clf.confidence_, expected.confidence_, atol=1e-6)
    assert abs(expected.confidence(X) - expected.estimator_.predict_proba(X).max(axis=1)).max() > 0.05


@pytest.mark.parametrize("wrapped", WRAPPED[:3])
def test_the_last_step_of_a_pipeline_gets_the_weights_also_in_a_search(wrapped):
    weights = 0.5 + np.arange(80) % 3
    clf = CalibratedSets(wrapped, cv=FOLDS).fit(X, Y, sample_weight=weights)
    scaled = StandardScaler().fit_transform(X)
    fitted = MLRHClassifier(C=10, size_bias=True).fit(scaled, Y, sample_weight=weights)
    found = clf.distribution(X).temper(1 / clf.temperature_).marginals()
    np.testing.assert_allclose(found, fitted.distribution(scaled).marginals(), atol=1e-6)


def test_a_class_or_label_that_only_rows_of_weight_zero_have_is_none():
    present = (np.arange(80) > 0).astype(float)
    sets = FORMS["sets"](Y)
    for meta in (CalibratedSets, TunedThresholds):
        clf = meta(MLRHClassifier()).fit(X, [sets[0] | {"e"}, *sets[1:]], sample_weight=present)
        assert clf.classes_.tolist() == list("abcd") and clf.predict_proba(X).shape == (80, 4)
    for n_classes in (2, 3):
        codes = np.arange(80) % n_classes
        codes[0] = n_classes
        clf = CalibratedSets(MLRHClassifier()).fit(X, codes, sample_weight=present)
        expected = CalibratedSets(MLRHClassifier()).fit(X[1:], codes[1:])
        assert clf.classes_.tolist() == list(range(n_classes))
        np.testing.assert_allclose(clf.predict_proba(X), expected.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_y_is_calibrated_alike_and_answered_in_its_own_form(form):
    expected, clf = (CalibratedSets(MLRHClassifier()).fit(X, y) for y in (Y, FORMS[form](Y)))
    assert clf.temperature_ == expected.temperature_
    selected = clf.select(X, np.median(clf.confidence(X)))
    assert len(selected.rows) == 40
    assert_in_form(clf.predict(X), expected.predict(X), form)
    assert_in_form(selected.sets, expected.predict(X)[selected.rows], form)
    assert clf.score(X, FORMS[form](Y)) == (expected.predict(X) == Y).all(axis=1).mean()


def test_rows_below_the_confidence_have_no_set_at_all_and_frames_keep_the_numbers_of_rows():
    X, Y = make_multilabel(80)
    X = pd.DataFrame(X, index=np.arange(80) + 1000, columns=list("uvwxyz"))
    clf = CalibratedSets(MLRHClassifier()).fit(X, pd.DataFrame(Y, columns=list("abcd"), index=X.index))
    confidence = clf.confidence(X)
    selected = clf.select(X, 0.5)
    assert 0 < len(selected.rows) < 80
    np.testing.assert_array_equal(selected.answered, confidence >= 0.5)
    np.testing.assert_array_equal(selected.sets.index, X.index[confidence >= 0.5])
    np.testing.assert_array_equal(selected.confidence, confidence)
    pd.testing.assert_frame_equal(selected.sets, clf.predict(X).loc[selected.sets.index])
    assert len(clf.select(X, np.inf).sets) == 0 and len(clf.select(X, 0).sets) == 80
    for bad in (np.nan, 80, -0.1, True, np.True_, "0.5", None):
        with pytest.raises(ValueError, match=r"min_confidence must be a number from 0 to 1, or infinity .*; got "):
            clf.select(X, bad)


def test_the_threshold_for_a_risk_answers_the_most_held_out_rows_that_keep_it():
    X, Y = make_multilabel(200, 8)
    clf = CalibratedSets(MLRHClassifier()).fit(X, Y)
    for risk in (0.1, 0.3, 0.5):
        threshold = clf.threshold_for_risk(risk)
        keeping = [t for t in clf.confidence_ if (~clf.correct_[clf.confidence_ >= t]).mean() <= risk]
        assert threshold == min(keeping)
        assured = assured_threshold(clf.confidence_, clf.correct_, risk=risk, assurance=0.9)
        assert clf.threshold_for_risk(risk, assurance=0.9) == assured > threshold
    assert clf.threshold_for_risk(0.5, assurance=0.9) < np.inf
    assert clf.threshold_for_risk(0.0, assurance=0.9) == np.inf
    assert len(clf.select(X, clf.threshold_for_risk(0.0, assurance=0.9)).rows) == 0


def test_an_assured_risk_is_kept_on_new_rows():
    X, Y, X_new, Y_new = rows_and_new_ones(2000, 40)
    clf = CalibratedSets(MLRHClassifier(), cv=3).fit(X, Y)
    for risk in (0.1, 0.2):
        selected = clf.select(X_new, clf.threshold_for_risk(risk, assurance=0.95))
        assert len(selected.rows) > 600
        assert (selected.sets != Y_new[selected.rows]).any(axis=1).mean() <= risk


def test_an_assurance_needs_rows_of_equal_weight_held_out_once():
    repeated = CalibratedSets(MLRHClassifier(), cv=RepeatedKFold(n_splits=2, n_repeats=2, random_state=0)).fit(X, Y)
    weighted = CalibratedSets(MLRHClassifier()).fit(X, Y, sample_weight=1.0 + np.arange(80) % 2)
    for clf in (repeated, weighted):
        assert np.isfinite(clf.threshold_for_risk(0.9))
        with pytest.raises(ValueError, match="equal weight that are held out once each"):
            clf.threshold_for_risk(0.9, assurance=0.9)


def test_only_a_temperature_calibrates_the_whole_distribution():
    clf = CalibratedSets(MLRHClassifier()).fit(X, Y)
    assert clf.calibrator_ is None
    np.testing.assert_array_equal(clf.predict_proba(X), clf.distribution(X).marginals())
    clf.set_params(method="isotonic").fit(X, Y)
    assert clf.temperature_ == 1.0 and clf.calibrator_ is not None
    for name in ("distribution", "predict_proba"):
        with pytest.raises(AttributeError) as caught:
            getattr(clf, name)
        assert "use method='temperature' for a calibrated distribution" in str(caught.value.__cause__)


@pytest.mark.slow
def test_parallel_folds_give_the_same_confidence():
    expected = CalibratedSets(MLRHClassifier(tol=1e-14)).fit(X, Y)
    parallel = CalibratedSets(MLRHClassifier(tol=1e-14), n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(parallel.confidence(X), expected.confidence(X))


def test_sparse_rows_and_kernel_matrices_give_the_same_confidence():
    expected = CalibratedSets(MLRHClassifier(tol=1e-14)).fit(X, Y)
    scarce = CalibratedSets(MLRHClassifier(tol=1e-14)).fit(sparse.csr_matrix(X), Y)
    np.testing.assert_allclose(scarce.confidence(sparse.csr_matrix(X)), expected.confidence(X), atol=1e-4)
    gram = CalibratedSets(KernelMLRHClassifier(kernel="precomputed", tol=1e-14)).fit(X @ X.T, Y)
    np.testing.assert_allclose(gram.confidence(X @ X.T), expected.confidence(X), atol=1e-4)


INSIDE = [(np.arange(20), np.arange(20, 40)), (np.arange(20), np.arange(20, 30))]
UNFIT = [
    (CalibratedSets(MLRHClassifier(), method="platt"), "The 'method' parameter of CalibratedSets must be"),
    (
        CalibratedSets(OneVsRestClassifier(LinearSVC())),
        "must have distribution or predict_proba once fitted; One",
    ),
    (CalibratedSets(MLRHClassifier(), cv=81), "got 81 folds for n_samples=80"),
    (CalibratedSets(MLRHClassifier(), cv=INSIDE), r"the first fold holds out all 20\. Use folds that don't overlap"),
]


@pytest.mark.parametrize(("clf", "message"), UNFIT)
def test_what_cannot_be_calibrated_is_an_error_that_says_why(clf, message):
    with pytest.raises(ValueError, match=message):
        clf.fit(X, Y)


def test_an_isotonic_map_needs_probabilities_as_reliability_does():
    with pytest.raises(ValueError, match=r"confidence must hold probabilities; got 2.5 in row 0"):
        isotonic_map([2.5, 0.3], [1, 0])


class RefusesAllRows(ByFirstColumn):
    """Fits folds, and fails on 80 rows."""

    def fit(self, X, y):
        if len(X) == 80:
            raise ValueError("too many rows")
        return super().fit(X, y)


@pytest.mark.parametrize("meta", [CalibratedSets, TunedThresholds])
def test_a_fit_that_fails_leaves_the_last_one_as_it_was(meta):
    frame = pd.DataFrame(X, columns=list("uvwxyz"))
    clf = meta(MLRHClassifier()).fit(frame, Y)
    before, expected = dict(vars(clf)), clf.predict_proba(frame)
    with pytest.raises(ValueError, match="same number of rows"):
        clf.fit(X[:, :5], Y[:50])
    clf.set_params(estimator=RefusesAllRows())
    with pytest.raises(ValueError, match="too many rows"):
        clf.fit(X[:, :5], Y[:, 0])
    assert vars(clf) == before | {"estimator": clf.estimator}
    np.testing.assert_array_equal(clf.predict_proba(frame), expected)


@pytest.mark.parametrize("meta", [CalibratedSets, TunedThresholds])
@pytest.mark.parametrize("mask", [np.ma.masked_equal, lambda y, value: np.where(y == value, np.nan, y)])
def test_labels_that_are_not_known_are_an_error_that_says_to_drop_their_rows(meta, mask):
    codes = Y.astype(float)
    codes[[7, 9], 2] = 5
    with pytest.raises(ValueError, match=r"every label known, .* 2 rows have .* the first is row 7. Drop these rows"):
        meta(MLRHClassifier()).fit(X, mask(codes, 5))


def test_confidence_of_a_model_that_is_not_fitted_says_so():
    with pytest.raises(NotFittedError):
        CalibratedSets(MLRHClassifier()).confidence([[0.0]])
