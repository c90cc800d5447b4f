"""Accuracy, time and memory of approximate kernels beside the exact one, for more and more rows.

Run it with `python -m benchmarks.kernel_approximation [rows ...]`; it prints a table in Markdown. Rows are digit scenes
(64 pixels, 10 labels, one to three of them present), and the test rows 2,000 scenes of other images. Each fit has a
process of its own, in which a small one came before. Seconds are those of the processor, with one thread of BLAS.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROWS = (2_000, 5_000, 10_000, 20_000, 50_000)
MOST_EXACT = 10_000  # rows up to which the exact kernel is fitted: 3.3 GB
N_TEST = 2_000
APPROXIMATIONS = (("nystroem", 300), ("nystroem", 1000), ("nystroem", 3000), ("fourier", 1000), ("fourier", 3000))
MOST_ENTRIES = 60_000_000  # of features: 960 MB with their centred copy


def main(rows=ROWS):
    """Print the table, a line as soon as it is measured."""
    print("| rows | kernel | exact match | seconds | MiB | kernel_error_ |\n| --- | --- | --- | --- | --- | --- |")
    for n_rows in rows:
        for kind, n_components in ((None, 0), *APPROXIMATIONS):
            is_small = n_rows <= MOST_EXACT if kind is None else n_rows * n_components <= MOST_ENTRIES
            if is_small and n_components < n_rows:
                print(_line(n_rows, kind, n_components), flush=True)


def _line(n_rows, kind, n_components):
    case = {"n_rows": n_rows, "kind": kind, "n_components": n_components}
    command = [sys.executable, "-m", "benchmarks.kernel_approximation", "--case", json.dumps(case)]
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment, root = {**os.environ, **threads}, Path(__file__).parents[1]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, cwd=root).stdout)
    name = "exact" if kind is None else f"{kind}, {n_components:,}"
    figures = f"{answer['exact_match']:.3f} | {answer['seconds']:.3g} | {answer['bytes'] / 2**20:.0f}"
    return f"| {n_rows:,} | {name} | {figures} | {answer['error']:.2g} |"


def measured(n_rows, kind, n_components) -> dict[str, float]:
    """What one fit takes and gives."""
    from benchmarks.memory import peak, restarted_peak
    from mlrh import KernelMLRHClassifier
    from mlrh.data import load_digit_scenes

    options = {"kernel_approximation": kind, "n_components": n_components or 1, "random_state": 0, "n_jobs": 1}
    train, test = load_digit_scenes(n_rows, part="train"), load_digit_scenes(N_TEST, part="test")
    model = KernelMLRHClassifier(C=10, **options)
    model.fit(train.X[:300], train.Y[:300])
    before, begin = restarted_peak(), time.process_time()
    model.fit(train.X, train.Y)
    taken = {"seconds": time.process_time() - begin, "bytes": peak() - before}
    return {**taken, "exact_match": model.score(test.X, test.Y), "error": model.kernel_error_}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(measured(**json.loads(sys.argv[2]))))
    else:
        main(tuple(map(int, sys.argv[1:])) or ROWS)
