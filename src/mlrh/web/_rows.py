"""What a person reads of a row: the cells of its columns as texts, links and images. Knows nothing of HTTP.

Cells come from files that a stranger may have written. A link is http or https only. An image of another host is loaded
only from a column that the user named, and one of this machine only from the folder that the user named.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scipy import sparse

from mlrh.data.containers import Schema, listed

IMAGE_TYPES = {  # suffixes and what browsers call them; SVG can hold scripts, so it is none
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".avif": "image/avif",
}
LARGEST_IMAGE = 2**25  # bytes: photos of telephones have 2 to 10 MB
LONGEST_TEXT = 5000  # characters of a cell that are sent, about two pages of a book
LINK = re.compile(r"https?://[^\s<>\"]+", re.IGNORECASE)


class Cells:
    """The cells of single rows, those that are empty left out.

    Parameters
    ----------
    columns : mapping of str to sequence of str
        The texts of each column, one per row.
    show : sequence of str, optional
        Names of the columns to show, in this order; by default all. Only in columns that are named here, a link that
        ends like an image is one.
    images : path of a folder, optional
        Where cells that are paths of images are looked up. Nothing outside of it is ever read.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], show: Sequence[str] | None = None, images=None):
        unknown = [name for name in show or () if name not in columns]
        if unknown:
            has = f"has {listed(list(columns))}" if columns else "has none to show"
            raise ValueError(f"There is no column {unknown[0]!r} to show; the file {has}. Correct --show.")
        self._columns = dict(columns) if show is None else {name: columns[name] for name in show}
        self._are_named, self._folder = show is not None, None if images is None else _folder(images)

    @property
    def loads_links(self) -> bool:
        """Whether images of other hosts are shown, which a page must be allowed to load."""
        return self._are_named and any(
            _is_link(cell) and _image_type(cell) for cells in self._columns.values() for cell in cells
        )

    def __call__(self, index: int) -> list[dict[str, Any]]:
        """Name, kind (text, link, image, file) and text of each cell; the address of a link or image is its text.

        The page asks for a file by the row's number and the column's name. `left_out` characters of a text aren't sent.
        """
        shown = []
        for name, column in self._columns.items():
            text = column[index].strip()
            if text:
                left_out = max(len(text) - LONGEST_TEXT, 0)
                kind = "text" if left_out else self._kind(text)
                shown.append({"name": name, "kind": kind, "text": text[:LONGEST_TEXT], "left_out": left_out})
        return shown

    def _kind(self, text):
        if _is_link(text):
            return "image" if self._are_named and _image_type(text) else "link"
        return "file" if self._folder is not None and _image_type(text) else "text"

    def image(self, index: int, name: str) -> tuple[str, bytes]:
        """Type and content of the image whose path is the cell; a ValueError that says why there is none."""
        text = self._columns[name][index].strip() if name in self._columns else ""
        if self._folder is None or not text or self._kind(text) != "file":
            raise ValueError("This cell is no path of an image.")
        path = Path(os.path.realpath(self._folder / text))  # links followed, so that none leads out of the folder
        if not path.is_relative_to(self._folder):
            raise ValueError(f"{text} is outside of the folder of images, so it isn't shown.")
        return IMAGE_TYPES[_image_type(text)], _content(path, text)


def cells_of_rows(rows) -> dict[str, list[str]]:
    """The columns of rows that a person can read, as texts; a missing cell is "".

    Those of a pandas or polars DataFrame; of a MultilabelData those that it keeps as they were, and its words.
    """
    if hasattr(rows, "columns"):
        return {str(name): _texts(rows[name]) for name in rows.columns}
    words = {name: _words(rows, name) for name in (*rows.categories, *rows.texts) if name not in rows.kept}
    return {**words, **{name: _texts(cells) for name, cells in rows.kept.items()}}


def to_read(columns: Mapping[str, Sequence[str]], schema: Schema, show: Sequence[str] | None = None) -> dict:
    """The columns that a person reads: those named, else all but labels and numbers of the model, texts first."""
    if show is not None:
        return dict(columns)
    numbers = set(schema.feature_names) - {*schema.categories, *schema.texts, *schema.dates}
    hidden = numbers | {*schema.label_names, *schema.tags[:1]}
    names = sorted(columns, key=lambda name: name not in schema.texts)
    return {name: columns[name] for name in names if name not in hidden}


def _texts(cells):
    return ["" if _is_missing(cell) else str(cell) for cell in list(cells)]


def _words(rows, name):
    column = rows.X[:, [rows.feature_names.index(name)]]
    codes, words = (column.toarray() if sparse.issparse(column) else column).ravel(), rows.words(name)
    return ["" if code != code else str(words[int(code)]) for code in codes.tolist()]


def _is_missing(cell):
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell)


def _folder(images):
    folder = Path(os.path.realpath(images))
    if not folder.is_dir():
        raise ValueError(f"The folder of images, {images}, is not there; correct --images.")
    return folder


def _is_link(text):
    if not LINK.fullmatch(text):
        return False
    try:
        return bool(urlsplit(text).hostname)
    except ValueError:  # brackets that hold no address
        return False


def _image_type(text):
    """The suffix of an image that a path or the path of a link ends with; "" where it is none."""
    path = re.split("[?#]", text, maxsplit=1)[0] if LINK.fullmatch(text) else text
    suffix = os.path.splitext(path)[1].lower()
    return suffix if suffix in IMAGE_TYPES and "\0" not in text else ""  # no path holds a NUL


def _content(path, text):
    try:
        if not path.is_file():  # a pipe would be waited for, and a device never ends
            raise ValueError(f"There is no image {text} in the folder of images.")
        with open(path, "rb") as file:
            content = file.read(LARGEST_IMAGE + 1)
    except OSError as error:
        raise ValueError(f"The image {text} can't be read ({error.strerror}).") from error
    if len(content) > LARGEST_IMAGE:
        raise ValueError(f"The image {text} has more than {LARGEST_IMAGE // 2**20} MiB, so it isn't shown.")
    return content
