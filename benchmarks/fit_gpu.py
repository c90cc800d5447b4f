"""Fits to tensors on a GPU beside fits on the CPU of the same machine, and separate logistic regressions by torch.

    python -m benchmarks.fit_gpu --export FOLDER                    writes the data, where MLRH_DATA is
    PYTHONPATH=src SCIPY_ARRAY_API=1 python3 -m benchmarks.fit_gpu --data FOLDER --output FOLDER

--data is a folder with NAME.npz for delicious and bibtex: the arrays X_data, X_indices, X_indptr, X_shape of a CSR
matrix and Y, as --export writes them. First the model of the GPU is checked against that of the CPU at random shapes,
in every label space, with and without weights and unknown labels; with CuPy and SCIPY_ARRAY_API=1, arrays of CuPy, too.
Times are medians after a warm-up; the gap is that of the objective, relative to a fit with tol=1e-12 (of the large
problem, which has one run, with tol=1e-7).
"""

import argparse
import json
import os
import pathlib
import statistics
import time
import warnings
from importlib.util import find_spec

import numpy as np
import sklearn
import torch
from scipy import sparse

from benchmarks import problems
from mlrh import KernelMLRHClassifier, KernelMLRHClassifierCV, MLRHClassifier, MLRHClassifierCV
from mlrh.spaces import GroupSpace, HierarchySpace

SETS = ("delicious", "bibtex")
SPACES = ("cardinality", "observed", "open", "groups", "hierarchy")
LARGE = (1_000_000, 1_000, 1_000, 5)  # rows, features, labels, largest set
LOOSE = 1e-3  # tol of the large problem once more
FLOPS = {torch.float32: 60e12, torch.float64: 60e12}  # an H200 without its tensor cores; float64 has these
BANDWIDTH = 4.3e12  # bytes a second, read and written


def main(arguments=None):
    """Check, then measure; prints a table and writes it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--export", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checks", type=int, default=24, help="random problems")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=LARGE[0], help="rows of the synthetic problem; 0 leaves it out")
    options = parser.parse_args(arguments)
    if options.export:
        export(options.export)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("This measures on a GPU of NVIDIA, and torch finds none here.")
    warnings.simplefilter("ignore")
    largest = max((check(seed, options.device) for seed in range(options.checks)), default=0.0)
    print(f"{options.checks} random problems: largest difference of probabilities {largest:.1e}", flush=True)
    print(f"C chosen there: largest difference of probabilities {check_choice(options.device):.1e}", flush=True)
    print(f"arrays of CuPy: {check_cupy()}", flush=True)
    lines = []
    for name in SETS if options.data else ():
        lines += measure(name, *read(options.data / f"{name}.npz"), options)
    if options.rows:
        lines += large(options)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "fit_gpu.json").write_text(json.dumps(lines, indent=1))


def export(folder):
    """Write the problems of the CPU benchmark as arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        problem = problems.public(name)
        X = sparse.csr_array(problem.X)
        parts = {"X_data": X.data.astype(np.float32), "X_indices": X.indices, "X_indptr": X.indptr, "X_shape": X.shape}
        np.savez_compressed(folder / f"{name}.npz", **parts, Y=problem.Y.astype(np.int8))


def read(path):
    """X, a CSR matrix in float64, and Y."""
    with np.load(path) as arrays:
        parts = arrays["X_data"].astype(np.float64), arrays["X_indices"], arrays["X_indptr"]
        return sparse.csr_array(parts, shape=tuple(arrays["X_shape"])), arrays["Y"]


def check(seed, device):
    """The largest difference of probabilities between the models of the CPU and of the device; an error beyond 1e-6."""
    kind, parameters, X, Y, weights = random_problem(seed)
    on_device = torch.tensor(X, device=device)
    ours = kind(**parameters).fit(on_device, torch.tensor(Y, device=device), weights)
    theirs = kind(**parameters).fit(X, Y, weights)
    found, sets = ours.predict_proba(on_device), ours.predict(on_device)
    assert found.device.type == sets.device.type == device
    assert (sets.cpu().numpy() == theirs.predict(X)).all(), (seed, parameters)
    difference = float(np.abs(found.cpu().numpy() - theirs.predict_proba(X)).max())
    values = abs(ours.objective_ / theirs.objective_ - 1)
    assert difference < 1e-6, (seed, parameters, difference, values)
    assert values < 1e-9, (seed, parameters, values)
    return difference


