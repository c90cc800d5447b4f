"""Compiled coordinate descent on the penalised quadratic model of one label; coefficients are changed in place.

The model of a move d of a label's coefficients, and of an offset to its scores, with weights v of the rows x,

    gradient'd + 1/2 sum_i v_i (d'x_i + offset)^2 + alpha/2 |d|^2 + l1 |coef + d|_1

is minimised in one coordinate after the other. The offset has no L1 penalty and is kept at its optimum throughout.
Columns of x lie one after the other: `data[starts[j]:starts[j + 1]]` are the entries of column j, in the rows
`indices[starts[j]:starts[j + 1]]` or, where indices is empty, in all rows.
"""

import numpy as np
from numba import njit
from scipy import sparse

from mlrh._parallel import kernel


def columns_of(X):
    """The columns of X, dense or sparse, in the form that `descend` takes: data, indices, starts."""
    if sparse.issparse(X):
        stored = sparse.csc_array(X)
        return stored.data, stored.indices, stored.indptr.astype(np.int64)
    starts = np.arange(X.shape[1] + 1, dtype=np.int64) * X.shape[0]
    return np.ascontiguousarray(X.T).ravel(), np.empty(0, np.int32), starts


@kernel
def descend(columns, members, weights, coef, gradient, intercept, penalties, limits):
    """The offset, and the decrease of the model; coef (n_features,) is moved within members.

    Parameters
    ----------
    columns : (data, indices, starts)
    members : indices of the coordinates that may move
    weights : array (n_samples,), v
    gradient : array (n_features,), of all but the L1 penalty at the start
    intercept : (gradient of the offset, its ridge)
        An infinite ridge keeps the offset at 0: no intercept.
    penalties : (l1, alpha)
    limits : (max_sweeps, share)
        Ends after max_sweeps sweeps, or after one over all members that adds less than this share to all gains.
    """
    data, indices, starts = columns
    n_members, residual = len(members), np.zeros(len(weights))
    means, squares, slopes = np.empty(n_members), np.empty(n_members), np.empty(n_members)
    for m in range(n_members):
        first, last = starts[members[m]], starts[members[m] + 1]
        means[m], squares[m] = _moments(data, indices, first, last, weights)
        # Without the ridge's part, which moves with the coefficient and is added where it is used.
        slopes[m] = gradient[members[m]] - penalties[1] * coef[members[m]]
    # With the offset at its optimum, a column acts as if centred: its curvature is squares - means^2 / mass.
    mass = weights.sum() + intercept[1]
    inverse = 1.0 / mass if mass > 0.0 else 0.0
    offset, total, is_full = -intercept[0] * inverse, 0.5 * intercept[0] ** 2 * inverse, True
    for _ in range(limits[0]):
        gained = 0.0
        for m in range(n_members):
            j = members[m]
            # Between full sweeps, coefficients at zero are passed over: most of them stay there.
            if not is_full and coef[j] == 0.0:
                continue
            # At least 1e-12 of the squares: a constant column leaves nothing but rounding errors.
            curvature = max(squares[m] - means[m] ** 2 * inverse, 1e-12 * squares[m]) + penalties[1]
            first, last = starts[j], starts[j + 1]
            slope = slopes[m] + _product(data, indices, first, last, residual) + means[m] * offset
            moved, gain = _minimised(coef[j], slope + penalties[1] * coef[j], curvature, penalties[0])
            if moved != coef[j]:
                _add(data, indices, first, last, weights, moved - coef[j], residual)
                offset -= (moved - coef[j]) * means[m] * inverse
                coef[j] = moved
                gained += gain
        total += gained
        if gained <= limits[1] * total:
            if is_full:
                break
            is_full = True
        else:
            is_full = False
    return offset, total


@kernel
def descend_by_sums(sums, coef, gradient, intercept, penalties, limits):
    """`descend` where the rows are known by sums over them: the offset and the decrease; coef (n_members,) is moved.

    sums (1 + n_members, 1 + n_members) is sum_i v_i z_i z_i' for z = (1, x), x being the members' columns only; so are
    coef and gradient, which has the ridge's part.
    """
    n_members, mass = len(coef), sums[0, 0] + intercept[1]
    inverse, moves = 1.0 / mass if mass > 0.0 else 0.0, np.zeros(n_members)
    start = coef.copy()
    offset, total, is_full = -intercept[0] * inverse, 0.5 * intercept[0] ** 2 * inverse, True
    for _ in range(limits[0]):
        gained = 0.0
        for j in range(n_members):
            if not is_full and coef[j] == 0.0:
                continue
            square, mean = sums[j + 1, j + 1], sums[0, j + 1]
            curvature = max(square - mean**2 * inverse, 1e-12 * square) + penalties[1]
            # The ridge pulls with the coefficient as it is now, not as it was at the start.
            slope = gradient[j] + moves[j] + mean * offset + penalties[1] * (coef[j] - start[j])
            moved, gain = _minimised(coef[j], slope, curvature, penalties[0])
            if moved != coef[j]:
                step = moved - coef[j]
                for i in range(n_members):
                    moves[i] += step * sums[j + 1, i + 1]
                offset -= step * mean * inverse
                coef[j] = moved
                gained += gain
        total += gained
        if gained <= limits[1] * total:
            if is_full:
                break
            is_full = True
        else:
            is_full = False
    return offset, total


@kernel
def _minimised(coef, slope, curvature, l1):
    """The minimum over one coordinate, and by how much the model falls there: soft thresholding."""
    if curvature == 0.0:
        # A column of zeros: the model is linear, and a coefficient can only gain by going to 0.
        return (0.0, l1 * abs(coef)) if abs(slope) < l1 else (coef, 0.0)
    target = curvature * coef - slope
    moved = np.sign(target) * max(abs(target) - l1, 0.0) / curvature
    step = moved - coef
    return moved, -(slope * step + 0.5 * curvature * step**2 + l1 * (abs(moved) - abs(coef)))


# Sums may be taken in any order, which lets the compiler add several terms at a time.
_any_order = njit(nogil=True, fastmath={"reassoc", "contract"})


@_any_order
def _product(data, indices, first, last, values):
    """Inner product of a column with values (n_samples,)."""
    column, total = data[first:last], 0.0
    if len(indices) == 0:
        for i in range(len(column)):
            total += column[i] * values[i]
        return total
    rows = indices[first:last]
    for i in range(len(column)):
        total += column[i] * values[rows[i]]
    return total


@_any_order
def _moments(data, indices, first, last, weights):
    """Weighted sums of a column and of its squares."""
    column, total, squares = data[first:last], 0.0, 0.0
    if len(indices) == 0:
        for i in range(len(column)):
            total += weights[i] * column[i]
            squares += weights[i] * column[i] * column[i]
        return total, squares
    rows = indices[first:last]
    for i in range(len(column)):
        total += weights[rows[i]] * column[i]
        squares += weights[rows[i]] * column[i] * column[i]
    return total, squares


@_any_order
def _add(data, indices, first, last, weights, step, residual):
    """Add step * weights * column to the residual."""
    column = data[first:last]
    if len(indices) == 0:
        for i in range(len(column)):
            residual[i] += step * weights[i] * column[i]
        return
    rows = indices[first:last]
    for i in range(len(column)):
        residual[rows[i]] += step * weights[rows[i]] * column[i]
