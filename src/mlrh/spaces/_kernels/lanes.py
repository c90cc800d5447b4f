"""The three recurrences that a fit repeats, eight rows at a time: sizes, expectations, curvature.

The same sums and the same contract as in `plain`: kernels work on the rows marked in `todo`, each with its entry of
`tilts`, and clear the mark where the total is safe. The lanes of a vector are rows, so no sum runs across lanes, and a
row's result depends on its tilt but not on its neighbours. Entry (k, j) of a table is its row k * n_sizes + j.
"""

import math

import numpy as np

from mlrh._parallel import kernel, kernel_part
from mlrh._simd import LANES, empty_lanes, exp_minus_abs, lane, load, minimum, splat, store, where_positive
from mlrh.spaces._kernels.plain import SAFE_TOTAL, fill_weights

# Rows of `scales`, one entry per lane. log Z = LOG_SCALE + log(FACTOR * total). TILT is the tilt; WEIGHT_TILT the tilt
# for which the weights were filled, and HEAVIEST the logarithm of the heaviest weight then.
LOG_SCALE, FACTOR, TILT, WEIGHT_TILT, HEAVIEST = range(5)


@kernel
def sizes(scores, size_bias, todo, tilts, log_partition, pmf):
    """Write the log-partition (n_rows,) and the probabilities of the sizes (n_rows, max_labels + 1)."""
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights, scales = buffers(n_labels, n_sizes)
    mass, shares = empty_lanes(2 * n_sizes), empty_lanes(n_sizes)
    rows, group = marked(todo), np.empty(LANES, np.int64)
    for first in range(0, len(rows), LANES):
        begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales)
        total = fill_mass(on, off, weights, mass, n_sizes)
        # Two steps of the recurrence take turns in mass; this is where the last one begins.
        last = (n_labels % 2) * n_sizes
        for j in range(n_sizes):
            store(shares, j, load(weights, j) * load(mass, last + j) / total)
        finish(rows, first, total, scales, todo, log_partition)
        scatter(shares, group, todo, pmf)


@kernel
def expectations(scores, size_bias, todo, tilts, log_partition, marginals, pmf):
    """Write the log-partition, the marginals (n_rows, n_labels) and the probabilities of the sizes.

    marginals_k = on_k sum_j prefix_{k-1}[j-1] suffix_k[j], where suffix is the adjoint of the recurrence:
    suffix_{k-1}[j] = off_k suffix_k[j] + on_k suffix_k[j+1], starting from weights / total.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights, scales = buffers(n_labels, n_sizes)
    prefix, suffix = empty_lanes((n_labels + 1) * n_sizes), empty_lanes(n_sizes + 1)
    rows, group = marked(todo), np.empty(LANES, np.int64)
    for first in range(0, len(rows), LANES):
        begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales)
        total = fill_mass(on, off, weights, prefix, n_sizes)
        for j in range(n_sizes):
            store(suffix, j, load(weights, j) / total)
        store(suffix, n_sizes, splat(0.0))  # one label more than max_labels: weight 0
        finish(rows, first, total, scales, todo, log_partition)
        # P(|y| = j) = weights_j / total * f_j: what the adjoint starts with, times the last step of the recurrence.
        _scatter_products(suffix, prefix, n_labels * n_sizes, group, todo, pmf)
        fill_marginals(on, off, prefix, suffix, n_sizes)
        scatter(on, group, todo, marginals)


@kernel
def curvature(scores, size_bias, direction, bias_direction, todo, tilts, d_marginals, d_pmf):
    """Write the covariances of the labels and of the sizes with u(y) = direction'y + bias_direction[|y|].

    These are the derivatives of marginals and pmf along (direction, bias_direction). Both recurrences carry the first
    moment of u beside the mass: prefix_u_k[j] = off_k prefix_u[j] + on_k (prefix_u[j-1] + direction_k prefix[j-1]),
    where the tables on the right are those of label k - 1.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights, scales = buffers(n_labels, n_sizes)
    # One piece of memory for both: two pieces of megabytes are given back to the system after each call, and getting
    # them again, page by page, took longer than the recurrences.
    n_entries = (n_labels + 1) * n_sizes
    tables = empty_lanes(2 * n_entries)
    prefix, prefix_u = tables[:n_entries], tables[n_entries:]
    suffix, suffix_u = empty_lanes(n_sizes + 1), empty_lanes(n_sizes + 1)
    step, moments, unused = empty_lanes(n_labels), empty_lanes(n_sizes), np.empty(scores.shape[0])
    rows, group = marked(todo), np.empty(LANES, np.int64)
    for first in range(0, len(rows), LANES):
        begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales)
        gather(direction, group, step)
        total = fill_mass(on, off, weights, prefix, n_sizes)
        fill_moments(on, off, step, prefix, prefix_u, n_sizes)
        mean = splat(0.0)
        last = n_labels * n_sizes
        for j in range(n_sizes):
            share = load(weights, j) / total
            share_u = share * splat(bias_direction[j])
            store(suffix, j, share)
            store(suffix_u, j, share_u)
            moment = share * load(prefix_u, last + j) + share_u * load(prefix, last + j)
            store(moments, j, moment)
            mean = mean + moment
        # Cov(1[|y| = j], u) = E[1[|y| = j] u] - P(|y| = j) E[u].
        for j in range(n_sizes):
            store(moments, j, load(moments, j) - mean * load(suffix, j) * load(prefix, last + j))
        store(suffix, n_sizes, splat(0.0))
        store(suffix_u, n_sizes, splat(0.0))
        finish(rows, first, total, scales, todo, unused)
        scatter(moments, group, todo, d_pmf)
        fill_covariances(on, off, step, mean, prefix, prefix_u, suffix, suffix_u, n_sizes)
        scatter(on, group, todo, d_marginals)


