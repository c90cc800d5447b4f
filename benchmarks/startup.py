"""What does `import mlrh` add, and does the first fit of a later process compile? Each figure from fresh processes.

`import mlrh` loads what it needs at first use, so the classifiers are asked for by name. What it adds is the time of
`import sklearn.linear_model` and then mlrh minus that of the first alone; it is held against what
`import sklearn.linear_model` adds to an empty process.
"""

import statistics
import subprocess
import sys
import time
from functools import partial

from benchmarks.table import Line, compared
from benchmarks.timing import interleaved

QUESTION = "start"
IMPORT_TARGET = 0.5
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


def measure(repeats, context):
    """Yields what importing adds, by name alone and with the classifiers, and the first fit beside the second."""
    context.tell("imports in fresh processes")
    runs = interleaved({name: partial(_seconds, program) for name, program in PROGRAMS.items()}, repeats)
    cost = difference(runs["sklearn"], runs["empty"])
    yield added("import mlrh", difference(runs["name"], runs["sklearn"]), cost)
    yield added("from mlrh import the classifiers", difference(runs["both"], runs["sklearn"]), cost)
    alone = difference(runs["alone"], runs["empty"])
    case = "from mlrh import the classifiers, without scikit-learn loaded"
    yield Line(QUESTION, case, alone, SKLEARN, cost, alone / cost, None)
    yield from first_fit(repeats, context)


def difference(runs, others) -> float:
    """Median over turns of the seconds that the runs take longer than the others of the same turn."""
    return statistics.median(own - other for own, other in zip(runs.seconds, others.seconds, strict=True))


def added(what, seconds, cost):
    """The line of an import that adds so many seconds, 0 if they are lost in the noise."""
    case = f"{what}, after {SKLEARN}"
    return compared(QUESTION, case, max(seconds, 0.0), SKLEARN, cost, target=IMPORT_TARGET)


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


def _seconds(program):
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin, None


def _fits():
    answer = subprocess.run([sys.executable, "-c", FITS], check=True, stdout=subprocess.PIPE, text=True)
    return [float(number) for number in answer.stdout.split()]
