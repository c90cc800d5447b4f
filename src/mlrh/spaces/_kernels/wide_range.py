"""The recurrences of `plain` in numbers with an integer exponent of their own: mantissa * 2**exponent.

For the rare rows, marked in `todo`, whose sizes lie too far apart for any tilt: slower, but with no limit of range. A
convex size_bias can do that: scores (1000, 0, -1000) with size_bias (1000, 0, 0, 1000) make all four sizes equally
probable, and under every tilt the mass of some size underflows. No tilt is needed here: the sums are the elementary
symmetric polynomials of exp(scores) themselves. A number is a pair (float, int); its mantissa is 0 or of magnitude in
[0.5, 1), and negative only in `curvature`. Scores and biases must be moderate (see `huge_numbers`).
"""

import numpy as np

from mlrh._parallel import kernel
from mlrh.spaces._kernels.plain import entropy_of_choice, entropy_of_pmf
from mlrh.spaces._kernels.wide_numbers import ONE, ZERO, exp, log, number, over, plus, ratio, times


@kernel
def sizes(scores, size_bias, todo, log_partition, pmf):
    """Write the log-partition and the probabilities of the sizes of the rows todo."""
    for i in np.flatnonzero(todo):
        mantissa, exponent = _prefix_table(scores[i], size_bias.shape[0])
        log_partition[i] = log(_size_masses(mantissa, exponent, size_bias, pmf[i]))


@kernel
def expectations(scores, size_bias, todo, log_partition, marginals, pmf):
    """Write the log-partition, the marginals and the probabilities of the sizes of the rows todo."""
    # The marginals are a by-product of the moments, here along no direction.
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    no_direction, no_bias_direction = np.zeros(n_labels), np.zeros(n_sizes)
    unused, unused_sizes = np.empty(n_labels), np.empty(n_sizes)
    sizes(scores, size_bias, todo, log_partition, pmf)
    for i in np.flatnonzero(todo):
        _moments(scores[i], size_bias, no_direction, no_bias_direction, marginals[i], unused, unused_sizes)


@kernel
def curvature(scores, size_bias, direction, bias_direction, todo, d_marginals, d_pmf):
    """Write the covariances of labels and sizes with u(y) = direction'y + bias_direction[|y|], for the rows todo."""
    unused = np.empty(scores.shape[1])
    for i in np.flatnonzero(todo):
        _moments(scores[i], size_bias, direction[i], bias_direction, unused, d_marginals[i], d_pmf[i])


@kernel
def log_prob(scores, size_bias, sets, todo, log_probs):
    """Write the log-probability of each of sets (n_rows, n_sets, n_labels) of the rows todo."""
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    for i in np.flatnonzero(todo):
        mantissa, exponent = _prefix_table(scores[i], n_sizes)
        total = _size_masses(mantissa, exponent, size_bias, np.empty(n_sizes))
        for s in range(sets.shape[1]):
            size = 0
            weight = ONE
            # A product of pairs neither overflows nor underflows, however many large scores a set has.
            for k in range(n_labels):
                if sets[i, s, k] == 1:
                    weight = times(weight, exp(scores[i, k]))
                    size += 1
            log_probs[i, s] = -np.inf
            if size < n_sizes and size_bias[size] > -np.inf:
                share = over(times(weight, exp(size_bias[size])), total)
                log_probs[i, s] = min(log(share), 0.0)


@kernel
def sample(scores, size_bias, uniforms, todo, sets):
    """Write one set per row of uniforms (n_rows, n_draws, n_labels + 1) for the rows todo."""
    pmf = np.empty(size_bias.shape[0])
    for i in np.flatnonzero(todo):
        mantissa, exponent = _prefix_table(scores[i], size_bias.shape[0])
        _size_masses(mantissa, exponent, size_bias, pmf)
        for d in range(uniforms.shape[1]):
            _sample_once(scores[i], mantissa, exponent, pmf, uniforms[i, d], sets[i, d])


