"""Models to files and back without pickle.

A model file is a skops archive. skops sees arrays, plain containers and scikit-learn's own classes only; objects of
ours are taken apart into these before and put together after. A file may come from anybody: `_archives` reads it into
plain parts, the decoder here makes objects of listed classes from them, and `_fitted` says what these must look like.
"""

import json
import os
import warnings
import zipfile
from collections import UserList
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any

import numpy as np
import sklearn
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.neighbors import BallTree, KDTree

import mlrh
from mlrh import _fitted
from mlrh._archives import SCALARS, SCHEMA, Budget, Foreign, Object, Refused, plain_tree, read_json
from mlrh._budget import max_bytes
from mlrh._files import replacing
from mlrh.estimators.boosting import OF_PREDICTIONS
from mlrh.estimators.linear import _KeptRows
from mlrh.spaces import LabelSpace

__all__ = ["ModelFileError", "load", "save"]

FORMAT = 6
FORMATS = (1, 2, 3, 4, 5, FORMAT)  # that are read
HEADER = "mlrh.json"

# The classes of ours that a file may hold: the name in files, which never changes, and where the class is now. A rule
# such as "whatever is in the package" would also cover its functions and what its modules import.
OURS = {
    "MLRHClassifier": "mlrh.estimators.linear.MLRHClassifier",
    "KernelMLRHClassifier": "mlrh.estimators.kernel.KernelMLRHClassifier",
    "MLRHAuto": "mlrh.estimators.auto.MLRHAuto",
    "MLRHBoostingClassifier": "mlrh.estimators.boosting.MLRHBoostingClassifier",
    "MLRHClassifierCV": "mlrh.estimators.cv.MLRHClassifierCV",
    "KernelMLRHClassifierCV": "mlrh.estimators.cv.KernelMLRHClassifierCV",
    "CalibratedSets": "mlrh.estimators.calibration.CalibratedSets",
    "Calibration": "mlrh.estimators.calibration._Calibration",
    "RiskCoverage": "mlrh.metrics.RiskCoverage",
    "TunedThresholds": "mlrh.estimators.thresholds.TunedThresholds",
    "PooledSets": "mlrh.estimators.pool.PooledSets",
    "LabelPowerset": "mlrh.baselines.label_powerset.LabelPowerset",
    "MLkNN": "mlrh.baselines.ml_knn.MLkNN",
    "IBLR": "mlrh.baselines.iblr.IBLR",
    "CorrLog": "mlrh.baselines.corrlog.CorrLog",
    "CCnet": "mlrh.baselines.ccnet.CCnet",
    "ProbabilisticChain": "mlrh.baselines.probabilistic_chain.ProbabilisticChain",
    "OrConstant": "mlrh.baselines.or_constant.OrConstant",
    "CardinalitySpace": "mlrh.spaces.cardinality.CardinalitySpace",
    "ObservedSpace": "mlrh.spaces.observed.ObservedSpace",
    "GroupSpace": "mlrh.spaces.groups.GroupSpace",
    "HierarchySpace": "mlrh.spaces.hierarchy.HierarchySpace",
    "OpenSpace": "mlrh.spaces.open.OpenSpace",
    "Targets": "mlrh.estimators._targets.Targets",
    "KeptRows": "mlrh.estimators.linear._KeptRows",
    "ToDense": "mlrh.estimators.auto.ToDense",
    "Schema": "mlrh.data.containers.Schema",
    "AnswerRule": "mlrh.automatic.AnswerRule",
    "TableFeatures": "mlrh.estimators._table_features.TableFeatures",
    "Model": "mlrh.automatic.Model",
}
NAMES = {place: name for name, place in OURS.items()}
# What files of format 1 hold and models no longer have: rows and passes of partial_fit, and a number of threads.
DROPPED = {"MLRHClassifier": ("_stream", "n_passes_", "n_samples_counted_"), "CardinalitySpace": ("n_jobs",)}
# A dict with this key stands for an object: the key's value says what it is, the other entries what it is made of.
TAG = "mlrh"
COLLECTIONS = {kind.__name__: kind for kind in (tuple, set, frozenset)}
TREES = {kind.__name__: kind for kind in (KDTree, BallTree)}
BOOSTER = "xgboost.core.Booster"
TREE_BYTES = 6  # for each byte of the rows: the rows, and up to two nodes a row with two bounds each
COMPRESSED = {
    kind.__name__: kind for kind in (sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.csc_matrix)
}
PICKLE_START = b"\x80"
DIRECTORY_ENTRY = b"PK\x01\x02"  # begins the entry of each member in an archive's directory
MAX_MEMBERS = 1_000_000  # of an archive: one more takes 1 kB as soon as it is opened
MAX_HEADER = 10_000  # bytes of the header, which holds a few short words
THE_FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of archives; the time of saving would make every file another one
AN_ARCHIVE = "is an archive, but not a model file that mlrh saved"


