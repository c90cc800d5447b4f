"""Expected metrics against enumeration: both ways of giving a distribution, at any scale of scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import cases, listed_sets, sets_of_sizes

from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.spaces._kernels import expected_metrics

METRICS = ["exact_match", "hamming", "f1", "jaccard"]
every_metric = pytest.mark.parametrize("metric", METRICS)
N_LABELS = 6
EVERY_SET = sets_of_sizes(N_LABELS, 0, N_LABELS)


def counts(answers, truths):
    """tp, fp and fn of every answer against every truth, (n_answers, n_truths) each."""
    answers, truths = np.asarray(answers, int), np.asarray(truths, int)
    tp = answers @ truths.T
    return tp, answers.sum(axis=1)[:, None] - tp, truths.sum(axis=1)[None, :] - tp


def enumerated_values(enumeration, answers, metric):
    """E[metric] of each answer by writing out the sum over all truths."""
    values = metric(*counts(answers, enumeration.sets))
    return np.array([enumeration.mean(row) for row in values])


def by_counts(case, answers, metric, **options):
    """E[metric] of each answer for one row of scores, repeated."""
    space = CardinalitySpace(len(case.scores), case.min_labels, case.max_labels, case.size_bias)
    scores = np.tile(case.scores, (len(answers), 1))
    return expected_metrics.expected_by_counts(scores, space.cardinality_pmf(scores), answers, metric, **options)


@st.composite
def monotone_metrics(draw):
    """Functions that never fall as tp grows and fp and fn shrink: sums of steps."""
    corner = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.floats(0, 5, allow_subnormal=False))
    corners = draw(st.lists(corner, min_size=1, max_size=6))
    offset = draw(st.sampled_from([0.0, -3.0]))
    return lambda tp, fp, fn: offset + sum(w * ((tp >= a) & (fp <= b) & (fn <= c)) for a, b, c, w in corners)


@st.composite
def any_metrics(draw):
    """A number for every triple of counts, without any order."""
    table = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=(8, 8, 8))
    return lambda tp, fp, fn: table[tp, fp, fn]


@every_metric
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_a_named_metric_equals_the_sum_over_all_label_sets_for_every_answer_at_any_scale(metric, case):
    metric = expected_metrics.metric_function(metric, len(case.scores))
    answers = sets_of_sizes(len(case.scores), 0, len(case.scores))
    found = by_counts(case, answers, metric)
    np.testing.assert_allclose(found, enumerated_values(case.enumerate(), answers, metric), rtol=0, atol=1e-12)


@settings(max_examples=80, deadline=None)
@given(case=cases(), metric=any_metrics())
def test_any_function_of_counts_equals_the_sum_over_all_label_sets(case, metric):
    answers = sets_of_sizes(len(case.scores), 0, len(case.scores))
    found = by_counts(case, answers, metric)
    np.testing.assert_allclose(found, enumerated_values(case.enumerate(), answers, metric), rtol=0, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(drawn=listed_sets(), metric=any_metrics())
def test_listed_sets_give_the_sum_over_them(drawn, metric):
    scores, sets, bias = drawn
    space = ObservedSpace(sets, bias)
    answers = sets_of_sizes(len(scores), 0, len(scores))
    log_probs = space.distribution(np.tile(scores, (len(sets), 1))).log_prob(sets)
    probs = np.tile(np.exp(log_probs), (len(answers), 1))
    found = expected_metrics.expected_by_sets(probs, sets, answers, metric)
    wanted = metric(*counts(answers, sets)) @ probs[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_more_candidates_than_fit_a_table_are_compared_in_pieces(monkeypatch):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(len(EVERY_SET)), size=20)
    arguments = (probs, EVERY_SET, expected_metrics.jaccard_of_counts, (1, 4))
    whole = expected_metrics.best_candidate_by_sets(*arguments)
    monkeypatch.setattr(expected_metrics, "TABLE_ENTRIES", 100)
    np.testing.assert_array_equal(expected_metrics.best_candidate_by_sets(*arguments), whole)


@pytest.mark.parametrize("entries", [1, 60, 200])
def test_the_table_of_a_metric_in_pieces_gives_the_same_values_and_answers(monkeypatch, entries):
    rng = np.random.default_rng(1)
    scores, answers = rng.normal(size=(64, N_LABELS)), EVERY_SET
    pmf = CardinalitySpace(N_LABELS, 0, 4).cardinality_pmf(scores)
    metric = expected_metrics.f1_of_counts
    values, best = (
        expected_metrics.expected_by_counts(scores, pmf, answers, metric),
        expected_metrics.best_by_counts(scores, pmf, metric, (1, 5)),
    )
    monkeypatch.setattr(expected_metrics, "TABLE_ENTRIES", entries)
    np.testing.assert_array_equal(expected_metrics.expected_by_counts(scores, pmf, answers, metric), values)
    np.testing.assert_array_equal(expected_metrics.best_by_counts(scores, pmf, metric, (1, 5)), best)


@pytest.mark.parametrize("n_jobs", [2, 3])
def test_values_are_bitwise_those_of_one_thread(n_jobs):
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(20_000, 12))
    pmf = CardinalitySpace(12, 1, 5).cardinality_pmf(scores)
    answers = (rng.random(scores.shape) < 0.3).astype(np.int8)
    arguments = (scores, pmf, answers, expected_metrics.jaccard_of_counts)
    serial = expected_metrics.expected_by_counts(*arguments, n_jobs=1)
    np.testing.assert_array_equal(expected_metrics.expected_by_counts(*arguments, n_jobs=n_jobs), serial)


def test_sizes_that_no_one_tilt_reaches_all_count():
    # exp(size_bias) makes the empty and the full set as likely as the middle: scores a thousand apart, convex bias.
    scores = np.array([[1000.0, 0.0, -1000.0]])
    pmf = CardinalitySpace(3, 0, 3, [1000.0, 0.0, 0.0, 1000.0]).cardinality_pmf(scores)
    found = expected_metrics.expected_by_counts(scores, pmf, np.array([[1, 0, 0]], np.int8), lambda tp, fp, fn: tp)
    assert found[0] == pytest.approx(0.75, abs=1e-12)


def test_a_thousand_equal_huge_scores_are_no_problem():
    scores = np.full((1, 2000), 1e100)
    pmf = np.zeros((1, 2001))
    pmf[0, 4] = 1.0
    answer = (np.arange(2000) < 500).astype(np.int8)[None]
    found = expected_metrics.expected_by_counts(scores, pmf, answer, lambda tp, fp, fn: tp)
    assert found[0] == pytest.approx(4 * 500 / 2000, rel=1e-11)


def test_expected_true_positives_of_many_labels_are_the_sum_of_their_marginals():
    rng = np.random.default_rng(3)
    scores = rng.normal(scale=4, size=(5, 1000)) - 4
    space = CardinalitySpace(1000, 2, 30)
    answers = (rng.random(scores.shape) < 0.2).astype(np.int8)
    found = expected_metrics.expected_by_counts(scores, space.cardinality_pmf(scores), answers, lambda tp, fp, fn: tp)
    np.testing.assert_allclose(found, (space.marginals(scores) * answers).sum(axis=1), rtol=1e-12)


def test_the_metric_is_asked_only_for_counts_that_can_occur():
    asked = set()

    def metric(tp, fp, fn):
        asked.update(zip(tp.tolist(), fp.tolist(), fn.tolist(), strict=True))
        return tp - fp

    expected_metrics.check_metric(metric, 4, (1, 3))
    possible = zip(*(c.ravel().tolist() for c in counts(*2 * [sets_of_sizes(4, 0, 4)])), strict=True)
    assert asked == {(tp, fp, fn) for tp, fp, fn in possible if 1 <= tp + fn <= 3}


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            lambda tp, fp, fn: fp - tp,
            r"for a right one; got f\(1, 0, 0\) = -1 below f\(0, 1, 1\) = 1. If it is",
        ),
        (lambda tp, fp, fn: (fp + fn) / 4, r"got f\(1, 0, 0\) = 0 below f\(0, 1, 1\) = 0.5"),
        (
            lambda tp, fp, fn: np.where((tp == 2) & (fp == 1) & (fn == 0), 0, tp),
            r"f\(2, 1, 0\) = 0 below f\(1, 2, 1\)",
        ),
        (lambda tp, fp, fn: tp / (tp + fp + fn), r"must be finite .* got f\(0, 0, 0\) = nan. Give it a value there"),
        (lambda tp, fp, fn: 1 / fn, r"must be finite .* = inf"),
        (lambda tp, fp, fn: 1.0, r"for arrays of counts, here of shape .* got shape \(\)"),
        (lambda tp, fp, fn: np.array(["a"] * len(tp)), "got values of type <U1"),
    ],
)
def test_a_metric_that_can_not_be_decided_for_is_one_clear_error(metric, message):
    with pytest.raises(ValueError, match=message):
        expected_metrics.check_metric(metric, 4, (0, 3))


@pytest.mark.parametrize("power", [0.1, 0.7, 1.0, 3.0])
def test_rounding_errors_of_a_metric_are_not_taken_for_a_fall(power):
    expected_metrics.check_metric(lambda tp, fp, fn: -((2 * tp + fp + fn) ** power) * 1e6 + tp / 3 * 3 - tp, 9, (0, 9))


def test_an_unknown_name_of_a_metric_is_an_error_that_lists_the_names():
    with pytest.raises(ValueError, match=r"\['exact_match', 'f1', 'hamming', 'jaccard'\] or a function .* got 'f2'"):
        expected_metrics.metric_function("f2", 3)


def test_no_rows_give_no_values():
    none = np.empty((0, 3))
    assert expected_metrics.expected_by_counts(
        none, np.empty((0, 4)), none.astype(np.int8), expected_metrics.f1_of_counts
    ).shape == (0,)
    assert expected_metrics.best_by_counts(none, np.empty((0, 4)), expected_metrics.f1_of_counts, (0, 3)).shape == (
        0,
        3,
    )


def test_the_search_for_the_best_f1_stops_where_no_larger_answer_can_be_better(monkeypatch):
    rng, n_labels, sizes = np.random.default_rng(0), 40, np.array([1, 2, 5])
    joint = rng.gamma(0.05, size=(3, 30, n_labels))
    joint[0, 0], joint[1:, 0] = 1 / n_labels, 0.0  # one label, each as likely: E[F1] = 2 m / (40 (m + 1)) grows with m
    joint *= 0.99 / (joint.sum(axis=2) / sizes[:, None]).sum(axis=0)[None, :, None]  # P(no label) is the rest
    empty = np.full(30, 0.01)
    values = [empty]
    for m in range(1, n_labels + 1):
        gains = (joint * (2 / (m + sizes))[:, None, None]).sum(axis=0)
        values.append(np.sort(gains, axis=1)[:, n_labels - m :].sum(axis=1))
    tried, offer = [], expected_metrics.Best.offer
    monkeypatch.setattr(expected_metrics.Best, "offer", lambda own, *given: (tried.append(1), offer(own, *given)))
    found = expected_metrics.best_f1_by_sizes(joint, sizes, empty, (0, n_labels)).sum(axis=1)
    np.testing.assert_array_equal(found, np.argmax(values, axis=0))
    assert found[0] == n_labels and len(tried) == n_labels + 1
    tried.clear()
    expected_metrics.best_f1_by_sizes(joint[:, 1:], sizes, empty[1:], (0, n_labels))
    assert found[1:].max() < len(tried) < n_labels
