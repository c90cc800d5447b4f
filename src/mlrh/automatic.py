"""From a data set to a fitted model: kernel, C, gamma and label space are chosen by cross validation.

Knows nothing of files or terminals; progress goes to a function that the caller gives.
"""

import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from joblib import cpu_count
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from mlrh import decisions
from mlrh._processes import as_finished
from mlrh.data.containers import DataError, MultilabelData, Schema, from_frame, listed
from mlrh.estimators import KernelMLRHClassifier, MLRHClassifier
from mlrh.estimators._base import MLRHBase
from mlrh.estimators.cv import SEARCH_TOL, best_index, validation_scores
from mlrh.estimators.kernel import gamma_scale
from mlrh.metrics import evaluate
from mlrh.spaces import LabelSetDistribution, LabelSpace, metric_function

__all__ = ["DecisionScorer", "Model", "ToDense", "choose", "make_preprocessor"]

# The values of C and gamma that are tried. What is a small C depends on the scale of the features: these are for scaled
# ones. RBF gets larger C, since entries of the kernel are at most 1, while a scaled row's square is about n_features.
LINEAR_C = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
RBF_C = (0.1, 1.0, 10.0, 100.0, 1000.0)
RBF_GAMMA = (0.3, 1.0, 3.0)  # in units of 1 / (n_features * variance of the features), which is gamma="scale"

MAX_RBF_ROWS = 3000  # to try an RBF kernel unasked: its cost grows with the cube of the rows
MAX_SPARSE_RBF_ROWS = 1000  # sparse rows have many features, where a linear model is hard to beat
MAX_ASKED_RBF_ROWS = 10_000  # a kernel matrix of 0.8 GB, of which a fit holds several
MAX_SETS = 2000  # to try the observed space unasked: it costs one product per set, and of more sets most occur once
SERIAL_SECONDS = 20.0  # of computing here before processes are started: their start takes several seconds

LABEL_SPACES = ("auto", "cardinality", "observed", "open")
KERNELS = ("auto", "linear", "rbf")
UNDETERMINED = "The training rows don't determine the model"  # begins the classifiers' warning about labels

Report = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted classifier with all that is needed to use it on a file: names, preprocessing, and how it was chosen.

    Attributes
    ----------
    schema : Schema
        Names of the features and labels, and the values of nominal features.
    preprocessor : fitted transformer of X
    classifier : fitted MLRHClassifier or KernelMLRHClassifier
    settings : dict
        kernel, C, gamma and gamma_units (None for linear), label_space, size_bias, min_labels, max_labels, decision,
        scaling ("standard" for dense features, "max_abs" for sparse ones), n_rows, n_folds, seed, and notes: sentences
        about what wasn't tried and what the rows leave open.
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
            and isinstance(self.classifier, MLRHBase)
            and hasattr(self.preprocessor, "transform")
            and len(self.schema.label_names) == self.classifier.label_space_.n_labels
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
        return decisions.resolve(self.classifier.decision, self.classifier.answer_sizes)(distribution)

    def features(self, data):
        """The rows of a MultilabelData or DataFrame as the classifier takes them: the model's columns, preprocessed."""
        data = from_frame(data, self.schema) if hasattr(data, "columns") else data
        X = data.conform(self.schema).X
        if sparse.issparse(X) and self.settings["scaling"] == "standard":
            X = X.toarray()
        elif not sparse.issparse(X) and self.settings["scaling"] == "max_abs":
            X = sparse.csr_array(X)
        return self.preprocessor.transform(X)


def make_preprocessor(data):
    """A transformer for the X of a MultilabelData, not fitted.

    Dense numeric columns are standardised, sparse ones divided by their largest magnitude (which keeps them sparse, and
    0/1 columns as they are). Missing numbers become the column's median (sparse: its mean). A nominal column becomes
    one 0/1 column per value, a missing value one of its own; values not seen in fit become zeros.
    """
    is_sparse = sparse.issparse(data.X)
    numeric = make_pipeline(
        SimpleImputer(strategy="mean" if is_sparse else "median", keep_empty_features=True),
        MaxAbsScaler() if is_sparse else StandardScaler(),
    )
    if not data.nominal:
        return numeric
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=is_sparse)
    nominal = make_pipeline(ToDense(), encoder) if is_sparse else encoder
    rest = [column for column in range(data.X.shape[1]) if column not in set(data.nominal)]
    steps = [("nominal", nominal, data.nominal), ("numeric", numeric, rest)]
    return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=1.0)


