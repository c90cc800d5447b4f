"""The Triton kernels in Triton's interpreter, against the NumPy side.

The interpreter must be chosen before Triton is imported, so this file also is a script: it computes all cases in a
process of its own, once, and the tests look at what came out.
"""

import itertools
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl

from mlrh._files import lock
from mlrh.spaces import CardinalitySpace
from mlrh.torch import _triton, mlrh_loss
from mlrh.torch._eager import checks, operators
from mlrh.torch._triton import plan as plans
from mlrh.torch._triton.forward import COUNTS, TAG, is_last, open_counter
from mlrh.torch._triton.launch import Launch
from mlrh.torch._triton.polynomials import combined, constant, scaled_label, times_label, times_lane

MODEL_EXAMPLE = [[1e5, 500.0, 500.3, 499.0, -1e5]]
REDUCTIONS = ("none", "sum", "mean")
GARBAGE = {"zeros": 0, "ones": -1, "numbers": 0x3F8000003F800000, "nearly a tag": (TAG.value ^ 1) * COUNTS.value + 5}


def make_cases():
    """Inputs of `forward` by name; chunk is the number of labels that one program reads at once."""
    rng = np.random.default_rng(0)

    def normal(n_rows, n_labels, scale=1.0, shift=0.0):
        return scale * rng.standard_normal((n_rows, n_labels)) + shift

    spike = normal(6, 30)
    spike[:, 3] = 200
    rising = np.r_[0, np.arange(6) * 2.5 + [0, 1, -1, 0.5, 0, 2]]
    cases = {
        "normal scores": case(normal(5, 50), 1, 4),
        "few likely labels": case(normal(9, 50, 2, -5), 1, 4),
        "many labels in a set": case(normal(2, 60, 3), 1, 9),
        "float64": case(normal(4, 40, 3), 1, 4, dtype=torch.float64),
        "bfloat16": case(normal(4, 40, 3), 1, 4, dtype=torch.bfloat16),
        "float16": case(normal(4, 40, 3), 1, 4, dtype=torch.float16),
        "scores of +-1e4": case(1e4 * np.sign(normal(9, 40)), 1, 4),
        "the example of two scales": case(np.array(MODEL_EXAMPLE), 1, 3),
        "equal scores": case(np.full((3, 20), 5.0), 1, 3),
        "one label dominates": case(spike, 1, 4),
        "one label dominates, three wanted": case(spike - 300, 3, 4),
        "all sizes": case(normal(7, 6), 0, 6),
        "one size": case(normal(7, 9), 3, 3),
        "all labels": case(normal(7, 4), 4, 4),
        "one label": case(normal(7, 1), 0, 1),
        "softmax": case(normal(7, 33, 3), 1, 1),
        "size bias": case(normal(6, 30, 2, -2), 1, 6, size_bias=rising),
        "chunks": case(normal(4, 100)[:2], 1, 4, chunk=32),
        "chunks, few likely labels": case(normal(3, 90, 3, -5), 1, 4, chunk=32),
        "chunks, +-1e4": case(1e4 * np.sign(normal(5, 90)), 1, 4, chunk=32),
        "chunks, all below": case(normal(2, 100, 9, -50), 3, 4, chunk=32),
        "chunks, last one of four": case(normal(1, 100, 30, -40), 5, 5, chunk=32),
    }
    cases |= make_partial_cases(normal)
    listed = {f"{name}, listed": as_listed(cases[name]) for name in ("normal scores", "chunks", "one label dominates")}
    alone = {f"{name}, no targets": cases[name] | {"targets": None} for name in ("few likely labels", "chunks")}
    kinds = {f"{dtype} targets": dtype for dtype in (torch.bool, torch.int64, torch.uint8)}
    plain = cases["normal scores"]
    typed = {name: plain | {"targets": plain["targets"].to(dtype)} for name, dtype in kinds.items()}
    return cases | listed | alone | typed | make_grouped_cases(normal)


