"""Recurrences over a forest of labels in which a label implies its parent: O(n_labels) per row.

Labels come in an order of places in which parents precede their children: `order[place]` is a label, `parents[place]`
the place of its parent, and n_labels stands for the parent of all roots, which is always present and weighs 1. The sets
that hold a label v, restricted to the labels below it, weigh

    Z_in(v) = exp(s_v) prod over children c of (1 + Z_in(c))

so that a label is present, given that its parent is, with probability Z_in / (1 + Z_in) = sigmoid(log Z_in), whatever
else is present. Upward once for Z_in, downward once for the products of these probabilities.

`known` (n_rows, n_labels) holds what is known of the labels, or has no rows. A label known to be present, or with such
a label below it, must be present: it contributes the factor Z_in instead of 1 + Z_in. One known to be absent
contributes 1.
"""

import math

import numpy as np

from mlrh._parallel import kernel
from mlrh.spaces._kernels.plain import entropy_of_choice

FREE, MUST, ABSENT = 0, 1, 2
FULL = 1e150  # of a product of factors of at most 2: its logarithm is taken long before it overflows


@kernel
def expectations(scores, known, order, parents, log_partition, marginals):
    """Write the log-partition and the marginals; -inf and NaN where no set agrees with what is known."""
    n_labels = scores.shape[1]
    high, low, product, state = _buffers(n_labels)
    share = np.empty(n_labels + 1)
    for i in range(scores.shape[0]):
        if not _upward(scores[i], row_of(known, i), order, parents, high, low, product, state):
            log_partition[i] = -np.inf
            marginals[i] = np.nan
            continue
        log_partition[i] = high[n_labels] + low[n_labels]
        share[n_labels] = 1.0
        for place in range(n_labels):
            share[place] = share[parents[place]] * _probability(high[place], state[place])
            marginals[i, order[place]] = share[place]


@kernel
def curvature(scores, known, order, parents, direction, d_marginals):
    """Write the derivatives of the marginals as the scores move along the direction.

    d log Z_in(v) = d_v + the sum over children c of sigmoid(log Z_in(c)) d log Z_in(c), and downward the product rule.
    """
    n_labels = scores.shape[1]
    high, low, product, state = _buffers(n_labels)
    share, d_share, d_inside = np.empty(n_labels + 1), np.empty(n_labels + 1), np.empty(n_labels + 1)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, high, low, product, state)
        d_inside[:] = 0.0
        for place in range(n_labels - 1, -1, -1):
            d_inside[place] += direction[i, order[place]]
            d_inside[parents[place]] += _probability(high[place], state[place]) * d_inside[place]
        share[n_labels], d_share[n_labels] = 1.0, 0.0
        for place in range(n_labels):
            own, parent = _probability(high[place], state[place]), parents[place]
            # p (1 - p), from the exponential itself: 1 - p would be 0 from log-weights of about 37 on.
            small = math.exp(-abs(high[place]))
            variance = small / (1.0 + small) ** 2 if state[place] == FREE else 0.0
            d_share[place] = d_share[parent] * own + share[parent] * variance * d_inside[place]
            share[place] = share[parent] * own
            d_marginals[i, order[place]] = d_share[place]


@kernel
def mode(scores, known, order, parents, sets):
    """Write the most probable sets: a label is taken with its parent if the best set from it down weighs more than 1.

    The best set from v down weighs s_v plus the positive ones of its children. At exactly 0 the label is left out, so
    that ties go to the smaller set.
    """
    n_labels = scores.shape[1]
    high, low, product, state = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _begin(high, low, product, state)
        row = row_of(known, i)
        for place in range(n_labels - 1, -1, -1):
            _finish(high, low, product, place, scores[i, order[place]])
            parent = parents[place]
            if row.shape[0] > 0:
                note(row[order[place]], place, parent, state)
            if state[place] == MUST or (state[place] == FREE and high[place] > 0):
                _add(high, low, parent, high[place], low[place])
        for place in range(n_labels):
            parent = parents[place]
            is_taken = state[place] == MUST or (state[place] == FREE and high[place] > 0)
            has_parent = parent == n_labels or sets[i, order[parent]] == 1
            sets[i, order[place]] = is_taken and has_parent


@kernel
def log_prob(scores, known, order, parents, sets, log_probs):
    """Write the log-probability of one set per row: a sum over the labels whose parent is in the set.

    A label adds log sigmoid(x) where it is in the set and log sigmoid(-x) where not, with x = log Z_in: no difference
    of large numbers occurs.
    """
    n_labels = scores.shape[1]
    high, low, product, state = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, high, low, product, state)
        result = 0.0
        for place in range(n_labels):
            parent = parents[place]
            has_parent = parent == n_labels or sets[i, order[parent]] == 1
            is_in = sets[i, order[place]] == 1
            if is_in and (not has_parent or state[place] == ABSENT):
                result = -np.inf
            if not is_in and state[place] == MUST:
                result = -np.inf
            if has_parent and state[place] == FREE:
                x = high[place] if is_in else -high[place]
                result += min(x, 0.0) - math.log1p(math.exp(-abs(x)))
        log_probs[i] = result


