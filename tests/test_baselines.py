"""Comparison methods against scikit-learn on recoded classes, loops from the published algorithm and enumeration."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from mlrh.baselines import LabelPowerset, MLkNN, OrConstant, chain_set_log_proba, independent_set_log_proba

X, Y = make_multilabel(60)

ALL_SETS = np.array(list(product((0, 1), repeat=4)), np.int8)
BASES = [LogisticRegression(), SVC(gamma=0.3), RandomForestClassifier(10, random_state=0)]


def names_of(Y):
    """Each row of Y as a string, by which strings sort as LabelPowerset sorts sets."""
    return np.array([f"{row.sum()}:" + "".join(str(1 - v) for v in row) for row in Y])


def every_set_of(X):
    """Each row of X once per label set, and the sets."""
    return np.repeat(X, len(ALL_SETS), axis=0), np.tile(ALL_SETS, (len(X), 1))


@pytest.mark.parametrize("base", BASES)
def test_label_powerset_answers_as_the_classifier_does_on_named_sets(base):
    X, Y = make_multilabel()
    plain = clone(base).fit(X[:150], names_of(Y[:150]))
    clf = LabelPowerset(base).fit(X[:150], Y[:150])
    assert np.array_equal(names_of(clf.predict(X[150:])), plain.predict(X[150:]))
    assert np.array_equal(names_of(clf.sets_), plain.classes_)
    if hasattr(plain, "predict_proba"):
        marginals = plain.predict_proba(X[150:]) @ clf.sets_
        np.testing.assert_allclose(clf.predict_proba(X[150:]), marginals, atol=1e-12)


@pytest.mark.parametrize("base", [None, GaussianNB(), KNeighborsClassifier(7), RandomForestClassifier(5)])
def test_probabilities_of_all_sets_sum_to_one_and_unseen_sets_have_none(base):
    clf = LabelPowerset(base).fit(X, Y)
    log_proba = clf.set_log_proba(*every_set_of(X)).reshape(len(X), -1)
    np.testing.assert_allclose(np.exp(log_proba).sum(axis=1), 1)
    seen = np.isin(names_of(ALL_SETS), names_of(Y))
    assert not seen.all() and np.isneginf(log_proba[:, ~seen]).all()
    np.testing.assert_allclose(np.exp(log_proba) @ ALL_SETS, clf.predict_proba(X), atol=1e-12)


def test_a_set_far_from_the_row_keeps_a_finite_log_probability():
    X = np.array([[0.0], [0.1], [100.0], [100.1]])
    log_proba = LabelPowerset(GaussianNB()).fit(X, [[1, 0], [1, 0], [0, 1], [0, 1]]).set_log_proba([[0.0]], [[0, 1]])
    assert -np.inf < log_proba[0] < -1000  # exp of it is 0 in float64


@pytest.mark.parametrize("classes", [["a", "b", "c"], ["b", "a", "b"]])
def test_with_one_class_per_row_the_powerset_is_the_classifier(classes):
    X, codes = load_iris(return_X_y=True)
    y = np.array(classes)[codes]
    base = LogisticRegression(max_iter=1000)
    plain, clf = (model.fit(X, y) for model in (base, LabelPowerset(base)))
    assert np.array_equal(clf.predict(X), plain.predict(X)) and np.array_equal(clf.classes_, plain.classes_)
    np.testing.assert_allclose(clf.predict_proba(X), plain.predict_proba(X), atol=1e-6)
    expected = plain.predict_proba(X)[np.arange(150), np.searchsorted(plain.classes_, y)]
    np.testing.assert_allclose(np.exp(clf.set_log_proba(X, y)), expected, atol=1e-6)
    assert clf.score(X, y) == plain.score(X, y)


class Refusing(LogisticRegression):
    def fit(self, X, y, sample_weight=None):
        raise AssertionError("fitted")


def test_a_single_set_is_the_answer_without_fitting():
    X, Y = np.zeros((5, 2)), np.tile([1, 0, 1], (5, 1))
    clf = LabelPowerset(Refusing()).fit(X, Y)
    assert np.array_equal(clf.predict(np.ones((2, 2))), Y[:2])
    assert np.array_equal(clf.predict_proba(np.ones((2, 2))), Y[:2])
    assert clf.set_log_proba(np.ones((2, 2)), [[1, 0, 1], [1, 1, 1]]).tolist() == [0.0, -np.inf]
    with pytest.raises(ValueError, match="features"):
        clf.predict(np.ones((2, 3)))


def test_a_row_of_weight_two_counts_twice_and_one_of_weight_zero_is_absent():
    weights = np.arange(60) % 3
    strict = LabelPowerset(LogisticRegression(tol=1e-10, max_iter=10_000))
    weighted = clone(strict).fit(X, Y, sample_weight=weights)
    repeated = clone(strict).fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights, axis=0))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-5)
    assert np.array_equal(weighted.sets_, repeated.sets_)


@pytest.mark.parametrize("base", BASES)
def test_a_set_that_only_rows_of_weight_zero_have_is_not_seen(base):
    X, Y = make_multilabel(80)
    Y[:2] = 0
    clf = LabelPowerset(base).fit(X, Y, sample_weight=(Y.any(axis=1)).astype(float))
    assert clf.sets_.any(axis=1).all() and clf.predict(X).any(axis=1).all()


def test_a_class_or_label_that_only_rows_of_weight_zero_have_is_unknown():
    X, weights = np.arange(6.0)[:, None], [1, 1, 1, 1, 0, 0]
    by_class = LabelPowerset().fit(X, list("aabbcc"), sample_weight=weights)
    assert by_class.classes_.tolist() == ["a", "b"] and by_class.predict_proba(X).shape == (6, 2)
    by_set = LabelPowerset().fit(X, [{"a"}, {"a"}, {"b"}, {"b"}, {"c"}, {"a", "c"}], sample_weight=weights)
    assert by_set.classes_.tolist() == ["a", "b"]
    assert np.isneginf(by_set.set_log_proba(X[:1], [{"a", "c"}])).all()


@pytest.mark.parametrize("meta", [LabelPowerset, OrConstant])
def test_weights_for_an_estimator_without_weights_are_an_error(meta):
    with pytest.raises(ValueError, match="sample_weight must be None, because KNeighborsClassifier"):
        meta(KNeighborsClassifier(1)).fit([[0.0], [1.0]], [0, 1], sample_weight=[1, 2])


@pytest.mark.parametrize("meta", [LabelPowerset, OrConstant])
def test_probabilities_exist_only_where_the_estimator_has_them(meta):
    assert hasattr(meta(LogisticRegression()), "predict_proba")
    assert not hasattr(meta(SVC()), "predict_proba")
    assert not hasattr(meta(SVC()).fit([[0.0], [1.0]], [0, 1]), "predict_proba")


@pytest.mark.parametrize("clf", [LabelPowerset(RandomForestClassifier(5, random_state=0)), MLkNN(5)])
def test_decision_scores_are_finite_and_rank_rows_as_the_probabilities_do(clf):
    X, Y = make_multilabel()
    proba, scores = clf.fit(X, Y).predict_proba(X), clf.decision_function(X)
    assert np.isfinite(scores).all() and np.array_equal(scores > 0, proba > 0.5)
    assert roc_auc_score(Y, scores) == pytest.approx(roc_auc_score(Y, proba), abs=1e-12)
    y = Y[:, 0]
    assert np.array_equal(clf.fit(X, y).decision_function(X) > 0, clf.predict_proba(X)[:, 1] > 0.5)


def test_label_powerset_hands_x_on_as_it_is():
    texts = ["rain and wind", "sun", "rain then sun", "wind", "sun sun", "rain"]
    Y = [[1, 0], [0, 1], [1, 1], [1, 0], [0, 1], [1, 0]]
    clf = LabelPowerset(make_pipeline(CountVectorizer(), LogisticRegression())).fit(texts, Y)
    assert clf.predict(["sun sun sun"]).tolist() == [[0, 1]]
    X, Y = make_multilabel(60)
    dense, csr = (LabelPowerset().fit(rows, Y).predict_proba(rows) for rows in (X, sparse.csr_matrix(X)))
    np.testing.assert_allclose(csr, dense, atol=1e-4)


def test_rows_of_x_and_y_that_differ_in_number_are_an_error():
    for clf in (LabelPowerset(), MLkNN(1), OrConstant(LogisticRegression())):
        with pytest.raises(ValueError, match="X and y must have the same number of rows; got 3 and 2"):
            clf.fit([[0.0], [1.0], [2.0]], [0, 1])
    with pytest.raises(ValueError, match="X and y must have the same number of rows; got 1 and 2"):
        LabelPowerset().fit([[0.0], [1.0]], [[0, 1], [1, 0]]).set_log_proba([[0.0]], [[0, 1], [1, 0]])


def ml_knn_by_loops(X, Y, queries, *, k, s):
    """Marginals by the published algorithm, step by step; X and queries without equal distances."""
    m, n_labels = Y.shape

    def count(x, label, left_out=None):
        distance = [(np.linalg.norm(x - X[i]), i) for i in range(m) if i != left_out]
        return sum(int(Y[i, label]) for _, i in sorted(distance)[:k])

    marginals = np.empty((len(queries), n_labels))
    for label in range(n_labels):
        prior = (s + sum(int(v) for v in Y[:, label])) / (s * 2 + m)
        with_label, without = [0] * (k + 1), [0] * (k + 1)
        for i in range(m):
            (with_label if Y[i, label] else without)[count(X[i], label, left_out=i)] += 1
        for q, x in enumerate(queries):
            j = count(x, label)
            present = prior * (s + with_label[j]) / (s * (k + 1) + sum(with_label))
            absent = (1 - prior) * (s + without[j]) / (s * (k + 1) + sum(without))
            marginals[q, label] = present / (present + absent)
    return marginals


@pytest.mark.parametrize(("k", "s"), [(1, 1.0), (4, 1.0), (10, 0.3), (39, 2.0)])
def test_ml_knn_equals_the_published_algorithm(k, s):
    X, Y = make_multilabel(60)
    Y[:, 3] = 0
    X, queries, Y = X[:40], X[40:], Y[:40]
    clf = MLkNN(n_neighbors=k, smoothing=s).fit(X, Y)
    expected = ml_knn_by_loops(X, Y, queries, k=k, s=s)
    np.testing.assert_allclose(clf.predict_proba(queries), expected, atol=1e-12)
    assert np.array_equal(clf.predict(queries), expected > 0.5)


def test_ml_knn_of_a_hand_made_example():
    clf = MLkNN(n_neighbors=1).fit([[0.0], [1.0], [3.0], [10.0]], [[1, 0], [1, 0], [0, 0], [0, 1]])
    np.testing.assert_allclose(clf.prior_, [3 / 6, 2 / 6])
    # Neighbours of the training rows in turn: 1, 0, 1, 3. First label: counts 1, 1 with it and 1, 0 without.
    np.testing.assert_allclose(clf.count_proba_[:, 0], [[2 / 4, 2 / 4], [1 / 4, 3 / 4]])
    np.testing.assert_allclose(clf.count_proba_[:, 1], [[4 / 5, 1 / 5], [2 / 3, 1 / 3]])
    np.testing.assert_allclose(clf.predict_proba([[0.4], [9.0]]), [[3 / 5, 5 / 17], [1 / 3, 5 / 11]])
    assert clf.predict([[0.4], [9.0]]).tolist() == [[1, 0], [0, 0]]


def test_a_training_row_is_left_out_of_its_neighbours_but_its_twin_is_not():
    # Each row's neighbour is its twin, which has the other label: counts 0 with the label and 1 without.
    clf = MLkNN(n_neighbors=1).fit([[0.0], [0.0], [9.0], [9.0]], [[1, 0], [0, 1], [1, 0], [0, 1]])
    np.testing.assert_allclose(clf.count_proba_[:, 0], [[1 / 4, 3 / 4], [3 / 4, 1 / 4]])


def test_more_neighbours_than_other_rows_are_all_the_other_rows():
    X, Y = make_multilabel(8)
    few, many = (MLkNN(n_neighbors=k).fit(X, Y) for k in (7, 100))
    assert many.n_neighbors_ == 7
    np.testing.assert_array_equal(few.predict_proba(X), many.predict_proba(X))
    with pytest.raises(ValueError, match="need at least 2 rows; got n_samples=1"):
        MLkNN().fit([[0.0]], [[1, 0]])


def test_ml_knn_is_the_same_on_sparse_rows_and_on_their_distances():
    dense = MLkNN(5).fit(X[:40], Y[:40]).predict_proba(X[40:])
    csr = sparse.csr_matrix(X)
    np.testing.assert_allclose(MLkNN(5).fit(csr[:40], Y[:40]).predict_proba(csr[40:]), dense, atol=1e-12)
    distances = np.linalg.norm(X[:, None] - X[None, :40], axis=2)
    by_distance = MLkNN(5, metric="precomputed").fit(distances[:40], Y[:40])
    np.testing.assert_allclose(by_distance.predict_proba(distances[40:]), dense, atol=1e-12)


def test_ml_knn_of_classes_scales_the_marginals_of_their_indicators():
    X, y = load_iris(return_X_y=True)
    X = X + np.random.RandomState(0).normal(scale=1e-3, size=X.shape)  # no equal distances
    by_class, by_label = MLkNN().fit(X, y), MLkNN().fit(X, np.eye(3, dtype=int)[y])
    marginals = by_label.predict_proba(X)
    np.testing.assert_allclose(by_class.predict_proba(X), marginals / marginals.sum(axis=1, keepdims=True))
    assert np.array_equal(by_class.predict(X), marginals.argmax(axis=1))
    two = MLkNN().fit(X, y == 2)
    np.testing.assert_allclose(two.predict_proba(X)[:, 1], marginals[:, 2])
    assert np.array_equal(two.predict(X), marginals[:, 2] > 0.5)


@pytest.mark.parametrize(
    "parameters", [{"n_neighbors": 0}, {"smoothing": 0.0}, {"smoothing": -1.0}, {"n_neighbors": 2.5}]
)
def test_ml_knn_refuses_parameters_that_leave_a_probability_undefined(parameters):
    with pytest.raises(ValueError, match=f"The '{next(iter(parameters))}' parameter of MLkNN must be"):
        MLkNN(**parameters).fit([[0.0], [1.0]], [[0, 1], [1, 0]])


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("base", [LogisticRegression(), SVC()])
@pytest.mark.parametrize("meta", [ClassifierChain, MultiOutputClassifier])
def test_a_constant_label_is_answered_with_its_constant_and_changes_no_other_label(meta, base, value):
    with pytest.raises(ValueError, match="class"):
        meta(base).fit(X, np.insert(Y, 4, value, axis=1))
    # The constant comes last, so that no link of the chain sees it.
    answer = meta(OrConstant(base)).fit(X, np.insert(Y, 4, value, axis=1)).predict(X)
    assert np.array_equal(answer, np.insert(meta(base).fit(X, Y).predict(X), 4, value, axis=1))


@pytest.mark.filterwarnings("ignore:The least populated class in y has only 1 members")
@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize(("cv", "method"), [(None, "predict"), (None, "predict_proba"), (3, "predict")])
def test_chains_get_the_probability_of_a_constant_label(value, cv, method):
    X, Y = make_multilabel(60)
    Y[:, 1] = value
    Y[:, 2] = np.arange(60) == 0  # so rare that a part of cross validation lacks it
    chain = ClassifierChain(OrConstant(LogisticRegression()), cv=cv, chain_method=method)
    proba = chain.fit(X, Y).predict_proba(X)
    assert (proba[:, 1] == value).all() and (proba[:, 0] != proba[0, 0]).any()


def test_a_label_that_a_part_of_cross_validation_lacks_has_probability_zero_there():
    rare = (np.arange(60) == 0).astype(int)
    proba = cross_val_predict(OrConstant(LogisticRegression()), X, rare, cv=KFold(3), method="predict_proba")
    assert np.array_equal(proba[:20], np.tile([1.0, 0.0], (20, 1)))  # fitted without row 0
    assert (proba[20:, 1] > 0).all()


def test_the_only_class_is_a_label_where_it_is_zero_or_one_and_a_class_elsewhere():
    X = np.zeros((3, 1))
    for y, classes, proba in ([0] * 3, [0, 1], [1, 0]), ([True] * 3, [False, True], [0, 1]), (["a"] * 3, ["a"], [1]):
        clf = OrConstant(Refusing()).fit(X, y)
        assert clf.classes_.tolist() == classes and clf.predict(X).tolist() == y
        assert clf.predict_proba(X[:1]).tolist() == [proba]


def test_rows_of_weight_zero_make_no_second_class():
    clf = OrConstant(Refusing()).fit([[0.0], [1.0], [2.0]], [1, 1, 0], sample_weight=[1, 2, 0])
    assert clf.predict([[2.0]]).tolist() == [1]


def test_or_constant_is_the_estimator_where_there_are_several_classes():
    X, y = load_iris(return_X_y=True)
    weights = np.arange(150) % 4
    base = LogisticRegression(max_iter=1000)
    plain, clf = (model.fit(X, y, sample_weight=weights) for model in (base, OrConstant(base)))
    np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))
    np.testing.assert_array_equal(clf.predict(X), plain.predict(X))


def test_independent_probabilities_of_all_sets_sum_to_one_and_give_back_the_marginals():
    marginals = np.random.RandomState(0).uniform(size=(5, 4))
    marginals[0] = [0.0, 1.0, 0.5, 1e-300]
    repeated, sets = every_set_of(marginals)
    proba = np.exp(independent_set_log_proba(repeated, sets)).reshape(5, -1)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_allclose(proba @ ALL_SETS, marginals, atol=1e-12)


def test_independent_probability_is_a_product_and_takes_sparse_sets():
    Y = sparse.csr_matrix([[1, 0, 1], [0, 0, 1]])
    found = independent_set_log_proba([[0.5, 0.2, 0.1], [0.0, 0.25, 1.0]], Y)
    np.testing.assert_allclose(np.exp(found), [0.5 * 0.8 * 0.1, 0.75])


@pytest.mark.parametrize(
    ("marginals", "message"),
    [
        ([[0.5, 1.5]], "marginals must hold probabilities; got 1.5 in row 0, column 1"),
        ([[np.nan, 0.5]], "marginals must hold probabilities; got nan in row 0, column 0"),
        ([[0.5]], r"the same shape; got \(1, 1\) and \(1, 2\)"),
    ],
)
def test_marginals_that_are_no_probabilities_of_the_labels_are_an_error(marginals, message):
    with pytest.raises(ValueError, match=message):
        independent_set_log_proba(marginals, [[1, 0]])


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1], "random"])
@pytest.mark.parametrize("base", [LogisticRegression(), GaussianNB(), RandomForestClassifier(5, random_state=0)])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_chain_probabilities_of_all_sets_sum_to_one(base, order, form):
    if form is sparse.csr_matrix and isinstance(base, GaussianNB):
        base = KNeighborsClassifier()
    X, Y = make_multilabel(60)
    chain = ClassifierChain(base, order=order, random_state=1).fit(form(X), Y)
    repeated, sets = every_set_of(X[:8])
    proba = np.exp(chain_set_log_proba(chain, form(repeated), sets)).reshape(8, -1)
    np.testing.assert_allclose(proba.sum(axis=1), 1)


def test_chain_probability_is_the_product_of_classifiers_that_see_the_earlier_labels():
    order = [2, 0, 3, 1]
    expected = np.zeros(60)
    for place, label in enumerate(order):
        features = np.hstack([X, Y[:, order[:place]]])
        proba = LogisticRegression().fit(features, Y[:, label]).predict_proba(features)
        expected += np.log(proba[np.arange(60), Y[:, label]])
    chain = ClassifierChain(LogisticRegression(), order=order).fit(X, Y)
    np.testing.assert_allclose(chain_set_log_proba(chain, X, Y), expected)


@pytest.mark.parametrize("base", [OrConstant(LogisticRegression()), RandomForestClassifier(5, random_state=0)])
def test_a_chain_with_a_constant_label_gives_sets_against_it_no_probability(base):
    X, Y = make_multilabel(60)
    Y[:, 1] = 0
    chain = ClassifierChain(base, order=[1, 0, 3, 2]).fit(X, Y)
    repeated, sets = every_set_of(X[:4])
    log_proba = chain_set_log_proba(chain, repeated, sets)
    assert np.isneginf(log_proba[sets[:, 1] == 1]).all()
    np.testing.assert_allclose(np.exp(log_proba).reshape(4, -1).sum(axis=1), 1)


def test_a_chain_fitted_on_a_frame_takes_one():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    by_name, by_place = (ClassifierChain(LogisticRegression()).fit(features, Y) for features in (frame, X))
    np.testing.assert_allclose(chain_set_log_proba(by_name, frame, Y), chain_set_log_proba(by_place, X, Y))


def test_chains_that_give_sets_no_probability_are_an_error_that_says_why():
    with pytest.raises(ValueError, match="must have predict_proba"):
        chain_set_log_proba(ClassifierChain(SVC()).fit(X, Y), X, Y)
    with pytest.raises(ValueError, match="use chain_method='predict' in place of 'decision_function'"):
        chain = ClassifierChain(LogisticRegression(), cv=3, chain_method="decision_function").fit(X, Y)
        chain_set_log_proba(chain, X, Y)
    chain = ClassifierChain(LogisticRegression()).fit(X, Y)
    with pytest.raises(ValueError, match="Y must have 4 columns, one per link; got 3"):
        chain_set_log_proba(chain, X, Y[:, :3])
    with pytest.raises(ValueError, match="X and y must have the same number of rows; got 59 and 60"):
        chain_set_log_proba(chain, X[1:], Y)
    with pytest.raises(ValueError, match="a link has other classes than 0 and 1"):
        chain_set_log_proba(ClassifierChain(LogisticRegression()).fit(X, 2 * Y - 1), X, Y)


@pytest.mark.parametrize("meta", [LabelPowerset, OrConstant])
def test_the_last_step_of_a_pipeline_gets_the_weights(meta):
    weights, y = 0.5 + np.arange(60) % 3, Y[:, 0]
    plain, piped = (
        meta(inner).fit(X, y, sample_weight=weights)
        for inner in (LogisticRegression(), make_pipeline("passthrough", LogisticRegression()))
    )
    np.testing.assert_array_equal(piped.predict_proba(X), plain.predict_proba(X))
