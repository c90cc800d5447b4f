"""Biases and scores at the ends of their range: right answers, or an error that states the bound."""

import numpy as np
import pytest

from mlrh import decisions
from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace, ObservedSpace, OpenSpace

BIAS = [0.5, 0.54, -1.54, -0.77, -0.7]
ROW = [[1.6, -1.88, -0.149, 0.179]]


@pytest.mark.parametrize("temperature", [1e-16, 1e-30, 1e-99])
def test_at_a_tiny_temperature_the_mode_is_certain(temperature):
    # The mode is {0}: 1.6 + 0.54 = 2.14; the next best set is {0, 3} with 1.779 - 1.54.
    d = CardinalitySpace(4, 0, 3, size_bias=BIAS).distribution(ROW).temper(temperature)
    assert d.marginals().tolist() == [[1, 0, 0, 0]]
    assert d.mode().tolist() == [[1, 0, 0, 0]]
    assert d.cardinality_pmf().tolist() == [[0, 1, 0, 0, 0]]
    assert d.entropy().tolist() == [0]
    assert d.log_partition()[0] == pytest.approx(2.14 / temperature, rel=1e-15)
    assert d.log_prob([[0, 0, 0, 0]])[0] == pytest.approx((0.5 - 2.14) / temperature, rel=1e-15)


@pytest.mark.parametrize("scale", [2.0**40, 2.0**60, 2.0**300])
def test_biases_that_cancel_huge_scores_leave_the_small_ones_to_decide(scale):
    # Size 2 loses what the huge score brings: of {0, 1} the score 0.5 is left, of {0, 2} the score -0.25. The empty
    # set weighs exp(0); all other sets of sizes 0 and 2 lack the huge score.
    d = CardinalitySpace(3, 0, 2, [0.0, -2 * scale, -scale, 0.0]).distribution([[scale, 0.5, -0.25]])
    weights = np.exp([0.5, -0.25])
    expected = np.array([weights.sum(), *weights]) / (1 + weights.sum())
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=1e-12)
    assert d.mode().tolist() == [[1, 1, 0]]
    assert d.top_sets(3)[0][0].tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert d.log_partition()[0] == pytest.approx(np.log(1 + weights.sum()), rel=1e-12)


def test_huge_equal_biases_leave_the_scores_to_decide():
    # A tilt of 2e32 is nothing beside 4e64, and yet tells the sizes apart.
    space = CardinalitySpace(4, 1, 2).with_bias(np.array([-4e64, -4e64]))
    distribution = space.distribution([[4e64, 1e32, 4e32, -1e65]])
    np.testing.assert_array_equal(distribution.marginals(), [[1.0, 0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(distribution.cardinality_pmf(), [[0.0, 0.0, 1.0, 0.0, 0.0]])
    assert distribution.log_prob([[1, 0, 1, 0]]) == 0.0
    assert np.isfinite(distribution.log_partition()).all()


@pytest.mark.parametrize("scale", [1e5, 1e17, 1e50, 1e99])
def test_an_observed_space_keeps_small_biases_beside_huge_scores(scale):
    space = ObservedSpace([[1, 1, 0], [1, 1, 1], [0, 0, 0]], [0.25, -0.5, 0.0])
    d = space.distribution([[scale, -scale, 0.0]])
    weights = np.exp([0.25, -0.5, 0.0])
    np.testing.assert_allclose(np.exp(d.log_prob([[1, 1, 0]])), weights[:1] / weights.sum(), rtol=1e-13)
    np.testing.assert_allclose(d.marginals()[0, 2], weights[1] / weights.sum(), rtol=1e-13)


@pytest.mark.parametrize("bad", [1e308, -1.1e100, np.inf, np.nan])
def test_a_bias_beyond_the_bound_is_refused_with_its_place(bad):
    with pytest.raises(ValueError, match=r"set_bias must be 2 .* at most 1e\+100 in magnitude; found .* index 1\."):
        ObservedSpace([[1, 0], [0, 1]], [0.0, bad])
    with pytest.raises(ValueError, match=r"size_bias must be 3 .* at most 1e\+100 in magnitude; found .* index 2\."):
        CardinalitySpace(2, 0, 2, [0.0, 0.0, bad])
    with pytest.raises(ValueError, match=r"bias must be 3 .* at most 1e\+100 in magnitude; found .* index 2\."):
        GroupSpace([([0, 1], 0, 2)], 2, bias=[0.0, 0.0, bad])
    with pytest.raises(ValueError, match=r"set_bias must be 1 .* at most 1e\+06 in magnitude; found .* index 0\."):
        OpenSpace(2, 0, 2, [[1, 1]], [bad])
    with pytest.raises(ValueError, match=r"size_bias must be 3 .* at most 1e\+06 in magnitude; found .* index 2\."):
        OpenSpace(2, 0, 2, [[1, 1]], [0.0], [0.0, 0.0, bad])


@pytest.mark.parametrize("space", [OpenSpace(2, 0, 2, [[1, 1]], [1.0]), HierarchySpace([-1, 0])])
def test_scores_beyond_the_bound_of_a_space_are_refused_with_their_place(space):
    assert space.distribution([[1e6, -1e6]]).marginals()[0, 0] == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"at most 1e\+06 in magnitude; found -1000001.0 in row 0, column 1\."):
        space.distribution([[0.0, -1_000_001.0]])
    with pytest.raises(ValueError, match=r"at most 1e\+06 in magnitude"):
        space.distribution([[1.0, -1.0]]).temper(1e-7)


def test_the_groups_of_a_set_keep_their_small_biases_beside_huge_ones():
    # In each of two groups the huge bias cancels the huge score, and a small difference is left.
    space = GroupSpace([([0], 0, 1), ([1], 0, 1)], 2, bias=[0.0, -1e40, 0.0, 1e20])
    d = space.distribution([[1e40, -1e20]])
    np.testing.assert_allclose(d.listed()[1], np.full((1, 4), -np.log(4)), rtol=1e-14)
    assert d.modes_within(2, 2)[1].tolist() == [[1, 1]]
    d = space.distribution([[1e40, -1e20 + 2**20]])  # the second label is then certain
    assert d.modes_within(1, 1)[1].tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "space", [CardinalitySpace(2, 0, 2, [0.0, 50.0, 0.0]), ObservedSpace([[1, 0], [0, 1]], [0.0, 50.0])]
)
def test_a_temperature_that_takes_biases_beyond_the_bound_is_refused(space):
    with pytest.raises(ValueError, match=r"1e\+100 in magnitude"):
        space.distribution([[0.0, 0.0]]).temper(1e-100)


def test_the_expected_exact_match_of_an_improbable_set_is_its_probability():
    d = CardinalitySpace(4, 0, 4).distribution([[-80.0] * 4])
    np.testing.assert_allclose(d.expected("exact_match", [[1, 0, 0, 0]]), np.exp(-80.0), rtol=1e-12)
    np.testing.assert_allclose(d.expected("exact_match", [[1, 1, 0, 0]]), np.exp(-160.0), rtol=1e-12)


def test_limits_that_exclude_the_likely_answers_leave_the_best_of_the_others():
    # Given at least one label, the truth has one label with probability 1 - 1e-35: three of four equally likely labels
    # have F1 = 2/4 with probability 3/4, two 2/3 with probability 1/2, one 1 with probability 1/4.
    d = CardinalitySpace(4, 0, 4).distribution([[-80.0] * 4])
    assert decisions.best(d, "f1", min_labels=1, max_labels=3).sum() == 3
