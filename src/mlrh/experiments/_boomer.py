"""BOOMER (mlrl-boomer) in an environment of its own, whose Python runs this file: from rows to answers.

`make boomer` makes the environment; the variable MLRH_BOOMER names it where it isn't the folder .venv-boomer. Each fit
is a process of its own: version 0.12 corrupts memory in the second fit of a process, and with features of 64 bits.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse

# Conditions of a rule at most. Without a limit, the loss of whole sets takes eight times as long on yeast: one fit in
# place of all folds within the time of a task.
MAX_CONDITIONS = 3


def environment() -> Path:
    """The folder of the environment, whether it is there or not."""
    return Path(os.environ.get("MLRH_BOOMER") or ".venv-boomer")


def missing() -> str:
    """Why BOOMER can't be run; empty where it can."""
    if _interpreter().exists():
        return ""
    return f"BOOMER has no environment in {environment()}; run: make boomer, or name it by MLRH_BOOMER"


def answers(X, Y, X_test, *, loss, numbers_of_rules, seed, max_seconds):
    """Answers after some numbers of rules, and the seconds of the fit.

    Parameters
    ----------
    X, Y, X_test : features (dense or sparse) and label sets to learn from, and features of the rows asked about
    loss : str, BOOMER's name of it
    numbers_of_rules : list of int
    seed : int
    max_seconds : float
        Of processor time; beyond, a TimeoutError is raised.

    Returns
    -------
    list of (sets, marginals), arrays of shape (n_test, n_labels), for each number of rules; and seconds
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, features in (("X", X), ("X_test", X_test)):
            sparse.save_npz(Path(folder) / f"{name}.npz", sparse.csr_matrix(features, dtype=np.float32))
        np.save(Path(folder) / "Y.npy", np.asarray(Y, np.uint8))
        order = {
            "is_sparse": sparse.issparse(X),
            "numbers_of_rules": numbers_of_rules,
            "max_seconds": max_seconds,
            "options": {
                "loss": loss,
                "random_state": seed + 1,  # 0 is none
                "max_rules": max(numbers_of_rules),
                "rule_induction": f"top-down-greedy{{max_conditions={MAX_CONDITIONS}}}",
            },
        }
        (Path(folder) / "order.json").write_text(json.dumps(order))
        _run(folder)
        with np.load(Path(folder) / "answers.npz") as found:
            both = list(zip(found["sets"], found["marginals"], strict=True))
            return both, float(found["seconds"])


def processor_seconds() -> float:
    """Processor time of all processes that this one has started and that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def _interpreter():
    return environment() / "bin" / "python"


def _run(folder):
    # -P: the folder of this file, which has modules of other names in it, is no place to import from.
    command = [str(_interpreter()), "-P", __file__, folder]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True)
    if done.returncode == -signal.SIGXCPU:
        raise TimeoutError
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"BOOMER ended with status {done.returncode}: {last}")


# In the other environment


def _work(folder):
    import resource

    from mlrl.boosting import BoomerClassifier  # type: ignore[import-not-found]  # only there

    order = json.loads((folder / "order.json").read_text())
    seconds = max(1, round(order["max_seconds"]))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10))  # the first ends it by SIGXCPU
    X, X_test = (sparse.load_npz(folder / f"{name}.npz") for name in ("X", "X_test"))
    X, X_test = (X.tocsc(), X_test) if order["is_sparse"] else (np.asfortranarray(X.toarray()), X_test.toarray())
    begin = time.perf_counter()
    model = BoomerClassifier(**order["options"]).fit(X, np.load(folder / "Y.npy"))
    took, sets, marginals = time.perf_counter() - begin, [], []
    for n_rules in order["numbers_of_rules"]:
        predicted = model.predict(X_test, max_rules=n_rules)
        sets.append(np.asarray(predicted.toarray() if sparse.issparse(predicted) else predicted, np.int8))
        marginals.append(np.clip(np.asarray(model.predict_proba(X_test, max_rules=n_rules), np.float64), 0, 1))
    np.savez(folder / "answers.npz", sets=sets, marginals=marginals, seconds=took)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # what version 0.12 frees at the end of a process can end it with a fault
