"""An infinite loss is explained once; sizes from targets; leading dimensions; what the loss says of itself."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from samples import make_multilabel

from mlrh import MLRHClassifier
from mlrh.torch import GroupSpace, MLRHLoss, mlrh_loss
from mlrh.torch._eager import watch

INF, NAN = math.inf, math.nan
GROUPS = [([0, 1], 1, 1), ([2, 3], 0, 2)]


def random_batch(*shape, seed=0):
    """Logits of this shape, and targets of one or two labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64)
    ranks = torch.rand(shape, generator=generator).argsort(-1).argsort(-1)
    return logits, (ranks < torch.randint(1, 3, (*shape[:-1], 1), generator=generator)).double()


# An infinite loss.

OUTSIDE = {
    "too many labels": ({}, [1.0, 1.0, 1.0, 0.0], "must have 1 to 2 labels, .* row 2 has 3"),
    "no labels": ({}, [0.0, 0.0, 0.0, 0.0], "must have 1 to 2 labels, .* row 2 has 0"),
    "unknown labels": ({}, [1.0, 1.0, 1.0, NAN], "must have 1 to 2 labels, .* row 2 has 3 and 1 unobserved ones"),
    "a bias of -inf": (
        {"size_bias": torch.tensor([0.0, 0.0, -INF])},
        [1.0, 1.0, 0.0, 0.0],
        "size_bias is finite; row 2 has 2 labels, of which size_bias is -inf",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_infinite_loss_is_explained_by_row_and_size_and_once(name, reduction):
    options, row, why = OUTSIDE[name]
    logits, targets = random_batch(4, 4)
    targets[:, 1:] = 0.0
    targets[:, 0] = 1.0
    targets[2] = torch.tensor(row)
    loss = MLRHLoss(2, reduction=reduction, **options)
    with pytest.warns(UserWarning, match=f"The loss is infinite. Every target .*{why}.*validate=True raises") as told:
        assert loss(logits, targets).max() == INF
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss(logits, targets).max() == INF


def test_an_impossible_label_in_a_target_is_explained_by_its_logit():
    logits, targets = random_batch(3, 4)
    targets[1] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    logits[1, 1] = -INF
    with pytest.warns(UserWarning, match=r"possible by its logits; row 1 has 1 labels, and a logit of -inf"):
        MLRHLoss(2)(logits, targets)


def test_an_infinite_loss_of_a_label_space_or_of_indices_is_explained():
    logits, _ = random_batch(3, 4)
    targets = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0]])
    with pytest.warns(UserWarning, match=r"a set of the label space, GroupSpace.*; row 2 is none, with 2 labels"):
        MLRHLoss(label_space=GroupSpace(GROUPS, 4))(logits, targets)
    with pytest.warns(UserWarning, match="row 1 has 3"):
        MLRHLoss(2, padding_index=-1)(logits, torch.tensor([[0, -1, -1], [0, 1, 2], [3, -1, -1]]))


def test_a_row_of_no_index_columns_is_explained():
    with pytest.warns(UserWarning, match="row 0 has 0"):
        MLRHLoss(2, padding_index=-1)(torch.zeros(3, 4), torch.zeros(3, 0, dtype=torch.int64))


def test_a_row_of_weight_0_is_not_the_one_that_is_explained():
    logits, targets = random_batch(3, 4)
    targets[:2] = 1.0
    loss = MLRHLoss(2)
    assert loss(logits, targets, torch.tensor([0.0, 0.0, 1.0])).isfinite()
    with pytest.warns(UserWarning, match="row 1 has 4"):
        loss(logits, targets, torch.tensor([0.0, 0.5, 1.0]))


@pytest.fixture
def nobody_may_look(monkeypatch):
    """As on a GPU: losses can't be read without waiting."""
    monkeypatch.setattr(watch, "can_look", lambda loss: False)


def steps_until_told(loss, batches):
    """How many batches the loss is called with before it warns; the warning."""
    for step, batch in enumerate(batches, 1):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loss(*batch)
        if told:
            return step, str(told[0].message)
    return None, ""


