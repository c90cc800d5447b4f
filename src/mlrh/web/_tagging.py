"""The page on which a person tags rows, and the border between a browser and a session.

The page is for the person who started the program only: the server listens on 127.0.0.1, refuses requests under another
host name (a foreign page whose name was made to point here), takes changes only as JSON from its own page (a foreign
page can send other forms, and can't read answers), and answers about rows only where the request has the token (other
users of this machine can connect, too). The page has the token from its address and sends it in a header: a cookie
would also go to other servers on this machine, because cookies ignore ports.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from mlrh.data.containers import DataError
from mlrh.web._http import (
    HEADERS,
    Request,
    RequestError,
    Response,
    checked_length,
    content_type,
    json_response,
    run_in_threadpool,
)
from mlrh.web._retraining import Retraining
from mlrh.web._service import Service
from mlrh.web._session import Session

LARGEST_BODY = 2**16  # an action is a few names and numbers
POLICY = "Content-Security-Policy"
ACTIONS = {  # what each address calls, and takes
    "/api/decide": ("decide", {"row", "label", "value", "order"}),
    "/api/accept": ("accept", {"row", "order"}),
    "/api/clear": ("clear", {"row", "order"}),
    "/api/undo": ("undo", {"order"}),
}


@dataclass
class Tagging:
    """Rows to tag, as a part of the application.

    Attributes
    ----------
    session : Session
    about : dict
        What the page says of the rows: their name, the file of decisions, and how many rows it held at the start.
    retraining : Retraining or None
        How to fit anew; without it the page doesn't offer to.
    """

    session: Session
    about: dict = field(default_factory=dict)
    retraining: Retraining | None = None

    def headers(self) -> dict[str, str]:
        """Headers of every answer of the application: what its pages may load, and that a connection has one answer."""
        return {POLICY: page_policy(self.session), "Connection": "close"}

    def add_routes(self, app: Any, service: Service | None) -> None:
        """Give the application the addresses of the page; a model that is fitted anew becomes that of the service."""
        can = {"can_retrain": self.retraining is not None, "has_service": service is not None}
        if self.retraining is not None and service is not None:
            self.retraining.adopting = service.adopting
        for path, answer in {
            "/api/session": lambda query: json_response({**self.session.overview(), **self.about, **can}),
            "/api/row": lambda query: json_response(self.session.row(**_row_query(query))),
            "/api/image": self._image,
            "/api/retraining": self._fit,
        }.items():
            app.add_api_route(path, _reading(answer), methods=["GET"], include_in_schema=False)
        changes = {path: (self._act(name), keys) for path, (name, keys) in ACTIONS.items()}
        for path, (act, keys) in {**changes, "/api/retrain": (self._retrain, set())}.items():
            app.add_api_route(path, _changing(act, keys), methods=["POST"], include_in_schema=False)

    def _image(self, query):
        kind, content = self.session.image(**_image_query(query))
        return Response(content, media_type=kind)

    def _fit(self, query):
        return json_response({"state": "none"} if self.retraining is None else self.retraining.state())

    def _act(self, name):
        return lambda **body: getattr(self.session, name)(**body)

    def _retrain(self):
        if self.retraining is None:
            raise ValueError("This page can't retrain; mlrh tag can, for a file of rows and a model of mlrh fit.")
        return self.retraining.start()


# Bound by closures: FastAPI would let an address set a parameter of the route, also one with a default.


def _reading(answer: Callable[[str], Response]):
    def read(request: Request):
        with _in_a_sentence():
            return answer(request.url.query)

    return read


def _changing(act: Callable[..., Any], keys: Collection[str]):
    async def change(request: Request):
        _check_origin(request)
        with _in_a_sentence():
            body = await _body(request, keys)
            return json_response(await run_in_threadpool(act, **body))

    return change


@contextlib.contextmanager
def _in_a_sentence():
    try:
        yield
    except DataError as error:  # of the file of decisions
        raise RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
    except ValueError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, str(error)) from error


def page_policy(session):
    """What the page may load: images of this program, and of other hosts only where the user asked for them."""
    own = HEADERS[POLICY].replace("img-src data:", "img-src data: blob:")
    return own.replace("blob:", "blob: http: https:") if session.loads_links else own


def _check_origin(request):
    """A browser names the page that sends a change: it must be ours."""
    origin, own = request.headers.get("origin"), f"http://{request.headers['host']}"
    if origin is not None and origin.lower() != own.lower():
        what = f"Changes are taken from the page at {own} only; this one came from {origin[:60]!r}."
        raise RequestError(HTTPStatus.FORBIDDEN, what)


async def _body(request, keys):
    """The JSON object of the request, with these keys and no others."""
    if content_type(request) != "application/json":
        what = f"Changes must be sent as application/json; got {content_type(request)[:60]}."
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, what)
    await checked_length(request, LARGEST_BODY)
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ValueError("The request must be JSON; it can't be read as such.") from error
    if not isinstance(body, dict) or set(body) != keys:
        with_keys = f"with the keys {', '.join(sorted(keys))}" if keys else "without keys"
        raise ValueError(f"The request must be a JSON object {with_keys}.")
    return body


def _row_query(query):
    """Arguments of `Session.row` from an address; a row that is no number is left for the session to refuse."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    if "row" not in given or not set(given) <= {"row", "order"}:
        raise ValueError("The address of a row must have row=, a number, and may have order=.")
    return {**given, "row": _row_number(given["row"])}


def _image_query(query):
    given = dict(parse_qsl(query, keep_blank_values=True))
    if set(given) != {"row", "column"}:
        raise ValueError("The address of an image must have row=, a number, and column=, a name.")
    return {"row": _row_number(given["row"]), "column": given["column"]}


def _row_number(text):
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else text
