"""Rows of the cardinality space whose scores or biases are huge, as rows of moderate numbers: exact, in integers.

Scores and biases of 1e16 may cancel to a difference of 1 between two sets, which no sum of floats keeps. A float is an
integer multiple of 2**-1074, so Python's integers hold the sums exactly. Only sets near the mode have a probability
that a float can hold. `Moderate` moves all numbers near 0 in such a way that these sets keep their probabilities; the
recurrences then answer as for any other row.

`size_bias` has max_labels + 1 entries, -inf for a size that is not admissible.
"""

import math
from itertools import accumulate

import numpy as np

UNIT = 1074  # the smallest positive float is 2**-UNIT
# Up to this magnitude floats are good enough: their sums over a few labels are right to 1e-10, exponentials to 1e-16.
LARGEST_MODERATE = 1e6


def spread(size_bias):
    """The largest difference between the biases of two admissible sizes."""
    admissible = size_bias[size_bias > -np.inf]
    return admissible.max() - admissible.min()


def size_costs(descending, size_bias):
    """How far the best set of each size lies below the mode, (n_rows, n_sizes), rounded once; inf if not admissible.

    `descending` (n_rows, n_labels) holds scores, the highest of each row first.
    """
    return np.array([_costs(_log_weights(row, size_bias)) for row in descending]).reshape(-1, len(size_bias))


class Moderate:
    """Scores and size_bias near 0 under which one row, scores (n_labels,), has the same distribution.

    The best set of size j holds the j highest scores. Sizes whose best set is more than `reach` below the mode become
    inadmissible. A gap above `reach` between two neighbouring scores shrinks to `reach`: a set that gives up a score
    above the gap for one below it is out of range before and after. The new biases make up for it, so that the best set
    of each size keeps its distance from the mode, whose log-weight becomes 0.
    """

    def __init__(self, scores, size_bias):
        self._exact_scores, self._exact_bias = _integers(scores), _integers(size_bias)
        order = np.argsort(-scores, kind="stable")
        descending = scores[order]
        log_weights = _log_weights(descending, size_bias)
        costs = _costs(log_weights)
        best = int(np.argmin(costs))
        self._log_weight_of_mode = log_weights[best]
        # exp(-750) is no float any more; the rest is for the number of sets, at most 2**n_labels = exp(0.7 n_labels).
        reach = 750.0 + len(scores)
        steps = np.minimum(descending[:-1] - descending[1:], reach)
        moved = np.append(0.0, -np.cumsum(steps))
        moved -= moved[max(best, 1) - 1]  # numbers near the mode are smallest, and so keep most digits
        self.scores = np.empty(len(scores))
        self.scores[order] = moved
        self.mode = np.zeros(len(scores), np.int8)
        self.mode[order[:best]] = 1
        sums = [_as_float(total) for total in accumulate(_integers(moved), initial=0)]
        self.size_bias = np.where(costs <= reach, -costs - sums[: len(costs)], -np.inf)

    def log_partition(self, moderate):
        """Log-partition of the row, from that of the moderate numbers."""
        return _as_float(self._log_weight_of_mode) + moderate

    def log_prob(self, labels, of_mode):
        """Log-probability of a set (n_labels,), however improbable, from that of the mode."""
        size = int(np.count_nonzero(labels))
        if size >= len(self._exact_bias) or self._exact_bias[size] is None:
            return -np.inf
        log_weight = self._exact_bias[size] + sum(self._exact_scores[k] for k in np.flatnonzero(labels))
        return min(_as_float(log_weight - self._log_weight_of_mode) + of_mode, 0.0)


def _log_weights(descending, size_bias):
    """Log-weight of the best set of each size as an integer, None where the size is not admissible."""
    sums = accumulate(_integers(descending), initial=0)
    return [None if bias is None else bias + total for bias, total in zip(_integers(size_bias), sums, strict=False)]


def _costs(log_weights):
    best = max(weight for weight in log_weights if weight is not None)
    return np.array([np.inf if weight is None else _as_float(best - weight) for weight in log_weights])


def _integers(numbers):
    """Floats in units of 2**-UNIT, None for -inf."""
    result: list[int | None] = []
    for number in numbers.tolist():
        if number == -math.inf:
            result.append(None)
            continue
        numerator, denominator = number.as_integer_ratio()
        result.append(numerator << (UNIT + 1 - denominator.bit_length()))
    return result


def _as_float(number):
    return number / (1 << UNIT)  # rounded once
