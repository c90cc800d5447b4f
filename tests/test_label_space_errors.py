"""What label spaces refuse, with a message that says where; and the sets that have probability 0."""

import numpy as np
import pytest

from mlrh.spaces import CardinalitySpace, ObservedSpace

SPACES = [CardinalitySpace(3, 1, 2), ObservedSpace([[1, 0, 0], [0, 1, 1]])]
both_spaces = pytest.mark.parametrize("space", SPACES, ids=["cardinality", "observed"])


@both_spaces
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_score_that_is_not_finite_is_an_error_that_names_the_row_and_column_of_the_first(space, bad, dtype):
    scores = np.zeros((4, 3), dtype)
    scores[2, 1:] = bad, -bad
    with pytest.raises(ValueError, match=r"finite.*row 2, column 1"):
        space.distribution(scores)


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


TWO_SETS = [[1, 0, 0], [0, 1, 1]]
REFUSED = {
    "size_bias must be 4 finite numbers": [
        (CardinalitySpace, 3, 1, 2, bias)
        for bias in ([0.0] * 3, [0.0] * 5, [[0.0] * 4], 0.0, [0, np.nan, 0, 0], [0, 0, np.inf, 0], [-np.inf, 0, 0, 0])
    ],
    "set_bias must be 2 finite numbers": [
        (ObservedSpace, TWO_SETS, bias) for bias in ([0.0], [0.0] * 3, [[0.0, 0.0]], 0.0, [np.nan, 0.0], [0.0, -np.inf])
    ],
    "sets must be distinct": [(ObservedSpace, [[1, 0], [0, 1], [1, 0]])],
    "sets must (be a matrix with a column per label|have a row for each)": [
        (ObservedSpace, sets) for sets in ([1, 0, 1], np.empty((0, 3)), 1)
    ],
    "sets must contain only 0 and 1.*row 1, column 2": [
        (ObservedSpace, [[1, 0, 0], [0, 1, bad]]) for bad in (2, -1, 0.5, np.nan)
    ],
}


@pytest.mark.parametrize("message", REFUSED)
def test_sets_and_biases_that_make_no_space_are_an_error_that_says_what_they_must_be(message):
    for make, *arguments in REFUSED[message]:
        with pytest.raises(ValueError, match=message):
            make(*arguments)


@both_spaces
@pytest.mark.parametrize("bad", [2, -1, 0.5, np.nan])
def test_a_y_of_other_numbers_than_0_and_1_is_an_error_that_names_row_and_column(space, bad):
    d = space.distribution(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"Y must contain only 0 and 1.*row 1, column 2"):
        d.log_prob([[1, 0, 0], [0, 1, bad]])


@both_spaces
@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (3, 3), (3,)])
def test_a_y_of_another_shape_than_scores_is_an_error_that_states_both(space, shape):
    right = (
        "Y must be a matrix with a column per label; got shape" if len(shape) == 1 else r"Y must have shape \(2, 3\)"
    )
    with pytest.raises(ValueError, match=right + r".*\(" + str(shape)[1:-1]):
        space.distribution(np.zeros((2, 3))).log_prob(np.zeros(shape))


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
def test_a_set_inside_the_space_keeps_its_log_prob_beside_one_outside(space):
    log_probs = space.distribution(np.zeros((3, 3))).log_prob([[0, 0, 0], [1, 0, 0], [1, 1, 1]])
    np.testing.assert_allclose(log_probs, [-np.inf, -space.log_count(), -np.inf], rtol=1e-14)


def test_zero_threads_are_an_error_that_says_what_to_use():
    d = CardinalitySpace(3, 1, 2, n_jobs=0).distribution(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="n_jobs must not be 0; use None"):
        d.marginals()
