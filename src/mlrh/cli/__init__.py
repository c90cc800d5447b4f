"""The command line: parse, call, print. Every error is one sentence on standard error and exit code 2."""

import os
import sys
from typing import Annotated

import typer

from mlrh import __version__
from mlrh.cli._experiments import compare, datasets, reproduce
from mlrh.cli._models import evaluate, export, fit, predict, tag
from mlrh.cli._output import visible
from mlrh.cli._serving import serve

__all__ = ["app", "run"]

app = typer.Typer(
    name="mlrh", no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)
for command in (fit, predict, evaluate, tag, serve, export, compare, reproduce, datasets):
    app.command()(command)


def _print_version(wanted: bool):
    if wanted:
        typer.echo(f"mlrh {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, metavar="", help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Multilabel classification with logistic regression: exact, joint and fast."""


def run() -> int:
    """Run the command that the arguments of the process name; returns its exit code."""
    try:
        return app(standalone_mode=False) or 0
    except typer.Abort:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        sys.stdout = None
        return 1
    except Exception as error:
        is_help = type(error).__name__ == "NoArgsIsHelpError"
        if hasattr(error, "format_message") and not is_help:  # a mistake in the arguments
            return _fail(_of_arguments(error))
        if hasattr(error, "show"):
            error.show()
            return 2
        if isinstance(error, MemoryError):
            reason = f" ({error})" if str(error) else ""
            return _fail(f"There is not enough memory{reason}; use a smaller file, or a machine with more memory.")
        if isinstance(error, OSError):
            return _fail(_of_system(error))
        if isinstance(error, ValueError | ImportError):
            return _fail(str(error) or type(error).__name__)
        raise


def _of_arguments(error):
    """What typer says of an argument, as a sentence; later releases of it speak in the words of pydantic."""
    text = error.format_message().replace("Value error, ", "").replace("Input should be", "it must be")
    return text if text.endswith((".", "?")) else f"{text}."


def _of_system(error):
    """What the system said and of which file, in a sentence."""
    if error.errno is None or not error.strerror:
        return str(error) or type(error).__name__
    files = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return f"{' and '.join(files)}: {error.strerror}." if files else f"{error.strerror}."


def _fail(sentence):
    print(f"Error: {visible(' '.join(sentence.split()))}", file=sys.stderr)
    return 2
