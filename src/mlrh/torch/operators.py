"""Differentiable operators: the loss, marginals and probabilities of the sizes, for autograd, torch.compile and export.

CUDA tensors go to the Triton kernels where these serve, all others to `recurrence`. First derivatives are kept or
computed by the adjoint recurrence; second ones come from `curvature`. Third ones are not there.

Registered operators (`torch.library.custom_op`) serve the compiler, export and second derivatives. A call of one costs
some tenths of a millisecond; in eager mode the loss is an autograd Function around the same computations.
"""

import importlib.metadata
import importlib.util
import os
import re
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from mlrh.torch import recurrence
from mlrh.torch.curvature import curvature
from mlrh.torch.eager import is_eager, refuse_forward_mode
from mlrh.torch.kernels_limits import fit
from mlrh.torch.recurrence import Targets
from mlrh.torch.shortcuts import Shortcut, by_row, reduced
from mlrh.torch.targets import nan_where_wrong, of_free_labels

OLDEST_TRITON = (3, 6)  # older ones can't compile a compare-and-swap of 8 bytes


def has_triton():
    """Whether there is a Triton that compiles the kernels."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build under another name
        return True
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST_TRITON


HAS_TRITON = has_triton()  # torch.compile can't find out


class Options(NamedTuple):
    """What the operators of the loss take beside tensors; see `log_loss`. keep: whether a gradient may be wanted."""

    min_labels: int
    are_indices: bool
    biased: bool
    partial: bool
    keep: bool


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
):
    """-log P(targets) (n_rows,), the log-partition where targets is None; inf for a size that isn't admissible.

    Parameters
    ----------
    scores : tensor of shape (n_rows, n_labels)
    targets : tensor of shape (n_rows, n_labels) of 0 and 1, or (n_rows, n) of labels filled up with -1, or None
    log_weights : tensor of shape (max_labels + 1,) or (n_rows, max_labels + 1), -inf for sizes not admissible
    min_labels : int, below which log_weights of the first shape are -inf
    are_indices : bool, whether targets are labels
    biased : bool; False promises that the log-weights of admissible sizes are equal
    partial : bool, whether NaN in dense targets are labels that are not known; only where `by_kernels` is true
    reduction : "none", or "sum" or "mean" of the losses of all rows
    marked : bool, whether the loss is to be NaN where dense targets are neither 0 nor 1; nothing is waited for
    """
    refuse_forward_mode(scores, log_weights)
    if are_indices and targets.shape == scores.shape:
        targets = torch.nn.functional.pad(targets, (0, 1), value=-1)  # can't be taken for a dense target
    keep = torch.is_grad_enabled() and (scores.requires_grad or log_weights.requires_grad)
    keep = keep or torch.compiler.is_exporting()  # who loads the program may want gradients
    options = Options(min_labels, are_indices, biased, partial, keep)
    if is_eager(scores, targets, log_weights):
        shortcut = shortcut_of(scores, targets, log_weights, options, reduction)
        if shortcut is not None:  # the kernels mark wrong targets themselves
            return shortcut.loss(scores, targets)
        if not marked:
            return _LogLoss.apply(scores, targets, log_weights, options, reduction)
        losses = _LogLoss.apply(scores, targets, log_weights, options, "none")
    else:
        losses = _log_loss(scores, targets, log_weights, *options)[0]
        marked = marked and not by_kernels(scores, log_weights, biased)
    return reduced(nan_where_wrong(losses, targets) if marked else losses, reduction)


def shortcut_of(scores, targets, log_weights, options, reduction):
    """The shortcut of the kernels, None where these don't serve or the biases have to be looked at."""
    if not by_kernels(scores, log_weights, options.biased):
        return None
    plan = _kernels().plan(scores, targets, log_weights, options.min_labels, options.are_indices, options.partial)
    return Shortcut(plan, log_weights, options, reduction)


def by_kernels(scores, log_weights, biased):
    """Whether the kernels surely serve; where they may, but the biases have to be looked at for that, they don't."""
    return not biased and _may_use_kernels(scores, log_weights)


def marginals(scores, log_weights, *, min_labels, biased=True):
    """P(y_k = 1), (n_rows, n_labels), in the type of the scores."""
    saved = _saved(scores, log_weights, min_labels, biased)
    ones = scores.new_ones(scores.shape[0], dtype=recurrence.working_dtype(scores))
    return _log_loss_gradient(scores, None, log_weights, saved, ones, min_labels, False, biased, False)


def size_pmf(scores, log_weights, *, min_labels, biased=True):
    """P(|y| = j) for j = 0, ..., max_labels, (n_rows, max_labels + 1)."""
    return _size_pmf(scores, log_weights, _saved(scores, log_weights, min_labels, biased), min_labels, biased)


def _saved(scores, log_weights, min_labels, biased):
    refuse_forward_mode(scores, log_weights)
    with torch.no_grad():
        return _log_loss(scores, None, log_weights, *Options(min_labels, False, biased, False, True))[1]


