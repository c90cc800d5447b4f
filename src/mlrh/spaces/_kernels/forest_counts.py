"""Recurrences over a forest of labels that also count: leaves, labels, or several things in one number.

Places, `known` and states are those of `forest`. Every place has a step, and a set counts the sum of the steps of its
labels. The sets that hold a label v, restricted to the labels below it, have the polynomial

    P_v(z) = exp(s_v) z^step_v prod over children c of (1 + P_c(z))

whose coefficient k is the weight of the sets that count k. Counts above `cap` are dropped; with `saturate` they count
as cap, which then means "cap or more". Children are merged into their parent one by one, in descending places; prefixes
are what the parent was before each merge. The coefficients of one polynomial may lie e^(1e5) apart, so they are numbers
with an exponent of their own, and nothing is ever subtracted. With steps of 1 for leaves and 0 for other labels, all
merges together take O(n_labels * cap) operations.
"""

import numpy as np

from mlrh._parallel import kernel
from mlrh.spaces._kernels.forest import ABSENT, FREE, MUST, note, row_of
from mlrh.spaces._kernels.plain import entropy_of_pmf
from mlrh.spaces._kernels.wide_numbers import ONE, ZERO, exp, log, over, plus, ratio, times


@kernel
def counts(scores, known, order, parents, steps, cap, saturate, is_admissible, probs):
    """Write the probability of each count 0, ..., cap (n_rows, cap + 1) among the admissible ones.

    steps (n_rows or 1, n_labels) are by place.
    """
    n_labels = scores.shape[1]
    state, no_prefixes = np.empty(n_labels + 1, np.int8), np.empty(0, np.int64)
    for i in range(scores.shape[0]):
        own = steps[min(i, steps.shape[0] - 1)]
        offsets, _ = _layout(parents, own, cap)
        m, e = np.zeros(offsets[n_labels + 1]), np.zeros(offsets[n_labels + 1], np.int64)
        row = row_of(known, i)
        _upward(scores[i], row, order, parents, own, cap, saturate, offsets, m, e, state, no_prefixes, m, e)
        total = _total(m, e, offsets[n_labels:], is_admissible)
        probs[i] = 0.0
        for k in range(offsets[n_labels + 1] - offsets[n_labels]):
            if is_admissible[k]:
                at = offsets[n_labels] + k
                probs[i, k] = ratio((m[at], e[at]), total)


@kernel
def expectations(scores, known, order, parents, steps, cap, saturate, is_admissible, log_partition, marginals):
    """Write the log-partition and the marginals over the sets with an admissible count; steps (n_labels,) by place."""
    n_labels = scores.shape[1]
    offsets, prefixes = _layout(parents, steps, cap)
    m, e, prefix_m, prefix_e, state = _tables(offsets, prefixes)
    adjoint_m, adjoint_e = np.empty(len(m)), np.empty(len(m), np.int64)
    forest = (order, parents, steps, cap, saturate, offsets)
    for i in range(scores.shape[0]):
        is_possible = _upward(scores[i], row_of(known, i), *forest, m, e, state, prefixes, prefix_m, prefix_e)
        total = _total(m, e, offsets[n_labels:], is_admissible)
        if not is_possible or total[0] == 0.0:
            log_partition[i] = -np.inf
            marginals[i] = np.nan
            continue
        log_partition[i] = log(total)
        tables = (m, e, state, prefixes, prefix_m, prefix_e, adjoint_m, adjoint_e)
        _downward(*forest, *tables, is_admissible, total, False)
        for place in range(n_labels):
            # All merges are undone: what is left is the derivative in exp(s_v), at the label's own step.
            mass = ZERO
            if steps[place] <= cap or saturate:
                at = offsets[place] + min(steps[place], cap)
                mass = times(exp(scores[i, order[place]]), (adjoint_m[at], adjoint_e[at]))
            # Rounding must not make a label likelier than its parent.
            highest = 1.0 if parents[place] == n_labels else marginals[i, order[parents[place]]]
            marginals[i, order[place]] = min(ratio(mass, total), highest)


