"""The loss for training: -log P(label set) of logits, in place of BCEWithLogitsLoss."""

import math
import warnings
from numbers import Integral

import torch

from mlrh.torch._eager import checks, operators
from mlrh.torch._eager.checks import check_logits, check_scores, check_size_bias, check_sizes
from mlrh.torch._eager.watch import Watch
from mlrh.torch.distribution import CardinalitySpace
from mlrh.torch.spaces import label_space as as_torch_space

REDUCTIONS = ("mean", "none", "sum")
INDEX_TYPES = (torch.int32, torch.int64)


class MLRHLoss(torch.nn.Module):
    """-log P(label set) of logits (..., K): one exact joint model of all sets of min_labels to max_labels labels.

    P(y) = exp(sum_k y_k logits_k + size_bias[|y|]) / Z. With min_labels=0 and max_labels=K this is BCEWithLogitsLoss
    summed over labels, with both 1 it is CrossEntropyLoss; in between, the labels of a row compete. Costs
    O(K * max_labels) per row. Logits may have any leading dimensions, as for BCEWithLogitsLoss: each place in them is a
    row, so that (B, T, K) has B * T of them. Below, B stands for these dimensions.

    The mean is over the B rows, not over the B * K entries as in BCEWithLogitsLoss, so losses and gradients are larger:
    at the start of training the norm of the gradient by the logits is 8 times as large for K=10 and max_labels=3, 102
    times for K=1024 and max_labels=4. Divide a learning rate of SGD that was tuned for BCE by about that (Adam and the
    like don't see the scale).

    Parameters
    ----------
    max_labels : int
        Largest size of a label set, for example the largest in training (`from_targets`). At most K. Left out with a
        label_space.
    label_space : LabelSpace of mlrh.torch or of mlrh.spaces, optional
        Which sets are possible, in place of max_labels, min_labels and size_bias. It brings its biases with it: those
        that are Parameters are learned with the loss. See `mlrh.torch.label_space`.
    min_labels : int, default=1
        Smallest size of a label set; 0 if a row may have no label.
    size_bias : tensor or Parameter of shape (max_labels + 1,), or True, optional
        Added to the score of a set of j labels; entries below min_labels don't matter. True makes a Parameter of zeros,
        to be learned with the network: pass `loss.parameters()` to the optimizer too. There is no ridge on it, as
        MLRHClassifier has: add 0.05 * loss.size_bias.square().sum() to the summed loss for that.
    weight : tensor of shape (B,), optional
        Weight of each row; `forward` takes one for its batch, too. Rows are weighted as a whole: there is no weight per
        label (see `pos_weight`).
    reduction : {"mean", "sum", "none"}, default="mean"
        Over rows; "mean" divides by their number, also with weights.
    padding_index : int, optional
        Targets are label indices (B, P), filled up with this number, for example -1. By default targets are dense.
    unobserved : bool, optional
        Whether dense targets may hold NaN, for labels that nobody looked at. By default they may, without being
        announced; on a GPU nothing is waited for. False promises that there are none, which saves some time and memory
        on a GPU and, under torch.compile on the CPU or with a size_bias, one of two log-partitions; NaN then make the
        loss NaN.
    validate : bool, default=False
        Raise where a target is outside the label space, and name the row, instead of an infinite loss; and check the
        numbers also on a GPU. Waits for the GPU; not for use under torch.compile.
    pos_weight : None
        Not offered, see Notes.

    Notes
    -----
    `pos_weight` of BCEWithLogitsLoss multiplies the terms of one label. The likelihood of a whole set has no such
    terms. What it is used for has other means here: weights of rows, or sampling of rows, against rare labels;
    `mlrh.torch.decide` with costs of your own, a function f(tp, fp, fn), where missing a label costs more than a wrong
    one; `size_bias` for the number of labels.

    A target outside the label space has an infinite loss and a finite gradient. The first one is explained by a warning
    that names the row and its size; later ones are not. On the CPU that is at once. On a GPU nothing is waited for: the
    loss finds out up to 64 steps later that one was infinite (one step later at the start), and looks at each loss from
    then on, until an infinite one comes again. Under torch.compile and in a CUDA graph nobody looks.

    Examples
    --------
    >>> import torch
    >>> from mlrh.torch import MLRHLoss
    >>> logits = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    >>> loss = MLRHLoss(max_labels=2)(logits, torch.tensor([[1.0, 0.0, 0.0]]))
    >>> loss.backward()
    >>> logits.grad  # marginals - targets
    tensor([[-0.0903,  0.4553,  0.1796]])
    """

    def __init__(
        self,
        max_labels=None,
        *,
        label_space=None,
        min_labels=1,
        size_bias=None,
        weight=None,
        reduction="mean",
        padding_index=None,
        unobserved=None,
        validate=False,
        pos_weight=None,
    ):
        super().__init__()
        self.label_space = None
        if label_space is not None:
            _refuse_sizes(max_labels, min_labels, size_bias)
            self.label_space, min_labels, max_labels = as_torch_space(label_space), 0, label_space.n_labels
        _check_options(min_labels, max_labels, reduction, padding_index, unobserved, pos_weight)
        self.min_labels, self.max_labels = int(min_labels), int(max_labels)
        self.reduction, self.padding_index = reduction, None if padding_index is None else int(padding_index)
        self.unobserved, self.validate = unobserved, validate
        self.size_bias: torch.Tensor | None
        self.weight: torch.Tensor | None
        _register(self, "size_bias", _initial_bias(size_bias, self.max_labels))
        _register(self, "weight", weight)
        self._watch = Watch()

    @classmethod
    def from_targets(cls, Y, **options):
        """The loss for label sets of the sizes that training has, the default of MLRHClassifier.

        Parameters
        ----------
        Y : tensor, array or lists (n_rows, n_labels) of 0, 1 and NaN, or with a padding_index label indices (n_rows, n)
            The targets of all training rows. Labels that are NaN, not known, count as absent.
        **options
            Of MLRHLoss. A min_labels or max_labels goes before that of Y.

        Examples
        --------
        >>> from mlrh.torch import MLRHLoss
        >>> MLRHLoss.from_targets([[1, 0, 1], [0, 1, 0]], size_bias=True)
        MLRHLoss(max_labels=2, min_labels=1, size_bias=Parameter of shape (3,), reduction='mean')
        """
        sizes = checks.sizes_of(Y, options.get("padding_index"))
        return cls(**{"min_labels": min(sizes), "max_labels": max(sizes)} | options)

    def forward(self, logits, targets, weight=None):
        """The loss of logits (..., K): a number, or (...,) with reduction="none"; see `mlrh_loss`."""
        weight = self.weight if weight is None else weight
        loss = self._loss(logits, targets, weight, self.reduction)
        if operators.is_eager(loss) and self._watch.sees_infinite(loss):
            self._explain(logits, targets, weight)
        return loss

    def _loss(self, logits, targets, weight, reduction):
        options = {
            "weight": weight,
            "reduction": reduction,
            "padding_index": self.padding_index,
            "unobserved": self.unobserved,
            "validate": self.validate,
        }
        if self.label_space is not None:
            return _loss_of_space(logits, targets, space=self.label_space, **options)
        sizes = {"max_labels": self.max_labels, "min_labels": self.min_labels, "size_bias": self.size_bias}
        return mlrh_loss(logits, targets, **sizes, **options)

    def _explain(self, logits, targets, weight):
        """Warn of the first row with an infinite loss that counts; called by `forward` alone, for the line it names."""
        counts = None if weight is None else weight != 0
        with torch.no_grad():
            losses = self._loss(logits, targets, counts, "none").reshape(-1)
        if not losses.isposinf().any():
            return  # a weight, or a sum of all losses, beyond the range of floating point
        targets = targets.reshape(len(losses), targets.shape[-1])
        if self.label_space is not None:
            why = checks.why_not_in_space(targets, losses, self.label_space, self.padding_index)
        else:
            limits = self.min_labels, self.max_labels
            why = checks.why_infinite(targets, losses, limits, self.size_bias, self.padding_index)
        warnings.warn(
            f"The loss is infinite. {why} Further infinite losses are not told; validate=True raises.",
            stacklevel=5,  # the line that called the loss, past this method, forward, and two of torch.nn.Module
        )

    def warm_up(self, n_labels, dtype=torch.float32, *, device=None, targets=None, n_rows=256):
        """Compile the kernels of a training step ahead, some seconds the first time on a machine; says nothing.

        On a GPU these are Triton's, on the CPU numba's. Where this loss has none (`label_space`, sets of more than 32
        labels, Triton or numba not installed), nothing is to be compiled.

        Parameters
        ----------
        n_labels : int
            Columns of the logits.
        dtype : torch.dtype, default=torch.float32
            Type of the logits.
        device : torch.device or str, optional
            Where the logits will be; by default on the GPU, or on the CPU where there is none.
        targets : torch.dtype, optional
            Type of the targets: by default that of the logits if dense, int64 if label indices.
        n_rows : int, default=256
            Rows of a batch. All batches up to some thousand rows have the same kernels, larger ones others.
        """
        is_dense = self.padding_index is None
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type not in ("cuda", "cpu"):
            raise ValueError(f"There are kernels for 'cuda' and 'cpu'; got device={str(device)!r}.")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"torch finds no GPU for device={str(device)!r}; leave it out to compile for the CPU.")
        for name, number in (("n_labels", n_labels), ("n_rows", n_rows)):
            if not isinstance(number, Integral) or number < 1:
                raise ValueError(f"{name} must be a positive integer; got {number!r}.")
        types = {"logits": dtype, "targets": targets or (dtype if is_dense else torch.int64)}
        for name, given in types.items():
            if not isinstance(given, torch.dtype):
                raise ValueError(f"The type of {name} must be a torch.dtype such as torch.float32; got {given!r}.")
        if self.label_space is not None:
            return
        check_sizes(self.min_labels, self.max_labels, n_labels)
        shapes = {"logits": (n_rows, n_labels), "targets": (n_rows, n_labels if is_dense else self.max_labels)}
        logits, sets = (torch.empty(shapes[name], dtype=types[name], device="meta") for name in shapes)
        _check_tensors(logits, sets, None, self.padding_index)
        at_once = self.size_bias is None and self.weight is None and not self.validate
        operators.warm_up(
            logits,
            sets,
            operators.log_weights(logits, self.min_labels, self.max_labels, None),
            min_labels=self.min_labels,
            are_indices=not is_dense,
            partial=is_dense and self.unobserved is not False and sets.is_floating_point(),
            reduction=self.reduction if at_once else "none",
            device=device,
        )

    def distribution(self, logits):
        """LabelSetDistribution of logits (B, K): the model that this loss trains, with its sizes and its size_bias."""
        if self.label_space is not None:
            return self.label_space.distribution(logits)
        check_scores(logits, "logits")
        space = CardinalitySpace(logits.shape[1], self.min_labels, self.max_labels, self.size_bias)
        return space.distribution(logits)

    def extra_repr(self):
        """Sizes and reduction, and what differs from its default; a label space follows as a module of the loss."""
        shown: dict[str, object] = {"max_labels": self.max_labels, "min_labels": self.min_labels}
        if self.label_space is not None:
            learned = [name for name, _ in self.label_space.named_parameters()]
            shown = {"learned": learned} if learned else {}
        for name in ("size_bias", "weight"):
            if (tensor := getattr(self, name)) is not None:
                shown[name] = f"{type(tensor).__name__} of shape {tuple(tensor.shape)}"
        shown["reduction"] = repr(self.reduction)
        for name, default in (("padding_index", None), ("unobserved", None), ("validate", False)):
            if getattr(self, name) is not default:
                shown[name] = getattr(self, name)
        return ", ".join(f"{name}={value}" for name, value in shown.items())


