"""What commands print and write: predictions as CSV, JSON lines or Parquet; tables, notes and a progress bar.

A prediction is a dict with the keys of `columns`: row, columns of the file that are carried, rank (where several sets
per row are asked for), labels (a list of names), probability, and "P(name)" for each label whose marginal is asked for.
"""

import io
import json
import math
import os
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlrh._files import naming
from mlrh._words import counted, fixed, impossible_note

Target = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, Target] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
SEPARATOR, ESCAPE = ";", "\\"
LOOKED_AT = 2**16  # bytes of a file that is to be replaced: with --append hundreds of columns stand before `labels`
DIGITS = 6  # significant digits of probabilities in text; Parquet has them in full

Chunks = Iterable[list[dict[str, Any]]]


def target_format(output: str, asked: Target | None) -> Target:
    """The format to write: the one asked for, else by the suffix, else CSV on standard output."""
    from mlrh.data._sources import parts_of

    if output == "-":
        return asked or "csv"
    _, suffix, zipped = parts_of(Path(output).name)
    format = asked or SUFFIXES.get(suffix)
    if format is None:
        raise ValueError(f"{output}: the suffix must be one of {', '.join(SUFFIXES)}, or say the format with --to.")
    if format == "parquet" and zipped:
        raise ValueError(f"{output}: Parquet files are compressed inside; leave out .gz.")
    return format


def check_output(output: str, others: Iterable[str], option: str = "--output") -> None:
    """Raise a ValueError where a file can't be written there, or would take the place of one of the others.

    The option is the one that names it.
    """
    path = Path(output)
    folder = path.resolve().parent
    if path.is_dir():
        raise ValueError(f"{output} is a folder; give the name of a file in it.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{output} is not a regular file, so it can't be replaced; choose another name.")
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}, in which {path.name} is to be written; create it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"The folder {folder} can't be written to; choose another with {option}.")
    if path.exists() and any(Path(other).is_file() and os.path.samefile(other, path) for other in others):
        raise ValueError(f"{output} is also read, and would be overwritten; choose another name with {option}.")


def check_replaced(output: str) -> None:
    """Raise a ValueError where a file exists that holds something else than predictions."""
    path = Path(output)
    if not path.exists() or not path.stat().st_size:
        return
    with naming(path), open(path, "rb") as file:
        start = file.read(LOOKED_AT)
    if start.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):  # damaged, so not ours
            start = zlib.decompressobj(wbits=31).decompress(start, LOOKED_AT)
    if not _holds_predictions(start, path):
        raise ValueError(f"{output} exists and holds no predictions; remove it or choose another name with --output.")


def _holds_predictions(start, path):
    """Whether a file begins as one of predictions does: with their columns, which other columns may stand before."""
    if start.startswith(b"PAR1"):
        from pyarrow import ArrowException, parquet

        try:
            return {"labels", "probability"} <= set(parquet.read_schema(path).names)
        except (ArrowException, OSError):
            return False
    line = start.splitlines()[0] if start.splitlines() else b""
    return b",labels,probability" in line or (line.startswith(b"{") and b', "labels": [' in line)


def check_columns(columns: list[str], name: str) -> None:
    """Raise a ValueError where a column of the file is called as one of the predictions."""
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"{name} has a column {twice[0]!r}, and so have the predictions; rename it before.")


def write_predictions(
    chunks: Chunks, columns: list[str], output: str, format: Target, kept: Mapping[str, Any] | None = None
) -> None:
    """Write predictions, to a file all or nothing, to standard output ("-") as they come.

    kept are the columns that are carried from the data, by name; those that `columns` names are written.
    """
    if format == "parquet":
        _write_parquet(chunks, columns, output, kept or {})
        return
    texts = (_csv_texts if format == "csv" else _json_texts)(chunks, columns, kept or {})
    if output != "-":
        from mlrh.data._sources import write_texts

        write_texts({Path(output): texts})
        return
    with quiet_if_closed() as out:
        is_terminal = out.isatty()
        for text in texts:
            out.buffer.write((visible(text) if is_terminal else text).encode("utf-8"))
            out.flush()


