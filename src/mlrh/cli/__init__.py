"""The command line: parse, call, print. Every error is one sentence on standard error and exit code 2."""

import sys
from typing import Annotated

import typer

from mlrh import __version__
from mlrh.cli import fitting, prediction, running

app = typer.Typer(
    name="mlrh",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command()(fitting.fit)
app.command()(prediction.predict)
app.command()(prediction.evaluate)
app.command()(running.compare)
app.command()(running.reproduce)
app.command()(running.datasets)


def _print_version(wanted: bool):
    if wanted:
        typer.echo(f"mlrh {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Multilabel classification with logistic regression: exact, joint and fast."""


def main() -> None:
    """Run the command line; the entry point of the program `mlrh`."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        print(f"Error: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)


def _one_line(error):
    return " ".join(str(error).split()) or type(error).__name__
