"""Loss and gradient from sums of powers of the weights: for many labels and small sets, with little to keep.

With the few heaviest labels of a row set aside, the sums over all sets of the others follow from p_i = sum_k w_k^i by
Newton's identities, j e_j = p_1 e_{j-1} - p_2 e_{j-2} + ..., and the marginal of a label is a polynomial in its weight.
So scores are read once for the loss and once for the gradient, in a dozen operations on blocks that stay in the cache.

The signs alternate: a row whose sums cancel too much, or would leave the range of floating point, is marked, and left
to the tree of products (`dispatch`).
"""

import torch

from mlrh.torch._eager import tree

LEAST_LABELS = 512  # with fewer, the tree of products over all labels is as fast
LARGEST_SET = 8  # with larger ones the tree is about as fast: 11.8 and 11.2 ms for 256 rows of 1024 labels and 12
BLOCK_ENTRIES = 2**18  # scores in a block, which stay in the cache between the operations on them
N_SPLITS = 8  # columns of so many labels are compared by their maxima: up to twice as fast as topk over all labels
# Of precision: the sum of the terms' magnitudes over the sum. 16 takes 4 of the 24 bits of float32, 1e3 10 of 53.
LARGEST_LOSS = {torch.float32: 16.0, torch.float64: 1e3}
# A coefficient is the derivative of the log-partition by a sum of powers (but for a factor), which is wrong by the
# smallest number at least.
LARGEST_COEFFICIENT = {torch.float32: 1e24, torch.float64: 1e280}


def serve(n_labels, max_labels):
    """Whether rows of so many labels and sets of so many go through here."""
    return n_labels >= LEAST_LABELS and 1 <= max_labels <= LARGEST_SET


def n_heavy(max_labels):
    """Number of labels of a row that are set aside."""
    return max(8, 2 * max_labels)


def summaries(scores, max_labels, dtype):
    """Sums of powers (n_rows, max_labels), and weights and indices (n_rows, n_heavy + 1) of the heaviest labels.

    The last of the heaviest is counted among the others: it bounds them.
    """
    n_rows, n_labels = scores.shape
    shape = (n_rows, n_heavy(max_labels) + 1)
    sums = scores.new_empty((n_rows, max_labels), dtype=dtype)
    heavy, index = scores.new_empty(shape, dtype=dtype), scores.new_empty(shape, dtype=torch.int64)
    n_powers = (max_labels + 1) // 2  # higher powers are products of two of these
    for rows in blocks(n_rows, n_labels):
        block = scores[rows]
        powers = block.new_empty((block.shape[0], n_powers, _width(n_labels)), dtype=dtype)
        weights = powers[:, 0]
        _fill_weights(block, weights)
        heavy[rows], index[rows] = _heaviest(weights, shape[1])
        # Without the heavy labels the power sums are small, and Newton's identities cancel little.
        weights.scatter_(1, index[rows, :-1], 0.0)
        for i in range(1, n_powers):
            torch.mul(powers[:, i - 1], weights, out=powers[:, i])
        sums[rows] = _sums_of_powers(powers, max_labels)
    return sums, heavy, index


def gradient(scores, coefficients, heavy_marginals, index, subtract):
    """marginals - y (n_rows, n_labels) times what the coefficients are times; subtract(block, rows) takes y away."""
    n_rows, n_labels = scores.shape
    result = torch.empty_like(scores)
    dtype = coefficients.dtype
    by_power = coefficients.unbind(1)
    for rows in blocks(n_rows, n_labels):
        block = scores[rows]
        weights = block.new_empty((block.shape[0], _width(n_labels)), dtype=dtype)
        _fill_weights(block, weights)
        values = _polynomial([c[rows, None] for c in by_power], weights)
        values.scatter_(1, index[rows], heavy_marginals[rows])
        subtract(values[:, :n_labels], rows, result[rows])
    return result


