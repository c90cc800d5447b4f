"""Boosted trees in model files: the same answers after loading, and nothing handed to XGBoost that isn't a tree."""

import json
import sys
from copy import deepcopy
from functools import cache
from random import Random

import numpy as np
import pandas as pd
import pytest
from fuzz._limits import Worker
from samples import one_sentence

from mlrh import MLRHBoostingClassifier
from mlrh._archives import Budget, Refused
from mlrh._fitted import checked_booster
from mlrh.persistence import ModelFileError, load, save

RNG = np.random.default_rng(0)
X = pd.DataFrame({"size": RNG.normal(size=80), "colour": pd.Categorical(RNG.choice(list("abcdefgh"), 80))})
Y = np.column_stack([X["size"] > 0, X["colour"].isin(["a", "c", "h"]), RNG.random(80) < 0.5]).astype(int)


@cache
def model():
    options = {"n_estimators": 4, "max_depth": 3, "random_state": 0, "n_jobs": 1}
    return MLRHBoostingClassifier(early_stopping_rounds=5, **options).fit(X, Y)


@cache
def text():
    return json.loads(model().booster_.save_raw("json"))


def as_bytes(booster):
    return np.frombuffer(json.dumps(booster).encode(), np.uint8)


def trees(booster):
    return booster["learner"]["gradient_booster"]["model"]["trees"]


def place_of(tree, *, kind):
    """The number of a node that splits by a number (kind 0) or by categories (kind 1)."""
    return next(i for i, left in enumerate(tree["left_children"]) if left != -1 and tree["split_type"][i] == kind)


def test_a_saved_model_answers_the_same_and_gives_the_same_trees(tmp_path):
    save(model(), tmp_path / "model.mlrh")
    loaded = load(tmp_path / "model.mlrh")
    np.testing.assert_array_equal(loaded.decision_function(X), model().decision_function(X))
    np.testing.assert_array_equal(loaded.predict(X), model().predict(X))
    np.testing.assert_array_equal(loaded.importances_by_label(), model().importances_by_label())
    np.testing.assert_array_equal(loaded.validation_history_, model().validation_history_)
    assert loaded.booster_.save_raw("json") == model().booster_.save_raw("json")
    # Of XGBoost's own threads, which wait by spinning, two took 40 ms for a row on busy cores in place of 0.3.
    assert json.loads(loaded.booster_.save_config())["learner"]["generic_param"]["nthread"] == "1"


def test_without_xgboost_a_file_says_what_to_install(tmp_path, monkeypatch):
    save(model(), tmp_path / "model.mlrh")
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ModelFileError, match=r'needs? XGBoost: pip install "xgboost>=2\.1"') as error:
        load(tmp_path / "model.mlrh")
    assert one_sentence(error)


def change_tree(key, value, place=None):
    def change(booster):
        tree = next(tree for tree in trees(booster) if tree["categories_nodes"])
        if place is None:
            tree[key] = value(tree) if callable(value) else value
        else:
            tree[key][place(tree) if callable(place) else place] = value

    return change


def change_learner(*keys, value):
    def change(booster):
        part = booster["learner"]
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    return change


def numeric(tree):
    return place_of(tree, kind=0)


def drop_tree(booster):
    trees(booster).pop()


