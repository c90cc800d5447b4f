"""The commands that make and use a model: fit, predict, evaluate and tag."""

import json
import warnings
import zipfile
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from mlrh.cli import _output, _parts
from mlrh.cli._inputs import (
    DATA_HELP,
    FORMAT_HELP,
    Format,
    FormatOption,
    GroupsOption,
    IgnoreOption,
    JobsOption,
    LabelsOption,
    chosen_labels,
    load_model,
    read_data,
    read_groups,
    read_labelled_rows,
)
from mlrh.cli._parts import MemoryOption, SchedulerOption, WorkersOption

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file that `mlrh fit` saved.")]
DataFile = Annotated[str, typer.Argument(metavar="FILE", help=DATA_HELP)]


def fit(
    file: DataFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Model file; default: the data file's stem + .mlrh.")
    ] = None,
    labels: LabelsOption = None,
    ignore: IgnoreOption = None,
    format: FormatOption = None,
    label_space: Annotated[
        Literal["auto", "cardinality", "observed", "open"],
        typer.Option(
            "--label-space",
            help="All sets of the sizes that the rows show, only the sets they show, or all with a bias for these.",
        ),
    ] = "auto",
    groups: GroupsOption = None,
    scores: Annotated[
        Literal["auto", "linear", "rbf", "boosted"],
        typer.Option("--scores", "--kernel", help="Linear scores, an RBF kernel or boosted trees."),
    ] = "auto",
    metric: Annotated[
        Literal["exact_match", "hamming", "f1", "jaccard", "log_loss"],
        typer.Option(
            "--metric",
            "--decision",
            help="What predictions are to do best: whole sets, single labels, F1, Jaccard; or their probability.",
        ),
    ] = "exact_match",
    seconds: Annotated[
        float, typer.Option("--time", min=0.1, help="Seconds for the choice; fits that have begun are finished.")
    ] = 60.0,
    quality: Annotated[
        Literal["best", "fast"], typer.Option("--quality", help="All candidates and a pool of them, or a few only.")
    ] = "best",
    folds: Annotated[
        int | None, typer.Option("--folds", min=2, help="Folds of the cross validation; default: 5, fast: 3.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of the folds.")] = 0,
    jobs: JobsOption = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
) -> None:
    """Fit a model to a data file, or to all files that a quoted pattern matches, and save it.

    Scores (linear, RBF kernel, boosted trees where XGBoost is installed), their settings and the label space are chosen
    by cross validation, and pooled where that helps. Ctrl-C ends the search with the best so far. With --groups the
    label space is that of the groups. An existing model file is replaced once the new one is complete; any other
    existing file is refused.

    Several files (CSV, Parquet, ARFF) need not fit into memory. They are gone through in this process, or by the
    workers of a Dask cluster, which must be able to read them. Settings are chosen on a sample of the rows, for linear
    scores.

    Example: `mlrh fit songs.csv --labels happy,sad,calm --output songs.mlrh`

    Example: `mlrh fit 'parts/*.parquet' --labels happy,sad,calm --output songs.mlrh --workers 2 --memory 4GB`
    """
    console = Console(stderr=True)
    chosen = chosen_labels(labels)
    files = _parts.files_of(file)
    target = _model_file(file, output, labels or [])
    space = _label_space(label_space, groups)
    from mlrh.automatic import choose
    from mlrh.persistence import save

    if len(files) > 1 or scheduler is not None or workers is not None:
        _refuse_for_many(file, scores)
        options = {"metric": metric, "time_budget": seconds, "label_space": space, "n_folds": folds, "seed": seed}
        with (
            _output.warnings_as_notes(console),
            _parts.client_of(scheduler, workers, memory) as client,
            _output.progress_bar(console) as report,
        ):
            about = {"name": file, "ignore": ignore or (), "format": format, "client": client}
            model, auto = _parts.fit_files(files, chosen, **about, **options, n_jobs=jobs, report=report)
        save(model, target)
        _tell(console, model, auto)
        _output.say(console, f"\nFitted to {model.settings['n_rows']:,} rows of {len(files)} files.")
        _output.say(console, f"Saved: {target}")
        return
    with _output.warnings_as_notes(console):
        data = read_data(file, chosen, format).without(ignore or ())
    console.print(_output.facts({"data": _output.described_data(data)}), highlight=False)
    with _output.progress_bar(console) as report:
        options = {"metric": metric, "time_budget": seconds, "quality": quality, "scores": scores, "label_space": space}
        model = choose(data, **options, n_folds=folds, seed=seed, n_jobs=jobs, report=report)
    save(model, target)
    _tell(console, model, model.classifier)
    _output.say(console, "\nThe settings were chosen by the same folds, so this is slightly optimistic.")
    shown = f"{'FILE' if file == '-' else file}{' --labels ...' if labels else ''}"
    _output.say(console, f"For an estimate that isn't: mlrh compare {shown}\n")
    _output.say(console, f"Saved: {target}")


