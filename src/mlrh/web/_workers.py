"""Processes that serve a model on one port: how they are started, replaced when they die, and stopped."""

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from mlrh.web._application import make_app
from mlrh.web._http import OWN_NAMES, listening, server_config, uvicorn
from mlrh.web._metrics import Metrics, shared_counts
from mlrh.web._service import LOG, Limits

RESTART_SECONDS = 1.0  # before a process that died is replaced
LONGEST_RESTART = 64.0  # twice as long each time where one can't start, so that it doesn't take the machine
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # addresses that only this machine can ask


@dataclass(frozen=True)
class Serving:
    """How a model is served.

    Attributes
    ----------
    host : str
        Address of this machine on which it listens.
    port : int
        0 is any free one.
    workers : int
        Processes, each with the whole model.
    limits : Limits
    token : str or None
    names : tuple of str
        Host names under which it is asked beside those of this machine. Without any, a server that listens on another
        address than this machine's own is asked under every name.
    origins : tuple of str
        Origins of foreign pages that a browser lets ask.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def app(self, model: Any, name: str, metrics: Metrics | None = None) -> Any:
        """The application of a model."""
        options = {"limits": self.limits, "token": self.token, "names": self._names(), "origins": self.origins}
        return make_app(model, name, metrics=metrics, **options)

    def _names(self):
        """Host names under which the server is asked; None: any."""
        if not self.names:
            return OWN_NAMES if self.host in LOOPBACK else None
        return (*OWN_NAMES, *map(str.lower, self.names))


def serve_model(
    path: Path, load: Callable[[Path], Any], serving: Serving, *, tell: Callable[[str], None] = print
) -> None:
    """Serve the model of a file until SIGTERM or Ctrl-C, which let requests be answered that have come.

    Parameters
    ----------
    path : Path
    load : function of the path, which can be imported
        Gives the Model, or raises an error in one sentence.
    serving : Serving
    tell : function of a sentence, default=print
        Is told the address.
    """
    model = load(path)
    sock = listening(serving.host, serving.port)
    _log_to_terminal()
    host = f"[{serving.host}]" if ":" in serving.host else serving.host
    tell(f"{path.name} is served at http://{host}:{sock.getsockname()[1]}; Ctrl-C ends it.")
    if serving.host not in LOOPBACK and serving.token is None:
        tell("Everybody who reaches this machine is answered; --token asks for a token.")
    with sock:
        if serving.workers == 1:
            _serve(serving.app(model, path.stem), sock, serving)
        else:
            del model
            with tempfile.TemporaryDirectory(prefix="mlrh-serve-") as folder:
                # Workers that are started later load the same model, whatever has become of the file.
                _supervise(Path(shutil.copy(path, folder)), load, serving, sock)


def _serve(app, sock, serving):
    seconds = int(serving.limits.seconds) + 1  # to stop in: all that have come are answered by then
    uvicorn.Server(server_config(app, timeout_graceful_shutdown=seconds)).run(sockets=[sock])


def _log_to_terminal():
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


# Several processes


def _supervise(path, load, serving, sock):
    """Keep as many processes running as there should be, until a signal ends them all."""
    context, counts = multiprocessing.get_context("spawn"), shared_counts(serving.workers)

    def start(worker):
        process = context.Process(target=_work, args=(path, load, serving, sock, counts, worker), daemon=True)
        process.start()
        return process

    signal.signal(signal.SIGTERM, _stop)
    processes: list[Any] = []
    pause = RESTART_SECONDS
    try:
        processes += map(start, range(serving.workers))
        while True:
            wait([process.sentinel for process in processes])
            has_failed = any(process.exitcode == 1 for process in processes)  # by itself, not by a signal
            pause = min(2 * pause, LONGEST_RESTART) if has_failed else RESTART_SECONDS
            time.sleep(pause)
            for worker, process in enumerate(processes):
                if not process.is_alive():
                    LOG.error("Worker %d ended (exit code %s) and is started again", worker, process.exitcode)
                    processes[worker] = start(worker)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sock.close()  # or the system would take connections that nobody answers
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _stop(number, frame):
    sys.exit(128 + number)


def _work(path, load, serving, sock, counts, worker):
    """Serve in a process of its own, which ends with the one that started it."""
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    _log_to_terminal()
    with contextlib.suppress(KeyboardInterrupt):  # of the terminal, which all processes of the command get
        try:
            model = load(path)
        except (OSError, ValueError) as error:
            LOG.error("Worker %d can't load the model: %s", worker, error)
            sys.exit(1)
        _serve(serving.app(model, path.stem, Metrics(counts, worker)), sock, serving)


def _end_with(parent):
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
