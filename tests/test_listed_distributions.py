"""The distributions of classifiers that list their sets: label powerset around any classifier, and chains."""

import numpy as np
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from mlrh import CalibratedSets, PooledSets, decisions, persistence
from mlrh.baselines import LabelPowerset, OrConstant, ProbabilisticChain, chain_set_log_proba

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


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1]])
@pytest.mark.parametrize("to_rows", [np.asarray, sparse.csr_array])
def test_the_distribution_of_a_chain_is_the_product_of_its_links(order, to_rows):
    chain = ProbabilisticChain(LogisticRegression(), order=order).fit(to_rows(X), Y)
    links = ClassifierChain(LogisticRegression(), order=order).fit(to_rows(X), Y)
    d = chain.distribution(to_rows(X[:10]))
    sets, log_probs = d.listed()
    assert len(sets) == 16
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, rtol=1e-12)
    for y, column in zip(sets, log_probs.T, strict=True):
        expected = chain_set_log_proba(links, to_rows(X[:10]), np.tile(y, (10, 1)))
        np.testing.assert_allclose(column, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(chain.predict(to_rows(X[:10])), sets[log_probs.argmax(axis=1)])
    np.testing.assert_allclose(chain.predict_proba(to_rows(X[:10])), np.exp(log_probs) @ sets, rtol=1e-10)


def test_the_most_probable_set_of_a_chain_is_at_least_as_probable_as_the_greedy_one():
    greedy = ClassifierChain(LogisticRegression(C=0.1)).fit(X, Y)
    chain = ProbabilisticChain(LogisticRegression(C=0.1)).fit(X, Y)
    d = chain.distribution(X)
    better = d.log_prob(chain.predict(X)) - d.log_prob(greedy.predict(X))
    assert (better >= 0).all() and (better > 0).any()


def test_chains_are_pooled_by_their_joint_probabilities_and_saved(tmp_path):
    labels = np.column_stack([Y, np.zeros(80, int)])  # a label that nobody has
    members = [("chain", ProbabilisticChain(OrConstant(LogisticRegression()))), ("sets", LabelPowerset())]
    pool = PooledSets(members, weights=[1, 3]).fit(X, labels)
    parts = [member.distribution(X).prob(labels) for member in pool.estimators_]
    np.testing.assert_allclose(pool.distribution(X).prob(labels), 0.25 * parts[0] + 0.75 * parts[1], rtol=1e-10)
    persistence.save(pool, tmp_path / "pool.mlrh")
    np.testing.assert_array_equal(persistence.load(tmp_path / "pool.mlrh").predict_proba(X), pool.predict_proba(X))


def test_a_chain_of_many_labels_or_without_probabilities_gets_a_sentence():
    many = np.tile(np.arange(80)[:, None] % 2, (1, 15))
    chain = ProbabilisticChain(LogisticRegression()).fit(X, many)
    with pytest.raises(ValueError, match="at most 14 labels; got 15"):
        chain.distribution(X)
    with pytest.raises(ValueError, match=r"'estimator' parameter of ProbabilisticChain must be .* 'predict_proba'"):
        ProbabilisticChain(LinearSVC()).fit(X, Y)
    with pytest.raises(NotFittedError):
        ProbabilisticChain(LogisticRegression()).distribution(X)
