"""Boosted trees under a label space: beside separate boosters, enumeration, and scikit-learn's checks."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xgboost
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from mlrh import MLRHAuto, MLRHBoostingClassifier
from mlrh.estimators import boosting
from mlrh.estimators.boosting import _Course, _without_features
from mlrh.spaces import CardinalitySpace, ObservedSpace

# Nothing is drawn, values are hardly binned, and few rounds learn much.
WHOLE = {"subsample": 1.0, "colsample_bynode": 1.0, "reg_lambda": 1.0, "max_bin": 256, "n_jobs": 1, "random_state": 0}


def rows(n=200, seed=0):
    """Features, and labels of which the second tends to come with the first, whatever the features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).round(2)
    first = X[:, 0] + 0.3 * rng.normal(size=n) > 0
    third = np.abs(X[:, 1]) + 0.3 * rng.normal(size=n) > 1
    return X, np.column_stack([first, first ^ (rng.random(n) < 0.1), third]).astype(int)


def test_without_limits_it_is_one_booster_per_label():
    X, Y = rows()
    model = MLRHBoostingClassifier(label_space=CardinalitySpace(3, 0, 3), n_estimators=20, max_depth=3, **WHOLE)
    scores = model.fit(X, Y).decision_function(X)
    for k in range(3):
        options = {"max_depth": 3, "learning_rate": 0.05, "min_child_weight": 0.01, "tree_method": "hist"}
        logistic = {"objective": "binary:logistic", "base_score": float(Y[:, k].mean()), "nthread": 1}
        booster = xgboost.train({**options, **logistic}, xgboost.DMatrix(X, Y[:, k]), 20)
        margins = booster.predict(xgboost.DMatrix(X), output_margin=True)
        # Trees and margins are float32, and a gradient that differs in its last digit may move a split by one.
        np.testing.assert_allclose(scores[:, k], margins, atol=1e-4)


@pytest.mark.parametrize("space", [CardinalitySpace(3, 0, 2, learn_bias=True), ObservedSpace(np.eye(3, dtype=int))])
def test_the_gradient_is_that_of_the_log_likelihood_of_the_set(space):
    rng = np.random.default_rng(0)
    Y, weights = np.eye(3, dtype=np.int8)[[0, 1, 2, 1]], np.array([1.0, 2.0, 0.5, 1.0])
    margins, course = rng.normal(size=(4, 3)).astype(np.float32), _Course(space, Y, weights, 0.1)
    space, scores, step = course.space_after(0), course.intercept + margins, 1e-5
    gradient, curvature = course.gradient(margins, None)

    def loss(moved):
        return -weights @ space.distribution(moved).log_prob(Y)

    for i in range(4):
        for k in range(3):
            moved = np.zeros((4, 3))
            moved[i, k] = step
            up, down = loss(scores + moved), loss(scores - moved)
            np.testing.assert_allclose(gradient[i, k], (up - down) / (2 * step), atol=1e-8)
            second = (up - 2 * loss(scores) + down) / step**2  # Var(y_k): rounding allows four digits
            np.testing.assert_allclose(curvature[i, k], second, atol=1e-4)


def test_the_start_has_the_frequencies_of_training():
    Y = np.repeat(np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]], np.int8), [5, 3, 2], axis=0)
    intercept, space = _without_features(ObservedSpace(np.unique(Y, axis=0)), Y, np.ones(10))
    found = space.distribution(intercept[None]).prob([[1, 0, 0]])
    np.testing.assert_allclose(found, 0.5, atol=0.03)  # a light ridge holds biases to 0


def test_every_round_lowers_the_loss_and_moves_the_biases():
    X, Y = rows()
    model = MLRHBoostingClassifier(label_space="observed", n_estimators=30, **WHOLE).fit(X, Y)
    assert len(model.history_) == model.n_estimators_ == 30
    assert (np.diff(model.history_) < 0).all()
    start = _without_features(model.label_space_.with_bias(np.zeros(len(model.sets_))), Y.astype(np.int8), np.ones(200))
    assert np.abs(model.set_bias_ - start[1].set_bias).max() > 0.01
    np.testing.assert_allclose(-model.distribution(X).log_prob(Y).mean(), model.history_[-1], rtol=0.1)


