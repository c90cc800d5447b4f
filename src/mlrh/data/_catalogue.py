"""Public multilabel sets by name: found in a data folder or the cache, or downloaded and checked by their SHA-256."""

import difflib
import gzip
import hashlib
import logging
import os
import sys
import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mlrh.data._readers import read
from mlrh.data.containers import DataError, MultilabelData

BASE_URL = "https://raw.githubusercontent.com/tsoumakas/mulan/43f6389095ad71984264db4387a8074b22bc7d4a/data/multi-label"
PARTS = ("all", "train", "test")


@dataclass(frozen=True)
class Entry:
    """One public set.

    Attributes
    ----------
    name : str
    n_samples, n_features, n_labels : int
    cardinality : float
        Mean number of labels of a row, to three decimals.
    max_labels : int
        Most labels of one row.
    files : mapping of str to tuple of str
        For each part ("all", and "train" and "test" where the set has them) its ARFF files, one after the other.
    xml : str
        The file that names the labels.
    folder : str
        Where upstream keeps the files.
    """

    name: str
    n_samples: int
    n_features: int
    n_labels: int
    cardinality: float
    max_labels: int
    files: Mapping[str, tuple[str, ...]]
    xml: str
    folder: str


def load(name: str, part: str = "all", *, data_dir=None) -> MultilabelData:
    """A public multilabel set, whole or the part of it that is commonly used to train or to test.

    Its files are looked for in the data folder (as FOLDER/name/file or FOLDER/file, plain or with .gz), then in the
    cache, and then downloaded to the cache. Wherever a file comes from, its content must have the known SHA-256.

    Parameters
    ----------
    name : str
        A name of `CATALOGUE`.
    part : {"all", "train", "test"}, default="all"
        Where only parts are published, "all" is the training rows followed by the test rows; where only the whole set
        is, there are no parts.
    data_dir : path, optional
        The data folder; by default the one that the environment variable MLRH_DATA names, if any.

    Returns
    -------
    MultilabelData
        Called after the set, and the part: "emotions", "emotions (train)".

    Notes
    -----
    The cache is pooch's folder for mlrh, or the one that the environment variable MLRH_CACHE names.
    """
    files = _files(_entry(name), part)
    folder = _data_folder(data_dir)
    *tables, labels = [_path(file, name, folder) for file in files]
    data = [read(table, labels=labels) for table in tables]
    return replace(_joined(data), name=name if part == "all" else f"{name} ({part})")


def is_here(name: str, part: str = "all", *, data_dir=None) -> str | None:
    """Where `load` would find all files of a set: "folder", "cache" (some or all of them), or None: a download.

    Looks at names only; whether the contents are right is seen when they are loaded.
    """
    files = _files(_entry(name), part)
    folder = _data_folder(data_dir)
    missing = [file for file in files if _in_folder(file, name, folder) is None]
    if not missing:
        return "folder"
    return "cache" if all(_in_cache(file, name).is_file() for file in missing) else None


@cache
def checksums() -> dict[str, str]:
    """The SHA-256 of each file of the sets, uncompressed, as upstream has it."""
    lines = files(__package__).joinpath("checksums.sha256").read_text().splitlines()
    return {file: sha256 for sha256, file in map(str.split, lines)}


