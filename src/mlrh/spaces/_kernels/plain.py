"""Compiled recurrences of the cardinality space in plain floating point, row by row: what is asked less often.

What a fit repeats is in `lanes`, eight rows at a time. Blocks of rows come in, arrays are written in place. A row's
distribution is exp(sum_k y_k scores_k + size_bias[|y|]) / Z; `size_bias` has max_labels + 1 entries, -inf for a size
that is not admissible. One row costs O(n_labels * max_labels) in time and memory.

The sums over sets come from independent labels. With on_k = sigmoid(scores_k + tilt) and off_k = 1 - on_k,

    e_j(exp(scores)) = exp(-tilt j) f_j / prod_k off_k

where f is the pmf of the number of labels present. Its recurrence f_j <- f_j off_k + f_{j-1} on_k adds positive numbers
below 1: it can't overflow and nothing cancels. Size j then weighs f_j exp(size_bias[j] - tilt j), scaled so that the
largest factor is 1. The tilt decides which f_j underflow. Underflow costs an f_j far less than 1e-260, so a row whose
weights sum to SAFE_TOTAL or more is exact under any tilt.

Kernels work on the rows marked in `todo`, each with its entry of `tilts`, and clear the mark where the total is safe. A
tilt of 0 is enough for most rows, the tilt of `towards_mode` for nearly all others; `wide_range` does the rest.
"""

import math

import numpy as np

from mlrh._parallel import kernel, kernel_part
from mlrh.spaces._kernels.ranking import mode_size

SAFE_TOTAL = 1e-240  # what underflow may take, below 1e-260, is then no more than the last digits


def towards_mode(scores, size_bias, todo, tilts):
    """Write the tilts of the rows todo: each brings the expected number of labels near the size of the mode."""
    descending = -np.sort(-scores[todo], axis=1)
    tilts[todo] = _tilts_to_mode(descending, size_bias)


@kernel_part
def fill_weights(size_bias, tilt, weights):
    """Write exp(size_bias[j] - tilt j) divided by the largest of them; returns the logarithm of the largest."""
    heaviest = _heaviest_size(size_bias, tilt)
    for j in range(size_bias.shape[0]):
        weights[j] = math.exp(_log_size_weight(size_bias, tilt, j, heaviest))
    return size_bias[heaviest] - tilt * heaviest


@kernel
def log_prob(scores, size_bias, sets, todo, tilts, log_probs):
    """Write the log-probability of each of sets (n_rows, n_sets, n_labels); -inf for a size that isn't admissible.

    Starts from the likeliest set of independent labels, whose log-probability is a sum of small numbers, and subtracts
    |scores_k + tilt| for each label that differs. The difference of two large numbers never occurs.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights = np.empty(n_labels), np.empty(n_labels), np.empty(n_sizes)
    mass = np.empty((2, n_sizes))
    for i in range(scores.shape[0]):
        if not todo[i]:
            continue
        total, _ = _tilted_mass(scores[i], size_bias, tilts[i], on, off, weights, mass)
        todo[i] = total < SAFE_TOTAL
        if todo[i]:
            continue
        likeliest = _log_prob_of_likeliest(scores[i], tilts[i]) - math.log(total)
        heaviest = _heaviest_size(size_bias, tilts[i])
        for s in range(sets.shape[1]):
            log_probs[i, s] = -np.inf
            size = 0
            distance, rest = 0.0, 0.0
            for k in range(n_labels):
                size += sets[i, s, k]
                x = scores[i, k] + tilts[i]
                if (x > 0) != (sets[i, s, k] == 1):
                    # log(off/on) = -x. The terms may be huge, so the rounding errors of their sum are kept.
                    distance, error = two_sum(distance, abs(x))
                    rest += error
            if size < n_sizes and size_bias[size] > -np.inf:
                log_weight = _log_size_weight(size_bias, tilts[i], size, heaviest)
                log_probs[i, s] = min((likeliest - rest + log_weight) - distance, 0.0)


@kernel
def sample(scores, size_bias, uniforms, todo, tilts, sets):
    """Write one set per row of uniforms (n_rows, n_draws, n_labels + 1) into sets (n_rows, n_draws, n_labels).

    Draws the size, then the labels backwards: label k is in with probability on_k prefix_{k-1}[j-1] / prefix_k[j],
    j being the number of labels still to place.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights = np.empty(n_labels), np.empty(n_labels), np.empty(n_sizes)
    prefix = np.empty((n_labels + 1, n_sizes))
    for i in range(scores.shape[0]):
        if not todo[i]:
            continue
        total, _ = _tilted_mass(scores[i], size_bias, tilts[i], on, off, weights, prefix)
        todo[i] = total < SAFE_TOTAL
        if todo[i]:
            continue
        for d in range(uniforms.shape[1]):
            # The last uniform draws the size by inverting its cumulative weights.
            level = uniforms[i, d, n_labels] * total
            left = _last_possible_size(weights, prefix[n_labels])
            for j in range(n_sizes):
                level -= weights[j] * prefix[n_labels, j]
                if level < 0:
                    left = j
                    break
            for k in range(n_labels - 1, -1, -1):
                sets[i, d, k] = 0
                if left > 0 and uniforms[i, d, k] * prefix[k + 1, left] < on[k] * prefix[k, left - 1]:
                    sets[i, d, k] = 1
                    left -= 1