def test_a_row_of_weight_two_counts_as_the_row_twice():
    X, Y = rows(120)
    weights = np.where(np.arange(120) % 3 == 0, 2.0, 1.0)
    model = MLRHBoostingClassifier(label_space="observed", n_estimators=10, **WHOLE)
    weighted = clone(model).fit(X, Y, weights).decision_function(X)
    twice = np.repeat(np.arange(120), weights.astype(int))
    repeated = clone(model).fit(X[twice], Y[twice]).decision_function(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-5)  # float32 sums in another order


def test_unknown_labels_are_summed_over():
    X, Y = rows()
    partly = Y.astype(float)
    partly[::4, 2] = np.nan
    model = MLRHBoostingClassifier(label_space="cardinality", min_labels=0, max_labels=3, n_estimators=50, **WHOLE)
    predicted = model.fit(X, partly).predict(X)
    assert (predicted[::4, 2] == Y[::4, 2]).mean() > 0.9
    known = clone(model).fit(np.delete(X, np.s_[::4], axis=0), np.delete(Y, np.s_[::4], axis=0))
    assert (predicted == known.predict(X)).mean() > 0.9


def test_missing_values_and_categories_are_features():
    rng = np.random.default_rng(0)
    colour = pd.Categorical(rng.choice(["red", "green", "blue"], 200))
    size = np.where(rng.random(200) < 0.5, np.nan, 1.0)
    X = pd.DataFrame({"size": size, "colour": colour})
    Y = np.column_stack([colour == "green", np.isnan(size)]).astype(int)
    options = {**WHOLE, "min_labels": 0, "max_labels": 2}
    model = MLRHBoostingClassifier(label_space="cardinality", n_estimators=50, **options).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), Y)
    # Other categories, in another order: the names count. A colour that training didn't show is a missing value.
    other = pd.DataFrame({"size": [1.0, np.nan, 1.0], "colour": pd.Categorical(["green", "pink", "red"])})
    np.testing.assert_array_equal(model.predict(other)[[0, 2]], [[1, 0], [0, 0]])
    with pytest.raises(ValueError, match="must be a DataFrame"):
        model.predict(np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("values", "found"), [(["p", "q"] * 20, "'p'"), (pd.date_range("2020-01-01", periods=40), "Timestamp")]
)
@pytest.mark.parametrize("kind", [MLRHBoostingClassifier, MLRHAuto])
def test_a_column_that_holds_neither_numbers_nor_categories_is_named(kind, values, found):
    X = pd.DataFrame({"size": pd.Series([1, None] * 20, dtype=object), "colour": values})
    with pytest.raises(ValueError, match=f"Column 'colour' of X must hold numbers or categories; found {found}"):
        kind().fit(X, np.eye(2, dtype=int)[np.arange(40) % 2])


def test_the_type_of_a_feature_can_be_said_for_arrays_too():
    rng = np.random.default_rng(0)
    colour, size = rng.choice([3, 10, 500_000_000], 200), rng.normal(size=200)
    Y = np.column_stack([colour == 10, size > 0]).astype(int)
    X = np.column_stack([colour, size])
    options = {**WHOLE, "min_labels": 0, "max_labels": 2, "n_estimators": 30, "feature_types": ["c", "q"]}
    model = MLRHBoostingClassifier(label_space="cardinality", **options).fit(X, Y)
    frame = pd.DataFrame({"colour": pd.Categorical(colour), "size": size})
    same = clone(model).set_params(feature_types=None).fit(frame, Y)
    np.testing.assert_array_equal(model.decision_function(X), same.decision_function(frame))
    table = pl.DataFrame({"colour": pl.Series(colour.astype(str), dtype=pl.Categorical), "size": size})
    other = clone(model).set_params(feature_types=None).fit(table, Y)
    np.testing.assert_allclose(other.decision_function(table), model.decision_function(X), atol=1e-6)
    # A category that training didn't show is a missing value.
    np.testing.assert_array_equal(*(model.decision_function([[new, 0.5]]) for new in (11, np.nan)))
    with pytest.raises(ValueError, match=r"for each feature of X; got \['c'\] for 2 features"):
        clone(model).set_params(feature_types=["c"]).fit(X, Y)
    with pytest.raises(ValueError, match="A sparse X can't have features of categories"):
        clone(model).fit(sparse.csr_array(X), Y)


