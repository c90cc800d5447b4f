"""Recurrences over a forest of labels in which a label implies its parent: O(n_labels) per row.

Labels come in an order of places in which parents precede their children: `order[place]` is a label, `parents[place]`
the place of its parent, and n_labels stands for the parent of all roots, which is always present and weighs 1. The sets
that hold a label v, restricted to the labels below it, weigh

    Z_in(v) = exp(s_v) prod over children c of (1 + Z_in(c))

so that a label is present, given that its parent is, with probability Z_in / (1 + Z_in) = sigmoid(log Z_in), whatever
else is present. Upward once for Z_in, downward once for the products of these probabilities. `levels` are the places
where each depth begins, and n_labels at the end: the exponentials of a level are taken eight at a time.

`known` (n_rows, n_labels) holds what is known of the labels, or has no rows. A label known to be present, or with such
a label below it, must be present: it contributes the factor Z_in instead of 1 + Z_in. One known to be absent
contributes 1.
"""

import math

import numpy as np

from mlrh._parallel import kernel
from mlrh._simd import LANES, exp_minus_abs, load, minimum, splat, store, where_positive
from mlrh.spaces._kernels.plain import entropy_of_choice, two_sum

FREE, MUST, ABSENT = 0, 1, 2
FULL = 1e150  # of a product of factors of at most 2: its logarithm is taken long before it overflows


@kernel
def expectations(scores, known, order, parents, levels, log_partition, marginals):
    """Write the log-partition and the marginals; -inf and NaN where no set agrees with what is known."""
    n_labels = scores.shape[1]
    high, low, product, state, chance = _buffers(n_labels)
    for i in range(scores.shape[0]):
        if not _upward(scores[i], row_of(known, i), order, parents, levels, high, low, product, state, chance):
            log_partition[i] = -np.inf
            marginals[i] = np.nan
            continue
        log_partition[i] = _log_weight(high[n_labels], low[n_labels], product[n_labels])
        # Downward: from the probability given the parent to the probability.
        chance[n_labels] = 1.0
        for place in range(n_labels):
            chance[place] *= chance[parents[place]]
            marginals[i, order[place]] = chance[place]


@kernel
def curvature(scores, known, order, parents, levels, direction, d_marginals):
    """Write the derivatives of the marginals as the scores move along the direction.

    d log Z_in(v) = d_v + the sum over children c of sigmoid(log Z_in(c)) d log Z_in(c), and downward the product rule.
    """
    n_labels = scores.shape[1]
    high, low, product, state, chance = _buffers(n_labels)
    share, d_share, d_inside = np.empty(n_labels + 1), np.empty(n_labels + 1), np.empty(n_labels + 1)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, levels, high, low, product, state, chance)
        d_inside[:] = 0.0
        for place in range(n_labels - 1, -1, -1):
            d_inside[place] += direction[i, order[place]]
            d_inside[parents[place]] += chance[place] * d_inside[place]
        share[n_labels], d_share[n_labels] = 1.0, 0.0
        for place in range(n_labels):
            parent = parents[place]
            # p (1 - p), from the exponential itself: 1 - p would be 0 from log-weights of about 37 on.
            small = math.exp(-abs(_log_weight(high[place], low[place], product[place])))
            variance = small / (1.0 + small) ** 2 if state[place] == FREE else 0.0
            d_share[place] = d_share[parent] * chance[place] + share[parent] * variance * d_inside[place]
            share[place] = share[parent] * chance[place]
            d_marginals[i, order[place]] = d_share[place]


@kernel
def mode(scores, known, order, parents, sets):
    """Write the most probable sets: a label is taken with its parent if the best set from it down weighs more than 1.

    The best set from v down weighs s_v plus the positive ones of its children. At exactly 0 the label is left out, so
    that ties go to the smaller set.
    """
    n_labels = scores.shape[1]
    high, low, product, state, _ = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _begin(high, low, product, state)
        row = row_of(known, i)
        for place in range(n_labels - 1, -1, -1):
            parent = parents[place]
            x, error = two_sum(high[place], scores[i, order[place]])
            high[place], low[place] = two_sum(x, low[place] + error)
            if row.shape[0] > 0:
                note(row[order[place]], place, parent, state)
            if state[place] == MUST or (state[place] == FREE and high[place] > 0):
                high[parent], error = two_sum(high[parent], high[place])
                low[parent] += error + low[place]
        for place in range(n_labels):
            parent = parents[place]
            is_taken = state[place] == MUST or (state[place] == FREE and high[place] > 0)
            has_parent = parent == n_labels or sets[i, order[parent]] == 1
            sets[i, order[place]] = is_taken and has_parent


@kernel
def log_prob(scores, known, order, parents, levels, sets, log_probs):
    """Write the log-probability of one set per row: a sum over the labels whose parent is in the set.

    A label adds log sigmoid(x) where it is in the set and log sigmoid(-x) where not, with x = log Z_in: no difference
    of large numbers occurs.
    """
    n_labels = scores.shape[1]
    high, low, product, state, chance = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, levels, high, low, product, state, chance)
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
                x = _log_weight(high[place], low[place], product[place])
                x = x if is_in else -x
                result += min(x, 0.0) - math.log1p(math.exp(-abs(x)))
        log_probs[i] = result