def _entry(name):
    if isinstance(name, str) and name in CATALOGUE:
        return CATALOGUE[name]
    close = difflib.get_close_matches(str(name).lower(), CATALOGUE, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise DataError(f"There is no set {name!r} among {', '.join(CATALOGUE)}{hint}")


def _files(entry, part):
    """The ARFF files of a part, and the XML file last."""
    if part not in PARTS:
        raise DataError(f"part must be one of {', '.join(map(repr, PARTS))}; got {part!r}.")
    if part not in entry.files:
        raise DataError(f"{entry.name} is published without a train and a test part; got part={part!r}, use 'all'.")
    return (*entry.files[part], entry.xml)


def _data_folder(data_dir):
    """The folder to look in, or None."""
    given = data_dir if data_dir is not None else os.environ.get("MLRH_DATA") or None
    if given is None:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        source = "data folder" if data_dir is not None else "folder that MLRH_DATA names"
        raise DataError(f"The {source} must be an existing folder; got {str(given)!r}.")
    return folder


def _path(file, name, folder):
    """Where the file is, with the content that it must have; downloaded if need be."""
    found = _in_folder(file, name, folder)
    if found is None:
        return _fetched(file, name, folder)
    if _sha256(found) != checksums()[file]:
        raise DataError(
            f"{found} is not the public file {file}, its SHA-256 differs; put the public file in its place, or remove "
            "it to have it downloaded."
        )
    return found


def _in_folder(file, name, folder):
    """The file's path in the folder, or None."""
    if folder is None:
        return None
    candidates = (place / shape for place in (folder / name, folder) for shape in (file, f"{file}.gz"))
    return next((path for path in candidates if path.is_file()), None)


def _in_cache(file, name):
    given = os.environ.get("MLRH_CACHE")
    return (Path(given).expanduser() if given else Path(_pooch().os_cache("mlrh"))) / name / file


def _sha256(path):
    """Of the content, decompressed."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read ({_reason(error)}); replace it.") from error


def _fetched(file, name, folder):
    """The file's path in the cache, downloaded unless an intact copy is there."""
    pooch, target = _pooch(), _in_cache(file, name)
    url = f"{BASE_URL}/{CATALOGUE[name].folder}/{file}"
    shown = sys.stderr.isatty()
    try:
        with _quiet(pooch.get_logger(), not shown):
            pooch.retrieve(
                url,
                known_hash=f"sha256:{checksums()[file]}",
                fname=target.name,
                path=target.parent,
                progressbar=shown and find_spec("tqdm") is not None,
            )
    except (OSError, ValueError) as error:
        response = getattr(error, "response", None)
        if response is not None:
            response.close()  # pooch leaves the connection of a refused request open
        raise DataError(_failure(error, file, url, target.parent, folder)) from error
    return target


def _failure(error, file, url, cache, folder):
    """One sentence on a download that failed: what is wrong and what to do."""
    from requests.exceptions import RequestException  # a dependency of pooch, needed only here

    if isinstance(error, RequestException):
        places = f"neither in the data folder {folder} nor" if folder else "not"
        return (
            f"{file} is {places} in the cache, and {url} could not be downloaded ({_reason(error)}); name a folder "
            "that has it, by --data-dir FOLDER or MLRH_DATA=FOLDER, or connect to the network."
        )
    if isinstance(error, OSError):
        return f"The cache folder {cache} can't be used ({_reason(error)}); name another by MLRH_CACHE=FOLDER."
    return (
        f"What {url} gave is not the public file {file}, its SHA-256 differs; try again, or name a folder that has it, "
        "by --data-dir FOLDER or MLRH_DATA=FOLDER."
    )


def _reason(error):
    """A few words on an error, whose own message may be long or empty."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    return getattr(error, "strerror", None) or type(error).__name__


@contextmanager
def _quiet(logger, wanted):
    """Without the logger's notices where wanted: off a terminal, standard error is for what went wrong."""
    level = logger.level
    if wanted:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pooch():
    try:
        import pooch
    except ImportError as error:
        raise DataError("Downloads and their cache need pooch; install it with: pip install pooch") from error
    return pooch


def _joined(parts):
    """The rows of all parts, one after the other; the sets that come in parts are dense."""
    first, *others = parts
    if not others:
        return first
    others = [part.conform(first.schema) for part in others]
    X, Y = (np.vstack([getattr(part, matrix) for part in (first, *others)]) for matrix in ("X", "Y"))
    return replace(first, X=X, Y=Y)


def _named(name, sizes: tuple[int, int, int, float, int], *, whole=True, parts=True, stem=None, form="", folder=None):
    """An Entry whose files are named as upstream names nearly all of them."""
    stem = stem or name
    files: dict[str, tuple[str, ...]] = {}
    if parts:
        files = {part: (f"{stem}-{part}{form}.arff",) for part in ("train", "test")}
    files["all"] = (f"{stem}{form}.arff",) if whole else files["train"] + files["test"]
    return Entry(name, *sizes, files=MappingProxyType(files), xml=f"{stem}.xml", folder=folder or name)


CATALOGUE: Mapping[str, Entry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            _named("emotions", (593, 72, 6, 1.868, 3)),
            _named("scene", (2407, 294, 6, 1.074, 3), whole=False),
            _named("yeast", (2417, 103, 14, 4.237, 11)),
            _named("birds", (645, 260, 19, 1.014, 6), whole=False),
            _named("medical", (978, 1449, 45, 1.245, 3)),
            _named("cal500", (502, 68, 174, 26.044, 48), parts=False),
            _named("flags", (194, 19, 7, 3.392, 7)),
            _named("corel5k", (5000, 499, 374, 3.522, 5), stem="Corel5k", form="-sparse"),
            _named("bibtex", (7395, 1836, 159, 2.402, 28)),
            _named("tmc2007-500", (28596, 500, 22, 2.158, 10), folder="tmc2007"),
            _named("delicious", (16105, 500, 983, 19.020, 25)),
        )
    }
)
