"""The sizes of label sets and their log-weights: checks at the border, shared by the loss and the distribution."""

from numbers import Integral

import torch


def check_sizes(min_labels, max_labels, n_labels=None):
    """Raise unless 0 <= min_labels <= max_labels, and max_labels <= n_labels where that is given."""
    sizes = (min_labels, max_labels) if n_labels is None else (min_labels, max_labels, n_labels)
    are_integers = all(isinstance(size, Integral) and not isinstance(size, bool) for size in sizes)
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


def log_weights(scores, min_labels, max_labels, size_bias):
    """Log-weights (max_labels + 1,) of the sets of each size: size_bias or 0, -inf below min_labels."""
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    if size_bias is None:
        bias = torch.zeros(max_labels + 1, dtype=dtype, device=scores.device)
    else:
        bias = size_bias[: max_labels + 1].to(device=scores.device, dtype=dtype)
    below = torch.arange(max_labels + 1, device=scores.device) < min_labels
    return bias.masked_fill(below, -torch.inf)


def check_size_bias(size_bias, max_labels, n_labels=None):
    """Raise unless size_bias has an entry for each of the sizes 0, ..., max_labels (or n_labels)."""
    allowed = {max_labels + 1} if n_labels is None else {max_labels + 1, n_labels + 1}
    if size_bias.dim() != 1 or len(size_bias) not in allowed:
        raise ValueError(
            f"size_bias must have max_labels + 1 = {max_labels + 1} entries, one for each size 0..{max_labels}; got "
            f"shape {tuple(size_bias.shape)}."
        )
