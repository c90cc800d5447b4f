"""The classifiers with C chosen as they are fitted: GridSearchCV's choice, on all forms of y, by a path of fits."""

import numpy as np
import pandas as pd
import pytest
from samples import FORMS, make_multilabel
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold

from mlrh import KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.estimators._base import _extrapolated
from mlrh.estimators.cv import best_index, exact_match, log_prob, validation_scores
from mlrh.metrics import set_log_loss

CS = [0.003, 0.1, 3.0]
X, Y = make_multilabel(120, seed=3)
FOLDS = KFold(3, shuffle=True, random_state=0)


def mean_log_prob(model, X, Y):
    return -set_log_loss(model.distribution(X).log_prob(Y))


def scores_of(search):
    return np.array([search.cv_results_[f"split{fold}_test_score"] for fold in range(3)])


@pytest.mark.parametrize("scoring", [None, "f1_macro", mean_log_prob])
@pytest.mark.parametrize("options", [{}, {"label_space": "observed"}, {"size_bias": True, "decision": "f1"}])
def test_the_choice_and_the_scores_are_those_of_a_grid_search(options, scoring):
    ours = MLRHClassifierCV(Cs=CS, cv=FOLDS, scoring=scoring, tol=1e-10, **options).fit(X, Y)
    theirs = GridSearchCV(MLRHClassifier(tol=1e-10, **options), {"C": CS}, cv=FOLDS, scoring=scoring).fit(X, Y)
    np.testing.assert_allclose(ours.scores_, scores_of(theirs), atol=1e-4)
    assert theirs.best_params_["C"] == ours.C_
    assert ours.best_score_ == pytest.approx(theirs.best_score_, abs=1e-4)
    np.testing.assert_array_equal(ours.coef_, theirs.best_estimator_.coef_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_a_kernel_and_its_gamma_are_chosen_as_by_a_grid_search():
    gammas = [0.01, "scale", 1.0]
    ours = KernelMLRHClassifierCV(Cs=CS, gammas=gammas, cv=FOLDS, tol=1e-10).fit(X, Y)
    theirs = GridSearchCV(KernelMLRHClassifier(tol=1e-10), {"C": CS, "gamma": gammas}, cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(ours.scores_, np.swapaxes(scores_of(theirs).reshape(3, 3, 3), 1, 2), atol=1e-4)
    assert ours.best_score_ == pytest.approx(theirs.best_score_)
    fitted = KernelMLRHClassifier(C=ours.C_, gamma=ours.gamma_, tol=1e-10).fit(X, Y)
    np.testing.assert_array_equal(ours.dual_coef_, fitted.dual_coef_)
    np.testing.assert_array_equal(ours.predict_proba(X), fitted.predict_proba(X))


def test_the_share_of_the_l1_penalty_is_chosen_as_by_a_grid_search():
    ratios = [0.0, 0.5, 1.0]
    ours = MLRHClassifierCV(Cs=CS, l1_ratios=ratios, cv=FOLDS, scoring="log_prob", tol=1e-9).fit(X, Y)
    grid = {"C": CS, "l1_ratio": ratios}
    theirs = GridSearchCV(MLRHClassifier(tol=1e-9), grid, cv=FOLDS, scoring=log_prob).fit(X, Y)
    assert (ours.C_, ours.l1_ratio_) == (theirs.best_params_["C"], theirs.best_params_["l1_ratio"])
    assert ours.scores_.shape == (3, 3, len(CS))
    np.testing.assert_allclose(ours.best_score_, theirs.best_score_, atol=1e-5)
    np.testing.assert_allclose(ours.coef_, theirs.best_estimator_.coef_, atol=1e-6)


def test_without_a_choice_the_share_of_the_l1_penalty_is_the_one_given():
    model = MLRHClassifierCV(Cs=CS, l1_ratio=0.5, cv=FOLDS).fit(X, Y)
    assert model.l1_ratio_ == 0.5
    assert model.scores_.shape == (3, len(CS))


def test_a_precomputed_kernel_is_cut_to_the_folds():
    ours = KernelMLRHClassifierCV(Cs=CS, kernel="precomputed", cv=FOLDS).fit(X @ X.T, Y)
    linear = KernelMLRHClassifierCV(Cs=CS, kernel="linear", cv=FOLDS).fit(X, Y)
    np.testing.assert_allclose(ours.scores_, linear.scores_, atol=1e-12)
    np.testing.assert_array_equal(ours.predict(X @ X.T), linear.predict(X))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_y_gives_the_same_choice(form):
    ours = MLRHClassifierCV(Cs=CS, cv=3).fit(X, FORMS[form](Y))
    reference = MLRHClassifierCV(Cs=CS, cv=3).fit(X, Y)
    np.testing.assert_array_equal(ours.scores_, reference.scores_)
    assert type(ours.predict(X)) is type(MLRHClassifier().fit(X, FORMS[form](Y)).predict(X))


@pytest.mark.parametrize("form", ["array", "sets"])
def test_the_log_probability_of_sets_is_a_scoring_for_every_form(form):
    ours = MLRHClassifierCV(Cs=CS, cv=3, scoring="log_prob").fit(X, FORMS[form](Y))
    reference = MLRHClassifierCV(Cs=CS, cv=3, scoring=mean_log_prob).fit(X, Y)
    np.testing.assert_allclose(ours.scores_, reference.scores_, rtol=1e-12)


def test_classes_are_stratified_and_chosen_as_for_logistic_regression():
    classes = np.array(["a", "b", "c"])[np.minimum(Y.sum(axis=1), 3) - 1]
    ours = MLRHClassifierCV(Cs=CS, cv=3, tol=1e-12).fit(X, classes)
    grid = GridSearchCV(LogisticRegression(tol=1e-10, max_iter=5000), {"C": CS}, cv=StratifiedKFold(3)).fit(X, classes)
    np.testing.assert_allclose(ours.scores_, scores_of(grid), atol=1e-9)
    assert grid.best_params_["C"] == ours.C_


def test_weights_count_in_fits_and_scores():
    weight = np.where(np.arange(len(X)) % 3 == 0, 3, 1)
    rows = np.repeat(np.arange(len(X)), weight)
    halves = np.arange(0, len(X), 2), np.arange(1, len(X), 2)
    folds = [halves, halves[::-1]]
    repeated = [tuple(np.flatnonzero(np.isin(rows, side)) for side in fold) for fold in folds]
    weighted = MLRHClassifierCV(Cs=CS, cv=folds, tol=1e-12).fit(X, Y, sample_weight=weight)
    doubled = MLRHClassifierCV(Cs=CS, cv=repeated, tol=1e-12).fit(X[rows], Y[rows])
    np.testing.assert_allclose(weighted.scores_, doubled.scores_, atol=1e-9)
    np.testing.assert_allclose(weighted.coef_, doubled.coef_, atol=1e-4)


def test_an_integer_stands_for_that_many_values_between_a_ten_thousandth_and_ten_thousand():
    ours = MLRHClassifierCV(Cs=3, cv=2).fit(X, Y)
    np.testing.assert_allclose(ours.Cs_, [1e-4, 1.0, 1e4])


def test_values_of_C_are_tried_in_ascending_order_whatever_order_they_come_in():
    ours = MLRHClassifierCV(Cs=[3.0, 0.003, 0.1], cv=FOLDS).fit(X, Y)
    np.testing.assert_array_equal(ours.Cs_, CS)
    np.testing.assert_array_equal(ours.scores_, MLRHClassifierCV(Cs=CS, cv=FOLDS).fit(X, Y).scores_)


def test_processes_over_folds_change_nothing():
    one, two = (MLRHClassifierCV(Cs=CS, cv=FOLDS, n_jobs=n_jobs).fit(X, Y) for n_jobs in (None, 2))
    np.testing.assert_array_equal(one.scores_, two.scores_)


def test_a_frame_keeps_its_names():
    frame = pd.DataFrame(X, columns=list("uvwxyz"))
    ours = MLRHClassifierCV(Cs=CS, cv=3).fit(frame, Y)
    assert ours.feature_names_in_.tolist() == list("uvwxyz")
    np.testing.assert_array_equal(ours.predict(frame), MLRHClassifierCV(Cs=CS, cv=3).fit(X, Y).predict(X))


def test_with_unknown_labels_scores_are_those_of_a_grid_search_and_the_log_probability_of_what_is_known():
    known = np.where(np.random.RandomState(0).uniform(size=Y.shape) < 0.5, np.nan, Y)
    options = {"min_labels": 1, "max_labels": 3}
    ours = MLRHClassifierCV(Cs=[0.01, 1.0, 100.0], cv=FOLDS, scoring="log_prob", **options).fit(X, known)
    theirs = GridSearchCV(MLRHClassifier(**options), {"C": [0.01, 1.0, 100.0]}, cv=FOLDS, scoring=log_prob)
    theirs.fit(X, known)
    np.testing.assert_allclose(ours.scores_, scores_of(theirs), rtol=1e-12)
    train, held_out = next(FOLDS.split(X))
    model = MLRHClassifier(C=0.01, **options).fit(X[train], known[train])
    shown = held_out[~np.isnan(known[held_out]).all(axis=1)]
    expected = model.distribution(X[shown]).log_prob_of_known(known[shown]).mean()
    assert ours.scores_[0, 0] == pytest.approx(expected, rel=1e-4)


def test_rows_of_which_nothing_is_known_count_in_no_score():
    known = np.where(np.random.RandomState(0).uniform(size=Y.shape) < 0.3, np.nan, Y)
    more_X, more = np.vstack([X, X[:30]]), np.vstack([known, np.full((30, 4), np.nan)])
    folds = list(FOLDS.split(X))
    longer = [(train, np.append(held_out, np.arange(120, 150))) for train, held_out in folds]
    longer.append((np.arange(100), np.arange(120, 150)))  # a fold that shows nothing
    options = {"Cs": CS, "scoring": "log_prob", "min_labels": 0, "max_labels": 4}
    ours = MLRHClassifierCV(cv=longer, **options).fit(more_X, more)
    np.testing.assert_allclose(ours.scores_, MLRHClassifierCV(cv=folds, **options).fit(X, known).scores_)


def test_rows_of_weight_zero_are_absent_from_scores():
    weight = np.ones(len(X))
    weight[:40] = 0
    folds = [
        (np.arange(40, 120), np.arange(40)),
        (np.arange(40, 80), np.arange(30, 120)),
        (np.arange(80, 120), np.arange(80)),
    ]
    ours = MLRHClassifierCV(Cs=CS, cv=folds).fit(X, Y, sample_weight=weight)
    kept = [(np.arange(40), np.arange(80)), (np.arange(40, 80), np.arange(40))]
    np.testing.assert_array_equal(ours.scores_, MLRHClassifierCV(Cs=CS, cv=kept).fit(X[40:], Y[40:]).scores_)


def test_a_scoring_without_weights_is_called_without_them():
    ours = MLRHClassifierCV(Cs=CS, cv=FOLDS, scoring=mean_log_prob).fit(X, Y, sample_weight=np.ones(len(X)))
    reference = MLRHClassifierCV(Cs=CS, cv=FOLDS, scoring=mean_log_prob).fit(X, Y)
    np.testing.assert_allclose(ours.scores_, reference.scores_)


def test_a_second_fit_leaves_nothing_of_the_first():
    model = MLRHClassifierCV(Cs=CS, cv=3, label_space="observed").fit(pd.DataFrame(X, columns=list("uvwxyz")), Y)
    model.set_params(label_space="cardinality").fit(X, Y)
    assert not {"sets_", "set_bias_", "feature_names_in_"} & vars(model).keys()
    model.predict(X)


@pytest.mark.parametrize("form", [list, pd.DataFrame, sparse.csr_array])
def test_a_precomputed_kernel_may_have_any_form(form):
    ours = KernelMLRHClassifierCV(Cs=CS, kernel="precomputed", cv=3)
    gram = X @ X.T
    scores = ours.fit(gram.tolist() if form is list else form(gram), Y).scores_
    np.testing.assert_allclose(scores, ours.fit(gram, Y).scores_)


@pytest.mark.parametrize(
    ("scores", "decimals", "best"),
    [
        ([[[0.1, 0.7, 0.7], [0.7, 0.2, 0.7]]], None, (1, 0)),  # two settings, three C
        ([[[0.3, 0.1]], [[0.2, 0.2]], [[0.1, 0.3]]], 12, (0, 0)),  # equal but for rounding
        ([[[np.nan, 0.1]], [[0.9, 0.1]]], None, (0, 1)),
    ],
)
def test_of_equally_good_settings_the_strongest_penalty_wins_and_one_without_a_number_never(scores, decimals, best):
    assert best_index(np.array(scores), decimals=decimals) == best


def test_a_column_of_classes_warns_once():
    with pytest.warns(DataConversionWarning) as caught:
        MLRHClassifierCV(Cs=CS, cv=3).fit(X, Y[:, :1])
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (MLRHClassifierCV(Cs=CS), np.where(Y == 1, 1, np.nan), "use scoring='log_prob'"),
        (MLRHClassifierCV(Cs=CS, scoring="f1_macro"), FORMS["sets"](Y), "no label sets; make an indicator matrix"),
        (MLRHClassifierCV(Cs=CS, scoring=lambda *_: np.nan), Y, "answered with NaN for all of them"),
        (MLRHClassifierCV(Cs=CS, cv=2, min_labels=2), Y, "A fold can't be fitted .rows are counted within"),
    ],
)
def test_what_can_not_be_scored_or_fitted_is_one_clear_error(model, y, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def refuses(model, X, y):
    raise ValueError("a metric of my own")


@pytest.mark.parametrize(
    ("model", "X", "message"),
    [
        (MLRHClassifierCV(Cs=CS), np.where(X > 2, np.nan, X), "^Input X contains NaN"),
        (MLRHClassifierCV(Cs=CS, n_jobs=0), X, "^n_jobs must not be 0"),
        (MLRHClassifierCV(Cs=CS, cv=[]), X, "^cv must give at least one fold"),
        (MLRHClassifierCV(Cs=CS, scoring=refuses), X, "^a metric of my own$"),
        (KernelMLRHClassifierCV(Cs=CS, kernel="precomputed"), X, "^A precomputed kernel matrix must be square"),
    ],
)
def test_no_fold_is_accused_of_what_is_wrong_elsewhere(model, X, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y)


def test_gammas_of_a_kernel_that_has_none_are_warned_of():
    message = "kernel='linear' has no gamma, so that all 2 gammas give the same fits"
    with pytest.warns(UserWarning, match=message) as warned:
        KernelMLRHClassifierCV(Cs=CS, kernel="linear", gammas=[0.1, 1.0]).fit(X, Y)
    assert warned[0].filename == __file__


CS_RULE = "Cs must be a positive integer or positive numbers; got"
RATIOS_RULE = "l1_ratios must be numbers from 0 to 1, at least one; got"
GAMMAS_RULE = "gammas must hold finite numbers of at least 0, 'scale' or 'auto'"
NONSENSE = [
    *((MLRHClassifierCV(Cs=Cs), CS_RULE) for Cs in ([], [1.0, 0.0], [1.0, np.nan], ["a"], [[1.0, 2.0]])),
    *((MLRHClassifierCV(l1_ratios=ratios), RATIOS_RULE) for ratios in ([], [0.5, 1.5], ["a"])),
    *((KernelMLRHClassifierCV(gammas=[gamma]), f"{GAMMAS_RULE}; got {gamma}") for gamma in (np.inf, -1.0)),
    (KernelMLRHClassifierCV(gammas=[]), "gammas must hold at least one value"),
    (MLRHClassifierCV(Cs=0), "The 'Cs' parameter of MLRHClassifierCV must be"),
    (MLRHClassifierCV(scoring="beauty"), "The 'scoring' parameter of MLRHClassifierCV must be"),
]


@pytest.mark.parametrize(("model", "message"), NONSENSE)
def test_a_grid_that_makes_no_sense_is_one_clear_error(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y)


def test_the_estimator_given_stays_as_it_was():
    estimator = MLRHClassifier(C=7.0)
    validation_scores(estimator, X, Y, Cs=CS, splits=list(FOLDS.split(X)), scorers=[exact_match])
    assert estimator.C == 7.0 and not hasattr(estimator, "coef_")


GRIDS = {
    "even": (0.01, 0.1, 1.0, 10.0, 100.0),
    "uneven": (0.01, 0.02, 5.0, 6.0, 1e4),
    "repeated": (0.1, 0.1, 1.0, 1.0, 10.0),
    "without a penalty at the end": (0.1, 1.0, np.inf),
}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"l1_ratio": 0.5}, {"solver": "newton-cg"}])
def test_every_fit_of_a_path_is_the_fit_at_that_c(grid, options):
    Cs = [C for C in GRIDS[grid] if np.isfinite(C) or "l1_ratio" not in options]
    model = MLRHClassifier(tol=1e-11, **options)
    for C, fitted in zip(Cs, model._fit_path(X, Y, Cs), strict=True):
        alone = MLRHClassifier(C=C, tol=1e-11, **options).fit(X, Y)
        np.testing.assert_allclose(fitted.coef_, alone.coef_, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(fitted.objective_, alone.objective_, rtol=1e-7)


def test_a_path_goes_on_where_the_last_three_fits_point_to():
    reached = [(np.full((2, 2), place**2 - 3 * place), np.array([place, 0.0]), None) for place in (1.0, 2.0, 4.0)]
    starts = _extrapolated(reached, np.exp([0.5, 1.0, 2.0, 4.0, 5.0]))
    assert [start[0][0, 0] for start in starts] == pytest.approx([4.0 + 3.0, 10.0])
    assert [start[1][0] for start in starts] == pytest.approx([5.0, 5.0])


def test_a_path_has_no_direction_before_its_second_fit_or_along_equal_values():
    reached = [(np.ones((1, 1)), np.ones(1), None), (np.zeros((1, 1)), np.ones(1), None)]
    assert _extrapolated([], [1.0]) == []
    assert _extrapolated(reached[:1], [1.0, 2.0]) == reached[:1]
    for Cs in ([1.0, 1.0, 2.0], [1.0, 2.0, np.inf], [1.0, 1.01, 1000.0]):
        assert _extrapolated(reached, Cs) == reached[1:]


@pytest.mark.parametrize("model", [MLRHClassifier(), KernelMLRHClassifier(gamma=0.1)])
def test_a_path_takes_less_than_two_thirds_of_the_iterations_of_separate_fits(model):
    Cs = np.logspace(-1, 3, 9).tolist()
    on_path = sum(fitted.n_iter_ for fitted in model._fit_path(X, Y, Cs))
    alone = sum(clone(model).set_params(C=C).fit(X, Y).n_iter_ for C in Cs)
    assert on_path < 2 / 3 * alone


@pytest.mark.parametrize(
    "scorers, n_held_out", [([exact_match, log_prob], 1), ([exact_match, lambda model, X, y: model.score(X, y)], 4)]
)
def test_kernel_values_of_held_out_rows_are_computed_once_for_the_scorers_of_distributions(scorers, n_held_out):
    shapes = []

    def kernel(A, B):
        shapes.append((len(A), len(B)))
        return A @ B.T

    train, held_out = np.arange(40), np.arange(40, 60)
    options = {"Cs": [0.1, 1.0, 10.0], "splits": [(train, held_out)], "scorers": scorers}
    scores = validation_scores(KernelMLRHClassifier(kernel=kernel), X, Y, **options)
    assert shapes.count((40, 40)) == 1 and shapes.count((20, 40)) == n_held_out
    expected = validation_scores(KernelMLRHClassifier(kernel="linear"), X, Y, **options)
    np.testing.assert_allclose(scores, expected, atol=1e-12)
