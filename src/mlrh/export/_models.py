"""Fitted classifiers as ONNX graphs: from features to scores, and from scores to answers.

skl2onnx takes three functions for each class: `parse` says which outputs there are, `set_shapes` their types, and
`convert` adds the nodes. One triple serves all classes, for which `described` finds what an export needs. All is
computed in float64, whatever the type of the features, and returned in their type.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np
from onnx import TensorProto
from scipy import sparse
from skl2onnx import update_registered_converter
from skl2onnx._parse import parse_sklearn  # documented, in spite of its name; other converters call it, too
from skl2onnx.common.data_types import Int64TensorType, StringTensorType, guess_proto_type, guess_tensor_type
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from mlrh.estimators import (
    CalibratedSets,
    KernelMLRHClassifier,
    KernelMLRHClassifierCV,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    PooledSets,
    TunedThresholds,
)
from mlrh.estimators._base import MLRHBase
from mlrh.estimators._held_out import n_labels
from mlrh.estimators.auto import ToDense
from mlrh.export._graph import INT64, OPSET, Graph
from mlrh.export._spaces import TIE, in_graph, largest_score, pooled
from mlrh.spaces import metric_function
from mlrh.spaces.base import LARGEST_IN_FLOATS

INTEGERS = ("label", "answered")  # the outputs that are no probabilities or scores
ALIAS = "Mlrh"  # begins the names under which skl2onnx keeps the classes
CLASSES = (
    *(MLRHClassifier, MLRHClassifierCV, KernelMLRHClassifier, KernelMLRHClassifierCV),
    *(PooledSets, CalibratedSets, TunedThresholds, MLRHAuto),
)


def register():
    """Tell skl2onnx how the classifiers are converted."""
    for one in (*CLASSES, Ruled):
        update_registered_converter(one, ALIAS + one.__name__, set_shapes, convert, parser=parse)
    # A matrix of ONNX is dense already.
    update_registered_converter(ToDense, ALIAS + ToDense.__name__, _same_shape, _same)
    update_registered_converter(Filled, ALIAS + Filled.__name__, _shape_of_filled, _fill)


@dataclass(frozen=True, eq=False)
class Member:
    """A classifier that gives scores, and the fitted transformers that come before it."""

    classifier: Any
    steps: tuple = ()


@dataclass(frozen=True, eq=False)
class Described:
    """What an export needs to know of a fitted model.

    members : the classifiers; several form a pool
    form : of the y that the whole model was fitted to
    decision, answer_sizes : of the model
    weights, is_mixture : of the members of a pool
    temperature : to whose inverse the probabilities of sets are raised
    thresholds : of the labels' probabilities (n_labels,), or None where the decision counts
    inside_share, regression : of CalibratedSets, which turn a set's probability into a confidence
    refuse_below : rows whose answer is less probable get none; 0 where all are answered
    """

    members: tuple[Member, ...]
    form: Any
    decision: Any
    answer_sizes: Any
    weights: tuple[float, ...] = (1.0,)
    is_mixture: bool = True
    temperature: float = 1.0
    thresholds: np.ndarray | None = None
    inside_share: float = 1.0
    regression: Any = None
    refuse_below: float = 0.0

    @property
    def is_plain(self):
        """Whether there is one classifier with nothing around it that changes its probabilities or answers."""
        return len(self.members) == 1 and self.temperature == 1 and self.thresholds is None


@dataclass(eq=False)
class Ruled:
    """The classifier of a model of `mlrh fit`, and its rule of answers (mlrh.automatic.AnswerRule)."""

    estimator_: Any
    rule: Any

    @property
    def n_features_in_(self):
        return self.estimator_.n_features_in_

    def described(self):
        rule, inner = self.rule, described(self.estimator_)
        own = {name: getattr(rule, name) for name in ("inside_share", "thresholds", "refuse_below")}
        return replace(inner, temperature=inner.temperature * rule.temperature, **own)


def described(model) -> Described:
    """The classifiers inside of pipelines, searches and classifiers around others, and what these add to them."""
    if isinstance(model, Pipeline):
        inner = described(model[-1])
        steps = tuple(step for _, step in model.steps[:-1] if step is not None and step != "passthrough")
        return replace(inner, members=tuple(replace(one, steps=(*steps, *one.steps)) for one in inner.members))
    if isinstance(model, Ruled):
        return model.described()
    check_is_fitted(model)
    if isinstance(model, MLRHBase):
        return Described((Member(model),), model._targets, model.decision, model.answer_sizes)
    if isinstance(model, MLRHAuto):
        if model._categories:
            raise ValueError(
                "MLRHAuto can't be exported to ONNX with columns of categories, which it numbers itself; fit "
                "it with `mlrh fit` or mlrh.automatic.choose, or encode them in a pipeline before it."
            )
        return replace(described(model.best_estimator_), form=model._targets)
    if isinstance(model, MLRHBoostingClassifier):
        raise ValueError(
            "Boosted trees can't be exported to ONNX; fit linear scores or an RBF kernel (mlrh fit --scores linear or "
            "rbf), or use the model in Python."
        )
    around = {CalibratedSets: _calibrated, TunedThresholds: _with_thresholds, PooledSets: _pool}.get(type(model))
    found = None if around is None else around(model)
    if found is not None:
        return replace(found, form=model._targets)
    if hasattr(model, "best_estimator_"):
        return described(model.best_estimator_)
    raise ValueError(
        f"{type(model).__name__} can't be exported to ONNX as it is; what can are MLRHClassifier and "
        "KernelMLRHClassifier, alone or within pipelines, searches, PooledSets, CalibratedSets, TunedThresholds (in "
        "this order) and MLRHAuto."
    )


def _calibrated(model):
    inner, calibration = described(model.estimator_), model._calibration
    if inner.thresholds is not None:
        return None
    shares = {"inside_share": calibration.inside_share, "regression": calibration.regression}
    return replace(inner, temperature=inner.temperature * calibration.temperature, **shares)


def _with_thresholds(model):
    inner = described(model.estimator_)
    if inner.thresholds is not None:
        return None
    return replace(inner, thresholds=np.asarray(model.thresholds_), inside_share=1.0, regression=None)


def _pool(model):
    inner = [described(member) for member in model.estimators_]
    if not all(one.is_plain for one in inner):
        return None
    members = tuple(member for one in inner for member in one.members)
    pool = {"weights": tuple(model.weights_), "is_mixture": model.pooling == "mixture"}
    return Described(members, model._targets, model.decision, model.answer_sizes, **pool)


def check_texts(model):
    """Refuse steps for text of which skl2onnx makes a graph that answers otherwise, or that no runtime may load."""
    for part in parts_of(model):
        if isinstance(part, CountVectorizer) and part.analyzer in ("word", "char"):
            _check_words(part)
        if getattr(part, "sublinear_tf", False):
            raise ValueError(
                f"{type(part).__name__} can't be exported to ONNX with sublinear_tf=True, of which skl2onnx makes "
                "log(1 + tf) in place of 1 + log(tf); fit it with sublinear_tf=False."
            )


def _check_words(vectorizer):
    name = f"{type(vectorizer).__name__} can't be exported to ONNX"
    if vectorizer.lowercase:
        raise ValueError(
            f"{name} with lowercase=True, as onnxruntime can't load it without the locale en_US.UTF-8; make texts "
            "lower-case beforehand, and fit it with lowercase=False."
        )
    if vectorizer.analyzer == "char":
        return
    other = next((word for word in vectorizer.vocabulary_ if not word.isascii()), None)
    if other is not None:
        raise ValueError(
            f"{name} with words that aren't ASCII, since it ends words at such letters; got {other!r}. Write texts "
            "in ASCII beforehand, or do this step before the model."
        )
    if vectorizer.ngram_range[1] > 1:
        raise ValueError(
            f"{name} with several words in a row, as it counts words of one letter and stop words among them; got "
            f"ngram_range={vectorizer.ngram_range}. Fit it with ngram_range=(1, 1)."
        )


def parts_of(model):
    """A model, and all that is fitted within it."""
    yield model
    inner = [getattr(model, name, None) for name in ("best_estimator_", "estimator_")]
    inner += getattr(model, "estimators_", ())
    named = ("steps", "transformers_", "transformer_list")
    inner += [entry[1] for name in named for entry in getattr(model, name, ())]
    for part in inner:
        if part is not None:
            yield from parts_of(part)


def outputs_of(about):
    """Names of the outputs; a pool has no scores, and only a model that refuses rows says which are answered."""
    scores, answered = ("scores",) * (len(about.members) == 1), ("answered",) * (about.refuse_below > 0)
    return ("label", "probabilities", "set_probability", "sizes", *scores, *answered)


def parse(scope, model, inputs, custom_parsers=None):
    """The output variables of a model; transformers within it become operators of their own."""
    about = described(model)
    operator = scope.declare_local_operator(ALIAS + type(model).__name__, model)
    operator.n_inputs = []  # of each member
    for member in about.members:
        own = list(inputs)
        for step in member.steps:
            own = parse_sklearn(scope, step, own, custom_parsers=custom_parsers)
            for variable in own:
                variable.init_status(is_leaf=False)
        operator.n_inputs.append(len(own))
        operator.inputs.extend(own)
    operator.number = guess_tensor_type(inputs[0].type)  # of the outputs; an encoder gives float32 for float64, too
    for name in outputs_of(about):
        kind = Int64TensorType() if name in INTEGERS else type(operator.number)()
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def set_shapes(operator):
    """Types and shapes of the outputs."""
    about, rows = described(operator.raw_operator), operator.inputs[0].get_first_dimension()
    own, number = n_labels(about.form), type(_number(operator))
    is_one_class, classes = about.form.is_one_class_per_row, about.form.classes
    label = Int64TensorType([rows, own])
    if is_one_class:
        label = (Int64TensorType if classes.dtype.kind in "iub" else StringTensorType)([rows])
    types = {
        "label": label,
        "probabilities": number([rows, len(classes) if is_one_class else own]),
        "set_probability": number([rows]),
        "sizes": number([rows, own + 1]),
        "scores": number([rows, own]),
        "answered": Int64TensorType([rows]),
    }
    for output, name in zip(operator.outputs, outputs_of(about), strict=False):  # within a search there are two
        output.type = types[name]


def convert(scope, operator, container):
    """Add the nodes of a model to a container of skl2onnx."""
    if container.target_opset_onnx < OPSET:
        raise ValueError(f"target_opset must be at least {OPSET}; got {container.target_opset_onnx}.")
    about, graph = described(operator.raw_operator), _graph(scope, container)
    inputs, scores = iter(operator.inputs), []
    # skl2onnx calls this without `parse` for the classifier within a search, which has no steps.
    for member, n_inputs in zip(about.members, getattr(operator, "n_inputs", [len(operator.inputs)]), strict=True):
        # The shape is given, since a runtime may not know it after some encoders, and the bodies of Scans need it.
        X = _features(graph, list(islice(inputs, n_inputs))).reshaped(0, member.classifier.n_features_in_)
        scores.append(_scores(graph, X, member.classifier))
    number = guess_proto_type(_number(operator))
    answers = _answers(about, scores)
    for output, name in zip(operator.outputs, outputs_of(about), strict=False):
        value = answers[name] if name in INTEGERS else answers[name].cast(number)
        container.add_node("Identity", [value.name], [output.full_name], op_version=OPSET, name=graph.new_name("out"))


def _number(operator):
    """The type of the outputs; within a search skl2onnx hasn't called `parse`."""
    return getattr(operator, "number", None) or guess_tensor_type(operator.inputs[0].type)


