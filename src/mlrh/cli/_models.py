"""The commands that make and use a model: fit, predict, evaluate, tag and export."""

import hashlib
import json
import math
import shlex
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from mlrh._words import described_data
from mlrh.cli import _output, _parts
from mlrh.cli._decided import (
    AlsoOption,
    DecidedOption,
    LikeOption,
    can_fit_like,
    fit_command,
    read_decided,
    settings_like,
)
from mlrh.cli._inputs import (
    DATA_HELP,
    FORMAT_HELP,
    OF_ANSWERS,
    OF_CHOICE,
    TRAINING_HELP,
    DataDirOption,
    DateOption,
    Format,
    FormatOption,
    GroupsOption,
    IdOption,
    IgnoreOption,
    JobsOption,
    LabelsOption,
    NominalOption,
    NumberOption,
    SeparatorOption,
    TextOption,
    UnknownOption,
    check_finite,
    chosen_labels,
    column_kinds,
    complete_rows,
    load_model,
    names_of,
    option_of,
    read_data,
    read_groups,
    read_labelled_rows,
    read_table,
    read_with_cells,
)
from mlrh.cli._parts import MemoryOption, SchedulerOption, WorkersOption

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file that `mlrh fit` saved.")]
DataFile = Annotated[str, typer.Argument(metavar="FILE", help=DATA_HELP)]
# Written out, so that --help needs none of what tunes them; a test compares.
Thresholds = Literal[
    "f1_macro", "f1_micro", "f1_example", "jaccard_macro", "jaccard_micro", "jaccard", "hamming", "exact_match"
]