def mlrh_loss(
    logits,
    targets,
    *,
    max_labels,
    min_labels=1,
    size_bias=None,
    weight=None,
    reduction="mean",
    padding_index=None,
    unobserved=None,
    validate=False,
):
    """-log P(targets) of logits (..., K): a number, or (...,) with reduction="none". Parameters as for `MLRHLoss`.

    Each place in the leading dimensions is a row; below they are (B,). Dense targets (B, K) are 1 where a label is
    present, 0 where it is absent and, in floating point, NaN where that is not known: then the loss is -log of the
    probability of all sets that agree with what is known. Index targets (B, P) list the distinct labels of each row.
    A target outside the label space has infinite loss and a finite gradient, so that one such row shows in the loss and
    doesn't spoil the network; `MLRHLoss` warns of the first.

    A logit of -inf says that the label is impossible, as in a mask: a target without it has the loss of the other
    labels alone, a target with it an infinite loss and a finite gradient. A logit of NaN or +inf makes the loss of its
    row NaN; the gradients of other rows don't change. The mean of no rows is 0, as their sum is, with gradients of 0;
    that of BCEWithLogitsLoss is NaN.

    Other numbers, such as those of label smoothing, have no meaning for the likelihood of a set. On the CPU they, and
    indices that are repeated or no labels, are refused; on a GPU and under torch.compile, where looking would mean
    waiting, they make the loss of dense targets NaN or infinite, and indices are up to you (or validate=True).

    Computed in float32 at least, whatever the type of the logits; the loss is float64 for float64, else float32.
    """
    kind = None
    if size_bias is None and weight is None and not validate:
        kind = operators.kind_of(logits, targets, max_labels, min_labels, reduction, padding_index, unobserved)
        known_call = operators.find(kind)
        if known_call is not None:  # on a GPU, from the second call of its kind on
            return known_call.loss(logits, targets)
    _check_options(min_labels, max_labels, reduction, padding_index, unobserved, None)
    _check_tensors(logits, targets, weight, padding_index)
    if logits.dim() != 2:
        options = {"max_labels": max_labels, "min_labels": min_labels, "size_bias": size_bias, "validate": validate}
        options |= {"reduction": reduction, "padding_index": padding_index, "unobserved": unobserved}
        return _by_rows(mlrh_loss, logits, targets, weight, **options)
    check_sizes(min_labels, max_labels, logits.shape[1])
    if size_bias is not None:
        check_size_bias(size_bias, max_labels, logits.shape[1])
    _check_devices(logits, targets, weight, size_bias)
    at_once = weight is None and not validate  # the operators reduce at less cost
    biased, is_dense = size_bias is not None, padding_index is None
    sets = targets if is_dense else _padded_by_minus_one(targets, logits.shape, padding_index, validate)
    losses = operators.log_loss(
        logits,
        sets,
        operators.log_weights(logits, min_labels, max_labels, size_bias),
        min_labels=min_labels,
        are_indices=not is_dense,
        biased=biased,
        partial=is_dense and _is_partial(targets, unobserved, validate, biased),
        reduction=reduction if at_once else "none",
        marked=is_dense and not validate and not checks.can_look(targets),
        kind=kind if sets is targets else None,
    )
    if at_once:
        return losses
    if validate:
        checks.check_losses(targets, losses.detach(), (min_labels, max_labels), size_bias, padding_index)
    return operators.reduced(losses if weight is None else _weighted(losses, weight), reduction)


