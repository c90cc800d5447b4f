"""IBLR, CorrLog, CCnet and probabilistic chains against hand-solved cases, scikit-learn and sums over all sets."""

from itertools import product

import numpy as np
import pytest
import sklearn
from packaging.version import Version
from samples import make_multilabel
from scipy import sparse
from scipy.optimize import approx_fprime
from scipy.special import expit, log_expit
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold
from sklearn.multioutput import ClassifierChain
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from mlrh.baselines import IBLR, CCnet, CorrLog, OrConstant, ProbabilisticChain, chain_set_log_proba
from mlrh.baselines.corrlog import likely_sets

X, Y = make_multilabel(60)
ALL_SETS = np.array(list(product((0, 1), repeat=4)), np.int8)
# Rows without features: 36 of no label, 4 of the second, 30 of the first, 30 of both.
TABLE = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [36, 4, 30, 30], axis=0)
NOTHING = np.zeros((100, 1))


def elastic_net(C, l1_ratio):
    """scikit-learn's logistic regression with an elastic net, to many digits."""
    name = {"penalty": "elasticnet"} if Version(sklearn.__version__) < Version("1.8") else {}
    return LogisticRegression(C=C, l1_ratio=l1_ratio, solver="saga", tol=1e-9, max_iter=100_000, **name)


def every_set(clf, X):
    """Log-probabilities of all sets, (n_samples, n_sets)."""
    repeated, sets = np.repeat(X, len(ALL_SETS), axis=0), np.tile(ALL_SETS, (len(X), 1))
    return clf.set_log_proba(repeated, sets).reshape(len(X), -1)


WITH_A_DISTRIBUTION = [
    CorrLog(C=0.5),
    ProbabilisticChain(order=[2, 0, 3, 1]),
    CCnet([1.0], l1_ratios=[0.5], cv=2),
]


def in_order(clf):
    """A clone without an order of its own, for other numbers of labels."""
    return clone(clf).set_params(order=None) if "order" in clf.get_params() else clone(clf)


EVERY_METHOD = [IBLR(5), IBLR(5, with_features=True), *WITH_A_DISTRIBUTION]


@pytest.mark.parametrize("clf", WITH_A_DISTRIBUTION)
def test_mode_and_marginals_are_those_of_a_distribution_over_all_sets(clf):
    log_proba = every_set(clf.fit(X, Y), X)
    np.testing.assert_allclose(np.exp(log_proba).sum(axis=1), 1)
    np.testing.assert_allclose(clf.predict_proba(X), np.exp(log_proba) @ ALL_SETS, atol=1e-12)
    assert np.array_equal(clf.predict(X), ALL_SETS[log_proba.argmax(axis=1)])


@pytest.mark.parametrize("clf", EVERY_METHOD)
@pytest.mark.parametrize("value", [0, 1])
def test_a_label_that_never_varies_is_answered_so(clf, value):
    # It comes last, so that it is no feature of another link of a chain.
    last, clf = np.insert(Y, 4, value, axis=1), in_order(clf)
    without = clone(clf).fit(X, Y)
    clf.fit(X, last)
    np.testing.assert_allclose(clf.predict_proba(X)[:, 4], value, atol=1e-12)
    assert (clf.predict(X)[:, 4] == value).all()
    if hasattr(clf, "set_log_proba"):
        np.testing.assert_allclose(clf.set_log_proba(X, last), without.set_log_proba(X, Y), atol=1e-6)
        last[:, 4] = 1 - value
        assert np.isneginf(clf.set_log_proba(X, last)).all()


@pytest.mark.parametrize("clf", EVERY_METHOD)
def test_sparse_rows_give_the_answers_of_dense_ones(clf):
    dense, csr = (clf.fit(rows, Y).predict_proba(rows) for rows in (X, sparse.csr_matrix(X)))
    np.testing.assert_allclose(csr, dense, atol=1e-4)  # solvers stop at slightly different places


