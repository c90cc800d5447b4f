"""The compared methods choose and predict as scikit-learn's own tools would with the same folds."""

from dataclasses import replace

import numpy as np
import pytest
from experiment_samples import TINY, TINY_GRID, small_dataset
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mlrh import KernelMLRHClassifier, MLRHAuto, MLRHClassifier
from mlrh.baselines import IBLR, CCnet, CorrLog, LabelPowerset, MLkNN, ProbabilisticChain
from mlrh.experiments._methods import CHAINED, FAMILIES
from mlrh.experiments._protocol import Task, _rows


@pytest.fixture
def rows():
    return _rows(Task("p", "small", "nested", "br-lr", 0, 1), small_dataset(n_samples=100), TINY, 5)


def outcomes_of(family, rows):
    return FAMILIES[family].outcomes(rows, TINY_GRID[FAMILIES[family].grid], None)


def grid_search(estimator, grid, rows):
    search = GridSearchCV(estimator, grid, cv=rows.inner, scoring="accuracy").fit(rows.X, rows.Y)
    return search.best_params_, search.predict(rows.X_test)


def test_preprocessing_is_fitted_to_the_training_part_alone(rows):
    data = small_dataset(n_samples=100)
    train, test = data.split(5, 0, 1)
    scaler = StandardScaler().fit(data.data.X[train])
    np.testing.assert_array_equal(rows.X, scaler.transform(data.data.X[train]))
    np.testing.assert_array_equal(rows.X_test, scaler.transform(data.data.X[test]))


def test_inner_folds_are_of_the_training_part(rows):
    held_out = np.concatenate([validation for _, validation in rows.inner])
    assert sorted(held_out) == list(range(len(rows.Y)))


def test_the_unit_of_gamma_is_scikit_learns_scale(rows):
    assert SVC(gamma="scale").fit(rows.X, rows.Y[:, 0])._gamma == pytest.approx(rows.gamma_unit)


@pytest.mark.parametrize("family, wrap", [("br-svm", OneVsRestClassifier), ("lp-svm", LabelPowerset)])
def test_support_vector_machines_choose_and_predict_as_a_grid_search_does(rows, family, wrap):
    (outcome,) = outcomes_of(family, rows).values()
    gammas = [gamma * rows.gamma_unit for gamma in TINY_GRID["rbf"]["gamma"]]
    best, predicted = grid_search(wrap(SVC()), {"estimator__C": [1.0, 10.0], "estimator__gamma": gammas}, rows)
    assert outcome.settings["C"] == best["estimator__C"]
    assert outcome.settings["gamma"] * rows.gamma_unit == pytest.approx(best["estimator__gamma"])
    np.testing.assert_array_equal(outcome.predicted, predicted)
    assert outcome.log_prob is None


@pytest.mark.parametrize(
    "family, estimator, parameter",
    [
        ("br-lr", OneVsRestClassifier(LogisticRegression(max_iter=2000)), "estimator__C"),
        ("cc-lr", ClassifierChain(LogisticRegression(max_iter=2000)), f"{CHAINED}__C"),
        ("lp-lr", LabelPowerset(LogisticRegression(max_iter=2000)), "estimator__C"),
        ("lp-rf", LabelPowerset(RandomForestClassifier(5, random_state=0)), "estimator__min_samples_leaf"),
        ("ml-knn", MLkNN(), "n_neighbors"),
        ("iblr", IBLR(), "n_neighbors"),
        ("iblr-plus", IBLR(with_features=True), "n_neighbors"),
        ("corrlog", CorrLog(), "C"),
        ("pcc-lr", ProbabilisticChain(LogisticRegression(max_iter=2000), epsilon=0.01), "estimator__C"),
    ],
)
def test_other_baselines_choose_and_predict_as_a_grid_search_does(rows, family, estimator, parameter):
    (outcome,) = outcomes_of(family, rows).values()
    (name,) = outcome.settings
    candidates = TINY_GRID[FAMILIES[family].grid][name]
    best, predicted = grid_search(estimator, {parameter: candidates}, rows)
    assert outcome.settings[name] == best[parameter]
    np.testing.assert_array_equal(outcome.predicted, predicted)
    assert outcome.log_prob.shape == (len(rows.Y_test),)


