"""Models to files and back without pickle.

A model file is a skops archive. skops sees arrays, plain containers and scikit-learn's own classes only; objects of
ours are taken apart into these before and put together after, so that none of our code is named to skops as trusted.
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
from types import MappingProxyType
from typing import Any

import numpy as np
import sklearn
from scipy import sparse
from sklearn import model_selection
from sklearn.base import BaseEstimator
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.neighbors import BallTree, KDTree

import mlrh
from mlrh._files import replacing
from mlrh.estimators.linear import _KeptRows
from mlrh.spaces import LabelSpace

__all__ = ["ModelFileError", "load", "save"]

FORMAT = 2
FORMATS = (1, FORMAT)  # that are read
HEADER = "mlrh.json"

# The classes of ours that a file may hold: the name in files, which never changes, and where the class is now. A rule
# such as "whatever is in the package" would also cover its functions and what its modules import.
OURS = {
    "MLRHClassifier": "mlrh.estimators.linear.MLRHClassifier",
    "KernelMLRHClassifier": "mlrh.estimators.kernel.KernelMLRHClassifier",
    "MLRHClassifierCV": "mlrh.estimators.cv.MLRHClassifierCV",
    "KernelMLRHClassifierCV": "mlrh.estimators.cv.KernelMLRHClassifierCV",
    "CalibratedSets": "mlrh.estimators.calibration.CalibratedSets",
    "Calibration": "mlrh.estimators.calibration._Calibration",
    "RiskCoverage": "mlrh.metrics.RiskCoverage",
    "TunedThresholds": "mlrh.estimators.thresholds.TunedThresholds",
    "LabelPowerset": "mlrh.baselines.label_powerset.LabelPowerset",
    "MLkNN": "mlrh.baselines.ml_knn.MLkNN",
    "IBLR": "mlrh.baselines.iblr.IBLR",
    "CorrLog": "mlrh.baselines.corrlog.CorrLog",
    "CCnet": "mlrh.baselines.ccnet.CCnet",
    "ProbabilisticClassifierChain": "mlrh.baselines.probabilistic_chain.ProbabilisticClassifierChain",
    "OrConstant": "mlrh.baselines.or_constant.OrConstant",
    "CardinalitySpace": "mlrh.spaces.cardinality.CardinalitySpace",
    "ObservedSpace": "mlrh.spaces.observed.ObservedSpace",
    "Targets": "mlrh.estimators._targets.Targets",
    "KeptRows": "mlrh.estimators.linear._KeptRows",
    "ToDense": "mlrh.automatic.ToDense",
    "Schema": "mlrh.data.containers.Schema",
    "Model": "mlrh.automatic.Model",
}
NAMES = {place: name for name, place in OURS.items()}
# What files of format 1 hold and models no longer have: rows that partial_fit was shown, and a number of threads.
DROPPED = {"MLRHClassifier": ("_stream",), "CardinalitySpace": ("n_jobs",)}
# Classes of scikit-learn that skops doesn't know and that run nothing when loaded: folds that `cv` may be, and what
# OneVsRestClassifier holds for a label that all rows or none have.
SPLITTERS = (
    *("KFold", "GroupKFold", "StratifiedKFold", "StratifiedGroupKFold", "RepeatedKFold", "RepeatedStratifiedKFold"),
    *("ShuffleSplit", "GroupShuffleSplit", "StratifiedShuffleSplit", "TimeSeriesSplit", "PredefinedSplit"),
    *("LeaveOneOut", "LeavePOut", "LeaveOneGroupOut", "LeavePGroupsOut"),
)
TRUSTED = [
    "sklearn.multiclass._ConstantPredictor",
    *(f"{getattr(model_selection, name).__module__}.{name}" for name in SPLITTERS),
]

# A dict with this key stands for an object: the key's value says what it is, the other entries what it is made of.
TAG = "mlrh"
SCALARS = (type(None), bool, int, float, str)
COLLECTIONS = {kind.__name__: kind for kind in (tuple, set, frozenset)}
TREES = {kind.__name__: kind for kind in (KDTree, BallTree)}
COMPRESSED = {
    kind.__name__: kind for kind in (sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.csc_matrix)
}
PICKLE_START = b"\x80"
SKOPS_HEADER = "schema.json"
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
        models, arrays, numbers and strings. What could not be loaded again (functions, classes of other packages,
        decision trees) is a ModelFileError that names it.
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


def load(path, *, spaces: Iterable[type[LabelSpace]] = ()) -> Any:
    """The model that `save` wrote to a file; it predicts the same, bit for bit.

    (Arrays that were views with gaps come back without them, and NumPy may add up their products in another order.)
    A file that isn't one, is damaged, or holds what `save` would not write is a ModelFileError; no code of a file's
    choice is run. A file of another version (MAJOR.MINOR) of mlrh or scikit-learn is loaded with a UserWarning.

    Parameters
    ----------
    path : path of the file
    spaces : classes
        Label spaces of your own that the file may hold; `from_dict` of the one that it names is called.
    """
    shown = os.fspath(path)
    data = _content(Path(path), shown)
    model, differences = _from_bytes(data, shown, spaces)
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
        buffer = BytesIO(skops.io.dumps(tree))
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(HEADER, json.dumps({"format": FORMAT, **_versions()}))
        data = buffer.getvalue()
    except RecursionError as error:
        raise ModelFileError("The model can't be saved: it holds itself, or its parts are nested too deep.") from error
    except ModelFileError:
        raise
    except Exception as error:
        raise ModelFileError(f"The model can't be saved ({_reason(error)}).") from error
    try:
        _from_bytes(data, "what would be written", encoder.spaces)
    except ModelFileError as error:
        raise ModelFileError(f"The model can't be saved, because {str(error).rstrip('.')}.") from error
    return data


def _from_bytes(data, shown, spaces):
    """The model, and the versions with which it was saved that differ from ours, in words."""
    import skops.io

    with _one_sentence(shown):
        header = _header(data, shown)
        foreign = _untrusted(data)
        if foreign:
            names = _line(", ".join(foreign))
            raise ModelFileError(f"{shown} holds what a model file must not hold, and is not loaded: {names}.")
        with warnings.catch_warnings():
            # Said once by load, and of MAJOR.MINOR only, not by every estimator.
            warnings.simplefilter("ignore", InconsistentVersionWarning)
            tree = skops.io.loads(data, trusted=TRUSTED)
        return _Decoder(shown, header["format"], spaces)(tree), _differences(header)


def _untrusted(data):
    """Names of what a file holds that it must not hold."""
    import skops.io

    return [name for name in skops.io.get_untrusted_types(data=data) if name not in TRUSTED]


@contextmanager
def _one_sentence(shown):
    """Whatever a damaged or forged file provokes, as a ModelFileError: no list of exceptions would be complete."""
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        raise ModelFileError(f"{shown} is damaged or was changed after it was saved ({_reason(error)}).") from error


def _content(path, shown):
    if path.is_dir():
        raise ModelFileError(f"{shown} is a folder, not a model file.")
    if not path.exists():
        raise ModelFileError(f"There is no model file {shown}.")
    if not path.is_file():
        raise ModelFileError(f"{shown} is not a regular file, so it can't be a model file.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{shown} can't be read ({error.strerror}).") from error


def _header(data, shown):
    """The file's header, once it is clear that the file is ours."""
    if not zipfile.is_zipfile(BytesIO(data)):
        raise ModelFileError(f"{shown} {_what_else(data)}.")
    with zipfile.ZipFile(BytesIO(data)) as archive:
        members = archive.infolist()
        # save never compresses, so that no small file can ask for much memory.
        is_packed = any(m.compress_type != zipfile.ZIP_STORED or m.file_size > len(data) for m in members)
        if HEADER not in archive.namelist():
            is_skops = SKOPS_HEADER in archive.namelist() and not is_packed
            raise ModelFileError(f"{shown} {_what_skops_holds(data) if is_skops else AN_ARCHIVE}.")
        if is_packed:
            raise ModelFileError(f"{shown} was changed after it was saved: it has compressed parts.")
        header = json.loads(archive.read(HEADER))
    if header["format"] not in FORMATS:
        theirs = _line(f"format {header['format']} of mlrh {header['mlrh']}")
        known = " and ".join(map(str, FORMATS))
        raise ModelFileError(f"{shown} has {theirs}; mlrh {mlrh.__version__} reads formats {known} only.")
    return header


