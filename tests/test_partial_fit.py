"""partial_fit: rows in parts lead to the model of fit on all of them, within a budget of memory."""

import signal

import numpy as np
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris

from mlrh import MLRHClassifier, MLRHClassifierCV
from mlrh.estimators import linear
from mlrh.fitting.objective import Objective

X, Y = make_multilabel()


def shown(model, X, y, *, chunk=50, classes=None, **options):
    """The model after partial_fit of consecutive chunks."""
    for start in range(0, X.shape[0], chunk):
        part = slice(start, start + chunk)
        weights = {name: value[part] for name, value in options.items()}
        model.partial_fit(X[part], y[part], classes=classes, **weights)
    return model


def iris():
    X, y = load_iris(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(y))
    return X[order], np.array(["a", "b", "c"])[y[order]]


CASES = {
    "dense": (X, Y, {}),
    "sparse": (sparse.csr_array(np.maximum(X, 0)), Y, {}),
    "size bias": (X, Y, {"size_bias": True}),
    "observed": (X, Y, {"label_space": "observed"}),
    "no intercept": (X, Y, {"fit_intercept": False}),
    "L1": (X, Y, {"l1_ratio": 0.5}),
    "three classes": (*iris(), {}),
    "float32": (X.astype(np.float32), Y, {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [40, 1000])
def test_rows_in_parts_reach_the_optimum_of_all_rows(case, chunk):
    X, y, options = CASES[case]
    classes = np.unique(y) if np.ndim(y) == 1 else range(y.shape[1])
    model = shown(MLRHClassifier(**options), X, y, chunk=chunk, classes=classes)
    fitted = MLRHClassifier(**options).fit(X, y)
    # Both stop within tol = 1e-7 of the optimum, in units of the loss of the uniform distribution; float32 rounds.
    assert model.objective_ == pytest.approx(fitted.objective_, rel=1e-4 if X.dtype == np.float32 else 1e-6)
    np.testing.assert_allclose(model.predict_proba(X), fitted.predict_proba(X), atol=0.01)
    assert (model.n_samples_seen_, model.n_samples_kept_) == (X.shape[0], X.shape[0])
    assert model.coef_.dtype == X.dtype


def test_unknown_entries_count_as_in_fit():
    known = np.where(np.random.RandomState(0).random_sample(Y.shape) < 0.2, np.nan, Y)
    model = shown(MLRHClassifier(C=0.1), X, known, classes=range(4))
    assert model.objective_ <= 1.001 * MLRHClassifier(C=0.1).fit(X, known).objective_


def test_weights_count_as_repeated_rows():
    weights = np.tile([0.0, 1.0, 2.0], len(X))[: len(X)]
    model = shown(MLRHClassifier(), X, Y, classes=range(Y.shape[1]), sample_weight=weights)
    expected = MLRHClassifier().fit(X, Y, sample_weight=weights)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-6)


def test_a_row_shown_twice_counts_twice():
    model = shown(shown(MLRHClassifier(), X, Y, classes=range(Y.shape[1])), X, Y)
    twice = MLRHClassifier().fit(np.vstack([X, X]), np.vstack([Y, Y]))
    assert model.objective_ == pytest.approx(twice.objective_, rel=1e-6)


def test_sizes_widen_as_rows_arrive():
    X, Y = make_multilabel(max_labels=3)
    order = np.argsort(Y.sum(axis=1), kind="stable")
    model = MLRHClassifier().partial_fit(X[order][:20], Y[order][:20], classes=range(Y.shape[1]))
    assert model.max_labels_ == 1
    assert shown(model, X[order][20:], Y[order][20:]).max_labels_ == 3


def test_beyond_the_budget_a_sample_stands_for_all_rows(monkeypatch):
    X, Y = make_multilabel(4000)
    monkeypatch.setattr(linear, "MAX_BYTES", 60_000)  # about a quarter of the rows
    model = shown(MLRHClassifier(C=0.01), X, Y, chunk=100, classes=range(Y.shape[1]))
    assert model.n_samples_seen_ == 4000 and 300 < model.n_samples_kept_ <= 1000
    assert model._kept.weights.sum() == pytest.approx(4000, rel=0.15)  # five standard deviations of such a sample
    fitted = MLRHClassifier(C=0.01).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X), fitted.predict_proba(X), atol=0.2)
    assert np.abs(model.predict_proba(X) - fitted.predict_proba(X)).mean() < 0.03


