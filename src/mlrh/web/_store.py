"""Decisions about labels in a CSV file: a column row, and one per label with 1, 0 or nothing where nobody looked.

A last column holds a fingerprint of each row, which tells whether the file belongs to the rows at hand; a file that a
person wrote may lack it. Knows nothing of models. Only rows that somebody looked at are in the file.
"""

import csv
import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b, sha256
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from mlrh._files import lock
from mlrh.data._sources import Source, load, parts_of, shown, writing
from mlrh.data._tables import csv_line, guarded, unguarded
from mlrh.data.containers import DataError, listed

FINGERPRINT = "row_fingerprint"
VALUES = {"1": 1.0, "0": 0.0, "": np.nan, "1.0": 1.0, "0.0": 0.0}  # 1.0 and 0.0: pandas writes them so
TEXTS = {1.0: "1", 0.0: "0"}
LONGEST_NUMBER = 18  # characters of a row's number; of one with thousands of digits Python makes no number
PATIENCE = 10.0  # seconds to wait for another process that writes; a write takes milliseconds


def known_of(path, n_rows: int, label_names: Sequence[str] | None = None) -> np.ndarray:
    """What a file of decisions says of rows 1 to n_rows, (n_rows, n_labels) of 1, 0 and NaN where nobody looked.

    Parameters
    ----------
    path : str or Path
        A CSV file that `mlrh tag` or `mlrh.web.serve` wrote.
    n_rows : int
        Rows of the data set; those that the file lacks are NaN throughout.
    label_names : sequence of str, optional
        The labels that the file must have, in this order.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "confirmed.csv"
    ...     _ = path.write_text("row,happy,sad\\n2,1,\\n")
    ...     known_of(path, n_rows=2)
    array([[nan, nan],
           [ 1., nan]])
    """
    return _read(load(path), n_rows, label_names).known


def labels_of(path) -> list[str]:
    """The names of the labels that a file of decisions is about."""
    source = load(path)
    records = _records(source)
    return _header(source, records, None)[0][1:]


def checked(path, fingerprints: Sequence[str], label_names: Sequence[str]) -> np.ndarray:
    """What a file of decisions says of the rows with these fingerprints, (n_rows, n_labels) of 1, 0 and NaN.

    A DataError if it has another fingerprint for one of the rows, or other labels.
    """
    cure = "say with --like which model they were made with"
    return _checked(load(path), fingerprints, label_names, cure).known


class Store:
    """A file of decisions that is replaced as a whole with every change, so that it is complete at any time.

    An existing file is continued if it has the same labels and the same fingerprints of its rows. If another program
    changes the file meanwhile, nothing is overwritten; if it is removed, the next change writes all of it again. Two
    processes never write at the same time.

    Parameters
    ----------
    path : str or Path
        A name that ends in .csv or .csv.gz.
    label_names : sequence of str
    fingerprints : sequence of str
        For each row some letters that tell it from others.

    Attributes
    ----------
    known : array of shape (n_rows, n_labels) of 1, 0 and NaN
        What the file held at the start.
    n_decided, n_unsure : int
        Rows with decisions at the start, and those of them without a fingerprint in the file.
    """

    def __init__(self, path, label_names: Sequence[str], fingerprints: Sequence[str]):
        self.path = Path(os.path.realpath(path))  # the same file, whatever becomes of links and the working folder
        if parts_of(self.path.name)[1] != ".csv":
            raise DataError(f"{path}: decisions are written as CSV; choose a name that ends in .csv or .csv.gz.")
        _check_names(path, label_names)
        self._header, self._fingerprints = csv_line(["row", *map(guarded, label_names), FINGERPRINT]), fingerprints
        self._seen = self._state()
        found = self._found(path, label_names)
        self.known = found.known
        decided = (np.flatnonzero(~np.isnan(self.known).all(axis=1)) + 1).tolist()
        self.n_decided, self.n_unsure = len(decided), len(set(decided) - set(found.fingerprints))
        self._lines = {row: self._row_line(row, self.known[row - 1]) for row in decided}

    def keep(self, row: int, values: np.ndarray) -> None:
        """Write the file anew with these values of a row, (n_labels,) of 1, 0 and NaN; all or nothing."""
        # What another process writes between the look at the file and its replacement would be lost.
        what = "is being written by another program; try again once that has ended."
        with _locked(self.path, self.path, what, PATIENCE):
            self._keep(row, values)

    def _keep(self, row, values):
        if self._state() not in (self._seen, None):
            raise DataError(
                f"{self.path} was changed by another program, and what it holds now would be lost; stop this program "
                "and start it again to go on from there."
            )
        lines = {**self._lines, row: self._row_line(row, values)}
        if np.isnan(values).all():
            del lines[row]
        self._write("".join([self._header, *(lines[number] for number in sorted(lines))]).encode())
        self._lines = lines

    def _found(self, path, label_names):
        """What the file says; a DataError if it has another fingerprint for one of the rows."""
        if self._seen is None:
            return _Found(np.full((len(self._fingerprints), len(label_names)), np.nan), {})
        return _checked(load(path), self._fingerprints, label_names, "choose another file")

    def _row_line(self, row, values):
        return csv_line([row, *(TEXTS.get(value, "") for value in values.tolist()), self._fingerprints[row - 1]])

    def _write(self, content):
        if parts_of(self.path.name)[2]:
            content = gzip.compress(content, mtime=0)
        with writing(self.path) as (file,):
            file.write(content)
        self._seen = _digest(content)

    def _state(self):
        """What tells one content of the file from another; None where there is none."""
        try:
            return _digest(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.path}: can't be read ({error.strerror}); choose another file.") from error