def check_choice(device):
    """The largest difference of probabilities between models whose C is chosen on the device and on the CPU."""
    largest = 0.0
    for seed, kind in ((1, MLRHClassifierCV), (2, KernelMLRHClassifierCV)):
        _, _, X, Y, _ = random_problem(seed)
        on_device, Y = torch.tensor(X, device=device), np.nan_to_num(Y)
        ours, theirs = (kind(Cs=3, cv=3, tol=1e-12).fit(rows, Y) for rows in (on_device, X))
        assert theirs.C_ == ours.C_, (kind, ours.C_, theirs.C_)
        difference = np.abs(ours.predict_proba(on_device).cpu().numpy() - theirs.predict_proba(X)).max()
        largest = max(largest, float(difference))
    assert largest < 1e-6, largest
    return largest


def check_cupy():
    """A word on models fitted to arrays of CuPy: the largest difference of probabilities to the CPU, or why not."""
    if find_spec("cupy") is None or os.environ.get("SCIPY_ARRAY_API") != "1":
        return "not checked, for want of CuPy or SCIPY_ARRAY_API=1"
    import cupy

    largest = 0.0
    with sklearn.config_context(array_api_dispatch=True):
        for seed in (0, 3):  # a linear classifier and a kernel one, with unknown labels
            kind, parameters, X, Y, weights = random_problem(seed)
            on_device = cupy.asarray(X)
            ours, theirs = (kind(**parameters).fit(rows, Y, weights) for rows in (on_device, X))
            probabilities, sets = ours.predict_proba(on_device), ours.predict(on_device)
            assert isinstance(probabilities, cupy.ndarray), type(probabilities)
            assert isinstance(sets, cupy.ndarray), type(sets)
            largest = max(largest, float(np.abs(probabilities.get() - theirs.predict_proba(X)).max()))
    assert largest < 1e-6, largest
    return f"largest difference of probabilities {largest:.1e}"


