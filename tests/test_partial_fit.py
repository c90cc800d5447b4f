"""partial_fit: rows in parts lead where fit leads, in bounded memory, whatever the calls look like."""

import doctest
import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples import make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale
from stream_samples import objective, shown, sparse_rows

from mlrh import KernelMLRHClassifier, MLRHClassifier, streaming
from mlrh.persistence import load, save
from mlrh.selection import MLRHClassifierCV


def three_classes():
    X, y = load_iris(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(y))
    return X[order], np.array(["a", "b", "c"])[y[order]]


def two_classes():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


CASES = {
    "dense": (make_multilabel, {}),
    "sparse": (sparse_rows, {}),
    "size bias": (make_multilabel, {"size_bias": True}),
    "no intercept": (make_multilabel, {"fit_intercept": False}),
    "three classes": (three_classes, {}),
    "two classes": (two_classes, {}),
    "strong penalty": (make_multilabel, {"C": 0.01}),
    "weak penalty": (make_multilabel, {"C": 100.0}),
    "no penalty": (make_multilabel, {"C": np.inf}),
    "one size": (lambda: make_multilabel(min_labels=2, max_labels=2), {}),
    "all sizes": (lambda: make_multilabel(min_labels=0, max_labels=4), {"min_labels": 0, "max_labels": 4}),
    "different scales": (lambda: (make_multilabel()[0] * np.logspace(-3, 3, 6) + 5.0, make_multilabel()[1]), {}),
    "float32": (lambda: (make_multilabel()[0].astype(np.float32), make_multilabel()[1]), {}),
    "more features than rows": (lambda: make_multilabel(40, 60), {}),
}


def classes_of(y):
    return np.unique(y) if np.ndim(y) == 1 else range(np.shape(y)[1])


@pytest.mark.parametrize("case", CASES)
def test_three_passes_come_within_one_percent_of_the_objective_of_fit(case):
    make, options = CASES[case]
    X, y = make()
    model = shown(MLRHClassifier(**options), X, y, classes=classes_of(y), passes=3)
    assert objective(model, X, y) <= 1.01 * MLRHClassifier(**options).fit(X, y).objective_
    assert (model.n_passes_, model.n_samples_seen_) == (3, 3 * X.shape[0])
    assert model.n_samples_counted_ == X.shape[0]
    assert model.coef_.dtype == X.dtype


@pytest.mark.parametrize("chunk", [1, 3, 64, 1000])
def test_calls_of_any_size_lead_to_the_same_model(chunk):
    X, Y = make_multilabel()
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=chunk, passes=3)
    np.testing.assert_allclose(model.predict_proba(X), MLRHClassifier().fit(X, Y).predict_proba(X), atol=0.02)


def test_a_single_call_is_cut_into_blocks_without_harm(monkeypatch):
    X, Y = make_multilabel()
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 1000)
    model = MLRHClassifier().partial_fit(X, Y, classes=range(4))
    assert objective(model, X, Y) <= 1.02 * MLRHClassifier().fit(X, Y).objective_
    assert shown(model, X, Y, classes=None, chunk=200, passes=2).n_passes_ == 3
    assert objective(model, X, Y) <= 1.001 * MLRHClassifier().fit(X, Y).objective_


def test_rows_in_another_order_are_recognised_as_another_pass():
    X, Y = make_multilabel()
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=30)
    for seed, chunk in ((0, 30), (1, 7), (2, 200)):
        order = np.random.RandomState(seed).permutation(len(X))
        shown(model, X[order], Y[order], classes=None, chunk=chunk)
    assert (model.n_passes_, model.n_samples_seen_) == (4, 4 * len(X))
    assert objective(model, X, Y) <= 1.001 * MLRHClassifier().fit(X, Y).objective_


def test_new_rows_after_several_passes_count():
    X, Y = make_multilabel(400)
    model = shown(MLRHClassifier(), X[:200], Y[:200], classes=range(4), passes=3)
    shown(model, X[200:], Y[200:], classes=None)
    assert shown(model, X, Y, classes=None, passes=2).n_passes_ == 5
    assert objective(model, X, Y) <= 1.001 * MLRHClassifier().fit(X, Y).objective_