@pytest.mark.parametrize("clf", EVERY_METHOD)
def test_probabilities_of_classes_sum_to_one_and_the_likeliest_is_predicted(clf):
    X, y = load_iris(return_X_y=True)
    X, y = X[::3], y[::3]
    for labels in (np.array(["a", "b", "c"])[y], y > 0):
        clf = in_order(clf).fit(X, labels)
        proba = clf.predict_proba(X)
        np.testing.assert_allclose(proba.sum(axis=1), 1)
        assert np.array_equal(clf.predict(X), clf.classes_[proba.argmax(axis=1)]) and clf.score(X, labels) > 0.9
        if hasattr(clf, "set_log_proba"):
            own = proba[np.arange(len(y)), np.searchsorted(clf.classes_, labels)]
            np.testing.assert_allclose(np.exp(clf.set_log_proba(X, labels)), own, atol=1e-12)


@pytest.mark.parametrize("clf", [CorrLog(tol=1e-9), ProbabilisticChain(LogisticRegression(tol=1e-9))])
def test_a_row_of_weight_two_counts_twice_and_one_of_weight_zero_is_absent(clf):
    weights = np.arange(60) % 3
    weighted = clf.fit(X, Y, sample_weight=weights).predict_proba(X)
    repeated = clf.fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights, axis=0)).predict_proba(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-6)


@pytest.mark.parametrize("clf", [CorrLog(), ProbabilisticChain(), CCnet([1.0], l1_ratios=[0.5], cv=2)])
def test_a_label_that_only_rows_of_weight_zero_have_is_unknown(clf):
    y = [{"a"}, {"b"}, {"a", "b"}, {"b"}, {"a"}, {"a", "c"}, set(), set()]
    clf.fit(np.arange(8.0)[:, None], y, sample_weight=[1, 1, 1, 1, 1, 0, 1, 1])
    assert clf.classes_.tolist() == ["a", "b"]
    assert np.isneginf(clf.set_log_proba([[0.0]], [{"a", "c"}])).all()


@pytest.mark.parametrize("clf", WITH_A_DISTRIBUTION)
def test_log_probabilities_stay_finite_where_scores_are_a_hundred_thousand(clf):
    far = X * 1e5
    log_proba = every_set(clf.fit(X, Y), far)
    assert np.isfinite(log_proba).all() and log_proba.min() < -1e4
    assert np.array_equal(clf.predict(far), ALL_SETS[log_proba.argmax(axis=1)])
    proba = clf.predict_proba(far)
    assert ((proba >= 0) & (proba <= 1)).all()


@pytest.mark.parametrize("link", [LogisticRegression(), OrConstant(LogisticRegression())])
def test_the_log_probability_of_a_chain_is_a_sum_of_log_odds_at_any_score(link):
    chain = ClassifierChain(link).fit(X, Y)
    expected = np.zeros(60)
    for place, fitted in enumerate(chain.estimators_):
        features = np.hstack([X * 1e5, Y[:, :place]])
        log_odds = getattr(fitted, "estimator_", fitted).decision_function(features)
        expected += log_expit(np.where(Y[:, place] == 1, log_odds, -log_odds))
    assert expected.min() < -1e4
    np.testing.assert_allclose(chain_set_log_proba(chain, X * 1e5, Y), expected)


def test_iblr_takes_features_of_a_hundred_thousand():
    for y in (Y, np.arange(60) % 3):
        proba = IBLR(5, with_features=True).fit(X, y).predict_proba(X * 1e5)
        assert ((proba >= 0) & (proba <= 1)).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1)


# IBLR


def test_iblr_of_a_hand_made_example():
    # Twins are each other's neighbour. Of the 7 rows whose twin has the label 6 have it, of the 5 others 1.
    twins = np.array([[1, 1], [1, 1], [1, 1], [0, 0], [0, 0], [1, 0]])
    X = np.repeat(np.arange(6.0) * 10, 2)[:, None]
    clf = IBLR(1, C=np.inf).fit(X, twins.ravel())
    np.testing.assert_allclose(clf.predict_proba([[0.0], [31.0]])[:, 1], [6 / 7, 1 / 5], atol=1e-4)


