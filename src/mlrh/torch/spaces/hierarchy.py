"""The hierarchy in torch: a label implies its parent, in a forest.

Z_in(v) = exp(score of v) times the product over children c of (1 + Z_in(c)) sums the sets of the subtree of v that have
v, and Z is the product over roots of (1 + Z_in(root)). Computed in logarithms, all labels of a depth at once, from the
deepest up; brothers are multiplied in pairs, so that the number of torch calls grows with the depth and the logarithm
of the number of brothers, not with the number of labels. Limits on leaves, and the probabilities of sizes, take the
same with polynomials whose exponents count leaves and labels.
"""

from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import torch

from mlrh.torch._eager.sums import finite, first_max, log_add, log_zero
from mlrh.torch.distribution import LabelSpace, derivative


class HierarchySpace(LabelSpace):
    """Every set in which each label has its parent with it, optionally with limits on the number of leaves.

    Answers cost O(n_labels) per row, with limits O(n_labels * max_leaves^2).

    Parameters
    ----------
    parents : sequence of n_labels integers
        Index of each label's parent, -1 for a root.
    min_leaves, max_leaves : int, optional
        Smallest and largest number of leaves, labels without children, in a set.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import HierarchySpace
    >>> space = HierarchySpace([-1, 0, 0])  # labels 1 and 2 imply label 0
    >>> d = space.distribution(torch.zeros(1, 3))
    >>> d.log_partition().exp().round().tolist()  # the empty set, and label 0 with any of its children
    [5.0]
    >>> d.marginals()
    tensor([[0.8000, 0.4000, 0.4000]])
    """

    parents: torch.Tensor
    is_leaf: torch.Tensor

    def __init__(self, parents, min_leaves=None, max_leaves=None):
        super().__init__()
        parents = torch.as_tensor(parents, dtype=torch.int64)
        depths = _depths(parents)
        self.n_labels = len(parents)
        is_leaf = torch.ones(self.n_labels, dtype=torch.bool).index_fill(0, parents[parents >= 0], False)
        self.n_leaves = int(is_leaf.sum())
        self.min_leaves, self.max_leaves = _checked_limits(min_leaves, max_leaves, self.n_leaves)
        self.register_buffer("parents", parents, persistent=False)
        self.register_buffer("is_leaf", is_leaf, persistent=False)
        self.levels: Any = torch.nn.ModuleList(
            _Level(parents, depths, depth) for depth in range(int(depths.max()), -1, -1)
        )

    def __repr__(self):
        limits = "" if self._counts_no_leaves() else f", {self.min_leaves} to {self.max_leaves} leaves"
        return f"HierarchySpace({self.n_labels} labels{limits})"

    def bias_of(self, Y):
        has = torch.nn.functional.pad(Y == 1, (0, 1), value=True)  # the column of -1, the parent of roots
        n_leaves = (has[:, :-1] & self.is_leaf).sum(1)
        is_inside = (~has[:, :-1] | has[:, self.parents]).all(1)
        is_inside &= (n_leaves >= self.min_leaves) & (n_leaves <= self.max_leaves)
        return torch.where(is_inside, 0.0, -torch.inf)

    def mode(self, scores):
        return self.mode_given(scores, None)

    def mode_given(self, scores, known):
        """The most probable sets: the derivatives of the sum over sets with the largest term in place of the sum.

        A label that adds 0 is left out.
        """
        scores = finite(scores.detach().to(torch.float64))
        return derivative(partial(self._total, best=True), scores, known).to(torch.int8)

    def sample(self, scores, n, generator):
        if not self._counts_no_leaves():
            return super().sample(scores, n, generator)
        # Without limits, labels of a depth are independent given those above.
        rows = scores.detach().repeat_interleave(n, 0)
        known = torch.full_like(rows, torch.nan, dtype=torch.float32)
        for level in reversed(self.levels):
            self._draw(rows, known, level.labels, generator)
        return known.to(torch.int8).reshape(-1, n, self.n_labels)

    def cardinality_pmf(self, scores):
        polynomial = self._polynomial(finite(scores), None, with_sizes=True)
        log_sums = self._within_limits(polynomial).logsumexp(0)
        missing = self.n_labels + 1 - len(log_sums)
        return torch.nn.functional.pad(log_sums.softmax(0).T, (0, missing))

    def _log_partition(self, scores, known):
        return self._total(scores, known)

    def _total(self, scores, known, *, best=False):
        """Logarithm of the sum over sets (n_rows,), or of the largest term."""
        log_sums = self._within_limits(self._polynomial(scores, known, best=best))[:, 0]
        if len(log_sums) == 1:
            return log_sums[0]
        return first_max(log_sums, 0) if best else log_sums.logsumexp(0)

    def _polynomial(self, scores, known, *, with_sizes=False, best=False):
        """Logarithms of sums over sets by leaves and labels, (n_leaves, n_sizes, n_rows).

        The axis of leaves has length 1 without limits, that of labels without with_sizes.
        """
        is_open = self.max_leaves == self.n_leaves
        most_leaves = self.min_leaves if is_open else self.max_leaves
        algebra = _Algebra(most_leaves, is_open, self.n_labels if with_sizes else 0, best)
        scores = scores.T
        # From the labels below: their product, here 1, and whether one of them must be in the set.
        below, must = scores.new_zeros((1, 1, 1, 1)), scores.new_zeros((1, 1), dtype=torch.bool)
        for level in self.levels:
            own = scores[level.labels]
            inside = algebra.counted(own[:, None, None] + below, self.is_leaf[level.labels])
            outside = torch.zeros_like(own)
            if known is not None:
                of_level = known.T[level.labels]
                must = must | (of_level == 1)
                inside = inside.masked_fill((of_level == 0)[:, None, None], log_zero(own))
                outside = outside.masked_fill(must, log_zero(own))
                must = level.any_of(must)
            below = level.multiplied(algebra.either(inside, outside), algebra)
        return below[0]

    def _within_limits(self, polynomial):
        """The part of sums by leaves that the limits admit."""
        return polynomial if self._counts_no_leaves() else polynomial[self.min_leaves :]

    def _counts_no_leaves(self):
        return self.min_leaves == 0 and self.max_leaves == self.n_leaves


