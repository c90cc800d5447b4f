"""Model files, changed node by node and byte by byte: `load` refuses them in one sentence, or what it gives answers.

Never another exception of `load`, the end of the process, ten seconds or a gigabyte. What was loaded answers `predict`
or says in a ValueError or TypeError what is wrong.
"""

import io
import json
import tempfile
import time
import warnings
import zipfile
from contextlib import suppress
from functools import cache, partial
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    KernelMLRHClassifierCV,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    PooledSets,
)
from mlrh.automatic import Model, make_preprocessor
from mlrh.baselines import IBLR, CCnet, CorrLog, LabelPowerset, MLkNN, OrConstant, ProbabilisticChain
from mlrh.data import MultilabelData
from mlrh.estimators.thresholds import TunedThresholds
from mlrh.persistence import ModelFileError, load, save
from mlrh.spaces import GroupSpace, HierarchySpace

from ._limits import Worker

SECONDS = 10  # for one case
MEMORY = 2**30  # for one case, beyond the imports
LARGEST = 2**20  # bytes of a file
SCHEMA, HEADER = "schema.json", "mlrh.json"
RNG = np.random.RandomState(0)
X = RNG.normal(size=(24, 3))
Y = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1]] * 6)
SETS = [{"abc"[k] for k in np.flatnonzero(row)} for row in Y]
TEXTS = ["rates rise", "striker scores twice", "club sold", "bank raises rates"] * 6
TABLE = np.column_stack([X[:, 0], np.arange(24) % 3])
DATA = MultilabelData(TABLE, Y.astype(np.int8), ("u", "place"), tuple("abc"), "toy", {"place": ("p", "q", "r")})
COLUMNS = ColumnTransformer(
    [("number", make_pipeline(SimpleImputer(), StandardScaler()), [0]), ("place", OneHotEncoder(), [1])]
)


class Case(NamedTuple):
    """A file, the name of the model that it was made from, and whether it was changed."""

    name: str
    content: bytes
    is_changed: bool = True


