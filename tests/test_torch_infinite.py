"""The torch loss without rows, and with logits of -inf, +inf and NaN.

Also in Triton's interpreter, which must be chosen before Triton is imported: for that, this file is a script.
"""

import functools
import itertools
import math
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

from mlrh.torch import MLRHLoss, mlrh_loss

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.float64]


def loss_and_gradient(logits, targets, **options):
    logits = logits.clone().requires_grad_()
    losses = mlrh_loss(logits, targets, reduction="none", **options)
    losses.sum().backward()
    return losses.detach(), logits.grad


def random_rows(n_labels, dtype):
    generator = torch.Generator().manual_seed(n_labels)
    return torch.randn(4, n_labels, generator=generator, dtype=dtype)


def one_label(n_rows, n_labels, label, dtype):
    return torch.eye(n_labels, dtype=dtype)[label].expand(n_rows, -1).clone()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_labels", "sizes"), [(4, (1, 2)), (4, (0, 3)), (4, (1, 1)), (600, (1, 3))])
def test_a_label_with_a_logit_of_minus_infinity_is_as_if_it_were_not_there(n_labels, sizes, dtype):
    logits, targets = random_rows(n_labels, dtype), one_label(4, n_labels, 1, dtype)
    options = {"min_labels": sizes[0], "max_labels": sizes[1]}
    expected, of_others = loss_and_gradient(logits[:, :-1], targets[:, :-1], **options)
    logits[:, -1] = -INF
    losses, gradient = loss_and_gradient(logits, targets, **options)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradient[:, :-1], of_others)
    assert (gradient[:, -1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_labels", [4, 600])
def test_a_target_with_an_impossible_label_has_infinite_loss_and_a_finite_gradient(n_labels, dtype):
    logits, targets = random_rows(n_labels, dtype), one_label(4, n_labels, 1, dtype)
    logits[2, 1] = -INF
    losses, gradient = loss_and_gradient(logits, targets, max_labels=2)
    assert losses.isposinf().tolist() == [False, False, True, False]
    assert gradient.isfinite().all()
    indices = torch.tensor([[1, -1]] * 4)
    by_indices, _ = loss_and_gradient(logits, indices, max_labels=2, padding_index=-1)
    torch.testing.assert_close(by_indices, losses)


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_no_set_is_possible_the_loss_is_infinite(dtype):
    logits = torch.tensor([[-INF, 0.5, 1.0], [-INF, -INF, -INF]], dtype=dtype)
    for targets in ([[1.0, 1, 1]] * 2, [[NAN, 1, 1]] * 2):
        losses, gradient = loss_and_gradient(logits, torch.tensor(targets, dtype=dtype), min_labels=3, max_labels=3)
        assert losses.tolist() == [INF, INF]
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_unobserved_labels_may_be_impossible(dtype):
    logits = torch.tensor([[-INF, 0.5, 1.0], [-INF, 0.5, 1.0]], dtype=dtype)
    losses, gradient = loss_and_gradient(logits, torch.tensor([[NAN, 1, 0], [1, NAN, 0]], dtype=dtype), max_labels=2)
    # Sets of one or two of the labels 1 and 2; the first target is {1}, the second has the impossible label.
    total = math.exp(0.5) + math.e + math.exp(1.5)
    assert losses[0].item() == pytest.approx(math.log(total) - 0.5, rel=1e-6)
    assert losses[1].item() == INF
    assert gradient.isfinite().all()


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_labels", [4, 600])
@pytest.mark.parametrize("label", [1, 2])
def test_a_logit_of_nan_or_infinity_makes_the_loss_of_its_row_alone_nan(bad, dtype, n_labels, label):
    logits, targets = random_rows(n_labels, dtype), one_label(4, n_labels, 1, dtype)
    expected, of_others = loss_and_gradient(logits, targets, max_labels=2)
    logits[2, label] = bad
    losses, gradient = loss_and_gradient(logits, targets, max_labels=2)
    others = [0, 1, 3]
    assert losses[2].isnan()
    torch.testing.assert_close(losses[others], expected[others])
    torch.testing.assert_close(gradient[others], of_others[others])


@pytest.mark.parametrize("options", [{}, {"size_bias": True}, {"validate": True}, {"unobserved": True}])
@pytest.mark.parametrize("n_labels", [3, 600])
def test_no_rows_have_a_loss_of_0_with_a_gradient_of_0(options, n_labels):
    layer = torch.nn.Linear(2, n_labels)
    for reduction in ("mean", "sum", "none"):
        criterion = MLRHLoss(2, reduction=reduction, **options)
        loss = criterion(layer(torch.zeros(0, 2)), torch.zeros(0, n_labels))
        assert loss.shape == ((0,) if reduction == "none" else ())
        assert loss.sum() == 0
        layer.zero_grad()
        loss.sum().backward()
        for parameter in (*layer.parameters(), *criterion.parameters()):
            assert not parameter.grad.any()


def test_no_rows_of_index_targets_have_a_sum_of_zero():
    loss = MLRHLoss(2, reduction="sum", padding_index=-1)
    assert loss(torch.zeros(0, 3), torch.zeros(0, 2, dtype=torch.int64)).item() == 0


def kernel_cases():
    """Losses and gradients of rows of 40 labels: options by name, logits, targets."""
    logits, targets = random_rows(40, torch.float32).repeat(2, 1), one_label(8, 40, 1, torch.float32)
    logits[0, 5], logits[1, 1], logits[2, 16:], logits[3], logits[4, 7], logits[5, 1] = -INF, -INF, -INF, -INF, NAN, INF
    unobserved = targets.clone()
    unobserved[:, 5] = NAN
    indices = torch.tensor([[1, -1]] * 8)
    return {
        "dense": (logits, targets, {"max_labels": 2}),
        "many in a set": (logits, targets, {"max_labels": 9, "min_labels": 0}),
        "unobserved": (logits, unobserved, {"max_labels": 3}),
        "indices": (logits, indices, {"max_labels": 2, "padding_index": -1}),
    }


NAMES = ["dense", "many in a set", "unobserved", "indices"]
# A chunk of 16 labels splits a row into three, of which two have no possible label in row 2.
FAST = [(4096, "dense"), (4096, "unobserved"), (4096, "indices"), (16, "dense")]
SLOW = [place for place in itertools.product((4096, 16), NAMES) if place not in FAST]


@pytest.fixture(scope="module")
def by_kernels(tmp_path_factory):
    """What the kernels give for a chunk and a name; those of FAST together, and those of SLOW."""
    pytest.importorskip("triton")

    @functools.cache
    def results(part):
        path = tmp_path_factory.mktemp("kernels") / "results.pt"
        command = [sys.executable, "-W", "ignore", __file__, part, str(path)]
        subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)
        return torch.load(path)

    return lambda place: results("fast" if place in FAST else "slow")[place]


@pytest.mark.parametrize(("chunk", "name"), FAST + [pytest.param(*place, marks=pytest.mark.slow) for place in SLOW])
def test_the_kernels_follow_the_same_rules(chunk, name, by_kernels):
    losses, gradient = by_kernels((chunk, name))
    logits, targets, options = kernel_cases()[name]
    expected, expected_gradient = loss_and_gradient(logits, targets, **options)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert expected.isnan().tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert gradient[expected == INF].isfinite().all()
    usable = expected.isfinite()
    torch.testing.assert_close(gradient[usable], expected_gradient[usable], rtol=1e-4, atol=1e-6)


def save_results(part, path):
    from mlrh.torch._triton import plan

    results = {}
    for chunk, name in FAST if part == "fast" else SLOW:
        plan.CHUNK = chunk
        plan._PLANS.clear()
        logits, targets, options = kernel_cases()[name]
        results[chunk, name] = loss_and_gradient(logits, targets, **options)
    torch.save(results, path)


if __name__ == "__main__":
    save_results(*sys.argv[1:])
