"""The label spaces of torch: equal to the enumeration of their sets, which is written here a second time, in words."""

import itertools
import re
from copy import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch.utils._python_dispatch import TorchDispatchMode

from mlrh import spaces as numpy_spaces
from mlrh.torch import (
    CardinalitySpace,
    GroupSpace,
    HierarchySpace,
    MLRHLoss,
    ObservedSpace,
    OpenSpace,
    decide,
    label_space,
    mlrh_loss,
)
from mlrh.torch.spaces import open as open_space

NAN, INF = float("nan"), float("inf")
N_LABELS = 6
EVERY = np.array(list(itertools.product([0, 1], repeat=N_LABELS)), np.int8)
LISTED = EVERY[[3, 5, 9, 10, 21, 30, 33, 34, 40, 49, 50, 58]]  # of 2 to 4 labels
PARENTS = [-1, 0, 0, 1, -1, 4]  # leaves are 2, 3 and 5
RNG = np.random.default_rng(0)
SET_BIAS, SIZE_BIAS = RNG.normal(size=len(LISTED)), RNG.normal(size=N_LABELS + 1)
WIDE_BIAS = np.linspace(-60, 60, len(LISTED))
LOW_BIAS = np.linspace(-60, -40, len(LISTED))
GROUPS = [([4, 0, 3], 1, 2), ([1], 0, 1)]
GROUP_BIAS = np.array([0.3, -0.8, 0.1, 0.7])  # of 1 and 2 labels of the first group, of 0 and 1 of the second


def listed_bias(biases):
    return {tuple(row): bias for row, bias in zip(LISTED.tolist(), biases, strict=True)}


def bias_if_listed(y, biases=SET_BIAS):
    return listed_bias(biases).get(tuple(y), -INF)


def bias_if_open(y, biases=SET_BIAS):
    return SIZE_BIAS[sum(y)] + listed_bias(biases).get(tuple(y), 0.0) if 1 <= sum(y) <= 4 else -INF


def bias_of_groups(y, biases=GROUP_BIAS):
    count = y[4] + y[0] + y[3]
    return biases[count - 1] + biases[2 + y[1]] if 1 <= count <= 2 else -INF


def bias_in_forest(y, least=0, most=3):
    is_closed = all(not y[k] or parent < 0 or y[parent] for k, parent in enumerate(PARENTS))
    return 0.0 if is_closed and least <= y[2] + y[3] + y[5] <= most else -INF


def open_with(biases, size_bias=SIZE_BIAS):
    return OpenSpace(N_LABELS, 1, 4, LISTED, biases, size_bias)


SPACES = {  # the space, and b(y)
    "observed": (lambda: ObservedSpace(LISTED, SET_BIAS), bias_if_listed),
    "observed-without-bias": (lambda: ObservedSpace(LISTED), lambda y: bias_if_listed(y, 0 * SET_BIAS)),
    "open": (lambda: open_with(SET_BIAS), bias_if_open),
    "open-wide": (lambda: open_with(WIDE_BIAS), lambda y: bias_if_open(y, WIDE_BIAS)),
    "open-low": (lambda: open_with(LOW_BIAS), lambda y: bias_if_open(y, LOW_BIAS)),
    "groups": (lambda: GroupSpace(GROUPS, N_LABELS, GROUP_BIAS), bias_of_groups),
    "groups-without-bias": (lambda: GroupSpace(GROUPS, N_LABELS), lambda y: bias_of_groups(y, 0 * GROUP_BIAS)),
    "hierarchy": (lambda: HierarchySpace(PARENTS), bias_in_forest),
    "at-least-one-leaf": (lambda: HierarchySpace(PARENTS, min_leaves=1), lambda y: bias_in_forest(y, 1)),
    "one-or-two-leaves": (lambda: HierarchySpace(PARENTS, 1, 2), lambda y: bias_in_forest(y, 1, 2)),
    "no-leaf": (lambda: HierarchySpace(PARENTS, max_leaves=0), lambda y: bias_in_forest(y, 0, 0)),
}
every_space = pytest.mark.parametrize("name", SPACES)
WITH_BIASES = {
    "observed": lambda: ObservedSpace(LISTED, torch.nn.Parameter(torch.tensor(SET_BIAS))),
    "open": lambda: open_with(*map(torch.nn.Parameter, map(torch.tensor, (SET_BIAS, SIZE_BIAS)))),
    "open-low": lambda: open_with(*map(torch.nn.Parameter, map(torch.tensor, (LOW_BIAS / 4, SIZE_BIAS)))),
    "groups": lambda: GroupSpace(GROUPS, N_LABELS, torch.nn.Parameter(torch.tensor(GROUP_BIAS))),
    "hierarchy": lambda: HierarchySpace(PARENTS),
    "one-or-two-leaves": lambda: HierarchySpace(PARENTS, 1, 2),
}
every_kind = pytest.mark.parametrize("name", WITH_BIASES)


