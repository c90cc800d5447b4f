"""The open space: every set of an admissible size with a bias per size, and a bias of its own for each set seen.

With q_s = P(s | x) in the cardinality space and beta_s the bias of a seen set,

    Z = Z_cardinality * T        T = 1 + sum_s (exp(beta_s) - 1) q_s        P(s | x) = exp(beta_s) q_s / T

so an answer is that of the cardinality space, corrected by a sum over the seen sets: `_kernels/seen_sets`. Where the
correction takes nearly everything away (T near 0), or numbers are huge, `_kernels/trie` sums without subtracting.
"""

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np
from scipy import linalg, sparse

from mlrh._indicators import UNKNOWN, as_indicator, contradict, merged
from mlrh._parallel import map_blocks
from mlrh._warnings import warn
from mlrh.spaces._kernels import expected_metrics, seen_sets, trie
from mlrh.spaces.base import LARGEST_IN_FLOATS, LabelSpace, checked_bias, highest_labels
from mlrh.spaces.cardinality import CardinalitySpace, check_limits, sizes_in_words, training_sizes
from mlrh.spaces.observed import distinct_sets

# Up to here log-weights of sets are summed in plain floating point. Biases are added to sums of a few dozen scores.
LARGEST_PLAIN = 64.0
# Of log Z, and of the sum of the positive scores of a row: the last digit of such a sum is worth 1e-13.
LARGEST_SUM = 1024.0
TABLE_ENTRIES = 2**22  # of tables (n_rows, n_sets) or of sets (n_rows, n, n_labels) that are made at a time
NODES_PER_BLOCK = 20_000  # visited in one block of rows by `trie`: about a millisecond
STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1)  # of which `tuned` chooses; 30 and 0.03 were left out to save time
USUAL_STRENGTH = 1.0  # where nothing was chosen: within a standard error of the best on five of six public sets
MIN_TUNING_ROWS = 20  # fewer held-out rows say nothing about a strength
LOG_NEGLIGIBLE = np.log(1e-9)  # of a probability that is left out of the sums that choose a strength
MAX_LOG_RATIO = 20.0  # limit of a bias while a strength is chosen: fits to public sets stay below 9
# Sets of training that get a bias: bibtex has 2,058 in 4,880 rows. Of more, most occur once and say next to nothing.
MAX_SETS = 5000
N_CANDIDATES = 10  # most probable sets that `best` tries for a metric without an exact rule


