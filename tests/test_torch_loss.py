"""MLRHLoss: equal to the NumPy side and to losses of torch, at any level of the logits; clear about wrong targets."""

import copy

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings

from mlrh import spaces as label_space
from mlrh.torch import MLRHLoss, mlrh_loss

NAN = float("nan")
LOGITS = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SETS = torch.tensor(
    [[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 1], [1, 0, 1, 0, 0], [0, 1, 1, 1, 0]]
)
INDICES = torch.tensor([[0, 3, -1], [-1, 1, -1], [2, 1, 0], [4, -1, -1], [0, 2, -1], [3, 1, 2]])
SIZE_BIAS = torch.tensor([0.7, 0.3, -0.5, 0.2], dtype=torch.float64)


def numpy_distribution(logits, min_labels, max_labels, size_bias=None):
    n_labels = logits.shape[1]
    if size_bias is not None:
        size_bias = np.pad(size_bias.numpy(), (0, n_labels - max_labels))
    return label_space.CardinalitySpace(n_labels, min_labels, max_labels, size_bias).distribution(logits.numpy())


@pytest.mark.parametrize("size_bias", [None, SIZE_BIAS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int8, torch.bool])
def test_the_loss_equals_that_of_numpy_for_targets_of_any_type(dtype, size_bias):
    losses = mlrh_loss(LOGITS, SETS.to(dtype), max_labels=3, size_bias=size_bias, reduction="none")
    expected = -numpy_distribution(LOGITS, 1, 3, size_bias).log_prob(SETS.numpy())
    np.testing.assert_allclose(losses.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("padding_index", [-1, 7, 100])
@pytest.mark.parametrize("n_more", [0, 2])  # with two more they are as wide as the logits, and still indices
def test_index_targets_have_the_loss_and_gradient_of_dense_ones(dtype, padding_index, n_more):
    if padding_index == -1 and dtype == torch.uint8:
        padding_index = 255
    targets = torch.nn.functional.pad(INDICES, (0, n_more), value=-1)
    targets = targets.masked_fill(targets == -1, padding_index).to(dtype)
    logits = LOGITS.clone().requires_grad_()
    loss = mlrh_loss(logits, targets, max_labels=3, padding_index=padding_index)
    expected = mlrh_loss(logits, SETS, max_labels=3)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-14)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_sizes_give_bce_summed_over_labels(dtype):
    logits = (3 * torch.randn(20, 12, generator=torch.Generator().manual_seed(1))).to(dtype).requires_grad_()
    targets = (torch.rand(20, 12, generator=torch.Generator().manual_seed(2)) < 0.4).to(dtype)
    loss = MLRHLoss(12, min_labels=0)(logits, targets)
    expected = torch.nn.BCEWithLogitsLoss(reduction="none")(logits, targets).sum(1).mean()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(loss, expected, rtol=0, atol=tolerance)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=tolerance)


def test_one_label_per_row_gives_cross_entropy():
    logits = torch.randn(20, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    classes = torch.randint(12, (20,), generator=torch.Generator().manual_seed(4))
    loss = MLRHLoss(1, padding_index=-1)(logits, classes[:, None])
    expected = torch.nn.CrossEntropyLoss()(logits, classes)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)


def test_the_gradient_is_marginals_minus_targets():
    logits = LOGITS.clone().requires_grad_()
    mlrh_loss(logits, SETS, max_labels=3, reduction="sum").backward()
    marginals = numpy_distribution(LOGITS, 1, 3).marginals()
    np.testing.assert_allclose(logits.grad.numpy(), marginals - SETS.numpy(), rtol=0, atol=1e-12)