@kernel
def joint_marginals(scores, size_bias, todo, tilts, joint):
    """Write P(y_a = 1, y_k = 1) into joint (n_rows, n_labels, n_labels), the marginals on its diagonal.

    For each label a, a recurrence starts behind it with a in the set, and meets the table of suffixes at every later
    label k. All terms are positive; O(n_labels^2 * max_labels) per row.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights = np.empty(n_labels), np.empty(n_labels), np.empty(n_sizes)
    prefix, suffix = np.empty((n_labels + 1, n_sizes)), np.zeros((n_labels + 1, n_sizes + 1))
    with_a = np.empty(n_sizes)
    for i in range(scores.shape[0]):
        if not todo[i]:
            continue
        total, _ = _tilted_mass(scores[i], size_bias, tilts[i], on, off, weights, prefix)
        todo[i] = total < SAFE_TOTAL
        if todo[i]:
            continue
        for j in range(n_sizes):
            suffix[n_labels, j] = weights[j] / total
        # suffix[k, j]: weight of all ways to go on from j labels among the first k. Column n_sizes stays 0: a set of
        # more than max_labels labels weighs nothing.
        for k in range(n_labels - 1, -1, -1):
            for j in range(n_sizes):
                suffix[k, j] = off[k] * suffix[k + 1, j] + on[k] * suffix[k + 1, j + 1]
        # with_a[j]: mass of j labels among those before k, label a being one of them.
        for a in range(n_labels):
            joint[i, a, a] = min(on[a] * _overlap(prefix[a], suffix[a + 1]), 1.0)
            with_a[0] = 0.0
            for j in range(1, n_sizes):
                with_a[j] = on[a] * prefix[a, j - 1]
            for k in range(a + 1, n_labels):
                joint[i, a, k] = joint[i, k, a] = min(on[k] * _overlap(with_a, suffix[k + 1]), 1.0)
                _step(with_a, on[k], off[k])


@kernel
def any_of(scores, size_bias, groups, todo, tilts, probs):
    """Write the probability of at least one label of a group, groups (n_rows, n_labels) of booleans -> (n_rows,).

    Sets with and sets without a label of the group have a recurrence each: 1 - P(none) would lose a tiny probability.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights = np.empty(n_labels), np.empty(n_labels), np.empty(n_sizes)
    none, some = np.empty(n_sizes), np.empty(n_sizes)
    for i in range(scores.shape[0]):
        if not todo[i]:
            continue
        fill_odds(scores[i], 0.0, tilts[i], on, off)
        fill_weights(size_bias, tilts[i], weights)
        none[:], some[:] = 0.0, 0.0
        none[0] = 1.0
        for k in range(n_labels):
            # A set that has a label of the group keeps it; one without may still get label k, if that is in the group.
            _step(some, on[k], off[k])
            if not groups[i, k]:
                _step(none, on[k], off[k])
                continue
            for j in range(n_sizes - 1, -1, -1):
                if j > 0:
                    some[j] += on[k] * none[j - 1]
                none[j] *= off[k]
        with_some, with_none = 0.0, 0.0
        for j in range(n_sizes):
            with_some += weights[j] * some[j]
            with_none += weights[j] * none[j]
        todo[i] = with_some + with_none < SAFE_TOTAL
        if not todo[i]:
            probs[i] = with_some / (with_some + with_none)


