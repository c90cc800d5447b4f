"""Training where some entries of y are NaN or masked: nobody looked."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from samples import BOTH, TIGHT, make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh._indicators import UNKNOWN
from mlrh.baselines import LabelPowerset
from mlrh.spaces import CardinalitySpace
from mlrh.spaces.independent import IndependentLabels

ONE_FEATURE = [[0.0], [1.0], [2.0], [4.0]]
MATRIX = np.array([[1, np.nan], [0, 1], [np.nan, 0], [1, 1]])
FORMS = {
    "float32": MATRIX.astype(np.float32),
    "masked": np.ma.masked_array(np.nan_to_num(MATRIX).astype(int), mask=np.isnan(MATRIX)),
    "nested list": MATRIX.tolist(),
    "nested list with None": [[1, None], [0, 1], [None, 0], [1, 1]],
    "pandas": pd.DataFrame(MATRIX, columns=["a", "b"]),
    "pandas NA": pd.DataFrame({"a": [1, 0, None, 1], "b": [None, 1, 0, 1]}, dtype="Int64"),
    "pandas boolean": pd.DataFrame({"a": [True, False, None, True], "b": [None, True, False, True]}, dtype="boolean"),
    "polars": pl.DataFrame({"a": [1, 0, None, 1], "b": [None, 1, 0, 1]}),
    "sparse": sparse.csr_array(MATRIX),
}
SPACES = {"cardinality": {}, "size bias": {"size_bias": True}, "observed": {"label_space": "observed"}}


def partly_known(n_samples=200, share=0.2, seed=0):
    """X, complete Y, and Y with that share of its entries NaN; 50 rows stay complete, so that every set is seen."""
    X, Y = make_multilabel(n_samples, seed=seed)
    hidden = np.random.RandomState(seed + 1).uniform(size=Y.shape) < share
    hidden[:50] = False
    hidden[hidden.all(axis=1), 0] = False
    return X, Y, np.where(hidden, np.nan, Y)


X, COMPLETE, Y = partly_known()


def weights_of(model):
    return model.coef_ if isinstance(model, MLRHClassifier) else model.dual_coef_


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_partly_known_matrix_gives_the_same_fit(form):
    reference, model = (MLRHClassifier().fit(ONE_FEATURE, y) for y in (MATRIX, FORMS[form]))
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    np.testing.assert_array_equal(model.intercept_, reference.intercept_)


def test_predictions_have_the_columns_of_y_and_no_missing_entry():
    predicted = MLRHClassifier().fit(ONE_FEATURE, FORMS["pandas NA"]).predict(ONE_FEATURE)
    assert list(predicted.columns) == ["a", "b"]
    assert predicted.isin([0, 1]).all(axis=None)


@pytest.mark.parametrize("form", ["masked", "pandas NA", "nested list with None"])
def test_y_is_left_as_it_was(form):
    before = str(FORMS[form])
    MLRHClassifier().fit(ONE_FEATURE, FORMS[form])
    assert str(FORMS[form]) == before


def test_where_all_sets_are_possible_each_label_is_a_logistic_regression_on_its_known_entries():
    X, _, Y = partly_known(share=0.4)
    model = MLRHClassifier(min_labels=0, max_labels=4, C=2.0, **TIGHT).fit(X, Y)
    for k in range(4):
        known = ~np.isnan(Y[:, k])
        single = LogisticRegression(C=2.0, tol=1e-12, max_iter=10_000).fit(X[known], Y[known, k])
        np.testing.assert_allclose(model.coef_[k], single.coef_[0], atol=1e-5)
        assert model.intercept_[k] == pytest.approx(single.intercept_[0], abs=1e-5)


def test_a_fit_starts_from_one_logistic_regression_per_label():
    X, _, Y = partly_known(share=0.4)
    with pytest.warns(UserWarning, match="stopped after 0 iterations"):
        start = MLRHClassifier(max_iter=0, tol=1e-12).fit(X, Y)
    separate = MLRHClassifier(min_labels=0, max_labels=4, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(start.coef_, separate.coef_, atol=0.02)
    assert np.abs(separate.coef_).max() > 1


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "mm"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_iteration_increases_the_objective(solver, space):
    model = MLRHClassifier(solver=solver, max_iter=100, **SPACES[space]).fit(X, Y)
    assert len(model.history_) > 2
    assert np.diff(model.history_).max() <= 1e-13 * model.history_[0]


@pytest.mark.parametrize("space", SPACES)
def test_the_objective_is_minus_the_log_probability_of_what_is_known_plus_the_penalty(space):
    model = MLRHClassifier(C=2.0, **SPACES[space]).fit(X, Y)
    bias = np.zeros(1) if space == "cardinality" else model.label_space_.bias
    penalty = 0.25 * (model.coef_**2).sum() + 0.05 * bias @ bias
    known = model.distribution(X).log_prob_of_known(Y).sum()
    assert model.objective_ == pytest.approx(penalty - known, rel=1e-6)


@pytest.mark.parametrize("model", [MLRHClassifier(), KernelMLRHClassifier(gamma=0.1)], ids=["linear", "kernel"])
def test_a_row_with_everything_hidden_contributes_nothing(model):
    is_hidden = np.arange(210) % 21 == 4
    more_X, more_Y = np.full((210, 6), 50.0), np.full((210, 4), np.nan)
    more_X[~is_hidden], more_Y[~is_hidden] = X, Y
    without, with_them = clone(model).fit(X, Y), clone(model).fit(more_X, more_Y)
    np.testing.assert_array_equal(with_them.support_, np.flatnonzero(~is_hidden))
    np.testing.assert_array_equal(weights_of(with_them), weights_of(without))
    assert (with_them.min_labels_, with_them.max_labels_) == (without.min_labels_, without.max_labels_)


def test_duplicating_partly_known_rows_equals_doubling_their_weight():
    weight = np.where(np.arange(len(X)) % 3 == 0, 2, 1)
    doubled = MLRHClassifier(size_bias=True, **TIGHT).fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight, axis=0))
    weighted = MLRHClassifier(size_bias=True, **TIGHT).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(weighted.coef_, doubled.coef_, atol=1e-5)


def test_a_complete_row_of_floats_is_the_same_as_one_of_integers():
    models = (MLRHClassifier().fit(X, COMPLETE.astype(dtype)) for dtype in (float, int))
    np.testing.assert_array_equal(*(model.coef_ for model in models))


def test_csr_and_float32_features_give_nearly_the_same_fit():
    dense = MLRHClassifier(**TIGHT).fit(X, Y)
    np.testing.assert_allclose(MLRHClassifier(**TIGHT).fit(sparse.csr_array(X), Y).coef_, dense.coef_, atol=1e-5)
    np.testing.assert_allclose(MLRHClassifier(tol=1e-6).fit(X.astype(np.float32), Y).coef_, dense.coef_, atol=0.05)


def test_a_linear_kernel_gives_the_linear_model():
    kernel = KernelMLRHClassifier(kernel="linear", **TIGHT).fit(X, Y)
    linear = MLRHClassifier(**TIGHT).fit(X, Y)
    np.testing.assert_allclose(kernel.decision_function(X), linear.decision_function(X), atol=1e-4)


def test_automatic_sizes_are_the_smallest_and_the_largest_number_of_known_ones():
    y = [[1, np.nan, 0, np.nan], [0, 1, 1, 0], [1, 1, np.nan, 1], [np.nan, 0, 1, 0]]
    model = MLRHClassifier().fit(ONE_FEATURE, y)
    assert (model.min_labels_, model.max_labels_) == (1, 3)


def test_coefficients_come_nearer_to_the_truth_than_where_hidden_labels_count_as_absent():
    """Rows drawn from the model, so that the fit to the complete Y is the best there is."""
    X, complete, Y = partly_known(2000, share=0.5)
    truth = MLRHClassifier(C=100.0).fit(X, complete)
    hidden = MLRHClassifier(C=100.0, min_labels=1).fit(X, Y)
    filled = MLRHClassifier(C=100.0).fit(X, np.nan_to_num(Y))
    distance = [np.abs(model.coef_ - truth.coef_).max() for model in (hidden, filled)]
    assert distance[0] < 0.35 < 1.0 < distance[1]


def test_the_order_of_labels_does_not_matter():
    order = [2, 0, 3, 1]
    model, moved = (MLRHClassifier(**TIGHT).fit(X, y) for y in (Y, Y[:, order]))
    np.testing.assert_allclose(moved.coef_, model.coef_[order], atol=1e-5)


@BOTH
def test_scores_of_a_hundred_thousand_are_fitted(classifier):
    """An unscaled column; the objective stays finite and the known labels are fitted."""
    X = np.array([[-1e5], [-1e5], [1e5], [1e5]])
    y = np.array([[1, 0], [1, np.nan], [0, 1], [np.nan, 1]])
    model = classifier(C=1e3).fit(X, y)
    assert np.isfinite(model.objective_)
    np.testing.assert_array_equal(model.predict(X), [[1, 0], [1, 0], [0, 1], [0, 1]])


def test_a_warm_start_needs_no_separate_fits_and_stays_at_the_optimum():
    model = MLRHClassifier(warm_start=True).fit(X, Y)
    coef = model.coef_
    assert model.fit(X, Y).n_iter_ <= 1
    np.testing.assert_allclose(model.coef_, coef, atol=1e-3)


NEVER_SHOWN = pd.DataFrame({"calm": [1, 0, 1, 0], "sad": [np.nan] * 4})
PARTLY_SIZED = [[1, 1, np.nan, 0], [0, 0, 1, np.nan], [1, 1, 1, 0]]
OBSERVED = {"label_space": "observed"}
REFUSED = [
    ({}, NEVER_SHOWN, r"label 'sad' is NaN or masked in all of them. Leave its column out of y"),
    ({}, np.full((4, 2), np.nan), "every entry is NaN or masked"),
    ({}, [[1, np.nan], [0, 2], [1, 0], [0, 1]], "1 where the row has the label; found 2.0 in row 1, column 1"),
    ({}, np.array([["1", "nan"], ["0", "1"]]), "y must contain only 0 and 1.*found .*'1' in row 0, column 0"),
    ({}, np.array([[1, 0], [0, 1]]) + 0j, r"y must contain only 0 and 1.*found .*\(1\+0j\) in row 0, column 0"),
    ({}, np.zeros((2, 2), "M8[s]"), "y must contain only 0 and 1.*found .*datetime"),
    ({}, np.array([1.0, np.nan, 2.0, 1.0]), "NaN"),
    ({}, [{"a"}, None, {"b"}, {"a"}], "row 1 is None"),
    ({}, np.ma.masked_equal([1, 2, 3, 2], 3), "masked"),
    (OBSERVED, [[1, 0, 0], [0, None, None], [0, 1, 1], [None, 1, 0]], "row 3 agrees with none, as do 1 of 4 rows"),
    (OBSERVED, [[1, np.nan], [np.nan, 0]], "without NaN, and there are none; use label_space='cardinality'"),
    ({"min_labels": 3}, PARTLY_SIZED, "Row 1 of y has at most 2 labels, which min_labels=3 excludes, as it does 1 of"),
    ({"max_labels": 1}, PARTLY_SIZED, "Row 0 of y has at least 2 labels, which max_labels=1 excludes, as it does 2 of"),
]


@BOTH
@pytest.mark.parametrize(("options", "y", "message"), REFUSED, ids=[message[:40] for *_, message in REFUSED])
def test_a_y_that_can_not_be_learned_from_is_an_error_that_names_the_place(classifier, options, y, message):
    with pytest.raises(ValueError, match=message):
        classifier(**options).fit(ONE_FEATURE[: len(y)], y)


def test_a_label_that_only_rows_of_weight_zero_show_is_never_known():
    with pytest.raises(ValueError, match="label 1 is NaN"):
        MLRHClassifier().fit(ONE_FEATURE, [[1, 1], [0, 1], [1, None], [0, None]], sample_weight=[0, 0, 1, 1])


def test_observed_sets_come_from_complete_rows():
    y = [[1, 0, 0], [0, np.nan, np.nan], [0, 1, 1], [np.nan, 0, 0]]
    model = MLRHClassifier(label_space="observed").fit(ONE_FEATURE, y)
    np.testing.assert_array_equal(model.sets_, [[1, 0, 0], [0, 1, 1]])


def test_a_label_known_only_as_absent_is_named_in_the_warning():
    y = [[1, np.nan, 0], [1, 1, 0], [0, 1, np.nan], [1, 0, 0]]
    with pytest.warns(UserWarning, match="absent from every training row: label 2"):
        MLRHClassifier().fit(ONE_FEATURE, y)


@pytest.mark.parametrize("y", [MATRIX[:, :1], pd.DataFrame(MATRIX[:, :1]), FORMS["masked"][:, :1]])
def test_a_single_column_with_unknown_entries_is_an_error_that_says_what_to_do(y):
    with pytest.raises(ValueError, match=r"row 2 has none \(.*nan.*\). For one label .* sparse matrix|masked entries"):
        MLRHClassifier().fit(ONE_FEATURE, y)
    MLRHClassifier().fit(ONE_FEATURE, sparse.csr_array(MATRIX[:, :1]))


@pytest.mark.parametrize("dtype", [np.int64, bool, np.float32])
def test_predictions_have_the_type_of_a_masked_y(dtype):
    y = np.ma.masked_array(np.nan_to_num(MATRIX).astype(dtype), mask=np.isnan(MATRIX))
    assert MLRHClassifier().fit(ONE_FEATURE, y).predict(ONE_FEATURE).dtype == dtype


def test_a_path_of_C_ends_where_a_single_fit_does():
    """Also where the objective has several optima, and the solution at another C leads to another one."""
    for seed in range(6):
        X, _, Y = partly_known(60, share=0.6, seed=seed)
        *_, last = MLRHClassifier()._fit_path(X, Y, [1e-4, 1e-2, 1.0, 1e2])
        assert last.objective_ == MLRHClassifier(C=1e2).fit(X, Y).objective_


def test_score_needs_a_complete_y():
    with pytest.raises(ValueError, match="must contain only 0 and 1"):
        MLRHClassifier().fit(X, Y).score(X, Y)


def test_a_label_powerset_refuses_unknown_labels_in_one_sentence():
    with pytest.raises(ValueError, match="1 where the row has the label; found nan in row 0, column 1"):
        LabelPowerset().fit(ONE_FEATURE, MATRIX)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_known", [False, True])
def test_separate_labels_are_the_cardinality_space_of_all_sizes(seed, is_known):
    rng = np.random.RandomState(seed)
    scores, direction, weights = 3 * rng.normal(size=(20, 5)), rng.normal(size=(20, 5)), rng.uniform(size=20)
    known = rng.randint(UNKNOWN, 2, size=(20, 5)).astype(np.int8)
    spaces = [IndependentLabels(5), CardinalitySpace(5, 0, 5)]
    separate, joint = (space.given(known) if is_known else space for space in spaces)
    for ours, theirs in zip(
        separate.expectations(scores, weights)[:2], joint.expectations(scores, weights), strict=False
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    ours = separate.curvature(scores, direction, np.zeros(0), weights)[0]
    np.testing.assert_allclose(ours, joint.curvature(scores, direction, np.zeros(6), weights)[0], atol=1e-12)