@pytest.mark.parametrize("with_features", [False, True])
def test_iblr_is_logistic_regression_on_shares_of_neighbours(with_features):
    def shares(x, left_out=None):
        nearest = sorted((np.linalg.norm(x - X[i]), i) for i in range(40) if i != left_out)[:7]
        return np.mean([Y[i] for _, i in nearest], axis=0)

    train = np.array([shares(X[i], left_out=i) for i in range(40)])
    test = np.array([shares(x) for x in X[40:]])
    if with_features:
        train, test = np.hstack([train, X[:40]]), np.hstack([test, X[40:]])
    expected = [LogisticRegression(C=3).fit(train, Y[:40, k]).predict_proba(test)[:, 1] for k in range(4)]
    clf = IBLR(7, C=3, with_features=with_features).fit(X[:40], Y[:40])
    # The order of the columns decides in which digits lbfgs stops.
    np.testing.assert_allclose(clf.predict_proba(X[40:]), np.transpose(expected), atol=1e-3)
    assert np.array_equal(clf.predict(X[40:]), np.transpose(expected) > 0.5)


def test_iblr_of_distances_equals_iblr_of_rows_and_has_no_features():
    distances = np.linalg.norm(X[:, None] - X[None, :40], axis=2)
    by_rows = IBLR(5).fit(X[:40], Y[:40]).predict_proba(X[40:])
    by_distance = IBLR(5, metric="precomputed").fit(distances[:40], Y[:40]).predict_proba(distances[40:])
    np.testing.assert_allclose(by_distance, by_rows, atol=1e-12)
    with pytest.raises(ValueError, match="with_features=True needs features"):
        IBLR(5, metric="precomputed", with_features=True).fit(distances[:40], Y[:40])


# Probabilistic chains


def test_the_most_probable_set_is_found_where_the_greedy_answer_is_another():
    # Label by label: the first is present (0.6), and then the second may be. But no label at all is likeliest: 0.36.
    clf = ProbabilisticChain(DecisionTreeClassifier()).fit(NOTHING, TABLE)
    assert clf.predict([[0.0]]).tolist() == [[0, 0]]
    assert clf.set_params(epsilon=0.5).predict([[0.0]])[0, 0] == 1
    sets, log_probs = clf.top_sets([[0.0]], 5)
    assert sets[0].tolist() == [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
    np.testing.assert_allclose(np.exp(log_probs[0]), [0.36, 0.3, 0.3, 0.04, 0])
    np.testing.assert_allclose(clf.predict_proba([[0.0]]), [[0.6, 0.34]])


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1], "random"])
def test_the_links_are_those_of_scikit_learns_chain(order):
    theirs = ClassifierChain(LogisticRegression(), order=order, random_state=3).fit(X, Y)
    ours = ProbabilisticChain(order=order, random_state=3).fit(X, Y)
    assert np.array_equal(ours.order_, theirs.order_)
    np.testing.assert_allclose(ours.set_log_proba(X, Y), chain_set_log_proba(theirs, X, Y))
    assert np.array_equal(ours.set_params(epsilon=0.5).predict(X), theirs.predict(X))


def test_top_sets_are_all_sets_in_the_order_of_their_probability():
    clf = ProbabilisticChain(order=[3, 1, 0, 2]).fit(X, Y)
    expected = np.sort(every_set(clf, X), axis=1)[:, ::-1]
    sets, log_probs = clf.top_sets(X, 16)
    np.testing.assert_allclose(log_probs, expected)
    for place in range(16):
        np.testing.assert_allclose(clf.set_log_proba(X, sets[:, place]), log_probs[:, place])
    assert np.array_equal(clf.top_sets(X, 3)[0], sets[:, :3])


def test_an_epsilon_below_the_probability_of_the_mode_changes_nothing_and_a_larger_one_beats_the_greedy_answer():
    clf = ProbabilisticChain().fit(X, Y)
    exact, greedy = clf.predict(X), clf.set_params(epsilon=0.5).predict(X)
    (_, log_probs), best = clf.top_sets(X, 1), clf.set_log_proba(X, exact)
    np.testing.assert_allclose(log_probs[:, 0], best)
    for epsilon in (0.05, 0.2, 0.4):
        found = clf.set_params(epsilon=epsilon).predict(X)
        safe = np.exp(best) >= epsilon * 1.0001
        assert safe.any() and np.array_equal(found[safe], exact[safe])
        assert (clf.set_log_proba(X, found) >= clf.set_log_proba(X, greedy) - 1e-12).all()
    assert (clf.set_log_proba(X, greedy) < best - 1e-3).any()