def _by_rows(loss, logits, targets, weight, *, reduction, **options):
    """The loss, a function of (B, K) logits, of tensors with other leading dimensions than (B,)."""
    leading = logits.shape[:-1]
    n_rows = math.prod(leading)
    rows, sets = (tensor.reshape(n_rows, tensor.shape[-1]) for tensor in (logits, targets))
    weight = weight.reshape(n_rows) if weight is not None and weight.dim() else weight
    losses = loss(rows, sets, weight=weight, reduction=reduction, **options)
    return losses.reshape(leading) if reduction == "none" else losses


def _loss_of_space(logits, targets, *, space, weight, reduction, padding_index, unobserved, validate):
    """-log P(targets) in a label space, as `mlrh_loss` has it for sizes."""
    _check_tensors(logits, targets, weight, padding_index)
    if logits.dim() != 2:
        options = {"space": space, "padding_index": padding_index, "unobserved": unobserved, "validate": validate}
        return _by_rows(_loss_of_space, logits, targets, weight, reduction=reduction, **options)
    if logits.shape[1] != space.n_labels:
        raise ValueError(
            f"logits must have a column for each of the {space.n_labels} labels of the label space; got shape "
            f"{tuple(logits.shape)}."
        )
    _check_devices(logits, targets, weight, next(space.parameters(), None))
    is_dense = padding_index is None
    partial = is_dense and _is_partial(targets, unobserved, validate, biased=False)
    sets = targets if is_dense else _dense(targets, logits.shape, padding_index, validate)
    losses = space.losses(logits, sets, partial=partial)
    if is_dense and not checks.can_look(targets):
        is_right = (sets == 0) | (sets == 1) | (sets.isnan() if partial else False)
        losses = losses.masked_fill(~is_right.all(1), torch.nan)
    if validate:
        checks.check_losses_of_space(targets, losses.detach(), space, padding_index)
    return operators.reduced(losses if weight is None else _weighted(losses, weight), reduction)


