"""Sizes of one call of the kernels: how it is cut into programs and where its numbers lie; nothing is launched."""

import math
from itertools import accumulate

import torch
import triton

from mlrh.torch.kernels_launch import ALIGNMENT
from mlrh.torch.kernels_layout import HEADER
from mlrh.torch.kernels_limits import COMPUTED_IN


class Shape:
    """Sizes of one call, and how it is cut into programs."""

    def __init__(self, scores, targets, log_weights, indices, partial, chunk):
        self.n_rows, self.n_labels = scores.shape
        self.max_labels = len(log_weights) - 1
        self.dtype, self.itemsize, self.computed_in = scores.dtype, scores.dtype.itemsize, COMPUTED_IN[scores.dtype]
        if indices is None:
            indices = targets is not None and targets.shape != scores.shape and not targets.is_floating_point()
        self.dense, self.listed = targets is not None and not indices, targets is not None and indices
        self.partial = self.dense and partial and targets.is_floating_point()
        self.n_indices = targets.shape[1] if self.listed else 0
        self.n_chunks = triton.cdiv(self.n_labels, chunk)
        self.stride = triton.cdiv(self.n_labels, self.n_chunks)
        if self.n_chunks > 1:
            self.stride = 16 * triton.cdiv(self.stride, 16)
        # Newton's identities lose at most a factor exp(max_labels * bound) of precision.
        self.bound = min(0.5, 4 / self.max_labels)
        self.n_heavy = min(math.floor((self.max_labels + 0.5) * (1 + self.bound) / self.bound) + 1, self.stride)
        cells = self.n_rows * self.n_chunks
        n_scratch = HEADER.value + (1 + self.partial) * cells * (2 + self.max_labels + 2 * self.n_heavy)
        self.scratch_size = 4 * triton.cdiv(n_scratch, 4)  # ends at an alignment
        self.target_lanes = triton.next_power_of_2(max(self.n_indices, self.max_labels))
        self.n_likely = min(2 * self.max_labels + 1, self.stride)
        self._lay_out(cells)

    def _lay_out(self, cells):
        """The parts of what is saved, one after the other in a tensor of bytes."""
        n_parts = 1 + self.partial
        n_numbers = self.n_rows * (1 + self.max_labels)
        n_pmf = 0 if self.dense or self.listed else n_numbers
        n_targets = cells * (self.n_likely if self.partial else self.max_labels) if self.dense else 0
        self.part_sizes = (
            n_pmf, n_parts * n_numbers, n_parts * cells * self.n_likely, self.n_rows + (1 + n_parts) * cells,
            cells * self.n_likely + n_targets,
        )  # fmt: skip
        self.part_types = (self.computed_in, self.computed_in, self.dtype, torch.int16, torch.int16)
        bytes_of = [size * dtype.itemsize for size, dtype in zip(self.part_sizes, self.part_types, strict=True)]
        *self.offsets, self.n_saved = accumulate((-(-n // ALIGNMENT) * ALIGNMENT for n in bytes_of), initial=0)

    def moments_tile(self):
        """Rows, labels and warps of a program: whole chunks, 32 labels in a thread."""
        labels = triton.next_power_of_2(self.stride)
        rows = max(1, 1024 // labels)
        return rows, labels, _warps(rows * labels, 256 if self.computed_in == torch.float64 else 1024)

    def gradient_tile(self):
        labels = min(triton.next_power_of_2(self.stride), 2048)
        rows = max(1, 1024 // labels)
        return rows, labels, _warps(rows * labels, 2048 // self.itemsize)

    def moments_options(self, min_labels):
        """Number of programs, numbers and options of the compiler."""
        rows, labels, warps = self.moments_tile()
        numbers = (
            self.n_rows, self.n_labels, self.n_chunks, self.stride, min_labels, math.log(self.bound), self.max_labels,
            self.n_heavy, self.n_likely, rows, labels, self.dense, self.partial,
            self.n_labels == self.n_chunks * labels,
        )  # fmt: skip
        return triton.cdiv(self.n_rows, rows) * self.n_chunks, numbers, {"num_warps": warps}

    def finish_options(self, min_labels, reduction):
        sizes, chunks = triton.next_power_of_2(self.max_labels + 1), triton.next_power_of_2(self.n_chunks)
        rows = max(1, 128 // (sizes * chunks))
        numbers = (
            self.n_rows, self.n_labels, self.n_chunks, self.stride, self.n_indices, min_labels,
            self._n_averaged(reduction), self.max_labels, self.n_heavy, self.n_likely, self.target_lanes, rows, sizes,
            chunks, self.dense, self.partial, self.listed, reduction != "none",
        )  # fmt: skip
        options = {"num_warps": 4}
        # With more registers than 64 a thread, not all programs of 16,384 rows run at once. In this one case that costs
        # less than the registers that are then kept in memory, in place of scores in the cache.
        if not self.partial or self.max_labels > 8 or self.n_chunks > 1:
            options["maxnreg"] = 64
        return triton.cdiv(self.n_rows, rows), numbers, options

    def gradient_options(self, reduction):
        """With a reduction, one entry of the incoming gradient serves all rows."""
        rows, labels, warps = self.gradient_tile()
        n_blocks = triton.cdiv(self.stride, labels)
        numbers = (
            self.n_rows, self.n_labels, self.n_chunks, self.stride, n_blocks, self.n_indices,
            1 if reduction == "none" else 0, self._n_averaged(reduction), self.max_labels, self.n_likely,
            triton.next_power_of_2(self.n_likely), self.target_lanes, rows, labels, self.dense, self.partial,
            self.listed,
        )  # fmt: skip
        return triton.cdiv(self.n_rows, rows) * self.n_chunks * n_blocks, numbers, {"num_warps": warps}

    def _n_averaged(self, reduction):
        return self.n_rows if reduction == "mean" else 1

    def empty(self, scores, reduction):
        """Tensors for what is saved, for scratch, and for the loss; reduced, sums of rows follow the scratch."""
        new, is_reduced = scores.new_empty, reduction != "none"
        saved = new(self.n_saved, dtype=torch.uint8)
        scratch = new(self.scratch_size + is_reduced * self.n_rows, dtype=self.computed_in)
        return saved, scratch, new(() if is_reduced else self.n_rows, dtype=self.computed_in)

    def losses(self, scratch, loss, reduction):
        """Scratch, losses of rows (reduced: sums of them), and what they become."""
        return scratch, loss if reduction == "none" else scratch[self.scratch_size :], loss

    def places_of_losses(self, scratch, loss, reduction):
        """The same for addresses."""
        return scratch, loss if reduction == "none" else scratch + self.scratch_size * self.computed_in.itemsize, loss

    def places(self, start):
        """Where pmf, numbers, values, counts and labels begin in bytes that begin at `start`."""
        return [start + offset for offset in self.offsets]

    def parts(self, saved):
        """Tensors of pmf, numbers, values, counts and labels in the bytes saved."""
        kinds = zip(self.offsets, self.part_sizes, self.part_types, strict=True)
        return [saved[start : start + size * dtype.itemsize].view(dtype) for start, size, dtype in kinds]


def _warps(elements, per_warp):
    return max(1, min(16, elements // per_warp))
