"""The kernels of eight rows at a time and those that divide the labels: against the ones without a limit of range,
binomials, one label alone; the exponential of the lanes against math.exp."""

import math
import subprocess
import sys

import numpy as np
import pytest
from numba import njit
from reference import central_difference, enumerate_sizes
from scipy.special import expit, log_expit

from mlrh._simd import LANES, empty_lanes, exp_minus_abs, exp_of_negative, load, store
from mlrh.spaces._kernels import dispatch, divide_and_conquer, lanes, plain, wide_range

WIDTHS = [1, 31, 32, 33, 64, 65, 200]
N_ROWS = 9


def rounded_tilts(numbers):
    """Multiples of 1/64, as `tilted` makes them: their product with a size is exact."""
    return np.round(numbers * 64) / 64


def expectations(kernels, scores, size_bias, *tilts):
    """log_partition, marginals and pmf; all rows must be done if there are tilts."""
    n_rows, n_labels = scores.shape
    outputs = np.full(n_rows, np.nan), np.full((n_rows, n_labels), np.nan), np.full((n_rows, len(size_bias)), np.nan)
    todo = np.ones(n_rows, bool)
    kernels.expectations(scores, size_bias, todo, *tilts, *outputs)
    assert todo.any() != bool(tilts)
    return outputs


def sizes(kernels, scores, size_bias, *tilts):
    outputs = np.full(len(scores), np.nan), np.full((len(scores), len(size_bias)), np.nan)
    kernels.sizes(scores, size_bias, np.ones(len(scores), bool), *tilts, *outputs)
    return outputs


def curvature(kernels, scores, size_bias, directions, *tilts):
    outputs = np.full(scores.shape, np.nan), np.full((len(scores), len(size_bias)), np.nan)
    kernels.curvature(scores, size_bias, *directions, np.ones(len(scores), bool), *tilts, *outputs)
    return outputs


def assert_agree(scores, size_bias, tilts, kernels=divide_and_conquer):
    """All three kernels agree with those without a limit of range."""
    rng = np.random.default_rng(7)
    directions = rng.normal(size=scores.shape), rng.normal(size=len(size_bias))
    log_partition, marginals, pmf = expectations(wide_range, scores, size_bias)
    scale = 1.0 + (1.0 + np.abs(scores)).sum(axis=1) + np.abs(size_bias[np.isfinite(size_bias)]).max()
    for got in (
        expectations(kernels, scores, size_bias, tilts),
        sizes(kernels, scores, size_bias, tilts),
    ):
        assert (np.abs(got[0] - log_partition) <= 1e-14 * scale).all()
        np.testing.assert_allclose(got[-1], pmf, rtol=1e-12, atol=1e-290)
    np.testing.assert_allclose(expectations(kernels, scores, size_bias, tilts)[1], marginals, rtol=1e-12, atol=1e-290)
    for got, expected in zip(
        curvature(kernels, scores, size_bias, directions, tilts),
        curvature(wide_range, scores, size_bias, directions),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12 * max(1.0, np.abs(expected).max()))


SHAPES = [
    (n_labels, max_labels)
    for n_labels in WIDTHS
    for max_labels in sorted({1, 2, 7, 8, n_labels // 2, n_labels - 1, n_labels})
    if 1 <= max_labels <= n_labels
]


@pytest.mark.parametrize(("n_labels", "max_labels"), SHAPES)
def test_any_width_and_any_largest_size_agree_with_the_recurrence_without_limits(n_labels, max_labels):
    rng = np.random.default_rng(n_labels + max_labels)
    scores, tilts = rng.normal(scale=2, size=(N_ROWS, n_labels)), rounded_tilts(rng.normal(size=N_ROWS))
    assert_agree(scores, rng.normal(size=max_labels + 1), tilts)


@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 17])
@pytest.mark.parametrize(("n_labels", "size_bias"), [(1, [0.0, 1.0]), (5, [-np.inf, 0.3, -1.0]), (9, np.zeros(10))])
def test_any_number_of_rows_in_lanes_agrees_with_the_recurrence_without_limits(n_rows, n_labels, size_bias):
    rng = np.random.default_rng(n_rows)
    scores, tilts = rng.normal(scale=3, size=(n_rows, n_labels)), rounded_tilts(rng.normal(size=n_rows))
    assert_agree(scores, np.array(size_bias), tilts, lanes)


