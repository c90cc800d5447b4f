"""Differentiable loss, marginals and size probabilities, for autograd, torch.compile and export.

`dispatch` computes them. First derivatives are kept or computed by the adjoint recurrence; second ones come from the
curvature. Third ones are not there.

Registered operators (`torch.library.custom_op`) serve the compiler, export and second derivatives. A call of one costs
some tenths of a millisecond; in eager mode the loss is an autograd Function around the same computations. On a GPU a
step still takes the host longer than the kernels run, so that what is known of one call (its tensors are of a kind that
passed all checks, and these are its launches) is kept for the next one of its kind.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mlrh.torch._eager import checks, dispatch
from mlrh.torch._eager.dispatch import Options
from mlrh.torch._private import is_watched

MOST_CALLS = 256  # kinds of calls that are kept; with more, such as for batches of ever new sizes, all are forgotten
PLAIN = (torch.Tensor, torch.nn.Parameter)


def log_loss(
    scores,
    targets,
    log_weights,
    *,
    min_labels,
    are_indices=False,
    biased=True,
    partial=False,
    reduction="none",
    marked=False,
    kind=None,
):
    """-log P(targets) (n_rows,), the log-partition where targets is None; inf for a size that isn't admissible.

    Parameters
    ----------
    scores : tensor of shape (n_rows, n_labels)
    targets : tensor of shape (n_rows, n_labels) of 0 and 1, or (n_rows, n) of labels filled up with -1, or None
    log_weights : tensor of shape (max_labels + 1,) or (n_rows, max_labels + 1), -inf for sizes not admissible
    min_labels, are_indices, biased : as in `Options`
    partial : bool, whether NaN in dense targets are labels that are not known
    reduction : "none", or "sum" or "mean" of the losses of all rows
    marked : bool, whether the loss is to be NaN where dense targets are neither 0 nor 1; nothing is waited for
    kind : what `kind_of` says of the call, to keep it for the next one
    """
    refuse_forward_mode(scores, log_weights)
    by_kernels = dispatch.by_kernels(scores, log_weights, biased)
    if partial and not by_kernels:
        losses = _loss_of_known(scores, targets, log_weights, min_labels=min_labels, biased=biased)
        return reduced(losses, reduction)
    keep = torch.is_grad_enabled() and (scores.requires_grad or log_weights.requires_grad)
    keep = keep or torch.compiler.is_exporting()  # who loads the program may want gradients
    options = Options(min_labels, are_indices, biased, partial, keep)
    marked = marked and not by_kernels  # the kernels mark wrong targets themselves
    if is_eager(scores, targets, log_weights):
        plan = dispatch.plan_of(scores, targets, log_weights, options) if by_kernels else None
        call = Call(log_weights, options, "none" if marked else reduction, plan)
        if kind is not None and plan is not None:
            _keep(kind, call)
        losses = call.loss(scores, targets)
    else:
        losses = _log_loss(scores, targets, log_weights, *options)[0]
    losses = checks.nan_where_wrong(losses, targets) if marked else losses
    return reduced(losses, reduction) if losses.dim() else losses


def warm_up(scores, targets, log_weights, *, min_labels, are_indices, partial, reduction, device):
    """Compile what `log_loss` would run on a device for tensors like these, which may be without numbers."""
    options = Options(min_labels, are_indices, False, partial, True)
    dispatch.warm_up(scores, targets, log_weights, options, reduction, device)


def marginals(scores, log_weights, *, min_labels, biased=True):
    """P(y_k = 1), (n_rows, n_labels), in the type of the scores."""
    saved, options = _saved(scores, log_weights, min_labels, biased)
    ones = scores.new_ones(scores.shape[0], dtype=dispatch.working_dtype(scores))
    return _log_loss_gradient(scores, None, log_weights, saved, ones, *options[:-1])


def cardinality_pmf(scores, log_weights, *, min_labels, biased=True):
    """P(|y| = j) for j = 0, ..., max_labels, (n_rows, max_labels + 1)."""
    saved, _ = _saved(scores, log_weights, min_labels, biased)
    return _size_pmf(scores, log_weights, saved, min_labels, biased)


def log_weights(scores, min_labels, max_labels, size_bias):
    """Log-weights (max_labels + 1,) of the sets of each size: size_bias or 0, -inf below min_labels."""
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    if size_bias is None and is_eager(scores):
        return _kept(min_labels, max_labels, dtype, scores.device)
    if size_bias is None:
        size_bias = torch.zeros(max_labels + 1, dtype=dtype, device=scores.device)
    bias = size_bias[: max_labels + 1].to(device=scores.device, dtype=dtype)
    return _from(bias, min_labels)


def _from(bias, min_labels):
    below = torch.arange(bias.shape[0], device=bias.device) < min_labels
    return bias.masked_fill(below, -torch.inf)


@lru_cache(maxsize=256)
def _kept(min_labels, max_labels, dtype, device):
    """Log-weights without biases, for all calls; the copy is there when this returns, for any stream of a GPU."""
    with torch.inference_mode(False):
        return _from(torch.zeros(max_labels + 1, dtype=dtype), min_labels).to(device)


def reduced(losses, reduction):
    """The losses (n_rows,), or their sum or mean; the mean of no rows is 0."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" and losses.shape[0] else losses.sum()


