"""The space of a hierarchy: a forest of labels in which every label implies its parent, with limits on the leaves.

A set that holds a label holds its ancestors. Sums over such sets factorise over the forest, upward once and downward
once, in O(n_labels) per row. With limits on the number of leaves the factors are polynomials in it. What counts labels
(sizes, expected metrics) takes polynomials too.
"""

from collections.abc import Mapping
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np

from mlrh._indicators import UNKNOWN
from mlrh._parallel import map_blocks
from mlrh.spaces._kernels import expected_metrics, forest, forest_counts
from mlrh.spaces._label_names import NamesLabels, as_labels, index_of, place_of_names
from mlrh.spaces.base import LARGEST_IN_FLOATS, MAX_ENUMERATED, highest_labels

ROOT = -1  # the parent of a label without one
TARGET_SCORES = 100_000  # of one block of rows: about a millisecond
TABLE_ENTRIES = 2**20  # of the probabilities of counts of one block of rows: 8 MB
MAX_COUNTED = 2**25  # n_labels times the limit on the leaves: tables of a row of about a gigabyte
NOTHING = np.empty((0, 0), np.int8)


class HierarchySpace(NamesLabels):
    """Every set that holds the parents of its labels, where each label has at most one parent.

    Parameters
    ----------
    parents : array of shape (n_labels,), mapping, or list of pairs
        The index of each label's parent, -1 for a root. Or {child: parent}, or [(child, parent), ...], by index or by
        name; labels that are not named as a child are roots. Names are those of the labels of y (column names of a
        DataFrame, members of label sets); a fit resolves them.
    min_leaves, max_leaves : int, optional
        Smallest and largest number of leaves in a set; a leaf is a label that is nobody's parent. min_leaves=1 demands
        at least one.
    complete : bool
        Whether a fit adds missing ancestors to its rows y. Otherwise such a row is an error that names it. Rows that
        predictions are compared with stay as they are; `mlrh.metrics.with_ancestors` completes any rows.

    Notes
    -----
    There is no bias to learn. Scores are at most 1e6 in magnitude: beyond that, sums in which they cancel could be
    wrong. Without limits answers cost O(n_labels) per row, with limits O(n_labels * max_leaves), or
    O(n_labels * min_leaves) if max_leaves is None. Numbers of labels and expected metrics cost O(n_labels^2) and more.

    Examples
    --------
    >>> from mlrh.spaces import HierarchySpace
    >>> space = HierarchySpace([-1, 0, 0])  # label 0 is the parent of labels 1 and 2
    >>> d = space.distribution([[0.0, 1.0, -1.0]])
    >>> d.marginals().round(3).tolist()
    [[0.836, 0.611, 0.225]]
    >>> d.condition([[float("nan"), float("nan"), 1]]).marginals().round(3).tolist()
    [[1.0, 0.731, 1.0]]
    """

    learns_bias = False
    largest_score = LARGEST_IN_FLOATS
    n_jobs: int | None = None
    _names: list[str] | None
    _paths: list[str] | None = None  # names of the labels where `parents` has an index for each

    def __init__(self, parents, min_leaves=None, max_leaves=None, *, complete=False):
        self.min_leaves, self.max_leaves, self.complete = min_leaves, max_leaves, complete
        self._check_limits()
        # An index per label says how many labels there are; of pairs, y says it.
        self._is_open = _are_pairs(parents)
        self._names, self.parents = _forest(parents) if self._is_open else (None, _checked_parents(parents))
        self.parents.setflags(write=False)
        if self._names is None:
            self._settle()

    @classmethod
    def from_paths(cls, names, separator="/", **options):
        """The hierarchy of labels whose names are paths, such as "animal" and "animal/dog".

        The parent of a label is the longest beginning of its path that is itself a label. Where the labels of y have
        names, a fit finds them by these, whatever their order.

        Examples
        --------
        >>> from mlrh.spaces import HierarchySpace
        >>> HierarchySpace.from_paths(["animal", "animal/dog", "animal/cat/tabby", "plant"]).parents.tolist()
        [-1, 0, 0, -1]
        """
        wrong = [name for name in names if not isinstance(name, str)]
        if wrong:
            raise ValueError(f"Paths must be label names, such as 'animal/dog'; got {wrong[0]!r}.")
        places = {name: label for label, name in enumerate(names)}
        if len(places) < len(names):
            twice = next(name for label, name in enumerate(names) if places[name] != label)
            raise ValueError(f"Paths must be distinct; got {twice!r} twice.")
        parents = np.full(len(names), ROOT)
        for label, name in enumerate(names):
            steps = name.split(separator)
            above = (separator.join(steps[:n]) for n in range(len(steps) - 1, 0, -1))
            parents[label] = next((places[path] for path in above if path in places), ROOT)
        space = cls(parents, **options)
        space._paths = [str(name) for name in names]
        return space

    def __repr__(self):
        what = f"{len(self.parents)} labels" if self._names is None else f"{len(self._names)} names"
        limits = {"min_leaves": self.min_leaves, "max_leaves": self.max_leaves}
        words = [f", {name}={limit}" for name, limit in limits.items() if limit is not None]
        return f"HierarchySpace({what}{''.join(words)}{', complete=True' if self.complete else ''})"

    def for_targets(self, Y, *, classes, rows=None):
        """This space with the labels of Y, if every row holds the parents of its labels (or is completed)."""
        space = self._with_labels_of(Y.shape[1], classes)
        if not self.complete:
            space._check_ancestors(Y, classes, rows)
        space.check_targets(space.completed(Y), rows)
        return space

    def completed(self, Y):
        """Y (n_samples, n_labels) with the ancestors of all labels that are present; only where complete=True."""
        if not self.complete:
            return Y
        Y = np.array(Y)
        for place in range(self.n_labels - 1, -1, -1):  # children before their parents
            label, parent = self._order[place], self.parents[self._order[place]]
            if parent != ROOT:
                Y[Y[:, label] == 1, parent] = 1
        return Y

    def _check_ancestors(self, Y, classes, rows):
        """Raise a ValueError that names the first row that has a label without its parent."""
        whole = self._completing().completed(Y)
        broken = (whole == 1) & (Y == 0)
        if broken.any():
            row = int(np.argmax(broken.any(axis=1)))
            parent = int(np.argmax(broken[row]))
            child = int(np.argmax((self.parents == parent) & (whole[row] == 1)))
            names = [repr(name) for name in np.asarray(classes)[[child, parent]].tolist()]
            n_broken = int(broken.any(axis=1).sum())
            raise ValueError(
                f"Row {row if rows is None else rows[row]} of y has label {names[0]} (or one below it) without its "
                f"parent {names[1]}; {n_broken} of {len(Y)} rows break the hierarchy. Correct them, or let "
                "HierarchySpace(..., complete=True) add the ancestors."
            )

    def _completing(self):
        other = copy(self)
        other.complete = True
        return other

    def with_indices(self, classes):
        is_named = self._names is not None or self._paths is not None
        return self._with_labels_of(len(classes), classes) if is_named else self

    def _with_labels_of(self, n_labels, classes):
        pairs, places = [], place_of_names(classes)
        names = self._paths if self._names is None and places else self._names
        if names is not None:
            labels = [index_of(name, places) for name in names]
            pairs = [(labels[child], labels[parent]) for child, parent in enumerate(self.parents) if parent != ROOT]
        elif self._is_open and self.n_labels <= n_labels:
            pairs = [(child, parent) for child, parent in enumerate(self.parents) if parent != ROOT]
        elif self.n_labels != n_labels:
            raise ValueError(f"The label space has {self.n_labels} labels and y has {n_labels}; they must be as many.")
        else:
            return self
        parents = np.full(n_labels, ROOT)
        for child, parent in pairs:
            parents[child] = parent
        return HierarchySpace(parents, self.min_leaves, self.max_leaves, complete=self.complete)

    def to_dict(self):
        limits = {"min_leaves": self.min_leaves, "max_leaves": self.max_leaves, "complete": self.complete}
        names = {"names": self._names, "paths": self._paths}
        return {"parents": self.parents, **names, "is_open": self._is_open, **limits}

    @classmethod
    def from_dict(cls, values):
        """The space of `to_dict`."""
        parents, names = _checked_parents(values["parents"]), values["names"]
        options = {name: values[name] for name in ("min_leaves", "max_leaves", "complete")}
        if not isinstance(options["complete"], bool) or not isinstance(values["is_open"], bool):
            raise ValueError("The switches of a hierarchy must be true or false.")
        if names is None and not values["is_open"]:
            space = cls(parents, **options)
            space._paths = _checked_paths(values.get("paths"), len(parents))
            return space
        if names is not None and (not isinstance(names, list) or len(names) != len(parents)):
            raise ValueError("A hierarchy of names needs a parent for each of them.")
        labels = range(len(parents)) if names is None else names
        pairs = [(labels[child], labels[parent]) for child, parent in enumerate(parents) if parent != ROOT]
        return cls(pairs, **options)

    def with_bias(self, bias):
        return self

    def with_jobs(self, n_jobs):
        other = copy(self)
        other.n_jobs = n_jobs
        return other

    def describe(self):
        words = f"{self.n_labels} labels, of which {self.n_leaves} are leaves"
        if self._is_limited:
            words += f"; {self._fewest} to {self._most} leaves in a set"
        return f"hierarchy: {words}"

    @property
    def n_leaves(self):
        """Number of leaves of the forest."""
        return int(self._is_leaf.sum())

    def sizes(self):
        if not self._is_limited:
            return 0, self.n_labels
        # Where every label scores -1 the smallest set is the heaviest one, where every label scores 1 the largest.
        sets = self._without_knowledge()._heaviest_by_leaves(np.outer([-1.0, 1.0], np.ones(self.n_labels)))[0]
        smallest, largest = sets.sum(axis=1, dtype=np.int64).tolist()
        return smallest, largest

    # What a fit asks.

    @property
    def operations_per_score(self):
        return 2.5 if not self._is_limited else 5.0 * (self._cap + 1)

    def expectations(self, scores, weights):
        """Log-partition (n_samples,), marginals (n_samples, n_labels), and nothing: there are no biases."""
        log_partition, marginals = np.empty(len(scores), scores.dtype), np.empty_like(scores)
        if self._is_limited:
            self._run(forest_counts.expectations, scores, self._by_leaves, outputs=(log_partition, marginals))
        else:
            self._run(forest.expectations, scores, (self._levels,), outputs=(log_partition, marginals))
        return log_partition, marginals, np.zeros(0)

    def curvature(self, scores, direction, bias_direction, weights):
        if self._is_limited:
            return super().curvature(scores, direction, bias_direction, weights)
        d_marginals = np.empty_like(scores)
        self._run(forest.curvature, scores, (self._levels,), by_row=(direction,), outputs=(d_marginals,))
        return d_marginals, np.zeros(0)

    # What a distribution asks.

    def mode(self, scores):
        """The most probable set of each row; ties go to the smaller set and the lower label."""
        if not self._is_limited:
            sets = np.empty(scores.shape, np.int8)
            self._run(forest.mode, scores, outputs=(sets,))
            return sets
        sets, values, is_tied = self._heaviest_by_leaves(scores)
        tied = np.flatnonzero(is_tied)
        if len(tied):
            sets[tied] = self._of_rows(tied)._lowest_of_ties(scores[tied], sets[tied], values[tied])
        return sets

    def log_prob(self, scores, Y):
        log_probs = np.full(len(scores), -np.inf, scores.dtype)
        if not self._is_limited:
            self._run(forest.log_prob, scores, (self._levels,), by_row=(Y,), outputs=(log_probs,))
            return log_probs
        inside = np.flatnonzero(self.fits(Y))
        own, space = np.empty(len(inside), scores.dtype), self._of_rows(inside)
        space._run(forest_counts.log_prob, scores[inside], self._by_leaves, by_row=(Y[inside],), outputs=(own,))
        log_probs[inside] = own
        return log_probs

    def entropy(self, scores):
        entropies = np.empty(len(scores), scores.dtype)
        if self._is_limited:
            self._run(forest_counts.entropy, scores, self._by_leaves, outputs=(entropies,))
        else:
            self._run(forest.entropy, scores, (self._levels,), outputs=(entropies,))
        return entropies

    def sample(self, scores, n, random_state):
        sets, n_uniforms = np.empty((len(scores), n, self.n_labels), np.int8), self.n_labels + self._is_limited
        # Uniforms are made for a bounded number of rows at a time, row after row.
        n_rows = max(1, TABLE_ENTRIES // (n * n_uniforms))
        for start in range(0, len(scores), n_rows):
            rows = slice(start, start + n_rows)
            uniforms = random_state.random_sample((len(scores[rows]), n, n_uniforms))
            if self._is_limited:
                kernel, fixed = forest_counts.sample, self._by_leaves
            else:
                kernel, fixed = forest.sample, (self._levels,)
            self._of_rows(rows)._run(kernel, scores[rows], fixed, by_row=(uniforms,), outputs=(sets[rows],))
        return sets

    def cardinality_pmf(self, scores):
        return self._counts(scores, np.ones((1, self.n_labels), np.int64), self.n_labels).astype(scores.dtype)

    def any_of(self, scores, groups):
        steps = groups.astype(np.int64)
        if self._is_limited:
            probs = self._counts(scores, steps, int(steps.sum(axis=1).max(initial=0)))
            return np.minimum(probs[:, 1:].sum(axis=1), 1.0).astype(scores.dtype)
        return self._counts(scores, steps, 1, saturate=True)[:, 1].astype(scores.dtype)

    def expected(self, scores, Y, metric):
        values, counts = np.empty(len(scores)), np.count_nonzero(Y, axis=1)
        n_rows, options = max(1, TABLE_ENTRIES // (self.n_labels + 1) ** 2), {"n_labels": self.n_labels}
        options["sizes"] = self.sizes()
        for start in range(0, len(scores), n_rows):
            rows = slice(start, start + n_rows)
            overlaps = self._of_rows(rows)._overlaps(scores[rows], Y[rows])
            values[rows] = expected_metrics.expected_by_overlaps(overlaps, counts[rows], metric, **options)
        return values

    def _overlaps(self, scores, Y):
        """P(the truth has t labels of the answer Y and r others), (n_samples, max t + 1, max r + 1)."""
        counts = np.count_nonzero(Y, axis=1)
        n_in, n_out = int(counts.max(initial=0)) + 1, int((self.n_labels - counts).max(initial=0)) + 1
        # Both numbers in one: t + n_in r.
        probs = self._counts(scores, np.where(Y == 1, 1, n_in), n_in * n_out - 1)
        return probs.reshape(len(scores), n_out, n_in).transpose(0, 2, 1)

    def best(self, scores, metric, limits):
        """The best sets for a metric: exact for F1, and for others up to 14 labels without limits on the leaves.

        To swap a label for a missing ancestor never lowers a metric, since the ancestor is present whenever the label
        is. So one of the best answers is a set of the hierarchy, and every answer here is one.
        """
        if metric is expected_metrics.f1_of_counts or self.n_labels > MAX_ENUMERATED:
            return self._obeying(self._best_of_candidates(scores, metric, limits))
        return self._obeying(super().best(scores, metric, limits))

    def likeliest(self, scores, counts):
        """The counts[i] likeliest labels of each row; of equally likely ones, ancestors and then lower labels first."""
        return self._obeying(highest_labels(self.marginals(scores), counts))

    def modes_within(self, scores, low, high):
        """Which rows have possible sets of low to high labels, and the most probable of these sets."""
        # Larger sets are dropped at once, unless the number of leaves is counted beside the size.
        most = self.n_labels if self._is_limited else min(high, self.n_labels)
        steps, cap, is_admissible = self._codes(np.ones(self.n_labels, np.int64), most)
        sizes = np.arange(cap + 1) % (most + 1)
        is_admissible &= (sizes >= low) & (sizes <= high)
        sets, values, _ = self._heaviest(scores, (steps, cap, False, is_admissible))
        return np.isfinite(values), sets

    def raised_thresholds(self, thresholds):
        """Thresholds of labels raised to their parents': a label above its own is then above its ancestors', too."""
        raised = np.array(thresholds)
        for label in self._order:  # parents before their children
            if self.parents[label] != ROOT:
                raised[label] = max(raised[label], raised[self.parents[label]])
        return raised

    def _check_limits(self):
        for name in ("min_leaves", "max_leaves"):
            limit = getattr(self, name)
            is_count = isinstance(limit, Integral) and not isinstance(limit, bool) and int(limit) >= 0
            if limit is not None and not is_count:
                raise ValueError(f"{name} must be an integer from 0 on, or None; got {limit!r}.")
        if None not in (self.min_leaves, self.max_leaves) and self.min_leaves > self.max_leaves:
            raise ValueError(f"min_leaves must be at most max_leaves; got {self.min_leaves} and {self.max_leaves}.")

    # The forest in the form that kernels take.

    def _settle(self):
        """Set what follows from the parents: order, leaves and limits."""
        self.n_labels = len(self.parents)
        self._order, self._places = _order(self.parents)
        self._levels = _levels(self._places)
        self._is_leaf = np.ones(self.n_labels, bool)
        self._is_leaf[self.parents[self.parents != ROOT]] = False
        self._fewest = 0 if self.min_leaves is None else int(self.min_leaves)
        self._most = self.n_leaves if self.max_leaves is None else min(int(self.max_leaves), self.n_leaves)
        if self._fewest > self._most:
            raise ValueError(
                f"min_leaves must be at most the number of leaves of the hierarchy, {self.n_leaves}; got "
                f"{self.min_leaves}."
            )
        if self._is_limited and self.n_labels * (self._cap + 1) > MAX_COUNTED:
            raise ValueError(
                f"Limits on the leaves take tables of n_labels * max_leaves numbers (min_leaves, if that is the only "
                f"limit), at most {MAX_COUNTED}; got {self.n_labels} labels and {self._cap} leaves. Use lower limits."
            )

    @property
    def _is_limited(self):
        return self._names is None and (self._fewest > 0 or self._most < self.n_leaves)

    @property
    def _cap(self):
        # Without an upper limit it is enough to know whether there are min_leaves or more.
        return self._fewest if self._most == self.n_leaves else self._most

    @property
    def _by_leaves(self):
        """Steps, cap, whether to saturate, and admissible counts, for kernels that count leaves."""
        steps = self._is_leaf[self._order].astype(np.int64)
        return steps, self._cap, self._most == self.n_leaves, np.arange(self._cap + 1) >= self._fewest

    def _codes(self, steps, most):
        """Steps (..., n_labels) by place, the highest count, and admissible counts; the leaves are counted too.

        A count is then made of two: steps + (most + 1) * leaves.
        """
        if not self._is_limited:
            return np.ascontiguousarray(steps[..., self._order]), most, np.ones(most + 1, bool)
        codes = (steps + (most + 1) * self._is_leaf)[..., self._order]
        n_leaves = np.repeat(np.arange(self._most + 1), most + 1)
        return np.ascontiguousarray(codes), len(n_leaves) - 1, n_leaves >= self._fewest

    def _counts(self, scores, steps, most, *, saturate=False):
        """P(the sum of the steps of all labels present is j), (n_samples, most + 1); steps (n_samples or 1, n_labels).

        With saturate, the last is "most or more"; only without limits on the leaves.
        """
        codes, cap, is_admissible = self._codes(steps, most)
        probs = np.empty((len(scores), cap + 1))
        fixed, by_row = ((), (codes,)) if len(codes) == len(scores) else ((codes,), ())
        options = (cap, saturate, is_admissible)
        self._run(forest_counts.counts, scores, fixed, by_row=by_row, options=options, outputs=(probs,))
        return probs.reshape(len(scores), (cap + 1) // (most + 1), most + 1).sum(axis=1)

    def _heaviest_by_leaves(self, scores):
        return self._heaviest(scores, self._by_leaves)

    def _heaviest(self, scores, counted):
        """The heaviest sets with an admissible count, their log-weights, and whether others weigh as much."""
        sets, values = np.empty(scores.shape, np.int8), np.empty(len(scores))
        is_tied = np.empty(len(scores), bool)
        self._run(forest_counts.heaviest, scores, counted, outputs=(sets, values, is_tied))
        return sets, values, is_tied

    def _lowest_of_ties(self, scores, sets, values):
        """Of the sets with the weight and size of `sets`, that of the lowest labels: label by label, if one has it."""
        free, sizes = self._without_knowledge(), np.count_nonzero(sets, axis=1)
        known = np.full(scores.shape, UNKNOWN, np.int8) if self.known is None else self.known.copy()
        for label in range(self.n_labels):
            is_open = known[:, label] == UNKNOWN
            known[is_open, label] = 1
            tried, reached, _ = free.given(known)._heaviest_by_leaves(scores)
            misses = (reached != values) | (np.count_nonzero(tried, axis=1) != sizes)
            known[is_open & misses, label] = 0
        return known

    def _obeying(self, sets):
        """Sets of the same sizes in which every label whose parent is missing is swapped for a missing ancestor."""
        sets = np.ascontiguousarray(sets)
        forest.swap_for_ancestors(self._order, self._places, sets)
        return sets

    def _run(self, kernel, scores, fixed=(), *, by_row=(), options=(), outputs):
        """Run a kernel over blocks of rows. Arguments with a row per sample come after the fixed ones."""

        def work(rows):
            known = NOTHING if self.known is None else _block(self.known, rows, np.int8)
            own = [_block(values, rows, values.dtype) for values in by_row]
            buffers = [_buffer(out[rows]) for out in outputs]
            kernel(_block(scores, rows, np.float64), known, self._order, self._places, *fixed, *own, *options, *buffers)
            for out, buffer in zip(outputs, buffers, strict=True):
                if buffer.base is not out:
                    out[rows] = buffer

        map_blocks(work, len(scores), rows_per_block=max(1, TARGET_SCORES // self.n_labels), n_jobs=self.n_jobs)


def _block(array, rows, dtype):
    """Rows in the one form that kernels are compiled for: contiguous and writeable."""
    return np.require(array[rows], dtype, ["C", "W"])


def _buffer(out):
    return np.empty(out.shape) if out.dtype == np.float32 else out


def _are_pairs(parents):
    """Whether parents are {child: parent} or pairs, rather than an index per label."""
    items = list(parents) if np.iterable(parents) else [parents]
    return isinstance(parents, Mapping) or not items or any(isinstance(item, tuple | list) for item in items)


def _checked_paths(paths, n_labels):
    """Names of the labels from a file; None where there are none, as in files of earlier formats."""
    if paths is None:
        return None
    are_names = isinstance(paths, list) and all(isinstance(path, str) for path in paths)
    if not are_names or not len(set(paths)) == len(paths) == n_labels:
        raise ValueError("A hierarchy of paths needs a name of its own for each label.")
    return paths


def _checked_parents(parents):
    """Indices of parents (n_labels,), int64; a cycle, or what is no index, is a ValueError."""
    values = np.array(parents)
    n_labels = len(values) if values.ndim == 1 else 0
    if values.ndim != 1 or values.dtype.kind not in "iu" or n_labels == 0:
        raise ValueError(
            f"parents must be an index per label, -1 for a root, or pairs (child, parent); got {parents!r}."
        )
    values = values.astype(np.int64)
    wrong = np.flatnonzero((values < ROOT) | (values >= n_labels))
    if len(wrong):
        raise ValueError(
            f"The parent of a label must be an index below {n_labels}, or -1; got {values[wrong[0]]} for label "
            f"{wrong[0]}."
        )
    _order(values)
    return values


def _forest(parents):
    """Names, or None, and the index of each one's parent, from {child: parent} or pairs of names or of indices."""
    pairs = list(parents.items()) if isinstance(parents, Mapping) else [tuple(pair) for pair in parents]
    if any(len(pair) != 2 for pair in pairs) or not pairs:
        raise ValueError(f"parents must hold at least one pair (child, parent); got {parents!r}.")
    labels = as_labels([label for pair in pairs for label in pair], "Children and parents")
    parent_of: dict[Any, Any] = {}
    for child, parent in zip(labels[::2], labels[1::2], strict=True):
        if parent_of.setdefault(child, parent) != parent:
            raise ValueError(
                f"A label must have one parent at most; label {child!r} has {parent_of[child]!r} and {parent!r}. Keep "
                "one of them: only a forest is a hierarchy here."
            )
    if isinstance(labels[0], str):
        names = list(dict.fromkeys(labels))
        places = {name: place for place, name in enumerate(names)}
    elif min(labels) < 0:
        raise ValueError(f"Labels must be indices from 0; got {min(labels)}. Leave roots out of the pairs.")
    else:
        names, places = None, {label: label for label in range(max(labels) + 1)}
    indices = np.full(len(places), ROOT)
    for child, parent in parent_of.items():
        indices[places[child]] = places[parent]
    _order(indices, names)
    return names, indices


def _order(parents, names=None):
    """Labels with parents before children and siblings next to each other, and the place of each one's parent.

    The place of the parent of roots is n_labels. A cycle is a ValueError.
    """
    n_labels = len(parents)
    # Labels by parent, roots (-1) first, so that the children of a label are a slice.
    by_parent = np.argsort(parents, kind="stable")
    starts = np.searchsorted(parents[by_parent], np.arange(ROOT, n_labels + 1))
    order, places, n_found = np.empty(n_labels, np.int64), np.empty(n_labels, np.int64), 0
    for place in range(ROOT, n_labels):
        if place >= n_found:
            break
        label = ROOT if place == ROOT else order[place]
        children = by_parent[starts[label + 1] : starts[label + 2]]
        order[n_found : n_found + len(children)] = children
        places[n_found : n_found + len(children)] = n_labels if place == ROOT else place
        n_found += len(children)
    if n_found < n_labels:
        _raise_cycle(parents, order[:n_found], names)
    return order, places


def _levels(places):
    """The places where each depth begins, and n_labels at the end; places are those of the parents."""
    depths = np.zeros(len(places) + 1, np.int64)
    for place, parent in enumerate(places.tolist()):
        depths[place] = 0 if parent == len(places) else depths[parent] + 1
    return np.append(np.flatnonzero(np.diff(depths[:-1], prepend=-1)), len(places))


def _raise_cycle(parents, reached, names):
    """Raise the ValueError that names a cycle: from a label that no root reaches, upward until one comes twice."""
    label, place_of = int(np.setdiff1d(np.arange(len(parents)), reached)[0]), dict[int, int]()
    while label not in place_of:
        place_of[label] = len(place_of)
        label = int(parents[label])
    cycle = [*list(place_of)[place_of[label] :], label]
    shown = " -> ".join(repr(step if names is None else names[step]) for step in cycle[:6])
    raise ValueError(f"A label must not be its own ancestor; got the cycle {shown}{' ...' if len(cycle) > 6 else ''}.")