def random_problem(seed):
    """Class and parameters of a classifier, and rows for it: X, Y with or without NaN, weights or None."""
    rng = np.random.default_rng(seed)
    n_rows, n_features, n_labels = rng.integers(30, 400), rng.integers(1, 60), rng.integers(2, 30)
    X = rng.standard_normal((n_rows, n_features)) * 10.0 ** rng.integers(-2, 3)
    Y = (rng.random((n_rows, n_labels)) < 0.2).astype(float)
    Y[np.arange(n_rows), rng.integers(0, n_labels, n_rows)] = 1
    weights = rng.random(n_rows) + 0.1 if seed % 2 else None
    has_unknown = seed % 3 == 0
    space = SPACES[seed // 2 % len(SPACES)]
    if space == "observed" and has_unknown:  # which takes no unknown labels
        space = "cardinality"
    parameters = {"label_space": space, "C": 10.0 ** rng.integers(-3, 1), "tol": 1e-14}
    if space in ("cardinality", "open"):
        parameters["size_bias"] = seed % 5 == 0
    if space == "open":
        parameters["set_bias_strength"] = 1.0
    elif space == "groups":
        half = n_labels // 2
        parameters["label_space"] = GroupSpace([(range(half), 0, int(Y[:, :half].sum(1).max()))], n_labels)
    elif space == "hierarchy":  # each label with an odd number is the child of the one before
        parameters["label_space"] = HierarchySpace([k - 1 if k % 2 else -1 for k in range(n_labels)])
        children = Y[:, 1::2]
        Y[:, : 2 * children.shape[1] : 2] = np.maximum(Y[:, : 2 * children.shape[1] : 2], children)
    if has_unknown:
        Y[rng.random(Y.shape) < 0.05] = np.nan
    return KernelMLRHClassifier if seed % 4 == 3 else MLRHClassifier, parameters, X, Y, weights


def timed(call, repeats, device):
    """Median seconds of a call after a warm-up, and its last result."""
    call()
    seconds = []
    for _ in range(repeats):
        synchronise(device)
        begin = time.perf_counter()
        result = call()
        synchronise(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), result


def synchronise(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name, X, Y, options):
    """Lines of one public set: the CPU, the GPU in both types, and separate regressions by torch."""
    device = options.device
    cpu, model = timed(lambda: MLRHClassifier().fit(X, Y), 1, "cpu")
    optimum = MLRHClassifier(tol=1e-12).fit(torch.tensor(X.toarray(), device=device), Y).objective_
    gap = model.objective_ / optimum - 1
    shape = f"{name} ({X.shape[0]:,} x {X.shape[1]:,}, K={Y.shape[1]}, M={int(Y.sum(1).max())})"
    print(f"{shape}: CPU {cpu:.3g} s, gap {gap:.0e}", flush=True)
    lines = [{"case": shape, "what": "CPU", "seconds": cpu, "gap": gap}]
    targets = torch.tensor(Y, device=device)
    for dtype in (torch.float64, torch.float32):
        rows = torch.tensor(X.toarray(), device=device, dtype=dtype)
        seconds, model = timed(lambda rows=rows: MLRHClassifier().fit(rows, targets), options.repeats, device)
        own = objective_at(model, X, Y) / optimum - 1
        print(
            f"  {dtype}: {seconds:.3g} s, {cpu / seconds:.1f} times as fast, gap {own:.0e}, {model.n_iter_} iterations"
        )
        lines.append({"case": shape, "what": str(dtype), "seconds": seconds, "ratio": cpu / seconds, "gap": own})
    rows = torch.tensor(X.toarray(), device=device)
    seconds, reached, steps = separate(rows, targets, max(gap, 1e-9))
    print(f"  torch.optim.LBFGS, separate BCE losses: {seconds:.3g} s to a gap of {reached:.0e}, {steps} evaluations")
    lines.append({"case": shape, "what": "torch.optim.LBFGS, BCE", "seconds": seconds, "gap": reached})
    return lines


def objective_at(model, X, Y):
    """The objective of a model, computed on the CPU in float64."""
    losses = -model.label_space_.distribution(X @ model.coef_.T.astype(np.float64) + model.intercept_).log_prob(Y)
    return losses.sum() + 0.5 * np.square(model.coef_.astype(np.float64)).sum()


def separate(X, Y, gap, most=3000):
    """Seconds of torch.optim.LBFGS on the sum of K penalised BCE losses, to a gap to their own optimum.

    The optimum is what it reaches in at most so many evaluations.
    """
    Y = Y.to(X.dtype)
    mean = X.mean(0)
    X = X - mean

    def run(stop, max_evaluations):
        coef = torch.zeros((X.shape[1], Y.shape[1]), dtype=X.dtype, device=X.device, requires_grad=True)
        intercept = torch.logit((Y.sum(0) + 0.5) / (len(Y) + 1)).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [coef, intercept], max_iter=10, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=0
        )
        count = 0

        def closure():
            nonlocal count
            count += 1
            optimiser.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(X @ coef + intercept, Y, reduction="sum")
            loss = loss + 0.5 * coef.square().sum()
            loss.backward()
            return loss

        begin, value, before = time.perf_counter(), np.inf, np.inf
        while count < max_evaluations:
            value = float(optimiser.step(closure))
            if value <= stop or before - value <= 1e-13 * abs(value):
                break
            before = value
        return time.perf_counter() - begin, value, count

    _, optimum, _ = run(-np.inf, most)
    seconds, value, count = run(optimum * (1 + gap), most)
    return seconds, value / optimum - 1, count


