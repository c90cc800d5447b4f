"""What objects from a model file must look like: one table per class, by the class's name in files.

A table lists attributes, each with the shape, type and range of its value. Lengths in shapes have names: the same name
stands for the same length within an object, "features" for its `n_features_in_`, "labels" for the number of labels.
A new class needs one entry in OURS (ours) or SCIKIT_LEARN (theirs). Label spaces have none: `from_dict` judges.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import signature
from numbers import Integral, Real
from typing import Any

import numpy as np
import sklearn
from scipy import sparse
from sklearn import model_selection
from sklearn.isotonic import IsotonicRegression
from sklearn.kernel_approximation import RBFSampler
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import BallTree, KDTree
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import LabelBinarizer

from mlrh import decisions
from mlrh._archives import Budget, Refused, read_json
from mlrh._sklearn import check_parameters
from mlrh.baselines import OrConstant
from mlrh.data.containers import Schema
from mlrh.estimators import MLRHClassifier
from mlrh.estimators._base import ONE_CLASS
from mlrh.estimators._table_features import PARTS, TableFeatures
from mlrh.estimators._targets import SET_TYPES, Targets
from mlrh.estimators.calibration import TEMPERATURES
from mlrh.estimators.linear import _KeptRows
from mlrh.metrics import RiskCoverage
from mlrh.spaces import LabelSpace

__all__ = ["OURS", "SCIKIT_LEARN", "Array", "Number", "Table", "check", "check_tree_options", "checked_booster"]

Sizes = dict[str, int]


@dataclass(frozen=True)
class Array:
    """An array: kinds of its dtype, its shape, and the range of its entries."""

    kinds: str
    shape: tuple[str | int, ...]
    low: float = -np.inf
    high: float | str = np.inf  # a name: below the length of that name
    is_finite: bool = True
    may_be_sparse: bool = False
    is_optional: bool = False  # the attribute may be missing or None

    def fits(self, value, sizes: Sizes) -> bool:
        """Whether the value is such an array; notes lengths that had no number yet."""
        if sparse.issparse(value) and self.may_be_sparse:
            entries = value.data
        elif isinstance(value, np.ndarray):
            entries = value
        else:
            return False
        if entries.dtype.kind not in self.kinds or len(value.shape) != len(self.shape):
            return False
        if any(
            length != (name if isinstance(name, int) else sizes.setdefault(name, length))
            for name, length in zip(self.shape, value.shape, strict=True)
        ):
            return False
        if entries.dtype.kind not in "biuf" or entries.size == 0:
            return True
        high = sizes[self.high] - 1 if isinstance(self.high, str) else self.high
        with np.errstate(invalid="ignore"):
            smallest, largest = entries.min(), entries.max()  # NaN where one entry is
        if np.isnan(smallest):
            return not self.is_finite
        is_inside = self.low <= smallest and largest <= high
        return bool(is_inside and (not self.is_finite or np.isfinite([smallest, largest]).all()))

    def __str__(self):
        return f"an array of shape ({', '.join(map(str, self.shape))}), with entries of the right type and range"


@dataclass(frozen=True)
class Number:
    """A number, or with kind=Integral a whole one."""

    kind: type = Real
    low: float = -np.inf
    high: float = np.inf
    is_optional: bool = False

    def fits(self, value, sizes: Sizes) -> bool:
        """Whether the value is such a number; NaN is none."""
        is_number = isinstance(value, self.kind) and not isinstance(value, bool | np.bool_)
        return is_number and self.low <= value <= self.high

    def __str__(self):
        return f"a {'whole ' if self.kind is Integral else ''}number in its range"


@dataclass(frozen=True)
class Value:
    """Anything that a function of the value and the lengths says yes to."""

    is_right: Callable[[Any, Sizes], Any]
    words: str
    is_optional: bool = False

    def fits(self, value, sizes: Sizes) -> bool:
        """Whether the function says yes."""
        return bool(self.is_right(value, sizes))

    def __str__(self):
        return self.words


Form = Array | Number | Value


def instance(*kinds: type, optional: bool = False) -> Value:
    """An object of one of these classes."""
    words = " or ".join(kind.__name__ for kind in kinds)
    return Value(lambda value, sizes: isinstance(value, kinds), f"a {words}", optional)


def has(*methods: str, optional: bool = False) -> Value:
    """An object with these methods."""
    return Value(
        lambda value, sizes: all(callable(getattr(value, method, None)) for method in methods),
        f"an object with {' and '.join(methods)}",
        optional,
    )


def listed(part: Form, length: str = "") -> Value:
    """A list or tuple of such parts; the length has a name, or any other."""

    def fits(value, sizes):
        if not isinstance(value, list | tuple) or (length and sizes.setdefault(length, len(value)) != len(value)):
            return False
        return all(part.fits(item, dict(sizes)) for item in value)

    return Value(fits, f"a list, each item {part}")


def order_of(length: str) -> Value:
    """The numbers 0, 1, ... up to a length, each once, in any order."""
    return Value(
        lambda value, sizes: sorted(np.asarray(value).tolist()) == list(range(sizes[length])), f"an order of {length}"
    )


@dataclass(frozen=True)
class Table:
    """What the attributes of an object must be, and what must be true of several of them together."""

    attributes: Mapping[str, Form]
    together: tuple[Callable[[dict, Sizes], None], ...] = ()


# Parameters that files of earlier formats don't have yet, with what they mean there: of any class, and by class.
LATER = {"set_bias_strength": "auto"}
_OF_KERNELS = {"kernel_approximation": None, "n_components": 1000, "random_state": None}
LATER_OF = {"KernelMLRHClassifier": _OF_KERNELS, "KernelMLRHClassifierCV": _OF_KERNELS}


def check(name: str, cls: type, state: Any) -> None:
    """Raise a Refused unless the attributes are those of a class whose objects were made by it, fitted or not."""
    if type(state) is not dict or any(type(key) is not str for key in state):
        raise Refused(f"holds a {cls.__name__} without attributes")
    hidden = [key for key in state if callable(getattr(cls, key, None))]
    if hidden:
        raise Refused(f"holds a {cls.__name__} with an attribute in place of its method {hidden[0]!r}")
    table = OURS.get(name) or SCIKIT_LEARN.get(name)
    if table is None and name.startswith("sklearn."):  # the user trusts the class
        return
    if table is None:
        raise Refused(f"holds a {cls.__name__}, of which no table of mlrh says what it must look like")
    is_ours = name in OURS
    parameters = [] if is_dataclass(cls) else list(signature(cls).parameters)
    # Another version may have other parameters; load warns of it.
    is_of_here = is_ours or state.get("_sklearn_version") == sklearn.__version__
    if is_ours:
        later = {**LATER, **LATER_OF.get(name, {})}
        state.update({key: value for key, value in later.items() if key in parameters and key not in state})
    missing = [key for key in parameters if key not in state]
    if is_of_here and missing:
        raise Refused(f"holds a {cls.__name__} without its parameter {missing[0]!r}")
    if not _is_fitted(state, table) and not is_dataclass(cls):
        return
    if is_of_here and hasattr(cls, "_parameter_constraints"):
        check_parameters(cls, {key: state[key] for key in parameters})
    sizes: Sizes = {"features": state["n_features_in_"]} if isinstance(state.get("n_features_in_"), Integral) else {}
    if isinstance(state.get("_targets"), Targets):
        sizes["labels"] = _n_labels(state["_targets"])
    for key, form in {**COMMON, **table.attributes}.items():
        _check_attribute(cls, state, key, form, sizes)
    if is_ours:
        _check_nothing_else(cls, state, {*parameters, *COMMON, *table.attributes})
    for rule in table.together:
        rule(state, sizes)


def check_tree_options(kind: Any, X: Any, options: Any) -> None:
    """Raise a Refused unless a search tree can be built of rows X and options without trust in either."""
    metrics = set(kind.valid_metrics) - {"pyfunc"}
    is_right = (
        _rows.fits(X, {})
        and type(options) is dict
        and options.keys() <= {"leaf_size", "metric", *METRIC_OPTIONS}
        and options.get("metric") in metrics
        and Number(Integral, 1, 2**31).fits(options.get("leaf_size"), {})
        and _are_metric_options({key: options[key] for key in options.keys() & set(METRIC_OPTIONS)}, {})
    )
    if not is_right:
        raise Refused("holds a search tree with options that are none")


# What XGBoost writes of a model, and nothing else: its names for the arrays of a tree, by what they hold.
OF_NODES = ("left_children", "right_children", "parents", "split_indices", "split_type", "default_left")
NUMBERS_OF_NODES = ("base_weights", "loss_changes", "split_conditions", "sum_hessian")
OF_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
NO_PARENT = 2**31 - 1
MAX_CATEGORIES = 2**24  # XGBoost keeps categories as float32, which counts up to here
# For each character of the text, while XGBoost reads it: it makes an object of about 40 bytes of each number.
BOOSTER_BYTES = 40
OBJECTIVE = {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}  # the default; ours is not stored


def checked_booster(data: Any, budget: Budget) -> tuple[bytes, list[int]]:
    """The JSON text of an XGBoost model, and the first two numbers of the version that wrote it.

    The text is written anew from its checked parts, since compiled code trusts its arrays, and a text can give one key
    twice, of which another reader may take the other. Raises a Refused unless the trees are trees, and are those of
    MLRHBoostingClassifier.
    """
    if not Array("u", ("bytes",), high=255).fits(data, {}):
        raise _not_trees("no text")
    text = data.astype(np.uint8).tobytes()
    budget.take(BOOSTER_BYTES * len(text))
    model = read_json(text, budget)
    learner = _parts(_parts(model, "learner", "version")["learner"], *LEARNER)
    boosting = _parts(learner["gradient_booster"], "model", "name")
    trees = _parts(boosting["model"], *TREES, optional=("cats",))
    limits = _parts(learner["learner_model_param"], *LIMITS)
    n_features, n_labels, n_trees = _whole(limits["num_feature"]), _whole(limits["num_target"]), len(trees["trees"])
    base = limits["base_score"].strip("[]").split(",")
    counts = {"num_parallel_tree": "1", "num_trees": str(n_trees)}
    is_right = (
        _are_whole(model["version"], 3)
        and n_labels >= 1
        and learner["attributes"] == {}
        and learner["feature_names"] == []
        and len(learner["feature_types"]) == n_features
        and set(learner["feature_types"]) <= {"q", "c"}
        and learner["objective"] == OBJECTIVE
        and limits["num_class"] == "0"
        and limits["boost_from_average"] in ("0", "1")
        and len(base) in (1, n_labels)
        and set(base) == {"0E0"}
        and boosting["name"] == "gbtree"
        and trees["gbtree_model_param"] == counts
        and trees["tree_info"] == [number % n_labels for number in range(n_trees)]
        and trees["iteration_indptr"] == list(range(0, n_trees + 1, n_labels))
        and trees.get("cats", {}) in ({}, {"enc": [], "feature_segments": [], "sorted_idx": []})
    )
    if not is_right:
        raise _not_trees("parameters")
    for number, tree in enumerate(trees["trees"]):
        _check_boosted_tree(tree, number, n_features, budget)
    return json.dumps(model).encode(), model["version"][:2]


LEARNER = (*("attributes", "feature_names", "feature_types", "gradient_booster", "learner_model_param", "objective"),)
TREES = ("gbtree_model_param", "iteration_indptr", "tree_info", "trees")
LIMITS = ("base_score", "boost_from_average", "num_class", "num_feature", "num_target")


def _check_boosted_tree(tree, number, n_features, budget):
    """Refuse what is no tree, or has an index out of range; numbers are replaced by such of one type."""
    parameters = _parts(tree, *OF_NODES, *NUMBERS_OF_NODES, *OF_CATEGORIES, "id", "tree_param")["tree_param"]
    n_nodes = len(tree["left_children"])
    counts = {"num_deleted": "0", "num_feature": str(n_features), "num_nodes": str(n_nodes)}
    if tree["id"] != number or parameters not in ({**counts, "size_leaf_vector": leaf} for leaf in "01"):
        raise _not_trees("parameters of a tree")
    left, right, parents, features, kinds, default = (_integers(tree, name) for name in OF_NODES)
    numbers = [_numbers(tree, name) for name in NUMBERS_OF_NODES]
    inner = np.flatnonzero(left != -1)
    if n_nodes == 0 or any(len(values) != n_nodes for values in (right, parents, features, kinds, default, *numbers)):
        raise _not_trees("lengths of a tree")
    # Every node but the first is the child of one node before it: then there are no circles.
    children, of = np.concatenate([left[inner], right[inner]]), np.concatenate([inner, inner])
    is_tree = (
        np.array_equal(np.flatnonzero(right != -1), inner)
        and np.array_equal(np.sort(children), np.arange(1, n_nodes))
        and (children > of).all()
        and parents[0] == NO_PARENT
        and np.array_equal(parents[children], of)
    )
    in_range = (
        ((features >= 0) & (features < n_features)).all()
        and np.isin(kinds, (0, 1)).all()
        and np.isin(default, (0, 1)).all()
        and not np.isnan(np.concatenate([values[kinds == 0] for values in numbers])).any()
    )
    if not is_tree or not in_range:
        raise _not_trees("nodes of a tree")
    _check_categories(tree, np.flatnonzero(kinds == 1), set(inner.tolist()), budget)


def _check_categories(tree, nodes, inner, budget):
    """Refuse categories that don't belong to the nodes that split by categories, or are so large as to fill memory."""
    values, own, starts, sizes = (_integers(tree, name) for name in OF_CATEGORIES)
    is_right = (
        np.array_equal(own, nodes)
        and set(nodes.tolist()) <= inner
        and len(starts) == len(sizes) == len(nodes)
        and (sizes >= 1).all()
        and np.array_equal(starts, np.cumsum(sizes) - sizes)
        and sizes.sum() == len(values)
        and ((values >= 0) & (values < MAX_CATEGORIES)).all()
    )
    if not is_right:
        raise _not_trees("categories of a tree")
    for start, size in zip(starts, sizes, strict=True):
        budget.take(int(values[start : start + size].max()) // 8)  # a bit for each category up to the largest


def _integers(tree, name):
    """A list of whole numbers as an array; the list has no other types after."""
    values = np.array(tree[name]) if tree[name] else np.zeros(0, np.int64)
    if values.ndim != 1 or values.dtype.kind != "i":
        raise _not_trees(name)
    tree[name] = values.tolist()
    return values


def _numbers(tree, name):
    """A list of numbers in the range of float32, or NaN, as an array; the list has no other types after."""
    values = np.array(tree[name])
    if values.ndim != 1 or values.dtype.kind not in "if":
        raise _not_trees(name)
    values = values.astype(np.float64)
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise _not_trees(name)
    tree[name] = values.tolist()
    return values


def _parts(value, *names, optional=()):
    """A dict, if it has these keys and no others but optional ones."""
    if type(value) is not dict or not set(names) <= value.keys() <= {*names, *optional}:
        raise _not_trees("parts")
    return value


def _whole(text):
    if type(text) is not str or not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise _not_trees("a number")
    return int(text)


def _are_whole(values, length):
    return type(values) is list and len(values) == length and all(type(value) is int for value in values)


def _not_trees(what):
    return Refused(f"holds boosted trees that no fit makes ({what})")


def _check_attribute(cls, state, key, form, sizes):
    value = state.get(key)
    if form.is_optional and value is None:
        return
    if key not in state:
        raise Refused(
            f"holds a {cls.__name__} that lacks {key}; it was saved by another version or changed after, so fit and "
            "save the model again"
        )
    if not form.fits(value, sizes):
        raise Refused(f"holds a {cls.__name__} whose {key} is not {form}")


def _check_nothing_else(cls, state, known):
    """Refuse attributes that no fit makes."""
    of_class = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    space = state.get("label_space_")
    of_space = space.fitted_attributes() if isinstance(space, LabelSpace) else {}
    unknown = sorted(state.keys() - known - of_class - of_space.keys())
    if unknown:
        raise Refused(f"holds a {cls.__name__} with an attribute that it doesn't know, {unknown[0]!r}")


def _is_fitted(state, table):
    return any(key in table.attributes or (key.endswith("_") and not key.startswith("_")) for key in state)


def _n_labels(targets):
    return 1 if targets.is_one_class_per_row and len(targets.classes) == 2 else len(targets.classes)


# What several tables are made of.

FLOATS = "f"
WHOLE = Number(Integral, 0)
ANY_NUMBER = Value(lambda value, sizes: isinstance(value, Real), "a number")  # NaN too: a score that nobody has
PREDICTS, TRANSFORMS = has("predict"), has("transform")
METRIC_OPTIONS = ("p", "w", "V", "VI")  # that a metric of neighbours may have
_rows = Array(FLOATS, ("fit_rows", "features"))


def _per_feature(optional=False):
    return Array("fiu", ("features",), is_finite=False, is_optional=optional)


def _are_names(value, sizes):
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "OUSbiufM":
        return False
    names = value.tolist()
    try:
        return len(set(names)) == len(names) == sizes.setdefault("classes", len(names))
    except TypeError:  # what can't be a label
        return False


def _are_metric_options(value, sizes):
    def is_option(option):
        return option is None or Number().fits(option, {}) or Array("fiu", ("n",) * np.ndim(option)).fits(option, {})

    return type(value) is dict and value.keys() <= set(METRIC_OPTIONS) and all(map(is_option, value.values()))


NAMES = Value(_are_names, "an array of distinct names")
COMMON: dict[str, Form] = {
    "n_features_in_": Number(Integral, 1, is_optional=True),
    "feature_names_in_": Array("O", ("features",), is_optional=True),
    "_sklearn_output_config": instance(dict, optional=True),
}


# Ours.


def _space_fits(state, sizes):
    """The label space has the labels of y, and attributes are the space's own."""
    space, targets = state["label_space_"], state["_targets"]
    if space.n_labels != sizes["labels"] or len(state["classes_"]) != len(targets.classes):
        raise Refused(f"holds a label space of {space.n_labels} labels for {sizes['labels']} labels of y")
    if targets.is_one_class_per_row:
        if space.sizes() != ONE_CLASS[space.n_labels == 1]:
            raise Refused("holds a label space that allows several of the classes of y at once")
    elif callable(state["decision"]):  # one of NumPy's functions, which no metric is
        raise Refused("holds a decision that is a function")
    else:
        decisions.check(state["decision"], state["answer_sizes"], space)
    for key, value in space.fitted_attributes().items():
        if key not in state:
            raise Refused(f"holds a classifier that lacks {key}; it was saved by another version or changed after")
        if np.shape(state[key]) != np.shape(value):
            raise Refused(f"holds a classifier whose {key} doesn't belong to its label space")


def _kernel_fits(state, sizes):
    """There are rows of the fit, unless the kernel is precomputed; then they are columns of X."""
    if callable(state["kernel"]):  # one of NumPy's functions, which no kernel is
        raise Refused("holds a kernel that is a function")
    is_precomputed, kernel_map = state["kernel"] == "precomputed", state.get("kernel_map_")
    if (state["X_fit_"] is None) != (is_precomputed or kernel_map is not None):
        raise Refused("holds a kernel classifier whose rows don't belong to its kernel")
    if kernel_map is not None:
        n_components = sizes["fit_rows"]
        shape = kernel_map.n_features_in_, kernel_map.n_components, *kernel_map.random_weights_.shape
        if is_precomputed or n_components == 0 or shape != 2 * (sizes["features"], n_components):
            raise Refused("holds a kernel classifier whose map is of other features or components")
    elif len(state["support_"]) != sizes["fit_rows"]:
        raise Refused("holds a kernel classifier whose support_ is not of its rows")
    if is_precomputed and len(state["support_"]) and state["support_"].max() >= sizes["features"]:
        raise Refused("holds a kernel classifier whose support_ is out of range")


def _are_categories_of_features(value, sizes):
    return type(value) is dict and all(
        Number(Integral, 0, sizes["features"] - 1).fits(column, {})
        and type(own) is tuple
        and len(set(own)) == len(own)
        and all(type(item) in (str, int, float, bool) for item in own)
        for column, own in value.items()
    )


def _booster_fits(state, sizes):
    """The trees are of the features and labels, and know the same features as categories."""
    booster, categories = state["booster_"], state["_categories"]
    n_labels = json.loads(booster.save_config())["learner"]["learner_model_param"]["num_target"]
    kinds = ["c" if column in categories else "q" for column in range(sizes["features"])]
    if booster.num_boosted_rounds() != state["n_estimators_"] or int(n_labels) != sizes["labels"]:
        raise Refused("holds boosted trees of another number of rounds or labels")
    if booster.num_features() != sizes["features"] or booster.feature_types != kinds:
        raise Refused("holds boosted trees of other features")


def _labels_of_parts_agree(state, sizes):
    """An estimator within answers for as many labels as the one around it."""
    inner = getattr(state["estimator_"], "_targets", None)
    if isinstance(inner, Targets) and _n_labels(inner) != sizes["labels"]:
        raise Refused(f"holds an estimator of {_n_labels(inner)} labels for {sizes['labels']} labels of y")


def _best_agrees(state, sizes):
    """The chosen model answers for as many labels as the MLRHAuto, from as many features."""
    best = state["best_estimator_"]
    _labels_of_parts_agree({"estimator_": best[-1] if isinstance(best, Pipeline) else best}, sizes)
    if getattr(best, "n_features_in_", sizes["features"]) != sizes["features"]:
        raise Refused("holds an MLRHAuto whose model is of other features")


def _members_agree(state, sizes):
    """Each member of a pool has a name and a weight, and answers for as many labels as the pool."""
    if len(state["estimators"]) != sizes["members"] or abs(state["weights_"].sum() - 1) > 1e-6:
        raise Refused("holds a PooledSets whose weights are not those of its members")
    for member in state["estimators_"]:
        _labels_of_parts_agree({"estimator_": member}, sizes)


def _classes_are_sets(state, sizes):
    """The estimator's classes are the numbers of the sets."""
    estimator, numbers = state["estimator_"], np.arange(len(state["sets_"]))
    classes = np.zeros(1, int) if estimator is None else np.asarray(getattr(estimator, "classes_", numbers))
    if classes.dtype.kind not in "iu" or not np.array_equal(classes, numbers):
        raise Refused("holds a LabelPowerset whose classes are not its sets")


def _neighbors_fit(state, sizes):
    neighbors = state["neighbors_"]
    if neighbors.n_samples_fit_ != len(state["_Y"]) or neighbors.n_neighbors != state["n_neighbors_"]:
        raise Refused("holds a classifier whose neighbours are not its rows")


def _one_regression_per_label(state, sizes):
    if len(state["regressions_"].estimators_) != sizes["labels"]:
        raise Refused("holds an IBLR with other than one regression per label")


def _links_are_nets(state, sizes):
    inner = [link.estimator_ for link in state["links_"] if link.estimator_ is not None]
    if not all(isinstance(net, MLRHClassifier) and _n_labels(net._targets) == 1 for net in inner):
        raise Refused("holds a CCnet with a link that is no logistic regression")


def _pairs_fit(state, sizes):
    """Where all sets are listed, the space has the labels of y; otherwise some label must vary."""
    space = state["label_space_"]
    if space is not None and space.n_labels != sizes["labels"]:
        raise Refused(f"holds a label space of {space.n_labels} labels for {sizes['labels']} labels of y")
    if space is None and not np.isfinite(state["intercept_"]).any():
        raise Refused("holds a CorrLog without a label that varies")


def _constant_or_estimator(state, sizes):
    if (state["estimator_"] is None) == (state["constant_"] is None):
        raise Refused("holds an OrConstant that has both an estimator and a constant, or neither")


def _names_match(state, sizes):
    """A Model's parts agree on the number of features."""
    first = state["classifier"] if state["preprocessor"] is None else state["preprocessor"]
    n_features, schema, table = getattr(first, "n_features_in_", None), state["schema"], state.get("table")
    n_named = len(getattr(schema, "feature_names", ())) if table is None else table.n_features(schema)
    if n_features is not None and n_features != n_named:
        raise Refused("holds a model of other features than it names")


def _columns_are_named(state, sizes):
    """Texts, dates and nominal features of a Schema are different ones of its features; what is kept is none."""
    features, special = state["feature_names"], [*state["categories"], *state.get("texts", ()), *state.get("dates", ())]
    if len(set(special)) < len(special) or not set(special) <= set(features):
        raise Refused("holds names of texts, dates or nominal columns that are not its features")
    if set(state.get("kept", ())) & set(features):
        raise Refused("holds names of columns that are features and are none")


def _are_vocabularies(value, sizes):
    """Whether each name has a tuple of distinct words: the columns of a sparse matrix are counted by it."""
    return _are_categories(value, sizes) and all(len(set(words)) == len(words) for words in value.values())


def _are_parts(value, sizes):
    return _are_vocabularies(value, sizes) and all(set(parts) <= PARTS.keys() for parts in value.values())


def _are_texts(value, sizes):
    return isinstance(value, tuple) and all(type(item) is str for item in value)


def _are_categories(value, sizes):
    return isinstance(value, Mapping) and all(_are_texts(item, sizes) for item in value.values())


def _is_dtype_of_numbers(value, sizes):
    return type(value) is str and np.dtype(value).kind in "biuf"


TEXTS = Value(_are_texts, "a tuple of texts")
SPARSE_FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
SPARSE_CONTAINERS = [f"{name}_{kind}" for kind in ("array", "matrix") for name in SPARSE_FORMATS]
CONTAINERS = {"", "pandas", "polars", *SET_TYPES, *SPARSE_CONTAINERS}
FORM_OF_Y: dict[str, Form] = {"_targets": instance(Targets), "classes_": NAMES}
CLASSIFIER: dict[str, Form] = {
    **FORM_OF_Y,
    "n_features_in_": Number(Integral, 1),
    "label_space_": instance(LabelSpace),
    "intercept_": Array(FLOATS, ("labels",)),
    "n_iter_": WHOLE,
    "objective_": instance(Real, optional=True),  # not there after a partial_fit of version 0.1
    "history_": Array(FLOATS, ("iterations",), is_finite=False, is_optional=True),
    "_fitted_as": instance(tuple),
}
LINEAR: dict[str, Form] = {
    **CLASSIFIER,
    "coef_": Array(FLOATS, ("labels", "features")),
    "support_": Array("iu", ("rows",), low=0, is_optional=True),
    "_kept": instance(_KeptRows, optional=True),
    "n_samples_seen_": Number(Integral, 0, is_optional=True),
    "n_samples_kept_": Number(Integral, 0, is_optional=True),
}
KERNEL: dict[str, Form] = {
    **CLASSIFIER,
    "dual_coef_": Array(FLOATS, ("labels", "fit_rows")),
    "X_fit_": Array("fiu", ("fit_rows", "features"), may_be_sparse=True, is_optional=True),
    "support_": Array("iu", ("rows",), low=0),
    "_gamma": Number(low=0.0, high=np.finfo(np.float64).max),
    "kernel_map_": instance(RBFSampler, optional=True),
    "kernel_error_": Number(low=0.0, is_optional=True),
}
CHAIN: dict[str, Form] = {
    **FORM_OF_Y,
    "n_features_in_": Number(Integral, 1),
    "links_": listed(instance(OrConstant), "labels"),
    "order_": order_of("labels"),
}
BOOSTED: dict[str, Form] = {
    **FORM_OF_Y,
    "n_features_in_": Number(Integral, 1),
    "label_space_": instance(LabelSpace),
    "intercept_": Array(FLOATS, ("labels",)),
    "booster_": has("num_boosted_rounds", "num_features", "save_config"),
    "n_estimators_": Number(Integral, 1),
    "history_": Array(FLOATS, ("rounds",)),
    "validation_history_": Array(FLOATS, ("rounds",), is_optional=True),
    "support_": Array("iu", ("rows",), low=0),
    "_categories": Value(_are_categories_of_features, "a dict of categories by feature"),
}
CHOSEN: dict[str, Form] = {
    "Cs_": Array(FLOATS, ("Cs",), low=0.0, is_finite=False),
    "C_": Number(low=0.0),
    "best_score_": ANY_NUMBER,
}
AROUND: dict[str, Form] = {**FORM_OF_Y, "estimator_": PREDICTS, "_never": Array("b", ("labels",))}
SHARE = Number(low=0.0, high=1.0)
shares = partial(Array, low=0.0, high=1.0)
OURS: dict[str, Table] = {
    "MLRHClassifier": Table(LINEAR, (_space_fits,)),
    "KernelMLRHClassifier": Table(KERNEL, (_space_fits, _kernel_fits)),
    "MLRHAuto": Table(
        {
            **FORM_OF_Y,
            "n_features_in_": Number(Integral, 1),
            "best_estimator_": PREDICTS,
            "leaderboard_": listed(instance(dict)),
            "validation_": instance(dict),
            "notes_": listed(instance(str)),
            "_categories": Value(_are_categories_of_features, "a dict of categories by feature"),
            "_is_sparse": instance(bool),
            "_never": Array("b", ("labels",)),
        },
        (_best_agrees,),
    ),
    "MLRHBoostingClassifier": Table(BOOSTED, (_space_fits, _booster_fits)),
    "MLRHClassifierCV": Table(
        {**LINEAR, **CHOSEN, "l1_ratio_": SHARE, "scores_": instance(np.ndarray)}, (_space_fits,)
    ),
    "KernelMLRHClassifierCV": Table(
        {
            **KERNEL,
            **CHOSEN,
            "gamma_": instance(str, Real),
            "scores_": Array(FLOATS, ("folds", "gammas", "Cs"), is_finite=False),
        },
        (_space_fits, _kernel_fits),
    ),
    "CalibratedSets": Table(
        {
            **AROUND,
            "_calibration": Value(lambda value, sizes: hasattr(value, "inside_share"), "a calibration"),
            "temperature_": Number(low=0.0),
            "calibrator_": instance(IsotonicRegression, optional=True),
            "outside_share_": SHARE,
            "_weights": Array(FLOATS, ("held_out",), low=0.0),
            "rows_": Array("iu", ("held_out",), low=0),
            "raw_confidence_": shares(FLOATS, ("held_out",)),
            "confidence_": shares(FLOATS, ("held_out",)),
            "raw_correct_": Array("b", ("held_out",)),
            "correct_": Array("b", ("held_out",)),
            "raw_calibration_error_": ANY_NUMBER,
            "calibration_error_": ANY_NUMBER,
            "risk_coverage_": instance(RiskCoverage),
        },
        (_labels_of_parts_agree,),
    ),
    "Calibration": Table(
        {
            "temperature": Number(low=0.0),
            "inside_share": SHARE,
            "regression": instance(IsotonicRegression, optional=True),
        }
    ),
    "RiskCoverage": Table({name: shares(FLOATS, ("points",)) for name in ("coverage", "risk", "threshold")}),
    "TunedThresholds": Table(
        {
            **AROUND,
            "thresholds_": Array(FLOATS, ("labels",), is_finite=False),
            "has_own_threshold_": Array("b", ("labels",)),
            "common_threshold_": ANY_NUMBER,
            "cv_scores_": Array(FLOATS, ("folds",), is_finite=False),
            "honest_scores_": Array(FLOATS, ("folds",), is_finite=False),
            "default_scores_": Array(FLOATS, ("folds",), is_finite=False),
            **{f"{name}_": ANY_NUMBER for name in ("best_score", "honest_score", "default_score", "score_spread")},
        },
        (_labels_of_parts_agree,),
    ),
    "PooledSets": Table(
        {
            **FORM_OF_Y,
            "estimators_": listed(PREDICTS, "members"),
            "weights_": shares(FLOATS, ("members",)),
            "_never": Array("b", ("labels",)),
        },
        (_members_agree,),
    ),
    "ProbabilisticChain": Table(CHAIN),
    "CCnet": Table(
        {
            **CHAIN,
            "C_": Array(FLOATS, ("labels",), is_finite=False),
            "l1_ratio_": Array(FLOATS, ("labels",), is_finite=False),
        },
        (_links_are_nets,),
    ),
    "CorrLog": Table(
        {
            **FORM_OF_Y,
            "coef_": Array(FLOATS, ("labels", "features")),
            "pair_coef_": Array(FLOATS, ("labels", "labels")),
            "intercept_": Array(FLOATS, ("labels",), is_finite=False),
            "label_space_": instance(LabelSpace, optional=True),
            "n_iter_": WHOLE,
        },
        (_pairs_fit,),
    ),
    "IBLR": Table(
        {
            **FORM_OF_Y,
            "neighbors_": has("kneighbors_graph"),
            "_Y": shares("i", ("rows", "labels")),
            "n_neighbors_": Number(Integral, 1),
            "regressions_": instance(MultiOutputClassifier),
        },
        (_neighbors_fit, _one_regression_per_label),
    ),
    "LabelPowerset": Table(
        {**FORM_OF_Y, "sets_": shares("i", ("sets", "labels")), "estimator_": has("predict", optional=True)},
        (_classes_are_sets,),
    ),
    "MLkNN": Table(
        {
            **FORM_OF_Y,
            "neighbors_": has("kneighbors_graph"),
            "_Y": shares("i", ("rows", "labels")),
            "n_neighbors_": WHOLE,
            "prior_": shares(FLOATS, ("labels",)),
            "count_proba_": shares(FLOATS, (2, "labels", "counts")),
        },
        (_neighbors_fit,),
    ),
    "OrConstant": Table(
        {
            "classes_": NAMES,
            "estimator_": has("predict", optional=True),
            "constant_": instance(object, optional=True),
        },
        (_constant_or_estimator,),
    ),
    "Targets": Table(
        {
            "kind": instance(str),
            "classes": NAMES,
            "dtype": Value(_is_dtype_of_numbers, "a number's dtype"),
            "container": Value(lambda value, sizes: value in CONTAINERS, "a form of y"),
        }
    ),
    "KeptRows": Table(
        {
            "X": Array(FLOATS, ("rows", "features"), may_be_sparse=True),
            "Y": Array("i", ("rows", "labels"), low=-1, high=1),
            "weights": Array(FLOATS, ("rows",), low=0.0),
            "numbers": Array("iu", ("rows",), low=0),
            "n_shown": WHOLE,
            "level": Number(Integral, 0, 1000),
        }
    ),
    "ToDense": Table({}),
    "Schema": Table(
        {
            "feature_names": TEXTS,
            "label_names": TEXTS,
            "categories": Value(_are_categories, "a mapping to tuples of texts"),
            **{name: replace(TEXTS, is_optional=True) for name in ("texts", "dates", "kept")},
            "tags": Value(lambda value, sizes: _are_texts(value, sizes) and len(value) in (0, 2), "two texts", True),
        },
        (_columns_are_named,),
    ),
    "TableFeatures": Table(
        {
            "words": Value(_are_vocabularies, "a mapping to tuples of distinct texts"),
            "pieces": Value(_are_vocabularies, "a mapping to tuples of distinct texts"),
            "parts": Value(_are_parts, "a mapping to parts of the calendar"),
        }
    ),
    "AnswerRule": Table(
        {
            "temperature": Number(low=TEMPERATURES[0], high=TEMPERATURES[1]),
            "inside_share": Number(low=1e-9, high=1.0),  # never 0, since a temperature needs possible rows
            "thresholds": Array(FLOATS, ("labels",), low=-1.0, high=1.0, is_optional=True),
            "refuse_below": SHARE,
        }
    ),
    "Model": Table(
        {
            "preprocessor": has("transform", optional=True),
            "settings": instance(dict),
            "validation": instance(dict),
            "schema": instance(Schema),
            "table": instance(TableFeatures, optional=True),
        },
        (_names_match,),
    ),
}


# scikit-learn's: classes that compute with NumPy, which checks indices and shapes, or whose compiled parts are given
# only what is checked here. All others are refused unless the user trusts them.


def _linear_outputs(state, sizes):
    if sizes["outputs"] != (1 if sizes["classes"] == 2 else sizes["classes"]):
        raise Refused(f"holds a linear classifier of {sizes['classes']} classes with {sizes['outputs']} outputs")


def _encoded_columns(state, sizes):
    """Columns of the matrix that OneHotEncoder makes; it builds a sparse one without looking at indices."""
    grouped = state.get("_default_to_infrequent_mappings") if state.get("_infrequent_enabled") else None
    dropped = state.get("_drop_idx_after_grouping")
    for i, categories in enumerate(state["categories_"]):
        n_columns = len(categories)
        if grouped is not None and grouped[i] is not None:
            if not Array("iu", (n_columns,), low=0, high=n_columns - 1).fits(grouped[i], {}):
                raise Refused("holds a OneHotEncoder whose groups of categories are out of range")
            n_columns = int(grouped[i].max()) + 1
        if dropped is not None and dropped[i] is not None:
            if not Number(Integral, 0, n_columns - 1).fits(dropped[i], {}):
                raise Refused("holds a OneHotEncoder whose dropped category is out of range")
            n_columns -= 1
        if state["_n_features_outs"][i] != n_columns:
            raise Refused("holds a OneHotEncoder whose columns are not its categories")


def _is_vocabulary(value, sizes):
    """Whether the words have the columns 0, 1, ...: a sparse matrix is built without looking at them."""
    if type(value) is not dict or not all(type(word) is str for word in value):
        return False
    columns = list(value.values())
    if not all(isinstance(column, int | np.integer) for column in columns):
        return False
    return sorted(columns) == list(range(len(columns))) and len(columns) > 0


def _weights_of_words(state, sizes):
    idf = getattr(state["_tfidf"], "idf_", None)
    if idf is not None and len(idf) != len(state["vocabulary_"]):
        raise Refused("holds a TfidfVectorizer with weights of other words")


def _neighbors_are_rows(state, sizes):
    """The compiled search relies on its rows, and the graph of neighbours on their number."""
    rows, tree = state["_fit_X"], state.get("_tree")
    if state["n_samples_fit_"] != rows.shape[0]:
        raise Refused("holds neighbours whose number is not that of their rows")
    if tree is not None and (not isinstance(tree, KDTree | BallTree) or np.shape(tree.data) != rows.shape):
        raise Refused("holds a search tree that is not of its rows")
    if state["_fit_method"] not in (("brute",) if tree is None else ("kd_tree", "ball_tree")):
        raise Refused("holds neighbours without the search that they name")


def _one_estimator_per_class(state, sizes):
    binarizer = state["label_binarizer_"]
    n_classes = 1 if binarizer.y_type_ == "binary" else len(binarizer.classes_)
    if len(state["estimators_"]) != n_classes:
        raise Refused("holds a OneVsRestClassifier with other than one estimator per class")


def _are_steps(value, sizes):
    return isinstance(value, list) and all(
        isinstance(step, tuple) and len(step) in (2, 3) and type(step[0]) is str for step in value
    )


def _theirs(place: str, attributes: Iterable | Mapping = (), *together) -> tuple[str, Table]:
    return f"sklearn.{place}", Table(dict(attributes), together)


LINEAR_CLASSIFIER: dict[str, Form] = {
    "classes_": NAMES,
    "coef_": Array(FLOATS, ("outputs", "features")),
    "intercept_": Value(
        lambda value, sizes: Number().fits(value, {}) or Array(FLOATS, ("outputs",)).fits(value, sizes),
        "a number, or one per output",
    ),
}
COMPONENTS: dict[str, Form] = {"components_": Array(FLOATS, ("components", "features"))}
STEPS = Value(_are_steps, "a list of steps with names")
SPLITTERS = (
    *("KFold", "GroupKFold", "StratifiedKFold", "StratifiedGroupKFold", "RepeatedKFold", "RepeatedStratifiedKFold"),
    *("ShuffleSplit", "GroupShuffleSplit", "StratifiedShuffleSplit", "TimeSeriesSplit", "PredefinedSplit"),
    *("LeaveOneOut", "LeavePOut", "LeaveOneGroupOut", "LeavePGroupsOut"),
)
SCIKIT_LEARN: dict[str, Table] = dict(
    [
        *((f"{getattr(model_selection, name).__module__}.{name}", Table({})) for name in SPLITTERS),
        # What OneVsRestClassifier holds for a label that all rows or none have.
        _theirs("multiclass._ConstantPredictor", {"y_": Array("biuf", (1,))}),
        _theirs("pipeline.Pipeline", {"steps": STEPS}),
        _theirs("pipeline.FeatureUnion", {"transformer_list": STEPS}),
        _theirs(
            "compose._column_transformer.ColumnTransformer",
            {
                "transformers_": STEPS,
                "_columns": instance(list),
                "_remainder": instance(tuple),
                "_transformer_to_input_indices": instance(dict),
                "output_indices_": instance(dict),
                "sparse_output_": instance(bool),
            },
        ),
        _theirs(
            "preprocessing._data.StandardScaler",
            {"mean_": _per_feature(True), "var_": _per_feature(True), "scale_": _per_feature(True)},
        ),
        _theirs("preprocessing._data.MaxAbsScaler", {"scale_": _per_feature(), "max_abs_": _per_feature()}),
        _theirs("preprocessing._data.MinMaxScaler", {"scale_": _per_feature(), "min_": _per_feature()}),
        _theirs("preprocessing._data.RobustScaler", {"scale_": _per_feature(True), "center_": _per_feature(True)}),
        _theirs("preprocessing._data.Normalizer"),
        _theirs("preprocessing._data.Binarizer"),
        _theirs(
            "preprocessing._data.PowerTransformer",
            {"lambdas_": _per_feature(), "_scaler": has("transform", optional=True)},
        ),
        _theirs("preprocessing._function_transformer.FunctionTransformer"),
        _theirs(
            "preprocessing._encoders.OneHotEncoder",
            {
                "categories_": listed(Array("OUSbiufM", ("n",), is_finite=False), "features"),
                "_n_features_outs": listed(WHOLE, "features"),
                "_infrequent_enabled": instance(bool),
            },
            _encoded_columns,
        ),
        _theirs(
            "preprocessing._encoders.OrdinalEncoder",
            {"categories_": listed(Array("OUSbiufM", ("n",), is_finite=False), "features")},
        ),
        _theirs("preprocessing._label.LabelEncoder", {"classes_": NAMES}),
        _theirs("preprocessing._label.LabelBinarizer", {"classes_": NAMES, "y_type_": instance(str)}),
        _theirs("preprocessing._label.MultiLabelBinarizer", {"classes_": NAMES}),
        _theirs(
            "impute._base.SimpleImputer",
            {
                "statistics_": Array("OUSbiuf", ("features",), is_finite=False),
                "_fit_dtype": instance(np.dtype),
                "_fill_dtype": instance(np.dtype, optional=True),
                "indicator_": has("transform", optional=True),
            },
        ),
        _theirs(
            "impute._base.MissingIndicator",
            {"n_features_in_": WHOLE, "features_": Array("iu", ("indicated",), low=0, high="features")},
        ),
        _theirs("feature_extraction.text.TfidfTransformer", {"idf_": Array(FLOATS, ("features",), is_optional=True)}),
        _theirs(
            "feature_extraction.text.CountVectorizer",
            {"vocabulary_": Value(_is_vocabulary, "a dict of words and their columns")},
        ),
        _theirs(
            "feature_extraction.text.TfidfVectorizer",
            {"vocabulary_": Value(_is_vocabulary, "a dict of words and their columns"), "_tfidf": TRANSFORMS},
            _weights_of_words,
        ),
        _theirs("feature_selection._variance_threshold.VarianceThreshold", {"variances_": _per_feature()}),
        _theirs("decomposition._pca.PCA", {**COMPONENTS, "mean_": _per_feature()}),
        _theirs("decomposition._truncated_svd.TruncatedSVD", COMPONENTS),
        _theirs(
            "kernel_approximation.RBFSampler",
            {
                "random_weights_": Array(FLOATS, ("features", "components")),
                "random_offset_": Array(FLOATS, ("components",)),
            },
        ),
        _theirs("linear_model._logistic.LogisticRegression", LINEAR_CLASSIFIER, _linear_outputs),
        _theirs("svm._classes.LinearSVC", LINEAR_CLASSIFIER, _linear_outputs),
        _theirs(
            "isotonic.IsotonicRegression",
            {
                "X_thresholds_": Array(FLOATS, ("points",)),
                "y_thresholds_": Array(FLOATS, ("points",)),
                "X_min_": Number(),
                "X_max_": Number(),
            },
        ),
        _theirs(
            "multiclass.OneVsRestClassifier",
            {"estimators_": listed(PREDICTS), "label_binarizer_": instance(LabelBinarizer)},
            _one_estimator_per_class,
        ),
        _theirs("multioutput.MultiOutputClassifier", {"estimators_": listed(PREDICTS, "estimators")}),
        _theirs(
            "multioutput.ClassifierChain",
            {
                "estimators_": listed(PREDICTS, "estimators"),
                "order_": order_of("estimators"),
                "chain_method_": instance(str),
            },
        ),
        _theirs(
            "neighbors._unsupervised.NearestNeighbors",
            {
                "_fit_X": Array("fiub", ("fit_rows", "features"), is_finite=False, may_be_sparse=True),
                "n_samples_fit_": WHOLE,
                "effective_metric_": instance(str),
                "effective_metric_params_": Value(_are_metric_options, "options of a metric"),
                "_fit_method": instance(str),
            },
            _neighbors_are_rows,
        ),
    ]
)
