"""The loss called by several threads at once, as DataParallel does, and inside DataParallel."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mlrh.torch import MLRHLoss, mlrh_loss
from mlrh.torch._eager import operators

SHAPES = [(6, 9), (6, 10), (17, 9), (6, 9), (40, 700)]


def batch(n_rows, n_labels, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n_rows, n_labels, generator=generator)
    targets = (torch.rand(n_rows, n_labels, generator=generator).argsort(1) < 2).float()
    targets[0, 1] = torch.nan
    return logits, targets


def loss_and_gradient(logits, targets, **options):
    logits = logits.clone().requires_grad_()
    loss = mlrh_loss(logits, targets, max_labels=3, **options)
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("unobserved", [None, True])
def test_many_threads_at_once_find_what_one_finds(unobserved):
    batches = [batch(*shape, seed) for seed in range(8) for shape in SHAPES]
    expected = [loss_and_gradient(*one, unobserved=unobserved) for one in batches]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: loss_and_gradient(*one, unobserved=unobserved), batches))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_threads_that_fill_the_store_of_shortcuts_at_once_find_their_own(monkeypatch):
    monkeypatch.setattr(operators, "MOST_CALLS", 3)
    monkeypatch.setattr(operators, "_CALLS", {})

    def keep_and_find(kind):
        kept = object()
        operators._keep((kind,), kept)
        return operators.find((kind,)) in (kept, None)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(keep_and_find, range(2000)))
    assert len(operators._CALLS) <= 3 + 8


class NetworkWithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.loss = torch.nn.Linear(9, 9), MLRHLoss(3, reduction="none")

    def forward(self, inputs, targets):
        return self.loss(self.layer(inputs), targets)


def test_a_network_and_its_loss_in_data_parallel_have_the_gradients_of_the_plain_ones():
    inputs, targets = batch(6, 9, 0)
    network = NetworkWithLoss()
    parallel = torch.nn.DataParallel(network)
    plain, wrapped = (
        torch.autograd.grad(one(inputs, targets).mean(), network.parameters()) for one in (network, parallel)
    )
    torch.testing.assert_close(wrapped, plain, rtol=0, atol=0)


def test_replicas_run_by_data_parallel_s_threads_equal_the_network():
    inputs, targets = batch(8, 9, 1)
    network = NetworkWithLoss()
    pieces = list(zip(inputs.chunk(4), targets.chunk(4), strict=True))
    with ThreadPoolExecutor(4) as pool:
        found = torch.cat(list(pool.map(lambda piece: network(*piece), pieces)))
    torch.testing.assert_close(found, network(inputs, targets), rtol=0, atol=1e-6)
