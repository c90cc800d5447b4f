"""Launches of one kernel with the same grid and numbers, again and again, at little cost to the host.

Triton looks a kernel up by all its arguments at every launch, which takes longer than many a kernel runs. What it found
is kept here and launched by the addresses of its tensors.
"""

from typing import Any

ALIGNMENT = 16  # bytes; Triton compiles another kernel for tensors that don't begin at a multiple


class Launch:
    """A kernel, its grid (a number of programs), the numbers that follow its tensors, and options of the compiler."""

    def __init__(self, kernel, n_programs, numbers, options):
        self.kernel, self.grid, self.numbers = kernel, (n_programs, 1, 1), numbers
        self.options = options | {"enable_fp_fusion": True}  # Triton's default in some versions alone
        self.kept: Any = None

    def ordinary(self, tensors, keep):
        """Launch by tensors; keep promises that all of them are aligned, as those launched by address will be."""
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        if keep and compiled is not None:  # it is None in Triton's interpreter
            self.kept = compiled[self.grid]

    def compile(self, types):
        """Compile for aligned tensors of these types (or None) on the current device and load; launches nothing."""
        compiled = self.kernel.warmup(*types, *self.numbers, grid=self.grid, **self.options)
        if compiled is not None:  # it is None in Triton's interpreter
            compiled[self.grid]  # loads it, for which Triton compiles a launcher in C

    def by_address(self, addresses):
        """Launch on the current stream of the current device, by addresses of aligned tensors of the same types."""
        self.kept(*addresses, *self.numbers)


def addresses_of(tensors):
    """The addresses of tensors (or None), and whether all are multiples of ALIGNMENT."""
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    together = 0
    for address in addresses:
        together |= address or 0
    return addresses, together % ALIGNMENT == 0
