"""The forward kernel in Triton's interpreter: groups of rows, who finishes them, and products by a scan over lanes.

As in test_torch_kernels.py this file also is a script, which computes all in a process where Triton interprets.
"""

import itertools
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from test_torch_kernels import as_listed, case, dense_targets, exact, exact_gradient, interpreted, partly

from mlrh.torch._triton.forward import COUNTS, TAG, is_last, open_counter
from mlrh.torch._triton.polynomials import combined, constant, scaled_label, times_label

REDUCTIONS = ("none", "sum", "mean")
GARBAGE = {"zeros": 0, "ones": -1, "numbers": 0x3F8000003F800000, "nearly a tag": (TAG.value ^ 1) * COUNTS.value + 5}


def make_cases():
    """Inputs with few tiles for the GPU, so that programs read several where PROGRAMS is 1; last groups not full."""
    rng = np.random.default_rng(3)

    def normal(n_rows, n_labels, scale=1.0, shift=0.0):
        return scale * rng.standard_normal((n_rows, n_labels)) + shift

    likely = normal(11, 130, 0.5, -6)
    likely[:, ::30] += rng.normal(8, 2, (11, 5))
    cases = {
        "two programs in a group": case(normal(17, 513), 1, 4),
        "rows with likely labels": case(likely, 1, 4),
        "short rows": case(normal(40, 5), 0, 3),
        "chunks": case(normal(5, 600), 1, 4, chunk=520),
        "chunks with likely labels": case(likely[:7], 1, 4, chunk=64),
        "twelve labels in a set": case(normal(3, 40, 3), 1, 12),
    }
    chosen = ("rows with likely labels", "chunks with likely labels")
    others = {f"{name}, unknown": partly(cases[name]) for name in chosen}
    others |= {f"{name}, listed": as_listed(cases[name]) for name in chosen}
    return cases | others | {f"{name}, no targets": cases[name] | {"targets": None} for name in chosen}


CASES = make_cases()
KINDS = [(name, n) for name in CASES for n in ((1, 2048) if "likely" in name and "listed" not in name else (1,))]


