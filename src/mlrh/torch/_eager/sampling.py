"""Draws from the distribution of the label set: tensors in, tensors out, batched over rows and draws.

The size is drawn first; then, down the tree of products, how many of a node's labels lie in its first half.
"""

import torch

from mlrh.torch._eager import tree
from mlrh.torch._eager.dispatch import blocks, of_rows, parts
from mlrh.torch._eager.numbers import total, with_constant


def sample(scores, log_weights, n_draws, generator):
    """Sets (n_rows, n_draws, n_labels), int8."""
    n_rows, n_labels = scores.shape
    sets = torch.empty((n_rows, n_draws, n_labels), dtype=torch.int8, device=scores.device)
    for rows in blocks(n_rows, n_labels * n_draws):
        for some, weights, size_weights in parts(scores[rows], of_rows(log_weights, rows, n_rows)):
            levels = tree.grow(weights, len(size_weights) - 1)
            counts = _sizes(levels, size_weights, n_draws, generator)
            drawn = _down(levels, counts, generator)
            sets[rows][some] = drawn[:n_labels].permute(2, 1, 0).to(torch.int8)
    return sets


def _sizes(levels, size_weights, n_draws, generator):
    """Sizes of the sets, (1, n_draws, n_rows)."""
    masses = tree.size_sums(levels, size_weights)
    pmf = masses / total(masses)
    return _drawn(pmf[:, None, None].expand(-1, -1, n_draws, -1), generator)


def _down(levels, counts, generator):
    """How many labels each polynomial of the lowest level has, (n, n_draws, n_rows), from the counts of the root."""
    for below, above in zip(reversed(levels[:-1]), reversed(levels[1:]), strict=True):
        shares = _shares(*map(with_constant, (*tree.halves(below), above)))
        in_first = _drawn(torch.stack([share.gather(1, counts) for share in shares.transpose(1, 2)]), generator)
        counts = torch.cat((in_first, counts - in_first))
    return counts


def _shares(first, second, both):
    """P(i labels in the first half | j in both) for all i and j, (n_i, n_j, n_polynomials, n_rows)."""
    shares = []
    for i in range(len(first)):
        stop = min(len(both), i + len(second))
        share = (first[i][None] * second[: stop - i]) / both[i:stop]
        shares.append(torch.nn.functional.pad(share, (0, 0, 0, 0, i, len(both) - stop)))
    return torch.stack(shares)


def _drawn(probs, generator):
    """Indices along the first axis drawn with these probabilities, of the shape of the other axes."""
    levels = probs.cumsum(0)
    uniforms = torch.rand(probs.shape[1:], dtype=torch.float64, device=probs.device, generator=generator)
    index = (levels <= uniforms * levels[-1]).sum(0)
    # Rounding may end the draw behind the last index that is possible.
    positions = torch.arange(len(probs), device=probs.device).reshape(-1, *[1] * (probs.dim() - 1))
    return torch.minimum(index, torch.where(probs > 0, positions, 0).amax(0))
