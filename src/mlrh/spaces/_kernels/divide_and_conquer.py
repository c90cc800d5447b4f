"""The sums of `lanes` by divide and conquer over the labels, for tables that are too large for a cache.

The same contract as there, eight rows at a time: kernels work on the rows marked in `todo`, each with its entry of
`tilts`, and clear the mark where the total is safe. A node of the tree is a range of labels with the pmf of how many of
them are present, as a polynomial cut off at max_labels. A leaf's polynomial comes from the recurrence, any other is the
product of its children's. Adjoints go down the tree: the same sums over the labels outside the node.

Products are formed term by term. All masses are positive, so each coefficient keeps its relative precision; a Fourier
transform would lose the small ones beside the largest. (Moments have signs, and are as precise as their largest terms.)

Memory is O(n_labels log n_labels). In an array of polynomials, row ROW + j is coefficient j of a node. LENGTH, their
number, is rounded up to whole tiles, and TILE rows of zeros lie between two nodes. Coefficients beyond max_labels
lack terms, which does no harm: their adjoints are 0.
"""

import numpy as np

from mlrh._parallel import kernel
from mlrh._simd import LANES, load, splat, store
from mlrh.spaces._kernels.lanes import (
    begin,
    buffers,
    fill_covariances,
    fill_marginals,
    fill_mass,
    fill_moments,
    finish,
    gather,
    scatter,
)

LEAF = 31  # labels of a leaf at most: its 32 coefficients are whole tiles
TILE = 8  # coefficients of a product at a time: eight sums keep two multiply-add units of latency 4 busy
CHUNK = 128  # terms of a product at a time: they and their factors stay in the first-level cache, a tenth faster
ROOT = TILE  # the row of the root, behind the first rows of zeros

# Added to a sum and subtracted again, it leaves 0 or a normal number. The tails of a pmf are full of denormal numbers,
# on which arithmetic takes a hundred times as long. What is lost is at most 1e-306, nothing beside SAFE_TOTAL.
FLOOR = 1e-290

FIRST, END, ROW, LENGTH, LEFT, RIGHT = range(6)  # columns of the nodes; a leaf has no LEFT


@kernel
def sizes(scores, size_bias, todo, tilts, log_partition, pmf):
    """Write the log-partition (n_rows,) and the probabilities of the sizes (n_rows, max_labels + 1)."""
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights, scales = buffers(n_labels, n_sizes)
    nodes, table = _nodes(n_labels, n_sizes), _zeros(_leaf_rows(n_sizes))
    mass, shares = _polynomials(nodes), np.empty((n_sizes, LANES))
    rows, group = np.flatnonzero(todo), np.empty(LANES, np.int64)
    for first in range(0, len(rows), LANES):
        begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales)
        _fill_products(nodes, on, off, weights, table, mass)
        total = _fill_shares(weights, mass, shares)
        finish(rows, first, total, scales, todo, log_partition)
        scatter(shares, group, todo, pmf)


