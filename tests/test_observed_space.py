"""The observed space against the sum over its listed sets, and at its edges."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from scipy import sparse

from mlrh.spaces import CardinalitySpace, ObservedSpace

many = settings(deadline=None, max_examples=150)
RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=3, size=(40, 5))
SETS = np.array([[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]])
SET_BIAS = np.array([0.5, -1.0, 2.0, 0.0, 0.25])
ANSWERS = ["log_partition", "marginals", "cardinality_pmf"]


@given(reference.cases(reference.MODERATE))
@many
def test_with_all_sets_of_a_cardinality_space_listed_both_have_the_same_marginals(case):
    sets = case.enumerate().sets
    listed = ObservedSpace(sets, case.bias[sets.sum(axis=1)])
    counted = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    expected = counted.distribution(case.scores[None]).marginals()
    np.testing.assert_allclose(listed.distribution(case.scores[None]).marginals(), expected, rtol=0, atol=1e-13)


def test_labels_listed_together_are_both_present_more_often_than_by_chance():
    d = ObservedSpace([[0, 0], [1, 0], [1, 1]]).distribution([[0.0, 1.0]])
    together = np.exp(d.log_prob([[1, 1]])[0])
    assert together == pytest.approx(np.e / (2 + np.e), rel=1e-14)
    assert together > d.marginals()[0].prod()


def test_a_single_set_is_certain_whatever_the_scores():
    d = ObservedSpace([[1, 0, 1]]).distribution([[-1e5, 3.0, 1e5], [0.0, 0.0, 0.0]])
    assert d.log_prob([[1, 0, 1], [1, 0, 1]]).tolist() == [0, 0]


def test_scores_of_1e5_that_cancel_within_the_sets_keep_their_small_difference():
    sets = [[1, 1, 0, 0], [0, 0, 1, 1]]
    scores = [1e5 + 0.1, -1e5, 1e5 - 0.3, -1e5 + 0.2]
    expected = reference.enumerate_sets(scores, sets).marginals()
    np.testing.assert_allclose(ObservedSpace(sets).distribution([scores]).marginals()[0], expected, rtol=0, atol=1e-12)


def test_many_sparse_sets_have_the_marginals_of_a_softmax_over_sets():
    sets = np.unique(RNG.random((300, 120)) < 0.04, axis=0).astype(int)
    scores = RNG.normal(size=(3, 120))
    weights = np.exp(scores @ sets.T)
    expected = weights @ sets / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(ObservedSpace(sets).distribution(scores).marginals(), expected, rtol=0, atol=1e-12)


def test_400_labels_have_the_log_partition_of_a_log_sum_over_sets():
    sets = np.unique(RNG.random((50, 400)) < 0.5, axis=0).astype(int)
    scores = RNG.normal(scale=50, size=400)
    expected = reference.enumerate_sets(scores, sets).log_partition()
    assert ObservedSpace(sets).distribution([scores]).log_partition()[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("answer", ANSWERS)
def test_float32_scores_give_float32_answers_of_float32_accuracy(answer):
    space, narrow = ObservedSpace(SETS, SET_BIAS), ROWS.astype(np.float32)
    result = getattr(space.distribution(narrow), answer)()
    expected = getattr(space.distribution(narrow.astype(np.float64)), answer)()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e2, 1e5, 1e20])
def test_huge_float32_scores_do_not_overflow(scale):
    scores = np.array([[3 * scale, scale, -scale]], np.float32)
    d = ObservedSpace([[1, 1, 0], [0, 1, 1], [0, 0, 1]]).distribution(scores)
    assert d.log_partition()[0] == pytest.approx(4 * scale, rel=1e-6)


@pytest.mark.parametrize("answer", ANSWERS)
def test_rows_in_another_order_give_the_same_answers_in_that_order(answer):
    space, order = ObservedSpace(SETS, SET_BIAS), RNG.permutation(len(ROWS))
    shuffled = getattr(space.distribution(ROWS[order]), answer)()
    np.testing.assert_allclose(shuffled, getattr(space.distribution(ROWS), answer)()[order], rtol=0, atol=1e-13)


def test_a_row_of_huge_scores_leaves_the_precision_of_its_neighbours():
    rows = np.vstack([ROWS, np.full((1, 5), 1e5)])
    expected = [reference.enumerate_sets(row, SETS, SET_BIAS).marginals() for row in ROWS]
    result = ObservedSpace(SETS, SET_BIAS).distribution(rows).marginals()[:-1]
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)


def test_marginals_move_with_the_labels_when_these_are_reordered():
    order = RNG.permutation(5)
    reordered = ObservedSpace(SETS[:, order], SET_BIAS).distribution(ROWS[:, order]).marginals()
    expected = ObservedSpace(SETS, SET_BIAS).distribution(ROWS).marginals()[:, order]
    np.testing.assert_allclose(reordered, expected, rtol=0, atol=1e-13)


def test_sets_in_another_order_have_the_same_marginals():
    order = RNG.permutation(len(SETS))
    reordered = ObservedSpace(SETS[order], SET_BIAS[order]).distribution(ROWS).marginals()
    expected = ObservedSpace(SETS, SET_BIAS).distribution(ROWS).marginals()
    np.testing.assert_allclose(reordered, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("answer", [*ANSWERS, "mode"])
def test_answers_leave_scores_sets_and_bias_as_they_were(answer):
    scores, sets, set_bias = ROWS.copy(), SETS.copy(), SET_BIAS.copy()
    getattr(ObservedSpace(sets, set_bias).distribution(scores), answer)()
    assert (scores.tolist(), sets.tolist(), set_bias.tolist()) == (ROWS.tolist(), SETS.tolist(), SET_BIAS.tolist())


@pytest.mark.parametrize("answer", [*ANSWERS, "mode"])
def test_no_rows_give_no_answers(answer):
    assert len(getattr(ObservedSpace(SETS).distribution(np.empty((0, 5))), answer)()) == 0


def test_a_sparse_y_has_the_log_probs_of_the_dense_one():
    d = ObservedSpace(SETS, SET_BIAS).distribution(ROWS[:5])
    assert d.log_prob(sparse.csr_array(SETS)).tolist() == d.log_prob(SETS).tolist()


def test_with_bias_gives_the_space_with_those_set_biases():
    d = ObservedSpace(SETS).with_bias(SET_BIAS).distribution(ROWS[:1])
    expected = reference.enumerate_sets(ROWS[0], SETS, SET_BIAS).marginals()
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=0, atol=1e-13)


def test_a_space_keeps_its_biases_when_the_array_they_came_from_changes():
    set_bias = SET_BIAS.copy()
    space = ObservedSpace(SETS, set_bias)
    set_bias[0] += 1
    expected = reference.enumerate_sets(ROWS[0], SETS, SET_BIAS).marginals()
    np.testing.assert_allclose(space.distribution(ROWS[:1]).marginals()[0], expected, rtol=0, atol=1e-13)


def test_a_space_keeps_its_sets_when_the_array_they_came_from_changes():
    sets = SETS.astype(np.int8)
    space = ObservedSpace(sets)
    sets[0, 0] = 0
    assert space.sets.tolist() == SETS.tolist()
