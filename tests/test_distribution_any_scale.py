"""Every question to a distribution, against 60-digit enumeration, for scores and biases of any scale.

Cardinality, observed and open spaces, groups and hierarchies, with nothing known of the row and with some of its labels
known.
"""

from math import log

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from mlrh.spaces import CardinalitySpace, GroupSpace, HierarchySpace, ObservedSpace, OpenSpace

many = settings(deadline=None, max_examples=100)


def agreeing(sets, known):
    return ((sets == known) | np.isnan(known)).all(axis=1)


@st.composite
def asked(draw, numbers=reference.ANY_SCALE):
    """A distribution of one row, the enumeration of its sets, and what rounding errors are relative to."""
    kind = draw(st.sampled_from(["cardinality", "observed", "open", "groups", "hierarchy"]))
    if kind == "observed":
        scores, sets, set_bias = draw(reference.listed_sets(numbers))
        space = ObservedSpace(sets, set_bias)
        scale = max(1.0, np.abs(scores).sum(), np.abs(set_bias).max())
    elif kind == "groups":
        groups, bias, scores, sets, set_bias = draw(reference.grouped_sets(numbers))
        space = GroupSpace(groups, len(scores), bias=bias)
        scale = max(1.0, np.abs(scores).sum(), np.abs(bias).sum())
    elif kind == "hierarchy":
        parents, limits, scores, sets = draw(reference.forest_sets(numbers))
        space, set_bias, scale = HierarchySpace(parents, *limits), np.zeros(len(sets)), max(1.0, np.abs(scores).sum())
    else:
        case = draw(reference.cases(numbers))
        scores, sets = case.scores, case.enumerate().sets
        set_bias, scale = case.bias[sets.sum(axis=1)], case.scale()
        sizes = (len(scores), case.min_labels, case.max_labels)
        space = CardinalitySpace(*sizes, case.size_bias)
    if kind == "open":
        seen = draw(st.lists(st.integers(0, len(sets) - 1), max_size=12, unique=True))
        own = np.zeros(len(sets))
        own[seen] = draw(st.lists(numbers, min_size=len(seen), max_size=len(seen)))
        space = OpenSpace(*sizes, sets[seen], own[seen], case.size_bias)
        set_bias, scale = reference.exact_sums(set_bias, own), max(scale, np.abs(own).max())
    d, left = space.distribution(scores[None]), np.ones(len(sets), bool)
    if draw(st.booleans()):
        known = sets[draw(st.integers(0, len(sets) - 1))].astype(float)
        known[draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))] = np.nan
        d, left = d.condition(known[None]), agreeing(sets, known)
    return d, reference.enumerate_sets(scores, sets[left], set_bias[left]), scale