@kernel
def expectations(scores, size_bias, todo, tilts, log_partition, marginals, pmf):
    """Write the log-partition, the marginals (n_rows, n_labels) and the probabilities of the sizes.

    The adjoint of a product: outside_left[i] = sum_j outside[i + j] mass_right[j], starting from weights / total.
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights, scales = buffers(n_labels, n_sizes)
    nodes, table = _nodes(n_labels, n_sizes), _zeros(_leaf_rows(n_sizes))
    mass, outside, shares = _polynomials(nodes), _polynomials(nodes), np.empty((n_sizes, LANES))
    rows, group = np.flatnonzero(todo), np.empty(LANES, np.int64)
    for first in range(0, len(rows), LANES):
        begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales)
        _fill_products(nodes, on, off, weights, table, mass)
        total = _fill_shares(weights, mass, shares)
        finish(rows, first, total, scales, todo, log_partition)
        scatter(shares, group, todo, pmf)
        if todo[group].all():
            continue  # no total is safe: nothing that follows would be written
        _fill_root(weights, total, outside)
        _fill_adjoints(nodes, mass, outside)
        _fill_marginals_of_leaves(nodes, on, off, weights, table, outside)
        scatter(on, group, todo, marginals)


@kernel
def curvature(scores, size_bias, direction, bias_direction, todo, tilts, d_marginals, d_pmf):
    """Write the covariances of the labels and of the sizes with u(y) = direction'y + bias_direction[|y|].

    Masses and adjoints carry the first moment of u beside them: moment = moment_left mass_right + mass_left
    moment_right, and outside_u_left[i] = sum_j outside_u[i + j] mass_right[j] + outside[i + j] moment_right[j].
    """
    n_labels, n_sizes = scores.shape[1], size_bias.shape[0]
    on, off, weights, scales = buffers(n_labels, n_sizes)
    nodes, leaf_rows = _nodes(n_labels, n_sizes), _leaf_rows(n_sizes)
    table, table_u = _zeros(leaf_rows), _zeros(leaf_rows)
    mass, moment = _polynomials(nodes), _polynomials(nodes)
    outside, outside_u = _polynomials(nodes), _polynomials(nodes)
    step, shares, unused = np.empty((n_labels, LANES)), np.empty((n_sizes, LANES)), np.empty(scores.shape[0])
    rows, group = np.flatnonzero(todo), np.empty(LANES, np.int64)
    for first in range(0, len(rows), LANES):
        begin(rows, first, scores, size_bias, tilts, group, on, off, weights, scales)
        gather(direction, group, step)
        _fill_products(nodes, on, off, weights, table, mass)
        total = _fill_shares(weights, mass, shares)
        finish(rows, first, total, scales, todo, unused)
        if todo[group].all():
            continue
        _fill_moment_products(nodes, on, off, step, weights, table, table_u, mass, moment)
        _fill_root(weights, total, outside)
        mean = _fill_moment_shares(bias_direction, moment, outside, outside_u, shares)
        scatter(shares, group, todo, d_pmf)
        _fill_adjoints(nodes, mass, outside)
        _fill_moment_adjoints(nodes, mass, moment, outside, outside_u)
        _fill_covariances_of_leaves(nodes, on, off, step, weights, mean, table, table_u, outside, outside_u)
        scatter(on, group, todo, d_marginals)


@kernel
def _nodes(n_labels, n_sizes):
    """The nodes (n_nodes, 6) of a tree over the labels, parents before children, the root first."""
    # LEFT = 0 marks a leaf: node 0 is the root, which is no one's child.
    nodes = np.zeros((2 * (n_labels + 1), 6), np.int64)
    nodes[0, END] = n_labels
    n_nodes, row = 1, ROOT
    for i in range(len(nodes)):
        if i == n_nodes:
            break
        width = nodes[i, END] - nodes[i, FIRST]
        nodes[i, ROW], nodes[i, LENGTH] = row, -(-min(width + 1, n_sizes) // TILE) * TILE
        row += nodes[i, LENGTH] + TILE
        n_leaves = -(-width // LEAF)
        if n_leaves > 1:
            # Split between leaves, so that all leaves have about the same number of labels.
            middle = nodes[i, FIRST] + width * (n_leaves // 2) // n_leaves
            nodes[i, LEFT], nodes[i, RIGHT] = n_nodes, n_nodes + 1
            nodes[n_nodes, FIRST], nodes[n_nodes, END] = nodes[i, FIRST], middle
            nodes[n_nodes + 1, FIRST], nodes[n_nodes + 1, END] = middle, nodes[i, END]
            n_nodes += 2
    return nodes[:n_nodes]


@kernel
def _polynomials(nodes):
    """Zeros (n, LANES) for the polynomial of every node, with TILE rows before and behind each."""
    return _zeros(nodes[-1, ROW] + nodes[-1, LENGTH] + TILE)


@kernel
def _zeros(n):
    """Zeros (n, LANES) that begin at a cache line of 64 bytes: lanes across two lines load at half the speed."""
    numbers = np.zeros((n + 1) * LANES)
    skip = -(numbers.ctypes.data // numbers.itemsize) % LANES
    return numbers[skip : skip + n * LANES].reshape(n, LANES)


@kernel
def _leaf_rows(n_sizes):
    """Number of rows of the table of a leaf: LEAF + 1 steps of the recurrence, with up to LEAF + 1 sizes each."""
    return (LEAF + 1) * min(LEAF + 1, n_sizes)


@kernel
def _fill_products(nodes, on, off, weights, table, mass):
    """Fill mass with the pmf of every node, leaves first."""
    for i in range(len(nodes) - 1, -1, -1):
        if nodes[i, LEFT]:
            _clear(nodes[i], mass)
            _add_product(nodes[i], nodes, mass, mass, mass)
            continue
        n_labels, n_sizes = _fill_leaf(nodes[i], on, off, weights, table)
        _copy(table, n_labels * n_sizes, n_sizes, mass, nodes[i, ROW])


@kernel
def _fill_moment_products(nodes, on, off, step, weights, table, table_u, mass, moment):
    """Fill moment with the first moments of u of every node, leaves first."""
    for i in range(len(nodes) - 1, -1, -1):
        if nodes[i, LEFT]:
            _clear(nodes[i], moment)
            _add_product(nodes[i], nodes, moment, mass, moment)
            _add_product(nodes[i], nodes, mass, moment, moment)
            continue
        n_labels, n_sizes = _fill_leaf(nodes[i], on, off, weights, table)
        labels = slice(nodes[i, FIRST], nodes[i, END])
        fill_moments(on[labels], off[labels], step[labels], table, table_u, n_sizes)
        _copy(table_u, n_labels * n_sizes, n_sizes, moment, nodes[i, ROW])


@kernel
def _fill_adjoints(nodes, mass, outside):
    """Fill outside, the adjoints of all nodes, from the root down."""
    for i in range(1, len(nodes)):
        _clear(nodes[i], outside)
    for node in nodes:
        if node[LEFT]:
            # Outside the left child lie the labels outside the node and those of its sibling.
            left, right = nodes[node[LEFT]], nodes[node[RIGHT]]
            _add_adjoint(node, outside, right, mass, left, outside)
            _add_adjoint(node, outside, left, mass, right, outside)


@kernel
def _fill_moment_adjoints(nodes, mass, moment, outside, outside_u):
    """Fill outside_u, the moments of the adjoints, from the root down; mass, moment and outside are filled."""
    for i in range(1, len(nodes)):
        _clear(nodes[i], outside_u)
    for node in nodes:
        if node[LEFT]:
            left, right = nodes[node[LEFT]], nodes[node[RIGHT]]
            _add_adjoint(node, outside_u, right, mass, left, outside_u)
            _add_adjoint(node, outside, right, moment, left, outside_u)
            _add_adjoint(node, outside_u, left, mass, right, outside_u)
            _add_adjoint(node, outside, left, moment, right, outside_u)


@kernel
def _fill_marginals_of_leaves(nodes, on, off, weights, table, outside):
    """Replace on by the marginals: inside a leaf as in `lanes`, with the leaf's adjoint for the suffix."""
    for node in nodes:
        if not node[LEFT]:
            # Recomputed rather than kept: the tables of all leaves would fill the cache that this module spares.
            _, n_sizes = _fill_leaf(node, on, off, weights, table)
            labels = slice(node[FIRST], node[END])
            fill_marginals(on[labels], off[labels], table, outside[node[ROW] :], n_sizes)


