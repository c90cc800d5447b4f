"""Cardinality and observed spaces: the models they contain, sizes that leave no choice, huge scores, many labels."""

import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import expit, log_softmax, softmax

from mlrh.spaces import CardinalitySpace, ObservedSpace

many = settings(deadline=None, max_examples=150)
RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=3, size=(50, 6))
SIZE_BIAS = np.array([0.3, -1.0, 2.0, 0.5, 0.0, -2.0, 1.0])
SETS = reference.sets_of_sizes(6, 0, 6)[::13]
SET_BIAS = np.array([0.5, -1.0, 2.0, 0.0, 0.25])
TILT_TRAP = [1e5, 500.0, 500.3, 499.0, -1e5]
CONVEX_BIAS = CardinalitySpace(3, 0, 3, [1000.0, 0.0, 0.0, 1000.0])
ANSWERS = ["log_partition", "marginals", "cardinality_pmf", "mode"]
CLASSES = np.array([[0.3, -1.2, 2.0, 0.0], [5.0, 4.0, -7.0, 0.1], [-3.0, -2.0, -1.0, -0.5]])


def space_of(case):
    return CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)


def test_a_score_of_zero_is_left_out_of_the_mode():
    d = CardinalitySpace(4, 0, 4).distribution([[0.0, 1.0, 0.0, -1.0]])
    assert d.mode().tolist() == [[0, 1, 0, 0]]


def test_zero_scores_fill_up_to_the_smallest_size_from_the_lowest_label():
    d = CardinalitySpace(4, 2, 3).distribution(np.zeros((1, 4)))
    assert d.mode().tolist() == [[1, 1, 0, 0]]


def test_mode_and_top_sets_see_a_score_that_drowns_in_the_sum_of_the_others():
    d = CardinalitySpace(2, 0, 2).distribution([[1e5, 1e-12]])
    assert d.mode().tolist() == d.top_sets(1)[0][0].tolist() == [[1, 1]]


def test_one_label_per_set_is_softmax():
    d = CardinalitySpace(4, 1, 1).distribution(CLASSES)
    np.testing.assert_allclose(d.marginals(), softmax(CLASSES, axis=1), rtol=0, atol=1e-14)
    expected = log_softmax(CLASSES, axis=1)[[0, 1, 2], [2, 0, 1]]
    np.testing.assert_allclose(d.log_prob(np.eye(4, dtype=int)[[2, 0, 1]]), expected, rtol=0, atol=1e-14)


def test_all_sizes_without_bias_are_independent_sigmoids():
    d = CardinalitySpace(4, 0, 4).distribution(CLASSES)
    np.testing.assert_allclose(d.marginals(), expit(CLASSES), rtol=0, atol=1e-14)
    Y = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]])
    expected = np.log(np.where(Y, expit(CLASSES), expit(-CLASSES))).sum(axis=1)
    np.testing.assert_allclose(d.log_prob(Y), expected, rtol=0, atol=1e-13)


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


@given(reference.cases(reference.MODERATE))
@many
def test_with_all_sets_of_a_cardinality_space_listed_both_have_the_same_marginals(case):
    sets = case.enumerate().sets
    listed = ObservedSpace(sets, case.bias[sets.sum(axis=1)]).distribution(case.scores[None]).marginals()
    expected = space_of(case).distribution(case.scores[None]).marginals()
    np.testing.assert_allclose(listed, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("score", [-1e5, -0.7, 0.0, 3.0, 1e5])
def test_one_label_is_present_with_the_probability_of_a_sigmoid(score):
    d = CardinalitySpace(1, 0, 1).distribution([[score]])
    assert d.marginals()[0, 0] == pytest.approx(1 / (1 + math.exp(min(-score, 700.0))), abs=1e-15)


def test_one_label_that_must_be_present_has_its_score_as_log_partition():
    assert CardinalitySpace(1, 1, 1).distribution([[-173.2]]).log_partition().tolist() == [-173.2]


def test_with_the_empty_set_alone_every_answer_is_that_set_and_the_log_partition_its_bias():
    d = CardinalitySpace(3, 0, 0, [0.25, 9.0, 9.0, 9.0]).distribution([[1e5, 0.0, -2.0]])
    assert d.log_partition().tolist() == [0.25]
    assert d.marginals().tolist() == d.mode().tolist() == [[0, 0, 0]]
    assert d.sample(7, random_state=0).tolist() == [[[0, 0, 0]] * 7]
    sets, log_probs = d.top_sets(3)
    assert (sets.tolist(), log_probs.tolist()) == ([[[0, 0, 0]] * 3], [[0, -np.inf, -np.inf]])


@pytest.mark.parametrize("space", [CardinalitySpace(4, 4, 4), ObservedSpace([[1, 1, 1, 1]])])
def test_a_single_possible_set_is_certain_whatever_the_scores(space):
    d = space.distribution([[1e5, 3.0, -900.0, -1e5], [0.0, 0.0, 0.0, 0.0]])
    assert d.log_prob([[1, 1, 1, 1]] * 2).tolist() == [0, 0]


@pytest.mark.parametrize(("min_labels", "max_labels"), [(0, 5), (5, 5), (2, 2), (1, 4)])
@pytest.mark.parametrize("scores", [[1e5] * 5, [-1e5] * 5, [1e5, -1e5, 99_999.5, -99_999.25, 0.5], TILT_TRAP])
def test_marginals_hold_at_scores_of_1e5(scores, min_labels, max_labels):
    d = CardinalitySpace(5, min_labels, max_labels).distribution([scores])
    expected = reference.enumerate_sizes(scores, min_labels, max_labels).marginals()
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=0, atol=1e-12)


