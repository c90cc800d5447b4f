"""The open space without any subtraction: sums over the binary trie of its listed sets, in numbers of unlimited range.

Labels are read one after the other. A set that is read follows the trie of the listed sets down to its own leaf, or
leaves it at one node; from there on only the number of labels so far matters. So there are two kinds of states: nodes
of the trie, and (left, j) for sets that have left it with j labels so far. `completions` is the weight of all ways to
go on from a state, `before` the weight of all ways to reach it. All terms are positive, so nothing cancels, however
little the sets outside the list weigh. Numbers are the pairs of `wide_range`: no score or bias is too large.

A row costs O(n_labels * max_labels) plus the number of nodes, for nearly all answers. Kernels work on all rows that
they are given.
"""

import numpy as np

from mlrh._parallel import kernel
from mlrh.spaces._kernels.plain import entropy_of_choice
from mlrh.spaces._kernels.wide_numbers import ONE, ZERO, exp, log, over, plus, ratio, times

LEFT = -1  # in place of a child: the sets on that side are not listed


def build(sets):
    """The trie of sets (n_sets, n_labels): (order, starts, children, counts, leaf_sets).

    order (n_labels,) are the labels by depth, rare ones first: then most sets share a long beginning without labels.
    The nodes of depth d are starts[d], ..., starts[d + 1] - 1. children (n_nodes, 2) are the nodes without and with the
    next label, or LEFT; counts (n_nodes,) the labels so far; leaf_sets (n_sets,) the sets of the last nodes.
    """
    n_sets, n_labels = sets.shape
    order = np.argsort(np.count_nonzero(sets, axis=0), kind="stable")
    leaf_sets = np.lexsort(sets[:, order[::-1]].T) if n_sets and n_labels else np.arange(n_sets)
    rows = sets[leaf_sets][:, order]
    # Two neighbours in the order have a common node down to the first label in which they differ.
    common = np.argmax(rows[1:] != rows[:-1], axis=1) if n_sets > 1 else np.zeros(0, np.int64)
    node_of = [np.concatenate([np.zeros(min(n_sets, 1), np.int64), np.cumsum(common < d)]) for d in range(n_labels + 1)]
    numbers = [max(int(nodes[-1]) + 1 if n_sets else 0, int(d == 0)) for d, nodes in enumerate(node_of)]
    starts = np.concatenate([[0], np.cumsum(numbers)])
    children, counts = np.full((starts[-1], 2), LEFT, np.int64), np.zeros(starts[-1], np.int64)
    for d in range(n_labels if n_sets else 0):
        parents, nodes = starts[d] + node_of[d], starts[d + 1] + node_of[d + 1]
        children[parents, rows[:, d].astype(np.int64)] = nodes
        counts[nodes] = counts[parents] + rows[:, d]
    return order, starts, children, counts, leaf_sets


@kernel
def expectations(scores, known, size_bias, leaf_bias, trie, log_partition, marginals, pmf, probs):
    """Write the log-partition, marginals, probabilities of sizes (n_rows, n_sizes) and of leaves (n_rows, n_sets).

    A row that agrees with no set has the log-partition -inf, marginals of NaN and no other probabilities.
    """
    order, starts, children, counts, _ = trie
    n_labels, n_sizes, n_sets = scores.shape[1], size_bias.shape[0], leaf_bias.shape[0]
    before_m, before_e = np.empty(children.shape[0]), np.empty(children.shape[0], np.int64)
    left_m, left_e = np.empty(n_sizes), np.empty(n_sizes, np.int64)
    for i in range(scores.shape[0]):
        on_m, on_e, may_lack = _weights(scores[i], known, i, order)
        after_m, after_e, rest_m, rest_e = _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie)
        total = (after_m[0], after_e[0])
        pmf[i], probs[i] = 0.0, 0.0
        if total[0] == 0.0:
            log_partition[i], marginals[i] = -np.inf, np.nan
            continue
        log_partition[i] = log(total)
        before_m[0], before_e[0] = ONE
        left_m[:] = 0.0
        for d in range(n_labels):
            with_label = ZERO
            for v in range(starts[d], starts[d + 1]):
                taken = _after(v, 1, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1])
                with_label = plus(with_label, times((before_m[v], before_e[v]), taken))
            for j in range(n_sizes):
                taken = (rest_m[d + 1, j + 1], rest_e[d + 1, j + 1])
                with_label = plus(with_label, times((left_m[j], left_e[j]), taken))
            on = (on_m[d], on_e[d])
            marginals[i, order[d]] = min(ratio(times(on, with_label), total), 1.0)
            _step(d, on, may_lack[d], starts, children, counts, before_m, before_e, left_m, left_e)
        for j in range(n_sizes):
            pmf[i, j] = ratio(times((left_m[j], left_e[j]), exp(size_bias[j])), total)
        for leaf in range(n_sets):
            v = starts[n_labels] + leaf
            probs[i, leaf] = min(ratio(times((before_m[v], before_e[v]), (after_m[v], after_e[v])), total), 1.0)
            pmf[i, counts[v]] += probs[i, leaf]


