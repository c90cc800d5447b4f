"""The distribution of the label set of every row of scores, in torch: what can be asked of P(y | scores).

The names are those of `mlrh.spaces`. Answers are batched over rows; log_partition, marginals, cardinality_pmf and
log_prob are differentiable in the scores and in the biases. `LabelSpace` says what a space must define, and has the
rest; `CardinalitySpace` is the one with kernels of its own, the others lie in `mlrh.torch.spaces`.
"""

from dataclasses import dataclass
from numbers import Integral

import torch

from mlrh.torch._eager import operators, ranking, sampling
from mlrh.torch._eager.checks import check_scores, check_sets, check_size_bias, check_sizes
from mlrh.torch._eager.dispatch import blocks, full_precision, given, working_dtype
from mlrh.torch._eager.sums import finite, with_minus_inf

TIE = 1e-13  # some hundred units in the last place of float64: answers that are equal but for rounding


class LabelSpace(torch.nn.Module):
    """Which label sets are possible, and with which biases b(y): P(y) = exp(sum_k y_k scores_k + b(y)) / Z.

    A module, so that its biases move to a device, are saved and are learned with a network. A space sets n_labels and
    defines `_log_partition`, `bias_of`, `cardinality_pmf`, `mode`, and `mode_given` or `top_sets`; the rest is here,
    exact, from these. Scores and `known` are (n_rows, n_labels); known is 1 or 0 where it is known whether a row has a
    label, NaN elsewhere.

    Attributes
    ----------
    n_labels : int
    nested_answers : bool
        Whether the best answer for any metric is made of the highest scores of the row, as in a cardinality space.
    """

    n_labels: int
    nested_answers = False

    def distribution(self, scores):
        """LabelSetDistribution of scores (n_rows, n_labels)."""
        check_scores(scores, "scores")
        if scores.shape[1] != self.n_labels:
            raise ValueError(f"scores must have shape (n_rows, {self.n_labels}); got {tuple(scores.shape)}.")
        return LabelSetDistribution(self, scores)

    # What a space defines.

    def _log_partition(self, scores, known):
        """Logarithm of the sum over sets (n_rows,), differentiable, of finite scores in float32 or float64.

        known is None or as above. `sums.LOG_ZERO` stands for the logarithm of 0 in the scores and in the answer.
        """
        raise NotImplementedError

    def bias_of(self, Y):
        """b(y) of one set per row (n_rows,), differentiable in the biases; -inf outside the space."""
        raise NotImplementedError

    def cardinality_pmf(self, scores):
        """P(|y| = j) for j = 0, ..., n_labels, (n_rows, n_labels + 1)."""
        raise NotImplementedError

    def mode(self, scores):
        """The most probable sets, int8 (n_rows, n_labels)."""
        raise NotImplementedError

    def mode_given(self, scores, known):
        """The most probable sets (n_rows, n_labels) that agree with what is known; any set where there is none."""
        raise NotImplementedError

    def bias_parts(self):
        """The biases of the same space of `mlrh.spaces`, in its order: pairs of a parameter here and a slice of it."""
        return [(self.bias, slice(None))]

    # What follows from it.

    def log_partition(self, scores, known=None):
        """Logarithm of the sum over sets that agree with what is known (n_rows,), -inf where there is none."""
        with full_precision(scores):
            return with_minus_inf(self._log_partition(finite(scores), known))

    def marginals(self, scores, known=None):
        """P(y_k = 1), (n_rows, n_labels): the derivatives of the log-partition by the scores."""
        differentiable = self.is_differentiable(scores)
        return derivative(self.log_partition, scores, known, differentiable=differentiable)

    def log_weight(self, scores, Y):
        """Logarithm of exp(sum_k y_k scores_k + b(y)) of one set per row, (n_rows,); -inf outside the space."""
        dtype = working_dtype(scores)
        return torch.where(Y == 1, scores.to(dtype), 0.0).sum(1) + self.bias_of(Y).to(dtype)

    def losses(self, scores, targets, *, partial):
        """-log P(targets) (n_rows,), inf outside the space; with partial, targets may hold NaN for unknown labels."""
        whole = self.log_partition(scores)
        part = self.log_partition(scores, targets) if partial else self.log_weight(scores, targets)
        losses = (whole - part).masked_fill(whole == -torch.inf, torch.inf)  # every set has an impossible label
        values = losses.detach()
        return losses + torch.where(values < 0, -values, 0.0)  # rounding; the gradient stays

    def log_prob(self, scores, Y):
        """Log-probability of one set per row, (n_rows,); -inf outside the space."""
        return -self.losses(scores, Y, partial=False)

    def top_sets(self, scores, n):
        """The n most probable sets (n_rows, n, n_labels), and whether there are as many (n_rows, n).

        By Lawler's partitioning: a part is all sets that agree with some known labels, and its best set is a mode.
        Taking the best set away splits the rest of its part into up to n_labels parts. Each further set costs the modes
        of the new parts of all rows; only the n best parts are kept.
        """
        scores = scores.detach()
        found = [
            self._top_sets_of_block(scores[rows], n) for rows in blocks(len(scores), self.n_labels**2) or [slice(0)]
        ]
        sets, exist = (torch.cat(parts) for parts in zip(*found, strict=True))
        return sets, exist

    def sample(self, scores, n, generator):
        """n independent sets per row (n_rows, n, n_labels), int8, label by label, each given those before."""
        rows = scores.detach().repeat_interleave(n, 0)
        known = torch.full_like(rows, torch.nan, dtype=torch.float32)
        for label in range(self.n_labels):
            self._draw(rows, known, slice(label, label + 1), generator)
        return known.to(torch.int8).reshape(-1, n, self.n_labels)

    def best_f1(self, scores):
        """The sets (n_rows, n_labels), int8, with the highest expected F1, exactly, in any label space.

        E[F1] of an answer of m labels is the sum over its labels k of sum_j 2 / (m + j) P(y_k = 1, |y| = j), so that
        the best answer of m labels has the m largest of these; an empty answer has P(|y| = 0). As scores move,
        P(y_k = 1, |y| = j) - P(y_k = 1) P(|y| = j) is the derivative of P(|y| = j) by the score of k.
        """
        scores = scores.detach().to(torch.float64)
        sets = torch.zeros(scores.shape, dtype=torch.int8, device=scores.device)
        for rows in blocks(len(scores), self.n_labels**2):
            sets[rows] = self._best_f1_of_block(scores[rows])
        return sets

    def is_differentiable(self, scores):
        """Whether an answer is to be differentiable, in the scores or in the biases."""
        tensors = (scores, *self.parameters(), *self.buffers())
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    def _draw(self, scores, known, labels, generator):
        """Draw some labels, independent given what is known, and write them into known."""
        probs = self.marginals(scores.to(torch.float64), known)[:, labels]
        uniforms = torch.rand(probs.shape, dtype=torch.float64, device=probs.device, generator=generator)
        known[:, labels] = (uniforms < probs).to(known.dtype)

    def _best_f1_of_block(self, scores):
        with torch.inference_mode(False), torch.enable_grad():
            scores = scores.clone().requires_grad_()
            pmf = self.cardinality_pmf(scores)
            covariances = [
                torch.autograd.grad(of_size.sum(), scores, retain_graph=True)[0] for of_size in pmf.unbind(1)[1:]
            ]
        pmf, sizes = pmf.detach(), torch.arange(1, self.n_labels + 1, device=scores.device)
        joint = torch.stack(covariances, 2) + self.marginals(scores.detach())[:, :, None] * pmf[:, None, 1:]
        gains = joint @ (2.0 / (sizes[:, None] + sizes)).to(joint.dtype)  # by label and by the size of the answer
        ordered, order = gains.sort(dim=1, descending=True, stable=True)
        expected = torch.cat((pmf[:, :1], ordered.cumsum(1).diagonal(dim1=1, dim2=2)), 1)
        near = TIE * expected.abs().amax(1, keepdim=True)
        counts = (expected >= expected.amax(1, keepdim=True) - near).to(torch.int8).argmax(1)
        of_answer = order.gather(2, (counts - 1).clamp(min=0)[:, None, None].expand(-1, self.n_labels, -1))[:, :, 0]
        return ranking.first_of(of_answer, counts)

    def _top_sets_of_block(self, scores, n):
        n_rows, n_labels = scores.shape
        scores = scores.to(torch.float64)
        sets = torch.zeros((n_rows, n, n_labels), dtype=torch.int8, device=scores.device)
        exist = torch.zeros((n_rows, n), dtype=torch.bool, device=scores.device)
        nothing = torch.full((n_rows, 1, n_labels), torch.nan, device=scores.device)
        pool = self._best_of_parts(scores, nothing)
        for place in range(n):
            log_weights, order = pool[0].sort(dim=1, descending=True, stable=True)
            order = order[:, : n - place]
            by_label = order[:, :, None].expand(-1, -1, n_labels)
            pool = log_weights[:, : n - place], *(part.gather(1, by_label) for part in pool[1:])
            exist[:, place] = pool[0][:, 0] > -torch.inf
            best, known = pool[1][:, 0], pool[2][:, 0]
            sets[:, place] = best * exist[:, place, None]
            others = self._best_of_parts(scores, _other_parts(known, best), known.isnan() & exist[:, place, None])
            pool = tuple(torch.cat((old[:, 1:], new), 1) for old, new in zip(pool, others, strict=True))
        return sets, exist

    def _best_of_parts(self, scores, known, counts=True):
        """Log-weights (n_rows, n_parts) and best sets (n_rows, n_parts, n_labels) of parts, and what is known in them.

        The log-weight is -inf where a part has no set, or where counts (n_rows, n_parts) is false.
        """
        n_parts = known.shape[1]
        rows, flat = scores.repeat_interleave(n_parts, 0), known.flatten(0, 1)
        best = self.mode_given(rows, flat)
        log_weights = self.log_weight(rows, best).detach()
        agrees = (flat.isnan() | (flat == best)).all(1)
        log_weights = torch.where(agrees, log_weights, -torch.inf).reshape(-1, n_parts)
        log_weights = log_weights.masked_fill(~torch.as_tensor(counts, device=scores.device), -torch.inf)
        return log_weights, best.reshape(known.shape), known


