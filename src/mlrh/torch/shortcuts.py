"""The loss in eager mode where the kernels serve and no number has to be looked at: little is done but the launches.

A step takes the host longer than the kernels run, so that what is known of one call (its tensors are of a kind that
passed all checks, and these are its launches) is kept for the next one: a shortcut.
"""

import torch
from torch.autograd import forward_ad

from mlrh.torch import targets as checks
from mlrh.torch.eager import is_eager

MOST_SHORTCUTS = 256


class Shortcut:
    """The launches for tensors of one kind, the log-weights of the sizes, and what becomes of the losses."""

    def __init__(self, plan, log_weights, options, reduction):
        self.plan, self.log_weights, self.options, self.reduction = plan, log_weights, options, reduction

    def loss(self, scores, targets):
        """Losses (n_rows,), or their sum or mean; differentiable twice."""
        return _KernelLoss.apply(scores, targets, self)


def kind_of(logits, targets, *options):
    """What decides all checks of a call, None where numbers may be looked at or something watches the computation."""
    if not is_eager(logits, targets) or logits is None or targets is None:
        return None
    if forward_ad._current_level >= 0 or checks.can_look(targets):
        return None
    return logits.shape, logits.dtype, logits.device, targets.shape, targets.dtype, targets.device, *options


def options_of(kind):
    """The options that a kind was made of."""
    return kind[6:]


def find(kind):
    """The shortcut for calls of this kind, None if there is none yet."""
    try:
        return _SHORTCUTS.get(kind)
    except TypeError:  # an option that can't be hashed, which is for the checks to refuse
        return None


def keep(kind, shortcut):
    """The shortcut, kept for later calls of this kind."""
    if len(_SHORTCUTS) >= MOST_SHORTCUTS:
        _SHORTCUTS.clear()
    _SHORTCUTS[kind] = shortcut
    return shortcut


def reduced(losses, reduction):
    """The losses (n_rows,), or their sum or mean."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def by_row(gradient, n_rows, reduction):
    """Gradients of the losses (n_rows,), from that of what `reduced` makes of them."""
    if reduction == "none":
        return gradient
    return (gradient / n_rows if reduction == "mean" else gradient).expand(n_rows)


class _KernelLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, targets, shortcut):
        loss, saved = shortcut.plan.forward(scores, targets, shortcut.log_weights, shortcut.reduction)
        ctx.shortcut = shortcut
        ctx.save_for_backward(scores, targets, saved)
        return loss

    @staticmethod
    def backward(ctx, gradient):
        scores, targets, saved = ctx.saved_tensors
        shortcut = ctx.shortcut
        if not torch.is_grad_enabled() and is_eager(gradient):
            return shortcut.plan.backward(scores, targets, saved, gradient, shortcut.reduction), None, None
        gradient = by_row(gradient, scores.shape[0], shortcut.reduction)
        *options, _ = shortcut.options
        operator = torch.ops.mlrh.log_loss_gradient
        return operator(scores, targets, shortcut.log_weights, [saved], gradient, *options), None, None


_SHORTCUTS: dict[tuple | None, Shortcut] = {}