def compute(name, n_programs, garbage=0):
    """Losses of rows, sum, mean and gradient of one case, and the numbers of launches; scratch is garbage first."""
    from mlrh.torch._triton import plan as plans
    from mlrh.torch._triton.launch import Launch

    one, launches, ordinary, empty = CASES[name], [], Launch.ordinary, plans.Shape.empty

    def counted(self, tensors, keep):
        launches.append(self.kernel)
        return ordinary(self, tensors, keep)

    def filled(self, scores, reduction):
        saved, scratch, loss = empty(self, scores, reduction)
        scratch[: len(scratch) // 2 * 2].view(torch.int64).fill_(garbage)
        return saved, scratch, loss

    plans.CHUNK, plans.PROGRAMS = one["chunk"], n_programs
    plans._PLANS.clear()
    Launch.ordinary, plans.Shape.empty = counted, filled
    inputs = [one[key] for key in ("scores", "targets", "log_weights")]
    plan = plans.plan(*inputs, one["min_labels"])
    found = {reduction: plan.forward(*inputs, reduction)[0] for reduction in REDUCTIONS}
    n_forward = len(launches)
    _, saved = plan.forward(*inputs)
    found["gradient"] = plan.backward(*inputs[:2], saved, one["grad"].to(found["none"].dtype))
    Launch.ordinary, plans.Shape.empty = ordinary, empty
    return found | {"launches": (n_forward, len(launches)), "group": plan.shape.group_tile(), "n": plan.shape.n_groups}


def compute_again():
    """Losses of a launch and of the same launch once more, on the memory that the first one left, as a graph does."""
    from mlrh.torch._triton import plan as plans

    one = CASES["chunks"]
    plans.CHUNK, plans.PROGRAMS = one["chunk"], 1
    plans._PLANS.clear()
    inputs = [one[key] for key in ("scores", "targets", "log_weights")]
    plan = plans.plan(*inputs, one["min_labels"])
    saved, scratch, loss = plan.shape.empty(inputs[0], "sum")
    pmf, numbers, values, counts, labels = plan.shape.parts(saved)
    results = []
    for _ in range(2):
        own = plan.shape.losses(scratch, loss, "sum")
        plan.loss["sum"].ordinary((*inputs, *own, numbers, values, pmf, counts, labels), False)
        results.append(loss.clone())
    n_words = 1 + plan.shape.n_groups
    return results, scratch[: 2 * n_words].view(torch.int64).clone()


@triton.jit
def count_to(counter, order, n_arrivals, OPEN: tl.constexpr):
    if OPEN:
        open_counter(counter)
    tl.store(order + tl.program_id(0), is_last(counter, n_arrivals).to(tl.int32))


@triton.jit
def multiply_others(scores, others_of, whole_of, MAX_LABELS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)[None, :]
    place = tl.arange(0, ROWS)[:, None] * LANES + lane
    off, on = scaled_label(tl.load(scores + place))
    one = constant(off * 0 + 1, MAX_LABELS)
    others, whole = combined(times_label(one, off, on, MAX_LABELS), MAX_LABELS)
    for j in tl.static_range(MAX_LABELS + 1):
        tl.store(others_of + place * (MAX_LABELS + 1) + j, others[j])
        tl.store(whole_of + place * (MAX_LABELS + 1) + j, whole[j])


def compute_counts():
    """Which of seven programs was the last, for words that held anything, opened first or not, and what is left."""
    found = {}
    for name, garbage in GARBAGE.items():
        for opened in (False, True):
            counter, order = torch.full((1,), garbage), torch.zeros(7, dtype=torch.int32)
            count_to[(7,)](counter, order, 7, opened)
            found[name, opened] = order.tolist(), counter.item()
    return found


SCANS = list(itertools.product((1, 4, 6), (2, 8)))


def scan_scores(n_lanes):
    scores = torch.tensor(np.random.default_rng(n_lanes).normal(0, 3, (4, n_lanes)))
    scores[1], scores[2, 0], scores[3] = torch.linspace(-1e4, 1e4, n_lanes), 1e5, -torch.inf
    return scores


def compute_scans():
    """Products over all other lanes and over all, for each degree and number of lanes."""
    found = {}
    for max_labels, n_lanes in SCANS:
        results = [torch.zeros(4, n_lanes, max_labels + 1, dtype=torch.float64) for _ in range(2)]
        multiply_others[(1,)](scan_scores(n_lanes), *results, max_labels, 4, n_lanes)
        found[max_labels, n_lanes] = results
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return interpreted(__file__, tmp_path_factory.mktemp("groups"))


def expected_losses(one):
    if one["targets"] is None:
        return exact(one).log_partition()
    return -exact(one).log_prob_of_known(dense_targets(one))


@pytest.mark.parametrize(("name", "n_programs"), KINDS)
def test_losses_and_gradients_do_not_depend_on_how_rows_are_grouped(results, name, n_programs):
    one, found = CASES[name], results["cases"][name, n_programs]
    np.testing.assert_allclose(found["none"], expected_losses(one), rtol=5e-7, atol=1e-6)
    gradient = one["grad"].double().numpy()[:, None] * exact_gradient(one)
    np.testing.assert_allclose(found["gradient"], gradient, atol=5e-7)


@pytest.mark.parametrize(("name", "n_programs"), KINDS)
def test_the_last_group_adds_up_the_losses_of_all(results, name, n_programs):
    found, losses = results["cases"][name, n_programs], expected_losses(CASES[name])
    np.testing.assert_allclose(found["sum"], losses.sum(), rtol=1e-6)
    np.testing.assert_allclose(found["mean"], losses.mean(), rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_forward_pass_is_one_launch_and_a_backward_pass_another(results, name):
    n_forward, n_all = results["cases"][name, 1]["launches"]
    assert n_forward == len(REDUCTIONS)
    assert n_all == n_forward + 2


def test_the_cases_have_several_groups_programs_in_a_group_and_tiles_in_a_program(results):
    groups = {name: results["cases"][name, 1]["group"] for name in CASES}
    n_groups = {name: results["cases"][name, 1]["n"] for name in CASES}
    assert groups["two programs in a group"][0] == 2 * groups["two programs in a group"][-1] == 16
    assert n_groups["two programs in a group"] == 2
    assert groups["rows with likely labels"][-1] > 1
    assert n_groups["rows with likely labels"] > 1
    assert groups["short rows"][0] > groups["short rows"][1]
    assert groups["chunks"][-1] > 1


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_memory_held_before_changes_nothing(results, garbage):
    found, expected = results["garbage"][garbage], results["cases"]["chunks", 1]
    for key in (*REDUCTIONS, "gradient"):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0)


def test_a_launch_repeated_on_the_same_memory_finds_the_same_and_leaves_counters_of_zero(results):
    (first, second), counters = results["again"]
    assert first == second
    assert not counters.any()


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_only_the_last_program_is_the_last_whatever_the_counter_held(results, garbage, opened):
    order, left = results["counts"][garbage, opened]
    assert order == [0] * 6 + [1]
    assert left == 0


def test_counts_fit_into_their_bits():
    from mlrh.torch._triton import LARGEST_BATCH

    assert COUNTS.value == 1 << 24
    assert 0 < TAG.value < 1 << 39
    assert COUNTS.value >= LARGEST_BATCH // 16


@pytest.mark.parametrize(("max_labels", "n_lanes"), SCANS)
def test_products_by_the_scan_equal_sums_over_all_subsets(results, max_labels, n_lanes):
    others, whole = results["scans"][max_labels, n_lanes]
    for row, scores in enumerate(scan_scores(n_lanes).numpy()):
        np.testing.assert_allclose(whole[row], [by_subsets(scores, max_labels)] * n_lanes, rtol=1e-10, atol=1e-300)
        for lane in range(n_lanes):
            expected = by_subsets(np.delete(scores, lane), max_labels)
            np.testing.assert_allclose(others[row, lane], expected, rtol=1e-10, atol=1e-300)


def by_subsets(scores, max_labels):
    """Sums over the subsets of j labels of their odds, over the product of all odds above 1, by enumeration."""
    scale, sums = np.maximum(scores, 0).sum(), []
    for size in range(max_labels + 1):
        subsets = [sum(chosen) for chosen in itertools.combinations(scores, size)]
        sums.append(np.exp(np.array(subsets) - scale).sum() if subsets else 0.0)
    return sums


if __name__ == "__main__":
    found = {"cases": {kind: compute(*kind) for kind in KINDS}}
    found["garbage"] = {key: compute("chunks", 1, value) for key, value in GARBAGE.items()}
    found |= {"again": compute_again(), "counts": compute_counts(), "scans": compute_scans()}
    torch.save(found, sys.argv[1])
