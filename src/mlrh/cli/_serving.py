"""The command that serves a model over HTTP."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mlrh.cli import _output
from mlrh.cli._inputs import check_finite, load_model

MEBIBYTE = 2**20


def serve(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL", help="Model file that `mlrh fit` saved.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port; 0 is any free one.")] = 8000,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is every address of this machine."
        ),
    ] = "127.0.0.1",
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="Processes, each with the whole model.")
    ] = 1,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="MLRH_TOKEN",
            help="What requests must send as Authorization: Bearer TOKEN. Other users of this machine see what a "
            "command line holds, so better set MLRH_TOKEN.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Host name under which the server is asked too. May be repeated."
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Origin, such as https://example.org, whose pages may ask (CORS). May be repeated.",
        ),
    ] = None,
    max_size: Annotated[float, typer.Option("--max-size", min=0.001, metavar="MIB", help="The largest request.")] = 8.0,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, metavar="N", help="The most rows of a request.")
    ] = 10_000,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="The longest time until an answer.")
    ] = 30.0,
    queue: Annotated[
        int, typer.Option("--queue", min=0, metavar="N", help="Requests that may wait, for each worker.")
    ] = 16,
) -> None:
    """Serve a model over HTTP: predictions, distributions, and a page to try it.

    POST /predict, /distribution, /condition, /expected; GET /model, /health, /ready, /metrics, /openapi.json. The log
    on standard error holds nothing that was sent. SIGTERM or Ctrl-C ends it once what has come is answered.

    Example: `mlrh serve songs.mlrh --port 8000`
    """
    if token == "":
        raise ValueError("A token must have at least one character; leave out --token to answer everybody.")
    check_finite(max_size=max_size, timeout=timeout)
    console = Console(stderr=True)
    from mlrh.web._service import Limits
    from mlrh.web._workers import Serving, serve_model

    limits = Limits(bytes=int(max_size * MEBIBYTE), rows=max_rows, seconds=timeout, queue=queue)
    names, origins = tuple(allow_host or ()), tuple(allow_origin or ())
    serving = Serving(host, port, workers, limits, token, names, origins)
    serve_model(model_file, load_model, serving, tell=lambda sentence: _output.say(console, sentence))