class ToDense(TransformerMixin, BaseEstimator):
    """Sparse columns as an array, for transformers that take no others."""

    def fit(self, X, y=None):
        """Learns nothing."""
        return self

    def transform(self, X):
        """X as an array."""
        return X.toarray()

    def __sklearn_is_fitted__(self):
        return True


def choose(
    data: MultilabelData,
    *,
    label_space: str | LabelSpace = "auto",
    kernel: str = "auto",
    decision: str = "exact_match",
    n_folds: int = 5,
    seed: int = 0,
    n_jobs: int | None = None,
    report: Report | None = None,
) -> Model:
    """The model that does best in cross validation, fitted to all rows.

    Candidates are linear and RBF scores, the cardinality space with and without a learned bias per size, and the
    observed space, each over a grid of C (LINEAR_C, RBF_C) and gamma (RBF_GAMMA). All see the same shuffled folds, with
    preprocessing fitted to the training part of each. The mean over folds of the decision's own metric decides; among
    equals the simplest wins: linear before RBF, cardinality before observed, small C.

    Parameters
    ----------
    data : MultilabelData
    label_space : {"auto", "cardinality", "observed", "open"} or LabelSpace, default="auto"
        "auto" tries the first two, the observed one up to MAX_SETS different sets. Or an instance of a class of
        mlrh.spaces; its label names are those of the data.
    kernel : {"auto", "linear", "rbf"}, default="auto"
        "auto" tries both, RBF up to MAX_RBF_ROWS rows (sparse: MAX_SPARSE_RBF_ROWS).
    decision : {"exact_match", "hamming", "f1", "jaccard"}, default="exact_match"
        What predictions are to maximise, and the metric to choose by.
    n_folds : int, default=5
        At most as many as there are rows.
    seed : int, default=0
        Of the folds.
    n_jobs : int or None, default=None
        Processes. None: all cores where the work takes longer than a few seconds.
    report : function of (number of steps done, number of steps, what was done) or None

    Returns
    -------
    Model

    Examples
    --------
    >>> from mlrh.automatic import choose
    >>> from mlrh.data import load_digit_scenes
    >>> model = choose(load_digit_scenes(150, part="train"), kernel="linear", label_space="cardinality", n_folds=3)
    >>> sorted(model.validation)[:3]
    ['empty_share', 'exact_match', 'f1_example']
    >>> model.predict(load_digit_scenes(5, part="test")).shape
    (5, 10)
    """
    if isinstance(label_space, str):
        _check_choice("label_space", label_space, LABEL_SPACES)
    else:
        label_space = label_space.for_targets(data.Y, classes=data.label_names)
    _check_choice("kernel", kernel, KERNELS)
    _check_choice("decision", decision, tuple(decisions.BY_NAME))
    _check_usable(data)
    notes: list[str] = []
    candidates = _candidates(data, _spaces(data, label_space, notes), _kernels(data, kernel, notes))
    splits = _splits(len(data.Y), n_folds, seed, notes)
    paths = [_Path(candidate, decision, split) for candidate in candidates for split in splits]
    run = _Runner(n_jobs, len(paths) + len(splits) + 1, report or (lambda done, total, text: None))
    best = _best(paths, run(paths, data))
    measured = run([_Validation(best, decision, split) for split in splits], data)
    validation = {metric: [fold[metric] for fold in measured] for metric in measured[0]}
    model = _fitted(best, data, decision, notes)
    run.tell("fit to all rows")
    how = {"n_rows": len(data.Y), "n_folds": len(splits), "seed": seed, "notes": notes}
    return replace(model, settings=model.settings | how, validation=validation)


@dataclass(frozen=True)
class _Candidate:
    """A form of the model and its grid of C; gamma is in units, and C is None until it is chosen."""

    kernel: str
    label_space: str | LabelSpace
    size_bias: bool
    Cs: tuple[float, ...]
    gamma: float | None = None
    C: float | None = None

    def classifier(self, X, decision, **options):
        """The classifier, not fitted, for training rows X."""
        form = {"label_space": self.label_space, "size_bias": self.size_bias, "decision": decision, **options}
        if self.C is not None:
            form["C"] = self.C
        if self.gamma is None:
            return MLRHClassifier(**form)
        return KernelMLRHClassifier(gamma=self.gamma * gamma_scale(X), **form)

    def __str__(self):
        space = f"{_in_words(self.label_space)}{' with size bias' if self.size_bias else ''}"
        return f"linear, {space}" if self.kernel == "linear" else f"RBF, gamma x {self.gamma:g}, {space}"