@kernel
def entropy(scores, known, order, parents, entropies):
    """Write the entropies: by the chain rule, P(parent) times the entropy of each label given its parent."""
    n_labels = scores.shape[1]
    high, low, product, state = _buffers(n_labels)
    share = np.empty(n_labels + 1)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, high, low, product, state)
        share[n_labels] = 1.0
        result = 0.0
        for place in range(n_labels):
            parent = share[parents[place]]
            share[place] = parent * _probability(high[place], state[place])
            if state[place] == FREE:
                small = math.exp(-abs(high[place]))
                result += parent * entropy_of_choice(small / (1.0 + small))
        entropies[i] = result


@kernel
def sample(scores, known, order, parents, uniforms, sets):
    """Write one set per row of uniforms (n_rows, n_draws, n_labels) into sets of that shape: parents first."""
    n_labels = scores.shape[1]
    high, low, product, state = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, high, low, product, state)
        for draw in range(uniforms.shape[1]):
            for place in range(n_labels):
                parent = parents[place]
                has_parent = parent == n_labels or sets[i, draw, order[parent]] == 1
                is_drawn = uniforms[i, draw, place] < _probability(high[place], state[place])
                sets[i, draw, order[place]] = has_parent and is_drawn


@kernel
def swap_for_ancestors(order, parents, sets):
    """Swap every label whose parent is missing for its highest missing ancestor, in place; sizes stay.

    Parents come first, so the labels that were looked at before are in order already.
    """
    n_labels = order.shape[0]
    for i in range(sets.shape[0]):
        for place in range(n_labels):
            if sets[i, order[place]] == 1:
                highest, ancestor = place, parents[place]
                while ancestor < n_labels:
                    if sets[i, order[ancestor]] == 0:
                        highest = ancestor
                    ancestor = parents[ancestor]
                sets[i, order[place]] = 0
                sets[i, order[highest]] = 1


@kernel
def _buffers(n_labels):
    """Log Z_in as an unrounded sum high + low, a product of factors, and what is known, for every place."""
    return np.empty(n_labels + 1), np.empty(n_labels + 1), np.empty(n_labels + 1), np.empty(n_labels + 1, np.int8)


@kernel
def row_of(known, i):
    return known[i] if known.shape[0] > 0 else np.empty(0, np.int8)


@kernel
def _begin(high, low, product, state):
    high[:] = 0.0
    low[:] = 0.0
    product[:] = 1.0
    state[:] = FREE


@kernel
def _upward(scores, known, order, parents, high, low, product, state):
    """Fill high and low with log Z_in, and state; whether any set agrees with what is known.

    log Z_in(v) = s_v + the sum over children of log(1 + Z_in). Scores of 1e5 may cancel in it to a number that must be
    right to 1e-12, so the rounding errors of the sum are kept in `low`.
    """
    n_labels, is_possible = order.shape[0], True
    _begin(high, low, product, state)
    for place in range(n_labels - 1, -1, -1):
        parent = parents[place]
        _finish(high, low, product, place, scores[order[place]])
        if known.shape[0] > 0:
            is_possible &= note(known[order[place]], place, parent, state)
        x = high[place]
        if state[place] == MUST:
            _add(high, low, parent, x, low[place])
        elif state[place] == FREE:
            # log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)). The last terms are multiplied up, for one logarithm.
            if x > 0:
                _add(high, low, parent, x, low[place])
            product[parent] *= 1.0 + math.exp(-abs(x))
            if product[parent] > FULL:
                low[parent] += math.log(product[parent])
                product[parent] = 1.0
    low[n_labels] += math.log(product[n_labels])
    return is_possible


@kernel
def note(known, place, parent, state):
    """Write the state of a place from what is known of its label and of those below; whether the two agree."""
    if known == 0:
        agrees = state[place] != MUST
        state[place] = ABSENT
        return agrees
    if known == 1:
        state[place] = MUST
    if state[place] == MUST:
        state[parent] = MUST
    return True


@kernel
def _finish(high, low, product, place, score):
    """Complete the sum of a place with its own score, rounded in high and the rest in low."""
    if product[place] > 1.0:
        low[place] += math.log(product[place])
    _add(high, low, place, score, 0.0)
    rounded = high[place] + low[place]
    low[place] -= rounded - high[place]
    high[place] = rounded


@kernel
def _add(high, low, place, more, rest):
    """Add more + rest to the sum of a place; the rounding error of the larger parts goes to low (Knuth's TwoSum)."""
    total = high[place] + more
    kept = total - high[place]
    low[place] += (high[place] - (total - kept)) + (more - kept) + rest
    high[place] = total


@kernel
def _probability(x, state):
    """Of a label, given that its parent is present."""
    if state == MUST:
        return 1.0
    if state == ABSENT:
        return 0.0
    # From exp(-|x|), which can't overflow.
    small = math.exp(-abs(x))
    return 1.0 / (1.0 + small) if x > 0 else small / (1.0 + small)