PARTLY = torch.tensor(
    [
        [1.0, NAN, 0.0, NAN, NAN],
        [NAN, NAN, NAN, NAN, NAN],
        [1.0, 1.0, 1.0, NAN, NAN],
        [0.0, 0.0, 0.0, 0.0, NAN],
        [1.0, 0.0, 1.0, 0.0, 0.0],
        [0.0, NAN, 0.0, 0.0, 0.0],
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize("size_bias", [None, SIZE_BIAS])
@pytest.mark.parametrize("targets", [PARTLY, SETS.double()])
@pytest.mark.parametrize("can_look", [True, False])
@pytest.mark.parametrize("unobserved", [None, True])
def test_unobserved_labels_have_the_probability_of_all_sets_that_agree_announced_or_not(
    size_bias, targets, can_look, unobserved, monkeypatch
):
    if not can_look:
        monkeypatch.setattr("mlrh.torch._eager.checks.can_look", lambda targets: False)
    options = {"max_labels": 3, "size_bias": size_bias, "unobserved": unobserved, "reduction": "none"}
    expected = -numpy_distribution(LOGITS, 1, 3, size_bias).log_prob_of_known(targets.numpy())
    np.testing.assert_allclose(mlrh_loss(LOGITS, targets, **options).numpy(), expected, rtol=0, atol=1e-12)


@given(case=reference.cases(reference.MODERATE))
@settings(max_examples=60, deadline=None)
def test_unobserved_labels_equal_the_sum_over_all_sets_that_agree(case):
    enumeration = case.enumerate()
    known = np.where(np.arange(len(case.scores)) % 2 == 0, enumeration.sets[-1], np.nan)
    agree = ((enumeration.sets == known) | np.isnan(known)).all(1)
    bias = None if case.size_bias is None else torch.tensor(case.size_bias)
    sizes = {"min_labels": case.min_labels, "max_labels": case.max_labels, "size_bias": bias}
    loss = mlrh_loss(torch.tensor(case.scores)[None], torch.tensor(known)[None], **sizes, unobserved=True)
    assert loss.item() == pytest.approx(-np.log(enumeration.mean(agree)), rel=0, abs=1e-10)


def test_unobserved_labels_denied_make_the_loss_nan():
    assert mlrh_loss(LOGITS, PARTLY, max_labels=3, unobserved=False).isnan()


@pytest.mark.parametrize("targets", [[[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]], [[0.0, 0.0, NAN]], [[1.0, 1.0, 1.0]]])
def test_a_target_outside_the_space_has_infinite_loss_and_a_finite_gradient(targets):
    logits = torch.tensor([[0.5, -1.0, 2.0]], requires_grad=True)
    targets = torch.tensor(targets)
    min_labels = 2 if targets.isnan().any() else 1
    loss = mlrh_loss(logits, targets, max_labels=2, min_labels=min_labels)
    loss.backward()
    assert loss.item() == torch.inf
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("weight", [None, torch.tensor([2.0, 0.0, 1.0, 1.0, 0.5, 1.0])])
def test_reductions_are_over_rows_and_the_mean_divides_by_their_number_also_with_weights(weight):
    losses = mlrh_loss(LOGITS, SETS, max_labels=3, weight=weight, reduction="none")
    assert losses.shape == (6,)
    torch.testing.assert_close(mlrh_loss(LOGITS, SETS, max_labels=3, weight=weight), losses.sum() / 6)
    torch.testing.assert_close(mlrh_loss(LOGITS, SETS, max_labels=3, weight=weight, reduction="sum"), losses.sum())


def test_a_weight_of_two_equals_the_row_twice_and_of_zero_its_absence():
    weight = torch.tensor([2.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    rows = [0, 0, 2, 3, 5]
    loss = MLRHLoss(3, reduction="sum", weight=weight)(LOGITS, SETS)
    torch.testing.assert_close(loss, MLRHLoss(3, reduction="sum")(LOGITS[rows], SETS[rows]))
    torch.testing.assert_close(MLRHLoss(3, reduction="sum")(LOGITS, SETS, weight), loss)


def test_a_row_of_weight_zero_outside_the_space_changes_nothing():
    sets = SETS.clone()
    sets[1] = 0
    logits = LOGITS.clone().requires_grad_()
    loss = mlrh_loss(logits, sets, max_labels=3, weight=torch.tensor([1.0, 0, 1, 1, 1, 1]), reduction="sum")
    loss.backward()
    assert loss.isfinite()
    assert (logits.grad[1] == 0).all()


def test_learned_size_bias_has_the_gradient_of_finite_differences():
    loss = MLRHLoss(3, size_bias=torch.nn.Parameter(SIZE_BIAS.clone()))
    loss(LOGITS, SETS).backward()
    for j in range(4):

        def moved(step, j=j):
            bias = SIZE_BIAS.clone()
            bias[j] += step
            return mlrh_loss(LOGITS, SETS, max_labels=3, size_bias=bias).item()

        assert loss.size_bias.grad[j].item() == pytest.approx(reference.central_difference(moved), abs=1e-9)


@pytest.mark.parametrize("size_bias", [None, SIZE_BIAS])
def test_the_distribution_of_a_loss_is_the_model_that_it_trains(size_bias):
    loss = MLRHLoss(3, size_bias=None if size_bias is None else torch.nn.Parameter(size_bias.clone()), reduction="none")
    d = loss.distribution(LOGITS)
    torch.testing.assert_close(d.log_prob(SETS), -loss(LOGITS, SETS), rtol=0, atol=1e-14)
    expected = numpy_distribution(LOGITS, 1, 3, size_bias).marginals()
    np.testing.assert_allclose(d.marginals().detach().numpy(), expected, rtol=0, atol=1e-12)


def test_a_size_bias_is_a_parameter_of_zeros_or_given_later_learned_and_saved_with_the_state():
    loss, other = MLRHLoss(3), MLRHLoss(3, size_bias=True).double()
    assert [tuple(parameter.shape) for parameter in other.parameters()] == [(4,)]
    torch.testing.assert_close(other(LOGITS, SETS), loss(LOGITS, SETS), rtol=0, atol=1e-12)
    loss.size_bias = torch.nn.Parameter(SIZE_BIAS.clone())
    other.load_state_dict(loss.state_dict())
    expected = mlrh_loss(LOGITS, SETS, max_labels=3, size_bias=SIZE_BIAS)
    for one in (loss, other, copy.deepcopy(loss)):
        torch.testing.assert_close(one(LOGITS, SETS), expected, rtol=0, atol=0)
        assert list(one.state_dict()) == ["size_bias"]


@pytest.mark.parametrize("n_labels", [5, 511, 512, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_boolean_targets_have_the_loss_gradient_and_log_prob_of_numbers(n_labels, dtype):
    logits = torch.randn(6, n_labels, dtype=dtype, generator=torch.Generator().manual_seed(7)).requires_grad_()
    sets = torch.nn.functional.pad(SETS, (0, n_labels - 5))
    as_bool, as_numbers = (mlrh_loss(logits, Y, max_labels=3, reduction="none") for Y in (sets.bool(), sets.to(dtype)))
    torch.testing.assert_close(as_bool, as_numbers, rtol=0, atol=0)
    gradients = [torch.autograd.grad(losses.sum(), logits)[0] for losses in (as_bool, as_numbers)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    d = MLRHLoss(3).distribution(logits)
    torch.testing.assert_close(d.log_prob(sets.bool()), -as_numbers, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradient_are_finite_at_logits_of_1e4(dtype, scale):
    logits = (scale * torch.tensor([[1.0, 0.5, -0.3], [1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]])).to(dtype).requires_grad_()
    targets = torch.tensor([[1, 0, 1], [1, 0, 0], [0, 1, 0]])
    loss = mlrh_loss(logits, targets, max_labels=2)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert logits.grad.dtype == dtype


def test_an_empty_batch_has_an_empty_loss_and_gradient():
    logits = torch.zeros(0, 4, requires_grad=True)
    losses = mlrh_loss(logits, torch.zeros(0, 4), max_labels=2, reduction="none")
    losses.sum().backward()
    assert losses.shape == (0,)
    assert logits.grad.shape == (0, 4)


def test_logits_that_are_not_contiguous_give_the_same_loss_and_gradient():
    wide = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5), requires_grad=True)
    loss = mlrh_loss(wide.T, SETS, max_labels=3)
    (gradient,) = torch.autograd.grad(loss, wide)
    copy = wide.detach().T.contiguous().requires_grad_()
    mlrh_loss(copy, SETS, max_labels=3).backward()
    torch.testing.assert_close(gradient.T, copy.grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MLRHLoss(3, pos_weight=torch.ones(5)), "pos_weight must be None: .* rows a weight"),
        (lambda: MLRHLoss(3, reduction="avg"), "reduction must be one of .* got 'avg'"),
        (lambda: MLRHLoss(1, min_labels=2), "0 <= min_labels <= max_labels; got min_labels=2, max_labels=1"),
        (lambda: MLRHLoss(3, size_bias=torch.zeros(3)), r"max_labels \+ 1 = 4 entries"),
        (lambda: MLRHLoss(3, padding_index=0.5), "padding_index must be None or an integer"),
        (lambda: MLRHLoss(3, unobserved="no"), "unobserved must be None, True, or False .* got 'no'"),
        (lambda: MLRHLoss(6)(LOGITS, SETS), "max_labels=6, n_labels=5"),
        (lambda: MLRHLoss(3)(LOGITS, SETS[:, :4]), r"shape of the logits, \(6, 5\); got \(6, 4\). Give label indices"),
        (
            lambda: MLRHLoss(3, padding_index=-1)(LOGITS, SETS.double()),
            r"integers of shape \(6, n\); got torch.float64",
        ),
        (lambda: MLRHLoss(3, weight=torch.ones(5))(LOGITS, SETS), r"one entry per row, shape \(6,\); got \(5,\)"),
        (
            lambda: MLRHLoss(3)(LOGITS[0, 0], SETS[0, 0]),
            r"logits must be a floating point tensor of shape \(..., n_labels\); got torch.float64 of shape \(\)",
        ),
        (lambda: MLRHLoss(3)(LOGITS[:, :0], SETS[:, :0]), "a column per label"),
        (lambda: MLRHLoss(3)(LOGITS, SETS.numpy()), "targets must be a tensor; got ndarray"),
        (lambda: MLRHLoss(3)(LOGITS, SETS.to("meta")), "targets must be on the device of the logits, cpu; got meta"),
        (lambda: MLRHLoss(3)(LOGITS, SETS, torch.ones(6, device="meta")), "weight must be on the device .* got meta"),
        (
            lambda: MLRHLoss(3, size_bias=torch.zeros(4, device="meta"))(LOGITS, SETS),
            "size_bias must be on the device of the logits, cpu; got meta",
        ),
        (lambda: mlrh_loss(LOGITS, SETS, max_labels=3, size_bias=True), "size_bias must be a tensor .* got bool"),
        (lambda: mlrh_loss(LOGITS, SETS, max_labels=3, size_bias=[0.0] * 4), "size_bias must be a tensor .* got list"),
        (lambda: MLRHLoss(3, size_bias=torch.zeros(4, requires_grad=True)), "must be a Parameter to be learned"),
        (lambda: MLRHLoss(3, padding_index=4)(LOGITS, INDICES), "must be no label, which are 0 to 4; got 4"),
    ],
)
def test_a_wrong_call_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


BIAS_AGAINST_TWO = torch.tensor([0.0, 0.0, -torch.inf, 0.0])
DENSE, OF_INDICES, THREE = {}, {"padding_index": -1}, {"min_labels": 3}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ([1.0, 1.0, 1.0, 1.0, 0.0], DENSE, "1 to 3 labels, min_labels to max_labels; row 2 has 4"),
        ([0.0, 0.0, 0.0, 0.0, 0.0], DENSE, "row 2 has 0"),
        ([1.0, 0.5, 0.0, 0.0, 0.0], DENSE, "0, 1 or, where unobserved, NaN; found 0.5 in row 2, column 1"),
        ([1.0, NAN, 0.0, 0.0, 0.0], {"unobserved": False}, r"found nan in row 2, column 1\. Say unobserved=True"),
        ([1.0, 0.0, NAN, 0.0, 0.0], THREE, "3 to 3 labels, .* row 2 has 1 and 1 unobserved ones"),
        ([1.0, 1.0, 0.0, 0.0, 0.0], {"size_bias": BIAS_AGAINST_TWO}, "row 2 has 2 labels, of which size_bias is -inf"),
        ([1, 5, -1], OF_INDICES, "distinct labels from 0 to 4, filled up with -1; row 2 is"),
        ([2, 2, -1], OF_INDICES, r"row 2 is \[2, 2, -1\]"),
        ([-1, -1, -1], OF_INDICES, "row 2 has 0"),
    ],
)
def test_validate_names_the_first_bad_row(row, options, message):
    good = [1, 1, 1, 0, 0] if len(row) == 5 else [0, 1, 2]
    targets = torch.tensor([good, good, row, good, row, good])
    with pytest.raises(ValueError, match=message):
        MLRHLoss(3, validate=True, **options)(LOGITS, targets)


@pytest.mark.parametrize("smooth", [0.9, -1.0, 0.5])
@pytest.mark.parametrize("beside", [0.0, NAN])
def test_targets_that_are_no_set_are_refused_by_row_and_column(smooth, beside):
    targets = SETS.double()
    targets[2] = torch.tensor([1.0, smooth, 0.0, 0.0, beside])
    with pytest.raises(ValueError, match=r"found 3 in row 0, column 0\. Say padding_index=-1 if these are label ind"):
        MLRHLoss(3)(LOGITS, torch.full(LOGITS.shape, 3))
    with pytest.raises(ValueError, match=f"found {smooth:g} in row 2, column 1. Label smoothing has no meaning"):
        mlrh_loss(LOGITS, targets, max_labels=3)


@pytest.mark.parametrize("unobserved", [None, True])
@pytest.mark.parametrize("smooth", [0.9, -1.0])
def test_targets_that_are_no_set_make_the_loss_nan_where_nobody_may_look(smooth, unobserved, monkeypatch):
    monkeypatch.setattr("mlrh.torch._eager.checks.can_look", lambda targets: False)
    targets = SETS.double()
    targets[2] = torch.tensor([1.0, smooth, 0.0, 0.0, 0.0])
    losses = mlrh_loss(LOGITS, targets, max_labels=3, unobserved=unobserved, reduction="none")
    assert losses.isnan().tolist() == [False, False, True, False, False, False]


def test_a_wrong_option_is_one_sentence_also_where_shortcuts_are_looked_for(monkeypatch):
    monkeypatch.setattr("mlrh.torch._eager.checks.can_look", lambda targets: False)
    with pytest.raises(ValueError, match=r"reduction must be one of .* got \['mean'\]"):
        mlrh_loss(LOGITS, SETS, max_labels=3, reduction=["mean"])


@pytest.mark.parametrize("row", [[2, 2, -1], [-2, 1, -1], [1, 5, -1]])
def test_indices_that_are_no_set_are_refused_by_row(row):
    targets = INDICES.clone()
    targets[1] = torch.tensor(row)
    with pytest.raises(ValueError, match="distinct labels from 0 to 4, filled up with -1; row 1 is"):
        mlrh_loss(LOGITS, targets, max_labels=3, padding_index=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_unobserved_labels_never_have_a_negative_loss(dtype):
    logits = 8 * torch.randn(300, 20, generator=torch.Generator().manual_seed(6))
    logits[:, 0] = -40.0
    targets = torch.full((300, 20), NAN).index_fill(1, torch.tensor([0]), 0.0)
    logits[:, 1], targets[:, 1] = 50.0, 1.0
    losses = mlrh_loss(logits.to(dtype), targets, max_labels=4, reduction="none")
    assert (losses >= 0).all()
    assert losses.max() < 1e-4


def test_sizes_may_be_integers_of_numpy():
    loss = MLRHLoss(np.int64(3), min_labels=np.int32(1), padding_index=np.int64(-1))
    assert [type(size) for size in (loss.max_labels, loss.min_labels, loss.padding_index)] == [int, int, int]
    torch.testing.assert_close(loss(LOGITS, INDICES), MLRHLoss(3)(LOGITS, SETS), rtol=0, atol=1e-14)


@pytest.mark.filterwarnings("ignore:The loss is infinite")
def test_the_loss_after_inference_mode_can_be_trained():
    with torch.inference_mode():
        MLRHLoss(4, min_labels=2)(LOGITS.clone(), SETS)
    logits = LOGITS.clone().requires_grad_()
    MLRHLoss(4, min_labels=2)(logits, SETS | SETS.roll(1, 1)).backward()
    assert logits.grad.isfinite().all()


def test_validate_lets_good_targets_pass():
    loss = MLRHLoss(3, validate=True)(LOGITS, PARTLY)
    torch.testing.assert_close(loss, MLRHLoss(3)(LOGITS, PARTLY), rtol=0, atol=0)


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
        for known in (targets, partly):
            expected = loss_and_gradient(logits.double(), known, max_labels=4)
            loss, gradient = loss_and_gradient(logits, known, max_labels=4)
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
