"""The content of a model file as plain parts, checked as a whole before anything is made of it.

A model file is an archive that skops wrote: `schema.json` is a tree of nodes, each with a class, a loader and children;
arrays are members of their own. skops reads such files too, but trusts what its loaders are given. So they are read
here: only loaders that `mlrh.persistence.save` leads to are known, and no class is imported and no object made.
"""

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from scipy import special
from sklearn.model_selection import KFold, StratifiedKFold

__all__ = ["MAX_DEPTH", "SCALARS", "Budget", "Foreign", "Object", "Refused", "plain_tree", "read_json"]

SCHEMA = "schema.json"
CHANGED = "is damaged or was changed after it was saved"
SCALARS = (type(None), bool, int, float, str)
MAX_DEPTH = 100  # of nodes in nodes: twenty pipelines in each other; Python's own limit of 1,000 calls is far away
NODE_BYTES = 1000  # that a node takes besides its text: what is made of it, and an entry in tables
# Upper bounds of the memory for the values of a JSON text and for a copy of their containers, measured: a list or dict,
# an item, a character of text.
BRACKET_BYTES, ITEM_BYTES, CHARACTER_BYTES = 700, 300, 4
LONGEST_EMPTY = 1_000_000  # rows or columns of an array without entries, which a file could claim without any bytes
ARRAY_KINDS = "biufcSUMmV"  # of dtypes; what is left out could hold objects
NDARRAY = "numpy.ndarray"
# Positions within the 624 numbers of a generator's state, which compiled code doesn't check.
MT19937_NUMBERS = 624


class Refused(Exception):  # noqa: N818  it is not an error of its own, but a part of one
    """Why a file is refused: the rest of a sentence that begins with the name of the file."""


class Foreign(Refused):
    """The same of a file that holds classes or functions by these names."""

    def __init__(self, names: list[str]):
        super().__init__(f"holds what a model file must not hold, and is not loaded: {', '.join(names)}")
        self.names = names


class Budget:
    """Bytes that a file may still take; more is refused before they are taken. None is without a limit."""

    def __init__(self, limit: int | None):
        self._limit, self._used = limit, 0

    def take(self, n_bytes: int) -> None:
        """Count so many bytes."""
        self._used += n_bytes
        if self._limit is not None and self._used > self._limit:
            raise Refused(
                f"would take more than {self._limit} bytes of memory; if you trust it, allow more by the environment "
                "variable MLRH_MAX_BYTES"
            )


@dataclass(frozen=True, eq=False)
class Object:
    """What an object of a class is to be made of: attributes, and for compiled classes arguments of the constructor."""

    name: str
    attributes: Any
    arguments: Any = None


def read_json(text: str | bytes, budget: Budget) -> Any:
    """The values of a JSON text, if the budget has room for them."""
    if not isinstance(text, str | bytes):
        raise Refused(f"{CHANGED} (what should be JSON is no text)")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    containers, items = data.count(b"[") + data.count(b"{"), data.count(b",")
    budget.take(CHARACTER_BYTES * len(data) + BRACKET_BYTES * containers + ITEM_BYTES * items)
    return json.loads(text)


def plain_tree(archive: zipfile.ZipFile, budget: Budget, *, accepts: Callable[[str], bool], others: set[str]) -> Any:
    """Lists, dicts, scalars, arrays, types, ufuncs and `Object`s, as the archive's schema has them.

    Every node is looked at before the first array is read. What is refused: classes that no loader here takes, classes
    of scikit-learn that `accepts` doesn't, and members of the archive that are neither the schema's nor among `others`.
    """
    schema = read_json(archive.read(SCHEMA), budget)
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    users: dict[str, Any] = {}
    foreign, doubtful = set(), set()
    for node in _nodes(schema):
        budget.take(NODE_BYTES)
        name, loader = _name(node), LOADERS.get(node["__loader__"])
        if loader is None or not loader.takes(name):
            foreign.add(name)
        elif loader.makes_objects and not accepts(name):
            doubtful.add(name)
        if "file" in node:
            _check_member(node, sizes, users)
    if foreign:
        raise Foreign(sorted(foreign))
    if doubtful:
        raise Refused(
            "holds classes that rely on what a file says, which nothing here checks; if you trust where it comes from, "
            f"load it with trusted={sorted(doubtful)}"
        )
    unused = sorted(sizes.keys() - users.keys() - others - {SCHEMA})
    if unused:
        raise Refused(f"has a part that belongs to nothing, {unused[0]!r}")
    return _Builder(archive, budget)(schema)


