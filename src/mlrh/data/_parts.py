"""Files as parts of one data set: read once, then memory-mapped, so that going through them again costs little memory.

Text and compressed files take far longer to decode than a fit takes to look at their numbers. So their arrays are
written to a folder of their own for as long as the parts are open, and mapped into memory from there: the system keeps
what it has room for. The folder lies where the variable TMPDIR says.
"""

import gzip
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from mlrh.data._readers import read
from mlrh.data._sources import parts_of, shown
from mlrh.data.containers import DataError, MultilabelData, listed

ARRAYS = (".npy", ".npz")
N_READERS = 2  # files that are read at a time: about half of the work is done by compiled code, which threads share
OF_CSR = ("X_data", "X_indices", "X_indptr", "X_shape")


@dataclass(frozen=True)
class _Part:
    """One file's arrays, memory-mapped; its columns are features `first`, `first` + 1, ... and these labels."""

    name: str
    X: Any
    Y: np.ndarray
    weight: np.ndarray | None
    first: int = 0
    label_names: tuple[str, ...] | None = None


class FileParts:
    """Files that hold rows of one data set, as a context in which they can be gone through any number of times.

    Yields (X, Y) or (X, Y, weight) for each file, in order. X and Y are memory-mapped.

    Parameters
    ----------
    paths : sequence
        Each a path of a file that `read` knows (Parquet, CSV, LIBSVM, ARFF, also compressed with gzip), of a .npz file
        with the arrays X (or X_data, X_indices, X_indptr and X_shape, of a CSR matrix), Y and, if rows have weights,
        weight; or a pair or triple of paths of .npy files that hold X, Y and the weights.
    labels : sequence of str, optional
        The names of the label columns, as for `read`: needed for CSV and Parquet.
    format : str, optional
        As for `read`.

    Attributes
    ----------
    label_names : tuple of str or None
        None for files of arrays, which have no names.
    """

    def __init__(self, paths: Sequence, labels: Sequence[str] | None = None, *, format: str | None = None):
        self._paths, self._labels, self._format = list(paths), None if labels is None else [*labels], format
        if not self._paths:
            raise DataError("A list of files must name at least one; the list is empty.")
        self.label_names: Any = None

    def __enter__(self) -> "FileParts":
        self._folder = tempfile.TemporaryDirectory(prefix="mlrh-parts-")
        try:
            self._open()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, *error) -> None:
        self._parts: list[_Part] = []
        self._folder.cleanup()

    def __len__(self):
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple]:
        for part in self._parts:
            X, Y = self._aligned(part)
            yield (X, Y) if part.weight is None else (X, Y, part.weight)

    def name(self, number: int) -> str:
        """What messages call a part."""
        return self._parts[number].name

    def _open(self):
        # The first file says which columns the others must have. These are read by a few threads.
        first, schema = self._read(0, None)
        with ThreadPoolExecutor(N_READERS) as threads:
            rest = threads.map(lambda number: self._read(number, schema)[0], range(1, len(self._paths)))
            self._parts = [first, *rest]
        self._agree()

    def _read(self, number, schema):
        """A part, and the schema that further files must have; None where they need not have one."""
        path = self._paths[number]
        if not isinstance(path, str | PathLike) or _suffix(path) in ARRAYS:
            return _arrays(path, self._place(number)), None
        data = read(path, self._labels, format=self._format, schema=schema)
        _refuse_words(data, path)
        # In LIBSVM, columns and labels are those that occur in a file: their numbers say which they are.
        return self._kept(number, str(path), data), None if _is_numbered(data) else data.schema

    def _agree(self):
        """Find the columns and labels of all parts; a DataError where files and arrays are mixed."""
        named = [part.label_names for part in self._parts if part.label_names is not None]
        if named and len(named) < len(self._parts):
            raise DataError("Files with names of columns and files of arrays can't be parts of one set; convert some.")
        self._first = min(part.first for part in self._parts)
        self._n_features = max(part.first - self._first + part.X.shape[1] for part in self._parts)
        dense = [part for part in self._parts if not sparse.issparse(part.X)]
        for part in dense:
            if part.X.shape[1] != self._n_features:
                raise DataError(f"{part.name} has {part.X.shape[1]} features and another part {self._n_features}.")
        if named:
            first, found = named[0], {name for names in named for name in names}
            numbers = all(name.lstrip("-").isdigit() for name in found)
            others = sorted(found - set(first), key=int if numbers else None)
            self.label_names = tuple(sorted(found, key=int)) if numbers and others else (*first, *others)
            if others and not sparse.issparse(self._parts[0].X):
                raise DataError(f"Parts must have the same labels; only some have {listed(others)}.")

    def _aligned(self, part):
        """X and Y of a part with the columns and labels of all parts."""
        X, Y = part.X, part.Y
        if sparse.issparse(X) and (X.shape[1] < self._n_features or part.first > self._first):
            indices = X.indices + (part.first - self._first) if part.first > self._first else X.indices
            X = sparse.csr_array((X.data, indices, X.indptr), shape=(X.shape[0], self._n_features), copy=False)
        if part.label_names is not None and part.label_names != self.label_names:
            whole = np.zeros((len(Y), len(self.label_names)), np.int8)
            whole[:, [self.label_names.index(name) for name in part.label_names]] = Y
            Y = whole
        return X, Y

    def _kept(self, number, name, data):
        """The data of a file as a part in the folder."""
        place = self._place(number)
        first = int(data.feature_names[0]) if _is_numbered(data) else 0
        return _Part(name, _mapped(data.X, place, "X"), _mapped(data.Y, place, "Y"), None, first, data.label_names)

    def _place(self, number):
        return Path(self._folder.name) / str(number)


