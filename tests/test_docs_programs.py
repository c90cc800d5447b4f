"""The programs that made the tables of the pages still run; here on a few rows of the built-in data."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlrh.data import load_digit_scenes

DOCS = Path(__file__).parents[1] / "docs"
TRAIN, TEST = np.arange(80), np.arange(80, 100)


def few_rows(*_):
    data = load_digit_scenes(100, part="train")
    Y = data.Y[:, :4].copy()
    Y[Y.sum(axis=1) == 0, 0] = 1
    return replace(
        data, X=data.X[:, 20:36], Y=Y, feature_names=data.feature_names[20:36], label_names=data.label_names[:4]
    )


def program(path, monkeypatch):
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), DOCS / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "load", few_rows)
    return module


@pytest.mark.parametrize("kernel", ["linear", "RBF"])
def test_confidence_is_measured_at_a_setting_of_the_grid(kernel, monkeypatch):
    module = program("confidence/compare", monkeypatch)
    rows, right, confidence, (temperature, C) = module.answers(few_rows(), kernel, "observed", TRAIN, TEST)
    assert rows is TEST and len(right) == len(TEST) and temperature > 0 and C in module.CS[kernel]
    assert confidence.keys() == set(module.METHODS)
    assert all(((own >= 0) & (own <= 1)).all() for own in confidence.values())


@pytest.mark.parametrize("kernel", ["linear", "RBF"])
def test_unknown_labels_are_measured_at_a_setting_of_the_grid(kernel, monkeypatch):
    module = program("unknown-labels/compare", monkeypatch)
    measures, C = module.measured("few", kernel, module.BASELINE, 0)
    assert C in module.CS[kernel] and measures["set_log_loss"] < np.log(2**4)


def test_gains_of_decisions_are_measured(monkeypatch):
    module = program("decisions/gains", monkeypatch)
    measures = module.measured("few", "observed", 0)
    assert measures["f1"]["f1_example"] >= measures["hamming"]["f1_example"]


def test_rules_of_selection_are_measured_for_every_setting(monkeypatch):
    module = program("automatic/selecting", monkeypatch)
    data = few_rows()
    losses = np.array(module.losses(data.X, data.Y, [(TRAIN, TEST)]))
    assert losses.shape == (21, 3)
    assert losses[:, 0].min() < np.log(2**4) and (losses[:, 2] <= losses[:, 1]).all()


@pytest.mark.parametrize("name", ["boosted", "kernel, boosted and forest"])
def test_diversity_of_pools_is_measured(name, monkeypatch):
    module = program("pools/diversity", monkeypatch)
    members = {**module.SINGLE, **module.POOLS}[name]
    right, wrong, loss = module.measured(members, {"weights": "equal"}, TRAIN, TEST).T
    assert set(right) <= {0, 1} and wrong.mean() < 0.5 and loss.mean() < np.log(2**4)


def test_the_penalty_and_bins_of_boosted_trees_are_measured(monkeypatch):
    module = program("boosted-trees/defaults", monkeypatch)
    data = few_rows()
    loss, exact, seconds = module.figures(data.X, data.Y, {**module.SETTINGS["1, 256 bins"], "n_estimators": 20})
    assert loss < np.log(2**4) and 0 < exact < 1 and seconds > 0
