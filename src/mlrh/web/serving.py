"""From a fitted model and rows to a running page, for Python and for the command line."""

import contextlib
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mlrh.web.features import Features
from mlrh.web.fingerprints import Fingerprints
from mlrh.web.server import TaggingServer, run
from mlrh.web.session import Session
from mlrh.web.store import Store

REDIRECT = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={}"><title>mlrh tag</title>'


def serve(
    model: Any,
    X: Any,
    *,
    label_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    output: str | Path | None = None,
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
    port : int, default=0
        0 is any free port of 127.0.0.1.
    open_browser : bool, default=True
    tell : function of a sentence, default=print
        Is told the address, and what the file of decisions holds.
    """
    session, about = make_session(model, X, label_names=label_names, feature_names=feature_names, output=output)
    with contextlib.suppress(KeyboardInterrupt):
        run_page(session, about, port=port, open_browser=open_browser, tell=tell)
    return session.known()


def make_session(model, X, *, label_names=None, feature_names=None, output=None) -> tuple[Session, dict]:
    """The session of a model's rows, and what the page says of them."""
    parts = (_of_model if hasattr(model, "schema") else _of_classifier)(model, X, feature_names)
    names = [str(label) for label in (parts.label_names if label_names is None else label_names)]
    n_labels = parts.distribution.scores.shape[1]
    if len(names) != n_labels:
        raise ValueError(f"label_names must name the model's {n_labels} labels; got {len(names)} names.")
    store = None if output is None else Store(output, names, parts.fingerprints)
    session = Session(
        parts.distribution,
        names,
        sizes=(int(parts.classifier.min_labels_), int(parts.classifier.max_labels_)),
        known=None if store is None else store.known,
        features=parts.features,
        keep=None if store is None else store.keep,
    )
    return session, {"name": parts.name, **_about_file(store)}


def _about_file(store):
    if store is None:
        return {"output": None, "n_resumed": 0, "n_unsure": 0}
    return {"output": str(store.path), "n_resumed": store.n_decided, "n_unsure": store.n_unsure}


def run_page(session, about, *, port, open_browser, tell) -> None:
    """Serve the page until an interrupt, which is raised again once nothing is being saved."""
    server = TaggingServer(session, port, about)
    if about["output"]:
        tell(_start(about))
    tell(f"The page is at {server.address} for this machine; Ctrl-C ends it.")
    with contextlib.ExitStack() as while_running:
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
    """Gives the address of a file for this person's eyes that leads to the page.

    Everybody on the machine can see the commands that run, and a browser is started by one, so the token may not be in
    it.
    """
    with tempfile.TemporaryDirectory(prefix="mlrh-", ignore_cleanup_errors=True) as folder:
        page = Path(folder, "tag.html")
        page.write_text(REDIRECT.format(address), encoding="utf-8")
        yield page.as_uri()


class _Parts(NamedTuple):
    """What a session is made of."""

    distribution: Any
    classifier: Any
    features: Features
    fingerprints: Fingerprints
    label_names: Sequence
    name: str


def _of_model(model, data, feature_names):
    """The parts of a model that knows its columns and labels by their names."""
    if feature_names is not None:
        raise ValueError("feature_names must be left out: the model's schema names its features.")
    from mlrh.data.containers import from_frame

    data = from_frame(data, model.schema) if hasattr(data, "columns") else data
    if not hasattr(data, "conform"):
        raise ValueError(f"A Model takes a MultilabelData or a DataFrame as X; got {type(data).__name__}.")
    shown = data.conform(model.schema)
    columns = shown.X, shown.feature_names, shown.categories
    return _Parts(
        model.distribution(data),
        model.classifier,
        Features(*columns),
        Fingerprints(*columns),
        model.schema.label_names,
        data.name,
    )


def _of_classifier(classifier, X, feature_names):
    """The same parts of a classifier that knows no names but its classes."""
    if not hasattr(classifier, "distribution"):
        raise ValueError(
            "model must be a fitted classifier of mlrh or a Model of mlrh.automatic, which can be asked for a "
            f"distribution; got {type(classifier).__name__}. Of a pipeline p pass p[-1] and p[:-1].transform(X)."
        )
    distribution = classifier.distribution(X)
    n_labels, n_features = distribution.scores.shape[1], np.shape(X)[1]
    if feature_names is None:
        feature_names = getattr(X, "columns", None)
    names = [f"feature {column + 1}" for column in range(n_features)] if feature_names is None else list(feature_names)
    if len(names) != n_features:
        raise ValueError(f"feature_names must name the {n_features} columns of X; got {len(names)} names.")
    # Two classes as y have one score, that of the second class.
    labels = classifier.classes_[-n_labels:]
    features = Features(X, [str(name) for name in names])
    # It takes columns by their places, and their names may be left out the next time.
    fingerprints = Fingerprints(X, [str(column) for column in range(n_features)])
    return _Parts(distribution, classifier, features, fingerprints, labels, "the rows")


def _has_screen():
    """Whether a browser can open a window; without one, Python would start a text browser in this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
