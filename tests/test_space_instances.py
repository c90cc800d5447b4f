"""A label space given as an instance says how many labels there are; their names come from all rows of y."""

import numpy as np
import pytest
from samples import make_multilabel
from sklearn.model_selection import KFold

from mlrh import KernelMLRHClassifier, MLRHClassifier, MLRHClassifierCV
from mlrh.spaces import CardinalitySpace, ObservedSpace

X, Y = make_multilabel(60, n_labels=3, max_labels=2)
Y[:, 2] = np.arange(60) == 7  # the third label is in one row only
Y[7, :2] = [1, 0]
Y[Y.sum(axis=1) == 0, 0] = 1
SETS = [{"abc"[k] for k in np.flatnonzero(row)} for row in Y]
CLASSES = np.where(Y[:, 2] == 1, "c", np.where(Y[:, 0] == 1, "a", "b"))
ONE, ONE_HOT = CardinalitySpace(3, 1, 1), (CLASSES[:, None] == ["a", "b", "c"]).astype(int)
WEIGHTS = (np.arange(60) != 7).astype(float)
SPACES = {
    "sizes": CardinalitySpace(3, 1, 2),
    "sizes, learned": CardinalitySpace(3, 0, 3, learn_bias=True),
    "sets": ObservedSpace([[1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 1]]),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
undetermined = pytest.mark.filterwarnings("ignore:The training rows don't determine:UserWarning")


@every_space
@pytest.mark.parametrize("classifier", [MLRHClassifier, KernelMLRHClassifier])
@undetermined
def test_a_label_that_only_rows_of_weight_zero_have_is_a_label_of_the_space(space, classifier):
    fitted, by_matrix = (classifier(label_space=space).fit(X, y, WEIGHTS) for y in (SETS, Y))
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(fitted.predict_proba(X), by_matrix.predict_proba(X))
    assert fitted.predict_proba(X)[:, 2].max() < 1e-3


@every_space
@undetermined
def test_a_label_that_a_fold_lacks_is_a_label_of_the_space(space):
    by_set, by_matrix = (
        MLRHClassifierCV(Cs=[0.1, 1.0], cv=3, scoring="log_prob", label_space=space).fit(X, y) for y in (SETS, Y)
    )
    np.testing.assert_array_equal(by_set.scores_, by_matrix.scores_)
    assert by_set.classes_.tolist() == ["a", "b", "c"]


@undetermined
def test_a_class_that_only_rows_of_weight_zero_have_is_a_class_of_the_space():
    by_class, by_matrix = (MLRHClassifier(label_space=ONE).fit(X, y, WEIGHTS) for y in (CLASSES, ONE_HOT))
    assert by_class.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(by_class.predict_proba(X), by_matrix.predict_proba(X))


def test_a_class_that_a_fold_lacks_is_a_class_of_the_space():
    by_class, by_matrix = (
        MLRHClassifierCV(Cs=[0.1, 1.0], cv=KFold(3), label_space=ONE).fit(X, y) for y in (CLASSES, ONE_HOT)
    )
    assert by_class.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(by_class.scores_, by_matrix.scores_)


@pytest.mark.parametrize("name", ["cardinality", "observed"])
def test_a_space_by_name_still_has_the_labels_of_the_rows_that_count(name):
    assert MLRHClassifier(label_space=name).fit(X, SETS, WEIGHTS).classes_.tolist() == ["a", "b"]


def test_rows_of_positive_weight_without_any_label_are_one_clear_error():
    with pytest.raises(ValueError, match="y must hold a label in some row of positive weight"):
        MLRHClassifier().fit(X[:3], [{"a"}, set(), set()], sample_weight=[0, 1, 1])


def test_a_y_that_shows_fewer_labels_than_the_space_has_is_an_error_that_says_both():
    with pytest.raises(ValueError, match="The label space has 3 labels and y has 2"):
        MLRHClassifier(label_space=CardinalitySpace(3, 1, 2)).fit(X[8:], SETS[8:])
