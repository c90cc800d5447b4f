"""One binary logistic regression per label, in the form of a label space: all sets, the labels independent.

The same distribution as the cardinality space of all sizes, in O(n_labels) per row. It is what a fit with hidden labels
starts from: given what is known of a row, the loss is that of its known labels alone, and convex.
"""

from copy import copy

import numpy as np
from scipy.special import expit

from mlrh._indicators import UNKNOWN


class SeparateLabels:
    """All sets of n_labels labels without biases: what an objective asks of a space, and no more."""

    n_biases = 0
    bias = np.zeros(0)

    def __init__(self, n_labels):
        self.n_labels = n_labels
        self.known: np.ndarray | None = None

    def given(self, known):
        """The same where labels of each row are known, (n_samples, n_labels) of 1, 0 and UNKNOWN."""
        other = copy(self)
        other.known = known
        return other

    def bias_counts(self, Y, weights):
        return np.zeros(0)

    def absorbed_biases(self):
        return np.zeros((0, 1))

    def log_count(self):
        """Logarithm of the number of sets."""
        return self.n_labels * np.log(2.0)

    def is_shift_invariant(self):
        return False

    def curvature_bound(self, *, moving_bias):
        return 0.25

    def independence(self, scores):
        """How far labels are independent: entirely."""
        return 1.0

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels) and no biases."""
        terms, marginals = np.logaddexp(0.0, scores), expit(scores)
        if self.known is not None:
            terms = np.where(self.known == UNKNOWN, terms, self.known * scores)
            marginals = np.where(self.known == UNKNOWN, marginals, self.known).astype(scores.dtype)
        return terms.sum(axis=1), marginals, np.zeros(0)

    def curvature(self, scores, direction, bias_direction, weights):
        """Derivatives of marginals as scores move along the direction, and no biases."""
        change = expit(scores) * expit(-scores) * direction
        if self.known is not None:
            change = np.where(self.known == UNKNOWN, change, 0.0).astype(scores.dtype)
        return change, np.zeros(0)
