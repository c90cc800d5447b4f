"""The parts of scikit-learn without a public name are where mlrh looks for them, in the installed version."""

from importlib import import_module
from inspect import signature

import pytest
import sklearn
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from test_private_parts import PRIVATE

import mlrh

PARTS = [
    ("sklearn.base", "_fit_context", {"prefer_skip_nested_validation"}),
    ("sklearn.utils", "_safe_indexing", {"X", "indices"}),
    ("sklearn.utils._param_validation", "HasMethods", {"methods"}),
    ("sklearn.utils._param_validation", "Interval", {"type", "left", "right", "closed"}),
    ("sklearn.utils._param_validation", "StrOptions", {"options"}),
    (
        "sklearn.utils._param_validation",
        "validate_parameter_constraints",
        {"parameter_constraints", "params", "caller_name"},
    ),
    ("sklearn.utils.metaestimators", "_safe_split", {"estimator", "X", "y", "indices", "train_indices"}),
    ("sklearn.utils.validation", "_check_sample_weight", {"sample_weight", "X", "dtype", "ensure_non_negative"}),
    ("sklearn.utils.validation", "_num_samples", {"x"}),
]


@pytest.mark.parametrize(("module", "name", "parameters"), PARTS)
def test_a_private_part_is_where_it_was_and_takes_what_it_took(module, name, parameters):
    part = getattr(import_module(module), name, None)
    where = f"scikit-learn {sklearn.__version__}: {module}.{name}, which mlrh._sklearn uses,"
    assert part is not None, f"{where} has gone"
    missing = parameters - signature(part).parameters.keys()
    assert not missing, f"{where} no longer takes {sorted(missing)}"


def test_no_private_part_is_left_out_of_the_table():
    assert {f"{module}.{name}" for module, name, _ in PARTS} == {
        name for name in PRIVATE if name.startswith("sklearn.")
    }


def test_estimators_check_parameters_by_the_constraints_of_their_class():
    assert callable(getattr(BaseEstimator, "_validate_params", None)), "BaseEstimator._validate_params has gone"
    with pytest.raises(ValueError, match="'C' parameter of MLRHClassifier"):
        mlrh.MLRHClassifier(C="much").fit([[0.0], [1.0]], [[0, 1], [1, 0]])


@pytest.mark.parametrize("search", [GridSearchCV, RandomizedSearchCV])
def test_searches_are_known_by_two_parameters(search):
    assert {"refit", "error_score"} <= signature(search).parameters.keys()


def test_weights_that_are_all_zero_are_refused_by_every_version():
    with pytest.raises(ValueError, match="at least one non-zero number"):
        mlrh.MLRHClassifier().fit([[0.0], [1.0]], [[0, 1], [1, 0]], sample_weight=[0, 0])


def test_callbacks_keep_the_names_that_a_fit_calls():
    callback = pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    model = mlrh.MLRHClassifier().set_callbacks(callback.ProgressBar())
    assert hasattr(model, "_skl_callbacks"), "CallbackSupportMixin._skl_callbacks has gone"
    assert {"max_subtasks"} <= signature(model._init_callback_context).parameters.keys()
