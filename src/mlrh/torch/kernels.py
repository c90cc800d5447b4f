"""Loss and gradient of the cardinality space on the GPU: tensors in, tensors out; launches the Triton kernels.

Rows longer than CHUNK labels are split into C chunks of equal length. A forward pass is one launch (`forward`), where
programs read chunks and the last of a group of rows finishes it, a backward pass one more (`gradient`). Between the
passes stays one tensor of bytes, with these parts, M being max_labels and labels counted from the start of their chunk:

    pmf         probabilities of the sizes (B, M + 1), without targets only
    numbers     tilt (B,), coefficients (B, M): the polynomial that gives the marginal of a label with odds up to 1
    values      likely_values (B, C, LIKELY): marginal - target of labels with odds above 1
    counts      sizes (B,) of the target sets, M + 1 where targets are to be read again, since they are too many or some
                are unknown; target_counts (B, C), UNKNOWN more where some are; likely_counts (B, C)
    labels      likely_labels (B, C, LIKELY), target_labels (B, C, M) of dense targets

and during the forward pass one more, scratch, with counters of the groups that are finished and of the programs that
have ended in each group, tilts (B, C), sums (B, C, M), heavy_counts (B, C), heavy_scores and heavy_labels (B, C,
HEAVY), and likely_marginals (B, C, LIKELY).

Dense targets of floating point may be NaN, for labels that are not known. Then there are two of all but the counters
and the parts on targets: the second are of the sets that agree with the targets, by the scores of the free labels,
those not known; second likely_labels take the place of target_labels, which are LIKELY apart then.

The module knows nothing of autograd and needs Triton: import it only where that is there.
"""

import math

import torch

from mlrh.torch.kernels_backward import gradient
from mlrh.torch.kernels_forward import forward as loss_kernel
from mlrh.torch.kernels_launch import Launch, addresses_of, can_go_by_address
from mlrh.torch.kernels_limits import COMPUTED_IN, fit
from mlrh.torch.kernels_shape import Shape

REDUCTIONS = ("none", "sum", "mean")
CHUNK = 4096  # labels in the registers of one program
LARGEST_BIAS = 4.0  # nats between size_bias and a line, above which one tilt no longer serves all sizes in float32


def usable(scores, log_weights, min_labels, *, biased=True):
    """Whether `forward` handles these scores (B, K) and log-weights (M + 1,).

    biased=False promises that the log-weights from min_labels on are equal; they are then not read, so that the GPU
    need not be waited for.
    """
    if not fit(scores, log_weights):
        return False
    return not biased or _distance_from_line(log_weights[min_labels:].tolist()) <= LARGEST_BIAS


def forward(scores, targets, log_weights, min_labels, *, indices=None, partial=True):
    """Losses (B,) and what `backward` needs of them.

    Parameters
    ----------
    scores : tensor of shape (B, K)
    targets : tensor of shape (B, K) of 0 and 1, or (B, P) of labels padded with -1, or None for log Z alone
    log_weights : tensor of shape (M + 1,), -inf for sizes below min_labels
    indices : whether targets are labels; by default integers of another shape than the scores' are
    partial : whether NaN in dense targets are labels that are not known, so that the sets that agree with the others
        count; otherwise NaN make the loss NaN

    Returns
    -------
    loss : tensor of shape (B,): log Z - sum_{k in y} s_k - log_weights[|y|]; inf for a set of no admissible size
    saved : tensor of bytes
    """
    return plan(scores, targets, log_weights, min_labels, indices, partial).forward(scores, targets, log_weights)


def backward(scores, targets, log_weights, min_labels, saved, grad, *, indices=None, partial=True):
    """Gradient (B, K) of sum_i grad_i loss_i in the type of the scores: grad_i (marginals_ik - y_ik)."""
    return plan(scores, targets, log_weights, min_labels, indices, partial).backward(scores, targets, saved, grad)


