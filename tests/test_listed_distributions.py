"""The distributions of classifiers that list their sets: label powerset around any classifier."""

import numpy as np
import pytest
from samples import make_multilabel
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from mlrh import CalibratedSets, decisions
from mlrh.baselines import LabelPowerset

X, Y = make_multilabel(80)
FOREST = RandomForestClassifier(5, random_state=0)


@pytest.mark.parametrize("base", [None, GaussianNB(), FOREST, make_pipeline(StandardScaler(), LogisticRegression())])
def test_the_distribution_of_a_label_powerset_has_its_probabilities(base):
    clf = LabelPowerset(base).fit(X, Y)
    d = clf.distribution(X)
    np.testing.assert_allclose(d.log_prob(Y), clf.set_log_proba(X, Y), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(d.marginals(), clf.predict_proba(X), atol=1e-12)
    np.testing.assert_allclose(d.prob(clf.predict(X)), np.exp(d.top_sets(1)[1][:, 0]), rtol=1e-9)


def test_decisions_about_a_forest_are_the_best_of_the_enumeration():
    d = LabelPowerset(FOREST).fit(X, Y).distribution(X[:10])
    sets, log_probs = d.listed()
    every = (np.arange(16)[:, None] >> np.arange(4) & 1).astype(np.int8)
    overlap = every @ sets.T.astype(np.int64)
    total = every.sum(axis=1)[:, None] + sets.sum(axis=1)
    table = np.where(total == 0, 1.0, 2 * overlap / np.maximum(total, 1))
    best = (np.exp(log_probs) @ table.T).max(axis=1)
    np.testing.assert_allclose(d.expected("f1", decisions.f1(d)), best, rtol=1e-10)


def test_a_set_that_no_tree_holds_possible_can_not_be_known():
    d = LabelPowerset(FOREST).fit(X, Y).distribution(X[:20])
    log_probs = d.log_prob(np.tile(Y[:1], (20, 1)))
    known = np.tile(Y[0].astype(float), (20, 1))
    assert np.isneginf(log_probs).any() and np.isfinite(log_probs).any()
    np.testing.assert_array_equal(d.fits(known), np.isfinite(log_probs))


def test_one_class_per_row_and_one_set_have_distributions_too():
    y = np.array(["a", "b", "c"])[np.arange(80) % 3]
    clf = LabelPowerset(GaussianNB()).fit(X, y)
    np.testing.assert_allclose(clf.distribution(X).marginals(), clf.predict_proba(X), atol=1e-12)
    only = LabelPowerset().fit(X, np.tile([1, 0], (80, 1)))
    assert only.distribution(X[:2]).marginals().tolist() == [[1.0, 0.0]] * 2


def test_without_probabilities_or_a_fit_there_is_no_distribution():
    assert not hasattr(LabelPowerset(LinearSVC()), "distribution")
    with pytest.raises(NotFittedError):
        LabelPowerset().distribution(X)


def test_a_label_powerset_is_calibrated_as_a_joint_model():
    clf = CalibratedSets(LabelPowerset(GaussianNB()), cv=2).fit(X, Y)
    powers = np.exp(clf.estimator_.distribution(X).listed()[1]) ** (1 / clf.temperature_)
    confidence = powers.max(axis=1) / powers.sum(axis=1) * (1 - clf.outside_share_)
    np.testing.assert_allclose(clf.confidence(X), confidence, rtol=1e-9)
