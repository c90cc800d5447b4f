"""What the kernels of the GPU can hold, known from shapes and types alone, and without Triton."""

import torch

LARGEST_ROW = 1 << 20  # labels; chunks are still far longer than a target set
LARGEST_BATCH = 1 << 28  # rows; groups of them are counted in 24 bits
LARGEST_SET = 32  # labels; beyond, the lists of heavy labels would grow long
COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


def fit(scores, log_weights):
    """Whether scores (B, K) and log-weights (M + 1,), the same for all rows, can go through the kernels."""
    if log_weights.dim() != 1 or scores.dtype not in COMPUTED_IN:
        return False
    n_rows, n_labels = scores.shape
    if not (0 < n_rows <= LARGEST_BATCH and n_labels <= LARGEST_ROW):
        return False
    return 1 <= log_weights.shape[0] - 1 <= min(LARGEST_SET, n_labels)
