"""What keeps fits of the open space cheap: biases fitted to fixed scores, a good start, and a metric of its own."""

import numpy as np
import pytest
import reference
from scipy.optimize import minimize

from mlrh import MLRHClassifier
from mlrh._indicators import UNKNOWN
from mlrh.spaces import LabelSpace, OpenSpace
from mlrh.spaces._kernels import seen_sets, trie

SETS = reference.sets_of_sizes(6, 1, 3)


def rows(n=300, n_features=8):
    """Rows nearly all of whose sets are among a few, so that biases of sets and scores can stand in for each other."""
    X = np.random.RandomState(0).normal(size=(n, n_features))
    space = OpenSpace(6, 1, 3, SETS[::5], np.full(len(SETS[::5]), 6.0))
    scores = X @ np.random.RandomState(1).normal(scale=0.7, size=(n_features, 6))
    return X, space.distribution(scores).sample(1, random_state=2)[:, 0]


def sparse_probabilities(n_rows, n_sets):
    """indptr, indices, values of probabilities whose rows sum to less than 1."""
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.full(n_sets + 1, 0.3), size=n_rows)[:, :n_sets]
    kept = probs > 1e-3
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return (indptr, np.nonzero(kept)[1], probs[kept]), np.where(kept, probs, 0.0)


@pytest.mark.parametrize("strength", [10.0, 0.1])
def test_biases_fitted_to_fixed_scores_reach_the_optimum_of_scipy(strength):
    stored, probs = sparse_probabilities(200, 12)
    random = np.random.default_rng(1)
    weights, rows = random.uniform(0.5, 2.0, 200), np.flatnonzero(np.arange(200) % 3)
    counts = np.bincount(
        random.integers(0, 11, len(rows)), weights=weights[rows], minlength=12
    )  # the last set has none

    def loss(bias):
        totals = 1.0 + probs[rows] @ np.expm1(bias)
        gradient = np.exp(bias) * (probs[rows].T @ (weights[rows] / totals)) - counts + strength * bias
        value = weights[rows] @ np.log(totals) - counts @ bias + 0.5 * strength * bias @ bias
        return value, np.where(counts > 0, gradient, 0.0)

    best, bias = minimize(loss, np.zeros(12), jac=True, tol=1e-10), np.zeros(12)
    seen_sets.fit_biases(rows, *stored, weights, counts, strength, 20.0, bias)
    # It stops where a step gains less than SMALL_GAIN of a row; a few of these may be left.
    assert best.fun <= loss(bias)[0] <= best.fun + 5 * seen_sets.SMALL_GAIN * weights[rows].sum()
    assert bias[11] == 0.0
    found = np.where(np.arange(200) % 2, 3, -1)
    expected = weights[rows] @ (np.log(1.0 + probs[rows] @ np.expm1(bias)) - np.where(rows % 2, bias[3], 0.0))
    assert seen_sets.loss_of_biases(rows, *stored, weights, found, bias) == pytest.approx(expected, rel=1e-12)


def test_the_coupled_metric_is_symmetric_positive_definite_and_about_the_hessian():
    X, Y = rows()
    model = MLRHClassifier(label_space="open", C=0.1).fit(X, Y)
    space, scores, weights = model.label_space_, model.decision_function(X), np.ones(len(X))
    n_labels, n = space.n_labels, space.n_labels + space.n_biases
    ridge, none = np.concatenate([np.zeros(n_labels), space.bias_ridge]), np.zeros((space.n_biases, 0))
    solve = space.coupled_metric(space.coupled_sums(scores, weights), np.zeros(n_labels), ridge, none)
    inverse = np.array([np.concatenate(solve(row[:n_labels], row[n_labels:])) for row in np.eye(n)])
    np.testing.assert_allclose(inverse, inverse.T, atol=1e-9 * np.abs(inverse).max())
    assert np.linalg.eigvalsh(inverse).min() > 0
    hessian = np.diag(ridge).astype(float)
    for row, direction in enumerate(np.eye(n)):
        along = np.tile(direction[:n_labels], (len(X), 1))
        d_marginals, d_biases = space.curvature(scores, along, direction[n_labels:], weights)
        hessian[row] += np.concatenate([d_marginals.sum(axis=0), d_biases])
    # Without the metric the condition number is that of the Hessian under a diagonal one.
    values = np.linalg.eigvals(inverse @ hessian).real
    diagonal = np.linalg.eigvalsh(hessian / np.sqrt(np.outer(np.diag(hessian), np.diag(hessian))))
    assert values.max() / values.min() < 0.1 * diagonal.max() / diagonal.min()