def test_numbers_beyond_float32_are_refused_with_a_sentence():
    model = MLRHBoostingClassifier(n_estimators=1, **WHOLE)
    with pytest.raises(ValueError, match=r"Features must be at most 3\.40282e\+38 in magnitude"):
        model.fit([[0.0], [1e39]], [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match=r"A sample_weight must be 0 or lie from 1e-15 to 1e\+15"):
        model.fit([[0.0], [1.0]], [[1, 0], [0, 1]], sample_weight=[1e-20, 1.0])


def test_a_path_of_rounds_is_one_fit_for_each_number():
    X, Y = rows(100)
    model = MLRHBoostingClassifier(subsample=0.5, random_state=3, n_jobs=1)
    for n_rounds, fitted in zip((3, 10), model._fit_path(X, Y, (3, 10)), strict=True):
        alone = clone(model).set_params(n_estimators=n_rounds).fit(X, Y)
        assert fitted.n_estimators == fitted.n_estimators_ == n_rounds
        np.testing.assert_array_equal(fitted.decision_function(X), alone.decision_function(X))
        np.testing.assert_array_equal(fitted.set_bias_, alone.set_bias_)


def test_a_label_of_three_rows_is_learned_unlike_with_the_boosters_own_least_weight_of_a_leaf():
    X = np.random.default_rng(0).normal(size=(2000, 3))
    Y = np.column_stack([X[:, 0] > 0, X[:, 1] > np.sort(X[:, 1])[-4]]).astype(int)
    model = MLRHBoostingClassifier(n_estimators=60, **WHOLE)
    found, missed = (
        clone(model).set_params(**own).fit(X, Y).predict_proba(X)[Y[:, 1] == 1, 1]
        for own in ({}, {"min_child_weight": 1.0})
    )
    assert (found > 0.1).all() and (missed < 0.05).all()
    by_default = MLRHBoostingClassifier(n_jobs=1, random_state=0).fit(X, Y).predict_proba(X)[Y[:, 1] == 1, 1]
    assert (by_default > 10 * Y[:, 1].mean()).all()


@pytest.mark.parametrize(("n_rows", "fraction"), [(2, 0.6), (4, 0.8)])
def test_rows_held_out_for_early_stopping_must_leave_some_to_train_with(n_rows, fraction):
    model = MLRHBoostingClassifier(early_stopping_rounds=5, validation_fraction=fraction)
    with pytest.raises(ValueError, match=f"validation_fraction={fraction} of the rows, which leaves none of {n_rows}"):
        model.fit(np.arange(float(n_rows))[:, None], np.eye(2, dtype=int)[np.arange(n_rows) % 2])


def test_early_stopping_keeps_the_best_round_of_the_held_out_rows():
    X, Y = rows(300)
    options = {"n_estimators": 500, "learning_rate": 0.3, "early_stopping_rounds": 5, "validation_fraction": 0.3}
    model = MLRHBoostingClassifier(label_space="observed", **options, **WHOLE).fit(X, Y)
    losses = model.validation_history_
    assert model.n_estimators_ == np.argmin(losses) + 1 == len(losses) - 5 < 495
    assert len(model.booster_.get_dump()) == 3 * model.n_estimators_
    assert not hasattr(
        clone(model).set_params(early_stopping_rounds=None, n_estimators=3).fit(X, Y), "validation_history_"
    )


def test_importances_say_which_label_looks_at_which_feature():
    X, Y = rows(400)
    model = MLRHBoostingClassifier(label_space="observed", n_estimators=20, max_depth=2, **WHOLE).fit(X, Y)
    gains = model.importances_by_label()
    assert gains.shape == (3, 4)
    assert gains.argmax(axis=1).tolist() == [0, 0, 1]
    assert gains.sum() == pytest.approx(sum(model.booster_.get_score(importance_type="total_gain").values()), rel=1e-5)
    assert model.feature_importances_.sum() == pytest.approx(1)


def test_random_state_decides_what_is_drawn():
    X, Y = rows()
    first, same, other = (
        MLRHBoostingClassifier(label_space="observed", n_estimators=5, random_state=seed, n_jobs=1)
        .fit(X, Y)
        .decision_function(X)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-3


def threads_of(booster):
    return int(json.loads(booster.save_config())["learner"]["generic_param"]["nthread"])


@pytest.mark.parametrize(("n_jobs", "entries", "expected"), [(None, 801, 1), (None, 200, 4), (3, 801, 3), (None, 1, 5)])
def test_xgboost_starts_no_more_threads_unasked_than_pay_for_the_rows(monkeypatch, n_jobs, entries, expected):
    seen, update = [], xgboost.Booster.update

    def watched(booster, *arguments, **options):
        seen.append(threads_of(booster))
        update(booster, *arguments, **options)

    monkeypatch.setattr(boosting, "effective_threads", lambda n_jobs: n_jobs or 5)
    monkeypatch.setattr(boosting, "ENTRIES_PER_THREAD", entries)  # X has 800
    monkeypatch.setattr(xgboost.Booster, "update", watched)
    MLRHBoostingClassifier(n_estimators=1, n_jobs=n_jobs).fit(*rows())
    assert seen == [expected]


def test_predictions_are_made_by_one_thread_for_each_block_of_rows(monkeypatch):
    X, Y = rows()
    model = MLRHBoostingClassifier(n_estimators=5, n_jobs=2, random_state=0).fit(X, Y)
    assert threads_of(model.booster_) == threads_of(pickle.loads(pickle.dumps(model)).booster_) == 1
    in_one_block = [model.decision_function(own) for own in (X, sparse.csr_array(X))]
    monkeypatch.setattr(boosting, "ENTRIES_PER_BLOCK", 4 * 30)  # of 4 features
    assert len(model._compared(X)) == 7
    for own, scores in zip((X, sparse.csr_array(X)), in_one_block, strict=True):
        np.testing.assert_array_equal(model.decision_function(own), scores)


def test_without_xgboost_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ImportError, match=r'pip install "xgboost>=2\.1"'):
        MLRHBoostingClassifier().fit([[0.0], [1.0]], [[1, 0], [0, 1]])


def test_xgboost_is_not_imported_before_it_is_needed():
    code = "import sys, mlrh.estimators, mlrh.persistence, mlrh.automatic; sys.exit('xgboost' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_classifiers_are_imported_without_the_readers_of_files():
    code = "import sys, mlrh.estimators; sys.exit(any(name.startswith('mlrh.data') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_one_class_per_row_and_label_sets_come_back_in_their_form():
    X, _ = rows()
    classes = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = MLRHBoostingClassifier(n_estimators=50, **WHOLE).fit(X, classes)
    assert (model.predict(X) == classes).mean() > 0.95
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    two = MLRHBoostingClassifier(n_estimators=50, **WHOLE).fit(X, X[:, 0] > 0)
    assert (two.predict(X) == (X[:, 0] > 0)).mean() > 0.95
    tags = [{"a"} if value > 0 else {"b", "c"} for value in X[:, 1]]
    assert MLRHBoostingClassifier(n_estimators=50, **WHOLE).fit(X, tags).predict(X) == tags


def test_a_fit_that_fails_leaves_the_last_one():
    X, Y = rows()
    model = MLRHBoostingClassifier(label_space="observed", n_estimators=3, **WHOLE)
    with pytest.raises(NotFittedError):
        model.predict(X)
    before = model.fit(X, Y).decision_function(X)
    with pytest.raises(ValueError, match="same number of rows"):
        model.fit(X[:5, :2], Y[:4])
    np.testing.assert_array_equal(model.decision_function(X), before)


FLOAT32 = "XGBoost sums in float32, so that scores differ by 1e-7; the test of weight two above allows for that"


@parametrize_with_checks(
    [MLRHBoostingClassifier(n_estimators=10, min_child_weight=0.0, **{**WHOLE, "reg_lambda": 0.1})],
    expected_failed_checks=lambda _: {
        f"check_sample_weight_equivalence_on_{kind}_data": FLOAT32 for kind in ("dense", "sparse")
    },
)
def test_scikit_learn_check(estimator, check):
    check(estimator)
