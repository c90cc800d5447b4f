"""From a fitted model and rows to a running page, and the border between a browser and a session.

The page is for the person who started the program only: the server listens on 127.0.0.1, refuses requests under another
host name (a foreign page whose name was made to point here), takes changes only as JSON from its own page (a foreign
page can send other forms, and can't read answers), and answers about rows only where the request has the token (other
users of this machine can connect, too). The page has the token from its address and sends it in a header: a cookie
would also go to other servers on this machine, because cookies ignore ports.
"""

import contextlib
import hmac
import json
import os
import re
import secrets
import socketserver
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from mlrh._style import page_css
from mlrh.data.containers import DataError
from mlrh.web._session import Features, Session
from mlrh.web._store import Fingerprints, Store, held

HOST = "127.0.0.1"
OWN_NAMES = ("127.0.0.1", "localhost")
LARGEST_BODY = 2**16
LONGEST_SENTENCE = 500  # characters of an error; http.server quotes all that it can't read
SECONDS = 30  # that a client may take to send a request
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
ACTIONS = {  # what each address takes and calls
    "/api/decide": ("decide", {"row", "label", "value", "order"}),
    "/api/accept": ("accept", {"row", "order"}),
    "/api/clear": ("clear", {"row", "order"}),
    "/api/undo": ("undo", {"order"}),
}
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
    n_labels = parts.distribution.shape[1]
    if len(names) != n_labels:
        raise ValueError(f"label_names must name the model's {n_labels} labels; got {len(names)} names.")
    store = None if output is None else Store(output, names, parts.fingerprints)
    session = Session(
        parts.distribution,
        names,
        known=None if store is None else store.known,
        features=parts.features,
        keep=None if store is None else store.keep,
    )
    about = (None, 0, 0) if store is None else (str(store.path), store.n_decided, store.n_unsure)
    return session, {"name": parts.name, **dict(zip(("output", "n_resumed", "n_unsure"), about, strict=True))}


def run_page(session, about, *, port, open_browser, tell) -> None:
    """Serve the page until an interrupt, which is raised again once nothing is being saved."""
    with contextlib.ExitStack() as while_running:
        if about["output"]:
            while_running.enter_context(held(about["output"]))
        server = TaggingServer(session, port, about)
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
    described = Features(*columns), Fingerprints(*columns), model.schema.label_names, data.name
    return _Parts(model.distribution(data), *described)


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
    return _Parts(distribution, features, fingerprints, labels, "the rows")


def _has_screen():
    """Whether a browser can open a window; without one, Python would start a text browser in this terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


# Requests


class RequestError(Exception):
    """A request that isn't answered: a status and one sentence."""

    def __init__(self, status: HTTPStatus, sentence: str):
        super().__init__(sentence)
        self.status = status


