"""A layer trained with MLRHLoss to convergence is MLRHClassifier; threads, DataParallel; the package without torch."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from samples import TIGHT, make_multilabel

from mlrh import MLRHClassifier
from mlrh.torch import MLRHLoss, mlrh_loss
from mlrh.torch._eager import operators


def trained_layer(X, Y, loss, C, penalty_of_bias=0.0):
    """Coefficients and intercepts that minimise C * loss + |coef|^2 / 2 (+ a ridge on size biases), by L-BFGS."""
    X, Y = torch.tensor(X), torch.tensor(Y, dtype=torch.float64)
    layer = torch.nn.Linear(X.shape[1], Y.shape[1]).double()
    parameters = [*layer.parameters(), *loss.parameters()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=2000, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def objective():
        optimizer.zero_grad()
        value = C * loss(layer(X), Y) + layer.weight.square().sum() / 2
        for bias in loss.parameters():
            value = value + penalty_of_bias * C * bias.square().sum()
        value.backward()
        return value

    optimizer.step(objective)
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


@pytest.mark.parametrize("C", [0.3, 10.0])
def test_a_linear_layer_trained_to_convergence_has_the_coefficients_of_the_classifier(C):
    X, Y = make_multilabel(200)
    coef, intercept = trained_layer(X, Y, MLRHLoss(3, reduction="sum"), C)
    classifier = MLRHClassifier(C=C, min_labels=1, max_labels=3, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(coef, classifier.coef_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(intercept, classifier.intercept_, rtol=0, atol=1e-6)


def test_a_learned_size_bias_has_the_values_of_the_classifier():
    X, Y = make_multilabel(300, seed=1)
    loss = MLRHLoss(3, size_bias=True, reduction="sum").double()
    coef, _ = trained_layer(X, Y, loss, 1.0, penalty_of_bias=0.05)
    classifier = MLRHClassifier(C=1.0, min_labels=1, max_labels=3, size_bias=True, **TIGHT).fit(X, Y)
    np.testing.assert_allclose(coef, classifier.coef_, rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss.size_bias.detach().numpy()[1:], classifier.size_bias_[1:4], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("n_labels", "max_labels", "scales"), [(10, 3, (7.5, 8.2, 7.2)), (1024, 4, (35, 102, 13))])
def test_loss_and_gradient_are_as_much_larger_than_those_of_bce_as_the_docs_say(n_labels, max_labels, scales):
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, max_labels + 1, (500, 1), generator=generator)
    targets = (torch.rand(500, n_labels, generator=generator).argsort(1).argsort(1) < counts).float()

    def figures(criterion):
        logits = torch.zeros(500, n_labels, requires_grad=True)
        loss = criterion(logits, targets)
        (gradient,) = torch.autograd.grad(loss, logits)
        return torch.stack((loss.detach(), gradient.norm(), gradient.abs().mean()))

    quotients = figures(MLRHLoss(max_labels)) / figures(torch.nn.BCEWithLogitsLoss())
    torch.testing.assert_close(quotients, torch.tensor(scales, dtype=torch.float32), rtol=0.02, atol=0)


def test_the_example_of_the_docs_trains_a_network_that_answers_in_sets():
    text = (Path(__file__).parents[1] / "docs" / "neural-networks.md").read_text()
    names: dict = {}
    torch.manual_seed(0)
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1), names)
    untrained = MLRHLoss(3)(torch.zeros(256, 10), names["Y"])
    assert names["criterion"](names["network"](names["X"]), names["Y"]) < untrained
    assert (names["sets"].sum(1) >= 1).all()


WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
import mlrh.estimators, mlrh.cli
try:
    import mlrh.torch
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_torch_the_package_works_and_the_import_says_what_to_install():
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, capture_output=True, text=True)
    assert run.stdout == 'mlrh.torch needs PyTorch; install it with: pip install "torch>=2.9"\n'


ALONE = """
import sys
import mlrh.torch
print(sorted(name for name in sys.modules if name.split(".")[0] in ("numba", "sklearn", "triton")))
print(sorted(name for name in sys.modules if name.startswith("mlrh") and not name.startswith("mlrh.torch")))
"""


def test_the_torch_side_loads_neither_numba_nor_the_rest_of_the_package():
    run = subprocess.run([sys.executable, "-c", ALONE], check=True, capture_output=True, text=True)
    others, own = run.stdout.splitlines()
    assert others == "[]"
    assert own == "['mlrh']"


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