class OpenSpace(LabelSpace):
    """Every set of min_labels to max_labels labels, with a bias per size, and one more for each of the given sets.

    Answers cost O(n_labels * max_labels) per row plus the number of labels in all given sets. Entropy, samples and
    `any_of` go through the trie of the given sets: up to n_labels steps per set. Scores and biases are at most 1e6 in
    magnitude: beyond that, sums in which they cancel could be wrong.

    Parameters
    ----------
    n_labels, min_labels, max_labels : int
        0 <= min_labels <= max_labels <= n_labels.
    sets : array of shape (n_sets, n_labels)
        Distinct rows of 0 and 1, each of an admissible size.
    set_bias : array of shape (n_sets,), optional
        Added to the score of each of these sets.
    size_bias : array of shape (n_labels + 1,), optional
        Added to the score of any set of j labels; entries outside min_labels..max_labels don't matter.
    set_bias_strength : float or "auto"
        How strongly a fit holds the biases of sets to 0: strength/2 * set_bias^2, in units of the loss. "auto" chooses
        it on held-out rows (see `tuned`).
    n_jobs : int, optional
        Threads over rows. None: all usable cores, 1 inside a joblib worker.

    Examples
    --------
    >>> from mlrh.spaces import OpenSpace
    >>> space = OpenSpace(3, 1, 2, sets=[[1, 1, 0]], set_bias=[2.0])
    >>> d = space.distribution([[2.0, 0.0, -1.0]])
    >>> d.mode().tolist()
    [[1, 1, 0]]
    >>> d.marginals().round(3).tolist()
    [[0.974, 0.842, 0.052]]
    """

    largest_score = LARGEST_IN_FLOATS
    has_coupled_metric = True

    def __init__(
        self,
        n_labels,
        min_labels,
        max_labels,
        sets,
        set_bias=None,
        size_bias=None,
        *,
        set_bias_strength="auto",
        n_jobs=None,
    ):
        check_limits(n_labels, min_labels, max_labels)
        size_bias = checked_bias(size_bias, "size_bias", n_labels + 1, f"size 0..{n_labels}", self.largest_score)
        self._cardinality = CardinalitySpace(
            n_labels, min_labels, max_labels, size_bias, learn_bias=True, n_jobs=n_jobs
        )
        self._seen = _SeenSets(_checked_sets(sets, n_labels, min_labels, max_labels))
        biases = checked_bias(set_bias, "set_bias", len(self._seen.sets), "set", self.largest_score)
        is_number = isinstance(set_bias_strength, Real) and not isinstance(set_bias_strength, bool)
        if set_bias_strength != "auto" and not (is_number and 0 < set_bias_strength < np.inf):
            raise ValueError(f"set_bias_strength must be 'auto' or a positive number; got {set_bias_strength!r}.")
        self.n_labels, self.min_labels, self.max_labels = n_labels, min_labels, max_labels
        self.set_bias_strength, self.n_jobs = set_bias_strength, n_jobs
        self._set_biases(self._cardinality.size_bias, biases)

    def _set_biases(self, size_bias, set_bias):
        self.size_bias, self.set_bias = size_bias, set_bias
        self.set_bias.setflags(write=False)
        self.bias = np.concatenate([size_bias[self.min_labels : self.max_labels + 1], set_bias])

    def __repr__(self):
        return (
            f"OpenSpace(n_labels={self.n_labels}, min_labels={self.min_labels}, max_labels={self.max_labels}, "
            f"{len(self.sets)} sets)"
        )

    @property
    def sets(self):
        """The sets that have a bias of their own, (n_sets, n_labels)."""
        return self._seen.sets

    def for_targets(self, Y, *, classes, rows=None):
        """This space, if it has the labels of Y and sizes for all its rows."""
        self._cardinality.for_targets(Y, classes=classes, rows=rows)
        return self

    def to_dict(self):
        values = {"n_labels": self.n_labels, "min_labels": self.min_labels, "max_labels": self.max_labels}
        biases = {"set_bias": self.set_bias, "size_bias": self.size_bias}
        return {**values, "sets": self.sets, **biases, "set_bias_strength": self.set_bias_strength}

    @classmethod
    def from_dict(cls, values):
        """The space of `to_dict`."""
        # The array must be there: a file without it could ask for any amount of memory.
        return cls(**{**values, "size_bias": np.asarray(values["size_bias"], np.float64)})

    def describe(self):
        n_sets = f"{len(self.sets)} seen set{'s' if len(self.sets) != 1 else ''}"
        return f"open: all sets of {sizes_in_words(*self.sizes())}, with a bias per size and for each of {n_sets}"

    def fitted_attributes(self):
        sizes = {"min_labels_": self.min_labels, "max_labels_": self.max_labels, "size_bias_": self.size_bias}
        sets = {"sets_": self.sets, "set_bias_": self.set_bias, "set_bias_strength_": self._strength}
        return {**sizes, **sets}

    def with_bias(self, bias):
        """The same space with biases (n_biases,): those of the sizes min_labels, ..., max_labels, then of the sets."""
        bias, n_sizes = np.asarray(bias, np.float64), self.max_labels - self.min_labels + 1
        other = copy(self)
        other._cardinality = self._cardinality.with_bias(bias[:n_sizes])
        size_bias = np.zeros(self.n_labels + 1)
        size_bias[self.min_labels : self.max_labels + 1] = bias[:n_sizes]
        other._set_biases(size_bias, bias[n_sizes:].copy())
        return other

    # What a fit asks.

    @property
    def bias_ridge(self):
        n_sizes = self.max_labels - self.min_labels + 1
        ridge = np.full(n_sizes + len(self.sets), self._strength)
        ridge[:n_sizes] = LabelSpace.bias_ridge
        return ridge

    @property
    def _strength(self):
        return float(USUAL_STRENGTH if self.set_bias_strength == "auto" else self.set_bias_strength)

    @property
    def operations_per_score(self):
        return 2.5 * (self.max_labels + 1) + (2.0 * len(self._seen.indices) + len(self.sets)) / self.n_labels

    def with_jobs(self, n_jobs):
        """The same space with another number of threads."""
        if n_jobs == self.n_jobs:
            return self
        other = copy(self)
        other.n_jobs, other._cardinality = n_jobs, self._cardinality.with_jobs(n_jobs)
        return other

    def has_sets_of(self, other):
        if type(other) is not type(self) or self.sizes() != other.sizes():
            return False
        return np.array_equal(self.sets, other.sets)

    def bias_counts(self, Y, weights):
        """Total weight of the rows of each size, then of the rows that hold each seen set, (n_biases,)."""
        found = self._seen.find(Y)
        of_sets = np.bincount(found[found >= 0], weights=weights[found >= 0], minlength=len(self.sets))
        return np.concatenate([self._free().bias_counts(Y, weights), of_sets])

    def absorbed_biases(self):
        """Biases a + c |y| of sizes that scores can take over: columns (n_biases, 2), the constant first."""
        of_sizes = self._free().absorbed_biases()
        return np.concatenate([of_sizes, np.zeros((len(self.sets), of_sizes.shape[1]))])

    def log_count(self):
        """Logarithm of the number of sets."""
        return self._free().log_count()

    def sizes(self):
        return self.min_labels, self.max_labels

    def undetermined(self, Y):
        """Sentences on sizes without a finite optimum, as in a cardinality space."""
        return self._free().undetermined(Y)

    def curvature_bound(self, *, moving_bias):
        """A quarter of the largest squared distance between two sets.

        With moving_bias, the indicators of two sizes and of two seen sets add up to 4 to it.
        """
        distance = min(2 * self.max_labels, 2 * (self.n_labels - self.min_labels), self.n_labels)
        return (distance + 4 * moving_bias) / 4

    def simpler(self):
        """The cardinality space with learned size biases, unless the strength of the biases of sets is given."""
        if self.set_bias_strength != "auto" or len(self.sets) == 0:
            return None
        return self._free().with_bias(np.zeros(self.max_labels - self.min_labels + 1))

    def tuned(self, Y, weights, folds):
        """The space with the strength under which held-out rows are most probable, of STRENGTHS.

        On top of the scores of each fold, which stay as they are, biases are fitted to the rows that were not held out,
        for the sets of these rows alone. A held-out row so counts as seen only if other rows have its set too. On
        training rows no strength could be judged: every set of theirs is in the list because it is theirs.
        """
        complete = (Y != UNKNOWN).all(axis=1)
        if np.count_nonzero(complete) < MIN_TUNING_ROWS:
            return self._with_strength(USUAL_STRENGTH)
        losses, biases = zip(*(_on_held_out(self, Y, weights, complete, fold) for fold in folds), strict=True)
        best = int(np.argmin(np.sum(losses, axis=0)))
        of_sizes = np.mean([space.bias for _, _, space in folds], axis=0)
        start = np.concatenate([of_sizes, np.mean(biases, axis=0)[best]])
        return self.with_bias(start)._with_strength(STRENGTHS[best])

    def _with_strength(self, strength):
        other = copy(self)
        other.set_bias_strength = strength
        return other

    def _probabilities_without_bias(self, scores, cardinality):
        """Probabilities of seen sets in a cardinality space, sparse (n_samples, n_sets): indptr, indices, values."""
        scores, step = _wide(scores), max(1, TABLE_ENTRIES // max(1, len(self.sets)))
        space, blocks = self.with_bias(np.concatenate([cardinality.bias, self.set_bias])), []
        for start in range(0, len(scores), step):
            block = scores[start : start + step]
            # Not log_partition: a first fit would compile a kernel for that alone, which takes half a second.
            log_cardinality, _, _ = cardinality.expectations(block, np.zeros(len(block)))
            log_probs = space._log_weights(block) - log_cardinality[:, None]
            kept = log_probs > LOG_NEGLIGIBLE
            blocks.append((np.count_nonzero(kept, axis=1), np.nonzero(kept)[1], np.exp(log_probs[kept])))
        counts, indices, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return np.concatenate([[0], np.cumsum(counts)]), indices, values

    def coupled_sums(self, scores, weights):
        wide = _wide(scores)
        log_partition, marginals, by_bias = self.expectations(wide, weights)
        return weights @ marginals, by_bias, *_spreads(self, wide, weights, log_partition)

    def coupled_metric(self, sums, of_intercept, ridge, absorbed):
        try:
            return _Coupled.of(self, sums, of_intercept, ridge, absorbed).solve
        except linalg.LinAlgError:  # rounding left a matrix that is not positive definite
            return None

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), weights @ P(size), P(seen set) (n_biases,)."""
        wide = _wide(scores)
        log_cardinality, marginals, pmf = self._cardinality._row_expectations(wide)
        totals, shares, _, by_set, safe = self._sums(wide, log_cardinality, weights)
        inverse = np.divide(1.0, totals, out=np.zeros(len(wide)), where=safe)
        by_size = (weights * inverse) @ pmf[:, self.min_labels :]
        log_partition = log_cardinality + np.log(totals, out=np.zeros(len(wide)), where=safe)
        before, marginals = marginals, np.clip(marginals * inverse[:, None] + shares, 0.0, 1.0)
        # by_set is exp(beta) q / T; the sizes have exp(beta) - 1 there, as the cardinality space has the 1.
        by_size += self._by_size(-np.expm1(-self._plain_set_bias()) * by_set)[self.min_labels : self.max_labels + 1]
        rows = np.flatnonzero(~safe)
        if len(rows):
            log_partition[rows], marginals[rows], pmf, probs = self._by_trie(wide, rows)
            by_size += weights[rows] @ pmf[:, self.min_labels :]
            by_set += weights[rows] @ probs
        rows = np.flatnonzero(safe & _lost(marginals, before, inverse))
        if len(rows):
            marginals[rows] = self._by_trie(wide, rows)[1]
        return (
            log_partition.astype(scores.dtype),
            marginals.astype(scores.dtype, copy=False),
            np.concatenate([by_size, by_set]),
        )

    def curvature(self, scores, direction, bias_direction, weights):
        return self.curvature_at(scores, weights)(direction, bias_direction)

    def curvature_at(self, scores, weights):
        """Derivatives of marginals and of weights @ (P(size), P(seen set)), as a function of the directions.

        These are covariances with u(y), the change of a log-weight along the directions. Those of the cardinality space
        are corrected by a sum over the seen sets, as in `expectations`.
        """
        wide, n_sizes = _wide(scores), self.max_labels - self.min_labels + 1
        log_cardinality, marginals, pmf = self._cardinality._row_expectations(wide)
        totals, _, _, _, safe = self._sums(wide, log_cardinality, np.zeros(len(wide)))
        inverse = np.divide(1.0, totals, out=np.zeros(len(wide)), where=safe)
        biases = (self.size_bias[self._seen.counts], self._plain_set_bias())
        log_cardinality, counted = np.where(safe, log_cardinality, 0.0), np.where(safe, weights, 0.0)
        rows = np.flatnonzero(~safe)

        def along(direction, bias_direction):
            direction = np.ascontiguousarray(_wide(direction))
            of_sizes, of_sets = np.zeros(self.max_labels + 1), np.asarray(bias_direction[n_sizes:], np.float64)
            of_sizes[self.min_labels :] = bias_direction[:n_sizes]
            means = (marginals * direction).sum(axis=1) + pmf @ of_sizes
            inputs = (log_cardinality, means, self._known_or_none(), self._seen.as_given, biases)
            directions = (of_sizes[self._seen.counts], of_sets)
            total_means, shares, sizes, by_set = seen_sets.moments(
                wide, direction, *inputs, directions, weights, safe, n_sizes=self.max_labels + 1, n_jobs=self.n_jobs
            )
            d_marginals, by_size = self._cardinality.curvature(
                wide, direction, bias_direction[:n_sizes], weights * inverse
            )
            # Cov_c(y, u) + E_c[y] (E_c[u] - E[u]) is E_c[y (u - E[u])].
            offset = (means - total_means) * inverse
            d_marginals = d_marginals * inverse[:, None] + marginals * offset[:, None] + shares
            of_rows = (counted * offset) @ pmf + counted @ sizes
            by_size = by_size + of_rows[self.min_labels :]
            if len(rows):
                d_marginals[rows], rest = LabelSpace.curvature(
                    self._of_rows(rows), wide[rows], direction[rows], bias_direction, weights[rows]
                )
                by_size, by_set = by_size + rest[:n_sizes], by_set + rest[n_sizes:]
            return d_marginals.astype(scores.dtype, copy=False), np.concatenate([by_size, by_set])

        return along

    # What a distribution asks.

    def log_partition(self, scores):
        wide = _wide(scores)
        log_cardinality = self._cardinality.log_partition(wide)
        totals, _, _, _, safe = self._sums(wide, log_cardinality, np.zeros(len(wide)))
        log_partition = log_cardinality + np.log(totals, out=np.zeros(len(wide)), where=safe)
        rows = np.flatnonzero(~safe)
        if len(rows):
            log_partition[rows] = self._by_trie(wide, rows)[0]
        return log_partition.astype(scores.dtype)

    def cardinality_pmf(self, scores):
        wide = _wide(scores)
        log_cardinality, _, before = self._cardinality._row_expectations(wide)
        totals, _, sizes, _, safe = self._sums(wide, log_cardinality, np.zeros(len(wide)))
        inverse = np.divide(1.0, totals, out=np.zeros(len(wide)), where=safe)
        pmf = np.clip(before * inverse[:, None] + sizes, 0.0, 1.0)
        rows = np.flatnonzero(~safe | _lost(pmf, before, inverse))
        if len(rows):
            pmf[rows] = self._by_trie(wide, rows)[2]
        return np.pad(pmf, ((0, 0), (0, self.n_labels - self.max_labels))).astype(scores.dtype, copy=False)

    def log_weight(self, scores, Y):
        sizes, found = np.count_nonzero(Y, axis=1), self._seen.find(Y)
        biases = np.where(found >= 0, np.append(self.set_bias, 0.0)[found], 0.0) + self.size_bias[sizes]
        possible = (sizes >= self.min_labels) & (sizes <= self.max_labels)
        if self.known is not None:
            possible &= ~contradict(self.known, Y)
        log_weights = np.where(Y == 1, scores, 0.0).sum(axis=1, dtype=np.float64) + biases
        return np.where(possible, log_weights, -np.inf).astype(scores.dtype)

    def log_prob(self, scores, Y):
        # P(y) = exp(beta) q / T. Both logarithms are accurate and of ordinary size.
        wide, found = _wide(scores), self._seen.find(Y)
        totals, _, _, _, safe = self._sums(wide, self._cardinality.log_partition(wide), np.zeros(len(wide)))
        own = np.where(found >= 0, np.append(self.set_bias, 0.0)[found], 0.0)
        log_probs = self._cardinality.log_prob(wide, Y)
        log_probs += own - np.log(totals, out=np.zeros(len(wide)), where=safe)
        rows = np.flatnonzero(~safe & (log_probs > -np.inf))
        if len(rows):
            log_probs[rows] = self._over_trie(trie.log_prob, wide, rows, (Y[rows], own[rows]), np.empty(len(rows)))
        return np.minimum(log_probs, 0.0).astype(scores.dtype)

    def mode(self, scores):
        """The most probable set of each row; ties go to the lower label and the smaller set."""
        wide = _wide(scores)
        sets = self._cardinality.mode(wide)
        found = self._seen.find(sets)
        # The mode of the cardinality space stays the best of the sets without a bias, unless it is itself a seen one.
        # Where its bias is not negative, some seen set beats all others; else the next ones must be looked at.
        lowered = (found >= 0) & (np.append(self.set_bias, 0.0)[found] < 0)
        best, values = seen_sets.best(
            wide, self._known_or_none(), self._seen.ordered, self._ordered_bias(), n_jobs=self.n_jobs
        )
        chosen = self.sets[self._seen.order[best]] if len(self.sets) else sets
        own = np.where(found < 0, self._log_weights_of(wide, sets[:, None])[:, 0], -np.inf)
        seen_wins = (best >= 0) & ((values > own) | ((values == own) & _comes_first(chosen, sets)))
        sets[seen_wins] = chosen[seen_wins]
        rows = np.flatnonzero(lowered)
        if len(rows):
            sets[rows] = self._of_rows(rows)._ranked(wide[rows], 1)[0][:, 0]
        return sets

    def top_sets(self, scores, n):
        wide = _wide(scores)
        sets, counts = self._ranked(wide, n)
        log_probs = np.full((len(wide), n), -np.inf)
        for place in range(n):
            rows = np.flatnonzero(counts > place)
            if len(rows):
                log_probs[rows, place] = self._of_rows(rows).log_prob(wide[rows], sets[rows, place])
        # The order of the sets is exact, but two log-probabilities may be out of order by a rounding error.
        return sets, np.minimum.accumulate(log_probs, axis=1).astype(scores.dtype)

    def sample(self, scores, n, random_state):
        sets = np.empty((len(scores), n, self.n_labels), np.int8)
        wide = _wide(scores)
        # Uniforms are made in blocks of bounded memory, in an order that does not depend on the block size.
        n_rows = max(1, TABLE_ENTRIES // max(1, n * self.n_labels))
        for start in range(0, len(wide), n_rows):
            rows = np.arange(start, min(start + n_rows, len(wide)))
            uniforms = random_state.random_sample((len(rows), n, self.n_labels))
            sets[rows] = self._over_trie(trie.sample, wide, rows, (uniforms,), np.empty(uniforms.shape, np.int8))
        return sets

    def entropy(self, scores):
        every = np.arange(len(scores))
        return self._over_trie(trie.entropy, _wide(scores), every, (), np.empty(len(every))).astype(scores.dtype)

    def any_of(self, scores, groups):
        every, groups = np.arange(len(scores)), np.ascontiguousarray(groups)
        result = self._over_trie(trie.any_of, _wide(scores), every, (groups,), np.empty(len(every)))
        return result.astype(scores.dtype)

    def expected(self, scores, Y, metric):
        wide = _wide(scores)
        log_cardinality = self._cardinality.log_partition(wide)
        totals, _, _, _, safe = self._sums(wide, log_cardinality, np.zeros(len(wide)))
        inverse = np.divide(1.0, totals, out=np.zeros(len(wide)), where=safe)
        before = self._cardinality.expected(wide, Y, metric)
        values = before * inverse
        for rows, gains in self._gains(wide, log_cardinality, totals, safe):
            values[rows] += expected_metrics.expected_by_sets(gains, self.sets, Y[rows], metric)
        rows = np.flatnonzero(~safe | _lost(values[:, None], before[:, None], inverse))
        if len(rows):
            shape = (len(rows), self.max_labels + 1, self.max_labels + 1)
            probs = self._over_trie(trie.overlaps, wide, rows, (Y[rows],), np.empty(shape))
            counts, sizes = np.count_nonzero(Y[rows], axis=1), {"n_labels": self.n_labels, "sizes": self.sizes()}
            values[rows] = expected_metrics.expected_by_overlaps(probs, counts, metric, **sizes)
        return values

    def best(self, scores, metric, limits):
        """The best sets for a metric; exact for F1, else the best of some candidates.

        These are the N_CANDIDATES most probable sets and the sets of the m likeliest labels, m = 0, ..., n_labels.
        """
        if metric is expected_metrics.f1_of_counts:
            return self._best_f1(scores, limits)
        marginals, every = self.marginals(scores), np.ones(len(scores), np.int64)
        candidates = [highest_labels(marginals, m * every) for m in range(limits[0], limits[1] + 1)]
        for sets in self.top_sets(scores, N_CANDIDATES)[0].transpose(1, 0, 2):
            counts = np.count_nonzero(sets, axis=1)
            fits = (counts >= limits[0]) & (counts <= limits[1])
            candidates.append(np.where(fits[:, None], sets, candidates[0]))
        values = np.array([self.expected(scores, sets, metric) for sets in candidates])
        return expected_metrics.best_of_candidates(values, np.array(candidates))

    def modes_within(self, scores, low, high):
        space = self._with_sizes(low, high)
        if space is None:
            return np.zeros(len(scores), bool), np.zeros(scores.shape, np.int8)
        if self.known is None:
            return np.ones(len(scores), bool), space.mode(scores)
        rows, sets = space.fits(self.known), np.zeros(scores.shape, np.int8)
        sets[rows] = space.given(self.known[rows]).mode(scores[rows])
        return rows, sets

    def temper(self, temperature):
        return self.with_bias(self.bias / temperature)

    # Knowledge of some labels.

    def fits(self, known):
        return self._cardinality.fits(known)

    def given(self, known):
        other = copy(self)
        other.known = known if self.known is None else merged(self.known, known)
        other._cardinality = self._free().given(other.known)
        return other

    def _without_knowledge(self):
        if self.known is None:
            return self
        other = copy(self)
        other.known, other._cardinality = None, self._free()
        return other

    def _free(self):
        """The cardinality space with nothing known."""
        return self._cardinality._without_knowledge()

    def _of_rows(self, rows):
        """The space for some rows: with what is known of them."""
        return self if self.known is None else self._without_knowledge().given(self.known[rows])

    def _known_or_none(self):
        """What is known, as kernels take it: (n_rows, n_labels), or (0, n_labels)."""
        return np.zeros((0, self.n_labels), np.int8) if self.known is None else self.known

    def _with_sizes(self, low, high):
        """The space of those sets that have low to high labels, nothing known; None if there are none."""
        low, high = max(low, self.min_labels), min(high, self.max_labels)
        if low > high:
            return None
        kept = (self._seen.counts >= low) & (self._seen.counts <= high)
        biases = {"set_bias": self.set_bias[kept], "size_bias": self.size_bias}
        return OpenSpace(self.n_labels, low, high, self.sets[kept], **biases, n_jobs=self.n_jobs)

    # Sums over the seen sets.

    def _sums(self, scores, log_cardinality, weights):
        """T, what seen sets add to marginals and to sizes, weights @ P(seen set), and which rows are safe."""
        # Negative scores may be of any size. A set with a log-probability above -100 has negative scores that add up to
        # at most its positive ones, |log Z|, biases and 100, so that every partial sum stays in the low thousands.
        safe = scores.sum(axis=1, where=scores > 0) <= LARGEST_SUM
        safe &= np.abs(log_cardinality) <= LARGEST_SUM
        safe &= np.abs(self.bias).max(initial=0.0) <= LARGEST_PLAIN
        biases = (self.size_bias[self._seen.counts], self._plain_set_bias())
        inputs = (np.where(safe, log_cardinality, 0.0), self._known_or_none(), self._seen.as_given, biases, weights)
        totals, shares, sizes, by_set = seen_sets.sums(
            scores, *inputs, safe, n_sizes=self.max_labels + 1, n_jobs=self.n_jobs
        )
        return totals, shares, sizes, by_set, safe

    def _plain_set_bias(self):
        """Biases of the sets without those that no safe row can have, whose exponentials could overflow."""
        return np.clip(self.set_bias, -LARGEST_PLAIN, LARGEST_PLAIN)

    def _gains(self, scores, log_cardinality, totals, safe):
        """Yields rows and their (exp(beta_s) - 1) q_s / T (n_rows, n_sets), for all safe rows in blocks."""
        rows = np.flatnonzero(safe)
        n_rows = max(1, TABLE_ENTRIES // max(1, len(self.sets)))
        for start in range(0, len(rows), n_rows):
            block = rows[start : start + n_rows]
            log_weights = self._of_rows(block)._log_weights(scores[block])
            probs = np.exp(log_weights - log_cardinality[block, None])
            yield block, np.expm1(self._plain_set_bias()) * probs / totals[block, None]

    def _log_weights(self, scores):
        """Log-weights (n_samples, n_sets) of the seen sets without their own biases; -inf where they are impossible."""
        values, biases = np.empty((len(scores), len(self.sets))), self.size_bias[self._seen.counts]
        seen_sets.log_weights(scores, self._known_or_none(), *self._seen.as_given, biases, values)
        return values

    def _by_size(self, values):
        """Sums of values (n_sets,) over the seen sets of each size, (n_labels + 1,)."""
        return np.bincount(self._seen.counts, weights=values, minlength=self.n_labels + 1)

    def _by_trie(self, scores, rows):
        """Log-partition, marginals, probabilities of sizes 0, ..., max_labels and of seen sets, for some rows."""
        n_sets, n_rows = len(self.sets), len(rows)
        outputs = (
            np.empty(n_rows),
            np.empty((n_rows, self.n_labels)),
            np.empty((n_rows, self.max_labels + 1)),
            np.empty((n_rows, n_sets)),
        )
        self._over_trie(trie.expectations, scores, rows, (), *outputs)
        probs = np.empty_like(outputs[3])
        probs[:, self._seen.trie[4]] = outputs[3]
        return *outputs[:3], probs

    def _over_trie(self, kernel, scores, rows, inputs, *outputs):
        """The first of the outputs, after a kernel of `trie` has written them for the given rows."""
        known, scores = self._known_or_none(), np.ascontiguousarray(scores[rows])
        known = known if self.known is None else known[rows]
        size_bias = self.size_bias[: self.max_labels + 1].copy()
        size_bias[: self.min_labels] = -np.inf
        biases = size_bias, self.set_bias[self._seen.trie[4]]

        def work(block):
            arrays = (array[block] for array in (*inputs, *outputs))
            kernel(scores[block], known[block], *biases, self._seen.trie, *arrays)

        nodes = len(self._seen.trie[2]) + self.n_labels * (self.max_labels + 1)
        map_blocks(work, len(rows), rows_per_block=max(1, NODES_PER_BLOCK // nodes), n_jobs=self.n_jobs)
        return outputs[0]

    # The most probable sets.

    def _ordered_bias(self):
        """What each seen set has of both biases, in the order in which ties are decided."""
        order = self._seen.order
        return self.size_bias[self._seen.counts[order]] + self.set_bias[order]

    def _ranked(self, scores, n):
        """The n most probable sets (n_samples, n, n_labels) and how many each row has (n_samples,)."""
        sets, counts = np.zeros((len(scores), n, self.n_labels), np.int8), np.zeros(len(scores), np.int64)
        left, asked = np.arange(len(scores)), n
        while len(left):
            # Twice as many sets of the cardinality space each time, for the rows in which too many were seen ones.
            asked, unsettled = 2 * asked, []
            n_rows = max(1, TABLE_ENTRIES // (asked * self.n_labels + len(self.sets)))
            for start in range(0, len(left), n_rows):
                rows = left[start : start + n_rows]
                sets[rows], counts[rows], is_settled = self._of_rows(rows)._merged(scores[rows], n, asked)
                unsettled.append(rows[~is_settled])
            left = np.concatenate(unsettled)
        return sets, counts

    def _merged(self, scores, n, asked):
        """The n best of the seen sets and of the `asked` best sets of the cardinality space, and if these were enough.

        They are enough where the list has ended, or where the n best sets all weigh more than the last set of it.
        """
        free_sets, log_probs = self._cardinality.top_sets(scores, asked)
        listed = log_probs > -np.inf
        is_free = listed & (self._seen.find(free_sets.reshape(-1, self.n_labels)) < 0).reshape(listed.shape)
        # Log-weights without biases of seen sets: they bound what the rest of the list can weigh.
        values, of_seen = self._log_weights_of(scores, free_sets), np.empty((len(scores), len(self.sets)))
        seen_sets.log_weights(scores, self._known_or_none(), *self._seen.ordered, self._ordered_bias(), of_seen)
        by_weight = np.argsort(-of_seen, axis=1, kind="stable")[:, :n]
        sets, counts = np.zeros((len(scores), n, self.n_labels), np.int8), np.zeros(len(scores), np.int64)
        settled = ~listed[:, -1]
        for i in range(len(scores)):
            free = [(-values[i, c], *_place_of(free_sets[i, c])) for c in np.flatnonzero(is_free[i])]
            seen = [
                (-of_seen[i, s], *_place_of(self.sets[self._seen.order[s]]))
                for s in by_weight[i]
                if of_seen[i, s] > -np.inf
            ]
            # Both lists are in order; merging keeps that of the cardinality space, which is exact.
            best = list(islice(merge(free, seen), n))
            counts[i] = len(best)
            for place, (_, _, inverted) in enumerate(best):
                sets[i, place] = 1 - np.frombuffer(inverted, np.int8)
            if not settled[i] and len(best) == n:
                settled[i] = len(free) >= n or -best[-1][0] > values[i, -1]
        return sets, counts, settled

    def _log_weights_of(self, scores, sets):
        """Log-weights (n_samples, n) of sets (n_samples, n, n_labels) without the biases of seen sets."""
        values = np.empty(sets.shape[:2])
        if len(values):  # a fit decides on no rows, to see that it can, and needs no kernel for that
            seen_sets.log_weights_of(scores, sets, self.size_bias, values)
        return values

    def _best_f1(self, scores, limits):
        """Exact, from P(y_k = 1, |y| = j)."""
        sets = np.empty(scores.shape, np.int8)
        n_rows = max(1, TABLE_ENTRIES // (self.n_labels * (self.max_labels + 1)))
        sizes = np.arange(1, self.max_labels + 1)
        for start in range(0, len(scores), n_rows):
            rows = slice(start, start + n_rows)
            space, block = self._of_rows(rows), _wide(scores[rows])
            joint = space.marginals_by_size(block, sizes)
            empty = space.cardinality_pmf(block)[:, 0]
            sets[rows] = expected_metrics.best_f1_by_sizes(joint, sizes, empty, limits)
        return sets


@dataclass(frozen=True, eq=False)
class _SeenSets:
    """The seen sets in the forms that answers need; it does not change with the biases."""

    sets: np.ndarray

    @cached_property
    def counts(self):
        """Number of labels of each set, (n_sets,)."""
        return np.count_nonzero(self.sets, axis=1)

    @cached_property
    def as_given(self):
        """The sets as a sparse matrix: (indptr, indices)."""
        return _compressed(self.sets)

    @property
    def indices(self):
        """The labels of all sets, one set after the other."""
        return self.as_given[1]

    @cached_property
    def order(self):
        """Numbers of the sets, smaller ones first, then those of lower labels: the order in which ties are decided."""
        return np.lexsort([*(-self.sets.T[::-1]), self.counts]) if self.sets.size else np.arange(len(self.sets))

    @cached_property
    def ordered(self):
        """`as_given` in that order."""
        return _compressed(self.sets[self.order])

    @cached_property
    def trie(self):
        """The arrays of `_kernels.trie`."""
        return trie.build(self.sets)

    @cached_property
    def _index(self):
        return {row.tobytes(): s for s, row in enumerate(self.sets)}

    def find(self, Y):
        """Index of each row's set in the list, (n_samples,); -1 where it is not in the list."""
        rows = np.ascontiguousarray(Y, dtype=np.int8)
        return np.array([self._index.get(row.tobytes(), -1) for row in rows], np.int64)