@kernel
def entropy(scores, known, order, parents, levels, entropies):
    """Write the entropies: by the chain rule, P(parent) times the entropy of each label given its parent."""
    n_labels = scores.shape[1]
    high, low, product, state, chance = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, levels, high, low, product, state, chance)
        chance[n_labels] = 1.0
        result = 0.0
        for place in range(n_labels):
            parent = chance[parents[place]]
            chance[place] *= parent
            if state[place] == FREE:
                small = math.exp(-abs(_log_weight(high[place], low[place], product[place])))
                result += parent * entropy_of_choice(small / (1.0 + small))
        entropies[i] = result


@kernel
def sample(scores, known, order, parents, levels, uniforms, sets):
    """Write one set per row of uniforms (n_rows, n_draws, n_labels) into sets of that shape: parents first."""
    n_labels = scores.shape[1]
    high, low, product, state, chance = _buffers(n_labels)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), order, parents, levels, high, low, product, state, chance)
        for draw in range(uniforms.shape[1]):
            for place in range(n_labels):
                parent = parents[place]
                has_parent = parent == n_labels or sets[i, draw, order[parent]] == 1
                is_drawn = uniforms[i, draw, place] < chance[place]
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
    """For every place high, low and product, with log Z_in = high + low + log(product), what is known, and a chance.

    The chance is the probability of the label given its parent. Lengths are in whole vectors of LANES.
    """
    n = (n_labels // LANES + 1) * LANES
    return np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.int8), np.empty(n)


@kernel
def row_of(known, i):
    """What is known of a row; nothing where nothing is known of any."""
    return known[i] if known.shape[0] > 0 else np.empty(0, np.int8)


@kernel
def _begin(high, low, product, state):
    high[:] = 0.0
    low[:] = 0.0
    product[:] = 1.0
    state[:] = FREE


@kernel
def _upward(scores, known, order, parents, levels, high, low, product, state, chance):
    """Fill high, low, product, state and chance; returns whether any set agrees with what is known.

    log Z_in(v) = s_v + the sum over children of log(1 + Z_in). Scores of 1e5 may cancel in it to a number that must be
    right to 1e-12: so the large parts are added up in `high` and their rounding errors in `low`. The other parts stay
    factors of a product, which needs no logarithm.
    """
    n_labels, is_possible = order.shape[0], True
    _begin(high, low, product, state)
    factors = np.empty(len(high))
    for level in range(len(levels) - 2, -1, -1):
        first, last = levels[level], levels[level + 1] - 1
        for place in range(first, last + 1):
            total, error = two_sum(high[place], scores[order[place]])
            high[place], low[place] = two_sum(total, low[place] + error)
        _fill_chances(high, product, first, last, chance, factors)
        for place in range(last, first - 1, -1):
            parent, factor = parents[place], factors[place]
            is_likely = chance[place] > 0.5
            more, rest = high[place] if is_likely else 0.0, low[place] if is_likely else 0.0
            if known.shape[0] > 0:
                is_possible &= note(known[order[place]], place, parent, state)
                if state[place] == MUST:
                    more, rest, factor = high[place], low[place], product[place]
                elif state[place] == ABSENT:
                    more, rest, factor = 0.0, 0.0, 1.0
            high[parent], error = two_sum(high[parent], more)
            low[parent] += error + rest
            factor *= product[parent]
            if factor > FULL:
                low[parent] += math.log(factor)
                factor = 1.0
            product[parent] = factor
    if known.shape[0] > 0:
        for place in range(n_labels):
            if state[place] != FREE:
                chance[place] = 1.0 if state[place] == MUST else 0.0
    return is_possible


@kernel
def _fill_chances(high, product, first, last, chance, factors):
    """Write Z / (1 + Z) and the factor of 1 + Z that goes to the parent, for the places first to last and neighbours.

    With Z = product exp(high): where Z is above 1, 1 + Z = exp(high) * product (1 + 1 / Z), and the parent adds `high`
    to its own; elsewhere 1 + Z itself is the factor. exp(-|high|) can't overflow, and Z may be infinite.
    """
    shape = (len(high) // LANES, LANES)
    high_lanes, product_lanes = high.reshape(shape), product.reshape(shape)
    chance_lanes, factor_lanes = chance.reshape(shape), factors.reshape(shape)
    one = splat(1.0)
    for row in range(first // LANES, last // LANES + 1):
        x, own = load(high_lanes, row), load(product_lanes, row)
        small = exp_minus_abs(x)
        weight = where_positive(x, own / small, own * small)
        tail = minimum(weight, one / weight)
        likely = one / (one + tail)
        excess = weight - one
        store(chance_lanes, row, where_positive(excess, likely, tail * likely))
        store(factor_lanes, row, (one + tail) * where_positive(excess, own, one))


@kernel
def _log_weight(high, low, product):
    """log Z_in of a place."""
    return high + (low + math.log(product))


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