def run(seconds: float, seed: int, most: float = inf) -> int:
    """The number of cases tried; an AssertionError names the seed of the first with a fault."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker(partial(fault_of, folder), corpus(), seconds=SECONDS, memory=MEMORY) as worker,
    ):
        for case in corpus():  # again, since the warm-up had no limits
            fault = worker.fault(case)
            assert fault is None, f"the file of {case.name} as it is: {fault}"
        end = time.monotonic() + seconds  # from here on: imports and fits take longer than many cases
        for number in count():
            if number >= most or time.monotonic() > end:
                return number
            case = drawn(Random(seed + number))
            fault = worker.fault(case)
            again = f"python -m tests.fuzz --seconds 1 --only model_files --seed {seed + number}"
            assert fault is None, f"{again}\na changed file of {case.name}: {fault}"
    raise AssertionError("the numbers of cases have come to an end")


def fault_of(folder: str, case: Case) -> str | None:
    """What is wrong with how a file is taken; None where all is well."""
    path = Path(folder, "model.mlrh")
    path.write_bytes(case.content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = load(path)
        except ModelFileError as error:
            if isinstance(error.__cause__, MemoryError):  # `load` makes a sentence of the end of memory, too
                return "needed more memory than a file may take"
            if not case.is_changed:
                return f"refused: {error}"
            return "refused in several lines" if "\n" in str(error) else None
        if not hasattr(model, "predict"):  # another part of the model took its place
            return None
        try:
            answer = model.predict(ROWS[case.name])
        except (ValueError, TypeError) as error:
            return None if str(error) else "an error without words"
    n_rows = answer.shape[0] if hasattr(answer, "shape") else len(answer)
    return None if n_rows == len(Y) else "answers for other rows"


FAST = {"tol": 1e-3}
# One small model of each class that a file may hold, not fitted, its X and its y.
MODELS = {
    "linear": (MLRHClassifier(**FAST), X, Y),
    "size bias": (MLRHClassifier(size_bias=True, decision="f1", **FAST), X, SETS),
    "classes": (MLRHClassifier(**FAST), X, np.array(["no", "yes"])[Y[:, 0]]),
    "observed": (MLRHClassifier(label_space="observed", **FAST), X, sparse.csr_array(Y)),
    "kernel": (KernelMLRHClassifier(**FAST), sparse.csr_array(X * (X > 0)), Y),
    "precomputed": (KernelMLRHClassifier(kernel="precomputed", **FAST), X @ X.T, Y),
    "nystroem": (KernelMLRHClassifier(kernel_approximation="nystroem", n_components=5, random_state=0, **FAST), X, Y),
    "fourier": (KernelMLRHClassifier(kernel_approximation="fourier", n_components=5, random_state=0, **FAST), X, Y),
    "chosen": (MLRHClassifierCV(Cs=[0.1, 1.0], cv=2, **FAST), X, Y),
    "chosen kernel": (KernelMLRHClassifierCV(Cs=[1.0], cv=2, label_space="observed", **FAST), X, Y),
    "calibrated": (CalibratedSets(MLRHClassifier(**FAST), cv=2), X, Y),
    "isotonic": (CalibratedSets(MLRHClassifier(**FAST), cv=2, method="isotonic"), X, Y),
    "thresholds": (TunedThresholds(MLRHClassifier(**FAST), cv=2), X, Y),
    "powerset": (LabelPowerset(), X, Y),
    "neighbours": (MLkNN(2), X, Y),
    "shares of neighbours": (IBLR(2), X, Y),
    "pairs of labels": (CorrLog(tol=1e-3), X, Y),
    "searched chain": (ProbabilisticChain(), X, Y),
    "nets in a chain": (CCnet([1.0], l1_ratios=[0.5], cv=2), X, Y),
    "chain": (ClassifierChain(OrConstant(LogisticRegression())), X, Y),
    "pool": (PooledSets([("a", MLRHClassifier(**FAST)), ("b", LabelPowerset())], weights="equal"), X, Y),
    "one vs rest": (OneVsRestClassifier(MLRHClassifier(**FAST)), X, Y),
    "texts": (make_pipeline(TfidfVectorizer(), MLRHClassifier(**FAST)), TEXTS, SETS),
    "columns": (make_pipeline(COLUMNS, MLRHClassifier(**FAST)), TABLE, Y),
    "open": (MLRHClassifier(label_space="open", set_bias_strength=1.0, **FAST), X, Y),
    "groups": (MLRHClassifier(label_space=GroupSpace([([0, 1], 1, 2)], Y.shape[1]), **FAST), X, Y),
    "automatic": (MLRHAuto(scores="linear", quality="fast", time_budget=None, cv=2, n_jobs=1), TABLE, Y),
    "boosted": (MLRHBoostingClassifier(n_estimators=2, feature_types=["q", "c"], n_jobs=1, random_state=0), TABLE, Y),
    "hierarchy": (MLRHClassifier(label_space=HierarchySpace([-1, -1, 1]), **FAST), X, Y),
}
ROWS = {**{name: features for name, (_, features, _) in MODELS.items()}, "table": DATA}


def corpus() -> list[Case]:
    """The files of all models."""
    return [Case(name, file_of(name), is_changed=False) for name in ROWS]


@cache
def file_of(name: str) -> bytes:
    """The file of a model, fitted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.mlrh")
        save(_table_model() if name == "table" else _fitted_model(*MODELS[name]), path)
        return path.read_bytes()


def _fitted_model(model, features, y):
    return clone(model).fit(features, y)


def _table_model():
    """A model as `mlrh fit` makes it."""
    preprocessor = make_preprocessor(DATA).fit(DATA.X)
    classifier = MLRHClassifier(**FAST).fit(preprocessor.transform(DATA.X), DATA.Y)
    return Model(DATA.schema, preprocessor, classifier, {"scaling": "standard"}, {})