class CardinalitySpace(LabelSpace):
    """Every set of at least min_labels and at most max_labels labels, with a bias per size.

    Parameters
    ----------
    n_labels, min_labels, max_labels : int
        0 <= min_labels <= max_labels <= n_labels.
    size_bias : tensor or Parameter of shape (n_labels + 1,) or (max_labels + 1,), optional
        Added to the score of a set of j labels; entries outside min_labels..max_labels don't matter.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import CardinalitySpace
    >>> d = CardinalitySpace(n_labels=3, min_labels=1, max_labels=2).distribution(torch.tensor([[2.0, 0.0, -1.0]]))
    >>> d.mode().tolist()
    [[1, 0, 0]]
    >>> d.marginals()
    tensor([[0.9097, 0.4553, 0.1796]])
    """

    nested_answers = True

    def __init__(self, n_labels, min_labels, max_labels, size_bias=None):
        super().__init__()
        check_sizes(min_labels, max_labels, n_labels)
        self.size_bias: torch.Tensor | None
        register_bias(self, "size_bias", size_bias, n_labels + 1)
        if self.size_bias is not None:
            check_size_bias(self.size_bias, max_labels, n_labels)
        self.n_labels, self.min_labels, self.max_labels = int(n_labels), int(min_labels), int(max_labels)

    def __repr__(self):
        return f"CardinalitySpace(n_labels={self.n_labels}, min_labels={self.min_labels}, max_labels={self.max_labels})"

    def bias_parts(self):
        return [(self.size_bias, slice(self.min_labels, self.max_labels + 1))]

    def log_partition(self, scores, known=None):
        log_weights = self.log_weights(scores)
        if known is None:
            return operators.log_loss(scores, None, log_weights, **self._options())
        _, is_present, free, sizes_of_free = given(scores, known, log_weights)
        of_free = operators.log_loss(free, None, sizes_of_free, min_labels=0)
        return torch.where(is_present, scores, 0.0).sum(1, dtype=of_free.dtype) + of_free

    def marginals(self, scores, known=None):
        if known is not None:
            return super().marginals(scores, known)
        return operators.marginals(scores, self.log_weights(scores), **self._options())

    def cardinality_pmf(self, scores):
        pmf = operators.cardinality_pmf(scores, self.log_weights(scores), **self._options())
        return torch.nn.functional.pad(pmf, (0, self.n_labels - self.max_labels))

    def losses(self, scores, targets, *, partial):
        return operators.log_loss(scores, targets, self.log_weights(scores), partial=partial, **self._options())

    def mode(self, scores):
        """The most probable sets; the lower label and the smaller set win ties."""
        return ranking.mode(scores.detach(), self.log_weights(scores).detach())

    def top_sets(self, scores, n):
        return ranking.top_sets(scores.detach(), self.log_weights(scores).detach(), n)

    def sample(self, scores, n, generator):
        return sampling.sample(scores.detach(), self.log_weights(scores).detach(), n, generator)

    def log_weights(self, scores):
        """Log-weights (max_labels + 1,) of the sizes, in the type and on the device of the computation."""
        return operators.log_weights(scores, self.min_labels, self.max_labels, self.size_bias)

    def bias_of(self, Y):
        log_weights = torch.nn.functional.pad(self.log_weights(Y.to(torch.float64)), (0, 1), value=-torch.inf)
        return log_weights[(Y == 1).sum(1).clamp(max=self.max_labels + 1)]

    def _options(self):
        return {"min_labels": self.min_labels, "biased": self.size_bias is not None}


