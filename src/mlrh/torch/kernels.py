"""Loss and gradient of the cardinality space on the GPU: tensors in, tensors out; launches the Triton kernels.

Rows longer than CHUNK labels are split into C chunks of equal length, each read by one program. A forward pass is two
launches (`moments` over chunks, `finish` over rows), a backward pass one (`gradient`). Between the passes stay four
tensors, which hold one after the other, with M = max_labels and labels counted from the start of their chunk,

    numbers     tilt (B,), coefficients (B, M): the polynomial that gives the marginal of a label with odds up to 1;
                likely_marginals (B, C, LIKELY): those of labels with odds above 1
    pmf         probabilities of the sizes (B, M + 1)
    counts      sizes (B,) of the target sets, M + 1 or more being too many; likely_counts (B, C); target_counts (B, C)
    labels      likely_labels (B, C, LIKELY), target_labels (B, C, M)

(target_counts and target_labels for dense targets only), and between the two launches one more, with tilts (B, C), sums
(B, C, M), heavy_counts (B, C), heavy_scores and heavy_labels (B, C, HEAVY). The module knows nothing of autograd and
needs Triton: import it only where that is there.
"""

import math
from contextlib import nullcontext

import torch
import triton

from mlrh.torch.kernels_backward import gradient
from mlrh.torch.kernels_chunks import moments
from mlrh.torch.kernels_rows import finish

CHUNK = 4096  # labels in the registers of one program
LARGEST_ROW = 1 << 20  # labels; chunks are still far longer than a target set
LARGEST_SET = 32  # labels; beyond, the lists of heavy labels would grow long
LARGEST_BIAS = 4.0  # nats between size_bias and a line, above which one tilt no longer serves all sizes in float32


def usable(scores, log_weights, min_labels, *, biased=True):
    """Whether `forward` handles these scores (B, K) and log-weights (M + 1,).

    biased=False promises that the log-weights from min_labels on are equal; they are then not read, so that the GPU
    need not be waited for.
    """
    max_labels = len(log_weights) - 1
    if not 1 <= max_labels <= min(LARGEST_SET, scores.shape[1]) or scores.numel() == 0:
        return False
    if scores.shape[1] > LARGEST_ROW or scores.dtype not in _COMPUTED_IN:
        return False
    return not biased or _distance_from_line(log_weights[min_labels:].tolist()) <= LARGEST_BIAS


def forward(scores, targets, log_weights, min_labels, *, indices=None):
    """Losses (B,) and what `backward` needs of them.

    Parameters
    ----------
    scores : tensor of shape (B, K)
    targets : tensor of shape (B, K) of 0 and 1, or (B, P) of labels padded with -1, or None for log Z alone
    log_weights : tensor of shape (M + 1,), -inf for sizes below min_labels
    indices : whether targets are labels; by default integers of another shape than the scores' are

    Returns
    -------
    loss : tensor of shape (B,): log Z - sum_{k in y} s_k - log_weights[|y|]; inf for a set of no admissible size
    saved : tuple of tensors
    """
    scores, targets = scores.contiguous(), None if targets is None else targets.contiguous()
    call = _call(scores, targets, log_weights, min_labels, indices)
    saved = _saved(scores, call.shape)
    loss = scores.new_empty(call.shape.n_rows, dtype=call.shape.computed_in)
    with _on_device_of(scores):
        call.forward(scores, targets, log_weights, loss, saved)
    return loss, saved


def backward(scores, targets, log_weights, min_labels, saved, grad, *, indices=None):
    """Gradient (B, K) of sum_i grad_i loss_i in the type of the scores: grad_i (marginals_ik - y_ik)."""
    scores, targets = scores.contiguous(), None if targets is None else targets.contiguous()
    call = _call(scores, targets, log_weights, min_labels, indices)
    result = torch.empty_like(scores)
    with _on_device_of(scores):
        call.backward(scores, targets, saved, grad.contiguous(), result)
    return result


def size_pmf(saved):
    """Probabilities of the sizes 0, ..., M, shape (B, M + 1)."""
    return saved[1]


def empty_saved(scores, targets, log_weights, *, indices=None):
    """Tensors of the shapes and types that `forward` saves, for the same arguments."""
    return _saved(scores, _Shape(scores, targets, log_weights, indices))


