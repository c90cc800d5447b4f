"""Rows whose labels were decided on the tagging page: a data file joined to its file of decisions."""

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mlrh.cli._inputs import OF_DECISIONS, load_model, read_data, read_labelled_rows

# Parameters of `mlrh fit` whose values a model has.
SETTINGS = {
    *("metric", "seconds", "quality", "scores", "label_space", "groups", "folds", "seed"),
    *("calibrate", "thresholds", "refuse_below"),
}

# The program `mlrh` as a process that ends with the one whose number is its first argument.
PROGRAM = (
    "import sys; from mlrh._processes import end_with; end_with(int(sys.argv.pop(1))); "
    "from mlrh.__main__ import main; main()"
)

DecidedOption = Annotated[
    str | None,
    typer.Option(
        "--decided",
        metavar="FILE",
        rich_help_panel=OF_DECISIONS,
        help="File of decisions about these rows, which `mlrh tag` wrote: they are the labels. Rows without a decision "
        "are left out.",
    ),
]
LikeOption = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="MODEL",
        rich_help_panel=OF_DECISIONS,
        help="With --decided: model file that has the columns and settings to use, such as the one that was tagged by.",
    ),
]
AlsoOption = Annotated[
    str | None,
    typer.Option(
        "--also",
        metavar="FILE",
        rich_help_panel=OF_DECISIONS,
        help="With --decided: file of labelled rows to fit to as well, such as the first ones. Where one column lists "
        "their labels, --labels names it.",
    ),
]


def settings_like(path: Path | None, given: dict[str, Any], context: typer.Context) -> tuple[Any, dict[str, Any]]:
    """The model of --like and the settings of its choice, as `mlrh.automatic.choose` takes them.

    Without a model they are those given. A ValueError where settings that the command line names would count for
    nothing.
    """
    if path is None:
        return None, given
    model = load_model(path)
    if not can_fit_like(model):
        raise ValueError(f"{path} has no settings of a search; leave out --like, and name settings by options.")
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in SETTINGS and source is not None and source.name != "DEFAULT":
            raise ValueError(f"--like takes all settings from the model; leave out {option.opts[0]}.")
    own = model.classifier.get_params(deep=False)
    names = {"metric", "time_budget", "quality", "scores", "label_space"}
    chosen = {**{name: own[name] for name in names}, "n_folds": own["cv"], "seed": own["random_state"]}
    answers = {"calibrate": "calibration_error" in model.settings, "thresholds": model.settings.get("thresholds")}
    return model, {**chosen, **answers, "refuse_below": model.rule.refuse_below}


def can_fit_like(model: Any) -> bool:
    """Whether a model has the settings of its choice, which one of several files or of version 0.1 has not."""
    from mlrh.estimators import MLRHAuto

    return isinstance(model.classifier, MLRHAuto)


def fit_command(model_file: Path, file: str, decided: str, output: Path, **more: str | None) -> list[str]:
    """The program and arguments that fit a model like another to the decided rows of a file; more are options.

    The fit ends with this process, also where that is killed, and runs no Python file of the working folder (-P).
    """
    options: dict[str, Any] = {"--decided": decided, "--like": model_file, "--output": output}
    options |= {f"--{name}": value for name, value in more.items()}
    given = [str(part) for option in options.items() if option[1] is not None for part in option]
    return [sys.executable, "-P", "-c", PROGRAM, str(os.getpid()), "fit", *given, "--", file]


def read_decided(
    file: str,
    decided: str,
    *,
    model: Any,
    also: str | None,
    labels: Any,
    separator: str | None,
    unknown: str | None,
    columns: Any,
    format: str | None,
) -> Any:
    """The decided rows of a file with their labels, -1 where nobody looked, and before them the rows of `also`.

    The columns are those of the model if there is one, else of the file `also`, else they are found out; values of
    nominal columns that the model, or the file `also`, doesn't know count as missing. A column that lists decided
    labels is no feature, unless `columns` says what it is. `labels` and `separator` are about the column of label sets
    in `also`, if it has one, and `unknown` is the text of unknown labels there.
    """
    from mlrh.data.containers import stacked
    from mlrh.web._store import Fingerprints, checked, labels_of

    if model is not None and columns:
        raise ValueError("--like takes the columns from the model; leave out options on columns, such as --ignore.")
    names = labels_of(decided) if model is None else list(model.schema.label_names)
    written = {"labels": labels, "separator": separator, "unknown": unknown}
    first = None if also is None else _labelled(also, names, model, columns, **written)
    schema = model.schema if model is not None else None if first is None else first.schema
    if schema is None:
        rows = _without_labels(read_data(file, (), format, columns=columns, find_ids=True), names, columns)
    else:
        rows = read_data(file, (), format, schema)
    words = {**rows.categories, **rows.texts}
    known = checked(decided, Fingerprints(rows.X, rows.feature_names, words), names)
    rows = _decided_rows(replace(rows, label_names=tuple(names)), known)
    return rows if first is None else stacked([first, rows])


