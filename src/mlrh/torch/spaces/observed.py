"""The observed space in torch: a list of label sets, each with a bias of its own, so that labels may attract.

Z is a sum over the list: a product of the scores with the matrix of sets, and a logsumexp.
"""

import torch

from mlrh.torch._eager.dispatch import full_precision
from mlrh.torch._eager.sums import finite, log_zero
from mlrh.torch.distribution import LabelSpace, register_bias


class ObservedSpace(LabelSpace):
    """The listed sets only, each with a bias of its own: labels may attract each other.

    Answers cost O(n_sets * n_labels) per row and n_sets numbers of memory.

    Parameters
    ----------
    sets : tensor or array of shape (n_sets, n_labels)
        Distinct rows of 0 and 1.
    set_bias : tensor, Parameter or array of shape (n_sets,), or True, optional
        Added to the score of each set. True makes a Parameter of zeros, to be learned with the network.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import ObservedSpace
    >>> space = ObservedSpace([[1, 0, 0], [0, 1, 1]])
    >>> space.distribution(torch.tensor([[1.0, 1.0, 0.0]])).marginals()
    tensor([[0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, sets, set_bias=None):
        super().__init__()
        self.listed = ListedSets(sets)
        self.n_labels = self.listed.sets.shape[1]
        self.set_bias: torch.Tensor | None
        register_bias(self, "set_bias", set_bias, len(self.listed.sets))
        self.listed.check_bias(self.set_bias)

    def __repr__(self):
        return f"ObservedSpace({len(self.listed.sets)} sets of {self.n_labels} labels)"

    @property
    def sets(self):
        """The listed sets, int8 (n_sets, n_labels)."""
        return self.listed.sets

    def bias_parts(self):
        return [(self.set_bias, slice(None))]

    def bias_of(self, Y):
        return self.listed.find(Y, self.set_bias)

    def mode(self, scores):
        """The most probable sets; of equal ones the set listed first."""
        return self.listed.sets[self._log_weights(finite(scores.detach()), None).argmax(1)]

    def top_sets(self, scores, n):
        log_weights = self._log_weights(finite(scores.detach()), None)
        missing = max(0, n - log_weights.shape[1])
        log_weights, order = log_weights.sort(dim=1, descending=True, stable=True)
        exist = torch.nn.functional.pad(log_weights[:, :n] > log_zero(log_weights) / 2, (0, missing))
        sets = torch.nn.functional.pad(self.listed.sets[order[:, :n]], (0, 0, 0, missing))
        return sets * exist[:, :, None], exist

    def sample(self, scores, n, generator):
        probs = self._probabilities(scores.detach().to(torch.float64))
        return self.listed.sets[torch.multinomial(probs, n, replacement=True, generator=generator)]

    def cardinality_pmf(self, scores):
        probs = self._probabilities(scores)
        by_size = torch.eye(self.n_labels + 1, dtype=probs.dtype, device=probs.device)[self.listed.sizes]
        with full_precision(probs):
            return probs @ by_size

    def _log_partition(self, scores, known):
        return self._log_weights(scores, known).logsumexp(1)

    def _probabilities(self, scores):
        """P(set) of every listed set, (n_rows, n_sets)."""
        return self._log_weights(finite(scores), None).softmax(1)

    def _log_weights(self, scores, known):
        """Log-weights (n_rows, n_sets) of finite scores; that of a set that contradicts what is known is that of 0."""
        log_weights = self.listed.products(scores)
        if self.set_bias is not None:
            log_weights = log_weights + self.set_bias.to(scores.dtype)
        return log_weights if known is None else log_weights.masked_fill(~self.listed.agree(known), log_zero(scores))


class ListedSets(torch.nn.Module):
    """Distinct label sets (n_sets, n_labels) on the device of their space: sums of scores, and which set a row is.

    A module only for its tensors to move with the space; they are not saved, since the space is made of them.
    """

    sets: torch.Tensor
    sizes: torch.Tensor
    multipliers: torch.Tensor
    keys: torch.Tensor
    order: torch.Tensor

    def __init__(self, sets):
        super().__init__()
        sets = _checked_sets(sets)
        # A row's key is the sum of 64 random bits for each of its labels, modulo 2**64: sets are found by their keys in
        # O(n_labels log n_sets), and compared, so that equal keys of other sets do no harm.
        generator = torch.Generator().manual_seed(0)
        multipliers = torch.randint(-(2**63), 2**63 - 1, (sets.shape[1],), generator=generator)
        keys, order = (sets.to(torch.int64) * multipliers).sum(1).sort()
        if (keys[1:] == keys[:-1]).any():
            raise ValueError("sets must be distinct; got the same set twice. Use torch.unique(sets, dim=0).")
        tensors = {"sets": sets, "sizes": sets.sum(1), "multipliers": multipliers, "keys": keys, "order": order}
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def check_bias(self, set_bias):
        """Raise unless there is a bias for each set, or none at all."""
        if set_bias is not None and set_bias.shape != (len(self.sets),):
            raise ValueError(
                f"set_bias must have {len(self.sets)} entries, one per set; got shape {tuple(set_bias.shape)}."
            )

    def products(self, scores):
        """Sums of the scores in each set, (n_rows, n_sets)."""
        with full_precision(scores):
            return scores @ self.sets.to(scores.dtype).T

    def agree(self, known):
        """Whether each set has every label known to be present and none known to be absent, (n_rows, n_sets)."""
        # The product counts a set's present labels less its absent ones: it is the number of present ones only if the
        # set has all of these and none of those. Counts of up to 2**24 are exact in float32.
        is_present = known == 1
        signs = is_present.to(torch.float32) - (known == 0).to(torch.float32)
        return self.products(signs) == is_present.sum(1)[:, None]

    def find(self, Y, set_bias, elsewhere=-torch.inf):
        """The bias (n_rows,) of the set that each row is, 0 if set_bias is None; elsewhere for a row that is none."""
        Y = (Y == 1).to(torch.int8)
        keys = (Y.to(torch.int64) * self.multipliers).sum(1)
        index = self.order[torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)]
        is_listed = (self.sets[index] == Y).all(1)
        if set_bias is None:
            set_bias = torch.zeros(len(self.sets), dtype=torch.float64, device=Y.device)
        return torch.where(is_listed, set_bias[index], elsewhere)


def _checked_sets(sets):
    sets = torch.as_tensor(sets)
    if sets.dim() != 2 or 0 in sets.shape:
        raise ValueError(f"sets must have a row for each set and a column for each label; got {tuple(sets.shape)}.")
    if not ((sets == 0) | (sets == 1)).all():
        raise ValueError("sets must contain only 0 and 1, 1 where a set has the label; got other numbers.")
    return sets.to(torch.int8).contiguous()