@kernel_part
def buffers(n_labels, n_sizes):
    """on, off (n_labels, LANES), weights (n_sizes, LANES) and scales (5, LANES), not filled.

    NaN differs from every tilt, so that `begin` fills the weights of the first group.
    """
    scales = empty_lanes(5)
    scales[:] = np.nan
    return empty_lanes(n_labels), empty_lanes(n_labels), empty_lanes(n_sizes), scales


@kernel_part
def marked(todo):
    """Numbers of the rows marked in todo. np.flatnonzero takes half a second to compile."""
    rows, n = np.empty(len(todo), np.int64), 0
    for i in range(len(todo)):
        if todo[i]:
            rows[n] = i
            n += 1
    return rows[:n]


@kernel_part
def begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales):
    """Fill group with the next rows (the last one repeated in idle lanes), then on, off, weights and scales."""
    # Idle lanes of the last group repeat its last row: they compute the same result again, which does no harm.
    for v in range(LANES):
        group[v] = rows[min(first + v, len(rows) - 1)]
        scales[TILT, v] = tilts[group[v]]
    gather(scores, group, on)
    _fill_odds(on, off, scales)
    for v in range(LANES):
        # Nearly always the tilt of the group before: then its weights still hold, without new exponentials.
        if scales[TILT, v] != scales[WEIGHT_TILT, v]:
            scales[WEIGHT_TILT, v] = scales[TILT, v]
            scales[HEAVIEST, v] = fill_weights(size_bias, scales[TILT, v], weights[:, v])
        scales[LOG_SCALE, v] += scales[HEAVIEST, v]


@kernel_part
def _fill_odds(on, off, scales):
    """Replace on, which holds the scores, by on and fill off, as `plain.fill_odds`; -sum_k log off_k goes to scales."""
    one, zero, tilt = splat(1.0), splat(0.0), load(scales, TILT)
    log_scale, product = zero, one
    scales[LOG_SCALE] = 0.0
    for k in range(on.shape[0]):
        x = load(on, k) + tilt
        small = exp_minus_abs(x)
        likely = one / (one + small)
        unlikely = small * likely
        store(on, k, where_positive(x, likely, unlikely))
        store(off, k, where_positive(x, unlikely, likely))
        log_scale = log_scale + where_positive(x, x, zero)
        product = product * (one + small)
        # One logarithm for 512 factors of at most 2; what is left of the product stays in FACTOR, for `finish`.
        if k % 512 == 511:
            for v in range(LANES):
                scales[LOG_SCALE, v] += math.log(lane(product, v))
            product = one
    for v in range(LANES):
        scales[LOG_SCALE, v] += lane(log_scale, v)
    store(scales, FACTOR, product)


@kernel_part
def fill_mass(on, off, weights, mass, n_sizes):
    """Run the recurrence over all labels, filling mass; returns the total weight of each lane.

    The pmf f after k labels begins at row (k % depth) * n_sizes of mass: a depth of n_labels + 1 keeps the whole table,
    a depth of two only the last step. After k labels f_j is 0 beyond j = k, and these entries are not written or read.
    """
    n_labels, depth = on.shape[0], mass.shape[0] // n_sizes
    store(mass, 0, splat(1.0))
    for k in range(n_labels):
        label_on, label_off = load(on, k), load(off, k)
        here, there = (k % depth) * n_sizes, ((k + 1) % depth) * n_sizes
        before = load(mass, here)
        store(mass, there, label_off * before)
        # Two masses stay in registers; each is loaded once for its own size and the next.
        for j in range(1, min(n_sizes, k + 1)):
            same = load(mass, here + j)
            store(mass, there + j, label_off * same + label_on * before)
            before = same
        if k + 1 < n_sizes:
            store(mass, there + k + 1, label_on * before)
    total = splat(0.0)
    last = (n_labels % depth) * n_sizes
    for j in range(n_sizes):
        total = total + load(weights, j) * load(mass, last + j)
    return total


