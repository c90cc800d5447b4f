"""Sums over listed label sets: arrays in, arrays out.

`sets` is (n_sets, n_labels) of float64, dense or sparse, `set_bias` has one entry per set. Knows nothing of spaces.
"""

import numpy as np


def log_weights(scores, sets, set_bias, possible=None):
    """Logarithms of the weights of all sets (n_rows, n_sets) relative to each row's reference, and those references.

    Scores of 1e5 may cancel within a set, or between two, to a number whose 1e-12 counts. So every score is split into
    a multiple of a power of two, whose sums over labels are exact, and a small rest. Sets that are not possible
    (n_rows, n_sets) have weight 0, and no say in the reference, in whose size digits would be lost.
    """
    scores = np.asarray(scores, np.float64)
    largest = max(np.abs(scores).max(initial=0.0), np.abs(set_bias).max(), 1.0)
    if largest < 64:
        coarse, fine = np.zeros((1, 1)), scores @ sets.T + set_bias
    else:
        unit = 2.0 ** (np.ceil(np.log2(largest * (sets.shape[1] + 1))) - 50)
        rounded, rounded_bias = np.rint(scores / unit) * unit, np.rint(set_bias / unit) * unit
        coarse = rounded @ sets.T + rounded_bias
        fine = (scores - rounded) @ sets.T + (set_bias - rounded_bias)
    if possible is not None:
        coarse = np.where(possible, coarse, -np.inf)
    reference = coarse.max(axis=1, keepdims=True)
    return (coarse - reference) + fine, reference[:, 0]


def agree(known, sets):
    """Whether each set has every label that is known to be present and none known to be absent, (n_rows, n_sets)."""
    signs = (known == 1).astype(np.float64) - (known == 0)
    return signs @ sets.T == np.count_nonzero(known == 1, axis=1)[:, None]


def log_sums_and_probabilities(relative):
    """Logarithms of the sums of weights (n_rows,), and the probabilities (n_rows, n_sets)."""
    highest = relative.max(axis=1, keepdims=True)
    probs = np.exp(relative - highest)
    total = probs.sum(axis=1, keepdims=True)
    probs /= total
    return (highest + np.log(total))[:, 0], probs


def log_probabilities(relative):
    """Logarithms of the probabilities, (n_rows, n_sets)."""
    highest = relative.max(axis=1, keepdims=True)
    return np.minimum(relative - highest - np.log(np.exp(relative - highest).sum(axis=1, keepdims=True)), 0.0)


def entropy(relative):
    """Entropy in nats (n_rows,): log Z - E[log weight], both relative to the heaviest set, so no term is negative."""
    relative = relative - relative.max(axis=1, keepdims=True)
    weights = np.exp(relative)
    total = weights.sum(axis=1)
    weights[np.arange(len(weights)), relative.argmax(axis=1)] = 0.0
    relative[weights == 0] = 0.0
    return np.log1p(weights.sum(axis=1)) - (weights * relative).sum(axis=1) / total
