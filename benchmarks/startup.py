"""What does `import mlrh` add, what does the first fit ever compile, and does that of a later process compile?

Each figure comes from fresh processes.

`import mlrh` loads what it needs at first use, so the classifiers are asked for by name. What it adds is the time of
`import sklearn.linear_model` and then mlrh minus that of the first alone; it is held against what
`import sklearn.linear_model` adds to an empty process.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

from benchmarks.table import Line, compared
from benchmarks.timing import interleaved

QUESTION = "start"
IMPORT_TARGET = 0.5
MAX_COMPILING = 5.0  # seconds of processor time, the first fit ever less the second
SKLEARN = "import sklearn.linear_model"
PROGRAMS = {
    "empty": "pass",
    "sklearn": SKLEARN,
    "name": f"{SKLEARN}; import mlrh",
    "both": f"{SKLEARN}; from mlrh import KernelMLRHClassifier, MLRHClassifier",
    "alone": "from mlrh import KernelMLRHClassifier, MLRHClassifier",
}
COUNT = """
from numba.core.event import RecordingListener, register
listener = RecordingListener()
register("numba:compile", listener)
def n_compiled():
    return sum(event.is_start for _, event in listener.buffer)
"""
FITS = f"""{COUNT}
import time, numpy as np
from mlrh import MLRHClassifier
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2000, 50)), (rng.random((2000, 10)) < 0.2).astype(np.int8)
for _ in range(2):
    begin = time.perf_counter(); MLRHClassifier().fit(X, Y); print(time.perf_counter() - begin)
print(n_compiled())
"""
FIRST_EVER = """
import time
from scipy import sparse
from benchmarks.problems import public
from mlrh import KernelMLRHClassifier, MLRHClassifier
problem = public("{name}")
X = sparse.csr_array(problem.X) if {is_sparse} else problem.X
model = {model}
for _ in range(2):
    begin = time.process_time(); model.fit(X, problem.Y); print(time.process_time() - begin)
"""
# Of more than 24 labels and sparse features a fit begins in float32: its kernels are compiled for both types.
FIRST_FITS = (
    ("emotions", "dense", False, "MLRHClassifier()"),
    ("emotions", "sparse", True, "MLRHClassifier()"),
    ("corel5k", "sparse", True, "MLRHClassifier()"),
    ("emotions", "RBF kernel", False, "KernelMLRHClassifier()"),
    ("emotions", "sparse, open space", True, 'MLRHClassifier(label_space="open", set_bias_strength=1.0)'),
)


def measure(repeats, context):
    """Yields what importing adds, by name alone and with the classifiers, and first fits beside the second."""
    context.tell("imports in fresh processes")
    runs = interleaved({name: partial(_seconds, program) for name, program in PROGRAMS.items()}, repeats)
    cost = difference(runs["sklearn"], runs["empty"])
    yield added("import mlrh", difference(runs["name"], runs["sklearn"]), cost)
    yield added("from mlrh import the classifiers", difference(runs["both"], runs["sklearn"]), cost)
    alone = difference(runs["alone"], runs["empty"])
    case = "from mlrh import the classifiers, without scikit-learn loaded"
    yield Line(QUESTION, case, alone, SKLEARN, cost, alone / cost, None)
    yield from first_fit(repeats, context)
    for name, form, is_sparse, model in FIRST_FITS:
        yield first_ever(f"{name}, {form}", name, is_sparse, model, context)


def difference(runs, others) -> float:
    """Median over turns of the seconds that the runs take longer than the others of the same turn."""
    return statistics.median(own - other for own, other in zip(runs.seconds, others.seconds, strict=True))


def added(what, seconds, cost):
    """The line of an import that adds so many seconds, 0 if they are lost in the noise."""
    case, note = f"{what}, after {SKLEARN}", "" if seconds > 0 else "lost in the noise"
    return compared(QUESTION, case, max(seconds, 0.0), SKLEARN, cost, target=IMPORT_TARGET, note=note)


def first_fit(repeats, context):
    """Yields what is compiled in a process that isn't the first to fit, and how long its first fit takes.

    That it takes longer than the second is the loading of compiled code.
    """
    context.tell("first and second fit in fresh processes")
    _fits()  # compiles where nobody has before
    firsts, seconds, compiled = zip(*(_fits() for _ in range(repeats)), strict=True)
    most, case = max(compiled), "first fit of a later process"
    yield Line(QUESTION, f"{case}: functions compiled", most, "none", 0.0, most, 0.0, unit="")
    first, second = statistics.median(firsts), statistics.median(seconds)
    yield compared(QUESTION, case, first, "second fit of that process", second, target=None)


def first_ever(words, name, is_sparse, model, context):
    """The line of the first fit in an environment where nothing is compiled, in processor time: compiling is its rest.

    Once, since it takes long and other processes hardly change processor time.
    """
    case = f"first fit ever: compiling, {words}, processor time"
    context.tell(case)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        first, second = _printed(FIRST_EVER.format(name=name, is_sparse=is_sparse, model=model), env=environment)
    return compared(QUESTION, case, first - second, "what is allowed", MAX_COMPILING, target=1.0)


def _seconds(program):
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin, None


def _fits():
    return _printed(FITS)


def _printed(program, **options):
    """The numbers that a program prints."""
    answer = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, **options)
    return [float(number) for number in answer.stdout.split()]