def large(options):
    """Lines of the synthetic problem in float32: ours beside the floor of its evaluations, and separate regressions."""
    _, n_features, n_labels, most = LARGE
    n_rows, device = options.rows, options.device
    X, Y = synthetic(n_rows, device)
    evaluations: list[float] = []
    seconds, model = once(lambda: CountingClassifier(evaluations).fit(X, Y), device)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else float("nan")
    flops, moved = 4 * n_rows * n_features * n_labels, 4 * (2 * n_rows * n_features + 4 * n_rows * n_labels)
    n_evaluations = len(evaluations)
    floor = n_evaluations * (flops / FLOPS[X.dtype] + moved / BANDWIDTH)
    optimum = MLRHClassifier(tol=1e-7).fit(X, Y).objective_
    gap = model.objective_ / optimum - 1
    case = f"synthetic ({n_rows:,} x {n_features:,}, K={n_labels:,}, M={most}, float32)"
    print(
        f"{case}: {seconds:.3g} s to a gap of {gap:.0e}, {model.n_iter_} iterations, {n_evaluations} evaluations "
        f"({sum(evaluations):.3g} s), floor {floor:.3g} s; {memory:.1f} GiB on the GPU",
        flush=True,
    )
    lines = [
        {"case": case, "seconds": seconds, "gap": gap, "evaluations": n_evaluations, "floor": floor, "gib": memory}
    ]
    for tol in (1e-5, LOOSE):  # once more, with all compiled, and to about the gap of the other side
        seconds, model = once(lambda tol=tol: MLRHClassifier(tol=tol).fit(X, Y), device)
        gap = model.objective_ / optimum - 1
        print(
            f"  again with tol={tol:g}: {seconds:.3g} s to a gap of {gap:.0e}, {model.n_iter_} iterations", flush=True
        )
        lines.append({"case": case, "what": f"again, tol={tol:g}", "seconds": seconds, "gap": gap})
    # The rounding errors of a sum in float32 hide smaller gaps.
    seconds, reached, steps = separate(X, Y, 1e-6, most=300)
    print(f"  torch.optim.LBFGS, separate BCE losses: {seconds:.3g} s to a gap of {reached:.0e}, {steps} evaluations")
    return [*lines, {"case": case, "what": "torch.optim.LBFGS, BCE", "seconds": seconds, "gap": reached}]


def synthetic(n_rows, device):
    """Normal features and, for each row, one to `most` of the labels that linear scores and noise make highest."""
    _, n_features, n_labels, most = LARGE
    generator = torch.Generator(device).manual_seed(0)
    X = torch.randn((n_rows, n_features), generator=generator, device=device)
    coef = torch.randn((n_features, n_labels), generator=generator, device=device) * 2 / n_features**0.5
    Y = torch.zeros((n_rows, n_labels), dtype=torch.int8, device=device)
    for start in range(0, n_rows, 65536):
        rows = slice(start, start + 65536)
        scores = X[rows] @ coef
        scores -= torch.empty_like(scores).exponential_(generator=generator).log_()
        best = scores.topk(most, dim=1).indices
        sizes = torch.randint(1, most + 1, (len(best), 1), generator=generator, device=device)
        is_in = (torch.arange(most, device=device) < sizes).to(torch.int8)
        Y[rows] = Y[rows].scatter(1, best, is_in)
    return X, Y


def once(call, device):
    """Seconds of one call, and its result."""
    begin = time.perf_counter()
    result = call()
    synchronise(device)
    return time.perf_counter() - begin, result


class CountingClassifier(MLRHClassifier):
    """MLRHClassifier that notes how long each evaluation of its objective takes."""

    def __init__(self, evaluations=None, **options):
        super().__init__(**options)
        self.evaluations = evaluations

    def _objective(self, design, space, Y):
        objective = super()._objective(design, space, Y)
        evaluate = objective.value_and_gradient

        def counted(parameters):
            begin = time.perf_counter()
            found = evaluate(parameters)
            self.evaluations.append(time.perf_counter() - begin)
            return found

        objective.value_and_gradient = counted
        return objective


if __name__ == "__main__":
    main()
