"""Sums over all label sets of admissible size: which case is computed where.

`scores` is (n_rows, n_labels) of any floating type; `log_weights` is (n_sizes,) or (n_rows, n_sizes), the log-weight of
the sets of j = 0, ..., max_labels labels, -inf for a size that isn't admissible. Computed in float32 at least.

    case                                      where           why
    CUDA, sets of up to 32 labels, biases     `_triton`       two launches for a step, at 1.5 to 2.6 times the time that
      near a line in the size                                 reading and writing takes (docs/gpu.md)
    CPU, sets of up to 32 labels, numba       `compiled`      reads scores of few labels once, of many labels once for
      is installed                                            the loss and once for the gradient
    512 labels or more, sets of up to 8       `many_labels`   the same in torch operations, in some hundred of them
    other calls, and rows left over there     `tree`          as fast for fewer labels or larger sets; nothing is
                                                              subtracted, so that only the range limits it
    rows whose sums leave the range           `tree` again    in float64, then in `numbers.Scaled` without a limit of
                                                              range: slower by far, and rare
    second derivatives, draws, decisions      `tree`          in float64 or `Scaled`, derivatives by `numbers.Dual`

With 512 labels or more and sets of up to 8, less than a tenth of the scores is kept for the gradient, else the gradient
itself. In the tree a label weighs exp(score) times a power of two that is common to the row, which brings the sums into
the range of floating point and rounds nothing; a row whose weights themselves would leave that range has its largest
score taken off before.
"""

import math
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch

from mlrh.torch import _triton
from mlrh.torch._eager import compiled, many_labels, tree
from mlrh.torch._eager.numbers import Dual, Scaled, power_of_two, total

TARGET_ENTRIES = 2**18  # scores in a block: its temporaries stay in the cache, calls are few
LARGEST_TABLE = 2**14  # labels times sizes that compiled code adds one by one: sums of eight rows take 1 MB then
LN2 = math.log(2.0)
# Sums below the first number or above the second are done again. Derivatives by a coefficient are at most their
# quotient, and meet coefficients that are too small for floating point: together these must not be seen.
SMALLEST_SUM = 2.0**-20  # of the weights of a row; below, weights that matter may have lost bits to underflow
SAFE = {torch.float32: (1e-16, 1e18), torch.float64: (1e-140, 1e150)}


class Options(NamedTuple):
    """What a loss depends on beside tensors.

    min_labels : below it log_weights of shape (n_sizes,) are -inf
    are_indices : whether targets are labels (n_rows, n) filled up with -1, not 0 and 1 (n_rows, n_labels)
    biased : False promises that the log-weights of admissible sizes are equal
    partial : whether NaN in dense targets are labels that are not known; only where `by_kernels` is true
    keep : whether a gradient may be wanted
    """

    min_labels: int
    are_indices: bool
    biased: bool
    partial: bool
    keep: bool


def by_kernels(scores, log_weights, biased):
    """Whether the kernels surely serve; where they may, but the biases have to be looked at for that, they don't."""
    return not biased and _triton.serve(scores, log_weights)


def forward(scores, targets, log_weights, options):
    """Losses (n_rows,) and a list of what the gradient needs.

    The loss is -log P(targets), or the log-partition where targets is None. What is saved must be known from shapes
    alone: it is nothing where the choice of the kernels depends on the biases.
    """
    scores = scores.contiguous()
    if not _triton.serve(scores, log_weights):
        loss, saved = _recurrence(scores, targets, log_weights, options)
        return loss, list(saved)
    loss, saved, _ = _on_gpu(scores, targets, log_weights, options)
    return loss, [] if options.biased else [saved]


def empty_forward(scores, targets, log_weights, options):
    """Tensors of the shapes and types that `forward` returns."""
    loss = _empty(scores)
    if not _triton.serve(scores, log_weights):
        return loss, list(_empty_saved(scores, log_weights, keep=options.keep))
    if options.biased:
        return loss, []
    shape = _plans().Shape(scores, targets, log_weights, options.are_indices, options.partial)
    return loss, [scores.new_empty(shape.n_saved, dtype=torch.uint8)]


