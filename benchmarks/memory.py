"""How much memory does a fit take above the process at rest? Against 3 (X + scores) + 25 coef + 2 min(N, D)^2.

Each fit runs in a process of its own, after a small one has loaded and compiled what fits need, and with X and Y in
place. The peak is that of the resident set.
"""

import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path

from benchmarks.fits import n_bytes_of
from benchmarks.problems import synthetic
from benchmarks.table import compared

QUESTION = "memory"
TARGET = 1.0
CASES = (
    {"n_samples": 20_000, "n_features": 300, "n_labels": 50},
    {"n_samples": 2_000, "n_features": 300, "n_labels": 400},
    {"n_samples": 1_000, "n_features": 4_000, "n_labels": 20},
    {"n_samples": 20_000, "n_features": 2_000, "n_labels": 60, "density": 0.02},
    {"n_samples": 2_000, "n_features": 20_000, "n_labels": 40, "density": 0.005},
)
QUICK_CASES = ({"n_samples": 4_000, "n_features": 100, "n_labels": 30},)


def measure(repeats, context):
    """Yields a line for each shape, dense and CSR; a peak hardly varies, so each is measured once."""
    for case in QUICK_CASES if context.quick else CASES:
        problem = synthetic(**case)
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.memory", json.dumps(case)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        peak = json.loads(answer.stdout)["peak"]
        context.tell(f"memory of {problem}: {peak / 2**20:.0f} MiB")
        allowed = budget(problem) / 2**20
        yield compared(
            QUESTION, f"fit of {problem}", peak / 2**20, "what is allowed", allowed, target=TARGET, unit="MiB"
        )


def budget(problem) -> float:
    """Bytes that a fit may take."""
    (n_samples, n_features), n_labels = problem.X.shape, problem.Y.shape[1]
    scores, coef = 8 * n_samples * n_labels, 8 * n_features * n_labels
    return 3 * (n_bytes_of(problem.X) + scores) + 25 * coef + 2 * 8 * min(n_samples, n_features) ** 2


def peak_of_fit(case) -> int:
    """Bytes by which a fit raises the largest resident set over what is resident before it."""
    from mlrh import MLRHClassifier

    warnings.simplefilter("ignore")
    small = synthetic(200, 20, 5, density=0.5 if "density" in case else None)
    MLRHClassifier().fit(small.X, small.Y)
    wide = synthetic(20, 60, 5, density=0.5 if "density" in case else None)
    MLRHClassifier().fit(wide.X, wide.Y)
    problem = synthetic(**case)
    before = restarted_peak()
    MLRHClassifier().fit(problem.X, problem.Y)
    return peak() - before


def restarted_peak():
    """Resident bytes now, from where the peak is counted anew where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak()
    return _status("VmRSS")


def peak():
    """The largest resident set since `restarted_peak`, in bytes."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name):
    """Bytes of an entry of Linux's status of the process; None elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


if __name__ == "__main__":
    print(json.dumps({"peak": peak_of_fit(json.loads(sys.argv[1]))}))
