"""Fits with default settings converge, without a warning (which would be an error here), on real and built-in data."""

import os

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import KernelMLRHClassifier, MLRHClassifier
from mlrh.data import load, load_digit_scenes

CLASSIFIERS = [
    classifier(label_space=label_space)
    for classifier in (MLRHClassifier, KernelMLRHClassifier)
    for label_space in ("cardinality", "observed")
] + [MLRHClassifier(size_bias=True), MLRHClassifier(solver="newton-cg"), MLRHClassifier(solver="mm", max_iter=5000)]


def read_emotions(part):
    if not os.environ.get("MLRH_DATA"):
        pytest.skip("set MLRH_DATA to a folder with the public data sets to test on emotions")
    data = load("emotions", part)
    return data.X, data.Y


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=str)
def test_emotions_converges_and_beats_the_most_frequent_set(classifier):
    X, Y = read_emotions("train")
    X_test, Y_test = read_emotions("test")
    model = make_pipeline(StandardScaler(), classifier).fit(X, Y)
    sets, counts = np.unique(Y, axis=0, return_counts=True)
    frequent = (Y_test == sets[counts.argmax()]).all(axis=1).mean()
    assert model.score(X_test, Y_test) > frequent + 0.05


@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=str)
def test_digit_scenes_converge_and_beat_the_most_frequent_set(classifier):
    train, test = load_digit_scenes(400, part="train"), load_digit_scenes(200, part="test")
    model = make_pipeline(StandardScaler(), classifier).fit(train.X, train.Y)
    assert model.score(test.X, test.Y) > 0.1  # the most frequent of the 10 single digits makes up 4%
