"""A linear layer trained with MLRHLoss to convergence is MLRHClassifier; and the package works without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from samples import TIGHT, make_multilabel

from mlrh import MLRHClassifier
from mlrh.torch import MLRHLoss


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


def test_without_torch_the_package_works_and_the_import_says_what_to_install():
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, capture_output=True, text=True)
    assert run.stdout == 'mlrh.torch needs PyTorch; install it with: pip install "mlrh[torch]"\n'


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
