"""Sums over a list of sparse label sets, eight rows at a time: what the open space adds to the cardinality space.

The sets are rows of a sparse matrix (indptr, indices). With q_s = P(s | x) in the cardinality space and a bias beta_s
of every listed set,

    Z = Z_cardinality * T        T = 1 + sum_s (exp(beta_s) - 1) q_s

A row costs two additions per label of each set and one exponential per set. T has an absolute error of a few 1e-16,
or of about 1e-13 where log Z is in the hundreds, so it is good where it is at least SAFE_SHARE; `trie` answers for the
other rows.
"""

import numpy as np

from mlrh._parallel import kernel, kernel_part, map_blocks
from mlrh._simd import LANES, exp_minus_abs, lane, load, splat, store, where_positive
from mlrh.spaces._kernels.lanes import gather

SAFE_SHARE = 1 / 64  # of T: its relative error is then below 1e-13
# Of `fit_biases`: the gain per row of a step that is worth another one, and evaluations at most. Its biases serve a
# choice or a start, so that they need not converge.
SMALL_GAIN, MAX_EVALUATIONS = 1e-4, 30
TINY = 1e-10  # keeps quotients finite where no probability is left for sets without a bias
TARGET_OPERATIONS = 500_000  # of one block: about a millisecond, short enough to share out, long enough to be worth it


