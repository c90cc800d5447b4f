"""What commands print and write: predictions as CSV, JSON lines or Parquet; tables, notes and a progress bar.

A prediction is a dict with the keys of `columns`: row, rank (where several sets per row are asked for), labels (a list
of names), probability, and "P(name)" for each label whose marginal is asked for.
"""

import io
import json
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mlrh._files import naming

Target = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, Target] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
SEPARATOR, ESCAPE = ";", "\\"
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


def check_output(output: str, others: Iterable[str]) -> None:
    """Raise a ValueError where a file can't be written there, or would take the place of one of the others."""
    path = Path(output)
    folder = path.resolve().parent
    if path.is_dir():
        raise ValueError(f"{output} is a folder; give the name of a file in it.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{output} is not a regular file, so it can't be replaced; choose another name.")
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}, in which {path.name} is to be written; create it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"The folder {folder} can't be written to; choose another with --output.")
    if any(Path(other).is_file() and path.exists() and os.path.samefile(other, path) for other in others):
        raise ValueError(f"{output} is also read, and would be overwritten; choose another name with --output.")


def check_replaced(output: str) -> None:
    """Raise a ValueError where a file exists that holds something else than predictions."""
    path = Path(output)
    if not path.exists() or not path.stat().st_size:
        return
    with naming(path), open(path, "rb") as file:
        start = file.read(4096)
    if start.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):  # damaged, so not ours
            start = zlib.decompressobj(wbits=31).decompress(start, 4096)
    is_ours = start.startswith((b"row,", b'{"row": ')) or (start.startswith(b"PAR1") and _has_row_column(path))
    if not is_ours:
        raise ValueError(f"{output} exists and holds no predictions; remove it or choose another name with --output.")


def _has_row_column(path):
    from pyarrow import ArrowException, parquet

    try:
        return "row" in parquet.read_schema(path).names
    except (ArrowException, OSError):
        return False


def write_predictions(chunks: Chunks, columns: list[str], output: str, format: Target) -> None:
    """Write predictions, to a file all or nothing, to standard output ("-") as they come."""
    if format == "parquet":
        _write_parquet(chunks, columns, output)
        return
    texts = _csv_texts(chunks, columns) if format == "csv" else _json_texts(chunks)
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
        yield out
        out.flush()
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


def _csv_texts(chunks, columns):
    from mlrh.data._tables import csv_line

    for rows in chain([[columns]], ([[_cell(record[name]) for name in columns] for record in own] for own in chunks)):
        yield "".join(map(csv_line, rows))


def _cell(value):
    if isinstance(value, list):
        return joined(value)
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


def _json_texts(chunks):
    for chunk in chunks:
        rounded = [{k: float(_cell(v)) if isinstance(v, float) else v for k, v in record.items()} for record in chunk]
        yield "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in rounded)


def _write_parquet(chunks, columns, output):
    from mlrh.data._sources import writing

    if output != "-":
        with writing(Path(output)) as (file,):
            return _parquet_to(file, chunks, columns)
    with quiet_if_closed() as out:
        content = io.BytesIO()
        _parquet_to(content, chunks, columns)
        out.buffer.write(content.getvalue())


def _parquet_to(file: IO[bytes], chunks, columns):
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow, which is not installed; run: pip install pyarrow") from error
    types = {"row": pyarrow.int64(), "rank": pyarrow.int64(), "labels": pyarrow.list_(pyarrow.string())}
    schema = pyarrow.schema([(column, types.get(column, pyarrow.float64())) for column in columns])
    with parquet.ParquetWriter(file, schema) as writer:
        for chunk in chunks:
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
    """Gives a function of (done, total, text) that moves a bar on a terminal and is silent elsewhere."""
    if not console.is_terminal:
        yield lambda done, total, text: None
        return
    columns = (TextColumn("Choosing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("[dim]{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done, total, text):
            bar.update(task, completed=done, total=total, description=escape(visible(text)))

        yield report


def facts(rows: Mapping[str, str]) -> Table:
    """A table of names and what is to say about them, without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, escape(visible(text)))
    return table


def described_data(data: Any) -> str:
    """Rows, features, labels and labels per row of a data set, in words."""
    sizes = data.Y.sum(axis=1)
    n_rows, n_features = data.X.shape
    spread = f"{sizes.min()} to {sizes.max()}" if sizes.min() < sizes.max() else "in every row"
    counts = [_counted(n_rows, "row"), _counted(n_features, "feature"), _counted(data.Y.shape[1], "label")]
    return f"{data.name}: {', '.join(counts)}; {sizes.mean():.2f} labels per row ({spread})"


METRICS = {
    "exact_match": "exact match",
    "hamming": "Hamming loss",
    "f1": "F1 by row",
    "jaccard": "Jaccard index",
    "log_loss": "log-loss",
}
MAX_LINES = 8  # of a leaderboard; the rest is in the model


def described_choice(model: Any, auto: Any) -> dict[str, str]:
    """What an MLRHAuto has chosen, by name."""
    settings = model.settings
    return {
        "model": settings["model"],
        "features": _described_features(model.schema, settings),
        "metric": METRICS[auto.metric],
    }


def leaderboard(auto: Any) -> Table:
    """The best lines of the leaderboard of an MLRHAuto."""
    metric = auto.metric
    columns = [METRICS[metric]] if metric != "log_loss" else []
    table = Table("", "log-loss", *columns, "seconds", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in auto.leaderboard_[:MAX_LINES]:
        figures = [f"{line['log_loss']:.3f}", *(f"{line[metric]:.3f}" for _ in columns), f"{line['seconds']:.1f}"]
        table.add_row(escape(visible(line["model"])), *figures)
    return table


def spread_table(validation: Mapping[str, list[float]]) -> Table:
    """Mean and standard deviation of each metric over the folds."""
    import numpy as np

    from mlrh.metrics import NAMES

    table = _numbers("", "mean", "± sd")
    for metric, name in NAMES.items():
        table.add_row(name, f"{np.mean(validation[metric]):.3f}", f"{np.std(validation[metric], ddof=1):.3f}")
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


def _described_features(schema, settings):
    n_nominal = len(schema.categories)
    n_numbers = len(schema.feature_names) - n_nominal
    parts = [f"{_counted(n_numbers, 'number')}, {SCALINGS[settings['scaling']]}"] if n_numbers else []
    if n_nominal:
        parts.append(f"{n_nominal} nominal, one 0/1 column per value")
    return "; ".join(parts)


def _counted(n, word):
    return f"{n:,} {word}{'' if n == 1 else 's'}"