@kernel
def entropy(scores, known, order, parents, steps, cap, saturate, is_admissible, entropies):
    """Write the entropies over the sets with an admissible count, by the chain rule in the order of `sample`."""
    n_labels = scores.shape[1]
    offsets, prefixes = _layout(parents, steps, cap)
    m, e, prefix_m, prefix_e, state = _tables(offsets, prefixes)
    adjoint_m, adjoint_e = np.empty(len(m)), np.empty(len(m), np.int64)
    forest = (order, parents, steps, cap, saturate, offsets)
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), *forest, m, e, state, prefixes, prefix_m, prefix_e)
        total = _total(m, e, offsets[n_labels:], is_admissible)
        tables = (m, e, state, prefixes, prefix_m, prefix_e, adjoint_m, adjoint_e)
        entropies[i] = _downward(*forest, *tables, is_admissible, total, True)


@kernel
def log_prob(scores, known, order, parents, steps, cap, saturate, is_admissible, sets, log_probs):
    """Write the log-probability of one set per row, which must be possible: its weight over that of all."""
    n_labels = scores.shape[1]
    offsets, _ = _layout(parents, steps, cap)
    state, no_prefixes = np.empty(n_labels + 1, np.int8), np.empty(0, np.int64)
    m, e = np.empty(offsets[n_labels + 1]), np.empty(offsets[n_labels + 1], np.int64)
    for i in range(scores.shape[0]):
        row = row_of(known, i)
        _upward(scores[i], row, order, parents, steps, cap, saturate, offsets, m, e, state, no_prefixes, m, e)
        weight = ONE
        for label in range(n_labels):
            if sets[i, label] == 1:
                weight = times(weight, exp(scores[i, label]))
        share = over(weight, _total(m, e, offsets[n_labels:], is_admissible))
        log_probs[i] = min(log(share), 0.0)


@kernel
def sample(scores, known, order, parents, steps, cap, saturate, is_admissible, uniforms, sets):
    """Write one set per row of uniforms (n_rows, n_draws, n_labels + 1) into sets (n_rows, n_draws, n_labels).

    Draws the count of all, and then for every label, parents first, whether it is in and what it and the labels below
    it count: the rest is left to the children of the same parent that come later.
    """
    n_labels = scores.shape[1]
    offsets, prefixes = _layout(parents, steps, cap)
    m, e, prefix_m, prefix_e, state = _tables(offsets, prefixes)
    forest = (order, parents, steps, cap, saturate, offsets)
    left = np.empty(n_labels + 1, np.int64)  # the count that a place still has to share out, -1 where it is absent
    for i in range(scores.shape[0]):
        _upward(scores[i], row_of(known, i), *forest, m, e, state, prefixes, prefix_m, prefix_e)
        total = _total(m, e, offsets[n_labels:], is_admissible)
        for draw in range(uniforms.shape[1]):
            threshold = uniforms[i, draw, n_labels]
            for k in range(offsets[n_labels + 1] - offsets[n_labels]):
                at = offsets[n_labels] + k
                if is_admissible[k] and m[at] > 0:
                    left[n_labels] = k  # the last one stays where rounding leaves a rest
                    threshold -= ratio((m[at], e[at]), total)
                    if threshold < 0:
                        break
            for place in range(n_labels):
                parent = parents[place]
                left[place] = -1
                if left[parent] >= 0:
                    weights_m, weights_e, rests, owns = _options(
                        place, parent, left[parent], cap, saturate, offsets, m, e, state, prefixes, prefix_m, prefix_e
                    )
                    left[parent], left[place] = _drawn(weights_m, weights_e, rests, owns, uniforms[i, draw, place])
                sets[i, draw, order[place]] = left[place] >= 0


