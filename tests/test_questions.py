"""Entropy, pairs, groups, sizes and expected metrics, against the enumeration of all sets and at extremes."""

from math import log

import numpy as np
import pytest
import reference

from mlrh.spaces import CardinalitySpace, ObservedSpace

NAN = np.nan
RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=3, size=(40, 6))
SIZE_BIAS = np.array([0.5, -1.0, 0.3, 2.0, -0.7, 1.1, 0.2])
SETS = reference.sets_of_sizes(6, 0, 4)[::2]
SPACES = [
    CardinalitySpace(6, 1, 4),
    CardinalitySpace(6, 2, 5, SIZE_BIAS),
    CardinalitySpace(6, 6, 6),
    CardinalitySpace(6, 0, 0),
    ObservedSpace(SETS, RNG.normal(size=len(SETS))),
]
every_space = pytest.mark.parametrize("space", SPACES, ids=["plain", "size_bias", "full", "empty", "observed"])


@pytest.mark.parametrize("score", [0.0, 1.5, -40.0, 300.0, -700.0, 1e5])
def test_one_label_has_the_entropy_of_a_coin(score):
    p, size = np.exp(-abs(score)) / (1 + np.exp(-abs(score))), abs(score)
    expected = np.log1p(np.exp(-size)) + p * size
    assert CardinalitySpace(1, 0, 1).distribution([[score]]).entropy()[0] == pytest.approx(expected, rel=1e-13, abs=0)
    assert ObservedSpace([[0], [1]]).distribution([[score]]).entropy()[0] == pytest.approx(expected, rel=1e-13, abs=0)


def test_entropy_without_limits_of_size_is_the_sum_over_the_labels():
    scores = ROWS * 10
    odds = np.exp(-np.abs(scores))
    expected = (np.log1p(odds) + odds / (1 + odds) * np.abs(scores)).sum(axis=1)
    np.testing.assert_allclose(CardinalitySpace(6, 0, 6).distribution(scores).entropy(), expected, rtol=1e-13)


@every_space
def test_scores_of_0_have_the_entropy_of_all_sets_being_alike(space):
    flat = (
        ObservedSpace(space.sets) if hasattr(space, "sets") else CardinalitySpace(6, space.min_labels, space.max_labels)
    )
    result = flat.distribution(np.zeros((1, 6))).entropy()[0]
    assert result == pytest.approx(flat.log_count(), rel=1e-14, abs=1e-14)


@every_space
def test_the_diagonal_of_joint_marginals_is_the_marginals(space):
    d = space.distribution(ROWS)
    diagonal = np.diagonal(d.joint_marginals(), axis1=1, axis2=2)
    np.testing.assert_allclose(diagonal, d.marginals(), rtol=1e-13, atol=0)


def test_joint_marginals_of_200_labels_are_the_curvature_and_the_products_of_marginals():
    space, scores = CardinalitySpace(200, 1, 8), RNG.normal(scale=2, size=(1, 200)) - 3
    rows = np.repeat(scores, 200, axis=0)
    covariance, _ = space.curvature(rows, np.eye(200), np.zeros(space.n_biases), np.ones(200))
    d = space.distribution(scores)
    expected = covariance + np.outer(d.marginals()[0], d.marginals()[0])
    np.testing.assert_allclose(d.joint_marginals()[0], expected, rtol=0, atol=1e-13)


def test_joint_marginals_do_not_depend_on_the_number_of_threads():
    rows = np.random.default_rng(5).normal(size=(2000, 30))
    one, two = (CardinalitySpace(30, 1, 8, n_jobs=n).distribution(rows).joint_marginals() for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("space", [CardinalitySpace(4, 0, 4), ObservedSpace(reference.sets_of_sizes(4, 0, 4))])
def test_a_tiny_probability_of_a_group_keeps_its_relative_precision(space):
    result = space.distribution([[3.0, -80.0, -81.0, 2.0]]).any_of([1, 2])[0]
    assert result == pytest.approx(np.exp(-80) + np.exp(-81), rel=1e-13, abs=0)


@every_space
def test_groups_of_no_one_some_and_all_labels_have_the_probabilities_that_other_questions_say(space):
    d = space.distribution(ROWS)
    assert not d.any_of([]).any()
    np.testing.assert_allclose(d.any_of([3]), d.marginals()[:, 3], rtol=1e-13, atol=0)
    np.testing.assert_allclose(d.any_of(range(6)), d.size_tail(1), rtol=1e-13, atol=0)
    np.testing.assert_array_equal(d.any_of(np.array([True, False, False, True, True, False])), d.any_of([4, 0, 3]))


@every_space
def test_prob_is_the_exponential_of_log_prob_and_the_expected_exact_match(space):
    d = space.distribution(ROWS)
    Y = (ROWS > 0).astype(int)
    np.testing.assert_array_equal(d.prob(Y), np.exp(d.log_prob(Y)))
    np.testing.assert_allclose(d.prob(Y), d.expected("exact_match", Y), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("scale", [1e5, -1e5])
def test_questions_at_scores_of_1e5_are_certainties(scale):
    d = CardinalitySpace(4, 0, 2).distribution(np.array([[2.0, 1.0, -1.0, -2.0]]) * scale)
    truth = d.mode()[0]
    assert d.entropy()[0] == 0
    np.testing.assert_array_equal(d.joint_marginals()[0], np.outer(truth, truth))
    assert d.any_of([0, 1])[0] == truth[:2].any()
    assert d.size_tail(2)[0] == 1


def test_two_sets_alike_at_scores_of_1e5_have_an_entropy_of_log_2():
    d = CardinalitySpace(3, 1, 1).distribution([[1e5, 1e5, -1e5]])
    assert d.entropy()[0] == pytest.approx(np.log(2), rel=1e-14)
    np.testing.assert_allclose(d.joint_marginals()[0], np.diag([0.5, 0.5, 0]), rtol=1e-14)


def test_the_convex_bias_defeats_no_question():
    scores, size_bias = [1000.0, 0.0, -1000.0], [1000.0, 0.0, 0.0, 1000.0]
    d = CardinalitySpace(3, 0, 3, size_bias).distribution([scores])
    expected = reference.enumerate_sizes(scores, 0, 3, size_bias)
    joint = [[expected.mean(a * b) for b in expected.sets.T] for a in expected.sets.T]
    np.testing.assert_allclose(d.marginals(), [[0.75, 0.5, 0.25]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(d.condition([[NAN, 1, NAN]]).marginals(), [[1, 1, 0.5]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(d.joint_marginals()[0], joint, rtol=0, atol=1e-12)
    assert d.entropy()[0] == pytest.approx(log(4), rel=1e-12)  # four sets are equally probable
    assert d.any_of([1, 2])[0] == pytest.approx(expected.mean(expected.sets[:, 1:].any(axis=1)), rel=1e-12)


@pytest.mark.parametrize(
    ("question", "values", "message"),
    [
        (
            "any_of",
            [[0, 0], [0.5], "ab", [[0, 1]], [True, False], [1, 0, 1, 1, 0, 0]],
            "group must be distinct label indices or a mask of 6 booleans; got",
        ),
        ("any_of", [[6], [-1, 2]], r"must lie in 0\.\.5; got"),
        ("size_tail", [1.5, "2", None], "m must be an integer"),
    ],
)
def test_a_group_or_a_size_that_can_not_be_is_an_error(question, values, message):
    for value in values:
        with pytest.raises(ValueError, match=message):
            getattr(CardinalitySpace(6, 1, 4).distribution(ROWS), question)(value)
