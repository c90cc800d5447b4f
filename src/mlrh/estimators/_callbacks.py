"""Iterations of a solver told to scikit-learn's callbacks; knows nothing of what is fitted."""

from collections.abc import Callable
from typing import Any


class Iterations:
    """The iterations of one fit as tasks of its callback context, each with a beginning and an end.

    Parameters
    ----------
    estimator : the estimator that is being fitted
    context : sklearn.callback.CallbackContext of its fit
    data : dict
        X, y and metadata, as the hooks get them.
    attributes_at : function of a solver's parameters
        The fitted attributes that belong to them; called only if a callback wants to see a fitted estimator.
    """

    def __init__(self, estimator, context, data: dict[str, Any], attributes_at: Callable[[Any], dict]):
        self._estimator, self._context, self._data, self._attributes_at = estimator, context, data, attributes_at
        self._current: Any = None

    def begin(self, parameters) -> None:
        """Tell of an iteration that starts from the parameters."""
        self._current = self._context.subcontext(task_name="iteration")
        self._current.call_on_fit_task_begin(**self._arguments(parameters))

    def end(self, parameters) -> bool:
        """Tell that the iteration has come to the parameters; whether a callback asks to stop here."""
        return bool(self._current.call_on_fit_task_end(**self._arguments(parameters)))

    def close(self) -> None:
        """Tell of the end of an iteration that was begun and found nothing more to do."""
        self._current.call_on_fit_task_end(estimator=self._estimator)

    def _arguments(self, parameters):
        attributes = {"reconstruction_attributes": lambda: self._attributes_at(parameters)}
        return {"estimator": self._estimator, **self._data, **attributes}