def joined(names: Iterable[str]) -> str:
    r"""Names in one text, separated by semicolons; a semicolon or backslash within a name has a backslash before it.

    A name that a spreadsheet would run as a formula has a quote before it, see `mlrh.data._tables.guarded`.

    >>> print(joined(["calm", "rock; roll", "c\\", "=1+1"]))
    calm;rock\; roll;c\\;'=1+1
    """
    from mlrh.data._tables import guarded

    escaped = (guarded(name).replace(ESCAPE, ESCAPE * 2).replace(SEPARATOR, ESCAPE + SEPARATOR) for name in names)
    return SEPARATOR.join(escaped)


@contextmanager
def quiet_if_closed() -> Iterator[Any]:
    """Gives standard output; a block that prints to a pipe whose reader has gone (`| head`) ends quietly."""
    out = standard_output()
    try:
        with _buffered(out) as buffered, redirect_stdout(buffered):
            yield buffered
            buffered.flush()
    except OSError as error:
        # Python flushes once more at exit, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OSError(f"Standard output can't be written ({error.strerror or error}).") from error


def standard_output() -> Any:
    """Standard output, or a ValueError where it was closed before the program began (`>&-`)."""
    if sys.stdout is None:
        raise ValueError("Standard output is closed; open it, or give a file with --output where there is one.")
    return sys.stdout


@contextmanager
def _buffered(out):
    """The stream, with a buffer where it has none.

    With PYTHONUNBUFFERED, as in most containers, standard output loses without a word what the system doesn't take at
    once, on a disk that gets full say.
    """
    if not isinstance(getattr(out, "buffer", None), io.RawIOBase):
        yield out
        return
    buffered = open(out.fileno(), "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115
    try:
        yield buffered
    finally:
        with suppress(OSError):  # after a write that failed, closing tries it again
            buffered.close()


def _csv_texts(chunks, columns, kept):
    from mlrh.data._tables import csv_line, guarded

    def carried(value):
        return guarded(value) if isinstance(value, str) else value

    def line(record):
        return [carried(record[name]) if name in kept else _cell(record[name]) for name in columns]

    header = [carried(name) if name in kept else name for name in columns]
    for rows in chain([[header]], (map(line, own) for own in chunks)):
        yield "".join(map(csv_line, rows))


def _cell(value):
    if isinstance(value, list):
        return joined(value)
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


def _json_texts(chunks, columns, kept):
    def shown(name, value):
        if not isinstance(value, float):
            return value
        if not math.isfinite(value):  # JSON has no word for these
            return None
        return value if name in kept else float(_cell(value))

    for chunk in chunks:
        records = ({name: shown(name, record[name]) for name in columns} for record in chunk)
        yield "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)


def _write_parquet(chunks, columns, output, kept):
    from mlrh.data._sources import writing

    if output != "-":
        with writing(Path(output)) as (file,):
            return _parquet_to(file, chunks, columns, kept)
    with quiet_if_closed() as out:
        content = io.BytesIO()
        _parquet_to(content, chunks, columns, kept)
        out.buffer.write(content.getvalue())


def _parquet_to(file: IO[bytes], chunks, columns, kept):
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow, which is not installed; run: pip install pyarrow") from error
    from mlrh.data._tables import kept_as_arrow

    types = {column: pyarrow.int64() for column in ("row", "rank", "answered")}
    types["labels"] = pyarrow.list_(pyarrow.string())
    types |= {name: kept_as_arrow(values, pyarrow).type for name, values in kept.items()}
    texts = [name for name in kept if types[name] == pyarrow.string()]
    schema = pyarrow.schema([(column, types.get(column, pyarrow.float64())) for column in columns])
    with parquet.ParquetWriter(file, schema) as writer:
        for chunk in chunks:
            for record in chunk:
                record |= {name: str(record[name]) for name in texts if record[name] is not None}
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema))


# Said to a person