def backward(scores, targets, log_weights, saved, gradient, options):
    """Derivative in the scores of the losses times gradient (n_rows,): gradient (marginals - y)."""
    scores, gradient = scores.contiguous(), gradient.contiguous()
    saved, served = _saved_by(scores, targets, log_weights, saved, options)
    if served:
        return plan_of(scores, targets, log_weights, options).backward(scores, targets, saved, gradient)
    with full_precision(scores):
        return _recurrence_backward(scores, as_targets(targets, options), log_weights, saved, gradient)


def cardinality_pmf(scores, log_weights, saved, options):
    """P(|y| = j) for j = 0, ..., max_labels, (n_rows, n_sizes), from what `forward` saved without targets."""
    scores = scores.contiguous()
    saved, served = _saved_by(scores, None, log_weights, saved, options)
    return (_plans().cardinality_pmf(saved, scores, log_weights) if served else saved[-1]).clone()


def curvature(scores, log_weights, direction, size_direction):
    """Derivatives of marginals (n_rows, n_labels) and of P(|y| = j) as scores and log-weights move along directions.

    direction is (n_rows, n_labels), size_direction (n_rows, n_sizes). These are the covariances of the labels and of
    the sizes with direction'y + size_direction[|y|], by carrying a derivative through the tree and its adjoint.
    """
    n_rows, n_labels = scores.shape
    dtype = working_dtype(scores)
    d_marginals = scores.new_empty((n_rows, n_labels), dtype=dtype)
    d_pmf = scores.new_empty((n_rows, log_weights.shape[-1]), dtype=dtype)
    with full_precision(scores):
        for rows in blocks(n_rows, n_labels):
            for some, weights, size_weights in parts(scores[rows], of_rows(log_weights, rows, n_rows)):
                directions = _like(direction[rows][some], weights), _like(size_direction[rows][some], size_weights)
                of_labels, of_sizes = _covariances(weights, size_weights, *directions)
                d_marginals[rows][some] = of_labels[:, :n_labels].to(dtype)
                d_pmf[rows][some] = of_sizes[:, : d_pmf.shape[1]].to(dtype)
    return d_marginals, d_pmf


def given(scores, known, log_weights):
    """What dense targets leave open: which labels are free, which present, scores and log-weights for the free ones.

    The sets that agree with a row of known (n_rows, n_labels) are those of its free labels, NaN there, beside the
    present ones. Log-weights (n_rows, n_sizes) are for the number of free labels in a set; scores of others are -inf.
    """
    is_free, is_present = known.isnan(), known == 1
    n_sizes = len(log_weights)
    n_present = is_present.sum(1).clamp(max=n_sizes)
    shifted = torch.arange(n_sizes, device=log_weights.device) + n_present[:, None]
    sizes_of_free = torch.nn.functional.pad(log_weights, (0, n_sizes), value=-torch.inf)[shifted]
    return is_free, is_present, scores.masked_fill(~is_free, -torch.inf), sizes_of_free


class Expectations(NamedTuple):
    """Log-partition (n_rows,), P(|y| = j) (n_rows, n_sizes), both float64, and marginals (n_rows, n_labels) or None."""

    log_partition: torch.Tensor
    pmf: torch.Tensor
    marginals: torch.Tensor | None


def expectations(scores, log_weights, *, want_marginals=True):
    """Expectations of a block of float32 or float64 scores with log_weights (n_rows, n_sizes), n_sizes > 1."""
    log_weights = _two_sizes(log_weights)
    result, is_safe = _tilted(scores, log_weights, want_marginals)
    if not is_safe.all():
        rows = torch.nonzero(~is_safe)[:, 0]
        again = scores[rows].to(torch.float64)
        # float32 tries float64 first; only what leaves that too pays for numbers with an exponent of their own.
        redo = _unlimited if scores.dtype == torch.float64 else expectations
        part = redo(again, log_weights[rows], want_marginals=want_marginals)
        for whole, some in zip(result, part, strict=True):
            if whole is not None:
                whole[rows] = some.to(whole.dtype)
    return result