class Call(NamedTuple):
    """What is the same for all losses of one kind: how they are computed, and the launches where kernels do it."""

    log_weights: Tensor
    options: Options
    reduction: str
    plan: Any

    def loss(self, scores, targets):
        """Losses (n_rows,), or their sum or mean; differentiable twice."""
        return _LogLoss.apply(scores, targets, self.log_weights, self)


def kind_of(logits, targets, *options):
    """What decides all checks of a call, None where numbers may be looked at or something watches the computation."""
    if not is_eager(logits, targets) or logits is None or targets is None:
        return None
    if checks.can_look(targets) or forward_ad.unpack_dual(logits).tangent is not None:
        return None
    return logits.shape, logits.dtype, logits.device, targets.shape, targets.dtype, targets.device, *options


def find(kind):
    """The call of this kind that was kept, None if there is none."""
    try:
        return _CALLS.get(kind)
    except TypeError:  # an option that can't be hashed, which is for the checks to refuse
        return None


def _keep(kind, call):
    if len(_CALLS) >= MOST_CALLS:
        _CALLS.clear()
    _CALLS[kind] = call


_CALLS: dict[tuple | None, Call] = {}


def is_eager(*tensors):
    """Whether no compiler, transform or mode watches, and all tensors (or None) hold numbers of their own."""
    if torch.compiler.is_compiling() or is_watched():
        return False
    for tensor in tensors:  # noqa: SIM110, a generator would take twice the time
        if tensor is not None and (type(tensor) not in PLAIN or tensor.is_meta):
            return False
    return True


def refuse_forward_mode(*tensors):
    """Raise where a tensor carries a derivative of forward mode, which operators would drop in silence."""
    if torch.compiler.is_compiling():
        return
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "mlrh.torch has no derivatives in forward mode (jvp, forward_ad); use backward or torch.autograd.grad, for "
            "the loss, log_partition and log_prob also torch.autograd.functional.jvp."
        )


class _LogLoss(torch.autograd.Function):
    """The loss and its derivatives; only where these are to be differentiated they call registered operators."""

    @staticmethod
    def forward(ctx, scores, targets, log_weights, call):
        if call.plan is not None:
            loss, *saved = call.plan.forward(scores, targets, log_weights, call.reduction)
        else:
            losses, saved = dispatch.forward(scores, targets, log_weights, call.options)
            loss = reduced(losses, call.reduction)
        ctx.call = call
        ctx.save_for_backward(scores, targets, log_weights, *saved)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        scores, targets, log_weights, *saved = ctx.saved_tensors
        options, reduction, plan = ctx.call[1:]
        is_last = not torch.is_grad_enabled() and is_eager(gradient)
        if is_last and plan is not None:
            return plan.backward(scores, targets, saved[0], gradient, reduction), None, None, None
        if reduction != "none":
            gradient = (gradient / scores.shape[0] if reduction == "mean" else gradient).expand(scores.shape[0])
        of_scores, of_sizes = (_compute_gradient, _compute_pmf) if is_last else (_log_loss_gradient, _size_pmf)
        by_scores = by_log_weights = None
        if ctx.needs_input_grad[0]:
            by_scores = of_scores(scores, targets, log_weights, saved, gradient, *options[:-1])
        if ctx.needs_input_grad[2]:
            pmf = of_sizes(scores, log_weights, saved, options.min_labels, options.biased)
            by_row = (pmf - _counted(targets, options, pmf)) * gradient[:, None]
            by_log_weights = _summed_like(by_row, log_weights)
        return by_scores, None, by_log_weights, None


