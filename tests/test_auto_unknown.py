"""MLRHAuto where labels are unknown: candidates are judged by what is known of held-out rows."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import mlrh
from mlrh import MLRHAuto, MLRHClassifier, PooledSets
from mlrh.data import load_digit_scenes
from mlrh.estimators import auto
from mlrh.metrics import FLOOR, evaluate

DATA = load_digit_scenes(160, part="train")
TEST = load_digit_scenes(60, part="test")
HIDDEN = np.random.default_rng(0).random(DATA.Y.shape) < 0.15
Y = np.where(HIDDEN, np.nan, DATA.Y)
NOWHERE_COMPLETE = np.where(np.arange(10) == np.arange(160)[:, None] % 10, np.nan, Y)
OPTIONS = {"scores": "linear", "label_space": "cardinality", "quality": "fast", "time_budget": None}


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.01, 1.0))


def _fitted_like(found, rows):
    """The chosen pipeline, fitted to some rows as in the search."""
    pipeline = clone(found.best_estimator_)
    pipeline[-1].set_params(tol=auto.SEARCH_TOL)
    return pipeline.fit(DATA.X[rows], Y[rows])


def test_the_figure_of_a_candidate_is_the_log_probability_of_what_is_known():
    folds = [(np.arange(80), np.arange(80, 160)), (np.arange(80, 160), np.arange(80))]
    found = MLRHAuto(**OPTIONS, cv=folds).fit(DATA.X, Y)
    losses = []
    for train, rows in folds:
        distribution = mlrh.distribution(_fitted_like(found, train), DATA.X[rows])
        losses.append(-np.maximum(distribution.log_prob_of_known(Y[rows]), np.log(FLOOR)))
    # Along a path rounding differs a little.
    assert found.leaderboard_[0]["log_loss"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-4)


def test_the_observed_space_is_left_out_with_a_note_where_labels_are_unknown():
    for known in (Y[:60], NOWHERE_COMPLETE[:60]):
        found = MLRHAuto(scores="linear", time_budget=None, cv=2, n_jobs=1).fit(DATA.X[:60], known)
        tried = {line["label_space"] for line in found.leaderboard_ if line["scores"] != "pool"}
        assert tried == {"open", "cardinality"}
        assert found.notes_ == ["The observed label space was not tried: there are unknown labels."]


def test_rows_without_known_labels_count_as_absent():
    some = np.flatnonzero(np.arange(160) % 4)
    blank_elsewhere = np.full_like(Y, np.nan)
    blank_elsewhere[some] = Y[some]
    own_folds = [(np.arange(0, 60), np.arange(60, 120)), (np.arange(60, 120), np.arange(0, 60))]
    folds = [(some[train], np.union1d(some[rows], np.arange(0, 160, 4))) for train, rows in own_folds]
    for cv, own_cv in ((2, 2), (folds, own_folds)):
        found = MLRHAuto(**OPTIONS, cv=cv).fit(DATA.X, blank_elsewhere)
        expected = MLRHAuto(**OPTIONS, cv=own_cv).fit(DATA.X[some], Y[some])
        for name in ("log_loss", "exact_match"):
            assert found.leaderboard_[0][name] == pytest.approx(expected.leaderboard_[0][name], rel=1e-9)
        np.testing.assert_allclose(found.predict_proba(TEST.X), expected.predict_proba(TEST.X), atol=1e-9)
    with pytest.raises(ValueError, match="every entry is NaN"):
        MLRHAuto(**OPTIONS).fit(DATA.X, np.full_like(Y, np.nan))


def test_measures_of_folds_are_those_of_complete_rows():
    train, rows = np.arange(80), np.arange(80, 160)
    found = MLRHAuto(**OPTIONS, cv=[(train, rows), (rows, train)]).fit(DATA.X, Y)
    own = _fitted_like(found, train)
    complete = rows[~HIDDEN[rows].any(axis=1)]
    truth, distribution = DATA.Y[complete], mlrh.distribution(own, DATA.X[complete])
    expected = evaluate(truth, own.predict(DATA.X[complete]), distribution.log_prob(truth))
    for name, value in expected.items():
        assert found.validation_[name][0] == pytest.approx(value, rel=1e-4)
    found = MLRHAuto(**OPTIONS, cv=2).fit(DATA.X, NOWHERE_COMPLETE)
    assert np.isnan(found.validation_["exact_match"]).all() and np.isfinite(found.leaderboard_[0]["log_loss"])


def test_unknown_entries_are_better_than_dropped_rows():
    complete = ~HIDDEN.any(axis=1)
    assert complete.sum() < 60
    scores = [
        MLRHAuto(**OPTIONS, cv=2).fit(X, known).score(TEST.X, TEST.Y)
        for X, known in ((DATA.X, Y), (DATA.X[complete], DATA.Y[complete]))
    ]
    assert scores[0] > scores[1]


def test_a_single_label_may_be_unknown_in_some_rows():
    known = sparse.csr_array(Y[:, :1])
    found = MLRHAuto(**OPTIONS, cv=2).fit(DATA.X, known)
    is_known = np.flatnonzero(~HIDDEN[:, 0])
    own = clone(found.best_estimator_).fit(DATA.X[is_known], sparse.csr_array(DATA.Y[is_known, :1]))
    np.testing.assert_allclose(found.predict_proba(TEST.X), own.predict_proba(TEST.X), atol=1e-4)


def test_a_pool_of_given_or_equal_weights_takes_unknown_labels_and_one_that_learns_them_does_not():
    members = [("a", MLRHClassifier(C=0.1)), ("b", MLRHClassifier(C=1.0))]
    parts = [member.fit(DATA.X, Y).distribution(TEST.X).marginals() for _, member in members]
    for weights, (first, second) in (([0.25, 0.75], (0.25, 0.75)), ("equal", (0.5, 0.5))):
        pool = PooledSets(members, weights=weights).fit(DATA.X, Y)
        np.testing.assert_allclose(pool.predict_proba(TEST.X), first * parts[0] + second * parts[1], atol=1e-9)
    with pytest.raises(ValueError, match="every label known"):
        PooledSets(members).fit(DATA.X, Y)
