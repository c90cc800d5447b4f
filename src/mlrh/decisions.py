"""From a distribution to label sets: the best prediction for a metric. Knows nothing of fitting."""

import numpy as np


def exact_match(distribution):
    """The sets most likely to be right as a whole (winner-take-all), always sets of the label space."""
    return distribution.mode()


def hamming(distribution):
    """The sets with the fewest wrong labels to be expected: every label with a marginal above 1/2.

    Such a set may lie outside the label space and may be empty.
    """
    return (distribution.marginals() > 0.5).astype(np.int8)


BY_NAME = {"exact_match": exact_match, "hamming": hamming}
