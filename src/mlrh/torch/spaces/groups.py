"""Groups of labels in torch, each with limits on the number of its labels; the other labels are free.

Z is a product of the partitions of cardinality spaces, one per group, and of 1 + exp(score) of each free label. Groups
of about the same number of labels are rows of one call.
"""

from numbers import Integral
from typing import Any

import torch

from mlrh.torch._eager import operators, ranking, sampling
from mlrh.torch._eager.checks import check_sizes
from mlrh.torch._eager.sums import finite, log_add, log_zero
from mlrh.torch.distribution import LabelSpace, register_bias


class GroupSpace(LabelSpace):
    """Disjoint groups of labels, each with a least and a largest number; labels in no group are free.

    Answers cost the sum over groups of O(labels * most) per row.

    Parameters
    ----------
    groups : list of (labels, least, most)
        Label indices of each group, and how many of them a set has at least and at most.
    n_labels : int, optional
        Number of labels; by default up to the highest in a group.
    bias : tensor, Parameter or array of shape (n_biases,), or True, optional
        Added to the score of a set for the number of its labels in each group: one entry for each of the numbers least,
        ..., most of the first group, then of the second, and so on. True makes a Parameter of zeros, to be learned with
        the network.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import GroupSpace
    >>> space = GroupSpace([([0, 1, 2], 1, 1)], n_labels=4)  # exactly one of the first three labels; the fourth is free
    >>> space.distribution(torch.tensor([[1.0, 1.0, 1.0, 0.0]])).marginals()
    tensor([[0.3333, 0.3333, 0.3333, 0.5000]])
    """

    free: torch.Tensor

    def __init__(self, groups, n_labels=None, bias=None):
        super().__init__()
        groups, self.n_labels = _checked_groups(groups, n_labels)
        sizes = [most - least + 1 for _, least, most in groups]
        self.bias: torch.Tensor | None
        register_bias(self, "bias", bias, sum(sizes))
        if self.bias is not None and self.bias.shape != (sum(sizes),):
            raise ValueError(
                f"bias must have {sum(sizes)} entries, one for each number of labels in each group; got shape "
                f"{tuple(self.bias.shape)}."
            )
        grouped = torch.tensor([label for labels, _, _ in groups for label in labels], dtype=torch.int64)
        is_free = torch.ones(self.n_labels, dtype=torch.bool).index_fill(0, grouped, False)
        self.register_buffer("free", torch.nonzero(is_free)[:, 0], persistent=False)
        starts = [sum(sizes[:g]) for g in range(len(groups))]
        # A call takes groups of one width, those up to a power of two filled up: at most twice the work, and few calls.
        widths = [(len(labels) - 1).bit_length() for labels, _, _ in groups]
        self.batches: Any = torch.nn.ModuleList(
            _Groups([(*groups[g], starts[g]) for g in range(len(groups)) if widths[g] == width], self.n_labels)
            for width in sorted(set(widths))
        )

    def __repr__(self):
        n_groups = sum(len(batch.labels) for batch in self.batches)
        return f"GroupSpace({n_groups} groups, {len(self.free)} free labels of {self.n_labels})"

    def bias_of(self, Y):
        total = torch.zeros(len(Y), dtype=torch.float64, device=Y.device)
        for batch in self.batches:
            total = total + batch.bias_of(Y == 1, self._bias(torch.float64))
        return total

    def mode(self, scores):
        """The most probable sets; the lower label and the smaller set win ties."""
        return self.mode_given(scores, None)

    def mode_given(self, scores, known):
        scores = scores.detach().to(torch.float64)
        if known is not None:  # present labels before all others, absent ones behind them
            scores = scores.masked_fill(known == 1, torch.inf).masked_fill(known == 0, -torch.inf)
        sets = (scores > 0).to(torch.int8)
        for batch in self.batches:
            log_weights = batch.log_weights(self._bias(torch.float64)).detach()
            for labels, of_sizes in zip(batch.labels, log_weights, strict=True):
                labels = labels[labels < self.n_labels]
                sets[:, labels] = ranking.mode(scores[:, labels], of_sizes)
        return sets

    def sample(self, scores, n, generator):
        scores = finite(scores.detach().to(torch.float64))
        probs = scores.sigmoid()[:, None].expand(-1, n, -1)
        uniforms = torch.rand(probs.shape, dtype=probs.dtype, device=probs.device, generator=generator)
        sets = torch.nn.functional.pad((uniforms < probs).to(torch.int8), (0, 1))  # right for the free labels
        for batch in self.batches:
            log_weights = batch.log_weights(self._bias(torch.float64)).detach()
            drawn = sampling.sample(batch.rows(scores), batch.of_rows(log_weights, len(scores)), n, generator)
            n_groups, width = batch.labels.shape
            drawn = drawn.reshape(len(scores), n_groups, n, width).transpose(1, 2).flatten(2)
            sets[:, :, batch.labels.flatten()] = drawn
        return sets[:, :, :-1]

    def cardinality_pmf(self, scores):
        scores = finite(scores)
        n_free = len(self.free)
        pmfs = []
        if n_free:
            any_size = scores.new_zeros(n_free + 1)
            pmfs.append(operators.cardinality_pmf(scores[:, self.free], any_size, min_labels=0))
        for batch in self.batches:
            log_weights = batch.of_rows(batch.log_weights(self._bias(scores.dtype)), len(scores))
            pmf = operators.cardinality_pmf(batch.rows(scores), log_weights, min_labels=0)
            pmfs += pmf.reshape(len(scores), *batch.places.shape).unbind(1)
        pmf = scores.new_ones((len(scores), 1))
        for one in pmfs:
            pmf = _convolved(pmf, one)
        pmf = pmf[:, : self.n_labels + 1]
        return torch.nn.functional.pad(pmf, (0, self.n_labels + 1 - pmf.shape[1]))

    def _log_partition(self, scores, known):
        free = scores[:, self.free]
        without = torch.zeros_like(free)
        if known is not None:
            free = free.masked_fill(known[:, self.free] == 0, log_zero(free))
            without = without.masked_fill(known[:, self.free] == 1, log_zero(free))
        total = log_add(free, without).sum(1)
        for batch in self.batches:
            log_weights = batch.of_rows(batch.log_weights(self._bias(scores.dtype)), len(scores))
            log_sums = batch.log_sums(scores, known, log_weights)
            total = total + log_sums.clamp(min=log_zero(scores)).reshape(len(scores), len(batch.labels)).sum(1)
        return total

    def _bias(self, dtype):
        """The size biases of all groups in this type, with -inf behind them for numbers that aren't admissible."""
        device = self.free.device
        nothing = torch.full((1,), -torch.inf, dtype=dtype, device=device)
        if self.bias is not None:
            return torch.cat((self.bias.to(dtype), nothing))
        return torch.cat(
            (torch.zeros(sum(batch.n_biases for batch in self.batches), dtype=dtype, device=device), nothing)
        )