class ModelFileError(ValueError):
    """A model can't be written to a file, or a file is not a model; the message says which and why."""


def save(model: Any, path, *, keep_rows: bool = False) -> None:
    """Write a model to a file, in place of what was there; nothing changes if that fails.

    A file holds training rows only where predictions need them, as those of kernels and neighbours do.

    Parameters
    ----------
    model : object
        A classifier of mlrh, a scikit-learn estimator or pipeline with or without one, or a dict, list or tuple of such
        models, arrays, numbers and strings. What could not be loaded again (functions, classes of other packages) is
        a ModelFileError that names it. The same model gives the same bytes.
    path : path of the file
        ".mlrh" is a good extension; any is allowed.
    keep_rows : bool, default=False
        Write the rows that `partial_fit` was shown too, so that it goes on with them once the model is loaded.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from mlrh import MLRHClassifier, persistence
    >>> clf = MLRHClassifier().fit([[0.0], [1.0], [2.0]], [{"a"}, {"a", "b"}, {"b"}])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     persistence.save(clf, Path(folder) / "model.mlrh")
    ...     persistence.load(Path(folder) / "model.mlrh").predict([[2.0]])
    [{'b'}]
    """
    data = _to_bytes(model, keep_rows)
    try:
        with replacing(path) as (file,):
            file.write(data)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(f"The model can't be written to {os.fspath(path)} ({reason}).") from error


def load(path, *, spaces: Iterable[type[LabelSpace]] = (), trusted: Iterable[type | str] = ()) -> Any:
    """The model that `save` wrote to a file; it predicts the same, bit for bit.

    (Arrays that were views with gaps come back without them, and NumPy may add up their products in another order.)
    A file that isn't one, is damaged, or holds what `save` would not write is a ModelFileError; no code of a file's
    choice is run. Every array is checked: its shape, its type, and that indices are in range. So is the memory that the
    file asks for, by default at most a quarter of what is available; the environment variable MLRH_MAX_BYTES sets
    another limit. A file of another version (MAJOR.MINOR) of mlrh or scikit-learn is loaded with a UserWarning.

    Parameters
    ----------
    path : path of the file
    spaces : classes
        Label spaces of your own that the file may hold; `from_dict` of the one that it names is called.
    trusted : classes, or their full names
        Classes of scikit-learn that are refused otherwise, because nothing here checks what a file gives them, and
        compiled code may rely on it: support vector machines, trees, forests and others. The error lists them. A
        hostile file can crash Python through such a class.
    """
    shown, limit = os.fspath(path), max_bytes()
    names = {kind if isinstance(kind, str) else _name(kind) for kind in trusted}
    data = _content(Path(path), shown, limit)
    accepted = names | _fitted.SCIKIT_LEARN.keys()
    model, differences = _from_bytes(data, shown, spaces, accepts=accepted.__contains__, limit=limit)
    if differences:
        warnings.warn(
            f"{shown} was saved with {' and '.join(differences)}; it may predict differently, so better fit it again.",
            UserWarning,
            stacklevel=2,
        )
    return model


def _to_bytes(model, keep_rows):
    """The file's content, which is known to load."""
    import skops.io  # imports all of scikit-learn, so only where it is used

    try:
        encoder = _Encoder(keep_rows)
        tree = encoder.compact(encoder(model, "model"))
        data = _without_chance(skops.io.dumps(tree))
    except RecursionError as error:
        raise ModelFileError("The model can't be saved: it holds itself, or its parts are nested too deep.") from error
    except MemoryError as error:
        raise ModelFileError("The model can't be saved, because there is not enough memory for its file.") from error
    except ModelFileError:
        raise
    except Exception as error:
        raise ModelFileError(f"The model can't be saved ({_reason(error)}).") from error
    try:
        _from_bytes(data, "what would be written", encoder.spaces, accepts=lambda name: True, limit=None)
    except ModelFileError as error:
        raise ModelFileError(f"The model can't be saved, because {str(error).rstrip('.')}.") from error
    return data


