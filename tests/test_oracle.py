"""Every case of the oracle, at the precision it is stated with, by both implementations of the sums."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlrh.spaces import CardinalitySpace, ObservedSpace
from mlrh.spaces._kernels import lanes, plain, wide_range

FOLDER = Path(__file__).parent / "oracle"
CARDINALITY = json.loads((FOLDER / "cardinality.json").read_text())
OBSERVED = json.loads((FOLDER / "observed.json").read_text())
ABSOLUTE = 1e-12


def by_name(cases):
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


every_cardinality_case = by_name(CARDINALITY)
every_listed_case = by_name([case for case in CARDINALITY if "sets" in case])
every_observed_case = by_name(OBSERVED)


@every_cardinality_case
def test_cardinality_log_partition_equals_the_oracle(case):
    assert distribution(case).log_partition()[0] == pytest.approx(
        case["log_partition"], rel=0, abs=log_partition_tolerance(case)
    )


@every_cardinality_case
def test_cardinality_marginals_equal_the_oracle(case):
    np.testing.assert_allclose(distribution(case).marginals()[0], case["marginals"], rtol=0, atol=ABSOLUTE)


@every_cardinality_case
def test_cardinality_pmf_equals_the_oracle(case):
    np.testing.assert_allclose(distribution(case).cardinality_pmf()[0], case["cardinality_pmf"], rtol=0, atol=ABSOLUTE)


@by_name([case for case in CARDINALITY if case["mode_is_unique"]])
def test_cardinality_mode_equals_the_oracle_where_it_is_unique(case):
    assert distribution(case).mode()[0].tolist() == case["mode"]


@every_cardinality_case
def test_cardinality_mode_has_the_log_prob_of_the_oracle(case):
    d = distribution(case)
    (tolerance,) = log_prob_tolerances(case, [case["mode"]])
    assert d.log_prob(d.mode())[0] == pytest.approx(case["mode_log_prob"], rel=0, abs=tolerance)


@every_listed_case
def test_cardinality_log_prob_of_every_set_equals_the_oracle(case):
    error = np.abs(log_probs_of_listed_sets(case) - case["log_probs"])
    assert (error <= log_prob_tolerances(case, case["sets"])).all()


@every_listed_case
def test_cardinality_log_prob_is_never_above_0(case):
    assert log_probs_of_listed_sets(case).max() <= 0


@every_listed_case
def test_cardinality_top_sets_of_the_whole_space_are_the_listed_sets(case):
    sets, _ = distribution(case).top_sets(len(case["sets"]))
    assert sorted(sets[0].tolist()) == sorted(case["sets"])


@every_listed_case
def test_cardinality_top_sets_carry_the_sorted_log_probs(case):
    _, log_probs = distribution(case).top_sets(len(case["sets"]))
    tolerance = log_prob_tolerances(case, case["sets"]).max()
    np.testing.assert_allclose(log_probs[0], sorted(case["log_probs"], reverse=True), rtol=0, atol=tolerance)


@every_listed_case
def test_cardinality_top_sets_fall_in_log_prob(case):
    _, log_probs = distribution(case).top_sets(len(case["sets"]))
    assert (np.diff(log_probs[0]) <= 0).all()


@every_listed_case
def test_cardinality_curvature_along_each_label_equals_the_oracle_covariance(case):
    n_labels, space = len(case["scores"]), space_of(case)
    rows = np.tile(case["scores"], (n_labels, 1))
    covariance, _ = space.curvature(rows, np.eye(n_labels), np.zeros(space.n_biases), np.ones(n_labels))
    expected = np.array(case["pair_marginals"]) - np.outer(case["marginals"], case["marginals"])
    np.testing.assert_allclose(covariance, expected, rtol=0, atol=ABSOLUTE)


@every_cardinality_case
def test_scaled_log_partition_equals_the_oracle(case):
    log_partition, _, _ = scaled_expectations(case)
    assert log_partition == pytest.approx(case["log_partition"], rel=0, abs=log_partition_tolerance(case))


@every_cardinality_case
def test_scaled_marginals_equal_the_oracle(case):
    _, marginals, _ = scaled_expectations(case)
    np.testing.assert_allclose(marginals, case["marginals"], rtol=0, atol=ABSOLUTE)


@every_cardinality_case
def test_scaled_pmf_equals_the_oracle(case):
    _, _, pmf = scaled_expectations(case)
    np.testing.assert_allclose(pmf, case["cardinality_pmf"][: len(pmf)], rtol=0, atol=ABSOLUTE)


@every_listed_case
def test_scaled_log_prob_of_every_set_equals_the_oracle(case):
    error = np.abs(scaled_log_probs(case) - case["log_probs"])
    assert (error <= log_prob_tolerances(case, case["sets"])).all()


@every_listed_case
def test_scaled_log_prob_is_never_above_0(case):
    assert scaled_log_probs(case).max() <= 0


@by_name([case for case in CARDINALITY if case["size_bias"] is None])
def test_a_tilt_is_enough_for_every_row_without_size_bias(case):
    assert not is_beyond_tilts(case)


@by_name([case for case in CARDINALITY if case["name"] == "convex-bias"])
def test_the_convex_bias_is_left_to_the_scaled_recurrence(case):
    assert is_beyond_tilts(case)


@every_observed_case
def test_observed_log_partition_equals_the_oracle(case):
    assert distribution(case).log_partition()[0] == pytest.approx(
        case["log_partition"], rel=0, abs=log_partition_tolerance(case)
    )


@every_observed_case
def test_observed_marginals_equal_the_oracle(case):
    np.testing.assert_allclose(distribution(case).marginals()[0], case["marginals"], rtol=0, atol=ABSOLUTE)


@every_observed_case
def test_observed_pmf_equals_the_oracle_probabilities_added_by_size(case):
    sizes = np.sum(case["sets"], axis=1)
    expected = np.bincount(sizes, weights=np.exp(case["log_probs"]), minlength=len(case["scores"]) + 1)
    np.testing.assert_allclose(distribution(case).cardinality_pmf()[0], expected, rtol=0, atol=ABSOLUTE)


@by_name([case for case in OBSERVED if case["mode_is_unique"]])
def test_observed_mode_equals_the_oracle_where_it_is_unique(case):
    assert distribution(case).mode()[0].tolist() == case["mode"]


@every_observed_case
def test_observed_log_prob_of_every_set_equals_the_oracle(case):
    error = np.abs(log_probs_of_listed_sets(case) - case["log_probs"])
    assert (error <= log_prob_tolerances(case, case["sets"])).all()


@every_observed_case
def test_observed_log_prob_is_never_above_0(case):
    assert log_probs_of_listed_sets(case).max() <= 0


@every_observed_case
def test_observed_top_sets_carry_the_sorted_log_probs(case):
    _, log_probs = distribution(case).top_sets(len(case["sets"]))
    tolerance = log_prob_tolerances(case, case["sets"]).max()
    np.testing.assert_allclose(log_probs[0], sorted(case["log_probs"], reverse=True), rtol=0, atol=tolerance)


@every_observed_case
def test_observed_top_sets_of_the_whole_space_are_the_listed_sets(case):
    sets, _ = distribution(case).top_sets(len(case["sets"]))
    assert sorted(sets[0].tolist()) == sorted(case["sets"])


def distribution(case, repeats=1):
    """The distribution of the case's scores, in `repeats` equal rows."""
    return space_of(case).distribution(np.tile(case["scores"], (repeats, 1)))