@dataclass(frozen=True)
class _Coupled:
    """About the Hessian of the loss in intercepts, size biases and set biases together, ready to solve with.

    They must be taken together: where seen sets hold nearly all of the mass, biases of sets can stand in for the
    others, and steps that ignore it take several times as many iterations. A row adds the covariances of its labels, of
    the indicators of sizes and of those of seen sets. These follow from the covariances diag(P) - P P' of the seen sets
    and of all other sets, taken as one, which has their mean labels and sizes and around them independent labels and
    sizes. As in `seen_sets.fit_biases`, the sum over rows of diag(P) - P P' is replaced by diag(m) - m m' / t.

    The biases of sets are eliminated first, so that a matrix of only n_labels + n_sizes rows is factorised.
    """

    m: np.ndarray  # (n_sets,)
    damped: np.ndarray  # m plus the ridges of the sets' biases, (n_sets,)
    left: float  # t - sum m^2 / damped
    eliminated: np.ndarray  # (n_sets, n_labels + n_sizes)
    factor: tuple

    @classmethod
    def of(cls, space, sums, of_intercept, ridge, absorbed):
        n_labels, n_sizes = space.n_labels, space.max_labels - space.min_labels + 1
        label_totals, by_bias, m, other_m, totals, other_total = sums
        sizes = np.eye(n_labels + 1)[space._seen.counts][:, space.min_labels : space.max_labels + 1]
        carried = np.hstack([space.sets, sizes])  # labels and sizes of each seen set
        of_others = np.concatenate([label_totals, by_bias[:n_sizes]]) - totals @ carried
        of_others = np.clip(of_others / max(other_total, seen_sets.TINY), 0.0, 1.0)
        t, along = m.sum() + other_m + seen_sets.TINY, m @ carried + other_m * of_others
        matrix = carried.T @ (m[:, None] * carried) + other_m * np.outer(of_others, of_others)
        matrix -= np.outer(along, along) / t
        matrix[np.diag_indices(len(matrix))] += other_total * of_others * (1.0 - of_others)
        # Where a label is a surprise, its variance is too small a curvature (see `fitting.rows`).
        labels = np.arange(n_labels)
        matrix[labels, labels] = np.maximum(matrix[labels, labels], of_intercept)
        matrix[np.diag_indices(len(matrix))] += ridge[: len(matrix)]
        # What scores absorb is no direction of a step.
        matrix[n_labels:, n_labels:] += np.trace(matrix) * absorbed[:n_sizes] @ absorbed[:n_sizes].T
        coupling = m[:, None] * (carried - along / t)  # of set biases with the others
        damped = m + ridge[len(matrix) :]
        left = t - m @ (m / damped)
        self = cls(m, damped, left, np.zeros_like(coupling), ())
        eliminated = self._solve_sets(coupling)
        factor = linalg.cho_factor(matrix - coupling.T @ eliminated)
        return cls(m, damped, left, eliminated, factor)

    def _solve_sets(self, values):
        """Solution for the biases of sets alone, (n_sets, ...): diag(damped) - m m' / t, by Sherman and Morrison."""
        divided = (values.T / self.damped).T
        return divided + np.multiply.outer(self.m / self.damped, self.m @ divided) / self.left

    def solve(self, intercept, bias):
        """Steps of the intercepts and of all biases from their gradients."""
        n_labels = len(intercept)
        n_sizes = self.eliminated.shape[1] - n_labels
        others = np.concatenate([intercept, bias[:n_sizes]]) - self.eliminated.T @ bias[n_sizes:]
        others = linalg.cho_solve(self.factor, others)
        sets = self._solve_sets(bias[n_sizes:]) - self.eliminated @ others
        return others[:n_labels], np.concatenate([others[n_labels:], sets])


