"""Loss and gradient of the cardinality space on the GPU: tensors in, tensors out; launches the Triton kernels.

A `Plan` holds the two launches for tensors of one kind, `Shape` how they are cut into programs and where numbers lie.
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
have ended in each group, totals (2, B) in float64 (scores of the target sets, log-partitions), tilts (B, C), sums (B,
C, M), heavy_counts (B, C), heavy_scores and heavy_labels (B, C, HEAVY), and likely_marginals (B, C, LIKELY).

Dense targets of floating point may be NaN, for labels that are not known. Then there are two of all but the counters
and the parts on targets: the second are of the sets that agree with the targets, by the scores of the free labels,
those not known; second likely_labels take the place of target_labels, which are LIKELY apart then.

Needs Triton: import it only where that is there.
"""

import math
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import accumulate

import torch
import triton

from mlrh.torch._telling import tell_of_compiling
from mlrh.torch._triton import COMPUTED_IN
from mlrh.torch._triton.forward import forward
from mlrh.torch._triton.gradient import gradient
from mlrh.torch._triton.launch import ALIGNMENT, Launch, addresses_of

REDUCTIONS = ("none", "sum", "mean")
WORD = 8  # bytes of a counter or a total
CHUNK = 4096  # labels in the registers of one program
PROGRAMS = 2048  # as many as keep the GPU busy; with more tiles a program reads several
LARGE_SETS = 16  # labels; of larger sets, finishing rows takes longer than reading them
LARGEST_BIAS = 4.0  # nats between size_bias and a line, above which one tilt no longer serves all sizes in float32
SM_REGISTERS = 65536  # of a multiprocessor, for all threads of a program
PATIENCE = 1.0  # seconds of compiling before a line says so
MOST_PLANS = 256  # so that batches of ever new shapes don't fill the memory of the host


def plan(scores, targets, log_weights, min_labels, indices=None, partial=True):
    """The `Plan` for tensors like these, kept from earlier calls; a kernel depends on all that the key holds.

    Parameters
    ----------
    scores : tensor of shape (B, K)
    targets : tensor of shape (B, K) of 0 and 1, or (B, P) of labels padded with -1, or None for log Z alone
    log_weights : tensor of shape (M + 1,), -inf for sizes below min_labels
    indices : whether targets are labels; by default integers of another shape than the scores' are
    partial : whether NaN in dense targets are labels that are not known, so that the sets that agree with the others
        count; otherwise NaN make the loss NaN
    """
    kind = None if targets is None else (targets.dtype, targets.shape)
    of_scores, of_sizes = (scores.shape, scores.dtype, scores.device), (log_weights.shape, log_weights.dtype)
    key = (*of_scores, kind, *of_sizes, min_labels, indices, partial)
    found = _PLANS.get(key)
    if found is None:
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        found = _PLANS[key] = Plan(Shape(scores, targets, log_weights, indices, partial), min_labels)
    return found


def are_near_a_line(log_weights, min_labels):
    """Whether the biases from min_labels on are near the line through the first and the last; waits for the GPU."""
    bias = log_weights[min_labels:].tolist()
    slope = (bias[-1] - bias[0]) / max(len(bias) - 1, 1)
    return max(abs(value - bias[0] - slope * j) for j, value in enumerate(bias)) <= LARGEST_BIAS


