"""Multilabel logistic regression that is exact, joint and fast."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlrh.estimators import KernelMLRHClassifier, MLRHClassifier
    from mlrh.selection import KernelMLRHClassifierCV, MLRHClassifierCV

__all__ = ["KernelMLRHClassifier", "KernelMLRHClassifierCV", "MLRHClassifier", "MLRHClassifierCV"]
__version__ = "0.1.0"


def __getattr__(name):
    # At first use, so that the command line answers --help before scikit-learn and numba are loaded.
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("mlrh.selection" if name.endswith("CV") else "mlrh.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