@kernel
def entropy(scores, size_bias, todo, tilts, entropies):
    """Write the entropy in nats (n_rows,): that of the size, plus that of each label given how many are left to place.

    The chain rule, in the order in which `sample` draws. All terms are positive, so nothing cancels where the entropy
    is near 0.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights = np.empty(n_labels), np.empty(n_labels), np.empty(n_sizes)
    prefix, suffix, pmf = np.empty((n_labels + 1, n_sizes)), np.zeros(n_sizes + 1), np.empty(n_sizes)
    for i in range(scores.shape[0]):
        if not todo[i]:
            continue
        total, _ = _tilted_mass(scores[i], size_bias, tilts[i], on, off, weights, prefix)
        todo[i] = total < SAFE_TOTAL
        if todo[i]:
            continue
        for j in range(n_sizes):
            suffix[j] = weights[j] / total
            pmf[j] = suffix[j] * prefix[n_labels, j]
        result = entropy_of_pmf(pmf)
        for k in range(n_labels - 1, -1, -1):
            for j in range(n_sizes):
                if j > 0 and prefix[k + 1, j] > 0:
                    # Label k is drawn with j labels to place, which happens with probability prefix * suffix. The less
                    # likely of its two outcomes has full relative precision, which 1 - the other would not have.
                    less_likely = min(on[k] * prefix[k, j - 1], off[k] * prefix[k, j]) / prefix[k + 1, j]
                    result += prefix[k + 1, j] * suffix[j] * entropy_of_choice(less_likely)
            for j in range(n_sizes):
                suffix[j] = off[k] * suffix[j] + on[k] * suffix[j + 1]  # ascending, so suffix[j + 1] is still old
        entropies[i] = result


@kernel
def entropy_of_pmf(pmf):
    """Entropy in nats of probabilities; log of the likeliest is log1p(-sum of the others), exact even near 1."""
    likeliest = np.argmax(pmf)
    result, others = 0.0, 0.0
    for j in range(pmf.shape[0]):
        if j != likeliest and pmf[j] > 0:
            result -= pmf[j] * math.log(pmf[j])
            others += pmf[j]
    return result - pmf[likeliest] * math.log1p(-others)


@kernel
def entropy_of_choice(less_likely):
    """Entropy in nats of two outcomes, by the probability of the less likely one."""
    if less_likely == 0.0:
        return 0.0
    return -less_likely * math.log(less_likely) - (1.0 - less_likely) * math.log1p(-less_likely)


@kernel
def _tilted_mass(scores, size_bias, tilt, on, off, weights, mass):
    """Total weight of the sizes, and log_scale: log Z is log(total) + log_scale.

    Fills on, off and weights. Fills mass with the pmf f after k labels in row k % len(mass): with n_labels + 1 rows it
    keeps the whole table, with two rows only the last step.
    """
    log_scale = fill_odds(scores, 0.0, tilt, on, off) + fill_weights(size_bias, tilt, weights)
    return _fill_mass(on, off, weights, mass), log_scale


@kernel
def fill_odds(scores, pivot, tilt, on, off):
    """Write the probabilities on and off of each label under scores - pivot + tilt; returns -sum_k log off_k.

    With one of the scores as pivot, differences from it are exact for scores nearby, however large they are.
    """
    log_scale, product = 0.0, 1.0
    for k in range(scores.shape[0]):
        x = (scores[k] - pivot) + tilt
        # Both probabilities from exp(-|x|), which can't overflow; 1 - on would lose a small off.
        small = math.exp(-abs(x))
        likely = 1.0 / (1.0 + small)
        if x > 0:
            on[k], off[k] = likely, small * likely
            log_scale += x
        else:
            on[k], off[k] = small * likely, likely
        # -log off = max(x, 0) + log(1 + small). One logarithm for 512 factors of at most 2: no overflow below 2**1024.
        product *= 1.0 + small
        if k % 512 == 511:
            log_scale += math.log(product)
            product = 1.0
    return log_scale + math.log(product)


@kernel
def _fill_mass(on, off, weights, mass):
    """Run the recurrence over all labels, filling mass; returns the total weight."""
    n_rows, n_sizes = mass.shape
    mass[0] = 0.0
    mass[0, 0] = 1.0
    for k in range(on.shape[0]):
        before, after = mass[k % n_rows], mass[(k + 1) % n_rows]
        after[0] = off[k] * before[0]
        for j in range(1, n_sizes):
            after[j] = off[k] * before[j] + on[k] * before[j - 1]
    total = 0.0
    last = mass[on.shape[0] % n_rows]
    for j in range(n_sizes):
        total += weights[j] * last[j]
    return total


@kernel
def _step(mass, on, off):
    """Take one label into the pmf mass (n_sizes,), in place: descending j, so that mass[j - 1] is still the old one."""
    for j in range(mass.shape[0] - 1, 0, -1):
        mass[j] = off * mass[j] + on * mass[j - 1]
    mass[0] *= off


@kernel
def _overlap(prefix, suffix):
    """Weight of the sets that hold the label between prefix and suffix, divided by the label's own on."""
    overlap = 0.0
    for j in range(prefix.shape[0] - 1):
        overlap += prefix[j] * suffix[j + 1]
    return overlap