def _same_shape(operator):
    operator.outputs[0].type = operator.inputs[0].type


def _same(scope, operator, container):
    container.add_node("Identity", [operator.inputs[0].full_name], [operator.outputs[0].full_name], op_version=OPSET)


class Filled(TransformerMixin, BaseEstimator):
    """A fitted SimpleImputer that fills in one number per column; skl2onnx has it for float32 only."""

    def __init__(self, statistics=None):
        self.statistics = statistics

    def __sklearn_is_fitted__(self):
        return True


def _shape_of_filled(operator):
    first, n_columns = operator.inputs[0], len(operator.raw_operator.statistics)
    operator.outputs[0].type = type(guess_tensor_type(first.type))([first.get_first_dimension(), n_columns])


def _fill(scope, operator, container):
    """Replace NaN by the numbers, in the type of the features."""
    graph, number = _graph(scope, container), guess_proto_type(guess_tensor_type(operator.inputs[0].type))
    X = _features(graph, operator.inputs).cast(number)
    filling = graph.value(np.asarray(operator.raw_operator.statistics, np.float64)).cast(number)
    filled = graph.where(graph.node("IsNaN", X), filling, X)
    container.add_node("Identity", [filled.name], [operator.outputs[0].full_name], op_version=OPSET)


def prepared(model):
    """A copy of a model with what can be exported in place of what can't.

    These are imputers of numbers (see `Filled`), and searches, of which skl2onnx has only some outputs.
    """
    return _replaced(deepcopy(model))


