"""The cardinality space against the sum over all label sets, and the models it contains as special cases."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax

from mlrh.spaces import CardinalitySpace

many = settings(deadline=None, max_examples=150)
SCORES = np.array([[0.3, -1.2, 2.0, 0.0], [5.0, 4.0, -7.0, 0.1], [-3.0, -2.0, -1.0, -0.5]])


def space_of(case):
    return CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)


def distribution(case):
    return space_of(case).distribution(case.scores[None])


def test_a_score_of_zero_is_left_out_of_the_mode():
    d = CardinalitySpace(4, 0, 4).distribution([[0.0, 1.0, 0.0, -1.0]])
    assert d.mode().tolist() == [[0, 1, 0, 0]]


def test_zero_scores_fill_up_to_the_smallest_size_from_the_lowest_label():
    d = CardinalitySpace(4, 2, 3).distribution(np.zeros((1, 4)))
    assert d.mode().tolist() == [[1, 1, 0, 0]]


def test_mode_sees_a_score_that_drowns_in_the_sum_of_the_others():
    d = CardinalitySpace(2, 0, 2).distribution([[1e5, 1e-12]])
    assert d.mode().tolist() == [[1, 1]]


def test_top_sets_see_a_score_that_drowns_in_the_sum_of_the_others():
    sets, _ = CardinalitySpace(2, 0, 2).distribution([[1e5, 1e-12]]).top_sets(1)
    assert sets.tolist() == [[[1, 1]]]


def test_one_label_per_set_is_softmax():
    d = CardinalitySpace(4, 1, 1).distribution(SCORES)
    np.testing.assert_allclose(d.marginals(), softmax(SCORES, axis=1), rtol=0, atol=1e-14)


def test_one_label_per_set_has_the_log_probs_of_softmax():
    d = CardinalitySpace(4, 1, 1).distribution(SCORES)
    one_hot = np.eye(4, dtype=int)[[2, 0, 1]]
    expected = log_softmax(SCORES, axis=1)[[0, 1, 2], [2, 0, 1]]
    np.testing.assert_allclose(d.log_prob(one_hot), expected, rtol=0, atol=1e-14)


def test_all_sizes_without_bias_are_independent_sigmoids():
    d = CardinalitySpace(4, 0, 4).distribution(SCORES)
    np.testing.assert_allclose(d.marginals(), expit(SCORES), rtol=0, atol=1e-14)


def test_all_sizes_without_bias_have_the_log_probs_of_independent_labels():
    Y = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]])
    d = CardinalitySpace(4, 0, 4).distribution(SCORES)
    expected = np.log(np.where(Y, expit(SCORES), expit(-SCORES))).sum(axis=1)
    np.testing.assert_allclose(d.log_prob(Y), expected, rtol=0, atol=1e-13)


@given(reference.cases(reference.MODERATE), st.randoms(use_true_random=False))
@many
def test_marginals_move_with_the_labels_when_these_are_reordered(case, random):
    order = list(range(len(case.scores)))
    random.shuffle(order)
    reordered = space_of(case).distribution(case.scores[None, order]).marginals()
    np.testing.assert_allclose(reordered, distribution(case).marginals()[:, order], rtol=0, atol=1e-13)


@given(reference.cases(reference.MODERATE), st.randoms(use_true_random=False))
@many
def test_log_partition_does_not_depend_on_the_order_of_labels(case, random):
    order = list(range(len(case.scores)))
    random.shuffle(order)
    reordered = space_of(case).distribution(case.scores[None, order]).log_partition()
    np.testing.assert_allclose(reordered, distribution(case).log_partition(), rtol=0, atol=1e-13 * case.scale())


@given(reference.cases(reference.MODERATE), st.floats(-4, 4), st.floats(-4, 4))
@many
def test_a_bias_linear_in_the_size_equals_a_shift_of_all_scores(case, constant, slope):
    n_labels = len(case.scores)
    moved_bias = case.bias + constant + slope * np.arange(n_labels + 1)
    biased = CardinalitySpace(n_labels, case.min_labels, case.max_labels, moved_bias).distribution(case.scores[None])
    shifted = space_of(case).distribution(case.scores[None] + slope)
    np.testing.assert_allclose(biased.marginals(), shifted.marginals(), rtol=0, atol=1e-12)


@given(reference.cases(reference.MODERATE))
@many
def test_with_bias_gives_the_space_with_that_size_bias(case):
    plain = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels)
    d = plain.with_bias(case.bias[case.min_labels : case.max_labels + 1]).distribution(case.scores[None])
    np.testing.assert_allclose(d.marginals()[0], case.enumerate().marginals(), rtol=0, atol=1e-12)


@given(reference.cases())
@many
def test_log_count_is_the_logarithm_of_the_number_of_enumerated_sets(case):
    assert space_of(case).log_count() == pytest.approx(np.log(len(case.enumerate().sets)), abs=1e-12)