FLOOR_NOTE = "log-loss: P at least 1e-6\nheld impossible: P = 0"
SCALINGS = {"standard": "standardised", "max_abs": "divided by the largest magnitude of each"}


# What moves the cursor, colours, rings or turns the direction of writing, also in the 8-bit form (C1).
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with control characters, but for the end of a line, as Python writes them in quotes.

    >>> print(visible("red" + chr(27) + "[31m"))
    red\x1b[31m
    """
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def words_console() -> Console:
    """A console on standard error for words that may be lost, where a command has more to do than to tell them.

    Once they can't be written (`2>&1 | head`, a full disk), the rest goes nowhere, and nothing is raised.
    """
    return Console(file=None if sys.stderr is None else cast(IO[str], _Words(sys.stderr)), stderr=True)


class _Words:
    """A stream that goes to nowhere from the first error of the system on."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        with self._lost_on_error():
            self._stream.write(text)
        return len(text)

    def flush(self):
        with self._lost_on_error():
            self._stream.flush()

    @contextmanager
    def _lost_on_error(self):
        try:
            yield
        except OSError:
            # Also for what others write there: Python flushes once more at exit, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name):
        return getattr(self._stream, name)


def say(console: Console, text: str) -> None:
    """Print a sentence without breaking long lines, so that paths in it can be copied."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)


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
    """Gives a function of (done, total, text) that moves a bar on a terminal; elsewhere it says a line now and then."""
    if not console.is_terminal:
        yield _now_and_then(console)
        return
    columns = (TextColumn("Choosing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("[dim]{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done, total, text):
            bar.update(task, completed=done, total=total, description=escape(visible(text)))

        yield report


def _now_and_then(console):
    said = time.monotonic()

    def report(done, total, text):
        nonlocal said
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            say(console, f"Choosing: {done} of {total}, {text}")

    return report


def facts(rows: Mapping[str, str]) -> Table:
    """A table of names and what is to say about them, without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, escape(visible(text)))
    return table


METRICS = {
    "exact_match": "exact match",
    "hamming": "Hamming loss",
    "f1": "F1 by row",
    "jaccard": "Jaccard index",
    "log_loss": "log-loss",
}
MAX_LINES = 8  # of a leaderboard; the rest is in the model
MAX_LABELS = 40  # of a table of labels: one screen
LABEL_COLUMNS = ("rows", "predicted", "precision", "recall", "F1", "AUC")
SECONDS_BETWEEN_LINES = 10.0  # of progress in a file: a search of an hour has at most 360


def described_choice(model: Any, auto: Any) -> dict[str, str]:
    """What an MLRHAuto has chosen, by name."""
    settings = model.settings
    return {
        "model": settings["model"],
        "features": _described_features(model, settings),
        "metric": METRICS[auto.metric],
    }


def described_rule(model: Any) -> Iterator[str]:
    """Sentences on calibration, thresholds and refusal, where the model has them."""
    rule, settings = model.rule, model.settings
    if "calibration_error" in settings:
        error = fixed(settings["calibration_error"], 3)
        yield f"Calibrated by a temperature of {rule.temperature:.3g}; calibration error of held-out rows: {error}."
    if rule.thresholds is not None:
        yield f"Answers are the labels above thresholds that are tuned for {settings['thresholds']}."
    if rule.refuse_below:
        share, right = settings["answered_share"], settings.get("right_share_of_answered")
        of_these = "so choose a lower one" if right is None else f"and {right:.0%} of these answers were right"
        yield f"With --refuse-below {rule.refuse_below:g}, {share:.0%} of the held-out rows were answered, {of_these}."


