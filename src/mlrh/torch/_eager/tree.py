"""Products of truncated polynomials over all labels of a block of rows, and their adjoint, in any arithmetic.

A label of weight w stands for the polynomial 1 + w x. The coefficients of the product are the sums over all sets of one
size of the product of their weights. The first half of the polynomials is multiplied with the second half, in
log2(n_labels) levels, each of a few operations on whole tensors. Nothing is subtracted, so that only the range of the
numbers limits the precision.

A level is (degree, n_polynomials, n_rows); the constant coefficient is 1 throughout and isn't stored. Numbers are
tensors, or `Scaled` or `Dual` ones.
"""

import torch

from mlrh.torch._eager.numbers import add_to, addcmul_to, joined, multiply_to

# Numbers in a level up to which a copy of it takes less time than twice the calls.
SMALL = 2**14


def grow(weights, max_degree):
    """The levels from the weights (n_labels, n_rows) up to one polynomial of max_degree per row.

    Where their number is odd, a polynomial 1 is added.
    """
    levels = [_even(weights[None])]
    while levels[-1].shape[1] > 1:
        first, second = halves(levels[-1])
        levels.append(_even(product(first, second, max_degree)))
    return levels


def size_sums(levels, size_weights):
    """Sums over the sets of each size, (n_sizes, n_rows), as size_weights are; degree n_sizes - 1."""
    return joined(size_weights[:1], size_weights[1:] * levels[-1][:, 0])


def descend(levels, gradient):
    """Derivatives (n_labels, n_rows) by the weights, where those at the root are gradient (max_degree, n_rows)."""
    gradient = gradient[:, None]
    for level in reversed(levels[:-1]):
        gradient = gradient[:, : level.shape[1] // 2]
        if isinstance(level, torch.Tensor) and level.numel() <= SMALL:
            gradient = _both_adjoints(gradient, level)
            continue
        (first, second), out = halves(level), level.new_empty(level.shape)
        of_first, of_second = halves(out)
        _write_adjoint(gradient, second, of_first)
        _write_adjoint(gradient, first, of_second)
        gradient = out
    return gradient[0]


def product(first, second, max_degree):
    """The products of polynomials of equal degree, up to max_degree."""
    degree, out_degree = len(first), min(max_degree, 2 * len(first))
    out = first.new_empty((out_degree, *first.shape[1:]))
    add_to(out[:degree], first, second)
    *lower, highest = first
    if out_degree > degree:
        multiply_to(out[degree:], highest, second[: out_degree - degree])
    for i, factor in enumerate(lower, 1):
        n_terms = min(degree, out_degree - i)
        out[i : i + n_terms].addcmul_(factor, second[:n_terms])
    return out


def adjoint(gradient, other):
    """Derivatives by one factor of a product, gradient_i + sum_{j >= 1} gradient_{i+j} other_j, from the other one."""
    out = other.new_empty(other.shape)
    _write_adjoint(gradient, other, out)
    return out


def halves(level):
    """The first half of the polynomials and the second."""
    half = level.shape[1] // 2
    return level[:, :half], level[:, half:]


def _both_adjoints(gradient, level):
    """Derivatives by both halves of a small level at once: its halves are swapped in a copy."""
    degree, n_polynomials, n_rows = level.shape
    swapped = level.reshape(degree, 2, n_polynomials // 2, n_rows).flip(1)
    return adjoint(gradient[:, None], swapped).reshape(level.shape)


def _write_adjoint(gradient, other, out):
    degree, n_above = len(out), len(gradient) - 1
    n_terms = min(degree, n_above)
    if n_terms < degree:
        out[n_terms:].copy_(gradient[n_terms:degree])
    if n_terms:
        lowest, *higher = other
        addcmul_to(out[:n_terms], gradient[:n_terms], gradient[1 : n_terms + 1], lowest)
        for j, factor in enumerate(higher[: n_above - 1], 2):
            n_terms = min(degree, n_above + 1 - j)
            out[:n_terms].addcmul_(gradient[j : j + n_terms], factor)


def _even(level):
    degree, n_polynomials, n_rows = level.shape
    if n_polynomials == 1 or n_polynomials % 2 == 0:
        return level
    return joined(level, level.new_zeros((degree, 1, n_rows)), 1)
