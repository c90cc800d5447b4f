"""Names that the documentation of 0.1 had elsewhere are found there, with a warning that names the new place."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "old, name, new",
    [
        ("mlrh.tagging", "serve", "mlrh.web"),
        ("mlrh.tagging", "known_of", "mlrh.web"),
        ("mlrh.label_space", "CardinalitySpace", "mlrh.spaces"),
        ("mlrh.label_space", "ObservedSpace", "mlrh.spaces"),
        ("mlrh.calibration", "CalibratedSets", "mlrh"),
        ("mlrh.calibration", "isotonic_map", "mlrh.estimators.calibration"),
        ("mlrh.thresholds", "TunedThresholds", "mlrh"),
        ("mlrh.selection", "MLRHClassifierCV", "mlrh"),
        ("mlrh.selection", "KernelMLRHClassifierCV", "mlrh"),
        ("mlrh.selection", "log_prob", "mlrh.estimators.cv"),
    ],
)
def test_an_old_place_gives_the_same_object_and_names_the_new_place(old, name, new):
    with pytest.warns(DeprecationWarning, match=rf"^{old}\.{name} is now {new}\.{name}; ") as told:
        namespace = {}
        exec(f"from {old} import {name}", {"__name__": "user"}, namespace)
    assert namespace[name] is getattr(import_module(new), name)
    assert len(told) == 1 and told[0].filename == "<string>"


def test_a_name_that_never_was_there_is_an_import_error():
    with pytest.raises(ImportError, match="cannot import name 'nothing' from"):
        exec("from mlrh.tagging import nothing")