def parts(scores, log_weights):
    """Triples (rows, weights, size_weights): rows in the range of float64 with tensors, others with Scaled numbers.

    weights is (n, n_rows), n a power of two not below n_labels, filled up with 0; size_weights is (n_sizes, n_rows),
    of two sizes at least. Both are known up to factors that P(y) doesn't depend on.
    """
    _settle_kernels(torch.float64)
    scores, log_weights = scores.to(torch.float64), _two_sizes(log_weights).to(torch.float64)
    _, is_safe = _tilted(scores, log_weights, want_marginals=False)
    inside, outside = torch.nonzero(is_safe)[:, 0], torch.nonzero(~is_safe)[:, 0]
    weights, log_tilts, _ = _tilted_weights(scores[inside], log_weights[inside])
    yield inside, _filled(weights, 0.0).T, _size_weights(log_weights[inside], log_tilts)[0].T
    if len(outside):
        yield outside, Scaled.exp(_filled(scores[outside], -torch.inf).T), Scaled.exp(log_weights[outside].T)


def blocks(n_rows, n_labels):
    """Slices of rows."""
    step = max(1, TARGET_ENTRIES // max(1, n_labels))
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def working_dtype(scores):
    """What is computed in: float64 for float64, else float32."""
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def of_rows(log_weights, rows, n_rows):
    """Log-weights (n_rows, n_sizes) of some rows."""
    return log_weights.expand(n_rows, -1)[rows]


class Targets(NamedTuple):
    """One label set per row: `sets` (n_rows, n_labels) of 0 and 1, or label indices (n_rows, n) filled up with -1."""

    sets: torch.Tensor
    are_indices: bool

    def counts(self, rows):
        """Sizes of the sets of some rows, (n_rows,)."""
        if self.are_indices:
            return (self.sets[rows] >= 0).sum(1)
        # NaN, which makes the loss NaN, is not to become an index.
        return self.sets[rows].sum(1, dtype=torch.float32).nan_to_num(0.0).to(torch.int64)

    def scores_of(self, scores, rows):
        """Sums of the scores in the sets, (n_rows,)."""
        if self.are_indices:
            sets = self.sets[rows].to(torch.int64)
            return torch.where(sets >= 0, scores.gather(1, sets.clamp(min=0)), 0.0).sum(1)
        sets = self.sets[rows].to(scores.dtype)
        sums = torch.linalg.vecdot(scores, sets)
        odd = torch.nonzero(~sums.isfinite())[:, 0]
        if len(odd):  # a score of -inf that is not in the set: 0 * -inf is NaN, but must not count
            sums[odd] = torch.where(sets[odd] == 0, 0.0, scores[odd] * sets[odd]).sum(1)
        return sums


def as_targets(targets, options):
    """The `Targets`, None if there are none."""
    return None if targets is None else Targets(targets, options.are_indices)


def _on_gpu(scores, targets, log_weights, options):
    """Losses, what their gradient needs, and whether it was the kernels that made them."""
    if not options.biased or _plans().are_near_a_line(log_weights, options.min_labels):
        return *plan_of(scores, targets, log_weights, options).forward(scores, targets, log_weights), True
    return *_recurrence(scores, targets, log_weights, options._replace(keep=True)), False


def _saved_by(scores, targets, log_weights, saved, options):
    """What the gradient needs and whether it is for the kernels; computed again where `forward` could not save it."""
    if not _triton.serve(scores, log_weights):
        return saved, False
    return _on_gpu(scores, targets, log_weights, options)[1:] if options.biased else (saved[0], True)


def plan_of(scores, targets, log_weights, options):
    sizes = log_weights, options.min_labels
    return _plans().plan(scores, targets, *sizes, options.are_indices, options.partial)


def warm_up(scores, targets, log_weights, options, reduction, device):
    """Compile the kernels of a training step for tensors like these on a device, if kernels serve them there."""
    if device.type == "cpu" and compiled.fit(log_weights):
        few = _are_few(scores.shape[1], log_weights.shape[-1] - 1)
        compiled.warm_up(working_dtype(scores), targets.dtype, few=few)
    if device.type == "cuda" and _triton.HAS_TRITON and _triton.fit(scores, log_weights):
        plan_of(scores, targets, log_weights, options).compile(device, reduction, is_ahead=True)


@cache
def _plans():
    from mlrh.torch._triton import plan  # needs Triton

    return plan


def full_precision(scores):
    """Autocast off: it would round the products of float32 tensors. Where it is off already, that costs nothing."""
    device = scores.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _recurrence(scores, targets, log_weights, options):
    """Losses (n_rows,), and a tuple for `_recurrence_backward` that ends with P(|y| = j), (n_rows, n_sizes)."""
    targets = as_targets(targets, options)
    with full_precision(scores):
        if compiled.serve(scores, log_weights):
            return _by_compiled(scores, targets, log_weights, options.keep)
        _settle_kernels(working_dtype(scores))
        if many_labels.serve(scores.shape[1], log_weights.shape[-1] - 1):
            return _by_many_labels(scores, targets, log_weights)
        return _by_tree(scores, targets, log_weights, options.keep)


def _by_compiled(scores, targets, log_weights, keep):
    n_labels, max_labels = scores.shape[1], log_weights.shape[-1] - 1
    values, keeps_little = scores.to(working_dtype(scores)), many_labels.serve(n_labels, max_labels)
    if _are_few(n_labels, max_labels):
        loss, pmf, marked, residuals, n_left = compiled.expectations(values, targets, log_weights, keep=keep)
        if n_left:
            _fill_losses(loss, pmf, values, targets, log_weights, marked)
        if n_left and keep:
            ones = torch.ones_like(loss)[:, None]
            _fill_not_served(residuals, values, targets, log_weights, marked, ones)
        return loss, (residuals, pmf)
    n_heavy = _n_heavy(n_labels, max_labels)
    loss, pmf, summary, n_left = compiled.summarise(values, targets, log_weights, n_heavy)
    if n_left:
        _fill_losses(loss, pmf, values, targets, log_weights, summary.numbers)
    if keeps_little:
        return loss, (*summary, pmf)
    ones = torch.ones_like(loss)
    return loss, (
        _by_summary(values, targets, log_weights, summary, ones) if keep else values.new_empty((0, n_labels)),
        pmf,
    )


def _by_summary(scores, targets, log_weights, summary, gradient):
    """gradient (n_rows,) times marginals - y, by compiled code and, for the rows left to it, by the tree."""
    values = scores.to(working_dtype(scores))
    result, n_left = compiled.differentiate(values, targets, summary, gradient)
    if n_left:
        _fill_not_served(result, values, targets, log_weights, summary.numbers, gradient[:, None])
    return result.to(scores.dtype)


def _are_few(n_labels, max_labels):
    """Whether `compiled` adds all labels one by one. (With many labels less is to be kept for the gradient.)"""
    return not many_labels.serve(n_labels, max_labels) and n_labels * (max_labels + 1) <= LARGEST_TABLE


def _n_heavy(n_labels, max_labels):
    """How many heavy labels `compiled` may find in a row."""
    return 2 * many_labels.n_heavy(max_labels) if many_labels.serve(n_labels, max_labels) else 16 * max_labels


def _by_tree(scores, targets, log_weights, keep):
    n_rows, n_labels = scores.shape
    loss, (gradient, pmf) = _empty(scores), _empty_saved(scores, log_weights, keep=keep)
    for rows in blocks(n_rows, n_labels):
        block, block_weights = scores[rows].to(loss.dtype), of_rows(log_weights, rows, n_rows)
        result = expectations(block, block_weights, want_marginals=keep)
        pmf[rows] = result.pmf[:, : pmf.shape[1]].to(pmf.dtype)
        loss[rows] = _loss(result.log_partition, block, targets, rows, block_weights).to(loss.dtype)
        if keep:
            _subtract(result.marginals, targets, rows, gradient[rows])
    return loss, (gradient, pmf)


def _by_many_labels(scores, targets, log_weights):
    n_rows, n_labels = scores.shape
    loss = _empty(scores)
    sums, heavy, index = many_labels.summaries(scores, log_weights.shape[-1] - 1, loss.dtype)
    every = of_rows(log_weights, slice(None), n_rows).to(torch.float64)
    log_partition, pmf, coefficients, heavy_marginals = many_labels.solve(sums, heavy, every)
    for rows in _not_served(coefficients, n_labels):
        again = expectations(scores[rows].to(loss.dtype), every[rows], want_marginals=False)
        log_partition[rows], pmf[rows] = again.log_partition, again.pmf
    for rows in many_labels.blocks(n_rows, n_labels):
        of_block = _loss(log_partition[rows], scores[rows].to(loss.dtype), targets, rows, every[rows])
        loss[rows] = of_block.to(loss.dtype)
    saved = (coefficients, heavy_marginals, index[:, :-1], pmf.to(loss.dtype))
    return loss, tuple(tensor.contiguous() for tensor in saved)


def _recurrence_backward(scores, targets, log_weights, saved, gradient):
    """Derivative in the scores (n_rows, n_labels) of the losses times gradient (n_rows,)."""
    if not many_labels.serve(scores.shape[1], log_weights.shape[-1] - 1):
        return (saved[0] * gradient[:, None]).to(scores.dtype)
    if compiled.serve(scores, log_weights):
        return _by_summary(scores, targets, log_weights, compiled.Summary(*saved[:-1]), gradient)
    coefficients, heavy_marginals, index, _ = saved
    gradient = gradient[:, None]

    def finish(values, rows, out):
        _subtract(values, targets, rows, out, scale=gradient[rows])

    result = many_labels.gradient(scores, coefficients * gradient, heavy_marginals * gradient, index, finish)
    _fill_not_served(result, scores.to(coefficients.dtype), targets, log_weights, coefficients, gradient)
    return result


def _fill_losses(loss, pmf, scores, targets, log_weights, marked):
    """Write the losses and probabilities of sizes of rows that are marked by NaN, by the tree.

    In float64: a loss is a difference, of numbers that can be far larger than it.
    """
    for rows in _not_served(marked, scores.shape[1]):
        own, wide = of_rows(log_weights, rows, len(scores)), scores[rows].to(torch.float64)
        again = expectations(wide, own, want_marginals=False)
        pmf[rows] = again.pmf.to(pmf.dtype)
        loss[rows] = _loss(again.log_partition, wide, targets, rows, own).to(loss.dtype)


def _fill_not_served(result, scores, targets, log_weights, marked, gradient):
    """Write the rows of the result that are marked by NaN, by the tree; gradient is (n_rows, 1)."""
    for rows in _not_served(marked, scores.shape[1]):
        marginals = expectations(scores[rows], of_rows(log_weights, rows, len(scores))).marginals.contiguous()
        out = torch.empty_like(marginals)
        _subtract(marginals.mul_(gradient[rows]), targets, rows, out, scale=gradient[rows])
        result[rows] = out.to(result.dtype)


def _empty_saved(scores, log_weights, *, keep):
    """Tensors of the shapes and types that `_recurrence` saves.

    With many labels: the coefficients of the polynomial that gives the marginal of a label (compiled code has a shift
    before them), NaN in rows that it doesn't serve, the marginals of the heavy labels and their indices. Else the
    gradient itself, in the type of the computation: in float16, small ones would be lost before the scale of the loss
    is applied.
    """
    dtype, (n_rows, n_labels), max_labels = working_dtype(scores), scores.shape, log_weights.shape[-1] - 1
    pmf = scores.new_empty((n_rows, max_labels + 1), dtype=dtype)
    if not many_labels.serve(n_labels, max_labels):
        return scores.new_empty((n_rows if keep else 0, n_labels), dtype=dtype), pmf
    if compiled.serve(scores, log_weights):
        return *compiled.empty_summary(scores, max_labels, _n_heavy(n_labels, max_labels), dtype), pmf
    n_heavy = many_labels.n_heavy(max_labels)
    coefficients, heavy = (scores.new_empty((n_rows, n), dtype=dtype) for n in (max_labels, n_heavy))
    return coefficients, heavy, scores.new_empty((n_rows, n_heavy), dtype=torch.int64), pmf


def _subtract(marginals, targets, rows, out, *, scale=None):
    """Write marginals - y, y times scale (n_rows, 1) if given; the marginals may be overwritten."""
    if targets is None:
        out.copy_(marginals)
    elif targets.are_indices:
        sets = targets.sets[rows].to(torch.int64)
        taken = -(sets >= 0).to(marginals.dtype)
        out.copy_(marginals.scatter_add_(1, sets.clamp(min=0), taken if scale is None else taken * scale))
    elif scale is None:
        out.copy_(marginals.sub_(targets.sets[rows].to(marginals.dtype)))
    else:
        sets = targets.sets[rows].to(marginals.dtype)
        # Into the result at once where its type allows it, which spares a pass.
        whole = out if out.dtype == marginals.dtype else marginals
        torch.addcmul(marginals, sets, scale.to(marginals.dtype), value=-1, out=whole)
        if whole is not out:
            out.copy_(whole)


@cache
def _settle_kernels(dtype):
    """Call exp and log once, on one number.

    MKL chooses a function's kernel at its first call; where threads race to it, one of them may be given a kernel of
    low precision for that call (https://github.com/pytorch/pytorch/issues/188792). One number has one thread.
    """
    for kind in {dtype, torch.float64}:
        torch.log(torch.exp(torch.zeros(1, dtype=kind)))


def _not_served(marked, n_labels):
    """Indices, in blocks, of the rows with NaN in the first column of marked."""
    rows = torch.nonzero(marked[:, 0].isnan())[:, 0]
    return rows.split(max(1, TARGET_ENTRIES // n_labels)) if len(rows) else ()


def _empty(scores):
    return scores.new_empty(scores.shape[0], dtype=working_dtype(scores))


def _loss(log_partition, scores, targets, rows, log_weights):
    if targets is None:
        return log_partition
    counts = targets.counts(rows)
    n_sizes = log_weights.shape[1]
    of_size = log_weights.gather(1, counts.clamp(max=n_sizes - 1)[:, None])[:, 0].to(torch.float64)
    of_size = torch.where(counts < n_sizes, of_size, -torch.inf)
    log_weight = targets.scores_of(scores, rows).to(torch.float64) + of_size
    # Where no set is possible at all, the difference of two infinities would be NaN.
    is_impossible = (log_weight == -torch.inf) & (log_partition == -torch.inf)
    return (log_partition - log_weight).clamp(min=0.0).masked_fill(is_impossible, torch.inf)


def _tilted(scores, log_weights, want_marginals):
    """Expectations in the arithmetic of the scores, and whether the sums of a row stayed in its range."""
    log_weights = log_weights.to(torch.float64)
    weights, log_tilts, is_nan = _tilted_weights(scores, log_weights)
    weights = weights.T.contiguous()  # labels first: halves of a level lie together
    levels = tree.grow(weights, log_weights.shape[1] - 1)
    sums = levels[-1][:, 0].T.to(torch.float64)
    size_weights, log_scale = _size_weights(log_weights, log_tilts)
    masses = size_weights * torch.nn.functional.pad(sums, (1, 0), value=1.0)
    partition = masses.sum(1)
    low, high = SAFE[scores.dtype]
    is_safe = (partition >= low) & (sums.amax(1) <= high) | is_nan
    marginals = None
    if want_marginals:
        # Divided before it goes down the tree, so that what comes out are probabilities, in the range of float32.
        gradient = (size_weights[:, 1:] / partition[:, None]).T.contiguous().to(scores.dtype)
        marginals = tree.descend(levels, gradient)[: len(weights)].mul_(weights).clamp_(max=1.0).T
    return Expectations(partition.log() + log_scale, masses / partition[:, None], marginals), is_safe


def _tilted_weights(scores, log_weights):
    """exp(scores + log_tilt) (n_rows, n_labels), log_tilts (n_rows,), and whether a score is NaN.

    Tilts are powers of two, after a shift where the weights would leave the range of floating point. They are 1 where
    the sum of weights is not below the smallest admissible size and max_labels factors of it fit into the range of the
    sums: this is how scores are that were fitted.
    """
    weights = torch.exp(scores)
    sums = weights.sum(1, dtype=torch.float64)
    log_tilts = -_shift(scores, weights, sums)
    tilts = _tilts(sums, log_weights, SAFE[scores.dtype][1])
    if tilts.any():
        weights *= power_of_two(tilts).to(weights.dtype)[:, None]
    return weights, log_tilts + LN2 * tilts.to(torch.float64), sums.isnan()


def _shift(scores, weights, sums):
    """Shifts (n_rows,) of the scores, float64: the largest of a row where weights out of range matter, else 0.

    The weights and sums of such rows are overwritten. A score that is near the largest loses no bit by it.
    """
    shifts = torch.zeros_like(sums)
    rows = torch.nonzero((sums < SMALLEST_SUM) | (sums == torch.inf))[:, 0]
    if len(rows):
        largest = scores[rows].amax(1, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
        weights[rows] = torch.exp(scores[rows] - largest)
        sums[rows] = weights[rows].sum(1, dtype=torch.float64)
        shifts[rows] = largest[:, 0].to(torch.float64)
    return shifts


def _tilts(sums, log_weights, largest):
    """Exponents (n_rows,), int64; (sum of weights)**max_labels / max_labels! bounds the sums over sets."""
    max_labels = log_weights.shape[1] - 1
    smallest_size = (log_weights > -torch.inf).to(torch.int8).argmax(1)
    highest = math.exp((math.log(largest) + math.lgamma(max_labels + 1)) / max_labels)
    wanted = torch.maximum(sums, smallest_size).clamp(max=highest)
    tilts = torch.log2(wanted / sums).floor().nan_to_num(0.0, 0.0, 0.0)
    return tilts.clamp(-120, 120).to(torch.int64)  # 2**120 is in the range of float32


def _size_weights(log_weights, log_tilts):
    """Weights exp(log_weights[j] - log_tilt j) over the largest of them, and the logarithm of the largest."""
    sizes = torch.arange(log_weights.shape[1], device=log_tilts.device)
    log_tilts = log_tilts[:, None]
    # Relative to the heaviest size, so that the largest weight is 1; differences of log-weights are taken first, since
    # a large bias would swallow the tilt.
    log_scale, heaviest = (log_weights - log_tilts * sizes).max(1, keepdim=True)
    difference = log_weights - log_weights.gather(1, heaviest).nan_to_num(neginf=0.0)
    return torch.exp(difference - log_tilts * (sizes - heaviest)), log_scale[:, 0]


def _unlimited(scores, log_weights, *, want_marginals):
    """Expectations of float64 rows in numbers without a limit of range."""
    weights, size_weights = Scaled.exp(scores.T), Scaled.exp(log_weights.T.to(torch.float64))
    levels = tree.grow(weights, len(size_weights) - 1)
    masses = tree.size_sums(levels, size_weights)
    partition, marginals = total(masses), None
    if want_marginals:
        sums = tree.descend(levels, size_weights[1:])[: len(weights)] * weights
        marginals = (sums / partition).T.clamp(max=1.0)
    # A score of inf has no meaning: like NaN, it makes the log-partition NaN.
    log_partition = partition.log().masked_fill((scores == torch.inf).any(1), torch.nan)
    return Expectations(log_partition, (masses / partition).T, marginals)


def _covariances(weights, size_weights, direction, size_direction):
    """By labels (n_rows, n) and by sizes (n_rows, n_sizes)."""
    weights, size_weights = Dual(weights, weights * direction), Dual(size_weights, size_weights * size_direction)
    levels = tree.grow(weights, len(size_weights) - 1)
    masses = tree.size_sums(levels, size_weights)
    sums = tree.descend(levels, size_weights[1:])[: len(weights)] * weights
    partition = total(masses)
    mean = partition.change / partition.value

    def centred(numbers):
        return (numbers.change / partition.value - numbers.value / partition.value * mean).T

    return centred(sums), centred(masses)


def _like(direction, numbers):
    """A direction as numbers of the same kind and shape: transposed, and filled up with 0."""
    direction = direction.to(torch.float64)
    direction = torch.nn.functional.pad(direction, (0, len(numbers) - direction.shape[1])).T
    return direction if isinstance(numbers, torch.Tensor) else Scaled.of(direction)


def _two_sizes(log_weights):
    """With max_labels = 0, a size 1 that isn't admissible: the tree has a coefficient for it."""
    missing = max(0, 2 - log_weights.shape[1])
    return torch.nn.functional.pad(log_weights, (0, missing), value=-torch.inf) if missing else log_weights


def _filled(values, value):
    """Columns filled up with a value to a power of two."""
    n_columns = values.shape[1]
    return torch.nn.functional.pad(values, (0, (1 << (n_columns - 1).bit_length()) - n_columns), value=value)