def _loss_of_known(scores, known, log_weights, **options):
    """log Z - log Z(sets that agree with what is known), the latter by the labels that are not known."""
    is_free, is_present, free, sizes_of_free = dispatch.given(scores, known, log_weights)
    of_free = log_loss(free, None, sizes_of_free, min_labels=0)
    present = torch.where(is_present, scores, 0.0).sum(1, dtype=of_free.dtype)
    log_partition, of_known = log_loss(scores, None, log_weights, **options), present + of_free
    # Where no set is possible at all, the difference of two infinities would be NaN.
    is_impossible = (of_known == -torch.inf) & (log_partition == -torch.inf)
    losses = (log_partition - of_known).masked_fill(is_impossible, torch.inf)
    values = losses.detach()
    losses = losses + torch.where(values < 0, -values, 0.0)  # rounding; the gradient stays
    is_wrong = ~(is_free | is_present | (known == 0)).all(1)
    return losses.masked_fill(is_wrong, torch.nan)


def _saved(scores, log_weights, min_labels, biased):
    """What the gradient of the log-partition needs, and its options."""
    refuse_forward_mode(scores, log_weights)
    options = Options(min_labels, False, biased, False, True)
    with torch.no_grad():
        return _log_loss(scores, None, log_weights, *options)[1], options


# What follows is registered with torch.library, whose operators take tensors and plain numbers: options one by one.


