"""Sums over all label sets of admissible size, for tensors on any device: rows in blocks, tensors out.

`scores` is (n_rows, n_labels) of any floating type; `log_weights` is (n_sizes,) or (n_rows, n_sizes), the log-weight of
the sets of j = 0, ..., max_labels labels, -inf for a size that isn't admissible. Computed in float32 at least.

A label weighs exp(score) times a power of two that is common to the row, which brings the sums into the range of
floating point and rounds nothing; a row whose weights themselves would leave that range has its largest score taken off
before. A row whose sums leave the range is done again in float64, and if that isn't enough, in numbers with an exponent
of their own (`scaled`).
"""

import math
from functools import cache
from typing import NamedTuple

import torch

from mlrh.torch import general, powers, tree
from mlrh.torch.scaled import Scaled, power_of_two

TARGET_ENTRIES = 2**18  # scores in a block: its temporaries stay in the cache, calls are few
LN2 = math.log(2.0)
# Sums below the first number or above the second are done again. Derivatives by a coefficient are at most their
# quotient, and meet coefficients that are too small for floating point: together these must not be seen.
SMALLEST_SUM = 2.0**-20  # of the weights of a row; below, weights that matter may have lost bits to underflow
SAFE = {torch.float32: (1e-16, 1e18), torch.float64: (1e-140, 1e150)}


class Expectations(NamedTuple):
    """Log-partition (n_rows,), P(|y| = j) (n_rows, n_sizes), both float64, and marginals (n_rows, n_labels) or None."""

    log_partition: torch.Tensor
    pmf: torch.Tensor
    marginals: torch.Tensor | None


def forward(scores, targets, log_weights, *, keep):
    """Losses (n_rows,), and a tuple for `backward` that ends with P(|y| = j), (n_rows, n_sizes).

    The loss is -log P(targets), or the log-partition where targets is None. Targets are a `Targets`. Without keep the
    tuple may not serve `backward`.
    """
    _settle_kernels(working_dtype(scores))
    if powers.serves(scores.shape[1], log_weights.shape[-1] - 1):
        return _forward_by_powers(scores, targets, log_weights)
    n_rows, n_labels = scores.shape
    loss, (gradient, pmf) = _empty(scores), empty_saved(scores, log_weights, keep=keep)
    for rows in blocks(n_rows, n_labels):
        block, block_weights = scores[rows].to(loss.dtype), of_rows(log_weights, rows, n_rows)
        result = expectations(block, block_weights, want_marginals=keep)
        pmf[rows] = result.pmf[:, : pmf.shape[1]].to(pmf.dtype)
        loss[rows] = _loss(result.log_partition, block, targets, rows, block_weights).to(loss.dtype)
        if keep:
            subtract(result.marginals, targets, rows, gradient[rows])
    return loss, (gradient, pmf)


def empty_saved(scores, log_weights, *, keep):
    """Tensors of the shapes and types that `forward` saves.

    By powers: the coefficients of the polynomial that gives the marginal of a label, NaN in rows that it doesn't serve,
    the marginals of the heavy labels and their indices; else the gradient itself, in the type of the computation: in
    float16, small ones would be lost before the scale of the loss is applied.
    """
    dtype, (n_rows, n_labels), max_labels = working_dtype(scores), scores.shape, log_weights.shape[-1] - 1
    pmf = scores.new_empty((n_rows, max_labels + 1), dtype=dtype)
    if not powers.serves(n_labels, max_labels):
        return scores.new_empty((n_rows if keep else 0, n_labels), dtype=dtype), pmf
    n_heavy = powers.n_heavy(max_labels)
    coefficients, heavy = (scores.new_empty((n_rows, n), dtype=dtype) for n in (max_labels, n_heavy))
    return coefficients, heavy, scores.new_empty((n_rows, n_heavy), dtype=torch.int64), pmf


def backward(scores, targets, log_weights, saved, gradient):
    """Derivative in the scores (n_rows, n_labels) of the losses times gradient (n_rows,)."""
    if not powers.serves(scores.shape[1], log_weights.shape[-1] - 1):
        return (saved[0] * gradient[:, None]).to(scores.dtype)
    coefficients, heavy_marginals, index, _ = saved
    gradient = gradient[:, None]

    def finish(values, rows, out):
        subtract(values, targets, rows, out, scale=gradient[rows])

    result = powers.gradient(scores, coefficients * gradient, heavy_marginals * gradient, index, finish)
    for rows in _not_served(coefficients, scores.shape[1]):
        block = scores[rows].to(coefficients.dtype)
        marginals = expectations(block, of_rows(log_weights, rows, len(scores))).marginals.contiguous()
        out = torch.empty_like(block)
        subtract(marginals.mul_(gradient[rows]), targets, rows, out, scale=gradient[rows])
        result[rows] = out.to(result.dtype)
    return result


def expectations(scores, log_weights, *, want_marginals=True):
    """Expectations of a block of float32 or float64 scores with log_weights (n_rows, n_sizes), n_sizes > 1."""
    log_weights = _two_sizes(log_weights)
    result, is_safe = _tilted(scores, log_weights, want_marginals)
    if not is_safe.all():
        rows = torch.nonzero(~is_safe)[:, 0]
        again = scores[rows].to(torch.float64)
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
    weights = weights[:, : scores.shape[1]]
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
        return torch.linalg.vecdot(scores, self.sets[rows].to(scores.dtype))