def sums(scores, log_cardinality, known, sets, biases, weights, safe, *, n_sizes, n_jobs=None):
    """T (n_rows,), what the listed sets add to marginals and to probabilities of sizes, and weights @ P(s) (n_sets,).

    They add sum_s (exp(beta_s) - 1) q_s y_s / T (n_rows, n_labels), and the same sums over the sets of one size
    (n_rows, n_sizes), sizes being 0, ..., n_sizes - 1. log_cardinality (n_rows,) is log Z_cardinality. `sets` is
    (indptr, indices), `biases` the pair (bias of the size of each set, beta), `known` (n_rows or 0, n_labels) what is
    known of the rows. `safe` says which rows can be answered in plain floating point; a row whose T is below
    SAFE_SHARE is unmarked there. Rows that are not safe are not counted in the last result and have no meaning in the
    others.
    """
    totals, shares, sizes = np.empty(len(scores)), np.empty(scores.shape), np.empty((len(scores), n_sizes))
    size_bias, set_bias = biases
    raised, weighed = np.expm1(set_bias), np.exp(set_bias)

    def work(rows):
        by_set = np.zeros((len(set_bias), LANES))
        block = (scores[rows], log_cardinality[rows], known[rows], weights[rows], safe[rows])
        _fill_sums(*block, *sets, size_bias, raised, weighed, totals[rows], shares[rows], sizes[rows], by_set)
        return by_set.sum(axis=1)

    operations = scores.shape[1] + 2 * len(sets[1]) + 4 * len(set_bias)
    rows = max(LANES, TARGET_OPERATIONS // max(1, operations))
    parts = map_blocks(work, len(scores), rows_per_block=rows - rows % LANES, n_jobs=n_jobs)
    return totals, shares, sizes, sum(parts, start=np.zeros(len(set_bias)))


def moments(
    scores, direction, log_cardinality, means, known, sets, biases, directions, weights, safe, *, n_sizes, n_jobs=None
):
    """E[u] (n_rows,), what the listed sets add to covariances of labels and of sizes with u, weights @ Cov(set, u).

    u(y) is the change of the log-weight of y: the sum of `direction` (n_rows, n_labels) over its labels, and the
    entries of `directions` for the bias of its size and of the set. means (n_rows,) is E[u] in the cardinality space,
    where sets have no bias of their own. Rows marked in `safe` are answered; other arguments are those of `sums`.
    """
    total_means, shares = np.empty(len(scores)), np.empty(scores.shape)
    sizes, (size_bias, set_bias) = np.empty((len(scores), n_sizes)), biases
    raised, weighed = np.expm1(set_bias), np.exp(set_bias)

    def work(rows):
        by_set = np.zeros((len(set_bias), LANES))
        block = (scores[rows], direction[rows], log_cardinality[rows], means[rows], known[rows], weights[rows])
        outputs = (total_means[rows], shares[rows], sizes[rows], by_set)
        _fill_moments(*block, safe[rows], *sets, size_bias, raised, weighed, *directions, *outputs)
        return by_set.sum(axis=1)

    operations = scores.shape[1] + 3 * len(sets[1]) + 6 * len(set_bias)
    rows = max(LANES, TARGET_OPERATIONS // max(1, operations))
    parts = map_blocks(work, len(scores), rows_per_block=rows - rows % LANES, n_jobs=n_jobs)
    return total_means, shares, sizes, sum(parts, start=np.zeros(len(set_bias)))


def best(scores, known, sets, biases, *, n_jobs=None):
    """The heaviest set of each row that agrees with what is known, the first of equal ones (-1: none); its log-weight.

    `biases` (n_sets,) are added to the scores of the sets.
    """
    found, values = np.empty(len(scores), np.int64), np.empty(len(scores))

    def work(rows):
        _fill_best(scores[rows], known[rows], *sets, biases, found[rows], values[rows])

    rows_per_block = max(1, TARGET_OPERATIONS // max(1, len(sets[1]) + len(biases)))
    map_blocks(work, len(scores), rows_per_block=rows_per_block, n_jobs=n_jobs)
    return found, values


@kernel
def _fill_sums(
    scores,
    log_cardinality,
    known,
    weights,
    safe,
    indptr,
    indices,
    size_bias,
    raised,
    weighed,
    totals,
    shares,
    sizes,
    by_set,
):
    n_rows, n_labels, n_sets = scores.shape[0], scores.shape[1], size_bias.shape[0]
    own, signs, added = np.empty((n_labels, LANES)), np.empty((n_labels, LANES)), np.empty((n_labels, LANES))
    probs, by_size = np.empty((n_sets, LANES)), np.empty((n_labels + 1, LANES))
    # Rows of `scales`: log Z_cardinality, how many labels are known to be present less 1/2, 1 / T, weight / T.
    scales, group = np.empty((4, LANES)), np.empty(LANES, np.int64)
    for first in range(0, n_rows, LANES):
        for v in range(LANES):
            group[v] = min(first + v, n_rows - 1)
            scales[0, v] = log_cardinality[group[v]]
        gather(scores, group, own)
        if known.shape[0] > 0:
            _gather_known(known, group, signs, scales[1])
        total = splat(1.0)
        for s in range(n_sets):
            log_prob, present = splat(size_bias[s]) - load(scales, 0), splat(0.0) - load(scales, 1)
            for entry in range(indptr[s], indptr[s + 1]):
                log_prob = log_prob + load(own, indices[entry])
            prob = exp_minus_abs(log_prob)  # a probability: its logarithm is not positive
            if known.shape[0] > 0:
                for entry in range(indptr[s], indptr[s + 1]):
                    present = present + load(signs, indices[entry])
                prob = where_positive(present, prob, splat(0.0))
            store(probs, s, prob)
            total = total + splat(raised[s]) * prob
        for v in range(LANES):
            i = group[v]
            totals[i] = lane(total, v)
            safe[i] = safe[i] and totals[i] >= SAFE_SHARE
            scales[2, v] = 1.0 / totals[i] if safe[i] else 0.0
            # Idle lanes of the last group repeat its last row, which must not be counted twice.
            scales[3, v] = weights[i] * scales[2, v] if first + v < n_rows else 0.0
        _clear(added)
        _clear(by_size)
        for s in range(n_sets):
            prob = load(probs, s)
            store(by_set, s, load(by_set, s) + splat(weighed[s]) * prob * load(scales, 3))
            gain, size = splat(raised[s]) * prob * load(scales, 2), indptr[s + 1] - indptr[s]
            store(by_size, size, load(by_size, size) + gain)
            for entry in range(indptr[s], indptr[s + 1]):
                store(added, indices[entry], load(added, indices[entry]) + gain)
        _scatter(added, by_size, shares[first:], sizes[first:])


@kernel
def _fill_moments(
    scores,
    direction,
    log_cardinality,
    means,
    known,
    weights,
    safe,
    indptr,
    indices,
    size_bias,
    raised,
    weighed,
    size_direction,
    set_direction,
    total_means,
    shares,
    sizes,
    by_set,
):
    n_rows, n_labels, n_sets = scores.shape[0], scores.shape[1], size_bias.shape[0]
    own, steps, signs = np.empty((n_labels, LANES)), np.empty((n_labels, LANES)), np.empty((n_labels, LANES))
    probs, changes = np.empty((n_sets, LANES)), np.empty((n_sets, LANES))
    added, by_size = np.empty((n_labels, LANES)), np.empty((n_labels + 1, LANES))
    # Rows of `scales`: log Z_cardinality, how many labels are known to be present less 1/2, 1 / T, weight, E[u].
    scales, group = np.empty((5, LANES)), np.empty(LANES, np.int64)
    for first in range(0, n_rows, LANES):
        for v in range(LANES):
            group[v] = min(first + v, n_rows - 1)
            scales[0, v] = log_cardinality[group[v]]
        gather(scores, group, own)
        gather(direction, group, steps)
        if known.shape[0] > 0:
            _gather_known(known, group, signs, scales[1])
        total, moment = splat(1.0), splat(0.0)
        for s in range(n_sets):
            log_prob, change = splat(size_bias[s]) - load(scales, 0), splat(size_direction[s])
            for entry in range(indptr[s], indptr[s + 1]):
                log_prob = log_prob + load(own, indices[entry])
                change = change + load(steps, indices[entry])
            prob = exp_minus_abs(log_prob)
            if known.shape[0] > 0:
                present = splat(0.0) - load(scales, 1)
                for entry in range(indptr[s], indptr[s + 1]):
                    present = present + load(signs, indices[entry])
                prob = where_positive(present, prob, splat(0.0))
            store(probs, s, prob)
            store(changes, s, change)
            total = total + splat(raised[s]) * prob
            moment = moment + prob * (splat(raised[s]) * change + splat(weighed[s] * set_direction[s]))
        for v in range(LANES):
            i = group[v]
            scales[2, v] = 1.0 / lane(total, v) if safe[i] else 0.0
            scales[3, v] = weights[i] if first + v < n_rows else 0.0
            scales[4, v] = (means[i] + lane(moment, v)) * scales[2, v]
            total_means[i] = scales[4, v]
        _clear(added)
        _clear(by_size)
        for s in range(n_sets):
            share, centred = load(probs, s) * load(scales, 2), load(changes, s) - load(scales, 4)
            # E[y_s (u - E[u])] with exp(beta), less that without, which is in the covariances of the cardinality space.
            gain = share * (splat(raised[s]) * centred + splat(weighed[s] * set_direction[s]))
            covariance = share * splat(weighed[s]) * (centred + splat(set_direction[s]))
            store(by_set, s, load(by_set, s) + covariance * load(scales, 3))
            size = indptr[s + 1] - indptr[s]
            store(by_size, size, load(by_size, size) + gain)
            for entry in range(indptr[s], indptr[s + 1]):
                store(added, indices[entry], load(added, indices[entry]) + gain)
        _scatter(added, by_size, shares[first:], sizes[first:])


@kernel_part
def _clear(numbers):
    """Fill an array of lanes with 0, by a loop: numba takes longer to compile an assignment to all of an array."""
    for k in range(numbers.shape[0]):
        store(numbers, k, splat(0.0))


@kernel_part
def _scatter(added, by_size, shares, sizes):
    """Write what a group of rows has in its lanes to these rows; the last group may have fewer."""
    for v in range(min(LANES, shares.shape[0])):
        for k in range(shares.shape[1]):
            shares[v, k] = added[k, v]
        for j in range(sizes.shape[1]):
            sizes[v, j] = by_size[j, v]


@kernel_part
def _gather_known(known, group, signs, n_present):
    """Write 1 for present labels, less than minus their number for absent ones; a set agrees if its sum is all of them.

    n_present gets their number less 1/2, so that the sum of an agreeing set, and of no other one, exceeds it.
    """
    n_labels = known.shape[1]
    for v in range(signs.shape[1]):
        n_present[v] = -0.5
        for k in range(n_labels):
            if known[group[v], k] == 1:
                signs[k, v] = 1.0
                n_present[v] += 1.0
            else:
                signs[k, v] = -(n_labels + 1.0) if known[group[v], k] == 0 else 0.0


@kernel
def fit_biases(rows, indptr, indices, probs, weights, counts, strength, largest, bias):
    """Improve the biases (n_sets,), in place, to minimise sum_i weight_i log T_i - counts . bias + strength/2 |bias|^2.

    The sum is over the given rows. (indptr, indices, probs) is the sparse matrix of q_is (n_samples, n_sets), and
    T_i = 1 + sum_s (exp(bias_s) - 1) q_is. Sets without counts keep their bias of 0.

    With P_is = exp(bias_s) q_is / T_i, the Hessian is the sum over rows of diag(P) - P P'. Steps solve with a matrix
    diag(m) - m m' / t instead: m_s = sum_i weight_i P_is (1 - P_is) is its diagonal, and t is the sum of m and of the
    same for all sets without a bias together. Ends where a step gains too little. Biases stay within +-largest.
    """
    # By loops: numba takes two seconds to compile the assignment of an array to another and what else they need.
    n_sets, enough = len(bias), 0.0
    for i in rows:
        enough += SMALL_GAIN * weights[i]
    best, step, tried = np.inf, np.zeros(n_sets), np.empty(n_sets)
    for s in range(n_sets):
        tried[s] = bias[s]
    for _ in range(MAX_EVALUATIONS):
        value, expected, squares, others = _sums_of_biases(rows, indptr, indices, probs, weights, tried)
        for s in range(n_sets):
            value += (0.5 * strength * tried[s] - counts[s]) * tried[s]
        if not value < best:
            for s in range(n_sets):
                step[s] *= 0.5  # it was too long
        else:
            gain, best = best - value, value
            for s in range(n_sets):
                bias[s] = tried[s]
            if gain < enough:
                break
            # Sherman and Morrison: along is m . (gradient / (m + strength)), total is t - sum m^2 / (m + strength).
            along, total = 0.0, others
            for s in range(n_sets):
                m = expected[s] - squares[s]
                step[s] = (counts[s] - strength * bias[s] - expected[s]) / (m + strength) if counts[s] > 0 else 0.0
                along += m * step[s]
                total += m * strength / (m + strength) if counts[s] > 0 else m
            for s in range(n_sets):
                if counts[s] > 0:
                    m = expected[s] - squares[s]
                    # Far from the optimum the Hessian grows with the bias: a step of more than 1 could be far too long.
                    step[s] = min(max(step[s] + m / (m + strength) * along / total, -1.0), 1.0)
        for s in range(n_sets):
            tried[s] = min(max(bias[s] + step[s], -largest), largest)


@kernel_part
def _sums_of_biases(rows, indptr, indices, probs, weights, bias):
    """Sums over rows, weighted: log T_i, P_is and P_is^2 of every set, U_i (1 - U_i) of all other sets together.

    Arguments are those of `fit_biases`. Here T_i is the sum of U_i, which is left for sets not in the row's list, and
    of all weights exp(bias_s) q_is: nothing is subtracted.
    """
    value, others, weighed = 0.0, TINY, np.empty(len(bias))
    expected, squares = np.zeros(len(bias)), np.zeros(len(bias))
    for s in range(len(bias)):
        weighed[s] = np.exp(bias[s])
    for i in rows:
        total, left = 0.0, 1.0
        for entry in range(indptr[i], indptr[i + 1]):
            total += weighed[indices[entry]] * probs[entry]
            left -= probs[entry]
        left = max(left, 0.0)
        total += left
        value += weights[i] * np.log(total)
        others += weights[i] * (left / total) * (1.0 - left / total)
        for entry in range(indptr[i], indptr[i + 1]):
            prob = weighed[indices[entry]] * probs[entry] / total
            expected[indices[entry]] += weights[i] * prob
            squares[indices[entry]] += weights[i] * prob * prob
    return value, expected, squares, others


@kernel
def loss_of_biases(rows, indptr, indices, probs, weights, found, bias):
    """sum_i weight_i (log T_i - bias of the row's set), with arguments as in `fit_biases`.

    found (n_samples,) is the number of the row's set, -1 where it has no bias.
    """
    value = _sums_of_biases(rows, indptr, indices, probs, weights, bias)[0]
    for i in rows:
        if found[i] >= 0:
            value -= weights[i] * bias[found[i]]
    return value


@kernel
def log_weights(scores, known, indptr, indices, biases, values):
    """Write the log-weights (n_rows, n_sets) of all sets, -inf where a set contradicts what is known."""
    for i in range(scores.shape[0]):
        n_present = 0
        if known.shape[0] > 0:
            for k in range(known.shape[1]):
                n_present += known[i, k] == 1
        for s in range(biases.shape[0]):
            value, missing = biases[s], n_present
            for entry in range(indptr[s], indptr[s + 1]):
                k = indices[entry]
                value += scores[i, k]
                if known.shape[0] > 0:
                    missing -= known[i, k] == 1
                    if known[i, k] == 0:
                        missing = n_present + 1
                        break
            values[i, s] = value if missing == 0 else -np.inf


@kernel
def log_weights_of(scores, sets, size_bias, values):
    """Write the log-weights (n_rows, n) of sets (n_rows, n, n_labels), summed in the order of `log_weights`."""
    for i in range(sets.shape[0]):
        for s in range(sets.shape[1]):
            n_present = 0
            for k in range(sets.shape[2]):
                n_present += sets[i, s, k] == 1
            values[i, s] = size_bias[n_present]
            for k in range(sets.shape[2]):
                if sets[i, s, k] == 1:
                    values[i, s] += scores[i, k]


@kernel
def _fill_best(scores, known, indptr, indices, biases, found, values):
    n_rows, n_labels = scores.shape
    own, signs = np.empty((n_labels, LANES)), np.zeros((n_labels, LANES))
    n_present, group = np.empty((1, LANES)), np.empty(LANES, np.int64)
    for first in range(0, n_rows, LANES):
        for v in range(LANES):
            group[v] = min(first + v, n_rows - 1)
        gather(scores, group, own)
        if known.shape[0] > 0:
            _gather_known(known, group, signs, n_present[0])
        best, place = splat(-np.inf), splat(-1.0)
        for s in range(biases.shape[0]):
            value = splat(biases[s])
            for entry in range(indptr[s], indptr[s + 1]):
                value = value + load(own, indices[entry])
            if known.shape[0] > 0:
                present = splat(0.0) - load(n_present, 0)
                for entry in range(indptr[s], indptr[s + 1]):
                    present = present + load(signs, indices[entry])
                value = where_positive(present, value, splat(-np.inf))
            gain = value - best  # NaN, which is not positive, where both are -inf
            best, place = where_positive(gain, value, best), where_positive(gain, splat(float(s)), place)
        for v in range(min(LANES, n_rows - first)):
            found[first + v], values[first + v] = int(lane(place, v)), lane(best, v)
