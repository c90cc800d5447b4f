"""Eight rows at a time: the exponential against math.exp, the kernels against the ones without a limit of range."""

import math

import numpy as np
import pytest
from numba import njit

from mlrh._simd import LANES, exp_minus_abs, load, store
from mlrh.spaces import CardinalitySpace
from mlrh.spaces._kernels import dispatch, lanes, wide_range


@njit
def exponentials(numbers, result):
    for row in range(len(numbers)):
        store(result, row, exp_minus_abs(load(numbers, row)))


def exp_of_minus_abs(numbers):
    padded = np.zeros((-(-len(numbers) // LANES), LANES))
    padded.ravel()[: len(numbers)] = numbers
    result = np.empty_like(padded)
    exponentials(padded, result)
    return result.ravel()[: len(numbers)]


def test_the_exponential_is_within_one_unit_in_the_last_place_of_math_exp():
    numbers = np.concatenate(
        [np.linspace(-708, 708, 20_001), np.linspace(-1, 1, 2001), np.geomspace(1e-300, 700, 2000)]
    )
    expected = np.array([math.exp(-abs(x)) for x in numbers])
    assert (np.abs(exp_of_minus_abs(numbers) - expected) <= np.spacing(expected)).all()


def test_the_exponential_underflows_gradually_and_then_to_zero():
    numbers = np.linspace(708.0, 760.0, 5201)
    expected = np.array([math.exp(-x) for x in numbers])
    assert np.abs(exp_of_minus_abs(numbers) - expected).max() <= 5e-324 + 3e-16 * expected.max()
    assert (exp_of_minus_abs(np.array([750.0, -1e5, 1e300, -1e308])) == 0).all()


def test_the_exponential_of_zero_is_one_whatever_its_sign():
    assert exp_of_minus_abs(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]


def run(kernels, n_rows, n_labels, size_bias, tilts=None):
    """What both kinds of kernels write for the same random rows."""
    rng = np.random.default_rng(n_rows)
    scores, direction = rng.normal(scale=3, size=(2, n_rows, n_labels))
    results = [np.full(n_rows, np.nan), np.full((n_rows, n_labels), np.nan), np.full((n_rows, len(size_bias)), np.nan)]
    changes = [np.full((n_rows, n_labels), np.nan), np.full((n_rows, len(size_bias)), np.nan)]
    steered = [] if tilts is None else [tilts]
    kernels.expectations(scores, size_bias, np.ones(n_rows, bool), *steered, *results)
    sizes = [np.full(n_rows, np.nan), np.full((n_rows, len(size_bias)), np.nan)]
    kernels.sizes(scores, size_bias, np.ones(n_rows, bool), *steered, *sizes)
    bias_direction = np.linspace(-1, 2, len(size_bias))
    kernels.curvature(scores, size_bias, direction, bias_direction, np.ones(n_rows, bool), *steered, *changes)
    return results + sizes + changes


@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 17])
@pytest.mark.parametrize(("n_labels", "size_bias"), [(1, [0.0, 1.0]), (5, [-np.inf, 0.3, -1.0]), (9, np.zeros(10))])
def test_any_number_of_rows_and_any_tilts_agree_with_the_recurrence_without_limits(n_rows, n_labels, size_bias):
    size_bias = np.array(size_bias)
    tilts = np.round(np.random.default_rng(1).normal(size=n_rows) * 64) / 64
    for got, expected in zip(
        run(lanes, n_rows, n_labels, size_bias, tilts), run(wide_range, n_rows, n_labels, size_bias), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


def test_a_row_of_few_labels_has_the_same_results_to_the_last_bit_alone_and_among_others():
    scores = np.random.default_rng(0).normal(scale=4, size=(21, 7))
    space = CardinalitySpace(7, 1, 3)
    log_partition, marginals, _ = space.expectations(scores, np.ones(21))
    for i, row in enumerate(scores):
        alone, own, _ = space.expectations(row[None], np.ones(1))
        assert alone[0] == log_partition[i]
        assert (own[0] == marginals[i]).all()


def test_rows_whose_total_is_not_safe_are_left_as_they_were():
    scores, size_bias = np.full((9, 3), -1e4), np.array([-np.inf, 0.0])
    todo, log_partition, pmf = np.arange(9) != 4, np.full(9, np.nan), np.full((9, 2), np.nan)
    lanes.sizes(scores, size_bias, todo, np.zeros(9), log_partition, pmf)
    assert todo.tolist() == [True] * 4 + [False] + [True] * 4
    assert np.isnan(log_partition).all()
    assert np.isnan(pmf).all()


@pytest.mark.parametrize("shift", [0.0, 60.0, -60.0])
def test_very_many_labels_start_from_the_tilt_of_the_first_row_and_agree_with_no_limits(shift):
    scores = np.random.default_rng(0).normal(size=(11, dispatch.MANY_LABELS + 88)) + shift
    size_bias = np.array([-np.inf, 0.0, 0.0, 0.0])
    got = dispatch.expectations(scores, size_bias, np.ones(11), n_jobs=1)
    log_partition, marginals, pmf = np.empty(11), np.empty_like(scores), np.empty((11, 4))
    wide_range.expectations(scores, size_bias, np.ones(11, bool), log_partition, marginals, pmf)
    np.testing.assert_allclose(got[0], log_partition, rtol=1e-13)
    np.testing.assert_allclose(got[1], marginals, rtol=1e-11)
    np.testing.assert_allclose(got[2], pmf.sum(axis=0), rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("n_labels", [3, 40])
def test_a_score_that_is_not_a_number_makes_its_row_none_and_no_other(n_labels):
    scores = np.random.default_rng(0).normal(size=(9, n_labels))
    scores[4, 1] = np.nan
    size_bias = np.zeros(n_labels + 1)
    log_partition, marginals, _ = dispatch.expectations(scores, size_bias, np.ones(9), n_jobs=1)
    change, _ = dispatch.curvature(scores, size_bias, np.ones_like(scores), size_bias, np.ones(9), n_jobs=1)
    for result in (log_partition, marginals[:, 1], change[:, 1], dispatch.log_partition(scores, size_bias, n_jobs=1)):
        assert np.isnan(result).tolist() == [False] * 4 + [True] + [False] * 4
