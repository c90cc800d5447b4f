"""The loss on the CPU by compiled code: equal to the tree of products, which serves the rows that are left to it."""

import pytest
import torch

from mlrh.torch import CardinalitySpace, mlrh_loss
from mlrh.torch._eager import checks, compiled, dispatch

KEPT = dispatch.Options(0, False, biased=True, partial=False, keep=True)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def scores_like(kind, n_rows, n_labels, generator):
    noise = torch.randn(n_rows, n_labels, dtype=torch.float64, generator=generator)
    few = noise.topk(min(3, n_labels), dim=1).indices
    return {
        "start": noise,
        "trained": (2 * noise - 7).scatter(1, few, 3.0),
        "certain": (noise - 12).scatter(1, few, 25.0),
        "wild": 40 * noise,
        "apart": (5 * noise - 300).scatter(1, few, 300.0),
        "equal": torch.full_like(noise, -2.0),
        "huge": 1e4 * noise,
    }[kind]


@pytest.mark.parametrize(
    ("n_labels", "max_labels"), [(1, 1), (7, 3), (20, 20), (64, 5), (65, 32), (300, 12), (1000, 4)]
)
@pytest.mark.parametrize("kind", ["start", "trained", "certain", "wild", "apart", "equal", "huge"])
def test_losses_and_marginals_equal_the_tree_of_products(kind, n_labels, max_labels, generator):
    scores = scores_like(kind, 9, n_labels, generator).float().double()
    for min_labels in {0, 1, max_labels}:
        bias = torch.randn(max_labels + 1, dtype=torch.float64, generator=generator)
        bias[:min_labels] = -torch.inf
        expected = dispatch.expectations(scores, bias.expand(9, -1))
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-6)):
            given = scores.to(dtype)
            losses, saved = dispatch.forward(given, None, bias, KEPT)
            marginals = dispatch.backward(given, None, bias, saved, torch.ones(9, dtype=dtype), KEPT)
            scale = expected.log_partition.abs().clamp(min=1.0)
            assert ((losses.double() - expected.log_partition).abs() / scale).max() < tolerance
            torch.testing.assert_close(marginals.double(), expected.marginals, rtol=0, atol=tolerance)
            torch.testing.assert_close(saved[-1].double(), expected.pmf, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("n_labels", "max_labels", "height"),
    [
        *((20, 4, 12.0), (20, 4, 40.0), (40, 32, 12.0), (1024, 4, 12.0), (1024, 4, 40.0)),
        *((20, 4, 300.0), (40, 32, 30.0), (20, 20, 1e5)),  # left to the tree
    ],
)
def test_losses_of_nearly_certain_targets_keep_their_digits_in_float32(n_labels, max_labels, height, generator):
    targets = torch.zeros(50, n_labels).scatter_(1, torch.arange(50)[:, None] % n_labels, 1.0)
    targets[:, : max_labels // 2] = 1.0
    scores = torch.where(targets == 1, height, 0.0) + 3 * torch.randn(50, n_labels, generator=generator)
    losses, expected = (
        mlrh_loss(some, targets.to(some.dtype), max_labels=max_labels, reduction="none")
        for some in (scores, scores.double())
    )
    # Rounded to float32 once, and weights of labels right to 1e-8.
    torch.testing.assert_close(losses.double(), expected, rtol=1e-6, atol=max_labels * 1e-8)


@pytest.mark.parametrize("kind", ["start", "trained", "certain", "equal"])
@pytest.mark.parametrize(("n_labels", "max_labels"), [(1024, 4), (1024, 8), (1024, 20), (100, 10), (20, 20)])
def test_compiled_code_serves_the_rows_that_training_meets(kind, n_labels, max_labels, generator):
    scores, bias = scores_like(kind, 200, n_labels, generator), torch.zeros(max_labels + 1)
    if n_labels <= 100:
        _, _, marked, _, _ = compiled.expectations(scores, None, bias, keep=False)
    else:
        *_, (marked, _, _), _ = compiled.summarise(scores, None, bias, dispatch._n_heavy(n_labels, max_labels))
    assert not marked[:, 0].isnan().any()


def test_a_row_with_more_heavy_labels_than_there_is_room_for_is_left_to_the_tree():
    scores = -torch.arange(1000.0, dtype=torch.float64).expand(2, -1)  # each label outweighs all behind it
    bias = torch.zeros(9, dtype=torch.float64)
    *_, summary, _ = compiled.summarise(scores, None, bias, 32)
    assert summary.numbers[:, 0].isnan().all()
    d = CardinalitySpace(1000, 0, 8).distribution(scores)
    expected = dispatch.expectations(scores, bias.expand(2, -1))
    torch.testing.assert_close(d.marginals(), expected.marginals, rtol=0, atol=1e-12)
    torch.testing.assert_close(d.log_partition(), expected.log_partition, rtol=1e-12, atol=0)


@pytest.mark.parametrize("n_labels", [30, 700])
def test_loss_and_gradient_do_not_depend_on_the_number_of_threads(n_labels, generator):
    logits = torch.randn(4000, n_labels, generator=generator)
    targets = (torch.rand(logits.shape, generator=generator) < 1.5 / n_labels).float()
    answers, before = [], torch.get_num_threads()
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            given = logits.clone().requires_grad_()
            losses = mlrh_loss(given, targets, max_labels=8, min_labels=0, reduction="none")
            answers.append((losses, *torch.autograd.grad(losses.sum(), given)))
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*answers, strict=True):
        assert torch.equal(one, three)


def test_tensors_that_do_not_lie_row_by_row_give_the_same_loss_and_stay_as_they_are(generator):
    logits, targets = torch.randn(600, 40, generator=generator), torch.zeros(600, 40)
    targets[0] = targets[3] = 1.0
    turned, sets = logits.clone().T.requires_grad_(), targets.clone().T
    loss = mlrh_loss(turned, sets, max_labels=3)
    (gradient,) = torch.autograd.grad(loss, turned)
    plain = logits.T.contiguous().requires_grad_()
    expected = mlrh_loss(plain, targets.T.contiguous(), max_labels=3)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected, plain)[0])
    assert torch.equal(turned, logits.T)
    assert torch.equal(sets, targets.T)


def test_without_numba_loss_and_gradient_are_the_same(monkeypatch, generator):
    answers = []
    for has_numba in (True, False):
        monkeypatch.setattr(compiled, "HAS_NUMBA", has_numba)
        logits = torch.randn(20, 600, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        indices = torch.arange(20)[:, None] * 7 + torch.tensor([0, 3])
        loss = mlrh_loss(logits, indices, max_labels=4, padding_index=-1)
        answers.append((loss, *torch.autograd.grad(loss, logits)))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("value", [1e-9, 0.5, -1.0, 2.0, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_number_that_is_neither_0_nor_1_is_found_wherever_it_is(value, dtype):
    for place in (0, 1, 77, 2999):
        dense = torch.zeros(3000, dtype=dtype)
        dense[::3] = 1.0
        assert compiled.are_binary(dense)
        dense[place] = value
        assert not compiled.are_binary(dense)


def test_a_number_near_0_is_refused_as_target():
    targets = torch.tensor([[1.0, 1e-9, 0.0]])
    with pytest.raises(ValueError, match="found 1e-09 in row 0, column 1"):
        mlrh_loss(torch.zeros(1, 3), targets, max_labels=2)
    assert checks.look(targets.round(), None, strict=True) is False
