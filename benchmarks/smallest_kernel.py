"""The smallest kernel of Triton, by which `torch_first_call_gpu` tells what Triton itself takes for a first call."""

import triton
import triton.language as tl


@triton.jit
def add_one(number):
    """Add 1 to a number."""
    tl.store(number, tl.load(number) + 1)
