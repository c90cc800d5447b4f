"""From a data set to a fitted model with names: MLRHAuto chooses, and `Model` keeps the names of features and labels.

Knows nothing of files or terminals; progress goes to a function that the caller gives.
"""

import warnings
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from mlrh import decisions
from mlrh._indicators import UNKNOWN
from mlrh._sklearn import check_parameters
from mlrh.data.containers import DataError, MultilabelData, Schema, from_frame, listed
from mlrh.estimators import MLRHAuto
from mlrh.estimators._base import MLRHBase
from mlrh.estimators._held_out import n_labels
from mlrh.estimators._table_features import TableFeatures
from mlrh.estimators._targets import Targets
from mlrh.estimators.auto import Report, edge_note, is_complete, measured, preprocessor_for
from mlrh.estimators.calibration import calibration_of
from mlrh.estimators.thresholds import metric_of, thresholds_of
from mlrh.metrics import expected_calibration_error
from mlrh.spaces import LabelSetDistribution, LabelSpace, metric_function

__all__ = [
    "Answer",
    "AnswerRule",
    "DecisionScorer",
    "FarValueError",
    "Model",
    "choose",
    "make_preprocessor",
    "mean_and_deviation",
    "training_scale",
]

FAR = 1e4  # standard deviations of a number that is blamed where a row has no answer
UNDETERMINED = "The training rows don't determine the model"  # begins the classifiers' warning about labels


class Answer(NamedTuple):
    """Answers for some rows.

    sets : (n_samples, n_labels), int8; empty where the row isn't answered
    probability : that the set, also one that was not answered with, is exactly right, (n_samples,)
    is_answered : (n_samples,), bool
    """

    sets: np.ndarray
    probability: np.ndarray
    is_answered: np.ndarray


