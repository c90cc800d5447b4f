"""The distribution given known labels, against the enumeration of the sets that agree with them."""

import json
from pathlib import Path

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from mlrh.spaces import CardinalitySpace, LabelSetDistribution, ObservedSpace

many = settings(deadline=None, max_examples=100)
NAN = np.nan
RNG = np.random.default_rng(0)
ROWS = RNG.normal(scale=3, size=(60, 6))
SIZE_BIAS = np.array([0.5, -1.0, 0.3, 2.0, -0.7, 1.1, 0.2])
SETS = reference.sets_of_sizes(6, 1, 4)[::2]
SPACES = [
    CardinalitySpace(6, 1, 4),
    CardinalitySpace(6, 2, 5, SIZE_BIAS),
    ObservedSpace(SETS, RNG.normal(size=len(SETS))),
]
every_space = pytest.mark.parametrize("space", SPACES, ids=["plain", "size_bias", "observed"])
ANSWERS = ["log_partition", "marginals", "cardinality_pmf", "mode", "entropy", "joint_marginals"]
every_answer = pytest.mark.parametrize("answer", ANSWERS)
ORACLE = json.loads((Path(__file__).parent / "oracle" / "cardinality.json").read_text())
every_conditioned_case = pytest.mark.parametrize(
    "case", [case for case in ORACLE if "conditioned" in case], ids=lambda case: case["name"]
)


def known_of(space, share=0.4):
    """Knowledge about ROWS that some set of the space agrees with: entries of drawn sets, the others hidden."""
    drawn = space.distribution(ROWS * 0).sample(1, random_state=1)[:, 0].astype(float)
    drawn[np.random.default_rng(2).random(drawn.shape) > share] = NAN
    return drawn


def agreeing(sets, known):
    return ((sets == known) | np.isnan(known)).all(axis=1)


@st.composite
def cardinality_cases(draw, numbers=reference.ANY_SCALE):
    """An unconditioned distribution of one row, knowledge that fits it, and the enumeration of what is left."""
    case = draw(reference.cases(numbers))
    sets = case.enumerate().sets
    known = draw_known(draw, sets)
    left = sets[agreeing(sets, known)]
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    expected = reference.enumerate_sets(case.scores, left, case.bias[left.sum(axis=1)])
    return space.distribution(case.scores[None]), known[None], expected, case.scale()


@st.composite
def observed_cases(draw, numbers=reference.ANY_SCALE):
    scores, sets, set_bias = draw(reference.listed_sets(numbers))
    known = draw_known(draw, sets)
    left = agreeing(sets, known)
    scale = max(1.0, np.abs(scores).sum(), np.abs(set_bias).max())
    expected = reference.enumerate_sets(scores, sets[left], set_bias[left])
    return ObservedSpace(sets, set_bias).distribution(scores[None]), known[None], expected, scale


def draw_known(draw, sets):
    known = sets[draw(st.integers(0, len(sets) - 1))].astype(float)
    hidden = draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    known[hidden] = NAN
    return known


any_case = st.one_of(cardinality_cases(), observed_cases())


@given(any_case)
@many
def test_a_set_is_as_probable_as_its_known_labels_and_the_rest_given_these(case):
    d, known, expected, scale = case
    y = expected.sets[:1]
    product = d.log_prob_of_known(known) + d.condition(known).log_prob(y)
    np.testing.assert_allclose(product, d.log_prob(y), rtol=0, atol=1e-12 * scale)


@given(any_case, st.integers(0, 2**31))
@many
def test_conditioning_twice_equals_conditioning_once(case, seed):
    d, known, _, scale = case
    first = np.where(np.random.default_rng(seed).random(known.shape) < 0.5, known, NAN)
    twice, once = d.condition(first).condition(known), d.condition(known)
    np.testing.assert_array_equal(twice.marginals(), once.marginals())
    np.testing.assert_allclose(
        d.log_prob_of_known(first) + d.condition(first).log_prob_of_known(known),
        d.log_prob_of_known(known),
        rtol=0,
        atol=1e-12 * scale,
    )


