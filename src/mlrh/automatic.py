"""From a data set to a fitted model with names: MLRHAuto chooses, and `Model` keeps the names of features and labels.

Knows nothing of files or terminals; progress goes to a function that the caller gives.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from mlrh import decisions
from mlrh._sklearn import check_parameters
from mlrh.data.containers import DataError, MultilabelData, Schema, from_frame, listed
from mlrh.estimators import MLRHAuto
from mlrh.estimators._base import MLRHBase
from mlrh.estimators._held_out import n_labels
from mlrh.estimators.auto import Report, preprocessor_for
from mlrh.spaces import LabelSetDistribution, LabelSpace, metric_function

__all__ = ["DecisionScorer", "Model", "choose", "make_preprocessor"]

UNDETERMINED = "The training rows don't determine the model"  # begins the classifiers' warning about labels


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted classifier with all that is needed to use it on a file: names, preprocessing, and how it was chosen.

    Attributes
    ----------
    schema : Schema
        Names of the features and labels, and the values of nominal features.
    preprocessor : fitted transformer of X, or None
        None where the classifier does it itself, as MLRHAuto. (In files of earlier versions it was apart.)
    classifier : fitted MLRHAuto; in files of earlier versions MLRHClassifier or KernelMLRHClassifier
    settings : dict
        The first line of the leaderboard, decision, scaling ("standard" for dense features, "max_abs" for sparse ones),
        n_rows, n_folds, seed, and notes: sentences about what wasn't tried and what the rows leave open.
    validation : dict of str to list of float
        Each metric of `mlrh.metrics.evaluate` on the held-out rows of each fold. The settings were chosen by the same
        folds, so these are slightly optimistic.
    """

    schema: Schema
    preprocessor: Any
    classifier: Any
    settings: dict
    validation: dict

    def __post_init__(self):
        # A model file names its parts: wrong ones must fail when it is loaded, not in predict.
        is_model = (
            isinstance(self.schema, Schema)
            and isinstance(self.classifier, MLRHAuto | MLRHBase)
            and (hasattr(self.preprocessor, "transform") or isinstance(self.classifier, MLRHAuto))
            and len(self.schema.label_names) == n_labels(self.classifier._targets)
            and self.classifier.decision in decisions.BY_NAME
            and isinstance(self.settings, dict)
            and self.settings.get("scaling") in ("standard", "max_abs")
            and isinstance(self.validation, dict)
        )
        if not is_model:
            raise TypeError("A Model needs a schema, a preprocessor, a classifier of its labels, settings, validation.")

    def distribution(self, data) -> LabelSetDistribution:
        """The distribution of the label set of each row of a MultilabelData or a pandas or polars DataFrame.

        The data may have other columns besides the model's, and another order.
        """
        return self.classifier.distribution(self.features(data))

    def predict(self, data) -> np.ndarray:
        """Label sets by the model's decision, (n_samples, n_labels), int8; columns as in schema.label_names."""
        return self.decide(self.distribution(data))

    def decide(self, distribution: LabelSetDistribution) -> np.ndarray:
        """The model's decision for a distribution it gave."""
        return decisions.BY_NAME[self.classifier.decision](distribution)

    def features(self, data):
        """The rows of a MultilabelData or DataFrame as the classifier takes them: the model's columns, preprocessed."""
        data = from_frame(data, self.schema) if hasattr(data, "columns") else data
        X = data.conform(self.schema).X
        if self.preprocessor is None:
            return X
        if sparse.issparse(X) and self.settings["scaling"] == "standard":
            X = X.toarray()
        elif not sparse.issparse(X) and self.settings["scaling"] == "max_abs":
            X = sparse.csr_array(X)
        return self.preprocessor.transform(X)


def make_preprocessor(data):
    """A transformer for the X of a MultilabelData, not fitted; see `mlrh.estimators.auto.preprocessor_for`."""
    return preprocessor_for(data.X, data.nominal)