class TaggingServer(ThreadingHTTPServer):
    """A server of one session on this machine.

    Parameters
    ----------
    session : Session
    port : int, default=0
        0 is any free port.
    about : dict, optional
        What the page says of the rows: their name, the file of decisions, and how many rows it held at the start.

    Attributes
    ----------
    token : str
        What a request must send as `Authorization: Bearer TOKEN` to learn or change anything.
    """

    daemon_threads = True

    def __init__(self, session: Session, port: int = 0, about: dict | None = None):
        self.session, self.about = session, about or {}
        self.pages, self.token = _pages(), secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"Port {port} can't be used ({reason}); choose another, or 0 for any free one.") from error

    @property
    def address(self) -> str:
        """Where the page is, with the token."""
        return f"http://{HOST}:{self.server_address[1]}/?token={self.token}"

    def server_bind(self):
        # HTTPServer's own asks the network for the name of 127.0.0.1, which can take seconds and serves nothing here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request, client_address):
        """Print a traceback, unless the browser has just gone away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def run(server: TaggingServer) -> None:
    """Serve until Ctrl-C, which waits for a change that is being saved and is then raised again."""
    try:
        server.serve_forever()
    finally:
        with server.session.lock:
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: TaggingServer
    server_version, sys_version = "mlrh", ""
    timeout = SECONDS

    def __getattr__(self, name):
        # http.server looks for do_GET, do_PUT and the like; other methods than two are refused in our words.
        if name.startswith("do_"):
            work = {"do_GET": self._get, "do_POST": self._post}.get(name, self._refuse_method)
            return lambda: self._answer(work)
        raise AttributeError(name)

    def _answer(self, work: Callable):
        try:
            self._check_host()
            address = urlsplit(self.path)
            if address.path not in self.server.pages:  # these files are the same for all, and tell nothing of rows
                self._check_token()
            kind, content = work(address)
        except RequestError as error:
            self.send_error(error.status, str(error))
        except DataError as error:  # the file of decisions
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except ValueError as error:
            self.send_error(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, f"The program failed ({type(error).__name__}: {error}).")
            raise
        else:
            self._send(HTTPStatus.OK, kind, content)

    def _get(self, address):
        if address.path in self.server.pages:
            return self.server.pages[address.path]
        if address.path == "/api/session":
            return _json({**self.server.session.overview(), **self.server.about})
        if address.path == "/api/row":
            return _json(self.server.session.row(**_row_query(address.query)))
        self._refuse_method(address)

    def _post(self, address):
        if address.path not in ACTIONS:
            self._refuse_method(address)
        self._check_origin()
        name, keys = ACTIONS[address.path]
        return _json(getattr(self.server.session, name)(**self._body(keys)))

    def _refuse_method(self, address):
        allowed = "POST" if address.path in ACTIONS else "GET"
        readable = {*self.server.pages, "/api/session", "/api/row"}
        if address.path not in readable | set(ACTIONS):
            raise RequestError(HTTPStatus.NOT_FOUND, "There is nothing at this address; the page is at /.")
        what = f"This address takes {allowed} only; got {self.command}."
        raise RequestError(HTTPStatus.METHOD_NOT_ALLOWED, what)

    def _check_host(self):
        name = re.sub(r":[0-9]*\Z", "", self.headers.get("Host", "")).lower()
        if name not in OWN_NAMES:
            what = f"The page is for this machine only, as {' or '.join(OWN_NAMES)}; the request was for {name[:60]!r}."
            raise RequestError(HTTPStatus.FORBIDDEN, what)

    def _check_token(self):
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            what = "The token is missing or wrong; open the address that the program printed, with all of its ?token=."
            raise RequestError(HTTPStatus.FORBIDDEN, what)

    def _check_origin(self):
        """A browser names the page that sends a change: it must be ours."""
        origin, own = self.headers.get("Origin"), f"http://{self.headers['Host']}"
        if origin is not None and origin.lower() != own.lower():
            what = f"Changes are taken from the page at {own} only; this one came from {origin[:60]!r}."
            raise RequestError(HTTPStatus.FORBIDDEN, what)

    def _body(self, keys):
        """The JSON object of the request, with these keys and no others."""
        if self.headers.get_content_type() != "application/json":
            what = f"Changes must be sent as application/json; got {self.headers.get_content_type()[:60]}."
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, what)
        content = self.rfile.read(self._length())
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("The request must be JSON; it can't be read as such.") from error
        if not isinstance(body, dict) or set(body) != keys:
            raise ValueError(f"The request must be a JSON object with the keys {', '.join(sorted(keys))}.")
        return body

    def _length(self):
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length):
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "A change must say its length in the header Content-Length.")
        if int(length) > LARGEST_BODY:
            what = f"A change must have at most {LARGEST_BODY} bytes; got {length}."
            raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)
        return int(length)

    def send_error(self, code, message=None, explain=None):
        """One sentence as JSON, also for what http.server itself refuses."""
        sentence = " ".join(str(message or HTTPStatus(code).phrase).split())
        brief = sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:LONGEST_SENTENCE]}..."
        self._send(code, *_json({"error": brief}))

    def _send(self, status, kind, content):
        # http.server leaves status and headers out where the request says HTTP/0.9, or nothing that it can read.
        self.request_version = "HTTP/1.0"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST" if urlsplit(self.path).path in ACTIONS else "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format, *args):
        """Nothing: the terminal is for the person, not for requests."""


def _row_query(query):
    """Arguments of `Session.row` from an address; a row that is no number is left for the session to refuse."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    if "row" not in given or not set(given) <= {"row", "order"}:
        raise ValueError("The address of a row must have row=, a number, and may have order=.")
    row = given["row"]
    return {**given, "row": int(row) if re.fullmatch("[0-9]{1,9}", row) else row}


def _json(answer):
    return "application/json", json.dumps(answer, allow_nan=False).encode()


def _pages():
    """The page's files by their addresses: type and content. The style is the report's, and then its own."""
    folder = files("mlrh.web")
    page, script, style = (folder.joinpath(f"page.{suffix}").read_bytes() for suffix in ("html", "js", "css"))
    return {
        "/": ("text/html; charset=utf-8", page),
        "/page.js": ("text/javascript; charset=utf-8", script),
        "/page.css": ("text/css; charset=utf-8", page_css().encode() + style),
    }
