"""Models for the tests of exports: classifiers whose scores are their features, and answers of an ONNX model."""

from copy import copy
from dataclasses import replace
from functools import cache

import numpy as np
import onnxruntime
import skl2onnx
from scipy import sparse

import mlrh.export
from mlrh import MLRHClassifier


def classifier_of(space, **options):
    """A classifier that takes its features for scores, with a label space."""
    classifier = copy(_fitted())
    n_labels = space.n_labels
    classifier.coef_, classifier.intercept_, classifier.label_space_ = np.eye(n_labels), np.zeros(n_labels), space
    classifier._targets = replace(classifier._targets, classes=np.arange(n_labels))
    classifier.classes_, classifier.n_features_in_ = classifier._targets.classes, n_labels
    return classifier.set_params(**options)


@cache
def _fitted():
    return MLRHClassifier().fit(np.array([[0.0, 1.0], [1.0, 0.0]]), sparse.csr_array([[0, 1], [1, 0]]))


def answers_of(model, X):
    """What the exported model answers, by name of the output."""
    return run(skl2onnx.to_onnx(model, X[:1]), {"X": X})


def run(exported, inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(exported.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


__all__ = ["answers_of", "classifier_of", "mlrh", "run"]