def leaderboard(auto: Any) -> Table:
    """The best lines of the leaderboard of an MLRHAuto."""
    metric = auto.metric
    columns = [METRICS[metric]] if metric != "log_loss" else []
    table = Table("", "log-loss", *columns, "seconds", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in auto.leaderboard_[:MAX_LINES]:
        figures = [fixed(line["log_loss"], 3), *(fixed(line[metric], 3) for _ in columns), fixed(line["seconds"], 1)]
        table.add_row(escape(visible(line["model"])), *figures)
    return table


def spread_table(validation: Mapping[str, list[float]]) -> Table:
    """Mean and standard deviation of each metric over the folds that have complete rows; empty where there are none."""
    import numpy as np

    from mlrh.estimators.auto import of_folds_with_rows
    from mlrh.metrics import NAMES

    table = _numbers("", "mean", "± sd")
    for metric, name in NAMES.items():
        folds = of_folds_with_rows(validation[metric])
        mean = fixed(float(np.mean(folds)), 3) if folds else ""
        deviation = fixed(float(np.std(folds, ddof=1)), 3) if len(folds) > 1 else ""
        table.add_row(name, mean, deviation)
    return table


def notes_on(settings: Mapping[str, Any], impossible_share: float) -> Iterator[str]:
    """Sentences on what a user should know of a model: a C at the end of its grid, impossible true sets."""
    from mlrh.estimators.auto import edge_note

    yield from filter(None, (edge_note(settings), impossible_note(impossible_share, "the model")))


def print_measures(console: Console, measured: Mapping[str, Any], about: str) -> None:
    """The data, each measure and its value, and a table of labels."""
    from mlrh.metrics import NAMES, RANKING_NAMES

    console.print(facts({"data": about}), highlight=False)
    if "answered_share" in measured:
        say(console, f"\nMeasures of the {measured['answered_share']:.1%} of the rows that the model answers:")
    table = _numbers("metric", "value")
    for metric, name in {**NAMES, **RANKING_NAMES}.items():
        if metric in measured:
            table.add_row(name, fixed(measured[metric], 4))
    console.print()
    console.print(table, highlight=False)
    console.print()
    console.print(_labels_table(measured["labels"]), highlight=False)


def _labels_table(labels):
    """A line for each label, the most frequent first."""
    shown = sorted(labels, key=lambda label: -label["rows"])[:MAX_LABELS]
    left = len(labels) - len(shown)
    caption = f"and {counted(left, 'label')} more, all of them with --json" if left else None
    options: dict[str, Any] = {"caption": caption, "caption_justify": "left", "caption_style": "dim"}
    table = Table("label", *LABEL_COLUMNS, box=None, pad_edge=False, **options)
    for column in table.columns[1:]:
        column.justify = "right"
    for label in shown:
        counts = (f"{label[name]:,}" for name in ("rows", "predicted"))
        shares = ("" if label[name] is None else fixed(label[name], 3) for name in ("precision", "recall", "f1", "auc"))
        table.add_row(escape(visible(label["name"])), *counts, *shares)
    return table


def _numbers(*headers):
    table = Table(*headers, box=None, pad_edge=False, caption=FLOOR_NOTE, caption_justify="left", caption_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _described_features(model, settings):
    """How columns become features. Boosted trees take them as they are: numbers, categories, counts of words."""
    schema, table = model.schema, model.table
    members = settings.get("members") or [settings["model"]]
    of_trees = [member.startswith("boosted") for member in members]
    scaling, coding, weighting = f", {SCALINGS[settings['scaling']]}", "one 0/1 column per value", "TF-IDF"
    if all(of_trees):
        scaling, coding, weighting = "", "as categories", "counted"
    n_nominal, n_words = len(schema.categories), len(schema.texts)
    n_numbers = len(schema.feature_names) - n_nominal - n_words - len(schema.dates)
    parts = [f"{counted(n_numbers, 'number')}{scaling}"] if n_numbers else []
    if n_nominal:
        parts.append(f"{n_nominal} nominal, {coding}")
    for name in schema.dates:
        parts.append(f"{name} in days{''.join(f', by {part}' for part in table.parts[name])}")
    for name in schema.texts:
        n_pieces = f"{len(table.pieces[name]):,} pieces of three or four letters"
        parts.append(f"{name} by {counted(len(table.words[name]), 'word')} and {n_pieces}, {weighting}")
    if any(of_trees) and not all(of_trees):
        parts.append("for boosted trees as they are")
    return "; ".join(parts)