def drawn(random: Random) -> Case:
    """A file with one to three changes."""
    case = random.choice(corpus())
    if random.random() < 0.1:
        return Case(case.name, with_changed_bytes(random, case.content))
    parts = parts_of(case.content)
    schema = json.loads(parts[SCHEMA])
    for _ in range(random.randint(1, 3)):
        with suppress(IndexError):  # where an earlier change has left nothing for this one
            random.choice(CHANGES)(random, schema, parts)
    parts[SCHEMA] = json.dumps(schema).encode()
    return Case(case.name, archive_of(parts)[:LARGEST])


def parts_of(content: bytes) -> dict[str, bytes]:
    """The members of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    """The bytes of an array's file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def nodes_of(schema: Any, loader: str = "") -> list[dict]:
    """All nodes of a schema, or those of one loader."""
    found, waiting = [], [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict) and "__loader__" in item and loader in ("", item["__loader__"]):
            found.append(item)
        waiting += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return found


def with_changed_bytes(random, content):
    data = bytearray(content)
    for _ in range(random.randint(1, 4)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data[: random.randrange(len(data))] if random.random() < 0.1 else data)


LOADERS = (
    *("DictNode", "ListNode", "TupleNode", "SetNode", "JsonNode", "NdArrayNode", "SparseMatrixNode", "ObjectNode"),
    *("TypeNode", "FunctionNode", "SliceNode", "BytesNode", "RandomStateNode", "TreeNode", "LossNode", "PartialNode"),
    *("MethodNode", "OperatorFuncNode", "ConstructorFromReduceNode", "CachedNode", "MaskedArrayNode", "DTypeNode"),
)
CLASSES = (
    *("builtins.dict", "builtins.list", "builtins.eval", "posix.system", "numpy.ndarray", "numpy.log1p"),
    *("numpy.float64", "scipy.sparse._matrix.spmatrix", "sklearn.svm._classes.SVC", "sklearn.tree._tree.Tree"),
    *("sklearn.preprocessing._data.StandardScaler", "sklearn.neighbors._unsupervised.NearestNeighbors"),
)
VALUES = (
    *(None, True, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x"),
    *("cosine", "precomputed", "matrix", "sets", "f1", [], {}, [[]], {"mlrh": "tuple"}, {"mlrh": "tree"}),
)


def change_loader(random, schema, parts):
    random.choice(nodes_of(schema))["__loader__"] = random.choice(LOADERS)


def change_class(random, schema, parts):
    node = random.choice(nodes_of(schema))
    node["__module__"], _, node["__class__"] = random.choice(CLASSES).rpartition(".")


def swap_nodes(random, schema, parts):
    """One node takes the place of another."""
    one, other = random.choice(nodes_of(schema)), json.loads(json.dumps(random.choice(nodes_of(schema))))
    one.clear()
    one.update(other)


def drop(random, schema, parts):
    """A key or an item goes."""
    node = random.choice(nodes_of(schema))
    content = node.get("content")
    if isinstance(content, dict) and content and random.random() < 0.8:
        del content[random.choice(sorted(content))]
        types = node.get("key_types", {}).get("content", [])
        del types[-1:]
    elif isinstance(content, list) and content:
        del content[random.randrange(len(content))]
    else:
        node.pop(random.choice(sorted(node)))


def share(random, schema, parts):
    """Two nodes get the same number."""
    one, other = random.choice(nodes_of(schema)), random.choice(nodes_of(schema))
    other["__id__"] = one.setdefault("__id__", 1)


def deepen(random, schema, parts):
    """A node is wrapped in lists."""
    node = random.choice(nodes_of(schema))
    inner = dict(node)
    for _ in range(random.choice([1, 3, 60, 200])):
        inner = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "content": [inner]}
    node.clear()
    node.update(inner)


