"""Fit to ten files, of which two are in memory at a time, and compare memory and model with a fit to all rows.

Run it with `python examples/chunks.py`.
"""

import tempfile
import threading
from pathlib import Path

import numpy as np

from mlrh import MLRHClassifier
from mlrh.data import load_digit_scenes


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
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def main(n_files=10, n_rows=2000):
    with tempfile.TemporaryDirectory() as folder:
        paths = write_parts(folder, n_files, n_rows)
        data = sum(path.stat().st_size for pair in paths for path in pair)
        MLRHClassifier(C=0.1, max_iter=2, tol=1).fit_chunks(paths[:1])  # compiles what fits need
        with AnonymousMemory() as chunked:
            model = MLRHClassifier(C=0.1).fit_chunks(paths)
        X, Y = (np.concatenate([np.load(pair[i]) for pair in paths]) for i in (0, 1))
        with AnonymousMemory() as joined:
            fitted = MLRHClassifier(C=0.1).fit(X, Y)
    print(f"{n_files} files, {len(X):,} rows, {data / 2**20:.0f} MiB")
    print("            memory, MiB  iterations  objective")
    for name, watched, own in (("fit_chunks", chunked, model), ("fit", joined, fitted)):
        print(f"{name:10}  {watched.most / 2**20:11.0f}  {own.n_iter_:10}  {own.objective_:.6f}")


if __name__ == "__main__":
    main()