def _replaced(part):
    if isinstance(part, SimpleImputer):
        is_nan = isinstance(part.missing_values, float) and np.isnan(part.missing_values)
        is_plain = is_nan and not part.add_indicator and part.statistics_.dtype.kind == "f"
        # NaN among the numbers stands for a column without any, which the imputer drops.
        return Filled(part.statistics_) if is_plain and not np.isnan(part.statistics_).any() else part
    if hasattr(part, "best_estimator_") and not isinstance(part, CLASSES):
        return _replaced(part.best_estimator_)
    for name in ("best_estimator_", "estimator_"):
        if hasattr(part, name):
            setattr(part, name, _replaced(getattr(part, name)))
    if hasattr(part, "estimators_"):
        part.estimators_ = [_replaced(one) for one in part.estimators_]
    if isinstance(part, Pipeline):
        part.steps = [(name, _replaced(step)) for name, step in part.steps]
    if isinstance(part, ColumnTransformer):
        part.transformers_ = [(name, _replaced(step), columns) for name, step, columns in part.transformers_]
    return part


def _graph(scope, container):
    prefix, numbers = scope.get_unique_operator_name("mlrh"), count()

    def add_node(kind, inputs, outputs, **more):
        domain = more.pop("domain", "")
        version = OPSET if domain == "" else None
        container.add_node(kind, inputs, outputs, op_domain=domain, op_version=version, **more)

    def add_constant(tensor):
        if tensor.data_type == TensorProto.STRING:
            container.add_initializer(tensor.name, tensor.data_type, list(tensor.dims), list(tensor.string_data))
            return
        container.add_initializer(tensor.name, tensor.data_type, list(tensor.dims), tensor)

    return Graph(add_node, add_constant, lambda word: f"{prefix}_{word}_{next(numbers)}")