def make_partial_cases(normal):
    """Rows with none, some and all labels unknown, of which some have more labels than a set, or too few left."""
    bias = np.arange(5) * 2.5 + [0, 1, -1, 0.5, 0]
    return {
        "unknown": partly(case(normal(7, 30), 1, 4)),
        "unknown, float64": partly(case(normal(7, 30, 3), 1, 4, dtype=torch.float64)),
        "unknown, bfloat16": partly(case(normal(7, 30, 3), 1, 4, dtype=torch.bfloat16), torch.bfloat16),
        "unknown, many likely labels": partly(case(normal(7, 30, 3, 4), 1, 4)),
        "unknown, no heavy label": partly(case(normal(7, 200, 0.5), 1, 4)),
        "unknown, one size": partly(case(normal(7, 20, 3), 3, 3)),
        "unknown, +-1e4": partly(case(1e4 * np.sign(normal(7, 30)), 1, 4)),
        "unknown, two scales": partly(case(1e4 * normal(7, 30), 1, 4)),
        "unknown, all sizes": partly(case(normal(7, 6), 0, 6)),
        "unknown, softmax": partly(case(normal(7, 33, 3), 1, 1)),
        "unknown, many labels in a set": partly(case(normal(7, 20, 3), 1, 7)),
        "unknown, size bias": partly(case(normal(7, 30, 2, -2), 1, 4, size_bias=bias)),
        "unknown, chunks": partly(case(normal(7, 70, 2, -2), 1, 4, chunk=32)),
        "unknown, chunks, +-1e4": partly(case(1e4 * np.sign(normal(7, 60)), 1, 4, chunk=32)),
        "unknown, chunks, one size": partly(case(normal(7, 70, 9, -50), 3, 3, chunk=32)),
    }


def make_grouped_cases(normal):
    """Rows in groups that several programs read, or one program in several tiles; last groups are not full."""
    likely = normal(11, 130, 0.5, -6)
    likely[:, ::30] += normal(11, 5, 2, 8)
    cases = {
        "two programs in a group": case(normal(17, 513), 1, 4),
        "rows with likely labels": case(likely, 1, 4),
        "short rows": case(normal(40, 5), 0, 3),
        "two chunks": case(normal(5, 600)[:3], 1, 4, chunk=520),
        "chunks with likely labels": case(likely[:7], 1, 4, chunk=64),
        "twelve labels in a set": case(normal(3, 40, 3), 1, 12),
        "large sets": case(normal(18, 20, 3), 1, 17),
    }
    for name in ("rows with likely labels", "chunks with likely labels"):
        cases[f"{name}, unknown"] = partly(cases[name])
        cases[f"{name}, listed"] = as_listed(cases[name])
        cases[f"{name}, no targets"] = cases[name] | {"targets": None}
    few = {f"{name}, few programs": one | {"programs": 1} for name, one in cases.items()}
    return few | {name: one for name, one in cases.items() if "likely" in name and "listed" not in name}


def partly(one, dtype=torch.float32):
    """The case with unknown labels: none, a third, all, all but a full set, more labels than a set, too few, few."""
    known, max_labels = one["targets"].clone(), len(one["log_weights"]) - 1
    n_labels = known.shape[1]
    known[1][np.random.default_rng(2).random(n_labels) < 0.3] = np.nan
    known[2] = np.nan
    known[3], known[3, :max_labels] = np.nan, 1
    known[4], known[4, : max_labels + 1], known[4, -1] = 0, 1, np.nan
    known[5], known[5, 0] = 0, np.nan
    known[6], known[6, [0, -1]] = 0, np.nan
    return one | {"targets": known.to(dtype)}


def case(scores, min_labels, max_labels, *, size_bias=None, dtype=torch.float32, chunk=4096):
    log_weights = np.zeros(max_labels + 1) if size_bias is None else np.array(size_bias)
    log_weights[:min_labels] = -np.inf
    return {
        "scores": torch.tensor(scores).to(dtype),
        "targets": torch.tensor(draw_sets(*scores.shape, min_labels, max_labels)),
        "log_weights": torch.tensor(log_weights),
        "min_labels": min_labels,
        "chunk": chunk,
        "programs": 2048,
        "grad": torch.linspace(0.5, 2, len(scores)),
    }


def draw_sets(n_rows, n_labels, min_labels, max_labels):
    rng = np.random.default_rng(1)
    sizes = rng.integers(min_labels, max_labels + 1, n_rows)
    return np.array([rng.permutation(np.arange(n_labels) < size) for size in sizes], np.float32)


