"""Entropy, pairs, groups, sizes and expected metrics, against the enumeration of all sets and at extremes."""

import json
from math import log
from pathlib import Path

import numpy as np
import pytest
import reference
from hypothesis import settings

from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.spaces._kernels import wide_range

many = settings(deadline=None, max_examples=100)
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
ORACLE = json.loads((Path(__file__).parent / "oracle" / "cardinality.json").read_text())
LISTED = [case for case in ORACLE if "pair_marginals" in case]
every_listed_case = pytest.mark.parametrize("case", LISTED, ids=[case["name"] for case in LISTED])


def space_of(case):
    return CardinalitySpace(len(case["scores"]), case["min_labels"], case["max_labels"], case["size_bias"])


def scaled_answer(kernel, case, shape, *inputs):
    """The answer of a kernel of `scaled` alone."""
    bias = np.zeros(len(case["scores"]) + 1) if case["size_bias"] is None else np.array(case["size_bias"])
    bias[: case["min_labels"]] = -np.inf
    result = np.empty((1, *shape))
    kernel(np.array([case["scores"]]), bias[: case["max_labels"] + 1].copy(), *inputs, np.ones(1, bool), result)
    return result[0]


@every_listed_case
def test_entropy_equals_the_oracle(case):
    # Below 1e-50 the oracle's own digits are not enough for the term of the nearly certain set.
    expected = pytest.approx(case["entropy"], rel=1e-10, abs=1e-50)
    assert space_of(case).distribution([case["scores"]]).entropy()[0] == expected
    assert scaled_answer(wide_range.entropy, case, ()) == expected