def size_pmf(saved, scores, log_weights):
    """Probabilities of the sizes 0, ..., M, shape (B, M + 1), from what `forward` saved of scores without targets."""
    shape, dtype = (scores.shape[0], len(log_weights)), COMPUTED_IN[scores.dtype]
    return saved[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def empty_saved(scores, targets, log_weights, *, indices=None, partial=True):
    """A tensor of the size and type of what `forward` saves, for the same arguments."""
    return scores.new_empty(Shape(scores, targets, log_weights, indices, partial, CHUNK).n_saved, dtype=torch.uint8)


def plan(scores, targets, log_weights, min_labels, indices=None, partial=True):
    """The `Plan` for tensors like these, kept from earlier calls; a kernel depends on all that the key holds."""
    kind = None if targets is None else (targets.dtype, targets.shape)
    of_scores, of_sizes = (scores.shape, scores.dtype, scores.device), (log_weights.shape, log_weights.dtype)
    key = (*of_scores, kind, *of_sizes, min_labels, indices, partial)
    found = _PLANS.get(key)
    if found is None or found.chunk != CHUNK:
        if len(_PLANS) >= 256:
            _PLANS.clear()
        found = _PLANS[key] = Plan(Shape(scores, targets, log_weights, indices, partial, CHUNK), min_labels)
    return found


class Plan:
    """The launches for tensors of one kind; with a reduction, the losses of all rows become one number."""

    def __init__(self, shape, min_labels):
        self.shape, self.chunk = shape, CHUNK
        self.loss = {kind: Launch(loss_kernel, *shape.forward_options(min_labels, kind)) for kind in REDUCTIONS}
        self.gradient = {kind: Launch(gradient, *shape.gradient_options(kind)) for kind in REDUCTIONS}

    def forward(self, scores, targets, log_weights, reduction="none"):
        """As the function `forward`."""
        if scores.is_cuda and scores.device.index != torch._C._cuda_getDevice():
            with torch.cuda.device_of(scores):  # where Triton launches
                return self.forward(scores, targets, log_weights, reduction)
        launch, shape = self.loss[reduction], self.shape
        scores, targets = scores.contiguous(), None if targets is None else targets.contiguous()
        saved, scratch, loss = shape.empty(scores, reduction)
        given = (scores, targets, log_weights)
        addresses, aligned = addresses_of(given)
        if aligned and can_go_by_address(launch):
            own = shape.places_of_losses(scratch.data_ptr(), loss.data_ptr(), reduction)
            pmf, numbers, values, counts, labels = shape.places(saved.data_ptr())
            launch.by_address((*addresses, *own, numbers, values, pmf, counts, labels), scores.device.index)
        else:
            own = shape.losses(scratch, loss, reduction)
            pmf, numbers, values, counts, labels = shape.parts(saved)
            launch.ordinary((*given, *own, numbers, values, pmf, counts, labels), aligned)
        return loss, saved

    def backward(self, scores, targets, saved, grad, reduction="none"):
        """As the function `backward`; with a reduction, grad has one entry."""
        if scores.is_cuda and scores.device.index != torch._C._cuda_getDevice():
            with torch.cuda.device_of(scores):
                return self.backward(scores, targets, saved, grad, reduction)
        launch, shape = self.gradient[reduction], self.shape
        scores, targets = scores.contiguous(), None if targets is None else targets.contiguous()
        result = torch.empty_like(scores)
        given = (scores, targets, grad.contiguous())
        addresses, aligned = addresses_of(given)
        if aligned and can_go_by_address(launch):
            _, *parts = shape.places(saved.data_ptr())
            launch.by_address((*addresses, *parts, result.data_ptr()), scores.device.index)
        else:
            _, *parts = shape.parts(saved)
            launch.ordinary((*given, *parts, result), aligned)
        return result


_PLANS: dict[tuple, Plan] = {}


def _distance_from_line(bias):
    """Largest distance of the biases from the line through the first and the last."""
    slope = (bias[-1] - bias[0]) / max(len(bias) - 1, 1)
    return max(abs(value - bias[0] - slope * j) for j, value in enumerate(bias))