def as_listed(one):
    width = int(one["targets"].sum(1).max()) + 1
    rows = [row.nonzero()[:, 0].tolist() for row in one["targets"]]
    return one | {"targets": torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows])}


CASES = make_cases()
GROUPED = list(make_grouped_cases(lambda n_rows, n_labels, *_: np.zeros((n_rows, n_labels))))
FEW = [name for name in GROUPED if name.endswith("few programs")]
# One of each kind; the others are among the slow tests, since the interpreter takes seconds for each.
FAST = ["normal scores", "scores of +-1e4", "the example of two scales", "one label", "softmax", "float64", "bfloat16"]
FAST += ["chunks, +-1e4", "unknown", "unknown, +-1e4", "few likely labels, no targets", "two chunks, few programs"]
FAST += ["normal scores, listed", "torch.bool targets"]
WITH_PMF = [name for name, one in CASES.items() if name not in GROUPED and not name.endswith(("listed", "targets"))]


def compute(name, garbage=None):
    """Losses, sum, mean, gradient and size probabilities by the kernels; the scratch memory holds garbage first."""
    one, ordinary, empty, launched = CASES[name], Launch.ordinary, plans.Shape.empty, []

    def counted(self, tensors, keep):
        launched.append(tuple(None if tensor is None else tensor.dtype for tensor in tensors))
        return ordinary(self, tensors, keep)

    def filled(self, scores, reduction):
        saved, scratch, loss = empty(self, scores, reduction)
        if garbage is not None:
            scratch[: len(scratch) // 2 * 2].view(torch.int64).fill_(garbage)
        return saved, scratch, loss

    plans.CHUNK, plans.PROGRAMS = one["chunk"], one["programs"]
    plans._PLANS.clear()
    Launch.ordinary, plans.Shape.empty = counted, filled
    inputs = [one[key] for key in ("scores", "targets", "log_weights")]
    before = [None if value is None else value.clone() for value in inputs]
    plan = plans.plan(*inputs, one["min_labels"])
    loss, saved = plan.forward(*inputs)
    found = {"none": loss, "gradient": plan.backward(*inputs[:2], saved, one["grad"].to(loss.dtype))}
    found["launches"] = len(launched)
    found["expected types"] = launched == [plan.shape.forward_types(), plan.shape.gradient_types()]
    if name in FEW:
        found |= {reduction: plan.forward(*inputs, reduction)[0] for reduction in ("sum", "mean")}
    if name in WITH_PMF:
        alone = (one["scores"], None, one["log_weights"])
        _, saved = plans.plan(*alone, one["min_labels"]).forward(*alone)
        found["pmf"] = plans.cardinality_pmf(saved, one["scores"], one["log_weights"])
    Launch.ordinary, plans.Shape.empty = ordinary, empty
    found["unchanged"] = all(
        a is b is None or torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(before, inputs, strict=True)
    )
    return found


def compute_again():
    """Sums of a launch and of the same launch once more, on the memory that the first one left, as a graph does."""
    one = CASES["two chunks, few programs"]
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
    return results, scratch[: 2 * (1 + plan.shape.n_groups)].view(torch.int64).clone()


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
    others, window = combined(times_label(one, off, on, MAX_LABELS), MAX_LABELS)
    whole = times_lane(one, window, lane * 0 + tl.zeros((ROWS, LANES), tl.int32), MAX_LABELS)
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


def compute_outside():
    """Losses and gradients of sets that no size allows, and of a target that isn't known though all were said to be."""
    log_weights = torch.tensor([-torch.inf, 0.0, 0.0])
    dense = torch.zeros(4, 8)
    dense[1, :3], dense[2, 5], dense[3, 1] = 1, 1, torch.nan
    listed = torch.tensor([[-1, -1, -1], [0, 1, 2], [5, -1, -1], [0, -1, -1]])
    found = {}
    for name, targets in {"dense": dense, "listed": listed}.items():
        inputs = outside_scores(), targets, log_weights
        launches = plans.plan(*inputs, 1, partial=False)
        loss, saved = launches.forward(*inputs)
        gradient = launches.backward(*inputs[:2], saved, torch.ones(()).expand(4))
        found[name] = {"loss": loss, "gradient": gradient}
    return found


def compute_wrong():
    """Losses of targets that are no sets, dense and listed, each after a row that is one."""
    dense = torch.zeros(4, 8)
    dense[0, 2], dense[1, 2], dense[2, 2], dense[3, :2] = 1, 0.9, -1, torch.tensor([1.0, 0.5])
    partly = dense.clone()
    partly[:, 7] = torch.nan
    listed = torch.tensor([[5, -1], [8, -1], [0, 9], [100, 1]])
    log_weights = torch.tensor([-torch.inf, 0.0, 0.0])
    targets = {"dense": dense, "partly": partly, "listed": listed}
    inputs = {name: (outside_scores(), one, log_weights) for name, one in targets.items()}
    return {name: plans.plan(*given, 1).forward(*given)[0] for name, given in inputs.items()}


def outside_scores():
    return torch.linspace(-2, 2, 32).reshape(4, 8)


PUBLIC = {
    "one size": REDUCTIONS,
    "normal scores, listed": ("mean",),
    "float64": ("sum",),
    "bfloat16": ("mean",),
    "unknown": ("none", "mean"),
}


def compute_public():
    """The loss that users call, with gradients by logits and by size_bias, and second derivatives."""
    plans.CHUNK, plans.PROGRAMS, one = 4096, 2048, CASES["one size"]
    logits, size_bias = one["scores"].clone().requires_grad_(), torch.linspace(-1, 2, 4).requires_grad_()
    loss = mlrh_loss(logits, one["targets"], max_labels=3, size_bias=size_bias)
    loss.backward()
    found = {"loss": loss.detach(), "logits": logits.grad, "size_bias": size_bias.grad}
    for name, reductions in PUBLIC.items():
        for reduction in reductions:
            found |= loss_and_gradients(f"{name}, {reduction}", CASES[name], reduction)
    return found


def loss_and_gradients(name, one, reduction, order=2):
    """Loss, and up to order 2 its gradient and the derivative of that along a direction."""
    logits = one["scores"].clone().requires_grad_()
    padding_index = None if one["targets"].shape == logits.shape else -1
    sizes = {"min_labels": one["min_labels"], "max_labels": len(one["log_weights"]) - 1}
    loss = mlrh_loss(logits, one["targets"], **sizes, padding_index=padding_index, reduction=reduction)
    if order == 0:
        return {}
    value = (one["grad"].to(loss.dtype) * loss).sum() if reduction == "none" else 2.5 * loss
    (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
    (again,) = torch.autograd.grad(value, logits, create_graph=True)
    (second,) = torch.autograd.grad((again * torch.linspace(-1, 1, logits.shape[1])).sum(), logits)
    results = {"loss": loss.detach(), "gradient": gradient, "again": again.detach(), "second": second}
    return {f"{name}: {key}": value for key, value in results.items()}


def compute_kept():
    """The same as on a GPU, where numbers are not looked at, by the calls that were kept from a first round."""
    checks.can_look = lambda targets: False
    for name, reductions in PUBLIC.items():
        for reduction in reductions:
            loss_and_gradients(name, CASES[name], reduction, order=0)
    return compute_public(), len(operators._CALLS)


# What is computed beside CASES, by the process that it belongs to; cases have one by what they are. Each process takes
# 15 to 60 s of the processor, 5 of them for its imports.
OVER = {garbage: partial(compute, "two chunks, few programs", value) for garbage, value in GARBAGE.items()}
MORE = {
    "fast": {"outside": compute_outside, "wrong": compute_wrong, "counts": compute_counts, "scans": compute_scans},
    "grouped": {garbage: OVER[garbage] for garbage in ("zeros", "ones", "numbers")},
    "plain": {"public": compute_public},
    "public": {"kept": compute_kept},  # counts the calls that its process keeps
}
MORE["fast"] |= {"again": compute_again, "nearly a tag": OVER["nearly a tag"]}
FAST += MORE["fast"]


def part_of(name):
    kinds = {
        "fast": name in FAST,
        "grouped": name in GROUPED or name in MORE["grouped"],
        "unknown": name.startswith("unknown"),
        "public": "float" in name or name.endswith(("targets", "listed")) or name in MORE["public"],
    }
    return next((part for part, holds in kinds.items() if holds), "plain")


class Results(dict):
    """What this file saves that is run as a script, in processes where Triton interprets, each when first asked for."""

    def __init__(self, folder):
        self.folder = folder

    def __missing__(self, name):
        path = self.folder / f"{part_of(name)}.pt"
        give_back = lock(path, 600)  # of two pytest processes one computes and the other waits
        try:
            if not path.exists():
                command = [sys.executable, "-W", "error::RuntimeWarning", __file__, part_of(name), str(path)]
                subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)
        finally:
            give_back()
        self.update(torch.load(path))
        return self[name]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    shared = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "kernels"
    shared.mkdir(exist_ok=True)
    return Results(shared)


def exact(one, rows=slice(None)):
    """The distributions of the NumPy side."""
    log_weights, scores = one["log_weights"].numpy(), one["scores"].double().numpy()[rows]
    size_bias = np.zeros(scores.shape[1] + 1)
    size_bias[: len(log_weights)] = np.where(np.isfinite(log_weights), log_weights, 0)
    return CardinalitySpace(scores.shape[1], one["min_labels"], len(log_weights) - 1, size_bias).distribution(scores)


def exact_gradient(one):
    """Marginals less targets; less marginals of the sets that agree, if any does, where targets are unknown."""
    distribution, known = exact(one), dense_targets(one)
    agreeing = np.nan_to_num(known)
    if one["targets"] is not None:
        possible = np.isfinite(distribution.log_prob_of_known(known))
        agreeing[possible] = exact(one, possible).condition(known[possible]).marginals()
    return distribution.marginals() - agreeing


def dense_targets(one):
    """Targets as (B, K) of 0 and 1; zeros where there are none."""
    scores, targets = one["scores"], one["targets"]
    if targets is None or targets.shape == scores.shape:
        return np.zeros(scores.shape) if targets is None else targets.double().numpy()
    return np.array([np.isin(np.arange(scores.shape[1]), row) for row in targets.numpy()], float)


def every(names):
    marked = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", marked)


def tolerance(one):
    return 1e-10 if one["scores"].dtype == torch.float64 else 5e-7


def exact_losses(one):
    if one["targets"] is None:
        return exact(one).log_partition()
    return -exact(one).log_prob_of_known(dense_targets(one))


@every(CASES)
def test_losses_equal_those_of_the_numpy_side(results, name):
    one = CASES[name]
    np.testing.assert_allclose(results[name]["none"], exact_losses(one), rtol=tolerance(one), atol=2 * tolerance(one))


@every(CASES)
def test_gradients_are_marginals_less_targets_of_the_numpy_side(results, name):
    one = CASES[name]
    expected = one["grad"].double().numpy()[:, None] * exact_gradient(one)
    found, dtype = results[name]["gradient"], one["scores"].dtype
    assert found.dtype == dtype
    unit = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    np.testing.assert_allclose(found.double(), expected, rtol=unit, atol=tolerance(one))


@every(WITH_PMF)
def test_size_probabilities_equal_those_of_the_numpy_side(results, name):
    one = CASES[name]
    expected = exact(one).cardinality_pmf()[:, : len(one["log_weights"])]
    np.testing.assert_allclose(results[name]["pmf"], expected, atol=tolerance(one))


@every(CASES)
def test_inputs_stay_as_they_are(results, name):
    assert results[name]["unchanged"]


@pytest.mark.parametrize("kind", ["dense", "listed"])
def test_a_set_of_no_admissible_size_has_infinite_loss_and_a_finite_gradient(results, kind):
    found = results["outside"][kind]
    assert found["loss"].isinf().tolist() == [True, True, False, False]
    marginals = CardinalitySpace(8, 1, 2).distribution(outside_scores().numpy()).marginals()
    expected = marginals[:3] - np.array([[0] * 8, [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
    np.testing.assert_allclose(found["gradient"][:3], expected, atol=1e-6)


def test_an_unknown_target_shows_as_nan_where_none_was_to_be_expected(results):
    assert results["outside"]["dense"]["loss"].isnan().tolist() == [False, False, False, True]


@pytest.mark.parametrize("kind", ["dense", "partly", "listed"])
def test_a_target_that_is_no_set_shows_as_nan(results, kind):
    assert results["wrong"][kind].isnan().tolist() == [False, True, True, True]


@every(FEW)
def test_the_last_group_adds_up_the_losses_of_all(results, name):
    found, losses = results[name], exact_losses(CASES[name])
    np.testing.assert_allclose(found["sum"], losses.sum(), rtol=1e-6)
    np.testing.assert_allclose(found["mean"], losses.mean(), rtol=1e-6)


@every(CASES)
def test_a_forward_pass_is_one_launch_and_a_backward_pass_another(results, name):
    assert results[name]["launches"] == 2


@every(CASES)
def test_kernels_are_launched_with_the_types_that_they_are_compiled_for(results, name):
    assert results[name]["expected types"]


def test_the_cases_have_several_groups_programs_in_a_group_and_tiles_in_a_program(monkeypatch):
    def shape_of(name):
        one = CASES[f"{name}, few programs"]
        monkeypatch.setattr(plans, "CHUNK", one["chunk"])
        monkeypatch.setattr(plans, "PROGRAMS", one["programs"])
        return plans.Shape(one["scores"], one["targets"], one["log_weights"], None, True)

    two_programs, likely = shape_of("two programs in a group"), shape_of("rows with likely labels")
    assert two_programs.group_tile()[0] == 2 * two_programs.group_tile()[-1] == 16
    assert two_programs.n_groups == 2
    assert likely.group_tile()[-1] > 1
    assert likely.n_groups > 1
    chunks = shape_of("chunks with likely labels").group_tile()
    assert chunks[0] > chunks[1]
    assert shape_of("large sets").group_tile()[:2] == (16, 16)
    assert shape_of("two chunks").group_tile()[-1] > 1


@every(GARBAGE)
def test_what_memory_held_before_changes_nothing(results, name):
    found, expected = results[name], results["two chunks, few programs"]
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
    assert COUNTS.value == 1 << 24
    assert 0 < TAG.value < 1 << 39
    assert COUNTS.value >= _triton.LARGEST_BATCH // 16


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


@every(["public", "kept"])
def test_the_public_loss_and_its_derivatives_are_the_same_with_and_without_the_kernels(results, name):
    answers = results["kept"][0] if name == "kept" else results[name]
    for key, expected in compute_public().items():
        unit = 1e-2 if key.startswith("bfloat16") else 2e-6
        assert answers[key].dtype == expected.dtype
        np.testing.assert_allclose(answers[key].double(), expected.double(), rtol=unit, atol=unit, err_msg=key)


@pytest.mark.slow
def test_one_call_of_each_kind_is_kept(results):
    assert results["kept"][1] == sum(map(len, PUBLIC.values()))


def test_biases_far_from_a_line_are_left_to_the_recurrence():
    line = torch.tensor([-torch.inf, 0.0, 50.0, 100.0])
    assert plans.are_near_a_line(line, 1)
    assert not plans.are_near_a_line(line + torch.tensor([0.0, 0.0, 5.0, 0.0]), 1)


def test_what_the_kernels_cannot_hold_is_left_to_the_recurrence():
    assert _triton.fit(torch.zeros(2, 50), torch.zeros(33))
    assert not _triton.fit(torch.zeros(2, 50), torch.zeros(34))
    assert not _triton.fit(torch.zeros(0, 50), torch.zeros(5))
    assert not _triton.fit(torch.zeros(1, 50).expand((1 << 28) + 1, 50), torch.zeros(5))
    assert not _triton.fit(torch.zeros(2, 50, dtype=torch.int64), torch.zeros(5))


def test_without_biases_the_choice_reads_no_values():
    assert _triton.fit(torch.zeros(2, 50, device="meta"), torch.zeros(5, device="meta"))


if __name__ == "__main__":
    _, part, path = sys.argv
    found = {name: compute(name) for name in CASES if part_of(name) == part}
    torch.save(found | {name: compute_it() for name, compute_it in MORE.get(part, {}).items()}, path)
