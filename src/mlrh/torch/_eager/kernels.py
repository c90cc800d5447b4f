"""Compiled recurrences of `compiled`, in float64: eight rows at a time for few labels, else a row and eight labels.

For a row at a time, arrays of lanes (n, LANES) hold labels in their order, filled up with weights of 0. `light` are the
sums e_0, ..., e_max_labels over the sets of light labels; `prefix` has them with the first, second, ... heavy label
added.
"""

import math

import numpy as np

from mlrh._parallel import kernel, kernel_part
from mlrh._simd import LANES, empty_lanes, exp_minus_abs, exp_of_negative, lane, load, maximum, minimum, splat, store

STRIDE = 8  # vectors whose largest weights are kept together, to find heavy labels without reading all
GROUP = 32  # dense targets that are looked at together, since nearly all of them are 0
# Underflow takes less than LOST from a sum over sets: 1e-308 times the sums over other labels. So a sum is right from
# SMALLEST_SUM on, and a smaller one must weigh nothing beside the likeliest size.
SMALLEST_SUM, LOST, LOG_NOTHING = 1e-200, 1e-240, -45.0


@kernel
def summarise(scores, dense, indices, log_weights, loss, pmf, numbers, heavy_marginals, heavy):
    """Write losses (n_rows,), pmf (n_rows, n_sizes), and what `differentiate` needs; how many rows are left to others.

    Targets are dense (n_rows, n_labels) or indices (n_rows, n), the other has no rows; without both, the loss is the
    log-partition. log_weights has a row for all, or one each. numbers (n_rows, n_sizes) has the shift and the
    coefficients of the polynomial for light labels, NaN for a row that is left to others; heavy (n_rows, n) lists the
    heavy labels and heavy_marginals theirs, filled up with -1.
    """
    n_labels, n_sizes, capacity = scores.shape[1], log_weights.shape[1], heavy.shape[1]
    weights = empty_lanes(_n_vectors(n_labels))
    largest = empty_lanes(weights.shape[0] // STRIDE)
    sums, light = empty_lanes(n_sizes), np.empty(n_sizes)
    prefix, suffix, heavy_weights = np.empty((capacity + 1, n_sizes)), np.empty(n_sizes + 1), np.empty(capacity)
    n_left = scores.shape[0]
    for i in range(scores.shape[0]):
        numbers[i, 0] = np.nan
        of_sizes = log_weights[min(i, log_weights.shape[0] - 1)]
        shift, total = _fill_weights(scores[i], weights, largest)
        n_found = _set_aside(weights, largest, total, 1.0 / (4 * (n_sizes - 1)), heavy[i], heavy_weights)
        if n_found < 0:
            continue
        _fill_light(weights, sums, light)
        _fill_prefix(light, heavy_weights, n_found, prefix)
        log_partition = _fill_sizes(prefix[n_found], of_sizes, shift, suffix, pmf[i])
        if math.isnan(log_partition):
            continue
        for h in range(n_found - 1, -1, -1):
            heavy_marginals[i, h] = min(_add_back(heavy_weights[h], prefix[h], suffix), 1.0)
        if _fill_polynomial(light, suffix, numbers[i]):
            numbers[i, 0] = shift
            n_left -= 1
        loss[i] = log_partition - _log_weight(i, scores, dense, indices, of_sizes)
        if loss[i] < 0.0 and (dense.shape[0] or indices.shape[0]):
            loss[i] = 0.0  # rounding
    return n_left


@kernel
def differentiate(scores, dense, indices, numbers, heavy_marginals, heavy, factors, out):
    """Write factors (n_rows,) times marginals - y into out (n_rows, n_labels); how many rows are left to others."""
    n_labels, n_sizes = scores.shape[1], numbers.shape[1]
    weights, coefficients = empty_lanes(_n_vectors(n_labels)), empty_lanes(n_sizes)
    flat, n_left = weights.reshape(-1), 0
    for i in range(scores.shape[0]):
        if math.isnan(numbers[i, 0]):
            n_left += 1
            continue
        _evaluate(scores[i], numbers[i], weights, coefficients)
        for h in range(heavy.shape[1]):
            if heavy[i, h] < 0:
                break
            flat[heavy[i, h]] = heavy_marginals[i, h]
        factor = factors[i]
        if dense.shape[0]:
            for k in range(n_labels):
                out[i, k] = (flat[k] - dense[i, k]) * factor
        else:
            for k in range(n_labels):
                out[i, k] = flat[k] * factor
        for h in range(indices.shape[1] if indices.shape[0] else 0):
            if indices[i, h] >= 0:
                out[i, indices[i, h]] -= factor
    return n_left


@kernel
def expectations(scores, dense, indices, log_weights, loss, pmf, marked, residuals):
    """Write losses (n_rows,), pmf (n_rows, n_sizes) and marginals - y (n_rows or 0, n_labels), of few labels.

    Returns how many rows are left to others; marked (n_rows, 1) has NaN for these, else 0. Other arguments are those of
    `summarise`.
    """
    n_rows, n_labels, n_sizes = scores.shape[0], scores.shape[1], log_weights.shape[1]
    weights, prefix = empty_lanes(n_labels), empty_lanes((n_labels + 1) * n_sizes)
    sizes, scalars = empty_lanes(n_sizes), empty_lanes(2)  # of each row: the shift, then the total
    likeliest, n_left = np.empty(LANES, np.int64), 0
    for first in range(0, n_rows, LANES):
        n_here = min(LANES, n_rows - first)
        for v in range(LANES):
            for k in range(n_labels):
                weights[k, v] = scores[first + min(v, n_here - 1), k]
        _fill_weights_of_rows(weights, scalars, scores)
        _fill_prefix_of_rows(weights, prefix, n_sizes)
        for v in range(LANES):
            of_sizes = log_weights[min(first + min(v, n_here - 1), log_weights.shape[0] - 1)]
            likeliest[v] = _fill_log_sizes(of_sizes, scalars[0, v], sizes, v)
        _fill_sizes_of_rows(prefix[n_labels * n_sizes :], sizes, scalars)
        for v in range(n_here):
            i, total = first + v, scalars[1, v]
            marked[i, 0] = 0.0 if likeliest[v] >= 0 and SMALLEST_SUM <= total < np.inf else np.nan
            if math.isnan(marked[i, 0]):
                n_left += 1
                continue
            of_sizes = log_weights[min(i, log_weights.shape[0] - 1)]
            for j in range(n_sizes):
                pmf[i, j] = sizes[j, v] * prefix[n_labels * n_sizes + j, v]
            # Subtracted before it is rounded to the type of the losses.
            log_partition = of_sizes[likeliest[v]] + scalars[0, v] * likeliest[v] + math.log(total)
            loss[i] = log_partition - _log_weight(i, scores, dense, indices, of_sizes)
            if loss[i] < 0.0 and (dense.shape[0] or indices.shape[0]):
                loss[i] = 0.0  # rounding
        if residuals.shape[0]:
            _replace_by_marginals(weights, prefix, sizes)
            for v in range(n_here):
                _fill_residuals(first + v, v, weights, dense, indices, residuals)
    return n_left


@kernel
def has_others(values):
    """Whether some of the values (n,) are neither 0 nor 1."""
    found = False
    for k in range(values.shape[0]):  # to the end, so that the compiler makes vectors of it
        found |= (values[k] != 0.0) & (values[k] != 1.0)
    return found


@kernel_part
def _n_vectors(n_labels):
    return STRIDE * (-(-n_labels // (STRIDE * LANES)))


@kernel_part
def _copy(row, flat):
    """Copy the scores of a row, filled up with -inf."""
    for k in range(row.shape[0]):
        flat[k] = row[k]
    for k in range(row.shape[0], flat.shape[0]):
        flat[k] = -np.inf


@kernel_part
def _rounded_up(shift):
    if shift == -np.inf:
        return 0.0
    return math.ceil(shift * 64.0) / 64.0 if abs(shift) < 1e12 else shift


@kernel_part
def _fill_weights(row, weights, largest):
    """Fill weights with exp(row - shift), and largest with the largest of every STRIDE vectors; (shift, total weight).

    The shift is the largest score, rounded up to a multiple of 1/64, so that its products with sizes are exact.
    """
    _copy(row, weights.reshape(-1))
    top, other = splat(-np.inf), splat(-np.inf)  # two, since each waits for the vector before
    for g in range(0, weights.shape[0], 2):
        top, other = maximum(load(weights, g), top), maximum(load(weights, g + 1), other)
    top, shift = maximum(top, other), -np.inf
    for v in range(LANES):
        shift = max(shift, lane(top, v))
    shift, total = _rounded_up(shift), splat(0.0)
    for c in range(largest.shape[0]):
        top = splat(0.0)
        for g in range(c * STRIDE, (c + 1) * STRIDE):
            w = exp_of_negative(load(weights, g) - splat(shift), row)
            store(weights, g, w)
            top = maximum(w, top)
            total = total + w
        store(largest, c, top)
    return shift, _sum_of_lanes(total)


@kernel_part
def _fill_weights_of_rows(weights, scalars, numbers):
    """Replace scores (n_labels, LANES) by exp(score - shift), to the digits of the type of numbers.

    The shifts, which `_fill_weights` describes, are in row 0 of scalars.
    """
    top = splat(-np.inf)
    for k in range(weights.shape[0]):
        top = maximum(load(weights, k), top)
    for v in range(LANES):
        scalars[0, v] = _rounded_up(lane(top, v))
    for k in range(weights.shape[0]):
        store(weights, k, exp_of_negative(load(weights, k) - load(scalars, 0), numbers))


@kernel_part
def _fill_prefix_of_rows(weights, prefix, n_sizes):
    """Sums over sets of the first 0, 1, ... labels, in rows k * n_sizes + j."""
    for j in range(n_sizes):
        store(prefix, j, splat(1.0 if j == 0 else 0.0))
    for k in range(weights.shape[0]):
        w, before, after = load(weights, k), k * n_sizes, (k + 1) * n_sizes
        store(prefix, after, splat(1.0))
        for j in range(1, n_sizes):
            store(prefix, after + j, load(prefix, before + j) + w * load(prefix, before + j - 1))


@kernel_part
def _fill_log_sizes(log_weights, shift, sizes, v):
    """Write log-weights of the sizes, less that of the likeliest if all sums were 1; its place, -1 if there is none."""
    likeliest = -1
    for j in range(log_weights.shape[0]):
        # Differences of log-weights come first: a large bias would swallow the rest.
        if log_weights[j] > -np.inf and (
            likeliest < 0 or (log_weights[j] - log_weights[likeliest]) + shift * (j - likeliest) > 0.0
        ):
            likeliest = j
    for j in range(log_weights.shape[0]):
        sizes[j, v] = -np.inf
        if log_weights[j] > -np.inf:
            sizes[j, v] = (log_weights[j] - log_weights[likeliest]) + shift * (j - likeliest)
    return likeliest


@kernel_part
def _fill_sizes_of_rows(sums, sizes, scalars):
    """Replace the log-weights of sizes by weights over the total weight of all sets; the totals in row 1."""
    total = splat(0.0)
    for j in range(sizes.shape[0]):
        weight = exp_minus_abs(load(sizes, j))
        store(sizes, j, weight)
        total = total + weight * load(sums, j)
    store(scalars, 1, total)
    for j in range(sizes.shape[0]):
        store(sizes, j, load(sizes, j) / total)


@kernel_part
def _replace_by_marginals(weights, prefix, sizes):
    """Replace weights of labels by marginals; sizes, weights over the total, are used up."""
    n_sizes = sizes.shape[0]
    for k in range(weights.shape[0] - 1, -1, -1):
        w, overlap = load(weights, k), splat(0.0)
        for j in range(n_sizes - 1):
            after = load(sizes, j + 1)
            overlap = overlap + load(prefix, k * n_sizes + j) * after
            store(sizes, j, load(sizes, j) + w * after)
        store(weights, k, minimum(w * overlap, splat(1.0)))


@kernel_part
def _fill_residuals(i, v, marginals, dense, indices, residuals):
    """Write marginals - y of row i, which is in lane v."""
    for k in range(marginals.shape[0]):
        residuals[i, k] = marginals[k, v] - (dense[i, k] if dense.shape[0] else 0.0)
    for h in range(indices.shape[1] if indices.shape[0] else 0):
        if indices[i, h] >= 0:
            residuals[i, indices[i, h]] -= 1.0


@kernel_part
def _set_aside(weights, largest, total, share, heavy, heavy_weights):
    """List labels that weigh more than this share of all others, and set their weights to 0; how many, -1 if too many.

    With these gone the others weigh less together than the total before, so that it is done until none is left.
    """
    for h in range(heavy.shape[0]):
        heavy[h] = -1
    n, n_before, flat = 0, -1, weights.reshape(-1)
    while n > n_before:
        if n > 0:
            total = _total(weights)
        n_before, limit = n, share * total
        for c in range(largest.shape[0]):
            for v in range(LANES):
                if largest[c, v] > limit:
                    largest[c, v] = 0.0
                    for g in range(c * STRIDE, (c + 1) * STRIDE):
                        k = g * LANES + v
                        if flat[k] > limit:
                            if n == heavy.shape[0]:
                                return -1
                            heavy[n], heavy_weights[n], flat[k] = k, flat[k], 0.0
                            n += 1
                        elif flat[k] > largest[c, v]:
                            largest[c, v] = flat[k]
    return n


@kernel_part
def _total(weights):
    total, other = splat(0.0), splat(0.0)
    for g in range(0, weights.shape[0], 2):
        total, other = total + load(weights, g), other + load(weights, g + 1)
    return _sum_of_lanes(total + other)


@kernel_part
def _sum_of_lanes(value):
    result = 0.0
    for v in range(LANES):
        result += lane(value, v)
    return result


@kernel_part
def _fill_light(weights, sums, light):
    """Fill light with the sums over sets: each lane has its own, and their polynomials are multiplied."""
    n_sizes = light.shape[0]
    for j in range(n_sizes):
        store(sums, j, splat(1.0 if j == 0 else 0.0))
    for g in range(0, weights.shape[0], 4):
        # Four labels at a time, 1 + one x + ... + four x^4: each step waits for the sums that the one before stored.
        a, b, c, d = load(weights, g), load(weights, g + 1), load(weights, g + 2), load(weights, g + 3)
        left, left_two, right, right_two = a + b, a * b, c + d, c * d
        one, two = left + right, left_two + right_two + left * right
        three, four = left * right_two + left_two * right, left_two * right_two
        for j in range(n_sizes - 1, 3, -1):
            last = three * load(sums, j - 3) + four * load(sums, j - 4)
            store(sums, j, load(sums, j) + (one * load(sums, j - 1) + two * load(sums, j - 2) + last))
        if n_sizes > 3:
            store(sums, 3, load(sums, 3) + (one * load(sums, 2) + two * load(sums, 1) + three))
        if n_sizes > 2:
            store(sums, 2, load(sums, 2) + (one * load(sums, 1) + two))
        store(sums, 1, load(sums, 1) + one)
    for j in range(n_sizes):
        light[j] = sums[j, 0]
    for v in range(1, LANES):
        for j in range(n_sizes - 1, 0, -1):
            for i in range(1, j + 1):
                light[j] += sums[i, v] * light[j - i]


@kernel_part
def _fill_prefix(light, heavy_weights, n_found, prefix):
    for j in range(light.shape[0]):
        prefix[0, j] = light[j]
    for h in range(n_found):
        prefix[h + 1, 0] = 1.0
        for j in range(1, light.shape[0]):
            prefix[h + 1, j] = prefix[h, j] + heavy_weights[h] * prefix[h, j - 1]


@kernel_part
def _fill_sizes(sums, log_weights, shift, suffix, pmf):
    """Fill pmf, and suffix with the weights of the sizes over their total; returns the log-partition, NaN if unsafe."""
    n_sizes, likeliest, log_most = sums.shape[0], -1, -np.inf
    for j in range(n_sizes):
        if sums[j] > 0.0 and log_weights[j] + shift * j + math.log(sums[j]) > log_most:
            likeliest, log_most = j, log_weights[j] + shift * j + math.log(sums[j])
    if likeliest < 0 or not log_most < np.inf:
        return np.nan
    total, log_sum = 0.0, math.log(sums[likeliest])
    for j in range(n_sizes):
        # Differences of log-weights come first: a large bias would swallow the rest.
        log_weight = (log_weights[j] - log_weights[likeliest]) + shift * (j - likeliest) - log_sum
        if not sums[j] >= SMALLEST_SUM and not log_weight + math.log(max(sums[j], LOST)) < LOG_NOTHING:
            return np.nan
        suffix[j] = math.exp(log_weight)
        total += suffix[j] * sums[j]
    if not total < np.inf:
        return np.nan
    suffix[n_sizes] = 0.0
    for j in range(n_sizes):
        suffix[j] /= total
        pmf[j] = suffix[j] * sums[j]
    return log_weights[likeliest] + shift * likeliest + (log_sum + math.log(total))


@kernel_part
def _add_back(weight, prefix, suffix):
    """The marginal of a heavy label between prefix and suffix; suffix is moved before it."""
    overlap = 0.0
    for j in range(prefix.shape[0]):
        overlap += prefix[j] * suffix[j + 1]
        suffix[j] += weight * suffix[j + 1]
    return weight * overlap


@kernel_part
def _fill_polynomial(light, suffix, numbers):
    """Write the coefficients of w, w^2, ... in the marginal of a light label; whether all are finite."""
    n_sizes, is_finite, sign = light.shape[0], True, 1.0
    for i in range(1, n_sizes):
        coefficient = 0.0
        for j in range(i, n_sizes):
            coefficient += suffix[j] * light[j - i]
        is_finite = is_finite and coefficient < np.inf
        numbers[i] = sign * coefficient
        sign = -sign
    return is_finite


@kernel_part
def _log_weight(i, scores, dense, indices, log_weights):
    """The log-weight of the target set of row i, 0 if there is none; -inf for a size that isn't admissible."""
    if not dense.shape[0] and not indices.shape[0]:
        return 0.0
    total, count = 0.0, 0.0
    if dense.shape[0]:
        row = dense[i]  # a loop over the rows of a slice would lose that numbers lie one after the other
        for start in range(0, row.shape[0], GROUP):
            group, has_any = row[start : start + GROUP], False
            for k in range(group.shape[0]):  # without a branch, so that the compiler makes vectors of it
                has_any |= group[k] != 0.0  # true of NaN, which makes the loss NaN
            for k in range(start, start + group.shape[0] if has_any else start):
                if row[k] != 0.0:
                    total += row[k] * scores[i, k]
                    count += row[k]
    else:
        for k in indices[i]:
            if k >= 0:
                total += scores[i, k]
                count += 1.0
    if math.isnan(count):
        return np.nan
    size = int(min(max(count, 0.0), float(log_weights.shape[0])))
    return total + log_weights[size] if size < log_weights.shape[0] else -np.inf


@kernel_part
def _evaluate(row, numbers, weights, coefficients):
    """Fill weights with the polynomials of light labels at the scores of a row."""
    _copy(row, weights.reshape(-1))
    n_sizes, shift = numbers.shape[0], splat(numbers[0])
    for i in range(1, n_sizes):
        store(coefficients, i, splat(numbers[i]))
    for g in range(weights.shape[0]):
        w = exp_of_negative(load(weights, g) - shift, row)
        value = load(coefficients, n_sizes - 1)
        for i in range(n_sizes - 2, 0, -1):
            value = value * w + load(coefficients, i)
        store(weights, g, value * w)