class _Shape:
    """Sizes of one call, and how it is cut into programs."""

    def __init__(self, scores, targets, log_weights, indices):
        self.n_rows, self.n_labels = scores.shape
        self.max_labels = len(log_weights) - 1
        self.itemsize, self.computed_in = scores.dtype.itemsize, _COMPUTED_IN[scores.dtype]
        if indices is None:
            indices = targets is not None and targets.shape != scores.shape and not targets.is_floating_point()
        self.dense, self.listed = targets is not None and not indices, targets is not None and indices
        self.n_indices = targets.shape[1] if self.listed else 0
        self.n_chunks = triton.cdiv(self.n_labels, CHUNK)
        self.stride = triton.cdiv(self.n_labels, self.n_chunks)
        if self.n_chunks > 1:
            self.stride = 16 * triton.cdiv(self.stride, 16)
        # Newton's identities lose at most a factor exp(max_labels * bound) of precision.
        self.bound = min(0.5, 4 / self.max_labels)
        self.n_heavy = min(math.floor((self.max_labels + 0.5) * (1 + self.bound) / self.bound) + 1, self.stride)
        cells = self.n_rows * self.n_chunks
        self.scratch_size = cells * (2 + self.max_labels + 2 * self.n_heavy)
        self.target_lanes = triton.next_power_of_2(max(self.n_indices, self.max_labels))
        self.n_likely = min(2 * self.max_labels + 1, self.stride)

    def moments_tile(self):
        """Rows, labels and warps of a program: whole chunks, 32 labels in a thread."""
        labels = triton.next_power_of_2(self.stride)
        rows = max(1, 1024 // labels)
        return rows, labels, _warps(rows * labels, 256 if self.computed_in == torch.float64 else 1024)

    def gradient_tile(self):
        labels = min(triton.next_power_of_2(self.stride), 2048)
        rows = max(1, 1024 // labels)
        return rows, labels, _warps(rows * labels, 2048 // self.itemsize)


class _Call:
    """The three launches for tensors of one kind; from the second time on without Triton's search for the kernel.

    That search takes longer than many a kernel runs.
    """

    def __init__(self, shape, min_labels):
        self.shape, self.min_labels = shape, min_labels
        self.compiled = {}

    def forward(self, scores, targets, log_weights, loss, saved):
        numbers, pmf, counts, labels_of = saved
        scratch = scores.new_empty(self.shape.scratch_size, dtype=self.shape.computed_in)
        self._launch(moments, self._moments_options, (scores, targets, log_weights, scratch, counts, labels_of))
        tensors = (scores, targets, log_weights, scratch, loss, numbers, pmf, counts, labels_of)
        self._launch(finish, self._finish_options, tensors)

    def backward(self, scores, targets, saved, grad, result):
        numbers, _, counts, labels_of = saved
        tensors = (scores, targets, grad, numbers, counts, labels_of, result)
        self._launch(gradient, self._gradient_options, tensors, (grad.dtype, grad.data_ptr() % 16))

    def _launch(self, kernel, options, tensors, kind=None):
        if (kernel, kind) in self.compiled:
            compiled, grid, numbers = self.compiled[kernel, kind]
            compiled[grid](*tensors, *numbers)
            return
        grid, numbers, warps = options()
        compiled = kernel[grid](*tensors, *numbers, num_warps=warps)
        if compiled is not None:  # which it is in Triton's interpreter
            self.compiled[kernel, kind] = compiled, grid, numbers

    def _moments_options(self):
        shape, (rows, labels, warps) = self.shape, self.shape.moments_tile()
        grid = (triton.cdiv(shape.n_rows, rows) * shape.n_chunks, 1, 1)
        numbers = (
            shape.n_rows, shape.n_labels, shape.n_chunks, shape.stride, self.min_labels, math.log(shape.bound),
            shape.max_labels, shape.n_heavy, shape.n_likely, rows, labels, shape.dense,
            shape.n_labels == shape.n_chunks * labels,
        )  # fmt: skip
        return grid, numbers, warps

    def _finish_options(self):
        shape = self.shape
        sizes, chunks = triton.next_power_of_2(shape.max_labels + 1), triton.next_power_of_2(shape.n_chunks)
        rows = max(1, 128 // (sizes * chunks))
        numbers = (
            shape.n_rows, shape.n_labels, shape.n_chunks, shape.stride, shape.n_indices, self.min_labels,
            shape.max_labels, shape.n_heavy, shape.n_likely, shape.target_lanes, rows, sizes, chunks, shape.dense,
            shape.listed,
        )  # fmt: skip
        return (triton.cdiv(shape.n_rows, rows), 1, 1), numbers, 4

    def _gradient_options(self):
        shape, (rows, labels, warps) = self.shape, self.shape.gradient_tile()
        n_blocks = triton.cdiv(shape.stride, labels)
        grid = (triton.cdiv(shape.n_rows, rows) * shape.n_chunks * n_blocks, 1, 1)
        numbers = (
            shape.n_rows, shape.n_labels, shape.n_chunks, shape.stride, n_blocks, shape.n_indices, shape.max_labels,
            shape.n_likely, triton.next_power_of_2(shape.n_likely), shape.target_lanes, rows, labels, shape.dense,
            shape.listed,
        )  # fmt: skip
        return grid, numbers, warps


_CALLS: dict[tuple, _Call] = {}


def _call(scores, targets, log_weights, min_labels, indices):
    """The launches for tensors like these, kept from earlier calls; a kernel depends on all that the key holds."""
    tensors = (scores, log_weights) if targets is None else (scores, log_weights, targets)
    kinds = [(tensor.dtype, tuple(tensor.shape), tensor.data_ptr() % 16) for tensor in tensors]
    key = (scores.device, min_labels, indices, CHUNK, *kinds)
    if key not in _CALLS:
        if len(_CALLS) >= 256:
            _CALLS.clear()
        _CALLS[key] = _Call(_Shape(scores, targets, log_weights, indices), min_labels)
    return _CALLS[key]


def _saved(scores, shape):
    """Tensors for what the head of this module lists."""
    cells = shape.n_rows * shape.n_chunks
    n_lists = 2 if shape.dense else 1
    n_labels = shape.n_likely + (shape.max_labels if shape.dense else 0)
    return (
        scores.new_empty(shape.n_rows * (1 + shape.max_labels) + cells * shape.n_likely, dtype=shape.computed_in),
        scores.new_empty((shape.n_rows, shape.max_labels + 1), dtype=shape.computed_in),
        scores.new_empty(shape.n_rows + n_lists * cells, dtype=torch.int32),
        scores.new_empty(cells * n_labels, dtype=torch.int16),
    )


def _on_device_of(scores):
    """Triton launches on the current device, which may be another one."""
    if not scores.is_cuda or scores.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device_of(scores)


def _warps(elements, per_warp):
    return max(1, min(16, elements // per_warp))


def _distance_from_line(bias):
    """Largest distance of the biases from the line through the first and the last."""
    slope = (bias[-1] - bias[0]) / max(len(bias) - 1, 1)
    return max(abs(value - bias[0] - slope * j) for j, value in enumerate(bias))


_COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