@dataclass(frozen=True)
class _Path:
    """Scores (n_Cs,) of a candidate on the held-out rows of one split, for all C."""

    candidate: _Candidate
    decision: str
    split: tuple

    def __call__(self, data):
        train, held_out = self.split
        preprocessor = make_preprocessor(data).fit(data.X[train])
        X = preprocessor.transform(data.X)
        scores = validation_scores(
            self.candidate.classifier(X[train], self.decision, tol=SEARCH_TOL, n_jobs=1),
            X,
            _targets(data.Y),
            Cs=self.candidate.Cs,
            splits=[(train, held_out)],
            scorers=[DecisionScorer(self.decision, self.decision)],
        )
        return scores[0, 0, 0]

    def __str__(self):
        return str(self.candidate)


class _Validation(_Path):
    """Metrics of the chosen candidate on the held-out rows of one split."""

    def __call__(self, data):
        train, held_out = data.rows(self.split[0]), data.rows(self.split[1])
        preprocessor = make_preprocessor(data).fit(train.X)
        X = preprocessor.transform(train.X)
        classifier = self.candidate.classifier(X, self.decision, n_jobs=1).fit(X, _targets(train.Y))
        distribution = classifier.distribution(preprocessor.transform(held_out.X))
        predicted = decisions.BY_NAME[self.decision](distribution)
        return evaluate(held_out.Y, predicted, distribution.log_prob(held_out.Y))

    def __str__(self):
        return "validation of the choice"


class _Runner:
    """Calls tasks with the data, here or in processes, and tells how many are done."""

    def __init__(self, n_jobs, total, report):
        self._n_jobs, self._total, self._report = n_jobs, total, report
        self._done, self._seconds = 0, 0.0
        self._warm: set[tuple] = set()

    def __call__(self, tasks, data) -> list:
        """The results, in the order of the tasks: computed here at first, and in processes where that pays off."""
        results: dict[int, Any] = {}
        while len(results) < len(tasks) and not self._pays_off(len(tasks) - len(results)):
            task = tasks[len(results)]
            self._warm_up(task)
            begin = time.perf_counter()
            results[len(results)] = _quietly(data, task)
            self._seconds += time.perf_counter() - begin
            self.tell(str(task))
        n_here, rest = len(results), tasks[len(results) :]
        n_jobs = min(self._n_jobs or cpu_count(), len(rest))
        with closing(as_finished(partial(_quietly, data), rest, n_jobs=n_jobs)) as events:
            for place, result, _ in events:
                if isinstance(result, ChildProcessError):
                    raise ChildProcessError(f"A fit ({rest[place]}) failed: {result}; use fewer processes.")
                if place is not None:
                    results[n_here + place] = result
                    self.tell(str(rest[place]))
        return [results[place] for place in range(len(tasks))]

    def tell(self, text):
        self._done += 1
        self._report(self._done, self._total, text)

    def _warm_up(self, task):
        """Run a task of the same form on a few rows: a first fit may compile, and that time must not count."""
        candidate = task.candidate
        form = type(task), candidate.kernel, candidate.label_space, candidate.size_bias
        is_named = isinstance(candidate.label_space, str)  # another space has labels that the few rows lack
        if self._n_jobs is None and cpu_count() > 1 and is_named and form not in self._warm:
            self._warm.add(form)
            _quietly(_few_rows(), replace(task, split=(np.arange(6), np.arange(6, 8))))

    def _pays_off(self, n_waiting):
        """Whether processes are worth their start."""
        if self._n_jobs is None:
            return self._seconds > SERIAL_SECONDS and n_waiting > 1 and cpu_count() > 1
        return self._n_jobs > 1 and n_waiting > 1


def _few_rows():
    """Eight rows with 0, 1 and 2 of three labels."""
    X = np.arange(16.0).reshape(8, 2) % 5
    Y = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1], [1, 0, 0]], np.int8)
    return MultilabelData(X, Y, ("a", "b"), ("p", "q", "r"), "few rows")


