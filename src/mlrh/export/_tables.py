"""Tables with nominal columns: a model of `mlrh fit` has them as numbers, its export takes them as strings."""

from copy import deepcopy
from itertools import count

import numpy as np
import onnx
from onnx import TensorProto, helper
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from mlrh.export._graph import Graph
from mlrh.export._models import parts_of


def without_missing(model):
    """The classifier of a model of `mlrh fit`, with the preprocessing; a missing nominal value has a number, too.

    Numbers of values count from 0, and a missing value comes after the last. (Within the model it is NaN, for which
    the encoder of ONNX has no place.)
    """
    estimator = model.classifier
    if model.preprocessor is not None:
        estimator = Pipeline([("preprocessor", model.preprocessor), ("classifier", estimator)])
    if not model.schema.categories:
        return estimator
    names = [name for name in model.schema.feature_names if name in model.schema.categories]
    n_values = [len(model.schema.categories[name]) for name in names]
    estimator = deepcopy(estimator)
    for encoder in (part for part in parts_of(estimator) if isinstance(part, OneHotEncoder)):
        encoder.categories_ = [
            np.where(np.isnan(values), float(n), values)
            for values, n in zip(encoder.categories_, n_values, strict=True)
        ]
    return estimator


def with_text_columns(exported, schema):
    """The exported model with an input of strings for each nominal feature, in place of numbers in its matrix."""
    (matrix,) = exported.graph.input
    kind = matrix.type.tensor_type.elem_type
    nominal = [name for name in schema.feature_names if name in schema.categories]
    numeric = [name for name in schema.feature_names if name not in schema.categories]
    _check_names(nominal, [*(output.name for output in exported.graph.output), *["X"] * bool(numeric)])
    prefix = _free("model_", nominal)
    exported = onnx.compose.add_prefix(exported, prefix, rename_outputs=False, rename_inputs=True)
    prefix, numbers = _free("columns_", nominal), count()
    nodes: list[onnx.NodeProto] = []
    constants: list[TensorProto] = []

    def add_node(*what, **more):
        nodes.append(helper.make_node(*what, **more))

    graph = Graph(add_node, constants.append, lambda word: f"{prefix}{word}_{next(numbers)}")
    values = [graph.named("X")] if numeric else []
    for name in nominal:
        words = list(schema.categories[name])
        about = {"keys_strings": words, "values_floats": [float(code) for code in range(len(words))]}
        codes = graph.node(
            "LabelEncoder", graph.named(name), domain="ai.onnx.ml", default_float=float(len(words)), **about
        )
        values.append(codes.cast(kind))
    order = [[*numeric, *nominal].index(name) for name in schema.feature_names]
    table = graph.concat(*values, axis=1).take(order, 1).name  # the matrix of numbers that the model takes
    inputs = [helper.make_tensor_value_info("X", kind, [None, len(numeric)])] if numeric else []
    inputs += [helper.make_tensor_value_info(name, TensorProto.STRING, [None, 1]) for name in nominal]
    output = helper.make_tensor_value_info(table, kind, [None, len(schema.feature_names)])
    _use_label_encoder_of_floats(exported)
    first = helper.make_model(
        helper.make_graph(nodes, "columns", inputs, [output], constants),
        opset_imports=exported.opset_import,
        ir_version=exported.ir_version,
    )
    return onnx.compose.merge_models(first, exported, io_map=[(table, exported.graph.input[0].name)])


def _check_names(nominal, taken):
    for name in nominal:
        if name == "" or name in taken:
            raise ValueError(
                f"A nominal column can't be an input of the ONNX graph by the name {name!r}, which must not be empty "
                f"nor one of {', '.join(taken)}; rename the column, and fit the model again."
            )


def _free(prefix, names):
    """The prefix with as many _ before it as it takes for none of the names to begin with it."""
    while any(name.startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    return prefix


def _use_label_encoder_of_floats(exported):
    """Raise the version of ONNX's operators for machine learning to that in which LabelEncoder gives numbers.

    The operators that preprocessing is made of (imputers, scalers, one-hot encoders) are the same in both.
    """
    domain = "ai.onnx.ml"
    if all(own.domain != domain for own in exported.opset_import):
        exported.opset_import.append(helper.make_opsetid(domain, 2))
    for own in exported.opset_import:
        own.version = max(own.version, 2) if own.domain == domain else own.version
