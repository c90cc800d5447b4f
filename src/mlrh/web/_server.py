"""From a fitted model and rows to a running page."""

import contextlib
import os
import secrets
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlrh.automatic import training_scale
from mlrh.data.containers import Schema
from mlrh.web._application import make_app
from mlrh.web._http import listening, server_config, uvicorn
from mlrh.web._rows import Cells, cells_of_rows, to_read
from mlrh.web._session import Features, Session
from mlrh.web._store import Fingerprints, Store, held
from mlrh.web._tagging import Tagging

HOST = "127.0.0.1"
REDIRECT = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={}"><title>mlrh tag</title>'


def serve(
    model: Any,
    X: Any,
    *,
    label_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    output: str | Path | None = None,
    show: Sequence[str] | None = None,
    images: str | Path | None = None,
    port: int = 0,
    open_browser: bool = True,
    tell: Callable[[str], None] = print,
) -> np.ndarray:
    """What is known of the rows after a person went through them on a page, (n_rows, n_labels) of 1, 0 and NaN.

    Blocks until it is interrupted: Ctrl-C, or the stop button of a notebook.

    Parameters
    ----------
    model : fitted MLRHClassifier or KernelMLRHClassifier, or a Model of `mlrh.automatic`
    X : rows as the model takes them
        A Model takes a MultilabelData or a DataFrame.
    label_names, feature_names : sequence of str, optional
        By default those that the model or X has, else numbers.
    output : path of a CSV file, optional
        Where every decision is saved at once; a file that exists is gone on from, if it is about the same rows.
        Without it decisions are only returned.
    show : sequence of str, optional
        Columns of a DataFrame to show with each row, in this order; by default those that are no numbers of the model.
        Images whose addresses they hold are loaded.
    images : path of a folder, optional
        Where cells that are paths of images are looked up.
    port : int, default=0
        0 is any free port of 127.0.0.1.
    open_browser : bool, default=True
    tell : function of a sentence, default=print
        Is told the address, and what the file of decisions holds.
    """
    names = {"label_names": label_names, "feature_names": feature_names}
    session, about = make_session(model, X, **names, output=output, show=show, images=images)
    with contextlib.suppress(KeyboardInterrupt):
        served = model if hasattr(model, "schema") else None
        run_page(Tagging(session, about), port=port, open_browser=open_browser, tell=tell, model=served)
    return session.known()


def make_session(
    model, X, *, label_names=None, feature_names=None, output=None, show=None, images=None
) -> tuple[Session, dict]:
    """The session of a model's rows, and what the page says of them."""
    parts = (_of_model if hasattr(model, "schema") else _of_classifier)(model, X, feature_names)
    names = [str(label) for label in (parts.label_names if label_names is None else label_names)]
    n_labels = parts.distribution.shape[1]
    if len(names) != n_labels:
        raise ValueError(f"label_names must name the model's {n_labels} labels; got {len(names)} names.")
    store = None if output is None else Store(output, names, parts.fingerprints)
    session = Session(
        parts.distribution,
        names,
        known=None if store is None else store.known,
        features=parts.features,
        cells=Cells(to_read(parts.cells, parts.schema, show), show, images),
        keep=None if store is None else store.keep,
        least_probability=parts.least_probability,
    )
    about = (None, 0, 0) if store is None else (str(store.path), store.n_decided, store.n_unsure)
    described = {"name": parts.name, "scale": parts.scale}
    return session, {**described, **dict(zip(("output", "n_resumed", "n_unsure"), about, strict=True))}


def run_page(
    tagging: Tagging, *, port: int, open_browser: bool, tell: Callable[[str], None], model: Any = None, name="model"
) -> None:
    """Serve the page until an interrupt, which is raised again once nothing is being saved."""
    about, retraining = tagging.about, tagging.retraining
    with contextlib.ExitStack() as while_running:
        if about["output"]:
            while_running.enter_context(held(about["output"]))
        if retraining is not None:
            while_running.callback(retraining.close)
        server = Server(tagging, port, model=model, name=name)
        if about["output"]:
            tell(_start(about))
        tell(f"The page is at {server.address} for this machine; Ctrl-C ends it.")
        if open_browser and _has_screen():
            page = while_running.enter_context(_redirect(server.address))
            # In a thread: some browsers keep the call until they are closed.
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
        run(server)


def _start(about):
    """What the file of decisions holds, in one sentence."""
    if not about["n_resumed"]:
        return f"Decisions are saved in {about['output']}."
    sentence = f"Going on from {_counted(about['n_resumed'])} in {about['output']}, where decisions are saved"
    if about["n_unsure"]:
        sentence += f"; it lacks the fingerprint of {_counted(about['n_unsure'])}, so make sure that it is about these"
    return f"{sentence}."


def _counted(n):
    return f"{n} decided row{'' if n == 1 else 's'}"