def _features(graph, inputs):
    """All inputs beside each other, in float64."""
    values = [graph.named(variable.full_name).number() for variable in inputs]
    return values[0] if len(values) == 1 else graph.concat(*values, axis=1)


def _scores(graph, X, classifier):
    """Scores (n_rows, n_labels) of features."""
    if hasattr(classifier, "coef_"):
        return X @ classifier.coef_.T.astype(np.float64) + classifier.intercept_.astype(np.float64)
    if classifier.kernel_map_ is not None:
        return _scores_of_cosines(graph, X, classifier)
    kernel = classifier.kernel
    if callable(kernel) or kernel not in KERNELS:
        raise ValueError(
            f"A kernel must be one of {', '.join(map(repr, sorted(KERNELS)))} to be exported to ONNX; got {kernel!r}."
        )
    values = KERNELS[kernel](graph, X, classifier)
    return values @ classifier.dual_coef_.T.astype(np.float64) + classifier.intercept_.astype(np.float64)


def _scores_of_cosines(graph, X, classifier):
    """Scores by an RBFSampler, whose features are sqrt(2 / n_components) cos(X @ weights + offset)."""
    kernel_map = classifier.kernel_map_
    inner = X @ np.asarray(kernel_map.random_weights_, np.float64) + np.asarray(kernel_map.random_offset_, np.float64)
    # The factor within the constant: onnxruntime rounds a factor of a whole product to float32.
    coef = np.sqrt(2.0 / kernel_map.n_components) * classifier.dual_coef_.T.astype(np.float64)
    return graph.node("Cos", inner) @ coef + classifier.intercept_.astype(np.float64)


def _fitted_rows(classifier):
    rows = classifier.X_fit_
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float64)


def _rbf(graph, X, classifier):
    """exp(-gamma |x - z|^2), by |x|^2 - 2 x z + |z|^2, which rounding may bring below 0."""
    rows = _fitted_rows(classifier)
    squares = (X * X).sum(1, keepdims=True) + np.square(rows).sum(axis=1)
    distances = graph.maximum(squares - X @ (2.0 * rows.T), 0.0)
    return (distances * -float(classifier._gamma)).exp()


def _poly(graph, X, classifier):
    # gamma within the constant: onnxruntime rounds a factor of a whole product to float32.
    inner = X @ (float(classifier._gamma) * _fitted_rows(classifier).T) + float(classifier.coef0)
    return graph.node("Pow", inner, float(classifier.degree))


KERNELS = {
    "linear": lambda graph, X, classifier: X @ _fitted_rows(classifier).T,
    "poly": _poly,
    "precomputed": lambda graph, X, classifier: X.take(np.asarray(classifier.support_), 1),
    "rbf": _rbf,
}


def _answers(about, scores):
    """The values of all outputs by name, from the scores of each member."""
    graph, usable = scores[0].graph, _usable(about, scores)
    distribution = _distribution(about, [graph.where(usable, own, 0.0) for own in scores])
    sets = _decided(about, distribution)
    probability = _confidence(about, graph.minimum(distribution.log_prob(sets), 0.0).exp())
    probability, marginals, sizes = (
        graph.where(usable, own, np.nan) for own in (probability, distribution.marginals, distribution.sizes)
    )
    is_answered, answered = usable, {}
    if about.refuse_below > 0:
        is_answered = probability >= about.refuse_below
        answered["answered"] = is_answered.cast(INT64).squeeze(1)
    is_one_of_two = about.form.is_one_class_per_row and len(about.form.classes) == 2
    return {
        "label": _label(about.form, sets * is_answered.number()),
        "probabilities": sizes if is_one_of_two else marginals,
        "set_probability": probability.squeeze(1),
        "sizes": sizes,
        "scores": scores[0],
        **answered,
    }


