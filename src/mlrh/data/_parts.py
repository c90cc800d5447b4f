"""Files as parts of one data set: read once, then memory-mapped, so that going through them again costs little memory.

Text and compressed files take far longer to decode than a fit takes to look at their numbers. So their arrays are
written to a folder of their own for as long as the parts are open, and mapped into memory from there: the system keeps
what it has room for. The folder lies where the variable TMPDIR says. Who goes through the parts for the first time gets
each as soon as it is decoded, while threads decode the next ones.
"""

import gzip
import io
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from scipy import sparse

from mlrh._indicators import UNKNOWN
from mlrh.data._columns import number_texts
from mlrh.data._kinds import checked_kinds, refuse_kinds, schema_kinds
from mlrh.data._libsvm import LABEL
from mlrh.data._readers import format_of, label_choice, read
from mlrh.data._sources import load, parts_of, shown
from mlrh.data.containers import DataError, MultilabelData, Schema, listed, stacked

ARRAYS = (".npy", ".npz")
N_READERS = 2  # files that are read at a time: about half of the work is done by compiled code, which threads share
OF_CSR = ("X_data", "X_indices", "X_indptr", "X_shape")
HEADERS = Lock()  # NumPy parses headers by `ast`, which in Python 3.11 may fail in two threads at once (SystemError)


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

    Yields (X, Y) or (X, Y, weight) for each file, in order. X and Y are memory-mapped. The first file is read when the
    context is entered, the others while one goes through them for the first time: a file that can't be read, or has
    other columns, is a DataError then. LIBSVM files without a schema, and .npz files of CSR matrices that are packed by
    gzip or have different numbers of columns, are all read at first: only together they say which columns there are.

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
    columns : mapping of str to str, optional
        As for `read`, for all files. Features must be numbers, unless a schema is given.
    schema : Schema, optional
        The features of all files and the values of nominal ones, whose numbers X then holds, as for `read`; see
        `schema_of`. None: the features of the first file.
    unknown : str, optional
        As for `read`, for CSV, JSON lines and Parquet: "" takes empty and missing labels. Y is then of float32, NaN
        where a label is unknown.

    Attributes
    ----------
    label_names : tuple of str or None
        None for files of arrays, which have no names.
    """

    def __init__(
        self,
        paths: Sequence,
        labels: Sequence[str] | None = None,
        *,
        format: str | None = None,
        columns: Mapping[str, str] | None = None,
        schema: Schema | None = None,
        unknown: str | None = None,
    ):
        self._paths, self._labels, self._format = list(paths), None if labels is None else [*labels], format
        self._columns, self._schema, self._unknown = columns, schema, unknown
        if not self._paths:
            raise DataError("A list of files must name at least one; the list is empty.")
        self.label_names: Any = None

    def __enter__(self) -> "FileParts":
        self._folder = tempfile.TemporaryDirectory(prefix="mlrh-parts-")
        self._threads = ThreadPoolExecutor(N_READERS, thread_name_prefix="mlrh-files")
        self._parts: dict[int, Future[_Part]] = {}
        self._lock = Lock()
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._parts = {}
        self._folder.cleanup()

    def __len__(self):
        return len(self._paths)

    def __iter__(self) -> Iterator[tuple]:
        for number in range(len(self)):
            part = self._begun(number).result()
            X, Y = self._aligned(part)
            yield (X, Y) if part.weight is None else (X, Y, part.weight)

    def name(self, number: int) -> str:
        """What messages call a part."""
        path = self._paths[number]
        return str(path if isinstance(path, str | PathLike) else path[0])

    def _open(self):
        """Read the first file, which says what columns the others must have; all where it alone can't say that."""
        _refuse_absent(self._paths)
        first, self._found = self._read(0, self._schema)
        parts = [first]
        if self._found is None and sparse.issparse(first.X) and not self._are_as_wide(first.X.shape[1]):
            parts += self._threads.map(lambda number: self._read(number, None)[0], range(1, len(self)))
        self._agree(parts)
        for number, part in enumerate(parts):
            self._parts[number] = Future()
            self._parts[number].set_result(part)
        self._begun(0)

    def _are_as_wide(self, n_features):
        """Whether all files are matrices of so many columns, as far as their heads tell."""
        return all(_width_of(path) == n_features for path in self._paths)

    def _begun(self, number):
        """The future of a part; it and those that come next are being read."""
        with self._lock:
            for own in range(number, min(number + 1 + N_READERS, len(self))):
                if own not in self._parts:
                    self._parts[own] = self._threads.submit(self._read_alike, own)
            return self._parts[number]

    def _read_alike(self, number):
        """A part that has the columns and labels of the first; else a DataError."""
        part, _ = self._read(number, self._found)
        n_features = part.X.shape[1]
        _refuse_mixture([part.label_names, self.label_names])
        if n_features > self._n_features or (n_features < self._n_features and not sparse.issparse(part.X)):
            raise DataError(f"{part.name} has {n_features} features and another part {self._n_features}.")
        others = set(part.label_names or ()) - set(self.label_names or ())
        if others:
            raise DataError(f"Parts must have the same labels; only some have {listed(sorted(others))}.")
        return part

    def _read(self, number, schema):
        """A part, and the schema that further files must have; None where they need not have one."""
        path = self._paths[number]
        if not isinstance(path, str | PathLike) or _suffix(path) in ARRAYS:
            return _arrays(path, self._place(number)), None
        columns = self._columns if schema is None else None
        data = read(path, self._labels, format=self._format, schema=schema, columns=columns, unknown=self._unknown)
        refuse_sets(data, path)
        if self._schema is None:
            _refuse_words(data, path)
            # In LIBSVM, columns and labels are those that occur in a file: their numbers say which they are.
            schema = None if _is_numbered(data) else replace(data.schema, kept=())
        return self._kept(number, str(path), data), schema

    def _agree(self, parts):
        """Find the columns and labels of all parts from the first one, or from all of them."""
        _refuse_mixture([part.label_names for part in parts])
        self._first = min(part.first for part in parts)
        self._n_features = max(part.first - self._first + part.X.shape[1] for part in parts)
        for part in parts:
            if not sparse.issparse(part.X) and part.X.shape[1] != self._n_features:
                raise DataError(f"{part.name} has {part.X.shape[1]} features and another part {self._n_features}.")
        named = [part.label_names for part in parts if part.label_names is not None]
        if named:
            first, found = named[0], {name for names in named for name in names}
            numbers = all(name.lstrip("-").isdigit() for name in found)
            others = sorted(found - set(first), key=int if numbers else None)
            self.label_names = tuple(sorted(found, key=int)) if numbers and others else (*first, *others)

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
        # In every file, also where all labels are known, so that all have one type.
        Y = data.Y if self._unknown is None else np.where(data.Y == UNKNOWN, np.nan, data.Y).astype(np.float32)
        return _Part(name, _mapped(data.X, place, "X"), _mapped(Y, place, "Y"), None, first, data.label_names)

    def _place(self, number):
        return Path(self._folder.name) / str(number)