@kernel
def log_prob(scores, known, size_bias, leaf_bias, trie, sets, set_bias, log_probs):
    """Write the log-probability of one of sets (n_rows, n_labels) per row; set_bias (n_rows,) is what it has of beta.

    The sets agree with what is known and have admissible sizes.
    """
    for i in range(scores.shape[0]):
        on_m, on_e, may_lack = _weights(scores[i], known, i, trie[0])
        after_m, after_e, _, _ = _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie)
        size = 0
        weight = exp(set_bias[i])
        for k in range(scores.shape[1]):
            if sets[i, k] == 1:
                weight = times(weight, exp(scores[i, k]))
                size += 1
        share = over(times(weight, exp(size_bias[size])), (after_m[0], after_e[0]))
        log_probs[i] = min(log(share), 0.0)


@kernel
def entropy(scores, known, size_bias, leaf_bias, trie, entropies):
    """Write the entropy in nats: the sum over labels of the entropy of the label given the state before it."""
    order, starts, children, counts, _ = trie
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    before_m, before_e = np.empty(children.shape[0]), np.empty(children.shape[0], np.int64)
    left_m, left_e = np.empty(n_sizes), np.empty(n_sizes, np.int64)
    for i in range(scores.shape[0]):
        on_m, on_e, may_lack = _weights(scores[i], known, i, order)
        after_m, after_e, rest_m, rest_e = _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie)
        total = (after_m[0], after_e[0])
        before_m[0], before_e[0] = ONE
        left_m[:] = 0.0
        entropies[i] = 0.0
        for d in range(n_labels):
            on = (on_m[d], on_e[d])
            for v in range(starts[d], starts[d + 1]):
                lacked = _after(v, 0, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1])
                taken = times(on, _after(v, 1, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1]))
                reached = times((before_m[v], before_e[v]), (after_m[v], after_e[v]))
                if reached[0] > 0.0 and may_lack[d]:
                    less = min(ratio(taken, (after_m[v], after_e[v])), ratio(lacked, (after_m[v], after_e[v])))
                    entropies[i] += ratio(reached, total) * entropy_of_choice(less)
            for j in range(n_sizes):
                here = (rest_m[d, j], rest_e[d, j])
                reached = times((left_m[j], left_e[j]), here)
                if reached[0] > 0.0 and may_lack[d]:
                    taken = times(on, (rest_m[d + 1, j + 1], rest_e[d + 1, j + 1]))
                    less = min(ratio(taken, here), ratio((rest_m[d + 1, j], rest_e[d + 1, j]), here))
                    entropies[i] += ratio(reached, total) * entropy_of_choice(less)
            _step(d, on, may_lack[d], starts, children, counts, before_m, before_e, left_m, left_e)


@kernel
def sample(scores, known, size_bias, leaf_bias, trie, uniforms, sets):
    """Write a set per row of uniforms (n_rows, n_draws, n_labels): each label by its share of the completions."""
    order, _, children, counts, _ = trie
    n_labels = scores.shape[1]
    for i in range(scores.shape[0]):
        on_m, on_e, may_lack = _weights(scores[i], known, i, order)
        after_m, after_e, rest_m, rest_e = _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie)
        for draw in range(uniforms.shape[1]):
            node, size = 0, 0
            for d in range(n_labels):
                if node != LEFT:
                    either = (after_m[node], after_e[node])
                    taken = _after(node, 1, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1])
                else:
                    either, taken = (
                        (rest_m[d, size], rest_e[d, size]),
                        (rest_m[d + 1, size + 1], rest_e[d + 1, size + 1]),
                    )
                present = int(uniforms[i, draw, d] < ratio(times((on_m[d], on_e[d]), taken), either))
                sets[i, draw, order[d]] = present
                size += present
                node = children[node, present] if node != LEFT else LEFT