def _usable(about, scores):
    """Whether all scores of a row are numbers for which the graph is right, (n_rows, 1).

    The classifiers refuse NaN and scores that are too large. A graph can't, and within it NaN would become a place in
    an array, at which a runtime fails for all rows.
    """
    spaces = [member.classifier.label_space_ for member in about.members]
    largest = largest_score(spaces[0]) if len(spaces) == 1 else LARGEST_IN_FLOATS
    fits = scores[0].graph.concat(*scores, axis=1).abs() <= largest
    return fits.number().sum(1, keepdims=True) >= float(sum(space.n_labels for space in spaces))


def _distribution(about, scores):
    spaces, temperature = [member.classifier.label_space_ for member in about.members], about.temperature
    if len(spaces) == 1:
        (space,), (own,) = spaces, scores
        return in_graph(space.temper(temperature), own / temperature) if temperature != 1 else in_graph(space, own)
    members = [in_graph(space, own) for space, own in zip(spaces, scores, strict=True)]
    return pooled(members, about.weights, is_mixture=about.is_mixture, temperature=temperature)


def _decided(about, distribution):
    """The sets that the model answers with, as `mlrh.decisions` has them."""
    if about.thresholds is not None:
        return (distribution.marginals > about.thresholds).number()
    if about.form.is_one_class_per_row:
        return distribution.mode
    decision, n = about.decision, distribution.n_labels
    low, high = (None, None) if about.answer_sizes is None else about.answer_sizes
    low, high = 0 if low is None else int(low), n if high is None else min(int(high), n)
    if decision == "exact_match":
        return _exact_match(distribution, low, high)
    if decision == "hamming":
        above = (distribution.marginals > 0.5 * (1 + TIE)).number()  # rounding takes no label of 1/2
        return above if (low, high) == (0, n) else distribution.likeliest(_clipped(above, low, high))
    if isinstance(decision, tuple):
        counts = distribution.scores.columns(0, 1) * 0.0 + float(np.clip(decision[1], low, high))
        return distribution.likeliest(counts.cast(INT64))
    if decision == "f1":
        return distribution.best_f1((low, high))
    return distribution.best(metric_function(decision, n), (low, high))


def _exact_match(distribution, low, high):
    least, most = distribution.space.sizes()
    if low <= least and most <= high:
        return distribution.mode
    sets = distribution.mode_within(low, high)
    # Where no answer can be right: the likeliest labels, as many as in the most probable set or as the limits allow.
    return distribution.likeliest(_clipped(distribution.mode, low, high)) if sets is None else sets


def _clipped(sets, low, high):
    """Numbers of labels of sets, brought within limits, (n_rows, 1)."""
    graph, counts = sets.graph, sets.sum(1, keepdims=True)
    return graph.minimum(graph.maximum(counts, float(low)), float(high)).cast(INT64)


def _confidence(about, probability):
    """The probability that the answer is right, (n_rows, 1), as CalibratedSets gives it."""
    if about.inside_share != 1:
        probability = probability * about.inside_share
    if about.regression is None:
        return probability
    # A piecewise linear function: every piece adds its slope times how far one is into it.
    x, y = (
        np.asarray(values, np.float64) for values in (about.regression.X_thresholds_, about.regression.y_thresholds_)
    )
    if len(x) == 1:
        return probability * 0.0 + y[0]
    graph, width = probability.graph, np.diff(x)
    into = graph.minimum(graph.maximum(probability - x[:-1], 0.0), width)
    return (into * (np.diff(y) / width)).sum(1, keepdims=True) + y[0]


def _label(form, sets):
    """Sets as integers (n_rows, n_labels); for one class per row, the classes (n_rows,)."""
    graph = sets.graph
    if not form.is_one_class_per_row:
        return sets.cast(INT64)
    places = sets.squeeze(1).cast(INT64) if len(form.classes) == 2 else sets.argmax(1).squeeze(1)
    if form.classes.dtype.kind in "iub":
        return graph.value(form.classes.astype(np.int64)).take(places, 0)
    return graph.text(form.classes).take(places, 0)
