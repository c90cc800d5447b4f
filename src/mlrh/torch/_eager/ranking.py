"""The most probable label sets, which need no partition: tensors in, tensors out, batched over rows.

`log_weights` is (n_sizes,), -inf for a size that is not admissible. Ties: the lower label first, the smaller set first.
"""

import math

import torch

from mlrh.torch._eager.dispatch import blocks


def by_score(scores):
    """Labels of each row by falling score, (n_rows, n_labels)."""
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
        return scores.topk(scores.shape[1], dim=1).indices  # no stable sort in ONNX, but ties there go to the lower
    return torch.sort(scores, dim=1, descending=True, stable=True).indices


def first_of(order, counts):
    """Sets of the first counts (n_rows,) labels of each row of order, int8."""
    sets = torch.zeros(order.shape, dtype=torch.int8, device=order.device)
    chosen = torch.arange(order.shape[1], device=order.device) < counts[:, None]
    return sets.scatter_(1, order, chosen.to(torch.int8))


def mode(scores, log_weights):
    """The most probable sets, (n_rows, n_labels), int8: the j highest scores for the best size j."""
    order = by_score(scores)
    return first_of(order, mode_sizes(_in_order(scores, order, len(log_weights) - 1), log_weights))


def mode_sizes(descending, log_weights):
    """Sizes of the most probable sets, (n_rows,), from the highest scores (n_rows, max_labels).

    A size is better than the best so far when the scores it adds and the change of bias sum to more than 0: no total is
    formed in which a small score could drown.
    """
    bias = log_weights.to(torch.float64)
    first = (bias > -torch.inf).to(torch.int8).argmax()  # as a number of Python it would have to be waited for
    best = first.expand(descending.shape[0])
    gain = torch.zeros_like(best, dtype=torch.float64)
    for j in range(1, len(bias)):
        gain = torch.where(j > first, gain + descending[:, j - 1], 0.0)
        is_better = gain + (bias[j] - bias[best]) > 0
        is_better &= j > first
        best, gain = torch.where(is_better, j, best), torch.where(is_better, 0.0, gain)
    return best


def top_sets(scores, log_weights, n):
    """The n most probable sets (n_rows, n, n_labels), int8, best first, and whether there are as many (n_rows, n).

    A set of j labels whose last rank is r is no better than the r + 1 - j sets that hold an unused earlier rank in its
    place, so that only the first max_labels + n - 1 ranks matter. Going through them, the n best sets of each size are
    kept: O(n_ranks) steps on tensors (n_rows, n_sizes, 2 n, n_ranks), rows in blocks.
    """
    wanted, n = n, _at_most_all(n, scores.shape[1], len(log_weights) - 1)
    n_ranks = min(scores.shape[1], len(log_weights) - 1 + n - 1)
    rows_at_once = blocks(len(scores), 2 * n * len(log_weights) * n_ranks) or [slice(0)]
    found = [_top_sets_of_block(scores[rows], log_weights, n, n_ranks) for rows in rows_at_once]
    sets, exist = (torch.cat(parts) for parts in zip(*found, strict=True))
    missing = wanted - n
    return torch.nn.functional.pad(sets, (0, 0, 0, missing)), torch.nn.functional.pad(exist, (0, missing))


def _at_most_all(n, n_labels, max_labels):
    """n, or the number of sets of up to max_labels labels if there are fewer."""
    n_sets = 0
    for size in range(max_labels + 1):
        n_sets += math.comb(n_labels, size)
        if n_sets >= n:
            return n
    return n_sets


def _top_sets_of_block(scores, log_weights, n, n_ranks):
    n_rows, n_labels = scores.shape
    order = by_score(scores)
    descending = _in_order(scores, order, n_ranks)
    lost, members = _best_of_each_size(descending, len(log_weights), n)
    lost = lost + _lost_by_size(descending, log_weights)[:, :, None]
    lost, index = torch.sort(lost.flatten(1), dim=1, stable=True)
    index = index[:, :n, None].expand(-1, -1, n_ranks)
    chosen = members.flatten(1, 2).gather(1, index)
    exist = lost[:, :n].isfinite()
    sets = torch.zeros((n_rows, n, n_labels), dtype=torch.int8, device=scores.device)
    sets.scatter_(2, order[:, None, :n_ranks].expand(-1, n, -1), (chosen & exist[:, :, None]).to(torch.int8))
    return sets, exist


def _best_of_each_size(descending, n_sizes, n):
    """What the n best sets of each size lack to the best one (n_rows, n_sizes, n), and their ranks as booleans.

    The best set of i labels is the first i ranks, so that taking rank r as the i-th label loses the difference of the
    scores of ranks i - 1 and r: no total is formed in which a small score could drown.
    """
    n_rows, n_ranks = descending.shape
    lost = descending.new_full((n_rows, n_sizes, n), torch.inf)
    lost[:, 0, 0] = 0.0
    members = torch.zeros((n_rows, n_sizes, n, n_ranks), dtype=torch.bool, device=descending.device)
    for r in range(n_ranks):
        last = min(r + 1, n_sizes - 1)
        steps = descending[:, :last] - descending[:, r : r + 1]
        taken, with_r = lost[:, :last] + steps[:, :, None], members[:, :last].clone()
        with_r[..., r] = True
        both, index = torch.sort(torch.cat((lost[:, 1 : last + 1], taken), 2), dim=2, stable=True)
        pool = torch.cat((members[:, 1 : last + 1], with_r), 2)
        lost[:, 1 : last + 1] = both[:, :, :n]
        members[:, 1 : last + 1] = pool.gather(2, index[:, :, :n, None].expand(-1, -1, -1, n_ranks))
    return lost, members


def _lost_by_size(descending, log_weights):
    """What the best set of each size lacks to the mode, (n_rows, n_sizes); inf for a size that isn't admissible."""
    bias = log_weights.to(torch.float64)
    best = mode_sizes(descending, log_weights)[:, None]
    sizes = torch.arange(len(bias), device=bias.device)
    ranks = torch.arange(len(bias) - 1, device=bias.device)
    dropped = (ranks >= sizes[:, None]) & (ranks < best[:, :, None])
    added = (ranks >= best[:, :, None]) & (ranks < sizes[:, None])
    signs = dropped.to(torch.float64) - added.to(torch.float64)
    moved = (signs * descending[:, None, : len(bias) - 1]).sum(2)
    return torch.where(bias > -torch.inf, moved + (bias[best] - bias), torch.inf)


def _in_order(scores, order, n_ranks):
    return scores.gather(1, order[:, :n_ranks]).to(torch.float64)
