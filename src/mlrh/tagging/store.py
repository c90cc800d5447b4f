"""Decisions about labels in a CSV file: a column row, and one per label with 1, 0 or nothing where nobody looked.

Knows nothing of models. Only rows that somebody looked at are in the file.
"""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlrh.data.containers import DataError
from mlrh.data.sources import load, parts_of, shown, write_texts

VALUES = {"1": 1.0, "0": 0.0, "": np.nan, "1.0": 1.0, "0.0": 0.0}  # with a decimal: as pandas writes them again
TEXTS = {1.0: "1", 0.0: "0"}


def known_of(path, n_rows: int, label_names: Sequence[str] | None = None) -> np.ndarray:
    """What a file of decisions says of rows 1 to n_rows, (n_rows, n_labels) of 1, 0 and NaN where nobody looked.

    Parameters
    ----------
    path : str or Path
        A CSV file that `mlrh tag` or `mlrh.tagging.serve` wrote.
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
    source = load(path)
    records = _records(source)
    if not records:
        raise source.error("has no header; it must begin with a line that names the columns row and the labels.")
    line, header = records[0]
    _check_header(source, line, header, label_names)
    known, seen = np.full((n_rows, len(header) - 1), np.nan), set()
    for line, record in records[1:]:
        row, values = _decisions(source, line, record, header)
        if not 1 <= row <= n_rows or row in seen:
            rule = f"rows must be different numbers from 1 to {n_rows}, the rows there are"
            raise source.error(f"{rule}; found {row}{' twice' if row in seen else ''}.", line)
        seen.add(row)
        known[row - 1] = values
    return known


class Store:
    """A file of decisions that is replaced as a whole with every change, so that it is complete at any time.

    A file that exists is gone on from. What another program writes into it while this one runs is not overwritten; if
    it is removed, the next change writes it again, with all that was in it.

    Parameters
    ----------
    path : str or Path
        A name that ends in .csv or .csv.gz.
    label_names : sequence of str
    n_rows : int
    """

    def __init__(self, path, label_names: Sequence[str], n_rows: int):
        self.path = Path(os.path.realpath(path))  # a link stays one, and what it points to is replaced
        if parts_of(self.path.name)[1] != ".csv":
            raise DataError(f"{path}: decisions are written as CSV; choose a name that ends in .csv or .csv.gz.")
        self._header = _line(["row", *label_names])
        exists = self.path.exists() and self.path.stat().st_size > 0
        self.known = known_of(path, n_rows, label_names) if exists else np.full((n_rows, len(label_names)), np.nan)
        touched = np.flatnonzero(~np.isnan(self.known).all(axis=1))
        self._lines = {int(index) + 1: _row_line(int(index) + 1, self.known[index]) for index in touched}
        self._seen = self._stamp()

    def keep(self, row: int, values: np.ndarray) -> None:
        """Write the file anew with these values of a row, (n_labels,) of 1, 0 and NaN; all or nothing."""
        if self._stamp() not in (self._seen, None):
            raise DataError(
                f"{self.path} was changed by another program, and what it holds now would be lost; stop this program "
                "and start it again to go on from there."
            )
        lines = {**self._lines, row: _row_line(row, values)}
        if np.isnan(values).all():
            del lines[row]
        write_texts({self.path: [self._header, *(lines[number] for number in sorted(lines))]})
        self._lines, self._seen = lines, self._stamp()

    def _stamp(self):
        """What tells one version of the file from another; None where there is none."""
        try:
            state = os.stat(self.path)
        except FileNotFoundError:
            return None
        return state.st_ino, state.st_mtime_ns, state.st_size


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


def _check_header(source, line, header, label_names):
    wanted = "row and one column per label" if label_names is None else f"row and the labels {_few(label_names)}"
    is_right = header[0] == "row" and len(header) > 1 and (label_names is None or header[1:] == list(label_names))
    if not is_right:
        raise source.error(f"the columns must be {wanted}; found {_few(header)}. Choose another file.", line)


def _decisions(source, line, record, header):
    """Number of the row and its values."""
    if len(record) != len(header):
        raise source.error(f"found {len(record)} cells where the header names {len(header)} columns.", line)
    if not record[0].strip().isdecimal():
        raise source.error(f"column row must hold whole numbers; found {shown(record[0])}.", line)
    values = [VALUES.get(cell.strip()) for cell in record[1:]]
    if None in values:
        place = values.index(None) + 1
        rule = f"column {shown(header[place])} must hold 1, 0 or nothing"
        raise source.error(f"{rule}; found {shown(record[place])}.", line)
    return int(record[0]), values


def _row_line(row, values):
    return _line([row, *(TEXTS.get(value, "") for value in values.tolist())])


def _line(cells):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _few(names):
    return ", ".join(map(shown, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
