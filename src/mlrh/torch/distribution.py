"""The distribution of the label set of every row of scores, in torch: what can be asked of P(y | scores).

The names are those of `mlrh.spaces`. Answers are batched over rows; log_partition, marginals, cardinality_pmf and
log_prob are differentiable in the scores and in size_bias.
"""

from dataclasses import dataclass
from numbers import Integral

import torch

from mlrh.torch._eager import operators, ranking, sampling
from mlrh.torch._eager.checks import check_scores, check_sets, check_size_bias, check_sizes


class CardinalitySpace:
    """Every set of at least min_labels and at most max_labels labels, with a bias per size.

    Parameters
    ----------
    n_labels, min_labels, max_labels : int
        0 <= min_labels <= max_labels <= n_labels.
    size_bias : tensor of shape (n_labels + 1,) or (max_labels + 1,), optional
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

    def __init__(self, n_labels, min_labels, max_labels, size_bias=None):
        check_sizes(min_labels, max_labels, n_labels)
        if size_bias is not None:
            size_bias = (
                size_bias if isinstance(size_bias, torch.Tensor) else torch.tensor(size_bias, dtype=torch.float64)
            )
            check_size_bias(size_bias, max_labels, n_labels)
        self.n_labels, self.min_labels, self.max_labels = int(n_labels), int(min_labels), int(max_labels)
        self.size_bias = size_bias

    def __repr__(self):
        return f"CardinalitySpace(n_labels={self.n_labels}, min_labels={self.min_labels}, max_labels={self.max_labels})"

    def distribution(self, scores):
        """LabelSetDistribution of scores (n_rows, n_labels)."""
        check_scores(scores, "scores")
        if scores.shape[1] != self.n_labels:
            raise ValueError(f"scores must have shape (n_rows, {self.n_labels}); got {tuple(scores.shape)}.")
        return LabelSetDistribution(self, scores)


@dataclass(frozen=True, eq=False)
class LabelSetDistribution:
    """The distribution of the label set of every row of scores: what you can ask of P(y | x).

    Made by `CardinalitySpace.distribution`.
    """

    space: CardinalitySpace
    scores: torch.Tensor

    def log_partition(self):
        """Logarithm of the normalising sum Z, (n_rows,)."""
        return operators.log_loss(self.scores, None, self._log_weights(), **self._options())

    def marginals(self):
        """P(y_k = 1), (n_rows, n_labels)."""
        return operators.marginals(self.scores, self._log_weights(), **self._options())

    def cardinality_pmf(self):
        """P(|y| = j) for j = 0, ..., n_labels, (n_rows, n_labels + 1)."""
        pmf = operators.cardinality_pmf(self.scores, self._log_weights(), **self._options())
        return torch.nn.functional.pad(pmf, (0, self.space.n_labels - self.space.max_labels))

    def log_prob(self, Y):
        """Log-probability of one set per row, Y (n_rows, n_labels) of 0 and 1 -> (n_rows,); -inf outside the space.

        Y is checked, which on a GPU means waiting, but under torch.compile: there other numbers make it NaN or -inf.
        """
        if Y.shape != self.scores.shape:
            raise ValueError(f"Y must have shape {tuple(self.scores.shape)}, one set per row; got {tuple(Y.shape)}.")
        if not torch.compiler.is_compiling():
            check_sets(Y, "Y")
        return -operators.log_loss(self.scores, Y, self._log_weights(), **self._options())

    def mode(self):
        """The most probable set of each row, (n_rows, n_labels), int8. The lower label and the smaller set win ties."""
        return ranking.mode(self.scores.detach(), self._log_weights().detach())

    def top_sets(self, n):
        """The n most probable sets of each row, best first, and their log-probabilities.

        Returns sets (n_rows, n, n_labels) and log_probs (n_rows, n). Where the space has fewer than n sets, the rest is
        filled with empty sets of log-probability -inf. Differentiable in the log-probabilities.
        """
        n = _positive_count(n)
        sets, exist = ranking.top_sets(self.scores.detach(), self._log_weights().detach(), n)
        repeated = LabelSetDistribution(self.space, self.scores.repeat_interleave(n, 0))
        log_probs = repeated.log_prob(sets.flatten(0, 1)).reshape(-1, n)
        return sets, _ordered(torch.where(exist, log_probs, -torch.inf))

    def sample(self, n=1, generator=None):
        """n independent sets per row, (n_rows, n, n_labels), int8; `generator` is a torch.Generator of their device."""
        return sampling.sample(self.scores.detach(), self._log_weights().detach(), _positive_count(n), generator)

    def _log_weights(self):
        space = self.space
        return operators.log_weights(self.scores, space.min_labels, space.max_labels, space.size_bias)

    def _options(self):
        return {"min_labels": self.space.min_labels, "biased": self.space.size_bias is not None}


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
