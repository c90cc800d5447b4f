"""Warnings that point at the user's own line."""

import inspect
import warnings
from pathlib import Path

import sklearn

INSIDE = tuple(str(Path(file).parent) for file in (__file__, sklearn.__file__))


def warn(message, category=UserWarning):
    """Warn at the first line of the call stack that is neither of this package nor of scikit-learn, which wraps fit."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