@contextmanager
def held(path) -> Iterator[None]:
    """While the block runs, no other process of this user that asks for the same file here gets it, but a DataError.

    The lock lies in the folder for temporary files, so that a page that is killed leaves nothing beside the decisions.
    """
    path = Path(os.path.realpath(path))
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(gettempdir(), f"mlrh-page-{user}-{blake2b(os.fsencode(path), digest_size=16).hexdigest()}")
    with _locked(place, path, "is open on another page for tagging; end that program first, or choose another.", 0.0):
        yield


@contextmanager
def _locked(place, path, what, seconds):
    """The lock of the place; a DataError that says `what` of the path where another process has it."""
    try:
        give_back = lock(place, seconds)
    except BlockingIOError as error:
        raise DataError(f"{path} {what}") from error
    except OSError as error:
        raise DataError(f"{path}: can't be written ({error.strerror or error}); choose another place.") from error
    try:
        yield
    finally:
        give_back()


class _Found(NamedTuple):
    """What a file holds: values of all rows, and the lines and fingerprints of those that have one."""

    known: np.ndarray
    fingerprints: dict[int, tuple[int, str]]


def _checked(source, own, label_names, cure):
    """What the file says; a DataError if it has other fingerprints for some rows than their own."""
    found = _read(source, len(own), label_names)
    others = [row for row, (_, text) in found.fingerprints.items() if text != own[row - 1]]
    if others:
        raise source.error(
            f"the decisions are about other rows: {len(others)} of {len(found.fingerprints)} have other features "
            f"here, row {others[0]} first; {cure}, or delete its column {FINGERPRINT} to go on from "
            "it all the same.",
            line=found.fingerprints[others[0]][0],
        )
    return found


def _digest(content):
    return sha256(content).digest() if content else None


def _check_names(path, names):
    for name in names:
        if name == FINGERPRINT:
            raise DataError(f"{path}: no label can be called {FINGERPRINT}, which tells rows apart; rename it.")
        if "\0" in name or name.encode(errors="ignore").decode() != name:  # half of a pair of surrogates
            raise DataError(f"{path}: the label {shown(name)} holds what a CSV file can't; rename it.")


def _read(source: Source, n_rows, label_names) -> _Found:
    records = _records(source)
    header, place = _header(source, records, label_names)
    known, fingerprints, seen = np.full((n_rows, len(header) - 1), np.nan), {}, set()
    for line, record in records[1:]:
        if len(record) != len(records[0][1]):
            what = f"found {len(record)} cells where the header names {len(records[0][1])} columns."
            raise source.error(what, line)
        row, values = _decisions(source, line, _without(record, place), header)
        if not 1 <= row <= n_rows or row in seen:
            rule = f"rows must be different numbers from 1 to {n_rows}, the rows there are"
            raise source.error(f"{rule}; found {row}{' twice' if row in seen else ''}.", line)
        seen.add(row)
        known[row - 1] = values
        if place is not None and record[place].strip():
            fingerprints[row] = line, record[place].strip()
    return _Found(known, fingerprints)


