"""What fitting asks of a space, expectations and curvature, against the enumeration and finite differences."""

from functools import partial

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.spaces._kernels import wide_range

many = settings(deadline=None, max_examples=100)
RNG = np.random.default_rng(3)
N_ROWS, N_LABELS = 6, 5
ROWS = RNG.normal(scale=2, size=(N_ROWS, N_LABELS))
WEIGHTS = RNG.random(N_ROWS) + 0.5
DIRECTION = RNG.normal(size=(N_ROWS, N_LABELS))
SETS = np.array([[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]])
SPACES = {
    "cardinality": CardinalitySpace(N_LABELS, 1, 4),
    "cardinality-biased": CardinalitySpace(N_LABELS, 0, 5, [0.5, -1.0, 0.3, 2.0, -0.4, 1.0]),
    "cardinality-one-size": CardinalitySpace(N_LABELS, 2, 2),
    "observed": ObservedSpace(SETS, [0.5, -1.0, 2.0, 0.0, 0.25]),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def bias_direction_of(space):
    return np.random.default_rng(4).normal(size=space.n_biases)


@every_space
@pytest.mark.parametrize("part", ["scores", "biases", "both"])
def test_curvature_is_the_difference_of_marginals_and_bias_probabilities_along_the_directions(space, part):
    direction, bias_direction = DIRECTION * (part != "biases"), bias_direction_of(space) * (part != "scores")

    def expectations(step, which):
        moved = space.with_bias(space.bias + step * bias_direction)
        return moved.expectations(ROWS + step * direction, WEIGHTS)[which]

    found = space.curvature(ROWS, direction, bias_direction, WEIGHTS)
    for which, atol in ((1, 1e-9), (2, 1e-8)):
        difference = reference.central_difference(partial(expectations, which=which))
        np.testing.assert_allclose(found[which - 1], difference, rtol=0, atol=atol)


@every_space
def test_doubling_a_weight_counts_its_row_twice(space):
    doubled = WEIGHTS.copy()
    doubled[2] *= 2
    repeated = space.expectations(np.vstack([ROWS, ROWS[2:3]]), np.append(WEIGHTS, WEIGHTS[2]))[2]
    np.testing.assert_allclose(space.expectations(ROWS, doubled)[2], repeated, rtol=1e-14)


@every_space
@pytest.mark.parametrize("moving_bias", [False, True])
def test_curvature_never_exceeds_its_bound(space, moving_bias):
    bias_direction = bias_direction_of(space) * moving_bias
    ones = np.ones(N_ROWS)
    d_marginals, _ = space.curvature(ROWS, DIRECTION, bias_direction, ones)
    rows = [space.curvature(ROWS[i : i + 1], DIRECTION[i : i + 1], bias_direction, ones[:1])[1] for i in range(N_ROWS)]
    variances = (d_marginals * DIRECTION).sum(axis=1) + np.array(rows) @ bias_direction
    squared_norms = (DIRECTION**2).sum(axis=1) + (bias_direction**2).sum()
    assert (variances <= space.curvature_bound(moving_bias=moving_bias) * squared_norms).all()


@every_space
def test_expectations_and_curvature_leave_their_inputs_as_they_were(space):
    inputs = (ROWS.copy(), DIRECTION.copy(), bias_direction_of(space), WEIGHTS.copy())
    space.expectations(inputs[0], inputs[3])
    space.curvature(*inputs)
    for after, before in zip(inputs, (ROWS, DIRECTION, bias_direction_of(space), WEIGHTS), strict=True):
        np.testing.assert_array_equal(after, before)


@every_space
def test_float32_scores_have_float32_curvature_of_float32_accuracy(space):
    narrow, no_bias = ROWS.astype(np.float32), np.zeros(space.n_biases)
    d_marginals, _ = space.curvature(narrow, DIRECTION.astype(np.float32), no_bias, WEIGHTS)
    expected, _ = space.curvature(narrow.astype(float), DIRECTION.astype(np.float32).astype(float), no_bias, WEIGHTS)
    assert d_marginals.dtype == np.float32
    np.testing.assert_allclose(d_marginals, expected, rtol=0, atol=1e-6)


def moving(n_labels, n_biases):
    """A direction of scores and one of biases."""
    return st.tuples(
        st.lists(reference.MODERATE, min_size=n_labels, max_size=n_labels).map(np.array),
        st.lists(reference.MODERATE, min_size=n_biases, max_size=n_biases).map(np.array),
    )


@st.composite
def moving_cases(draw):
    case = draw(reference.cases())
    return case, *draw(moving(len(case.scores), case.max_labels - case.min_labels + 1))


@st.composite
def moving_listed_sets(draw):
    scores, sets, set_bias = draw(reference.listed_sets())
    return scores, sets, set_bias, *draw(moving(len(scores), len(sets)))


def covariances_by_size(case, direction, bias_direction):
    """Of each label, and of each admissible size, with direction'y + bias_direction[|y|]."""
    enumeration = case.enumerate()
    sizes = enumeration.sets.sum(axis=1) - case.min_labels
    change = enumeration.sets @ direction + bias_direction[sizes]
    labels = [enumeration.covariance(column, change) for column in enumeration.sets.T]
    return labels, [enumeration.covariance(sizes == j, change) for j in range(len(bias_direction))]


def tolerance(direction, bias_direction):
    return 1e-12 * max(1.0, np.abs(direction).sum() + np.abs(bias_direction).max())


@given(moving_cases())
@many
def test_cardinality_curvature_is_the_covariance_over_all_label_sets_in_any_range(moving_case):
    case, direction, bias_direction = moving_case
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    d_marginals, d_sizes = space.curvature(case.scores[None], direction[None], bias_direction, np.array([2.0]))
    kernel_bias = np.where(np.arange(len(case.bias)) < case.min_labels, -np.inf, case.bias)[: case.max_labels + 1]
    padded = np.concatenate([np.zeros(case.min_labels), bias_direction])
    scaled, d_pmf = np.empty((1, len(case.scores))), np.empty((1, len(padded)))
    wide_range.curvature(case.scores[None], kernel_bias, direction[None], padded, np.ones(1, bool), scaled, d_pmf)
    labels, sizes = covariances_by_size(case, direction, bias_direction)
    for of_labels, of_sizes in ((d_marginals, d_sizes / 2), (scaled, d_pmf[0, case.min_labels :])):
        np.testing.assert_allclose(of_labels[0], labels, rtol=0, atol=tolerance(direction, bias_direction))
        np.testing.assert_allclose(of_sizes, sizes, rtol=0, atol=tolerance(direction, bias_direction))


@given(moving_listed_sets())
@many
def test_observed_curvature_is_the_covariance_over_the_listed_sets(moving_case):
    scores, sets, set_bias, direction, bias_direction = moving_case
    enumeration = reference.enumerate_sets(scores, sets, set_bias)
    change = sets @ direction + bias_direction
    labels = [enumeration.covariance(column, change) for column in sets.T]
    each_set = [enumeration.covariance(row, change) for row in np.eye(len(sets))]
    results = ObservedSpace(sets, set_bias).curvature(scores[None], direction[None], bias_direction, np.array([2.0]))
    np.testing.assert_allclose(results[0][0], labels, rtol=0, atol=tolerance(direction, bias_direction))
    np.testing.assert_allclose(results[1] / 2, each_set, rtol=0, atol=tolerance(direction, bias_direction))


@given(reference.cases(), st.floats(0.1, 10))
@many
def test_cardinality_expectations_weigh_the_probabilities_of_the_sizes(case, weight):
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    sizes = space.expectations(np.tile(case.scores, (2, 1)), np.array([weight, 1.0]))[2]
    expected = (weight + 1) * case.enumerate().cardinality_pmf()[case.min_labels : case.max_labels + 1]
    np.testing.assert_allclose(sizes, expected, rtol=0, atol=1e-12 * (weight + 1))


@given(reference.listed_sets(), st.floats(0.1, 10))
@many
def test_observed_expectations_weigh_the_probabilities_of_the_sets(case, weight):
    scores, sets, set_bias = case
    probs = ObservedSpace(sets, set_bias).expectations(np.tile(scores, (2, 1)), np.array([weight, 1.0]))[2]
    expected = (weight + 1) * np.exp(reference.enumerate_sets(scores, sets, set_bias).log_probs())
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-12 * (weight + 1))