@kernel
def heaviest(scores, known, order, parents, steps, cap, saturate, is_admissible, sets, values, is_tied):
    """Write the heaviest set with an admissible count, the smaller one of equal weight, and its log-weight.

    The value is -inf where there is no such set. is_tied says whether another set has the same weight and size; then
    the caller must choose.
    """
    n_labels = scores.shape[1]
    offsets, prefixes = _layout(parents, steps, cap)
    after = _after(parents, offsets, prefixes, cap)
    n = offsets[n_labels + 1]
    best, sizes, ties = np.empty(n), np.empty(n, np.int64), np.empty(n, np.bool_)
    rests, owns = np.empty(after[n_labels], np.int64), np.empty(after[n_labels], np.int64)
    state, left = np.empty(n_labels + 1, np.int8), np.empty(n_labels + 1, np.int64)
    for i in range(scores.shape[0]):
        _start_best(scores[i], order, steps, cap, saturate, offsets, best, sizes, ties)
        state[:] = FREE
        row, is_possible = row_of(known, i), True
        for place in range(n_labels - 1, -1, -1):
            if row.shape[0] > 0:
                is_possible &= note(row[order[place]], place, parents[place], state)
            n_before = prefixes[place + 1] - prefixes[place]
            _merge_best(
                place, parents[place], n_before, cap, saturate, offsets, after, state, best, sizes, ties, rests, owns
            )
        chosen = -1
        is_tied[i] = False
        for k in range(offsets[n_labels + 1] - offsets[n_labels]):
            at, old = offsets[n_labels] + k, offsets[n_labels] + chosen
            if not is_possible or not is_admissible[k] or best[at] == -np.inf:
                continue
            if chosen < 0 or best[at] > best[old] or (best[at] == best[old] and sizes[at] < sizes[old]):
                chosen = k
                is_tied[i] = ties[at]
            elif best[at] == best[old] and sizes[at] == sizes[old]:
                is_tied[i] = True
        values[i] = best[offsets[n_labels] + chosen] if chosen >= 0 else -np.inf
        left[n_labels] = chosen
        for place in range(n_labels):
            parent = parents[place]
            left[place] = -1
            if left[parent] >= 0:
                at = after[place] + left[parent]
                left[place], left[parent] = owns[at], rests[at]
            sets[i, order[place]] = left[place] >= 0


@kernel
def _layout(parents, steps, cap):
    """Where the polynomial of each place begins (n_labels + 2,), and where its parent's prefix does (n_labels + 1,)."""
    n_labels = parents.shape[0]
    lengths, current = np.zeros(n_labels + 1, np.int64), np.zeros(n_labels + 1, np.int64)
    for place in range(n_labels):
        current[place] = min(steps[place], cap) + 1
    current[n_labels] = 1
    for place in range(n_labels - 1, -1, -1):
        parent = parents[place]
        lengths[place] = current[parent]
        current[parent] = min(current[parent] + current[place] - 1, cap + 1)
    offsets, prefixes = np.zeros(n_labels + 2, np.int64), np.zeros(n_labels + 1, np.int64)
    for place in range(n_labels + 1):
        offsets[place + 1] = offsets[place] + current[place]
    for place in range(n_labels):
        prefixes[place + 1] = prefixes[place] + lengths[place]
    return offsets, prefixes


@kernel
def _tables(offsets, prefixes):
    """Empty mantissas and exponents of all polynomials and of all prefixes, and states."""
    n, n_prefixes = offsets[-1], prefixes[-1]
    polynomials = np.empty(n), np.empty(n, np.int64)
    of_prefixes = np.empty(n_prefixes), np.empty(n_prefixes, np.int64)
    return *polynomials, *of_prefixes, np.empty(len(prefixes), np.int8)


@kernel
def _upward(scores, known, order, parents, steps, cap, saturate, offsets, m, e, state, prefixes, prefix_m, prefix_e):
    """Fill the polynomials of all places; whether what is known of labels agrees. Without prefixes, none are kept."""
    n_labels, is_possible = order.shape[0], True
    m[:] = 0.0
    e[:] = 0
    state[:] = FREE
    for place in range(n_labels):
        if steps[place] <= cap or saturate:
            at = offsets[place] + min(steps[place], cap)
            m[at], e[at] = exp(scores[order[place]])
    m[offsets[n_labels]], e[offsets[n_labels]] = ONE
    lengths = np.empty(n_labels + 1, np.int64)
    for place in range(n_labels):
        lengths[place] = min(steps[place], cap) + 1
    lengths[n_labels] = 1
    for place in range(n_labels - 1, -1, -1):
        parent = parents[place]
        if known.shape[0] > 0:
            is_possible &= note(known[order[place]], place, parent, state)
        into = slice(offsets[parent], offsets[parent + 1])
        own = slice(offsets[place], offsets[place + 1])
        if prefixes.shape[0] > 0:
            for k in range(lengths[parent]):
                prefix_m[prefixes[place] + k] = m[offsets[parent] + k]
                prefix_e[prefixes[place] + k] = e[offsets[parent] + k]
        _merge(m[into], e[into], lengths[parent], m[own], e[own], cap, saturate, state[place])
        lengths[parent] = min(lengths[parent] + lengths[place] - 1, cap + 1)
    return is_possible