@kernel_part
def _heaviest_size(size_bias, tilt):
    """The size j with the largest size_bias[j] - tilt j, by differences: huge equal biases would swallow the tilt."""
    heaviest = 0
    for j in range(1, size_bias.shape[0]):
        if size_bias[heaviest] == -np.inf or _log_size_weight(size_bias, tilt, j, heaviest) > 0.0:
            heaviest = j
    return heaviest


@kernel_part
def _log_size_weight(size_bias, tilt, size, heaviest):
    """size_bias[size] - size_bias[heaviest] - tilt (size - heaviest), rounded once.

    The three terms may be near 1e5 and cancel to a number that must be right to 1e-12. So the rounding errors of the
    two additions are added back. The product is exact, since a tilt is a multiple of 1/64 (see `_tilts_to_mode`).
    """
    if size_bias[size] == -np.inf:
        return -np.inf
    difference, first_error = two_sum(size_bias[size], -size_bias[heaviest])
    result, second_error = two_sum(difference, -tilt * (size - heaviest))
    return result + (first_error + second_error)


@kernel_part
def two_sum(a, b):
    """The rounded sum of two numbers and its exact rounding error (Knuth's TwoSum)."""
    rounded = a + b
    kept = rounded - a
    return rounded, (a - (rounded - kept)) + (b - kept)


@kernel
def _tilts_to_mode(descending, size_bias):
    tilts = np.empty(len(descending))
    for i in range(len(descending)):
        pivot, rest = tilt_towards(descending[i], mode_size(descending[i], size_bias))
        tilt = rest - pivot
        # A multiple of 1/64 below 1e12 has at most 46 bits, which leaves 7 for a size: their product is exact (see
        # _log_size_weight).
        tilts[i] = math.floor(tilt * 64.0 + 0.5) / 64.0 if abs(tilt) < 1e12 else tilt
    return tilts


@kernel
def tilt_towards(descending, size):
    """A score of the row, and a tilt relative to it, under which the expected number of labels is within 1/2 of size.

    `descending` holds the scores of a row, the highest first. The expected number is a staircase in the tilt, on which
    Newton's method stalls: bisect between the scores on both sides of the step.
    """
    # At the ends of the bracket, all labels on one side have probabilities below exp(-2) / n_labels: together they
    # count for less than 1/2.
    n_labels = descending.shape[0]
    pivot, margin = descending[max(size, 1) - 1], math.log(n_labels) + 2.0
    low, high = -margin, (pivot - descending[min(size, n_labels - 1)]) + margin
    tilt = 0.0
    # It need not be exact: any tilt in this range keeps the mass at the size that matters.
    for _ in range(100):  # halves a bracket of 1e30 to less than 1
        tilt = 0.5 * (low + high)
        expected = 0.0
        for k in range(n_labels):
            expected += 1.0 / (1.0 + math.exp(-((descending[k] - pivot) + tilt)))
        if abs(expected - size) < 0.5:
            break
        if expected < size:
            low = tilt
        else:
            high = tilt
    return pivot, tilt


@kernel
def _log_prob_of_likeliest(scores, tilt):
    """Log-probability of the likeliest set of independent labels: the sum of log max(on_k, off_k)."""
    result = 0.0
    for k in range(scores.shape[0]):
        result -= math.log1p(math.exp(-abs(scores[k] + tilt)))
    return result


@kernel
def _last_possible_size(weights, mass):
    """The largest size with any weight: the draw where rounding leaves a rest of the total after the last size."""
    for j in range(weights.shape[0] - 1, -1, -1):
        if weights[j] * mass[j] > 0:
            return j
    return 0
