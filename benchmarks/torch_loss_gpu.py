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
from torch.nn.functional import binary_cross_entropy_with_logits

from mlrh.torch import MLRHLoss, kernels

SHAPES = [(16384, 1024), (4096, 16384), (1024, 131072)]
DTYPES = [torch.float32, torch.bfloat16]
DTYPES_CHECKED = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
BANDWIDTH = 4.27e9  # bytes a millisecond of a copy on an H200, for the floors


def main():
    """Run the checks, then the timings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="folder for the figures as JSON")
    parser.add_argument("--compiled", action="store_true", help="time torch.compile as well")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {copy_bandwidth():.2f} TB/s\n")
    errors = check_all()
    times = time_all(options)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "errors": errors, "times": times}
        (options.output / "torch_loss_gpu.json").write_text(json.dumps(record, indent=1))


class KernelLoss(torch.autograd.Function):
    """Losses (B,) straight from the kernels, with nothing around them."""

    @staticmethod
    def forward(ctx, scores, targets, log_weights, indices):
        loss, saved = kernels.forward(scores, targets, log_weights, 1, indices=indices)
        ctx.save_for_backward(scores, targets, log_weights, *saved)
        ctx.indices = indices
        return loss

    @staticmethod
    def backward(ctx, grad):
        scores, targets, log_weights, *saved = ctx.saved_tensors
        return kernels.backward(scores, targets, log_weights, 1, saved, grad, indices=ctx.indices), None, None, None


def check_all():
    """Largest errors of loss (relative) and marginals (absolute) by case; ends where one is above rounding."""
    print(f"{'case':34}{'loss':>10}{'marginals':>11}")
    rows = []
    for i, (name, *inputs) in enumerate(cases()):
        for dtype in DTYPES_CHECKED if i < 3 else [torch.float32]:
            rows.append(check(f"{name} {str(dtype)[6:]}", inputs[0].to(dtype), *inputs[1:], both=i < 3))
    worst = max(rows, key=lambda row: row["marginals"])
    print(f"{len(rows)} cases, worst marginal: {worst['case']}\n")
    return rows


def cases():
    """Scores on the GPU with the smallest and largest size: ordinary, extreme and awkward ones."""

    def normal(*shape, scale=1.0, shift=0.0):
        return scale * torch.randn(shape, device="cuda") + shift

    spike = normal(9, 300)
    spike[:, 7] = 200
    yield "few likely K=1000 M=4", normal(37, 1000, scale=2, shift=-6), 1, 4
    yield "wide K=20000 M=4", normal(6, 20000, scale=3, shift=-5), 1, 4
    yield "one dominates", spike, 1, 4
    yield "normal K=1024 M=4", normal(37, 1024), 1, 4
    yield "normal K=1024 M=16", normal(37, 1024), 1, 16
    yield "few likely K=64 M=16", normal(130, 64, scale=3, shift=-2), 0, 16
    yield "normal K=131072 M=4", normal(3, 131072), 1, 4
    yield "wide K=100003 M=16", normal(3, 100003, scale=3, shift=-8), 2, 16
    yield "+-1e4 K=20000", 1e4 * normal(5, 20000).sign(), 1, 4
    yield "1e4 normal K=200", normal(50, 200, scale=1e4), 1, 4
    yield "all equal", normal(5, 300, scale=0, shift=3), 1, 4
    yield "all equal K=6 M=3", normal(5, 6, scale=0), 1, 3
    yield "one dominates L=3", spike - 250, 3, 4
    yield "M=K=6, L=0", normal(300, 6), 0, 6
    yield "L=M=3", normal(300, 22), 3, 3
    yield "K=1", normal(300, 1), 0, 1
    yield "softmax", normal(300, 1000, scale=3), 1, 1
    yield "M=32", normal(30, 500, scale=2, shift=-2), 0, 32


def check(name, scores, min_labels, max_labels, *, both):
    """Errors of one case, dense targets or both kinds; memory is poisoned first, so that a gap would show."""
    log_weights = torch.zeros(max_labels + 1, device="cuda")
    log_weights[:min_labels] = -math.inf
    dense, listed = draw_targets(*scores.shape, max_labels, min_labels)
    expected, marginals = reference(scores, log_weights)
    expected = expected - (dense * scores.double()).sum(1)
    row = {"case": name, "loss": 0.0, "marginals": 0.0}
    for targets in (dense.to(scores.dtype), listed)[: 1 + both]:
        torch.full((4, *scores.shape), math.nan, device="cuda")
        indices = targets is listed
        loss, saved = kernels.forward(scores, targets, log_weights, min_labels, indices=indices)
        inputs = scores, targets, log_weights, min_labels, saved, torch.ones_like(loss)
        grad = kernels.backward(*inputs, indices=indices)
        if not torch.equal(grad, kernels.backward(*inputs, indices=indices)):
            raise SystemExit(f"{name}: the gradient must be the same in every run; got two.")
        exact = (marginals - dense).to(scores.dtype).double() if scores.dtype.itemsize < 4 else marginals - dense
        row["loss"] = max(row["loss"], ((loss - expected).abs() / (1 + expected.abs())).max().item())
        gap = (grad.double() - exact).abs()
        if scores.dtype.itemsize < 4:  # one unit in the last place of the result
            gap = (gap - exact.abs() * torch.finfo(scores.dtype).eps).clamp(min=0)
        row["marginals"] = max(row["marginals"], gap.max().item())
    print(f"{name:34}{row['loss']:10.1e}{row['marginals']:11.1e}", flush=True)
    bound = 1e-10 if scores.dtype == torch.float64 else 2e-6
    if not (row["loss"] < bound and row["marginals"] < bound):
        raise SystemExit(
            f"{name}: the errors must be below {bound:g}; got {row['loss']:.1e} and {row['marginals']:.1e}."
        )
    return row


def draw_targets(n_rows, n_labels, max_labels, min_labels=1):
    """Sets of min_labels to max_labels labels, dense (B, K) and as labels padded with -1 (B, max_labels)."""
    width = n_labels // max_labels
    labels = torch.randint(width, (n_rows, max_labels), device="cuda") + width * torch.arange(max_labels, device="cuda")
    sizes = torch.randint(min_labels, max_labels + 1, (n_rows, 1), device="cuda")
    listed = torch.where(torch.arange(max_labels, device="cuda") < sizes, labels, -1)
    dense = torch.zeros(n_rows, n_labels + 1, device="cuda")
    dense.scatter_(1, torch.where(listed < 0, n_labels, listed), 1.0)
    return dense[:, :n_labels].contiguous(), listed


def reference(scores, log_weights):
    """Log-partition (B,) and marginals (B, K) in float64: products of polynomials in log space, and autograd."""
    scores = scores.detach().double().requires_grad_()
    n_sizes = len(log_weights)
    never = torch.tensor(-1e30, dtype=torch.float64, device=scores.device)
    width = 1 << (scores.shape[1] - 1).bit_length()
    padded = torch.nn.functional.pad(scores, (0, width - scores.shape[1]), value=-1e30)
    tree = torch.stack([torch.zeros_like(padded), padded] + [never.expand_as(padded)] * (n_sizes - 2), dim=2)
    while tree.shape[1] > 1:
        left, right = tree[:, 0::2], tree[:, 1::2]
        sums = [torch.logsumexp(left[..., : j + 1] + right[..., : j + 1].flip(-1), -1) for j in range(n_sizes)]
        tree = torch.stack(sums, dim=2)
    log_partition = torch.logsumexp(tree[:, 0] + log_weights.double(), 1)
    return log_partition.detach(), torch.autograd.grad(log_partition.sum(), scores)[0]


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
        torch._dynamo.reset()  # each shape is compiled for itself, as in a training run
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
    losses = {"BCE": (lambda: binary_cross_entropy_with_logits(scores, dense), scores)}
    for max_labels in (4, 16):
        losses[f"kernels, M={max_labels}"] = kernel_loss(scores, dense, max_labels)
        losses[f"kernels, M={max_labels}, listed"] = kernel_loss(scores, listed, max_labels, indices=True)
    losses["kernels, M=4, confident"] = kernel_loss(confident(scores, dense), dense, 4)
    for max_labels in (4, 16):
        losses[f"MLRHLoss, M={max_labels}"] = public_loss(scores, dense, MLRHLoss(max_labels))
    losses["MLRHLoss, M=4, listed"] = public_loss(scores, listed, MLRHLoss(4, padding_index=-1))
    return losses


def confident(scores, targets):
    """Scores as of a trained network: targets likely, about one more label expected; every row lists heavy labels."""
    shift = 2 + math.log(scores.shape[1])
    return (2 * scores.detach() - shift + (shift + 5) * targets).requires_grad_()


def kernel_loss(scores, targets, max_labels, indices=False):
    log_weights = torch.zeros(max_labels + 1, device="cuda")
    log_weights[0] = -math.inf
    return lambda: KernelLoss.apply(scores, targets, log_weights, indices).mean(), scores


def public_loss(scores, targets, loss):
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


def interleaved(steps, repeats, batch=10):
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


def copy_bandwidth():
    """Terabytes a second of a large copy on the device, read and written."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / interleaved({"copy": lambda: target.copy_(source)}, 5)["copy"] / 1e9


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