def _dense(targets, shape, padding_index, validate):
    """Index targets as 0 and 1, (n_rows, n_labels)."""
    if validate or checks.can_look(targets):
        checks.check_indices(targets, shape[1], padding_index)
    targets = targets.to(torch.int64)
    targets = targets.masked_fill(targets == padding_index, shape[1])
    sets = torch.zeros((shape[0], shape[1] + 1), dtype=torch.int8, device=targets.device)
    return sets.scatter(1, targets, 1)[:, :-1]


def _padded_by_minus_one(targets, shape, padding_index, validate):
    """Index targets as the operators take them; the same tensor where it is like that already."""
    if targets.dtype not in INDEX_TYPES:
        targets = targets.to(torch.int64)
    if validate or checks.can_look(targets):
        checks.check_indices(targets, shape[1], padding_index)
    if padding_index != -1:
        targets = targets.masked_fill(targets == padding_index, -1)
    if targets.shape == shape:
        targets = torch.nn.functional.pad(targets, (0, 1), value=-1)  # can't be taken for a dense target
    return targets


def _is_partial(targets, unobserved, validate, biased):
    """Whether targets have, or may have, unobserved labels; numbers are looked at where that is no further waiting."""
    if validate or checks.can_look(targets):
        return checks.look(targets, unobserved, strict=validate)
    if unobserved is False or not targets.is_floating_point():
        return False
    # The biases are looked at anyway.
    return bool(targets.isnan().any()) if biased and not torch.compiler.is_compiling() else True