def _spreads(space, scores, weights, log_partition):
    """Sums over rows of weight P (1 - P), of every seen set and of all others together; then of weight P, of both."""
    n_sets, step = len(space.sets), max(1, TABLE_ENTRIES // max(1, len(space.sets)))
    m, other_m, totals, other_total = np.zeros(n_sets), 0.0, np.zeros(n_sets), 0.0
    # By a product, not `_log_weights`: a first fit would compile a kernel for that alone.
    indptr, indices = space._seen.as_given
    sets = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=space.sets.shape).T
    biases = space.size_bias[space._seen.counts] + space.set_bias
    for start in range(0, len(scores), step):
        rows = slice(start, start + step)
        probs = np.exp(np.minimum(scores[rows] @ sets + biases - log_partition[rows, None], 0.0))
        others = np.maximum(1.0 - probs.sum(axis=1), 0.0)
        totals += weights[rows] @ probs
        m += weights[rows] @ (probs * (1.0 - probs))
        other_total, other_m = other_total + weights[rows] @ others, other_m + weights[rows] @ (others * (1.0 - others))
    return m, other_m, totals, other_total


@dataclass(frozen=True)
class SeenSetsOfTraining:
    """`label_space="open"`: sizes of the training rows, or given ones, and the most frequent sets of complete rows.

    counts (n_samples,) says for how many rows each row of Y stands; None: for itself.
    """

    min_labels: Any = "auto"
    max_labels: Any = "auto"
    set_bias_strength: Any = "auto"
    n_jobs: int | None = None
    counts: np.ndarray | None = None

    def for_targets(self, Y, *, classes, rows=None):
        smallest, largest = training_sizes(Y, self.min_labels, self.max_labels, rows)
        complete = (Y != UNKNOWN).all(axis=1)
        sets = _most_frequent_sets(Y[complete], None if self.counts is None else self.counts[complete])
        options = {"set_bias_strength": self.set_bias_strength, "n_jobs": self.n_jobs}
        return OpenSpace(Y.shape[1], smallest, largest, sets, **options)

    def target_kinds(self, Y):
        return Y


