"""Expected metrics of label sets, and the sets that maximise them: arrays in, arrays out.

A metric is a function f(tp, fp, fn) of arrays of counts: labels rightly in the answer, wrongly in it, wrongly left out.
The distribution of the truth comes in one of two forms. `_by_counts`: scores and `pmf`, the probabilities of the sizes;
given its size, a set weighs exp(sum of its scores). `_by_sets`: a list of sets with their probabilities.
"""

import numpy as np

from mlrh._parallel import BLOCK_OPERATIONS, kernel, map_blocks
from mlrh.spaces._kernels.plain import fill_odds, tilt_towards

TIE = 1e-13  # values that differ by less than this share count as equal, so that rounding does not choose between them
SAFE_MASS = 1e-240  # as SAFE_TOTAL in `plain`: underflow takes less than 1e-260 of a mass
TABLE_ENTRIES = 2**22  # values of a metric that are tabulated at a time: 32 MB


def exact_match_of_counts(tp, fp, fn):
    """1 where nothing is wrong, else 0."""
    return (fp + fn == 0).astype(np.float64)


def f1_of_counts(tp, fp, fn):
    """2 tp / (2 tp + fp + fn), 1 for an empty answer to an empty truth."""
    return np.where(tp + fp + fn == 0, 1.0, 2.0 * tp / np.maximum(2 * tp + fp + fn, 1))


def jaccard_of_counts(tp, fp, fn):
    """tp / (tp + fp + fn), 1 for an empty answer to an empty truth."""
    return np.where(tp + fp + fn == 0, 1.0, tp / np.maximum(tp + fp + fn, 1))


def metric_function(metric, n_labels):
    """The function f(tp, fp, fn) of a name, a function as it is; "hamming" is the share of right labels."""
    if callable(metric):
        return metric
    by_name = {
        "exact_match": exact_match_of_counts,
        "hamming": lambda tp, fp, fn: 1.0 - (fp + fn) / n_labels,
        "f1": f1_of_counts,
        "jaccard": jaccard_of_counts,
    }
    if not isinstance(metric, str) or metric not in by_name:
        raise ValueError(f"metric must be one of {sorted(by_name)} or a function f(tp, fp, fn); got {metric!r}.")
    return by_name[metric]


def check_metric(metric, n_labels, sizes):
    """Raise a ValueError where f(tp + 1, fp, fn) < f(tp, fp + 1, fn + 1), for truths of sizes[0] to sizes[1] labels.

    Without that rule, swapping a label of the answer for a likelier one could make the answer worse. Both sides have
    the same size of the answer and of the truth, so the counts are checked one size of the answer after the other.
    """
    for first, last in _chunks(0, n_labels, sizes[1]):
        table, possible = _table(metric, (first, last), n_labels, sizes)
        right, wrong = table[:, 1:, :-1], table[:, :-1, 1:]
        # Two expressions of the same value may differ by rounding.
        tolerance = 1e-12 * np.abs(table).max(initial=0.0)
        falls = possible[:, 1:, :-1] & possible[:, :-1, 1:] & (right < wrong - tolerance)
        if falls.any():
            offset, tp, fn = (int(index) for index in np.argwhere(falls)[0])
            fp = first + offset - tp - 1
            raise ValueError(
                "A metric f(tp, fp, fn) must never fall when a wrong label is swapped for a right one; got "
                f"f{tp + 1, fp, fn} = {right[offset, tp, fn]:g} below f{tp, fp + 1, fn + 1} = "
                f"{wrong[offset, tp, fn]:g}. If it is a loss, return its negative."
            )


def expected_by_counts(scores, pmf, sets, metric, *, n_jobs=None):
    """E[f] (n_rows,) of the answers `sets` (n_rows, n_labels), exact, in O(n_labels * max_labels) per row.

    `pmf` (n_rows, n_labels + 1) holds the probabilities of the sizes of the truth. Given its size t + r, the truth has
    t labels of the answer and r others with a probability proportional to e_t(answer) e_r(rest), the elementary
    symmetric polynomials of exp(scores).
    """
    # Labels are reordered so that the answer comes first: it is then a prefix of the labels.
    if len(scores) == 0:
        return np.zeros(0)
    order = np.argsort(1 - sets, axis=1, kind="stable")
    counts = np.count_nonzero(sets, axis=1)
    values = np.empty(len(scores))
    for first, last, block in _values_by_chunk(_ordered(scores, order), pmf, metric, (counts, counts), n_jobs):
        inside = np.flatnonzero((counts >= first) & (counts <= last))
        values[inside] = block[inside, counts[inside] - first]
    return values