def solve(sums, heavy, log_weights):
    """Log-partition (n_rows,), P(|y| = j), coefficients (n_rows, max_labels), marginals of the heavy labels.

    Rows are all done at once, in float64. A row of which too much precision would be lost has NaN for coefficients.
    log_weights is (n_rows, max_labels + 1).
    """
    max_labels = sums.shape[1]
    top, bound = heavy[:, :-1].to(torch.float64), heavy[:, -1].to(torch.float64)
    log_scale = log_weights.amax(1)
    size_weights = torch.exp(log_weights - log_scale[:, None].nan_to_num(neginf=0.0)).T
    others = _newton(sums.T.to(torch.float64))
    levels = tree.grow(top.T.contiguous(), max_labels)
    of_heavy = levels[-1]
    products = tree.product(of_heavy.expand_as(others), others, max_labels)
    total, at_worst = (size_weights[1:, None] * products).sum(0) + size_weights[0]
    by_size = size_weights[1:] / total
    both = torch.cat((of_heavy, others[:, :1]), 1)
    by_others, by_heavy = tree.adjoint(by_size[:, None], both).unbind(1)
    coefficients = _coefficients(by_others, others[:, 0])
    heavy_marginals = tree.descend(levels, by_heavy).T * top
    # The sums of a row cancel as far as their terms are larger than they are; the marginal of the heaviest light label
    # does, where the second term of its polynomial is half as large as the first.
    is_lossy = at_worst > LARGEST_LOSS[sums.dtype] * total
    if max_labels > 1:
        is_lossy |= -2.0 * bound * coefficients[1] > coefficients[0]
    rounded = coefficients.T.to(sums.dtype)
    is_in_range = (coefficients.abs() <= LARGEST_COEFFICIENT[sums.dtype]).all(0)
    is_good = ~is_lossy & total.isfinite() & is_in_range
    masses = torch.cat((size_weights[:1], size_weights[1:] * products[:, 0]))
    coefficients = torch.where(is_good[:, None], rounded, torch.nan)
    return total.log() + log_scale, (masses / total).T, coefficients, heavy_marginals.to(sums.dtype)


def blocks(n_rows, n_labels):
    """Slices of rows."""
    step = max(1, BLOCK_ENTRIES // n_labels)
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _width(n_labels):
    """The number of labels, filled up to a multiple of N_SPLITS."""
    return N_SPLITS * -(-n_labels // N_SPLITS)


def _fill_weights(scores, weights):
    """Write exp(scores), and 0 behind the last label."""
    n_labels = scores.shape[1]
    torch.exp(scores.to(weights.dtype), out=weights[:, :n_labels])
    weights[:, n_labels:] = 0.0


def _polynomial(coefficients, weights):
    """coefficients[0] w + coefficients[1] w^2 + ..., by Horner's rule."""
    *lower, highest = coefficients
    if not lower:
        return weights * highest
    values = torch.addcmul(lower.pop(), weights, highest)
    for coefficient in reversed(lower):
        torch.addcmul(coefficient, values, weights, out=values)
    return values.mul_(weights)


def _heaviest(weights, n):
    """Weights and indices (n_rows, n) of the n heaviest labels, heaviest first.

    They are among the n columns with the largest maximum, columns being labels that are a fixed distance apart.
    """
    n_rows, width = weights.shape
    n_columns = width // N_SPLITS
    grid = weights.view(n_rows, N_SPLITS, n_columns)
    columns = grid.amax(1).topk(n, sorted=False).indices
    candidates = grid.gather(2, columns[:, None].expand(-1, N_SPLITS, -1)).flatten(1)
    found, place = candidates.topk(n)
    return found, torch.div(place, n, rounding_mode="floor") * n_columns + columns.gather(1, place % n)


def _sums_of_powers(powers, max_labels):
    """Sums of the powers 1, ..., max_labels, as products of the powers (n_rows, n_powers, n) of half the degree."""
    products = torch.bmm(powers, powers.transpose(1, 2))
    sums = [powers[:, 0].sum(1)]
    for i in range(2, max_labels + 1):
        sums.append(products[:, i // 2 - 1, (i + 1) // 2 - 1])
    return torch.stack(sums, 1)


def _newton(powers):
    """Sums over the sets of 1, ..., max_labels labels, and of their terms' magnitudes, (max_labels, 2, n_rows).

    Both at once, the second with all signs positive; e_j is kept at place max_labels - j, so that a product of slices
    pairs p_i with e_{j-i}.
    """
    max_labels, n_rows = powers.shape
    signed = torch.stack((powers, powers), 1)
    signed[1::2, 0].neg_()
    sums = powers.new_ones((max_labels + 1, 2, n_rows))
    for j in range(1, max_labels + 1):
        torch.div((signed[:j] * sums[max_labels - j + 1 :]).sum(0), j, out=sums[max_labels - j])
    return sums[:-1].flip(0)


def _coefficients(by_others, others):
    """Coefficients (max_labels, n_rows) of the powers 1, 2, ... of a weight in its marginal.

    Without label k, e_j becomes e_j - w e_{j-1} + w^2 e_{j-2} - ...
    """
    signs = torch.ones(len(others), 1, dtype=others.dtype, device=others.device)
    signs[1::2] = -1.0
    return tree.adjoint(by_others, others) * signs
