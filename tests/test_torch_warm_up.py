"""Compiling the kernels of the loss: both at once, said once where it takes long, ahead by `MLRHLoss.warm_up`.

Triton compiles nothing here: what it would be asked for is looked at. numba compiles the kernels of the CPU.
"""

import threading
import time
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from numba import njit

from mlrh.spaces import GroupSpace
from mlrh.torch import MLRHLoss, _telling
from mlrh.torch._eager import compiled, kernels
from mlrh.torch._triton import plan as plans
from mlrh.torch._triton.forward import forward
from mlrh.torch._triton.gradient import gradient
from mlrh.torch._triton.launch import Launch

NO_DEVICE = -1  # torch.cuda.device leaves the current one for it


def shape_of(n_rows=256, n_labels=20, max_labels=4, *, dtype=torch.float32, targets=torch.float32, width=None):
    scores = torch.empty(n_rows, n_labels, dtype=dtype, device="meta")
    sets = torch.empty(n_rows, width or n_labels, dtype=targets, device="meta")
    log_weights = torch.empty(max_labels + 1, device="meta")
    return plans.Shape(scores, sets, log_weights, width is not None, width is None)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(_telling, "_TOLD", [])
    monkeypatch.setattr(compiled, "_CALLED", set())
    monkeypatch.setattr(plans, "_PLANS", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def compile_by(monkeypatch, function):
    """The kernels that were asked for, in the order of their ends; each takes as long as the function."""
    asked = []

    def compile(self, types):
        function()
        asked.append((self.kernel, types))

    monkeypatch.setattr(Launch, "compile", compile)
    return asked


def test_the_kernels_of_a_step_are_compiled_at_the_same_time(monkeypatch):
    both = threading.Barrier(2, timeout=30)
    asked = compile_by(monkeypatch, both.wait)
    plans.Plan(shape_of(), 1).compile(NO_DEVICE, "mean")
    assert {kernel for kernel, _ in asked} == {forward, gradient}


def test_a_reduction_is_compiled_once(monkeypatch):
    asked, plan = compile_by(monkeypatch, lambda: None), plans.Plan(shape_of(), 1)
    for reduction in ("mean", "mean", "sum"):
        plan.compile(NO_DEVICE, reduction)
    assert len(asked) == 4


def test_long_compiling_is_told_in_one_line_that_names_the_way_around_it(monkeypatch, capsys):
    monkeypatch.setattr(plans, "PATIENCE", 0.01)
    compile_by(monkeypatch, lambda: time.sleep(0.2))
    for reduction in ("mean", "sum"):
        plans.Plan(shape_of(), 1).compile(NO_DEVICE, reduction)
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert "compiling" in line
    assert "MLRHLoss.warm_up(n_labels, dtype)" in line


def test_compiling_that_was_asked_for_ahead_is_not_told(monkeypatch, capsys):
    monkeypatch.setattr(plans, "PATIENCE", 0.01)
    asked = compile_by(monkeypatch, lambda: time.sleep(0.2))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    MLRHLoss(4).warm_up(20, device="cuda:1")
    assert {kernel for kernel, _ in asked} == {forward, gradient}
    assert capsys.readouterr().err == ""


def test_short_compiling_is_not_told(monkeypatch, capsys):
    monkeypatch.setattr(plans, "PATIENCE", 60.0)
    compile_by(monkeypatch, lambda: None)
    plans.Plan(shape_of(), 1).compile(NO_DEVICE)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("n_labels", [40, 1024, 3000, 5000, 131072])
@pytest.mark.parametrize("max_labels", [4, 16, 17, 32])
def test_no_program_asks_for_more_registers_than_a_multiprocessor_has(dtype, n_labels, max_labels):
    shape = shape_of(n_labels=n_labels, max_labels=max_labels, dtype=dtype, targets=dtype)
    *_, options = shape.forward_options(1, "none")
    assert 32 * options["num_warps"] * options["maxnreg"] <= 65536
    assert options["maxnreg"] % 8 == 0  # as they are given out


def test_an_error_of_the_compiler_is_raised_and_the_next_call_tries_again(monkeypatch):
    def fail():
        raise RuntimeError("no space left")

    compile_by(monkeypatch, fail)
    plan = plans.Plan(shape_of(), 1)
    with pytest.raises(RuntimeError, match="no space left"):
        plan.compile(NO_DEVICE)
    asked = compile_by(monkeypatch, lambda: None)
    plan.compile(NO_DEVICE)
    assert len(asked) == 2


WARMED = {
    "dense": (MLRHLoss(4), {}, shape_of(), "mean"),
    "sum, bfloat16": (
        MLRHLoss(4, reduction="sum"),
        {"dtype": torch.bfloat16},
        shape_of(dtype=torch.bfloat16, targets=torch.bfloat16),
        "sum",
    ),
    "bool": (MLRHLoss(4), {"targets": torch.bool}, shape_of(targets=torch.bool), "mean"),
    "weighted": (MLRHLoss(4, weight=torch.ones(256)), {}, shape_of(), "none"),
    "listed": (MLRHLoss(4, padding_index=-1), {}, shape_of(targets=torch.int64, width=4), "mean"),
    "many rows": (MLRHLoss(4), {"n_rows": 65536}, shape_of(65536), "mean"),
}


@pytest.mark.parametrize("name", WARMED)
def test_warm_up_compiles_what_a_step_would_launch(monkeypatch, name):
    loss, options, shape, reduction = WARMED[name]
    asked = []
    monkeypatch.setattr(plans.Plan, "compile", lambda self, *arguments, **ahead: asked.append((self, *arguments)))
    loss.warm_up(20, device="cuda:1", **options)
    ((plan, device, of),) = asked
    assert (device, of) == (torch.device("cuda:1"), reduction)
    launches = plan.loss[of], plan.gradient[of]
    for launch, expected in zip(launches, (shape.forward_options(1, of), shape.gradient_options(of)), strict=True):
        assert (launch.grid[0], launch.numbers) == expected[:2]
    assert plan.shape.forward_types() == shape.forward_types()
    assert plan.shape.gradient_types() == shape.gradient_types()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", ["in a label space", "with large sets"])
def test_nothing_is_compiled_where_no_kernel_would_run(monkeypatch, case, device):
    monkeypatch.setattr(plans.Plan, "compile", lambda self, *arguments, **ahead: pytest.fail("compiled"))
    monkeypatch.setattr(compiled, "warm_up", lambda *types: pytest.fail("compiled"))
    if case == "in a label space":
        MLRHLoss(label_space=GroupSpace([((0, 1), 1, 1)], n_labels=20)).warm_up(20, device=device)
    else:
        MLRHLoss(40).warm_up(50, device=device)


class NotCompiled:
    """The kernels of the CPU as in a new environment: their functions are compiled anew, and nothing is kept."""

    def __init__(self):
        for name in ("expectations", "summarise", "differentiate", "has_others"):
            setattr(self, name, njit(getattr(kernels, name).py_func))


def step(dtype, of_targets=None, n_labels=5):
    scores = torch.zeros(3, n_labels, dtype=dtype, requires_grad=True)
    MLRHLoss(2)(scores, torch.eye(3, n_labels, dtype=of_targets or dtype)).backward()


def test_compiling_for_the_cpu_is_told_once(monkeypatch, capsys):
    of_new = NotCompiled()
    monkeypatch.setattr(compiled, "_kernels", lambda: of_new)
    for dtype in (torch.float32, torch.float32, torch.float64):
        step(dtype)
    (line,) = capsys.readouterr().err.splitlines()
    assert "compiling CPU kernels" in line
    assert "MLRHLoss.warm_up(n_labels, dtype)" in line


@pytest.mark.parametrize(
    ("dtype", "of_targets", "n_labels", "computed_in"),
    [
        (torch.float32, None, 5, dict.fromkeys(("expectations", "has_others"), "float32")),
        (torch.bfloat16, None, 600, {"summarise": "float32", "differentiate": "float32"}),
        (torch.float64, None, 600, dict.fromkeys(("summarise", "differentiate", "has_others"), "float64")),
        (torch.float64, torch.float32, 5, {"expectations": "float64", "has_others": "float32"}),
    ],
)
def test_warm_up_leaves_nothing_to_compile_on_the_cpu(dtype, of_targets, n_labels, computed_in, monkeypatch, capsys):
    of_new = NotCompiled()
    monkeypatch.setattr(compiled, "_kernels", lambda: of_new)
    MLRHLoss(2).warm_up(n_labels, dtype, device="cpu", targets=of_targets)
    before = {name: list(kernel.signatures) for name, kernel in vars(of_new).items() if kernel.signatures}
    assert {name: str(signatures[0][0].dtype) for name, signatures in before.items()} == computed_in
    step(dtype, of_targets, n_labels)
    assert {name: list(kernel.signatures) for name, kernel in vars(of_new).items() if kernel.signatures} == before
    assert capsys.readouterr().err == ""


def test_a_gpu_that_is_not_there_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds no GPU for device='cuda:1'; leave it out to compile for the CPU"):
        MLRHLoss(4).warm_up(20, device="cuda:1")


def test_a_type_that_is_none_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"type of logits must be a torch.dtype such as torch.float32; got 'float32'"):
        MLRHLoss(4).warm_up(20, "float32")
    with pytest.raises(ValueError, match="logits must be a floating point tensor"):
        MLRHLoss(4).warm_up(20, torch.int64)
    with pytest.raises(ValueError, match="n_rows must be a positive integer; got 0"):
        MLRHLoss(4).warm_up(20, n_rows=0)
    with pytest.raises(ValueError, match="kernels for 'cuda' and 'cpu'; got device='meta'"):
        MLRHLoss(4).warm_up(20, device="meta")
    with pytest.raises(ValueError, match="Index targets must be integers"):
        MLRHLoss(4, padding_index=-1).warm_up(20, targets=torch.float32)


def test_more_labels_in_a_set_than_there_are_is_refused():
    with pytest.raises(ValueError, match="max_labels"):
        MLRHLoss(30).warm_up(20)


@pytest.mark.parametrize("n_labels", [20, 1024])
def test_batches_of_other_sizes_and_other_smallest_sets_take_the_same_kernels(n_labels):
    """By what Triton compiles a kernel for: constants, and all numbers that aren't exempt."""

    def key(n_rows, min_labels):
        shape = shape_of(n_rows, n_labels)
        found = []
        for kernel, (_, numbers, options) in (
            (forward, shape.forward_options(min_labels, "mean")),
            (gradient, shape.gradient_options("mean")),
        ):
            parameters = kernel.params[-len(numbers) :]
            kept = [n for n, one in zip(numbers, parameters, strict=True) if not one.do_not_specialize]
            found += [kept, options]
        return found

    assert key(256, 1) == key(33, 1) == key(1000, 0)
