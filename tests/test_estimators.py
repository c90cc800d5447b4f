"""The classifiers against scikit-learn and statsmodels in the special cases, and their own promises."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from samples import BOTH, FORMS, TIGHT, assert_in_form, make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.discrete.discrete_model import MNLogit

from mlrh import KernelMLRHClassifier, MLRHClassifier, TunedThresholds
from mlrh.baselines import IBLR, CCnet, CorrLog, LabelPowerset, MLkNN, ProbabilisticChain

X, Y = make_multilabel()
EVERY_CLASSIFIER = [
    MLRHClassifier(),
    KernelMLRHClassifier(),
    LabelPowerset(),
    MLkNN(),
    IBLR(),
    CorrLog(),
    ProbabilisticChain(),
    CCnet([1.0], l1_ratios=[0.5], cv=2),
    TunedThresholds(OneVsRestClassifier(LogisticRegression())),
]


@pytest.mark.parametrize("C", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_three_classes_equal_multinomial_logistic_regression(load, C):
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    ours = MLRHClassifier(C=C, **TIGHT).fit(X, y)
    theirs = LogisticRegression(C=C, tol=1e-9, solver="newton-cg", max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_two_classes_equal_binary_logistic_regression():
    X, y = load_iris(return_X_y=True)
    X, y = X[50:], np.array(["versicolor", "virginica"])[y[50:] - 1]
    ours = MLRHClassifier(C=2.0, **TIGHT).fit(X, y)
    theirs = LogisticRegression(C=2.0, tol=1e-10, solver="newton-cholesky", max_iter=1000).fit(X, y)
    assert ours.coef_.shape == (1, 4)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-5)
    assert ours.classes_.tolist() == ["versicolor", "virginica"]


def test_all_sizes_equal_separate_binary_logistic_regressions():
    ours = MLRHClassifier(min_labels=0, max_labels=4, C=0.7, **TIGHT).fit(X, Y)
    theirs = MultiOutputClassifier(LogisticRegression(C=0.7, tol=1e-10, solver="newton-cholesky")).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, np.vstack([e.coef_ for e in theirs.estimators_]), atol=1e-5)
    marginals = np.column_stack([proba[:, 1] for proba in theirs.predict_proba(X)])
    np.testing.assert_allclose(ours.predict_proba(X), marginals, atol=1e-6)


def test_the_unpenalised_fit_equals_statsmodels_on_overlapping_classes():
    rng = np.random.RandomState(0)
    y = np.arange(240) % 3
    X = rng.normal(size=(240, 3)) + 0.8 * np.eye(3)[y]
    ours = MLRHClassifier(C=np.inf, **TIGHT).fit(X, y)
    theirs = MNLogit(y, np.column_stack([np.ones(len(X)), X])).fit(method="newton", tol=1e-12, disp=0)
    np.testing.assert_allclose((ours.coef_[1:] - ours.coef_[0]).T, theirs.params[1:], atol=1e-5)
    np.testing.assert_allclose(ours.intercept_[1:] - ours.intercept_[0], theirs.params[0], atol=1e-5)


@BOTH
@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"label_space": "observed"}])
def test_weight_two_counts_as_the_row_twice_and_weight_zero_as_absent(classifier, options):
    X, Y = make_multilabel(80)
    weights = np.random.RandomState(1).randint(0, 3, size=80).astype(float)
    Y[0], weights[0] = 1, 0.0  # a set of four labels that only a row of weight 0 has
    repeated = np.repeat(np.arange(80), weights.astype(int))
    weighted = classifier(**options, **TIGHT).fit(X, Y, sample_weight=weights)
    doubled = classifier(**options, **TIGHT).fit(X[repeated], Y[repeated])
    assert weighted.max_labels_ == doubled.max_labels_ == 3
    np.testing.assert_allclose(weighted.decision_function(X), doubled.decision_function(X), atol=1e-5)
    np.testing.assert_allclose(weighted.predict_proba(X), doubled.predict_proba(X), atol=1e-6)


@BOTH
def test_float32_features_give_float32_results_near_the_float64_ones(classifier):
    double, single = classifier().fit(X, Y), classifier().fit(X.astype(np.float32), Y)
    proba = single.predict_proba(X.astype(np.float32))
    assert proba.dtype == single.intercept_.dtype == single.decision_function(X.astype(np.float32)).dtype == np.float32
    assert getattr(single, "coef_", single.intercept_).dtype == np.float32
    np.testing.assert_allclose(proba, double.predict_proba(X), atol=2e-3)


@BOTH
def test_csr_features_give_the_same_model_as_dense_ones(classifier):
    X, Y = make_multilabel()
    X[np.abs(X) < 0.7] = 0.0
    dense, csr = classifier(**TIGHT).fit(X, Y), classifier(**TIGHT).fit(sparse.csr_array(X), Y)
    # Rounding hides a decrease of eps times the objective, which is 333. As the penalty's curvature is 1, a fit finds
    # coefficients up to sqrt(2 * eps * 333) = 4e-7, and rows have norms up to 5.
    np.testing.assert_allclose(csr.predict_proba(sparse.csr_matrix(X)), dense.predict_proba(X), rtol=0, atol=4e-6)


def test_more_features_than_rows_give_the_same_model_as_the_kernel_side():
    X, Y = make_multilabel(40, 100)
    linear, kernel = MLRHClassifier(**TIGHT).fit(X, Y), KernelMLRHClassifier(kernel="linear", **TIGHT).fit(X, Y)
    np.testing.assert_allclose(linear.decision_function(X), kernel.decision_function(X), atol=1e-6)
    gradient = X.T @ (linear.predict_proba(X) - Y) + linear.coef_.T
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", EVERY_CLASSIFIER, ids=lambda model: type(model).__name__)
def test_every_form_of_y_is_fitted_alike_and_answered_in_its_own_form(model, form):
    expected, fitted = (clone(model).fit(X, y) for y in (Y, FORMS[form](Y)))
    np.testing.assert_allclose(fitted.predict_proba(X), expected.predict_proba(X), rtol=0, atol=1e-12)
    assert_in_form(fitted.predict(X), expected.predict(X), form)
    assert fitted.score(X, FORMS[form](Y)) == (expected.predict(X) == Y).all(axis=1).mean()
    assert fitted.classes_.tolist() == (list("abcd") if form in ("pandas", "polars", "sets") else [0, 1, 2, 3])


def test_polars_features_are_taken_with_their_names():
    names = [f"f{d}" for d in range(6)]
    fitted = MLRHClassifier().fit(pl.DataFrame(X, schema=names), Y)
    assert fitted.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(fitted.predict(pl.DataFrame(X, schema=names)), MLRHClassifier().fit(X, Y).predict(X))


def test_a_set_with_a_label_unknown_to_training_never_scores():
    sets = FORMS["sets"](Y)
    fitted = MLRHClassifier(C=1e4).fit(X, sets)
    right = [labels | {"new"} for labels in fitted.predict(X)]
    assert fitted.score(X, right) == 0.0


@BOTH
@pytest.mark.parametrize("label_space", ["cardinality", "observed"])
def test_the_default_decision_is_never_empty_or_oversized(classifier, label_space):
    fitted = classifier(label_space=label_space).fit(X, Y)
    sizes = fitted.predict(30 * np.random.RandomState(5).normal(size=(500, 6))).sum(axis=1)
    assert sizes.min() >= 1
    assert sizes.max() <= 3


def test_decisions_are_the_mode_and_the_marginals_above_one_half():
    fitted = MLRHClassifier().fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(X), fitted.distribution(X).mode())
    fitted.set_params(decision="hamming")
    np.testing.assert_array_equal(fitted.predict(X), fitted.predict_proba(X) > 0.5)


def test_the_observed_space_learns_that_labels_attract_each_other():
    rng = np.random.RandomState(0)
    Y = np.array([[1, 1, 0], [0, 0, 1]])[rng.randint(0, 2, size=200)]
    X = rng.normal(size=(200, 2))
    sets, marginals = {}, {}
    for label_space in ("cardinality", "observed"):
        fitted = MLRHClassifier(label_space=label_space).fit(X, Y)
        joint = np.exp(fitted.distribution(X).log_prob(np.tile([1, 1, 0], (200, 1))))
        sets[label_space], marginals[label_space] = joint.mean(), fitted.predict_proba(X)[:, :2].prod(axis=1).mean()
    assert sets["observed"] > 1.5 * marginals["observed"]
    assert sets["cardinality"] < 1.1 * marginals["cardinality"]


@BOTH
def test_pipelines_grid_search_and_cross_validation_work(classifier):
    frame = pd.DataFrame(X, columns=[f"f{d}" for d in range(6)])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), classifier())
    name = classifier.__name__.lower()
    search = GridSearchCV(pipeline, {f"{name}__C": [1e-4, 1.0]}, cv=3).fit(frame, Y)
    assert search.best_params_ == {f"{name}__C": 1.0}
    assert search.best_estimator_[-1].feature_names_in_.tolist() == list(frame.columns)
    predicted = cross_val_predict(pipeline, frame, Y, cv=3)
    assert predicted.shape == Y.shape
    scores = cross_val_score(pipeline, frame, Y, cv=3)
    assert (predicted == Y).all(axis=1).mean() == pytest.approx(scores.mean(), abs=0.01)
    proba = cross_val_predict(pipeline, frame, Y, cv=3, method="predict_proba")
    assert (proba[Y == 1].mean() - proba[Y == 0].mean()) > 0.2


def test_model_selection_refuses_label_sets_by_naming_the_remedy():
    with pytest.raises(ValueError, match="MultiLabelBinarizer"):
        GridSearchCV(MLRHClassifier(), {"C": [1.0]}, cv=3).fit(X, [sorted(labels) for labels in FORMS["sets"](Y)])


@pytest.mark.parametrize(("options", "solver"), [({}, "lbfgs"), ({"l1_ratio": 0.5}, "prox-newton")])
def test_too_few_iterations_give_a_convergence_warning_that_says_what_to_do(options, solver):
    words = f"solver '{solver}' stopped after 1 iterations before reaching tol.*Increase max_iter"
    with pytest.warns(ConvergenceWarning, match=words):
        MLRHClassifier(max_iter=1, **options).fit(X, Y)


def test_fitted_attributes_have_their_names_and_shapes():
    plain = MLRHClassifier(size_bias=True).fit(X, Y)
    assert plain.coef_.shape == (4, 6)
    assert plain.intercept_.shape == (4,)
    assert plain.size_bias_.shape == (5,)
    assert (plain.min_labels_, plain.max_labels_, plain.n_features_in_) == (1, 3, 6)
    np.testing.assert_allclose(plain.decision_function(X), X @ plain.coef_.T + plain.intercept_)
    observed = KernelMLRHClassifier(label_space="observed").fit(X, Y)
    np.testing.assert_array_equal(np.unique(observed.sets_, axis=0), np.unique(Y, axis=0))
    assert observed.set_bias_.shape == (len(observed.sets_),)
    assert observed.dual_coef_.shape == (4, 200)
    assert observed.history_[-1] == observed.objective_
    assert len(observed.history_) == observed.n_iter_ + 1


def test_a_refit_leaves_no_attribute_of_the_fit_before():
    fitted = MLRHClassifier(label_space="observed").fit(X, Y).set_params(label_space="cardinality").fit(X, Y)
    assert not hasattr(fitted, "sets_")
    assert not hasattr(fitted, "set_bias_")
    fitted.set_params(label_space="observed").fit(X, Y)
    assert not hasattr(fitted, "size_bias_")


def test_observed_sets_are_listed_from_small_to_large_and_low_to_high():
    Y = np.array([[0, 1, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 0, 0]])
    sets = MLRHClassifier(label_space="observed").fit(np.eye(6), Y).sets_
    assert sets.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1]]


def test_the_largest_weights_are_named():
    frame, labels = pd.DataFrame(X, columns=list("uvwxyz")), pd.DataFrame(Y, columns=["a", "b", "c", "d"])
    fitted = MLRHClassifier().fit(frame, labels)
    weights = fitted.largest_weights(2)
    for k, label in enumerate("abcd"):
        best = np.argsort(-np.abs(fitted.coef_[k]))[:2]
        assert weights[label] == [("uvwxyz"[d], fitted.coef_[k, d]) for d in best]
    renamed = fitted.largest_weights(1, feature_names=[f"t{d}" for d in range(6)])
    assert renamed["a"][0][0].startswith("t")
    with pytest.raises(ValueError, match="feature_names must have 6 entries; got 2"):
        fitted.largest_weights(feature_names=["p", "q"])


def test_two_classes_have_the_weights_of_the_second():
    X, y = load_iris(return_X_y=True)
    fitted = MLRHClassifier().fit(X[50:], y[50:])
    assert list(fitted.largest_weights(1)) == [2]


@pytest.mark.parametrize(
    ("arguments", "weights", "message"),
    [
        ({"C": 0.0}, None, "'C' parameter"),
        ({"solver": "saga"}, None, "'solver' parameter"),
        ({"solver": "mm", "mm_step": "paper", "size_bias": True}, None, "use mm_step='safe'"),
        ({"label_space": "all"}, None, "'label_space' parameter"),
        ({}, np.zeros(200), "at least one non-zero"),
        ({"C": 5e-324}, None, "1 / C must be finite"),
        ({}, np.full(200, 1e307), "a sample_weight must be 0 or lie from 1e-100 to 1e\\+100"),
    ],
)
def test_bad_parameters_and_weights_are_one_clear_error(arguments, weights, message):
    with pytest.raises(ValueError, match=message):
        MLRHClassifier(**arguments).fit(X, Y, weights)


@pytest.mark.parametrize(("options", "solver"), [({}, "lbfgs"), ({"l1_ratio": 0.5}, "prox-newton")])
def test_verbose_prints_a_line_per_iteration(options, solver, capsys):
    fitted = MLRHClassifier(verbose=1, **options).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == fitted.n_iter_
    assert f"{solver} iteration 1: objective" in lines[0]


def test_a_y_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="same number of rows; got 200 and 199"):
        MLRHClassifier().fit(X, Y[:-1])
    for y in (Y, FORMS["sets"](Y), Y[:, 0]):
        fitted = MLRHClassifier().fit(X, y)
        with pytest.raises(ValueError, match="same number of rows; got 200 and 1"):
            fitted.score(X, y[:1])
        with pytest.raises(ValueError, match=r"sample_weight.shape == \(4,\), expected \(200,\)"):
            fitted.score(X, y, sample_weight=np.ones(4))


def test_a_class_or_label_of_weight_zero_alone_is_absent():
    X, Y = make_multilabel(90)
    y, weights = np.arange(90) % 3, (np.arange(90) % 3 < 2).astype(float)
    weighted, dropped = MLRHClassifier().fit(X, y, weights), MLRHClassifier().fit(X[y < 2], y[y < 2])
    assert weighted.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(weighted.coef_, dropped.coef_, atol=1e-8)
    sets = FORMS["sets"](Y)
    sets[0], weights = sets[0] | {"only here"}, np.r_[0.0, np.ones(89)]
    assert MLRHClassifier().fit(X, sets, weights).classes_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="at least 2 classes among the rows of positive weight"):
        MLRHClassifier().fit(X, np.arange(90) % 2, (np.arange(90) % 2).astype(float))


def test_a_decision_set_after_the_fit_is_checked():
    with pytest.raises(ValueError, match="decision must be one of"):
        MLRHClassifier().fit(X, Y).set_params(decision="nope").predict(X)


def test_a_tolerance_that_rounding_forbids_ends_at_the_optimum_without_a_warning():
    model = MLRHClassifier(tol=0.0).fit(X, Y)
    assert model.n_iter_ < model.max_iter
    newton = MLRHClassifier(solver="newton-cg", tol=1e-12).fit(X, Y)
    assert model.objective_ == pytest.approx(newton.objective_, rel=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        MLRHClassifier(label_space="observed"),
        KernelMLRHClassifier(label_space="observed"),
        MLRHClassifier(l1_ratio=0.5, fit_intercept=False),
    ],
)
def test_fit_leaves_its_inputs_unchanged(model):
    weights = np.linspace(0.1, 1.0, 200)
    before = X.copy(), Y.copy(), weights.copy()
    model.fit(X, Y, sample_weight=weights).predict(X)
    for array, copy in zip((X, Y, weights), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_score_weighs_its_rows():
    fitted = MLRHClassifier().fit(X, Y)
    right, weights = (fitted.predict(X) == Y).all(axis=1), np.arange(200.0)
    assert fitted.score(X, Y, sample_weight=weights) == pytest.approx(np.average(right, weights=weights))


def test_an_excluded_row_is_named_by_its_place_among_all_rows():
    X, Y = make_multilabel(30)
    Y[20] = 0
    with pytest.raises(ValueError, match="Row 20 of y has 0 labels"):
        MLRHClassifier(min_labels=1).fit(X, Y, sample_weight=np.r_[np.zeros(5), np.ones(25)])


@pytest.mark.parametrize("n_rows", [1, 8, 9])
def test_a_few_sparse_rows_have_the_scores_of_dense_ones(n_rows):
    model = MLRHClassifier().fit(X, Y)
    rows = np.where(np.random.RandomState(0).random_sample((n_rows, X.shape[1])) < 0.5, X[:n_rows], 0.0)
    rows[0] = 0.0
    scores, expected = (model.decision_function(own) for own in (sparse.csr_array(rows), rows))
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