def _weighted(losses, weight):
    """A row of weight 0 counts as absent, whatever its loss."""
    weight = weight.to(losses.dtype)
    return torch.where(weight == 0, 0.0, losses * weight)


def _initial_bias(size_bias, max_labels):
    if size_bias is None or size_bias is False:
        return None
    if size_bias is True:
        return torch.nn.Parameter(torch.zeros(max_labels + 1))
    size_bias = size_bias if isinstance(size_bias, torch.Tensor) else torch.as_tensor(size_bias, dtype=torch.float32)
    check_size_bias(size_bias, max_labels)
    if size_bias.requires_grad and not isinstance(size_bias, torch.nn.Parameter):
        raise ValueError(
            "size_bias of MLRHLoss must be a Parameter to be learned; got a tensor that requires a gradient. Wrap it "
            "in torch.nn.Parameter, or give it to mlrh_loss with each batch."
        )
    return size_bias


def _register(module, name, value):
    if value is None:
        setattr(module, name, None)  # found at once, where a buffer that is None is looked for in three places
    elif isinstance(value, torch.nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def _refuse_sizes(max_labels, min_labels, size_bias):
    if max_labels is not None or min_labels != 1 or size_bias is not None:
        raise ValueError(
            "max_labels, min_labels and size_bias belong to a loss without a label_space, which has its own; got "
            f"max_labels={max_labels!r}, min_labels={min_labels!r}, size_bias={size_bias!r} beside it."
        )


def _check_options(min_labels, max_labels, reduction, padding_index, unobserved, pos_weight):
    check_sizes(min_labels, max_labels)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(map(repr, REDUCTIONS))}; got {reduction!r}.")
    if padding_index is not None and (not isinstance(padding_index, Integral) or isinstance(padding_index, bool)):
        raise ValueError(
            f"padding_index must be None or an integer that is no label, such as -1; got {padding_index!r}."
        )
    if unobserved is not None and not isinstance(unobserved, bool):
        raise ValueError(f"unobserved must be None, True, or False for targets without NaN; got {unobserved!r}.")
    if pos_weight is not None:
        raise ValueError(
            "pos_weight must be None: the likelihood of a whole label set has no terms of single labels to weight. "
            "Give rows a weight, sample rare labels more often, or decide by costs with mlrh.torch.decide."
        )