@torch.library.custom_op("mlrh::log_loss", mutates_args=())
def _log_loss(
    scores: Tensor,
    targets: Tensor | None,
    log_weights: Tensor,
    min_labels: int,
    are_indices: bool,
    biased: bool,
    partial: bool,
    keep: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Losses, and what the gradient needs."""
    return dispatch.forward(scores, targets, log_weights, Options(min_labels, are_indices, biased, partial, keep))


@_log_loss.register_fake
def _(scores, targets, log_weights, *options):
    return dispatch.empty_forward(scores, targets, log_weights, Options(*options))


def _keep_loss(ctx, inputs, output):
    scores, targets, log_weights, *options = inputs
    ctx.call = Call(log_weights, Options(*options), "none", None)
    ctx.set_materialize_grads(False)  # what is saved is an output, too: no zeros of its size for its gradient
    ctx.save_for_backward(scores, targets, log_weights, *output[1])


def _backward_of_loss(ctx, gradient, _):
    of_tensors = (None,) * 3 if gradient is None else _LogLoss.backward(ctx, gradient)[:3]
    return *of_tensors, *[None] * len(Options._fields)


def _compute_gradient(
    scores: Tensor,
    targets: Tensor | None,
    log_weights: Tensor,
    saved: list[Tensor],
    gradient: Tensor,
    min_labels: int,
    are_indices: bool,
    biased: bool,
    partial: bool,
) -> Tensor:
    """Derivative in the scores of the losses times gradient (n_rows,): gradient (marginals - y)."""
    options = Options(min_labels, are_indices, biased, partial, True)
    return dispatch.backward(scores, targets, log_weights, saved, gradient, options)


_log_loss_gradient = torch.library.custom_op("mlrh::log_loss_gradient", _compute_gradient, mutates_args=())


@_log_loss_gradient.register_fake
def _(scores, targets, log_weights, saved, gradient, *options):
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _keep_gradient(ctx, inputs, output):
    scores, targets, log_weights, saved, gradient, *ctx.options = inputs
    ctx.n_saved = len(saved)
    ctx.save_for_backward(scores, targets, log_weights, gradient, *saved)


def _backward_of_gradient(ctx, direction):
    scores, targets, log_weights, gradient, *saved = ctx.saved_tensors
    dtype = dispatch.working_dtype(scores)
    scaled = direction.to(dtype) * gradient[:, None]
    no_sizes = scores.new_zeros((scores.shape[0], log_weights.shape[-1]), dtype=dtype)
    d_marginals, d_pmf = _curvature(scores, log_weights, scaled, no_sizes)
    if ctx.options[-1]:
        is_free, _, free, sizes_of_free = dispatch.given(scores, targets, log_weights)
        d_marginals = d_marginals - _curvature(free, sizes_of_free, scaled.masked_fill(~is_free, 0.0), no_sizes)[0]
    residual = _log_loss_gradient(scores, targets, log_weights, saved, torch.ones_like(gradient), *ctx.options)
    by_gradient = (direction.to(dtype) * residual.to(dtype)).sum(1)
    by_log_weights = _summed_like(d_pmf, log_weights)
    nones = (None,) * len(ctx.options)
    return d_marginals.to(scores.dtype), None, by_log_weights, [None] * ctx.n_saved, by_gradient, *nones


def _compute_pmf(scores: Tensor, log_weights: Tensor, saved: list[Tensor], min_labels: int, biased: bool) -> Tensor:
    """P(|y| = j), (n_rows, max_labels + 1)."""
    return dispatch.cardinality_pmf(scores, log_weights, saved, Options(min_labels, False, biased, False, True))


_size_pmf = torch.library.custom_op("mlrh::size_pmf", _compute_pmf, mutates_args=())


@_size_pmf.register_fake
def _(scores, log_weights, saved, min_labels, biased):
    return scores.new_empty((scores.shape[0], log_weights.shape[-1]), dtype=dispatch.working_dtype(scores))


def _keep_pmf(ctx, inputs, output):
    scores, log_weights, saved, _, _ = inputs
    ctx.n_saved = len(saved)
    ctx.save_for_backward(scores, log_weights)


def _backward_of_pmf(ctx, direction):
    scores, log_weights = ctx.saved_tensors
    no_direction = torch.zeros_like(scores, dtype=dispatch.working_dtype(scores))
    d_marginals, d_pmf = _curvature(scores, log_weights, no_direction, direction)
    return d_marginals.to(scores.dtype), _summed_like(d_pmf, log_weights), [None] * ctx.n_saved, None, None


@torch.library.custom_op("mlrh::curvature", mutates_args=())
def _curvature(scores: Tensor, log_weights: Tensor, direction: Tensor, size_direction: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of marginals and size probabilities along directions of the scores and of the log-weights."""
    return dispatch.curvature(scores, log_weights, direction, size_direction)


@_curvature.register_fake
def _(scores, log_weights, direction, size_direction):
    dtype = dispatch.working_dtype(scores)
    return tuple(scores.new_empty((scores.shape[0], n), dtype=dtype) for n in (scores.shape[1], log_weights.shape[-1]))


_log_loss.register_autograd(_backward_of_loss, setup_context=_keep_loss)
_log_loss_gradient.register_autograd(_backward_of_gradient, setup_context=_keep_gradient)
_size_pmf.register_autograd(_backward_of_pmf, setup_context=_keep_pmf)


def _counted(targets, options, pmf):
    """1 where a row's set has j labels, (n_rows, n_sizes); 0 where targets is None."""
    if targets is None:
        return 0.0
    counts = dispatch.as_targets(targets, options).counts(slice(None))
    return (counts[:, None] == torch.arange(pmf.shape[1], device=pmf.device)).to(pmf.dtype)


def _summed_like(by_row, log_weights):
    return (by_row if log_weights.dim() > 1 else by_row.sum(0)).to(log_weights.dtype)