def _most_frequent_sets(Y, counts=None):
    """The distinct rows of Y, smaller sets first; of too many only the MAX_SETS most frequent ones, with a warning.

    counts (n_samples,) says how often each row of Y counts, by default once.
    """
    sets, place = distinct_sets(Y)
    if len(sets) <= MAX_SETS:
        return sets
    counts = np.bincount(place, weights=counts)
    # Ties go to the smaller set.
    kept = np.sort(np.argsort(-counts, kind="stable")[:MAX_SETS])
    warn(
        f"Training shows {len(sets):,} different label sets. Only the {MAX_SETS:,} most frequent ones, those of "
        f"{counts[kept].sum() / counts.sum():.0%} of the rows, get a bias of their own; all sets stay possible."
    )
    return sets[kept]


def _on_held_out(space, Y, weights, complete, fold):
    """Losses of the held-out rows of a fold for each of STRENGTHS, and the biases (n_strengths, n_sets).

    Biases are fitted to the complete rows that were not held out, for the sets of these rows only.
    """
    held_out, scores, cardinality = fold
    losses, biases = np.zeros(len(STRENGTHS)), np.zeros((len(STRENGTHS), len(space.sets)))
    inside, outside = np.flatnonzero(complete & ~held_out), np.flatnonzero(complete & held_out)
    found = space._seen.find(Y)
    seen = inside[found[inside] >= 0]
    counts = np.bincount(found[seen], weights=weights[seen], minlength=len(space.sets))
    if counts.any() and len(outside):
        probs, bias = space._probabilities_without_bias(scores, cardinality), np.zeros(len(space.sets))
        for number, strength in enumerate(STRENGTHS):
            # From strong to weak, each from the last one: a few steps are enough.
            seen_sets.fit_biases(inside, *probs, weights, counts, strength, MAX_LOG_RATIO, bias)
            biases[number] = bias
            losses[number] = seen_sets.loss_of_biases(outside, *probs, weights, found, bias)
    return losses, biases


