"""Loss and gradient from sums of powers of the weights: for many labels and small sets, with little to keep.

With the few heaviest labels of a row set aside, the sums over all sets of the others follow from p_i = sum_k w_k^i by
Newton's identities, j e_j = p_1 e_{j-1} - p_2 e_{j-2} + ..., and the marginal of a label is a polynomial in its weight.
So scores are read once for the loss and once for the gradient, in a dozen operations on blocks that stay in the cache.
What is left has some ten numbers for each row: it is done by few products with small constant matrices (`_Tables`),
since in a batch of some hundred rows every call of torch takes as long as its arithmetic.

The signs alternate: a row whose sums cancel too much, or would leave the range of floating point, is marked, and left
to the tree of products (`dispatch`).
"""

import math
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import torch

LEAST_LABELS = 512  # with fewer, the tree of products over all labels is as fast
LARGEST_SET = 8  # with larger ones the tree is about as fast: 11.8 and 11.2 ms for 256 rows of 1024 labels and 12
BLOCK_ENTRIES = 2**18  # scores in a block, which stay in the cache between the operations on them
N_SPLITS = 8  # columns of so many labels are compared by their maxima: up to twice as fast as topk over all labels
# Of precision: the sum of the terms' magnitudes over the sum. 16 takes 4 of the 24 bits of float32, 1e3 10 of 53.
LARGEST_LOSS = {torch.float32: 16.0, torch.float64: 1e3}
# A coefficient is the derivative of the log-partition by a sum of powers (but for a factor), which is wrong by the
# smallest number at least.
LARGEST_COEFFICIENT = {torch.float32: 1e24, torch.float64: 1e280}
LOG_OF_ZERO = -1e5  # exp of it is 0, and unlike -inf it can be multiplied by 0


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
    every = blocks(*scores.shape) or [slice(0, 0)]  # no rows have empty summaries
    parts = [_summaries_of(scores[rows], max_labels, dtype) for rows in every]
    return parts[0] if len(parts) == 1 else tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _summaries_of(block, max_labels, dtype):
    n_powers = (max_labels + 1) // 2  # higher powers are products of two of these
    powers = block.new_empty((block.shape[0], n_powers, _width(block.shape[1])), dtype=dtype)
    weights = powers[:, 0]
    _fill_weights(block, weights)
    heavy, index = _heaviest(weights, n_heavy(max_labels) + 1)
    # Without the heavy labels the power sums are small, and Newton's identities cancel little.
    weights.scatter_(1, index[:, :-1], 0.0)
    for i in range(1, n_powers):
        torch.mul(powers[:, i - 1], weights, out=powers[:, i])
    return _sums_of_powers(powers, max_labels), heavy, index


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

    The heavy labels are two halves. The sets within each are listed; their sums by size are polynomials, as those of
    the other labels are, and the three are multiplied.
    """
    n_rows, max_labels = sums.shape
    tables = _tables(max_labels, heavy.shape[1] - 1, sums.device)
    heavy = heavy.to(torch.float64)
    log_scale = log_weights.amax(1)
    size_weights = torch.exp(log_weights - log_scale[:, None].nan_to_num(neginf=0.0))
    # Sums of others by size, (n_rows, max_labels + 1), and of their terms' magnitudes.
    of_others = _newton(sums.to(torch.float64), tables)
    others = of_others[:, 0]
    of_sets = torch.exp(_finite_log(heavy[:, :-1]).view(n_rows, 2, heavy.shape[1] // 2) @ tables.members)
    halves = of_sets @ tables.by_size
    of_heavy = _pairs(halves[:, 0], halves[:, 1]) @ tables.sizes
    by_others = (_shifted(size_weights) * of_heavy[:, None]).sum(2)
    total, at_worst = (of_others * by_others[:, None]).sum(2).unbind(1)
    inverse = 1.0 / total[:, None]
    by_heavy = (_shifted(size_weights) * others[:, None]).sum(2) * inverse
    by_halves = (_shifted(by_heavy)[:, None] * halves.flip(1)[:, :, None]).sum(3)
    heavy_marginals = (of_sets * (by_halves @ tables.by_size.T)) @ tables.members.T
    coefficients = _pairs(by_others * inverse, others) @ tables.remainders
    pmf = size_weights * (_pairs(of_heavy, others) @ tables.sizes) * inverse
    # The sums of a row cancel as far as their terms are larger than they are; the marginal of the heaviest light label
    # does, where the second term of its polynomial is half as large as the first.
    is_lossy = at_worst > LARGEST_LOSS[sums.dtype] * total
    if max_labels > 1:
        is_lossy |= -2.0 * heavy[:, -1] * coefficients[:, 1] > coefficients[:, 0]
    is_in_range = (coefficients.abs() <= LARGEST_COEFFICIENT[sums.dtype]).all(1)
    is_good = ~is_lossy & total.isfinite() & is_in_range
    coefficients = torch.where(is_good[:, None], coefficients.to(sums.dtype), torch.nan)
    return total.log() + log_scale, pmf, coefficients, heavy_marginals.flatten(1).to(sums.dtype)


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
    if n_labels < weights.shape[1]:
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


class _Tables(NamedTuple):
    """Constant matrices, float64, for one max_labels; sizes are 0, ..., max_labels.

    members : (n_heavy / 2, n_sets), 1 where a set has a label; sets of up to max_labels of one half of the heavy labels
    by_size : (n_sets, n_sizes), 1 where a set has that many labels
    exponents : (max_labels - 1, n_monomials) of the ratios r_2, r_3, ... in `_newton`
    factors : (n_monomials, 2 n_sizes) of the monomials in sums over sets, and their magnitudes
    sizes : (n_sizes^2, n_sizes), 1 where the sizes of two sets add up to that of both
    remainders : (n_sizes^2, max_labels), signs where the first size is the second and 1, ..., max_labels more
    """

    members: torch.Tensor
    by_size: torch.Tensor
    exponents: torch.Tensor
    factors: torch.Tensor
    sizes: torch.Tensor
    remainders: torch.Tensor


@lru_cache(maxsize=64)
def _tables(max_labels, n_heavy, device):
    half, n_sizes = n_heavy // 2, max_labels + 1
    sets = [chosen for size in range(min(half, max_labels) + 1) for chosen in combinations(range(half), size)]
    members = [[float(label in chosen) for chosen in sets] for label in range(half)]
    by_size = [[float(len(chosen) == size) for size in range(n_sizes)] for chosen in sets]
    monomials = list(_partitions(max_labels, max_labels))
    factors = [[_factor(parts, size) for size in range(n_sizes)] for parts in monomials]
    factors = [own + [abs(factor) for factor in own] for own in factors]
    exponents = [[float(parts.count(i)) for parts in monomials] for i in range(2, n_sizes)]
    pairs = [(first, second) for first in range(n_sizes) for second in range(n_sizes)]
    sizes = [[float(first + second == size) for size in range(n_sizes)] for first, second in pairs]
    # Without label k, e_j becomes e_j - w e_{j-1} + w^2 e_{j-2} - ...
    signs = [[float(first - second == i) * (-1.0) ** (i - 1) for i in range(1, n_sizes)] for first, second in pairs]
    with torch.inference_mode(False):
        tables = [members, by_size, exponents, factors, sizes, signs]
        made = [torch.tensor(table, dtype=torch.float64, device=device) for table in tables]
        made[2] = made[2].reshape(max_labels - 1, len(monomials))  # also where there are no ratios
        return _Tables(*made)


def _partitions(total, largest):
    """Yields all lists of numbers from 2 to largest, in falling order, that add up to at most total."""
    yield ()
    for first in range(2, min(total, largest) + 1):
        for others in _partitions(total - first, first):
            yield (first, *others)


def _factor(parts, size):
    """The factor of p_1^(size - sum of parts) times p_i for each part i in the sum over sets of that size.

    It is the product over all i of (-1)^((i - 1) m) / (i^m m!), where i stands m times in the monomial.
    """
    n_ones = size - sum(parts)
    if n_ones < 0:
        return 0.0
    factor = 1.0 / math.factorial(n_ones)
    for i in set(parts):
        n_times = parts.count(i)
        factor *= (-1.0) ** ((i - 1) * n_times) / (i**n_times * math.factorial(n_times))
    return factor


def _newton(powers, tables):
    """Sums over the sets of each size, and of their terms' magnitudes, (n_rows, 2, max_labels + 1).

    Newton's identities, solved: e_j is a sum of products of power sums. These are p_1^j times monomials in the ratios
    r_i = p_i / p_1^i, from 0 to 1, whose logarithms make products of them a product of matrices. A monomial that is far
    below 1 has an error of many units in its last place, but next to the first one, 1, it doesn't matter.
    """
    n_rows, max_labels = powers.shape
    of_sum = powers[:, :1] ** torch.arange(max_labels + 1, dtype=powers.dtype, device=powers.device)
    ratios = powers[:, 1:] / of_sum[:, 2:].clamp(min=torch.finfo(powers.dtype).tiny)
    monomials = torch.exp(_finite_log(ratios) @ tables.exponents)
    return (monomials @ tables.factors).view(n_rows, 2, max_labels + 1) * of_sum[:, None]


def _finite_log(values):
    """Logarithms, that of 0 as a number."""
    return values.log().clamp_(min=LOG_OF_ZERO)


def _shifted(values):
    """values (n_rows, n_sizes) as (n_rows, n_sizes, n_sizes): entry (i, j) is values[i + j], 0 behind the last."""
    n_sizes = values.shape[1]
    return torch.nn.functional.pad(values, (0, n_sizes - 1)).unfold(1, n_sizes, 1)


def _pairs(first, second):
    """The products of all entries of two rows, (n_rows, n_sizes^2)."""
    return (first[:, :, None] * second[:, None, :]).flatten(1)