def _refuse_for_many(file, scores):
    if file == "-":
        raise ValueError("Standard input is one file, which workers can't read; give the names of files.")
    if scores not in ("auto", "linear"):
        raise ValueError("RBF kernels and boosted trees need all rows in memory; several files take --scores linear.")


def _label_space(name, groups):
    """The name of --label-space, or the space of the file that --groups names."""
    if groups is not None and name != "auto":
        raise ValueError("--groups already says which label sets there are; leave out --label-space.")
    return name if groups is None else read_groups(groups)


def _model_file(file, output, labels):
    """Where to save; refused before anything is computed."""
    from mlrh.data._sources import parts_of

    if output is not None and str(output) == "-":
        raise ValueError("A model can't be written to standard output; give the name of a file with --output.")
    if output is None and file == "-":
        raise ValueError("A model of standard input needs a name; give it with --output.")
    if output is None and _parts.is_pattern(file):
        raise ValueError("A model of several files needs a name; give it with --output.")
    target = output or Path(f"{parts_of(Path(file).name)[0]}.mlrh")
    _output.check_output(str(target), [file, *labels])
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


def _tell(console, model, auto):
    settings = model.settings
    console.print(_output.facts(_output.described_choice(model, auto)), highlight=False)
    for note in settings["notes"]:
        _output.say(console, f"Note: {note}")
    console.print(f"\nThe best candidates, by the log-loss of {settings['n_folds']} folds:", highlight=False)
    console.print(_output.leaderboard(auto), highlight=False)
    console.print(f"\nCross validation of the first, {settings['n_folds']} folds:", highlight=False)
    console.print(_output.spread_table(model.validation), highlight=False)


MAX_TOP = 1000
CELLS_PER_CHUNK = 2**20  # of the label sets that are in memory at once


def predict(
    model_file: ModelFile,
    file: DataFile,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="File to write; its suffix says the format. - is standard output. For several files, a folder.",
        ),
    ] = "-",
    format_in: Annotated[Format | None, typer.Option("--format", "--format-in", help=FORMAT_HELP)] = None,
    to: Annotated[
        _output.Target | None, typer.Option("--to", help="Format to write; default: by the suffix, else csv.")
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
        ),
    ] = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
) -> None:
    r"""Predict label sets for new rows.

    Columns: row (from 1), labels, probability of that label set. In CSV, labels are separated by ; and a ; or \ within
    a name has a \ before it, and a name that a spreadsheet would run, such as =1+1, a ' (numbers stay as they are); in
    jsonl and parquet they are a list. Label columns that the file may have are ignored,
    and so are columns that the model doesn't know, whatever they hold. Values of nominal columns that it doesn't know
    count as missing, and are noted. With --top the sets are the most probable ones, whatever the decision.
    An existing file is replaced only if it holds predictions.

    For a quoted pattern, each file that it matches is answered in a file of the same stem in the folder --output.
    Answers that are newer than the model and the rows are left as they are, so that the same command goes on where it
    was interrupted; for other options choose another folder. Workers of a Dask cluster share the files out.

    Example: `mlrh predict songs.mlrh new.csv --marginals --output predictions.csv`

    Example: `mlrh predict songs.mlrh 'parts/*.csv' --output answers --workers 2`
    """
    console = Console(stderr=True)
    options = {"format_in": format_in, "marginals": marginals, "top": top}
    if _parts.is_pattern(file) or scheduler is not None or workers is not None:
        cluster = (scheduler, workers, memory)
        _predict_many(console, model_file, _parts.files_of(file), output, to or "csv", cluster, options)
        return
    to = _output.target_format(output, to)
    if output == "-":
        _output.standard_output()
    else:
        _output.check_output(output, [str(model_file), file])
        _output.check_replaced(output)
    with _output.warnings_as_notes(console):
        _write_one(load_model(model_file), to, options, file, output)
    if output != "-":
        _output.say(console, f"Written: {output}")


def _predict_many(console, model_file, files, folder, to, cluster, options):
    """Predictions for each file into a folder."""
    if folder == "-" or Path(folder).is_file():
        raise ValueError(f"Several files are answered by as many; give a folder with --output, not {folder}.")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for output in _parts.outputs_of(files, folder, f".{to}"):
        _output.check_output(output, [str(model_file), *files])
        _output.check_replaced(output)
    with _output.warnings_as_notes(console):
        write = partial(_write_one, load_model(model_file), to, options)
        with _parts.client_of(*cluster) as client:
            about = {"client": client, "model_file": model_file, "predict_file": write}
            for output, is_new in _parts.predict_files(files, folder, f".{to}", **about):
                _output.say(console, f"{'Written' if is_new else 'Finished before'}: {output}")


