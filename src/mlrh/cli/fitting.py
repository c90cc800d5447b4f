"""The command that makes a model of a data file: parse, call, print."""

import zipfile
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from mlrh.cli.inputs import FormatOption, IgnoreOption, JobsOption, LabelsOption, chosen_labels, read_data
from mlrh.cli.output import check_output
from mlrh.cli.terminal import (
    described_choice,
    described_data,
    facts,
    progress_bar,
    say,
    spread_table,
    warnings_as_notes,
)


def fit(
    file: Annotated[
        str,
        typer.Argument(help="Data file (ARFF, LIBSVM, CSV, Parquet; also .gz), or - for standard input."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Model file; default: the data file's stem + .mlrh.", show_default=False),
    ] = None,
    labels: LabelsOption = None,
    ignore: IgnoreOption = None,
    format: FormatOption = None,
    label_space: Annotated[
        Literal["auto", "cardinality", "observed"],
        typer.Option("--label-space", help="All sets of the sizes that the rows show, or only the sets they show."),
    ] = "auto",
    kernel: Annotated[
        Literal["auto", "linear", "rbf"], typer.Option("--kernel", help="Linear or RBF scores.")
    ] = "auto",
    decision: Annotated[
        Literal["exact_match", "hamming", "f1", "jaccard"],
        typer.Option("--decision", help="What predictions are to do best: whole sets, single labels, F1, Jaccard."),
    ] = "exact_match",
    folds: Annotated[int, typer.Option("--folds", min=2, help="Folds of the cross validation.")] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the folds.")] = 0,
    jobs: JobsOption = None,
) -> None:
    """Fit a model to a data file and save it.

    Kernel, C, gamma and label space are chosen by cross validation. An existing model file is replaced once the new
    one is complete; any other existing file is refused.

    Example: `mlrh fit songs.csv --labels happy,sad,calm --output songs.mlrh`
    """
    console = Console(stderr=True)
    chosen = chosen_labels(labels)
    target = _target(file, output, labels or [])
    from mlrh.automatic import choose
    from mlrh.persistence import save

    with warnings_as_notes(console):
        data = read_data(file, chosen, format).without(ignore or ())
    console.print(facts({"data": described_data(data)}), highlight=False)
    with progress_bar(console) as report:
        model = choose(
            data,
            label_space=label_space,
            kernel=kernel,
            decision=decision,
            n_folds=folds,
            seed=seed,
            n_jobs=jobs,
            report=report,
        )
    save(model, target)
    _tell(console, model)
    _advise(console, file, labels)
    say(console, f"Saved: {target}")


def _target(file, output, labels):
    """Where to save; refused before anything is computed."""
    from mlrh.data._sources import parts_of

    if output is not None and str(output) == "-":
        raise ValueError("A model can't be written to standard output; give the name of a file with --output.")
    if output is None and file == "-":
        raise ValueError("A model of standard input needs a name; give it with --output.")
    target = output or Path(f"{parts_of(Path(file).name)[0]}.mlrh")
    check_output(str(target), [file, *labels])
    if target.exists() and target.stat().st_size and not _is_model_file(target):
        raise ValueError(f"{target} exists and is not a model file; remove it or choose another name with --output.")
    return target


def _is_model_file(path):
    from mlrh.persistence import HEADER

    try:
        with zipfile.ZipFile(path) as archive:
            return HEADER in archive.namelist()
    except zipfile.BadZipFile:
        return False


def _tell(console, model):
    settings = model.settings
    console.print(facts(described_choice(model)), highlight=False)
    for note in settings["notes"]:
        say(console, f"Note: {note}")
    console.print(f"\nCross validation, {settings['n_folds']} folds:", highlight=False)
    console.print(spread_table(model.validation), highlight=False)


def _advise(console, file, labels):
    shown = "FILE" if file == "-" else file
    options = " --labels ..." if labels else ""
    say(console, "\nThe settings were chosen by the same folds, so this is slightly optimistic.")
    say(console, f"For an estimate that isn't: mlrh compare {shown}{options}\n")