@pytest.mark.parametrize("n_labels", [32, 33, 65, 200])
def test_impossible_sizes_convex_biases_and_ties_agree_with_the_recurrence_without_limits(n_labels):
    rng = np.random.default_rng(0)
    scores, tilts = rng.normal(size=(N_ROWS, n_labels)), rounded_tilts(rng.normal(size=N_ROWS))
    impossible = rng.normal(size=n_labels // 2)
    impossible[[0, 1, 9, -2]] = -np.inf
    assert_agree(scores, impossible, tilts)
    assert (expectations(divide_and_conquer, scores, impossible, tilts)[2][:, [0, 1, 9, -2]] == 0).all()
    assert_agree(scores, 150.0 * np.linspace(-1, 1, n_labels + 1) ** 2, rounded_tilts(tilts * 0.1))
    ties = np.repeat(np.array([[-1.0], [0.0], [2.0]]), n_labels, axis=1)
    assert_agree(ties, np.zeros(n_labels // 2), rounded_tilts(np.array([0.5, -0.25, -2.5])))


@pytest.mark.parametrize(("n_labels", "max_labels"), [(32, 5), (65, 20), (200, 100), (200, 200)])
def test_scores_of_ten_thousand_agree_with_no_limits_under_a_tilt(n_labels, max_labels):
    rng = np.random.default_rng(2)
    scores = rng.choice([-1e4, 1e4], size=(N_ROWS, n_labels)) + rng.normal(size=(N_ROWS, n_labels))
    size_bias = np.zeros(max_labels + 1)
    size_bias[0] = -np.inf
    tilts = np.zeros(N_ROWS)
    plain.towards_mode(scores, size_bias, np.ones(N_ROWS, bool), tilts)
    assert_agree(scores, size_bias, tilts)


def test_one_set_of_size_zero_is_certain_with_no_labels_and_with_none_allowed():
    for scores in (np.empty((3, 0)), np.ones((3, 70))):
        log_partition, marginals, pmf = expectations(divide_and_conquer, scores, np.array([1.5]), np.zeros(3))
        np.testing.assert_allclose(log_partition, 1.5, rtol=0, atol=1e-12)
        assert (marginals == 0).all()
        np.testing.assert_allclose(pmf, 1.0, rtol=1e-15)


def test_two_leaves_agree_with_the_sum_over_all_label_sets():
    scores = np.random.default_rng(3).normal(size=34)
    brute = enumerate_sizes(scores, 0, 2, np.array([0.1, -0.3, 0.7]))
    log_partition, marginals, pmf = expectations(
        divide_and_conquer, scores[None], np.array([0.1, -0.3, 0.7]), np.full(1, -3.0)
    )
    np.testing.assert_allclose(log_partition, brute.log_partition(), rtol=1e-14)
    np.testing.assert_allclose(marginals[0], brute.marginals(), rtol=1e-13)
    np.testing.assert_allclose(pmf[0], brute.cardinality_pmf()[:3], rtol=1e-13)


def test_all_sizes_of_two_thousand_labels_are_as_many_binary_regressions():
    scores = np.random.default_rng(4).normal(scale=3, size=(N_ROWS, 2000))
    log_partition, marginals, _ = expectations(divide_and_conquer, scores, np.zeros(2001), np.zeros(N_ROWS))
    np.testing.assert_allclose(log_partition, -log_expit(-scores).sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(marginals, expit(scores), rtol=1e-11)


def test_the_covariances_of_independent_labels_are_those_of_binary_regressions():
    rng = np.random.default_rng(5)
    scores, direction = rng.normal(scale=2, size=(2, N_ROWS, 500))
    d_marginals, _ = curvature(divide_and_conquer, scores, np.zeros(501), (direction, np.zeros(501)), np.zeros(N_ROWS))
    np.testing.assert_allclose(d_marginals, expit(scores) * expit(-scores) * direction, rtol=1e-9, atol=1e-12)


def test_equal_scores_have_binomial_sizes_with_all_digits_far_into_the_tails():
    n_labels = 2000
    _, pmf = sizes(divide_and_conquer, np.zeros((1, n_labels)), np.zeros(n_labels + 1), np.zeros(1))
    expected = np.array([math.comb(n_labels, j) / 2**n_labels for j in range(n_labels + 1)])
    far = expected < 1e-100
    assert far.sum() > 500
    np.testing.assert_allclose(pmf[0], expected, rtol=1e-11, atol=1e-290)
    assert ((pmf == 0) | (pmf >= np.finfo(float).tiny)).all()  # arithmetic on denormal numbers is slow


@pytest.mark.parametrize(("n_labels", "max_labels"), [(31, 9), (64, 64), (150, 40)])
def test_curvature_is_the_derivative_of_marginals_and_sizes(n_labels, max_labels):
    rng = np.random.default_rng(6)
    scores, direction = rng.normal(size=(2, N_ROWS, n_labels))
    size_bias, bias_direction = rng.normal(size=(2, max_labels + 1))
    size_bias[0] = -np.inf
    tilts = rounded_tilts(rng.normal(size=N_ROWS) * 0.5)
    got = curvature(divide_and_conquer, scores, size_bias, (direction, bias_direction), tilts)
    for which, d in zip((1, 2), got, strict=True):
        difference = central_difference(
            lambda t, which=which: expectations(
                divide_and_conquer, scores + t * direction, size_bias + t * bias_direction, tilts
            )[which]
        )
        np.testing.assert_allclose(d, difference, rtol=1e-6, atol=1e-8)


def test_rows_that_are_not_todo_are_left_as_they_were():
    rng = np.random.default_rng(8)
    scores, size_bias, todo = rng.normal(size=(20, 70)), np.zeros(30), rng.random(20) < 0.5
    outputs = np.full(20, np.nan), np.full((20, 70), np.nan), np.full((20, 30), np.nan)
    marked = todo.copy()
    divide_and_conquer.expectations(scores, size_bias, todo, np.full(20, -0.5), *outputs)
    assert not todo.any()
    for out in outputs:
        assert np.isnan(out[~marked]).all()
        assert np.isfinite(out[marked]).all()


def test_unsafe_rows_stay_marked_and_unwritten_among_safe_ones():
    scores, size_bias = np.full((11, 70), -1e4), np.full(3, 0.0)
    size_bias[0] = -np.inf
    scores[[2, 9]] = -4.0
    todo = np.ones(11, bool)
    outputs = np.full(11, np.nan), np.full((11, 70), np.nan), np.full((11, 3), np.nan)
    changes = np.full((11, 70), np.nan), np.full((11, 3), np.nan)
    divide_and_conquer.expectations(scores, size_bias, todo, np.zeros(11), *outputs)
    assert np.flatnonzero(~todo).tolist() == [2, 9]
    again = np.ones(11, bool)
    divide_and_conquer.curvature(scores, size_bias, np.ones((11, 70)), np.zeros(3), again, np.zeros(11), *changes)
    assert (again == todo).all()
    for out in outputs + changes:
        assert np.isnan(out[todo]).all()
        assert np.isfinite(out[~todo]).all()


def test_inputs_are_unchanged():
    rng = np.random.default_rng(9)
    inputs = rng.normal(size=(5, 40)), rng.normal(size=20), rng.normal(size=(5, 40)), rng.normal(size=20)
    copies = [array.copy() for array in inputs]
    curvature(divide_and_conquer, *inputs[:2], inputs[2:], np.zeros(5))
    expectations(divide_and_conquer, *inputs[:2], np.zeros(5))
    for array, copy in zip(inputs, copies, strict=True):
        assert (array == copy).all()


@pytest.mark.parametrize(("n_rows", "n_labels", "max_labels"), [(21, 7, 3), (11, 180, 180)])
def test_a_row_has_the_same_results_to_the_last_bit_alone_and_among_others(n_rows, n_labels, max_labels):
    scores, size_bias = np.random.default_rng(10).normal(scale=4, size=(n_rows, n_labels)), np.zeros(max_labels + 1)
    together = dispatch.expectations(scores, size_bias, np.ones(n_rows))
    for i in range(n_rows):
        alone = dispatch.expectations(scores[i : i + 1], size_bias, np.ones(1))
        assert alone[0][0] == together[0][i]
        assert (alone[1][0] == together[1][i]).all()


def test_two_thousand_labels_of_any_size_go_through_the_tree_and_agree_with_the_recurrence():
    scores, size_bias = np.random.default_rng(11).normal(size=(8, 2000)), np.zeros(2001)
    size_bias[0] = -np.inf
    assert dispatch._kernels("expectations", scores, size_bias)[0] is divide_and_conquer.expectations
    assert dispatch._kernels("sizes", scores, size_bias)[0] is divide_and_conquer.sizes
    got = dispatch.expectations(scores, size_bias, np.ones(8))
    log_partition, marginals, pmf = expectations(lanes, scores, size_bias, np.zeros(8))
    np.testing.assert_allclose(got[0], log_partition, rtol=1e-13)
    np.testing.assert_allclose(got[1], marginals, rtol=1e-11)
    np.testing.assert_allclose(got[2], pmf.sum(axis=0), rtol=1e-11, atol=1e-290)


def test_few_sizes_stay_with_the_recurrence():
    scores = np.zeros((1, 1000))
    assert dispatch._kernels("expectations", scores, np.zeros(26))[0] is lanes.expectations
    assert dispatch._kernels("curvature", scores, np.zeros(4))[0] is lanes.curvature


@pytest.mark.parametrize("shift", [0.0, 40.0, -40.0])
def test_curvature_agrees_with_the_recurrence_where_rows_need_a_tilt(shift):
    rng = np.random.default_rng(12)
    scores, direction = rng.normal(size=(2, N_ROWS, 600))
    size_bias, bias_direction = np.zeros(101), rng.normal(size=101)
    got = dispatch.curvature(scores + shift, size_bias, direction, bias_direction, np.ones(N_ROWS))
    tilts = np.zeros(N_ROWS)
    plain.towards_mode(scores + shift, size_bias, np.ones(N_ROWS, bool), tilts)
    expected = curvature(lanes, scores + shift, size_bias, (direction, bias_direction), tilts)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(got[1], expected[1].sum(axis=0), rtol=1e-11, atol=1e-12)


def test_the_number_of_threads_does_not_change_a_bit():
    scores, weights = np.random.default_rng(13).normal(size=(50, 300)), np.linspace(0, 1, 50)
    one, three = (dispatch.expectations(scores, np.zeros(301), weights, n_jobs=n_jobs) for n_jobs in (1, 3))
    for alone, shared in zip(one, three, strict=True):
        assert (alone == shared).all()


def test_float32_scores_give_the_rounded_results_of_float64():
    scores = np.random.default_rng(14).normal(size=(10, 300)).astype(np.float32)
    narrow = dispatch.expectations(scores, np.zeros(201), np.ones(10))
    wide = dispatch.expectations(scores.astype(np.float64), np.zeros(201), np.ones(10))
    assert narrow[0].dtype == narrow[1].dtype == np.float32
    assert (narrow[0] == wide[0].astype(np.float32)).all()
    assert (narrow[1] == wide[1].astype(np.float32)).all()


PEAK = """
import resource
from pathlib import Path
import numpy as np
from mlrh._simd import LANES, empty_lanes, exp_minus_abs, load, store
from mlrh.spaces._kernels import dispatch

def peak():
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10

def infer(n_rows, n_labels):
    scores, size_bias = np.zeros((n_rows, n_labels)), np.zeros(n_labels + 1)
    dispatch.expectations(scores, size_bias, np.ones(n_rows), n_jobs=1)
    dispatch.curvature(scores, size_bias, scores, size_bias, np.ones(n_rows), n_jobs=1)

infer(1, 200)
if Path("/proc/self/clear_refs").exists():
    Path("/proc/self/clear_refs").write_text("5")
before = peak()
infer(64, 2000)
print(peak() - before)
"""


def test_two_thousand_labels_of_any_size_take_less_than_64_mib():
    result = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 1.0 < float(result.stdout) < 64.0


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


@njit
def exponentials_for(like, numbers, result):
    for row in range(len(numbers)):
        store(result, row, exp_of_negative(load(numbers, row), like))


def exp_for(dtype, numbers):
    padded = np.zeros((-(-len(numbers) // LANES), LANES))
    padded.ravel()[: len(numbers)] = numbers
    result = np.empty_like(padded)
    exponentials_for(np.empty(0, dtype), padded, result)
    return result.ravel()[: len(numbers)]


def test_the_exponential_for_float32_is_within_a_hundred_millionth():
    numbers = np.concatenate([np.linspace(-700, 0, 70_001), -np.geomspace(1e-300, 1, 2000)])
    expected = np.array([math.exp(x) for x in numbers])
    assert (np.abs(exp_for(np.float32, numbers) - expected) <= 1e-8 * expected).all()


def test_the_exponential_for_float32_is_zero_below_its_range_and_nan_of_nan():
    numbers = np.array([0.0, -0.0, -700.1, -1e5, -1e300, -np.inf, np.nan])
    assert np.array_equal(exp_for(np.float32, numbers), [1, 1, 0, 0, 0, 0, np.nan], equal_nan=True)


def test_the_exponential_for_float64_has_all_digits():
    numbers = -np.geomspace(1e-3, 700.0, 1000)
    np.testing.assert_allclose(exp_for(np.float64, numbers), [math.exp(x) for x in numbers], rtol=4e-16)
    assert (exp_for(np.float64, np.array([-750.0, -1e300, -np.inf])) == 0).all()


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


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_rows_of_lanes_begin_a_line_of_the_cache(n):
    lanes_of = njit(lambda n: empty_lanes(n))
    made = [lanes_of(n) for _ in range(5)]
    assert [array.shape for array in made] == [(n, LANES)] * 5
    assert all(array.ctypes.data % 64 == 0 for array in made)
