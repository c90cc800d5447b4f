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


EVERY = CARDINALITY + OBSERVED
every_case = by_name(EVERY)
every_cardinality_case = by_name(CARDINALITY)
with_listed_sets = by_name([case for case in EVERY if "sets" in case])
with_pairs = by_name([case for case in CARDINALITY if "pair_marginals" in case])
with_known_labels = by_name([case for case in CARDINALITY if "conditioned" in case])


@every_case
def test_log_partition_equals_the_oracle(case):
    for log_partition in (distribution(case).log_partition()[0], *scaled_expectations(case)[:1]):
        assert log_partition == pytest.approx(case["log_partition"], rel=0, abs=log_partition_tolerance(case))


@every_case
def test_marginals_equal_the_oracle(case):
    for marginals in (distribution(case).marginals()[0], *scaled_expectations(case)[1:2]):
        np.testing.assert_allclose(marginals, case["marginals"], rtol=0, atol=ABSOLUTE)


@every_case
def test_pmf_equals_the_oracle(case):
    expected = case.get("cardinality_pmf")
    if expected is None:
        sizes = np.sum(case["sets"], axis=1)
        expected = np.bincount(sizes, weights=np.exp(case["log_probs"]), minlength=len(case["scores"]) + 1)
    for pmf in (distribution(case).cardinality_pmf()[0], *scaled_expectations(case)[2:]):
        np.testing.assert_allclose(pmf, expected[: len(pmf)], rtol=0, atol=ABSOLUTE)


@by_name([case for case in EVERY if case["mode_is_unique"]])
def test_mode_equals_the_oracle_where_it_is_unique(case):
    assert distribution(case).mode()[0].tolist() == case["mode"]


@every_cardinality_case
def test_mode_has_the_log_prob_of_the_oracle(case):
    d = distribution(case)
    (tolerance,) = log_prob_tolerances(case, [case["mode"]])
    assert d.log_prob(d.mode())[0] == pytest.approx(case["mode_log_prob"], rel=0, abs=tolerance)


@with_listed_sets
def test_log_prob_of_every_set_equals_the_oracle_and_is_never_above_0(case):
    listed = distribution(case, repeats=len(case["sets"])).log_prob(case["sets"])
    for log_probs in (listed, *scaled_log_probs(case)):
        assert (np.abs(log_probs - case["log_probs"]) <= log_prob_tolerances(case, case["sets"])).all()
        assert log_probs.max() <= 0


@with_listed_sets
def test_top_sets_of_the_whole_space_are_the_listed_sets_by_falling_log_prob(case):
    sets, log_probs = distribution(case).top_sets(len(case["sets"]))
    assert sorted(sets[0].tolist()) == sorted(case["sets"])
    assert (np.diff(log_probs[0]) <= 0).all()
    tolerance = log_prob_tolerances(case, case["sets"]).max()
    np.testing.assert_allclose(log_probs[0], sorted(case["log_probs"], reverse=True), rtol=0, atol=tolerance)


@with_pairs
def test_curvature_along_each_label_equals_the_oracle_covariance(case):
    n_labels, space = len(case["scores"]), space_of(case)
    rows = np.tile(case["scores"], (n_labels, 1))
    covariance, _ = space.curvature(rows, np.eye(n_labels), np.zeros(space.n_biases), np.ones(n_labels))
    expected = np.array(case["pair_marginals"]) - np.outer(case["marginals"], case["marginals"])
    np.testing.assert_allclose(covariance, expected, rtol=0, atol=ABSOLUTE)


@with_pairs
def test_entropy_equals_the_oracle(case):
    for entropy in (distribution(case).entropy()[0], scaled_answer(wide_range.entropy, case, ())):
        # Below 1e-50 the oracle's own digits are not enough for the term of the nearly certain set.
        assert entropy == pytest.approx(case["entropy"], rel=1e-10, abs=1e-50)


@with_pairs
def test_joint_marginals_equal_the_oracle(case):
    scaled = scaled_answer(wide_range.joint_marginals, case, 2 * (len(case["scores"]),))
    for joint in (distribution(case).joint_marginals()[0], scaled):
        np.testing.assert_allclose(joint, case["pair_marginals"], rtol=0, atol=ABSOLUTE)


@with_pairs
def test_any_of_two_labels_is_what_their_joint_marginals_say(case):
    group, pairs = np.arange(len(case["scores"])) < 2, np.array(case["pair_marginals"])
    expected = np.diag(pairs)[:2].sum() - (pairs[0, 1] if len(pairs) > 1 else 0)
    for any_of in (distribution(case).any_of(group)[0], scaled_answer(wide_range.any_of, case, (), group[None])):
        assert any_of == pytest.approx(expected, rel=0, abs=ABSOLUTE)


@with_known_labels
def test_answers_given_known_labels_equal_the_oracle(case):
    d, given = distribution(case), case["conditioned"]
    known = np.array([given["known"]], float)
    np.testing.assert_allclose(d.condition(known).marginals()[0], given["marginals"], rtol=0, atol=ABSOLUTE)
    assert d.log_prob_of_known(known)[0] == pytest.approx(given["log_prob_of_known"], rel=1e-12, abs=1e-12)


@by_name([case for case in CARDINALITY if case["size_bias"] is None or case["name"] == "convex-bias"])
def test_a_tilt_is_enough_for_every_row_without_size_bias_and_not_for_the_convex_one(case):
    assert is_beyond_tilts(case) == (case["name"] == "convex-bias")


def distribution(case, repeats=1):
    """The distribution of the case's scores, in `repeats` equal rows."""
    return space_of(case).distribution(np.tile(case["scores"], (repeats, 1)))


def space_of(case):
    if "set_bias" in case:
        return ObservedSpace(case["sets"], case["set_bias"])
    return CardinalitySpace(len(case["scores"]), case["min_labels"], case["max_labels"], case["size_bias"])


def scaled_expectations(case):
    """Log-partition, marginals and pmf by the kernels without a limit of range alone; none of listed sets."""
    if "set_bias" in case:
        return ()
    scores, bias = kernel_inputs(case)
    log_partition, marginals, pmf = np.empty(1), np.empty_like(scores), np.empty((1, len(bias)))
    wide_range.expectations(scores, bias, np.ones(1, bool), log_partition, marginals, pmf)
    return log_partition[0], marginals[0], pmf[0]


def scaled_log_probs(case):
    sets = np.array([case["sets"]], np.int8)
    return () if "set_bias" in case else (scaled_answer(wide_range.log_prob, case, sets.shape[1:2], sets),)


def scaled_answer(kernel, case, shape, *inputs):
    """The answer of a kernel without a limit of range alone."""
    result = np.empty((1, *shape))
    kernel(*kernel_inputs(case), *inputs, np.ones(1, bool), result)
    return result[0]


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