@every_conditioned_case
def test_marginals_given_known_labels_equal_the_oracle(case):
    d, known = oracle_distribution(case)
    expected = case["conditioned"]["marginals"]
    np.testing.assert_allclose(d.condition(known).marginals()[0], expected, rtol=0, atol=1e-12)


@every_conditioned_case
def test_log_prob_of_known_labels_equals_the_oracle(case):
    d, known = oracle_distribution(case)
    expected = case["conditioned"]["log_prob_of_known"]
    assert d.log_prob_of_known(known)[0] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def oracle_distribution(case):
    space = CardinalitySpace(len(case["scores"]), case["min_labels"], case["max_labels"], case["size_bias"])
    return space.distribution([case["scores"]]), np.array([case["conditioned"]["known"]], float)


@every_space
@every_answer
def test_rows_with_different_known_labels_have_the_answers_they_have_alone(space, answer):
    known = known_of(space)
    together = getattr(space.distribution(ROWS).condition(known), answer)()
    for i in range(len(ROWS)):
        alone = getattr(space.distribution(ROWS[i : i + 1]).condition(known[i : i + 1]), answer)()
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-13, atol=1e-15)


@every_space
@every_answer
def test_knowing_nothing_changes_nothing(space, answer):
    d = space.distribution(ROWS)
    nothing = getattr(d.condition(np.full(ROWS.shape, NAN)), answer)()
    np.testing.assert_array_equal(nothing, getattr(d, answer)())


@every_space
def test_samples_given_nothing_are_those_of_the_distribution_itself(space):
    d = space.distribution(ROWS)
    nothing = d.condition(np.full(ROWS.shape, NAN))
    np.testing.assert_array_equal(nothing.sample(3, random_state=0), d.sample(3, random_state=0))


@every_space
def test_knowing_all_labels_leaves_one_set_of_probability_one(space):
    d = space.distribution(ROWS)
    Y = d.sample(1, random_state=0)[:, 0]
    certain = d.condition(Y)
    assert certain.prob(Y).tolist() == [1.0] * len(Y)
    assert certain.entropy().tolist() == [0.0] * len(Y)
    for answer in ("mode", "marginals"):
        np.testing.assert_array_equal(getattr(certain, answer)(), Y)
    np.testing.assert_array_equal(certain.sample(2, random_state=0)[:, 1], Y)
    np.testing.assert_array_equal(certain.top_sets(2)[0], np.stack([Y, 0 * Y], axis=1))
    np.testing.assert_array_equal(certain.joint_marginals(), Y[:, :, None] * Y[:, None, :])
    np.testing.assert_allclose(d.log_prob_of_known(Y), d.log_prob(Y), rtol=1e-13, atol=1e-15)


@every_space
def test_a_set_that_contradicts_what_is_known_has_probability_0(space):
    d = space.distribution(ROWS)
    Y = d.mode()
    known = np.full(ROWS.shape, NAN)
    known[:, 0] = Y[:, 0]
    Y[:, 0] = 1 - Y[:, 0]
    assert d.condition(known).prob(Y).tolist() == [0.0] * len(Y)


@every_space
def test_marginals_given_one_label_are_joint_marginals_over_its_marginal(space):
    d = space.distribution(ROWS)
    joint, marginals = d.joint_marginals(), d.marginals()
    for k in range(6):
        known = np.full(ROWS.shape, NAN)
        known[:, k] = 1
        expected = joint[:, k] / marginals[:, k, None]
        np.testing.assert_allclose(d.condition(known).marginals(), expected, rtol=1e-12, atol=0)