def _what_skops_holds(data):
    """What an archive is that skops may have written, but not mlrh."""
    import skops.io

    try:
        foreign = skops.io.get_untrusted_types(data=data)
    except Exception:  # as in _one_sentence, but this file never was ours
        return AN_ARCHIVE
    holds = f"; it is not loaded and holds {_line(', '.join(foreign))}" if foreign else "; skops.io.load may load it"
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


def _line(text):
    """At most one line of a text that a file may have written."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]} ..."


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
            return {TAG: kind.__name__, "items": self._items(value, where)}
        if kind in (dict, MappingProxyType):
            return self._mapping(value, where)
        if kind in (np.ndarray, np.memmap):
            return self._array(np.asarray(value), where)
        if kind in COMPRESSED.values():
            return self._compressed(value)
        if isinstance(value, np.dtype):
            return {TAG: "dtype", "name": value.str}
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
    """The value, if skops can write it and trusts what it wrote."""
    import skops.io

    kind = _name(type(value))
    found = [kind]
    # skops takes a subclass of these for the class itself.
    if not isinstance(value, str | int | float):
        try:
            found = _untrusted(skops.io.dumps(value))
        except Exception as error:
            raise ModelFileError(f"{where} can't be saved, because a model file may not hold a {kind}.") from error
    if found:
        # What is inside an object that is refused may be fine by itself.
        names = kind if kind in found else ", ".join(found)
        raise ModelFileError(f"{where} can't be saved, because a model file may not hold {names}.")
    return value


class _Decoder:
    """Objects from their plain forms; remembers them, so that what is shared stays shared."""

    def __init__(self, shown, format, spaces):
        self._shown, self._format, self._done = shown, format, {}
        self._spaces = {_name(kind): kind for kind in spaces}
        self._builders: dict[str, Callable[..., Any]] = {
            "json": lambda text: self(json.loads(text)),
            "dict": lambda items: dict(self(items)),
            "dtype": lambda name: np.dtype(name),
            "objects": self._objects,
            "sparse": self._compressed,
            "space": self._space,
            "tree": lambda kind, X, options: TREES[kind](X, **self(options)),
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
        if isinstance(tree, BaseEstimator):
            vars(tree).update({name: self(value) for name, value in vars(tree).items()})
        return tree

    def _tagged(self, **parts):
        """The object that a dict with TAG stands for."""
        tag = parts.pop(TAG)
        # Files of format 1 name the module too, where the class no longer is.
        name = tag.rpartition(".")[2] if self._format == 1 else tag
        if name in OURS:
            state = self(parts["state"])
            if self._format == 1:
                state = {key: value for key, value in state.items() if key not in DROPPED.get(name, ())}
            return _assembled(_class_at(OURS[name]), state)
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
            kind = name.rpartition(".")[2]
            raise ModelFileError(
                f"{self._shown} holds a label space that is not of mlrh, {_line(name)}; if you trust it, load the file "
                f"with spaces=[{_line(kind)}]."
            )
        return _assembled(self._spaces[name], self(state))

    def _compressed(self, kind, shape, data, indices, indptr):
        matrix = COMPRESSED[kind]((data, indices, indptr), shape=tuple(self(shape)))
        matrix.check_format(full_check=True)  # compiled products don't look whether an index is in range
        return matrix


def _class_at(place):
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


def _assembled(cls, state):
    """An object from its parts, which the constructors of spaces and dataclasses judge; all others are attributes."""
    if issubclass(cls, LabelSpace):
        return cls.from_dict(state)
    if is_dataclass(cls):
        constructor: Any = cls
        return constructor(**state)
    value = cls.__new__(cls)
    vars(value).update(state)
    return value
