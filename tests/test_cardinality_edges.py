"""The cardinality space at its edges: sizes that leave no choice, huge scores, many labels, float32, row order."""

import math

import numpy as np
import pytest
import reference

from mlrh.spaces import CardinalitySpace

RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=3, size=(50, 6))
SIZE_BIAS = np.array([0.3, -1.0, 2.0, 0.5, 0.0, -2.0, 1.0])
TILT_TRAP = [1e5, 500.0, 500.3, 499.0, -1e5]
CONVEX_BIAS = CardinalitySpace(3, 0, 3, [1000.0, 0.0, 0.0, 1000.0])
ANSWERS = ["log_partition", "marginals", "cardinality_pmf"]


@pytest.mark.parametrize("score", [-1e5, -0.7, 0.0, 3.0, 1e5])
def test_one_label_is_present_with_the_probability_of_a_sigmoid(score):
    d = CardinalitySpace(1, 0, 1).distribution([[score]])
    assert d.marginals()[0, 0] == pytest.approx(1 / (1 + math.exp(min(-score, 700.0))), abs=1e-15)


def test_one_label_that_must_be_present_has_its_score_as_log_partition():
    assert CardinalitySpace(1, 1, 1).distribution([[-173.2]]).log_partition().tolist() == [-173.2]


def test_with_the_empty_set_alone_the_log_partition_is_its_bias():
    d = CardinalitySpace(3, 0, 0, [0.25, 9.0, 9.0, 9.0]).distribution([[1e5, 0.0, -2.0]])
    assert d.log_partition().tolist() == [0.25]


@pytest.mark.parametrize("answer", ["marginals", "mode"])
def test_with_the_empty_set_alone_no_label_is_present(answer):
    d = CardinalitySpace(3, 0, 0).distribution([[1e5, 0.0, -2.0]])
    assert getattr(d, answer)().tolist() == [[0, 0, 0]]


def test_with_the_empty_set_alone_every_sample_is_empty():
    d = CardinalitySpace(3, 0, 0).distribution([[1e5, 0.0, -2.0]])
    assert d.sample(7, random_state=0).tolist() == [[[0, 0, 0]] * 7]


def test_with_the_empty_set_alone_top_sets_are_that_and_padding():
    sets, log_probs = CardinalitySpace(3, 0, 0).distribution([[1e5, 0.0, -2.0]]).top_sets(3)
    assert (sets.tolist(), log_probs.tolist()) == ([[[0, 0, 0]] * 3], [[0, -np.inf, -np.inf]])


def test_when_every_label_must_be_present_the_full_set_is_certain():
    d = CardinalitySpace(4, 4, 4).distribution([[1e5, 3.0, -900.0, -1e5]])
    assert d.log_prob([[1, 1, 1, 1]]).tolist() == [0]


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


def test_the_tilt_trap_has_the_log_partition_of_the_enumeration():
    d = CardinalitySpace(5, 1, 3).distribution([TILT_TRAP])
    expected = reference.enumerate_sizes(TILT_TRAP, 1, 3).log_partition()
    assert d.log_partition()[0] == pytest.approx(expected, rel=1e-15)


def test_the_tilt_trap_is_not_lost_at_100000():
    d = CardinalitySpace(5, 1, 3).distribution([TILT_TRAP])
    assert d.log_partition()[0] == pytest.approx(101000.79, abs=0.01)


def test_the_convex_bias_has_marginals_of_quarters():
    d = CONVEX_BIAS.distribution([[1000.0, 0.0, -1000.0]])
    np.testing.assert_allclose(d.marginals(), [[0.75, 0.5, 0.25]], rtol=0, atol=1e-12)


def test_a_row_that_defeats_every_tilt_leaves_its_neighbours_as_they_are():
    plain = np.array([[0.3, 0.1, -2.0], [2.0, -1.0, 0.0]])
    mixed = np.vstack([plain[:1], [[1000.0, 0.0, -1000.0]], plain[1:]])
    expected = CONVEX_BIAS.distribution(plain).marginals()
    assert CONVEX_BIAS.distribution(mixed).marginals()[[0, 2]].tolist() == expected.tolist()


@pytest.mark.parametrize("answer", ANSWERS)
def test_float32_scores_give_float32_answers_of_float32_accuracy(answer):
    space, narrow = CardinalitySpace(6, 1, 4, SIZE_BIAS), ROWS.astype(np.float32)
    result = getattr(space.distribution(narrow), answer)()
    expected = getattr(space.distribution(narrow.astype(np.float64)), answer)()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_float32_scores_give_float32_log_probs_of_float32_accuracy():
    space, narrow = CardinalitySpace(6, 1, 4), ROWS.astype(np.float32)
    Y = space.distribution(narrow).mode()
    result = space.distribution(narrow).log_prob(Y)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, space.distribution(narrow.astype(np.float64)).log_prob(Y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e2, 1e5, 1e20])
def test_huge_float32_scores_do_not_overflow(scale):
    scores = np.array([[3 * scale, scale, -scale]], np.float32)
    d = CardinalitySpace(3, 1, 2).distribution(scores)
    assert d.log_partition()[0] == pytest.approx(4 * scale, rel=1e-6)


def test_integer_scores_count_as_float64():
    d = CardinalitySpace(2, 1, 2).distribution([[2, -1]])
    expected = reference.enumerate_sizes([2.0, -1.0], 1, 2).marginals()
    np.testing.assert_allclose(d.marginals()[0], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("answer", [*ANSWERS, "mode"])
def test_rows_in_another_order_give_the_same_answers_in_that_order(answer):
    space, order = CardinalitySpace(6, 1, 4, SIZE_BIAS), RNG.permutation(len(ROWS))
    shuffled = getattr(space.distribution(ROWS[order]), answer)()
    assert shuffled.tolist() == getattr(space.distribution(ROWS), answer)()[order].tolist()


@pytest.mark.parametrize("answer", [*ANSWERS, "mode"])
def test_answers_leave_scores_and_size_bias_as_they_were(answer):
    scores, size_bias = ROWS.copy(), SIZE_BIAS.copy()
    getattr(CardinalitySpace(6, 1, 4, size_bias).distribution(scores), answer)()
    assert (scores.tolist(), size_bias.tolist()) == (ROWS.tolist(), SIZE_BIAS.tolist())


@pytest.mark.parametrize("change", [np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=1)[:, ::2], "read-only"])
def test_the_layout_of_scores_in_memory_does_not_matter(change):
    changed = ROWS.copy() if change == "read-only" else change(ROWS)
    changed.setflags(write=change != "read-only")
    space = CardinalitySpace(6, 1, 4)
    assert space.distribution(changed).log_partition().tolist() == space.distribution(ROWS).log_partition().tolist()


@pytest.mark.parametrize("answer", [*ANSWERS, "mode"])
def test_no_rows_give_no_answers(answer):
    assert len(getattr(CardinalitySpace(6, 1, 4).distribution(np.empty((0, 6))), answer)()) == 0


def test_biases_of_inadmissible_sizes_do_not_matter():
    other = SIZE_BIAS.copy()
    other[[0, 5, 6]] = 1e4
    expected = CardinalitySpace(6, 1, 4, SIZE_BIAS).distribution(ROWS).marginals()
    assert CardinalitySpace(6, 1, 4, other).distribution(ROWS).marginals().tolist() == expected.tolist()


def test_a_space_keeps_its_biases_when_the_array_they_came_from_changes():
    size_bias = SIZE_BIAS.copy()
    space = CardinalitySpace(6, 0, 6, size_bias)
    size_bias += 1
    assert space.size_bias.tolist() == SIZE_BIAS.tolist()
