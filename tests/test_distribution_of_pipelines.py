"""mlrh.distribution asks the classifier inside any pipeline; a Model of `mlrh fit` answers with names."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from samples import make_multilabel
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mlrh
from mlrh import (
    CalibratedSets,
    KernelMLRHClassifier,
    MLRHAuto,
    MLRHBoostingClassifier,
    MLRHClassifier,
    MLRHClassifierCV,
    PooledSets,
    TunedThresholds,
    persistence,
)
from mlrh.automatic import choose
from mlrh.data import MultilabelData

X, Y = make_multilabel(60, n_features=4, n_labels=3)
NEW = X[:7] + 0.1
SCALER = StandardScaler().fit(X)
LINEAR = MLRHClassifier(C=0.5)


def alone(classifier):
    """The distribution of the classifier itself, of rows that were scaled by hand."""
    return classifier.fit(SCALER.transform(X), Y).distribution(SCALER.transform(NEW))


@pytest.mark.parametrize(
    "classifier",
    [
        LINEAR,
        KernelMLRHClassifier(C=3.0),
        MLRHClassifierCV(Cs=[0.1, 1.0], cv=2),
        MLRHBoostingClassifier(n_estimators=3, random_state=0, n_jobs=1),
        CalibratedSets(LINEAR, cv=2),
        PooledSets([("a", LINEAR), ("b", KernelMLRHClassifier())], weights="equal"),
        MLRHAuto(scores="linear", label_space="cardinality", cv=2, time_budget=None, n_jobs=1),
    ],
    ids=lambda classifier: type(classifier).__name__,
)
def test_the_distribution_of_a_pipeline_is_that_of_its_classifier(classifier):
    expected = alone(classifier).marginals()
    pipeline = make_pipeline(StandardScaler(), classifier).fit(X, Y)
    np.testing.assert_allclose(mlrh.distribution(pipeline, NEW).marginals(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        mlrh.distribution(FrozenEstimator(pipeline), NEW).marginals(), expected, rtol=0, atol=1e-12
    )


def test_pipelines_searches_and_meta_classifiers_may_be_nested():
    pipeline = make_pipeline(StandardScaler(), LINEAR)
    expected = alone(LINEAR).log_prob(Y[:7])
    search = GridSearchCV(make_pipeline("passthrough", pipeline), {"passthrough": ["passthrough"]}, cv=2)
    for model in (search, TunedThresholds(pipeline, cv=2), make_pipeline(TunedThresholds(search, cv=2))):
        found = mlrh.distribution(model.fit(X, Y), NEW).log_prob(Y[:7])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_calibrated_thresholds_are_calibrated_by_the_joint_distribution():
    thresholds = TunedThresholds(LINEAR, cv=2)
    calibrated = CalibratedSets(thresholds, cv=2).fit(X, Y)
    tempered = MLRHClassifier(C=0.5).fit(X, Y).distribution(NEW).temper(calibrated.temperature_)
    np.testing.assert_allclose(calibrated.distribution(NEW).prob(Y[:7]), tempered.prob(Y[:7]), atol=1e-12)
    np.testing.assert_array_equal(calibrated.predict(NEW), thresholds.fit(X, Y).predict(NEW))


def test_an_automatic_choice_is_asked_as_a_whole_so_that_it_can_convert_its_rows():
    frame = pd.DataFrame({"size": X[:, 0], "colour": pd.Categorical(np.where(X[:, 1] > 0, "red", "blue"))})
    auto = MLRHAuto(scores="linear", label_space="cardinality", cv=2, time_budget=None, n_jobs=1).fit(frame, Y)
    found = mlrh.distribution(make_pipeline("passthrough", auto), frame).marginals()
    np.testing.assert_array_equal(found, auto.predict_proba(frame))


@pytest.mark.parametrize(
    "model",
    [
        OneVsRestClassifier(LogisticRegression()),
        CalibratedSets(LINEAR, method="isotonic", cv=2),
        TunedThresholds(OneVsRestClassifier(LogisticRegression()), cv=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_without_a_distribution_is_refused_in_a_sentence(model):
    with pytest.raises(ValueError, match="must end in a classifier that has a distribution of label sets"):
        mlrh.distribution(model.fit(X, Y), NEW)


@pytest.mark.parametrize("model", [make_pipeline(StandardScaler(), LINEAR), GridSearchCV(LINEAR, {"C": [1.0]})])
def test_a_model_that_is_not_fitted_is_said_to_be_so(model):
    with pytest.raises(NotFittedError):
        mlrh.distribution(model, NEW)


DATA = MultilabelData(X, Y, ("w", "x", "y", "z"), ("red", "round", "soft; warm"), "things")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model as it comes from a file."""
    place = tmp_path_factory.mktemp("models") / "things.mlrh"
    persistence.save(choose(DATA, scores="linear", label_space="cardinality", n_folds=2, n_jobs=1), place)
    return persistence.load(place)


def test_a_loaded_model_names_its_labels_and_has_their_marginals(model):
    assert model.classes_.tolist() == ["red", "round", "soft; warm"]
    marginals = model.predict_proba(DATA)
    assert isinstance(marginals, np.ndarray)
    np.testing.assert_array_equal(marginals, model.distribution(DATA).marginals())
    np.testing.assert_array_equal(marginals, model.classifier.predict_proba(X))
    np.testing.assert_array_equal(mlrh.distribution(model, DATA).marginals(), marginals)


def test_rows_of_a_pandas_frame_are_answered_by_one_with_their_index(model):
    frame = pd.DataFrame(X, columns=list(DATA.feature_names), index=[f"thing {i}" for i in range(60)])
    for answer, expected in (
        (model.predict(frame), model.predict(DATA)),
        (model.predict_proba(frame), model.predict_proba(DATA)),
    ):
        assert isinstance(answer, pd.DataFrame) and answer.index.equals(frame.index)
        assert list(answer.columns) == ["red", "round", "soft; warm"] and set(answer.dtypes) == {expected.dtype}
        np.testing.assert_array_equal(answer.to_numpy(), expected)


def test_rows_of_a_polars_frame_are_answered_by_one(model):
    frame = pl.DataFrame(X, schema=list(DATA.feature_names), orient="row")
    for answer, expected in (
        (model.predict(frame), model.predict(DATA)),
        (model.predict_proba(frame), model.predict_proba(DATA)),
    ):
        assert isinstance(answer, pl.DataFrame) and answer.columns == ["red", "round", "soft; warm"]
        np.testing.assert_array_equal(answer.to_numpy(), expected)