def scores_of(n_rows=5, scale=2.0):
    return torch.tensor(scale * np.random.default_rng(1).normal(size=(n_rows, N_LABELS)))


def biases(name):
    return np.array([SPACES[name][1](y) for y in EVERY.tolist()])


def log_weights(name, scores):
    """Of all sets, (n_rows, 64); sums without the scores of other labels, which may be -inf."""
    return np.where(EVERY, scores.double().numpy()[:, None], 0.0).sum(2) + biases(name)


def possible_sets(name, n_rows):
    inside = EVERY[biases(name) > -INF]
    return torch.tensor(inside[np.random.default_rng(2).integers(len(inside), size=n_rows)])


def partly_unknown(sets):
    unknown = torch.tensor(np.random.default_rng(3).random(sets.shape) < 0.5)
    return sets.double().masked_fill(unknown, NAN)


@every_space
@pytest.mark.parametrize("scale", [2.0, 100.0, 1e4])
def test_answers_equal_the_enumeration(name, scale):
    scores = scores_of(scale=scale)
    d, weights = SPACES[name][0]().distribution(scores), log_weights(name, scores)
    total = logsumexp(weights, axis=1)
    probs = np.exp(weights - total[:, None])
    atol = 1e-10 * max(1.0, 1e-4 * scale)  # scores of 1e4 have an error of 1e-12 themselves
    np.testing.assert_allclose(d.log_partition().numpy(), total, rtol=0, atol=atol)
    np.testing.assert_allclose(d.marginals().numpy(), probs @ EVERY, rtol=0, atol=atol)
    pmf = probs @ np.eye(N_LABELS + 1)[EVERY.sum(axis=1)]
    np.testing.assert_allclose(d.cardinality_pmf().numpy(), pmf, rtol=0, atol=atol)
    np.testing.assert_array_equal(d.mode().numpy(), EVERY[weights.argmax(axis=1)])


@every_space
@pytest.mark.parametrize("scale", [2.0, 1e3])
def test_log_prob_of_every_set_equals_the_enumeration(name, scale):
    scores = scores_of(1, scale)
    rows = scores.repeat(len(EVERY), 1)
    log_probs = SPACES[name][0]().distribution(rows).log_prob(torch.tensor(EVERY)).numpy()
    weights = log_weights(name, scores)[0]
    np.testing.assert_allclose(log_probs, weights - logsumexp(weights), rtol=0, atol=1e-10)


@every_space
def test_top_sets_are_all_sets_in_the_order_of_the_enumeration(name):
    scores = scores_of(2)
    sets, log_probs = SPACES[name][0]().distribution(scores).top_sets(64)
    weights = log_weights(name, scores)
    order = np.argsort(-weights, axis=1, kind="stable")
    n_sets = int((biases(name) > -INF).sum())
    expected = np.take_along_axis(weights - logsumexp(weights, axis=1, keepdims=True), order, axis=1)
    np.testing.assert_allclose(log_probs.numpy(), expected, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(sets[:, :n_sets].numpy(), EVERY[order[:, :n_sets]])
    assert not sets[:, n_sets:].any()


@every_space
@pytest.mark.parametrize("can_look", [True, False])
def test_unobserved_labels_have_the_probability_of_all_sets_that_agree(name, can_look, monkeypatch):
    if not can_look:  # as on a GPU
        monkeypatch.setattr("mlrh.torch._eager.checks.can_look", lambda targets: False)
    scores, targets = scores_of(), partly_unknown(possible_sets(name, 5))
    losses = MLRHLoss(label_space=SPACES[name][0](), reduction="none")(scores, targets).numpy()
    weights = log_weights(name, scores)
    agrees = (np.isnan(targets.numpy())[:, None] | (targets.numpy()[:, None] == EVERY)).all(axis=2)
    expected = logsumexp(weights, axis=1) - logsumexp(np.where(agrees, weights, -INF), axis=1)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-10)


@every_space
def test_samples_have_the_frequencies_of_the_sets(name):
    scores = scores_of(1, 0.7)
    n = 3000
    drawn = SPACES[name][0]().distribution(scores).sample(n, torch.Generator().manual_seed(0))[0].numpy()
    weights = log_weights(name, scores)[0]
    expected = n * np.exp(weights - logsumexp(weights))
    counts = np.bincount(drawn @ (1 << np.arange(N_LABELS)[::-1]), minlength=64)  # EVERY counts in binary
    assert not counts[expected == 0].any()
    # Within 4.5 standard deviations: all of 64 frequencies are, but for one draw in thousands.
    assert (np.abs(counts - expected) <= 4.5 * np.sqrt(np.maximum(expected, 1.0))).all()