@contextlib.contextmanager
def _redirect(address):
    """Gives the address of a private file that leads to the page.

    Other users of the machine can see the command that starts the browser, so the token must not be in it.
    """
    with tempfile.TemporaryDirectory(prefix="mlrh-", ignore_cleanup_errors=True) as folder:
        page = Path(folder, "tag.html")
        page.write_text(REDIRECT.format(address), encoding="utf-8")
        yield page.as_uri()


class _Parts(NamedTuple):
    """What a session is made of."""

    distribution: Any
    features: Features
    fingerprints: Fingerprints
    label_names: Sequence
    name: str
    scale: str  # what features are compared with, in words
    schema: Schema
    cells: dict[str, list[str]]
    least_probability: float = 0.0


def _of_model(model, data, feature_names):
    """The parts of a model that knows its columns and labels by their names."""
    if feature_names is not None:
        raise ValueError("feature_names must be left out: the model's schema names its features.")
    from mlrh.data.containers import from_frame

    rows, data = data, from_frame(data, model.schema) if hasattr(data, "columns") else data
    if not hasattr(data, "conform"):
        raise ValueError(f"A Model takes a MultilabelData or a DataFrame as X; got {type(data).__name__}.")
    shown = data.conform(model.schema)
    words = {**shown.categories, **shown.texts}
    scale = training_scale(model)
    features = Features(shown.X, shown.feature_names, words=words, dates=shown.dates, scale=scale)
    described = features, Fingerprints(shown.X, shown.feature_names, words), model.schema.label_names, data.name
    compared = "these rows" if scale is None else "the training rows"
    read = cells_of_rows(rows), model.rule.least_probability
    return _Parts(model.distribution(data), *described, compared, model.schema, *read)


def _of_classifier(classifier, X, feature_names):
    """The same parts of a classifier that knows no names but its classes."""
    if not hasattr(classifier, "distribution"):
        raise ValueError(
            "model must be a fitted classifier of mlrh or a Model of mlrh.automatic, which can be asked for a "
            f"distribution; got {type(classifier).__name__}. Of a pipeline p pass p[-1] and p[:-1].transform(X)."
        )
    distribution = classifier.distribution(X)
    n_labels, n_features = distribution.shape[1], np.shape(X)[1]
    if feature_names is None:
        feature_names = getattr(X, "columns", None)
    names = [f"feature {column + 1}" for column in range(n_features)] if feature_names is None else list(feature_names)
    if len(names) != n_features:
        raise ValueError(f"feature_names must name the {n_features} columns of X; got {len(names)} names.")
    # Two classes as y have one score, that of the second class.
    labels = classifier.classes_[-n_labels:]
    features = Features(X, [str(name) for name in names])
    # The classifier knows columns by their place only, and names may be left out the next time.
    fingerprints = Fingerprints(X, [str(column) for column in range(n_features)])
    schema = Schema(tuple(str(name) for name in names), tuple(map(str, labels)))
    cells = cells_of_rows(X) if hasattr(X, "columns") else {}
    return _Parts(distribution, features, fingerprints, labels, "the rows", "these rows", schema, cells)


def _has_screen():
    """Whether a browser can open a window; without one, Python would start a text browser in this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


# The server


class Server:
    """A server on this machine of rows to tag and, where it is given, of their model.

    Parameters
    ----------
    tagging : Tagging
    port : int, default=0
        0 is any free port.
    model : Model of `mlrh.automatic`, optional
    name : str
        What the model is called.

    Attributes
    ----------
    token : str
        What a request must send as `Authorization: Bearer TOKEN` to learn or change anything.
    """

    def __init__(self, tagging: Tagging, port: int = 0, *, model: Any = None, name: str = "model"):
        self.tagging, self.token = tagging, secrets.token_urlsafe(24)
        self._server = uvicorn.Server(server_config(make_app(model, name, tagging=tagging, token=self.token)))
        self._socket = listening(HOST, port)
        self.server_address: tuple[str, int] = self._socket.getsockname()

    @property
    def address(self) -> str:
        """Where the page is, with the token."""
        return f"http://{HOST}:{self.server_address[1]}/tag?token={self.token}"

    def serve_forever(self) -> None:
        """Answer requests until `shutdown` is called from another thread."""
        self._server.run(sockets=[self._socket])

    def shutdown(self) -> None:
        """Answer what has been asked, and end."""
        self._server.should_exit = True

    def server_close(self) -> None:
        """Give the port back."""
        self._socket.close()


def run(server: Server) -> None:
    """Serve until Ctrl-C, which waits for a change that is being saved and is then raised again."""
    # In a thread: a notebook has a loop of its own in this one, and two can't run there.
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(1.0)  # on Windows, Ctrl-C ends no wait that has no end
    finally:
        server.shutdown()
        thread.join()
        with server.tagging.session.lock:
            server.server_close()