def _compute_loss(
    scores: Tensor,
    targets: Tensor | None,
    log_weights: Tensor,
    min_labels: int,
    are_indices: bool,
    biased: bool,
    partial: bool,
    keep: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Losses, and what the gradient needs: nothing where the choice of the path depends on the biases themselves."""
    scores = scores.contiguous()
    if not _may_use_kernels(scores, log_weights):
        with _full_precision(scores):
            loss, kept = recurrence.forward(scores, _as_targets(targets, are_indices), log_weights, keep=keep)
        return loss, list(kept)
    loss, kept = _forward(scores, targets, log_weights, min_labels, are_indices, biased, partial)[:2]
    return loss, [] if biased else [kept]


_log_loss = torch.library.custom_op("mlrh::log_loss", _compute_loss, mutates_args=())


@_log_loss.register_fake
def _(scores, targets, log_weights, min_labels, are_indices, biased, partial, keep):
    loss = scores.new_empty(scores.shape[0], dtype=recurrence.working_dtype(scores))
    if not _may_use_kernels(scores, log_weights):
        return loss, list(recurrence.empty_saved(scores, log_weights, keep=keep))
    if biased:
        return loss, []
    return loss, [_kernels().empty_saved(scores, targets, log_weights, indices=are_indices, partial=partial)]


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
    scores, gradient = scores.contiguous(), gradient.contiguous()
    served = _may_use_kernels(scores, log_weights)
    kept = saved[0] if served and not biased else saved
    if served and biased:
        _, kept, served = _forward(scores, targets, log_weights, min_labels, are_indices, biased, partial)
    if served:
        inputs = scores, targets, log_weights, min_labels, kept, gradient
        return _kernels().backward(*inputs, indices=are_indices, partial=partial)
    with _full_precision(scores):
        return recurrence.backward(scores, _as_targets(targets, are_indices), log_weights, kept, gradient)


_log_loss_gradient = torch.library.custom_op("mlrh::log_loss_gradient", _compute_gradient, mutates_args=())


@_log_loss_gradient.register_fake
def _(scores, targets, log_weights, saved, gradient, min_labels, are_indices, biased, partial):
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _compute_sizes(scores: Tensor, log_weights: Tensor, saved: list[Tensor], min_labels: int, biased: bool) -> Tensor:
    """P(|y| = j), (n_rows, max_labels + 1)."""
    scores = scores.contiguous()
    served = _may_use_kernels(scores, log_weights)
    kept = saved[0] if served and not biased else saved
    if served and biased:
        _, kept, served = _forward(scores, None, log_weights, min_labels, False, biased, False)
    return (_kernels().size_pmf(kept, scores, log_weights) if served else kept[-1]).clone()


_size_pmf = torch.library.custom_op("mlrh::size_pmf", _compute_sizes, mutates_args=())


@_size_pmf.register_fake
def _(scores, log_weights, saved, min_labels, biased):
    return scores.new_empty((scores.shape[0], log_weights.shape[-1]), dtype=recurrence.working_dtype(scores))


@torch.library.custom_op("mlrh::curvature", mutates_args=())
def _curvature(scores: Tensor, log_weights: Tensor, direction: Tensor, size_direction: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of marginals and size probabilities along directions of the scores and of the log-weights."""
    with _full_precision(scores):
        return curvature(scores, log_weights, direction, size_direction)


@_curvature.register_fake
def _(scores, log_weights, direction, size_direction):
    dtype = recurrence.working_dtype(scores)
    n_rows, n_labels = scores.shape
    d_marginals = scores.new_empty((n_rows, n_labels), dtype=dtype)
    return d_marginals, scores.new_empty((n_rows, log_weights.shape[-1]), dtype=dtype)


def _keep_loss(ctx, inputs, output):
    scores, targets, log_weights, *options = inputs
    ctx.options = Options(*options)
    ctx.set_materialize_grads(False)  # what is saved is an output, too: no zeros of its size for its gradient
    ctx.save_for_backward(scores, targets, log_weights, *output[1])


def _backward_of_loss(ctx, gradient, _):
    if gradient is None:
        return (None,) * 8
    by_scores, by_log_weights = _derivatives(ctx, gradient, _log_loss_gradient, _size_pmf)
    return by_scores, None, by_log_weights, None, None, None, None, None


def _derivatives(ctx, gradient, of_scores, of_sizes):
    """Derivatives by scores and log-weights, by functions that are registered operators or not."""
    scores, targets, log_weights, *saved = ctx.saved_tensors
    by_scores = by_log_weights = None
    min_labels, are_indices, biased, partial, _ = ctx.options
    if ctx.needs_input_grad[0]:
        by_scores = of_scores(scores, targets, log_weights, saved, gradient, min_labels, are_indices, biased, partial)
    if ctx.needs_input_grad[2]:
        pmf = of_sizes(scores, log_weights, saved, min_labels, biased)
        by_log_weights = (pmf - _counted(targets, are_indices, pmf)) * gradient[:, None]
        by_log_weights = _summed_like(by_log_weights, log_weights)
    return by_scores, by_log_weights


class _LogLoss(torch.autograd.Function):
    """The loss in eager mode; only where its derivative is to be differentiated it calls registered operators."""

    @staticmethod
    def forward(ctx, scores, targets, log_weights, options, reduction):
        loss, saved = _compute_loss(scores, targets, log_weights, *options)
        ctx.options, ctx.n_rows, ctx.reduction = options, scores.shape[0], reduction
        ctx.save_for_backward(scores, targets, log_weights, *saved)
        return reduced(loss, reduction)

    @staticmethod
    def backward(ctx, gradient):
        is_last = not torch.is_grad_enabled() and is_eager(gradient)
        operators = (_compute_gradient, _compute_sizes) if is_last else (_log_loss_gradient, _size_pmf)
        by_scores, by_log_weights = _derivatives(ctx, by_row(gradient, ctx.n_rows, ctx.reduction), *operators)
        return by_scores, None, by_log_weights, None, None


def _keep_gradient(ctx, inputs, output):
    scores, targets, log_weights, saved, gradient, *ctx.options = inputs
    ctx.n_saved = len(saved)
    ctx.save_for_backward(scores, targets, log_weights, gradient, *saved)


def _backward_of_gradient(ctx, direction):
    scores, targets, log_weights, gradient, *saved = ctx.saved_tensors
    dtype = recurrence.working_dtype(scores)
    scaled = direction.to(dtype) * gradient[:, None]
    no_sizes = scores.new_zeros((scores.shape[0], log_weights.shape[-1]), dtype=dtype)
    d_marginals, d_pmf = _curvature(scores, log_weights, scaled, no_sizes)
    if ctx.options[-1]:
        is_free, _, free, sizes_of_free = of_free_labels(scores, targets, log_weights)
        d_marginals = d_marginals - _curvature(free, sizes_of_free, scaled.masked_fill(~is_free, 0.0), no_sizes)[0]
    residual = _log_loss_gradient(scores, targets, log_weights, saved, torch.ones_like(gradient), *ctx.options)
    by_gradient = (direction.to(dtype) * residual.to(dtype)).sum(1)
    by_log_weights = _summed_like(d_pmf, log_weights)
    nones = (None,) * len(ctx.options)
    return d_marginals.to(scores.dtype), None, by_log_weights, [None] * ctx.n_saved, by_gradient, *nones


def _keep_sizes(ctx, inputs, output):
    scores, log_weights, saved, _, _ = inputs
    ctx.n_saved = len(saved)
    ctx.save_for_backward(scores, log_weights)


def _backward_of_sizes(ctx, direction):
    scores, log_weights = ctx.saved_tensors
    no_direction = torch.zeros_like(scores, dtype=recurrence.working_dtype(scores))
    d_marginals, d_pmf = _curvature(scores, log_weights, no_direction, direction)
    return d_marginals.to(scores.dtype), _summed_like(d_pmf, log_weights), [None] * ctx.n_saved, None, None


_log_loss.register_autograd(_backward_of_loss, setup_context=_keep_loss)
_log_loss_gradient.register_autograd(_backward_of_gradient, setup_context=_keep_gradient)
_size_pmf.register_autograd(_backward_of_sizes, setup_context=_keep_sizes)


def _forward(scores, targets, log_weights, min_labels, are_indices, biased, partial):
    """Losses, what their gradient needs, and whether it was the kernels that made them."""
    if not biased or _kernels().usable(scores, log_weights, min_labels):
        loss, saved = _kernels().forward(scores, targets, log_weights, min_labels, indices=are_indices, partial=partial)
        return loss, saved, True
    with _full_precision(scores):
        loss, saved = recurrence.forward(scores, _as_targets(targets, are_indices), log_weights, keep=True)
    return loss, saved, False


def _may_use_kernels(scores, log_weights):
    """Whether the kernels serve unless the biases forbid it; known without waiting for the GPU."""
    return (scores.is_cuda or _is_interpreted()) and fit(scores, log_weights) and HAS_TRITON


def _full_precision(scores):
    """Autocast off: it would round the products of float32 tensors. Where it is off already, that costs nothing."""
    device = scores.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _is_interpreted():
    return not torch.compiler.is_compiling() and os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _kernels():
    from mlrh.torch import kernels

    return kernels


def _as_targets(targets, are_indices):
    return None if targets is None else Targets(targets, are_indices)


def _counted(targets, are_indices, pmf):
    """1 where a row's set has j labels, (n_rows, n_sizes); 0 where targets is None."""
    if targets is None:
        return 0.0
    counts = Targets(targets, are_indices).counts(slice(None))
    sizes = torch.arange(pmf.shape[1], device=pmf.device)
    return (counts[:, None] == sizes).to(pmf.dtype)


def _summed_like(by_row, log_weights):
    return (by_row if log_weights.dim() > 1 else by_row.sum(0)).to(log_weights.dtype)
