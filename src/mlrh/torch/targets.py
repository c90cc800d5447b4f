"""Checks of the targets of a batch: what they are, whether all labels are observed, and which row is wrong."""

import torch

from mlrh.torch.sizes import first_of


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


def of_free_labels(scores, dense, log_weights):
    """What dense targets leave open: which labels are free, which present, scores and log-weights for the free ones.

    The sets that agree with a row of dense (n_rows, n_labels) are those of its free labels, NaN there, beside the
    present ones. Log-weights (n_rows, n_sizes) are for the number of free labels in a set; scores of others are -inf.
    """
    is_free, is_present = dense.isnan(), dense == 1
    n_sizes = len(log_weights)
    n_present = is_present.sum(1).clamp(max=n_sizes)
    shifted = torch.arange(n_sizes, device=log_weights.device) + n_present[:, None]
    sizes_of_free = torch.nn.functional.pad(log_weights, (0, n_sizes), value=-torch.inf)[shifted]
    return is_free, is_present, scores.masked_fill(~is_free, -torch.inf), sizes_of_free


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


def check_losses(targets, losses, limits, padding_index):
    """Raise for the first row whose target is no set of the label space: its loss is infinite."""
    if not losses.isposinf().any():
        return
    row = int(losses.isposinf().to(torch.int8).argmax())
    count = int((targets[row] == 1 if padding_index is None else targets[row] != padding_index).sum())
    n_unknown = int((targets[row] != targets[row]).sum())
    if limits[0] <= count <= limits[1] and not n_unknown:
        raise ValueError(
            f"Every target must have a size whose size_bias is finite; row {row} has {count} labels, of which "
            "size_bias is -inf. Change it or leave the row out."
        )
    unknown = f" and {n_unknown} unobserved ones" if n_unknown else ""
    raise ValueError(
        f"Every target must have {limits[0]} to {limits[1]} labels, min_labels to max_labels; row {row} has "
        f"{count}{unknown}. Change these sizes or leave the row out."
    )


def _is_binary(dense):
    """Whether all numbers are surely 0 or 1: they lie between, and their sum is that of their squares.

    This takes a quarter of the time of comparing each with both.
    """
    if dense.dtype == torch.bool or dense.numel() == 0:
        return True
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
