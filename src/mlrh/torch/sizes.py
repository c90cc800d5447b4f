"""The sizes of label sets and their log-weights: checks at the border, shared by the loss and the distribution."""

from functools import lru_cache
from numbers import Integral

import torch

from mlrh.torch.eager import is_eager


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


def log_weights(scores, min_labels, max_labels, size_bias):
    """Log-weights (max_labels + 1,) of the sets of each size: size_bias or 0, -inf below min_labels."""
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    if size_bias is None and is_eager(scores):
        return _kept(min_labels, max_labels, dtype, scores.device)
    if size_bias is None:
        size_bias = torch.zeros(max_labels + 1, dtype=dtype, device=scores.device)
    bias = size_bias[: max_labels + 1].to(device=scores.device, dtype=dtype)
    return _from(bias, min_labels)


def _from(bias, min_labels):
    below = torch.arange(bias.shape[0], device=bias.device) < min_labels
    return bias.masked_fill(below, -torch.inf)


@lru_cache(maxsize=256)
def _kept(min_labels, max_labels, dtype, device):
    """Log-weights without biases, for all calls; the copy is there when this returns, for any stream of a GPU."""
    with torch.inference_mode(False):
        return _from(torch.zeros(max_labels + 1, dtype=dtype), min_labels).to(device)


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