@kernel
def any_of(scores, known, size_bias, leaf_bias, trie, groups, results):
    """Write the probability of at least one label of a group, groups (n_rows, n_labels) of booleans -> (n_rows,).

    Beside the completions of a state, those with a label of the group are summed: 1 - P(none) would lose a tiny
    probability.
    """
    order, starts, children, counts, _ = trie
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    some_m, some_e = np.empty(children.shape[0]), np.empty(children.shape[0], np.int64)
    some_rest_m, some_rest_e = np.empty((n_labels + 1, n_sizes + 1)), np.empty((n_labels + 1, n_sizes + 1), np.int64)
    for i in range(scores.shape[0]):
        on_m, on_e, may_lack = _weights(scores[i], known, i, order)
        after_m, after_e, rest_m, rest_e = _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie)
        some_m[:], some_e[:], some_rest_m[:], some_rest_e[:] = 0.0, 0, 0.0, 0
        for d in range(n_labels - 1, -1, -1):
            on, is_in = (on_m[d], on_e[d]), groups[i, order[d]]
            for j in range(n_sizes):
                taken = (some_rest_m[d + 1, j + 1], some_rest_e[d + 1, j + 1])
                if is_in:
                    taken = (rest_m[d + 1, j + 1], rest_e[d + 1, j + 1])
                lacked = (some_rest_m[d + 1, j], some_rest_e[d + 1, j]) if may_lack[d] else ZERO
                some_rest_m[d, j], some_rest_e[d, j] = plus(lacked, times(on, taken))
            for v in range(starts[d], starts[d + 1]):
                taken = _after(v, 1, children, counts, some_m, some_e, some_rest_m[d + 1], some_rest_e[d + 1])
                if is_in:
                    taken = _after(v, 1, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1])
                lacked = ZERO
                if may_lack[d]:
                    lacked = _after(v, 0, children, counts, some_m, some_e, some_rest_m[d + 1], some_rest_e[d + 1])
                some_m[v], some_e[v] = plus(lacked, times(on, taken))
        results[i] = min(ratio((some_m[0], some_e[0]), (after_m[0], after_e[0])), 1.0)


@kernel
def overlaps(scores, known, size_bias, leaf_bias, trie, answers, probs):
    """Write P(t labels of the answer and r others are present) into probs (n_rows, n_sizes, n_sizes), [t, r].

    `answers` are sets (n_rows, n_labels). The states (left, j) are divided by how many of the j labels are in the
    answer, so that a row costs O(n_labels * max_labels^2) plus the number of nodes.
    """
    order, starts, children, counts, _ = trie
    n_labels, n_sizes, n_sets = scores.shape[1], size_bias.shape[0], leaf_bias.shape[0]
    before_m, before_e = np.empty(children.shape[0]), np.empty(children.shape[0], np.int64)
    inside = np.zeros(children.shape[0], np.int64)  # labels of the answer among those so far
    left_m, left_e = np.empty((n_sizes + 1, n_sizes)), np.empty((n_sizes + 1, n_sizes), np.int64)
    for i in range(scores.shape[0]):
        on_m, on_e, may_lack = _weights(scores[i], known, i, order)
        after_m, after_e, _, _ = _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie)
        total = (after_m[0], after_e[0])
        before_m[0], before_e[0] = ONE
        left_m[:], left_e[:] = 0.0, 0
        for d in range(n_labels):
            on, off, is_in = (on_m[d], on_e[d]), ONE if may_lack[d] else ZERO, answers[i, order[d]]
            # left_m[t, j]: t of j labels are in the answer. Descending, so that entries below are still the old ones.
            for j in range(n_sizes - 1, -1, -1):
                for t in range(j, -1, -1):
                    kept = times(off, (left_m[t, j], left_e[t, j]))
                    if j > 0 and t >= is_in:
                        kept = plus(kept, times(on, (left_m[t - is_in, j - 1], left_e[t - is_in, j - 1])))
                    left_m[t, j], left_e[t, j] = kept
            for v in range(starts[d], starts[d + 1]):
                for present in range(2):
                    weight = times((before_m[v], before_e[v]), on if present == 1 else off)
                    child, t, j = children[v, present], inside[v] + present * is_in, counts[v] + present
                    if child != LEFT:
                        before_m[child], before_e[child] = weight
                        inside[child] = t
                    elif j < n_sizes:
                        left_m[t, j], left_e[t, j] = plus((left_m[t, j], left_e[t, j]), weight)
        probs[i] = 0.0
        for j in range(n_sizes):
            for t in range(j + 1):
                probs[i, t, j - t] = ratio(times((left_m[t, j], left_e[t, j]), exp(size_bias[j])), total)
        for v in range(starts[n_labels], starts[n_labels] + n_sets):
            share = ratio(times((before_m[v], before_e[v]), (after_m[v], after_e[v])), total)
            probs[i, inside[v], counts[v] - inside[v]] += share