@pytest.mark.parametrize("chunk", [1, 25])
def test_at_least_half_of_the_rows_count_where_chance_repeats_what_a_pass_would(chunk):
    rng = np.random.RandomState(0)
    X = rng.randint(2, size=(600, 2)).astype(float)  # with y there are 8 kinds of rows
    y = rng.uniform(size=600) < 0.2 + 0.5 * X[:, 0] * X[:, 1]
    model = shown(MLRHClassifier(), X, y, classes=[False, True], chunk=chunk)
    counted, waiting = (model._stream[name]["n_rows"] for name in ("counted", "again"))
    assert counted + waiting == 600 and counted >= waiting
    assert model.n_passes_ == 1


def test_rows_that_are_in_the_data_twice_count_twice():
    X, Y = make_multilabel(300)
    X, Y = np.vstack([X, X[:100]]), np.vstack([Y, Y[:100]])
    order = np.random.RandomState(0).permutation(400)
    model = shown(MLRHClassifier(), X[order], Y[order], classes=range(4), chunk=20, passes=3)
    assert model.n_passes_ == 3
    assert objective(model, X, Y) <= 1.001 * MLRHClassifier().fit(X, Y).objective_


def test_a_row_of_weight_two_counts_as_the_row_twice():
    X, Y = make_multilabel()
    weights = np.random.RandomState(0).randint(0, 3, size=len(X)).astype(float)
    model = shown(MLRHClassifier(), X, Y, classes=range(4), passes=3, weights=weights)
    twice = np.repeat(np.arange(len(X)), weights.astype(int))
    assert objective(model, X[twice], Y[twice]) <= 1.001 * MLRHClassifier().fit(X[twice], Y[twice]).objective_


def test_rows_of_weight_zero_leave_no_trace():
    X, Y = make_multilabel()
    weights = np.ones(len(X))
    weights[::3] = 0
    X_odd, Y_odd = X.copy(), Y.copy()
    X_odd[::3], Y_odd[::3] = 1e6, 1
    with_them = shown(MLRHClassifier(), X_odd, Y_odd, classes=range(4), weights=weights, chunk=30)
    without = shown(MLRHClassifier(), X[weights > 0], Y[weights > 0], classes=range(4), chunk=20)
    np.testing.assert_array_equal(with_them.coef_, without.coef_)
    assert with_them.max_labels_ == 3
    before = with_them.coef_
    np.testing.assert_array_equal(with_them.partial_fit(X[:5], Y[:5], sample_weight=np.zeros(5)).coef_, before)


def test_automatic_sizes_widen_as_rows_arrive_and_end_where_fit_finds_them():
    X, Y = make_multilabel(min_labels=0, max_labels=4)
    order = np.argsort(np.abs(Y.sum(axis=1) - 2), kind="stable")
    X, Y = X[order], Y[order]
    model, sizes = MLRHClassifier(size_bias=True), []
    for start in range(0, 200, 40):
        model.partial_fit(X[start : start + 40], Y[start : start + 40], classes=range(4))
        sizes.append((model.min_labels_, model.max_labels_))
    assert sizes[0] == (2, 2) and sizes[-1] == (0, 4)
    fitted = MLRHClassifier(size_bias=True).fit(X, Y)
    assert objective(shown(model, X, Y, classes=None, chunk=40, passes=2), X, Y) <= 1.01 * fitted.objective_
    np.testing.assert_allclose(model.size_bias_, fitted.size_bias_, atol=0.1)


def test_a_row_outside_given_sizes_is_named_and_changes_nothing():
    X, Y = make_multilabel()
    model = MLRHClassifier(min_labels=1, max_labels=3).partial_fit(X, Y, classes=range(4))
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match="Row 1 of y has 4 labels, which max_labels=3 excludes"):
        model.partial_fit(X[:2], [[1, 0, 0, 0], [1, 1, 1, 1]])
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("size_bias", [False, True])
def test_hidden_labels_lead_within_one_percent_of_fit(size_bias):
    X, Y = make_multilabel(400)
    hidden = np.where(np.random.RandomState(1).uniform(size=Y.shape) < 0.2, np.nan, Y)
    options = {"min_labels": 1, "max_labels": 3, "size_bias": size_bias}
    fitted = MLRHClassifier(**options).fit(X, hidden)
    model = shown(MLRHClassifier(**options), X, hidden, classes=range(4), passes=3)
    loss = -model.distribution(X).log_prob_of_known(hidden).sum()
    value = loss + np.square(model.coef_).sum() / 2 + 0.05 * np.square(model.size_bias_).sum()
    assert value <= 1.01 * fitted.objective_


