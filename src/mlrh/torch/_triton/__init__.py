"""GPU kernels of the loss, and whether they serve a call; that much is known without Triton, which may be missing."""

import importlib.metadata
import importlib.util
import os
import re

import torch

OLDEST_TRITON = (3, 6)  # older ones can't compile a compare-and-swap of 8 bytes
LARGEST_ROW = 1 << 20  # labels; chunks are still far longer than a target set
LARGEST_BATCH = 1 << 28  # rows; groups of them are counted in 24 bits
LARGEST_SET = 32  # labels; beyond, the lists of heavy labels would grow long
COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}


def serve(scores, log_weights):
    """Whether the kernels serve unless the biases forbid it (`plan.are_near_a_line`); reads no number."""
    return (scores.is_cuda or _is_interpreted()) and fit(scores, log_weights) and HAS_TRITON


def fit(scores, log_weights):
    """Whether scores (B, K) and log-weights (M + 1,), the same for all rows, can go through the kernels."""
    if log_weights.dim() != 1 or scores.dtype not in COMPUTED_IN:
        return False
    n_rows, n_labels = scores.shape
    if not (0 < n_rows <= LARGEST_BATCH and n_labels <= LARGEST_ROW):
        return False
    return 1 <= log_weights.shape[0] - 1 <= min(LARGEST_SET, n_labels)


def has_triton():
    """Whether there is a Triton that compiles the kernels."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build under another name
        return True
    return tuple(map(int, re.findall(r"\d+", version)[:2])) >= OLDEST_TRITON


HAS_TRITON = has_triton()  # torch.compile can't find out


def _is_interpreted():
    """Whether Triton's interpreter runs the kernels on the CPU, as in the tests."""
    return not torch.compiler.is_compiling() and os.environ.get("TRITON_INTERPRET") == "1"
