"""Multilabel logistic regression that is exact, joint and fast."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlrh.estimators import (
        CalibratedSets,
        KernelMLRHClassifier,
        KernelMLRHClassifierCV,
        MLRHAuto,
        MLRHBoostingClassifier,
        MLRHClassifier,
        MLRHClassifierCV,
        PooledSets,
        TunedThresholds,
        distribution,
    )

__all__ = [
    "CalibratedSets",
    "KernelMLRHClassifier",
    "KernelMLRHClassifierCV",
    "MLRHAuto",
    "MLRHBoostingClassifier",
    "MLRHClassifier",
    "MLRHClassifierCV",
    "PooledSets",
    "TunedThresholds",
    "distribution",
]
_ROOMS = ("data", "decisions", "metrics", "model_selection", "persistence", "spaces")  # mlrh.data and so on
_EXTRA = "torch"  # mlrh.torch, which not everybody has: asked for by name, not found by listing
__version__ = "0.2.0.dev0"


def __getattr__(name):
    # At first use, so that the command line answers --help before scikit-learn and numba are loaded.
    from importlib import import_module

    if name in __all__:
        return getattr(import_module("mlrh.estimators"), name)
    if name in _ROOMS or name == _EXTRA:
        return import_module(f"mlrh.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_ROOMS})
