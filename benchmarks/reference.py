"""Log-partition and marginals of one row in extended precision, by the plain recurrence; what accuracy is held against.

With p_k = sigmoid(score_k): sizes of the first labels forwards, what the others add backwards, all terms positive. On
platforms where long double is no longer than double its errors are those of the plain recurrence.
"""

import numpy as np


def expectations(scores, min_labels, max_labels):
    """Log-partition and marginals (n_labels,) of scores (n_labels,), over the sets of min_labels to max_labels labels.

    O(n_labels * max_labels) in time and memory.
    """
    scores = np.asarray(scores, np.longdouble)
    present, absent = _sigmoid(scores), _sigmoid(-scores)
    prefixes = _prefixes(present, absent, max_labels)
    admissible = (np.arange(max_labels + 1) >= min_labels).astype(np.longdouble)
    total = prefixes[-1] @ admissible
    marginals, rest = np.empty_like(scores), admissible
    for k in reversed(range(len(scores))):
        shifted = np.append(rest[1:], np.longdouble(0))
        marginals[k] = present[k] * (prefixes[k] @ shifted) / total
        rest = absent[k] * rest + present[k] * shifted
    return float(np.log(total) - np.log(absent).sum()), marginals.astype(np.float64)


def _prefixes(present, absent, max_labels):
    """Probabilities (n_labels + 1, max_labels + 1) of each size among the first labels."""
    table = np.zeros((len(present) + 1, max_labels + 1), np.longdouble)
    table[0, 0] = 1
    for k, (p, q) in enumerate(zip(present, absent, strict=True)):
        table[k + 1] = q * table[k]
        table[k + 1, 1:] += p * table[k, :-1]
    return table


def _sigmoid(scores):
    return 1 / (1 + np.exp(-scores))