def _check_tensors(logits, targets, weight, padding_index):
    check_logits(logits)
    shape = logits.shape
    for name, tensor in (("targets", targets), ("weight", weight)):
        if not isinstance(tensor, torch.Tensor) and (tensor is not None or name == "targets"):
            raise ValueError(f"{name} must be a tensor; got {type(tensor).__name__}. Make it one with torch.as_tensor.")
    if padding_index is None and targets.shape != shape:
        raise ValueError(
            f"Dense targets must have the shape of the logits, {tuple(shape)}; got {tuple(targets.shape)}. Give label "
            "indices with padding_index=-1."
        )
    if padding_index is not None:
        _check_index_targets(targets, shape, padding_index)
    if weight is not None and weight.shape not in ((), shape[:-1]):
        raise ValueError(
            f"weight must have one entry per row, shape {tuple(shape[:-1])}; got {tuple(weight.shape)}. Labels can't "
            "be weighted in a joint model of the set; see the notes of MLRHLoss."
        )


def _check_index_targets(targets, shape, padding_index):
    if targets.dim() != len(shape) or targets.shape[:-1] != shape[:-1] or _is_no_index(targets):
        wanted = ", ".join([*map(str, shape[:-1]), "n"])
        raise ValueError(
            f"Index targets must be integers of shape ({wanted}); got {targets.dtype} of shape {tuple(targets.shape)}."
        )
    if 0 <= padding_index < shape[-1]:
        raise ValueError(
            f"padding_index must be no label, which are 0 to {shape[-1] - 1}; got {padding_index}. Fill up with -1."
        )


def _check_devices(logits, targets, weight, size_bias):
    for name, tensor in (("targets", targets), ("weight", weight), ("size_bias", size_bias)):
        if tensor is not None and tensor.device != logits.device and tensor.dim():
            raise ValueError(
                f"{name} must be on the device of the logits, {logits.device}; got {tensor.device}. Move it there, a "
                "loss that holds it with loss.to(device)."
            )


def _is_no_index(targets):
    return targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool
