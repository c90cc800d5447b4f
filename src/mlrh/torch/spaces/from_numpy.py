"""Torch spaces from those of `mlrh.spaces`: the same space where torch has it, else the space itself on the CPU.

Nothing is imported from there: a space is known by the name of its class, or used by its methods.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from mlrh.torch._eager.dispatch import working_dtype
from mlrh.torch.distribution import CardinalitySpace, LabelSpace, register_bias
from mlrh.torch.spaces.groups import GroupSpace
from mlrh.torch.spaces.hierarchy import HierarchySpace
from mlrh.torch.spaces.observed import ObservedSpace
from mlrh.torch.spaces.open import OpenSpace

UNKNOWN = -1.0  # how the NumPy side writes a label that is not known


def label_space(space):
    """The torch space of a label space: itself if it is one, the same in torch if it is one of `mlrh.spaces`.

    Any other `mlrh.spaces.LabelSpace`, such as one that you wrote, is asked itself, on the CPU and in float64; on a GPU
    scores and answers are copied. Biases that a fit of the space would learn are Parameters.

    Examples
    --------
    >>> import mlrh.spaces, mlrh.torch
    >>> mlrh.torch.label_space(mlrh.spaces.CardinalitySpace(5, 1, 2))
    CardinalitySpace(n_labels=5, min_labels=1, max_labels=2)
    """
    if isinstance(space, LabelSpace):
        return space
    if not all(hasattr(space, name) for name in ("expectations", "given", "mode", "n_labels")):
        raise ValueError(
            "label_space must be a label space of mlrh.torch or of mlrh.spaces, with its sets given by index; got "
            f"{space!r}."
        )
    if space.known is not None:
        raise ValueError("label_space must be for all rows; got a space for which labels of some rows are known.")
    kind = type(space)
    in_torch = IN_TORCH.get(f"{kind.__module__}.{kind.__qualname__}", NumPySpace)
    return in_torch(space)


class NumPySpace(LabelSpace):
    """A space of `mlrh.spaces`, or one like it, under torch: its own answers, in float64 on the CPU.

    Derivatives are its marginals and its curvature: exact to about 1e-9 where the space leaves curvature to its base.
    """

    _outside: Any

    def __init__(self, space):
        super().__init__()
        if "_outside" not in vars(NumPySpace):
            # Outside of compiled graphs. As a decorator, it would load torch's compiler together with this module.
            NumPySpace._outside = torch.compiler.disable(NumPySpace._called)
        self.space, self.n_labels = space, space.n_labels
        self.bias: torch.Tensor | None
        register_bias(self, "bias", _kept(space, space.bias) if space.n_biases else None, space.n_biases)

    def __repr__(self):
        return f"NumPySpace({self.space!r})"

    def log_partition(self, scores, known=None):
        return self._outside(_LogPartition, scores, known).to(working_dtype(scores))

    def marginals(self, scores, known=None):
        ones = scores.new_ones(len(scores), dtype=torch.float64)
        return self._outside(_Gradient, scores, known, ones)[0].to(scores.dtype)

    def bias_of(self, Y):
        # Given a whole set, the partition has a single term; at scores of 0 its logarithm is the bias of the set.
        return self.log_partition(torch.zeros(Y.shape, dtype=torch.float64, device=Y.device), Y)

    def cardinality_pmf(self, scores):
        """P(|y| = j); without derivatives."""
        return _tensor(self._ask(scores).cardinality_pmf(), scores).to(working_dtype(scores))

    def mode(self, scores):
        return _tensor(self._ask(scores).mode(), scores)

    def top_sets(self, scores, n):
        sets, log_probs = self._ask(scores).top_sets(n)
        return _tensor(sets, scores), _tensor(log_probs, scores) > -torch.inf

    def sample(self, scores, n, generator):
        seed = torch.randint(2**31, (), generator=generator, device=scores.device)
        return _tensor(self._ask(scores).sample(n, random_state=int(seed)), scores)

    def best_f1(self, scores):
        return _tensor(self._ask(scores).best("f1", (0, self.n_labels)), scores)

    def _ask(self, scores):
        """The distribution of the NumPy side."""
        return self._biased(self.bias).distribution(_array(scores))

    def _biased(self, bias):
        return self.space if bias is None else self.space.with_bias(_array(bias))

    def _called(self, function, scores, known, *others):
        known = None if known is None else _array(known.nan_to_num(UNKNOWN)).astype("int8")

        def asked(bias, scores):
            """The space with these biases and with what is known, and scores that it has checked."""
            distribution = self._biased(bias).distribution(_array(scores))
            return distribution.space if known is None else distribution.space.given(known), distribution.scores

        return function.apply(scores.to(torch.float64), self.bias, *others, asked)


class _LogPartition(torch.autograd.Function):
    """The log-partition of a space of the NumPy side: (scores, bias or None, asked) -> (n_rows,)."""

    @staticmethod
    def forward(ctx, scores, bias, asked):
        ctx.asked = asked
        ctx.save_for_backward(scores, bias)
        space, array = asked(bias, scores)
        return _tensor(space.log_partition(array), scores)

    @staticmethod
    def backward(ctx, gradient):
        scores, bias = ctx.saved_tensors
        by_scores, by_bias = _Gradient.apply(scores, bias, gradient, ctx.asked)
        return by_scores, None if bias is None else by_bias.to(bias.dtype), None


class _Gradient(torch.autograd.Function):
    """Derivatives of weights @ log-partition by scores and biases; those of them by the curvature of the space."""

    @staticmethod
    def forward(ctx, scores, bias, weights, asked):
        ctx.asked = asked
        ctx.save_for_backward(scores, bias, weights)
        space, array = asked(bias, scores)
        marginals, by_bias = _expectations(space, array, _array(weights))
        return weights[:, None] * _tensor(marginals, scores), _tensor(by_bias, scores)

    @staticmethod
    @once_differentiable
    def backward(ctx, direction, bias_direction):
        scores, bias, weights = ctx.saved_tensors
        space, array = ctx.asked(bias, scores)
        along, along_bias = _array(direction), _array(bias_direction)
        d_marginals, by_bias = space.curvature(array, along, along_bias, _array(weights))
        by_weights = None
        if ctx.needs_input_grad[2]:
            by_weights = (direction * _tensor(_expectations(space, array, _array(weights))[0], scores)).sum(1)
            if along_bias.any():
                by_weights += _tensor(_means(ctx.asked, bias, scores, along_bias), scores)
        by_bias = None if bias is None else _tensor(by_bias, scores).to(bias.dtype)
        return weights[:, None] * _tensor(d_marginals, scores), by_bias, by_weights, None


def _expectations(space, scores, weights):
    """Marginals, and weights @ E[indicators of what carries each bias]; 0 in a row that agrees with no set."""
    log_partition, marginals, by_bias = space.expectations(scores, weights)
    marginals[log_partition == -float("inf")] = 0.0
    return marginals, by_bias


def _means(asked, bias, scores, direction):
    """E[direction . indicators] of each row, as the derivative of its log-partition along the direction.

    By a central difference whose errors, of the formula and of rounding, are about 1e-10.
    """
    step = 1e-5 / abs(direction).max()
    sides = []
    for sign in (step, -step):
        space, array = asked(bias + sign * torch.as_tensor(direction).to(bias), scores)
        sides.append(space.log_partition(array))
    return (sides[0] - sides[1]) / (2 * step)


def _kept(space, bias):
    """A bias of the NumPy side: a Parameter if a fit would learn it, else fixed numbers."""
    bias = torch.tensor(bias, dtype=torch.float64)
    return torch.nn.Parameter(bias) if space.learns_bias else bias


def _array(tensor):
    """A tensor in float64 as an array of NumPy."""
    return tensor.detach().to("cpu", torch.float64).numpy()


def _tensor(array, like):
    """An array of NumPy on the device of a tensor."""
    return torch.from_numpy(array).to(like.device)


def _cardinality(space):
    size_bias = _kept(space, space.size_bias) if space.learns_bias or space.size_bias.any() else None
    return CardinalitySpace(space.n_labels, space.min_labels, space.max_labels, size_bias)


def _independent(space):
    return CardinalitySpace(space.n_labels, 0, space.n_labels)


def _observed(space):
    return ObservedSpace(space.sets, _kept(space, space.set_bias))


def _open(space):
    sizes = (space.n_labels, space.min_labels, space.max_labels)
    return OpenSpace(*sizes, space.sets, _kept(space, space.set_bias), _kept(space, space.size_bias))


def _groups(space):
    return GroupSpace(space.groups, space.n_labels, _kept(space, space.bias))


def _hierarchy(space):
    return HierarchySpace(space.parents, space.min_leaves, space.max_leaves)


IN_TORCH = {
    "mlrh.spaces.cardinality.CardinalitySpace": _cardinality,
    "mlrh.spaces.independent.IndependentLabels": _independent,
    "mlrh.spaces.observed.ObservedSpace": _observed,
    "mlrh.spaces.open.OpenSpace": _open,
    "mlrh.spaces.groups.GroupSpace": _groups,
    "mlrh.spaces.hierarchy.HierarchySpace": _hierarchy,
}
