"""From a fitted model and rows to a running page, for Python and for the command line."""

import contextlib
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlrh.tagging.features import Features
from mlrh.tagging.server import TaggingServer, run
from mlrh.tagging.session import Session
from mlrh.tagging.store import Store


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
        Where every decision is saved at once; a file that exists is gone on from. Without it decisions are only
        returned.
    port : int, default=0
        0 is any free port of 127.0.0.1.
    open_browser : bool, default=True
    tell : function of a sentence, default=print
        Is told the address.
    """
    session, about = make_session(model, X, label_names=label_names, feature_names=feature_names, output=output)
    with contextlib.suppress(KeyboardInterrupt):
        run_page(session, about, port=port, open_browser=open_browser, tell=tell)
    return session.known()


def make_session(model, X, *, label_names=None, feature_names=None, output=None) -> tuple[Session, dict]:
    """The session of a model's rows, and what the page says of them."""
    described = _of_model if hasattr(model, "schema") else _of_classifier
    distribution, classifier, features, own_names, name = described(model, X, feature_names)
    names = [str(label) for label in (own_names if label_names is None else label_names)]
    n_rows, n_labels = distribution.scores.shape
    if len(names) != n_labels:
        raise ValueError(f"label_names must name the model's {n_labels} labels; got {len(names)} names.")
    store = None if output is None else Store(output, names, n_rows)
    session = Session(
        distribution,
        names,
        sizes=(int(classifier.min_labels_), int(classifier.max_labels_)),
        known=None if store is None else store.known,
        features=features,
        keep=None if store is None else store.keep,
    )
    return session, {"name": name, "output": None if store is None else str(store.path)}


def run_page(session, about, *, port, open_browser, tell) -> None:
    """Serve the page until an interrupt, which is raised again once nothing is being saved."""
    server = TaggingServer(session, port, about)
    tell(f"The page is at {server.address} for this machine; Ctrl-C ends it.")
    if open_browser and _has_screen():
        # In a thread: some browsers keep the call until they are closed.
        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
    run(server)


def _of_model(model, data, feature_names):
    """Parts of a session: distribution, classifier, features, names of labels, name of the rows."""
    if feature_names is not None:
        raise ValueError("feature_names must be left out: the model's schema names its features.")
    from mlrh.data.frames import from_frame

    data = from_frame(data, model.schema) if hasattr(data, "columns") else data
    if not hasattr(data, "conform"):
        raise ValueError(f"A Model takes a MultilabelData or a DataFrame as X; got {type(data).__name__}.")
    shown = data.conform(model.schema)
    features = Features(shown.X, shown.feature_names, shown.categories)
    return model.distribution(data), model.classifier, features, model.schema.label_names, data.name


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
    return distribution, classifier, Features(X, [str(name) for name in names]), labels, "the rows"


def _has_screen():
    """Whether a browser can open a window; without one, Python would start a text browser in this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