# Losses are looked at after steps 1, 3, 7, 15, 31, 63, 127, and then every 64.
@pytest.mark.parametrize(("n_good", "told"), [(0, 2), (1, 4), (10, 16), (200, 256)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_where_nobody_may_look_an_infinite_loss_is_explained_some_steps_later(n_good, told, reduction, nobody_may_look):
    good = random_batch(2, 4)
    bad = good[0], torch.ones(2, 4)
    loss = MLRHLoss(2, reduction=reduction)
    step, why = steps_until_told(loss, [good] * n_good + [bad] * 200)
    assert step == told
    assert "row 0 has 4" in why


def test_one_infinite_loss_is_found_though_its_row_comes_back_much_later(nobody_may_look):
    good = random_batch(2, 4)
    bad = good[0], torch.ones(2, 4)
    step, why = steps_until_told(MLRHLoss(2), [*[good] * 70, bad, *[good] * 300, bad])
    assert step == 372
    assert "row 0 has 4" in why


def test_where_nobody_may_look_no_number_is_read_but_a_flag_of_the_host(nobody_may_look, monkeypatch):
    read, looks = [], []
    is_true, look = torch.Tensor.__bool__, watch._Recent.look
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: read.append(self) or is_true(self))
    monkeypatch.setattr(watch._Recent, "look", lambda self: looks.append(self) or look(self))
    watched = watch.Watch()
    for _ in range(1000):
        assert not watched.sees_infinite(torch.zeros(()))
    (recent,) = watched._recent.values()
    assert len(read) == 1000
    assert all(tensor is recent.at_host for tensor in read)
    assert len(looks) == 7 + (1000 - 127) // 64


def test_losses_of_many_rows_are_not_kept(nobody_may_look):
    watched = watch.Watch()
    for _ in range(200):
        watched.sees_infinite(torch.zeros(5000))
        (recent,) = watched._recent.values()
        assert recent.n_numbers < watch.MOST_NUMBERS


def test_what_is_watched_in_inference_mode_can_be_watched_elsewhere(nobody_may_look):
    logits, targets = random_batch(2, 4)
    loss = MLRHLoss(2)
    with torch.inference_mode():
        loss(logits.clone(), targets)
    for _ in range(10):
        loss(logits.requires_grad_(), targets).backward()


def test_a_copy_and_a_pickled_loss_watch_anew(nobody_may_look):
    loss = MLRHLoss(2)
    loss(*random_batch(2, 4))
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert other._watch is not loss._watch
        assert steps_until_told(other, [(torch.zeros(2, 4), torch.ones(2, 4))] * 9)[0] is not None


# Sizes from targets.


@pytest.mark.parametrize("unknown", [False, True])
def test_sizes_from_targets_are_those_of_the_classifier(unknown):
    X, Y = make_multilabel(80)
    Y = Y.astype(float)
    if unknown:
        Y[np.random.default_rng(0).random(Y.shape) < 0.1] = NAN
    classifier = MLRHClassifier().fit(X, Y)
    loss = MLRHLoss.from_targets(Y)
    assert (loss.min_labels, loss.max_labels) == (classifier.min_labels_, classifier.max_labels_)


def test_sizes_from_targets_are_the_smallest_and_the_largest_in_any_form():
    Y = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]])
    for targets in (Y, Y.bool(), Y.float(), Y.numpy(), Y.tolist(), Y[None].expand(3, -1, -1)):
        loss = MLRHLoss.from_targets(targets)
        assert (loss.min_labels, loss.max_labels) == (2, 3)
    indices = MLRHLoss.from_targets([[0, 2, 3], [1, 2, -1]], padding_index=-1)
    assert (indices.min_labels, indices.max_labels, indices.padding_index) == (2, 3, -1)


def test_options_beside_targets_are_those_of_the_loss_and_sizes_go_before_those_of_the_targets():
    loss = MLRHLoss.from_targets([[1, 1, 0]], min_labels=1, size_bias=True, reduction="sum")
    assert (loss.min_labels, loss.max_labels, loss.reduction) == (1, 2, "sum")
    assert isinstance(loss.size_bias, torch.nn.Parameter)


