"""Sums over all label sets of admissible size: arrays in, arrays out, rows spread over threads.

`scores` is (n_rows, n_labels), float32 or float64; `size_bias` has max_labels + 1 entries, -inf for a size that is not
admissible. Everything is computed in float64; results have the type of the scores. Each block of rows goes through
`lanes`, `divide_and_conquer` or `plain`; rows that no tilt can handle then go through `wide_range`, with moderate
numbers in place of huge ones (`huge_numbers`). The blocks, and so the results, do not depend on the number of threads.

From MANY_LABELS on, the rows of a block first try the tilt of its first row, so their last digits may depend on it.
"""

import numpy as np
from scipy.special import expit

from mlrh._parallel import BLOCK_OPERATIONS, map_blocks
from mlrh._simd import LANES
from mlrh.spaces._kernels import divide_and_conquer, huge_numbers, lanes, plain, ranking, wide_range

FEW_ROWS = 16 * LANES  # rows of a block at least: fewer don't pay for its buffers, its first tilt and the interpreter
# exp(-500) = 1e-217: a size whose bias is this far below the largest may fall short of SAFE_TOTAL (1e-240).
LOG_RANGE = 500.0
# With scores near 0, P(|y| = 0) of independent labels is 2**-n_labels: 1e-154 at 512 labels, near SAFE_TOTAL at 800.
MANY_LABELS = 512
# Two sizes can both matter only under a tilt that is no larger than the difference of their biases. Up to this one, a
# tilt in units of 1/64 has 36 bits, so its product with a size is exact (see `plain`); beyond, no tilt is used.
LARGEST_SPREAD = 1e9


def log_partition(scores, size_bias, *, n_jobs=None):
    """Logarithm of the partition, (n_rows,)."""
    result = np.empty(len(scores), scores.dtype)

    def work(rows):
        pmf = np.empty((len(result[rows]), len(size_bias)))
        outputs = (result[rows], pmf)
        huge = _run(_kernels("sizes", scores, size_bias), (_block(scores, rows), size_bias), outputs)
        _restore(result[rows], huge)

    _over_blocks(work, scores, size_bias, n_jobs, at_least=FEW_ROWS)
    return result


def cardinality_pmf(scores, size_bias, *, n_jobs=None):
    """Probabilities of the sizes 0, ..., n_labels, (n_rows, n_labels + 1)."""
    pmf = np.zeros((len(scores), scores.shape[1] + 1), scores.dtype)

    def work(rows):
        block = np.empty((len(pmf[rows]), len(size_bias)))
        inputs = (_block(scores, rows), size_bias)
        _run(_kernels("sizes", scores, size_bias), inputs, (np.empty(len(block)), block))
        pmf[rows, : len(size_bias)] = block

    _over_blocks(work, scores, size_bias, n_jobs, at_least=FEW_ROWS)
    return pmf


def expectations(scores, size_bias, weights, *, n_jobs=None):
    """Log-partition (n_rows,), marginals (n_rows, n_labels) and weights @ pmf (max_labels + 1,)."""
    log_partition, marginals, parts = _expectations(
        scores, size_bias, lambda rows, pmf: weights[rows] @ pmf, n_jobs=n_jobs
    )
    return log_partition, marginals, sum(parts, start=np.zeros(len(size_bias)))


def row_expectations(scores, size_bias, *, n_jobs=None):
    """Log-partition (n_rows,), marginals (n_rows, n_labels) and probabilities of the sizes (n_rows, max_labels + 1)."""
    pmf = np.empty((len(scores), len(size_bias)), scores.dtype)

    def keep(rows, block):
        pmf[rows] = block

    log_partition, marginals, _ = _expectations(scores, size_bias, keep, n_jobs=n_jobs)
    return log_partition, marginals, pmf


def _expectations(scores, size_bias, use, *, n_jobs):
    """Log-partition (n_rows,), marginals (n_rows, n_labels), and what use(rows, pmf) gives for each block of rows."""
    log_partition, marginals = np.empty(len(scores), scores.dtype), np.empty_like(scores)

    def work(rows):
        pmf = np.empty((len(log_partition[rows]), len(size_bias)))
        outputs = (log_partition[rows], marginals[rows], pmf)
        huge = _run(_kernels("expectations", scores, size_bias), (_block(scores, rows), size_bias), outputs)
        _restore(log_partition[rows], huge)
        return use(rows, pmf)

    return log_partition, marginals, _over_blocks(work, scores, size_bias, n_jobs, at_least=FEW_ROWS)