def cardinality_pmf(saved, scores, log_weights):
    """Probabilities of the sizes 0, ..., M, (B, M + 1), from what `Plan.forward` saved of scores without targets."""
    shape, dtype = (scores.shape[0], len(log_weights)), COMPUTED_IN[scores.dtype]
    return saved[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


class Plan:
    """The launches for tensors of one kind; with a reduction, the losses of all rows become one number."""

    def __init__(self, shape, min_labels):
        self.shape = shape
        self.loss = {kind: Launch(forward, *shape.forward_options(min_labels, kind)) for kind in REDUCTIONS}
        self.gradient = {kind: Launch(gradient, *shape.gradient_options(kind)) for kind in REDUCTIONS}
        self.compiled: set[str] = set()  # reductions

    def compile(self, device, reduction="none", *, is_ahead=False):
        """Compile both kernels and load them, at the same time, unless that is done; launches nothing.

        If that takes long, a line says so, unless somebody asked for it ahead.

        Most of the compiler runs outside of Python, so that two threads take no longer than the slower one.
        """
        if reduction in self.compiled:
            return
        kernels = {
            self.loss[reduction]: self.shape.forward_types(),
            self.gradient[reduction]: self.shape.gradient_types(),
        }
        with ThreadPoolExecutor(len(kernels)) as threads:
            jobs = [threads.submit(_compile_on, device, launch, types) for launch, types in kernels.items()]
            if not is_ahead and wait(jobs, timeout=PATIENCE).not_done:
                tell_of_compiling("GPU kernels")
            for job in jobs:
                job.result()
        self.compiled.add(reduction)

    def forward(self, scores, targets, log_weights, reduction="none"):
        """Losses (B,) or what they are reduced to, and a tensor of bytes that `backward` needs.

        A loss is log Z - sum_{k in y} s_k - log_weights[|y|], inf for a set of no admissible size.
        """
        if _is_elsewhere(scores):
            with torch.cuda.device_of(scores):  # where Triton launches
                return self.forward(scores, targets, log_weights, reduction)
        launch, shape = self.loss[reduction], self.shape
        scores, targets = scores.contiguous(), None if targets is None else targets.contiguous()
        saved, scratch, loss = shape.empty(scores, reduction)
        given = (scores, targets, log_weights)
        addresses, aligned = addresses_of(given)
        if aligned and launch.kept is not None:
            own = shape.places_of_losses(scratch.data_ptr(), loss.data_ptr(), reduction)
            pmf, numbers, values, counts, labels = shape.places(saved.data_ptr())
            launch.by_address((*addresses, *own, numbers, values, pmf, counts, labels))
        else:
            if scores.is_cuda:
                self.compile(scores.device, reduction)
            own = shape.losses(scratch, loss, reduction)
            pmf, numbers, values, counts, labels = shape.parts(saved)
            launch.ordinary((*given, *own, numbers, values, pmf, counts, labels), aligned)
        return loss, saved

    def backward(self, scores, targets, saved, grad, reduction="none"):
        """Gradient (B, K) of sum_i grad_i loss_i in the type of the scores: grad_i (marginals_ik - y_ik).

        With a reduction, grad has one entry.
        """
        if _is_elsewhere(scores):
            with torch.cuda.device_of(scores):
                return self.backward(scores, targets, saved, grad, reduction)
        launch, shape = self.gradient[reduction], self.shape
        scores, targets = scores.contiguous(), None if targets is None else targets.contiguous()
        result = torch.empty_like(scores)
        given = (scores, targets, grad.contiguous())
        addresses, aligned = addresses_of(given)
        if aligned and launch.kept is not None:
            _, *parts = shape.places(saved.data_ptr())
            launch.by_address((*addresses, *parts, result.data_ptr()))
        else:
            _, *parts = shape.parts(saved)
            launch.ordinary((*given, *parts, result), aligned)
        return result


_PLANS: dict[tuple, Plan] = {}


def _compile_on(device, launch, types):
    with torch.cuda.device(device):  # each thread has its own
        launch.compile(types)


def _is_elsewhere(scores):
    return scores.is_cuda and scores.device.index != torch.cuda.current_device()


class Shape:
    """Sizes of one call, and how it is cut into programs."""

    def __init__(self, scores, targets, log_weights, indices, partial):
        self.n_rows, self.n_labels = scores.shape
        self.max_labels = len(log_weights) - 1
        self.dtype, self.itemsize, self.computed_in = scores.dtype, scores.dtype.itemsize, COMPUTED_IN[scores.dtype]
        if indices is None:
            indices = targets is not None and targets.shape != scores.shape and not targets.is_floating_point()
        self.given_types = scores.dtype, None if targets is None else targets.dtype
        self.size_type = log_weights.dtype
        self.dense, self.listed = targets is not None and not indices, targets is not None and indices
        self.partial = self.dense and partial and targets.is_floating_point()
        self.n_indices = targets.shape[1] if self.listed else 0
        self.n_chunks = triton.cdiv(self.n_labels, CHUNK)
        self.stride = triton.cdiv(self.n_labels, self.n_chunks)
        if self.n_chunks > 1:
            self.stride = 16 * triton.cdiv(self.stride, 16)
        # Newton's identities lose at most a factor exp(max_labels * bound) of precision.
        self.bound = min(0.5, 4 / self.max_labels)
        self.n_heavy = min(math.floor((self.max_labels + 0.5) * (1 + self.bound) / self.bound) + 1, self.stride)
        self.n_likely = min(2 * self.max_labels + 1, self.stride)
        self.target_lanes = triton.next_power_of_2(max(self.n_indices, self.max_labels))
        self.group_rows = self.group_tile()[0]
        self.n_groups = triton.cdiv(self.n_rows, self.group_rows)
        cells = self.n_rows * self.n_chunks
        per_cell = 2 + self.max_labels + 2 * self.n_heavy + self.n_likely
        n_words = 1 + self.n_groups + (2 + self.partial) * self.n_rows  # counters and totals of rows
        self.start = n_words * WORD // self.computed_in.itemsize
        n_scratch = self.start + (1 + self.partial) * cells * per_cell
        self.scratch_size = 4 * triton.cdiv(n_scratch, 4)  # ends at an alignment
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

    def forward_tile(self):
        """Rows, labels and warps of a tile: whole chunks, up to 32 labels in a thread.

        What is computed for rows is written out for each row of a thread: more than 4 would take long to compile.
        """
        labels = triton.next_power_of_2(self.stride)
        rows = max(1, min(4, 1024 // labels))
        return rows, labels, _warps(rows * labels, 256 if self.computed_in == torch.float64 else 1024)

    def group_tile(self):
        """Rows of a group, rows finished at once, lanes of a chunk and of a row then, and tiles that one program reads.

        With enough rows a program reads several tiles, which saves it from asking more often whether it is the last;
        with few rows all programs are needed. Rows of large sets that are not in chunks are finished 16 at once, since
        the work of joining lanes grows with the square of max_labels: with 8 lanes a row, as there still are where a
        program has more than one warp, it took four to ten times as long as with 2.
        """
        tile_rows, _, warps = self.forward_tile()
        n_tiles = triton.cdiv(self.n_rows, tile_rows) * self.n_chunks
        chunks = triton.next_power_of_2(self.n_chunks)
        most = 8 if chunks == 1 and tile_rows == 1 else 4
        tiles = max(1, min(most, 1 << max(n_tiles // PROGRAMS, 1).bit_length() - 1))
        if chunks == 1:
            rows = tile_rows * (2 * tiles if tiles == 8 else tiles)
            if self.max_labels > LARGE_SETS:
                rows = max(rows, 16)
            at_once = min(rows, 16)
            lanes = max(2, min(32, 32 * warps // at_once))
        else:
            lanes = chunks * max(1, 4 // chunks)
            at_once = min(max(1, 32 * warps // lanes), triton.next_power_of_2(self.n_rows))
            rows = max(at_once, tile_rows * tiles)
        return rows, at_once, lanes // chunks, lanes, tiles

    def forward_options(self, min_labels, reduction):
        """Number of programs, numbers and options of the compiler."""
        tile_rows, labels, warps = self.forward_tile()
        group_rows, at_once, chunk_lanes, lanes, tiles = self.group_tile()
        arrivals = group_rows // tile_rows * self.n_chunks // tiles
        numbers = (
            self.n_rows, self.n_labels, self.n_chunks, self.stride, self.n_groups, self.start, *self.steps(),
            self.n_indices, min_labels, math.log(self.bound), self._n_averaged(reduction), self.max_labels,
            self.n_heavy, self.n_likely, tile_rows, labels, tiles, arrivals, group_rows, at_once, chunk_lanes, lanes,
            self.dense, self.partial, self.listed, self.n_labels == self.n_chunks * labels, reduction != "none",
        )  # fmt: skip
        # Loops have no products of matrices to prepare for; one stage spares the compiler the search.
        options = {"num_warps": warps, "maxnreg": self.registers(warps), "num_stages": 1}
        return self.n_groups * arrivals, numbers, options

    def forward_types(self):
        """Types of the tensors that `forward` takes."""
        pmf, numbers, values, counts, labels = self.part_types
        return (*self.given_types, self.size_type, *[self.computed_in] * 3, numbers, values, pmf, counts, labels)

    def gradient_types(self):
        """Types of the tensors that `gradient` takes."""
        return (*self.given_types, self.computed_in, *self.part_types[1:], self.dtype)

    def steps(self):
        """Tiles from one group to the next, and from one tile of a group to the next of the same chunk.

        Programs that run at once are to read what lies together, and rows in their order, so that the last ones are
        still in the cache when the backward pass starts with them.
        """
        return (1, self.n_groups) if self.n_chunks == 1 else (self.group_rows // self.forward_tile()[0], 1)

    def registers(self, warps):
        """Registers of a thread, as many as let most programs run at once without slowing the reading of tiles.

        What a program needs more to finish rows goes to memory, which for large sets would take longer still.
        """
        if self.max_labels > LARGE_SETS:
            return min(168, SM_REGISTERS // (32 * warps))
        if warps == 1 or self.itemsize == 8:
            return 128
        return 96 if self.n_chunks > 1 and self.max_labels > 8 else 64 + 8 * self.itemsize

    def gradient_tile(self):
        labels = min(triton.next_power_of_2(self.stride), 2048)
        rows = max(1, 1024 // labels)
        return rows, labels, _warps(rows * labels, 2048 // self.itemsize)

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
        return triton.cdiv(self.n_rows, rows) * self.n_chunks * n_blocks, numbers, {"num_warps": warps, "num_stages": 1}

    def _n_averaged(self, reduction):
        return self.n_rows if reduction == "mean" else 1

    def empty(self, scores, reduction):
        """Tensors for what is saved, for scratch, and for the loss; reduced, sums of rows follow the scratch."""
        new, is_reduced = scores.new_empty, reduction != "none"
        saved = new(self.n_saved, dtype=torch.uint8)
        scratch = new(self.scratch_size + is_reduced * self.n_groups, dtype=self.computed_in)
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