@pytest.mark.parametrize(
    ("Y", "options", "message"),
    [
        ([[0.5, 1.0]], {}, "0, 1 or, where unobserved, NaN; found 0.5 in row 0, column 0"),
        (torch.zeros(0, 3), {}, r"with a row at least; got \(0, 3\)"),
        ([1, 0], {}, r"shape \(n_rows, n_labels\) with a row at least; got \(2,\)"),
        (["news", "tech"], {}, "Y must be a tensor, an array or lists of numbers; got list"),
        ([[2, 2]], {"padding_index": -1}, "row 0 is"),
        ([[1, 0]], {"label_space": GroupSpace(GROUPS, 4)}, "belong to a loss without a label_space"),
    ],
)
def test_targets_that_have_no_sizes_are_refused(Y, options, message):
    with pytest.raises(ValueError, match=message):
        MLRHLoss.from_targets(Y, **options)


# Leading dimensions.

LEADING = [(), (1,), (3, 2), (2, 1, 3), (2, 0)]


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_any_leading_dimensions_have_the_loss_and_gradient_of_bce_where_all_sets_are_possible(leading, reduction):
    logits, targets = random_batch(*leading, 4)
    logits.requires_grad_()
    loss = MLRHLoss(4, min_labels=0, reduction=reduction)(logits, targets)
    expected = torch.nn.BCEWithLogitsLoss(reduction="none")(logits, targets).sum(-1)
    if reduction != "none":
        expected = expected.sum() / (max(expected.numel(), 1) if reduction == "mean" else 1)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"max_labels": 2}, {"label_space": GroupSpace(GROUPS, 4)}])
def test_leading_dimensions_are_rows_also_with_weights_a_label_space_and_a_compiler(options):
    logits, _ = random_batch(3, 2, 4)
    targets = torch.tensor([1, 0, 1, 0]).expand(3, 2, 4)
    weight = torch.arange(6.0).reshape(3, 2)
    loss = MLRHLoss(**options)
    expected = loss(logits.flatten(0, 1), targets.flatten(0, 1), weight.flatten())
    torch.testing.assert_close(loss(logits, targets, weight), expected, rtol=0, atol=0)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, targets, weight), expected, rtol=0, atol=1e-12)


def test_index_targets_have_the_leading_dimensions_of_the_logits():
    logits, targets = random_batch(3, 2, 4)
    targets = torch.eye(4, dtype=torch.float64)[torch.arange(6) % 4].reshape(3, 2, 4)
    indices = targets.argmax(-1, keepdim=True)
    options = {"max_labels": 2, "reduction": "none"}
    losses = mlrh_loss(logits, indices, padding_index=-1, **options)
    torch.testing.assert_close(losses, mlrh_loss(logits, targets, **options), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (torch.zeros(6, 4), {}, r"shape of the logits, \(3, 2, 4\); got \(6, 4\)"),
        (
            torch.zeros(3, 4, dtype=torch.int64),
            {"padding_index": -1},
            r"integers of shape \(3, 2, n\); got torch.int64",
        ),
        (torch.zeros(3, 2, 4), {"weight": torch.ones(6)}, r"one entry per row, shape \(3, 2\); got \(6,\)"),
    ],
)
def test_other_leading_dimensions_of_targets_or_weights_are_refused(targets, options, message):
    with pytest.raises(ValueError, match=message):
        mlrh_loss(torch.zeros(3, 2, 4), targets, max_labels=2, **options)


# What it says of itself.


def test_the_repr_has_all_options_that_differ_from_their_defaults():
    assert repr(MLRHLoss(3)) == "MLRHLoss(max_labels=3, min_labels=1, reduction='mean')"
    loss = MLRHLoss(3, min_labels=0, size_bias=True, weight=torch.ones(7), reduction="sum", padding_index=-1)
    assert repr(loss) == (
        "MLRHLoss(max_labels=3, min_labels=0, size_bias=Parameter of shape (4,), weight=Tensor of shape (7,), "
        "reduction='sum', padding_index=-1)"
    )
    assert repr(MLRHLoss(2, unobserved=False, validate=True)) == (
        "MLRHLoss(max_labels=2, min_labels=1, reduction='mean', unobserved=False, validate=True)"
    )
    with_space = repr(MLRHLoss(label_space=GroupSpace(GROUPS, 4, bias=True), padding_index=9))
    assert "reduction='mean', padding_index=9" in with_space
    assert "(label_space): GroupSpace(2 groups, 0 free labels of 4)" in with_space
    assert "learned=[" in with_space
