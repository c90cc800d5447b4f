"""LibMultiLabel's linear one-vs-rest, L2 logistic loss, in an environment of its own.

`python -m benchmarks.adapters.libmultilabel` makes the environment: the folder .venv-libmultilabel, or the one that
the environment variable MLRH_LIBMULTILABEL names. The fits run in a process of that environment, which measures their
seconds itself and hands over the weights; between fits it waits for the next request and takes no time.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import sparse

from benchmarks.ladders import Ladder
from benchmarks.optimum import Optimum, separate

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "benchmarks" / "requirements-libmultilabel.txt"
WORKER = Path(__file__).with_name("libmultilabel_worker.py")
STEPS = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)
TIGHT = 1e-7
DEFAULT = 0.01  # liblinear's own for this loss


class UnavailableError(RuntimeError):
    """The environment isn't there or doesn't work; the message says what to do."""


def environment() -> Path:
    """The folder of the environment, whether it exists or not."""
    return Path(os.environ.get("MLRH_LIBMULTILABEL") or ROOT / ".venv-libmultilabel")


def interpreter() -> Path:
    return environment() / "bin" / "python"


def install() -> None:
    """Make the environment; does nothing where it works already."""
    if _works():
        return
    subprocess.run([sys.executable, "-m", "venv", str(environment())], check=True)
    (environment() / ".gitignore").write_text("*\n")
    pip = [str(interpreter()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), "-r", str(REQUIREMENTS)], check=True)


def _works():
    command = [str(interpreter()), "-c", "import libmultilabel.linear"]
    return interpreter().exists() and subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def linear(problem):
    """Its ladder, while the process that fits is there; UnavailableError where there is no environment."""
    if not interpreter().exists():
        raise UnavailableError(
            f"LibMultiLabel has no environment in {environment().name}; make it with "
            "python -m benchmarks.adapters.libmultilabel"
        )
    with tempfile.TemporaryDirectory() as folder:
        sparse.save_npz(Path(folder) / "X.npz", sparse.csr_matrix(problem.X))
        sparse.save_npz(Path(folder) / "Y.npz", sparse.csr_matrix(problem.Y.astype(np.float64)))
        process = _start(folder)
        try:
            _answer(process)  # that it is ready
            yield _ladder(problem, lambda step: _ask(process, step))
        finally:
            process.terminate()
            process.communicate()


def _ladder(problem, ask):
    def point(weights):
        *coef, intercept = weights  # (n_features + 1, n_labels)
        return separate(problem.X, problem.Y, np.array(coef).T, intercept, intercept_is_penalised=True)

    optimum = Optimum(lambda: point(ask(TIGHT)[1]))
    return Ladder(
        "LibMultiLabel one-vs-rest",
        "-e ",
        STEPS,
        ("all cores",),
        lambda step, variant: ask(step),
        lambda weights: optimum.gap(point(weights).value),
        DEFAULT,
    )


def _start(folder):
    # -P: its own folder holds a module of the same name. A session of its own: Ctrl-C is ours to handle.
    command = [str(interpreter()), "-P", str(WORKER), folder]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _ask(process, step):
    """Seconds of a fit and its weights, the intercepts in the last row."""
    process.stdin.write(json.dumps({"options": f"-s 0 -c 1 -B 1 -e {step}"}) + "\n")
    process.stdin.flush()
    answer = _answer(process)
    return answer["seconds"], np.load(answer["weights"])


def _answer(process):
    line = process.stdout.readline()
    if not line:
        raise UnavailableError(f"LibMultiLabel's process ended (status {process.wait()}); its message stands above.")
    return json.loads(line)


if __name__ == "__main__":
    install()