def test_epsilon_bounds_the_search_where_no_set_stands_out():
    random = np.random.RandomState(0)
    X, Y = random.normal(size=(80, 2)), random.randint(0, 2, size=(80, 30))
    clf = ProbabilisticChain(epsilon=0.02).fit(X, Y)
    found, greedy = clf.predict(X[:5]), clf.set_params(epsilon=0.5).predict(X[:5])
    gain = clf.set_log_proba(X[:5], found) - clf.set_log_proba(X[:5], greedy)
    assert (gain >= -1e-12).all() and gain.max() > 0


def test_shares_of_drawn_sets_are_the_probabilities():
    clf = ProbabilisticChain(order=[1, 3, 2, 0]).fit(X, Y)
    drawn = clf.sample(X[:3], 4000, random_state=0)
    assert np.array_equal(drawn, clf.sample(X[:3], 4000, random_state=0))
    shares = (drawn[:, :, None] == ALL_SETS).all(axis=3).mean(axis=1)
    assert np.abs(shares - np.exp(every_set(clf, X[:3]))).max() < 5 * np.sqrt(0.25 / 4000)


@pytest.mark.parametrize("ask", ["top_sets", "sample"])
def test_sets_are_asked_for_by_a_positive_number_and_not_of_classes(ask):
    clf = ProbabilisticChain().fit(X, Y)
    with pytest.raises(ValueError, match="The number of sets must be a positive integer; got 0"):
        getattr(clf, ask)(X, 0)
    with pytest.raises(ValueError, match="fitted to one class per row"):
        getattr(clf.fit(X, Y[:, 0]), ask)(X, 1)


def test_chains_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match=r"order must hold the numbers of the labels, 0 to 3, each once; got \[0, 1\]"):
        ProbabilisticChain(order=[0, 1]).fit(X, Y)
    with pytest.raises(ValueError, match="sample_weight must be None, because KNeighborsClassifier"):
        ProbabilisticChain(KNeighborsClassifier()).fit(X, Y, sample_weight=np.ones(60))
    many = ProbabilisticChain().fit(X, np.tile(Y, (1, 4)))
    for ask in (many.predict_proba, many.distribution):
        with pytest.raises(ValueError, match="for at most 14 labels; got 16"):
            ask(X)
    assert (many.predict(X)[:, :4] == many.predict(X)[:, 4:8]).mean() > 0.9  # copies of the labels


def test_classes_that_all_links_rule_out_are_equally_likely():
    never = ProbabilisticChain(DummyClassifier(strategy="constant", constant=0)).fit(X[:6], ["a", "b", "c"] * 2)
    np.testing.assert_allclose(never.predict_proba(X[:2]), 1 / 3)
    np.testing.assert_allclose(never.distribution(X[:2]).marginals(), 1 / 3)


# CCnet


def test_links_of_ccnet_are_elastic_nets_and_their_penalties_the_best_on_held_out_rows():
    # No setting leaves every coefficient at 0: saga would end there before it has found the intercept.
    folds, Cs, ratios = list(KFold(3).split(X)), [0.2, 1.0], [0.2, 0.8]
    clf = CCnet(Cs, l1_ratios=ratios, cv=folds, order=[1, 0]).fit(X[:, :3], Y[:, :2])
    for place, label in enumerate([1, 0]):
        features, y = np.hstack([X[:, :3], Y[:, [1, 0][:place]]]), Y[:, label]

        def loss(C, ratio, features=features, y=y):
            fitted = [elastic_net(C, ratio).fit(features[train], y[train]) for train, _ in folds]
            pairs = zip(fitted, folds, strict=True)
            return np.mean([log_loss(y[held], model.predict_proba(features[held])) for model, (_, held) in pairs])

        best = min(product(Cs, ratios), key=lambda setting: loss(*setting))
        assert (clf.C_[label], clf.l1_ratio_[label]) == best
        expected = elastic_net(*best).fit(features, y)
        found = clf.links_[place].estimator_
        np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-3)
        np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=1e-3)


def test_ccnet_leaves_out_features_that_say_nothing():
    random = np.random.RandomState(0)
    X = random.normal(size=(200, 12))
    y = (X[:, 0] + 0.3 * random.normal(size=200) > 0).astype(int)
    clf = CCnet([0.05], l1_ratios=[1.0], cv=2).fit(X, np.column_stack([y, y]))
    assert np.flatnonzero(clf.links_[0].estimator_.coef_).tolist() == [0]
    assert 12 in np.flatnonzero(clf.links_[1].estimator_.coef_)  # the first label, of which the second is a copy


