"""Old places of public names: they still work, with a DeprecationWarning that names the new place."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def moved(old: str, *places: str) -> Callable[[str], Any]:
    """The __getattr__ of a module whose names are now in the first of the places that has them."""

    def find(name):
        for place in places if not name.startswith("__") else ():
            found = getattr(import_module(place), name, None)
            if found is not None:
                what = f"{old}.{name} is now {place}.{name}; the old place goes with the next release."
                warnings.warn(what, DeprecationWarning, stacklevel=2)
                return found
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find