@kernel
def joint_marginals(scores, size_bias, todo, joint):
    """Write P(y_a = 1, y_k = 1) into joint (n_rows, n_labels, n_labels) for the rows todo."""
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    for i in np.flatnonzero(todo):
        mantissa, exponent = _prefix_table(scores[i], n_sizes)
        suffix_m, suffix_e = _suffix_table(scores[i], size_bias)
        total = _size_masses(mantissa, exponent, size_bias, np.empty(n_sizes))
        for a in range(n_labels):
            weight = exp(scores[i, a])
            own = _overlap(mantissa[a], exponent[a], suffix_m[a + 1], suffix_e[a + 1])
            joint[i, a, a] = min(ratio(times(weight, own), total), 1.0)
            # with_m, with_e: sums over the sets that hold label a among the labels before k.
            with_m, with_e = np.zeros(n_sizes), np.zeros(n_sizes, np.int64)
            _add_shifted(with_m, with_e, weight, mantissa[a], exponent[a])
            for k in range(a + 1, n_labels):
                later = exp(scores[i, k])
                both = times(later, _overlap(with_m, with_e, suffix_m[k + 1], suffix_e[k + 1]))
                joint[i, a, k] = joint[i, k, a] = min(ratio(both, total), 1.0)
                _add_shifted(with_m, with_e, later, with_m, with_e)


@kernel
def any_of(scores, size_bias, groups, todo, probs):
    """Write the probability of at least one label of a group for the rows todo."""
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    for i in np.flatnonzero(todo):
        none_m, none_e = np.zeros(n_sizes), np.zeros(n_sizes, np.int64)
        some_m, some_e = np.zeros(n_sizes), np.zeros(n_sizes, np.int64)
        none_m[0], none_e[0] = ONE
        for k in range(n_labels):
            weight = exp(scores[i, k])
            # As in `plain.any_of`, but a label weighs exp(score) where it is in and 1 where it is out.
            _add_shifted(some_m, some_e, weight, some_m, some_e)
            if groups[i, k]:
                _add_shifted(some_m, some_e, weight, none_m, none_e)
            else:
                _add_shifted(none_m, none_e, weight, none_m, none_e)
        with_some, with_none = ZERO, ZERO
        for j in range(n_sizes):
            with_some = plus(with_some, times((some_m[j], some_e[j]), exp(size_bias[j])))
            with_none = plus(with_none, times((none_m[j], none_e[j]), exp(size_bias[j])))
        probs[i] = ratio(with_some, plus(with_some, with_none))


@kernel
def entropy(scores, size_bias, todo, entropies):
    """Write the entropy in nats (n_rows,) of the rows todo, by the same chain rule as `plain.entropy`."""
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    pmf = np.empty(n_sizes)
    for i in np.flatnonzero(todo):
        mantissa, exponent = _prefix_table(scores[i], n_sizes)
        suffix_m, suffix_e = _suffix_table(scores[i], size_bias)
        total = _size_masses(mantissa, exponent, size_bias, pmf)
        entropies[i] = entropy_of_pmf(pmf)
        for k in range(n_labels):
            weight = exp(scores[i, k])
            for j in range(1, n_sizes):
                either = (mantissa[k + 1, j], exponent[k + 1, j])
                if either[0] == 0.0:
                    continue
                # Given j labels to place among the first k + 1: label k is one of them, or not.
                taken = ratio(times((mantissa[k, j - 1], exponent[k, j - 1]), weight), either)
                left = ratio((mantissa[k, j], exponent[k, j]), either)
                reached = ratio(times(either, (suffix_m[k + 1, j], suffix_e[k + 1, j])), total)
                entropies[i] += reached * entropy_of_choice(min(taken, left))


