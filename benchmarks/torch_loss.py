"""How long does MLRHLoss of torch take on the CPU, forward and backward, beside BCEWithLogitsLoss? At most 3 times.

Batches and the check of the gradients are those of `torch_loss_cpu`: 1,024 labels, sets of 1 to 4, dense float32
targets, logits of a network at the start and of a trained one. Both losses have as many threads as there are cores.
"""

from contextlib import contextmanager
from functools import partial

from benchmarks.table import attempted, broken, raced

QUESTION = "torch loss"
TARGET = 3.0
KINDS = ("start", "trained")
ROWS = (64, 256, 1024, 4096)


def measure(repeats, context):
    """Yields a line for each kind of logits and number of rows; one that says so where torch is missing."""
    try:
        import torch
    except ImportError:
        yield broken(QUESTION, "all of it", 'torch is missing: pip install "torch"')
        return
    with threads(torch, context.machine.cores):
        for kind in KINDS:
            for n_rows in ROWS[:1] if context.quick else ROWS:
                context.tell(f"{kind}, {n_rows} rows")
                yield from attempted(QUESTION, f"{n_rows:,} rows, logits: {kind}", _lines, kind, n_rows, repeats)


def _lines(kind, n_rows, repeats):
    import torch

    from benchmarks.torch_loss_cpu import MAX_LABELS, N_LABELS, batch, check
    from mlrh.torch import MLRHLoss

    logits, dense, indices = batch(kind, torch.float32, n_rows)
    check(logits, dense, indices)
    model = "a network at the start" if kind == "start" else "a trained network"
    case = f"{n_rows:,} rows, K={N_LABELS:,}, M={MAX_LABELS}, logits of {model}"
    ours, theirs = (partial(step, loss, logits, dense) for loss in (MLRHLoss(MAX_LABELS), torch.nn.BCEWithLogitsLoss()))
    competitor = f"BCEWithLogitsLoss, torch {torch.__version__}, threads: {torch.get_num_threads()}"
    yield raced(QUESTION, case, ours, competitor, theirs, repeats, target=TARGET)


def step(loss, logits, targets):
    """Forward and backward."""
    logits.grad = None
    loss(logits, targets).backward()


@contextmanager
def threads(torch, number):
    """Gives torch so many threads: it would take the number that BLAS is limited to."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