def test_a_label_never_seen_is_hardly_ever_predicted():
    X, Y = make_multilabel()
    names = ["a", "b", "c", "d", "never"]
    y = [{names[k] for k in np.flatnonzero(row)} for row in Y]
    model = shown(MLRHClassifier(), X, y, classes=names)
    assert model.classes_.tolist() == names
    assert model.predict_proba(X)[:, 4].max() < 1e-3
    assert not any("never" in labels for labels in model.predict(X))


def test_a_first_call_may_show_a_single_class_or_no_label():
    X, y = three_classes()
    first = np.argsort(y != "b", kind="stable")
    model = shown(MLRHClassifier(), X[first], y[first], classes=["c", "a", "b"], chunk=30, passes=3)
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert objective(model, X, y) <= 1.01 * MLRHClassifier().fit(X, y).objective_
    empty = MLRHClassifier().partial_fit(X[:2], [set(), set()], classes=["a", "b"])
    assert empty.predict(X[:1]) == [set()]
    column = MLRHClassifier()
    with pytest.warns(match="column-vector"):
        column.partial_fit(X[:3], [[1], [1], [1]], classes=[0, 1])
    assert column.predict(X[:1]) == [1]


def test_a_frame_is_answered_with_a_frame_and_its_columns_are_found_by_name():
    X, Y = make_multilabel()
    frame, features = pd.DataFrame(Y, columns=list("abcd")), pd.DataFrame(X, columns=list("uvwxyz"))
    model = MLRHClassifier().partial_fit(features[:100], frame[:100], classes=list("dcba"))
    model.partial_fit(features[100:], frame[100:][list("badc")])
    assert list(model.predict(features).columns) == list("abcd")
    assert model.feature_names_in_.tolist() == list("uvwxyz")
    other = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=100)
    np.testing.assert_array_equal(model.coef_, other.coef_)


X0, Y0 = make_multilabel()
ERRORS = {
    "features": (lambda m: m.partial_fit(X0[:5, :4], Y0[:5]), "X has 4 features, but MLRHClassifier is expecting 6"),
    "labels": (lambda m: m.partial_fit(X0[:5], Y0[:5, :3]), "y must have 4 columns"),
    "rows": (lambda m: m.partial_fit(X0[:5], Y0[:6]), "same number of rows; got 5 and 6"),
    "NaN in X": (lambda m: m.partial_fit(np.full((5, 6), np.nan), Y0[:5]), "contains NaN"),
    "NaN in the last block": (
        lambda m: m.partial_fit(np.vstack([X0[:150] + 1, np.full((1, 6), np.nan)]), Y0[:151]),
        "contains NaN",
    ),
    "too large": (lambda m: m.partial_fit(1e200 * X0, Y0), "too large to be squared"),
    "classes": (lambda m: m.partial_fit(X0[:5], Y0[:5], classes=range(5)), "classes must stay what they were"),
    "weights": (lambda m: m.partial_fit(X0[:5], Y0[:5], sample_weight=np.full(5, -1.0)), "[Nn]egative"),
    "values": (lambda m: m.partial_fit(X0[:5], 2 * Y0[:5]), "must contain only 0 and 1"),
}


@pytest.mark.parametrize("error", ERRORS)
def test_a_call_that_fails_says_why_and_leaves_the_model_as_it_was(error, monkeypatch):
    monkeypatch.setattr(streaming, "BLOCK_BYTES", 4000)
    model = shown(MLRHClassifier(), X0[:120], Y0[:120], classes=range(4))
    before, (call, message) = pickle.dumps(model), ERRORS[error]
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=message):
        call(model)
    assert pickle.dumps(model) == before


def test_an_unknown_class_is_named_by_its_row():
    X, y = three_classes()
    model = MLRHClassifier().partial_fit(X, y, classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="a label in row 1 that was not seen in training; labels are 'a', 'b', 'c'"):
        model.partial_fit(X[:2], ["a", "z"])


