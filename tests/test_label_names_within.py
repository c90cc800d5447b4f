"""Label spaces that name their labels, inside classifiers that hand on arrays."""

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlrh import CalibratedSets, MLRHClassifier, PooledSets, TunedThresholds
from mlrh.spaces import GroupSpace, HierarchySpace, Mixture

NAMES = ["red", "blue", "wood", "steel"]
BY_NAME, BY_INDEX = GroupSpace([(["red", "blue"], 1, 1)]), GroupSpace([([0, 1], 1, 1)])


def rows(n=80):
    X = np.random.RandomState(0).normal(size=(n, 3))
    red, rest = X[:, 0] > 0, X[:, 1:] + np.random.RandomState(1).normal(size=(n, 2)) > 0
    return X, np.column_stack([red, ~red, rest]).astype(int)


AROUND = {
    "calibrated": lambda model: CalibratedSets(model, cv=2),
    "thresholds": lambda model: TunedThresholds(model, cv=2),
    "pool": lambda model: PooledSets([("one", model), ("other", model)], weights="equal"),
    "pipeline": lambda model: CalibratedSets(make_pipeline(StandardScaler(), model), cv=2),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_names_of_columns_are_resolved_as_indices_are(around):
    X, Y = rows()
    named = around(MLRHClassifier(label_space=BY_NAME)).fit(X, pd.DataFrame(Y, columns=NAMES))
    given = around(MLRHClassifier(label_space=BY_INDEX)).fit(X, Y)
    np.testing.assert_array_equal(named.predict_proba(X), given.predict_proba(X))
    np.testing.assert_array_equal(named.predict(X)[NAMES].to_numpy(), given.predict(X))


def test_names_in_label_sets_are_resolved_and_the_estimator_stays_as_it_is():
    X, Y = rows()
    sets = [{NAMES[k] for k in np.flatnonzero(y)} for y in Y]
    estimator = MLRHClassifier(label_space=HierarchySpace({"steel": "wood"}, complete=True))
    model = TunedThresholds(estimator, cv=2).fit(X, sets)
    assert all("wood" in answer for answer in model.predict(X) if "steel" in answer)
    assert repr(estimator.label_space) == repr(HierarchySpace({"steel": "wood"}, complete=True))


def test_a_label_that_only_rows_of_weight_0_have_stays_a_label_of_the_space():
    X, Y = rows()
    sets = [{NAMES[k] for k in np.flatnonzero(y)} for y in Y]
    sets[0] = {"red", "gold"}
    space = GroupSpace([(["red", "blue"], 1, 1), (["gold", "steel"], 0, 2)])
    weights = np.r_[0.0, np.ones(len(X) - 1)]
    with pytest.warns(UserWarning, match="absent from every training row: label 1"):  # nothing is to be learned of it
        model = CalibratedSets(MLRHClassifier(label_space=space), cv=2).fit(X, sets, sample_weight=weights)
    assert model.classes_.tolist() == ["blue", "gold", "red", "steel", "wood"]


def test_a_name_that_y_lacks_is_an_error_that_says_so():
    X, Y = rows()
    space = GroupSpace([(["red", "green"], 1, 1)])
    with pytest.raises(ValueError, match="names the label 'green', which y doesn't have"):
        CalibratedSets(MLRHClassifier(label_space=space)).fit(X, pd.DataFrame(Y, columns=NAMES))


def test_paths_are_found_by_name_whatever_the_order_of_the_labels_of_y():
    X, Y = rows()
    Y[:, 2] |= Y[:, 3]
    frame = pd.DataFrame(Y, columns=["b", "c", "a", "a/d"])
    space = HierarchySpace.from_paths(["a", "a/d", "b", "c"])
    model = MLRHClassifier(label_space=space).fit(X, frame)
    assert model.label_space_.parents.tolist() == [-1, -1, -1, 2]
    sorted_names = MLRHClassifier(label_space=HierarchySpace.from_paths(["b", "c", "a/d", "a"])).fit(
        X, [{name for name, is_there in zip(frame.columns, row, strict=True) if is_there} for row in Y]
    )
    assert sorted_names.label_space_.parents.tolist() == [-1, 0, -1, -1]  # of a, a/d, b, c
    assert MLRHClassifier(label_space=space).fit(X, Y[:, [2, 3, 0, 1]]).label_space_.parents.tolist() == [-1, 0, -1, -1]
    with pytest.raises(ValueError, match="names the label 'c', which y doesn't have"):
        MLRHClassifier(label_space=space).fit(X, frame.rename(columns={"c": "e"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HierarchySpace.from_paths([1, 2]), "Paths must be label names, such as 'animal/dog'; got 1"),
        (lambda: HierarchySpace.from_paths(["a", "b", "a"]), "Paths must be distinct; got 'a' twice"),
        (lambda: GroupSpace([("red", 1, 1)]), "all of one kind; got the string 'red'"),
    ],
)
def test_an_error_shows_what_was_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_mixture_says_that_its_members_have_the_spaces_and_scores():
    d = Mixture([HierarchySpace([-1, 0]).distribution([[0.0, 1.0]])], [1.0])
    for name in ("space", "scores"):
        with pytest.raises(AttributeError, match="only those of its members"):
            getattr(d, name)
