"""Cross validation over a path of C: the same numbers as separate fits, at the price of one factorisation per fold."""

import numpy as np
import pytest
from samples import make_multilabel
from sklearn.model_selection import GridSearchCV, KFold

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.search import best_index, validation_scores

CS = (0.01, 1.0, 100.0)


def exact_match(model, X, Y):
    return model.score(X, Y)


def negative_log_loss(model, X, Y):
    return float(np.maximum(model.distribution(X).log_prob(Y), -50).mean())


@pytest.mark.parametrize(
    "estimator, gammas",
    [
        (MLRHClassifier(tol=1e-10), (None,)),
        (MLRHClassifier(tol=1e-10, label_space="observed"), (None,)),
        (KernelMLRHClassifier(tol=1e-10), (0.05, 0.5)),
        (KernelMLRHClassifier(tol=1e-10, label_space="observed", size_bias=True), (0.2,)),
    ],
)
def test_path_scores_equal_those_of_a_grid_search_with_separate_fits(estimator, gammas):
    X, Y = make_multilabel(n_samples=90, n_features=4, n_labels=3)
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    ours = validation_scores(
        estimator, X, Y, Cs=CS, gammas=gammas, splits=splits, scorers=[exact_match, negative_log_loss]
    )
    grid = {"C": list(CS)} | ({} if gammas == (None,) else {"gamma": list(gammas)})
    search = GridSearchCV(
        estimator, grid, cv=splits, scoring={"match": exact_match, "loss": negative_log_loss}, refit=False
    ).fit(X, Y)
    shape = (len(splits), len(CS), len(gammas))
    for scores, name in zip(ours, ("match", "loss"), strict=True):
        theirs = np.array([search.cv_results_[f"split{fold}_test_{name}"] for fold in range(3)]).reshape(shape)
        np.testing.assert_allclose(scores, np.swapaxes(theirs, 1, 2), rtol=1e-4, atol=1e-4)


def test_a_precomputed_kernel_gives_the_scores_of_the_kernel_it_was_computed_by():
    X, Y = make_multilabel(n_samples=60, n_features=3, n_labels=3)
    splits = list(KFold(3).split(X))
    options = {"Cs": CS, "splits": splits, "scorers": [negative_log_loss]}
    ours = validation_scores(KernelMLRHClassifier(kernel="precomputed"), X @ X.T, Y, gammas=(None,), **options)
    linear = validation_scores(KernelMLRHClassifier(kernel="linear"), X, Y, gammas=(None,), **options)
    np.testing.assert_allclose(ours, linear, rtol=1e-6)


def test_two_processes_give_the_scores_of_one():
    X, Y = make_multilabel(n_samples=40, n_features=3, n_labels=3)
    options = {"Cs": CS, "gammas": (None,), "splits": list(KFold(2).split(X)), "scorers": [exact_match]}
    one = validation_scores(MLRHClassifier(), X, Y, **options)
    two = validation_scores(MLRHClassifier(), X, Y, n_jobs=2, **options)
    np.testing.assert_array_equal(one, two)


def test_the_estimator_given_stays_as_it_was():
    X, Y = make_multilabel(n_samples=30, n_features=3, n_labels=3)
    estimator = MLRHClassifier(C=7.0)
    validation_scores(estimator, X, Y, Cs=CS, gammas=(None,), splits=list(KFold(2).split(X)), scorers=[exact_match])
    assert estimator.C == 7.0 and not hasattr(estimator, "coef_")


def test_of_equally_good_settings_the_one_with_the_smallest_c_wins():
    scores = np.array([[[0.1, 0.7, 0.7], [0.7, 0.2, 0.7]]])  # two gammas, three C
    assert best_index(scores) == (1, 0)


def test_a_setting_without_a_number_loses():
    scores = np.array([[[np.nan, 0.1]], [[0.9, 0.1]]])
    assert best_index(scores) == (0, 1)
