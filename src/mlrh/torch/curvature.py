"""Second derivatives of the log-partition: covariances of labels and sizes, for tensors on any device.

By carrying a derivative through the tree of products and its adjoint (`Dual`), in float64.
"""

import torch

from mlrh.torch import general
from mlrh.torch.recurrence import blocks, of_rows, parts, working_dtype
from mlrh.torch.scaled import Dual, Scaled, over


def curvature(scores, log_weights, direction, size_direction):
    """Derivatives of marginals (n_rows, n_labels) and of P(|y| = j) as scores and log-weights move along directions.

    direction is (n_rows, n_labels), size_direction (n_rows, n_sizes). These are the covariances of the labels and of
    the sizes with direction'y + size_direction[|y|].
    """
    n_rows, n_labels = scores.shape
    dtype = working_dtype(scores)
    d_marginals = scores.new_empty((n_rows, n_labels), dtype=dtype)
    d_pmf = scores.new_empty((n_rows, log_weights.shape[-1]), dtype=dtype)
    for rows in blocks(n_rows, n_labels):
        block_weights = of_rows(log_weights, rows, n_rows)
        for some, weights, size_weights in parts(scores[rows], block_weights):
            directions = _filled(direction[rows][some], weights), _filled(size_direction[rows][some], size_weights)
            of_labels, of_sizes = _derivatives(weights, size_weights, *directions)
            d_marginals[rows][some] = of_labels[:, :n_labels].to(dtype)
            d_pmf[rows][some] = of_sizes[:, : d_pmf.shape[1]].to(dtype)
    return d_marginals, d_pmf


def _filled(direction, numbers):
    """A direction as numbers of the same kind and shape: transposed, and filled up with 0."""
    direction = direction.to(torch.float64)
    direction = torch.nn.functional.pad(direction, (0, len(numbers) - direction.shape[1])).T
    return Scaled.of(direction) if isinstance(numbers, Scaled) else direction


def _derivatives(weights, size_weights, direction, size_direction):
    """By labels (n_rows, n) and by sizes (n_rows, n_sizes)."""
    weights, size_weights = Dual(weights, weights * direction), Dual(size_weights, size_weights * size_direction)
    levels = general.levels(weights, len(size_weights) - 1)
    masses = general.size_sums(levels, size_weights)
    partition = general.total(masses)
    mean = over(partition.change, partition.value)
    by_label = _centred(general.label_sums(levels, size_weights), partition.value, mean)
    return by_label.T, torch.stack([_centred(mass, partition.value, mean) for mass in masses], 1)


def _centred(sums, partition, mean):
    return over(sums.change, partition) - over(sums.value, partition) * mean
