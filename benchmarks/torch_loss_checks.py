"""The loss on a GPU against float64: the kernels in awkward cases, and the ways to use the loss; no timing.

Run by `torch_loss_gpu.py`.
"""

import math
import random
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from mlrh.torch import MLRHLoss, mlrh_loss
from mlrh.torch._eager import operators
from mlrh.torch._triton import plan as plans

DEVICE = "cuda"
DTYPES_CHECKED = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
N_RANDOM = 12  # cases of random shapes
LARGEST = 20_000_000  # rows times labels times sizes of such a case: the reference holds several times as many numbers


def check_all(only_uses=False):
    """Largest errors of loss (relative) and marginals (absolute) by case; ends where one is above rounding."""
    print(f"{'case':40}{'loss':>10}{'marginals':>11}")
    rows = [] if only_uses else check_kernels() + check_random(int(time.time()))
    rows += [check_public(f"MLRHLoss {reduction}", reduction) for reduction in ("none", "sum", "mean")]
    rows += [check_use(name, use) for name, use in uses().items()]
    rows += [check_threads(), check_streams(), check_graph(), check_data_parallel()]
    worst = max(rows, key=lambda row: row["marginals"])
    print(f"{len(rows)} cases, worst marginal: {worst['case']}\n")
    return rows


def check_kernels(part=0, n_parts=1):
    """Errors of the kernels by case, all labels known and then some unknown; of every n_parts-th case."""
    rows = []
    kinds = [
        (i, *case, dtype) for i, case in enumerate(cases()) for dtype in (DTYPES_CHECKED if i < 3 else [case[1].dtype])
    ]
    for i, name, scores, *sizes, dtype in kinds[part::n_parts]:
        rows.append(check(f"{name} {str(dtype)[6:]}", scores.to(dtype), *sizes, both=i < 3))
        rows.append(check_partial(f"{name} {str(dtype)[6:]}, NaN", scores.to(dtype), *sizes))
    return rows


