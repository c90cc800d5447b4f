"""Loss and gradient at any level of the logits, in all types: equal to float64, with nothing lost to underflow."""

import pytest
import torch

from mlrh.torch import mlrh_loss

NAN = float("nan")
SHIFTS = (-120, -104, -88, -60, -12, 0, 88, 120)
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of the gradient


def rows_at(shift, n_labels):
    """Logits around a level: alike, spread, with a few that stand out, with one far above."""
    logits = torch.randn(4, n_labels, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + shift
    logits[1] = 3 * logits[1] - 2 * shift
    logits[2, :14] += 6
    logits[3, 0] += 60
    return logits


def loss_and_gradient(logits, targets, **options):
    logits = logits.detach().requires_grad_()
    losses = mlrh_loss(logits, targets, reduction="none", **options)
    return losses.detach().double(), torch.autograd.grad(losses.sum(), logits)[0].double()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("n_labels", "max_labels"), [(5, 1), (5, 2), (600, 1), (600, 4), (600, 12), (4096, 4)])
def test_sets_of_one_size_have_the_same_loss_and_gradient_at_any_level(n_labels, max_labels, dtype):
    targets = torch.zeros(4, n_labels).index_fill(1, torch.arange(max_labels), 1.0)
    sizes = {"min_labels": max_labels, "max_labels": max_labels}
    for shift in SHIFTS:
        logits = rows_at(shift, n_labels).to(dtype)
        expected = loss_and_gradient(logits.double() - shift, targets, **sizes)
        loss, gradient = loss_and_gradient(logits, targets, **sizes)
        torch.testing.assert_close(loss, expected[0], rtol=1e-5, atol=1e-6 * (10 + max_labels * abs(shift)))
        torch.testing.assert_close(gradient, expected[1], rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("n_labels", [5, 600])
def test_float32_equals_float64_at_any_level_where_sizes_differ(n_labels):
    targets = torch.zeros(4, n_labels).index_fill(1, torch.arange(2), 1.0)
    partly = targets.masked_fill(torch.arange(n_labels) > 2, NAN)
    for shift in SHIFTS:
        logits = rows_at(shift, n_labels).float()
        for given in (targets, partly):
            expected = loss_and_gradient(logits.double(), given, max_labels=4)
            loss, gradient = loss_and_gradient(logits, given, max_labels=4)
            torch.testing.assert_close(loss, expected[0], rtol=1e-5, atol=1e-6 * (10 + 4 * abs(shift)))
            torch.testing.assert_close(gradient, expected[1], rtol=0, atol=1e-5)


def test_logits_of_minus_104_have_the_loss_of_cross_entropy():
    logits = torch.tensor([[-103.5, -104.2, -105.0]])
    loss, gradient = loss_and_gradient(logits, torch.tensor([[1, 0, 0]]), max_labels=1)
    expected = torch.nn.functional.cross_entropy(logits.double(), torch.tensor([0]))
    assert loss.item() == pytest.approx(expected.item(), abs=2e-5)
    assert gradient[0, 0].item() == pytest.approx(torch.exp(-expected).item() - 1, abs=2e-5)


def test_unobserved_labels_of_minus_104_have_the_gradient_of_float64():
    logits, targets = torch.tensor([[5.0, -103.5, -104.2]]), torch.tensor([[0.0, NAN, NAN]])
    _, expected = loss_and_gradient(logits.double(), targets, max_labels=2)
    _, gradient = loss_and_gradient(logits, targets, max_labels=2)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n_labels", "max_labels"), [(64, 2), (600, 12), (600, 4)])
def test_small_float16_gradients_survive_where_the_loss_is_scaled(n_labels, max_labels):
    logits = torch.full((2, n_labels), -18.0)
    logits[:, 0] = 8.0
    targets = torch.zeros(2, n_labels).index_fill(1, torch.tensor([0]), 1.0)
    narrow, wide = logits.half().requires_grad_(), logits.double().requires_grad_()
    scale = 2.0**16
    (gradient,) = torch.autograd.grad(scale * mlrh_loss(narrow, targets, max_labels=max_labels), narrow)
    (expected,) = torch.autograd.grad(scale * mlrh_loss(wide, targets, max_labels=max_labels), wide)
    assert expected[0, 1].item() > 0
    torch.testing.assert_close(gradient[:, 1:].double(), expected[:, 1:], rtol=2e-3, atol=1e-7)