@dataclass(frozen=True, eq=False)
class LabelSetDistribution:
    """The distribution of the label set of every row of scores: what you can ask of P(y | x).

    Made by `distribution` of a label space or of `MLRHLoss`.
    """

    space: LabelSpace
    scores: torch.Tensor

    def log_partition(self):
        """Logarithm of the normalising sum Z, (n_rows,)."""
        return self.space.log_partition(self.scores)

    def marginals(self):
        """P(y_k = 1), (n_rows, n_labels)."""
        return self.space.marginals(self.scores)

    def cardinality_pmf(self):
        """P(|y| = j) for j = 0, ..., n_labels, (n_rows, n_labels + 1)."""
        return self.space.cardinality_pmf(self.scores)

    def log_prob(self, Y):
        """Log-probability of one set per row, Y (n_rows, n_labels) of 0 and 1 -> (n_rows,); -inf outside the space.

        Y is checked, which on a GPU means waiting, but under torch.compile: there other numbers make it NaN or -inf.
        """
        if Y.shape != self.scores.shape:
            raise ValueError(f"Y must have shape {tuple(self.scores.shape)}, one set per row; got {tuple(Y.shape)}.")
        if not torch.compiler.is_compiling():
            check_sets(Y, "Y")
        return self.space.log_prob(self.scores, Y)

    def mode(self):
        """The most probable set of each row, (n_rows, n_labels), int8.

        The lower label and the smaller set win ties, in an observed space the set listed first.
        """
        return self.space.mode(self.scores.detach())

    def top_sets(self, n):
        """The n most probable sets of each row, best first, and their log-probabilities.

        Returns sets (n_rows, n, n_labels) and log_probs (n_rows, n). Where the space has fewer than n sets, the rest is
        filled with empty sets of log-probability -inf. Differentiable in the log-probabilities.
        """
        n = _positive_count(n)
        sets, exist = self.space.top_sets(self.scores, n)
        log_probs = self.space.log_prob(self.scores.repeat_interleave(n, 0), sets.flatten(0, 1)).reshape(-1, n)
        return sets, _ordered(torch.where(exist, log_probs, -torch.inf))

    def sample(self, n=1, generator=None):
        """n independent sets per row, (n_rows, n, n_labels), int8; `generator` is a torch.Generator of their device."""
        return self.space.sample(self.scores, _positive_count(n), generator)


