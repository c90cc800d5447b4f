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
    if _sha256(found) != SHA256[file]:
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
                known_hash=f"sha256:{SHA256[file]}",
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

# Of the uncompressed files, as upstream has them.
SHA256: Mapping[str, str] = MappingProxyType(
    {
        "bibtex-test.arff": "9b03329cde64d3f994bdf7fbbac3f3b10fe185c311cb9ae725475f59c7f3f922",
        "bibtex-train.arff": "8dcc9de6e0b2cebaec8c1f4fac78431adeeb73cfd3ab879b530a66d366e59174",
        "bibtex.arff": "a282a6d1fb3cdaf39bde3f81cd4e6079850a7a538a6bc44f8b4ed95dfe1e5014",
        "bibtex.xml": "08fe20013c1e75dcf1888c185f5187c95e76495b8518ce289b4d3afce38d1232",
        "birds-test.arff": "51ba6326d65ccdd7c755b6461280eb6d2769c7f59d8e12fd4250f91e6ca28326",
        "birds-train.arff": "8f215db6ee163149901e753977f631ba8bea0e0e8e1abc42b234414822f8ae36",
        "birds.xml": "0f4ea547b2b3d538c8402662daf689e0d4520cc8b4f5ba113c2e7c01700f010f",
        "cal500.arff": "cfe6097ba5fd6e8584e54911ab9783dcab34e898446b7c9370c71d477eae56d3",
        "cal500.xml": "877e128531268d7661faa3e44f7bb43cbcda829c0895e49879168775b192728c",
        "Corel5k-sparse.arff": "12c06161d2367f919f6da912089a6c9180c115cfcefa37afacfdeb903930eb7e",
        "Corel5k-test-sparse.arff": "e8f8e9cd052c43ba7bdfdf99d242f461fc8c2a03163466d921e576887b51d8a7",
        "Corel5k-train-sparse.arff": "19eb253c447144bea74ffa86b4731a56022addae2ba7d0aab72ad07fdc02e9b3",
        "Corel5k.xml": "54ef6a6ccb7ca9b77524052b34b306d5d501661a5609b9d1cc7085b2b597679d",
        "delicious-test.arff": "2dfb01723a819914b0ca83361177ed413ce3f2169851d9f228d4692915d63944",
        "delicious-train.arff": "030186cdb542ebdd32052fcdbb1ebe30115b3a22518c1b4b198c45eb827aebe1",
        "delicious.arff": "b944de0bca910050c11d97eed57d17b073110ea3646a587f3d15d127cf581aab",
        "delicious.xml": "4e0c0f93c7d86a39b9fca4aaefaa00e9428f2c80277732dfbf03ca48e2c14da2",
        "emotions-test.arff": "f13d4b746b7b5c8eb484bd751d6ac463d4560dff998a93516a5c1fe35daf6c8f",
        "emotions-train.arff": "bbe704106c79bb8fb99c1d1d2e9bde081d6a2daeb01f100862f11fd91a3c1f98",
        "emotions.arff": "6f2f790047073d1293ac0872c0d55f2dc98b6177802fc96c6b66b309dfee1e4b",
        "emotions.xml": "dbce8e6ccbbb2fcbfd9e9edbb230d7ed12692c6e13f59fdbc0161fa9b6cf2dc0",
        "flags-test.arff": "09f6136fae47dcc2f0f491efd6401a11072cbfb0bfbb2666c63b35bb06aeeb16",
        "flags-train.arff": "1861cdab7f8baf1aef6fb6198f304465ddfd99b7f9a435337c604119522df3c5",
        "flags.arff": "d3ed8b5683f1b27e68069aad2c29388bb57d4caa5041b559e646cc3854a0cd1e",
        "flags.xml": "7c9ed21a91b716b91f811323e20ee5a260ea2da62a5edcfeb1b91ec855a48f17",
        "medical-test.arff": "6be472e75a6c0b0916187f343a398011b1b26f8f0ddc682c575312ad3532f6c4",
        "medical-train.arff": "c764f45756ab1c553b8b4eaaf5605a5610a43bbbcf37492d0f1a12bf9c9e2244",
        "medical.arff": "ad0630a9a409ed0023c3bb56a0be7610b635c1ca185c6035e3b198b01167aac4",
        "medical.xml": "51fa9d5c09e48caff3f0a0c75db1c9aa85944f8e35451f3ad8bd56fc422286ce",
        "scene-test.arff": "ea38d20296b3ff7e220f477a3b802a9bcb2d768881fe6ee163efbc97ea527a42",
        "scene-train.arff": "b53ba93bdf412de922e3960389bcee24744fa3e872ce610511fc1d750888b64d",
        "scene.xml": "55d8b247b949ad5c52e5a73d8c6775ec6e5469ce9682465b45b333b68ee4bcc5",
        "tmc2007-500-test.arff": "b24f9c3f1eba77c9da0bbaff093ba41d331b7351be0167a8e1e3852c62e25e38",
        "tmc2007-500-train.arff": "edfe7b7615c6f80e54c92a214437610d1ae36560c5cc6c4253b51c434d258273",
        "tmc2007-500.arff": "3ea7e95dd80a78a3e7d521d77c3371bfef888da1d364b5a3bb71c7222ad7f013",
        "tmc2007-500.xml": "cb6a67c8ae72fd9b47d89f77aa5b7f6cafb4ba9c20b1124c65a95a3f2caec38d",
        "yeast-test.arff": "4aaac102bff9669a765bf0b378602e5cc8c3b181048282e2f003117b496d552a",
        "yeast-train.arff": "e759dc991ff54694a4ff9c4314f3be0d6fd2b1994a4b563f57e416394c6aebbd",
        "yeast.arff": "55c07a3b6ff885ae338fb6987a1d57f55572b29809922c2822c4885c61230dd7",
        "yeast.xml": "c3056cc26444b5158b1588d1b73bec9c45429e10f0957ad085903423cb81f247",
    }
)