def _header(source, records, label_names):
    """Names of the columns but that of the fingerprint, and its place or None."""
    if not records:
        raise source.error("has no header; it must begin with a line that names the columns row and the labels.")
    line, header = records[0][0], list(map(unguarded, records[0][1]))
    place = header.index(FINGERPRINT) if FINGERPRINT in header else None
    header = _without(header, place)
    wanted = "row and one column per label" if label_names is None else f"row and the labels {_few(label_names)}"
    if header[0] != "row" or len(header) < 2 or (label_names is not None and header[1:] != list(label_names)):
        raise source.error(f"the columns must be {wanted}; found {_few(header)}. Choose another file.", line)
    return header, place


def _records(source):
    """Line numbers and cells of the lines that aren't blank."""
    reader = csv.reader(io.StringIO(source.text(), newline=""), strict=True)
    records = []
    try:
        for cells in reader:
            if cells:
                records.append((reader.line_num, cells))
    except csv.Error as error:
        raise source.error(f"can't be split into cells ({error}).", reader.line_num) from error
    return records


def _without(cells, place):
    return cells if place is None else cells[:place] + cells[place + 1 :]


def _decisions(source, line, record, header):
    """Number of the row and its values."""
    if not (record[0].strip().isdecimal() and len(record[0]) <= LONGEST_NUMBER):
        raise source.error(f"column row must hold whole numbers; found {shown(record[0])}.", line)
    values = [VALUES.get(cell.strip()) for cell in record[1:]]
    if None in values:
        place = values.index(None) + 1
        rule = f"column {shown(header[place])} must hold 1, 0 or nothing"
        raise source.error(f"{rule}; found {shown(record[place])}.", line)
    return int(record[0]), values


def _few(names):
    return listed(list(map(shown, names)), most=4)


# Whether a row is the same row again

N_BYTES = 5  # ten letters; two different rows share them once in 10^12
LETTERS = str.maketrans("0123456789", "ghijklmnop")  # a spreadsheet takes 12e45678 for a number


class Fingerprints(Sequence[str]):
    """Ten letters per row that depend on the names and values of its features, and on nothing else.

    The order of the columns, that of nominal values, and whether zeros are stored don't matter. A row's letters are
    worked out when they are asked for.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_rows, n_features)
    names : sequence of str
    categories : mapping of str to sequence of str, optional
        The values of nominal features, whose columns hold their indices.
    """

    def __init__(self, X, names: Sequence[str], categories: Mapping[str, Sequence[str]] | None = None):
        self._X: Any = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X, np.float64)
        order = sorted(range(len(names)), key=lambda column: names[column])
        self._rank = np.argsort(order).astype("<i8")
        self._start = blake2b(json.dumps([names[column] for column in order]).encode(), digest_size=N_BYTES)
        values = categories or {}
        self._nominal = [(column, values[names[column]]) for column in order if names[column] in values]
        self._is_number = np.ones(len(names), bool)
        self._is_number[[column for column, _ in self._nominal]] = False

    def __len__(self):
        return self._X.shape[0]

    def __getitem__(self, index):
        row = self._X[[index]]
        row = row.toarray()[0] if sparse.issparse(row) else row[0]
        columns = np.flatnonzero((row != 0) & self._is_number)
        columns = columns[np.argsort(self._rank[columns])]
        numbers = np.where(np.isnan(row[columns]), np.nan, row[columns])  # one NaN of the many that there are
        words = [None if np.isnan(row[column]) else str(values[int(row[column])]) for column, values in self._nominal]
        letters = self._start.copy()
        for part in (self._rank[columns].tobytes(), numbers.astype("<f8").tobytes(), json.dumps(words).encode()):
            letters.update(part)
        return letters.hexdigest().translate(LETTERS)
