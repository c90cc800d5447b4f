"""The paper reproduced, and a comparison on other data: which tasks, in which order, over processes, and the report.

Records are appended as they finish, so that a run that was stopped goes on where it was.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import joblib
import numpy as np
from scipy import sparse
from sklearn.datasets import load_iris, load_wine

from mlrh._processes import as_finished
from mlrh._words import described_data
from mlrh.data import DataError, MultilabelData, load, load_digit_scenes
from mlrh.data._catalogue import is_here
from mlrh.experiments import _pages as pages
from mlrh.experiments import _protocol as plans
from mlrh.experiments._methods import FAMILIES, PROGRAMS, available_programs
from mlrh.experiments._protocol import Dataset, Profile, Task, not_run, run_task
from mlrh.experiments._public import JUDGED
from mlrh.experiments._public_pages import suite_report
from mlrh.experiments._records import RecordFile, key_of
from mlrh.experiments._report import Report, without_empty

PAPER_SETS = ("scene", "emotions")
DIGITS = "digits"


def paper_datasets(names, data_dir=None) -> tuple[list[Dataset], list[str]]:
    """The data sets that can be had, and what can't; the built-in digit scenes stand in where none can.

    A name that isn't in the catalogue, or a folder that doesn't exist, is a DataError.
    """
    found, left = [], []
    for name in names:
        if name != DIGITS:
            is_here(name, data_dir=data_dir)
        try:
            found.append(digit_scenes() if name == DIGITS else Dataset(name, load(name, data_dir=data_dir)))
        except DataError as error:
            left.append(f"{name}: {error}")
    return found or [digit_scenes()], left


def digit_scenes() -> Dataset:
    """1,000 scenes to train and 500 to test, composed from different source images."""
    train, test = load_digit_scenes(1000, part="train"), load_digit_scenes(500, part="test")
    both = replace(train, X=np.vstack([train.X, test.X]), Y=np.vstack([train.Y, test.Y]), name=DIGITS)
    return Dataset(DIGITS, both, n_train_only=len(train.Y))


def multiclass_datasets() -> list[Dataset]:
    """Iris and Wine, one label per class."""
    return [_multiclass("iris", load_iris()), _multiclass("wine", load_wine())]


def _multiclass(name, bunch):
    Y = (bunch.target[:, None] == np.arange(len(bunch.target_names))).astype(np.int8)
    labels = tuple(str(label) for label in bunch.target_names)
    return Dataset(name, MultilabelData(bunch.data, Y, tuple(bunch.feature_names), labels, name))


@dataclass(frozen=True)
class Progress:
    """What a run tells whenever a task begins or ends; `failure` is the reason why the finished one has no record."""

    n_done: int
    n_tasks: int
    running: tuple[Task, ...]
    seconds_left: float | None
    finished: Task | None = None
    failure: str = ""


@dataclass
class _Run:
    """The open record file and what has failed so far."""

    file: RecordFile
    datasets: dict[str, Dataset]
    profile: Profile
    n_jobs: int | None
    report: Callable[[str, Progress], None]
    failures: list[str] = field(default_factory=list)

    def records_of(self, stage, tasks):
        """The records of the tasks, computed where the file lacks them."""
        tell = partial(self.report, stage)
        self.failures += run(tasks, self.datasets, self.profile, file=self.file, n_jobs=self.n_jobs, report=tell)
        keys = {key for task in tasks for key in task.keys}
        return [record for record in self.file.records if key_of(record) in keys]


def reproduce(datasets, profile, folder, *, left=(), n_jobs=None, report=lambda stage, progress: None) -> Report:
    """The report of the paper's tables, after running what the records in the folder lack.

    Parameters
    ----------
    datasets : list of Dataset, for Tables 6 and 7
    profile : Profile
    folder : path
        Holds records.jsonl.
    left : sequence of str, what the report says is missing
    n_jobs : int, default all cores
    report : function (stage, Progress), told of every step
    """
    small = multiclass_datasets()
    everything = {dataset.name: dataset for dataset in [*datasets, *small]}
    with RecordFile(Path(folder) / "records.jsonl") as file:
        work = _Run(file, everything, profile, n_jobs, report)
        programs = available_programs()
        multiclass = work.records_of(
            "Table 5", [t for d in small for t in plans.multiclass_tasks(d, profile, programs)]
        )
        descent = work.records_of("Objective by iteration", plans.descent_tasks(datasets[-1]))
        searched = work.records_of("Tuning BR-SVM", [t for d in datasets for t in plans.paper_search_tasks(d, profile)])
        tuned = [task for dataset in datasets for task in plans.paper_tasks(dataset, profile, searched)]
        as_paper = work.records_of("Table 7, tuned as the paper says", tuned)
        tasks = [t for d in datasets for t in plans.nested_tasks(d, profile, plans.REPRODUCED_FAMILIES)]
        nested = work.records_of("Table 7, nested", tasks)
    sections = (
        *pages.published_sections(nested, profile, protocol=plans.NESTED),
        *pages.published_sections(as_paper, profile, protocol=plans.PAPER),
        *pages.comparison_sections(nested, profile, {d.name: d.data.label_names for d in datasets}),
        *pages.multiclass_sections(multiclass, profile.n_multiclass_seeds),
        pages.statistics_section(datasets),
        *pages.descent_sections(descent),
        pages.hidden_variables_section(),
    )
    if len(programs) < len(PROGRAMS):
        left = (*left, "statsmodels in Table 5 is not installed; run: pip install statsmodels")
    options = "".join(f" --data {dataset.name}" for dataset in datasets)
    options = "" if options == "".join(f" --data {name}" for name in PAPER_SETS) else options
    command = f"mlrh reproduce{' --full' if profile.name == 'full' else ''}{options}"
    summary = (
        "The tables of A Hidden Variables Approach to Multilabel Logistic Regression (Jaemoon Lee and Hoda Shajari), "
        f"computed anew, beside its figures. Profile: {profile.name}.",
        *pages.missing(left, work.failures),
    )
    closing = pages.in_short(nested, as_paper, Path(folder) / "report.html")
    return Report("The paper, reproduced", summary, sections, pages.footer(command), closing)


def compare(dataset, families, profile, folder, *, n_jobs=None, report=lambda stage, progress: None) -> Report:
    """The report of the nested protocol on one data set; the parameters are those of `reproduce`."""
    with RecordFile(Path(folder) / "records.jsonl") as file:
        work = _Run(file, {dataset.name: dataset}, profile, n_jobs, report)
        nested = work.records_of("Comparing", plans.nested_tasks(dataset, profile, families))
    if not nested:
        raise ValueError(f"No method could be run: {work.failures[0]}.")
    names = {dataset.name: dataset.data.label_names}
    sections = (*pages.comparison_sections(nested, profile, names), *pages.meanings_section(nested))
    summary = (
        *pages.winners(nested),
        f"{described_data(replace(dataset.data, name=dataset.name))}. The same {plans.N_FOLDS} outer folds for all "
        f"methods, every hyperparameter chosen by {profile.inner_folds}-fold cross validation on the training part. "
        f"Profile: {profile.name}.",
        *(f"Note: {note}" for note in pages.notes_on(nested, profile)),
        *pages.missing((), work.failures),
    )
    command = f"mlrh compare{' --full' if profile.name == 'full' else ''}"
    return without_empty(Report(f"Comparison on {dataset.name}", summary, sections, pages.footer(command)))


def public_dataset(name, data_dir=None) -> Dataset:
    """A set of the comparison on public sets, with its published split where that is used."""
    if name not in plans.PUBLISHED_SPLITS:
        return Dataset(name, load(name, data_dir=data_dir))
    train, test = (load(name, part, data_dir=data_dir) for part in ("train", "test"))
    # Not load(name): the whole of bibtex has its rows in another order.
    both = replace(train, X=sparse.vstack([train.X, test.X], format="csr"), Y=np.concatenate([train.Y, test.Y]))
    return Dataset(name, both, n_train_only=len(train.Y), one_split=True)


def compare_suite(datasets, profiles, methods, folder, *, n_jobs=None, report=lambda stage, progress: None) -> Report:
    """The report of the comparison on public sets, after running what the records lack of some methods on some sets.

    The page is of all records in the folder, so that the comparison can be run in parts.

    Parameters
    ----------
    datasets : sequence of Dataset
    profiles : {name of a data set: Profile}
    methods : names of the methods
    folder, n_jobs, report : as for `reproduce`
    """
    failures, reasons = [], {method: JUDGED[method].missing() for method in methods}
    with RecordFile(Path(folder) / "records.jsonl") as file:
        for dataset in datasets:
            profile = profiles[dataset.name]
            work = _Run(file, {dataset.name: dataset}, profile, n_jobs, report)
            here = [method for method in methods if not reasons[method]]
            work.records_of(dataset.name, plans.public_tasks(dataset, profile, here))
            failures += work.failures
        records = list(file.records)
    left = [f"{method}: {reason}" for method, reason in reasons.items() if reason]
    return suite_report(records, left=left, failures=failures)


def run(
    tasks: Iterable[Task],
    datasets: dict[str, Dataset],
    profile: Profile,
    *,
    file: RecordFile,
    n_jobs: int | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> list[str]:
    """Compute what the record file lacks of the tasks; returns one sentence per task that failed.

    A method that was out of time on one split of a set is not run on those that haven't begun; their records say so.
    An interrupt or any other exception stops the workers; the records finished until then are in the file.
    """
    tasks = list(tasks)

    def cost(task):
        family = FAMILIES.get(task.family)
        return datasets[task.dataset].data.X.shape[0] ** 2 * (family.cost if family else 1.0)

    # Long tasks start first, so that no worker is left alone at the end.
    pending = sorted((task for task in tasks if not all(key in file for key in task.keys)), key=cost, reverse=True)
    waiting, took, failures = list(pending), {}, []
    out_of_time = {_method_on_set(record): record for record in file.records if _is_out_of_time(record)}
    # Items are taken as their turn comes; until then they can still become ones that aren't run.
    work, items = partial(_outcome, profile), [(task, datasets[task.dataset], None) for task in pending]
    _spare(pending, items, out_of_time)
    n_jobs = min(n_jobs or joblib.cpu_count(), len(pending)) or 1
    with closing(as_finished(work, items, n_jobs=n_jobs)) as events:
        for place, outcome, running in events:
            task = None if place is None else pending[place]
            failure = str(outcome) if isinstance(outcome, str | ChildProcessError) else ""
            if task is not None:
                waiting.remove(task)
            if task is not None and failure:
                where = f"{task.dataset}, seed {task.seed}, fold {task.fold}"
                failures.append(f"{', '.join(task.methods)} on {where}: {failure}")
            elif task is not None:
                file.append(outcome)
                took[task] = outcome[0]["task_seconds"]
                if _is_out_of_time(outcome[0]):
                    _spare(pending, items, {_method_on_set(outcome[0]): outcome[0]})
            left, n_done = _seconds_left(waiting, took, cost, n_jobs), len(tasks) - len(waiting)
            report(Progress(n_done, len(tasks), tuple(pending[place] for place in running), left, task, failure))
    return failures


def _spare(pending, items, out_of_time):
    """Make the items of methods that are out of time, {_method_on_set: record}, ones that aren't run."""
    for place, task in enumerate(pending):
        earlier = out_of_time.get((task.plan, task.dataset, task.family))
        if earlier is not None:
            items[place] = (task, None, earlier)


def _is_out_of_time(record):
    """Whether the task was run and took too long."""
    return "out_of_time" in record and "not_run_after" not in record


def _method_on_set(record):
    return record["plan"], record["dataset"], record["method"]


def _outcome(profile, item):
    """The records of a task on its data set, or why there are none.

    An item is the task, its data set, and a record of another split on which its method was out of time, or None.
    """
    task, dataset, earlier = item
    if earlier is not None:
        return not_run(task, profile, earlier)
    try:
        return run_task(task, dataset, profile)
    except Exception as error:  # one method that can't take the data must not end the comparison
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _seconds_left(waiting, took, cost, n_jobs):
    """As others of the same data set and family took, else by expected cost; None before anything is finished."""
    if not took:
        return None
    by_kind = defaultdict(list)
    for task, seconds in took.items():
        by_kind[task.dataset, task.family].append(seconds)
    means = {kind: sum(seconds) / len(seconds) for kind, seconds in by_kind.items()}
    per_cost = sum(took.values()) / sum(map(cost, took))
    return sum(means.get((task.dataset, task.family), per_cost * cost(task)) for task in waiting) / n_jobs
