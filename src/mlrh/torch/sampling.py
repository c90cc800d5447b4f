"""Draws from the distribution of the label set: tensors in, tensors out, batched over rows and draws.

The size is drawn first; then, down the tree of products, how many of a node's labels lie in its first half.
"""

import torch

from mlrh.torch import general
from mlrh.torch.recurrence import blocks, of_rows, parts
from mlrh.torch.scaled import over


def sample(scores, log_weights, n_draws, generator):
    """Sets (n_rows, n_draws, n_labels), int8."""
    n_rows, n_labels = scores.shape
    sets = torch.empty((n_rows, n_draws, n_labels), dtype=torch.int8, device=scores.device)
    for rows in blocks(n_rows, n_labels * n_draws):
        for some, weights, size_weights in parts(scores[rows], of_rows(log_weights, rows, n_rows)):
            levels = general.levels(weights, len(size_weights) - 1)
            counts = _sizes(levels, size_weights, n_draws, generator)
            drawn = _down(levels, counts, generator)
            sets[rows][some] = drawn[:n_labels].permute(2, 1, 0).to(torch.int8)
    return sets


def _sizes(levels, size_weights, n_draws, generator):
    """Sizes of the sets, (1, n_draws, n_rows)."""
    masses = general.size_sums(levels, size_weights)
    partition = general.total(masses)
    pmf = torch.stack([over(mass, partition) for mass in masses])
    return _drawn(pmf[:, None, None].expand(-1, -1, n_draws, -1), generator)


def _down(levels, counts, generator):
    """How many labels each polynomial of the lowest level has, (n, n_draws, n_rows), from the counts of the root."""
    for below, above in zip(reversed(levels[:-1]), reversed(levels[1:]), strict=True):
        first, second = general.halves(below)
        no_share = torch.zeros_like(counts[:, 0], dtype=torch.float64)
        shares = [_shares(first, second, above, i, no_share) for i in range(len(first) + 1)]
        in_first = _drawn(torch.stack([share.gather(1, counts) for share in shares]), generator)
        counts = torch.cat((in_first, counts - in_first))
    return counts


def _shares(first, second, product, i, no_share):
    """P(i labels in the first half | j in both), (n_polynomials, n_sizes, n_rows) for all j."""
    shares = [no_share] * i
    for j in range(i, len(product) + 1):
        if j - i > len(second):
            shares.append(no_share)
        elif j == 0:
            shares.append(no_share + 1.0)
        else:
            factors = [polynomial[k - 1] for polynomial, k in ((first, i), (second, j - i)) if k > 0]
            joint = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            shares.append(over(joint, product[j - 1]))
    return torch.stack(shares, 1)


def _drawn(probs, generator):
    """Indices along the first axis drawn with these probabilities, of the shape of the other axes."""
    levels = probs.cumsum(0)
    uniforms = torch.rand(probs.shape[1:], dtype=torch.float64, device=probs.device, generator=generator)
    index = (levels <= uniforms * levels[-1]).sum(0)
    # Rounding may end the draw behind the last index that is possible.
    positions = torch.arange(len(probs), device=probs.device).reshape(-1, *[1] * (probs.dim() - 1))
    return torch.minimum(index, torch.where(probs > 0, positions, 0).amax(0))
