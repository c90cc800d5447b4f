"""Samples of both spaces: reproducible, inside the space, and as frequent as their probabilities say."""

import numpy as np
import pytest
import reference
from scipy import stats

from mlrh.spaces import CardinalitySpace, ObservedSpace

N = 40_000
SCORES = np.array([0.8, -0.5, 0.1, -1.5])
SETS = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]])
SET_BIAS = np.array([0.5, 0.0, -1.0, 1.0])
SIZE_BIAS = np.array([0.0, 1.0, -0.5, 0.4, 0.0])
CASES = {
    "cardinality": (CardinalitySpace(4, 1, 3), reference.enumerate_sizes(SCORES, 1, 3)),
    "cardinality-biased": (CardinalitySpace(4, 0, 4, SIZE_BIAS), reference.enumerate_sizes(SCORES, 0, 4, SIZE_BIAS)),
    "cardinality-one-size": (CardinalitySpace(4, 2, 2), reference.enumerate_sizes(SCORES, 2, 2)),
    "observed": (ObservedSpace(SETS, SET_BIAS), reference.enumerate_sets(SCORES, SETS, SET_BIAS)),
}
every_case = pytest.mark.parametrize(("space", "enumeration"), CASES.values(), ids=CASES.keys())


def counts_of(sets, samples):
    """How often each set was drawn; a sample that is none of them is an error."""
    index = {tuple(labels): s for s, labels in enumerate(sets.tolist())}
    return np.bincount([index[tuple(labels)] for labels in samples.tolist()], minlength=len(sets))


@every_case
def test_every_set_is_drawn_as_often_as_its_probability_says(space, enumeration):
    samples = space.distribution([SCORES]).sample(N, random_state=0)[0]
    expected = N * np.exp(enumeration.log_probs())
    assert stats.chisquare(counts_of(enumeration.sets, samples), expected).pvalue > 1e-4


@every_case
def test_the_same_random_state_draws_the_same_sets_and_another_draws_others(space, enumeration):
    d = space.distribution(np.tile(SCORES, (3, 1)))
    np.testing.assert_array_equal(d.sample(50, random_state=7), d.sample(50, random_state=7))
    assert (d.sample(50, random_state=7) != d.sample(50, random_state=8)).any()


@every_case
def test_equal_rows_are_drawn_independently(space, enumeration):
    samples = space.distribution(np.tile(SCORES, (2, 1))).sample(N, random_state=3)
    both = np.mean((samples[0] == samples[1]).all(axis=1))
    by_chance = np.exp(2 * enumeration.log_probs()).sum()
    assert abs(both - by_chance) < 5 * np.sqrt(by_chance * (1 - by_chance) / N)


def test_rows_of_different_scores_have_marginals_of_their_own():
    rows = np.array([[3.0, -3.0, 0.0], [-3.0, 3.0, 1.0]])
    samples = CardinalitySpace(3, 1, 2).distribution(rows).sample(N, random_state=4)
    expected = np.array([reference.enumerate_sizes(row, 1, 2).marginals() for row in rows])
    assert (np.abs(samples.mean(axis=1) - expected) < 5 * np.sqrt(expected * (1 - expected) / N)).all()


def test_scaled_draws_have_the_set_frequencies_of_the_enumeration():
    scores, size_bias = np.array([1000.0, 0.4, -0.3, -1000.0]), [1000.0, 0.0, 0.5, 0.0, 1000.0]
    enumeration = reference.enumerate_sizes(scores, 0, 4, size_bias)
    likely = enumeration.log_probs() > -20
    samples = CardinalitySpace(4, 0, 4, size_bias).distribution([scores]).sample(N, random_state=5)[0]
    expected = N * np.exp(enumeration.log_probs()[likely])
    assert stats.chisquare(counts_of(enumeration.sets[likely], samples), expected).pvalue > 1e-4


def test_400_labels_are_drawn_with_sizes_within_five_sigma_of_the_pmf():
    d = CardinalitySpace(400, 3, 30).distribution(np.random.default_rng(0).normal(-3, 2, size=(1, 400)))
    sizes = d.sample(2000, random_state=0)[0].sum(axis=1)
    mean = d.cardinality_pmf()[0] @ np.arange(401)
    variance = d.cardinality_pmf()[0] @ (np.arange(401) - mean) ** 2
    assert abs(sizes.mean() - mean) < 5 * np.sqrt(variance / 2000)
