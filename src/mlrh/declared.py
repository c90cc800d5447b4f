"""Targets whose classes, or names of labels, are declared before rows have shown them all. Knows nothing of models."""

from dataclasses import replace

import numpy as np

from mlrh import targets

PLACED = ("matrix", "sparse")  # forms whose columns have no names of their own


def declared(y, classes):
    """Targets of the form of y, with the classes or labels declared for all rows to come.

    classes are the classes of one class per row, the labels of label sets, or the names of the columns of a matrix.
    """
    if classes is None:
        raise ValueError(
            "classes must be given at the first call of partial_fit: the names of all labels, or all classes, that y "
            "will ever hold."
        )
    names = _names(classes)
    form = _form(y, names)
    if form.kind == "classes":
        if len(names) < 2:
            raise ValueError(f"classes must hold at least 2 classes; got {names!r}.")
        return targets.encode(np.asarray(names))[0]
    if form.kind == "sets":
        return replace(form, classes=targets.encode([set(names)])[0].classes)
    if len(names) != len(form.classes):
        raise ValueError(f"classes must name the {len(form.classes)} columns of y; got {len(names)} names.")
    if form.kind in PLACED:
        _check_ordered(classes)
        return replace(form, classes=np.asarray(names))
    if set(names) != set(form.classes.tolist()) and names != list(range(len(names))):
        raise ValueError(f"classes must be the names of y's columns, {form.classes.tolist()!r}; got {names!r}.")
    return form


def check_same(form, classes):
    """Raise a ValueError unless the classes are those of the form; in the same order, if columns have only a place."""
    names, known = _names(classes), form.classes.tolist()
    if form.kind in PLACED:
        _check_ordered(classes)
    is_other = names != known if form.kind in PLACED else set(names) != set(known) and names != list(range(len(known)))
    if is_other:
        raise ValueError(
            f"classes must stay what they were at the first call of partial_fit, {known!r}; got {names!r}."
        )


def _check_ordered(classes):
    if isinstance(classes, set | frozenset):
        raise ValueError(f"classes must be in the order of y's columns, so give a list, not a set; got {classes!r}.")


def _names(classes):
    """The names as a list, sorted if they come as a set."""
    is_set = isinstance(classes, set | frozenset)
    try:
        values = np.asarray(list(classes) if is_set else classes, dtype=object)  # numbers stay numbers
        names = values.tolist()
        ordered = sorted(names)
        is_list = values.ndim == 1 and 0 < len(set(names)) == len(names)
    except (TypeError, ValueError):
        is_list = False
    if not is_list:
        raise ValueError(
            "classes must be a list of distinct names in one dimension, all of one type that can be sorted; got "
            f"{classes!r}."
        )
    return ordered if is_set else names


def _form(y, names):
    """The form of y, which may show a single class or no label at all."""
    try:
        return targets.encode(y, partly_known=True)[0]
    except ValueError as error:
        for more in (lambda: [*np.ravel(y).tolist(), *names], lambda: [*y, set(names)]):
            try:
                return targets.encode(more())[0]
            except (TypeError, ValueError):
                continue
        raise error