def test_marginals_hold_where_scores_and_biases_of_1e5_cancel():
    scores, size_bias = [99_999.3, 100_001.9, 99_998.9], [3.9, -99_998.7, -199_999.1, -300_001.5]
    d = CardinalitySpace(3, 0, 3, size_bias).distribution([scores])
    expected = reference.enumerate_sizes(scores, 0, 3, size_bias).marginals()
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=0, atol=1e-12)


def test_scores_of_1e5_that_cancel_within_the_sets_keep_their_small_difference():
    sets, scores = [[1, 1, 0, 0], [0, 0, 1, 1]], [1e5 + 0.1, -1e5, 1e5 - 0.3, -1e5 + 0.2]
    expected = reference.enumerate_sets(scores, sets).marginals()
    np.testing.assert_allclose(ObservedSpace(sets).distribution([scores]).marginals()[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", [-1e5, -40.0, 0.3, 40.0, 1e5])
def test_400_equal_scores_have_the_log_partition_of_binomial_coefficients(score):
    log_terms = [math.log(math.comb(400, j)) + j * score for j in range(3, 12)]
    expected = max(log_terms) + math.log(math.fsum(math.exp(t - max(log_terms)) for t in log_terms))
    d = CardinalitySpace(400, 3, 11).distribution(np.full((1, 400), score))
    assert d.log_partition()[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("max_labels", [5, 100, 400])
def test_400_equal_scores_have_the_sizes_of_a_truncated_binomial(max_labels):
    weights = np.array([float(math.comb(400, j) * 2**j) for j in range(max_labels + 1)])
    d = CardinalitySpace(400, 0, max_labels).distribution(np.full((1, 400), math.log(2)))
    np.testing.assert_allclose(d.cardinality_pmf()[0, : max_labels + 1], weights / weights.sum(), rtol=1e-11, atol=0)


def test_the_marginals_of_400_labels_sum_to_the_expected_size():
    scores = np.random.default_rng(1).normal(scale=5, size=(3, 400))
    d = CardinalitySpace(400, 10, 60).distribution(scores)
    expected = d.cardinality_pmf() @ np.arange(401)
    np.testing.assert_allclose(d.marginals().sum(axis=1), expected, rtol=1e-12)


def test_400_labels_have_the_log_partition_of_a_log_sum_over_listed_sets():
    sets = np.unique(RNG.random((50, 400)) < 0.5, axis=0).astype(int)
    scores = RNG.normal(scale=50, size=400)
    expected = reference.enumerate_sets(scores, sets).log_partition()
    assert ObservedSpace(sets).distribution([scores]).log_partition()[0] == pytest.approx(expected, rel=1e-12)


def test_many_sparse_sets_have_the_marginals_of_a_softmax_over_sets():
    sets = np.unique(RNG.random((300, 120)) < 0.04, axis=0).astype(int)
    scores = RNG.normal(size=(3, 120))
    expected = softmax(scores @ sets.T, axis=1) @ sets
    np.testing.assert_allclose(ObservedSpace(sets).distribution(scores).marginals(), expected, rtol=0, atol=1e-12)


def test_labels_listed_together_are_both_present_more_often_than_by_chance():
    d = ObservedSpace([[0, 0], [1, 0], [1, 1]]).distribution([[0.0, 1.0]])
    assert d.prob([[1, 1]])[0] == pytest.approx(np.e / (2 + np.e), rel=1e-14)
    assert d.prob([[1, 1]])[0] > d.marginals()[0].prod()


def test_the_tilt_trap_has_the_log_partition_of_the_enumeration():
    d = CardinalitySpace(5, 1, 3).distribution([TILT_TRAP])
    expected = reference.enumerate_sizes(TILT_TRAP, 1, 3).log_partition()
    assert d.log_partition()[0] == pytest.approx(expected, rel=1e-15)


def test_a_row_that_defeats_every_tilt_leaves_its_neighbours_as_they_are():
    plain = np.array([[0.3, 0.1, -2.0], [2.0, -1.0, 0.0]])
    mixed = np.vstack([plain[:1], [[1000.0, 0.0, -1000.0]], plain[1:]])
    expected = CONVEX_BIAS.distribution(plain).marginals()
    assert CONVEX_BIAS.distribution(mixed).marginals()[[0, 2]].tolist() == expected.tolist()


def test_a_row_of_huge_scores_leaves_the_precision_of_its_neighbours():
    rows = np.vstack([ROWS, np.full((1, 6), 1e5)])
    expected = [reference.enumerate_sets(row, SETS, SET_BIAS).marginals() for row in ROWS]
    result = ObservedSpace(SETS, SET_BIAS).distribution(rows).marginals()[:-1]
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e2, 1e5, 1e20])
@pytest.mark.parametrize("space", [CardinalitySpace(3, 1, 2), ObservedSpace([[1, 1, 0], [0, 1, 1], [0, 0, 1]])])
def test_huge_float32_scores_do_not_overflow(space, scale):
    d = space.distribution(np.array([[3 * scale, scale, -scale]], np.float32))
    assert d.log_partition()[0] == pytest.approx(4 * scale, rel=1e-6)


def test_integer_scores_count_as_float64():
    d = CardinalitySpace(2, 1, 2).distribution([[2, -1]])
    expected = reference.enumerate_sizes([2.0, -1.0], 1, 2).marginals()
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("answer", ANSWERS)
def test_rows_in_another_order_give_the_same_bits_in_that_order(answer):
    space, order = CardinalitySpace(6, 1, 4, SIZE_BIAS), RNG.permutation(len(ROWS))
    shuffled = getattr(space.distribution(ROWS[order]), answer)()
    assert shuffled.tolist() == getattr(space.distribution(ROWS), answer)()[order].tolist()


@pytest.mark.parametrize("change", [np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=1)[:, ::2], "read-only"])
def test_the_layout_of_scores_in_memory_does_not_matter(change):
    changed = ROWS.copy() if change == "read-only" else change(ROWS)
    changed.setflags(write=change != "read-only")
    space = CardinalitySpace(6, 1, 4)
    assert space.distribution(changed).log_partition().tolist() == space.distribution(ROWS).log_partition().tolist()