@kernel
def _merge(m, e, n_before, own_m, own_e, cap, saturate, state):
    """Multiply a polynomial (m, e) of n_before coefficients by 1 + own, or by what the state allows of it, in place.

    Descending k, so that the lower coefficients are still the old ones.
    """
    if state == ABSENT:
        return
    n_own = own_m.shape[0]
    for k in range(min(n_before + n_own - 1, cap + 1) - 1, -1, -1):
        total = (m[k], e[k]) if state == FREE and k < n_before else ZERO
        for j in range(n_own):
            if own_m[j] > 0:
                last = n_before - 1 if saturate and k == cap else min(k - j, n_before - 1)
                for rest in range(max(k - j, 0), last + 1):
                    total = plus(total, times((own_m[j], own_e[j]), (m[rest], e[rest])))
        m[k], e[k] = total


@kernel
def _total(m, e, ends, is_admissible):
    """Sum of the admissible coefficients of the last polynomial."""
    total = ZERO
    for k in range(ends[1] - ends[0]):
        if is_admissible[k]:
            total = plus(total, (m[ends[0] + k], e[ends[0] + k]))
    return total


@kernel
def _downward(
    order,
    parents,
    steps,
    cap,
    saturate,
    offsets,
    m,
    e,
    state,
    prefixes,
    prefix_m,
    prefix_e,
    adjoint_m,
    adjoint_e,
    is_admissible,
    total,
    with_entropy,
):
    """Fill the derivatives of the total in every place before its children; returns the entropy if it is wanted.

    Undoes the merges in reverse order, that is by ascending places: from the derivatives in the parent after a merge
    to those in the child and in the parent before it.
    """
    n_labels = order.shape[0]
    adjoint_m[:] = 0.0
    adjoint_e[:] = 0
    root = slice(offsets[n_labels], offsets[n_labels + 1])
    pmf = np.zeros(offsets[n_labels + 1] - offsets[n_labels])
    for k in range(len(pmf)):
        if is_admissible[k]:
            adjoint_m[root][k], adjoint_e[root][k] = ONE
            pmf[k] = ratio((m[root][k], e[root][k]), total)
    result = entropy_of_pmf(pmf) if with_entropy else 0.0
    for place in range(n_labels):
        if state[place] == ABSENT:
            continue
        parent = parents[place]
        n_before, n_own = prefixes[place + 1] - prefixes[place], offsets[place + 1] - offsets[place]
        after_m = adjoint_m[offsets[parent] : offsets[parent + 1]]
        after_e = adjoint_e[offsets[parent] : offsets[parent + 1]]
        if with_entropy:
            for k in range(min(n_before + n_own - 1, cap + 1)):
                if after_m[k] > 0:
                    weights_m, weights_e, _, _ = _options(
                        place, parent, k, cap, saturate, offsets, m, e, state, prefixes, prefix_m, prefix_e
                    )
                    result += _entropy_of_options(weights_m, weights_e, (after_m[k], after_e[k]), total)
        for j in range(n_own):
            own = ZERO
            for rest in range(n_before):
                k = min(rest + j, cap) if saturate else rest + j
                if k <= cap:
                    at = prefixes[place] + rest
                    own = plus(own, times((prefix_m[at], prefix_e[at]), (after_m[k], after_e[k])))
            adjoint_m[offsets[place] + j], adjoint_e[offsets[place] + j] = own
        # Ascending, so that the higher derivatives are still those after the merge.
        for rest in range(n_before):
            before = (after_m[rest], after_e[rest]) if state[place] == FREE else ZERO
            for j in range(n_own):
                k = min(rest + j, cap) if saturate else rest + j
                if k <= cap and m[offsets[place] + j] > 0:
                    own = m[offsets[place] + j], e[offsets[place] + j]
                    before = plus(before, times(own, (after_m[k], after_e[k])))
            after_m[rest], after_e[rest] = before
    return result