@kernel
def _sample_once(scores, mantissa, exponent, pmf, uniforms, labels):
    """Write one set into labels (n_labels,), as `plain.sample` draws it."""
    n_labels = scores.shape[0]
    left = np.argmax(pmf)  # where rounding leaves a rest of the total after the last size
    level = uniforms[n_labels]
    for j in range(pmf.shape[0]):
        level -= pmf[j]
        if level < 0:
            left = j
            break
    for k in range(n_labels - 1, -1, -1):
        labels[k] = 0
        if left == 0:
            continue
        taken = times((mantissa[k, left - 1], exponent[k, left - 1]), exp(scores[k]))
        if uniforms[k] < ratio(taken, (mantissa[k + 1, left], exponent[k + 1, left])):
            labels[k] = 1
            left -= 1


@kernel
def _moments(scores, size_bias, direction, bias_direction, marginals, d_marginals, d_pmf):
    """Write the marginals of one row, and the covariances of labels and sizes with u, as `lanes.curvature` does."""
    n_labels, n_sizes = scores.shape[0], size_bias.shape[0]
    mantissa, exponent = _prefix_table(scores, n_sizes)
    u_mantissa, u_exponent = _prefix_moment_table(scores, direction, mantissa, exponent)
    pmf = np.empty(n_sizes)
    total = _size_masses(mantissa, exponent, size_bias, pmf)
    suffix_m, suffix_e = np.zeros(n_sizes + 1), np.zeros(n_sizes + 1, np.int64)
    suffix_um, suffix_ue = np.zeros(n_sizes + 1), np.zeros(n_sizes + 1, np.int64)
    # At the end of all labels the suffixes are the weights of the sizes, and their moments in u.
    mean = 0.0
    for j in range(n_sizes):
        weight = exp(size_bias[j])
        suffix_m[j], suffix_e[j] = weight
        suffix_um[j], suffix_ue[j] = times(weight, number(bias_direction[j]))
        moment = plus(
            times(weight, (u_mantissa[n_labels, j], u_exponent[n_labels, j])),
            times((suffix_um[j], suffix_ue[j]), (mantissa[n_labels, j], exponent[n_labels, j])),
        )
        d_pmf[j] = ratio(moment, total)
        mean += d_pmf[j]
    for j in range(n_sizes):
        d_pmf[j] -= mean * pmf[j]
    # Backwards through the labels: prefix tables meet the suffixes, which take one label in at each step. Unlike in
    # `lanes`, the suffixes are not divided by the total: `_ratio` does that at the end.
    for k in range(n_labels - 1, -1, -1):
        weight, step, centred = exp(scores[k]), number(direction[k]), number(direction[k] - mean)
        overlap, overlap_u = ZERO, ZERO
        for j in range(n_sizes):
            mass = (mantissa[k, j], exponent[k, j])
            up, up_u = (suffix_m[j + 1], suffix_e[j + 1]), (suffix_um[j + 1], suffix_ue[j + 1])
            overlap = plus(overlap, times(mass, up))
            overlap_u = plus(overlap_u, times(mass, plus(up_u, times(centred, up))))
            overlap_u = plus(overlap_u, times((u_mantissa[k, j], u_exponent[k, j]), up))
            shifted = times(weight, plus(up_u, times(step, up)))
            suffix_um[j], suffix_ue[j] = plus((suffix_um[j], suffix_ue[j]), shifted)
            suffix_m[j], suffix_e[j] = plus((suffix_m[j], suffix_e[j]), times(weight, up))
        marginals[k] = min(ratio(times(weight, overlap), total), 1.0)
        d_marginals[k] = ratio(times(weight, overlap_u), total)