@dataclass(frozen=True, eq=False)
class AnswerRule:
    """From a model's distribution to its answers, as held-out rows ask for; by default the decision's sets as they are.

    Attributes
    ----------
    temperature : float
        Every distribution becomes proportional to P(y)^(1/temperature), see CalibratedSets.
    inside_share : float
        Share of rows whose true set is possible at all; the probability that a set is right is lowered by it.
    thresholds : array of shape (n_labels,) or None
        Answer with the labels whose marginal exceeds them, see TunedThresholds. None: by the decision.
    refuse_below : float
        Rows whose set is right with less probability are not answered.
    """

    temperature: float = 1.0
    inside_share: float = 1.0
    thresholds: np.ndarray | None = None
    refuse_below: float = 0.0

    @property
    def least_probability(self) -> float:
        """The least probability, under a calibrated distribution, of a set that is answered with."""
        return self.refuse_below / self.inside_share

    def calibrated(self, distribution) -> LabelSetDistribution:
        """The distribution at the temperature."""
        return distribution.temper(self.temperature) if self.temperature != 1 else distribution

    def probability(self, log_probs) -> np.ndarray:
        """Probabilities that sets are right, from their logarithms under a calibrated distribution."""
        return self.inside_share * np.exp(np.minimum(log_probs, 0.0))

    def answer(self, distribution, decision: str) -> Answer:
        """The answers of a calibrated distribution; the decision is a name of `decisions.BY_NAME`."""
        if self.thresholds is None:
            sets = decisions.BY_NAME[decision](distribution)
        else:
            sets = (distribution.marginals() > self.thresholds).astype(np.int8)
        return self.judge(distribution, sets)

    def judge(self, distribution, sets) -> Answer:
        """The answers with these sets, of which those that are too improbable are not given."""
        probability = self.probability(distribution.log_prob(sets))
        is_answered = probability >= self.refuse_below
        return Answer(np.where(is_answered[:, None], sets, 0).astype(np.int8), probability, is_answered)


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
        n_rows, n_folds, seed, notes: sentences about what wasn't tried and what the rows leave open, and feature_scale:
        mean and standard deviation of each column of X. (Files of earlier versions lack it.)
    validation : dict of str to list of float
        Each metric of `mlrh.metrics.evaluate` on the held-out rows of each fold, NaN where it has no complete row. The
        settings were chosen by the same folds, so these are slightly optimistic. Rows that would not be answered count
        with the set they would get.
    rule : AnswerRule
        How the classifier's distribution is calibrated, and which answers follow from it.
    table : TableFeatures or None
        How texts and dates become features of the classifier; None where there are none.
    """

    schema: Schema
    preprocessor: Any
    classifier: Any
    settings: dict
    validation: dict
    rule: AnswerRule = AnswerRule()
    table: TableFeatures | None = None

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
            and isinstance(self.rule, AnswerRule)
            and (self.rule.thresholds is None or len(self.rule.thresholds) == len(self.schema.label_names))
            and _is_of_schema(self.table, self.schema)
        )
        if not is_model:
            raise TypeError("A Model needs a schema, a preprocessor, a classifier of its labels, settings, validation.")

    @property
    def classes_(self) -> np.ndarray:
        """Names of the labels, in the order of the columns of all answers."""
        names = np.empty(len(self.schema.label_names), object)
        names[:] = self.schema.label_names
        return names

    def distribution(self, data) -> LabelSetDistribution:
        """The distribution of the label set of each row of a MultilabelData or a pandas or polars DataFrame.

        The data may have other columns besides the model's, and another order. It is calibrated where the model is. A
        number so far from those of training that there is no answer is a FarValueError.
        """
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # which the same number may be the cause of
                return self.rule.calibrated(self.classifier.distribution(self.features(data)))
        except ValueError as error:
            far = self._far_value(data)
            if far is None:
                raise
            raise far from error

    def _far_value(self, data):
        """A FarValueError about the number that is farthest from those of training; None where none is far."""
        data = from_frame(data, self.schema) if hasattr(data, "columns") else data
        X, scale = data.conform(self.schema).X, training_scale(self)
        if scale is None:
            return None
        mean, deviation = scale
        words = {*self.schema.categories, *self.schema.texts, *self.schema.dates}
        with np.errstate(all="ignore"):
            away = np.abs((X.toarray() if sparse.issparse(X) else X) - mean)
            away = np.nan_to_num(away / np.where(deviation > 0, deviation, 1.0), nan=0.0)
            away[:, [name in words for name in self.schema.feature_names]] = 0.0
        row, column = np.unravel_index(np.argmax(away), away.shape)
        if away[row, column] < FAR:
            return None
        figures = f"found {X[row, column]:g}, where training had {mean[column]:g} in the mean"
        what = f"column {self.schema.feature_names[column]!r} is too far from what training showed"
        return FarValueError(int(row), f"{what}; {figures}. Correct it, or leave it out as missing.")

    def predict(self, data):
        """Label sets by the model's decision, (n_samples, n_labels), int8, with the columns of `classes_`.

        They are empty for rows that the model doesn't answer; `answer` says which these are.
        Rows of a pandas or polars DataFrame are answered by such a DataFrame, whose columns have the names of the
        labels; a pandas one has the index of the rows. A MultilabelData is answered by an array.
        """
        return self._named(self.decide(self.distribution(data)), data)

    def predict_proba(self, data):
        """Marginals P(y_k = 1 | x), (n_samples, n_labels), in the same form as the answers of `predict`."""
        return self._named(self.distribution(data).marginals(), data)

    def decide(self, distribution: LabelSetDistribution) -> np.ndarray:
        """The sets that the model answers with, for a distribution that it gave."""
        return self.answer(distribution).sets

    def answer(self, distribution: LabelSetDistribution) -> Answer:
        """The same with the probability that each set is right, and which rows are answered."""
        return self.rule.answer(distribution, self.classifier.decision)

    def features(self, data):
        """The rows of a MultilabelData or DataFrame as the classifier takes them: the model's columns, preprocessed."""
        data = from_frame(data, self.schema) if hasattr(data, "columns") else data
        if not isinstance(data, MultilabelData):
            raise TypeError(
                "Rows must be a pandas or polars DataFrame with the model's columns, or what mlrh.data.read returns; "
                f"got a {type(data).__name__}."
            )
        data = data.conform(self.schema)
        X = data.X if self.table is None else self.table.matrix(data)
        if self.preprocessor is None:
            return X
        if sparse.issparse(X) and self.settings["scaling"] == "standard":
            X = X.toarray()
        elif not sparse.issparse(X) and self.settings["scaling"] == "max_abs":
            X = sparse.csr_array(X)
        return self.preprocessor.transform(X)

    def _named(self, values, data):
        """An array with a column per label, in the container of the rows that it is about."""
        if not hasattr(data, "columns"):
            return values
        container = type(data).__module__.split(".")[0]
        return Targets("frame", self.classes_, dtype=str(values.dtype), container=container).decode(values, data)