def fit(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help=TRAINING_HELP)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Model file; default: the data file's stem + .mlrh."),
    ] = None,
    labels: LabelsOption = None,
    separator: SeparatorOption = None,
    unknown: UnknownOption = None,
    id: IdOption = None,
    text: TextOption = None,
    date: DateOption = None,
    nominal: NominalOption = None,
    number: NumberOption = None,
    ignore: IgnoreOption = None,
    format: FormatOption = None,
    data_dir: DataDirOption = None,
    label_space: Annotated[
        Literal["auto", "cardinality", "observed", "open"],
        typer.Option(
            "--label-space",
            rich_help_panel=OF_CHOICE,
            help="All sets of the sizes that the rows show, only the sets they show, or all with a bias for these.",
        ),
    ] = "auto",
    groups: GroupsOption = None,
    scores: Annotated[
        Literal["auto", "linear", "rbf", "boosted"],
        typer.Option(
            "--scores", "--kernel", rich_help_panel=OF_CHOICE, help="Linear scores, an RBF kernel or boosted trees."
        ),
    ] = "auto",
    metric: Annotated[
        Literal["exact_match", "hamming", "f1", "jaccard", "log_loss"],
        typer.Option(
            "--metric",
            "--decision",
            rich_help_panel=OF_CHOICE,
            help="What predictions are to do best: whole sets, single labels, F1, Jaccard; or their probability.",
        ),
    ] = "exact_match",
    seconds: Annotated[
        float,
        typer.Option(
            "--time",
            min=0.1,
            metavar="SECONDS",
            rich_help_panel=OF_CHOICE,
            help="Time for the choice; fits that have begun are finished.",
        ),
    ] = 60.0,
    quality: Annotated[
        Literal["best", "fast"],
        typer.Option("--quality", rich_help_panel=OF_CHOICE, help="All candidates and a pool of them, or a few only."),
    ] = "best",
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            min=2,
            metavar="N",
            rich_help_panel=OF_CHOICE,
            help="Folds of the cross validation; default: 5, fast: 3.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, max=2**32 - 1, metavar="N", rich_help_panel=OF_CHOICE, help="Seed of the folds."),
    ] = 0,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            metavar="",
            rich_help_panel=OF_ANSWERS,
            help="Correct all probabilities by a temperature that held-out rows ask for.",
        ),
    ] = False,
    thresholds: Annotated[
        Thresholds | None,
        typer.Option(
            "--thresholds",
            rich_help_panel=OF_ANSWERS,
            help="Answer with the labels above thresholds that are tuned for this, not by --metric.",
        ),
    ] = None,
    refuse_below: Annotated[
        float,
        typer.Option(
            "--refuse-below",
            min=0.0,
            max=1.0,
            metavar="P",
            rich_help_panel=OF_ANSWERS,
            help="Don't answer rows whose set is less probable than this.",
        ),
    ] = 0.0,
    jobs: JobsOption = None,
    decided: DecidedOption = None,
    like: LikeOption = None,
    also: AlsoOption = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
) -> None:
    """Fit a model to a table, and save it.

    Tables (CSV, JSON lines, Parquet) may hold text, dates and identifiers: what a column was taken for is told, and
    --text, --date, --nominal, --number, --id and --ignore say otherwise.

    Scores (linear, RBF kernel, boosted trees where XGBoost is installed), their settings and the label space are chosen
    by cross validation, and pooled where that helps. Ctrl-C ends the search with the best so far. With --groups the
    label space is that of the groups. An existing model file is replaced once the new one is complete; any other
    existing file is refused.

    --calibrate, --thresholds and --refuse-below are part of the model, and hold for predict, evaluate, tag and serve.

    With --decided the labels are what a person decided on the page of `mlrh tag`. --labels and --separator are then
    about a column of label sets in the file --also.

    FILE may be a quoted pattern that matches several files. These need not fit into memory: they are gone through in
    this process, or by the workers of a Dask cluster, which must be able to read them. Settings are chosen on a sample
    of the rows, for linear scores. Files with text, dates, label sets or unknown labels are read into memory as one
    table, whose columns are what the first file shows.

    Example: `mlrh fit songs.csv --labels happy,sad,calm --output songs.mlrh`

    Example: `mlrh fit articles.csv --labels tags --separator ';' --text title --ignore url`

    Example: `mlrh fit 'parts/*.parquet' --labels happy,sad,calm --output songs.mlrh --workers 2 --memory 4GB`

    Example: `mlrh fit new.csv --decided confirmed.csv --also songs.csv`
    """
    console = _output.words_console()
    check_finite(time=seconds, refuse_below=refuse_below)
    chosen = chosen_labels(labels)
    _parts.check_memory(workers, memory)
    files = _parts.files_of(file)
    target = _model_file(file, output, [*(labels or []), *filter(None, [decided, like, also])])
    space = _label_space(label_space, groups)
    answers: dict[str, Any] = {"calibrate": calibrate, "thresholds": thresholds, "refuse_below": refuse_below}
    kinds = column_kinds(id=id, text=text, date=date, nominal=nominal, number=number, ignored=ignore)
    from mlrh.automatic import choose
    from mlrh.data._parts import read_as_one
    from mlrh.persistence import save

    about_columns = {"columns": kinds, "separator": separator, "unknown": unknown}
    is_many = scheduler is not None or workers is not None
    if len(files) > 1 and not is_many:
        is_many = decided is not None or not _parts.must_be_one_table(files, chosen, format=format, **about_columns)
    _refuse_beside_decisions(decided, labels or separator, unknown, like, also, is_many)
    if is_many:
        _refuse_for_many(file, scores, separator, unknown)
        options = {"metric": metric, "time_budget": seconds, "label_space": space, "n_folds": folds, "seed": seed}
        options |= answers
        with _stop_told(console):
            with (
                _output.warnings_as_notes(console),
                _parts.client_of(scheduler, workers, memory) as client,
                _output.progress_bar(console) as report,
            ):
                about = {"name": file, "columns": kinds, "format": format, "client": client}
                model, auto = _parts.fit_files(files, chosen, **about, **options, n_jobs=jobs, report=report)
            _tell(console, model, auto)
            _output.say(console, f"\nFitted to {model.settings['n_rows']:,} rows of {len(files)} files.")
            save(model, target)
        _output.say(console, f"Saved: {target}")
        return
    options = {"metric": metric, "time_budget": seconds, "quality": quality, "scores": scores, "label_space": space}
    alike, options = settings_like(like, {**options, "n_folds": folds, "seed": seed, **answers}, context)
    with _output.warnings_as_notes(console):
        if len(files) > 1:
            data = replace(read_as_one(files, chosen, format=format, **about_columns), name=file)
        elif decided is None:
            data = read_table(files[0], chosen, format, data_dir, **about_columns)
        else:
            rows_of = {"model": alike, "also": also, "labels": chosen, **about_columns}
            data = read_decided(files[0], decided, **rows_of, format=format)
    console.print(_output.facts({"data": described_data(data)}), highlight=False)
    with _stop_told(console):
        with _output.progress_bar(console) as report:
            model = choose(data, **options, n_jobs=jobs, report=report)
        _tell(console, model, model.classifier)
        _output.say(console, "\nThe settings were chosen by the same folds, so this is slightly optimistic.")
        if decided is None and len(files) == 1:
            told = {"separator": separator, "unknown": unknown, "format": format, "data_dir": data_dir}
            shown = _compare_command(files[0], labels, kinds, **told)
            _output.say(console, f"For an estimate that isn't: {shown}\n")
        save(model, target)  # after all is said: a full disk costs the file, not the figures
    _output.say(console, f"Saved: {target}")