@every_listed_case
def test_joint_marginals_equal_the_oracle(case):
    n = len(case["scores"])
    result = space_of(case).distribution([case["scores"]]).joint_marginals()[0]
    np.testing.assert_allclose(result, case["pair_marginals"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        scaled_answer(wide_range.joint_marginals, case, (n, n)), case["pair_marginals"], rtol=0, atol=1e-12
    )


@every_listed_case
def test_any_of_two_labels_is_what_their_joint_marginals_say(case):
    group = np.arange(len(case["scores"])) < 2
    pairs = np.array(case["pair_marginals"])
    expected = np.diag(pairs)[:2].sum() - (pairs[0, 1] if len(pairs) > 1 else 0)
    result = space_of(case).distribution([case["scores"]]).any_of(group)[0]
    assert result == pytest.approx(expected, rel=0, abs=1e-12)
    assert scaled_answer(wide_range.any_of, case, (), group[None]) == pytest.approx(expected, rel=0, abs=1e-12)


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


@pytest.mark.parametrize("space", SPACES[:4], ids=["plain", "size_bias", "full", "empty"])
def test_entropy_is_log_partition_less_the_mean_score_and_bias(space):
    d = space.distribution(ROWS)
    expected = d.log_partition() - (d.marginals() * ROWS).sum(axis=1) - d.cardinality_pmf() @ space.size_bias
    np.testing.assert_allclose(d.entropy(), expected, rtol=0, atol=1e-12)


@every_space
def test_entropy_is_what_a_label_leaves_open_and_its_own(space):
    d = space.distribution(ROWS)
    k = int(np.argmin(np.abs(d.marginals() - 0.5).sum(axis=0)))
    p = d.marginals()[:, k]
    total = np.zeros(len(ROWS))
    for value, prob in ((1, p), (0, 1 - p)):
        known = np.full(ROWS.shape, NAN)
        known[:, k] = value
        if np.isneginf(d.log_prob_of_known(known)).any():
            continue
        total += prob * (d.condition(known).entropy() - d.log_prob_of_known(known))
    np.testing.assert_allclose(d.entropy(), total, rtol=1e-11, atol=1e-12)


@every_space
def test_the_diagonal_of_joint_marginals_is_the_marginals(space):
    d = space.distribution(ROWS)
    diagonal = np.diagonal(d.joint_marginals(), axis1=1, axis2=2)
    np.testing.assert_allclose(diagonal, d.marginals(), rtol=1e-13, atol=0)


@every_space
def test_joint_marginals_sum_over_a_label_to_marginal_times_expected_size(space):
    d = space.distribution(ROWS)
    known = np.full(ROWS.shape, NAN)
    known[:, 2] = 1
    if np.isneginf(d.log_prob_of_known(known)).any():
        assert not d.joint_marginals()[:, 2].any()
        return
    sizes = d.condition(known).cardinality_pmf() @ np.arange(7)
    np.testing.assert_allclose(d.joint_marginals()[:, 2].sum(axis=1), d.marginals()[:, 2] * sizes, rtol=1e-12)


@every_space
def test_joint_marginals_follow_the_labels_into_another_order(space):
    order = np.random.default_rng(3).permutation(6)
    moved = ObservedSpace(space.sets[:, order], space.set_bias) if hasattr(space, "sets") else space
    expected = space.distribution(ROWS).joint_marginals()[:, order][:, :, order]
    np.testing.assert_allclose(moved.distribution(ROWS[:, order]).joint_marginals(), expected, rtol=1e-12, atol=1e-300)


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
def test_some_label_at_all_is_a_size_of_one_or_more(space):
    d = space.distribution(ROWS)
    np.testing.assert_allclose(d.any_of(range(6)), d.size_tail(1), rtol=1e-13, atol=0)


@every_space
def test_a_group_of_one_label_has_its_marginal(space):
    d = space.distribution(ROWS)
    np.testing.assert_allclose(d.any_of([3]), d.marginals()[:, 3], rtol=1e-13, atol=0)


@every_space
def test_an_empty_group_has_probability_0(space):
    assert not space.distribution(ROWS).any_of([]).any()


@every_space
def test_a_mask_is_the_group_of_its_labels(space):
    d = space.distribution(ROWS)
    mask = np.array([True, False, False, True, True, False])
    np.testing.assert_array_equal(d.any_of(mask), d.any_of([4, 0, 3]))


@every_space
def test_any_of_and_none_of_a_group_are_all_there_is(space):
    d = space.distribution(ROWS)
    none = np.full(ROWS.shape, NAN)
    none[:, [1, 4]] = 0
    np.testing.assert_allclose(d.any_of([1, 4]) + np.exp(d.log_prob_of_known(none)), 1, rtol=1e-13)


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
    np.testing.assert_allclose(d.joint_marginals()[0], joint, rtol=0, atol=1e-12)
    assert d.entropy()[0] == pytest.approx(log(4), rel=1e-12)  # four sets are equally probable
    assert d.any_of([1, 2])[0] == pytest.approx(expected.mean(expected.sets[:, 1:].any(axis=1)), rel=1e-12)


@every_space
@pytest.mark.parametrize("question", ["entropy", "joint_marginals"])
def test_float32_scores_give_float32_answers_of_float32_accuracy(space, question):
    narrow = ROWS.astype(np.float32)
    result = getattr(space.distribution(narrow), question)()
    assert result.dtype == np.float32
    expected = getattr(space.distribution(narrow.astype(np.float64)), question)()
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


@every_space
def test_float32_scores_give_probabilities_of_groups_and_sizes_of_float32_accuracy(space):
    narrow, wide = (space.distribution(ROWS.astype(t)) for t in (np.float32, np.float64))
    np.testing.assert_allclose(narrow.any_of([0, 2]), wide.any_of([0, 2]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(narrow.size_tail(2), wide.size_tail(2), rtol=1e-5, atol=1e-6)
    assert (narrow.any_of([0, 2]).dtype, narrow.size_tail(2).dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("group", [[0, 0], [0.5], "ab", [[0, 1]], [True, False], [1, 0, 1, 1, 0, 0]])
def test_a_group_that_is_neither_distinct_indices_nor_a_mask_is_an_error(group):
    with pytest.raises(ValueError, match="group must be distinct label indices or a mask of 6 booleans; got"):
        CardinalitySpace(6, 1, 4).distribution(ROWS).any_of(group)


@pytest.mark.parametrize("group", [[6], [-1, 2]])
def test_a_group_of_labels_that_do_not_exist_is_an_error(group):
    with pytest.raises(ValueError, match=r"must lie in 0\.\.5; got"):
        CardinalitySpace(6, 1, 4).distribution(ROWS).any_of(group)


@pytest.mark.parametrize("m", [1.5, "2", None])
def test_a_size_that_is_no_integer_is_an_error(m):
    with pytest.raises(ValueError, match="m must be an integer"):
        CardinalitySpace(6, 1, 4).distribution(ROWS).size_tail(m)


def test_predictions_of_another_shape_are_an_error_that_states_both():
    with pytest.raises(ValueError, match=r"Y must have shape \(40, 6\)"):
        CardinalitySpace(6, 1, 4).distribution(ROWS).expected("f1", np.zeros((2, 6)))


def test_a_metric_of_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(ValueError, match=r"metric must be one of .*'f1'"):
        CardinalitySpace(6, 1, 4).distribution(ROWS).expected("f2", np.zeros((40, 6)))