def _compressed(sets):
    """(indptr, indices) of the ones of each row."""
    counts = np.count_nonzero(sets, axis=1)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), np.nonzero(sets)[1].astype(np.int64)


def _place_of(labels):
    """What decides between sets of equal weight: the smaller one comes first, then the one of lower labels."""
    return int(labels.sum()), (1 - labels).tobytes()


def _comes_first(sets, others):
    """Whether each set precedes the other of its row where their weights tie: smaller, or with lower labels."""
    sizes, other_sizes = np.count_nonzero(sets, axis=1), np.count_nonzero(others, axis=1)
    differ = sets != others
    first = np.argmax(differ, axis=1)
    lower = np.take_along_axis(sets, first[:, None], axis=1)[:, 0] == 1
    return (sizes < other_sizes) | ((sizes == other_sizes) & differ.any(axis=1) & lower)


def _checked_sets(sets, n_labels, min_labels, max_labels):
    """The sets as an int8 matrix, if they are distinct and of admissible sizes."""
    sets = as_indicator(sets, "sets")
    if sets.shape[1] != n_labels:
        raise ValueError(f"sets must have a column per label, {n_labels}; got {sets.shape[1]} columns.")
    counts = np.count_nonzero(sets, axis=1)
    outside = np.flatnonzero((counts < min_labels) | (counts > max_labels))
    if len(outside):
        raise ValueError(
            f"sets must have min_labels={min_labels} to max_labels={max_labels} labels; row {outside[0]} has "
            f"{counts[outside[0]]}. Leave it out, or allow its size."
        )
    if len({row.tobytes() for row in sets}) < len(sets):
        raise ValueError("sets must be distinct; got the same set twice. Use numpy.unique(sets, axis=0).")
    return sets


def _lost(results, before, inverse):
    """Rows in which a probability `before` was lowered so much that its difference lost more than three digits."""
    return (results < before * (inverse[:, None] / 4096)).any(axis=1)


def _wide(scores):
    """Scores in float64: a score of float32 is exact there, and sums keep their digits."""
    return scores.astype(np.float64, copy=False)
