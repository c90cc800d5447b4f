"""The most probable label sets of the cardinality space, which need no partition.

Blocks of rows come in, sets are written in place. `size_bias` has max_labels + 1 entries, -inf for a size that is not
admissible. Ties: the lower label index first, the smaller set first.
"""

import heapq

import numpy as np

from mlrh._parallel import kernel
from mlrh.spaces._kernels import huge_numbers


def mode(scores, size_bias, sets):
    """Write the most probable set of each row: its j highest scores, for the best size j.

    Without a bias these are the labels with positive scores, which needs no sorting as long as their number is
    admissible.
    """
    np.greater(scores, 0, out=sets, casting="unsafe")
    # With equal biases on a range of sizes each label is for itself, unless the number of positive ones is outside it.
    admissible = np.flatnonzero(size_bias > -np.inf)
    unsettled = np.ones(len(scores), bool)
    if np.ptp(size_bias[admissible]) == 0 and len(admissible) == admissible[-1] - admissible[0] + 1:
        n_positive = np.count_nonzero(sets, axis=1)
        unsettled = (n_positive < admissible[0]) | (n_positive > admissible[-1])
    if unsettled.any():
        order = np.argsort(-scores[unsettled], axis=1, kind="stable")
        sizes = _best_sizes(np.take_along_axis(scores[unsettled], order, axis=1), size_bias)
        best = np.empty(order.shape, np.int8)
        np.put_along_axis(best, order, (np.arange(scores.shape[1]) < sizes[:, None]).astype(np.int8), axis=1)
        sets[unsettled] = best


def top_sets(scores, size_bias, sets, counts):
    """Write the sets.shape[1] most probable sets of each row, best first, and how many sets there were."""
    # A stable sort keeps the lower label first among equal scores.
    order = np.argsort(-scores, axis=1, kind="stable")
    descending = np.take_along_axis(scores, order, axis=1)
    _top_sets(descending, order, _size_costs(descending, size_bias), sets, counts)


def _best_sizes(descending, size_bias):
    """The size of the mode of each row, (n_rows,)."""
    if huge_numbers.spread(size_bias) > huge_numbers.LARGEST_MODERATE:
        return huge_numbers.size_costs(descending, size_bias).argmin(axis=1)
    return _mode_sizes(descending, size_bias)


def _size_costs(descending, size_bias):
    """How far the best set of each size lies below the mode, (n_rows, n_sizes); inf if not admissible."""
    if huge_numbers.spread(size_bias) > huge_numbers.LARGEST_MODERATE:
        return huge_numbers.size_costs(descending, size_bias)
    return _costs_in_floats(descending, size_bias)


@kernel
def _top_sets(descending, order, costs, sets, counts):
    """`top_sets` of sorted scores.

    `order` ranks the labels by falling score. A set of size j is a row of `members`: the j ranks it holds, ascending.
    The best set of a size holds the ranks 0, ..., j-1. Every other set has exactly one parent, from which it follows by
    replacing one rank r by r + 1: either the lowest rank that has moved moves on, or the one before it starts to move.
    A child is never better than its parent, so best-first search from the best set of every size meets all sets in
    order, in O(n log n) steps after sorting. The cost of a set is how far its log-weight lies below the mode's, summed
    from differences: in a total of large scores a small one would be rounded away. `costs` are those of the best sets.
    """
    n_sets, n_labels, n_sizes = sets.shape[1], descending.shape[1], costs.shape[1]
    # Every set that is taken adds at most two children to the roots, one per size.
    members = np.empty((2 * n_sets + n_sizes, max(n_sizes - 1, 1)), np.int64)
    for i in range(descending.shape[0]):
        heap, used = _roots(costs[i], members)
        counts[i] = 0
        while counts[i] < n_sets and len(heap) > 0:
            cost, size, node = heapq.heappop(heap)
            for r in range(size):
                sets[i, counts[i], order[i, members[node, r]]] = 1
            counts[i] += 1
            # Ranks before first_moved are still where they began: member r holds rank r.
            first_moved = 0
            while first_moved < size and members[node, first_moved] == first_moved:
                first_moved += 1
            for moving in (first_moved, first_moved - 1):
                if not _can_move(members[node], size, moving, n_labels):
                    continue
                members[used, :size] = members[node, :size]
                rank = members[node, moving]
                members[used, moving] = rank + 1
                heapq.heappush(heap, (cost + (descending[i, rank] - descending[i, rank + 1]), size, used))
                used += 1


@kernel
def _roots(costs, members):
    """A heap with the best set of every admissible size, and the number of rows of members used."""
    heap = [(0.0, 0, 0) for _ in range(0)]  # empty, but tells numba the type of its entries
    used = 0
    for size in range(costs.shape[0]):
        if costs[size] == np.inf:
            continue
        for rank in range(size):
            members[used, rank] = rank
        heapq.heappush(heap, (costs[size], size, used))
        used += 1
    return heap, used


@kernel
def _can_move(members, size, moving, n_labels):
    """Whether the rank behind that of a member is free; the ranks of a set stay ascending."""
    if moving < 0 or moving >= size:
        return False
    limit = members[moving + 1] if moving + 1 < size else n_labels
    return members[moving] + 1 < limit


@kernel
def mode_size(descending_scores, size_bias):
    """Size of the most probable set.

    A size is better than the best so far if the scores it adds and the change of bias sum to more than 0. Comparing
    the totals of the sizes instead would round a small score away next to large ones.
    """
    best, gain = -1, 0.0
    for j in range(size_bias.shape[0]):
        # gain: the scores added since the best size so far.
        if best >= 0:
            gain += descending_scores[j - 1]
        if size_bias[j] == -np.inf:
            continue
        if best < 0 or gain + (size_bias[j] - size_bias[best]) > 0:
            best, gain = j, 0.0
    return best


@kernel
def _mode_sizes(descending, size_bias):
    """`_best_sizes` for biases of moderate size."""
    sizes = np.empty(len(descending), np.int64)
    for i in range(len(descending)):
        sizes[i] = mode_size(descending[i], size_bias)
    return sizes


@kernel
def _costs_in_floats(descending, size_bias):
    """`_size_costs` for biases of moderate size."""
    costs = np.full((descending.shape[0], size_bias.shape[0]), np.inf)
    for i in range(descending.shape[0]):
        best = mode_size(descending[i], size_bias)
        for size in range(size_bias.shape[0]):
            if size_bias[size] == -np.inf:
                continue
            # Only the scores between the two sizes differ: the best sets of two sizes are nested.
            cost = size_bias[best] - size_bias[size]
            for rank in range(size, best):
                cost += descending[i, rank]
            for rank in range(best, size):
                cost -= descending[i, rank]
            costs[i, size] = cost
    return costs
