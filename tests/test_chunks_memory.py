"""Anonymous memory of a fit to chunks stays under a tenth of the data's bytes; the example keeps its budget."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import json, runpy, sys
import numpy as np
from mlrh import MLRHClassifier

watched = runpy.run_path(sys.argv[2] + "/examples/chunks.py")["AnonymousMemory"]
X, Y = (np.load(f"{sys.argv[1]}/{name}.npy", mmap_mode="r") for name in "XY")
chunks = (X, Y) if sys.argv[3] == "arrays" else lambda: (
    (np.array(X[start : start + 2000]), Y[start : start + 2000]) for start in range(0, len(X), 2000)
)
MLRHClassifier(max_iter=2, tol=1).fit_chunks((X[:5000], Y[:5000]))  # compiles, and fills the pools of threads
with watched() as memory:
    model = MLRHClassifier(max_iter=4, tol=1e-3).fit_chunks(chunks)
print(json.dumps({"most": memory.most, "objective": model.objective_}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """160 MB of features, and label sets, in two files."""
    folder = tmp_path_factory.mktemp("rows")
    rng, n_rows, n_features = np.random.RandomState(0), 200_000, 100
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float64, (n_rows, n_features))
    Y = np.lib.format.open_memmap(folder / "Y.npy", "w+", np.int8, (n_rows, 5))
    coef = rng.normal(size=(n_features, 5)) / 10
    for start in range(0, n_rows, 20_000):
        X[start : start + 20_000] = rng.normal(size=(20_000, n_features))
        Y[start : start + 20_000] = X[start : start + 20_000] @ coef + rng.logistic(size=(20_000, 5)) > 0.5
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is Linux's")
@pytest.mark.parametrize("source", ["arrays", "copies"])
def test_anonymous_memory_stays_under_a_tenth_of_the_data(source, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder), str(ROOT), source]
    answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    assert json.loads(answer.stdout)["most"] < 0.1 * (folder / "X.npy").stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process so")
def test_the_example_fits_ten_files_within_a_budget_that_a_fit_to_all_rows_exceeds():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "chunks.py")]
    answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    what, _, chunked, joined = answer.stdout.splitlines()
    data, budget = map(int, re.findall(r"([0-9]+) MiB", what))
    assert what.startswith("10 files") and 3 * budget < data
    # The limit is that of the process, so that a fit that takes more ends with a MemoryError, as that of all rows does.
    assert chunked.startswith("fit_chunks ") and chunked.endswith(" yes") and int(chunked.split()[1]) < budget
    assert joined.startswith("fit ") and joined.endswith(" no: MemoryError")
    assert float(chunked.split()[3]) == pytest.approx(float(joined.split()[3]), rel=1e-8)