def _write_one(model, to, options, file, output):
    """Read one file of rows and write its predictions."""
    marginals, top = options["marginals"], options["top"]
    data = read_data(file, (), options["format_in"], model.schema)  # labels that the file may have aren't looked at
    columns = ["row", *(["rank"] if top else []), "labels", "probability"]
    columns += [f"P({name})" for name in model.schema.label_names] if marginals else []
    _output.write_predictions(_predictions(model, data, marginals=marginals, top=top), columns, output, to)


def evaluate(
    model_file: ModelFile,
    file: DataFile,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            help="Label columns if they have other names than in training, in the order of training; separated by "
            "commas (a name that holds one: in double quotes), or a .txt file with one name per line.",
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
    _output.standard_output()
    with _output.warnings_as_notes(console):
        model = load_model(model_file)
        data = read_labelled_rows(file, model, chosen_labels(labels), format)
        measured = _measured(model, data)
    with _output.quiet_if_closed():
        if as_json:
            typer.echo(json.dumps({"n_rows": len(data.Y), **measured}))
        else:
            typer.echo(_output.visible(f"{data.name}: {len(data.Y):,} rows"))
            Console().print(_output.metrics_table(measured), highlight=False)


def _measured(model, data):
    """The measures of the model; a row with labels that it doesn't know (they come after its own) is never right."""
    import numpy as np

    from mlrh import metrics
    from mlrh.data.containers import listed

    n_labels = len(model.schema.label_names)
    Y, is_foreign = data.Y[:, :n_labels], data.Y[:, n_labels:].any(axis=1)
    distribution = model.distribution(data)
    predicted, log_prob = model.decide(distribution), distribution.log_prob(Y)
    measured = metrics.evaluate(Y, predicted, np.where(is_foreign, -np.inf, log_prob))
    if is_foreign.any():
        measured["exact_match"] = float(((predicted == Y).all(axis=1) & ~is_foreign).mean())
        names = listed(data.label_names[n_labels:], 3)
        what = f"{is_foreign.sum()} of {len(Y)} rows have labels that the model doesn't know ({names})"
        warnings.warn(f"{data.name}: {what}, so they count as not matched.", UserWarning, stacklevel=2)
    return measured


def _predictions(model, data, *, marginals, top):
    """Lists of predictions, of as many rows at a time as memory bears."""
    n_rows, n_labels = data.X.shape[0], len(model.schema.label_names)
    step = max(1, CELLS_PER_CHUNK // (n_labels * (top or 1)))
    for start in range(0, n_rows, step):
        distribution = model.distribution(data.rows(slice(start, start + step)))
        if top:
            sets, log_probs = distribution.top_sets(top)
        else:
            sets = model.decide(distribution)[:, None]
            log_probs = distribution.log_prob(sets[:, 0])[:, None]
        yield list(_records(model, start, sets, log_probs, distribution.marginals() if marginals else None, top))


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


def tag(
    model_file: ModelFile,
    file: Annotated[str, typer.Argument(metavar="ROWS", help=DATA_HELP)],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="CSV file of what was decided; default: beside the data file, its stem + -confirmed.csv.",
        ),
    ] = None,
    format: FormatOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 is any free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Go through rows on a page: confirm or reject labels and see the others move.

    The page is for this machine, and for who knows its address, which holds a token. Every click is saved at once, as 1
    (present), 0 (absent) or nothing (nobody looked) in the columns of the labels; the column row counts from 1. The
    same command goes on from an existing file, unless that is about other rows. Label columns that the rows may have
    are ignored. Ctrl-C ends it.

    Example: `mlrh tag songs.mlrh new.csv --output confirmed.csv`
    """
    console = Console(stderr=True)
    target = _decisions_file(file, output)
    _output.check_output(target, [str(model_file), file])
    from mlrh.web._server import make_session, run_page

    with _output.warnings_as_notes(console):
        model = load_model(model_file)
        data = read_data(file, (), format, model.schema)
        session, about = make_session(model, data, output=target)
    try:
        run_page(session, about, port=port, open_browser=browser, tell=lambda sentence: _output.say(console, sentence))
    except KeyboardInterrupt:
        kept = f"what was decided is in {target}, and the same command goes on from there."
        _output.say(console, f"Stopped; {kept if Path(target).exists() else 'nothing was decided.'}")
        raise


def _decisions_file(file, output):
    from mlrh.data._sources import parts_of

    if output == "-":
        raise ValueError("Decisions are saved with every click, so they need a file; give its name with --output.")
    if output is None and file == "-":
        raise ValueError("Decisions about standard input need a file; give its name with --output.")
    return output or str(Path(file).parent / f"{parts_of(Path(file).name)[0]}-confirmed.csv")
