"""Launches of one kernel with the same grid and numbers, again and again, at little cost to the host.

Triton looks a kernel up by all its arguments at every launch, which takes longer than many a kernel runs. What it found
is kept here and launched by the addresses of its tensors. The module knows nothing of what the kernels compute.
"""

import re
from typing import Any

import triton
from triton import knobs
from triton.runtime import driver

ALIGNMENT = 16  # bytes; Triton compiles another kernel for tensors that don't begin at a multiple
# Where the arguments of `CompiledKernel.run` are those used here, by the sources; elsewhere launches are ordinary ones.
KNOWN_VERSIONS = ((3, 6), (3, 9))


class Launch:
    """A kernel, its grid (a number of programs), the numbers that follow its tensors, and options of the compiler."""

    def __init__(self, kernel, n_programs, numbers, options):
        self.kernel, self.grid, self.numbers = kernel, (n_programs, 1, 1), numbers
        self.options = options | {"enable_fp_fusion": True}  # Triton's default in some versions alone
        self.kept: Any = None

    def ordinary(self, tensors, keep):
        """Launch by tensors; keep promises that all of them are aligned, as those launched by address will be."""
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        if keep and compiled is not None and _is_known():  # it is None in Triton's interpreter
            self.kept = compiled.run, compiled.function, compiled.packed_metadata

    def by_address(self, addresses, device):
        """Launch on the current stream of a device (its index), by addresses of aligned tensors of the same types."""
        run, function, metadata = self.kept
        stream = driver.active.get_current_stream(device)
        run(*self.grid, stream, function, metadata, None, None, None, *addresses, *self.numbers)


def can_go_by_address(*launches):
    """Whether the kernels are there, and no tool wants to be told of their launches."""
    for launch in launches:
        if launch.kept is None:
            return False
    runtime = knobs.runtime
    return not (_calls(runtime.launch_enter_hook) or _calls(runtime.launch_exit_hook))


def addresses_of(tensors):
    """The addresses of tensors (or None), and whether all are multiples of ALIGNMENT."""
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    together = 0
    for address in addresses:
        together |= address or 0
    return addresses, together % ALIGNMENT == 0


def _calls(hook):
    return getattr(hook, "calls", hook)


def _is_known():
    version = tuple(map(int, re.findall(r"\d+", triton.__version__)[:2]))
    return KNOWN_VERSIONS[0] <= version <= KNOWN_VERSIONS[1]