def _is_numbered(data):
    """Whether sparse features are called by their numbers, 0, 1, ... or 1, 2, ..., as in LIBSVM."""
    names = data.feature_names
    return (
        sparse.issparse(data.X)
        and names == tuple(map(str, range(int(names[:1] == ("1",)), len(names) + 1)))[: len(names)]
    )


def _refuse_words(data: MultilabelData, path):
    if data.categories:
        names = listed([shown(name) for name in data.categories])
        raise DataError(
            f"{path}: features must be numbers; column {names} holds words. Encode them, or leave them out."
        )


def _suffix(path):
    return parts_of(os.fspath(path))[1]


def _mapped(array, place: Path, name):
    """The array, or the three arrays of a CSR matrix, written beside `place` and memory-mapped."""
    if sparse.issparse(array):
        stored = sparse.csr_array(array)
        parts = (_mapped(getattr(stored, own), place, f"{name}_{own}") for own in ("data", "indices", "indptr"))
        return sparse.csr_array(tuple(parts), shape=stored.shape, copy=False)
    path = place.with_name(f"{place.name}-{name}.npy")
    try:
        np.save(path, np.ascontiguousarray(array))  # rows one after the other, as they are asked for
    except OSError as error:
        raise DataError(
            f"{path}: can't be written ({error.strerror}); rows are kept there while they are needed. Set TMPDIR to a "
            "folder with more room."
        ) from error
    return np.load(path, mmap_mode="r")


def _arrays(path, place):
    """The part of a .npz file, or of a pair or triple of .npy files."""
    if isinstance(path, str | PathLike):
        if _suffix(path) == ".npy":
            raise DataError(f"{path}: a .npy file holds one array; give a pair (X.npy, Y.npy), or a .npz file.")
        return _of_npz(path, place)
    paths = tuple(path)
    if len(paths) not in (2, 3) or not all(isinstance(own, str | PathLike) and _suffix(own) == ".npy" for own in paths):
        raise DataError(f"A part must be a path, or a pair or triple of .npy files (X, Y, weights); got {path!r}.")
    X, Y, *weight = (_of_npy(own, place, name) for own, name in zip(paths, ("X", "Y", "weight"), strict=False))
    return _Part(str(paths[0]), X, Y, weight[0] if weight else None)


def _of_npy(path, place, name):
    """The array of a .npy file, memory-mapped where it lies; of a compressed one, from a copy."""
    try:
        if not parts_of(os.fspath(path))[2]:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with gzip.open(path) as file:
            return _mapped(np.load(io.BytesIO(file.read()), allow_pickle=False), place, name)
    except DataError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: is not a readable .npy file of numbers ({error}).") from error


def _of_npz(path, place):
    try:
        with gzip.open(path) if parts_of(os.fspath(path))[2] else open(path, "rb") as file:
            content = io.BytesIO(file.read()) if isinstance(file, gzip.GzipFile) else file
            with np.load(content, allow_pickle=False) as members:
                X = _csr_of(members) if OF_CSR[0] in members else members["X"]
                Y, weight = members["Y"], members.get("weight")
    except KeyError as error:
        raise DataError(f"{path}: must hold the arrays X and Y, and weight if rows have weights; {error}.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: is not a readable .npz file of numbers ({error}).") from error
    return _Part(str(path), _mapped(X, place, "X"), _mapped(Y, place, "Y"), weight)


def _csr_of(members):
    data, indices, indptr, shape = (members[name] for name in OF_CSR)
    return sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
