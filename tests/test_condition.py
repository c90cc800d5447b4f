"""The distribution given known labels, against the enumeration of the sets that agree with them."""

from operator import methodcaller

import numpy as np
import pytest
import reference

from mlrh.spaces import CardinalitySpace, ObservedSpace

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
FLOATS = {answer: methodcaller(answer) for answer in ANSWERS if answer != "mode"} | {
    "log_prob": lambda d: d.log_prob(d.mode()),
    "any_of": methodcaller("any_of", [0, 2]),
    "size_tail": methodcaller("size_tail", 2),
}
every_answer = pytest.mark.parametrize("answer", ANSWERS)


def known_of(space, share=0.4):
    """Knowledge about ROWS that some set of the space agrees with: entries of drawn sets, the others hidden."""
    drawn = space.distribution(ROWS * 0).sample(1, random_state=1)[:, 0].astype(float)
    drawn[np.random.default_rng(2).random(drawn.shape) > share] = NAN
    return drawn


@every_space
@every_answer
def test_rows_with_different_known_labels_have_the_answers_they_have_alone(space, answer):
    known = known_of(space)
    together = getattr(space.distribution(ROWS).condition(known), answer)()
    for i in range(len(ROWS)):
        alone = getattr(space.distribution(ROWS[i : i + 1]).condition(known[i : i + 1]), answer)()
        np.testing.assert_allclose(together[i], alone[0], rtol=1e-13, atol=1e-15)


@every_space
def test_knowing_nothing_changes_nothing(space):
    d = space.distribution(ROWS)
    nothing = d.condition(np.full(ROWS.shape, NAN))
    for answer in ANSWERS:
        np.testing.assert_array_equal(getattr(nothing, answer)(), getattr(d, answer)())
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
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_answers_follow_the_labels_into_another_order(space, answer, share):
    order = np.random.default_rng(3).permutation(6)
    moved_space = ObservedSpace(space.sets[:, order], space.set_bias) if hasattr(space, "sets") else space
    known = known_of(space, share)
    result = getattr(moved_space.distribution(ROWS[:, order]).condition(known[:, order]), answer)()
    expected = getattr(space.distribution(ROWS).condition(known), answer)()
    if answer in ("marginals", "mode", "joint_marginals"):
        expected = expected[:, order]
    if answer == "joint_marginals":
        expected = expected[:, :, order]
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("space", [*SPACES, CardinalitySpace(6, 6, 6), CardinalitySpace(6, 0, 0)])
@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("answer", FLOATS)
def test_float32_scores_give_float32_answers_of_float32_accuracy(space, answer, share):
    narrow, known = ROWS.astype(np.float32), known_of(space, share)
    result, expected = (
        FLOATS[answer](space.distribution(rows).condition(known)) for rows in (narrow, narrow.astype(np.float64))
    )
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


@every_space
@every_answer
def test_no_rows_give_no_answers(space, answer):
    d = space.distribution(np.empty((0, 6)))
    assert len(getattr(d, answer)()) == len(getattr(d.condition(np.empty((0, 6))), answer)()) == 0


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


def test_one_known_class_of_a_softmax_excludes_the_others():
    d = CardinalitySpace(6, 1, 1).distribution(ROWS)
    known = np.full(ROWS.shape, NAN)
    known[:, 2] = 1
    np.testing.assert_array_equal(d.condition(known).marginals(), np.tile(np.eye(6)[2], (len(ROWS), 1)))


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


@pytest.mark.parametrize(
    ("known", "message"),
    [
        *((np.full(s, NAN), r"shape \(2, 3\), one row per sample; got \(") for s in [(3,), (2, 2), (1, 3), (2, 3, 1)]),
        *(([[NAN, NAN, 1], [NAN, 0, x]], r"contain only 1 .*row 1, column 2") for x in [2, -1, 0.5, np.inf]),
        *((x, "be a matrix of 1, 0 and NaN") for x in ["present", [["a", "b", "c"]], [[1, 0], [1]]]),
    ],
)
def test_known_labels_that_are_no_matrix_of_1_0_and_nan_of_that_shape_are_one_error(known, message):
    with pytest.raises(ValueError, match=f"known must (have )?{message}"):
        CardinalitySpace(3, 1, 2).distribution(np.zeros((2, 3))).condition(known)


def test_a_heavy_set_that_knowledge_rules_out_costs_the_others_no_digits():
    d = ObservedSpace([[0, 0], [1, 0], [0, 1]], [0.0, 65536.0, -0.01485548818266530]).distribution([[0.0, 0.0]])
    marginal = d.condition([[0, np.nan]]).marginals()[0, 1]
    assert marginal == pytest.approx(1 / (1 + np.exp(0.01485548818266530)), rel=1e-14)


def test_expectations_of_each_row_are_marginals_and_sizes_also_where_labels_are_known():
    known = np.full((5, 6), -1, np.int8)
    known[1, 2], known[2, [0, 3]], known[3], known[4, :5] = 1, [0, 1], [1, 0, 0, 1, 0, 0], 0
    space, sets = SPACES[1], reference.sets_of_sizes(6, 2, 5)
    known[4, 0] = 1
    for asked, rows in ((space, np.full((5, 6), -1)), (space.given(known), known)):
        log_partition, marginals, pmf = asked._row_expectations(ROWS[:5])
        for i, row in enumerate(rows):
            agree = sets[((row == -1) | (row == sets)).all(axis=1)]
            sizes = agree.sum(axis=1)
            weights = np.exp(agree @ ROWS[i] + SIZE_BIAS[sizes])
            probs = weights / weights.sum()
            np.testing.assert_allclose(log_partition[i], np.log(weights.sum()), rtol=1e-13)
            np.testing.assert_allclose(marginals[i], probs @ agree, atol=1e-13)
            np.testing.assert_allclose(pmf[i], np.bincount(sizes, probs, minlength=6), atol=1e-13)
