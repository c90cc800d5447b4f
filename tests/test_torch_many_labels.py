"""Rows of many labels, by sums of powers: equal to the tree of products and to the NumPy side, with little kept."""

import numpy as np
import pytest
import torch

from mlrh import spaces as label_space
from mlrh.torch import CardinalitySpace, mlrh_loss
from mlrh.torch._eager import compiled, dispatch, many_labels, operators

NAN = float("nan")
KEPT = dispatch.Options(0, False, biased=True, partial=False, keep=True)


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "torch operations"])
def has_numba(request, monkeypatch):
    """With numba, compiled code keeps the same rules."""
    monkeypatch.setattr(compiled, "HAS_NUMBA", request.param)


def rows_like(kind, n_rows, n_labels, max_labels):
    """Scores in float64 as networks have them: at the start, when trained, and worse."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n_rows, n_labels, dtype=torch.float64, generator=generator)
    if kind == "start":
        return noise
    scores = {"trained": 2 * noise - 7, "certain": noise - 12, "torn": 0.1 * noise - 4, "wild": 40 * noise}[kind]
    present = torch.rand(n_rows, n_labels, generator=generator).topk(max_labels + 2, dim=1).indices
    height = {"trained": 3.0, "certain": 25.0, "torn": 0.0, "wild": 0.0}[kind]
    return scores if kind == "wild" else scores.scatter(1, present, height + noise[:, : max_labels + 2])


def log_weights_of(min_labels, max_labels):
    bias = torch.randn(max_labels + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return bias.masked_fill(torch.arange(max_labels + 1) < min_labels, -torch.inf)


@pytest.mark.parametrize("n_labels", [512, 700, 1023])
@pytest.mark.parametrize("max_labels", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["start", "trained", "certain", "torn", "wild"])
def test_log_partition_and_marginals_equal_the_tree_of_products(kind, max_labels, n_labels):
    scores = rows_like(kind, 6, n_labels, max_labels)
    for min_labels in (1, max_labels):
        log_weights = log_weights_of(min_labels, max_labels)
        expected = dispatch.expectations(scores.float().double(), log_weights.expand(6, -1))
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-6)):
            narrow = scores.float().to(dtype)
            log_partition, saved = dispatch.forward(narrow, None, log_weights, KEPT)
            marginals = dispatch.backward(narrow, None, log_weights, saved, torch.ones(6, dtype=dtype), KEPT)
            scale = expected.log_partition.abs().clamp(min=1.0)
            assert ((log_partition - expected.log_partition).abs() / scale).max() < tolerance
            torch.testing.assert_close(marginals.double(), expected.marginals, rtol=0, atol=tolerance)
            torch.testing.assert_close(saved[-1].double(), expected.pmf, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["start", "trained", "certain", "torn"])
def test_powers_serve_the_rows_that_training_meets(kind):
    scores = rows_like(kind, 200, 1024, 4).float()
    sums, heavy, _ = many_labels.summaries(scores, 4, torch.float32)
    *_, coefficients, _ = many_labels.solve(sums, heavy, log_weights_of(1, 4).expand(200, -1))
    assert coefficients.isnan().any(1).double().mean() < 0.02


def test_the_heaviest_labels_are_those_of_a_full_sort():
    weights = torch.rand(50, 1000, generator=torch.Generator().manual_seed(2))
    found, index = many_labels._heaviest(weights, 9)
    expected = weights.sort(descending=True)
    torch.testing.assert_close(found, expected.values[:, :9], rtol=0, atol=0)
    assert torch.equal(index, expected.indices[:, :9])


@pytest.mark.parametrize("targets", ["dense", "indices", "unobserved"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_and_gradient_of_all_kinds_of_targets_equal_numpy(targets, dtype):
    scores = rows_like("trained", 30, 600, 4)
    scores[3] = 40 * scores[3]  # left to the tree
    logits = scores.clone().to(dtype).requires_grad_()
    space = label_space.CardinalitySpace(600, 1, 4)
    d = space.distribution(logits.detach().double().numpy())
    sets = space.distribution(scores.numpy()).sample(1, random_state=0)[:, 0]
    known, options = sets.astype(np.float64), {}
    given = torch.tensor(known, dtype=dtype)
    if targets == "indices":
        given = torch.tensor([np.flatnonzero(row).tolist() + [-1] * int(4 - row.sum()) for row in sets])
        options = {"padding_index": -1}
    if targets == "unobserved":
        known[:, ::3] = np.nan
        given = torch.tensor(known, dtype=dtype)
    losses = mlrh_loss(logits, given, max_labels=4, reduction="none", **options)
    weights = torch.linspace(0.5, 2.0, 30, dtype=dtype)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5 * max(1.0, float(scores[3].abs().max()) / 40)
    expected = d.marginals() - (d.condition(known).marginals() if targets == "unobserved" else sets)
    np.testing.assert_allclose(losses.detach().numpy(), -d.log_prob_of_known(known), rtol=0, atol=tolerance)
    atol = 1e-10 if dtype == torch.float64 else 1e-5
    np.testing.assert_allclose(gradient.numpy(), expected * weights.numpy()[:, None], rtol=0, atol=atol)


def test_second_derivatives_equal_those_of_numpy():
    scores = rows_like("trained", 3, 520, 3).requires_grad_()
    direction = torch.randn(3, 520, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    marginals = CardinalitySpace(520, 1, 3).distribution(scores).marginals()
    (product,) = torch.autograd.grad((marginals * direction).sum(), scores)
    space = label_space.CardinalitySpace(520, 1, 3)
    expected, _ = space.curvature(scores.detach().numpy(), direction.numpy(), np.zeros(3), np.ones(3))
    np.testing.assert_allclose(product.numpy(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_kept_for_the_gradient_is_under_a_tenth_of_the_scores(dtype):
    scores = torch.randn(64, 1024, dtype=dtype)
    _, saved = dispatch.forward(scores, None, log_weights_of(1, 4).to(dtype), KEPT)
    kept = sum(tensor.numel() * tensor.element_size() for tensor in saved)
    assert kept < 0.1 * scores.numel() * scores.element_size()


@pytest.mark.parametrize(("n_labels", "max_labels"), [(64, 4), (511, 4), (1024, 9)])
def test_with_few_labels_or_large_sets_the_gradient_itself_is_kept(n_labels, max_labels):
    for dtype, itemsize in ((torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 4)):
        scores = torch.randn(100, n_labels).to(dtype)
        _, saved = dispatch.forward(scores, None, log_weights_of(1, max_labels), KEPT)
        kept = sum(tensor.numel() * tensor.element_size() for tensor in saved)
        assert kept == 100 * itemsize * (n_labels + max_labels + 1)


def test_a_score_of_nan_makes_its_row_nan_and_no_other():
    scores = rows_like("start", 3, 600, 4)
    scores[1, 5] = NAN
    d = CardinalitySpace(600, 1, 4).distribution(scores)
    assert d.log_partition().isnan().tolist() == [False, True, False]
    assert d.marginals().isnan().all(1).tolist() == [False, True, False]


def test_no_rows_have_empty_answers():
    d = CardinalitySpace(600, 1, 4).distribution(torch.zeros(0, 600))
    assert d.log_partition().shape == (0,)
    assert d.marginals().shape == (0, 600)


def test_the_shapes_promised_to_the_compiler_are_those_that_come():
    scores = torch.randn(3, 600, requires_grad=True)
    log_weights = log_weights_of(0, 4).float().requires_grad_()
    args = (scores, None, log_weights, *KEPT)
    torch.library.opcheck(operators._log_loss, args, test_utils=("test_schema", "test_faketensor"))