def test_ccnet_takes_labels_so_rare_that_a_fold_lacks_them():
    rare = np.column_stack([Y, np.arange(60) == 7])
    assert np.isfinite(CCnet([1.0], l1_ratios=[0.5], cv=3).fit(X, rare).C_).all()
    with pytest.raises(
        ValueError, match="Some fold must train on rows with and without each label; none does for label 4"
    ):
        CCnet([1.0], cv=[(np.arange(30, 60), np.arange(30)), (np.arange(30, 60), np.arange(20))]).fit(X, rare)


@pytest.mark.parametrize("parameters", [{"Cs": [0.0]}, {"Cs": []}, {"l1_ratios": [1.5]}, {"l1_ratios": [[0.5]]}])
def test_ccnet_refuses_penalties_that_are_none(parameters):
    with pytest.raises(ValueError, match=f"{next(iter(parameters))} must be a sequence of"):
        CCnet(**parameters).fit(X, Y)


# CorrLog


def test_corrlog_of_a_hand_made_example():
    # Two labels and one weight for both: such a model can have any probabilities, so it has those of the table.
    clf = CorrLog(C=1e6, l1_ratio=0).fit(NOTHING, TABLE)
    proba = np.exp(clf.set_log_proba(np.zeros((4, 1)), [[0, 0], [0, 1], [1, 0], [1, 1]]))
    np.testing.assert_allclose(proba, [0.36, 0.04, 0.3, 0.3], atol=1e-3)
    assert clf.pair_coef_[0, 1] == pytest.approx(np.log(36 * 30 / (4 * 30)), abs=1e-2)
    assert clf.predict([[0.0]]).tolist() == [[0, 0]]


@pytest.mark.parametrize("l1_ratio", [0.0, 0.4, 1.0])
def test_corrlog_of_one_label_is_logistic_regression_with_an_elastic_net(l1_ratio):
    ours = CorrLog(C=0.2, l1_ratio=l1_ratio).fit(X, Y[:, 0])
    theirs = elastic_net(0.2, l1_ratio).fit(X, Y[:, 0])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    assert np.array_equal(ours.coef_ == 0, theirs.coef_ == 0)


def pseudo_log_loss(parameters, X, Y, weights):
    """Minus the weighted log pseudo-likelihood, by loops over rows and labels."""
    n_labels = Y.shape[1]
    coef, pairs, intercept = (part.reshape(n_labels, -1) for part in np.split(parameters, [24, 40]))
    total = 0.0
    for x, y, weight in zip(X, Y, weights, strict=True):
        for k in range(n_labels):
            score = coef[k] @ x + intercept[k, 0]
            score += sum(0.5 * (pairs[k, j] + pairs[j, k]) * y[j] for j in range(n_labels) if j != k)
            total -= weight * log_expit(score if y[k] else -score)
    return total


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
def test_corrlog_has_the_largest_penalised_pseudo_likelihood(l1_ratio):
    weights = 0.5 + np.arange(60) % 3
    clf = CorrLog(C=0.3, C_pairs=0.1, l1_ratio=l1_ratio).fit(X, Y, sample_weight=weights)
    parameters = np.concatenate([clf.coef_.ravel(), clf.pair_coef_.ravel(), clf.intercept_])
    slope = approx_fprime(parameters, pseudo_log_loss, 1e-6, X, Y, weights)
    upper = np.triu_indices(4, 1)
    by_pair = slope[24:40].reshape(4, 4)
    for values, slopes, C in (
        (clf.coef_.ravel(), slope[:24], 0.3),
        (clf.pair_coef_[upper], (by_pair + by_pair.T)[upper], 0.1),
    ):
        pull = C * slopes + (1 - l1_ratio) * values
        # No subgradient is left: the slope outweighs the L1 penalty nowhere, and meets it where a weight is not 0.
        assert (np.abs(pull) <= l1_ratio + 1e-3).all()
        np.testing.assert_allclose(pull[values != 0], -l1_ratio * np.sign(values[values != 0]), atol=1e-3)
        assert l1_ratio == 0 or 0 < (values == 0).sum() < len(values)
    np.testing.assert_allclose(slope[40:], 0, atol=1e-2)


