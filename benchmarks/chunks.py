"""What does a fit to chunks cost beside one in memory? Time, passes, memory and growth, and SGD over the same chunks.

Files lie in a temporary folder (TMPDIR; 4 GB) and were just written, so that the system has them in memory. Memory is
RssAnon of a process of its own, sampled: all that is not a file, the interpreter and compiled code included.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from pyarrow import parquet
from scipy import sparse
from sklearn.linear_model import SGDClassifier

from benchmarks.growth import FACTORS, slope
from benchmarks.problems import public, synthetic
from benchmarks.table import Line, attempted, compared, raced
from benchmarks.timing import interleaved, quietly, timed
from mlrh import MLRHClassifier
from mlrh.data import MultilabelData, write
from mlrh.fitting.rows import RowsInMemory

QUESTION = "chunks"
TARGET, TARGET_PASSES, TARGET_SLOPE, TARGET_SHARE = 1.3, 1.3, 1.05, 0.1
DENSE, DENSE_QUICK = (100_000, 300, 20), (1_000, 10, 4)
LARGE, LARGE_QUICK = (2_000_000, 200, 10), (16_000, 20, 4)  # 3.2 GB, of which a tenth holds Python and its libraries
N_FILES = 10
REPEATED = 5  # how often the rows of tmc2007-500 are repeated
N_ITER = 5  # of fits whose growth is measured
BLOCK = 50_000  # rows that are drawn at a time
MAX_EPOCHS = 20


def measure(repeats, context):
    """Yields a line for each claim of docs/scale.md about chunks."""
    with tempfile.TemporaryDirectory() as folder:
        for part in (dense_times, sparse_times, passes, large, beside_sgd):
            name = part.__name__.replace("_", " ")
            yield from attempted(QUESTION, name, part, Path(folder), repeats, context)


def dense_times(folder, repeats, context):
    """Yields the times from memory-mapped arrays and from Parquet files, beside a fit in memory."""
    problem = synthetic(*(DENSE_QUICK if context.quick else DENSE))
    context.tell(str(problem))
    fit = partial(quietly, MLRHClassifier().fit, problem.X, problem.Y)
    arrays = mapped(folder, "X", problem.X), mapped(folder, "Y", problem.Y.astype(np.int8))
    labels, paths = parquet_parts(folder, problem)
    with_dictionaries = [as_by_default(path) for path in paths]
    sources = {
        "memory-mapped": (arrays,),
        f"{N_FILES} Parquet files": (paths, labels),
        f"{N_FILES} Parquet files as pandas writes them": (with_dictionaries, labels),
    }
    for name, source in sources.items():
        ours = partial(quietly, MLRHClassifier().fit_chunks, *source)
        yield from raced_twice(f"{problem}, {name}", ours, fit, repeats)


def sparse_times(folder, repeats, context):
    """Yields the time from a memory-mapped CSR matrix beside a fit in memory."""
    problem = synthetic(1_000, 30, 4, density=0.2) if context.quick else public("tmc2007-500")
    X = sparse.csr_array(sparse.vstack([problem.X] * REPEATED, format="csr"))
    Y = np.tile(problem.Y.astype(np.int8), (REPEATED, 1))
    parts = tuple(mapped(folder, name, getattr(X, name)) for name in ("data", "indices", "indptr"))
    arrays = sparse.csr_array(parts, shape=X.shape, copy=False), mapped(folder, "sets", Y)
    context.tell(f"{problem}, {REPEATED} times")
    fit, ours = partial(quietly, MLRHClassifier().fit, X, Y), partial(quietly, MLRHClassifier().fit_chunks, arrays)
    yield from raced_twice(f"{problem} repeated {REPEATED} times, memory-mapped", ours, fit, repeats)


def raced_twice(case, ours, fit, repeats):
    """Yields two lines beside a fit in memory: by the clock, and by processor time, which other programs change less.

    Processor time counts what is done by other threads, as files are decoded, in full.
    """
    noted = {"ours": [], "fit": []}
    ours, fit = partial(noting, noted["ours"], ours), partial(noting, noted["fit"], fit)
    yield raced(QUESTION, case, ours, "fit in memory", fit, repeats, target=TARGET)
    seconds = [statistics.median(own[1:]) for own in noted.values()]  # the first turn warms up
    yield compared(QUESTION, f"{case}, processor time", seconds[0], "fit in memory", seconds[1], target=TARGET)


def noting(seconds, function):
    """function(), with its processor time noted."""
    begin = time.process_time()
    result = function()
    seconds.append(time.process_time() - begin)
    return result


def passes(folder, repeats, context):
    """Yields passes over chunks beside the evaluations, products with the Hessian included, of a fit in memory."""
    problems = [synthetic(2_000, 50, 10), synthetic(2_000, 300, 10, density=0.05)]
    problems += [] if context.quick else [public(name) for name in ("yeast", "scene", "tmc2007-500")]
    for problem in problems:
        for name, options in (("L2", {}), ("L1", {"l1_ratio": 1.0, "C": 0.1})):
            chunks = Counted(problem.X, problem.Y)
            quietly(MLRHClassifier(**options).fit_chunks, chunks)
            evaluations = n_evaluations(partial(quietly, MLRHClassifier(**options).fit, problem.X, problem.Y))
            yield compared(
                *(QUESTION, f"passes, {name}, {problem}", chunks.n_passes, "evaluations of fit", evaluations),
                target=TARGET_PASSES,
                unit="passes",
            )


class Counted:
    """Four chunks that count how often they are gone through."""

    def __init__(self, X, Y):
        cuts = np.linspace(0, len(Y), 5).astype(int)
        self._parts = [(X[a:b], Y[a:b]) for a, b in pairwise(cuts)]
        self.n_passes = 0

    def __iter__(self):
        self.n_passes += 1
        return iter(self._parts)


def n_evaluations(fit) -> int:
    """How often fit() asks its rows for a gradient, new diagonals of its metric, or a product with the Hessian."""
    names, asked = ("expected_sums", "_with_curvatures", "diagonal_curvatures", "hessian"), []
    before = {name: getattr(RowsInMemory, name) for name in names}

    def counting(name):
        def call(self, *arguments):
            answer = before[name](self, *arguments)
            if name != "hessian":
                asked.append(name)
                return answer
            return lambda *direction: asked.append(name) or answer(*direction)

        return call

    try:
        for name in names:
            setattr(RowsInMemory, name, counting(name))
        fit()
    finally:
        for name, function in before.items():
            setattr(RowsInMemory, name, function)
    return len(asked)


def large(folder, repeats, context):
    """Yields the share of memory of a fit to a large set, and how time and memory grow with its rows."""
    sizes = LARGE_QUICK if context.quick else LARGE
    draw(folder, *sizes)
    rows = [sizes[0] * factor // FACTORS[-1] for factor in FACTORS]
    shape = f"{sizes[1]} features, {sizes[2]} labels, memory-mapped"
    least, most = (memory_of(folder, n_rows) for n_rows in (rows[0], rows[-1]))
    data = (folder / "large-X.npy").stat().st_size
    context.tell(f"memory: {least / 2**20:.0f} and {most / 2**20:.0f} MiB, data {data / 2**20:.0f} MiB")
    case = f"anonymous memory, {rows[-1]:,} rows, {shape}"
    share = None if context.quick else TARGET_SHARE
    yield compared(QUESTION, case, most / 2**20, "the data", data / 2**20, target=share, unit="MiB")
    case = f"anonymous memory, {rows[-1]:,} rows beside {rows[0]:,}, {shape}"
    yield compared(QUESTION, case, most / 2**20, f"{rows[0]:,} rows", least / 2**20, target=1.1, unit="MiB")
    noted = {n_rows: [] for n_rows in rows}
    calls = {str(n_rows): timed(partial(noting, noted[n_rows], partial(fit_first, folder, n_rows))) for n_rows in rows}
    by_clock = [own.median for own in interleaved(calls, min(repeats, 3)).values()]
    by_processor = [statistics.median(own[1:]) for own in noted.values()]  # the first turn warms up
    for how, seconds in (("", by_clock), (" of processor time", by_processor)):
        shown, steepness = " ".join(f"{own:.3g}" for own in seconds), slope(rows, seconds)
        context.tell(f"growth: {shown} s{how}, slope {steepness:.2f}")
        case = f"growth in rows, {rows[0]:,}..{rows[-1]:,} ({shape}): {shown} s{how}"
        yield Line(QUESTION, case, steepness, "linear growth", 1.0, steepness, TARGET_SLOPE, unit="slope")


def draw(folder, n_rows, n_features, n_labels):
    """Write a large set, of normal features and sets of any size, block by block."""
    rng = np.random.default_rng(0)
    X = np.lib.format.open_memmap(folder / "large-X.npy", "w+", np.float64, (n_rows, n_features))
    Y = np.lib.format.open_memmap(folder / "large-Y.npy", "w+", np.int8, (n_rows, n_labels))
    coef = rng.standard_normal((n_features, n_labels)) / np.sqrt(n_features)
    for start in range(0, n_rows, BLOCK):
        own = X[start : start + BLOCK]
        own[:] = rng.standard_normal(own.shape)
        Y[start : start + BLOCK] = own @ coef + rng.logistic(size=(len(own), n_labels)) > 1


def fit_first(folder, n_rows):
    """N_ITER iterations on the first rows of the large set."""
    X, Y = (np.load(folder / f"large-{name}.npy", mmap_mode="r")[:n_rows] for name in "XY")
    model = MLRHClassifier(max_labels=Y.shape[1], min_labels=0, tol=0, max_iter=N_ITER)
    return quietly(model.fit_chunks, (X, Y))


def memory_of(folder, n_rows) -> int:
    """The largest RssAnon of a process that fits the first rows of the large set."""
    command = [sys.executable, "-m", "benchmarks.chunks", str(folder), str(n_rows)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    return json.loads(answer.stdout)["most"]


def largest_anonymous(function) -> int:
    """The largest RssAnon of this process while the function runs, sampled every few milliseconds."""
    most, end = [anonymous_bytes()], threading.Event()

    def watch():
        while not end.wait(0.005):
            most[0] = max(most[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        end.set()
        watcher.join()
    return most[0]


def anonymous_bytes() -> int:
    """RssAnon, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def beside_sgd(folder, repeats, context):
    """Yields the line of one logistic regression per label, by stochastic gradients over the same chunks.

    Both minimise the same objective: with sets of all sizes, labels are independent. The gap is the relative distance
    of the objective from that of a tight fit; SGD makes epochs until its gap is as small as ours, or MAX_EPOCHS.
    """
    n_rows, n_features, n_labels = (2_000, 10, 3) if context.quick else (50_000, 100, 5)
    problem = synthetic(n_rows, n_features, n_labels)
    options = {"min_labels": 0, "max_labels": n_labels}
    chunks = Counted(problem.X, problem.Y)
    best = quietly(MLRHClassifier(**options, tol=1e-13).fit, problem.X, problem.Y).objective_
    seconds, ours = timed(partial(quietly, MLRHClassifier(**options).fit_chunks, chunks))()
    gap = ours.objective_ / best - 1
    theirs, their_gap, n_epochs = stochastic(chunks, problem, best, max(gap, 1e-4), 3 if context.quick else MAX_EPOCHS)
    context.tell(f"chunks {seconds:.2f} s, gap {gap:.1e}; SGD {theirs:.2f} s, gap {their_gap:.1e}, {n_epochs} epochs")
    note = f"{n_epochs} epochs"
    told = {"gap": max(gap, 0.0), "their_gap": their_gap, "note": note, "target": None}
    yield compared(QUESTION, str(problem), seconds, "SGDClassifier.partial_fit for each label", theirs, **told)


