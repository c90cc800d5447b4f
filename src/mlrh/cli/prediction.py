"""The commands that use a saved model, predict and evaluate: parse, call, print."""

import json
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mlrh.cli.inputs import (
    FORMAT_HELP,
    Format,
    FormatOption,
    chosen_labels,
    load_model,
    read_labelled_rows,
    read_rows,
)
from mlrh.cli.output import (
    Target,
    check_output,
    check_replaced,
    quiet_if_closed,
    standard_output,
    target_format,
    write_predictions,
)
from mlrh.cli.terminal import metrics_table, say, warnings_as_notes

MAX_TOP = 1000
CELLS_PER_CHUNK = 2**20  # of the label sets that are in memory at once

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file that `mlrh fit` saved.")]
DataFile = Annotated[
    str,
    typer.Argument(metavar="FILE", help="Data file (ARFF, LIBSVM, CSV, Parquet; also .gz), or - for standard input."),
]


def predict(
    model_file: ModelFile,
    file: DataFile,
    output: Annotated[
        str, typer.Option("--output", "-o", help="File to write; its suffix says the format. - is standard output.")
    ] = "-",
    format_in: Annotated[
        Format | None, typer.Option("--format", "--format-in", help=FORMAT_HELP, show_default=False)
    ] = None,
    to: Annotated[
        Target | None,
        typer.Option("--to", help="Format to write; default: by the suffix, else csv.", show_default=False),
    ] = None,
    marginals: Annotated[
        bool, typer.Option("--marginals", help="Also the probability of each label, in columns P(name).")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            max=MAX_TOP,
            help="The N most probable label sets of each row, in N lines with a column rank.",
            show_default=False,
        ),
    ] = None,
) -> None:
    r"""Predict label sets for new rows.

    Columns: row (from 1), labels, probability of that label set. In CSV, labels are separated by ; and a ; or \ within
    a name has a \ before it; in jsonl and parquet they are a list. Label columns that the file may have are ignored,
    and so are columns that the model doesn't know, whatever they hold. Values of nominal columns that it doesn't know
    count as missing, and are noted. With --top the sets are the most probable ones, whatever the decision.
    An existing file is replaced only if it holds predictions.

    Example: `mlrh predict songs.mlrh new.csv --marginals --output predictions.csv`
    """
    console = Console(stderr=True)
    to = target_format(output, to)
    if output == "-":
        standard_output()
    else:
        check_output(output, [str(model_file), file])
        check_replaced(output)
    with warnings_as_notes(console):
        model = load_model(model_file)
        data = read_rows(file, model, format_in)
    columns = ["row", *(["rank"] if top else []), "labels", "probability"]
    columns += [f"P({name})" for name in model.schema.label_names] if marginals else []
    write_predictions(_predictions(model, data, marginals=marginals, top=top), columns, output, to)
    if output != "-":
        say(console, f"Written: {output}")


def evaluate(
    model_file: ModelFile,
    file: DataFile,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            help="Label columns if they have other names than in training, in the order of training; separated by "
            "commas (a name that holds one: in double quotes), or a .txt file with one name per line.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure a model on rows whose labels are known, and that it wasn't fitted to.

    A row of a LIBSVM file with labels that the model doesn't know is no exact match, and its set held impossible; the
    other measures are of the model's labels.

    Example: `mlrh evaluate songs.mlrh test.csv`
    """
    console = Console(stderr=True)
    standard_output()
    with warnings_as_notes(console):
        model = load_model(model_file)
        data = read_labelled_rows(file, model, chosen_labels(labels), format)
        measured = _measured(model, data)
    with quiet_if_closed():
        if as_json:
            typer.echo(json.dumps({"n_rows": len(data.Y), **measured}))
        else:
            typer.echo(f"{data.name}: {len(data.Y):,} rows")
            Console().print(metrics_table(measured), highlight=False)


def _measured(model, data):
    """The measures of the model; rows with labels that it doesn't know, which come after its own, can't be right."""
    import numpy as np

    from mlrh import metrics

    n_labels = len(model.schema.label_names)
    Y, is_foreign = data.Y[:, :n_labels], data.Y[:, n_labels:].any(axis=1)
    distribution = model.distribution(data)
    predicted, log_prob = model.decide(distribution), distribution.log_prob(Y)
    measured = metrics.evaluate(Y, predicted, np.where(is_foreign, -np.inf, log_prob))
    if is_foreign.any():
        measured["exact_match"] = float(((predicted == Y).all(axis=1) & ~is_foreign).mean())
        names = data.label_names[n_labels : n_labels + 3]
        more = ", ..." if data.Y.shape[1] > n_labels + 3 else ""
        what = f"{is_foreign.sum()} of {len(Y)} rows have labels that the model doesn't know ({', '.join(names)}{more})"
        warnings.warn(f"{data.name}: {what}, so they count as not matched.", UserWarning, stacklevel=2)
    return measured


def _predictions(model, data, *, marginals, top):
    """Lists of predictions, of as many rows at a time as memory bears."""
    n_rows, n_labels = data.X.shape[0], len(model.schema.label_names)
    step = max(1, CELLS_PER_CHUNK // (n_labels * (top or 1)))
    for start in range(0, n_rows, step):
        distribution = model.distribution(data.rows(slice(start, start + step)))
        sets, log_probs = _answers(model, distribution, top)
        yield list(_records(model, start, sets, log_probs, distribution.marginals() if marginals else None, top))


def _answers(model, distribution, top):
    """Label sets (n_rows, n, n_labels) and log-probabilities (n_rows, n): the decision's, or the most probable ones."""
    if top:
        return distribution.top_sets(top)
    sets = model.decide(distribution)
    return sets[:, None], distribution.log_prob(sets)[:, None]


def _records(model, start, sets, log_probs, marginals, top):
    import numpy as np

    names = model.schema.label_names
    columns = [f"P({name})" for name in names]
    probabilities = np.exp(np.minimum(log_probs, 0.0))
    for row, own_sets in enumerate(sets):
        also = {} if marginals is None else dict(zip(columns, marginals[row].tolist(), strict=True))
        for rank, labels in enumerate(own_sets):
            if top and np.isneginf(log_probs[row, rank]):
                break  # the space has no more sets
            yield {
                "row": start + row + 1,
                **({"rank": rank + 1} if top else {}),
                "labels": [names[label] for label in np.flatnonzero(labels)],
                "probability": float(probabilities[row, rank]),
                **also,
            }