@every_space
def test_decisions_are_as_good_as_the_best_of_all_sets(name):
    scores = scores_of(40)
    d, weights = SPACES[name][0]().distribution(scores), log_weights(name, scores)
    probs = np.exp(weights - logsumexp(weights, axis=1, keepdims=True))
    right = (EVERY[:, None] & EVERY).sum(axis=2)
    sizes = EVERY.sum(axis=1)[:, None] + EVERY.sum(axis=1)
    gains = {
        "exact_match": np.eye(64),
        "hamming": (EVERY[:, None] == EVERY).mean(axis=2),
        "f1": np.where(sizes == 0, 1.0, 2 * right / np.maximum(sizes, 1)),
    }
    for decision, gain in gains.items():
        expected = probs @ gain  # of each answer
        answers = decide(d, decision).numpy() @ (1 << np.arange(N_LABELS)[::-1])
        reached = expected[np.arange(len(scores)), answers]
        np.testing.assert_allclose(reached, expected.max(axis=1), rtol=0, atol=1e-12)
    marginals = probs @ EVERY
    top = (marginals * decide(d, ("top", 2)).numpy()).sum(axis=1)
    np.testing.assert_allclose(top, np.sort(marginals, axis=1)[:, -2:].sum(axis=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("decision", ["jaccard", lambda tp, fp, fn: tp - fp])
def test_a_decision_that_is_exact_in_a_cardinality_space_only_says_so(decision):
    d = HierarchySpace(PARENTS).distribution(scores_of())
    with pytest.raises(ValueError, match=r"for a cardinality space only; got HierarchySpace\(6 labels\)\. Use 'f1'"):
        decide(d, decision)


@every_kind
@pytest.mark.parametrize("partial", [False, True])
def test_derivatives_of_the_loss_equal_finite_differences(name, partial):
    loss = MLRHLoss(label_space=WITH_BIASES[name](), reduction="none")
    scores, targets = scores_of(3).requires_grad_(), possible_sets(name, 3)
    targets = partly_unknown(targets) if partial else targets

    def function(scores, *biases):
        names = [name for name, _ in loss.named_parameters()]
        return torch.func.functional_call(loss, dict(zip(names, biases, strict=True)), (scores, targets))

    inputs = (scores, *(parameter.detach().clone().requires_grad_() for parameter in loss.parameters()))
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@every_kind
@pytest.mark.parametrize("question", ["marginals", "cardinality_pmf", "top_sets"])
def test_derivatives_of_answers_equal_finite_differences(name, question):
    space = WITH_BIASES[name]()

    def function(scores):
        d = space.distribution(scores)
        return d.top_sets(3)[1] if question == "top_sets" else getattr(d, question)()

    assert torch.autograd.gradcheck(function, scores_of(2, 1.0).requires_grad_(), fast_mode=True)


@every_kind
def test_marginals_are_differentiable_in_the_biases_alone(name):
    space = WITH_BIASES[name]()
    marginals = space.distribution(scores_of()).marginals()
    parameters = list(space.parameters())
    assert marginals.requires_grad == bool(parameters)
    for parameter in parameters:
        (gradient,) = torch.autograd.grad(marginals[0, 0], parameter, retain_graph=True)
        assert gradient.isfinite().all()


@every_kind
def test_the_gradient_is_marginals_minus_targets_and_index_targets_have_the_same(name):
    space, scores, targets = WITH_BIASES[name](), scores_of().requires_grad_(), possible_sets(name, 5)
    (gradient,) = torch.autograd.grad(MLRHLoss(label_space=space, reduction="sum")(scores, targets), scores)
    torch.testing.assert_close(gradient, space.distribution(scores.detach()).marginals() - targets, rtol=0, atol=1e-12)
    ranks = torch.where(targets == 1, torch.arange(N_LABELS), N_LABELS).sort(dim=1).values
    indices = ranks.masked_fill(ranks == N_LABELS, -1)
    by_indices = MLRHLoss(label_space=space, reduction="sum", padding_index=-1)(scores, indices)
    torch.testing.assert_close(torch.autograd.grad(by_indices, scores)[0], gradient, rtol=0, atol=1e-14)


OUTSIDE = {
    "observed": [1, 1, 1, 1, 1, 1],
    "open": [1, 1, 1, 1, 1, 0],
    "groups": [0, 1, 0, 0, 0, 0],
    "hierarchy": [0, 1, 0, 0, 0, 0],
    "one-or-two-leaves": [1, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.filterwarnings("ignore:The loss is infinite")
def test_a_target_outside_the_space_has_infinite_loss_a_finite_gradient_and_its_row_is_named(name, partial):
    space, scores = SPACES[name][0](), scores_of(2).requires_grad_()
    targets = torch.stack([possible_sets(name, 1)[0], torch.tensor(OUTSIDE[name], dtype=torch.int8)]).double()
    if partial:
        targets[0, 5] = NAN
    losses = MLRHLoss(label_space=space, reduction="none")(scores, targets)
    assert losses.isposinf().tolist() == [False, True]
    losses.sum().backward()
    assert scores.grad.isfinite().all()
    with pytest.raises(ValueError, match=r"must be, or agree with, a set of the label space, .*; row 1 is none"):
        MLRHLoss(label_space=space, validate=True)(scores, targets)


@every_kind
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_are_computed_in_float32_at_least(name, dtype, scale):
    loss, targets = MLRHLoss(label_space=WITH_BIASES[name](), reduction="none"), possible_sets(name, 20)
    narrow = scores_of(20, scale).clamp(-6e4, 6e4).to(dtype).requires_grad_()  # float16 ends at 65504
    wide = narrow.detach().double().requires_grad_()
    narrow_losses, wide_losses = loss(narrow, targets), loss(wide, targets)
    assert narrow_losses.dtype == torch.float32
    # Sums of up to six scores in float32: relative to the largest score.
    torch.testing.assert_close(narrow_losses.double(), wide_losses, rtol=1e-6, atol=1e-5 + 2e-6 * scale)
    narrow_losses.sum().backward()
    wide_losses.sum().backward()
    eps = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 1e-3}[dtype]
    # Where scores of 1e4 nearly tie, float32 can't tell them apart: there only that the gradient is finite.
    assert narrow.grad.isfinite().all()
    if scale < 1e4:
        torch.testing.assert_close(narrow.grad.double(), wide.grad, rtol=0, atol=eps)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.filterwarnings("ignore:The loss is infinite")
def test_a_logit_of_minus_infinity_makes_its_label_impossible(name, dtype):
    space, scores = WITH_BIASES[name](), scores_of(4).to(dtype)
    label = 5
    sets = EVERY[(np.array([bias_or_none(name, y) for y in EVERY.tolist()]) > -INF) & (EVERY[:, label] == 0)]
    scores[:, label] = -INF
    scores.requires_grad_()
    targets = torch.tensor(sets[[0, -1, 0, 0]])
    targets[3, label] = 1
    losses = MLRHLoss(label_space=space, reduction="none")(scores, targets)
    assert losses.isposinf().tolist() == [False, False, False, True]
    losses[:3].sum().backward()
    assert scores.grad.isfinite().all()
    d = space.distribution(scores.detach())
    low = scores.detach().masked_fill(scores == -INF, -1e3)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(d.marginals(), space.distribution(low).marginals(), rtol=0, atol=tolerance)
    torch.testing.assert_close(d.log_partition(), space.distribution(low).log_partition(), rtol=0, atol=tolerance)
    assert not d.mode()[:, label].any()


def bias_or_none(name, y):
    name = {"open-low": "open"}.get(name, name)
    return SPACES[name][1](y)


@pytest.mark.filterwarnings("ignore:The loss is infinite")
def test_where_every_set_is_impossible_the_loss_is_infinite_and_nothing_is_nan():
    scores = torch.tensor([[-INF, -INF, 0.0]], requires_grad=True)
    loss = MLRHLoss(label_space=GroupSpace([([0, 1], 1, 1)], 3))(scores, torch.tensor([[1, 0, 0]]))
    assert loss == INF
    loss.backward()
    assert not scores.grad.isnan().any()


@pytest.mark.parametrize(
    ("name", "partial"),
    [
        ("observed", False),
        pytest.param("open", False, marks=pytest.mark.slow),
        pytest.param("groups", True, marks=pytest.mark.slow),
        ("hierarchy", True),
    ],
)
def test_compiled_without_a_graph_break_the_loss_equals_eager(name, partial):
    torch.compiler.reset()  # it counts how often a function is compiled, and stops at eight
    space = WITH_BIASES[name]()
    loss = MLRHLoss(label_space=space, unobserved=None if partial else False)
    scores, targets = scores_of().requires_grad_(), possible_sets(name, 5).double()
    targets = partly_unknown(targets) if partial else targets
    parameters = [scores, *loss.parameters()]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected, actual = loss(scores, targets), compiled(scores, targets)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    pairs = zip(torch.autograd.grad(actual, parameters), torch.autograd.grad(expected, parameters), strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@every_kind
def test_under_autocast_the_loss_is_that_of_float32(name):
    space, targets = WITH_BIASES[name](), possible_sets(name, 5)
    scores = scores_of().to(torch.bfloat16)
    plain = MLRHLoss(label_space=space)(scores, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(MLRHLoss(label_space=space)(scores, targets), plain, rtol=0, atol=0)
        pmf = space.distribution(scores).cardinality_pmf()
    torch.testing.assert_close(pmf.double().sum(1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-6)


QUESTIONS = (
    lambda d: d.log_partition(),
    lambda d: d.marginals(),
    lambda d: d.cardinality_pmf(),
    lambda d: d.mode(),
    lambda d: d.top_sets(2)[0],
    lambda d: decide(d, "f1"),
    lambda d: d.sample(2, torch.Generator().manual_seed(0)),
)


@every_kind
def test_answers_are_the_same_in_inference_mode(name):
    space, scores = WITH_BIASES[name](), scores_of()
    plain = space.distribution(scores)
    with torch.inference_mode():
        d = space.distribution(scores + 0.0)
        answers = [ask(d) for ask in QUESTIONS]
    expected = [ask(plain) for ask in QUESTIONS]
    for answer, other in zip(answers, expected, strict=True):
        torch.testing.assert_close(answer, other.detach(), rtol=0, atol=1e-14)


@every_kind
def test_an_empty_batch_has_empty_answers_and_a_loss_of_0_with_a_gradient_of_0(name):
    space, nothing = WITH_BIASES[name](), torch.zeros(0, N_LABELS)
    d = space.distribution(nothing)
    assert d.marginals().shape == (0, N_LABELS)
    assert d.cardinality_pmf().shape == (0, N_LABELS + 1)
    assert [part.shape for part in d.top_sets(2)] == [(0, 2, N_LABELS), (0, 2)]
    assert d.sample(3).shape == (0, 3, N_LABELS)
    assert decide(d, "f1").shape == (0, N_LABELS)
    layer = torch.nn.Linear(2, N_LABELS)
    for reduction in ("mean", "sum"):
        loss = MLRHLoss(label_space=space, reduction=reduction)(layer(torch.zeros(0, 2)), nothing)
        assert loss == 0
        loss.backward()
        for parameter in (*layer.parameters(), *space.parameters()):
            assert parameter.grad is None or not parameter.grad.any()  # None: a space may have no use for a bias
        assert layer.weight.grad is not None


def test_biases_given_as_true_are_learned_moved_and_saved_with_the_loss():
    space = OpenSpace(N_LABELS, 1, 4, LISTED, set_bias=True, size_bias=True)
    loss = MLRHLoss(label_space=space)
    assert [name for name, _ in loss.named_parameters()] == [
        "label_space.set_bias",
        "label_space.cardinality.size_bias",
    ]
    assert list(loss.state_dict()) == [name for name, _ in loss.named_parameters()]
    optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
    seen = torch.tensor(LISTED[:1])
    for _ in range(20):
        optimizer.zero_grad()
        loss(torch.zeros(1, N_LABELS), seen).backward()
        optimizer.step()
    assert space.distribution(torch.zeros(1, N_LABELS)).mode().tolist() == LISTED[:1].tolist()
    other = MLRHLoss(label_space=OpenSpace(N_LABELS, 1, 4, LISTED, set_bias=True, size_bias=True))
    other.load_state_dict(loss.state_dict())
    logits = torch.randn(1, N_LABELS)
    torch.testing.assert_close(other(logits, seen), loss(logits, seen))
    assert loss.double().label_space.set_bias.dtype == torch.float64


def test_a_cardinality_space_gives_the_loss_of_its_sizes():
    size_bias = torch.nn.Parameter(torch.tensor(SIZE_BIAS[:5]))
    scores, targets = scores_of(), possible_sets("open", 5)
    loss = MLRHLoss(label_space=CardinalitySpace(N_LABELS, 1, 4, size_bias))
    torch.testing.assert_close(
        loss(scores, targets), mlrh_loss(scores, targets, max_labels=4, size_bias=size_bias), rtol=0, atol=0
    )
    targets = partly_unknown(targets)
    torch.testing.assert_close(
        loss(scores, targets), mlrh_loss(scores, targets, max_labels=4, size_bias=size_bias), rtol=0, atol=1e-14
    )
    assert next(iter(loss.parameters())) is size_bias


def test_an_open_space_whose_sets_are_all_listed_is_the_observed_space():
    sets = EVERY[(EVERY.sum(axis=1) >= 1) & (EVERY.sum(axis=1) <= 4)]
    set_bias = np.linspace(-50, 20, len(sets))
    observed = ObservedSpace(sets, set_bias + SIZE_BIAS[sets.sum(axis=1)]).distribution(scores_of())
    opened = OpenSpace(N_LABELS, 1, 4, sets, set_bias, SIZE_BIAS).distribution(scores_of())
    for question in ("log_partition", "marginals", "cardinality_pmf", "mode"):
        torch.testing.assert_close(getattr(opened, question)(), getattr(observed, question)(), rtol=0, atol=1e-12)
    assert opened.top_sets(60)[0].tolist() == observed.top_sets(60)[0].tolist()


def test_an_open_space_without_biases_of_sets_is_the_cardinality_space():
    opened = open_with(np.zeros(len(LISTED))).distribution(scores_of())
    sizes = CardinalitySpace(N_LABELS, 1, 4, SIZE_BIAS).distribution(scores_of())
    for question in ("log_partition", "marginals", "cardinality_pmf", "mode"):
        torch.testing.assert_close(getattr(opened, question)(), getattr(sizes, question)(), rtol=0, atol=1e-13)


def test_both_ways_to_sum_an_open_space_agree_with_many_labels(monkeypatch):
    rng = np.random.default_rng(0)
    sets = np.unique((rng.random((300, 40)) < 0.07).astype(np.int8), axis=0)
    sets = sets[(sets.sum(axis=1) >= 1) & (sets.sum(axis=1) <= 5)]
    space = OpenSpace(40, 1, 5, sets, rng.uniform(-9, 9, len(sets)))
    scores = torch.tensor(rng.normal(size=(8, 40)) - 1)
    by_correction = space.distribution(scores).log_partition(), space.distribution(scores).marginals()
    monkeypatch.setattr(open_space, "LOWEST_BIAS", 100.0)
    by_tree = space.distribution(scores).log_partition(), space.distribution(scores).marginals()
    for one, other in zip(by_correction, by_tree, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("partial", [False, True])
def test_an_open_space_summed_in_blocks_of_rows_has_the_same_loss_and_derivatives(partial, monkeypatch):
    space, targets = WITH_BIASES["open-low"](), possible_sets("open", 5)
    targets = partly_unknown(targets) if partial else targets
    results = []
    for most_terms in (open_space.MOST_TERMS, 1):
        monkeypatch.setattr(open_space, "MOST_TERMS", most_terms)
        scores = scores_of().requires_grad_()
        inputs = (scores, *space.parameters())
        loss = MLRHLoss(label_space=space)(scores, targets)
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
        results.append((loss.detach(), *(g.detach() for g in first), *second))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_one_group_of_all_labels_is_the_cardinality_space_and_groups_of_one_choice_are_softmaxes():
    scores = scores_of()
    whole = GroupSpace([(range(N_LABELS), 1, 4)], bias=SIZE_BIAS[1:5]).distribution(scores)
    sizes = CardinalitySpace(N_LABELS, 1, 4, SIZE_BIAS).distribution(scores)
    torch.testing.assert_close(whole.marginals(), sizes.marginals(), rtol=0, atol=1e-13)
    choices = GroupSpace([([0, 2], 1, 1), ([1, 3, 5], 1, 1)], N_LABELS).distribution(scores).marginals()
    for labels in ([0, 2], [1, 3, 5]):
        torch.testing.assert_close(choices[:, labels], scores[:, labels].softmax(1), rtol=0, atol=1e-13)
    torch.testing.assert_close(choices[:, 4], scores[:, 4].sigmoid(), rtol=0, atol=1e-13)


def test_groups_of_very_different_widths_equal_cardinality_spaces():
    widths, scores = (1, 3, 17, 600), torch.tensor(np.random.default_rng(0).normal(size=(4, 621)))
    ends = np.cumsum(widths)
    parts = [range(end - width, end) for end, width in zip(ends, widths, strict=True)]
    space = GroupSpace([(part, 1, min(3, len(part))) for part in parts])
    expected = torch.cat(
        [
            CardinalitySpace(len(p), 1, min(3, len(p))).distribution(scores[:, p[0] : p[-1] + 1]).marginals()
            for p in parts
        ],
        1,
    )
    torch.testing.assert_close(space.distribution(scores).marginals(), expected, rtol=0, atol=1e-12)


def test_roots_alone_are_independent_labels_and_a_chain_has_one_set_per_length():
    scores = scores_of()
    flat = HierarchySpace([-1] * N_LABELS).distribution(scores)
    torch.testing.assert_close(flat.marginals(), scores.sigmoid(), rtol=0, atol=1e-14)
    chain = HierarchySpace([-1, 0, 1, 2, 3, 4]).distribution(scores)
    of_lengths = torch.cat((torch.zeros(5, 1, dtype=torch.float64), scores.cumsum(1)), 1)
    torch.testing.assert_close(chain.log_partition(), of_lengths.logsumexp(1), rtol=0, atol=1e-13)
    torch.testing.assert_close(chain.cardinality_pmf(), of_lengths.softmax(1), rtol=0, atol=1e-13)


class CountCalls(TorchDispatchMode):
    n_calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.n_calls += 1
        return function(*args, **(kwargs or {}))


def test_the_number_of_torch_calls_of_a_hierarchy_does_not_grow_with_its_labels():
    counts = []
    for n_roots in (16, 256):  # each with 8 children, which have 4 each
        children = np.repeat(np.arange(n_roots), 8)
        below = np.repeat(n_roots + np.arange(len(children)), 4)
        space = HierarchySpace(np.concatenate([np.full(n_roots, -1), children, below]))
        with CountCalls() as calls:
            space.log_partition(torch.zeros(2, space.n_labels))
        counts.append(calls.n_calls)
    assert counts[1] <= counts[0] + 8 * 4  # four more rounds of pairs among the roots


def test_a_hierarchy_of_many_labels_is_right_at_large_scores():
    parents = np.concatenate([[-1], np.repeat(0, 30), np.repeat(np.arange(1, 31), 30)])
    rng = np.random.default_rng(0)
    scores = 1e5 * rng.normal(size=(3, len(parents)))
    above = np.zeros((3, len(parents)))  # log Z_in, one label after the other
    for label in range(len(parents) - 1, -1, -1):
        children = np.flatnonzero(parents == label)
        above[:, label] = scores[:, label] + np.logaddexp(0, above[:, children]).sum(axis=1)
    d = HierarchySpace(parents).distribution(torch.tensor(scores))
    np.testing.assert_allclose(d.log_partition().numpy(), np.logaddexp(0, above[:, 0]), rtol=1e-14)
    np.testing.assert_array_equal(d.mode()[:, 0].numpy(), above[:, 0] > 0)


class Levels(numpy_spaces.LabelSpace):
    """A row that has a level also has all levels below it; every level has a learned bias."""

    def __init__(self, n_labels, bias=None):
        self.n_labels, self.sets = n_labels, np.tri(n_labels + 1, n_labels, -1, np.int8)
        self.bias = np.zeros(n_labels + 1) if bias is None else np.asarray(bias)

    def for_targets(self, Y, *, classes, rows=None):
        return self

    def with_bias(self, bias):
        other = copy(self)
        other.bias = bias
        return other

    def weights(self, scores):
        weights = scores @ self.sets.T + self.bias
        if self.known is None:
            return weights
        wrong = (self.known == 1) @ (1 - self.sets).T + (self.known == 0) @ self.sets.T
        return np.where(wrong > 0, -INF, weights)

    def expectations(self, scores, weights):
        log_partition = logsumexp(self.weights(scores), axis=1)
        probs = np.exp(self.weights(scores) - log_partition[:, None])
        return log_partition, probs @ self.sets, weights @ probs

    def mode(self, scores):
        return self.sets[np.argmax(self.weights(scores), axis=1)]

    def to_dict(self):
        return {"n_labels": self.n_labels, "bias": self.bias}


LEVEL_BIAS = np.array([0.4, -0.3, 0.1, 0.5, -0.7])
LEVELS = np.tri(5, 4, -1, np.int8)


def own_and_observed():
    """The same distribution by a space that somebody wrote and by the observed space of its sets."""
    own = label_space(Levels(4, LEVEL_BIAS))
    return own, ObservedSpace(LEVELS, torch.nn.Parameter(torch.tensor(LEVEL_BIAS)))


@pytest.mark.parametrize("question", ["log_partition", "marginals", "cardinality_pmf", "mode", "f1", "top_sets"])
def test_a_space_that_somebody_wrote_answers_as_the_list_of_its_sets(question):
    scores = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers = []
    for space in own_and_observed():
        d = space.distribution(scores)
        asked = {"f1": lambda d=d: decide(d, "f1"), "top_sets": lambda d=d: d.top_sets(7)}
        answers.append(asked.get(question, getattr(d, question, None))())
    torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("partial", [False, True])
def test_a_space_that_somebody_wrote_has_the_loss_and_gradients_of_the_list_of_its_sets(partial):
    targets = torch.tensor(LEVELS[[0, 2, 4, 3]]).double()
    if partial:
        targets[1, 1] = targets[2, 3] = targets[3, 0] = NAN
    results = []
    for space in own_and_observed():
        scores = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
        (bias,) = space.parameters()
        loss = MLRHLoss(label_space=space)(scores.cumsum(1), targets)
        first = torch.autograd.grad(loss, (scores, bias), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (scores, bias))
        results.append((loss.detach(), *(g.detach() for g in first), *second))
    # Second derivatives are central differences, exact to about 1e-9.
    for n, (one, other) in enumerate(zip(*results, strict=True)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 if n < 3 else 1e-8)


def test_samples_of_a_space_that_somebody_wrote_have_its_marginals():
    space = label_space(Levels(4, LEVEL_BIAS))
    d = space.distribution(torch.zeros(1, 4))
    drawn = d.sample(4000, torch.Generator().manual_seed(0))
    # Five standard deviations of a frequency of 1/2 in 4,000 draws.
    torch.testing.assert_close(drawn.float().mean(1), d.marginals().detach(), rtol=0, atol=0.04)


# Torch itself looks at the gradients of tensors that pass from one compiled part to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_space_that_somebody_wrote_runs_under_compile_with_a_graph_break():
    loss, scores = MLRHLoss(label_space=Levels(4)), torch.ones(2, 4, requires_grad=True)
    targets = torch.tensor(LEVELS[1:3])
    expected = loss(scores, targets)
    torch.testing.assert_close(torch.compile(loss, backend="aot_eager")(scores, targets), expected)


NUMPY_SPACES = {
    "cardinality": lambda: numpy_spaces.CardinalitySpace(N_LABELS, 1, 4),
    "cardinality-biased": lambda: numpy_spaces.CardinalitySpace(N_LABELS, 1, 4, SIZE_BIAS),
    "observed": lambda: numpy_spaces.ObservedSpace(LISTED, SET_BIAS),
}


@pytest.mark.parametrize("name", NUMPY_SPACES)
def test_a_space_of_numpy_has_the_same_answers_in_torch(name):
    compare_with_numpy(NUMPY_SPACES[name]())


def compare_with_numpy(space, scale=2.0):
    """Compare every answer with the NumPy side, and see that it doesn't come from there."""
    in_torch = label_space(space)
    assert type(in_torch).__name__ == type(space).__name__
    scores = np.random.default_rng(4).normal(size=(6, space.n_labels)) * scale
    d, expected = in_torch.distribution(torch.tensor(scores)), space.distribution(scores)
    sets = expected.sample(1, random_state=0)[:, 0]
    known = np.where(np.random.default_rng(5).random(scores.shape) < 0.5, np.nan, sets)
    losses = MLRHLoss(label_space=space, reduction="none")(torch.tensor(scores), torch.tensor(known))
    pairs = {
        "log_partition": (d.log_partition(), expected.log_partition()),
        "marginals": (d.marginals(), expected.marginals()),
        "cardinality_pmf": (d.cardinality_pmf(), expected.cardinality_pmf()),
        "mode": (d.mode(), expected.mode()),
        "log_prob": (d.log_prob(torch.tensor(sets)), expected.log_prob(sets)),
        "top_sets": (d.top_sets(5)[0], expected.top_sets(5)[0]),
        "log_probs of top_sets": (d.top_sets(5)[1], expected.top_sets(5)[1]),
        "hamming": (decide(d, "hamming"), (expected.marginals() > 0.5).astype(np.int8)),
        "unobserved": (losses, -expected.log_prob_of_known(known)),
    }
    for question, (answer, other) in pairs.items():
        np.testing.assert_allclose(answer.detach().numpy(), other, rtol=0, atol=1e-10, err_msg=question)


def test_the_example_of_the_docs_answers_with_sets_of_its_space():
    text = (Path(__file__).parents[1] / "docs" / "neural-networks.md").read_text()
    names: dict = {}
    exec(next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "GroupSpace" in code), names)
    assert (names["sets"][:, :3].sum(1) == 1).all()
    assert (names["sets"][:, 3:6].sum(1) <= 2).all()
    assert names["space"].bias.grad.abs().sum() > 0


def test_biases_that_a_fit_would_learn_become_parameters_and_others_stay_fixed():
    learned = label_space(numpy_spaces.ObservedSpace(LISTED, SET_BIAS))
    assert torch.equal(learned.set_bias.detach(), torch.tensor(SET_BIAS))
    assert [name for name, _ in learned.named_parameters()] == ["set_bias"]
    assert not list(label_space(numpy_spaces.CardinalitySpace(N_LABELS, 1, 4, SIZE_BIAS)).parameters())
    sizes = numpy_spaces.CardinalitySpace(N_LABELS, 1, 4, SIZE_BIAS, learn_bias=True)
    assert [name for name, _ in label_space(sizes).named_parameters()] == ["size_bias"]


WRONG = {
    "a name": (lambda: label_space("observed"), "label_space must be a label space of mlrh.torch"),
    "known labels": (
        lambda: label_space(numpy_spaces.ObservedSpace(LISTED).given(EVERY[:2])),
        "label_space must be for all rows",
    ),
    "sizes beside a space": (
        lambda: MLRHLoss(3, label_space=ObservedSpace(LISTED)),
        "max_labels, min_labels and size_bias belong to a loss without a label_space",
    ),
    "other labels": (
        lambda: MLRHLoss(label_space=ObservedSpace(LISTED))(torch.zeros(1, 5), torch.zeros(1, 5)),
        r"a column for each of the 6 labels of the label space; got shape \(1, 5\)",
    ),
    "no sets": (lambda: ObservedSpace(torch.zeros(0, 3)), r"sets must have a row for each set .* got \(0, 3\)"),
    "other numbers": (lambda: ObservedSpace([[0, 2]]), "sets must contain only 0 and 1"),
    "a set twice": (lambda: ObservedSpace([[0, 1], [0, 1]]), "sets must be distinct"),
    "few biases": (lambda: ObservedSpace([[0, 1]], [0.0, 1.0]), r"set_bias must have 1 entries, one per set; got"),
    "a set of no size": (lambda: OpenSpace(2, 1, 1, [[1, 1]]), "1 to 1 labels each; got shape"),
    "groups that overlap": (lambda: GroupSpace([([0, 1], 1, 1), ([1], 0, 1)]), "must be disjoint.*got label 1 twice"),
    "a group out of range": (lambda: GroupSpace([([0, 7], 1, 1)], 3), "must be indices from 0 to n_labels - 1"),
    "a group by name": (lambda: GroupSpace([(["red"], 1, 1)]), r"must have label indices, one at least; got \['red'\]"),
    "a group too small": (lambda: GroupSpace([([0, 1], 1, 3)]), "Sizes must be integers with 0 <= min_labels"),
    "few group biases": (lambda: GroupSpace([([0, 1], 1, 2)], bias=[1.0]), "bias must have 2 entries"),
    "a parent out of range": (
        lambda: HierarchySpace([-1, 2]),
        "must be labels from 0 to 1, or -1 .* got 2 for label 1",
    ),
    "a cycle": (lambda: HierarchySpace([-1, 2, 1]), "must form a forest; label 1 has an ancestor that is its own"),
    "no labels": (lambda: HierarchySpace([]), "parents must be the index of each label's parent; got shape"),
    "many leaves": (lambda: HierarchySpace([-1, 0], 2), "min_leaves <= 1, the number of leaves; got min_leaves=2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_one_sentence(case):
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        call()
