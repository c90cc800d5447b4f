"""The command that starts a page for going through rows and confirming labels: parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mlrh.cli.inputs import FormatOption, load_model, read_rows
from mlrh.cli.output import check_output
from mlrh.cli.terminal import say, warnings_as_notes


def tag(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL", help="Model file that `mlrh fit` saved.")],
    file: Annotated[
        str,
        typer.Argument(
            metavar="ROWS", help="Data file (ARFF, LIBSVM, CSV, Parquet; also .gz), or - for standard input."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="CSV file of what was decided; default: beside the data file, its stem + -confirmed.csv.",
            show_default=False,
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
    target = _target(file, output)
    check_output(target, [str(model_file), file])
    from mlrh.web.serving import make_session, run_page

    with warnings_as_notes(console):
        model = load_model(model_file)
        data = read_rows(file, model, format)
        session, about = make_session(model, data, output=target)
    try:
        run_page(session, about, port=port, open_browser=browser, tell=lambda sentence: say(console, sentence))
    except KeyboardInterrupt:
        is_kept = Path(target).exists()
        say(
            console,
            f"Stopped; what was decided is in {target}, and the same command goes on from there."
            if is_kept
            else "Stopped; nothing was decided.",
        )
        raise


def _target(file, output):
    from mlrh.data._sources import parts_of

    if output == "-":
        raise ValueError("Decisions are saved with every click, so they need a file; give its name with --output.")
    if output is None and file == "-":
        raise ValueError("Decisions about standard input need a file; give its name with --output.")
    return output or str(Path(file).parent / f"{parts_of(Path(file).name)[0]}-confirmed.csv")
