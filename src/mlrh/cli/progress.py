"""Progress of a run: a bar on a terminal, one line per finished task elsewhere; and what an interrupt leaves behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mlrh.cli.terminal import say


@contextmanager
def progress_on(console: Console, folder: Path) -> Iterator[Callable]:
    """Gives the function (stage, progress) that an experiment calls; an interrupt is told where the records are."""
    try:
        if console.is_terminal:
            with _bar(console) as bar:
                yield _on_bar(bar)
        else:
            yield _in_lines(console)
    except KeyboardInterrupt:
        sentence = (
            f"Stopped; what is finished is in {folder / 'records.jsonl'}, and the same command goes on from there."
        )
        say(console, sentence)
        raise


def _bar(console):
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.fields[running]}"),
    )
    return Progress(*columns, console=console)


def _on_bar(bar):
    stages: dict = {}

    def report(stage, progress):
        if stage not in stages:
            stages[stage] = bar.add_task(stage, total=progress.n_tasks, left="", running="")
        running = ", ".join(dict.fromkeys(f"{task.dataset} {task.family}" for task in progress.running))
        done = progress.n_done == progress.n_tasks
        left = "" if done else left_in_words(progress.seconds_left)
        bar.update(stages[stage], completed=progress.n_done, left=left, running=running)
        if progress.failure:
            bar.console.print(_failed(progress), markup=False)

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


def left_in_words(seconds: float | None) -> str:
    """How long is left, roughly; nothing where it isn't known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s left"
    return f"{round(seconds / 60)} min left"
