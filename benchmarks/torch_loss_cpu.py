"""Milliseconds of MLRHLoss on the CPU, forward and backward, beside BCEWithLogitsLoss on the same logits and targets.

Run it with `python benchmarks/torch_loss_cpu.py [threads] [--without-numba]`. The losses take turns, so that a busy
machine slows both; each figure is the lowest decile of its turns, since what others do only adds time, and more to a
longer call. With one thread it is the processor's time, in which waiting for others doesn't count, else that of the
clock. Logits are those of a network at the start (standard normal) and of a trained one (about -7, and 3 for the labels
of the target). The gradients are checked before anything is timed. Below the table are lines of fewer labels, in
float32 at the start. --without-numba times the operations of torch that take the place of compiled code where numba is
not installed.
"""

import argparse
import statistics
import time

import torch

from mlrh.torch import CardinalitySpace, MLRHLoss
from mlrh.torch._eager import compiled

N_LABELS, MAX_LABELS = 1024, 4
FEW = ((256, 20, 4), (4096, 8, 4), (4096, 32, 4), (4096, 64, 4), (512, 200, 16), (512, 256, 32))  # rows, labels, M
TURNS = 61


def arguments(description, *, without_numba=False):
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("threads", type=int, nargs="?", help="of torch; by default as many as it takes by itself")
    if without_numba:
        parser.add_argument("--without-numba", action="store_true", help="time the operations of torch instead")
    return parser.parse_args()


def main():
    options = arguments(__doc__, without_numba=True)
    compiled.HAS_NUMBA = compiled.HAS_NUMBA and not options.without_numba
    torch.set_num_threads(options.threads or torch.get_num_threads())
    print(f"{N_LABELS} labels, sets of 1 to {MAX_LABELS}, threads: {torch.get_num_threads()}; ms, and ratio to BCE\n")
    head = f"{'logits':<8} {'type':<9} {'rows':>5} {'BCE':>8} {'dense':>8} {'indices':>8}"
    print(f"{head} {'dense/BCE':>10} {'indices/BCE':>12}")
    for kind in ("start", "trained"):
        for dtype in (torch.float32, torch.bfloat16):
            for n_rows in (64, 256, 1024, 4096):
                report(kind, dtype, n_rows)
    print(f"\n{'rows':>5} {'labels':>7} {'M':>3} {'BCE':>8} {'dense':>8} {'dense/BCE':>10}")
    for n_rows, n_labels, most in FEW:
        logits, dense, _ = batch("start", torch.float32, n_rows, n_labels, most)
        bce, ours = low_deciles((torch.nn.BCEWithLogitsLoss(), logits, dense), (MLRHLoss(most), logits, dense))
        print(f"{n_rows:>5} {n_labels:>7} {most:>3} {bce:>8.2f} {ours:>8.2f} {ours / bce:>10.2f}", flush=True)


def report(kind, dtype, n_rows):
    """Print a line of the table."""
    logits, dense, indices = batch(kind, dtype, n_rows)
    check(logits, dense, indices)
    bce, of_dense, of_indices = low_deciles(
        (torch.nn.BCEWithLogitsLoss(), logits, dense),
        (MLRHLoss(MAX_LABELS), logits, dense),
        (MLRHLoss(MAX_LABELS, padding_index=-1), logits, indices),
    )
    name = str(dtype).removeprefix("torch.")
    times = f"{bce:>8.2f} {of_dense:>8.2f} {of_indices:>8.2f}"
    print(f"{kind:<8} {name:<9} {n_rows:>5} {times} {of_dense / bce:>10.2f} {of_indices / bce:>12.2f}", flush=True)


def batch(kind, dtype, n_rows, n_labels=N_LABELS, most=MAX_LABELS):
    """Logits, and their targets as 0 and 1 in the type of the logits and as indices."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n_rows, n_labels, generator=generator)
    order = torch.rand(n_rows, n_labels, generator=generator).topk(most, dim=1).indices
    counts = torch.randint(1, most + 1, (n_rows, 1), generator=generator)
    indices = order.masked_fill(torch.arange(most) >= counts, -1)
    dense = torch.zeros(n_rows, n_labels + 1).scatter_(1, indices % (n_labels + 1), 1.0)[:, :n_labels]
    if kind == "trained":
        logits = torch.where(dense == 1, 3.0, 2 * logits - 7)
    return logits.to(dtype).requires_grad_(), dense.to(dtype).contiguous(), indices


def check(logits, dense, indices):
    """Raise unless both forms of targets give marginals - targets, in float64 by the distribution."""
    few = logits.detach()[:64].double()
    expected = CardinalitySpace(N_LABELS, 1, MAX_LABELS).distribution(few).marginals() - dense[:64]
    for criterion, targets in ((MLRHLoss(MAX_LABELS), dense), (MLRHLoss(MAX_LABELS, padding_index=-1), indices)):
        (gradient,) = torch.autograd.grad(criterion(logits, targets), logits)
        tolerance = 1e-6 if logits.dtype == torch.float32 else 5e-3
        torch.testing.assert_close(gradient[:64].double() * len(logits), expected, rtol=0, atol=tolerance)


def low_deciles(*calls):
    """Milliseconds of forward and backward of each (criterion, logits, targets), taking turns."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for own, (criterion, logits, targets) in zip(seconds, calls, strict=True):
            logits.grad = None
            begin = clock()
            criterion(logits, targets).backward()
            own.append(clock() - begin)
    return [1e3 * statistics.quantiles(own[1:], n=10)[0] for own in seconds]


if __name__ == "__main__":
    main()
