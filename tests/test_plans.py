"""Tasks: the folds all methods share, and what makes a result on record out of date."""

import json
from dataclasses import replace

import numpy as np
import pytest
from experiment_samples import TINY, TINY_GRID, small_dataset, tiny_grids  # noqa: F401
from scipy import sparse
from sklearn.model_selection import KFold

from mlrh.data import load_digit_scenes
from mlrh.estimators._grids import GRIDS
from mlrh.experiments import _methods as methods
from mlrh.experiments import _protocol as plans
from mlrh.experiments._reproduce import digit_scenes, multiclass_datasets

pytestmark = pytest.mark.usefixtures("tiny_grids")


def test_outer_folds_are_those_of_a_shuffled_kfold():
    dataset = small_dataset()
    for fold, (train, test) in enumerate(KFold(5, shuffle=True, random_state=3).split(dataset.data.X)):
        ours = dataset.split(5, 3, fold)
        np.testing.assert_array_equal(ours[0], train)
        np.testing.assert_array_equal(ours[1], test)


def test_folds_of_digit_scenes_train_on_the_train_part_and_test_each_scene_of_the_test_part_once():
    dataset = digit_scenes()
    tested = []
    for fold in range(5):
        train, test = dataset.split(5, 0, fold)
        np.testing.assert_array_equal(dataset.data.X[train], load_digit_scenes(1000, part="train").X[train])
        tested += test.tolist()
    assert sorted(tested) == list(range(1000, 1500))


def test_every_family_has_a_task_on_every_fold_of_every_seed_and_no_key_twice():
    profile = replace(TINY, seeds=(0, 7))
    tasks = plans.nested_tasks(small_dataset(), profile)
    assert {(t.family, t.seed, t.fold) for t in tasks} == {
        (family, seed, fold) for family in methods.FAMILIES for seed in (0, 7) for fold in range(5)
    }
    keys = [key for task in tasks for key in task.keys]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("make_sparse", [False, True])
def test_changed_data_make_another_plan(make_sparse):
    def plan(change):
        dataset = small_dataset()
        X = dataset.data.X.copy()
        X[5, 1] += change
        data = replace(dataset.data, X=sparse.csr_array(X) if make_sparse else X)
        return plans.nested_tasks(replace(dataset, data=data), TINY)[0].plan

    assert plan(0.0) == plan(0.0) != plan(1e-9)


def test_columns_that_turn_nominal_make_another_plan():
    dataset = small_dataset()
    nominal = replace(dataset, data=replace(dataset.data, categories={"x1": ("a", "b")}))
    assert dataset.digest() != nominal.digest()
    assert dataset.digest() != replace(dataset, n_train_only=30).digest()


def test_another_grid_or_number_of_inner_folds_makes_another_plan(monkeypatch):
    before = plans.nested_tasks(small_dataset(), TINY)
    assert before[0].plan != plans.nested_tasks(small_dataset(), replace(TINY, inner_folds=3))[0].plan
    monkeypatch.setitem(GRIDS, "tiny", {**TINY_GRID, "rbf": {"C": (1.0, 10.0), "gamma": (0.3,)}})
    after = plans.nested_tasks(small_dataset(), TINY)
    changed = {b.family for b, a in zip(before, after, strict=True) if a.plan != b.plan}
    assert changed == {family for family, found in methods.FAMILIES.items() if found.grid == "rbf"}


def test_the_papers_tuning_takes_the_setting_with_the_best_mean_of_br_svm_over_the_folds():
    dataset = small_dataset()
    records = [
        {
            **{"plan": task.plan, "dataset": task.dataset, "protocol": task.protocol, "method": task.methods[0]},
            **{"seed": task.seed, "fold": task.fold},
            # Fold 0 alone prefers gamma 0.3 and C 10, the mean prefers gamma 1 and C 1.
            "scores": [[0.1, 0.9], [0.6, 0.1]] if task.fold == 0 else [[0.1, 0.2], [0.6, 0.1]],
        }
        for task in plans.paper_search_tasks(dataset, TINY)
    ]
    tasks = plans.paper_tasks(dataset, TINY, records)
    settings = {task.family: json.loads(task.settings) for task in tasks}
    both = {"C": 1.0, "gamma": 1.0}
    assert settings == {"mlrh-rbf": [both, both], "br-svm": [both], "lp-lr": [{"estimator__C": 1.0}]}
    assert plans.paper_tasks(dataset, TINY, records[:-1]) == []


def test_iris_and_wine_have_the_classes_as_single_labels():
    for dataset in multiclass_datasets():
        assert (dataset.data.Y.sum(axis=1) == 1).all()
        assert dataset.data.Y.shape[1] == 3