WRONG = {
    "a child beyond the nodes": change_tree("left_children", 10**6, 0),
    "a child that is negative": change_tree("left_children", -2, 0),
    "a node that is its own child": change_tree("left_children", 0, 0),
    "two children that are one": change_tree("left_children", lambda tree: list(tree["right_children"])),
    "a leaf with one child": change_tree("right_children", -1, 0),
    "a parent that is another": change_tree("parents", 2, 1),
    "a feature beyond X": change_tree("split_indices", 2, 0),
    "a feature that is negative": change_tree("split_indices", -1, 0),
    "no features": change_tree("split_indices", []),
    "a number that is a list": change_tree("split_conditions", lambda tree: [[0.0] for _ in tree["split_type"]]),
    "a number that is text": change_tree("split_conditions", "1", 0),
    "a threshold that is no number": change_tree("split_conditions", float("nan"), numeric),
    "a weight beyond float32": change_tree("base_weights", 1e39, 0),
    "an array that is too short": change_tree("sum_hessian", lambda tree: tree["sum_hessian"][:-1]),
    "a kind of split that there isn't": change_tree("split_type", 7, 0),
    "categories of another node": change_tree("categories_nodes", [10**6]),
    "a category so large that it fills memory": change_tree("categories", 2**31 - 1, 0),
    "a category that is negative": change_tree("categories", -1, 0),
    "a segment beyond the categories": change_tree("categories_sizes", 10**6, 0),
    "a segment that begins elsewhere": change_tree("categories_segments", 10**6, 0),
    "more nodes than there are": change_tree("tree_param", lambda tree: {**tree["tree_param"], "num_nodes": "999"}),
    "leaves that are vectors": change_tree("tree_param", lambda tree: {**tree["tree_param"], "size_leaf_vector": "9"}),
    "a tree too few": drop_tree,
    "a key that XGBoost doesn't write": change_learner("more", value=1),
    "another booster": change_learner("gradient_booster", "name", value="dart"),
    "another objective": change_learner("objective", value={"name": "multi:softmax"}),
    "a label beyond the labels": change_learner("gradient_booster", "model", "tree_info", value=[9] * 12),
    "rounds that overlap": change_learner("gradient_booster", "model", "iteration_indptr", value=[0, 12, 3]),
    "a number of features that is none": change_learner("learner_model_param", "num_feature", value="-1"),
    "labels without end": change_learner("learner_model_param", "num_target", value="999999999"),
    "types of other features": change_learner("feature_types", value=["q"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_tree_of_a_fit_is_refused_before_xgboost_sees_it(name):
    booster = deepcopy(text())
    WRONG[name](booster)
    with pytest.raises(Refused, match="holds boosted trees that no fit makes"):
        checked_booster(as_bytes(booster), Budget(None))


def test_the_untouched_trees_are_not_refused():
    assert json.loads(checked_booster(as_bytes(text()), Budget(None))[0]) == text()


def test_a_key_that_is_given_twice_reaches_xgboost_once():
    data = json.dumps(text()).replace('"name": "gbtree"', '"name": "dart", "name": "gbtree"').encode()
    assert b"dart" not in checked_booster(np.frombuffer(data, np.uint8), Budget(None))[0]


def test_trees_that_would_take_more_memory_than_allowed_are_refused():
    with pytest.raises(Refused, match="would take more than 100000 bytes of memory"):
        checked_booster(as_bytes(text()), Budget(100_000))


def test_trees_of_another_number_of_labels_or_features_are_refused(tmp_path):
    two = deepcopy(model())
    two.booster_ = MLRHBoostingClassifier(n_estimators=4, n_jobs=1).fit(X, Y[:, :2]).booster_
    with pytest.raises(ModelFileError, match="boosted trees of another number of rounds or labels"):
        save(two, tmp_path / "model.mlrh")
    wide = deepcopy(model())
    wide.booster_ = MLRHBoostingClassifier(n_estimators=4, n_jobs=1).fit(RNG.normal(size=(80, 5)), Y).booster_
    with pytest.raises(ModelFileError, match="boosted trees of other features"):
        save(wide, tmp_path / "model.mlrh")


def fault_of(seed):
    """What is wrong with how XGBoost takes a model whose numbers were changed at random; None where all is well."""
    import xgboost

    random, booster = Random(seed), deepcopy(text())
    for _ in range(random.randint(0, 3)):
        tree = random.choice(trees(booster))
        values = tree[random.choice([key for key, value in tree.items() if isinstance(value, list) and value])]
        values[random.randrange(len(values))] = random.choice([-1, 0, 1, 2, 3, 7, 2**31 - 1, 0.5, -1e30, None])
    try:
        data, _ = checked_booster(as_bytes(booster), Budget(2**28))
    except Refused:
        return None
    rows = np.column_stack([X["size"], np.arange(80) % 9])
    matrix = xgboost.DMatrix(rows, feature_types=["q", "c"], enable_categorical=True, nthread=1)
    margins = xgboost.Booster(model_file=bytearray(data)).predict(matrix, output_margin=True)
    return None if margins.shape == (80, 3) else "margins of another shape"


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of time and memory are Linux's")
def test_what_is_not_refused_is_read_and_predicts_without_a_crash():
    with Worker(fault_of, [0], seconds=10, memory=2**30) as worker:
        assert [fault for fault in map(worker.fault, range(100)) if fault is not None] == []
