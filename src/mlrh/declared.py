"""Targets whose classes, or names of labels, are declared before rows have shown them all. Knows nothing of models."""

from dataclasses import replace

import numpy as np

from mlrh import targets


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
    if form.kind != "frame":
        return replace(form, classes=np.asarray(names))
    check_same(form, names)
    return form


def check_same(form, classes):
    """Raise a ValueError unless the classes are those of the form, in any order."""
    if set(_names(classes)) != set(form.classes.tolist()):
        raise ValueError(
            f"classes must stay what they were at the first call of partial_fit, {form.classes.tolist()!r}; got "
            f"{_names(classes)!r}."
        )


def _names(classes):
    names = np.asarray(classes).tolist() if not isinstance(classes, set | frozenset) else sorted(classes)
    if not isinstance(names, list) or len(set(map(repr, names))) < len(names) or not names:
        raise ValueError(f"classes must be a list of distinct names; got {classes!r}.")
    return names


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