def _without_chance(data):
    """The archive without times and addresses in memory, and with our header."""
    names: dict[str, str] = {}  # of members
    numbers: dict[int, int] = {}  # of nodes that could be shared

    def settled(node):
        if type(node) is list:
            return [settled(item) for item in node]
        if type(node) is not dict:
            return node
        node = dict(node)
        if "__loader__" in node:
            number = node.pop("__id__", None)
            # Whether two equal numbers, texts or types are one object is chance.
            if node["__loader__"] not in ("JsonNode", "TypeNode", "FunctionNode"):
                node["__id__"] = numbers.setdefault(number, len(numbers) + 1)
            if "file" in node:
                node["file"] = names.setdefault(node["file"], f"{len(names)}{Path(node['file']).suffix}")
        return {key: settled(value) for key, value in node.items()}

    buffer = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as given, zipfile.ZipFile(buffer, "w") as archive:
        schema = settled(json.loads(given.read(SCHEMA)))
        header = {"format": FORMAT, **_versions()}
        texts = {HEADER: json.dumps(header), SCHEMA: json.dumps(schema, separators=(",", ":"))}
        for name, text in texts.items():
            archive.writestr(zipfile.ZipInfo(name, THE_FIRST_DAY), text)
        for old, name in names.items():
            archive.writestr(zipfile.ZipInfo(name, THE_FIRST_DAY), given.read(old))
    return buffer.getvalue()


def _from_bytes(data, shown, spaces, *, accepts, limit):
    """The model, and the versions with which it was saved that differ from ours, in words."""
    with _one_sentence(shown):
        budget = Budget(limit)
        budget.take(len(data))
        with _opened(data, shown) as archive:
            header = _header(archive, shown)
            tree = plain_tree(archive, budget, accepts=accepts, others={HEADER})
        with warnings.catch_warnings():
            # Said once by load, and of MAJOR.MINOR only, not by every estimator.
            warnings.simplefilter("ignore", InconsistentVersionWarning)
            try:
                return _Decoder(shown, header["format"], spaces, budget)(tree), _differences(header)
            except Foreign:
                raise
            except Refused as error:
                if header["format"] == FORMAT:
                    raise
                # Chains of format 3 had other parameters, and nothing in them says what the new ones were.
                raise Refused(f"{error}; an earlier version of mlrh saved it, so fit it again") from error


@contextmanager
def _one_sentence(shown):
    """Whatever a damaged or forged file provokes, as a ModelFileError: no list of exceptions would be complete."""
    try:
        yield
    except ModelFileError:
        raise
    except Refused as error:
        raise ModelFileError(f"{shown} {_line(str(error), 300 if isinstance(error, Foreign) else 1000)}.") from error
    except MemoryError as error:
        raise ModelFileError(f"{shown} needs more memory than there is.") from error
    except Exception as error:
        raise ModelFileError(f"{shown} is damaged or was changed after it was saved ({_reason(error)}).") from error


def _content(path, shown, limit):
    if path.is_dir():
        raise ModelFileError(f"{shown} is a folder, not a model file.")
    if not path.exists():
        raise ModelFileError(f"There is no model file {shown}.")
    if not path.is_file():
        raise ModelFileError(f"{shown} is not a regular file, so it can't be a model file.")
    try:
        with _one_sentence(shown), open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            Budget(limit).take(size)
            return file.read(size)
    except OSError as error:
        raise ModelFileError(f"{shown} can't be read ({error.strerror}).") from error


def _opened(data, shown):
    """The archive, once it is clear that it is one and that a small file can't ask for much memory by it."""
    if not zipfile.is_zipfile(BytesIO(data)):
        raise ModelFileError(f"{shown} {_what_else(data)}.")
    if data.count(DIRECTORY_ENTRY) > MAX_MEMBERS:
        raise ModelFileError(f"{shown} has more than {MAX_MEMBERS} parts, so it is not a model file that mlrh saved.")
    return zipfile.ZipFile(BytesIO(data))