@given(asked())
@many
def test_log_partition_marginals_and_sizes_equal_the_sum_over_all_sets(case):
    d, expected, scale = case
    assert d.log_partition()[0] == pytest.approx(expected.log_partition(), rel=0, abs=1e-12 * scale)
    np.testing.assert_allclose(d.marginals()[0], expected.marginals(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(d.cardinality_pmf()[0], expected.cardinality_pmf(), rtol=0, atol=1e-12)


@given(asked())
@many
def test_log_prob_of_every_set_equals_the_enumeration(case):
    d, expected, scale = case
    results = [d.log_prob(labels[None])[0] for labels in expected.sets]
    np.testing.assert_allclose(results, expected.log_probs(), rtol=0, atol=1e-12 * scale)


@given(asked(), st.integers(1, 20))
@many
def test_top_sets_are_the_best_of_the_enumeration_and_all_of_it_once(case, n):
    d, expected, scale = case
    by_rank = np.sort(expected.log_probs())[::-1]
    np.testing.assert_allclose(d.top_sets(n)[1][0, : len(by_rank)], by_rank[:n], rtol=0, atol=1e-12 * scale)
    n_sets = len(expected.sets)
    sets, log_probs = d.top_sets(n_sets + 2)
    assert sorted(sets[0, :n_sets].tolist()) == sorted(expected.sets.tolist())
    assert (sets[0, n_sets:].any(), log_probs[0, n_sets:].tolist()) == (False, [-np.inf] * 2)
    assert np.exp(log_probs).sum() == pytest.approx(1, abs=1e-11)


@given(asked())
@many
def test_the_mode_is_the_first_of_top_sets_and_no_set_is_more_probable(case):
    d, expected, scale = case
    mode = d.mode()[0].tolist()
    assert d.top_sets(1)[0][0, 0].tolist() == mode
    log_probs = dict(zip(map(tuple, expected.sets.tolist()), expected.log_probs(), strict=True))
    assert log_probs[tuple(mode)] >= max(log_probs.values()) - 1e-12 * scale


@given(asked(reference.SMALL_INTEGERS))
@many
def test_ties_go_to_the_set_listed_first_of_the_smaller_and_then_of_the_lower_labels(case):
    d, expected, _ = case
    best = expected.best_sets()[0].tolist()
    assert d.mode()[0].tolist() == best
    assert d.top_sets(1)[0][0, 0].tolist() == best


@given(asked())
@many
def test_samples_lie_among_the_possible_sets(case):
    d, expected, _ = case
    assert all(labels in expected.sets.tolist() for labels in d.sample(5, random_state=0)[0].tolist())


@given(asked())
@many
def test_entropy_equals_the_sum_over_all_sets_and_lies_within_its_bounds(case):
    d, expected, _ = case
    log_probs = expected.log_probs()
    assert d.entropy()[0] == pytest.approx(float(-(np.exp(log_probs) * log_probs).sum()), rel=1e-11, abs=1e-12)
    assert 0 <= d.entropy()[0] <= log(len(expected.sets)) + 1e-14


@given(asked())
@many
def test_joint_marginals_equal_the_sum_over_all_sets(case):
    d, expected, _ = case
    columns = expected.sets.T
    pairs = [[expected.mean(a * b) for b in columns] for a in columns]
    np.testing.assert_allclose(d.joint_marginals()[0], pairs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("numbers", "rel", "abs_"), [(reference.MODERATE, 1e-12, 0), (reference.ANY_SCALE, 1e-10, 1e-60)]
)
def test_groups_and_sizes_equal_the_sum_over_all_sets(numbers, rel, abs_):
    @given(asked(numbers), st.data(), st.integers(-1, 9))
    @many
    def check(case, data, m):
        d, expected, _ = case
        group = data.draw(st.lists(st.integers(0, d.scores.shape[1] - 1), unique=True))
        assert d.any_of(group)[0] == pytest.approx(
            expected.mean(expected.sets[:, group].any(axis=1)), rel=rel, abs=abs_
        )
        assert d.size_tail(m)[0] == pytest.approx(expected.mean(expected.sets.sum(axis=1) >= m), rel=0, abs=1e-12)

    check()


@given(asked(), st.data(), st.sampled_from(["exact_match", "hamming", "f1", "jaccard", "own"]))
@many
def test_expected_metrics_equal_the_sum_over_all_sets(case, data, name):
    d, expected, _ = case
    n_labels = d.scores.shape[1]
    y = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n_labels, max_size=n_labels)))
    metric = (lambda tp, fp, fn: tp**2 - 0.3 * fp * fn) if name == "own" else name
    assert d.expected(metric, y[None])[0] == pytest.approx(mean_metric(expected, name, y), rel=0, abs=1e-10)


def mean_metric(enumeration, name, y):
    tp = enumeration.sets @ y
    fp, fn = y.sum() - tp, enumeration.sets.sum(axis=1) - tp
    wrong = fp + fn
    values = {
        "exact_match": wrong == 0,
        "hamming": 1 - wrong / len(y),
        "f1": np.where(tp + wrong == 0, 1, 2 * tp / np.maximum(2 * tp + wrong, 1)),
        "jaccard": np.where(tp + wrong == 0, 1, tp / np.maximum(tp + wrong, 1)),
        "own": tp**2 - 0.3 * fp * fn,
    }
    return enumeration.mean(values[name])


@given(asked(), st.data())
@many
def test_what_is_known_of_a_set_is_as_probable_as_the_set_over_the_rest(case, data):
    d, expected, scale = case
    y = expected.sets[:1]
    known = np.where(data.draw(st.lists(st.booleans(), min_size=y.size, max_size=y.size)), y, np.nan)
    total = d.log_prob_of_known(known) + d.condition(known).log_prob(y)
    np.testing.assert_allclose(total, d.log_prob(y), rtol=0, atol=1e-12 * scale)


@given(asked(), st.integers(0, 2**31))
@many
def test_conditioning_twice_equals_conditioning_once(case, seed):
    d, expected, scale = case
    hidden = np.random.default_rng(seed).random((2, *expected.sets[:1].shape)) < 0.5
    known = np.where(hidden[0], np.nan, expected.sets[:1])
    first = np.where(hidden[1], np.nan, known)
    np.testing.assert_array_equal(d.condition(first).condition(known).marginals(), d.condition(known).marginals())
    total = d.log_prob_of_known(first) + d.condition(first).log_prob_of_known(known)
    np.testing.assert_allclose(total, d.log_prob_of_known(known), rtol=0, atol=1e-12 * scale)