def curvature(scores, size_bias, direction, bias_direction, weights, *, n_jobs=None):
    """Derivatives of marginals (n_rows, n_labels) and of weights @ pmf along (direction, bias_direction)."""
    d_marginals = np.empty_like(scores)

    def work(rows):
        d_pmf = np.empty((len(d_marginals[rows]), len(size_bias)))
        inputs = (_block(scores, rows), size_bias, _block(direction, rows), bias_direction)
        _run(_kernels("curvature", scores, size_bias), inputs, (d_marginals[rows], d_pmf))
        return weights[rows] @ d_pmf

    parts = _over_blocks(work, scores, size_bias, n_jobs, at_least=FEW_ROWS)
    return d_marginals, sum(parts, start=np.zeros(len(size_bias)))


def log_prob(scores, size_bias, sets, *, n_jobs=None):
    """Log-probabilities (n_rows, n_sets) of sets (n_rows, n_sets, n_labels) of type int8."""
    log_probs = np.empty(sets.shape[:2], scores.dtype)

    def work(rows):
        inputs = (_block(scores, rows), size_bias, sets[rows])
        for i, row in _run((plain.log_prob, wide_range.log_prob), inputs, (log_probs[rows],)):
            of_mode = _log_prob_of_mode(row)
            log_probs[rows][i] = [row.log_prob(labels, of_mode) for labels in sets[rows][i]]

    _over_blocks(work, scores, size_bias, n_jobs)
    return log_probs


def joint_marginals(scores, size_bias, *, n_jobs=None):
    """Probabilities that two labels are both present, (n_rows, n_labels, n_labels)."""
    n_rows, n_labels = scores.shape
    joint = np.empty((n_rows, n_labels, n_labels), scores.dtype)

    def work(rows):
        _run((plain.joint_marginals, wide_range.joint_marginals), (_block(scores, rows), size_bias), (joint[rows],))

    _over_blocks(work, scores, size_bias, n_jobs, passes=n_labels)
    return joint


def any_of(scores, size_bias, groups, *, n_jobs=None):
    """Probabilities (n_rows,) of at least one label of each row's group, groups (n_rows, n_labels) of booleans."""
    probs = np.empty(len(scores), scores.dtype)

    def work(rows):
        inputs = (_block(scores, rows), size_bias, np.require(groups[rows], bool, ["C", "W"]))
        _run((plain.any_of, wide_range.any_of), inputs, (probs[rows],))

    _over_blocks(work, scores, size_bias, n_jobs)
    return probs


def entropy(scores, size_bias, *, n_jobs=None):
    """Entropies in nats, (n_rows,)."""
    entropies = np.empty(len(scores), scores.dtype)

    def work(rows):
        _run((plain.entropy, wide_range.entropy), (_block(scores, rows), size_bias), (entropies[rows],))

    _over_blocks(work, scores, size_bias, n_jobs)
    return entropies


