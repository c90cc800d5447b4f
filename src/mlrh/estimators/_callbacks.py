"""Reports of a fit and its iterations to scikit-learn's callbacks, where the installed version has them (from 1.9)."""

from contextlib import contextmanager
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replaces scikit-learn's mixin in versions without callbacks; estimators then have no set_callbacks."""


@contextmanager
def fit_told(estimator, X, y, sample_weight, *, max_iter):
    """Report the beginning of a fit and, unless it fails, its end; yields Iterations, or None without callbacks."""
    if not hasattr(estimator, "_skl_callbacks"):
        yield None
        return
    context = estimator._init_callback_context(max_subtasks=max_iter + 1)
    metadata = None if sample_weight is None else {"sample_weight": sample_weight}
    data = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
    context.call_on_fit_task_begin(**data)
    yield Iterations(context, data)
    context.call_on_fit_task_end(**data, reconstruction_attributes={})


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