@pytest.mark.parametrize(
    "classes, message",
    [
        (None, "classes must be given at the first call"),
        ([], "list of distinct names"),
        (["a", "a"], "list of distinct names"),
        (["a"], "at least 2 classes"),
        (["a", "b"], "holds a label in row"),
    ],
)
def test_classes_are_checked_at_the_first_call(classes, message):
    X, y = three_classes()
    with pytest.raises(ValueError, match=message):
        MLRHClassifier().partial_fit(X, y, classes=classes)


def test_classes_of_a_matrix_name_its_columns():
    with pytest.raises(ValueError, match="classes must name the 4 columns of y; got 3 names"):
        MLRHClassifier().partial_fit(X0, Y0, classes=["a", "b", "c"])
    model = MLRHClassifier().partial_fit(X0, Y0, classes=["a", "b", "c", "d"])
    assert list(model.largest_weights(1)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("stored", [np.asarray, sparse.csr_array])
def test_names_of_the_columns_of_a_matrix_keep_their_order(stored):
    model = MLRHClassifier().partial_fit(X0, stored(Y0), classes=list("abcd"))
    model.partial_fit(X0, stored(Y0), classes=np.array(list("abcd")))
    with pytest.raises(ValueError, match="classes must stay what they were"):
        model.partial_fit(X0, stored(Y0[:, ::-1]), classes=list("dcba"))
    for one in (model, MLRHClassifier()):
        with pytest.raises(ValueError, match="order of y's columns, so give a list, not a set"):
            one.partial_fit(X0, stored(Y0), classes=set("abcd"))


@pytest.mark.parametrize("classes", [{1, "a", 2}, [1, "a", 2], [["a"], ["b"]], [[0], [1], [2], [3]], [{"a"}, {"b"}], 4])
@pytest.mark.parametrize("y", [Y0, [{"a"}] * len(X0), ["a"] * len(X0)])
def test_names_that_are_no_list_of_one_type_are_refused(classes, y):
    with pytest.raises(ValueError, match="classes must be a list of distinct names in one dimension"):
        MLRHClassifier().partial_fit(X0, y, classes=classes)


def test_saved_and_pickled_models_go_on_as_the_original_would(tmp_path):
    for X in (X0, sparse.csr_array(X0)):
        model = shown(MLRHClassifier(size_bias=True), X[:130], Y0[:130], classes=range(4))
        save(model, tmp_path / "model.mlrh")
        copies = [load(tmp_path / "model.mlrh"), pickle.loads(pickle.dumps(model))]
        for other in copies:
            np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
            shown(other, X, Y0, classes=None, passes=2)
        shown(model, X, Y0, classes=None, passes=2)
        for other in copies:
            np.testing.assert_array_equal(other.coef_, model.coef_)


def test_a_clone_begins_anew():
    model = shown(MLRHClassifier(C=0.5), X0, Y0, classes=range(4))
    fresh = clone(model)
    with pytest.raises(ValueError, match="classes must be given"):
        fresh.partial_fit(X0, Y0)
    np.testing.assert_array_equal(shown(fresh, X0, Y0, classes=range(4)).coef_, model.coef_)


def test_the_same_calls_give_the_same_model():
    first, second = (shown(MLRHClassifier(), X0, Y0, classes=range(4), chunk=13) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)


def test_fit_after_partial_fit_starts_anew_or_warm():
    model = shown(MLRHClassifier(), X0, Y0, classes=range(4), passes=2)
    cold = MLRHClassifier().fit(X0, Y0)
    np.testing.assert_array_equal(clone(model).fit(X0, Y0).coef_, model.fit(X0, Y0).coef_)
    assert not hasattr(model, "n_passes_") and model.n_iter_ == cold.n_iter_
    warm = shown(MLRHClassifier(warm_start=True), X0, Y0, classes=range(4), passes=2).fit(X0, Y0)
    assert warm.n_iter_ < cold.n_iter_


def test_partial_fit_after_fit_begins_a_stream_with_its_labels():
    model = MLRHClassifier().fit(X0[:100], Y0[:100]).partial_fit(X0[100:], Y0[100:])
    other = MLRHClassifier().partial_fit(X0[100:], Y0[100:], classes=range(4))
    np.testing.assert_array_equal(model.coef_, other.coef_)
    assert not hasattr(model, "objective_") and not hasattr(model, "support_")


def test_another_C_takes_effect_at_the_next_call():
    model = shown(MLRHClassifier(), X0, Y0, classes=range(4), passes=3)
    shown(model.set_params(C=0.01), X0, Y0, classes=None, passes=2)
    assert objective(model, X0, Y0) <= 1.01 * MLRHClassifier(C=0.01).fit(X0, Y0).objective_


@pytest.mark.parametrize(
    "model, reason",
    [
        (MLRHClassifier(label_space="observed"), "label_space must be 'cardinality'"),
        (MLRHClassifier(l1_ratio=0.5), "l1_ratio must be 0; got 0.5"),
        (MLRHClassifierCV(), "use MLRHClassifier with that C"),
    ],
)
def test_models_that_cannot_be_fitted_in_parts_have_no_partial_fit_and_say_why(model, reason):
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError) as raised:
        model.partial_fit(X0, Y0, classes=range(4))
    assert reason in str(raised.value.__cause__)
    assert not hasattr(KernelMLRHClassifier(), "partial_fit")


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("chunk", [7, 30, 70, 150, 230])
def test_calls_that_straddle_passes_count_every_row_once(chunk, shuffled):
    X, Y = make_multilabel(100)
    rng = np.random.RandomState(0)
    rows = np.concatenate([rng.permutation(100) if shuffled else np.arange(100) for _ in range(6)])
    calls = [rows[:100], rows[100:]] if chunk > 100 else [rows]
    model = MLRHClassifier()
    for part in calls:
        shown(model, X[part], Y[part], classes=range(4), chunk=chunk)
    assert (model.n_passes_, model.n_samples_seen_) == (6, 600)
    assert (model.n_samples_counted_, model._stream["again"]["n_rows"]) == (100, 0)
    assert objective(model, X, Y) <= 1.001 * MLRHClassifier().fit(X, Y).objective_