def test_rows_shown_one_by_one_are_kept_as_often_as_others(monkeypatch):
    X, Y = make_multilabel(400)
    monkeypatch.setattr(linear, "MAX_BYTES", 6_000)  # about a quarter of the rows
    model = shown(MLRHClassifier(tol=1e-2), X, Y, chunk=1, classes=range(Y.shape[1]))
    # Within five standard deviations of a sample of one in four.
    assert model._kept.weights.sum() == pytest.approx(400, abs=5 * np.sqrt(400 * (2**model._kept.level - 1)))
    assert model._kept.level <= 3


def test_an_error_names_the_row_of_its_own_call():
    X, Y = make_multilabel()
    model = MLRHClassifier(max_labels=3).partial_fit(X[:50], Y[:50], classes=range(4))
    with pytest.raises(ValueError, match="Row 1 of y has 4 labels"):
        model.partial_fit(X[50:52], [[1, 0, 0, 0], [1, 1, 1, 1]])


def test_an_interrupted_call_with_warm_start_keeps_its_rows(monkeypatch):
    X, Y = make_multilabel()
    model = MLRHClassifier(warm_start=True).partial_fit(X[:50], Y[:50], classes=range(4))
    evaluate, calls = Objective.value_and_gradient, []

    def interrupted(self, parameters):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, parameters)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Objective, "value_and_gradient", interrupted)
        model.partial_fit(X[50:], Y[50:])
    assert (model.n_samples_seen_, model.n_samples_kept_) == (200, 200)


def test_the_same_calls_give_the_same_model_beyond_the_budget(monkeypatch):
    X, Y = make_multilabel(1000)
    monkeypatch.setattr(linear, "MAX_BYTES", 20_000)
    first, second = (shown(MLRHClassifier(), X, Y, classes=range(Y.shape[1])) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)


def test_dense_calls_after_a_sparse_one_are_taken_in_its_form():
    X, Y = make_multilabel()
    X = np.maximum(X, 0)
    model = MLRHClassifier().partial_fit(sparse.csr_array(X[:100]), Y[:100], classes=range(Y.shape[1]))
    model.partial_fit(X[100:].astype(np.float32), Y[100:])
    assert sparse.issparse(model._kept.X) and model._kept.X.dtype == np.float64


def test_fit_forgets_the_rows_of_partial_fit():
    model = MLRHClassifier().partial_fit(X, Y, classes=range(Y.shape[1])).fit(X[:50], Y[:50])
    assert not hasattr(model, "n_samples_seen_")
    np.testing.assert_array_equal(model.coef_, MLRHClassifier().fit(X[:50], Y[:50]).coef_)


def test_after_fit_the_first_call_begins_anew_with_the_labels_of_fit():
    X, y = iris()
    model = MLRHClassifier().fit(X, y)
    model.partial_fit(X[:60], y[:60])
    assert model.classes_.tolist() == ["a", "b", "c"] and model.n_samples_seen_ == 60


def test_a_call_that_fails_changes_nothing():
    model = MLRHClassifier().partial_fit(X, Y, classes=range(Y.shape[1]))
    before = model.coef_.copy()
    for bad in ((X[:, :2], Y), (X, Y[:, :2]), (X[:3], Y), (X[:0], Y[:0])):
        with pytest.raises(ValueError):
            model.partial_fit(*bad)
    np.testing.assert_array_equal(model.coef_, before)
    assert model.n_samples_seen_ == len(X)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (None, "classes must be given at the first call"),
        (range(3), "classes must name the 4 columns"),
        (["a", "a", "b", "c"], "distinct names"),
        ({0, 1, 2, 3}, "so give a list, not a set"),
    ],
)
def test_the_first_call_needs_the_names_of_all_labels(classes, words):
    with pytest.raises(ValueError, match=words):
        MLRHClassifier().partial_fit(X, Y, classes=classes)


def test_classes_must_stay_what_they_were():
    model = MLRHClassifier().partial_fit(X, Y, classes=list("abcd"))
    with pytest.raises(ValueError, match="classes must stay what they were"):
        model.partial_fit(X, Y, classes=list("abce"))
    assert model.partial_fit(X, Y, classes=list("abcd")).classes_.tolist() == list("abcd")


def test_label_sets_may_come_before_all_of_their_labels_have_been_shown():
    X = np.arange(6.0)[:, None]
    model = MLRHClassifier().partial_fit(X[:2], [{"a"}, {"a"}], classes=["a", "b"])
    model.partial_fit(X[2:], [{"a", "b"}, {"b"}, {"b"}, {"b"}])
    assert model.predict([[5.0]]) == [{"b"}]


def test_the_classes_that_choose_C_have_no_partial_fit():
    assert not hasattr(MLRHClassifierCV(), "partial_fit")
    assert hasattr(clone(MLRHClassifier()), "partial_fit")
