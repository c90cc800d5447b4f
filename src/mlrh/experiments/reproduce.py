"""The paper reproduced: which data and tasks, in which order, and the report of what came out."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris, load_wine

from mlrh.data import DataError, MultilabelData, load, load_digit_scenes
from mlrh.data._catalogue import is_here
from mlrh.experiments import pages, plans
from mlrh.experiments.multiclass import PROGRAMS, available
from mlrh.experiments.plans import Dataset, Profile
from mlrh.experiments.records import RecordFile, key_of
from mlrh.experiments.report import Report, escaped
from mlrh.experiments.runner import Progress, run

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
        self.failures += run(
            tasks,
            self.datasets,
            self.profile,
            file=self.file,
            n_jobs=self.n_jobs,
            report=lambda progress: self.report(stage, progress),
        )
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
    small, names = multiclass_datasets(), [dataset.name for dataset in datasets]
    everything = {dataset.name: dataset for dataset in [*datasets, *small]}
    with RecordFile(Path(folder) / "records.jsonl") as file:
        work = _Run(file, everything, profile, n_jobs, report)
        programs = available()
        multiclass = work.records_of(
            "Table 5", [t for d in small for t in plans.multiclass_tasks(d, profile, programs)]
        )
        descent = work.records_of("Objective by iteration", plans.descent_tasks(datasets[-1]))
        searched = work.records_of("Tuning BR-SVM", [t for d in datasets for t in plans.paper_search_tasks(d, profile)])
        tuned = [task for dataset in datasets for task in plans.paper_tasks(dataset, profile, searched)]
        as_paper = work.records_of("Table 7, tuned as the paper says", tuned)
        nested = work.records_of("Table 7, nested", [t for d in datasets for t in plans.nested_tasks(d, profile)])
    sections = (
        *pages.published_sections(nested, profile, protocol=plans.NESTED),
        *pages.published_sections(as_paper, profile, protocol=plans.PAPER),
        *pages.comparison_sections(nested, profile),
        *pages.multiclass_sections(multiclass, profile.n_multiclass_seeds),
        pages.statistics_section(datasets),
        *pages.descent_sections(descent),
        pages.hidden_variables_section(),
    )
    if len(programs) < len(PROGRAMS):
        left = (*left, "statsmodels in Table 5 is not installed; run: pip install statsmodels")
    options = "".join(f" --data {dataset.name}" for dataset in datasets) if names != list(PAPER_SETS) else ""
    command = f"mlrh reproduce{' --full' if profile.name == 'full' else ''}{options}"
    summary = (
        "The tables of A Hidden Variables Approach to Multilabel Logistic Regression (Jaemoon Lee and Hoda Shajari), "
        f"computed anew, beside its figures. Profile: {profile.name}.",
        *pages.missing(left, work.failures),
    )
    return Report("The paper, reproduced", summary, sections, pages.footer(command))


def compare(dataset, families, profile, folder, *, n_jobs=None, report=lambda stage, progress: None) -> Report:
    """The report of the nested protocol on one data set; the parameters are those of `reproduce`."""
    with RecordFile(Path(folder) / "records.jsonl") as file:
        work = _Run(file, {dataset.name: dataset}, profile, n_jobs, report)
        nested = work.records_of("Comparing", plans.nested_tasks(dataset, profile, families))
    if not nested:
        raise ValueError(f"No method could be run: {work.failures[0]}.")
    sections = tuple(pages.comparison_sections(nested, profile))
    summary = (
        f"Methods compared on {escaped(dataset.name)}: the same {plans.N_FOLDS} outer folds for all, every "
        f"hyperparameter chosen by {profile.inner_folds}-fold cross validation on the training part. Profile: "
        f"{profile.name}.",
        *pages.missing((), work.failures),
    )
    command = f"mlrh compare{' --full' if profile.name == 'full' else ''}"
    return Report(f"Comparison on {dataset.name}", summary, sections, pages.footer(command))