def test_the_coupled_metric_takes_few_iterations_where_biases_and_scores_stand_in_for_each_other(monkeypatch):
    X, Y = rows()
    coupled = MLRHClassifier(label_space="open", C=0.1).fit(X, Y)
    monkeypatch.setattr(OpenSpace, "has_coupled_metric", False)
    plain = MLRHClassifier(label_space="open", C=0.1).fit(X, Y)
    assert coupled.objective_ == pytest.approx(plain.objective_, rel=1e-5)
    assert coupled.n_iter_ < 0.6 * plain.n_iter_


def test_a_fit_starts_from_the_fits_that_chose_the_strength():
    X, Y = rows()
    chosen = MLRHClassifier(label_space="open", C=0.1).fit(X, Y)
    fixed = MLRHClassifier(label_space="open", C=0.1, set_bias_strength=chosen.set_bias_strength_).fit(X, Y)
    assert chosen.objective_ == pytest.approx(fixed.objective_, rel=1e-5)
    # What is left to gain at the start, of what a start without coefficients and biases leaves.
    left, cold = (model.history_[0] - fixed.objective_ for model in (chosen, fixed))
    assert left < 0.1 * cold


@pytest.mark.parametrize("options", [{"fit_intercept": False}, {"l1_ratio": 0.5}, {"solver": "newton-cg"}, {"C": 1e6}])
def test_a_chosen_strength_and_its_start_lead_to_the_same_optimum_as_that_strength_given(options):
    X, Y = rows(120)
    options = {"label_space": "open", "C": 0.1, "max_iter": 5000, **options}
    chosen = MLRHClassifier(**options).fit(X, Y)
    fixed = MLRHClassifier(**options, set_bias_strength=chosen.set_bias_strength_).fit(X, Y)
    assert chosen.objective_ == pytest.approx(fixed.objective_, rel=1e-4)


@pytest.mark.parametrize(("least", "has_known"), [(1, False), (8, False), (1, True)])
def test_scores_far_below_zero_need_no_trie(least, has_known, monkeypatch):
    random = np.random.default_rng(0)
    scores = np.where(random.random((40, 30)) < 0.8, random.uniform(-80, -20, (40, 30)), random.normal(size=(40, 30)))
    sets = np.unique((scores + random.normal(size=scores.shape) > -30).astype(int), axis=0)
    sets = sets[(sets.sum(axis=1) >= least) & (sets.sum(axis=1) <= 12)]
    space = OpenSpace(30, least, 12, sets, random.normal(size=len(sets)))
    if has_known:
        known = np.full(scores.shape, UNKNOWN, np.int8)
        known[:, :2] = sets[np.arange(40) % len(sets), :2]
        space = space.given(known)
    log_partition, marginals, _, _ = space._by_trie(scores, np.arange(40))
    monkeypatch.setattr(trie, "expectations", lambda *_: pytest.fail("through the trie"))
    found = space.expectations(scores, np.ones(40))
    np.testing.assert_allclose(found[0], log_partition, rtol=1e-12)
    # A digit of a sum of up to 1024 is worth 1e-13, and a dozen scores are added up.
    np.testing.assert_allclose(found[1], marginals, rtol=0, atol=1e-11)
    direction, bias_direction = random.normal(size=scores.shape), random.normal(size=space.n_biases)
    curved = space.curvature(scores, direction, bias_direction, np.ones(40))
    expected = LabelSpace.curvature(space, scores, direction, bias_direction, np.ones(40))
    for one, other in zip(curved, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)  # the differences of the base class are right to 1e-8