class _Groups(torch.nn.Module):
    """Groups of about the same number of labels. A module only for its tensors to move with the space.

    labels : (n_groups, width), filled up with n_labels, the number of a label that no set has
    places : (n_groups, n_sizes), where the bias of each size stands; -1, the last, for sizes that aren't admissible
    """

    labels: torch.Tensor
    places: torch.Tensor

    def __init__(self, groups, n_labels):
        super().__init__()
        width = max(len(labels) for labels, *_ in groups)
        n_sizes = max(most for _, _, most, _ in groups) + 1
        labels = torch.full((len(groups), width), n_labels)
        places = torch.full((len(groups), n_sizes), -1)
        for g, (of_group, least, most, start) in enumerate(groups):
            labels[g, : len(of_group)] = torch.tensor(of_group)
            places[g, least : most + 1] = torch.arange(start, start + most - least + 1)
        self.n_biases = int((places >= 0).sum())
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("places", places, persistent=False)

    def log_weights(self, bias):
        """Log-weights (n_groups, n_sizes) from the biases of all groups, whose last is -inf."""
        return bias[self.places]

    def of_rows(self, log_weights, n_rows):
        """Log-weights (n_rows * n_groups, n_sizes), as `rows` has its rows."""
        return log_weights.expand(n_rows, -1, -1).reshape(-1, log_weights.shape[1])

    def rows(self, values, fill=-torch.inf):
        """Values (n_rows, n_labels) of the labels of each group, (n_rows * n_groups, width)."""
        return torch.nn.functional.pad(values, (0, 1), value=fill)[:, self.labels].flatten(0, 1)

    def log_sums(self, scores, known, log_weights):
        """Logarithms of the sums over the sets of each group, (n_rows * n_groups,)."""
        rows = self.rows(scores)
        if known is None:
            return operators.log_loss(rows, None, log_weights, min_labels=0)
        known = self.rows(known.to(scores.dtype), fill=0.0)
        is_present, n_sizes = known == 1, log_weights.shape[1]
        n_present = is_present.sum(1, keepdim=True).clamp(max=n_sizes)
        shifted = n_present + torch.arange(n_sizes, device=scores.device)
        # The log-weights of the number of labels that are not known, beside the present ones.
        of_free = torch.nn.functional.pad(log_weights, (0, n_sizes), value=-torch.inf).gather(1, shifted)
        free = rows.masked_fill(~known.isnan(), -torch.inf)
        return torch.where(is_present, rows, 0.0).sum(1) + operators.log_loss(free, None, of_free, min_labels=0)

    def bias_of(self, Y, bias):
        """Total bias of the groups of one set per row (n_rows,), Y booleans (n_rows, n_labels)."""
        counts = torch.nn.functional.pad(Y, (0, 1))[:, self.labels].sum(2)
        log_weights = torch.nn.functional.pad(self.log_weights(bias), (0, 1), value=-torch.inf)
        log_weights = log_weights.expand(len(Y), -1, -1)
        index = counts.clamp(max=log_weights.shape[2] - 1)[:, :, None]
        return log_weights.gather(2, index)[:, :, 0].sum(1)