@contextmanager
def _stop_told(console):
    """Ctrl-C before the model is saved is told."""
    try:
        yield
    except KeyboardInterrupt:
        _output.say(console, "Stopped before the model was saved: there is no file of it.")
        raise


def _compare_command(file, labels, kinds, **options):
    """The command that judges the same choice by rows that it doesn't know; options are those of both commands."""
    given = [("--labels", own) for own in labels or ()]
    given += [(f"--{name.replace('_', '-')}", str(own)) for name, own in options.items() if own is not None]
    given += [(option_of(kind), name) for name, kind in kinds.items()]
    command = ["mlrh", "compare", "FILE" if file == "-" else file]
    return shlex.join([*command, *(part for option in given for part in option), "--method", "mlrh-auto"])


def _refuse_beside_decisions(decided, labels, unknown, like, also, is_many):
    if decided is None and (like or also) is not None:
        raise ValueError("--like and --also go with --decided; give the file of decisions, too.")
    if decided is not None and also is None and labels is not None:
        what = "leave out --labels and --separator, which are for a column of labels in --also"
        raise ValueError(f"The file of decisions says which labels there are, and what is known of them; {what}.")
    if decided is not None and unknown is not None and also is None:
        raise ValueError(
            "Labels that nobody decided are unknown; --unknown is for the labels in --also, so leave it out."
        )
    if decided is not None and is_many:
        raise ValueError("Decisions are about the rows of one file; leave out --scheduler and --workers, and name one.")


def _refuse_for_many(file, scores, separator, unknown):
    if file == "-":
        raise ValueError("Standard input is one file, which workers can't read; give the names of files.")
    if separator is not None or unknown is not None:
        raise ValueError(
            "Workers take a column of 0 and 1 for each label; leave out --separator and --unknown, or the workers."
        )
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
    _refuse_other_file(target, "--output")
    return target


def _refuse_other_file(target, option):
    if target.exists() and target.stat().st_size and not _is_model_file(target):
        raise ValueError(f"{target} exists and is not a model file; remove it or choose another name with {option}.")


def _is_model_file(path):
    from mlrh.persistence import HEADER

    try:
        with zipfile.ZipFile(path) as archive:
            return HEADER in archive.namelist()
    except zipfile.BadZipFile:
        return False


def _tell(console, model, auto):
    from mlrh.estimators.auto import of_folds_with_rows

    settings = model.settings
    console.print(_output.facts(_output.described_choice(model, auto)), highlight=False)
    shares = of_folds_with_rows(model.validation["impossible_share"])
    impossible = sum(shares) / len(shares) if shares else math.nan
    for note in dict.fromkeys([*settings["notes"], *_output.notes_on(settings, impossible)]):
        _output.say(console, f"Note: {note}")
    console.print(f"\nThe best candidates, by the log-loss of {settings['n_folds']} folds:", highlight=False)
    console.print(_output.leaderboard(auto), highlight=False)
    console.print(f"\nCross validation of the first, {settings['n_folds']} folds:", highlight=False)
    console.print(_output.spread_table(model.validation), highlight=False)
    rule = "\n".join(_output.described_rule(model))
    if rule:
        _output.say(console, f"\n{rule}")