@every_space
@every_answer
def test_answers_follow_the_labels_into_another_order(space, answer):
    order = np.random.default_rng(3).permutation(6)
    moved_space = ObservedSpace(space.sets[:, order], space.set_bias) if hasattr(space, "sets") else space
    known = known_of(space)
    result = getattr(moved_space.distribution(ROWS[:, order]).condition(known[:, order]), answer)()
    expected = getattr(space.distribution(ROWS).condition(known), answer)()
    if answer in ("marginals", "mode", "joint_marginals"):
        expected = expected[:, order]
    if answer == "joint_marginals":
        expected = expected[:, :, order]
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)


@every_space
def test_samples_given_known_labels_have_the_conditioned_marginals(space):
    d = space.distribution(ROWS[:3]).condition(known_of(space)[:3])
    means = d.sample(20_000, random_state=0).mean(axis=1)
    np.testing.assert_allclose(means, d.marginals(), rtol=0, atol=0.02)


@every_space
@pytest.mark.parametrize("answer", [*ANSWERS[:3], "entropy", "joint_marginals"])
def test_float32_scores_give_float32_answers_of_float32_accuracy(space, answer):
    narrow, known = ROWS.astype(np.float32), known_of(space)
    result = getattr(space.distribution(narrow).condition(known), answer)()
    expected = getattr(space.distribution(narrow.astype(np.float64)).condition(known), answer)()
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


@every_space
@every_answer
def test_no_rows_give_no_answers(space, answer):
    d = space.distribution(np.empty((0, 6))).condition(np.empty((0, 6)))
    assert len(getattr(d, answer)()) == 0


@every_space
def test_what_is_known_stays_as_it_was_and_may_change_later(space):
    known = known_of(space)
    given_known = known.copy()
    d = space.distribution(ROWS).condition(known)
    before = d.marginals()
    np.testing.assert_array_equal(known, given_known)
    known[:] = 0
    np.testing.assert_array_equal(d.marginals(), before)


@every_space
def test_masked_entries_and_none_count_as_unknown(space):
    known = known_of(space)
    d = space.distribution(ROWS)
    expected = d.condition(known).marginals()
    masked = np.ma.masked_array(np.nan_to_num(known).astype(int), mask=np.isnan(known))
    listed = [[None if np.isnan(v) else int(v) for v in row] for row in known]
    np.testing.assert_array_equal(d.condition(masked).marginals(), expected)
    np.testing.assert_array_equal(d.condition(listed).marginals(), expected)


def test_a_known_label_of_1e5_leaves_the_small_scores_of_the_others_exact():
    scores, known = [1e5, 0.3, -0.2, -1e5], [[1, NAN, NAN, 1]]
    expected = reference.enumerate_sets([0.3, -0.2], [[0, 0], [1, 0], [0, 1]]).marginals()
    result = CardinalitySpace(4, 1, 3).distribution([scores]).condition(known).marginals()[0]
    np.testing.assert_allclose(result, [1, *expected, 1], rtol=1e-14)


def test_knowledge_of_probability_exp_minus_1e5_is_no_contradiction():
    d = CardinalitySpace(3, 0, 3).distribution([[1e5, 0.5, 1.0]])
    known = [[0, NAN, NAN]]
    assert d.log_prob_of_known(known)[0] == pytest.approx(-1e5, rel=1e-14)
    np.testing.assert_allclose(d.condition(known).marginals()[0, 1:], 1 / (1 + np.exp([-0.5, -1.0])), rtol=1e-14)


def test_the_convex_bias_given_one_label_equals_the_enumeration():
    scores, size_bias = [1000.0, 0.0, -1000.0], [1000.0, 0.0, 0.0, 1000.0]
    d = CardinalitySpace(3, 0, 3, size_bias).distribution([scores]).condition([[NAN, 1, NAN]])
    np.testing.assert_allclose(d.marginals(), [[1, 1, 0.5]], rtol=0, atol=1e-12)