class FarValueError(ValueError):
    """A number that is too far from those of training for an answer; `row` is its row, counted from 0."""

    def __init__(self, row: int, what: str):
        super().__init__(f"Row {row + 1}, {what}")
        self.row, self._what = row, what

    def after(self, n_rows: int) -> "FarValueError":
        """The same error where so many rows come before."""
        return FarValueError(self.row + n_rows, self._what)


def training_scale(model: Model) -> np.ndarray | None:
    """Mean and deviation of the columns in training; None where the model file is older or says something else."""
    try:
        figures = np.asarray(model.settings.get("feature_scale"), np.float64)
    except (TypeError, ValueError):
        return None
    return figures if figures.shape == (2, len(model.schema.feature_names)) else None


def make_preprocessor(data):
    """A transformer for the X of a MultilabelData, not fitted; see `mlrh.estimators.auto.preprocessor_for`."""
    return preprocessor_for(data.X, data.nominal, data.counts)


def _is_of_schema(table, schema):
    """Whether the texts and dates of a schema, and no other columns, have features of a table."""
    if not schema.texts and not schema.dates:
        return table is None
    if not isinstance(table, TableFeatures) or table.words.keys() != table.pieces.keys():
        return False
    return table.words.keys() == set(schema.texts) and table.parts.keys() == set(schema.dates)


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
    calibrate: bool = False,
    thresholds: str | None = None,
    refuse_below: float = 0.0,
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
    calibrate : bool, default=False
        Correct the distribution by a temperature, as CalibratedSets does, by the held-out rows of the chosen model. No
        pool is tried then: all its sets would have to be listed.
    thresholds : str or None, default=None
        Answer with the labels whose marginal exceeds a threshold, tuned on the same rows for this metric of
        TunedThresholds, and not by the decision that fits `metric`.
    refuse_below : float, default=0.0
        Don't answer rows whose set is right with less probability.
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
    _check_rule(thresholds, refuse_below)
    has_rule = calibrate or thresholds is not None or refuse_below > 0
    is_whole = is_complete(data.Y)
    if has_rule and np.count_nonzero(is_whole) < 2:
        raise _too_few_complete(data)
    table = TableFeatures.found_in(data) if data.texts or data.dates else None
    features = data if table is None else table.expand(data)
    _check_usable(features)
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
        known = data.Y if is_whole.all() else np.where(data.Y == UNKNOWN, np.nan, data.Y)
        Y = sparse.csr_array(known) if data.Y.shape[1] == 1 else known
        about = {"nominal": features.nominal, "counts": features.counts}
        parts = auto._search(features.X, Y, **about, pooled=not calibrate, report=report)
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    if calibrate and quality == "best":
        notes.append("A pool was not tried, because all its sets would have to be listed to calibrate it.")
    notes += [*auto.notes_, *dict.fromkeys(_with_names(text, data) for text in texts)]
    n_unknown = int(np.count_nonzero(~is_whole))
    if n_unknown:
        by_others = ", which calibration and thresholds are by" if has_rule else ""
        what = f"What is known of them counts in the fit, and the measures are those of the other rows{by_others}."
        notes.append(f"{n_unknown} of {len(data.Y)} rows have unknown labels. {what}")
    n_used = len(auto.validation_["exact_match"])
    how = {"n_rows": len(data.Y), "n_folds": n_used, "seed": seed, "notes": notes}
    settings = {"decision": auto.decision, "scaling": "max_abs" if sparse.issparse(data.X) else "standard", **how}
    settings["feature_scale"] = [figures.tolist() for figures in mean_and_deviation(data.X)]
    chosen = {name: value for name, value in auto.leaderboard_[0].items() if name != "seconds"}
    notes += filter(None, [edge_note(chosen)])
    model = Model(data.schema, None, auto, {**chosen, **settings}, auto.validation_, table=table)
    if not has_rule:
        return model
    parts = [part.complete() for part in parts]
    if sum(len(part.truth) > 0 for part in parts) < 2:
        raise _too_few_complete(data)
    return _ruled(model, parts, calibrate, thresholds, refuse_below)


