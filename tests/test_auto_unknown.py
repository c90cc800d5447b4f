"""MLRHAuto where labels are unknown: candidates are judged by what is known of held-out rows."""

import numpy as np
import pytest
from scipy import sparse

from mlrh import MLRHAuto, MLRHClassifier, PooledSets
from mlrh.data import load_digit_scenes
from mlrh.estimators import auto
from mlrh.metrics import FLOOR

DATA = load_digit_scenes(160, part="train")
TEST = load_digit_scenes(60, part="test")
HIDDEN = np.random.default_rng(0).random(DATA.Y.shape) < 0.15
Y = np.where(HIDDEN, np.nan, DATA.Y)
NOWHERE_COMPLETE = np.where(np.arange(10) == np.arange(160)[:, None] % 10, np.nan, Y)
OPTIONS = {"scores": "linear", "label_space": "cardinality", "quality": "fast", "time_budget": None}


@pytest.fixture(autouse=True)
def tiny_grids(monkeypatch):
    monkeypatch.setattr(auto, "LINEAR_C", (0.01, 1.0))


def test_the_figure_of_a_candidate_is_the_log_probability_of_what_is_known():
    folds = [(np.arange(80), np.arange(80, 160)), (np.arange(80, 160), np.arange(80))]
    found = MLRHAuto(**OPTIONS, cv=folds).fit(DATA.X, Y)
    line = found.leaderboard_[0]
    losses = []
    for train, rows in folds:
        scaler = found.best_estimator_[0].fit(DATA.X[train])
        options = {name: line[name] for name in ("C", "size_bias", "set_bias_strength")}
        own = MLRHClassifier(label_space="cardinality", tol=auto.SEARCH_TOL, **options)
        distribution = own.fit(scaler.transform(DATA.X[train]), Y[train]).distribution(scaler.transform(DATA.X[rows]))
        losses.append(-np.maximum(distribution.log_prob_of_known(Y[rows]), np.log(FLOOR)))
    assert line["log_loss"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-4)  # paths start elsewhere


def test_the_observed_space_is_left_out_with_a_note_where_labels_are_unknown():
    for known in (Y[:60], NOWHERE_COMPLETE[:60]):
        found = MLRHAuto(scores="linear", time_budget=None, cv=2, n_jobs=1).fit(DATA.X[:60], known)
        tried = {line["label_space"] for line in found.leaderboard_ if line["scores"] != "pool"}
        assert tried == {"open", "cardinality"}
        assert found.notes_ == ["The observed label space was not tried: there are unknown labels."]


def test_measures_of_folds_are_those_of_complete_rows():
    found = MLRHAuto(**OPTIONS, cv=2).fit(DATA.X, Y)
    assert all(np.isfinite(values).all() for values in found.validation_.values())
    nowhere_complete = Y.copy()
    nowhere_complete[np.arange(160), np.arange(160) % 10] = np.nan
    found = MLRHAuto(**OPTIONS, cv=2).fit(DATA.X, nowhere_complete)
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
    assert found.predict_proba(TEST.X).shape == (60, 1)
    assert found.score(TEST.X, sparse.csr_array(TEST.Y[:, :1])) > 0.6


def test_a_pool_of_given_weights_takes_unknown_labels_and_one_that_learns_them_does_not():
    members = [("a", MLRHClassifier(C=0.1)), ("b", MLRHClassifier(C=1.0))]
    pool = PooledSets(members, weights=[0.25, 0.75]).fit(DATA.X, Y)
    parts = [member.fit(DATA.X, Y).distribution(TEST.X).marginals() for _, member in members]
    np.testing.assert_allclose(pool.predict_proba(TEST.X), 0.25 * parts[0] + 0.75 * parts[1], atol=1e-9)
    with pytest.raises(ValueError, match="every label known"):
        PooledSets(members).fit(DATA.X, Y)
