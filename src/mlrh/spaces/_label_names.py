"""Labels of a space given by index or by name; names are resolved by the label names of y."""

from numbers import Integral

import numpy as np

from mlrh.spaces.base import LabelSpace


class NamesLabels(LabelSpace):
    """A space whose labels may be given by name: it has no n_labels, and can't be asked, before `for_targets`."""

    def __getattr__(self, name):
        # Reached only where an attribute is not set: n_labels of a space that was given by name.
        if name == "n_labels":
            raise ValueError(
                f"This {type(self).__name__} names its labels, and so can be asked only once the label names of y are "
                "known: fit a classifier with it, call its for_targets, or give label indices."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def as_labels(values, what):
    """A list of label indices (int) or of label names (str); anything else is a ValueError."""
    if isinstance(values, str):
        raise ValueError(f"{what} must be label indices or label names, all of one kind; got the string {values!r}.")
    values = np.asarray(values, object).ravel().tolist()
    if values and all(isinstance(value, str) for value in values):
        return [str(value) for value in values]
    if values and all(isinstance(value, Integral) and not isinstance(value, bool) for value in values):
        return [int(value) for value in values]
    raise ValueError(f"{what} must be label indices or label names, all of one kind; got {values!r}.")


def place_of_names(classes):
    """{name: index} of the labels of y, where they have names."""
    return {str(name): label for label, name in enumerate(classes) if isinstance(name, str)}


def index_of(name, places):
    """The index of a label name; a name that y doesn't have is a ValueError."""
    if name not in places:
        known = ", ".join(map(repr, list(places)[:5])) + (", ..." if len(places) > 5 else "")
        raise ValueError(
            f"The label space names the label {name!r}, which y doesn't have; "
            + (f"its labels are {known}." if places else "its labels have no names. Give label indices.")
        )
    return places[name]
