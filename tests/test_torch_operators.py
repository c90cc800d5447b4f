"""Derivatives of first and second order, torch.compile, torch.export, autocast and distributed training on the CPU."""

import os
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from reference import central_difference

from mlrh.torch import CardinalitySpace, MLRHLoss, _triton, mlrh_loss

NAN = float("nan")
SETS = torch.tensor([[1.0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 0, 0]], dtype=torch.float64)
PARTLY = torch.tensor([[1.0, NAN, 0, NAN, NAN], [NAN] * 5, [1, 1, 1, 0, 0]], dtype=torch.float64)
TARGETS = {
    "dense": (SETS, {}),
    "unobserved": (PARTLY, {}),
    "announced": (PARTLY, {"unobserved": True}),
    "denied": (SETS, {"unobserved": False}),
    "indices": (torch.tensor([[0, 3, -1], [-1, 1, -1], [2, 1, 0]]), {"padding_index": -1}),
}
every_target = pytest.mark.parametrize("name", TARGETS)


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """No test uses up the number of compilations that the next one may need."""
    torch.compiler.reset()


def inputs(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(3, 5, dtype=torch.float64, generator=generator)
    size_bias = torch.randn(4, dtype=torch.float64, generator=generator)
    return logits.requires_grad_(), size_bias.requires_grad_()


def losses(name):
    targets, options = TARGETS[name]
    return lambda logits, size_bias: mlrh_loss(
        logits, targets, max_labels=3, size_bias=size_bias, reduction="none", **options
    )


@every_target
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_first_derivatives_of_the_loss_equal_finite_differences(name, scale):
    assert torch.autograd.gradcheck(losses(name), inputs(scale))


@every_target
def test_second_derivatives_of_the_loss_equal_finite_differences(name):
    assert torch.autograd.gradgradcheck(losses(name), inputs())


@pytest.mark.parametrize("question", ["log_partition", "marginals", "cardinality_pmf", "top_sets"])
def test_derivatives_of_answers_equal_finite_differences(question):
    def answer(scores, size_bias):
        d = CardinalitySpace(5, 1, 3, size_bias).distribution(scores)
        return d.top_sets(4)[1] if question == "top_sets" else getattr(d, question)()

    assert torch.autograd.gradcheck(answer, inputs())


def test_derivatives_beyond_floating_point_equal_those_worked_out_by_hand():
    scores = torch.tensor([[1000.0, 0.0, -1000.0]], dtype=torch.float64, requires_grad=True)
    size_bias = torch.tensor([1000.0, 0.0, 0.0, 1000.0], dtype=torch.float64, requires_grad=True)
    log_partition = CardinalitySpace(3, 0, 3, size_bias).distribution(scores).log_partition()
    first = torch.autograd.grad(log_partition.sum(), (scores, size_bias), create_graph=True)
    torch.testing.assert_close(first[0], torch.tensor([[0.75, 0.5, 0.25]], dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(first[1], torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=1e-12)
    # Four nested sets of probability 1/4: cov(y_j, y_k) = min(p_j, p_k) - p_j p_k.
    (second,) = torch.autograd.grad(first[0][0, 1], scores)
    torch.testing.assert_close(second, torch.tensor([[0.125, 0.25, 0.125]], dtype=torch.float64), rtol=0, atol=1e-12)


def test_third_derivatives_are_refused():
    logits, _ = inputs()
    (first,) = torch.autograd.grad(mlrh_loss(logits, SETS, max_labels=3), logits, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="autograd"):
        second.sum().backward()


def test_gradients_accumulate_over_two_backward_calls():
    logits, _ = inputs()
    loss = mlrh_loss(logits, SETS, max_labels=3)
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    loss.backward()
    torch.testing.assert_close(logits.grad, 2 * once)


@pytest.mark.parametrize("biased", [False, True])
@every_target
def test_compiled_without_a_graph_break_it_equals_eager(name, biased):
    targets, options = TARGETS[name]
    loss = MLRHLoss(3, size_bias=biased, **options).double()
    logits, _ = inputs()
    parameters = [logits, *loss.parameters()]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(
        (compiled(logits, targets), *torch.autograd.grad(compiled(logits, targets), parameters)),
        (loss(logits, targets), *torch.autograd.grad(loss(logits, targets), parameters)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


def test_compiled_network_and_loss_train_as_in_eager():
    def step(compile_):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
        loss = MLRHLoss(3)

        def objective(X, Y):
            return loss(network(X), Y)

        value = compile_(objective)(torch.ones(3, 4), SETS.float())
        value.backward()
        return value.detach(), network[0].weight.grad

    compiled = step(lambda function: torch.compile(function, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(compiled, step(lambda function: function))


def test_compiled_for_another_batch_size_it_stays_right():
    compiled = torch.compile(MLRHLoss(3), fullgraph=True, backend="aot_eager", dynamic=True)
    for n_rows in (2, 3, 7):
        logits, targets = torch.randn(n_rows, 5), SETS[:1].repeat(n_rows, 1)
        torch.testing.assert_close(compiled(logits, targets), MLRHLoss(3)(logits, targets))


def test_an_exported_loss_equals_the_original_at_another_batch_size():
    loss = MLRHLoss(3, reduction="none")
    rows = torch.export.Dim("rows", min=2)
    example = (torch.randn(4, 5), SETS[:1].float().repeat(4, 1))
    program = torch.export.export(loss, example, dynamic_shapes=({0: rows}, {0: rows}))
    logits, targets = torch.randn(9, 5), SETS[:1].float().repeat(9, 1)
    targets[3, 1:] = NAN
    torch.testing.assert_close(program.module()(logits, targets), loss(logits, targets), rtol=0, atol=1e-6)


def exported(n_labels, max_labels, dynamic_labels=None):
    """A program of the loss with index targets, from logits without gradient and a batch of 4."""
    rows = torch.export.Dim("rows", min=2)
    of_logits = {0: rows} if dynamic_labels is None else {0: rows, 1: dynamic_labels}
    example = (torch.randn(4, n_labels), torch.tensor([[0, 2, -1]] * 4))
    loss = MLRHLoss(max_labels, padding_index=-1)
    return torch.export.export(loss, example, dynamic_shapes=(of_logits, {0: rows})).module()


@pytest.mark.parametrize(("n_labels", "max_labels"), [(5, 3), (600, 3)])
def test_an_exported_loss_of_indices_has_the_gradient_of_the_original_at_another_batch_size(n_labels, max_labels):
    logits = torch.randn(9, n_labels, generator=torch.Generator().manual_seed(1)).requires_grad_()
    targets = torch.tensor([[0, 2, -1]] * 9)
    loss, expected = exported(n_labels, max_labels)(logits, targets), MLRHLoss(3, padding_index=-1)(logits, targets)
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in (loss, expected)), rtol=0, atol=0)


def test_an_exported_loss_takes_another_number_of_labels():
    program = exported(5, 3, torch.export.Dim("labels", min=4, max=500))
    logits, targets = torch.randn(6, 40), torch.tensor([[0, 30, -1]] * 6)
    torch.testing.assert_close(program(logits, targets), MLRHLoss(3, padding_index=-1)(logits, targets))


def answer(question, scores):
    d = CardinalitySpace(5, 1, 3).distribution(scores)
    if question == "loss":
        return mlrh_loss(scores, SETS, max_labels=3)
    return d.log_prob(SETS) if question == "log_prob" else getattr(d, question)()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its own use of torch.jit
@pytest.mark.parametrize("question", ["loss", "marginals", "cardinality_pmf"])
def test_forward_mode_derivatives_are_refused(question):
    logits = inputs()[0].detach()
    with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
        torch.func.jvp(partial(answer, question), (logits,), (torch.ones_like(logits),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(logits, torch.ones_like(logits))
        with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
            answer(question, dual)


@pytest.mark.parametrize("question", ["loss", "log_partition", "log_prob"])
def test_the_way_to_a_derivative_along_a_direction_that_the_refusal_names_equals_finite_differences(question):
    logits = inputs()[0].detach()
    direction = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    _, found = torch.autograd.functional.jvp(partial(answer, question), (logits,), (direction,))
    expected = central_difference(lambda t: answer(question, logits + t * direction), step=1e-6)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["log_loss", "marginals", "size_pmf"])
def test_operators_keep_the_rules_of_custom_operators(name):
    logits, size_bias = inputs()
    log_weights = size_bias.detach().clone().requires_grad_()
    args = (logits, SETS, log_weights, 0, False, True, False, True)
    saved = [x.detach() for x in torch.ops.mlrh.log_loss(*args)[1]]
    gradient = torch.ones(3, dtype=torch.float64)
    operator, args = {
        "log_loss": (torch.ops.mlrh.log_loss, args),
        "marginals": (
            torch.ops.mlrh.log_loss_gradient,
            (logits, SETS, log_weights, saved, gradient, 0, False, True, False),
        ),
        "size_pmf": (torch.ops.mlrh.size_pmf, (logits, log_weights, saved, 0, True)),
    }[name]
    torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_loss_is_computed_in_float32(dtype):
    layer = torch.nn.Linear(4, 5)
    X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=dtype):
        logits = layer(X)
        loss = MLRHLoss(3)(logits, SETS)
    assert logits.dtype == dtype
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), MLRHLoss(3)(logits.double(), SETS), rtol=0, atol=1e-5)
    loss.backward()
    assert layer.weight.grad.isfinite().all()


PROGRAM = """
import sys, torch, torch.distributed as dist
from mlrh.torch import MLRHLoss
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
torch.manual_seed(0)
X, Y = torch.randn(8, 4, dtype=torch.float64), torch.eye(5, dtype=torch.float64)[torch.arange(8) % 5]
class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.loss = torch.nn.Linear(4, 5).double(), MLRHLoss(3, size_bias=True).double()
    def forward(self, X, Y):
        return self.loss(self.layer(X), Y)
alone = Head()
both = torch.nn.parallel.DistributedDataParallel(Head())
both.module.load_state_dict(alone.state_dict())
both(X[4 * rank : 4 * rank + 4], Y[4 * rank : 4 * rank + 4]).backward()
alone(X, Y).backward()
for one, other in zip(both.module.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-14)
dist.destroy_process_group()
"""


@pytest.mark.slow  # two more processes that import torch
def test_two_processes_of_ddp_have_the_gradient_of_one(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    # By the loopback interface, since the name of a machine need not lead to an address of its own.
    options = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}}
    with ExitStack() as stack:
        runs = [
            stack.enter_context(subprocess.Popen([*command, str(rank), str(tmp_path / "store")], **options))
            for rank in range(2)
        ]
        for run in runs:
            stack.callback(run.kill)  # where the other one has failed, it would wait for half an hour
        errors = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors


@pytest.mark.parametrize(("version", "serves"), [("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True)])
def test_a_triton_that_cannot_compile_the_kernels_is_left_alone(monkeypatch, version, serves):
    pytest.importorskip("triton")
    monkeypatch.setattr(_triton.importlib.metadata, "version", {"triton": version}.__getitem__)
    assert _triton.has_triton() == serves