def stochastic(chunks, problem, best, enough, max_epochs):
    """Seconds of epochs of SGD over the chunks, the gap they reach, and their number."""
    # The best of five settings tried here. Gaps of three such schedules after four epochs: 6e-4 (this one) to 2e-2. The
    # defaults had 2e-1 after 50 epochs, and with average=True 3 after 20.
    steps = {"learning_rate": "invscaling", "eta0": 0.1, "power_t": 0.5}
    options = {"loss": "log_loss", "alpha": 1 / len(problem.Y), "random_state": 0, **steps}
    models = [SGDClassifier(**options) for _ in problem.Y.T]
    seconds, gap, epoch = 0.0, np.inf, 0
    while gap > enough and epoch < max_epochs:
        begin = time.perf_counter()
        for X, Y in chunks:
            for model, labels in zip(models, Y.T, strict=True):
                model.partial_fit(X, labels, classes=[0, 1])
        seconds += time.perf_counter() - begin
        epoch += 1
        gap = sum(binary_objective(model, problem.X, own) for model, own in zip(models, problem.Y.T, strict=True))
        gap = gap / best - 1
    return seconds, gap, epoch


def binary_objective(model, X, labels):
    """The penalised loss of one label at C = 1, intercept not penalised."""
    scores = model.decision_function(X)
    return np.logaddexp(0, scores).sum() - scores @ labels + 0.5 * np.square(model.coef_).sum()


def mapped(folder, name, array):
    """The array, written and memory-mapped."""
    np.save(folder / f"{name}.npy", array)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def parquet_parts(folder, problem):
    """Names of the labels, and the paths of N_FILES Parquet files with the rows of a problem."""
    (n_rows, n_features), n_labels = problem.X.shape, problem.Y.shape[1]
    names, labels = tuple(f"x{d}" for d in range(n_features)), tuple(f"label {k}" for k in range(n_labels))
    paths = [folder / f"part{i}.parquet" for i in range(N_FILES)]
    for path, rows in zip(paths, np.array_split(np.arange(n_rows), N_FILES), strict=True):
        write(MultilabelData(problem.X[rows], problem.Y[rows].astype(np.int8), names, labels, "part"), path)
    return labels, paths


def as_by_default(path):
    """The path of a copy of a Parquet file as Arrow, and so pandas, writes it by default: columns as dictionaries."""
    copy = path.with_stem(f"{path.stem}-by-default")
    parquet.write_table(parquet.read_table(path), copy)
    return copy


if __name__ == "__main__":
    print(json.dumps({"most": largest_anonymous(partial(fit_first, Path(sys.argv[1]), int(sys.argv[2])))}))
