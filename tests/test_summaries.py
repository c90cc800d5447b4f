"""Means, spreads and paired differences, against numbers worked out by hand."""

import numpy as np
import pytest

from mlrh.experiments import _pages as summaries


def record(method, fold, seed=0, **rest):
    return {"method": method, "seed": seed, "fold": fold, **rest}


def of(values, name="exact_match", method="m"):
    return {(0, fold): record(method, fold, metrics={name: value}) for fold, value in enumerate(values)}


def test_records_are_grouped_by_method_and_fold():
    records = [record("b", 0), record("a", 1), record("b", 1, seed=2)]
    grouped = summaries.by_method(records)
    assert list(grouped) == ["b", "a"]
    assert grouped["b"] == {(0, 0): records[0], (2, 1): records[2]}


def test_a_spread_has_the_sample_deviation():
    found = summaries.spread([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.deviation == pytest.approx(np.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2))
    assert summaries.spread([5.0]) == summaries.Spread(5.0, 0.0, 1)
    assert summaries.spread([]) is None


def test_values_come_in_the_order_of_seeds_and_folds_from_metrics_or_beside_them():
    records = {
        (1, 0): record("m", 0, 1, metrics={"f": 3.0}, fit_seconds=0.3),
        (0, 1): record("m", 1, 0, metrics={"f": 2.0}, fit_seconds=0.2),
        (0, 0): record("m", 0, 0, metrics={"f": 1.0}, fit_seconds=0.1),
    }
    assert summaries.values(records, "f").tolist() == [1.0, 2.0, 3.0]
    assert summaries.values(records, "fit_seconds").tolist() == [0.1, 0.2, 0.3]
    assert summaries.values(records, "absent").size == 0


def test_paired_differences_are_taken_fold_by_fold_with_the_corrected_interval():
    found = summaries.paired(of([0.5, 0.7, 0.6, 0.9, 0.8]), of([0.4, 0.7, 0.7, 0.7, 0.7]), "exact_match")
    differences = np.array([0.1, 0.0, -0.1, 0.2, 0.1])
    assert found.mean == pytest.approx(0.06)
    # t of 4 degrees of freedom at 97.5% is 2.7764; the variance is s^2 (1/5 + 1/4).
    half = 2.7764451 * differences.std(ddof=1) * np.sqrt(0.45)
    assert (found.low, found.high) == pytest.approx((0.06 - half, 0.06 + half))
    assert found.counts == (3, 1, 1)


def test_only_folds_that_both_have_are_compared():
    other = of([0.1, 0.2, 0.3])
    del other[0, 1]
    assert summaries.paired(of([0.5, 9.0, 0.5]), other, "exact_match").mean == pytest.approx(0.3)
    assert summaries.paired(of([0.5]), other, "exact_match") is None


def test_reliability_adds_up_the_bins_of_all_folds():
    records = {
        (0, 0): record("m", 0, confidence=[[2, 0.3, 0], [0, 0.0, 0], [4, 3.6, 4]]),
        (0, 1): record("m", 1, confidence=[[2, 0.1, 1], [0, 0.0, 0], [0, 0.0, 0]]),
    }
    points = summaries.reliability_points(records)
    assert points == [pytest.approx((0.1, 0.25, 4)), pytest.approx((0.9, 1.0, 4))]
    assert summaries.reliability_points({(0, 0): record("m", 0, confidence=None)}) == []


def test_shares_of_sizes_are_weighted_by_rows():
    records = {(0, 0): record("m", 0, true_sizes=[0, 3, 1]), (0, 1): record("m", 1, true_sizes=[0, 1, 0])}
    np.testing.assert_allclose(summaries.size_shares(records, "true_sizes"), [0, 0.8, 0.2])