MAX_TOP = 1000  # sets of a row, more than anybody reads
CELLS_PER_CHUNK = 2**20  # of the label sets that are in memory at once
TEXTS_PER_CHUNK = 2**12  # rows whose words are counted at once: 100 MB where each has a page of text


def predict(
    model_file: ModelFile,
    file: DataFile,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write; its suffix says the format. - is standard output. For several files, a folder.",
        ),
    ] = "-",
    format_in: Annotated[Format | None, typer.Option("--format", "--format-in", help=FORMAT_HELP)] = None,
    to: Annotated[
        _output.Target | None, typer.Option("--to", help="Format to write; default: by the suffix, else csv.")
    ] = None,
    marginals: Annotated[
        bool, typer.Option("--marginals", metavar="", help="Also the probability of each label, in columns P(name).")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            max=MAX_TOP,
            metavar="N",
            help="The N most probable label sets of each row, in N lines with a column rank.",
        ),
    ] = None,
    id: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column to carry to the predictions, beside the model's own. May be repeated.",
        ),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", metavar="", help="All columns of the file, with the predictions after them.")
    ] = False,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    memory: MemoryOption = None,
) -> None:
    r"""Predict label sets for new rows.

    What is written has the columns row (from 1), those that identify rows, labels, and probability, that of this label
    set being right. With --append the file's own columns take the place of row. A model with --refuse-below adds
    answered, 0 where there are no labels because the set would be less probable than that. With --top the sets are the
    most probable ones, whatever the decision, also of rows that aren't answered.

    Label columns of the file are ignored, and so are columns that the model doesn't know, whatever they hold. Values of
    nominal columns that it doesn't know count as missing, and are noted.

    Labels are a list in jsonl and parquet. In CSV ; separates them; a ; or \ within a name has a \ before it, and a
    name that a spreadsheet would run, such as =1+1, a ' (numbers stay as they are). An existing file is replaced only
    if it holds predictions.

    For a quoted pattern, each file that it matches is answered in a file of the same stem in the folder --output.
    Answers that are newer than their rows are left as they are, so that the same command goes on where it was
    interrupted; with another model, other options or rows of another folder all are made anew. Workers of a Dask
    cluster share the files out.

    Example: `mlrh predict songs.mlrh new.csv --marginals --output predictions.csv`

    Example: `mlrh predict songs.mlrh new.csv --append --output answered.csv`

    Example: `mlrh predict songs.mlrh 'parts/*.csv' --output answers --workers 2`
    """
    console = Console(stderr=True)
    _parts.check_memory(workers, memory)
    options = {"format_in": format_in, "marginals": marginals, "top": top, "id": id or [], "append": append}
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
        _write_one(to, options, load_model(model_file), file, output)
    if output != "-":
        _output.say(console, f"Written: {output}")


def _predict_many(console, model_file, files, folder, to, cluster, options):
    """Predictions for each file into a folder."""
    if folder == "-" or Path(folder).is_file():
        raise ValueError(f"Several files are answered by as many; give a folder with --output, not {folder}.")
    Path(folder).mkdir(parents=True, exist_ok=True)
    outputs = _parts.outputs_of(files, folder, f".{to}")
    for output in outputs:
        _output.check_output(output, [str(model_file), *files])
        _output.check_replaced(output)
    with _output.warnings_as_notes(console):
        noted = {**options, "model": _digest(model_file)}  # before it is loaded: it may be replaced
        model = load_model(model_file)
        about = {
            "options_file": _parts.noted_options(folder, noted, dict(zip(outputs, files, strict=True))),
            "model": model,
            "predict_file": partial(_write_one, to, options),
        }
        with _parts.client_of(*cluster) as client:
            for output, is_new in _parts.predict_files(files, outputs, client=client, **about):
                _output.say(console, f"{'Written' if is_new else 'Finished before'}: {output}")