class _Algebra(NamedTuple):
    """Sums and products of polynomials given by logarithms of coefficients, (n_polynomials, n_leaves, n_sizes, n_rows).

    most_leaves : the largest exponent of leaves
    is_open : whether that stands for all larger ones, too; else these are left out
    most_labels : the largest exponent of labels; 0 where they are not counted
    best : whether the largest term stands for the sum
    """

    most_leaves: int
    is_open: bool
    most_labels: int
    best: bool

    def counted(self, polynomials, is_leaf):
        """Times x for every label, and times the other variable for a leaf."""
        if self.most_labels:
            polynomials = self._trimmed(_padded(polynomials, sizes=(1, 0)))
        if self.most_leaves or not self.is_open:
            is_leaf = is_leaf[:, None, None, None]
            moved, kept = _padded(polynomials, leaves=(1, 0)), _padded(polynomials, leaves=(0, 1))
            polynomials = self._trimmed(torch.where(is_leaf, moved, kept))
        return polynomials

    def either(self, inside, outside):
        """inside, plus exp(outside) (n_polynomials, n_rows) without a leaf or label."""
        n_leaves, n_sizes = inside.shape[1:3]
        outside = _padded(outside[:, None, None], leaves=(0, n_leaves - 1), sizes=(0, n_sizes - 1))
        # Of equal ones the set without the label: the smaller one.
        return torch.where(inside > outside, inside, outside) if self.best else log_add(inside, outside)

    def product(self, first, second):
        n_leaves, n_sizes = first.shape[1:3]
        if n_leaves == n_sizes == 1:
            return first + second
        terms = [
            _padded(first[:, i : i + 1, j : j + 1] + second, leaves=(i, n_leaves - 1 - i), sizes=(j, n_sizes - 1 - j))
            for i in range(n_leaves)
            for j in range(n_sizes)
        ]
        return self._trimmed(self._sum(torch.stack(terms), 0))

    def like(self, polynomials, others):
        """The same polynomials with as many coefficients as others have."""
        missing = [others.shape[axis] - polynomials.shape[axis] for axis in (1, 2)]
        return _padded(polynomials, leaves=(0, missing[0]), sizes=(0, missing[1])) if any(missing) else polynomials

    def _trimmed(self, polynomials):
        """Without the coefficients of too large exponents."""
        polynomials = polynomials[:, :, : self.most_labels + 1]
        if self.is_open and polynomials.shape[1] > self.most_leaves + 1:
            lower, upper = polynomials[:, : self.most_leaves], polynomials[:, self.most_leaves :]
            return torch.cat((lower, self._sum(upper, 1)[:, None]), 1)
        return polynomials[:, : self.most_leaves + 1]

    def _sum(self, terms, dim):
        return first_max(terms, dim) if self.best else terms.logsumexp(dim)