def test_ccnet_chooses_by_itself(rows):
    (outcome,) = outcomes_of("ccnet", rows).values()
    plain = CCnet([0.1, 1.0], l1_ratios=[0.5], cv=2, epsilon=0.01).fit(rows.X, rows.Y)
    assert outcome.settings == {"cv": 2}
    np.testing.assert_array_equal(outcome.predicted, plain.predict(rows.X_test))
    np.testing.assert_allclose(outcome.log_prob, plain.set_log_proba(rows.X_test, rows.Y_test))


def test_corrlog_has_no_probabilities_beyond_fourteen_labels(rows):
    many = replace(rows, Y=np.tile(rows.Y, (1, 5)), Y_test=np.tile(rows.Y_test, (1, 5)))
    (outcome,) = FAMILIES["corrlog"].outcomes(many, TINY_GRID["linear"], [{"C": 0.1}]).values()
    assert outcome.predicted.shape == many.Y_test.shape and outcome.log_prob is None is outcome.log_confidence


def test_the_automatic_choice_is_made_by_the_inner_folds_alone(rows):
    (outcome,) = outcomes_of("mlrh-auto", rows).values()
    options = {"scores": "linear", "quality": "fast", "time_budget": None}
    plain = MLRHAuto(cv=rows.inner, **options).fit(rows.X, rows.Y)
    assert outcome.settings == {"model": plain.leaderboard_[0]["model"]}
    np.testing.assert_array_equal(outcome.predicted, plain.predict(rows.X_test))
    np.testing.assert_allclose(outcome.log_prob, plain.distribution(rows.X_test).log_prob(rows.Y_test), rtol=1e-9)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.startswith(("mlrh-rbf", "mlrh-linear"))])
def test_both_decisions_of_mlrh_choose_and_predict_as_grid_searches_of_their_own(rows, family):
    label_space = next((space for space in ("observed", "open") if family.endswith(space)), "cardinality")
    for name, outcome in outcomes_of(family, rows).items():
        decision = "hamming" if "-MP" in name else "exact_match"
        if "rbf" in family:
            estimator, grid = KernelMLRHClassifier(label_space=label_space, decision=decision), {"C": [1.0, 10.0]}
            grid["gamma"] = [gamma * rows.gamma_unit for gamma in TINY_GRID["rbf"]["gamma"]]
        else:
            estimator, grid = MLRHClassifier(label_space=label_space, decision=decision), {"C": [0.1, 1.0]}
        best, predicted = grid_search(estimator, grid, rows)
        assert outcome.settings["C"] == best["C"]
        np.testing.assert_array_equal(outcome.predicted, predicted)
        distribution = clone(estimator).set_params(**best).fit(rows.X, rows.Y).distribution(rows.X_test)
        np.testing.assert_allclose(outcome.log_prob, distribution.log_prob(rows.Y_test), rtol=1e-9)
        np.testing.assert_allclose(outcome.log_confidence, distribution.log_prob(predicted), rtol=1e-9)


def test_given_settings_replace_the_search(rows):
    (outcome,) = FAMILIES["br-svm"].outcomes(rows, TINY_GRID["rbf"], [{"C": 5.0, "gamma": 2.0}]).values()
    model = OneVsRestClassifier(SVC(C=5.0, gamma=2.0 * rows.gamma_unit)).fit(rows.X, rows.Y)
    np.testing.assert_array_equal(outcome.predicted, model.predict(rows.X_test))


@pytest.mark.filterwarnings("ignore:The training rows don't determine:UserWarning", "ignore:Label not:UserWarning")
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_label_that_training_lacks_is_never_predicted(family):
    dataset = small_dataset()
    train, _ = dataset.split(5, 0, 0)
    dataset.data.Y[train, 2] = 0
    dataset.data.Y[train, 0] |= dataset.data.Y[train].sum(axis=1) == 0
    rows = _rows(Task("p", "small", "nested", "br-lr", 0, 0), dataset, TINY, 5)
    for outcome in outcomes_of(family, rows).values():
        assert outcome.predicted[:, :2].any()
        assert not outcome.predicted[:, 2].any()