def _digest(path):
    if not path.is_file():  # a pipe might never end; why it is no model is told when it is loaded
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_one(to, options, model, file, output):
    """Read one file of rows and write its predictions."""
    marginals, top, append = options["marginals"], options["top"], options["append"]
    kept = {"columns": column_kinds(id=options["id"]), "keep_all": append}
    data = read_data(file, (), options["format_in"], model.schema, **kept)  # labels in the file aren't looked at
    columns = [*(["rank"] if top else []), "labels", "probability", *_marks(model, top)]
    columns += [f"P({name})" for name in model.schema.label_names] if marginals else []
    columns = [*data.kept, *columns] if append else ["row", *data.kept, *columns]
    _output.check_columns(columns, data.name)
    found = _predictions(model, data, marginals=marginals, top=top)
    _output.write_predictions(found, columns, output, to, kept=data.kept)


def evaluate(
    model_file: ModelFile,
    file: DataFile,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            metavar="NAMES",
            help="Label columns if they have other names than in training, in the order of training; separated by "
            "commas (a name that holds one: in double quotes), or a .txt file with one name per line. Or the one "
            "column that lists the labels of each row.",
        ),
    ] = None,
    separator: SeparatorOption = None,
    unknown: UnknownOption = None,
    format: FormatOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure a model on rows whose labels are known, and that it wasn't fitted to.

    Measures of the sets, of the ranking of labels by their probability, and of each label. A row of a LIBSVM file, or
    of a column of label sets, with labels that the model doesn't know is no exact match, and its set held impossible;
    the other measures are of the model's labels. A model with --refuse-below is measured on the rows that it answers.
    Rows with an --unknown label are left out.

    Example: `mlrh evaluate songs.mlrh test.csv`
    """
    console = Console(stderr=True)
    _output.standard_output()
    with _output.warnings_as_notes(console):
        model = load_model(model_file)
        written = {"separator": separator, "unknown": unknown}
        data = complete_rows(read_labelled_rows(file, model, chosen_labels(labels), format, **written))
        measured, impossible = _measured(model, data)
    with _output.quiet_if_closed():
        if as_json:
            typer.echo(json.dumps(measured))
        else:
            _output.print_measures(Console(), measured, described_data(data))
    for note in _output.notes_on(model.settings, impossible):
        _output.say(console, f"Note: {note}")


def _measured(model, data):
    """The measures of the model, of all rows that it answers, and the share of sets of its labels it holds impossible.

    Labels that it doesn't know come after its own; a row with such labels is never right.
    """
    import numpy as np

    from mlrh import metrics
    from mlrh.data.containers import listed

    n_labels = len(model.schema.label_names)
    Y, is_foreign = data.Y[:, :n_labels], data.Y[:, n_labels:].any(axis=1)
    distribution = model.distribution(data)
    answer = model.answer(distribution)
    own_log_prob, answered = distribution.log_prob(Y), answer.is_answered
    log_prob = np.where(is_foreign, -np.inf, own_log_prob)
    counts = {"n_rows": len(Y), "n_features": data.X.shape[1], "n_labels": n_labels}
    if model.rule.refuse_below:
        counts["answered_share"] = float(answered.mean())
    if not answered.any():
        raise ValueError(
            f"{data.name}: none of {len(Y)} rows is answered with a probability of {model.rule.refuse_below:g}, so "
            "that there is nothing to measure; fit with a lower --refuse-below."
        )
    Y, predicted, marginals = Y[answered], answer.sets[answered], distribution.marginals()[answered]
    measured = metrics.evaluate(Y, predicted, log_prob[answered])
    if is_foreign.any():
        measured["exact_match"] = float(((predicted == Y).all(axis=1) & ~is_foreign[answered]).mean())
        names = listed(data.label_names[n_labels:], 3)
        what = f"{is_foreign.sum()} of {len(data.Y)} rows have labels that the model doesn't know ({names})"
        warnings.warn(f"{data.name}: {what}, so they count as not matched.", UserWarning, stacklevel=2)
    by_label = metrics.by_label(Y, predicted, marginals)
    named = [{"name": name, **own} for name, own in zip(model.schema.label_names, by_label, strict=True)]
    impossible = float(np.isneginf(own_log_prob[answered]).mean())
    return {**counts, **measured, **metrics.ranking(Y, marginals), "labels": named}, impossible


def _predictions(model, data, *, marginals, top):
    """Lists of predictions, of as many rows at a time as memory bears."""
    import numpy as np

    n_rows, n_labels = data.X.shape[0], len(model.schema.label_names)
    step = max(1, CELLS_PER_CHUNK // (n_labels * (top or 1)))
    step = min(step, TEXTS_PER_CHUNK) if model.schema.texts else step
    for start in range(0, n_rows, step):
        rows = data.rows(slice(start, start + step))
        distribution = _distribution(model, rows, start)
        if top:
            sets, log_probs = distribution.top_sets(top)
            # NaN where the space has no more sets.
            probabilities = np.where(np.isneginf(log_probs), np.nan, model.rule.probability(log_probs))
            is_answered = None
        else:
            answer = model.answer(distribution)
            sets, probabilities, is_answered = answer.sets[:, None], answer.probability[:, None], answer.is_answered
        marks = dict.fromkeys(_marks(model, top), is_answered)
        of_labels = distribution.marginals() if marginals else None
        yield list(_records(model, start, sets, probabilities, of_labels, marks, top, rows.kept))


def _marks(model, top):
    """The column that says which rows are answered, where a model refuses some."""
    return ["answered"] if model.rule.refuse_below and not top else []


def _distribution(model, rows, start):
    from mlrh.automatic import FarValueError

    try:
        return model.distribution(rows)
    except FarValueError as error:
        raise error.after(start) from error


def _records(model, start, sets, probabilities, marginals, marks, top, kept):
    import numpy as np

    names = model.schema.label_names
    columns = [f"P({name})" for name in names]
    for row, own_sets in enumerate(sets):
        also = {mark: int(values[row]) for mark, values in marks.items()}
        also |= {} if marginals is None else dict(zip(columns, marginals[row].tolist(), strict=True))
        of_file = {name: values[row] for name, values in kept.items()}
        for rank, labels in enumerate(own_sets):
            if np.isnan(probabilities[row, rank]):
                break
            yield {
                "row": start + row + 1,
                **of_file,
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
            metavar="FILE",
            help="CSV file of what was decided; default: beside the data file, its stem + -confirmed.csv.",
        ),
    ] = None,
    format: FormatOption = None,
    show: Annotated[
        str | None,
        typer.Option(
            "--show",
            metavar="COLUMNS",
            help="Columns to show with each row, separated by commas; default: all but labels and numbers of the "
            "model. In these, addresses of images (https) are loaded and shown, too.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", metavar="FOLDER", help="Folder of the images whose paths cells hold; none outside is read."
        ),
    ] = None,
    also: Annotated[
        str | None,
        typer.Option(
            "--also", metavar="FILE", help="File of labelled rows to retrain with, too, such as the first ones."
        ),
    ] = None,
    unknown: Annotated[
        str | None,
        typer.Option(
            "--unknown",
            metavar="TEXT",
            help="Text of labels nobody looked at in the file --also. Default: all are known.",
        ),
    ] = None,
    retrained: Annotated[
        str | None,
        typer.Option(
            "--retrained", metavar="FILE", help="Model file of the key r; default: the output's stem + .mlrh."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port of the page; 0 is any free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", metavar="", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Go through rows on a page: confirm or reject labels and see the others move.

    The page is for this machine, and for who knows its address, which holds a token. Every click is saved at once, as 1
    (present), 0 (absent) or nothing (nobody looked) in the columns of the labels; the column row counts from 1. The
    same command goes on from an existing file, unless that is about other rows. Label columns that the rows may have
    are ignored. The key r fits anew with what was decided, as `mlrh fit ROWS --decided` does. Ctrl-C ends it.

    Example: `mlrh tag songs.mlrh new.csv --output confirmed.csv`

    Example: `mlrh tag songs.mlrh new.csv --show title,url,photo --images photos --also songs.csv`
    """
    console = Console(stderr=True)
    target = _decisions_file(file, output)
    _output.check_output(target, [str(model_file), file])
    if unknown is not None and also is None:
        raise ValueError("--unknown is for the labels in --also; name that file, or leave it out.")
    kept = Path(retrained or f"{target.removesuffix('.gz').removesuffix('.csv')}.mlrh")
    _output.check_output(str(kept), [str(model_file), file, *filter(None, [also])], "--retrained")
    _refuse_other_file(kept, "--retrained")
    from mlrh.web._retraining import Retraining
    from mlrh.web._server import make_session, run_page
    from mlrh.web._tagging import Tagging

    with _output.warnings_as_notes(console):
        model = load_model(model_file)
        data = read_with_cells(file, format, model.schema)
        shown = None if show is None else names_of(show, "--show")
        session, about = make_session(model, data, output=target, show=shown, images=images)
    retraining = None
    if can_fit_like(model) and file != "-":
        command = fit_command(model_file, file, target, kept, also=also, unknown=unknown, format=format)
        retraining = Retraining(session, command, lambda: _asked_about(load_model(kept), data), kept=str(kept))
    try:
        tell = partial(_output.say, console)
        served = {"model": model, "name": model_file.stem}
        run_page(Tagging(session, about, retraining), port=port, open_browser=browser, tell=tell, **served)
    except KeyboardInterrupt:
        told = f"what was decided is in {target}, and the same command goes on from there."
        _output.say(console, f"Stopped; {told if Path(target).exists() else 'nothing was decided.'}")
        raise