def register_bias(space, name, bias, n_biases):
    """Keep a bias under a name: None, True for a Parameter of zeros to be learned, a Parameter, or fixed numbers."""
    if bias is None or bias is False:
        setattr(space, name, None)  # found at once, where a buffer that is None is looked for in three places
    elif bias is True:
        space.register_parameter(name, torch.nn.Parameter(torch.zeros(n_biases)))
    elif isinstance(bias, torch.nn.Parameter):
        space.register_parameter(name, bias)
    else:
        is_tensor = isinstance(bias, torch.Tensor)
        space.register_buffer(name, bias if is_tensor else torch.as_tensor(bias, dtype=torch.float64))


def derivative(function, values, *others, differentiable=False):
    """Derivatives by values of function(values, *others) (n_rows,), a function of each row alone.

    The others are tensors or None. Those made in inference mode are copied, since autograd can't keep them.
    """
    with torch.inference_mode(False), torch.enable_grad():
        if not (differentiable and values.requires_grad):
            values = values.detach().clone().requires_grad_()
        others = tuple(other.clone() if other is not None and other.is_inference() else other for other in others)
        return torch.autograd.grad(function(values, *others).sum(), values, create_graph=differentiable)[0]


def _other_parts(known, best):
    """What is known in each part (n_rows, n_labels, n_labels) of the sets that agree with known and are not best.

    One part per label: the sets that differ from best there and equal it at the labels before. Where the label is known
    already, there is no such set.
    """
    labels = torch.arange(known.shape[1], device=known.device)
    best = best.to(known.dtype)[:, None]
    before = torch.where(labels < labels[:, None], best, known[:, None])
    return torch.where(labels == labels[:, None], 1 - best, before)


def _ordered(log_probs):
    """Log-probabilities (n_rows, n) that never rise along a row, each with the gradient of its own set.

    The order of the sets is exact; their log-probabilities may be out of it by a rounding error.
    """
    values = log_probs.detach()
    lowest = values.cummin(1).values
    return log_probs + torch.where(lowest < values, lowest - values, 0.0)


def _positive_count(n):
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"The number of sets must be a positive integer; got {n!r}.")
    return int(n)