def overlaps_by_counts(scores, pmf, sets, *, n_jobs=None):
    """P(the truth has t labels of the answer and r others), (n_rows, max t + 1, max r + 1); else as before."""
    counts = np.count_nonzero(sets, axis=1)
    n_sizes = 1 + int(np.flatnonzero(pmf.any(axis=0)).max(initial=0))
    most = counts.max(initial=0), (sets.shape[1] - counts).max(initial=0)
    overlaps = np.zeros((len(scores), *(min(int(count) + 1, n_sizes) for count in most)))
    ordered = _ordered(scores, np.argsort(1 - sets, axis=1, kind="stable"))
    pmf = np.ascontiguousarray(pmf[:, :n_sizes], dtype=np.float64)

    def work(rows):
        _fill_overlaps(ordered[rows], pmf[rows], counts[rows], overlaps[rows])

    rows_per_block = max(1, BLOCK_OPERATIONS // (scores.shape[1] * n_sizes + overlaps[0].size)) if len(scores) else 1
    map_blocks(work, len(scores), rows_per_block=rows_per_block, n_jobs=n_jobs)
    return overlaps


def expected_by_overlaps(overlaps, counts, metric, *, n_labels, sizes):
    """E[f] (n_rows,) of answers of counts[i] labels, from P(t, r) as `overlaps_by_counts` gives it.

    The truth has sizes[0] to sizes[1] of n_labels labels.
    """
    values = np.empty(len(overlaps))
    for m in np.unique(counts):
        rows = np.flatnonzero(counts == m)
        table = _table(metric, (m, m), n_labels, sizes)[0][0]
        shape = tuple(np.minimum(table.shape, overlaps.shape[1:]))
        inside = (slice(shape[0]), slice(shape[1]))
        values[rows] = np.tensordot(overlaps[(rows, *inside)], table[inside], axes=2)
    return values


def best_by_counts(scores, pmf, metric, limits, *, n_jobs=None):
    """The sets (n_rows, n_labels), int8, of limits[0] to limits[1] labels with the highest E[f].

    For a metric that passes `check_metric`, the best set is made of the m highest scores, for some m. Trying all m
    costs O(n_labels * max_labels^2) per row. Ties: the smaller set and the lower label win.
    """
    n_rows, n_labels = scores.shape
    low, high = limits
    sets = np.zeros((n_rows, n_labels), np.int8)
    if n_rows == 0:
        return sets
    order = np.argsort(-scores, axis=1, kind="stable")
    every = (np.full(n_rows, low), np.full(n_rows, high))
    values = np.empty((n_rows, high - low + 1))
    for first, last, block in _values_by_chunk(_ordered(scores, order), pmf, metric, every, n_jobs):
        values[:, first - low : last - low + 1] = block
    # The first, so smallest, m whose value is as good as the highest but for rounding.
    highest = values.max(axis=1, keepdims=True)
    tolerance = TIE * np.abs(values).max(axis=1, keepdims=True)
    sizes = low + np.argmax(values >= highest - tolerance, axis=1)
    np.put_along_axis(sets, order, (np.arange(n_labels) < sizes[:, None]).astype(np.int8), axis=1)
    return sets


def expected_by_sets(probs, listed, sets, metric):
    """E[f] (n_rows,) of the answers `sets`, where listed[s] is the truth with probability probs[:, s]."""
    tp = _overlaps(sets, listed)
    fp = np.count_nonzero(sets, axis=1)[:, None] - tp
    fn = np.count_nonzero(listed, axis=1) - tp
    return (probs * _checked_values(metric, tp.ravel(), fp.ravel(), fn.ravel()).reshape(tp.shape)).sum(axis=1)


def best_f1_by_sets(probs, listed, limits):
    """The sets (n_rows, n_labels), int8, of limits[0] to limits[1] labels with the highest expected F1, exact.

    For an answer of m labels, E[F1] is a sum over its labels k of gain_k = sum_s 2 P(y_k = 1, |y| = s) / (m + s). So
    the best answer of m labels is the m largest gains.
    """
    sizes = np.count_nonzero(listed, axis=1)
    distinct = np.unique(sizes[sizes > 0])
    joint = np.array([probs[:, sizes == s] @ listed[sizes == s].astype(np.float64) for s in distinct])
    joint = joint.reshape(len(distinct), len(probs), listed.shape[1])
    return best_f1_by_sizes(joint, distinct, probs[:, sizes == 0].sum(axis=1), limits)


def best_f1_by_sizes(joint, sizes, empty, limits):
    """The sets of `best_f1_by_sets`, from joint[j, :, k] = P(y_k = 1, |y| = sizes[j]) and P(|y| = 0), (n_rows,)."""
    best = Best(*joint.shape[1:])
    for m in range(limits[0], limits[1] + 1):
        sets = np.zeros(best.sets.shape, np.int8)
        if m == 0:
            # An empty answer has F1 = 1 if the truth is empty, else 0.
            best.offer(empty, sets)
            continue
        gains = np.tensordot(2.0 / (m + sizes), joint, axes=1)
        # Gains fall with m, so that an answer of m labels or more is no better than the sum of all of them.
        if (gains.sum(axis=1) < best.values).all():
            break
        chosen = np.argsort(-gains, axis=1, kind="stable")[:, :m]
        np.put_along_axis(sets, chosen, 1, axis=1)
        best.offer(np.take_along_axis(gains, chosen, axis=1).sum(axis=1), sets)
    return best.sets


def best_candidate_by_sets(probs, listed, metric, limits):
    """The sets (n_rows, n_labels), int8, with the highest E[f] among the listed ones and the sets of likeliest labels.

    The candidates have limits[0] to limits[1] labels. A set that is not a candidate may be better still.
    """
    n_labels, sizes = listed.shape[1], np.count_nonzero(listed, axis=1)
    order = np.argsort(-(probs @ listed.astype(np.float64)), axis=1, kind="stable")
    likeliest, overlaps = np.zeros((len(probs), n_labels), np.int8), np.zeros(probs.shape, np.int64)
    best = Best(len(probs), n_labels)
    for m in range(limits[1] + 1):
        if m > 0:
            np.put_along_axis(likeliest, order[:, m - 1 : m], 1, axis=1)
            overlaps += listed.T[order[:, m - 1]]
        if m < limits[0]:
            continue
        table = _table(metric, (m, m), n_labels, (int(sizes.min()), int(sizes.max())))[0][0]
        best.offer((probs * table[overlaps, sizes - overlaps]).sum(axis=1), likeliest)
        candidates = listed[sizes == m]
        # The table is the same for all candidates of one size; overlaps are made for a bounded number at a time.
        step = max(1, TABLE_ENTRIES // len(listed))
        for start in range(0, len(candidates), step):
            some = candidates[start : start + step]
            tp = _overlaps(some, listed)
            values = probs @ table[tp, sizes - tp].T
            best.offer(values.max(axis=1), some[values.argmax(axis=1)])
    return best.sets


def best_of_candidates(values, candidates):
    """The candidate (n_candidates, n_rows, n_labels) with the highest of values (n_candidates, n_rows) for each row."""
    best = Best(*candidates.shape[1:])
    for value, sets in zip(values, candidates, strict=True):
        best.offer(value, sets)
    return best.sets


class Best:
    """The best answer offered so far for each row; ties go to the one offered first."""

    def __init__(self, n_rows, n_labels):
        self.values = np.full(n_rows, -np.inf)
        self.sets = np.zeros((n_rows, n_labels), np.int8)

    def offer(self, values, sets):
        tolerance = np.where(self.values > -np.inf, TIE * np.maximum(np.abs(self.values), np.abs(values)), 0.0)
        better = values > self.values + tolerance
        self.values[better], self.sets[better] = values[better], sets[better]


def _ordered(scores, order):
    return np.take_along_axis(scores.astype(np.float64, copy=False), order, axis=1)


def _overlaps(sets, listed):
    """Numbers of labels that two sets share, (len(sets), len(listed))."""
    # By a product of floats, since BLAS has none of integers; counts are exact in float32 up to 2**24.
    return np.rint(sets.astype(np.float32) @ listed.T.astype(np.float32)).astype(np.int64)


def _values_by_chunk(scores, pmf, metric, splits, n_jobs):
    """Yields (first, last, values): E[f] of the answers made of the first m labels, for m = first, ..., last.

    splits holds the smallest and the largest m of each row. Values (n_rows, last - first + 1) of other m are not set.
    """
    # Sizes that no row can have are left out of table and recurrence.
    seen = np.flatnonzero(pmf.any(axis=0))
    sizes = (int(seen[0]), int(seen[-1]))
    pmf = np.ascontiguousarray(pmf[:, : sizes[1] + 1], dtype=np.float64)
    low, high = (np.ascontiguousarray(limit, dtype=np.int64) for limit in splits)
    for first, last in _chunks(int(low.min()), int(high.max()), sizes[1]):
        table, _ = _table(metric, (first, last), scores.shape[1], sizes)
        values = np.empty((len(scores), last - first + 1))
        operations = scores.shape[1] * pmf.shape[1] + table.size
        rows_per_block = max(1, BLOCK_OPERATIONS // operations)

        def work(rows, first=first, table=table, values=values):
            _fill_values(scores[rows], pmf[rows], low[rows], high[rows], first, table, values[rows])

        map_blocks(work, len(scores), rows_per_block=rows_per_block, n_jobs=n_jobs)
        yield first, last, values


def _chunks(low, high, max_labels):
    """Pairs (first, last) that divide the sizes low..high of the answer, each with a table of about TABLE_ENTRIES."""
    step = max(1, TABLE_ENTRIES // (max_labels + 1) ** 2)
    return [(first, min(first + step - 1, high)) for first in range(low, high + 1, step)]


def _table(metric, answers, n_labels, sizes):
    """f[m - answers[0], tp, fn] for answers of m labels and truths of sizes[0] to sizes[1] labels; and possible counts.

    The metric is only called with counts that can occur, marked in the second array; elsewhere the table is 0.
    """
    m = np.arange(answers[0], answers[1] + 1)[:, None, None]
    tp = np.arange(sizes[1] + 1)[:, None]
    fn = np.arange(sizes[1] + 1)
    possible = (tp <= m) & (m + fn <= n_labels) & (tp + fn >= sizes[0]) & (tp + fn <= sizes[1])
    offset, tp, fn = np.nonzero(possible)
    table = np.zeros(possible.shape)
    table[possible] = _checked_values(metric, tp, answers[0] + offset - tp, fn)
    return table, possible


def _checked_values(metric, tp, fp, fn):
    with np.errstate(all="ignore"):
        values = np.asarray(metric(tp, fp, fn))
    if values.shape != tp.shape or values.dtype.kind not in "biuf":
        got = f"shape {values.shape}" if values.shape != tp.shape else f"values of type {values.dtype}"
        raise ValueError(
            "A metric f(tp, fp, fn) must return numbers for arrays of counts, here of shape "
            f"{tp.shape}; got {got}. Write it with NumPy functions."
        )
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        i = int(np.argmin(np.isfinite(values)))
        counts = (int(tp[i]), int(fp[i]), int(fn[i]))
        raise ValueError(
            f"A metric f(tp, fp, fn) must be finite at all counts that can occur; got f{counts} = {values[i]}. Give it "
            "a value there, for example with numpy.where."
        )
    return values


@kernel
def _fill_values(scores, pmf, low, high, first, table, values):
    """Write E[f] of the answers made of the first m labels, low[i] <= m <= high[i], into values[i, m - first].

    Let labels be independent with probabilities sigmoid(scores_k + tilt), and let prefix_m and suffix_m be the pmfs of
    the numbers of labels among the first m and among the rest. Then, under any tilt,

        P(t in the answer, r outside | t + r = j) = prefix_m[t] suffix_m[r] / suffix_0[j]

    A tilt serves the sizes j whose suffix_0[j] is far from underflow. A tilt of 0 nearly always serves all sizes; each
    further one is aimed at the likeliest size that is left.
    """
    n_labels, n_sizes = scores.shape[1], pmf.shape[1]
    on, off = np.empty(n_labels), np.empty(n_labels)
    suffix, weights = np.empty((n_labels + 1, n_sizes)), np.empty(n_sizes)
    left = np.empty(n_sizes)
    for i in range(scores.shape[0]):
        begin, end = max(low[i], first), min(high[i], first + table.shape[0] - 1)
        if begin > end:
            continue
        for m in range(begin, end + 1):
            values[i, m - first] = 0.0
        for j in range(n_sizes):
            left[j] = pmf[i, j]
        pivot, tilt, aim = 0.0, 0.0, -1
        while True:
            if _serve(scores[i], pivot, tilt, aim, on, off, suffix, left, weights):
                _add_values(on, off, suffix, weights, begin, end, first, table, values[i])
            aim = int(np.argmax(left))
            if left[aim] == 0:
                break
            pivot, tilt = tilt_towards(-np.sort(-scores[i]), aim)


@kernel
def _fill_overlaps(scores, pmf, counts, overlaps):
    """Add P(t of the first counts[i] labels, r of the others) to overlaps[i, t, r]; tilts as in `_fill_values`."""
    n_labels, n_sizes = scores.shape[1], pmf.shape[1]
    on, off = np.empty(n_labels), np.empty(n_labels)
    suffix, weights = np.empty((n_labels + 1, n_sizes)), np.empty(n_sizes)
    prefix, left = np.empty(n_sizes), np.empty(n_sizes)
    for i in range(scores.shape[0]):
        m = counts[i]
        for j in range(n_sizes):
            left[j] = pmf[i, j]
        pivot, tilt, aim = 0.0, 0.0, -1
        while True:
            if _serve(scores[i], pivot, tilt, aim, on, off, suffix, left, weights):
                prefix[:] = 0.0
                prefix[0] = 1.0
                for k in range(m):
                    for t in range(min(k + 1, n_sizes - 1), 0, -1):
                        prefix[t] = off[k] * prefix[t] + on[k] * prefix[t - 1]
                    prefix[0] *= off[k]
                for t in range(min(m, n_sizes - 1) + 1):
                    for r in range(min(n_sizes - 1 - t, n_labels - m) + 1):
                        overlaps[i, t, r] += prefix[t] * suffix[m, r] * weights[t + r]
            aim = int(np.argmax(left))
            if left[aim] == 0:
                break
            pivot, tilt = tilt_towards(-np.sort(-scores[i]), aim)


@kernel
def _serve(scores, pivot, tilt, aim, on, off, suffix, left, weights):
    """Fill suffix under a tilt, and weights with left[j] / suffix[0, j] of the sizes it serves; whether there are any.

    Sizes that are served, and the one that was aimed at, are taken out of left.
    """
    fill_odds(scores, pivot, tilt, on, off)
    _fill_suffix(on, off, suffix)
    for j in range(weights.shape[0]):
        weights[j] = 0.0
        if left[j] > 0 and suffix[0, j] >= SAFE_MASS:
            weights[j] = left[j] / suffix[0, j]
            left[j] = 0.0
    # The size that was aimed at counts as done in any case, so that the loop over tilts ends.
    if aim >= 0:
        left[aim] = 0.0
    return weights.any()


@kernel
def _fill_suffix(on, off, suffix):
    """Fill row k of suffix (n_labels + 1, n_sizes) with the pmf of the number of labels among k, ..., n_labels - 1."""
    n_labels, n_sizes = on.shape[0], suffix.shape[1]
    suffix[n_labels] = 0.0
    suffix[n_labels, 0] = 1.0
    for k in range(n_labels - 1, -1, -1):
        suffix[k, 0] = off[k] * suffix[k + 1, 0]
        for j in range(1, n_sizes):
            suffix[k, j] = off[k] * suffix[k + 1, j] + on[k] * suffix[k + 1, j - 1]


@kernel
def _add_values(on, off, suffix, weights, begin, end, first, table, values):
    """Add sum_{t, r} prefix_m[t] suffix_m[r] weights[t + r] f(t, m - t, r) for m = begin, ..., end."""
    n_labels, n_sizes = on.shape[0], weights.shape[0]
    prefix, by_size = np.zeros(n_sizes), np.empty(n_sizes)
    prefix[0] = 1.0
    # The answer grows by one label at a time: prefix takes it in, and suffix[m] is what is left.
    for m in range(end + 1):
        if m > 0:
            for t in range(min(m, n_sizes - 1), 0, -1):
                prefix[t] = off[m - 1] * prefix[t] + on[m - 1] * prefix[t - 1]
            prefix[0] *= off[m - 1]
        if m < begin:
            continue
        # Sums per size of the truth first: each size has its own weight, the inverse of its total mass.
        by_size[:] = 0.0
        for t in range(min(m, n_sizes - 1) + 1):
            share = prefix[t]
            for r in range(min(n_sizes - 1 - t, n_labels - m) + 1):
                by_size[t + r] += share * suffix[m, r] * table[m - first, t, r]
        total = 0.0
        for j in range(n_sizes):
            total += weights[j] * by_size[j]
        values[m - first] += total
