"""The sums over all label sets in any arithmetic: plain tensors, `Scaled` numbers, or `Dual` ones for derivatives.

The same tree of products as in `tree`, written with + and * alone. A polynomial is the list of its coefficients 1, 2,
..., its constant coefficient being 1; a coefficient is a number of shape (n_polynomials, n_rows).
"""

from mlrh.torch.scaled import join


def levels(weights, max_degree):
    """The levels of the tree from the weights (n_labels, n_rows), n_labels a power of two, up to one polynomial."""
    result = [[weights]]
    while len(result[-1][0]) > 1:
        first, second = halves(result[-1])
        result.append(product(first, second, max_degree))
    return result


def size_sums(tree, size_weights):
    """Sums over the sets of each size, a list of numbers (n_rows,); size_weights is (n_sizes, n_rows)."""
    root = [coefficient[0] for coefficient in tree[-1]]
    known = [size_weights[0], *(size_weights[j + 1] * root[j] for j in range(len(root)))]
    return known[: len(size_weights)]


def label_sums(tree, size_weights):
    """Sums over the sets with each label, a number (n_labels, n_rows)."""
    gradient = [size_weights[j][None] for j in range(1, len(tree[-1]) + 1)]
    for level in reversed(tree[:-1]):
        first, second = halves(level)
        parts = zip(_adjoint(gradient, second), _adjoint(gradient, first), strict=True)
        gradient = [join(*part) for part in parts]
    return gradient[0] * tree[0][0]


def product(first, second, max_degree):
    """The products of polynomials of equal degree, up to max_degree."""
    degree = len(first)
    result = []
    for j in range(1, min(2 * degree, max_degree) + 1):
        terms = [first[i - 1] * second[j - i - 1] for i in range(max(1, j - degree), min(degree, j - 1) + 1)]
        own = [first[j - 1], second[j - 1]] if j <= degree else []
        result.append(total([*own, *terms]))
    return result


def halves(level):
    """The first half of the polynomials and the second."""
    half = len(level[0]) // 2
    return [c[:half] for c in level], [c[half:] for c in level]


def _adjoint(gradient, other):
    """Derivatives by the coefficients of one factor, as many as the other factor has."""
    degree, n_above = len(other), len(gradient)
    return [
        total([gradient[i], *(gradient[i + j] * other[j - 1] for j in range(1, min(degree, n_above - 1 - i) + 1))])
        for i in range(degree)
    ]


def total(numbers):
    """The sum of a list of numbers."""
    first, *rest = numbers
    for number in rest:
        first = first + number
    return first