def subtract(marginals, targets, rows, out, *, scale=None):
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
        out.copy_(marginals.addcmul_(targets.sets[rows].to(marginals.dtype), scale.to(marginals.dtype), value=-1))


def _forward_by_powers(scores, targets, log_weights):
    n_rows, n_labels = scores.shape
    loss = _empty(scores)
    sums, heavy, index = powers.summaries(scores, log_weights.shape[-1] - 1, loss.dtype)
    every = of_rows(log_weights, slice(None), n_rows).to(torch.float64)
    log_partition, pmf, coefficients, heavy_marginals = powers.solve(sums, heavy, every)
    for rows in _not_served(coefficients, n_labels):
        again = expectations(scores[rows].to(loss.dtype), every[rows], want_marginals=False)
        log_partition[rows], pmf[rows] = again.log_partition, again.pmf
    for rows in powers.blocks(n_rows, n_labels):
        of_block = _loss(log_partition[rows], scores[rows].to(loss.dtype), targets, rows, every[rows])
        loss[rows] = of_block.to(loss.dtype)
    saved = (coefficients, heavy_marginals, index[:, :-1], pmf.to(loss.dtype))
    return loss, tuple(tensor.contiguous() for tensor in saved)


@cache
def _settle_kernels(dtype):
    """Call exp and log once, on one number.

    MKL chooses a function's kernel at its first call; where threads race to it, one of them may be given a kernel of
    low precision for that call (https://github.com/pytorch/pytorch/issues/188792). One number has one thread.
    """
    for kind in {dtype, torch.float64}:
        torch.log(torch.exp(torch.zeros(1, dtype=kind)))


def _not_served(coefficients, n_labels):
    """Indices, in blocks, of the rows that powers don't serve."""
    rows = torch.nonzero(coefficients[:, 0].isnan())[:, 0]
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
    loss = log_partition - targets.scores_of(scores, rows).to(torch.float64) - of_size
    return loss.clamp(min=0.0)


def of_rows(log_weights, rows, n_rows):
    """Log-weights (n_rows, n_sizes) of some rows."""
    return log_weights.expand(n_rows, -1)[rows]


def _tilted(scores, log_weights, want_marginals):
    """Expectations in the arithmetic of the scores, and whether the sums of a row stayed in its range."""
    log_weights = log_weights.to(torch.float64)
    weights, log_tilts, is_nan = _tilted_weights(scores, log_weights)
    wide, narrow = tree.grow(weights, log_weights.shape[1] - 1)
    sums = narrow[-1][:, 0].T.to(torch.float64)
    size_weights, log_scale = _size_weights(log_weights, log_tilts)
    masses = size_weights * torch.nn.functional.pad(sums, (1, 0), value=1.0)
    total = masses.sum(1)
    low, high = SAFE[scores.dtype]
    is_safe = (total >= low) & (sums.amax(1) <= high) | is_nan
    marginals = None
    if want_marginals:
        gradient = (size_weights[:, 1:] / total[:, None]).T.contiguous().to(scores.dtype)
        marginals = tree.descend(wide, narrow, gradient).mul_(weights).clamp_(max=1.0)[:, : scores.shape[1]]
    return Expectations(total.log() + log_scale, masses / total[:, None], marginals), is_safe


def _tilted_weights(scores, log_weights):
    """exp(scores + log_tilt), filled up with zeros to a width of the tree, log_tilts (n_rows,), whether a score is NaN.

    Tilts are powers of two, after a shift where the weights would leave the range of floating point. They are 1 where
    the sum of weights is not below the smallest admissible size and max_labels factors of it fit into the range of the
    sums: this is how scores are that were fitted.
    """
    n_rows, n_labels = scores.shape
    weights = scores.new_empty(n_rows, tree.padded_width(n_labels))
    torch.exp(scores, out=weights[:, :n_labels])
    weights[:, n_labels:] = 0.0
    sums = weights.sum(1, dtype=torch.float64)
    log_tilts = -_shift(scores, weights[:, :n_labels], sums)
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
    log_scale, heaviest = (log_weights - log_tilts * sizes).max(1, keepdim=True)
    difference = log_weights - log_weights.gather(1, heaviest).nan_to_num(neginf=0.0)
    return torch.exp(difference - log_tilts * (sizes - heaviest)), log_scale[:, 0]


def _unlimited(scores, log_weights, *, want_marginals):
    """Expectations of float64 rows in numbers without a limit of range."""
    size_weights = Scaled.exp(log_weights.T.to(torch.float64))
    levels = general.levels(Scaled.exp(_filled(scores, -torch.inf).T), len(size_weights) - 1)
    masses = general.size_sums(levels, size_weights)
    partition = general.total(masses)
    marginals = None
    if want_marginals:
        marginals = general.label_sums(levels, size_weights).over(partition).T[:, : scores.shape[1]].clamp(max=1.0)
    return Expectations(partition.log(), torch.stack([mass.over(partition) for mass in masses], 1), marginals)


def _two_sizes(log_weights):
    """With max_labels = 0, a size 1 that isn't admissible: the tree has a coefficient for it."""
    missing = max(0, 2 - log_weights.shape[1])
    return torch.nn.functional.pad(log_weights, (0, missing), value=-torch.inf) if missing else log_weights


def _filled(values, value):
    """Columns filled up with a value to a power of two."""
    n_columns = values.shape[1]
    return torch.nn.functional.pad(values, (0, (1 << (n_columns - 1).bit_length()) - n_columns), value=value)