def test_without_pairs_corrlog_is_a_logistic_regression_per_label():
    clf = CorrLog(C=0.5, l1_ratio=0, C_pairs=1e-9).fit(X, Y)
    expected = [LogisticRegression(C=0.5, tol=1e-8).fit(X, Y[:, k]).predict_proba(X)[:, 1] for k in range(4)]
    np.testing.assert_allclose(clf.predict_proba(X), np.transpose(expected), atol=1e-5)


def test_the_distribution_of_corrlog_is_proportional_to_the_weights_of_sets():
    clf = CorrLog(C=0.5).fit(X, Y)
    for x, log_proba in zip(X[:5], every_set(clf, X[:5]), strict=True):
        scores = clf.coef_ @ x + clf.intercept_
        weights = [
            sum(scores[k] * y[k] for k in range(4))
            + sum(clf.pair_coef_[j, k] * y[j] * y[k] for j in range(4) for k in range(j + 1, 4))
            for y in ALL_SETS.astype(float)
        ]
        np.testing.assert_allclose(log_proba, weights - np.logaddexp.reduce(weights))
    sets, log_probs = clf.distribution(X).top_sets(1)
    assert np.array_equal(sets[:, 0], clf.predict(X))
    np.testing.assert_allclose(log_probs[:, 0], clf.set_log_proba(X, sets[:, 0]))


def weights_of(sets, scores, pairs):
    return sets @ scores + 0.5 * ((sets @ pairs) * sets).sum(axis=1)


def random_pairs(random, n_labels, edges):
    pairs = np.zeros((n_labels, n_labels))
    for j, k in edges:
        pairs[j, k] = pairs[k, j] = random.normal(scale=2)
    return pairs


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_messages_find_the_most_probable_set_where_pairs_form_a_tree(scale):
    random = np.random.RandomState(0)
    sets = np.array(list(product((0, 1), repeat=12)))
    for _ in range(5):
        pairs = scale * random_pairs(random, 12, [(random.randint(k), k) for k in range(1, 12)])
        scores = scale * random.normal(size=(6, 12))
        best = [sets[weights_of(sets, own, pairs).argmax()] for own in scores]
        assert np.array_equal(likely_sets(scores, pairs), best)


def test_messages_find_most_of_the_most_probable_sets_where_every_pair_counts():
    random = np.random.RandomState(1)
    sets = np.array(list(product((0, 1), repeat=8)))
    pairs = random_pairs(random, 8, [(j, k) for k in range(8) for j in range(k)]) / 4
    scores = random.normal(size=(200, 8))
    found = likely_sets(scores, pairs)
    gaps = [
        weights_of(sets, own, pairs).max() - weights_of(y[None], own, pairs)[0]
        for own, y in zip(scores, found, strict=True)
    ]
    assert np.mean(np.array(gaps) < 1e-9) > 0.9
    alone = scores + found @ pairs  # no single change is left that helps
    assert np.array_equal(alone > 0, found == 1)


def test_beyond_fourteen_labels_corrlog_predicts_but_has_no_probabilities():
    random = np.random.RandomState(0)
    X = random.normal(size=(150, 3))
    Y = (expit(3 * X @ random.normal(size=(3, 15))) > random.uniform(size=(150, 15))).astype(int)
    Y = np.column_stack([Y, np.ones(150, int)])
    clf = CorrLog(C=0.3).fit(X, Y)
    free, scores = slice(0, 15), X @ clf.coef_[:15].T + clf.intercept_[:15]
    sets, pairs = np.array(list(product((0, 1), repeat=15)), np.int8), clf.pair_coef_[free, free]
    found = clf.predict(X[:20])
    assert (found[:, 15] == 1).all()
    best = [weights_of(sets, own, pairs).max() for own in scores[:20]]
    own = [weights_of(y[None, free], s, pairs)[0] for y, s in zip(found, scores[:20], strict=True)]
    assert np.mean(np.array(own) > np.array(best) - 1e-9) > 0.9
    for ask in (clf.predict_proba, clf.distribution, clf.decision_function):
        with pytest.raises(ValueError, match="for at most 14 labels that vary in training; got 15"):
            ask(X)


def test_corrlog_says_when_it_stopped_early():
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="CorrLog stopped after max_iter=2"):
        CorrLog(max_iter=2).fit(X, Y)