@kernel
def _fill_covariances_of_leaves(nodes, on, off, step, weights, mean, table, table_u, outside, outside_u):
    """Replace on by the covariances of the labels with u, whose mean is given."""
    for node in nodes:
        if not node[LEFT]:
            _, n_sizes = _fill_leaf(node, on, off, weights, table)
            labels, row = slice(node[FIRST], node[END]), node[ROW]
            leaf_on, leaf_off, leaf_step = on[labels], off[labels], step[labels]
            fill_moments(leaf_on, leaf_off, leaf_step, table, table_u, n_sizes)
            suffix, suffix_u = outside[row:], outside_u[row:]
            fill_covariances(leaf_on, leaf_off, leaf_step, mean, table, table_u, suffix, suffix_u, n_sizes)


@kernel
def _fill_leaf(node, on, off, weights, table):
    """Run the recurrence over a leaf's labels; returns the numbers of labels, and of sizes per step of the table."""
    labels = slice(node[FIRST], node[END])
    n_labels = node[END] - node[FIRST]
    n_sizes = min(n_labels + 1, weights.shape[0])
    fill_mass(on[labels], off[labels], weights, table, n_sizes)
    return n_labels, n_sizes


@kernel
def _fill_shares(weights, mass, shares):
    """Fill shares with the probabilities of the sizes; returns the total weight."""
    total = splat(0.0)
    for j in range(len(shares)):
        total = total + load(weights, j) * load(mass, ROOT + j)
    for j in range(len(shares)):
        store(shares, j, load(weights, j) * load(mass, ROOT + j) / total)
    return total


