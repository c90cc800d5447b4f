"""Products of truncated polynomials over all labels of a block of rows, and their adjoint: tensors in, tensors out.

A label of weight w stands for the polynomial 1 + w x. The coefficients of the product are the sums over all sets of one
size of the product of their weights. Neighbouring polynomials are multiplied in log2(n_labels) levels, each of a few
operations on whole tensors; the constant coefficient is 1 throughout and isn't stored. Nothing is subtracted, so that
only the range of the numbers limits the precision.

A level is (degree, n_rows, n_polynomials) as long as there are many polynomials in a row, then (degree, n_polynomials,
n_rows): the last axis is the one that vector instructions run along.
"""

import torch

NARROW = 32  # with so few polynomials in a row, rows become the last axis


def grow(weights, max_degree):
    """The levels of the tree: `wide` and `narrow`, the last of which has one polynomial of max_degree per row.

    weights is (n_rows, n_labels), n_labels a number that `padded_width` returns.
    """
    wide = [weights[None]]
    while wide[-1].shape[2] > NARROW:
        wide.append(_level_above(wide[-1], 2, max_degree))
    narrow = [_turned(wide[-1])]
    while narrow[-1].shape[1] > 1:
        narrow.append(_level_above(narrow[-1], 1, max_degree))
    return wide, narrow


def descend(wide, narrow, gradient):
    """Derivatives (n_rows, n_labels) by the weights, where those at the root are gradient (max_degree, n_rows).

    For c = a b, the derivative by a_i is sum_j gradient_{i+j} b_j.
    """
    gradient = gradient[:, None, :]
    for level in reversed(narrow[:-1]):
        gradient = _narrow_level_below(level, gradient)
    gradient = gradient[:, : wide[-1].shape[2]].transpose(1, 2).contiguous()
    for level in reversed(wide[:-1]):
        gradient = _wide_level_below(level, gradient)
    return gradient[0]


def product(first, second):
    """The products of polynomials (degree, n_rows), cut off at their degree."""
    return _product(first, second, torch.empty_like(first))


def adjoint(gradient, other):
    """Derivatives (degree, n_rows) by the other factor of a product of polynomials with derivatives gradient."""
    return _adjoint(gradient, other, torch.empty_like(other))


def padded_width(n_labels):
    """The number of labels, filled up so that it can be halved until at most NARROW are left."""
    width = 1
    while -(-n_labels // width) > NARROW:
        width *= 2
    return -(-n_labels // width) * width


def _turned(level):
    """The level with rows last, filled up with polynomials 1 to a power of two."""
    degree, n_rows, n_polynomials = level.shape
    turned = level.new_zeros(degree, 1 << (n_polynomials - 1).bit_length(), n_rows)
    turned[:, :n_polynomials] = level.transpose(1, 2)
    return turned


def _level_above(level, axis, max_degree):
    degree, half = level.shape[0], level.shape[axis] // 2
    out_degree = min(max_degree, 2 * degree)
    shape = (out_degree, level.shape[1], half) if axis == 2 else (out_degree, half, level.shape[2])
    first, second = level.split(half, axis)
    return _product(first, second, level.new_empty(shape))


def _product(first, second, out):
    degree, out_degree = first.shape[0], out.shape[0]
    torch.add(first, second, out=out[:degree])
    factors = first.unbind()
    if out_degree > degree:
        torch.mul(factors[-1], second[: out_degree - degree], out=out[degree:])
    for i in range(1, degree):
        n_terms = min(degree, out_degree - i)
        out[i : i + n_terms].addcmul_(factors[i - 1], second[:n_terms])
    return out


def _narrow_level_below(level, gradient):
    """Both halves at once: the level is small, so that turning its halves round costs less than the calls it saves."""
    degree, n_polynomials, n_rows = level.shape
    pairs = level.view(degree, 2, n_polynomials // 2, n_rows)
    return _adjoint(gradient[:, None], pairs.flip(1), torch.empty_like(pairs)).view(level.shape)


def _wide_level_below(level, gradient):
    out = torch.empty_like(level)
    first, second = level.split(level.shape[2] // 2, 2)
    out_first, out_second = out.split(level.shape[2] // 2, 2)
    _adjoint(gradient, second, out_first)
    _adjoint(gradient, first, out_second)
    return out


def _adjoint(gradient, other, out):
    """Write gradient_i + sum_{j >= 1} gradient_{i+j} other_j into out_i."""
    degree, n_above = out.shape[0], gradient.shape[0] - 1
    n_terms = min(degree, n_above)
    if n_terms < degree:
        out[n_terms:] = gradient[n_terms:degree]
    if n_terms:
        factors = other.unbind()
        torch.addcmul(gradient[:n_terms], gradient[1 : n_terms + 1], factors[0], out=out[:n_terms])
        for j in range(2, n_terms + 1):
            n_terms = min(degree, n_above + 1 - j)
            out[:n_terms].addcmul_(gradient[j : j + n_terms], factors[j - 1])
    return out