def change_value(random, schema, parts):
    """A number or text becomes another one, also inside of texts that are JSON themselves."""
    node = random.choice(nodes_of(schema, "JsonNode"))
    try:
        value = json.loads(node["content"])
        node["content"] = json.dumps(_changed(random, value))
    except (KeyError, TypeError, ValueError):
        node["content"] = random.choice(VALUES)


def _changed(random, value):
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return json.dumps(_changed(random, json.loads(value)))
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value))
        if random.random() < 0.1:
            return {other: item for other, item in value.items() if other != key}
        return {**value, key: _changed(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.9:
        i = random.randrange(len(value))
        return [*value[:i], _changed(random, value[i]), *value[i + 1 :]]
    return random.choice(VALUES)


def change_array(random, schema, parts):
    """An array gets another shape, type or entry."""
    names = [name for name in parts if name.endswith(".npy")]
    if not names:
        return
    name = random.choice(sorted(names))
    try:
        array = np.lib.format.read_array(io.BytesIO(parts[name]), allow_pickle=False)
    except ValueError:  # changed already
        return
    parts[name] = random.choice(ARRAYS)(random, array)


ENTRIES = {"f": (np.nan, np.inf, -1e308, 1e308, 0.0), "b": (True, False), "i": (-1, 0, 1, 99, 2**30)}


def _entry(random, array):
    if array.size and array.dtype.kind in ENTRIES:
        with np.errstate(all="ignore"):
            value = np.array(random.choice(ENTRIES[array.dtype.kind])).astype(array.dtype)
        array.flat[random.randrange(array.size)] = value
    return npy(array)


def _shape(random, array):
    empty = [np.zeros((0, 10**6)), np.zeros((10**9, 0))]
    shapes = [array.T, array.ravel(), array[..., None], np.concatenate([array.ravel()] * 2), *empty]
    return npy(random.choice(shapes if array.ndim == 0 else [*shapes, array[:0], array[:1]]))


def _dtype(random, array):
    kind = random.choice(["f4", "i8", "i1", "U3", ">f8", "c16", "M8[s]", "?", "f2"])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return npy(array.astype(kind)) if array.dtype.kind in "biuf" else npy(np.zeros(array.shape, kind))


def _claim(random, array):
    """A header that claims another shape than there are entries."""
    header = npy(array)
    claimed = random.choice(["(10000000000,)", "(1, 1)", "(4000000000, 0)", "(-1,)", "(99, 99)"])
    return header.replace(str(array.shape).encode(), claimed.encode(), 1)


ARRAYS = (_entry, _entry, _shape, _dtype, _claim)


def change_member(random, schema, parts):
    """A node names the member of another, or the member is damaged, an archive or gone."""
    users = [node for node in nodes_of(schema) if isinstance(node.get("file"), str)]
    if not users:
        return
    node, other = random.choice(users), random.choice(users)
    what = random.randrange(4)
    if what == 0:
        node["file"] = other["file"]
    elif what == 1:
        parts.pop(node["file"], None)
    elif what == 2:
        zeros = {name: npy(np.zeros(10**7, np.int8)) for name in ("data", "indices", "indptr", "shape", "format")}
        parts[node["file"]] = archive_of(zeros, zipfile.ZIP_DEFLATED)
        node["__loader__"] = random.choice(["SparseMatrixNode", "NdArrayNode"])
    else:
        content = parts.get(node["file"], b"")
        parts[node["file"]] = content[: random.randrange(len(content) + 1)]


def many(random, schema, parts):
    """A node many times, as different ones."""
    node = random.choice(nodes_of(schema))
    copies = [{**node, "__id__": 10**6 + i} for i in range(200)]
    node.clear()
    node.update({"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "content": copies})


CHANGES = (
    *(change_value, change_value, change_value, change_array, change_array, change_array, drop, drop, swap_nodes),
    *(change_loader, change_class, share, deepen, change_member, many),
)