@kernel
def _options(place, parent, count, cap, saturate, offsets, m, e, state, prefixes, prefix_m, prefix_e):
    """The ways in which a parent's count after a merge comes about: weights, what is left of it, the child's own count.

    The own count is -1 where the child is absent.
    """
    n_before, n_own = prefixes[place + 1] - prefixes[place], offsets[place + 1] - offsets[place]
    n_most = 1 + (n_before * n_own if saturate and count == cap else n_own)
    weights_m, weights_e = np.empty(n_most), np.empty(n_most, np.int64)
    rests, owns = np.empty(n_most, np.int64), np.empty(n_most, np.int64)
    n = 0
    if state[place] == FREE and count < n_before:
        at = prefixes[place] + count
        weights_m[n], weights_e[n], rests[n], owns[n] = prefix_m[at], prefix_e[at], count, -1
        n += 1
    for j in range(n_own if state[place] != ABSENT else 0):
        last = n_before - 1 if saturate and count == cap else min(count - j, n_before - 1)
        for rest in range(max(count - j, 0), last + 1):
            at = prefixes[place] + rest
            weight = times((m[offsets[place] + j], e[offsets[place] + j]), (prefix_m[at], prefix_e[at]))
            weights_m[n], weights_e[n], rests[n], owns[n] = weight[0], weight[1], rest, j
            n += 1
    if state[place] == ABSENT:
        # Nothing was merged.
        weights_m[0], weights_e[0], rests[0], owns[0], n = 0.5, 1, count, -1, 1
    return weights_m[:n], weights_e[:n], rests[:n], owns[:n]


@kernel
def _sum_of(weights_m, weights_e):
    total = ZERO
    for n in range(len(weights_m)):
        total = plus(total, (weights_m[n], weights_e[n]))
    return total


@kernel
def _entropy_of_options(weights_m, weights_e, adjoint, total):
    """P(the parent has this count after the merge) times the entropy of how it came about."""
    mass = _sum_of(weights_m, weights_e)
    if mass[0] == 0.0:
        return 0.0
    pmf = np.empty(len(weights_m))
    for n in range(len(pmf)):
        pmf[n] = ratio((weights_m[n], weights_e[n]), mass)
    return ratio(times(mass, adjoint), total) * entropy_of_pmf(pmf)


@kernel
def _drawn(weights_m, weights_e, rests, owns, threshold):
    """What is left of the parent's count and the child's own, for one draw among the options."""
    mass = _sum_of(weights_m, weights_e)
    chosen = 0
    for n in range(len(weights_m)):
        if weights_m[n] > 0:
            chosen = n  # the last one stays where rounding leaves a rest
            threshold -= ratio((weights_m[n], weights_e[n]), mass)
            if threshold < 0:
                break
    return rests[chosen], owns[chosen]


@kernel
def _after(parents, offsets, prefixes, cap):
    """Where the counts of the parent after the merge of each place begin, (n_labels + 1,)."""
    n_labels = parents.shape[0]
    after = np.zeros(n_labels + 1, np.int64)
    for place in range(n_labels):
        n_before, n_own = prefixes[place + 1] - prefixes[place], offsets[place + 1] - offsets[place]
        after[place + 1] = after[place] + min(n_before + n_own - 1, cap + 1)
    return after


@kernel
def _start_best(scores, order, steps, cap, saturate, offsets, best, sizes, ties):
    """Every place with its own label alone."""
    n_labels = order.shape[0]
    best[:] = -np.inf
    sizes[:] = 0
    ties[:] = False
    for place in range(n_labels):
        if steps[place] <= cap or saturate:
            at = offsets[place] + min(steps[place], cap)
            best[at], sizes[at] = scores[order[place]], 1
    best[offsets[n_labels]] = 0.0


@kernel
def _merge_best(place, parent, n_before, cap, saturate, offsets, after, state, best, sizes, ties, rests, owns):
    """`_merge` with the heaviest set in place of the sum, in place, and the choices that led to it."""
    n_own = offsets[place + 1] - offsets[place]
    for k in range(after[place + 1] - after[place] - 1, -1, -1):
        value, size, is_tied, chosen_rest, chosen_own = -np.inf, 0, False, k, -1
        if state[place] != MUST and k < n_before:
            at = offsets[parent] + k
            value, size, is_tied = best[at], sizes[at], ties[at]
        for j in range(n_own if state[place] != ABSENT else 0):
            own = offsets[place] + j
            last = n_before - 1 if saturate and k == cap else min(k - j, n_before - 1)
            for rest in range(max(k - j, 0), last + 1):
                at = offsets[parent] + rest
                new, new_size = best[at] + best[own], sizes[at] + sizes[own]
                if new == -np.inf:
                    continue
                if new > value or (new == value and new_size < size):
                    value, size, is_tied = new, new_size, ties[at] or ties[own]
                    chosen_rest, chosen_own = rest, j
                elif new == value and new_size == size:
                    is_tied = True
        best[offsets[parent] + k], sizes[offsets[parent] + k], ties[offsets[parent] + k] = value, size, is_tied
        rests[after[place] + k], owns[after[place] + k] = chosen_rest, chosen_own