def check_random(seed, n_cases=N_RANDOM, largest=LARGEST):
    """Errors of cases whose shapes, sizes and types are drawn at random, so that every run tries other kernels."""
    print(f"random shapes, seed {seed}")
    draw, rows = random.Random(seed), []
    torch.manual_seed(seed)
    for _ in range(n_cases):
        max_labels, dtype = draw.randint(1, 32), draw.choice(DTYPES_CHECKED)
        most = max(max_labels, min(20_000, largest // (max_labels + 1)))
        n_labels = int(max_labels * (most / max_labels) ** draw.random())
        n_rows = int((largest / (n_labels * (max_labels + 1))) ** draw.random()) or 1
        sizes = draw.randint(0, max_labels), max_labels
        scores = draw.uniform(0, 4) * torch.randn(n_rows, n_labels, device=DEVICE) + draw.uniform(-8, 2)
        name = f"{n_rows} x {n_labels}, sets of {sizes[0]} to {sizes[1]}, {str(dtype)[6:]}"
        rows.append(check(name, scores.to(dtype), *sizes, both=True))
        rows.append(check_partial(f"{name}, NaN", scores.to(dtype), *sizes))
    return rows


def cases():
    """Scores on the GPU with the smallest and largest size: ordinary, extreme and awkward ones."""

    def normal(*shape, scale=1.0, shift=0.0):
        return scale * torch.randn(shape, device=DEVICE) + shift

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
    yield "K=3000 M=20", normal(9, 3000, scale=2, shift=-4).double(), 1, 20
    yield "many rows K=1024 M=4", normal(17001, 1024, scale=2, shift=-4), 1, 4
    yield "many rows K=5000 M=4", normal(2101, 5000, scale=2, shift=-6), 1, 4
    yield "many rows K=9 M=4", normal(70001, 9), 0, 4


def check(name, scores, min_labels, max_labels, *, both):
    """Errors of one case, dense targets or both kinds."""
    log_weights = weights_of(min_labels, max_labels)
    dense, listed = draw_targets(*scores.shape, max_labels, min_labels)
    log_partition, marginals = reference(scores, log_weights)
    expected, exact = log_partition - (dense * scores.double()).sum(1), marginals - dense
    if scores.dtype.itemsize < 4:
        exact = exact.to(scores.dtype).double()
    kinds = [(dense.to(scores.dtype), False), (listed, True)][: 1 + both]
    return errors(name, scores, kinds, log_weights, min_labels, expected, exact)


def check_partial(name, scores, min_labels, max_labels):
    """Errors with NaN for a third of the targets, but in the first row for all and in the last for none."""
    log_weights = weights_of(min_labels, max_labels)
    dense, _ = draw_targets(*scores.shape, max_labels, min_labels)
    hidden = torch.rand(scores.shape, device=DEVICE) < 1 / 3
    hidden[0], hidden[-1] = True, False
    targets = dense.masked_fill(hidden, math.nan).to(scores.dtype)
    log_partition, marginals = reference(scores, log_weights)
    agreeing, of_agreeing = reference_of_known(scores, targets, log_weights)
    exact = log_partition - agreeing, marginals - of_agreeing
    return errors(name, scores, [(targets, False)], log_weights, min_labels, *exact)


def weights_of(min_labels, max_labels):
    log_weights = torch.zeros(max_labels + 1, device=DEVICE)
    log_weights[:min_labels] = -math.inf
    return log_weights


def errors(name, scores, kinds, log_weights, min_labels, expected, exact):
    """The row of a case for all kinds of targets; memory is poisoned first, so that a gap would show."""
    row = {"case": name, "loss": 0.0, "marginals": 0.0}
    for targets, indices in kinds:
        torch.full((4, *scores.shape), math.nan, device=DEVICE)
        loss, grad = twice(name, scores, targets, log_weights, min_labels, indices)
        row["loss"] = max(row["loss"], ((loss - expected).abs() / (1 + expected.abs())).max().item())
        gap = (grad.double() - exact).abs()
        if scores.dtype.itemsize < 4:  # one unit in the last place of the result
            gap = (gap - exact.abs() * torch.finfo(scores.dtype).eps).clamp(min=0)
        row["marginals"] = max(row["marginals"], gap.max().item())
    return reported(row, 1e-10 if scores.dtype == torch.float64 else 2e-6)


def check_public(name, reduction):
    """Errors of the module over two calls, the second by what the first one kept; both kinds of targets."""
    logits = (2 * torch.randn(5000, 700, device="cuda") - 5).requires_grad_()
    log_weights = torch.tensor([-math.inf, 0, 0, 0, 0], device="cuda")
    dense, listed = draw_targets(*logits.shape, 4)
    log_partition, marginals = reference(logits, log_weights)
    losses = log_partition - (dense * logits.double()).sum(1).detach()
    scale = {"none": 1, "sum": 1, "mean": len(logits)}[reduction]
    expected = losses if reduction == "none" else losses.sum() / scale
    row = {"case": name, "loss": 0.0, "marginals": 0.0}
    for targets, padding_index in ((dense, None), (listed, -1)) * 2:
        loss = MLRHLoss(4, reduction=reduction, padding_index=padding_index)(logits, targets)
        (gradient,) = torch.autograd.grad(scale * loss.sum(), logits)
        row["loss"] = max(row["loss"], ((loss - expected).abs() / (1 + expected.abs())).max().item())
        row["marginals"] = max(row["marginals"], (gradient.double() - (marginals - dense)).abs().max().item())
    return reported(row, 2e-6)


def uses():
    """Ways to use the loss: functions (logits, dense targets) -> sum over rows, on any device."""
    bias, weight = [0.0, 0.3, -0.5, 0.2, 0.1], torch.linspace(0, 2, 40)
    loss = MLRHLoss(4, reduction="sum")

    def unaligned(logits, Y):
        return loss(torch.cat((logits.flatten()[:1], logits.flatten()))[1:].view(logits.shape), Y)

    def partly(logits, Y):
        hidden = torch.arange(Y.shape[1], device=Y.device) % 3 == 0
        return mlrh_loss(logits, Y.masked_fill(hidden, math.nan), max_labels=4, reduction="sum")

    def compiled(logits, Y):
        return torch.compile(loss, fullgraph=True, backend="eager")(logits, Y)

    return {
        "targets of bool": lambda logits, Y: loss(logits, Y.bool()),
        "logits not contiguous": lambda logits, Y: loss(logits.T.contiguous().T, Y),
        "logits not aligned": unaligned,
        "weights of rows": lambda logits, Y: loss(logits, Y, weight.to(logits)),
        "size_bias": lambda logits, Y: mlrh_loss(
            logits, Y, max_labels=4, size_bias=torch.tensor(bias).to(logits), reduction="sum"
        ),
        "unobserved labels": partly,
        "torch.compile, no graph break": compiled,
        "-log_prob": lambda logits, Y: -loss.distribution(logits).log_prob(Y).sum(),
    }


def check_use(name, use):
    """Errors of loss, gradient and gradient of the gradient on the GPU, against the CPU in float64."""
    logits = 2 * torch.randn(40, 300, device="cuda") - 4
    dense, _ = draw_targets(*logits.shape, 4)
    direction = torch.randn(300, device="cuda")
    row = {"case": name, "loss": 0.0, "marginals": 0.0}
    expected = derivatives(use, logits.cpu().double(), dense.cpu().double(), direction.cpu().double())
    for _ in range(2):
        found = derivatives(use, logits, dense, direction)
        gaps = [((x.cpu() - y).abs() / (1 + y.abs())).max().item() for x, y in zip(found, expected, strict=True)]
        row = row | {"loss": max(row["loss"], gaps[0]), "marginals": max(row["marginals"], *gaps[1:])}
    return reported(row, 5e-6)


def check_threads(n_threads=8):
    """Losses and gradients of batches of several shapes, by many threads at once on streams of their own."""
    batches = [made(*shape) for shape in ((64, 300), (64, 301), (40, 9000), (64, 300)) for _ in range(4)]
    loss = MLRHLoss(4, reduction="none")
    expected = [loss_and_gradient(loss, *batch) for batch in batches]
    torch.cuda.synchronize()

    def run(batch):
        with torch.cuda.stream(torch.cuda.Stream()):
            results = loss_and_gradient(loss, *batch)
            torch.cuda.current_stream().synchronize()
        return results

    plans._PLANS.clear()  # so that the threads make them
    operators._CALLS.clear()
    with ThreadPoolExecutor(n_threads) as pool:
        found = list(pool.map(run, batches))
    return gaps_of("threads at once", found, expected)


def check_streams(n_streams=6, n_turns=40):
    """Means and gradients of batches on streams that run at once, over memory that held anything."""
    batches = [made(*shape) for shape in ((2000, 600), (300, 9000), (4000, 50)) for _ in range(n_streams // 3)]
    loss = MLRHLoss(4)
    expected = [loss_and_gradient(loss, *batch) for batch in batches]
    streams = [torch.cuda.Stream() for _ in batches]
    torch.cuda.synchronize()
    pairs = []
    for turn in range(n_turns):
        torch.randint(-(2**62), 2**62, (1 << 20,), device="cuda")
        found = []
        for stream, batch in zip(streams, batches, strict=True):
            with torch.cuda.stream(stream):
                found.append(loss_and_gradient(loss, *batch))
        torch.cuda.synchronize()
        pairs += found if turn % 10 == 9 else []
    return gaps_of("streams at once", pairs, expected * (n_turns // 10))


def check_graph(n_replays=20):
    """Mean and gradient of a step captured as a graph and replayed, with other calls between."""
    logits, targets = made(3000, 1000)
    logits.requires_grad_()
    loss, stream = MLRHLoss(4), torch.cuda.Stream()

    def step():
        value = loss(logits, targets)
        return value, torch.autograd.grad(value, logits)[0]

    expected = [result.clone() for result in map(torch.Tensor.detach, step())]
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    found = []
    for _ in range(n_replays):
        step()
        graph.replay()
        found.append([result.detach().clone() for result in results])
    return gaps_of("graph, replayed", found, [expected] * n_replays)


def check_data_parallel():
    """Losses and gradients of a network with its loss in DataParallel over one GPU."""
    logits, targets = made(64, 300)
    network = LossOf(torch.nn.Linear(300, 300, device="cuda"))
    parallel = torch.nn.DataParallel(network, device_ids=[0])
    expected, found = (loss_and_gradient(module, logits, targets) for module in (network, parallel))
    return gaps_of("DataParallel", [found], [expected])


class LossOf(torch.nn.Module):
    """A layer and its loss by row, as DataParallel takes them."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.loss = layer, MLRHLoss(4, reduction="none")

    def forward(self, inputs, targets):
        return self.loss(self.layer(inputs), targets)


def made(n_rows, n_labels):
    """Logits and targets with some labels unknown."""
    targets, _ = draw_targets(n_rows, n_labels, 4)
    hidden = torch.rand(targets.shape, device="cuda") < 0.1
    return 2 * torch.randn(n_rows, n_labels, device="cuda") - 4, targets.masked_fill(hidden, math.nan)


def loss_and_gradient(loss, logits, targets):
    logits = logits.clone().requires_grad_()
    losses = loss(logits, targets)
    return losses.detach(), torch.autograd.grad(losses.mean(), logits)[0]


def gaps_of(name, found, expected):
    """Largest gaps of losses and of gradients over pairs of both; 0 is asked for."""
    pairs = list(zip(found, expected, strict=True))
    gaps = [max((one[i] - other[i]).abs().max().item() for one, other in pairs) for i in (0, 1)]
    return reported({"case": name, "loss": gaps[0], "marginals": gaps[1]}, 1e-12)


def derivatives(use, logits, dense, direction):
    """Loss, its gradient by backward twice over a kept graph, and the second derivative along a direction."""
    logits = logits.clone().requires_grad_()
    loss = use(logits, dense)
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (again,) = torch.autograd.grad(2 * loss, logits, create_graph=True)
    (second,) = torch.autograd.grad((again * direction).sum(), logits)
    return loss.detach(), first, again.detach() / 2, second


def reported(row, bound):
    """The row, printed; ends where an error is above the bound."""
    print(f"{row['case']:40}{row['loss']:10.1e}{row['marginals']:11.1e}", flush=True)
    if not (row["loss"] < bound and row["marginals"] < bound):
        raise SystemExit(
            f"{row['case']}: the errors must be below {bound:g}; got {row['loss']:.1e} and {row['marginals']:.1e}."
        )
    return row


def twice(name, scores, targets, log_weights, min_labels, indices):
    """Losses and gradients of the second of two runs, which launches by address; ends where they differ."""
    runs, plan = [], plans.plan(scores, targets, log_weights, min_labels, indices)
    for _ in range(2):
        loss, saved = plan.forward(scores, targets, log_weights)
        runs.append((loss, plan.backward(scores, targets, saved, torch.ones_like(loss))))
    if not all(torch.equal(one, other) for one, other in zip(*runs, strict=True)):
        raise SystemExit(f"{name}: loss and gradient must be the same in every run; got two.")
    return runs[1]


def draw_targets(n_rows, n_labels, max_labels, min_labels=1):
    """Sets of min_labels to max_labels labels, dense (B, K) and as labels padded with -1 (B, max_labels)."""
    width = n_labels // max_labels
    labels = torch.randint(width, (n_rows, max_labels), device=DEVICE) + width * torch.arange(max_labels, device=DEVICE)
    sizes = torch.randint(min_labels, max_labels + 1, (n_rows, 1), device=DEVICE)
    listed = torch.where(torch.arange(max_labels, device=DEVICE) < sizes, labels, -1)
    dense = torch.zeros(n_rows, n_labels + 1, device=DEVICE)
    dense.scatter_(1, torch.where(listed < 0, n_labels, listed), 1.0)
    return dense[:, :n_labels].contiguous(), listed


def reference_of_known(scores, targets, log_weights):
    """Logarithms of the sums over all sets that agree with the targets (B,), and the marginals among these sets."""
    free, fixed = targets.isnan(), targets == 1
    sizes = torch.arange(len(log_weights), device=scores.device) + fixed.sum(1, keepdim=True)
    padded = torch.nn.functional.pad(log_weights, (0, len(log_weights)), value=-math.inf)
    log_partition, marginals = reference(scores.double().masked_fill(~free, -1e30), padded[sizes])
    return log_partition + (fixed * scores.double()).sum(1), torch.where(free, marginals, fixed.double())


def reference(scores, log_weights):
    """Log-partition (B,) and marginals (B, K) in float64: products of polynomials in log space, and autograd.

    The log-weights are for all rows (M + 1,) or for each (B, M + 1).
    """
    scores = scores.detach().double().requires_grad_()
    n_sizes = log_weights.shape[-1]
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
