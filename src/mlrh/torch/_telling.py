"""The line on stderr that says why nothing seems to happen while the loss is compiled; once in a process."""

import sys

_TOLD: list[str] = []  # lines that were written


def tell_of_compiling(what):
    """Say that what, such as GPU kernels, is being compiled, and how to have that done ahead."""
    line = (
        f"[mlrh] compiling {what} of the loss, some seconds the first time on a machine; "
        "before the training of a network, MLRHLoss.warm_up(n_labels, dtype) does it ahead."
    )
    if line not in _TOLD:
        _TOLD.append(line)
        print(line, file=sys.stderr, flush=True)