def _header(archive, shown):
    """The file's header, once it is clear that the file is ours."""
    members, names = archive.infolist(), archive.namelist()
    is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if HEADER not in names:
        is_skops = SCHEMA in names and not is_packed
        raise ModelFileError(f"{shown} {_what_skops_holds(archive) if is_skops else AN_ARCHIVE}.")
    if is_packed:
        raise ModelFileError(f"{shown} was changed after it was saved: it has compressed parts.")
    # Members that lie in each other, or several of one name, could be read to more than the file has.
    if sum(member.file_size for member in members) > archive.start_dir or len(set(names)) < len(names):
        raise ModelFileError(f"{shown} was changed after it was saved: its parts overlap or have the same name.")
    if archive.getinfo(HEADER).file_size > MAX_HEADER:
        raise ModelFileError(f"{shown} was changed after it was saved: its header is too long.")
    header = json.loads(archive.read(HEADER))
    if header["format"] not in FORMATS:
        theirs = _line(f"format {header['format']} of mlrh {header['mlrh']}")
        known = f"{', '.join(map(str, FORMATS[:-1]))} and {FORMAT}"
        raise ModelFileError(f"{shown} has {theirs}; mlrh {mlrh.__version__} reads formats {known} only.")
    return header


def _what_skops_holds(archive):
    """What an archive is that skops may have written, but not mlrh."""
    holds = "; skops.io.load may load it"
    try:
        plain_tree(archive, Budget(max_bytes()), accepts=lambda name: True, others=set())
    except Foreign as error:
        holds = f"; it is not loaded and holds {_line(', '.join(error.names))}"
    except Exception:  # as in _one_sentence, but this file never was ours
        return AN_ARCHIVE
    return f"is a skops file, but not a model file that mlrh saved{holds}"


def _what_else(data):
    """What a file is that isn't an archive."""
    if data.startswith(PICKLE_START):
        return "is a pickle, not a model file; mlrh loads no pickles because they can run any code"
    if data.startswith(b"PK"):
        return "is cut short or damaged; copy or save it again"
    return "is not a model file that mlrh saved" if data else "is empty, not a model file"


def _versions():
    return {"mlrh": mlrh.__version__, "scikit-learn": sklearn.__version__}


def _differences(header):
    return [
        f"{package} {_line(header[package])} (here {ours})"
        for package, ours in _versions().items()
        if header[package].split(".")[:2] != ours.split(".")[:2]
    ]


