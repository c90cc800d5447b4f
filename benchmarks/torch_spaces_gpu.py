"""MLRHLoss on a GPU with each label space: equal to float64 on the CPU, and milliseconds beside BCEWithLogitsLoss.

    PYTHONPATH=src:benchmarks python3 benchmarks/torch_spaces_gpu.py

The spaces are those of `torch_spaces_cpu.py`; a time is the median of 20 turns of a forward and a backward pass.
"""

import copy
import statistics

import torch
from torch_spaces_cpu import random_sets, spaces

from mlrh.torch import MLRHLoss

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}


def main():
    if not torch.cuda.is_available():
        raise SystemExit("This measures on a GPU of NVIDIA, and torch finds none here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    generator = torch.Generator().manual_seed(0)
    for name, space in spaces(64, random_sets(64, generator)).items():
        for dtype, tolerance in TOLERANCES.items():
            gap = gap_to_cpu(space, dtype, generator)
            print(f"{name:<42} {dtype!s:<14} largest difference {gap:.1e}", flush=True)
            assert gap <= tolerance, f"{name} on the GPU differs from the CPU by {gap:.1e} in {dtype}"
    for shape in ((1024, 64), (16384, 64), (4096, 1000)):
        report(*shape, generator)


def gap_to_cpu(space, dtype, generator):
    """Largest difference of losses, gradients, marginals and most probable sets from those of float64 on the CPU."""
    logits = 3 * torch.randn(512, space.n_labels, generator=generator, dtype=torch.float64)
    results = []
    for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
        loss = MLRHLoss(label_space=copy.deepcopy(space), reduction="none").to(device)
        scores = logits.to(device, kind, copy=True).requires_grad_()
        targets = space.distribution(torch.zeros_like(logits)).mode().to(device, kind)
        losses = loss(scores, targets)
        losses.sum().backward()
        distribution = loss.distribution(scores.detach())
        parts = (losses, scores.grad, distribution.marginals(), distribution.mode())
        results.append([part.detach().cpu().double() for part in parts])
    return max((one - other).abs().max().item() for one, other in zip(*results, strict=True))


def report(n_rows, n_labels, generator):
    """Print the times of one shape."""
    cases = spaces(n_labels, random_sets(n_labels, generator))
    logits = torch.randn(n_rows, n_labels, generator=generator).cuda().requires_grad_()
    bce = milliseconds(torch.nn.BCEWithLogitsLoss(), logits, torch.zeros_like(logits))
    print(f"\n{n_rows} x {n_labels}, float32: BCE {bce:.3f} ms")
    for name, space in cases.items():
        if "below" in name and n_rows > 1024:
            continue  # a step takes seconds
        targets = space.distribution(torch.zeros(n_rows, n_labels)).mode().float().cuda()
        took = milliseconds(MLRHLoss(label_space=space).cuda(), logits, targets)
        print(f"{name:<42} {took:>9.3f} ms {took / bce:>7.1f} x BCE", flush=True)


def milliseconds(loss, logits, targets):
    def step():
        logits.grad = None
        loss(logits, targets).backward()

    for _ in range(3):
        step()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    main()