@kernel
def _prefix_table(scores, n_sizes):
    """Mantissas and exponents (n_labels + 1, n_sizes); entry (k, j) is e_j of the exponentials of the first k scores.

    By e_j(1..k) = e_j(1..k-1) + exp(scores_k) e_{j-1}(1..k-1).
    """
    n_labels = scores.shape[0]
    mantissa, exponent = np.zeros((n_labels + 1, n_sizes)), np.zeros((n_labels + 1, n_sizes), np.int64)
    mantissa[0, 0], exponent[0, 0] = ONE
    for k in range(n_labels):
        weight = exp(scores[k])
        mantissa[k + 1, 0], exponent[k + 1, 0] = ONE
        for j in range(1, n_sizes):
            taken = times((mantissa[k, j - 1], exponent[k, j - 1]), weight)
            mantissa[k + 1, j], exponent[k + 1, j] = plus((mantissa[k, j], exponent[k, j]), taken)
    return mantissa, exponent


@kernel
def _suffix_table(scores, size_bias):
    """Mantissas and exponents (n_labels + 1, n_sizes + 1) of the weights of what may follow.

    Entry (k, j) is the sum over all ways to complete a set that has j of the first k labels.
    """
    n_labels, n_sizes = scores.shape[0], size_bias.shape[0]
    mantissa, exponent = np.zeros((n_labels + 1, n_sizes + 1)), np.zeros((n_labels + 1, n_sizes + 1), np.int64)
    for j in range(n_sizes):
        mantissa[n_labels, j], exponent[n_labels, j] = exp(size_bias[j])
    for k in range(n_labels - 1, -1, -1):
        weight = exp(scores[k])
        for j in range(n_sizes):
            taken = times(weight, (mantissa[k + 1, j + 1], exponent[k + 1, j + 1]))
            mantissa[k, j], exponent[k, j] = plus((mantissa[k + 1, j], exponent[k + 1, j]), taken)
    return mantissa, exponent


@kernel
def _add_shifted(mantissa, exponent, weight, other_m, other_e):
    """Add weight times the others, each moved up by one size, in place; the others may be the same arrays.

    Descending j, so that entry j - 1 of the others is still the old one.
    """
    for j in range(mantissa.shape[0] - 1, 0, -1):
        added = times(weight, (other_m[j - 1], other_e[j - 1]))
        mantissa[j], exponent[j] = plus((mantissa[j], exponent[j]), added)


@kernel
def _overlap(mantissa, exponent, suffix_m, suffix_e):
    """Weight of the sets that hold the label between prefix and suffix, divided by the label's own weight."""
    overlap = ZERO
    for j in range(mantissa.shape[0]):
        overlap = plus(overlap, times((mantissa[j], exponent[j]), (suffix_m[j + 1], suffix_e[j + 1])))
    return overlap


@kernel
def _prefix_moment_table(scores, direction, mantissa, exponent):
    """`_prefix_table` with every set weighted by the sum of its labels' direction."""
    n_labels, n_sizes = scores.shape[0], mantissa.shape[1]
    u_mantissa, u_exponent = np.zeros((n_labels + 1, n_sizes)), np.zeros((n_labels + 1, n_sizes), np.int64)
    for k in range(n_labels):
        weight, step = exp(scores[k]), number(direction[k])
        for j in range(1, n_sizes):
            gain = times(step, (mantissa[k, j - 1], exponent[k, j - 1]))
            gain = times(weight, plus((u_mantissa[k, j - 1], u_exponent[k, j - 1]), gain))
            u_mantissa[k + 1, j], u_exponent[k + 1, j] = plus((u_mantissa[k, j], u_exponent[k, j]), gain)
    return u_mantissa, u_exponent


@kernel
def _size_masses(mantissa, exponent, size_bias, pmf):
    """Write the probabilities of the sizes into pmf (n_sizes,); returns the partition as a pair."""
    n_labels, n_sizes = mantissa.shape[0] - 1, size_bias.shape[0]
    total = ZERO
    for j in range(n_sizes):
        total = plus(total, times((mantissa[n_labels, j], exponent[n_labels, j]), exp(size_bias[j])))
    for j in range(n_sizes):
        pmf[j] = ratio(times((mantissa[n_labels, j], exponent[n_labels, j]), exp(size_bias[j])), total)
    return total