def _reason(error):
    """An error in a few words of one line."""
    text = _line(str(error)).split(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(text, limit=300):
    """At most one line, of so many characters, of a text that a file may have written."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]} ..."


def _name(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_json(tree):
    """Whether JSON gives the tree back as it is; NumPy's numbers, which JSON would take too, it would not."""
    if type(tree) is list:
        return all(map(_is_json, tree))
    if type(tree) is dict:
        return all(map(_is_json, tree.values()))
    return type(tree) in SCALARS


class _Encoder:
    """Plain forms of objects for skops; remembers them, so that what is shared stays shared."""

    def __init__(self, keep_rows):
        self._keep_rows, self._done, self._compacted = keep_rows, {}, {}
        self.spaces = set()  # of the user's own, met so far

    def __call__(self, value, where):
        if type(value) in SCALARS:
            return value
        if id(value) not in self._done:
            # The value is kept too: a new object could get the id of one that is gone.
            self._done[id(value)] = value, self._encoded(value, where)
        return self._done[id(value)][1]

    def compact(self, tree):
        """The tree with each largest part that is plain JSON as one text; skops would take 200 bytes per number."""
        if type(tree) not in (list, dict):
            return tree
        if id(tree) not in self._compacted:
            compacted: list | dict
            if _is_json(tree):
                compacted = {TAG: "json", "text": json.dumps(tree)}
            elif type(tree) is list:
                compacted = [self.compact(item) for item in tree]
            else:
                compacted = {key: self.compact(value) for key, value in tree.items()}
            self._compacted[id(tree)] = tree, compacted
        return self._compacted[id(tree)][1]

    def _encoded(self, value, where):
        kind = type(value)
        if isinstance(value, UserList):  # scikit-learn 1.6 keeps columns in one, which warns when it is read
            return self._items(value.data, where)
        if kind is list:
            return self._items(value, where)
        if kind in COLLECTIONS.values():
            items = self._items(value, where)
            # The order within a set is chance.
            return {TAG: kind.__name__, "items": items if kind is tuple else sorted(items, key=repr)}
        if kind in (dict, MappingProxyType):
            return self._mapping(value, where)
        if kind in (np.ndarray, np.memmap):
            return self._array(np.asarray(value), where)
        if kind in COMPRESSED.values():
            return self._compressed(value)
        if isinstance(value, np.dtype):
            return {TAG: "dtype", "name": value.str}
        if _name(kind) == BOOSTER:
            return {TAG: "xgboost", "json": np.frombuffer(value.save_raw("json"), np.uint8)}
        if _name(kind) in NAMES:
            return {TAG: NAMES[_name(kind)], "state": self._state(value, where)}
        if issubclass(kind, LabelSpace):
            self.spaces.add(kind)
            return {TAG: "space", "name": _name(kind), "state": self._state(value, where)}
        if hasattr(value, "cv_results_"):
            raise ModelFileError(
                f"{where} can't be saved, because it is a fitted {kind.__name__} with the results of all candidates; "
                "save its best_estimator_, or put that in its place."
            )
        if hasattr(value, "to_local"):
            raise ModelFileError(f"{where} can't be saved, because it needs a cluster; save what its to_local() gives.")
        if isinstance(value, BaseEstimator) and _name(kind).startswith("sklearn."):
            return self._estimator(value, where)
        return value if isinstance(value, np.generic) else _checked(value, where)

    def _items(self, values, where):
        return [self(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def _mapping(self, mapping, where):
        if all(type(key) is str for key in mapping) and TAG not in mapping:
            return {key: self(value, f"{where}[{key!r}]") for key, value in mapping.items()}
        # skops gives back keys that aren't text by calling their type on their text: False would become True.
        items = [[self(key, f"a key of {where}"), self(value, f"{where}[{key!r}]")] for key, value in mapping.items()]
        return {TAG: "dict", "items": items}

    def _array(self, array, where):
        if array.dtype != object:
            if array.dtype.hasobject or array.dtype.kind == "T":  # text of any width
                raise ModelFileError(
                    f"{where} can't be saved, because a model file may not hold arrays of {array.dtype}."
                )
            return array
        return {TAG: "objects", "shape": list(array.shape), "items": self._items(array.ravel().tolist(), where)}

    def _compressed(self, matrix):
        parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
        return {TAG: "sparse", "kind": type(matrix).__name__, "shape": [int(n) for n in matrix.shape], **parts}

    def _state(self, value, where):
        """What an object of ours, or a label space, is made of: see `_assembled`."""
        if isinstance(value, LabelSpace):
            return self(value.to_dict(), where)
        if is_dataclass(value):
            parts = {field.name: getattr(value, field.name) for field in fields(value)}
        else:
            parts = {k: v for k, v in vars(value).items() if self._keep_rows or not isinstance(v, _KeptRows)}
        return {name: self(part, f"{where}.{name}") for name, part in parts.items()}

    def _estimator(self, estimator, where):
        """An estimator of the same class whose attributes are plain, without those that it makes anew by itself."""
        plain, kept = object.__new__(type(estimator)), estimator.__getstate__()
        for name, value in vars(estimator).items():
            if name in kept:
                is_tree = type(value) in TREES.values()
                encoded = self._tree(value, estimator, where) if is_tree else self(value, f"{where}.{name}")
                vars(plain)[name] = self.compact(encoded)
        return plain

    def _tree(self, tree, estimator, where):
        """To be built anew from the rows: the compiled search would trust the indices that a file holds."""
        metric = {"metric": estimator.effective_metric_, **estimator.effective_metric_params_}
        options = self({"leaf_size": estimator.leaf_size, **metric}, f"{where}._tree")
        return {TAG: "tree", "kind": type(tree).__name__, "X": self(estimator._fit_X, where), "options": options}


def _checked(value, where):
    """The value, if skops can write it, and if what it writes can be read."""
    import skops.io

    kind = _name(type(value))
    found = [kind]
    # skops takes a subclass of these for the class itself, and names a method by its object.
    if not isinstance(value, str | int | float | MethodType):
        try:
            with zipfile.ZipFile(BytesIO(skops.io.dumps(value))) as archive:
                plain_tree(archive, Budget(None), accepts=lambda name: True, others=set())
            found = []
        except Foreign as error:
            found = error.names
        except Exception as error:
            raise ModelFileError(f"{where} can't be saved, because a model file may not hold a {kind}.") from error
    if found:
        # What is inside an object that is refused may be fine by itself.
        names = kind if kind in found else ", ".join(found)
        raise ModelFileError(f"{where} can't be saved, because a model file may not hold {names}.")
    return value


class _Decoder:
    """Objects from their plain forms; remembers them, so that what is shared stays shared."""

    def __init__(self, shown, format, spaces, budget):
        self._shown, self._format, self._budget, self._done = shown, format, budget, {}
        self._spaces = {_name(kind): kind for kind in spaces}
        self._builders: dict[str, Callable[..., Any]] = {
            "json": lambda text: self(read_json(text, self._budget)),
            "dict": lambda items: dict(self(items)),
            "dtype": lambda name: np.dtype(name),
            "objects": self._objects,
            "sparse": self._compressed,
            "space": self._space,
            "tree": self._tree,
            "xgboost": self._booster,
            **{name: lambda items, kind=kind: kind(self(items)) for name, kind in COLLECTIONS.items()},
        }

    def __call__(self, tree):
        if type(tree) in SCALARS:
            return tree
        if id(tree) not in self._done:
            self._done[id(tree)] = tree, self._decoded(tree)
        return self._done[id(tree)][1]

    def _decoded(self, tree):
        if type(tree) is list:
            return [self(item) for item in tree]
        if type(tree) is dict:
            return self._tagged(**tree) if TAG in tree else {key: self(value) for key, value in tree.items()}
        return self._object(tree) if isinstance(tree, Object) else tree

    def _object(self, parts):
        """An object of scikit-learn."""
        cls, state = _class_at(parts.name), self(parts.attributes) or {}
        if parts.arguments is not None:
            value = cls(*self(parts.arguments))
            if state:
                value.__setstate__(state)
            return value
        _fitted.check(parts.name, cls, state)
        value = cls.__new__(cls)
        if hasattr(value, "__setstate__"):
            value.__setstate__(state)
        else:
            vars(value).update(state)
        return value

    def _tagged(self, **parts):
        """The object that a dict with TAG stands for."""
        tag = parts.pop(TAG)
        if type(tag) is not str:  # a type would be one, too, for methods of text
            raise Refused("is damaged or was changed after it was saved (the name of an object is no text)")
        # Files of format 1 name the module too, where the class no longer is.
        name = tag.rpartition(".")[2] if self._format == 1 else tag
        if name in OURS:
            state = self(parts["state"])
            if self._format == 1:
                state = {key: value for key, value in state.items() if key not in DROPPED.get(name, ())}
            return _assembled(name, _class_at(OURS[name]), state)
        if tag not in self._builders:
            raise ModelFileError(f"{self._shown} holds a {_line(tag)}, which mlrh {mlrh.__version__} doesn't know.")
        return self._builders[tag](**parts)

    def _objects(self, shape, items):
        items = self(items)
        array = np.empty(len(items), object)
        for i, item in enumerate(items):  # at once, NumPy would look into items that are sequences
            array[i] = item
        return array.reshape(self(shape))

    def _space(self, name, state):
        """A label space of the user's own."""
        if name not in self._spaces:
            kind = str(name).rpartition(".")[2]
            raise ModelFileError(
                f"{self._shown} holds a label space that is not of mlrh, {_line(str(name))}; if you trust it, load the "
                f"file in Python by mlrh.persistence.load and spaces=[{_line(kind)}]."
            )
        return self._spaces[name].from_dict(self(state))

    def _tree(self, kind, X, options):
        options = self(options)
        _fitted.check_tree_options(TREES[kind], X, options)
        self._budget.take(TREE_BYTES * X.nbytes)
        return TREES[kind](X, **options)

    def _booster(self, json):
        text, saved = _fitted.checked_booster(json, self._budget)
        try:
            import xgboost
        except ImportError:
            raise ModelFileError(
                f'{self._shown} holds boosted trees, which need XGBoost: pip install "xgboost>=2.1".'
            ) from None
        # Earlier versions load what later ones wrote, and predict something else where there are categories.
        here = list(map(int, xgboost.__version__.split(".")[:2]))
        if saved > here:
            raise ModelFileError(
                f"{self._shown} holds boosted trees of XGBoost {saved[0]}.{saved[1]}, which {here[0]}.{here[1]} would "
                "read otherwise; update XGBoost."
            )
        return xgboost.Booster(OF_PREDICTIONS, model_file=bytearray(text))

    def _compressed(self, kind, shape, data, indices, indptr):
        matrix = COMPRESSED[kind]((data, indices, indptr), shape=tuple(self(shape)))
        matrix.check_format(full_check=True)  # compiled products don't look whether an index is in range
        return matrix


def _class_at(place):
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


def _assembled(name, cls, state):
    """An object from its parts, which the constructors of spaces and dataclasses judge; all others are attributes."""
    if issubclass(cls, LabelSpace):
        return cls.from_dict(state)
    _fitted.check(name, cls, state)
    if is_dataclass(cls):
        constructor: Any = cls
        return constructor(**state)
    value = cls.__new__(cls)
    vars(value).update(state)
    return value
