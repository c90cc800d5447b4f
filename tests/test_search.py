"""Cross validation over a path of C: the same numbers as separate fits, at the price of one factorisation per fold."""

import numpy as np
import pytest
from samples import make_multilabel
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.estimators._base import _extrapolated
from mlrh.estimators.cv import best_index, exact_match, log_prob, validation_scores

CS = (0.01, 1.0, 100.0)


def negative_log_loss(model, X, Y):
    return float(np.maximum(model.distribution(X).log_prob(Y), -50).mean())


@pytest.mark.parametrize(
    "estimator, settings",
    [
        (MLRHClassifier(tol=1e-10), [{}]),
        (MLRHClassifier(tol=1e-10, label_space="observed"), [{}]),
        (KernelMLRHClassifier(tol=1e-10), [{"gamma": 0.05}, {"gamma": 0.5}]),
        (KernelMLRHClassifier(tol=1e-10, label_space="observed", size_bias=True), [{"gamma": 0.2}]),
    ],
)
def test_path_scores_equal_those_of_a_grid_search_with_separate_fits(estimator, settings):
    X, Y = make_multilabel(n_samples=90, n_features=4, n_labels=3)
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    ours = validation_scores(
        estimator, X, Y, Cs=CS, settings=settings, splits=splits, scorers=[exact_match, negative_log_loss]
    )
    grid = {"C": list(CS)} | {name: [own[name] for own in settings] for name in settings[0]}
    search = GridSearchCV(
        estimator, grid, cv=splits, scoring={"match": exact_match, "loss": negative_log_loss}, refit=False
    ).fit(X, Y)
    shape = (len(splits), len(CS), len(settings))
    for scores, name in zip(ours, ("match", "loss"), strict=True):
        theirs = np.array([search.cv_results_[f"split{fold}_test_{name}"] for fold in range(3)]).reshape(shape)
        np.testing.assert_allclose(scores, np.swapaxes(theirs, 1, 2), rtol=1e-4, atol=1e-4)


def test_a_precomputed_kernel_gives_the_scores_of_the_kernel_it_was_computed_by():
    X, Y = make_multilabel(n_samples=60, n_features=3, n_labels=3)
    splits = list(KFold(3).split(X))
    options = {"Cs": CS, "splits": splits, "scorers": [negative_log_loss]}
    ours = validation_scores(KernelMLRHClassifier(kernel="precomputed"), X @ X.T, Y, **options)
    linear = validation_scores(KernelMLRHClassifier(kernel="linear"), X, Y, **options)
    np.testing.assert_allclose(ours, linear, rtol=1e-6)


def test_two_processes_give_the_scores_of_one():
    X, Y = make_multilabel(n_samples=40, n_features=3, n_labels=3)
    options = {"Cs": CS, "splits": list(KFold(2).split(X)), "scorers": [exact_match]}
    one = validation_scores(MLRHClassifier(), X, Y, **options)
    two = validation_scores(MLRHClassifier(), X, Y, n_jobs=2, **options)
    np.testing.assert_array_equal(one, two)


def test_the_estimator_given_stays_as_it_was():
    X, Y = make_multilabel(n_samples=30, n_features=3, n_labels=3)
    estimator = MLRHClassifier(C=7.0)
    validation_scores(estimator, X, Y, Cs=CS, splits=list(KFold(2).split(X)), scorers=[exact_match])
    assert estimator.C == 7.0 and not hasattr(estimator, "coef_")


def test_of_equally_good_settings_the_one_with_the_smallest_c_wins():
    scores = np.array([[[0.1, 0.7, 0.7], [0.7, 0.2, 0.7]]])  # two settings, three C
    assert best_index(scores) == (1, 0)


def test_a_setting_without_a_number_loses():
    scores = np.array([[[np.nan, 0.1]], [[0.9, 0.1]]])
    assert best_index(scores) == (0, 1)


GRIDS = {
    "even": (0.01, 0.1, 1.0, 10.0, 100.0),
    "uneven": (0.01, 0.02, 5.0, 6.0, 1e4),
    "repeated": (0.1, 0.1, 1.0, 1.0, 10.0),
    "without a penalty at the end": (0.1, 1.0, np.inf),
}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"l1_ratio": 0.5}, {"solver": "newton-cg"}])
def test_every_fit_of_a_path_is_the_fit_at_that_c(grid, options):
    X, Y = make_multilabel(n_samples=120, n_features=4, n_labels=3)
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
    X, Y = make_multilabel(n_samples=150, n_features=5, n_labels=4)
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

    X, Y = make_multilabel(60)
    train, held_out = np.arange(40), np.arange(40, 60)
    options = {"Cs": [0.1, 1.0, 10.0], "splits": [(train, held_out)], "scorers": scorers}
    scores = validation_scores(KernelMLRHClassifier(kernel=kernel), X, Y, **options)
    assert shapes.count((40, 40)) == 1 and shapes.count((20, 40)) == n_held_out
    expected = validation_scores(KernelMLRHClassifier(kernel="linear"), X, Y, **options)
    np.testing.assert_allclose(scores, expected, atol=1e-12)