def choose(
    data: MultilabelData,
    *,
    metric: str = "exact_match",
    time_budget: float | None = None,
    quality: str = "best",
    scores: str = "auto",
    label_space: str | LabelSpace = "auto",
    n_folds: int | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    report: Report | None = None,
) -> Model:
    """The model of a data set that MLRHAuto chooses, with the names of its features and labels.

    Parameters
    ----------
    data : MultilabelData
    metric, quality, scores, label_space, n_jobs
        See MLRHAuto. The label names of a label space that is an instance are those of the data.
    time_budget : float or None, default=None
        In seconds. None: no limit, so that the choice doesn't depend on how fast the machine is.
    n_folds : int or None, default=None
        At most as many as there are rows. None: 5, with quality="fast" 3.
    seed : int, default=0
        Of the folds and of boosting.
    report : function of (number of steps done, number of steps, what was done) or None

    Returns
    -------
    Model

    Examples
    --------
    >>> from mlrh.automatic import choose
    >>> from mlrh.data import load_digit_scenes
    >>> model = choose(load_digit_scenes(150, part="train"), scores="linear", label_space="cardinality", n_folds=3)
    >>> sorted(model.validation)[:3]
    ['empty_share', 'exact_match', 'f1_example']
    >>> model.predict(load_digit_scenes(5, part="test")).shape
    (5, 10)
    """
    if isinstance(label_space, LabelSpace):
        label_space = label_space.for_targets(data.Y, classes=data.label_names)
    _check_usable(data)
    options = {"metric": metric, "quality": quality, "time_budget": time_budget, "scores": scores}
    more = {"label_space": label_space, "cv": n_folds, "random_state": seed, "n_jobs": n_jobs}
    auto = MLRHAuto(**options, **more)
    check_parameters(MLRHAuto, auto.get_params())
    notes = []
    if n_folds is not None and n_folds > len(data.Y):
        notes.append(f"There are {len(data.Y)} rows, so there are {len(data.Y)} folds, not {n_folds}.")
        auto.set_params(cv=len(data.Y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # To a classifier a dense column is two classes, and a sparse one is one label.
        Y = sparse.csr_array(data.Y) if data.Y.shape[1] == 1 else data.Y
        auto._search(data.X, Y, nominal=data.nominal, report=report)
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    notes += [*auto.notes_, *dict.fromkeys(_with_names(text, data) for text in texts)]
    n_used = len(auto.validation_["exact_match"])
    how = {"n_rows": len(data.Y), "n_folds": n_used, "seed": seed, "notes": notes}
    settings = {"decision": auto.decision, "scaling": "max_abs" if sparse.issparse(data.X) else "standard", **how}
    chosen = {name: value for name, value in auto.leaderboard_[0].items() if name != "seconds"}
    return Model(data.schema, None, auto, {**chosen, **settings}, auto.validation_)


@dataclass(frozen=True)
class DecisionScorer:
    """Scorer (classifier, X, Y) -> mean over rows of a metric, of the sets that a decision answers."""

    decision: str
    metric: str

    def __call__(self, classifier, X, Y):
        answer = decisions.BY_NAME[self.decision](classifier.distribution(X)) == 1
        truth = (Y.toarray() if sparse.issparse(Y) else Y) == 1
        counts = (np.count_nonzero(cell, axis=1) for cell in (answer & truth, answer & ~truth, truth & ~answer))
        return float(np.mean(metric_function(self.metric, truth.shape[1])(*counts)))


def _with_names(text, data):
    """A warning of the classifier; where it is about labels, which it knows by number, with their names instead."""
    counts = data.Y.sum(axis=0, dtype=np.int64)
    parts = []
    for count, what, so in ((0, "No row has", "predict it"), (len(data.Y), "Every row has", "leave it out")):
        names = [name for name, own in zip(data.label_names, counts, strict=True) if own == count]
        if names:
            parts.append(f"{what} the label {listed(names)}, so the model will hardly ever {so}.")
    return " ".join(parts) if parts and text.startswith(UNDETERMINED) else text


def _check_usable(data):
    """Raise a DataError where there is nothing to learn from."""
    n_rows, n_features = data.X.shape
    if n_rows < 2:
        raise DataError(f"{data.name} has {n_rows} row; cross validation needs at least 2.")
    if not n_features:
        raise DataError(f"{data.name} has no feature, only labels; name fewer columns as labels.")
    if not data.Y.shape[1]:
        raise DataError(f"{data.name} has no label; name at least one column as a label.")