def _labelled(also, names, model, columns, *, labels, separator, unknown):
    """The rows of the file `also`, with the labels of these names."""
    if model is not None:
        first = read_labelled_rows(also, model, labels, None, separator=separator, unknown=unknown)
        return _with_first(first, len(names))  # others that occur come after them
    if labels is not None:
        first = _listed(also, names, labels, columns=columns, separator=separator, unknown=unknown)
    elif separator is None:
        first = _in_columns(also, names, columns=columns, unknown=unknown)
    else:
        raise ValueError("--separator is for one column of label sets in --also; name that column with --labels.")
    return _without_sets(first, names, columns)


def _in_columns(also, names, **options):
    """The rows of a file that has a column of 0 and 1 for each label."""
    from mlrh.data._columns import AbsentLabelError

    try:
        return read_data(also, names, None, **options)
    except AbsentLabelError as error:
        raise AbsentLabelError(f"{error} Where one column lists its labels, name that with --labels.") from error


def _listed(also, names, labels, **options):
    """The rows of a file whose labels one column lists; other labels than these are left out, with a warning."""
    from mlrh.data._parts import with_labels
    from mlrh.data.containers import listed

    first = read_data(also, labels, None, **options)
    if not first.tags:
        what = "columns of 0 and 1 are found by the names of the decisions"
        raise ValueError(f"Beside --decided, --labels names the one column of --also that lists labels; {what}.")
    others = tuple(name for name in first.label_names if name not in names)
    if others:
        what = f"{first.name}: labels that the file of decisions doesn't have are left out ({listed(others, 3)})."
        warnings.warn(what, UserWarning, stacklevel=2)
    return _with_first(with_labels(first, (*names, *others), options["unknown"] is not None), len(names))


def _with_first(rows, n_labels):
    return replace(rows, Y=rows.Y[:, :n_labels], label_names=tuple(rows.label_names[:n_labels]))


def _without_labels(rows, names, said):
    """The rows without columns of labels, and without words of an ARFF file that only identify a row."""
    from mlrh.data._kinds import IDENTIFIER_ROWS

    n_rows = rows.X.shape[0]
    identifiers = [name for name, values in rows.categories.items() if len(values) == n_rows >= IDENTIFIER_ROWS]
    others = rows.without([name for name in rows.feature_names if name in {*names, *identifiers}])
    return _without_sets(others, names, said)


def _without_sets(rows, names, said):
    """The rows without words that list decided labels, of which nobody said what they are: they give labels away."""
    words = {**rows.categories, **rows.texts}
    given_away = [name for name, cells in words.items() if name not in said and _list_labels(cells, names)]
    for name in given_away:
        what = f"{rows.name}: column {name!r} lists decided labels and was dropped; --nominal makes it a feature."
        warnings.warn(what, UserWarning, stacklevel=2)
    return rows.without(given_away)


def _list_labels(cells, names):
    """Whether cells list these labels and nothing else."""
    from mlrh.data._columns import BadCellError, LabelChoice
    from mlrh.data._tables import sets_in

    try:
        sets, _ = sets_in(cells, LabelChoice((), in_order=False, origin="", separator=""))
    except BadCellError:
        return False
    found = {label for own in sets or () for label in own}
    return bool(found) and found <= set(names)


def _decided_rows(rows, known):
    import numpy as np

    from mlrh._indicators import UNKNOWN
    from mlrh.data import DataError

    looked_at = ~np.isnan(known).all(axis=1)
    if not looked_at.any():
        raise DataError(f"{rows.name}: the file of decisions has none about its rows; decide some first.")
    Y = np.where(np.isnan(known), UNKNOWN, known).astype(np.int8)
    return replace(rows.rows(looked_at), Y=Y[looked_at])