def schema_of(
    paths: Sequence, labels: Any = None, *, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Schema:
    """The features, labels and nominal values of all files together; arguments are those of `read` and FileParts.

    Reads the first file. Where features are nominal, or columns are only known by those that occur, as in LIBSVM, all
    files are read, one at a time. Text, dates and a column of label sets are a DataError.
    """
    loaded = load(paths[0])
    if (format or format_of(loaded)) == "libsvm":
        return _numbered_schema(paths, labels, set(refuse_kinds(checked_kinds(columns), loaded)))
    first = read(paths[0], labels, format=format, columns=columns)
    refuse_sets(first, paths[0])
    _refuse_texts_and_dates(first, paths[0])
    values = {name: dict.fromkeys(own) for name, own in first.categories.items()}
    for path in paths[1:] if values else ():
        with warnings.catch_warnings():  # what columns are taken for is told of the first file
            warnings.simplefilter("ignore", UserWarning)
            # Without a schema, to which further values would be missing ones.
            data = read(path, labels, format=format, columns=columns)
        for name, own in values.items():
            own.update(dict.fromkeys(_values_of(data, name, path)))
    return replace(first.schema, categories={name: tuple(own) for name, own in values.items()})


def read_as_one(paths: Sequence, labels: Any = None, **options: Any) -> MultilabelData:
    """The rows of several tables (CSV, JSON lines, Parquet) in memory, as one data set called by the first.

    options are those of `read`. The first file says what columns are, and what separates labels; the others may have
    further nominal values and, in a column of label sets, further labels.
    """
    first = read(paths[0], labels, **options)
    options |= {"columns": {**schema_kinds(first.schema), **(options.get("columns") or {})}}
    if first.tags:
        options |= {"separator": first.tags[1] or None}
    parts = [first]
    for path in paths[1:]:
        with warnings.catch_warnings():  # what columns are taken for is told of the first file
            warnings.simplefilter("ignore", UserWarning)
            parts.append(read(path, labels, **options))
    values = {name: [value for part in parts for value in part.categories[name]] for name in first.categories}
    schema = replace(first.schema, categories={name: tuple(dict.fromkeys(own)) for name, own in values.items()})
    others = {name for part in parts for name in part.label_names}.difference(first.label_names)
    names = (*first.label_names, *sorted(others))
    is_unknown_told = options.get("unknown") is not None
    return stacked([with_labels(part.conform(schema), names, is_unknown_told) for part in parts])


def with_labels(data: MultilabelData, names: tuple[str, ...], is_unknown_told: bool) -> MultilabelData:
    """The data with these labels, among which are its own; a row whose own are unknown has the others unknown, too."""
    if data.label_names == names:
        return data
    if not data.label_names and is_unknown_told:
        raise DataError(
            f"{data.name}: no row lists a label, so that rows without labels and unknown ones look alike; leave it out."
        )
    Y = np.zeros((len(data.Y), len(names)), np.int8)
    if data.label_names:
        Y[(data.Y == UNKNOWN).all(axis=1)] = UNKNOWN
    Y[:, [names.index(name) for name in data.label_names]] = data.Y
    return replace(data, Y=Y, label_names=names)


def refuse_sets(data: MultilabelData, path) -> None:
    """Raise a DataError where labels stand in one column: each file would have labels of its own."""
    if data.tags:
        raise DataError(
            f"{path}: files that are read one by one must have a column of 0 and 1 for each label, not label sets; "
            "convert them, or fit without workers."
        )


def _refuse_texts_and_dates(data, path):
    names = [*data.texts, *data.dates]
    if names:
        raise DataError(
            f"{path}: features of files that are read one by one must be numbers or nominal, and column "
            f"{listed(list(map(shown, names)))} holds text or dates; leave it out (--ignore), name it as nominal "
            "(--nominal), or fit without workers."
        )


def _values_of(data, name, path):
    """The values of a column that is nominal in the first file."""
    words = data.words(name)
    if words is not None:
        return words
    if name not in data.feature_names or name in data.dates:
        raise DataError(
            f"{path}: column {shown(name)} is missing, or has another value in every row, or dates; leave it out of "
            "all files, or name it as nominal."
        )
    column = data.X[:, [data.feature_names.index(name)]]
    found = np.unique(column.toarray() if sparse.issparse(column) else column)
    return number_texts(found[~np.isnan(found)], "")


def _numbered_schema(paths, labels, ignore):
    """The schema of LIBSVM files: all columns from the first to the last, and the labels chosen, or all that occur."""
    columns: list[int] = []
    found: set[str] = set()
    for path in paths:
        data = read(path, format="libsvm")
        columns += map(int, data.feature_names[:1] + data.feature_names[-1:])
        found.update(data.label_names)
    choice = label_choice(labels)
    names = tuple(sorted(found, key=int)) if choice is None else choice.names
    absent = [name for name in names if (match := LABEL.fullmatch(name)) and str(int(match[1])) not in found]
    if absent:
        raise DataError(f"No row of {listed(list(map(str, paths)), 1)} has the label {shown(absent[0])}; correct it.")
    features = list(map(str, range(min(columns, default=1), max(columns, default=0) + 1)))
    unknown = sorted(ignore - set(features))
    if unknown:
        raise DataError(f"No file has the feature {shown(unknown[0])} that is to be left out; correct its number.")
    return Schema(tuple(name for name in features if name not in ignore), names)


def _is_numbered(data):
    """Whether sparse features are called by their numbers, 0, 1, ... or 1, 2, ..., as in LIBSVM."""
    names = data.feature_names
    return (
        sparse.issparse(data.X)
        and names == tuple(map(str, range(int(names[:1] == ("1",)), len(names) + 1)))[: len(names)]
    )


def _refuse_words(data: MultilabelData, path):
    words = [*data.categories, *data.texts, *data.dates]
    if words:
        names = listed([shown(name) for name in words])
        raise DataError(
            f"{path}: features must be numbers; column {names} holds words or dates. Encode them, or leave them out."
        )


def _refuse_mixture(label_names):
    """Raise a DataError where only some files have names of labels."""
    if None in label_names and any(names is not None for names in label_names):
        raise DataError("Files with names of columns and files of arrays can't be parts of one set; convert some.")


def _refuse_absent(paths):
    """Raise a DataError where a file isn't there: at once, not when its turn comes."""
    for path in paths:
        for own in (path,) if isinstance(path, str | PathLike) else tuple(path):
            if isinstance(own, str | PathLike) and not os.path.exists(own):
                raise DataError(f"{own}: no such file; check the path.")


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
    return _loaded(path, mmap_mode="r")


def _loaded(source, **options):
    """np.load by one thread at a time; the arrays of a .npz file are read with HEADERS held, too."""
    with HEADERS:
        return np.load(source, allow_pickle=False, **options)


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
    _check_two_dimensions(X, paths[0])
    return _Part(str(paths[0]), X, Y, weight[0] if weight else None)


def _check_two_dimensions(X, path):
    if X.ndim != 2:
        raise DataError(f"{path}: X must have a row for each sample and a column for each feature; got {X.ndim}-D.")


def _of_npy(path, place, name):
    """The array of a .npy file, memory-mapped where it lies; of a compressed one, from a copy."""
    try:
        if not parts_of(os.fspath(path))[2]:
            return _one_array(_loaded(path, mmap_mode="r"))
        with gzip.open(path) as file:
            return _mapped(_one_array(_loaded(io.BytesIO(file.read()))), place, name)
    except DataError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: is not a readable .npy file of numbers ({error}).") from error


def _one_array(loaded):
    if not isinstance(loaded, np.ndarray):
        raise ValueError("it holds several arrays, as a .npz file does")
    return loaded


def _of_npz(path, place):
    try:
        with gzip.open(path) if parts_of(os.fspath(path))[2] else open(path, "rb") as file:
            content = io.BytesIO(file.read()) if isinstance(file, gzip.GzipFile) else file
            loaded = _loaded(content)
            if isinstance(loaded, np.ndarray):
                raise ValueError("it holds one array, as a .npy file does")
            with loaded as members, HEADERS:
                X = _csr_of(members) if OF_CSR[0] in members else members["X"]
                Y, weight = members["Y"], members.get("weight")
    except KeyError as error:
        raise DataError(f"{path}: must hold the arrays X and Y, and weight if rows have weights; {error}.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: is not a readable .npz file of numbers ({error}).") from error
    _check_two_dimensions(X, path)
    mapped = {
        name: _mapped(own, place, name) for name, own in (("X", X), ("Y", Y), ("weight", weight)) if own is not None
    }
    return _Part(str(path), mapped["X"], mapped["Y"], mapped.get("weight"))


def _width_of(path):
    """The number of columns of X of a .npz file or a tuple of .npy files; None where only decoding could tell it."""
    try:
        if not isinstance(path, str | PathLike):
            return _loaded(next(iter(path)), mmap_mode="r").shape[1]
        if _suffix(path) != ".npz" or parts_of(os.fspath(path))[2]:
            return None
        with _loaded(path) as members, HEADERS:
            return int(members[OF_CSR[-1]][1]) if OF_CSR[-1] in members else None
    except (OSError, ValueError, EOFError, LookupError, TypeError, zipfile.BadZipFile):
        return None  # what is wrong with it is told when it is read


def _csr_of(members):
    data, indices, indptr, shape = (members[name] for name in OF_CSR)
    return sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