def sample(scores, size_bias, n_draws, random_state):
    """Sets (n_rows, n_draws, n_labels) drawn with a numpy RandomState; the stream is used row after row."""
    # Uniforms are made in blocks of bounded memory, in an order that does not depend on the block size.
    n_rows, n_labels = scores.shape
    sets = np.empty((n_rows, n_draws, n_labels), np.int8)
    draws_per_block = min(n_draws, max(1, BLOCK_OPERATIONS // (n_labels + 1)))
    rows_per_block = max(1, BLOCK_OPERATIONS // (draws_per_block * (n_labels + 1))) if draws_per_block == n_draws else 1

    def work(rows):
        for start in range(0, n_draws, draws_per_block):
            part = np.ascontiguousarray(sets[rows, start : start + draws_per_block])
            uniforms = random_state.random_sample((*part.shape[:2], n_labels + 1))
            _run((plain.sample, wide_range.sample), (_block(scores, rows), size_bias, uniforms), (part,))
            sets[rows, start : start + draws_per_block] = part

    map_blocks(work, n_rows, rows_per_block=rows_per_block, n_jobs=1)
    return sets


def mode(scores, size_bias, *, n_jobs=None):
    """The most probable sets (n_rows, n_labels), int8: the lower label and the smaller set win ties."""
    sets = np.empty(scores.shape, np.int8)

    def work(rows):
        ranking.mode(_block(scores, rows), size_bias, sets[rows])

    _over_blocks(work, scores, size_bias, n_jobs)
    return sets


def top_sets(scores, size_bias, n_sets, *, n_jobs=None):
    """The n_sets most probable sets (n_rows, n_sets, n_labels), best first, and how many each row has (n_rows,)."""
    sets = np.zeros((len(scores), n_sets, scores.shape[1]), np.int8)
    counts = np.empty(len(scores), np.int64)

    def work(rows):
        ranking.top_sets(_block(scores, rows), size_bias, sets[rows], counts[rows])

    _over_blocks(work, scores, size_bias, n_jobs)
    return sets, counts


def _kernels(name, scores, size_bias):
    """Two kernels of that name: the faster one in plain floating point, and the one of `wide_range`.

    The table of `lanes` has n_labels * n_sizes entries and outgrows a cache. `divide_and_conquer` has a smaller one,
    and the share of its leaves in the work falls with n_sizes. So the ratio of their times (divide_and_conquer over
    lanes) follows n_labels * n_sizes^2. Measured on one thread, with 100 to 4,000 labels, 10 sizes to all of them and a
    second-level cache of 2 MiB: 1.2 at 3e5, 0.8 at 2e6, below 0.1 from 1e9 on. `sizes` keeps no table; there the ratio
    is 1.4 up to 50 sizes and 0.8 at 100.
    """
    n_labels, n_sizes = scores.shape[1], len(size_bias)
    large = n_sizes > 100 if name == "sizes" else n_labels * n_sizes**2 > 1_000_000
    return getattr(divide_and_conquer if large else lanes, name), getattr(wide_range, name)


def _run(kernels, inputs, outputs):
    """Write the outputs of a block: first without a tilt, then with one for rows that need it, then by `wide_range`.

    Kernels mark in `todo` which rows are left. They are compiled for float64 only; float32 outputs go through a buffer.
    Returns (row, Moderate) for each row whose outputs are those of moderate numbers in place of its own: all outputs
    but log-partitions and log-probabilities are the same.
    """
    # A row of `unlimited` costs many times a fast one, so it is the last resort.
    buffers = [np.empty(out.shape) if out.dtype == np.float32 else out for out in outputs]
    scores, size_bias, *_ = inputs
    fast, unlimited = kernels
    todo, tilts = np.ones(len(scores), bool), np.full(len(scores), _likely_tilt(scores, size_bias))
    fast(*inputs, todo, tilts, *buffers)
    if todo.any() and huge_numbers.spread(size_bias) <= LARGEST_SPREAD:
        plain.towards_mode(scores, size_bias, todo, tilts)
        fast(*inputs, todo, tilts, *buffers)
    huge = _run_unlimited(unlimited, inputs, todo, buffers) if todo.any() else []
    for out, buffer in zip(outputs, buffers, strict=True):
        if out is not buffer:
            out[...] = buffer
    return huge


def _run_unlimited(unlimited, inputs, todo, outputs):
    """Write the outputs of the rows todo; returns (row, Moderate) for those with huge numbers."""
    scores, size_bias, *others = inputs
    largest_bias = np.abs(size_bias[size_bias > -np.inf]).max()
    is_huge = todo & (np.maximum(np.abs(scores).max(axis=1), largest_bias) > huge_numbers.LARGEST_MODERATE)
    unlimited(*inputs, todo & ~is_huge, *outputs)
    huge = [(i, huge_numbers.Moderate(scores[i], size_bias)) for i in np.flatnonzero(is_huge)]
    moderate, alone = scores.copy() if huge else scores, np.zeros(len(scores), bool)
    for i, row in huge:
        moderate[i], alone[:] = row.scores, False
        alone[i] = True
        unlimited(moderate, row.size_bias, *others, alone, *outputs)
    return huge


def _restore(log_partition, huge):
    """Put the log-partitions of the rows themselves in place of those of moderate numbers."""
    for i, row in huge:
        log_partition[i] = row.log_partition(float(log_partition[i]))


def _log_prob_of_mode(row):
    log_probs = np.empty((1, 1))
    wide_range.log_prob(row.scores[None], row.size_bias, row.mode[None, None], np.ones(1, bool), log_probs)
    return log_probs[0, 0]


def _likely_tilt(scores, size_bias):
    """0, or the tilt of the first row if that row is likely to need one: the others will need about the same."""
    tilts = np.zeros(1)
    if scores.shape[1] >= MANY_LABELS and huge_numbers.spread(size_bias) <= LARGEST_SPREAD:
        # Without a tilt, one of the two sizes next to the expected number has at least 1 / (n_labels + 1) of the mass:
        # the row is safe if that size is admissible and its bias not too low.
        expected = np.rint(expit(scores[0]).sum())
        if not expected < len(size_bias) or size_bias[int(expected)] < size_bias.max() - LOG_RANGE:
            plain.towards_mode(scores[:1], size_bias, np.ones(1, bool), tilts)
    return tilts[0]


def _block(array, rows):
    """Rows in the one form that kernels are compiled for: float64, contiguous, writeable."""
    block = array[rows]
    is_fit = block.dtype == np.float64 and block.flags.c_contiguous and block.flags.writeable
    return block if is_fit else np.require(block, np.float64, ["C", "W"])


def _over_blocks(work, scores, size_bias, n_jobs, *, passes=1, at_least=1):
    """Results of work over blocks of rows; passes is how often a row goes through the recurrence."""
    # Whole vectors of LANES rows, so that only the last block has idle lanes.
    operations_per_row = scores.shape[1] * len(size_bias) * passes
    rows = max(at_least, BLOCK_OPERATIONS // max(1, operations_per_row))
    rows_per_block = rows - rows % LANES if rows > LANES else rows
    return map_blocks(work, len(scores), rows_per_block=rows_per_block, n_jobs=n_jobs)