@pytest.mark.parametrize("chunk", [30, 130, 1000])
def test_rows_that_are_there_twice_at_the_end_count_twice_and_passes_are_recognised(chunk):
    X, Y = make_multilabel(100)
    X, Y = np.vstack([X, X[:30]]), np.vstack([Y, Y[:30]])
    model = shown(MLRHClassifier(), X, Y, classes=range(4), chunk=chunk, passes=3)
    assert (model.n_passes_, model._stream["counted"]["n_rows"]) == (3, 130)
    assert objective(model, X, Y) <= 1.001 * MLRHClassifier().fit(X, Y).objective_


def test_one_row_a_thousand_times_is_a_thousand_passes():
    model = MLRHClassifier().partial_fit(X0[:1], Y0[:1], classes=range(4))
    model.partial_fit(np.repeat(X0[:1], 1500, axis=0), np.repeat(Y0[:1], 1500, axis=0))
    assert (model.n_passes_, model._stream["counted"]["n_rows"]) == (1501, 1)


def test_the_example_of_the_page_on_streams_runs():
    page = Path(__file__).parents[1] / "docs" / "streams.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted >= 5 and results.failed == 0


def test_verbose_prints_a_line_per_iteration(capsys):
    model = MLRHClassifier(verbose=1).partial_fit(X0, Y0, classes=range(4))
    assert capsys.readouterr().out.count("[MLRHClassifier] lbfgs iteration") == model.n_iter_


def test_no_call_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown(MLRHClassifier(size_bias=True), X0, Y0, classes=range(4), chunk=1)


def test_numbers_stand_for_the_columns_of_a_frame():
    X, Y = make_multilabel(60)
    frame = pd.DataFrame(Y, columns=[f"label {k}" for k in range(Y.shape[1])])
    numbered = MLRHClassifier().partial_fit(X, frame, classes=range(Y.shape[1])).partial_fit(X, frame)
    named = MLRHClassifier().partial_fit(X, frame, classes=frame.columns).partial_fit(X, frame)
    assert numbered.classes_.tolist() == named.classes_.tolist() == frame.columns.tolist()
    np.testing.assert_array_equal(numbered.coef_, named.coef_)
    with pytest.raises(ValueError, match="classes must be the names of y's columns"):
        MLRHClassifier().partial_fit(X, frame, classes=["a", "b", "c", "d"][: Y.shape[1]])


def test_a_chunk_without_rows_is_one_clear_error():
    X, Y = make_multilabel(20)
    with pytest.raises(ValueError, match="at least one row; got none"):
        MLRHClassifier().partial_fit(X[:0], Y[:0], classes=range(Y.shape[1]))
