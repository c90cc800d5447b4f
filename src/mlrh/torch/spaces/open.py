"""The open space in torch: every set of admissible size, and a bias of its own for each listed set.

With q_s = P_card(s) in the cardinality space and T = 1 + sum_s (exp(bias_s) - 1) q_s over the listed sets,

    log Z = log Z_card + log T.

The relative error of T is about eps exp(-lowest bias), so this is for biases of -10 and more, in float64 whatever the
type of the scores. Elsewhere Z is summed from positive terms only: each set that isn't listed leaves the binary tree of
listed sets at one node, where the label of that depth differs from all listed sets that were like it so far.
"""

import torch
from torch.utils.checkpoint import checkpoint

from mlrh.torch._eager import operators, ranking
from mlrh.torch._eager.dispatch import full_precision, given, working_dtype
from mlrh.torch._eager.sums import LOG_ZERO, finite, log_add, log_zero
from mlrh.torch.distribution import CardinalitySpace, LabelSpace, derivative, register_bias
from mlrh.torch.spaces.observed import ListedSets

MOST_TERMS = 2**22  # numbers that a block of rows may sum: 32 MB, and some times that for their gradient
LOWEST_BIAS = -10.0  # above it T has an error of 2e-16 * exp(10) = 5e-12 at most


class OpenSpace(LabelSpace):
    """Every set of min_labels to max_labels labels, with a bias per size; each listed set has a bias of its own, too.

    Answers cost O(n_labels * max_labels + n_sets * n_labels) per row. Where a set bias is below -10, and under
    torch.compile, where biases can't be looked at, n_labels steps one after the other.

    Parameters
    ----------
    n_labels, min_labels, max_labels : int
        0 <= min_labels <= max_labels <= n_labels.
    sets : tensor or array of shape (n_sets, n_labels)
        Distinct rows of 0 and 1, of min_labels to max_labels labels each: the sets that training shows.
    set_bias : tensor, Parameter or array of shape (n_sets,), or True, optional
        Added to the score of each listed set. True makes a Parameter of zeros, to be learned with the network; add a
        ridge to the loss that holds it to 0, such as 0.5 * loss.label_space.set_bias.square().sum() to the summed loss.
    size_bias : tensor, Parameter or array of shape (n_labels + 1,) or (max_labels + 1,), or True, optional
        Added to the score of a set of j labels.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import OpenSpace
    >>> space = OpenSpace(3, 1, 2, sets=[[1, 1, 0]], set_bias=[2.0])
    >>> space.distribution(torch.zeros(1, 3)).top_sets(1)[0].tolist()
    [[[1, 1, 0]]]
    """

    def __init__(self, n_labels, min_labels, max_labels, sets, set_bias=None, size_bias=None):
        super().__init__()
        self.cardinality = CardinalitySpace(n_labels, min_labels, max_labels, size_bias)
        self.listed = ListedSets(sets)
        self.n_labels, self.min_labels, self.max_labels = self.cardinality.n_labels, int(min_labels), int(max_labels)
        self.set_bias: torch.Tensor | None
        register_bias(self, "set_bias", set_bias, len(self.listed.sets))
        self.listed.check_bias(self.set_bias)
        counts = self.listed.sizes
        if self.listed.sets.shape[1] != n_labels or counts.min() < min_labels or counts.max() > max_labels:
            raise ValueError(
                f"sets must have {n_labels} columns, and {min_labels} to {max_labels} labels each; got shape "
                f"{tuple(self.listed.sets.shape)} with {int(counts.min())} to {int(counts.max())} labels."
            )
        self.tree = _Tree(self.listed.sets, self.max_labels)

    def __repr__(self):
        sizes = f"{self.n_labels} labels, {self.min_labels} to {self.max_labels} in a set"
        return f"OpenSpace({sizes}; {len(self.listed.sets)} listed sets)"

    @property
    def sets(self):
        """The listed sets, int8 (n_sets, n_labels)."""
        return self.listed.sets

    @property
    def size_bias(self):
        """The biases of sizes, or None."""
        return self.cardinality.size_bias

    def bias_parts(self):
        return [*self.cardinality.bias_parts(), (self.set_bias, slice(None))]

    def bias_of(self, Y):
        return self.cardinality.bias_of(Y) + self.listed.find(Y, self.set_bias, elsewhere=0.0).to(torch.float64)

    def mode(self, scores):
        """The most probable sets; the smaller set wins ties."""
        if torch.compiler.is_exporting():
            raise ValueError(
                "The most probable set of an open space is found by a search, which can't be exported. Export the "
                "logits and decide after them."
            )
        return self.top_sets(scores, 1)[0][:, 0]

    def top_sets(self, scores, n):
        """The n best listed sets and the n best others, merged.

        The others are looked for in the best-first list of the cardinality space, twice as far each time.
        """
        scores = scores.detach().to(torch.float64)
        log_weights = self._log_weights_of_listed(finite(scores), self.cardinality.log_weights(scores)).detach()
        best = log_weights.sort(dim=1, descending=True, stable=True).indices[:, :n]
        listed, others = self.listed.sets[best], self._best_others(scores, n)
        sets = torch.cat((others[0], listed), 1)
        exist = torch.cat((others[1], torch.ones(listed.shape[:2], dtype=torch.bool, device=sets.device)), 1)
        return self._in_order(scores, sets, exist, n)

    def cardinality_pmf(self, scores):
        # The derivatives of the log-partition by the log-weights of sizes.
        def total(log_weights, scores):
            return self._total(finite(scores.to(torch.float64)), None, log_weights)

        with full_precision(scores):
            log_weights = self.cardinality.log_weights(scores.to(torch.float64)).expand(len(scores), -1)
            pmf = derivative(total, log_weights, scores, differentiable=self.is_differentiable(scores))
        return torch.nn.functional.pad(pmf, (0, self.n_labels - self.max_labels)).to(working_dtype(scores))

    def _log_partition(self, scores, known):
        exact = scores.to(torch.float64).masked_fill(scores == log_zero(scores), LOG_ZERO[torch.float64])
        total = self._total(exact, known, self.cardinality.log_weights(exact))
        return total.clamp(min=log_zero(scores)).to(scores.dtype)

    def _total(self, scores, known, log_weights):
        """Logarithm of the sum over sets (n_rows,), in float64.

        log_weights are those of the sizes, (n_sizes,) or (n_rows, n_sizes).
        """
        if self._has_low_bias():
            return self._by_tree(scores, known, log_weights)
        of_sizes = self._of_sizes(scores, known, log_weights).clamp(min=log_zero(scores))
        if self.set_bias is None:
            return of_sizes
        log_probs = self.listed.products(scores) + log_weights[..., self.listed.sizes] - of_sizes[:, None]
        is_impossible = (of_sizes < log_zero(scores) / 2)[:, None]
        if known is not None:
            is_impossible = is_impossible | ~self.listed.agree(known)
        log_probs = log_probs.masked_fill(is_impossible, log_zero(scores))
        biased = log_probs + self.set_bias.to(torch.float64)
        top = biased.detach().amax(1, keepdim=True).clamp(min=0.0)  # the largest term becomes exp(0)
        terms = torch.exp(biased - top) - torch.exp(log_probs - top)
        return of_sizes + top[:, 0] + torch.log(torch.exp(-top[:, 0]) + terms.sum(1))

    def _by_tree(self, scores, known, log_weights):
        """The same from positive terms; rows in blocks, whose terms are computed again for the gradient, not kept."""
        n_rows, step = len(scores), max(1, MOST_TERMS // self.tree.n_terms)
        if n_rows <= step or torch.compiler.is_compiling():
            return self.tree.total(scores, known, log_weights, self.set_bias)
        log_weights = log_weights.expand(n_rows, -1)
        of_blocks = [
            checkpoint(
                self.tree.total,
                scores[rows],
                None if known is None else known[rows],
                log_weights[rows],
                self.set_bias,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for rows in (slice(start, start + step) for start in range(0, n_rows, step))
        ]
        return torch.cat(of_blocks)

    def _has_low_bias(self):
        """Whether T may cancel; it is taken to where the biases can't be looked at."""
        if self.set_bias is None:
            return False
        return torch.compiler.is_compiling() or bool(self.set_bias.min() < LOWEST_BIAS)

    def _of_sizes(self, scores, known, log_weights):
        """The log-partition of the cardinality space."""
        if known is None:
            return operators.log_loss(scores, None, log_weights, min_labels=0)
        _, is_present, free, sizes_of_free = given(scores, known, log_weights)
        of_free = operators.log_loss(free, None, sizes_of_free, min_labels=0)
        return torch.where(is_present, scores, 0.0).sum(1) + of_free

    def _log_weights_of_listed(self, scores, log_weights):
        own = 0.0 if self.set_bias is None else self.set_bias.to(torch.float64)
        return self.listed.products(scores) + log_weights[self.listed.sizes] + own

    def _best_others(self, scores, n):
        """The n best sets (n_rows, n, n_labels) that are not listed, and whether there are as many."""
        log_weights, most = self.cardinality.log_weights(scores).detach(), n + len(self.listed.sets)
        n_looked = min(2 * n, most)
        while True:
            sets, exist = ranking.top_sets(scores, log_weights, n_looked)
            exist &= self.listed.find(sets.flatten(0, 1), None).reshape(exist.shape) == -torch.inf
            if n_looked == most or (exist.sum(1) >= n).all():
                order = exist.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :n]
                return sets.gather(1, order[:, :, None].expand(-1, -1, self.n_labels)), exist.gather(1, order)
            n_looked = min(2 * n_looked, most)

    def _in_order(self, scores, sets, exist, n):
        """The n sets of highest log-weight, of equal ones the smaller first, and whether they exist."""
        n_sets = sets.shape[1]
        log_weights = self.log_weight(scores.repeat_interleave(n_sets, 0), sets.flatten(0, 1)).detach()
        log_weights = torch.where(exist, log_weights.reshape(-1, n_sets), -torch.inf)
        by_size = sets.sum(2).sort(dim=1, stable=True).indices
        order = by_size.gather(1, log_weights.gather(1, by_size).sort(dim=1, descending=True, stable=True).indices)[
            :, :n
        ]
        sets = sets.gather(1, order[:, :, None].expand(-1, -1, self.n_labels))
        exist = log_weights.gather(1, order) > -torch.inf
        missing = n - order.shape[1]
        sets = torch.nn.functional.pad(sets * exist[:, :, None], (0, 0, 0, missing))
        return sets, torch.nn.functional.pad(exist, (0, missing))


class _Tree(torch.nn.Module):
    """The binary tree of listed sets: a node of depth d is what some of them have of the labels 0, ..., d - 1.

    Its tensors hold, depth by depth, the nodes' parents and whether they have the label, and the same for the exits:
    the children that no listed set has, and how many labels a set has that leaves there. A module only for its tensors
    to move with the space.
    """

    parents: torch.Tensor
    has_label: torch.Tensor
    exit_parents: torch.Tensor
    exit_has_label: torch.Tensor
    exit_counts: torch.Tensor
    order: torch.Tensor
    sizes: torch.Tensor

    def __init__(self, sets, max_labels):
        super().__init__()
        nodes = torch.zeros(len(sets), dtype=torch.int64)  # the node at which each set is
        counts = torch.zeros(1, dtype=torch.int64)  # labels so far, of each node
        children, exits = [], []
        for has_label in sets.T.to(torch.int64):
            codes, nodes = (2 * nodes + has_label).unique(return_inverse=True)
            missing = torch.ones(2 * len(counts), dtype=torch.bool).index_fill(0, codes, False)
            missing &= counts.repeat_interleave(2) + torch.arange(2).repeat(len(counts)) <= max_labels
            leaving = torch.nonzero(missing)[:, 0]
            children.append((codes // 2, codes % 2))
            exits.append((leaving // 2, leaving % 2, counts[leaving // 2] + leaving % 2))
            counts = counts[codes // 2] + codes % 2
        self.n_children, self.n_exits = [len(c[0]) for c in children], [len(e[0]) for e in exits]
        self.n_terms = sum(self.n_exits) + len(sets)
        names = ("parents", "has_label", "exit_parents", "exit_has_label", "exit_counts")
        tensors = dict(
            zip(names, map(torch.cat, (*zip(*children, strict=True), *zip(*exits, strict=True))), strict=True)
        )
        tensors |= {"order": nodes.argsort(), "sizes": counts}  # the set at each leaf, and its size
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor, persistent=False)

    def total(self, scores, known, log_weights, set_bias):
        """Logarithm of the sum over all sets (n_rows,), from finite scores and log-weights of sizes."""
        scores, zero = scores.T, log_zero(scores)
        without, within = torch.zeros_like(scores), scores
        if known is not None:
            within = within.masked_fill(known.T == 0, zero)
            without = without.masked_fill(known.T == 1, zero)
        of_sizes = log_weights.expand(scores.shape[1], -1).T.clamp(min=zero)
        suffixes = _suffix_sums(without, within, of_sizes)
        prefix = torch.zeros_like(scores[:1])
        terms = []
        by_depth = zip(*self._by_depth(), without, within, suffixes[1:], strict=True)
        for parents, has_label, exit_parents, exit_has_label, exit_counts, out, taken, suffix in by_depth:
            choice = torch.stack((out, taken))
            terms.append(prefix[exit_parents] + choice[exit_has_label] + suffix[exit_counts])
            prefix = prefix[parents] + choice[has_label]
        biases = set_bias.to(scores.dtype)[self.order, None]
        terms.append(prefix + of_sizes[self.sizes] + biases)
        return torch.cat(terms).logsumexp(0)

    def _by_depth(self):
        children = (self.parents.split(self.n_children), self.has_label.split(self.n_children))
        exits = (self.exit_parents, self.exit_has_label, self.exit_counts)
        return *children, *(tensor.split(self.n_exits) for tensor in exits)


def _suffix_sums(without, within, of_sizes):
    """Logarithms of the sums over sets of the labels d, d + 1, ..., a list over d = 0, ..., n_labels.

    Each is (n_sizes, n_rows). Entry c is for sets that have c labels before: sizes up to max_labels count, with their
    log-weights.
    """
    suffixes = [of_sizes]
    for out, taken in zip(reversed(without), reversed(within), strict=True):
        one_more = torch.nn.functional.pad(suffixes[-1][1:], (0, 0, 0, 1), value=log_zero(of_sizes))
        suffixes.append(log_add(out + suffixes[-1], taken + one_more))
    return suffixes[::-1]
