"""Measures of label sets against loops over rows and labels, hand-made numbers and simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import integrate, sparse, stats

from mlrh.metrics import (
    assured_threshold,
    empty_share,
    evaluate,
    expected_calibration_error,
    impossible_share,
    reliability,
    risk_coverage,
    set_log_loss,
    size_counts,
)

TRUTH = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]])
confident_rows = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]), st.booleans()), min_size=1)
ASSURED = {"risk": 0.1, "assurance": 0.9}
ANSWER = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])


@st.composite
def pairs_of_matrices(draw):
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 4)))
    matrix = arrays(np.int8, shape, elements=st.integers(0, 1))
    return draw(matrix), draw(matrix)


def f1(true, found, empty):
    return 2 * len(true & found) / (len(true) + len(found)) if true or found else empty


def jaccard(true, found, empty):
    return len(true & found) / len(true | found) if true or found else empty


def by_loops(Y, predicted):
    """The measures as their definitions on Python sets, of labels by row and of rows by label."""
    rows = [(set(np.flatnonzero(t)), set(np.flatnonzero(p))) for t, p in zip(Y, predicted, strict=True)]
    labels = [(set(np.flatnonzero(t)), set(np.flatnonzero(p))) for t, p in zip(Y.T, predicted.T, strict=True)]
    cells = [{(i, k) for i, row in enumerate(matrix) for k, v in enumerate(row) if v} for matrix in (Y, predicted)]
    return {
        "exact_match": sum(true == found for true, found in rows) / len(rows),
        "hamming_loss": len(cells[0] ^ cells[1]) / Y.size,
        "f1_example": sum(f1(*row, empty=1) for row in rows) / len(rows),
        "f1_micro": f1(*cells, empty=0),
        "f1_macro": sum(f1(*label, empty=0) for label in labels) / len(labels),
        "jaccard": sum(jaccard(*row, empty=1) for row in rows) / len(rows),
        "empty_share": sum(not found for _, found in rows) / len(rows),
    }


@given(pairs_of_matrices())
def test_every_measure_equals_its_definition_on_python_sets(pair):
    measures = evaluate(*pair)
    expected = by_loops(*pair)
    assert list(measures) == list(expected)
    assert measures == pytest.approx(expected, abs=1e-12)
    assert all(type(value) is float for value in measures.values())


def test_measures_of_a_hand_made_example():
    # Row 1 is empty in both, label 3 nowhere at all; of the five cells with a label three are found.
    assert evaluate(TRUTH, ANSWER) == pytest.approx(
        {
            "exact_match": 2 / 4,
            "hamming_loss": 2 / 16,
            "f1_example": (2 / 3 + 1 + 0 + 1) / 4,
            "f1_micro": 6 / 8,
            "f1_macro": (1 + 0 + 1 + 0) / 4,
            "jaccard": (1 / 2 + 1 + 0 + 1) / 4,
            "empty_share": 2 / 4,
        }
    )


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, np.ndarray.tolist, lambda Y: Y.astype(bool)])
def test_every_form_of_indicator_matrix_gives_the_same_measures(form):
    assert evaluate(form(TRUTH), form(ANSWER)) == evaluate(TRUTH, ANSWER.astype(float))


def test_inputs_stay_as_they_were():
    Y, predicted = TRUTH.copy(), ANSWER.copy()
    evaluate(Y, predicted, np.zeros(4))
    assert np.array_equal(Y, TRUTH) and np.array_equal(predicted, ANSWER)


def test_log_loss_and_impossible_share_come_with_log_probabilities():
    log_prob = np.log([0.5, 0.25, 1.0, 1e-9])
    measures = evaluate(TRUTH, ANSWER, log_prob)
    assert measures["set_log_loss"] == pytest.approx((np.log(2) + np.log(4) + 0 + np.log(1e6)) / 4)
    assert measures["impossible_share"] == 0
    assert set(measures) - set(evaluate(TRUTH, ANSWER)) == {"set_log_loss", "impossible_share"}


def test_the_floor_bounds_what_an_impossible_set_costs():
    log_prob = [-np.inf, np.log(0.5)]
    assert set_log_loss(log_prob, floor=0.125) == pytest.approx((np.log(8) + np.log(2)) / 2)
    assert set_log_loss(log_prob, floor=0) == np.inf
    assert impossible_share(log_prob) == 0.5
    assert set_log_loss([3e-16, -3e-16]) == pytest.approx(0, abs=1e-15)  # a sum that rounding lifted above zero


def test_size_counts_are_the_rows_of_each_size_and_the_empty_share_is_that_of_size_zero():
    assert empty_share(ANSWER) == 0.5 and empty_share(TRUTH) == 0.25
    assert size_counts(TRUTH, 4).tolist() == [1, 1, 2, 0, 0]
    assert size_counts(np.ones((3, 1)), 1).tolist() == [0, 3]


def test_reliability_of_a_hand_made_example():
    # Ranks 0..5 in three bins: {.1, .2}, {.4, .6}, {.8, .9}.
    bins = reliability([0.9, 0.1, 0.6, 0.2, 0.8, 0.4], [1, 0, 1, 1, 1, 0], n_bins=3)
    assert bins.confidence == pytest.approx([0.15, 0.5, 0.85])
    assert bins.share_correct == pytest.approx([0.5, 0.5, 1.0])
    assert bins.count.tolist() == [2, 2, 2]
    error = expected_calibration_error([0.9, 0.1, 0.6, 0.2, 0.8, 0.4], [1, 0, 1, 1, 1, 0], n_bins=3)
    assert error == pytest.approx((0.35 + 0 + 0.15) / 3)


def test_bins_weigh_by_their_rows_in_the_calibration_error():
    # Three ties share the first bin: |0.2 - 1/3| for three rows, |0.9 - 0| for one.
    error = expected_calibration_error([0.2, 0.9, 0.2, 0.2], [1, 0, 0, 0], n_bins=2)
    assert error == pytest.approx((3 * (1 / 3 - 0.2) + 0.9) / 4)


@given(confident_rows, st.data(), st.integers(1, 20))
def test_the_order_of_rows_plays_no_part_even_with_ties(rows, data, n_bins):
    shuffled = data.draw(st.permutations(rows))
    first, second = (reliability(*map(list, zip(*order, strict=True)), n_bins) for order in (rows, shuffled))
    for name in ("confidence", "share_correct", "count"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


@given(st.lists(st.sampled_from(np.linspace(0, 1, 12).tolist()), min_size=1), st.integers(1, 20))
def test_bins_hold_every_row_once_in_order_with_ties_together_and_none_empty(confidence, n_bins):
    bins = reliability(confidence, np.ones(len(confidence)), n_bins)
    assert 1 <= len(bins.count) <= min(n_bins, len(set(confidence)))
    assert bins.count.min() >= 1 and bins.count.sum() == len(confidence)
    edges = np.concatenate([[0], np.cumsum(bins.count)])
    ordered = sorted(confidence)
    for mean, start, stop in zip(bins.confidence, edges, edges[1:], strict=False):
        assert mean == pytest.approx(np.mean(ordered[start:stop]))
        assert stop == len(ordered) or ordered[stop - 1] < ordered[stop]


@given(st.integers(1, 60), st.integers(1, 20))
def test_without_ties_bins_differ_by_at_most_one_row(n_rows, n_bins):
    count = reliability(np.arange(n_rows) / n_rows, np.zeros(n_rows), n_bins).count
    assert len(count) == min(n_rows, n_bins)
    assert count.max() - count.min() <= 1


def test_perfect_probabilities_are_calibrated_up_to_chance_and_wrong_ones_by_what_they_miss():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=60_000)
    draw = rng.uniform(size=60_000)
    bins = reliability(confidence, draw < confidence)
    deviation = np.sqrt(bins.confidence * (1 - bins.confidence) / bins.count)
    assert np.all(np.abs(bins.share_correct - bins.confidence) < 4 * deviation)
    # E |p - p^2| for uniform p is 1/6.
    assert expected_calibration_error(confidence, draw < confidence**2) == pytest.approx(1 / 6, abs=0.01)


@given(confident_rows, st.integers(1, 20), st.data())
def test_a_row_of_weight_two_counts_as_the_row_twice_in_bins_and_curves(rows, n_bins, data):
    weights = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)).filter(any))
    once, copies = (tuple(zip(*part, strict=True)) for part in (rows, np.repeat(rows, weights, axis=0).tolist()))
    bins, expected = reliability(*once, n_bins, sample_weight=weights), reliability(*copies, n_bins)
    for name in ("confidence", "share_correct", "count"):
        np.testing.assert_allclose(getattr(bins, name), getattr(expected, name))
    curve, expected = risk_coverage(*once, sample_weight=weights), risk_coverage(*copies)
    for name in ("coverage", "risk", "threshold"):
        np.testing.assert_allclose(getattr(curve, name), getattr(expected, name))


@given(confident_rows)
def test_the_risk_is_the_share_of_wrong_rows_among_those_of_at_least_the_threshold(rows):
    confidence, correct = (np.array(part) for part in zip(*rows, strict=True))
    curve = risk_coverage(confidence, correct)
    assert curve.threshold.tolist() == sorted(set(confidence), reverse=True)
    for coverage, risk, threshold in zip(curve.coverage, curve.risk, curve.threshold, strict=True):
        answered = confidence >= threshold
        assert coverage == pytest.approx(answered.mean())
        assert risk == pytest.approx(1 - correct[answered].mean())


@given(confident_rows, st.floats(0, 1))
def test_the_largest_coverage_with_a_risk_is_that_of_the_lowest_threshold_that_keeps_it(rows, risk):
    confidence, correct = (np.array(part) for part in zip(*rows, strict=True))
    point = risk_coverage(confidence, correct).largest_coverage(risk)
    keeping = [t for t in confidence if np.mean(~correct[confidence >= t]) <= risk]
    assert point.threshold == min(keeping, default=np.inf)
    assert point.coverage == pytest.approx(np.mean(confidence >= point.threshold))
    assert point.risk <= risk


def test_the_area_is_the_integral_of_the_risk_with_wrong_ties_spread_evenly():
    confidence, correct = [0.9, 0.9, 0.9, 0.6, 0.6, 0.2], [1, 1, 0, 1, 0, 0]

    def risk(coverage):
        return np.interp(6 * coverage, [0, 3, 5, 6], [0, 1, 2, 3]) / (6 * coverage)

    expected = sum(integrate.quad(risk, low / 6, high / 6)[0] for low, high in ((0, 3), (3, 5), (5, 6)))
    assert risk_coverage(confidence, correct).area == pytest.approx(expected, rel=1e-9)
    assert risk_coverage(confidence * 3, correct * 3).area == pytest.approx(expected, rel=1e-12)


def test_the_area_of_many_rows_is_the_mean_risk_over_the_first_rows():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=20_000)
    correct = rng.uniform(size=20_000) < confidence
    wrong = ~correct[np.argsort(-confidence)]
    expected = np.mean(np.cumsum(wrong) / np.arange(1, 20_001))
    assert risk_coverage(confidence, correct).area == pytest.approx(expected, abs=1e-3)
    # Answers from confidence t on are wrong with (1 - t) / 2 on average; coverage is 1 - t.
    assert expected == pytest.approx(1 / 4, abs=0.01)
    assert risk_coverage(np.full(20_000, 0.5), correct).area == pytest.approx(1 - correct.mean())


def test_an_assured_threshold_is_the_lowest_whose_binomial_tail_is_unlikely_at_the_risk():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=400).round(2)
    correct = rng.uniform(size=400) < confidence**0.5
    ranked = np.sort(confidence)[::-1]
    for risk in (0.2, 0.25, 0.3):
        keeping = []
        for threshold in {ranked[round(20 * look) - 1] for look in range(1, 21)}:
            answered = confidence >= threshold
            tail = stats.binom.cdf(np.sum(~correct & answered), answered.sum(), risk)
            keeping += [threshold] if tail <= 0.1 / 20 else []
        assert 0 < len(keeping) < 20
        assert assured_threshold(confidence, correct, risk=risk, assurance=0.9) == min(keeping)


# Rows from threshold t on are wrong with (1 - t) / 4, or with 0.205 whatever t is. The latter is a little above the
# risk that is asked for, so that each look is a chance to fail: bounds at the level 0.8 without regard to the other
# looks fail in well over half of the draws.
SHARES = {
    "by confidence": (lambda confidence: 0.5 + confidence / 2, lambda t: (1 - t) / 4),
    "always alike": (lambda confidence: 0.795, lambda t: 0.205),
}


@pytest.mark.parametrize("share, risk_from", SHARES.values(), ids=SHARES)
def test_an_assured_risk_is_exceeded_no_more_often_than_assured(share, risk_from):
    rng, n_exceeded = np.random.default_rng(0), 0
    for _ in range(400):
        confidence = rng.uniform(size=500)
        correct = rng.uniform(size=500) < share(confidence)
        threshold = assured_threshold(confidence, correct, risk=0.2, assurance=0.8)
        n_exceeded += threshold < np.inf and risk_from(threshold) > 0.2
    assert n_exceeded <= 0.2 * 400


def test_rows_of_next_to_no_weight_leave_the_area_as_it_is():
    expected = risk_coverage([0.9, 0.6, 0.3], [1, 0, 1]).area
    for tiny in (1e-20, 1e-300):
        for place, confidence in enumerate((0.95, 0.7, 0.1)):
            rows = [
                np.insert(values, 0, one) for values, one in (([0.9, 0.6, 0.3], confidence), ([1, 0, 1], place % 2))
            ]
            area = risk_coverage(*rows, sample_weight=[tiny, 1, 1, 1]).area
            assert area == pytest.approx(expected, abs=1e-12)
    assert risk_coverage([0.9, 0.5], [1, 0], sample_weight=[1, 1e-20]).area == 0


def test_too_few_rows_assure_no_small_risk():
    assert assured_threshold(np.full(20, 0.9), np.ones(20), risk=0.1, assurance=0.95) == np.inf
    assert assured_threshold(np.full(20, 0.9), np.zeros(20), risk=1.0, assurance=0.95) == 0.9
    assert assured_threshold(np.full(200, 0.9), np.ones(200), risk=0.1, assurance=0.95) == 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: risk_coverage([0.5], [1]).largest_coverage(1.5), "risk must be a number from 0 to 1; got 1.5"),
        (lambda: risk_coverage([0.5], [1]).largest_coverage(None), "risk must be a number from 0 to 1; got None"),
        (lambda: risk_coverage([1.5], [1]), "confidence must hold probabilities; got 1.5 in row 0"),
        (lambda: risk_coverage([0.5], [1], sample_weight=[0]), "sample_weight must hold one number per row, finite"),
        (lambda: reliability([0.5], [1], sample_weight=[1, 2]), r"got shape \(2,\) for 1 rows"),
        (lambda: assured_threshold([0.5], [1], risk=0.1, assurance=2), "assurance must be a number from 0 to 1; got 2"),
        (lambda: assured_threshold([0.5], [1], **ASSURED, n_looks=0), "n_looks must be a positive integer; got 0"),
        (lambda: assured_threshold([0.5], [1], **ASSURED, n_looks=2.5), "n_looks must be a positive integer; got 2.5"),
        (lambda: evaluate(np.zeros((0, 3)), np.zeros((0, 3))), r"Y must be a matrix with a row .*; got \(0, 3\)"),
        (lambda: evaluate(np.zeros((3, 0)), np.zeros((3, 0))), r"Y must be a matrix with .*; got \(3, 0\)"),
        (lambda: evaluate([1, 0], [1, 0]), r"Y must be a matrix .*; got \(2,\)"),
        (lambda: evaluate([[1, 0]], [[1, 2]]), "predicted must contain only 0 and 1.*; found 2 in row 0, column 1"),
        (lambda: evaluate([[1, np.nan]], [[1, 1]]), "Y must contain only 0 and 1.*; found nan"),
        (lambda: evaluate([[1, 0]], [[1, 0], [1, 0]]), r"the same shape; got \(1, 2\) and \(2, 2\)"),
        (lambda: evaluate([[1, 0]], [[1, 0]], [-1.0, -1.0]), "log_prob must have one value per row of Y, 1; got 2"),
        (lambda: set_log_loss([]), "log_prob must hold one value per row, at least one"),
        (lambda: set_log_loss([-1.0, 0.3]), "at most 0; got 0.3 in row 1"),
        (lambda: impossible_share([np.nan]), "at most 0; got nan in row 0"),
        (lambda: set_log_loss([-1.0], floor=1.5), "floor must be a probability below 1; got 1.5"),
        (lambda: set_log_loss([-1.0], floor=float("nan")), "floor must be a probability below 1; got nan"),
        (lambda: size_counts([[1, 0]], 3), "Y must have n_labels=3 columns; got 2"),
        (lambda: reliability([0.5, 1.2], [1, 1]), "confidence must hold probabilities; got 1.2 in row 1"),
        (lambda: reliability([np.nan], [1]), "confidence must hold probabilities; got nan in row 0"),
        (lambda: reliability([0.5], [2]), "correct must hold 1 where the prediction was right"),
        (lambda: reliability([0.5], [1, 0]), r"one value per row, at least one; got shapes \(1,\) and \(2,\)"),
        (lambda: reliability([], []), "one value per row, at least one"),
        (lambda: reliability([0.5], [1], n_bins=0), "n_bins must be a positive integer; got 0"),
        (lambda: reliability([0.5], [1], n_bins=2.5), "n_bins must be a positive integer; got 2.5"),
    ],
)
def test_what_cannot_be_measured_is_an_error_that_says_why(call, message):
    with pytest.raises(ValueError, match=message):
        call()
