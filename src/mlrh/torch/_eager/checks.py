"""Checks at the border: sizes, scores, sets, and the targets of a batch, each refused with one sentence."""

from numbers import Integral

import torch

from mlrh.torch._eager import compiled


def check_sizes(min_labels, max_labels, n_labels=None):
    """Raise unless 0 <= min_labels <= max_labels, and max_labels <= n_labels where that is given."""
    is_plain = type(min_labels) is int and type(max_labels) is int  # so it is nearly always, and known at once
    if is_plain and 0 <= min_labels <= max_labels and (n_labels is None or max_labels <= n_labels):
        return
    sizes = (min_labels, max_labels) if n_labels is None else (min_labels, max_labels, n_labels)
    are_integers = all(isinstance(size, Integral | torch.SymInt) and not isinstance(size, bool) for size in sizes)
    if not are_integers or not 0 <= min_labels <= max_labels or (n_labels is not None and max_labels > n_labels):
        limit = "" if n_labels is None else " <= n_labels"
        got = "" if n_labels is None else f", n_labels={n_labels!r}"
        raise ValueError(
            f"Sizes must be integers with 0 <= min_labels <= max_labels{limit}; got min_labels={min_labels!r}, "
            f"max_labels={max_labels!r}{got}."
        )


def check_scores(scores, name):
    """Raise unless scores are a floating tensor (n_rows, n_labels) with a label at least."""
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or not scores.is_floating_point():
        got = f"{scores.dtype} of shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores)
        raise ValueError(f"{name} must be a floating point tensor of shape (n_rows, n_labels); got {got}.")
    if scores.shape[1] == 0:
        raise ValueError(f"{name} must have a column per label; got shape {tuple(scores.shape)}.")


def check_logits(logits):
    """Raise unless logits are a floating tensor (..., n_labels) with a label at least."""
    if not isinstance(logits, torch.Tensor) or logits.dim() == 0 or not logits.is_floating_point():
        got = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits)
        raise ValueError(f"logits must be a floating point tensor of shape (..., n_labels); got {got}.")
    if logits.shape[-1] == 0:
        raise ValueError(f"logits must have a column per label; got shape {tuple(logits.shape)}.")


def check_sets(Y, name):
    """Raise unless Y (n_rows, n_labels) holds nothing but 0 and 1."""
    is_binary = (Y == 0) | (Y == 1)
    if not is_binary.all():
        row, column = first_of(~is_binary)
        raise ValueError(
            f"{name} must contain only 0 and 1, 1 where the row has the label; found {Y[row, column].item():g} in row "
            f"{row}, column {column}."
        )


def first_of(is_bad):
    """Row and column of the first entry that is true."""
    return divmod(int(is_bad.to(torch.int8).argmax()), is_bad.shape[1])


def check_size_bias(size_bias, max_labels, n_labels=None):
    """Raise unless size_bias is a tensor with an entry for each of the sizes 0, ..., max_labels (or n_labels)."""
    if not isinstance(size_bias, torch.Tensor):
        raise ValueError(
            f"size_bias must be a tensor of max_labels + 1 = {max_labels + 1} entries; got {type(size_bias).__name__}. "
            "Make it one with torch.as_tensor; to have it learned, use MLRHLoss(size_bias=True)."
        )
    allowed = (max_labels + 1,) if n_labels is None else (max_labels + 1, n_labels + 1)
    if size_bias.dim() != 1 or len(size_bias) not in allowed:
        raise ValueError(
            f"size_bias must have max_labels + 1 = {max_labels + 1} entries, one for each size 0..{max_labels}; got "
            f"shape {tuple(size_bias.shape)}."
        )


def sizes_of(Y, padding_index):
    """Sizes (n_rows,) of the label sets of Y, as a list: 0, 1 and NaN, or label indices if there is a padding_index."""
    try:
        Y = torch.as_tensor(Y)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"Y must be a tensor, an array or lists of numbers; got {type(Y).__name__}. Make it an array, such as with "
            "toarray() of a sparse matrix or to_numpy() of a DataFrame."
        ) from None
    if Y.dim() < 2 or Y.numel() == 0:
        raise ValueError(f"Y must have shape (n_rows, n_labels) with a row at least; got {tuple(Y.shape)}.")
    Y = Y.reshape(-1, Y.shape[-1])
    if padding_index is None:
        look(Y, None, strict=True)
    else:
        check_indices(Y, int(Y.max()) + 1, padding_index)
    return _counts(Y, padding_index).tolist()


def look(dense, unobserved, *, strict):
    """Whether dense targets (n_rows, n_labels) hold NaN, for labels that were not observed; raise for other numbers.

    Reads the numbers. With unobserved=False NaN is let pass, and makes the loss NaN, unless strict.
    """
    if _is_binary(dense):
        return bool(unobserved) and dense.is_floating_point()
    allowed = (dense == 0) | (dense == 1)
    if unobserved is not False or not strict:
        allowed |= dense != dense
    if not allowed.all():
        _raise_for_dense(dense, *first_of(~allowed))
    return unobserved is not False