class _Level(torch.nn.Module):
    """The labels of one depth, and how they are multiplied to one polynomial for each label above.

    In a round, brothers are multiplied in pairs, and one that is left over waits. A module only for its tensors to move
    with the space.
    """

    labels: torch.Tensor
    owners: torch.Tensor
    places: torch.Tensor

    def __init__(self, parents, depths, depth):
        super().__init__()
        labels = torch.nonzero(depths == depth)[:, 0]
        above = torch.nonzero(depths == depth - 1)[:, 0]
        # Roots have one owner, the forest.
        owners = torch.searchsorted(above, parents[labels]) if depth else torch.zeros_like(labels)
        self.n_above, self.n_rounds = max(1, len(above)), 0
        tensors = {"labels": labels, "owners": owners}
        while len(owners.unique()) < len(owners):
            first, second, alone = _pairs(owners)
            names = (f"{name}_{self.n_rounds}" for name in ("first", "second", "alone"))
            tensors.update(zip(names, (first, second, alone), strict=True))
            owners = torch.cat((owners[first], owners[alone]))
            self.n_rounds += 1
        # A label without children has the polynomial 1, which stands behind the others.
        tensors["places"] = torch.full((self.n_above,), len(owners)).index_copy(0, owners, torch.arange(len(owners)))
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def multiplied(self, polynomials, algebra):
        """The products of the polynomials of brothers, (n_above, ...)."""
        for i in range(self.n_rounds):
            first, second, alone = (getattr(self, f"{name}_{i}") for name in ("first", "second", "alone"))
            products = algebra.product(polynomials[first], polynomials[second])
            polynomials = torch.cat((products, algebra.like(polynomials[alone], products)))
        one = algebra.like(torch.zeros_like(polynomials[:1, :1, :1]), polynomials)
        return torch.cat((polynomials, one))[self.places]

    def any_of(self, flags):
        """Whether any brother has a flag (n_labels, n_rows), for each label above."""
        counts = torch.zeros((self.n_above, flags.shape[1]), device=flags.device)
        return counts.index_add(0, self.owners, flags.to(counts.dtype)) > 0


def _pairs(owners):
    """Positions of the first and the second of pairs of one owner, and of those that are left over."""
    order = owners.argsort(stable=True)
    owners = owners[order]
    start = torch.searchsorted(owners, owners)  # where the brothers of each begin
    is_even = (torch.arange(len(owners)) - start) % 2 == 0
    has_next = torch.zeros_like(is_even)
    has_next[:-1] = owners[1:] == owners[:-1]
    first = torch.nonzero(is_even & has_next)[:, 0]
    return order[first], order[first + 1], order[is_even & ~has_next]


def _padded(polynomials, leaves=(0, 0), sizes=(0, 0)):
    """Polynomials with more coefficients of 0 before and behind the others."""
    return torch.nn.functional.pad(polynomials, (0, 0, *sizes, *leaves), value=log_zero(polynomials))


def _depths(parents):
    """How many ancestors each label has, (n_labels,); raise where the parents are no forest."""
    n_labels = len(parents)
    if parents.dim() != 1 or n_labels == 0:
        raise ValueError(f"parents must be the index of each label's parent; got shape {tuple(parents.shape)}.")
    if not ((parents >= -1) & (parents < n_labels)).all():
        label = int(((parents < -1) | (parents >= n_labels)).to(torch.int8).argmax())
        raise ValueError(
            f"parents must be labels from 0 to {n_labels - 1}, or -1 for a root; got {int(parents[label])} for label "
            f"{label}."
        )
    depths, ancestors = torch.zeros_like(parents), parents.clone()
    for _ in range(n_labels):
        has_one = ancestors >= 0
        if not has_one.any():
            return depths
        depths += has_one
        ancestors = torch.where(has_one, parents[ancestors], -1)
    label = int((ancestors >= 0).to(torch.int8).argmax())
    raise ValueError(f"parents must form a forest; label {label} has an ancestor that is its own ancestor.")


def _checked_limits(min_leaves, max_leaves, n_leaves):
    low, high = 0 if min_leaves is None else min_leaves, n_leaves if max_leaves is None else max_leaves
    are_integers = all(isinstance(limit, Integral) and not isinstance(limit, bool) for limit in (low, high))
    if not are_integers or not 0 <= low <= min(high, n_leaves):
        raise ValueError(
            f"Limits must be integers with 0 <= min_leaves <= max_leaves and min_leaves <= {n_leaves}, the number of "
            f"leaves; got min_leaves={min_leaves!r}, max_leaves={max_leaves!r}."
        )
    return int(low), int(min(high, n_leaves))
