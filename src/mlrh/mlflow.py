"""Models of `mlrh fit` in MLflow: logged with a signature, without pickle, and loaded or served as a pyfunc.

MLflow keeps the model file of `mlrh.persistence`, and asks this module to load it (`_load_pyfunc`).
"""

import tempfile
from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline

from mlrh import __version__
from mlrh.automatic import Model
from mlrh.estimators import MLRHBoostingClassifier, PooledSets
from mlrh.persistence import load, save

__all__ = ["log_model", "save_model", "signature"]


def log_model(model: Model, name: str = "model", **options: Any):
    """Log a model of `mlrh fit` to the current run; returns MLflow's ModelInfo.

    As a pyfunc it takes a DataFrame with the model's columns. It gives one with a column of 0 and 1 for each label, the
    probability P(label) of each, and `probability`, that the set as a whole is right. Of a model that was fitted with
    --refuse-below there is also `answered`, 0 for rows that get no labels.

    options are those of mlflow.pyfunc.log_model, and stand in place of what is set here: pip_requirements, which name
    this version of mlrh, with XGBoost where the model has boosted trees, and signature.
    """
    mlflow = _mlflow()
    with tempfile.TemporaryDirectory() as folder:
        return mlflow.pyfunc.log_model(name=name, **{**_arguments(model, folder), **options})


def save_model(model: Model, path, **options: Any) -> None:
    """Write a model of `mlrh fit` as a folder that MLflow loads and serves; otherwise as `log_model`."""
    mlflow = _mlflow()
    with tempfile.TemporaryDirectory() as folder:
        mlflow.pyfunc.save_model(path=path, **{**_arguments(model, folder), **options})


def signature(model: Model):
    """The columns that a model of `mlrh fit` takes and gives, with their types: a ModelSignature of MLflow."""
    mlflow = _mlflow()
    of, column = mlflow.types.DataType, mlflow.types.ColSpec
    schema = model.schema
    words = {*schema.categories, *schema.texts, *schema.dates}
    inputs = [column(of.string if name in words else of.double, name, required=True) for name in schema.feature_names]
    outputs = [column(of[kind], name) for name, kind in _answer_columns(model)]
    return mlflow.models.ModelSignature(mlflow.types.Schema(inputs), mlflow.types.Schema(outputs))


def _mlflow():
    """MLflow, with the parts of it that are used here."""
    try:
        import mlflow
        import mlflow.models
        import mlflow.pyfunc
        import mlflow.types
    except ImportError as error:
        raise ImportError('mlrh.mlflow needs MLflow; install it with: pip install "mlflow>=3"') from error
    return mlflow


def _answer_columns(model):
    """Names of the columns of the answers, and MLflow's names of their types."""
    labels = model.schema.label_names
    columns = [*((name, "long") for name in labels), *((f"P({name})", "double") for name in labels)]
    columns.append(("probability", "double"))
    if model.rule.refuse_below:
        columns.append(("answered", "long"))
    names = [name for name, _ in columns]
    twice = [name for name in labels if names.count(name) > 1]
    if twice:
        raise ValueError(f"The answers have a column {twice[0]!r} besides the label of that name; rename the label.")
    return columns


def _arguments(model, folder):
    if not isinstance(model, Model):
        raise TypeError(f"model must be one of `mlrh fit` or mlrh.automatic.choose; got a {type(model).__name__}.")
    path = Path(folder) / "model.mlrh"
    save(model, path)
    package = "mlrh[boosting]" if _has_trees(model.classifier) else "mlrh"
    own = {"loader_module": __name__, "data_path": str(path), "pip_requirements": [f"{package}=={__version__}"]}
    return {**own, "signature": signature(model)}


def _has_trees(classifier):
    """Whether a classifier, what it has chosen, or a member of a pool is one of boosted trees."""
    chosen = getattr(classifier, "best_estimator_", classifier)
    members = chosen.estimators_ if isinstance(chosen, PooledSets) else [chosen]
    last = [member[-1] if isinstance(member, Pipeline) else member for member in members]
    return any(isinstance(own, MLRHBoostingClassifier) for own in last)


class _Served:
    """What MLflow asks for predictions."""

    def __init__(self, model):
        self.model = model

    def predict(self, rows, params=None):
        """The answers for a DataFrame, as `log_model` says, with its index."""
        import pandas  # which MLflow brings with it

        distribution = self.model.distribution(rows)
        answer = self.model.answer(distribution)
        values = [*answer.sets.T, *distribution.marginals().T, answer.probability, answer.is_answered]
        types = {"long": "int64", "double": "float64"}
        columns = _answer_columns(self.model)  # without the last where all rows are answered
        answers = {name: own.astype(types[kind]) for (name, kind), own in zip(columns, values, strict=False)}
        return pandas.DataFrame(answers, index=rows.index)


def _load_pyfunc(path):
    return _Served(load(path))