def nan_where_wrong(losses, dense):
    """Losses (n_rows,), NaN for a row of dense targets with other numbers than 0 and 1; nothing is waited for."""
    return losses.masked_fill(~((dense == 0) | (dense == 1)).all(1), torch.nan)


def can_look(targets):
    """Whether the numbers can be read without waiting for a GPU or breaking a graph."""
    return targets.device.type == "cpu" and not torch.compiler.is_compiling()


def check_indices(targets, n_labels, padding_index):
    """Raise unless every row (n_rows, n) holds distinct labels and otherwise padding_index."""
    is_label = targets != padding_index
    ordered = torch.where(is_label, targets, n_labels + torch.arange(targets.shape[1], device=targets.device))
    ordered = ordered.sort(1).values
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    bad = (is_label & ((targets < 0) | (targets >= n_labels))).any(1) | repeated
    if bad.any():
        row = int(bad.to(torch.int8).argmax())
        raise ValueError(
            f"Index targets must be distinct labels from 0 to {n_labels - 1}, filled up with {padding_index}; row "
            f"{row} is {targets[row].tolist()}."
        )


def check_losses(targets, losses, limits, size_bias, padding_index):
    """Raise for the first row whose target is no set of the label space: its loss is infinite."""
    if losses.isposinf().any():
        raise ValueError(why_infinite(targets, losses, limits, size_bias, padding_index))


def why_infinite(targets, losses, limits, size_bias, padding_index):
    """One sentence on the first row with an infinite loss, and one on what to do."""
    row, count, n_unknown = _first_infinite(targets, losses, padding_index)
    least, most = max(count, limits[0]), min(count + n_unknown, limits[1])  # sizes of sets that agree with the row
    unknown = f" and {n_unknown} unobserved ones" if n_unknown else ""
    if least > most:
        return (
            f"Every target must have {limits[0]} to {limits[1]} labels, min_labels to max_labels; row {row} has "
            f"{count}{unknown}. Change these sizes or leave the row out."
        )
    if size_bias is not None and size_bias[least : most + 1].isneginf().all():
        return (
            f"Every target must have a size whose size_bias is finite; row {row} has {count} labels{unknown}, of which "
            "size_bias is -inf. Change it or leave the row out."
        )
    return (
        f"Every target must be possible by its logits; row {row} has {count} labels{unknown}, and a logit of -inf "
        "forbids every such set. Change the logits or leave the row out."
    )


def check_losses_of_space(targets, losses, space, padding_index):
    """Raise for the first row whose target is no set of a label space: its loss is infinite."""
    if losses.isposinf().any():
        raise ValueError(why_not_in_space(targets, losses, space, padding_index))


def why_not_in_space(targets, losses, space, padding_index):
    """One sentence on the first row with an infinite loss in a label space, and one on what to do."""
    row, count, n_unknown = _first_infinite(targets, losses, padding_index)
    unknown = f" and {n_unknown} unobserved ones" if n_unknown else ""
    return (
        f"Every target must be, or agree with, a set of the label space, {space!r}; row {row} is none, with "
        f"{count} labels{unknown}. Change the label space or leave the row out."
    )


def _first_infinite(targets, losses, padding_index):
    """The first row with an infinite loss, how many labels its target has, and how many are not known."""
    row = int(losses.isposinf().to(torch.int8).argmax())
    target = targets[row : row + 1]
    return row, int(_counts(target, padding_index)), int((target != target).sum())


def _counts(targets, padding_index):
    """Numbers of labels (n_rows,) that are present in dense or index targets."""
    return (targets == 1 if padding_index is None else targets != padding_index).sum(1)


def _is_binary(dense):
    """Whether all numbers are 0 or 1: they lie between, and their sum is that of their squares.

    This takes a quarter of the time of comparing each with both. A few numbers so near to 0 or 1 that rounding hides
    them in the sum, such as 1e-9, pass for 0 or 1.
    """
    if dense.dtype == torch.bool or dense.numel() == 0:
        return True
    if compiled.can_read(dense):
        return compiled.are_binary(dense)
    values = dense.float() if dense.dtype in (torch.float16, torch.bfloat16) else dense
    low, high = torch.aminmax(values)
    if not (low >= 0 and high <= 1):
        return False
    flat = values.reshape(-1)
    return not dense.is_floating_point() or bool(torch.dot(flat, flat) == flat.sum())


def _raise_for_dense(dense, row, column):
    value = dense[row, column].item()
    if value != value:
        advice = "Say unobserved=True if labels may be unobserved."
    elif dense.is_floating_point():
        advice = "Label smoothing has no meaning for the likelihood of a set: give the labels themselves."
    else:
        advice = "Say padding_index=-1 if these are label indices; integers can't hold NaN."
    raise ValueError(
        f"Dense targets must be 0, 1 or, where unobserved, NaN; found {value:g} in row {row}, column {column}. {advice}"
    )