def test_biases_of_inadmissible_sizes_do_not_matter():
    other = SIZE_BIAS.copy()
    other[[0, 5, 6]] = 1e4
    expected = CardinalitySpace(6, 1, 4, SIZE_BIAS).distribution(ROWS).marginals()
    assert CardinalitySpace(6, 1, 4, other).distribution(ROWS).marginals().tolist() == expected.tolist()


def test_sets_in_another_order_have_the_same_marginals():
    order = RNG.permutation(len(SETS))
    reordered = ObservedSpace(SETS[order], SET_BIAS[order]).distribution(ROWS).marginals()
    expected = ObservedSpace(SETS, SET_BIAS).distribution(ROWS).marginals()
    np.testing.assert_allclose(reordered, expected, rtol=0, atol=1e-13)


def test_with_bias_gives_the_space_with_those_set_biases():
    d = ObservedSpace(SETS).with_bias(SET_BIAS).distribution(ROWS[:1])
    expected = reference.enumerate_sets(ROWS[0], SETS, SET_BIAS).marginals()
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=0, atol=1e-13)


def test_a_sparse_y_has_the_log_probs_of_the_dense_one():
    d = ObservedSpace(SETS, SET_BIAS).distribution(ROWS[:5])
    assert d.log_prob(sparse.csr_array(SETS)).tolist() == d.log_prob(SETS).tolist()


@pytest.mark.parametrize(
    "make", [lambda sets, bias: CardinalitySpace(6, 1, 4, bias[0]), lambda sets, bias: ObservedSpace(sets, bias[1])]
)
def test_a_space_changes_none_of_its_arrays_and_does_not_change_with_them(make):
    sets, biases = SETS.astype(np.int8), (SIZE_BIAS.copy(), SET_BIAS.copy())
    space = make(sets, biases)
    before = {answer: getattr(space.distribution(ROWS), answer)() for answer in ANSWERS}
    for after, own in zip((sets, *biases), (SETS, SIZE_BIAS, SET_BIAS), strict=True):
        np.testing.assert_array_equal(after, own)
        after[:] = 1 - after
    for answer, expected in before.items():
        np.testing.assert_array_equal(getattr(space.distribution(ROWS), answer)(), expected)