@kernel
def _weights(scores, known, row, order):
    """Weight of each label by depth if it is present, as mantissas and exponents, and whether it may be absent."""
    n_labels = scores.shape[0]
    on_m, on_e, may_lack = np.empty(n_labels), np.empty(n_labels, np.int64), np.ones(n_labels, np.bool_)
    for d in range(n_labels):
        on_m[d], on_e[d] = exp(scores[order[d]])
        if known.shape[0] > 0:
            may_lack[d] = known[row, order[d]] != 1
            if known[row, order[d]] == 0:
                on_m[d], on_e[d] = ZERO
    return on_m, on_e, may_lack


@kernel
def _completions(on_m, on_e, may_lack, size_bias, leaf_bias, trie):
    """Weights of all ways to go on: from nodes (n_nodes,), and from (left, j), (n_labels + 1, n_sizes + 1) by depth.

    Column n_sizes of the second stays 0: a set of more than max_labels labels weighs nothing.
    """
    _, starts, children, counts, _ = trie
    n_labels, n_sizes = on_m.shape[0], size_bias.shape[0]
    after_m, after_e = np.zeros(children.shape[0]), np.zeros(children.shape[0], np.int64)
    rest_m, rest_e = np.zeros((n_labels + 1, n_sizes + 1)), np.zeros((n_labels + 1, n_sizes + 1), np.int64)
    for j in range(n_sizes):
        rest_m[n_labels, j], rest_e[n_labels, j] = exp(size_bias[j])
    for leaf in range(leaf_bias.shape[0]):
        v = starts[n_labels] + leaf
        own = (rest_m[n_labels, counts[v]], rest_e[n_labels, counts[v]])
        after_m[v], after_e[v] = times(own, exp(leaf_bias[leaf]))
    for d in range(n_labels - 1, -1, -1):
        on = (on_m[d], on_e[d])
        for j in range(n_sizes):
            lacked = (rest_m[d + 1, j], rest_e[d + 1, j]) if may_lack[d] else ZERO
            taken = times(on, (rest_m[d + 1, j + 1], rest_e[d + 1, j + 1]))
            rest_m[d, j], rest_e[d, j] = plus(lacked, taken)
        for v in range(starts[d], starts[d + 1]):
            lacked = ZERO
            if may_lack[d]:
                lacked = _after(v, 0, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1])
            taken = times(on, _after(v, 1, children, counts, after_m, after_e, rest_m[d + 1], rest_e[d + 1]))
            after_m[v], after_e[v] = plus(lacked, taken)
    return after_m, after_e, rest_m, rest_e


@kernel
def _after(node, present, children, counts, after_m, after_e, rest_m, rest_e):
    """Completions of the state that follows a node without or with the next label; rest_m, rest_e are of that depth."""
    child = children[node, present]
    if child != LEFT:
        return after_m[child], after_e[child]
    return rest_m[counts[node] + present], rest_e[counts[node] + present]


@kernel
def _step(d, on, may_lack, starts, children, counts, before_m, before_e, left_m, left_e):
    """Take the label of depth d in: the weights `before` of its children, and those of the states (left, j)."""
    off = ONE if may_lack else ZERO
    # Descending, so that entry j - 1 is still the old one.
    for j in range(left_m.shape[0] - 1, -1, -1):
        weight = times(off, (left_m[j], left_e[j]))
        if j > 0:
            weight = plus(weight, times(on, (left_m[j - 1], left_e[j - 1])))
        left_m[j], left_e[j] = weight
    for v in range(starts[d], starts[d + 1]):
        for present in range(2):
            weight = times((before_m[v], before_e[v]), on if present == 1 else off)
            child, j = children[v, present], counts[v] + present
            if child != LEFT:
                before_m[child], before_e[child] = weight
            elif j < left_m.shape[0]:
                left_m[j], left_e[j] = plus((left_m[j], left_e[j]), weight)
