"""The commands that run experiments, compare and reproduce, with their progress; and the list of public data sets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlrh._words import left_in_words
from mlrh.cli._inputs import (
    DataDirOption,
    DateOption,
    FormatOption,
    IdOption,
    IgnoreOption,
    JobsOption,
    LabelsOption,
    NominalOption,
    NumberOption,
    SeparatorOption,
    TextOption,
    UnknownOption,
    chosen_labels,
    column_kinds,
    complete_rows,
    is_public,
    read_table,
)
from mlrh.cli._output import quiet_if_closed, say, visible, warnings_as_notes

METHODS = (  # written out, so that --help needs none of what they are made of; a test compares
    "mlrh-rbf, mlrh-rbf-observed, mlrh-rbf-open, mlrh-linear, mlrh-linear-observed, mlrh-linear-open, mlrh-auto, "
    "br-svm, lp-svm, lp-lr, br-lr, cc-lr, lp-rf, ml-knn, iblr, iblr-plus, corrlog, ccnet, pcc-lr"
)
Full = Annotated[bool, typer.Option("--full", metavar="", help="Whole grids, 5 inner folds and five outer seeds.")]


def reproduce(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for records and report.")
    ] = Path("reproduction"),
    full: Full = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME",
            help="Data set of the catalogue, or digits; may be repeated. Default: scene, emotions.",
        ),
    ] = None,
    data_dir: DataDirOption = None,
    jobs: JobsOption = None,
) -> None:
    """Reproduce the paper's tables beside its published figures, as a page to open.

    Writes records.jsonl, report.md and report.html. A run that was stopped, even by kill -9, goes on where it was when
    the same command is given again.

    Example: `mlrh reproduce --data-dir data --output reproduction`
    """
    from mlrh.experiments._protocol import PROFILES
    from mlrh.experiments._reproduce import PAPER_SETS, paper_datasets
    from mlrh.experiments._reproduce import reproduce as run

    found, left = paper_datasets(dict.fromkeys(data or PAPER_SETS), data_dir)
    console = Console(stderr=True)
    for sentence in left:
        say(console, f"Left out: {sentence}")
    with progress_on(console, output) as report:
        page = run(found, PROFILES["full" if full else "quick"], output, left=left, n_jobs=jobs, report=report)
    _publish(page, output)


def compare(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Data file (ARFF, LIBSVM, CSV, JSON lines, Parquet; also .gz) or a name of `mlrh datasets`.",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="Instead of a file: public, the comparison on ten public sets."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--sets", metavar="NAME", help="With --suite: only this set; may be repeated. Default: all."),
    ] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option(
            "--seeds", metavar="N", help="With --suite: only the folds of this seed; may be repeated. Default: all."
        ),
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
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            metavar="NAME",
            help=f"One of {METHODS}; with --suite, a method of its page. Repeatable. Default: all.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for records and report; default: the stem or suite + -comparison.",
        ),
    ] = None,
    full: Full = False,
    data_dir: DataDirOption = None,
    jobs: JobsOption = None,
) -> None:
    """Compare MLRH with other methods on your own file, by nested cross validation.

    Every method sees the same 5 outer folds and chooses its hyperparameters by cross validation on the training part.
    A run that was stopped goes on where it was. With --suite, the methods are compared on public sets; parts of that,
    chosen by --methods, --sets and --seeds, add to the records of the same folder, and the page shows all of them.

    Rows with an --unknown label are left out, since most methods can't learn from them.

    Example: `mlrh compare songs.csv --labels happy,sad,calm --method mlrh-linear --method br-lr`
    """
    from mlrh.estimators._table_features import expanded
    from mlrh.experiments._protocol import PROFILES, Dataset
    from mlrh.experiments._reproduce import compare as run

    if (file is None) == (suite is None):
        raise ValueError("Name a data file, or --suite public for the comparison on public sets.")
    kinds = column_kinds(id=id, text=text, date=date, nominal=nominal, number=number, ignored=ignore)
    if suite is None and (sets or seeds):
        raise ValueError("--sets and --seeds are parts of a suite; leave them out, or name --suite public alone.")
    if suite is not None and (labels or kinds or full or any(own is not None for own in (separator, unknown, format))):
        raise ValueError("The sets of a suite say what their columns are; leave out --full and the options on columns.")
    if suite is not None:
        _compare_suite(suite, sets, method, seeds, output, data_dir, jobs)
        return
    families = _families(method)
    written = {"separator": separator, "unknown": unknown}
    name, table = _named_data(file, labels, format, data_dir, columns=kinds, **written)
    dataset = Dataset(name, expanded(table))
    _check_size(dataset)
    output = output or Path(f"{dataset.name}-comparison")
    with progress_on(Console(stderr=True), output) as report:
        page = run(dataset, families, PROFILES["full" if full else "quick"], output, n_jobs=jobs, report=report)
    _publish(page, output)


def _compare_suite(suite, names, methods, seeds, output, data_dir, jobs):
    from mlrh.experiments._protocol import SUITES
    from mlrh.experiments._public import JUDGED
    from mlrh.experiments._reproduce import compare_suite, public_dataset

    profiles = _among(SUITES, suite, "suite")
    for name in names or ():
        _among(profiles, name, "data set of the suite")
    for method in methods or ():
        _among(JUDGED, method, "method of the suite")
    known = sorted({seed for profile in profiles.values() for seed in profile.seeds})
    for seed in seeds or ():
        if seed not in known:
            raise ValueError(
                f"No set of the suite has folds of seed {seed}; there are seeds {', '.join(map(str, known))}."
            )
    profiles = {name: _with_seeds(profile, seeds) for name, profile in profiles.items()}
    found = [public_dataset(name, data_dir) for name in dict.fromkeys(names or profiles) if profiles[name].seeds]
    methods = tuple(dict.fromkeys(methods or JUDGED))
    output = output or Path(f"{suite}-comparison")
    with progress_on(Console(stderr=True), output) as report:
        page = compare_suite(found, profiles, methods, output, n_jobs=jobs, report=report)
    _publish(page, output)


def _with_seeds(profile, seeds):
    """The profile with only those of its seeds that are asked for."""
    return replace(profile, seeds=tuple(seed for seed in profile.seeds if not seeds or seed in seeds))


def _among(known, name, what):
    if name not in known:
        raise ValueError(f"Unknown {what} {name!r}; there are {', '.join(known)}.")
    return known[name]


def datasets(data_dir: DataDirOption = None) -> None:
    """List the public data sets by name, and whether they are there.

    Example: `mlrh datasets --data-dir data`
    """
    from mlrh.data._catalogue import CATALOGUE, is_here

    table = Table("name", *("N", "D", "K", "cardinality", "largest set"), "here", box=None, pad_edge=False)
    for column in table.columns[1:6]:
        column.justify = "right"
    for entry in CATALOGUE.values():
        place = is_here(entry.name, data_dir=data_dir) or "no, would be downloaded"
        numbers = (entry.n_samples, entry.n_features, entry.n_labels)
        table.add_row(entry.name, *map(str, numbers), f"{entry.cardinality:.3f}", str(entry.max_labels), place)
    with quiet_if_closed():
        Console(width=max(Console().width, 80)).print(table)  # a narrow terminal wraps lines, it cuts none


def _publish(page, folder):
    from mlrh.experiments._report import to_terminal, write_report

    try:  # printed before it is written: a full disk costs the files, not the figures
        with quiet_if_closed():
            to_terminal(page, Console())
    finally:
        paths = write_report(page, folder)
    say(Console(stderr=True), f"Written: {', '.join(map(str, paths))}")
    with quiet_if_closed():
        for line in page.closing:
            say(Console(), line)


def _families(methods):
    from mlrh.experiments._methods import FAMILIES

    unknown = [name for name in methods or () if name not in FAMILIES]
    if unknown:
        raise ValueError(f"Unknown method {unknown[0]!r}; the methods are {', '.join(FAMILIES)}.")
    return tuple(dict.fromkeys(methods)) if methods else tuple(FAMILIES)


def _named_data(file, labels, format, data_dir, **options):
    """A name for tables and the complete rows, of a file or of the catalogue."""
    with warnings_as_notes(Console(stderr=True)):
        data = complete_rows(read_table(file, chosen_labels(labels), format, data_dir, **options))
    return file if is_public(file) else data.name, data


def _check_size(dataset):
    from mlrh.experiments._protocol import N_FOLDS

    n_rows, n_labels = dataset.data.Y.shape
    if n_labels < 2:
        raise ValueError(f"{dataset.name} has {n_labels} label; label sets can be compared from 2 labels on.")
    if n_rows < 5 * N_FOLDS:
        raise ValueError(f"{dataset.name} has {n_rows} rows; {N_FOLDS} outer folds with inner ones need {5 * N_FOLDS}.")


# Progress: a bar on a terminal, one line per finished task elsewhere


@contextmanager
def progress_on(console: Console, folder: Path) -> Iterator[Callable]:
    """Gives the function (stage, progress) that an experiment calls; an interrupt is told where the records are."""
    try:
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            fields = (TextColumn("{task.fields[left]}"), TextColumn("[dim]{task.fields[running]}"))
            with Progress(*columns, *fields, console=console) as bar:
                yield _on_bar(bar)
        else:
            yield _in_lines(console)
    except KeyboardInterrupt:
        records = folder / "records.jsonl"
        say(console, f"Stopped; what is finished is in {records}, and the same command goes on from there.")
        raise


def _on_bar(bar):
    stages: dict = {}

    def report(stage, progress):
        if stage not in stages:
            stages[stage] = bar.add_task(escape(visible(stage)), total=progress.n_tasks, left="", running="")
        running = ", ".join(dict.fromkeys(f"{task.dataset} {task.family}" for task in progress.running))
        done = progress.n_done == progress.n_tasks
        left = "" if done else left_in_words(progress.seconds_left)
        bar.update(stages[stage], completed=progress.n_done, left=left, running=escape(visible(running)))
        if progress.failure:
            bar.console.print(visible(_failed(progress)), markup=False)

    return report


def _in_lines(console):
    def report(stage, progress):
        task = progress.finished
        if task is None:
            return
        what = f"{task.dataset}, {task.family}, seed {task.seed}, fold {task.fold}"
        left = left_in_words(progress.seconds_left)
        line = f"{stage}: {progress.n_done} of {progress.n_tasks}, {what}{', ' if left else ''}{left}"
        say(console, _failed(progress) if progress.failure else line)

    return report


def _failed(progress):
    task = progress.finished
    return f"Failed: {task.family} on {task.dataset}, fold {task.fold}: {progress.failure}"
