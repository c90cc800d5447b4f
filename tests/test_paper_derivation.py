"""The paper's derivation with hidden variables, enumerated: the scheme it rejects, and the one it keeps."""

from itertools import product

import numpy as np
import pytest

from mlrh.experiments._pages import exponential_scheme, multiplication_scheme
from mlrh.spaces import CardinalitySpace

RNG = np.random.default_rng(0)
TWO_SCORES = np.array([0.7, -0.4])
LABEL_SETS = [(1, 0), (0, 1), (1, 1)]


def hidden_states(n_labels):
    return list(product([0, 1], repeat=n_labels))


def summed_over_h(scheme, y, scores):
    return sum(scheme(y, h, scores) for h in hidden_states(len(scores)))


@pytest.mark.parametrize(
    ("y", "h", "weight"),
    [
        ((1, 0), (0, 0), 0.0),
        ((1, 0), (1, 0), np.exp(0.7)),
        ((1, 0), (0, 1), 0.0),
        ((1, 0), (1, 1), np.exp(0.7 - 0.4)),
        ((0, 1), (0, 0), 0.0),
        ((0, 1), (1, 0), 0.0),
        ((0, 1), (0, 1), np.exp(-0.4)),
        ((0, 1), (1, 1), np.exp(0.7 - 0.4)),
    ],
)
def test_table_1_lists_the_weights_of_the_exponential_scheme(y, h, weight):
    assert exponential_scheme(y, h, TWO_SCORES) == pytest.approx(weight, rel=1e-15)


@pytest.mark.parametrize("y", [(0, 0), *LABEL_SETS])
def test_in_the_exponential_scheme_all_hidden_ones_give_every_label_set_the_same_extra_term(y):
    assert exponential_scheme(y, (1, 1), TWO_SCORES) == pytest.approx(np.exp(TWO_SCORES.sum()), rel=1e-15)


@pytest.mark.parametrize("y", [(1, 0), (0, 1)])
def test_in_the_exponential_scheme_a_single_label_weighs_more_than_its_own_score(y):
    excess = summed_over_h(exponential_scheme, y, TWO_SCORES) - np.exp(TWO_SCORES @ y)
    assert excess == pytest.approx(np.exp(TWO_SCORES.sum()), rel=1e-14)


def test_the_exponential_scheme_misses_the_probabilities_of_the_model():
    weights = np.array([summed_over_h(exponential_scheme, y, TWO_SCORES) for y in LABEL_SETS])
    log_probs = CardinalitySpace(2, 1, 2).distribution(np.tile(TWO_SCORES, (3, 1))).log_prob(LABEL_SETS)
    assert np.abs(weights / weights.sum() - np.exp(log_probs)).max() > 0.1


@pytest.mark.parametrize("n_labels", [2, 3])
def test_with_one_label_and_one_hidden_one_both_schemes_are_softmax(n_labels):
    scores, one_hot = RNG.normal(size=n_labels), np.eye(n_labels, dtype=int)
    softmax = np.exp(scores) / np.exp(scores).sum()
    for scheme in (exponential_scheme, multiplication_scheme):
        weights = np.array([sum(scheme(y, h, scores) for h in one_hot) for y in one_hot])
        np.testing.assert_allclose(weights / weights.sum(), softmax, rtol=1e-14)


@pytest.mark.parametrize("y", LABEL_SETS)
@pytest.mark.parametrize("h", hidden_states(2))
def test_table_2_has_the_weight_of_the_label_set_where_h_equals_y_and_0_elsewhere(y, h):
    expected = np.exp(TWO_SCORES @ y) if h == y else 0.0
    assert multiplication_scheme(y, h, TWO_SCORES) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("n_labels", [1, 2, 3, 5])
def test_the_multiplication_scheme_leaves_exactly_one_hidden_state_per_label_set(n_labels):
    scores = RNG.normal(size=n_labels)
    for y in hidden_states(n_labels):
        assert [h for h in hidden_states(n_labels) if multiplication_scheme(y, h, scores) > 0] == [y]


def test_the_partition_of_two_labels_is_the_papers_sum_of_three_terms():
    first, second = TWO_SCORES
    expected = np.log(np.exp(first) + np.exp(second) + np.exp(first + second))
    d = CardinalitySpace(2, 1, 2).distribution([TWO_SCORES])
    assert d.log_partition()[0] == pytest.approx(expected, rel=1e-14)


def test_the_largest_size_enters_the_partition_without_a_factorial():
    scores = np.array([0.2, -0.3, 0.5])
    singles = np.exp(scores).sum()
    pairs = np.exp(scores[0] + scores[1]) + np.exp(scores[0] + scores[2]) + np.exp(scores[1] + scores[2])
    d = CardinalitySpace(3, 1, 2).distribution([scores])
    assert d.log_partition()[0] == pytest.approx(np.log(singles + pairs), rel=1e-14)


@pytest.mark.parametrize(("n_labels", "max_labels"), [(2, 1), (2, 2), (3, 2), (4, 1), (4, 3), (5, 2), (6, 6)])
def test_summing_out_the_hidden_variables_gives_the_partition_and_the_probabilities_of_the_model(n_labels, max_labels):
    scores = RNG.normal(scale=2, size=n_labels)
    admissible = [y for y in hidden_states(n_labels) if 1 <= sum(y) <= max_labels]
    weights = np.array([summed_over_h(multiplication_scheme, y, scores) for y in admissible])
    d = CardinalitySpace(n_labels, 1, max_labels).distribution(np.tile(scores, (len(admissible), 1)))
    assert d.log_partition()[0] == pytest.approx(np.log(weights.sum()), rel=1e-13)
    np.testing.assert_allclose(np.exp(d.log_prob(admissible)), weights / weights.sum(), rtol=1e-12)
