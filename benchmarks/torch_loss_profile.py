"""Where the time of a step of the loss on a GPU goes: the host's by parts of a step, the GPU's by kernel.

    PYTHONPATH=src python3 benchmarks/torch_loss_profile.py

The host's part is measured with so few rows that the GPU waits for it. It needs a CUDA GPU and torch with Triton.
"""

import statistics
import time

import torch
from torch_loss_gpu import DTYPES, SHAPES, draw_targets, losses_to_time, step

from mlrh.torch import MLRHLoss, mlrh_loss
from mlrh.torch._triton import plan as plans

KERNELS = ("forward", "gradient")


def main():
    if not torch.cuda.is_available():
        raise SystemExit("This measures on a GPU of NVIDIA, and torch finds none here.")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("Microseconds of the host, 256 x 1024, M=4; median and least of 15 turns")
    parts = parts_of_step(256, 1024)
    report_host(parts)
    print("\nthe same without the thread that autograd runs on")
    with torch.autograd.set_multithreading_enabled(False):
        report_host({name: run for name, run in parts.items() if name.endswith("step")})
    print("\nMicroseconds of the GPU by kernel")
    for shape in SHAPES:
        for dtype in DTYPES:
            report_kernels(shape, dtype)


class Nothing(torch.autograd.Function):
    """What a function in Python costs that computes nothing."""

    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward(scores)
        return scores.new_empty(())

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(ctx.saved_tensors[0])


def parts_of_step(n_rows, n_labels):
    """Functions without arguments by name."""
    scores = torch.randn(n_rows, n_labels, device="cuda", requires_grad=True)
    values, (dense, _) = scores.detach(), draw_targets(n_rows, n_labels, 4)
    bce, criterion, one = torch.nn.BCEWithLogitsLoss(), MLRHLoss(4), torch.ones((), device="cuda")
    log_weights = torch.tensor([-torch.inf, 0, 0, 0, 0], device="cuda")
    plan = plans.plan(values, dense, log_weights, 1, False)
    _, saved = plan.forward(values, dense, log_weights, "mean")
    return {
        "BCE, step": step(lambda: bce(scores, dense), scores),
        "MLRHLoss, step": step(lambda: criterion(scores, dense), scores),
        "mlrh_loss, which doesn't look for infinite losses, step": step(
            lambda: mlrh_loss(scores, dense, max_labels=4), scores
        ),
        "a function that does nothing, step": step(lambda: Nothing.apply(scores), scores),
        "BCE, forward": lambda: bce(scores, dense),
        "MLRHLoss, forward": lambda: criterion(scores, dense),
        "launch of the forward pass": lambda: plan.forward(values, dense, log_weights, "mean"),
        "launch of the backward pass": lambda: plan.backward(values, dense, saved, one, "mean"),
    }


def report_host(parts, turns=15, calls=100):
    """Print microseconds of each part; the parts take turns."""
    found: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(turns + 1):
        for name, run in parts.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            torch.cuda.synchronize()
            if turn:
                found[name].append(1e6 * (time.perf_counter() - begin) / calls)
    for name, values in found.items():
        print(f"{name:36}{statistics.median(values):8.1f}{min(values):8.1f}", flush=True)


def report_kernels(shape, dtype, calls=20):
    """Print microseconds of each kernel of a step."""
    losses = losses_to_time(shape, dtype)
    for name in [name for name in losses if name.startswith("MLRHLoss")]:
        run = step(*losses[name])
        run()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(calls):
                run()
            torch.cuda.synchronize()
        times = {event.key: event.self_device_time_total / calls for event in profile.key_averages()}
        cells = "".join(f"  {kernel} {times.get(kernel, 0.0):6.1f}" for kernel in KERNELS)
        others = sum(times.values()) - sum(times.get(kernel, 0.0) for kernel in KERNELS)
        print(f"{'x'.join(map(str, shape)):>12} {str(dtype)[6:]:9}{name:26}{cells}  others {others:6.1f}", flush=True)


if __name__ == "__main__":
    main()