def _ruled(model, parts, calibrate, thresholds, refuse_below):
    """The model with a rule by the held-out rows of all folds, measured in each fold with that of the other folds."""
    how = (calibrate, thresholds, refuse_below)
    folds, confidence, is_right, is_answered = [], [], [], []
    for number, part in enumerate(parts):
        others = _rule([own for place, own in enumerate(parts) if place != number], *how)
        distribution = others.calibrated(part.distribution)
        answer = replace(others, refuse_below=0.0).answer(distribution, model.classifier.decision)
        folds.append(measured(part.truth, answer.sets, distribution.log_prob(part.truth)))
        confidence.append(answer.probability)
        is_right.append((answer.sets == part.truth).all(axis=1))
        is_answered.append(answer.probability >= refuse_below)
    validation = {name: [fold[name] for fold in folds] for name in folds[0]}
    right, answered = np.concatenate(is_right), np.concatenate(is_answered)
    added: dict[str, Any] = {"thresholds": thresholds, "answered_share": float(answered.mean())}
    if answered.any():
        added["right_share_of_answered"] = float(right[answered].mean())
    if calibrate:
        added["calibration_error"] = expected_calibration_error(np.concatenate(confidence), right)
    return replace(model, settings={**model.settings, **added}, validation=validation, rule=_rule(parts, *how))


def _rule(parts, calibrate, thresholds, refuse_below):
    """The AnswerRule that held-out rows of some folds ask for."""
    parts = [part for part in parts if len(part.truth)]
    distributions, truths = [part.distribution for part in parts], [part.truth for part in parts]
    rule = AnswerRule(refuse_below=float(refuse_below))
    if calibrate:
        found = calibration_of(distributions, truths)
        rule = replace(rule, temperature=found.temperature, inside_share=found.inside_share)
    if thresholds is not None:
        calibrated = [rule.calibrated(distribution) for distribution in distributions]
        rule = replace(rule, thresholds=thresholds_of(calibrated, truths, thresholds))
    return rule


def _too_few_complete(data):
    return DataError(
        f"{data.name}: calibration, thresholds and refusal need rows whose labels are all known in two folds, and "
        f"{np.count_nonzero(is_complete(data.Y))} of {len(data.Y)} rows have such labels; complete more rows, or leave "
        "these options out."
    )


def _check_rule(thresholds, refuse_below):
    if thresholds is not None:
        metric_of(thresholds, 1.0)
    is_number = isinstance(refuse_below, Real) and not isinstance(refuse_below, bool | np.bool_)
    if not is_number or not 0 <= refuse_below <= 1:
        raise ValueError(f"refuse_below must be a probability from 0 to 1; got {refuse_below!r}.")


def mean_and_deviation(X) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over the values that are there, 0 where there are none.

    A deviation that is a rounding error is 0.
    """
    with np.errstate(all="ignore"):  # columns without values, and squares beyond floating point numbers
        found = StandardScaler(with_mean=False).fit(X)  # the mean is found all the same, sparse rows stay sparse
        mean, variance = np.nan_to_num(found.mean_), np.nan_to_num(found.var_)
        return mean, np.sqrt(np.where(variance > 1e-12 * mean**2, variance, 0.0))


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
    counts = (data.Y == 1).sum(axis=0, dtype=np.int64)
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
