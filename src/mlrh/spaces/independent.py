"""All sets with independent labels, as a label space: one binary logistic regression per label.

The same distribution as the cardinality space of all sizes, which answers what is asked less often. What a fit repeats
takes O(n_labels) per row here, there O(n_labels^2). A fit with unknown labels starts from this space: there its loss is
that of the known labels alone, and so still convex. In a space of groups it is the space of the labels in no group.
"""

import numpy as np
from scipy.special import expit

from mlrh._indicators import UNKNOWN
from mlrh.spaces.base import LabelSpace
from mlrh.spaces.cardinality import CardinalitySpace


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

    # The cardinality space of all sizes has the same sets and answers the rest.

    def log_prob(self, scores, Y):
        return self._of_all_sizes().log_prob(scores, Y)

    def cardinality_pmf(self, scores):
        return self._of_all_sizes().cardinality_pmf(scores)

    def entropy(self, scores):
        return self._of_all_sizes().entropy(scores)

    def joint_marginals(self, scores):
        return self._of_all_sizes().joint_marginals(scores)

    def any_of(self, scores, groups):
        return self._of_all_sizes().any_of(scores, groups)

    def top_sets(self, scores, n):
        return self._of_all_sizes().top_sets(scores, n)

    def sample(self, scores, n, random_state):
        return self._of_all_sizes().sample(scores, n, random_state)

    def expected(self, scores, Y, metric):
        return self._of_all_sizes().expected(scores, Y, metric)

    def overlaps(self, scores, Y):
        return self._of_all_sizes().overlaps(scores, Y)

    def best(self, scores, metric, limits):
        return self._of_all_sizes().best(scores, metric, limits)

    def modes_within(self, scores, low, high):
        return self._of_all_sizes().modes_within(scores, low, high)

    def likeliest(self, scores, counts):
        return self._of_all_sizes().likeliest(scores, counts)

    def _of_all_sizes(self):
        space = CardinalitySpace(self.n_labels, 0, self.n_labels)
        return space if self.known is None else space.given(self.known)
