"""Thresholds against all cut-offs by brute force, scikit-learn's metrics and its tuned threshold for two classes."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import make_multilabel, marginals_of
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, fbeta_score, hamming_loss, jaccard_score
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    LeaveOneOut,
    RepeatedKFold,
    ShuffleSplit,
    TunedThresholdClassifierCV,
    cross_val_predict,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.baselines import LabelPowerset, MLkNN, OrConstant
from mlrh.estimators.thresholds import METRICS, TunedThresholds, best_thresholds

X, Y = make_multilabel(80)

BY_ASCENT = ["f1_example", "jaccard", "exact_match"]


def measure(metric, Y, predicted, *, beta=1.0, weights=None):
    """The metric from its definition."""
    Y, predicted = np.asarray(Y, bool), np.asarray(predicted, bool)
    weights = np.ones(len(Y)) if weights is None else weights
    if metric in ("hamming", "exact_match"):
        right = predicted == Y
        return np.average(right.mean(axis=1) if metric == "hamming" else right.all(axis=1), weights=weights)
    is_by_row = metric in ("f1_example", "jaccard")
    cells = np.array([Y & predicted, predicted & ~Y, Y & ~predicted]) * (1 if is_by_row else weights[:, None])
    tp, fp, fn = cells.sum(axis=2 if is_by_row else 1 if metric.endswith("macro") else (1, 2))
    if metric.startswith("f1"):
        tp, fn = (1 + beta**2) * tp, beta**2 * fn
    n_relevant = tp + fp + fn
    share = np.where(n_relevant > 0, tp / np.where(n_relevant > 0, n_relevant, 1.0), float(is_by_row))
    return np.average(share, weights=weights if is_by_row else None)


def cutoffs(scores):
    """One threshold for every way to cut the scores."""
    return np.append(np.unique(scores), -np.inf)


def best_of_all(metric, Y, scores, per_label, **options):
    """The best score over all cut-offs."""
    common = [np.full(Y.shape[1], t) for t in cutoffs(scores)]
    candidates = product(*(cutoffs(column) for column in scores.T)) if per_label else common
    return max(measure(metric, Y, scores > np.array(t), **options) for t in candidates)


def rows_with_ties(seed, n_samples=6, n_labels=3, levels=8):
    rng = np.random.RandomState(seed)
    scores = rng.randint(0, levels + 1, size=(n_samples, n_labels)) / levels
    return (rng.uniform(size=scores.shape) < 0.2 + 0.5 * scores).astype(int), scores


@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_the_reference_has_the_values_of_scikit_learn(beta):
    Y, scores = rows_with_ties(0, n_samples=12)
    Y[0], scores[0], Y[:, 2] = 0, 0, 0
    P, w = (scores > 0.4).astype(int), np.arange(12) % 4 + 0.5
    P[:, 2] = 0
    for metric, average, empty in ("macro", "macro", 0), ("micro", "micro", 0), ("example", "samples", 1):
        options = {"average": average, "zero_division": empty, "sample_weight": w}
        expected = fbeta_score(Y, P, beta=beta, **options)
        assert measure(f"f1_{metric}", Y, P, beta=beta, weights=w) == pytest.approx(expected, abs=1e-14)
        name = "jaccard" if metric == "example" else f"jaccard_{metric}"
        assert measure(name, Y, P, weights=w) == pytest.approx(jaccard_score(Y, P, **options), abs=1e-14)
    assert measure("hamming", Y, P, weights=w) == pytest.approx(1 - hamming_loss(Y, P, sample_weight=w))
    assert measure("exact_match", Y, P, weights=w) == pytest.approx(accuracy_score(Y, P, sample_weight=w))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("metric", "per_label"),
    [(metric, False) for metric in METRICS] + [(metric, True) for metric in METRICS if metric not in BY_ASCENT],
)
def test_thresholds_are_the_best_of_all_cutoffs_and_per_label_of_all_their_combinations(metric, per_label, seed):
    n_samples, n_labels = (5, 3) if per_label else (9, 4)
    Y, scores = rows_with_ties(seed, n_samples, n_labels)
    beta = (0.5 if per_label else 2.0) if metric.startswith("f1") and seed % 2 else 1.0
    weights = np.random.RandomState(seed).randint(per_label, 4, size=n_samples) + (seed > 3) * 0.3
    options = {"beta": beta, "metric": metric}
    thresholds = best_thresholds(Y, scores, per_label=per_label, sample_weight=weights, **options)
    assert per_label or len(set(thresholds)) == 1
    found = measure(Y=Y, predicted=scores > thresholds, weights=weights, **options)
    assert found == pytest.approx(
        best_of_all(Y=Y, scores=scores, per_label=per_label, weights=weights, **options), abs=1e-12
    )


@pytest.mark.parametrize("metric", BY_ASCENT)
def test_no_single_threshold_of_coordinate_ascent_can_be_improved_and_the_common_one_is_not_better(metric):
    gains = 0
    for seed in range(8):
        Y, scores = rows_with_ties(seed, n_samples=12, levels=20)
        common, own = (best_thresholds(Y, scores, metric=metric, per_label=per_label) for per_label in (False, True))
        found = measure(metric, Y, scores > own)
        gains += found > measure(metric, Y, scores > common) + 1e-12
        assert found >= measure(metric, Y, scores > common) - 1e-12
        for label in range(3):
            others = [np.where(np.arange(3) == label, t, own) for t in cutoffs(scores[:, label])]
            assert found >= max(measure(metric, Y, scores > t) for t in others) - 1e-12
    assert gains > 2


@given(st.integers(0, 2**32 - 1), st.sampled_from(list(METRICS)), st.booleans())
def test_thresholds_are_never_worse_than_one_half(seed, metric, per_label):
    rng = np.random.RandomState(seed)
    n_samples, n_labels = rng.randint(1, 12), rng.randint(1, 5)
    Y, scores = rows_with_ties(seed, n_samples, n_labels, levels=rng.randint(1, 9))
    thresholds = best_thresholds(Y, scores, metric=metric, per_label=per_label)
    assert measure(metric, Y, scores > thresholds) >= measure(metric, Y, scores > 0.5) - 1e-12


@pytest.mark.parametrize("per_label", [True, False])
@pytest.mark.parametrize("metric", METRICS)
def test_the_order_of_rows_and_labels_plays_no_part(metric, per_label):
    rng = np.random.RandomState(1)
    scores = rng.uniform(size=(40, 5)).round(2)
    Y = (rng.uniform(size=scores.shape) < scores).astype(int)
    rows, labels, weights = rng.permutation(40), rng.permutation(5), rng.uniform(0.5, 2, size=40)
    options = {"metric": metric, "per_label": per_label}
    expected = best_thresholds(Y, scores, sample_weight=weights, **options)
    found = best_thresholds(Y[rows][:, labels], scores[rows][:, labels], sample_weight=weights[rows], **options)
    np.testing.assert_array_equal(found, expected[labels])


@pytest.mark.parametrize("metric", METRICS)
def test_a_row_of_weight_two_counts_twice_the_scale_of_weights_plays_no_part_and_inputs_stay(metric):
    Y, scores = rows_with_ties(3, n_samples=15, levels=30)
    weights = np.arange(15) % 3
    copies = Y.copy(), scores.copy(), weights.copy()
    expected = best_thresholds(Y.repeat(weights, axis=0), scores.repeat(weights, axis=0), metric=metric)
    for scale in (1, 1e-9, 1e9):
        found = best_thresholds(Y, scores, metric=metric, sample_weight=scale * weights)
        np.testing.assert_array_equal(found, expected)
    for array, copy in zip((Y, scores, weights), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_a_decision_function_give_the_sets_that_their_ranks_give(metric):
    Y, ranks = rows_with_ties(5, n_samples=15, levels=30)
    scores = np.array([-1e5, *np.linspace(-400, 400, 29), 1e5])[(30 * ranks).round().astype(int)]
    by_rank, by_score = (best_thresholds(Y, values, metric=metric, per_label=False) for values in (ranks, scores))
    found, expected = (measure(metric, Y, s > t) for s, t in ((scores, by_score), (ranks, by_rank)))
    assert found == pytest.approx(expected, abs=1e-12)


def test_thresholds_lie_halfway_between_scores_and_nearest_to_one_half_of_equals():
    Y, scores = [[1], [0], [1], [0]], [[0.9], [0.6], [0.2], [0.1]]
    # F1 is 2/3 for the first alone, 1/2 with the second, 4/5 with the third.
    np.testing.assert_allclose(best_thresholds(Y, scores), [0.15])
    # One error for the first alone and for the first three; 0.75 is nearer to 1/2 than 0.15.
    np.testing.assert_allclose(best_thresholds(Y, scores, metric="hamming"), [0.75])
    np.testing.assert_allclose(best_thresholds(np.ones((4, 1)), scores), [0.05])
    np.testing.assert_allclose(best_thresholds(np.zeros((4, 1)), scores, metric="hamming"), [0.95])


def test_thresholds_separate_scores_that_are_neighbours_among_the_floating_point_numbers():
    for high in (0.3, 1.0, 5e-324):
        low = np.nextafter(high, 0)
        threshold = best_thresholds([[1], [0]], [[high], [low]])
        assert high > threshold[0] >= low
    single = np.array([[0.3], [np.nextafter(np.float32(0.3), 0)]], np.float32)
    assert (single > best_thresholds([[1], [0]], single)).tolist() == [[True], [False]]


@pytest.mark.parametrize("metric", ["f1_macro", "f1_micro", "hamming"])
def test_a_score_of_zero_can_be_taken_and_one_of_one_left_out(metric):
    assert -1e-300 < best_thresholds([[1], [1]], [[0.0], [0.0]], metric=metric)[0] < 0.0
    assert best_thresholds([[0], [0]], [[1.0], [1.0]], metric="hamming")[0] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, 0]], [[0.5]], {}), r"the same shape, not empty; got \(1, 2\) and \(1, 1\)"),
        (([[1]], [[np.nan]], {}), "Scores must be finite; got nan for label 0 of row 0"),
        (([[2]], [[0.5]], {}), "Y must contain only 0 and 1"),
        (([[1]], [[0.5]], {"metric": "f1"}), "metric must be one of 'f1_macro', .*; got 'f1'"),
        (([[1]], [[0.5]], {"metric": "hamming", "beta": 2}), "must be 1 with metric='hamming'; got 2"),
        (([[1]], [[0.5]], {"beta": 0}), "beta must lie between 1e-6 and 1e6; got 0"),
        (([[1]], [[0.5]], {"sample_weight": [0]}), "at least one non-zero"),
    ],
)
def test_arguments_without_meaning_are_an_error(arguments, message):
    Y, scores, options = arguments
    with pytest.raises(ValueError, match=message):
        best_thresholds(Y, scores, **options)


FOLDS = KFold(4, shuffle=True, random_state=1)
TREES = {"n_estimators": 10, "random_state": 0}


def marginals_by_hand(estimator, X, Y):
    """Out-of-fold probabilities (n_samples, n_labels)."""
    marginals = np.empty(Y.shape)
    for train, held_out in FOLDS.split(X):
        marginals[held_out] = marginals_of(clone(estimator).fit(X[train], Y[train]), X[held_out])
    return marginals


class SparseProbabilities(OneVsRestClassifier):
    def predict_proba(self, X):
        return sparse.lil_matrix(super().predict_proba(X))


CLASSIFIERS = [
    SparseProbabilities(LogisticRegression()),
    MLRHClassifier(),
    KernelMLRHClassifier(label_space="observed"),
    OneVsRestClassifier(LogisticRegression()),
    MultiOutputClassifier(LogisticRegression()),
    ClassifierChain(LogisticRegression()),
    RandomForestClassifier(**TREES),
    DecisionTreeClassifier(max_depth=3, random_state=0),
    KNeighborsClassifier(7),
    MLPClassifier((8,), solver="lbfgs", alpha=1.0, max_iter=2000, random_state=0),
    LabelPowerset(GaussianNB()),
    MLkNN(),
    GridSearchCV(OneVsRestClassifier(LogisticRegression()), {"estimator__C": [0.1, 1.0]}, cv=2),
    make_pipeline(StandardScaler(), RandomForestClassifier(**TREES)),
]


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda estimator: type(estimator).__name__)
def test_probabilities_of_every_shape_give_the_thresholds_of_the_marginals(estimator):
    marginals = marginals_by_hand(estimator, X, Y)
    clf = TunedThresholds(estimator, cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(clf.thresholds_, best_thresholds(Y, marginals), atol=1e-12)
    score = f1_score(Y, marginals > clf.thresholds_, average="macro")
    assert clf.best_score_ == pytest.approx(score, abs=1e-12)
    assert clf.has_own_threshold_.all()
    answer = marginals_of(clone(estimator).fit(X, Y), X)
    np.testing.assert_allclose(clf.predict_proba(X), answer, atol=1e-12)
    assert np.array_equal(clf.predict(X), answer > clf.thresholds_)
    assert np.array_equal(clf.predict(X), clf.decision_function(X) > 0)


def test_decision_values_take_the_place_of_probabilities_where_there_are_none():
    values = cross_val_predict(OneVsRestClassifier(LinearSVC()), X, Y, cv=FOLDS, method="decision_function")
    clf = TunedThresholds(OneVsRestClassifier(LinearSVC()), metric="f1_micro", cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(clf.thresholds_, best_thresholds(Y, values, metric="f1_micro"))
    assert clf.default_score_ == pytest.approx(f1_score(Y, values > 0, average="micro"))
    assert not hasattr(clf, "predict_proba")


@pytest.mark.parametrize("per_label", [True, False])
@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_those_of_the_held_out_rows_and_honest_ones_use_the_other_folds(metric, per_label):
    marginals = cross_val_predict(MLRHClassifier(), X, Y, cv=FOLDS, method="predict_proba")
    clf = TunedThresholds(MLRHClassifier(), metric=metric, per_label=per_label, cv=FOLDS).fit(X, Y)
    options = {"metric": metric, "per_label": per_label}
    np.testing.assert_array_equal(clf.thresholds_, best_thresholds(Y, marginals, **options))
    assert clf.common_threshold_ == best_thresholds(Y, marginals, metric=metric, per_label=False)[0]
    honest = np.empty(Y.shape, bool)
    for fold, (others, here) in enumerate(FOLDS.split(X)):
        honest[here] = marginals[here] > best_thresholds(Y[others], marginals[others], **options)
        for scores, sets in (
            (clf.cv_scores_, marginals > clf.thresholds_),
            (clf.default_scores_, marginals > 0.5),
            (clf.honest_scores_, honest),
        ):
            assert scores[fold] == pytest.approx(measure(metric, Y[here], sets[here]), abs=1e-12)
    assert clf.best_score_ == pytest.approx(measure(metric, Y, marginals > clf.thresholds_), abs=1e-12)
    assert clf.honest_score_ == pytest.approx(measure(metric, Y, honest), abs=1e-12)
    assert clf.best_score_ >= clf.default_score_ == pytest.approx(measure(metric, Y, marginals > 0.5), abs=1e-12)
    assert clf.score_spread_ == pytest.approx(np.std(clf.honest_scores_, ddof=1))


def test_two_classes_are_tuned_no_worse_than_by_scikit_learn_on_the_same_folds():
    X, y = make_classification(300, weights=[0.85], flip_y=0.1, class_sep=0.5, random_state=0)
    proba = cross_val_predict(LogisticRegression(), X, y, cv=FOLDS, method="predict_proba")[:, 1]
    clf = TunedThresholds(LogisticRegression(), cv=FOLDS).fit(X, y)
    theirs = TunedThresholdClassifierCV(LogisticRegression(), scoring="f1", cv=FOLDS, thresholds=50).fit(X, y)
    pooled = [f1_score(y, proba >= t) for t in (theirs.best_threshold_, 0.5)]
    assert clf.best_score_ == pytest.approx(f1_score(y, proba > clf.thresholds_[0]))
    assert clf.best_score_ >= max(pooled)
    # Theirs is the mean over folds, ours of all rows: close, and both well above 1/2.
    assert abs(clf.thresholds_[0] - theirs.best_threshold_) < 0.1 and clf.best_score_ > pooled[1] + 0.05
    assert np.array_equal(clf.predict(X), clf.estimator_.predict_proba(X)[:, 1] > clf.thresholds_[0])


def test_classes_keep_their_names_and_three_are_an_error():
    X, codes = make_classification(60, random_state=0)
    clf = TunedThresholds(LogisticRegression()).fit(X, np.array(["no", "yes"])[codes])
    assert clf.classes_.tolist() == ["no", "yes"] and set(clf.predict(X)) == {"no", "yes"}
    assert np.array_equal(clf.predict(X) == "yes", clf.estimator_.predict_proba(X)[:, 1] > clf.thresholds_[0])
    assert not hasattr(clf, "predict_proba")  # its larger column would contradict predict
    with pytest.raises(ValueError, match=r"there must be 2 classes, got 3"):
        TunedThresholds(LogisticRegression()).fit(X, np.arange(60) % 3)


def test_a_single_label_as_a_sparse_column_is_two_classes_to_the_estimator():
    X, y = make_classification(80, random_state=0)
    by_class = TunedThresholds(LogisticRegression()).fit(X, y)
    by_label = TunedThresholds(LogisticRegression()).fit(X, sparse.csr_matrix(y[:, None]))
    np.testing.assert_array_equal(by_label.thresholds_, by_class.thresholds_)
    assert np.array_equal(by_label.predict(X).toarray()[:, 0], by_class.predict(X))
    np.testing.assert_array_equal(by_label.predict_proba(X), by_class.estimator_.predict_proba(X)[:, 1:])


@pytest.mark.slow
def test_parallel_folds_give_the_same_thresholds():
    expected = TunedThresholds(MLRHClassifier()).fit(X, Y)
    parallel = TunedThresholds(MLRHClassifier(), n_jobs=2).fit(X, Y)
    np.testing.assert_array_equal(parallel.thresholds_, expected.thresholds_)


def test_frames_sparse_rows_and_kernel_matrices_give_the_same_thresholds():
    expected = TunedThresholds(MLRHClassifier()).fit(X, Y)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    by_name = TunedThresholds(MLRHClassifier()).fit(frame, Y)
    assert by_name.feature_names_in_.tolist() == list("abcdef") and by_name.n_features_in_ == 6
    np.testing.assert_allclose(by_name.thresholds_, expected.thresholds_)
    scarce = TunedThresholds(MLRHClassifier()).fit(sparse.csr_matrix(X), Y)
    np.testing.assert_allclose(scarce.thresholds_, expected.thresholds_, atol=1e-4)
    linear, gram = (
        TunedThresholds(KernelMLRHClassifier(kernel=kernel, tol=1e-14)).fit(rows, Y)
        for kernel, rows in (("linear", X), ("precomputed", X @ X.T))
    )
    np.testing.assert_allclose(gram.thresholds_, linear.thresholds_, atol=1e-4)
    assert np.array_equal(gram.predict(X @ X.T), linear.predict(X))


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize(
    "estimator",
    [RandomForestClassifier(**TREES), KNeighborsClassifier(), MultiOutputClassifier(OrConstant(LogisticRegression()))],
)
def test_a_constant_label_is_predicted_as_its_constant(estimator, value):
    X, Y = make_multilabel(80)
    Y[:, 2] = value
    clf = TunedThresholds(estimator, metric="hamming").fit(X, Y)
    assert (clf.predict_proba(X)[:, 2] == value).all() and (clf.predict(X)[:, 2] == value).all()
    assert clf.has_own_threshold_.tolist() == [True, True, False, True]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("estimator", [RandomForestClassifier(**TREES), KNeighborsClassifier()])
def test_a_label_that_a_fold_lacks_has_the_best_common_threshold(estimator, metric):
    X, Y = make_multilabel(80)
    Y[:, 1] = np.isin(np.arange(80), [3, 40, 41])
    clf = TunedThresholds(estimator, metric=metric, cv=5).fit(X, Y)
    assert clf.has_own_threshold_.tolist() == [True, False, True, True]
    assert clf.thresholds_[1] == clf.common_threshold_
    assert clf.best_score_ >= clf.default_score_


def test_with_one_row_per_fold_all_labels_have_the_common_threshold():
    X, Y = make_multilabel(30)
    clf = TunedThresholds(KNeighborsClassifier(), cv=LeaveOneOut()).fit(X, Y)
    assert not clf.has_own_threshold_.any() and len(clf.cv_scores_) == 30


def test_an_estimator_that_refuses_constant_labels_is_an_error_that_names_the_way_out():
    X, Y = make_multilabel(60)
    Y[:, 3] = np.arange(60) == 7
    words = r"^This solver needs .* \(All or none .* label 3\. .* mlrh\.baselines\.OrConstant"
    with pytest.raises(ValueError, match=words):
        TunedThresholds(MultiOutputClassifier(LogisticRegression())).fit(X, Y)
    clf = TunedThresholds(MultiOutputClassifier(OrConstant(LogisticRegression()))).fit(X, Y)
    assert clf.thresholds_[3] == clf.common_threshold_


class Recording(ClassifierMixin, BaseEstimator):
    """Answers with the row numbers it was not fitted to, and keeps what it was fitted to in a list of all fits."""

    fits: list = []

    def fit(self, X, y, sample_weight=None):
        Recording.fits.append((X[:, 0].astype(int), y, sample_weight))
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        return np.column_stack([X[:, 0], X[:, 0]]) / 100


def test_folds_hold_out_every_row_once_and_every_label_that_can_be_spread():
    rng = np.random.RandomState(0)
    X, Y = np.arange(97.0)[:, None], np.zeros((97, 2), int)
    Y[rng.permutation(97)[:5], 0] = 1
    Y[:, 1] = 1
    Y[rng.permutation(97)[:6], 1] = 0
    Recording.fits.clear()
    TunedThresholds(Recording()).fit(X, Y)
    *folds, (all_rows, _, _) = Recording.fits
    held_out = [np.setdiff1d(all_rows, train) for train, _, _ in folds]
    assert len(folds) == 5 and np.array_equal(np.sort(np.concatenate(held_out)), all_rows)
    assert all(Y[rows, 0].sum() == 1 and 1 <= (Y[rows, 1] == 0).sum() <= 2 for rows in held_out)
    assert max(map(len, held_out)) - min(map(len, held_out)) <= 1


def test_the_estimator_is_fitted_once_per_fold_and_once_to_all_rows():
    X, Y = np.arange(40.0)[:, None], np.tile([[0, 1], [1, 0], [1, 1], [0, 0]], (10, 1))
    for metric in METRICS:
        Recording.fits.clear()
        TunedThresholds(Recording(), metric=metric, cv=4).fit(X, Y)
        assert [len(rows) for rows, _, _ in Recording.fits] == [30] * 4 + [40]


def test_weights_are_passed_on_and_rows_of_weight_zero_are_not_held_out():
    X, Y = make_multilabel(90)
    weights = np.arange(90) % 3
    folds = list(FOLDS.split(X))
    clf = TunedThresholds(MLRHClassifier(tol=1e-12), cv=folds).fit(X, Y, sample_weight=weights)
    marginals = np.empty(Y.shape)
    for train, held_out in folds:
        fitted = MLRHClassifier(tol=1e-12).fit(X[train], Y[train], sample_weight=weights[train])
        marginals[held_out] = fitted.predict_proba(X[held_out])
    np.testing.assert_allclose(clf.thresholds_, best_thresholds(Y, marginals, sample_weight=weights), atol=1e-6)
    expected = measure("f1_macro", Y, marginals > clf.thresholds_, weights=weights)
    assert clf.best_score_ == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match=r"because KNeighborsClassifier\.fit doesn't take it"):
        TunedThresholds(KNeighborsClassifier()).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize(
    "cv", [RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), ShuffleSplit(4, random_state=0)]
)
def test_rows_held_out_repeatedly_or_never_count_as_often_as_they_are(cv):
    splits = list(cv.split(X))
    clf = TunedThresholds(KNeighborsClassifier(), metric="hamming", cv=cv).fit(X, Y)
    rows = np.concatenate([held_out for _, held_out in splits])
    marginals = [marginals_of(KNeighborsClassifier().fit(X[t], Y[t]), X[held_out]) for t, held_out in splits]
    expected = best_thresholds(Y[rows], np.vstack(marginals), metric="hamming", per_label=False)
    assert clf.common_threshold_ == pytest.approx(expected[0], abs=1e-12)
    masks = [(np.isin(np.arange(80), train), np.isin(np.arange(80), held_out)) for train, held_out in splits]
    by_mask = TunedThresholds(KNeighborsClassifier(), metric="hamming", cv=masks).fit(X, Y)
    np.testing.assert_array_equal(by_mask.thresholds_, clf.thresholds_)


def test_honest_scores_of_repeated_rows_use_no_row_of_the_fold_that_first_holds_them_out():
    X, Y = make_multilabel(90)
    splits = list(RepeatedKFold(n_splits=3, n_repeats=2, random_state=0).split(X))
    clf = TunedThresholds(MLRHClassifier(), metric="hamming", cv=splits).fit(X, Y)
    rows = np.concatenate([held_out for _, held_out in splits])
    marginals = np.vstack([MLRHClassifier().fit(X[t], Y[t]).predict_proba(X[held_out]) for t, held_out in splits])
    honest = np.empty(marginals.shape, bool)
    for _, held_out in splits[:3]:
        here = np.isin(rows, held_out)
        honest[here] = marginals[here] > best_thresholds(Y[rows[~here]], marginals[~here], metric="hamming")
    assert clf.has_own_threshold_.all()
    assert clf.honest_score_ == pytest.approx(1 - hamming_loss(Y[rows], honest), abs=1e-12)


def test_the_last_step_of_a_pipeline_gets_the_weights():
    X, Y = make_multilabel(90)
    weights = 0.5 + np.arange(90) % 3
    plain = TunedThresholds(MLRHClassifier(), cv=FOLDS).fit(X, Y, sample_weight=weights)
    piped = TunedThresholds(make_pipeline("passthrough", MLRHClassifier()), cv=FOLDS).fit(X, Y, sample_weight=weights)
    np.testing.assert_array_equal(piped.thresholds_, plain.thresholds_)
    assert (piped.thresholds_ != TunedThresholds(MLRHClassifier(), cv=FOLDS).fit(X, Y).thresholds_).any()


def test_other_errors_of_the_estimator_are_said_first_where_a_label_is_constant():
    X, Y = make_multilabel(60)
    X[3, 2], Y[:, 3] = np.nan, 0
    words = r"^Input X contains NaN[\s\S]*\(All or none of the rows of this fit have label"
    with pytest.raises(ValueError, match=words):
        TunedThresholds(MLRHClassifier()).fit(X, Y)


class OneColumn(OneVsRestClassifier):
    def predict_proba(self, X):
        return super().predict_proba(X)[:, :1]


KNN = KNeighborsClassifier(1)
REFUSED = [
    (TunedThresholds(KNN, metric="f1"), "The 'metric' parameter of TunedThresholds must be"),
    (TunedThresholds(KNN, beta=0.0), "The 'beta' parameter of TunedThresholds must be"),
    (TunedThresholds(KNN, beta=2.0, metric="jaccard"), "must be 1 with metric='jaccard'"),
    (TunedThresholds(KNN, cv=81), "got 81 folds for n_samples=80"),
    (TunedThresholds(KNN, cv=[(np.arange(4), np.arange(4, 8))]), "at least 2 folds with held-out rows of .*; got 1"),
    (TunedThresholds(OneColumn(LogisticRegression())), r"must give 4 labels to each of \d+ rows; got shape"),
    (TunedThresholds(MultiOutputClassifier(SVC())), "must have predict_proba or decision_function; MultiOutput"),
]


@pytest.mark.parametrize(("clf", "message"), REFUSED)
def test_what_cannot_be_tuned_is_an_error_that_says_why(clf, message):
    with pytest.raises(ValueError, match=message):
        clf.fit(X, Y)


def test_three_rows_have_three_folds():
    assert len(TunedThresholds(KNN).fit(X[:3], Y[:3]).cv_scores_) == 3


def test_search_and_pipelines_choose_with_the_tuned_predictions():
    X, Y = make_multilabel(120)
    model = make_pipeline(StandardScaler(), TunedThresholds(MLRHClassifier(), metric="f1_micro"))
    grid = {"tunedthresholds__estimator__C": [1e-3, 1.0], "tunedthresholds__per_label": [True, False]}
    search = GridSearchCV(model, grid, scoring="f1_micro", cv=3).fit(X, Y)
    best = clone(model).set_params(**search.best_params_).fit(X, Y)
    assert np.array_equal(best.predict(X), search.predict(X))
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0


def test_tuning_for_macro_f1_raises_it_on_new_rows_with_rare_labels():
    rng = np.random.RandomState(0)
    X = rng.normal(size=(3000, 5))
    Y = (X @ rng.normal(size=(5, 6)) + rng.logistic(size=(3000, 6)) > 3.5).astype(int)
    plain = OneVsRestClassifier(LogisticRegression()).fit(X[:1500], Y[:1500])
    clf = TunedThresholds(OneVsRestClassifier(LogisticRegression())).fit(X[:1500], Y[:1500])
    default, tuned = (f1_score(Y[1500:], model.predict(X[1500:]), average="macro") for model in (plain, clf))
    assert tuned > default + 0.03
    assert abs(tuned - clf.honest_score_) < 0.05
