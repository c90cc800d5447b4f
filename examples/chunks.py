"""Fit to ten files under a memory budget of less than a third of their bytes, and compare with a fit to all rows.

On Linux the budget is a limit of the process: who takes more gets a MemoryError, as the fit to all rows does. Run it
with `python examples/chunks.py`.
"""

import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mlrh import MLRHClassifier
from mlrh.data import load_digit_scenes

# Twice what fit_chunks needs here, 12 to 16 MiB: three square matrices of 664 features (10 MiB), stacks of threads,
# blocks of scores. fit needs the 102 MiB of the rows at least. The limit counts what a process asks for, not what the
# system gives it page by page; files are mapped, and products have one thread: so it is the same on any machine.
BUDGET = 32 * 2**20


def write_parts(folder, n_files, n_rows):
    """Pairs of files (X, Y), each of n_rows scenes; the features are those of the scenes and their products."""
    paths = []
    for number in range(n_files):
        scenes = load_digit_scenes(n_rows, part="train", random_state=number)
        paths.append((Path(folder) / f"X{number}.npy", Path(folder) / f"Y{number}.npy"))
        np.save(paths[-1][0], with_products(scenes.X))
        np.save(paths[-1][1], scenes.Y)
    return paths


def with_products(X, n_products=600, seed=0):
    """X, from 0 to 1, and some products of two columns."""
    left, right = np.random.RandomState(seed).randint(X.shape[1], size=(2, n_products))
    X = X / 16
    return np.hstack([X, X[:, left] * X[:, right]])


class AnonymousMemory:
    """The largest amount by which the memory of this process grows in a block, files mapped into memory left out."""

    def __enter__(self):
        self._first, self.most, self._end = anonymous_bytes(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()

    def _watch(self):
        while not self._end.wait(0.005):
            self.most = max(self.most, anonymous_bytes() - self._first)


def anonymous_bytes():
    """RssAnon of the process, as Linux counts it."""
    return status("RssAnon")


def status(name):
    """A number of bytes that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@contextmanager
def at_most(n_bytes):
    """A block in which the process may take so many bytes more than it has; files mapped into memory don't count.

    It then gets no more memory from the system: a MemoryError. Only Linux counts so; elsewhere nothing is limited.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    before, stack = resource.getrlimit(resource.RLIMIT_DATA), threading.stack_size(2**21)
    # What VmData says is what the limit counts, the stacks of threads included.
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        threading.stack_size(stack)


def joined(paths):
    """X and Y of all files."""
    return (np.concatenate([np.load(pair[i], mmap_mode="r") for pair in paths]) for i in (0, 1))


def is_too_much(paths, budget):
    """Whether a fit to all rows in memory goes beyond the budget."""
    try:
        with at_most(budget):
            MLRHClassifier(C=0.1, n_jobs=1).fit(*joined(paths))
    except MemoryError:
        return True
    return False


def main(n_files=10, n_rows=2000, budget=BUDGET):
    with tempfile.TemporaryDirectory() as folder:
        paths = write_parts(folder, n_files, n_rows)
        data = sum(path.stat().st_size for pair in paths for path in pair)
        MLRHClassifier(C=0.1, n_jobs=1).fit_chunks(paths[:1])  # compiles all that fits need
        with AnonymousMemory() as chunked, at_most(budget):
            model = MLRHClassifier(C=0.1, n_jobs=1).fit_chunks(paths)
        refused = is_too_much(paths, budget)
        with AnonymousMemory() as whole:
            X, Y = joined(paths)
            fitted = MLRHClassifier(C=0.1, n_jobs=1).fit(X, Y)
    print(f"{n_files} files, {len(X):,} rows, {data / 2**20:.0f} MiB; the budget is {budget / 2**20:.0f} MiB")
    print("            memory, MiB  iterations  objective  within the budget")
    for name, watched, own, is_within in (("fit_chunks", chunked, model, True), ("fit", whole, fitted, not refused)):
        within = "yes" if is_within else "no: MemoryError"
        print(f"{name:10}  {watched.most / 2**20:11.0f}  {own.n_iter_:10}  {own.objective_:.6f}  {within}")


if __name__ == "__main__":
    main()