def _convolved(first, second):
    """Probabilities (n_rows, n) of the sums of two independent sizes."""
    longer, shorter = (first, second) if first.shape[1] >= second.shape[1] else (second, first)
    n = shorter.shape[1]
    terms = [torch.nn.functional.pad(longer * shorter[:, i : i + 1], (i, n - 1 - i)) for i in range(n)]
    return torch.stack(terms).sum(0)


def _checked_groups(groups, n_labels):
    groups = [(_checked_labels(labels), least, most) for labels, least, most in groups]
    every = [label for labels, _, _ in groups for label in labels]
    n_labels = max(every, default=-1) + 1 if n_labels is None else n_labels
    if not isinstance(n_labels, Integral) or n_labels < 1 or not all(0 <= label < n_labels for label in every):
        raise ValueError(
            f"Labels of groups must be indices from 0 to n_labels - 1; got {every}, n_labels={n_labels!r}."
        )
    if len(set(every)) < len(every):
        twice = next(label for label in every if every.count(label) > 1)
        raise ValueError(f"Groups must be disjoint, each label in one of them at most; got label {twice} twice.")
    for labels, least, most in groups:
        check_sizes(least, most, len(labels))
    return [(labels, int(least), int(most)) for labels, least, most in groups], int(n_labels)


def _checked_labels(labels):
    labels = list(labels)
    if not labels or not all(isinstance(label, Integral) and not isinstance(label, bool) for label in labels):
        raise ValueError(f"A group must have label indices, one at least; got {labels!r}.")
    return [int(label) for label in labels]