def _asked_about(model, data):
    """What a retrained model says of the rows of a page."""
    from mlrh.web._retraining import Retrained

    return Retrained(model.distribution(data), model.rule.least_probability, model)


def _decisions_file(file, output):
    from mlrh.data._sources import parts_of

    if output == "-":
        raise ValueError("Decisions are saved with every click, so they need a file; give its name with --output.")
    if output is None and file == "-":
        raise ValueError("Decisions about standard input need a file; give its name with --output.")
    return output or str(Path(file).parent / f"{parts_of(Path(file).name)[0]}-confirmed.csv")


def export(
    model_file: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model file that `mlrh fit` or `mlrh.persistence.save` saved.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="ONNX file; default: the model file's stem + .onnx."),
    ] = None,
    float32: Annotated[
        bool,
        typer.Option("--float32", metavar="", help="Take features and give probabilities in float32, not float64."),
    ] = False,
) -> None:
    """Write a model as an ONNX file, which runs without Python.

    Inputs are X, the numeric features in the order of training, and a column of strings for each nominal feature.
    Outputs are label, probabilities, set_probability, sizes and scores, and of a model with --refuse-below answered.
    The file's metadata name features and labels. An existing file is replaced only if it is an ONNX file.

    Example: `mlrh export songs.mlrh --output songs.onnx`
    """
    console = Console(stderr=True)
    if output is not None and str(output) == "-":
        raise ValueError("An ONNX file can't be written to standard output; give its name with --output.")
    target = output or model_file.with_suffix(".onnx")
    _output.check_output(str(target), [str(model_file)])
    from mlrh._files import naming, replacing
    from mlrh.export import is_onnx, to_onnx
    from mlrh.persistence import load

    if target.exists() and target.stat().st_size and not is_onnx(target):
        raise ValueError(f"{target} exists and is not an ONNX file; remove it or choose another name with --output.")
    with _output.warnings_as_notes(console):
        exported = to_onnx(load(model_file), dtype="float32" if float32 else "float64")
    with naming(target), replacing(target) as (file,):
        file.write(exported.SerializeToString())
    _output.say(console, f"Written: {target}")