def _nodes(schema) -> Iterator[dict]:
    """All nodes, each one's loader, names, number and depth checked."""
    waiting = [(schema, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise Refused(f"has parts nested more than {MAX_DEPTH} deep")
        if type(node) is not dict or any(type(node.get(key)) is not str for key in NODE_KEYS):
            raise Refused(f"{CHANGED} (a node of its schema lacks class or loader)")
        if type(node.get("__id__", 1)) is not int:
            raise Refused(f"{CHANGED} (a node has no number)")
        yield node
        loader = LOADERS.get(node["__loader__"])
        waiting += [(child, depth + 1) for child in (loader.children(node) if loader else ())]


NODE_KEYS = ("__class__", "__module__", "__loader__")


def _name(node):
    return f"{node['__module__']}.{node['__class__']}"


def _check_member(node, sizes, users):
    """Refuse a member that isn't there, or that another node has: a small file could fill the memory with copies."""
    name, user = node["file"], node.get("__id__", id(node))
    if type(name) is not str or name not in sizes:
        raise Refused(f"{CHANGED} (a part is missing)")
    if users.setdefault(name, user) != user:
        raise Refused(f"was changed after it was saved: two objects claim the part {name!r}")


class _Builder:
    """Values from nodes; nodes of the same number are one value."""

    def __init__(self, archive, budget):
        self.archive, self.budget, self._done = archive, budget, {}

    def __call__(self, node):
        number = node.get("__id__")
        if number is not None and number in self._done:
            return self._done[number]
        value = LOADERS[node["__loader__"]].value(node, self)
        if number is not None:
            self._done[number] = value
        return value

    def member(self, node):
        return self.archive.read(node["file"])


def _dict(node, build):
    # save writes no other keys; skops would call the type that a file names on each of them.
    types = build(node["key_types"])
    if len(types) != len(node["content"]) or any(kind is not str for kind in types):
        raise Refused(f"{CHANGED} (keys of a dict are not text)")
    return {key: build(value) for key, value in node["content"].items()}


def _list(node, build):
    return [build(item) for item in node["content"]]


def _json(node, build):
    value = read_json(node["content"], build.budget)
    if type(value) not in SCALARS:
        raise Refused(f"{CHANGED} (a list or dict stands in place of a number)")
    return value


def _array(node, build):
    """An array, or one of NumPy's numbers."""
    if node.get("type") != "numpy":
        raise Refused(f"{CHANGED} (an array is not a part of its own)")
    array = _read_array(build.member(node), build.budget)
    if _name(node) == NDARRAY:
        return array
    kind = TYPES[f"numpy.{node['__class__']}"]
    if array.shape == () and type(array[()]) is kind:
        return array[()]
    # Some types have two names, such as longlong.
    if array.shape != () or array.dtype != np.dtype(kind):
        raise Refused(f"{CHANGED} (a number has another type than it says)")
    return kind(array[()])


def _read_array(content, budget):
    stream, header = BytesIO(content), np.lib.format
    read_header = {(1, 0): header.read_array_header_1_0, (2, 0): header.read_array_header_2_0}
    shape, _, dtype = read_header[header.read_magic(stream)](stream)
    size = dtype.itemsize
    for length in shape:
        size *= length
    if dtype.hasobject or dtype.kind not in ARRAY_KINDS or size != len(content) - stream.tell():
        raise Refused(f"{CHANGED} (an array has not the bytes that it says)")
    if size == 0 and max(shape, default=0) > LONGEST_EMPTY:
        raise Refused(f"holds an array of shape {shape} without entries; at most {LONGEST_EMPTY} rows may have none")
    budget.take(size)
    stream.seek(0)
    return header.read_array(stream, allow_pickle=False)


def _random_state(node, build):
    state = build(node["content"])
    numbers = state["state"]["key"]
    if state["bit_generator"] != "MT19937" or not 0 <= state["state"]["pos"] <= MT19937_NUMBERS:
        raise Refused("holds a random state that is none")
    random = np.random.RandomState()
    random.set_state({**state, "state": {"key": np.array(numbers, np.uint32), "pos": int(state["state"]["pos"])}})
    return random


def _slice(node, build):
    limits = [node["content"][key] for key in ("start", "stop", "step")]
    if any(limit is not None and type(limit) is not int for limit in limits):
        raise Refused("holds a slice whose limits are not numbers")
    return slice(*limits)


def _object(node, build):
    return Object(_name(node), build(node["content"]) if "content" in node else {})


def _compiled(node, build):
    return Object(_name(node), build(node["content"]), build(node["__reduce__"]["args"]))


def _is_of_sklearn(name):
    return name.startswith("sklearn.")


def _is_ufunc(name):
    module, _, attribute = name.rpartition(".")
    place = special if module.startswith("scipy.special") else np if module.split(".")[0] == "numpy" else None
    return isinstance(getattr(place, attribute, None), np.ufunc)


def _ufunc(node, build):
    return getattr(special if node["__module__"].startswith("scipy.") else np, node["__class__"])


def _items(node):
    content = node.get("content")
    if type(content) is not list:
        raise Refused(f"{CHANGED} (a list has no items)")
    return content


def _entries(node):
    content = node.get("content")
    if type(content) is not dict or "key_types" not in node:
        raise Refused(f"{CHANGED} (a dict has no entries)")
    return [node["key_types"], *content.values()]


def _content(node):
    return [node["content"]] if node.get("content") is not None else []


def _content_and_arguments(node):
    return [node["content"], node["__reduce__"]["args"]]


def _nothing(node):
    return ()


@dataclass(frozen=True)
class _Loader:
    """Which classes a loader may be told to make, the nodes inside its node, and the value of the node."""

    takes: Callable[[str], bool]
    children: Callable[[dict], Any]
    value: Callable[[dict, _Builder], Any]
    makes_objects: bool = False


TYPES: dict[str, type] = {f"builtins.{kind.__name__}": kind for kind in (bool, int, float, str)}
TYPES |= {
    f"numpy.{name}": kind
    for name, kind in vars(np).items()
    if isinstance(kind, type) and issubclass(kind, np.generic) and kind.__name__ == name
}
TYPES |= {f"{kind.__module__}.{kind.__name__}": kind for kind in (KFold, StratifiedKFold)}  # of the repeated ones
NUMBERS = {name for name in TYPES if name.startswith("numpy.")}
LOADERS = {
    "DictNode": _Loader("builtins.dict".__eq__, _entries, _dict),
    "ListNode": _Loader("builtins.list".__eq__, _items, _list),
    "TupleNode": _Loader("builtins.tuple".__eq__, _items, _list),
    "JsonNode": _Loader(lambda name: True, _nothing, _json),
    "NdArrayNode": _Loader(lambda name: name == NDARRAY or name in NUMBERS, _nothing, _array),
    "BytesNode": _Loader("builtins.bytes".__eq__, _nothing, lambda node, build: build.member(node)),
    "SliceNode": _Loader("builtins.slice".__eq__, _nothing, _slice),
    "TypeNode": _Loader(TYPES.__contains__, _nothing, lambda node, build: TYPES[_name(node)]),
    "FunctionNode": _Loader(_is_ufunc, _nothing, _ufunc),
    "RandomStateNode": _Loader("numpy.random.mtrand.RandomState".__eq__, _content, _random_state),
    "ObjectNode": _Loader(_is_of_sklearn, _content, _object, makes_objects=True),
    "TreeNode": _Loader(_is_of_sklearn, _content_and_arguments, _compiled, makes_objects=True),
    "LossNode": _Loader(_is_of_sklearn, _content_and_arguments, _compiled, makes_objects=True),
}