@kernel_part
def fill_marginals(on, off, prefix, suffix, n_sizes):
    """Replace on by the marginals; suffix, the adjoint behind the last label, is moved back to the first one."""
    one = splat(1.0)
    for k in range(on.shape[0] - 1, -1, -1):
        label_on, label_off, overlap = load(on, k), load(off, k), splat(0.0)
        here = load(suffix, 0)
        for j in range(min(n_sizes, k + 1)):
            up = load(suffix, j + 1)  # read before the store, which moves entry j back by one label
            overlap = overlap + load(prefix, k * n_sizes + j) * up
            store(suffix, j, label_off * here + label_on * up)
            here = up
        store(on, k, minimum(label_on * overlap, one))


@kernel_part
def fill_moments(on, off, step, prefix, prefix_u, n_sizes):
    """Fill prefix_u with the first moments of u that belong to the table prefix; step is the direction."""
    store(prefix_u, 0, splat(0.0))
    for k in range(on.shape[0]):
        label_on, label_off, label_step = load(on, k), load(off, k), load(step, k)
        here, there = k * n_sizes, (k + 1) * n_sizes
        mass, moment = load(prefix, here), load(prefix_u, here)
        store(prefix_u, there, label_off * moment)
        for j in range(1, min(n_sizes, k + 1)):
            same, same_u = load(prefix, here + j), load(prefix_u, here + j)
            store(prefix_u, there + j, label_off * same_u + label_on * (moment + label_step * mass))
            mass, moment = same, same_u
        if k + 1 < n_sizes:
            store(prefix_u, there + k + 1, label_on * (moment + label_step * mass))


@kernel_part
def fill_covariances(on, off, step, mean, prefix, prefix_u, suffix, suffix_u, n_sizes):
    """Replace on by the covariances of the labels with u, whose mean is given."""
    for k in range(on.shape[0] - 1, -1, -1):
        label_on, label_off, label_step = load(on, k), load(off, k), load(step, k)
        # E[y_k (u - mean)]: u is what label k adds, plus the moments of the labels before and behind it.
        centred, overlap = label_step - mean, splat(0.0)
        here, here_u = load(suffix, 0), load(suffix_u, 0)
        for j in range(min(n_sizes, k + 1)):
            up, up_u, entry = load(suffix, j + 1), load(suffix_u, j + 1), k * n_sizes + j
            overlap = overlap + load(prefix, entry) * (up_u + centred * up) + load(prefix_u, entry) * up
            store(suffix, j, label_off * here + label_on * up)
            store(suffix_u, j, label_off * here_u + label_on * (up_u + label_step * up))
            here, here_u = up, up_u
        store(on, k, label_on * overlap)


@kernel_part
def finish(rows, first, total, scales, todo, log_partition):
    """Clear the marks of the rows whose total is safe and write their log-partition."""
    for v in range(min(LANES, len(rows) - first)):
        mass = lane(total, v)
        if mass >= SAFE_TOTAL:
            todo[rows[first + v]] = False
            # One logarithm for both: the product lies between 1e-240 and 2**512, far from underflow and overflow.
            log_partition[rows[first + v]] = scales[LOG_SCALE, v] + math.log(mass * scales[FACTOR, v])


@kernel_part
def gather(matrix, group, lanes):
    """Copy the rows of the group out of matrix (n_rows, n), row group[v] into lane v of lanes (n, LANES)."""
    for v in range(LANES):
        for k in range(matrix.shape[1]):
            lanes[k, v] = matrix[group[v], k]


@kernel_part
def scatter(lanes, group, todo, matrix):
    """Write lane v to row group[v] of matrix, for the rows that are not in todo any more."""
    for v in range(LANES):
        if not todo[group[v]]:
            for k in range(matrix.shape[1]):
                matrix[group[v], k] = lanes[k, v]


@kernel_part
def _scatter_products(lanes, table, first, group, todo, matrix):
    """Write lanes times the rows of table from first on, for the rows that are not in todo any more."""
    for v in range(LANES):
        if not todo[group[v]]:
            for k in range(matrix.shape[1]):
                matrix[group[v], k] = lanes[k, v] * table[first + k, v]