def test_without_limits_of_size_known_labels_say_nothing_about_the_others():
    d = CardinalitySpace(6, 0, 6).distribution(ROWS)
    known = np.where(np.random.default_rng(4).random(ROWS.shape) < 0.5, 1.0, NAN)
    expected = np.where(np.isnan(known), 1 / (1 + np.exp(-ROWS)), 1.0)
    np.testing.assert_allclose(d.condition(known).marginals(), expected, rtol=1e-13)


def test_one_known_class_of_a_softmax_excludes_the_others():
    d = CardinalitySpace(6, 1, 1).distribution(ROWS)
    known = np.full(ROWS.shape, NAN)
    known[:, 2] = 1
    np.testing.assert_array_equal(d.condition(known).marginals(), np.tile(np.eye(6)[2], (len(ROWS), 1)))


def test_a_condition_gives_a_distribution_of_the_same_type():
    assert isinstance(CardinalitySpace(2, 0, 2).distribution([[0, 0]]).condition([[1, NAN]]), LabelSetDistribution)


@pytest.mark.parametrize(
    ("space", "row"),
    [
        (CardinalitySpace(3, 1, 2), [1, 1, 1]),
        (CardinalitySpace(3, 1, 2), [0, 0, 0]),
        (CardinalitySpace(3, 2, 2), [0, NAN, 0]),
        (ObservedSpace([[1, 0, 0], [0, 1, 1]]), [1, 1, NAN]),
    ],
)
def test_knowledge_that_no_set_fits_is_an_error_that_names_the_row(space, row):
    known = np.full((3, 3), NAN)
    known[1] = row
    d = space.distribution(np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"at least one possible set; row 1 \(labels .* absent\) leaves none"):
        d.condition(known)
    assert d.log_prob_of_known(known).tolist() == [0.0, -np.inf, 0.0]


@pytest.mark.parametrize("space", [CardinalitySpace(3, 1, 2), ObservedSpace([[1, 0, 0], [0, 1, 1]])])
def test_knowledge_that_contradicts_earlier_knowledge_is_an_error_that_names_the_row(space):
    d = space.distribution(np.zeros((2, 3))).condition([[NAN, NAN, NAN], [1, NAN, NAN]])
    more = [[NAN, NAN, NAN], [0, NAN, NAN]]
    with pytest.raises(ValueError, match="row 1"):
        d.condition(more)
    assert d.log_prob_of_known(more).tolist() == [0.0, -np.inf]


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 3), (2, 3, 1)])
def test_known_labels_of_another_shape_are_an_error_that_states_both(shape):
    d = CardinalitySpace(3, 1, 2).distribution(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"known must have shape \(2, 3\), one row per sample; got \("):
        d.condition(np.full(shape, NAN))


@pytest.mark.parametrize("bad", [2, -1, 0.5, np.inf])
def test_known_labels_of_other_numbers_are_an_error_that_names_row_and_column(bad):
    d = CardinalitySpace(3, 1, 2).distribution(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"known must contain only 1 .*row 1, column 2"):
        d.condition([[NAN, NAN, 1], [NAN, 0, bad]])


@pytest.mark.parametrize("bad", ["present", [["a", "b", "c"]], [[1, 0], [1]]])
def test_known_labels_that_are_no_numbers_are_one_error(bad):
    with pytest.raises(ValueError, match="known must be a matrix of 1, 0 and NaN"):
        CardinalitySpace(3, 1, 2).distribution(np.zeros((1, 3))).condition(bad)


def test_a_heavy_set_that_knowledge_rules_out_costs_the_others_no_digits():
    d = ObservedSpace([[0, 0], [1, 0], [0, 1]], [0.0, 65536.0, -0.01485548818266530]).distribution([[0.0, 0.0]])
    marginal = d.condition([[0, np.nan]]).marginals()[0, 1]
    assert marginal == pytest.approx(1 / (1 + np.exp(0.01485548818266530)), rel=1e-14)
