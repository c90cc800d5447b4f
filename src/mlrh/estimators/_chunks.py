"""Chunks of rows at the border: any source of them as checked rows, pass after pass, and the first look at all of them.

A source is gone through once for each evaluation of the objective. Everything is checked in the first pass; later ones
only make sure that they are given as many rows, in arrays of the same shape.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from os import PathLike
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from scipy import sparse

from mlrh import _sklearn
from mlrh._indicators import UNKNOWN
from mlrh._words import left_in_words
from mlrh.estimators import _device, _features, _targets
from mlrh.estimators._base import check_strength, telling_of_kernels
from mlrh.fitting.design import Design, FeatureSums
from mlrh.fitting.rows import ahead, blocks_of, rows_of

CHUNK_BYTES = 2**24  # of the chunks into which arrays are cut: 16 MiB, a few milliseconds of work
LOOK_ENTRIES = 2**18  # features that the first pass copies at a time, to centre them: 2 MB
PAGE = 4096  # bytes of memory that are read from a mapped file at once, or a part of them


@contextmanager
def opened(chunks, classes, unknown=None) -> Iterator["Source"]:
    """The Source of what `fit_chunks` is given; see there."""
    with ExitStack() as stack:
        if isinstance(chunks, str | PathLike):
            raise ValueError(f"chunks must be a list of files, not one path; give sorted(glob.glob({str(chunks)!r})).")
        if unknown is not None and not _are_files(chunks):
            raise ValueError("unknown is for a list of files; leave it out, since unknown labels of arrays are NaN.")
        if _are_files(chunks):
            files = stack.enter_context(_files(chunks, classes, unknown))
            names = files.label_names if classes is None else classes
            yield Source(lambda: iter(files), names, files.name)
        elif _are_arrays(chunks):
            arrays = _sliceable(*chunks)
            yield Source(lambda: _cut(*arrays), classes)
        elif callable(chunks):
            yield Source(lambda: _checked_iterator(chunks()), classes)
        else:
            yield Source(lambda: _checked_iterable(chunks), classes)


@contextmanager
def _files(paths, classes, unknown):
    """FileParts whose error names the parameter of `fit_chunks` where nothing says which columns are labels."""
    from mlrh.data import DataError, FileParts  # readers of all formats: a fifth of the time to import the classifiers
    from mlrh.data._columns import HOW

    with ExitStack() as stack:
        try:
            files = stack.enter_context(FileParts(paths, classes, unknown=unknown))
        except DataError as error:
            if HOW not in str(error):
                raise
            raise DataError(str(error).replace(HOW, "name the label columns with classes=")) from error
        yield files


@dataclass(frozen=True)
class Source:
    """Parts (X, y) or (X, y, weight), from the function `begin` at every pass; the names of the labels, if given."""

    begin: Callable[[], Iterator]
    classes: Any = None
    name: Callable[[int], str] = "chunk {}".format

    def __iter__(self):
        """Yields (X, y, weight or None) of each part, with the pages of mapped files in memory."""
        is_empty = True
        for part in self.begin():
            is_empty = False
            if not isinstance(part, tuple | list) or len(part) not in (2, 3):
                raise ValueError(f"Each chunk must be a tuple (X, Y) or (X, Y, weight); got a {type(part).__name__}.")
            X, y, weight = (*part, None)[:3]
            _touch(X)
            yield X, y, weight
        if is_empty:
            raise ValueError(
                "chunks must give at least one chunk in every pass; they gave none. If it is a function, it must "
                "return a new iterator at each call."
            )


def _are_files(chunks):
    """Whether chunks is a list of paths, or of tuples of paths."""
    if not isinstance(chunks, list | tuple) or not chunks:
        return False
    first = chunks[0][0] if isinstance(chunks[0], tuple) and chunks[0] else chunks[0]
    return isinstance(first, str | PathLike)


def _are_arrays(chunks):
    return isinstance(chunks, tuple) and len(chunks) in (2, 3) and getattr(chunks[0], "ndim", 0) == 2


def _checked_iterable(chunks):
    if not isinstance(chunks, Iterable):
        raise ValueError(f"chunks must be an iterable of (X, Y), files, arrays or a function; got {chunks!r}.")
    iterator = iter(chunks)
    if iterator is chunks:
        raise ValueError(
            f"chunks must be such that one can go through them again and again; a {type(chunks).__name__} can be gone "
            "through once. Give the function that makes it instead."
        )
    return iterator


def _checked_iterator(made):
    if not isinstance(made, Iterable):
        raise ValueError(f"The function given as chunks must return an iterator of (X, Y); it returned {made!r}.")
    return iter(made)


def _sliceable(X, y, weight=None):
    """The arrays, of the same length, with sparse matrices as CSR: of other kinds, rows are no slices."""
    _device.refuse(X, "fit_chunks")
    _targets.check_same_length(X, y)
    if weight is not None and _sklearn.num_samples(weight) != X.shape[0]:
        raise ValueError(
            f"X and weight must have the same number of rows; got {X.shape[0]} and {_sklearn.num_samples(weight)}."
        )
    if sparse.issparse(X):
        _features.check(X)  # compiled code trusts the indices
    return *(sparse.csr_array(own) if sparse.issparse(own) else own for own in (X, y)), weight


def _cut(X, y, weight):
    """Slices of arrays, as views."""
    n_rows = X.shape[0]
    entries = X.nnz if sparse.issparse(X) else X.size
    step = max(1, int(CHUNK_BYTES * n_rows / max(8 * entries, 1)))
    for start in range(0, n_rows, step):
        rows = slice(start, min(start + step, n_rows))
        yield rows_of(X, rows), y[rows], None if weight is None else weight[rows]


def _touch(X):
    """Read a byte of each page of a mapped array, so that the thread that works on it need not wait for the disk."""
    is_csr = sparse.issparse(X) and X.format == "csr"
    for array in (X.data, X.indices) if is_csr else (X,):
        # Not only np.memmap: a CSR matrix holds views of mapped arrays as plain ones. Arrays in memory cost next to
        # nothing: one byte in PAGE.
        if isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size and not array.dtype.hasobject:
            array.reshape(-1).view(np.uint8)[::PAGE].max()


class CheckedChunks:
    """The rows of a source that count, as `RowsInChunks` takes them: (X, Y, weights) of each chunk.

    `look` comes first, once. The model, a copy that notes names and number of the features, checks X. A digest, if
    given, is told all rows that count.
    """

    def __init__(self, source, model, progress, digest=None):
        self._source, self._model, self._progress, self.digest = source, model, progress, digest
        self._sizes: list[int] = []  # rows of each chunk
        self._form: Any = None
        self._kept_form: Any = None

    def look(self) -> "Look":
        """What one pass tells of all rows."""
        whole: Any = None
        kinds: Any = None
        self._progress.begin()
        for number, (X, y, weight) in enumerate(ahead(self._source)):
            self._sizes.append(_sklearn.num_samples(X))
            if self._sizes[-1] == 0:
                continue
            with self._naming(number):
                X, Y, weights = self._first_checks(X, y, weight)
                kinds = kinds or Kinds(self._model._space_of(Y, self._form))
                X, Y, weights, support = those_that_count(X, Y, weights)
                if len(support):
                    whole = plus_sums(whole, X, weights, Y.shape[1], self._model.fit_intercept)
                    kinds.add(Y, number, support)
                    if self.digest is not None:
                        self.digest.add(X, Y, weights)
        look = looked(self._model, whole, self._form, kinds, self._source.name)
        self._kept_form, self._progress.n_rows = look.form, sum(self._sizes)
        return look

    def __iter__(self):
        done = 0
        absent: Any = object()
        self._progress.begin()
        for number, (size, part) in enumerate(zip_longest(self._sizes, self._source, fillvalue=absent)):
            n_rows = 0 if part is absent else _sklearn.num_samples(part[0])
            if size is absent or part is absent or n_rows != size:
                found = "is not there" if part is absent else f"has {n_rows} rows"
                before = "was not there" if size is absent else f"had {size} rows"
                raise ValueError(
                    f"chunks must give the same rows in every pass; {self._source.name(number)} {found} and {before} "
                    "in the first pass."
                )
            if size:
                with self._naming(number):
                    yield from self._again(*part)
            done += size
            self._progress.advance(done)

    def _first_checks(self, X, y, weight):
        _device.refuse(X, "fit_chunks")  # not where chunks are fetched: the configuration is that of a thread
        is_first = self._form is None
        X = _features.validated(self._model, X, reset=is_first)
        if is_first:
            self._form = form_of(y, self._source.classes)
        return X, *checked_targets(self._model, X, self._form, y, weight)

    def _again(self, X, y, weight):
        """Yields the rows of a chunk that was checked in the first pass, unless none counts."""
        is_plain = (sparse.issparse(X) and X.format == "csr") or (isinstance(X, np.ndarray) and X.ndim == 2)
        if is_plain and X.dtype in (np.float64, np.float32) and X.shape[1] == self._model.n_features_in_:
            _features.check(X)  # compiled code trusts the indices of a sparse matrix
            X = X if sparse.issparse(X) else np.asarray(X)
        else:
            X = _features.validated(self._model, X, reset=False)  # converts it, or says what is wrong
        Y, weights = self._form.indicator(y, partly_known=True), _weights(weight, X)
        _targets.check_same_length(X, Y)
        X, Y, weights, support = those_that_count(X, Y, weights)
        if len(support):
            yield X, in_form(self._form, self._kept_form, Y), weights

    @contextmanager
    def _naming(self, number):
        """A ValueError in the block begins with the name of the chunk."""
        try:
            yield
        except ValueError as error:
            name = self._source.name(number)
            if str(error).startswith(name):
                raise
            raise ValueError(f"{name}: {error}") from error


def sampled(chunks, numbers):
    """X, Y and weights of the rows with these numbers, counted over all chunks, in the order of the numbers."""
    begin, parts = 0, []
    ascending = np.sort(numbers)
    for X, Y, weights in ahead(chunks):
        first, last = np.searchsorted(ascending, [begin, begin + len(Y)])
        own = ascending[first:last] - begin
        parts.append((X[own], Y[own], weights[own]))
        begin += len(Y)
    return stacked(parts, numbers)


def stacked(parts, numbers):
    """One (X, Y, weights) in the order of the numbers, from parts that hold the rows in ascending order."""
    X, Y, weights = zip(*parts, strict=True)
    all_sparse = all(map(sparse.issparse, X))
    joined = sparse.vstack(X, format="csr") if all_sparse else np.concatenate([_dense(part) for part in X])
    back = np.argsort(np.argsort(numbers))
    return joined[back], np.concatenate(Y)[back], np.concatenate(weights)[back]


def _dense(X):
    return X.toarray() if sparse.issparse(X) else X


@dataclass(frozen=True)
class Look:
    """What the first pass tells: sums of the features, the form of y, and one row of Y of each kind."""

    features: FeatureSums
    form: Any
    Y: np.ndarray
    places: "Places"
    counts: np.ndarray  # how many rows each row of Y stands for


def looked(model, whole, form, kinds, name) -> Look:
    """The Look at all rows: the sums `whole` of their features, the form of y, and the Kinds of their label sets."""
    _targets.check_any([] if whole is None else kinds.pairs)
    largest = (whole.largest + np.abs(whole.mean)).max()
    _features.check_float32_largest(whole.dtype, largest, whole.total_weight)
    Y = kinds.Y
    if isinstance(model.label_space, str):  # an instance says how many labels there are, seen or not
        form, Y = form.seen_in(Y)
    _targets.check_every_label_known(form.classes, Y)
    return Look(whole, form, Y, Places(kinds.pairs, name), kinds.counts)


@dataclass(frozen=True)
class Places:
    """Where rows are, for messages: pairs of chunk and row as "row of chunk"."""

    pairs: list[tuple[int, int]]
    name: Callable[[int], str]

    def __getitem__(self, i):
        chunk, row = self.pairs[i]
        return f"{row} of {self.name(chunk)}"


class Kinds:
    """One row of Y of each kind that a label space tells apart, and rows that show each label present and absent."""

    def __init__(self, space):
        self.space = space
        self._index: dict[bytes, int] = {}
        self._rows: list[np.ndarray] = []
        self._counts: list[int] = []
        self.pairs: list[tuple[int, int]] = []
        self._shown: Any = np.zeros((2, 1), bool)

    def add(self, Y, chunk, numbers):
        """Count the rows Y, which have these numbers within a chunk."""
        kinds = np.ascontiguousarray(self.space.target_kinds(Y))
        _, first, counts = np.unique(_as_bytes(kinds), return_index=True, return_counts=True)
        for i, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
            key = kinds[i].tobytes()
            if key not in self._index:
                self._index[key] = self._keep(Y[i], (chunk, int(numbers[i])))
            self._counts[self._index[key]] += count
        for value in (0, 1):
            for label in np.flatnonzero((value == Y).any(axis=0) & ~self._shown[value]):
                if not self._shown[value, label]:
                    i = int(np.argmax(Y[:, label] == value))
                    self._keep(Y[i], (chunk, int(numbers[i])))

    def join(self, other):
        """Count the rows that another object has counted."""
        kinds = np.ascontiguousarray(self.space.target_kinds(other.Y))
        for row, kind, count, pair in zip(other._rows, kinds, other._counts, other.pairs, strict=True):
            key = kind.tobytes()
            if count and key not in self._index:
                self._index[key] = self._keep(row, pair)
            elif (np.array([row == 0, row == 1]) & ~self._shown).any():
                self._keep(row, pair)
            if count:
                self._counts[self._index[key]] += count

    def _keep(self, row, pair):
        self._rows.append(row.copy())
        self._counts.append(0)
        self.pairs.append(pair)
        self._shown = self._shown | np.array([row == 0, row == 1])
        return len(self._rows) - 1

    @property
    def Y(self):
        return np.stack(self._rows)

    @property
    def counts(self):
        return np.array(self._counts, np.float64)


def _as_bytes(rows):
    """Each row as one string of bytes: along an axis, np.unique compares numbers, and takes thrice as long."""
    rows = rows.reshape(len(rows), -1)
    return rows.view(f"V{rows.shape[1] * rows.itemsize}").ravel() if rows.size else np.zeros(len(rows), np.int8)


def form_of(y, classes):
    """The form of y that all chunks have, by the first one; classes are as for `fit_chunks`."""
    if classes is not None:
        return _targets.declared(y, classes)
    form = None if getattr(y, "ndim", 2) == 1 else _targets.encode(y, partly_known=True)[0]
    if form is None or form.kind in ("sets", "classes"):
        raise ValueError(
            "classes must be given where Y is no indicator matrix: all labels of the label sets, or all classes, that "
            "any chunk holds."
        )
    return form


def in_form(form, kept, Y):
    """Y in the form without the classes, or labels of sets, that no row has."""
    if len(form.classes) == len(kept.classes):
        return Y
    if form.is_one_class_per_row:
        return kept.indicator(form.decode(Y))
    return np.ascontiguousarray(Y[:, np.isin(form.classes, kept.classes)])


def checked_targets(model, X, form, y, weight):
    """Y and the weights of the rows of X, checked."""
    Y = form.indicator(y, partly_known=True)
    _targets.check_same_length(X, Y)
    weights = _weights(weight, Y)
    check_strength(model.C, weights, X.dtype)
    return Y, weights


def _weights(weight, Y):
    if weight is None:
        return np.ones(Y.shape[0])
    return _sklearn.check_sample_weight(
        weight, Y, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=True
    )


def those_that_count(X, Y, weights):
    """X, Y, weights and numbers of the rows that count: of positive weight, with a label that is known."""
    counts, is_unknown = weights > 0, Y == UNKNOWN
    if is_unknown.any():  # else spared: in every pass, to look along short rows takes ten times as long
        counts &= ~is_unknown.all(axis=1)
    support = np.flatnonzero(counts)
    if len(support) < len(Y):
        X, Y, weights = X[support], Y[support], weights[support]
    return X, Y, weights, support


def plus_sums(whole, X, weights, n_labels, fit_intercept):
    """The sums of the features so far, None at first, and of more rows."""
    for block in blocks_of(X, n_labels, LOOK_ENTRIES):
        part = FeatureSums.of(Design(rows_of(X, block), weights[block], fit_intercept=fit_intercept))
        whole = part if whole is None else whole.plus(part)
    return whole


class Silent:
    """The progress of a fit that nobody wants to see."""

    n_rows = 0

    def begin(self):
        """A pass begins."""

    def advance(self, n_rows):
        """The pass has come to this row."""

    def tell(self, iteration, value, left):
        """The solver has made an iteration; left is the decrease left, in units of tol."""


class Told(Silent):
    """Passes, objective and time left: a bar on a terminal, a line per iteration elsewhere."""

    def __init__(self, name, tol, bar=None):
        self._name, self._tol, self._bar = name, tol, bar
        self._n_passes, self._value = 0, ""
        self._reached: deque = deque(maxlen=5)  # times and decreases left of the last iterations
        self._task = None if bar is None else bar.add_task("", total=None, value="", left="")

    def begin(self):
        self._n_passes += 1
        if self._bar is not None:
            self._bar.update(self._task, description=f"pass {self._n_passes}", completed=0, total=self.n_rows or None)

    def advance(self, n_rows):
        if self._bar is not None:
            self._bar.update(self._task, completed=n_rows)

    def tell(self, iteration, value, left):
        self._reached.append((time.monotonic(), left))
        words = left_in_words(seconds_left(self._reached, self._tol))
        if self._bar is not None:
            self._bar.update(self._task, value=f"objective {value:.8g}", left=words)
        else:
            what = f"iteration {iteration}, pass {self._n_passes}: objective {value:.8g}, left {left:.2g}"
            print(f"[{self._name}] {what}{', ' if words else ''}{words}")


def seconds_left(reached, tol) -> float | None:
    """How long the decrease left takes to fall to tol, if it goes on as it did; None where it doesn't fall.

    reached are pairs of times and decreases left.
    """
    (begin, first), (end, last) = reached[0], reached[-1]
    if not first > last > 0 or tol <= 0:
        return None
    return max(np.log(last / tol), 0.0) * (end - begin) / np.log(first / last)


@contextmanager
def progress_of(model) -> Iterator[Silent]:
    """The progress of a fit, shown as its `verbose` asks for."""
    name = type(model).__name__
    with telling_of_kernels(model):
        if not model.verbose:
            yield Silent()
        elif not sys.stdout.isatty():
            yield Told(name, model.tol)
        else:
            columns = (TextColumn(name), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
            fields = (TextColumn("{task.fields[value]}"), TextColumn("{task.fields[left]}"))
            with Progress(*columns, *fields) as bar:
                yield Told(name, model.tol, bar)
