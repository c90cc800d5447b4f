"""What label spaces refuse, with a message that says where; and the sets that have probability 0."""

import numpy as np
import pytest

from mlrh.spaces import CardinalitySpace, ObservedSpace

SPACES = [CardinalitySpace(3, 1, 2), ObservedSpace([[1, 0, 0], [0, 1, 1]])]
both_spaces = pytest.mark.parametrize("space", SPACES, ids=["cardinality", "observed"])
both_spaces_with_their_number_of_sets = pytest.mark.parametrize(
    ("space", "n_sets"), [(SPACES[0], 6), (SPACES[1], 2)], ids=["cardinality", "observed"]
)


@both_spaces
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_score_that_is_not_finite_is_an_error_that_names_its_row_and_column(space, bad, dtype):
    scores = np.zeros((4, 3), dtype)
    scores[2, 1] = bad
    with pytest.raises(ValueError, match=r"finite.*row 2, column 1"):
        space.distribution(scores)


@both_spaces
def test_opposite_infinities_are_an_error_that_names_the_first(space):
    with pytest.raises(ValueError, match=r"finite.*row 0, column 1"):
        space.distribution([[0.0, np.inf, -np.inf]])


@both_spaces
def test_finite_scores_whose_sum_overflows_are_accepted(space):
    scores = np.array([[3e38, 3e38, -1e38]], np.float32)
    np.testing.assert_array_equal(space.distribution(scores).scores, scores)


@both_spaces
@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 2), (1, 2, 3), ()])
def test_scores_of_another_shape_are_an_error_that_states_the_shape(space, shape):
    with pytest.raises(ValueError, match=r"scores must have shape \(n_samples, 3\); got \("):
        space.distribution(np.zeros(shape))


@pytest.mark.parametrize(
    ("min_labels", "max_labels", "n_labels"), [(-1, 2, 3), (2, 1, 3), (0, 4, 3), (4, 4, 3), (1, -1, 3)]
)
def test_sizes_out_of_order_are_an_error_that_states_all_three(min_labels, max_labels, n_labels):
    with pytest.raises(ValueError, match=f"min_labels={min_labels}, max_labels={max_labels}, n_labels={n_labels}"):
        CardinalitySpace(n_labels, min_labels, max_labels)


@pytest.mark.parametrize(
    "size_bias",
    [[0.0] * 3, [0.0] * 5, [[0.0] * 4], 0.0, [0, np.nan, 0, 0], [0, 0, np.inf, 0], [-np.inf, 0, 0, 0]],
)
def test_a_size_bias_that_is_not_one_finite_number_per_size_is_an_error(size_bias):
    with pytest.raises(ValueError, match="size_bias must be 4 finite numbers"):
        CardinalitySpace(3, 1, 2, size_bias)


@pytest.mark.parametrize("set_bias", [[0.0], [0.0] * 3, [[0.0, 0.0]], 0.0, [np.nan, 0.0], [0.0, -np.inf]])
def test_a_set_bias_that_is_not_one_finite_number_per_set_is_an_error(set_bias):
    with pytest.raises(ValueError, match="set_bias must be 2 finite numbers"):
        ObservedSpace([[1, 0, 0], [0, 1, 1]], set_bias)


def test_a_set_listed_twice_is_an_error():
    with pytest.raises(ValueError, match="sets must be distinct"):
        ObservedSpace([[1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize("sets", [[1, 0, 1], np.empty((0, 3)), 1])
def test_sets_that_are_not_a_matrix_with_rows_are_an_error(sets):
    with pytest.raises(ValueError, match=r"sets must (be a matrix with a column per label|have a row for each)"):
        ObservedSpace(sets)


@pytest.mark.parametrize("bad", [2, -1, 0.5, np.nan])
def test_listed_sets_of_other_numbers_than_0_and_1_are_an_error_that_names_row_and_column(bad):
    with pytest.raises(ValueError, match=r"sets must contain only 0 and 1.*row 1, column 2"):
        ObservedSpace([[1, 0, 0], [0, 1, bad]])


@both_spaces
@pytest.mark.parametrize("bad", [2, -1, 0.5, np.nan])
def test_a_y_of_other_numbers_than_0_and_1_is_an_error_that_names_row_and_column(space, bad):
    d = space.distribution(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"Y must contain only 0 and 1.*row 1, column 2"):
        d.log_prob([[1, 0, 0], [0, 1, bad]])


@both_spaces
@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (3, 3)])
def test_a_y_of_another_shape_than_scores_is_an_error_that_states_both(space, shape):
    d = space.distribution(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"Y must have shape \(2, 3\).*got \("):
        d.log_prob(np.zeros(shape))


@both_spaces
def test_a_y_of_one_dimension_is_an_error(space):
    with pytest.raises(ValueError, match=r"Y must be a matrix with a column per label; got shape \(3,\)"):
        space.distribution(np.zeros((1, 3))).log_prob([1, 0, 0])


@both_spaces
def test_scores_too_large_for_their_sums_are_an_error_that_names_the_place(space):
    with pytest.raises(ValueError, match=r"at most 1e\+100 in magnitude; found -1e\+308 in row 0, column 1"):
        space.distribution([[0.0, -1e308, 0.0]])


@both_spaces
@pytest.mark.parametrize("n", [0, -1, 1.5])
@pytest.mark.parametrize("question", ["top_sets", "sample"])
def test_a_number_of_sets_below_one_is_an_error(space, question, n):
    d = space.distribution(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="positive integer"):
        getattr(d, question)(n)


@both_spaces
def test_a_set_outside_the_space_has_log_prob_minus_infinity(space):
    d = space.distribution(np.zeros((2, 3)))
    assert d.log_prob([[0, 0, 0], [1, 1, 1]]).tolist() == [-np.inf, -np.inf]


@both_spaces_with_their_number_of_sets
def test_a_set_inside_the_space_keeps_its_log_prob_beside_one_outside(space, n_sets):
    log_probs = space.distribution(np.zeros((3, 3))).log_prob([[0, 0, 0], [1, 0, 0], [1, 1, 1]])
    np.testing.assert_allclose(log_probs, [-np.inf, -np.log(n_sets), -np.inf], rtol=1e-14)


@both_spaces_with_their_number_of_sets
def test_top_sets_beyond_the_space_are_empty_sets_of_log_prob_minus_infinity(space, n_sets):
    sets, log_probs = space.distribution([[0.5, 1.0, -1.0]]).top_sets(n_sets + 3)
    assert (sets[0, n_sets:].tolist(), log_probs[0, n_sets:].tolist()) == ([[0, 0, 0]] * 3, [-np.inf] * 3)


@both_spaces_with_their_number_of_sets
def test_top_sets_within_the_space_have_finite_log_probs(space, n_sets):
    _, log_probs = space.distribution([[0.5, 1.0, -1.0]]).top_sets(n_sets + 3)
    assert np.isfinite(log_probs[0, :n_sets]).all()


def test_zero_threads_are_an_error_that_says_what_to_use():
    d = CardinalitySpace(3, 1, 2, n_jobs=0).distribution(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="n_jobs must not be 0; use None"):
        d.marginals()
