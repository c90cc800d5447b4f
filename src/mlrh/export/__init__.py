"""Models as ONNX files, which run without Python: `to_onnx`, and the converters that skl2onnx asks.

Importing this module tells skl2onnx of the classifiers of mlrh, so that its own `to_onnx` takes pipelines around them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

try:
    import google.protobuf.message
    import onnx
    import skl2onnx
except ImportError as error:
    raise ImportError(
        'mlrh.export needs onnx and skl2onnx; install them with: pip install "onnx>=1.23" "skl2onnx>=1.20"'
    ) from error

from mlrh.export import _models, _tables

__all__ = ["is_onnx", "to_onnx"]

# What skl2onnx raises for what it doesn't know, and the checker for graphs that no runtime would take.
FAILURES: tuple[type[Exception], ...] = (NotImplementedError, RuntimeError, TypeError)
FAILURES += (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)

_models.register()


def to_onnx(model, X=None, *, dtype=np.float64) -> onnx.ModelProto:
    """A fitted model as an ONNX graph that answers as the model does.

    Inputs are those that skl2onnx gives to X. Without X it is one matrix `X`. A model of `mlrh fit` has the matrix `X`
    of its numeric features, and a column of strings (n_samples, 1) by the name of each nominal feature, where a value
    that training didn't show counts as missing. Outputs:

    - `label`: the answer by the model's decision, 0 and 1 (n_samples, n_labels); for one class per row the class,
    - `probabilities`: as `predict_proba` gives them,
    - `set_probability`: the probability of the answer (n_samples,); of CalibratedSets its confidence,
    - `sizes`: P(|y| = j) for j = 0, ..., n_labels,
    - `scores`: (n_samples, n_labels); a pool has none,
    - `answered`: only of a model with `--refuse-below`, 0 for rows that get no answer and an empty `label`, else 1.

    The names of the labels are the entry `labels` of the model's metadata, those of the features the entry `features`,
    both as a JSON list. All is computed in float64 after the preprocessing and returned in the type of the inputs.

    Parameters
    ----------
    model : fitted MLRHClassifier or KernelMLRHClassifier, alone or within a pipeline, a search such as GridSearchCV, \
CalibratedSets, TunedThresholds or MLRHAuto; or a model of `mlrh fit`
    X : array or DataFrame, optional
        A few rows, whose columns and types the inputs of the graph get.
    dtype : numpy.float64 or numpy.float32
        Of the matrix X, where no rows are given.

    Examples
    --------
    >>> import numpy as np
    >>> from mlrh import MLRHClassifier
    >>> from mlrh.export import to_onnx
    >>> clf = MLRHClassifier().fit(np.array([[0.0], [1.0], [2.0]]), [{"low"}, {"low", "high"}, {"high"}])
    >>> [output.name for output in to_onnx(clf).graph.output]
    ['label', 'probabilities', 'set_probability', 'sizes', 'scores']
    """
    if np.dtype(dtype) not in (np.float64, np.float32):
        raise ValueError(f"dtype must be float64 or float32; got {dtype!r}.")
    schema = getattr(model, "schema", None)
    if schema is None:
        estimator, nominal = model, {}
        labels, features = _names(model, "classes_"), _names(model, "feature_names_in_")
    else:
        if X is not None:
            raise ValueError("A model of `mlrh fit` knows its columns; leave X out.")
        if model.table is not None:
            raise ValueError(
                "A model of text or dates can't be exported to ONNX, which has no counterpart of how they become "
                "numbers; fit without these columns (--ignore), or use the model in Python."
            )
        estimator, nominal = _models.Ruled(_tables.without_missing(model), model.rule), schema.categories
        labels, features = list(schema.label_names), list(schema.feature_names)
    _models.described(estimator)  # an error of ours comes before one of skl2onnx
    _models.check_texts(estimator)
    given = X[:1] if X is not None else np.zeros((1, _n_features(estimator)), dtype)
    exported = _converted(estimator, given)
    if nominal:
        exported = _tables.with_text_columns(exported, schema)
    about = {"labels": labels, "features": features}
    onnx.helper.set_model_props(exported, {name: json.dumps(values) for name, values in about.items() if values})
    return exported


def is_onnx(path) -> bool:
    """Whether a file holds an ONNX model."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(Path(path).read_bytes())  # onnx.load would take the format from the suffix
    except google.protobuf.message.DecodeError:
        return False
    return len(model.graph.node) > 0


def _converted(estimator, X):
    try:
        exported = skl2onnx.to_onnx(_models.prepared(estimator), X)
        onnx.checker.check_model(exported, full_check=True)  # of some steps skl2onnx mixes float32 and float64
    except FAILURES as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        hint = "export for float32, which more steps have, or " if _is_double(X) else ""
        raise ValueError(
            f"A step of this model can't be exported to ONNX ({reason}); {hint}do this step before the model."
        ) from error
    return exported


def _is_double(X):
    """Whether rows are numbers, some of them in float64."""
    dtypes = list(X.dtypes) if hasattr(X, "dtypes") else [np.asarray(X).dtype]
    return np.float64 in dtypes and all(dtype.kind in "fiub" for dtype in dtypes)


def _names(model, attribute) -> list[Any]:
    return np.asarray(getattr(model, attribute, ())).tolist()


def _n_features(estimator):
    n_features = getattr(estimator, "n_features_in_", None)
    if n_features is None:
        raise ValueError(f"{type(estimator).__name__} doesn't say how many features it takes; give a few rows as X.")
    return n_features
