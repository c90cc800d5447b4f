"""All sets with independent labels, as a label space: one binary logistic regression per label.

The same distribution as the cardinality space of all sizes, in O(n_labels) per row instead of O(n_labels^2). A fit with
unknown labels starts from this space: there its loss is that of the known labels alone, and so still convex.
"""

import numpy as np
from scipy.special import expit

from mlrh._indicators import UNKNOWN
from mlrh.spaces.base import LabelSpace


class IndependentLabels(LabelSpace):
    """All sets of n_labels labels, without biases."""

    learns_bias = False

    def __init__(self, n_labels):
        self.n_labels = n_labels

    def for_targets(self, Y, *, classes, rows=None):
        return self

    def to_dict(self):
        return {"n_labels": self.n_labels}

    def with_bias(self, bias):
        return self

    def log_count(self):
        return self.n_labels * np.log(2.0)

    def sizes(self):
        return 0, self.n_labels

    def curvature_bound(self, *, moving_bias):
        return 0.25

    def independence(self, scores):
        return 1.0

    def expectations(self, scores, weights):
        # Z = prod_k (1 + exp(s_k)); a known label contributes one factor, exp(s_k) or 1, instead of the sum of both.
        terms, marginals = np.logaddexp(0.0, scores), expit(scores)
        if self.known is not None:
            terms = np.where(self.known == UNKNOWN, terms, self.known * scores)
            marginals = np.where(self.known == UNKNOWN, marginals, self.known).astype(scores.dtype)
        return terms.sum(axis=1), marginals, np.zeros(0)

    def curvature(self, scores, direction, bias_direction, weights):
        # p (1 - p), with 1 - p as sigmoid(-s): the difference would be 0 from scores of about 37 on.
        change = expit(scores) * expit(-scores) * direction
        if self.known is not None:
            change = np.where(self.known == UNKNOWN, change, 0.0).astype(scores.dtype)
        return change, np.zeros(0)

    def mode(self, scores):
        positive = scores > 0 if self.known is None else np.where(self.known == UNKNOWN, scores > 0, self.known)
        return positive.astype(np.int8)
