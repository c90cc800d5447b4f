"""The loss for neural networks on a GPU: checks the kernels against float64, times them beside BCEWithLogitsLoss.

    PYTHONPATH=src python3 benchmarks/torch_loss_gpu.py --output FOLDER

prints one table of errors and one of milliseconds for a forward and a backward pass, and writes them to
FOLDER/torch_loss_gpu.json. It needs a CUDA GPU and torch with Triton, nothing else.
"""

import argparse
import json
import math
import pathlib
import statistics

import torch
from torch_loss_checks import check_all, draw_targets

from mlrh._files import replacing
from mlrh.torch import MLRHLoss

SHAPES = [(16384, 1024), (4096, 16384), (1024, 131072)]
FEW_LABELS = [(65536, 16), (65536, 64), (65536, 256)]
DTYPES = [torch.float32, torch.bfloat16]
BANDWIDTH = 4.27e9  # bytes a millisecond of a copy on an H200, for the floors


def main():
    """Run the checks, then the timings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="folder for the figures as JSON")
    parser.add_argument("--compiled", action="store_true", help="time torch.compile as well")
    parser.add_argument("--few-checks", action="store_true", help="check the uses alone, which saves minutes")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This measures on a GPU of NVIDIA, and torch finds none here.")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {copy_bandwidth():.2f} TB/s\n")
    errors = check_all(options.few_checks)
    times = time_all(options)
    memory = memory_all()
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        record |= {"errors": errors, "times": times, "memory": memory}
        with replacing(options.output / "torch_loss_gpu.json") as (file,):
            file.write(json.dumps(record, indent=1).encode())


def time_all(options):
    """Rows of `time_shape` for all shapes and types, printed as they come."""
    print(f"{'shape':>15} {'type':9}{'loss':26}{'called':>9}{'replayed':>10}{'floor':>8}{'x floor':>9}{'memory':>8}")
    rows = []
    for shape in SHAPES:
        for dtype in DTYPES:
            added = time_shape(shape, dtype, options)
            print_times(added)
            rows += added
    return rows


def time_shape(shape, dtype, options):
    """One row per loss: milliseconds of a forward and a backward pass, as called and replayed from a CUDA graph."""
    losses = losses_to_time(shape, dtype)
    if options.compiled:
        torch.compiler.reset()  # each shape is compiled for itself, as in a training run
        for name in ("BCE", "MLRHLoss, M=4"):
            losses[f"{name}, compiled"] = (torch.compile(losses[name][0]), losses[name][1])
    called = interleaved({name: step(*pair) for name, pair in losses.items()}, options.repeats)
    replayed = interleaved({name: captured(*pair) for name, pair in losses.items()}, options.repeats)
    size = math.prod(shape) * dtype.itemsize
    return [
        {
            "shape": list(shape),
            "dtype": str(dtype)[6:],
            "loss": name,
            "called_ms": called[name],
            "replayed_ms": replayed[name],
            "floor_ms": (2 if "listed" in name else 3) * size / BANDWIDTH,
            "extra_memory": extra_memory(*pair),
        }
        for name, pair in losses.items()
    ]


def losses_to_time(shape, dtype):
    """Functions without arguments, each with the scores that it differentiates."""
    scores = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    dense, listed = draw_targets(*shape, 4)
    dense = dense.to(dtype)
    sure = confident(scores, dense)
    losses = {"BCE": of_module(torch.nn.BCEWithLogitsLoss(), scores, dense)}
    for max_labels in (4, 16):
        losses[f"MLRHLoss, M={max_labels}"] = of_module(MLRHLoss(max_labels), scores, dense)
        losses[f"MLRHLoss, M={max_labels}, listed"] = of_module(MLRHLoss(max_labels, padding_index=-1), scores, listed)
    losses["MLRHLoss, M=4, confident"] = of_module(MLRHLoss(4), sure, dense)
    partly = dense.masked_fill(torch.rand(shape, device="cuda") < 0.3, math.nan)
    losses["MLRHLoss, M=4, 30% NaN"] = of_module(MLRHLoss(4), scores, partly)
    losses["MLRHLoss, M=4, no NaN"] = of_module(MLRHLoss(4, unobserved=False), scores, dense)
    return losses


def confident(scores, targets):
    """Scores as of a trained network: targets likely, about one more label expected; every row lists heavy labels."""
    shift = 2 + math.log(scores.shape[1])
    return (2 * scores.detach() - shift + (shift + 5) * targets).requires_grad_()


def of_module(loss, scores, targets):
    return lambda: loss(scores, targets), scores


def step(loss, scores):
    def run():
        scores.grad = None
        loss().backward()

    return run


def captured(loss, scores):
    """The same step as a CUDA graph, which leaves out what Python and the launches take."""
    run, stream = step(loss, scores), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    scores.grad = None
    with torch.cuda.graph(graph, stream=stream):
        loss().backward()
    return graph.replay


def interleaved(steps, repeats, batch=50):
    """Median milliseconds of each step; the steps take turns, so that a slow moment hits all of them."""
    for run in steps.values():
        for _ in range(3):
            run()
    found = {name: [] for name in steps}
    for _ in range(repeats):
        for name, run in steps.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(batch):
                run()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) / batch)
    return {name: statistics.median(values) for name, values in found.items()}


def extra_memory(loss, scores):
    """Peak memory of a step beyond its inputs and the gradient, over that of scores and gradient."""
    scores.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss().backward()
    size = scores.numel() * scores.dtype.itemsize
    return (torch.cuda.max_memory_allocated() - before - size) / (2 * size)


def memory_all():
    """Rows of extra memory with few labels, M=4, printed as they come."""
    print("\nmemory with few labels, M=4")
    rows = []
    for shape in FEW_LABELS:
        for dtype in DTYPES:
            losses = losses_to_time(shape, dtype)
            shares = {name: extra_memory(*losses[name]) for name in ("BCE", "MLRHLoss, M=4", "MLRHLoss, M=4, listed")}
            rows.append({"shape": list(shape), "dtype": str(dtype)[6:]} | shares)
            print(f"{'x'.join(map(str, shape)):>15} {str(dtype)[6:]:9}", {k: f"{v:.1%}" for k, v in shares.items()})
    return rows


def copy_bandwidth():
    """Terabytes a second of a large copy on the device, read and written."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / interleaved({"copy": lambda: target.copy_(source)}, 5, batch=10)["copy"] / 1e9


def print_times(rows):
    for row in rows:
        shape, floor = "x".join(map(str, row["shape"])), row["floor_ms"]
        print(
            f"{shape:>15} {row['dtype']:9}{row['loss']:26}{row['called_ms']:9.3f}{row['replayed_ms']:10.3f}"
            f"{floor:8.3f}{row['replayed_ms'] / floor:9.2f}{row['extra_memory']:8.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
