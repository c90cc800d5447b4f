"""A fit and its iterations told to scikit-learn's callbacks, where the installed version has them (1.9 and newer)."""

from contextlib import contextmanager
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands where scikit-learn has no callbacks; an estimator then has no set_callbacks."""


@contextmanager
def fit_told(estimator, X, y, sample_weight, *, max_iter):
    """Tell of a fit's beginning and, unless it fails, of its end; gives what `_report` needs to tell of iterations.

    That is None where nobody listens.
    """
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

    attributes_at, a function of a solver's parameters, gives the fitted attributes that belong to them; it is called
    only if a callback wants to see a fitted estimator.
    """

    def __init__(self, context, data, attributes_at=None):
        self._context, self._data, self._attributes_at = context, data, attributes_at
        self._current: Any = None

    def showing(self, attributes_at):
        """The same iterations with a way to show a fitted estimator."""
        return Iterations(self._context, self._data, attributes_at)

    def begin(self, parameters):
        """Tell of an iteration that starts from the parameters."""
        self._current = self._context.subcontext(task_name="iteration")
        self._current.call_on_fit_task_begin(**self._arguments(parameters))

    def end(self, parameters) -> bool:
        """Tell that the iteration has come to the parameters; whether a callback asks to stop here."""
        return bool(self._current.call_on_fit_task_end(**self._arguments(parameters)))

    def close(self):
        """Tell of the end of an iteration that was begun and found nothing more to do."""
        self._current.call_on_fit_task_end(estimator=self._data["estimator"])

    def _arguments(self, parameters):
        return {**self._data, "reconstruction_attributes": lambda: self._attributes_at(parameters)}