def space_of(case):
    if "set_bias" in case:
        return ObservedSpace(case["sets"], case["set_bias"])
    return CardinalitySpace(len(case["scores"]), case["min_labels"], case["max_labels"], case["size_bias"])


def log_probs_of_listed_sets(case):
    return distribution(case, repeats=len(case["sets"])).log_prob(case["sets"])


def scaled_expectations(case):
    """Log-partition, marginals and pmf of the row by the kernels of `scaled` alone."""
    scores, bias = kernel_inputs(case)
    log_partition, marginals, pmf = np.empty(1), np.empty_like(scores), np.empty((1, len(bias)))
    wide_range.expectations(scores, bias, np.ones(1, bool), log_partition, marginals, pmf)
    return log_partition[0], marginals[0], pmf[0]


def scaled_log_probs(case):
    scores, bias = kernel_inputs(case)
    log_probs = np.empty((1, len(case["sets"])))
    wide_range.log_prob(scores, bias, np.array([case["sets"]], np.int8), np.ones(1, bool), log_probs)
    return log_probs[0]


def is_beyond_tilts(case):
    scores, bias = kernel_inputs(case)
    todo, tilts = np.ones(1, bool), np.zeros(1)
    plain.towards_mode(scores, bias, todo, tilts)
    lanes.sizes(scores, bias, todo, tilts, np.empty(1), np.empty((1, len(bias))))
    return todo[0]


def kernel_inputs(case):
    """Scores as a block of one row, and biases with -inf for sizes that aren't admissible."""
    bias = np.zeros(len(case["scores"]) + 1) if case["size_bias"] is None else np.array(case["size_bias"])
    bias[: case["min_labels"]] = -np.inf
    return np.array([case["scores"]]), bias[: case["max_labels"] + 1].copy()


def log_partition_tolerance(case):
    in_mode = np.abs(case["scores"]) @ np.array(case["mode"])
    return ABSOLUTE * max(1, abs(case["log_partition"]), in_mode, largest_bias(case))


def log_prob_tolerances(case, sets):
    return ABSOLUTE * np.maximum(np.array(sets) @ np.abs(case["scores"]), max(1, largest_bias(case)))


def largest_bias(case):
    biases = case["set_bias"] if "set_bias" in case else case["size_bias"]
    return 0 if biases is None else np.abs(biases).max()