@kernel
def _fill_moment_shares(bias_direction, moment, outside, outside_u, shares):
    """Replace shares, the probabilities of the sizes, by their covariances with u; returns the mean of u."""
    mean = splat(0.0)
    for j in range(len(shares)):
        row, step = ROOT + j, splat(bias_direction[j])
        store(outside_u, row, step * load(outside, row))
        mean = mean + load(outside, row) * load(moment, row) + step * load(shares, j)
    for j in range(len(shares)):
        row, step = ROOT + j, splat(bias_direction[j])
        store(shares, j, load(outside, row) * load(moment, row) + (step - mean) * load(shares, j))
    return mean


@kernel
def _fill_root(weights, total, outside):
    """Fill the root's adjoint with weights / total."""
    floor = splat(FLOOR)
    for j in range(len(weights)):
        store(outside, ROOT + j, (load(weights, j) / total + floor) - floor)


@kernel
def _clear(node, polynomials):
    """Set a node's coefficients to 0, before products are added."""
    polynomials[node[ROW] : node[ROW] + node[LENGTH]] = 0.0


@kernel
def _copy(table, first, n, polynomials, row):
    """Copy n coefficients out of the table of a leaf, none of them denormal."""
    floor = splat(FLOOR)
    for j in range(n):
        store(polynomials, row + j, (load(table, first + j) + floor) - floor)


@kernel
def _add_product(node, nodes, lefts, rights, products):
    """Add the product of a node's left child (in lefts) and right child (in rights) to the node in products."""
    left, right = nodes[node[LEFT]], nodes[node[RIGHT]]
    for start in range(0, left[LENGTH], CHUNK):
        for j in range(0, node[LENGTH], TILE):
            # Terms left[m] right[j + t - m] whose factors exist for some t of the tile; where the second does not for
            # another t, the zeros around the node are read.
            first = max(start, j - right[LENGTH] + 1)
            n_terms = min(start + CHUNK, left[LENGTH], j + TILE) - first
            _add_tile(lefts, left[ROW] + first, n_terms, rights, right[ROW] + j - first, -1, products, node[ROW] + j)


@kernel
def _add_adjoint(parent, outsides, sibling, factors, node, adjoints):
    """Add sum_j outside[i + j] factor[j] to entry i of a node's adjoint: the parent's outside, the sibling's factor."""
    for start in range(0, sibling[LENGTH], CHUNK):
        for i in range(0, node[LENGTH], TILE):
            # Beyond the parent's length its adjoint is 0: those terms are left out.
            n_terms = min(start + CHUNK, sibling[LENGTH], parent[LENGTH] - i) - start
            row = parent[ROW] + i + start
            _add_tile(factors, sibling[ROW] + start, n_terms, outsides, row, 1, adjoints, node[ROW] + i)


@kernel
def _add_tile(factors, first, n_terms, others, start, stride, sums, row):
    """Add sum_m factors[first + m] others[start + t + stride m] to row + t of sums, for each t below TILE."""
    # Eight named sums, not an array: they stay in registers.
    floor = splat(FLOOR)
    sum_0, sum_1 = load(sums, row) + floor, load(sums, row + 1) + floor
    sum_2, sum_3 = load(sums, row + 2) + floor, load(sums, row + 3) + floor
    sum_4, sum_5 = load(sums, row + 4) + floor, load(sums, row + 5) + floor
    sum_6, sum_7 = load(sums, row + 6) + floor, load(sums, row + 7) + floor
    for m in range(n_terms):
        factor, other = load(factors, first + m), start + stride * m
        sum_0, sum_1 = sum_0 + factor * load(others, other), sum_1 + factor * load(others, other + 1)
        sum_2, sum_3 = sum_2 + factor * load(others, other + 2), sum_3 + factor * load(others, other + 3)
        sum_4, sum_5 = sum_4 + factor * load(others, other + 4), sum_5 + factor * load(others, other + 5)
        sum_6, sum_7 = sum_6 + factor * load(others, other + 6), sum_7 + factor * load(others, other + 7)
    store(sums, row, sum_0 - floor)
    store(sums, row + 1, sum_1 - floor)
    store(sums, row + 2, sum_2 - floor)
    store(sums, row + 3, sum_3 - floor)
    store(sums, row + 4, sum_4 - floor)
    store(sums, row + 5, sum_5 - floor)
    store(sums, row + 6, sum_6 - floor)
    store(sums, row + 7, sum_7 - floor)
