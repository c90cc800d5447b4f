"""What commands say to a person: tables, notes and a progress bar. Computes nothing."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

FLOOR_NOTE = "log-loss: P at least 1e-6\nheld impossible: P = 0"
SCALINGS = {"standard": "standardised", "max_abs": "divided by the largest magnitude of each"}


def say(console: Console, text: str) -> None:
    """Print a sentence as it is; a terminal, not we, breaks a long line, so that paths in it can be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def warnings_as_notes(console: Console) -> Iterator[None]:
    """What the block warns of for users is printed as notes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            texts = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
            for text in dict.fromkeys(texts):
                say(console, f"Note: {text}")


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Gives a function of (done, total, text) that moves a bar on a terminal and is silent elsewhere."""
    if not console.is_terminal:
        yield lambda done, total, text: None
        return
    columns = (TextColumn("Choosing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("[dim]{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done, total, text):
            bar.update(task, completed=done, total=total, description=escape(text))

        yield report


def facts(rows: Mapping[str, str]) -> Table:
    """A table of names and what is to say about them, without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, escape(text))
    return table


def described_data(data: Any) -> str:
    """Rows, features, labels and labels per row of a data set, in words."""
    sizes = data.Y.sum(axis=1)
    n_rows, n_features = data.X.shape
    spread = f"{sizes.min()} to {sizes.max()}" if sizes.min() < sizes.max() else "in every row"
    counts = [_counted(n_rows, "row"), _counted(n_features, "feature"), _counted(data.Y.shape[1], "label")]
    return f"{data.name}: {', '.join(counts)}; {sizes.mean():.2f} labels per row ({spread})"


DECISIONS = {"exact_match": "exact match", "hamming": "Hamming", "f1": "F1 by row", "jaccard": "Jaccard index"}


def described_choice(model: Any) -> dict[str, str]:
    """What was chosen, by name."""
    settings = model.settings
    scores = f"linear, C = {settings['C']:g}"
    if settings["kernel"] == "rbf":
        gamma = f"gamma = {settings['gamma']:.4g} ({settings['gamma_units']:g} x scale)"
        scores = f"RBF kernel, C = {settings['C']:g}, {gamma}"
    return {
        "scores": scores,
        "label space": _described_space(model.classifier, settings),
        "features": _described_features(model.schema, settings),
        "decision": DECISIONS[settings["decision"]],
    }


def spread_table(validation: Mapping[str, list[float]]) -> Table:
    """Mean and standard deviation of each metric over the folds."""
    import numpy as np

    from mlrh.metrics import NAMES

    table = _numbers("", "mean", "± sd")
    for metric, name in NAMES.items():
        values = validation[metric]
        deviation = f"{np.std(values, ddof=1):.3f}"
        table.add_row(name, f"{np.mean(values):.3f}", deviation)
    return table


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Each metric and its value."""
    from mlrh.metrics import NAMES

    table = _numbers("metric", "value")
    for metric, name in NAMES.items():
        table.add_row(name, f"{metrics[metric]:.4f}")
    return table


def _numbers(*headers):
    table = Table(*headers, box=None, pad_edge=False, caption=FLOOR_NOTE, caption_justify="left", caption_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _described_space(classifier, settings):
    smallest, largest = settings["min_labels"], settings["max_labels"]
    sizes = f"{smallest} to {largest} labels" if smallest < largest else _counted(smallest, "label")
    if settings["label_space"] == "observed":
        return f"observed: {_counted(len(classifier.sets_), 'set')} of {sizes}, each with a bias"
    bias = ", with a bias per size" if settings["size_bias"] else ""
    return f"cardinality: all sets of {sizes}{bias}"


def _described_features(schema, settings):
    n_nominal = len(schema.categories)
    n_numbers = len(schema.feature_names) - n_nominal
    parts = [f"{_counted(n_numbers, 'number')}, {SCALINGS[settings['scaling']]}"] if n_numbers else []
    if n_nominal:
        parts.append(f"{n_nominal} nominal, one 0/1 column per value")
    return "; ".join(parts)


def _counted(n, word):
    return f"{n:,} {word}{'' if n == 1 else 's'}"