def _quietly(data, task):
    """The task's result, by one thread and without warnings: those of the final fit are the ones that count."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        return task(data)


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


def _targets(Y):
    """Y as the classifiers take it: to them a dense column is two classes, and a sparse one is one label."""
    return sparse.csr_array(Y) if Y.shape[1] == 1 else Y


def _best(paths, scores):
    """The candidate, with its C, of the best mean score over the folds; the first of equals."""
    best, best_score = None, -np.inf
    for candidate, own in groupby(zip(paths, scores, strict=True), key=lambda pair: pair[0].candidate):
        # Rounded: sums in another order differ in the last digit, by which a less simple candidate could win.
        mean = np.array([score for _, score in own]).mean(axis=0).round(12)
        _, place = best_index(mean[None, None])
        if best is None or mean[place] > best_score:
            best, best_score = replace(candidate, C=candidate.Cs[place]), mean[place]
    return best


def _fitted(candidate, data, decision, notes):
    """The model of all rows, without its validation; what the fit warns of is noted."""
    preprocessor = make_preprocessor(data)
    X = preprocessor.fit_transform(data.X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier = candidate.classifier(X, decision).fit(X, _targets(data.Y))
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    notes += dict.fromkeys(_with_names(text, data) for text in texts)
    settings = {
        "kernel": candidate.kernel,
        "C": candidate.C,
        "gamma": None if candidate.gamma is None else classifier.gamma,
        "gamma_units": candidate.gamma,
        "label_space": _in_words(candidate.label_space),
        "size_bias": candidate.size_bias,
        **dict(zip(("min_labels", "max_labels"), classifier.label_space_.sizes(), strict=True)),
        "decision": decision,
        "scaling": "max_abs" if sparse.issparse(data.X) else "standard",
    }
    return Model(data.schema, preprocessor, classifier, settings, {})


def _in_words(label_space):
    return label_space if isinstance(label_space, str) else label_space.describe()


def _with_names(text, data):
    """A warning of the classifier; where it is about labels, which it knows by number, with their names instead."""
    counts = data.Y.sum(axis=0, dtype=np.int64)
    parts = []
    for count, what, so in ((0, "No row has", "predict it"), (len(data.Y), "Every row has", "leave it out")):
        names = [name for name, own in zip(data.label_names, counts, strict=True) if own == count]
        if names:
            parts.append(f"{what} the label {listed(names)}, so the model will hardly ever {so}.")
    return " ".join(parts) if parts and text.startswith(UNDETERMINED) else text


def _candidates(data, spaces, kernels):
    """The candidates, simplest first."""
    sizes = np.count_nonzero(data.Y, axis=1)
    # With two sizes or fewer, the intercepts can express a bias per size: it would be the same model twice.
    biases = (False, True) if np.ptp(sizes) > 1 else (False,)
    forms = [(space, bias) for space in spaces for bias in (biases if space == "cardinality" else (False,))]
    grids: dict[str, tuple] = {"linear": (LINEAR_C, (None,)), "rbf": (RBF_C, RBF_GAMMA)}
    pairs = [(kernel, form) for kernel in kernels for form in forms]
    return [_Candidate(kernel, *form, grids[kernel][0], gamma) for kernel, form in pairs for gamma in grids[kernel][1]]


def _spaces(data, asked, notes):
    """The label spaces to try."""
    if asked != "auto":
        return (asked,)
    n_sets = len(np.unique(data.Y, axis=0))
    if n_sets <= MAX_SETS:
        return ("cardinality", "observed")
    found = f"{n_sets:,} different label sets, more than {MAX_SETS:,}"
    notes.append(f"The observed label space was not tried: there are {found}.")
    return ("cardinality",)


def _kernels(data, asked, notes):
    """The kernels to try."""
    n_rows, is_sparse = data.X.shape[0], sparse.issparse(data.X)
    if asked == "rbf" and n_rows > MAX_ASKED_RBF_ROWS:
        raise ValueError(
            f"An RBF kernel takes at most {MAX_ASKED_RBF_ROWS:,} rows, because its matrix has rows x rows entries; "
            f"{data.name} has {n_rows:,}, so choose the linear kernel or fewer rows."
        )
    if asked != "auto":
        return (asked,)
    limit = MAX_SPARSE_RBF_ROWS if is_sparse else MAX_RBF_ROWS
    if n_rows <= limit:
        return ("linear", "rbf")
    kind = "sparse rows" if is_sparse else "rows"
    notes.append(f"An RBF kernel was not tried: there are {n_rows:,} {kind}, more than {limit:,}.")
    return ("linear",)


def _splits(n_rows, n_folds, seed, notes):
    """Training and held-out rows of each fold."""
    if n_folds < 2:
        raise ValueError(f"n_folds must be at least 2; got {n_folds}.")
    if n_folds > n_rows:
        notes.append(f"There are {n_rows} rows, so there are {n_rows} folds, not {n_folds}.")
    folds = KFold(min(n_folds, n_rows), shuffle=True, random_state=seed)
    return list(folds.split(np.empty(n_rows)))


def _check_usable(data):
    """Raise a DataError where there is nothing to learn from."""
    n_rows, n_features = data.X.shape
    if n_rows < 2:
        raise DataError(f"{data.name} has {n_rows} row; cross validation needs at least 2.")
    if not n_features:
        raise DataError(f"{data.name} has no feature, only labels; name fewer columns as labels.")
    if not data.Y.shape[1]:
        raise DataError(f"{data.name} has no label; name at least one column as a label.")


def _check_choice(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
