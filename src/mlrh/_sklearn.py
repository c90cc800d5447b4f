"""What scikit-learn has under private names or in some versions only; no other module imports such parts.

The supported versions are those of pyproject.toml. tests/test_scikit_learn_parts.py names the part that has moved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from typing import Any

import numpy as np

# The one way to run BaseEstimator's check of parameters before fit, without repeating it in what fit calls. It also
# ends callbacks where fit fails.
from sklearn.base import _fit_context as fit_context

# Rows of arrays, lists, DataFrames and sparse matrices by their numbers.
from sklearn.utils import _safe_indexing as safe_indexing

# What `_parameter_constraints` are written in, which estimators outside scikit-learn may state.
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions, validate_parameter_constraints

# Rows for a fold: both rows and columns where the estimator takes a kernel matrix, which its tags say.
from sklearn.utils.metaestimators import _safe_split as safe_split

# The checks whose wording and exceptions scikit-learn's estimator checks expect.
from sklearn.utils.validation import _check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples

HAS_CALLBACKS = find_spec("sklearn.callback") is not None  # from 1.9 on
REFUSES_ALL_ZERO = (
    "allow_all_zero_weights" in signature(_check_sample_weight).parameters
)  # earlier versions let it pass

__all__ = [
    "HAS_CALLBACKS",
    "CallbackSupportMixin",
    "HasMethods",
    "Interval",
    "Iterations",
    "StrOptions",
    "callbacks_of",
    "check_parameters",
    "check_sample_weight",
    "fit_context",
    "num_samples",
    "safe_indexing",
    "safe_split",
    "share_callbacks",
    "telling_of_fit",
]

if HAS_CALLBACKS:
    from sklearn.callback import CallbackSupportMixin
else:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands where newer versions have `set_callbacks`."""


def check_parameters(cls, parameters) -> None:
    """Raise the ValueError with which `fit` of a class would refuse these parameters, a dict."""
    validate_parameter_constraints(cls._parameter_constraints, parameters, caller_name=cls.__name__)


def check_sample_weight(sample_weight, X, *, allow_all_zero_weights=False, **options) -> np.ndarray:
    """Checked weights (n_samples,) of the rows of X, all 1 for None."""
    if REFUSES_ALL_ZERO:
        options["allow_all_zero_weights"] = allow_all_zero_weights
    weights = _check_sample_weight(sample_weight, X, **options)
    if not allow_all_zero_weights and not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights


def callbacks_of(estimator) -> list:
    """The callbacks that were set, by the user or by a search that passes its own on."""
    return getattr(estimator, "_skl_callbacks", [])


def share_callbacks(estimator, other):
    """The other estimator, with the callbacks of the first."""
    return other.set_callbacks(*callbacks_of(estimator)) if HAS_CALLBACKS else other


@contextmanager
def telling_of_fit(estimator, *, max_iter, **data) -> Iterator["Iterations | None"]:
    """Tell callbacks of the beginning and end of a fit to X, y and metadata.

    Gives the `Iterations` of the fit, or None where nobody listens.
    """
    if not HAS_CALLBACKS:
        yield None
        return
    # Also without callbacks: those of a search around this estimator see its fits in their tree of tasks.
    context = estimator._init_callback_context(max_subtasks=max_iter + 1)
    context.call_on_fit_task_begin(estimator=estimator, **data)
    yield Iterations(context, {"estimator": estimator, **data}) if callbacks_of(estimator) else None
    context.call_on_fit_task_end(estimator=estimator, **data, reconstruction_attributes={})


class Iterations:
    """The iterations of one fit as tasks of its callback context, each with a beginning and an end.

    attributes_at(parameters) returns the fitted attributes at a solver's parameters. It is called only if a callback
    asks for a fitted estimator.
    """

    def __init__(self, context, data, attributes_at=None):
        self._context, self._data, self._attributes_at = context, data, attributes_at
        self._current: Any = None

    def showing(self, attributes_at):
        """The same iterations with a function attributes_at."""
        return Iterations(self._context, self._data, attributes_at)

    def begin(self, parameters):
        """Report that an iteration starts from the parameters."""
        self._current = self._context.subcontext(task_name="iteration")
        self._current.call_on_fit_task_begin(**self._arguments(parameters))

    def end(self, parameters) -> bool:
        """Report that the iteration has reached the parameters; returns whether a callback asks to stop."""
        return bool(self._current.call_on_fit_task_end(**self._arguments(parameters)))

    def close(self):
        """Report the end of an iteration that was begun but not needed: the fit has ended."""
        self._current.call_on_fit_task_end(estimator=self._data["estimator"])

    def _arguments(self, parameters):
        return {**self._data, "reconstruction_attributes": lambda: self._attributes_at(parameters)}
