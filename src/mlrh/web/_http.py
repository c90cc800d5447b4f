"""HTTP for the application: a server, who may ask it, and errors in one sentence.

FastAPI routes requests and uvicorn speaks HTTP. Every answer has the headers of `HEADERS`, also where a request can't
be read as HTTP, and every error is {"error": "one sentence"}.
"""

import asyncio
import contextlib
import errno
import hmac
import json
import os
import re
import socket
from collections.abc import Collection, Mapping
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from mlrh._style import page_css

try:
    import fastapi
    import h11
    import uvicorn
    from starlette.concurrency import run_in_threadpool  # noqa: F401 (for the modules beside this one)
    from starlette.exceptions import HTTPException  # noqa: F401
    from starlette.middleware.cors import CORSMiddleware  # noqa: F401
    from starlette.requests import ClientDisconnect, Request  # noqa: F401
    from starlette.responses import Response
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise ImportError(
        "Pages and services need FastAPI and uvicorn; install them with: "
        'pip install "fastapi>=0.115" "pydantic>=2.8" "uvicorn>=0.34"'
    ) from error

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
LONGEST_SENTENCE = 500  # characters of an error, which may quote what was sent
SECONDS = 30  # that a client may take to send a request, and that it may take nothing of its answer
STOP_SECONDS = 2  # that a request which still arrives may delay the end of the program
DISCARDED = 8  # times the limit that a request is read for all that, to be refused
ADVICE = "open the page with ?token= at the end of its address, or send the header Authorization: Bearer TOKEN"
WAITING = 128  # connections that the system keeps until they are accepted
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class RequestError(Exception):
    """A request that isn't answered: a status, one sentence, and headers that go with them."""

    def __init__(self, status: HTTPStatus, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.headers = status, headers


# Answers


def json_response(content: Any, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as JSON in ASCII, so that half a pair of surrogates, which UTF-8 can't hold, can be sent too."""
    text = json.dumps(content, allow_nan=False)
    return Response(text, status, dict(headers or {}), media_type="application/json")


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in one sentence."""
    return json_response({"error": _brief(sentence)}, status, headers)


def content_type(request: Request) -> str:
    """The type of what is sent, without its parameters."""
    return request.headers.get("content-type", "none").partition(";")[0].strip().lower()


async def checked_length(request: Request, most: int) -> int:
    """The bytes of what is sent; one that doesn't say them, or has too many, is refused."""
    length, close = request.headers.get("content-length", ""), {"Connection": "close"}  # the rest isn't read
    # Of a request that has both headers, the one in chunks counts, and the length may be wrong.
    if not re.fullmatch("[0-9]+", length) or "transfer-encoding" in request.headers:
        what = "A request must say its length in the header Content-Length, and not come in chunks."
        raise RequestError(HTTPStatus.LENGTH_REQUIRED, what, close)
    if len(length) <= 12 and int(length) <= most:
        return int(length)
    what = f"A request must have at most {most} bytes; got {length[:20]}. Send less at once."
    if len(length) > 12 or int(length) > DISCARDED * most:
        raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what, close)
    async for _ in request.stream():  # many clients hear no answer before they have sent all
        pass
    raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)


def _brief(sentence):
    sentence = " ".join(sentence.split())
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:LONGEST_SENTENCE]}..."


# Who may ask


class Border:
    """The application, for requests under the right names and with the token only; all answers have `HEADERS`.

    Parameters
    ----------
    app : ASGI application
    names : collection of str or None
        Host names under which it is asked; None: any. A foreign page whose name was made to point here is refused so.
    token : str or None
        What a request must send as `Authorization: Bearer TOKEN`. None: nothing.
    open_paths : collection of str
        Addresses that everybody may ask, without the token.
    headers : mapping of str to str, optional
        More headers of every answer.
    """

    def __init__(
        self,
        app: Any,
        *,
        names: Collection[str] | None,
        token: str | None,
        open_paths: Collection[str],
        headers: Mapping[str, str] | None = None,
    ):
        self._app, self._names, self._token, self._open_paths = app, names, token, open_paths
        self._headers = _encoded({**HEADERS, **(headers or {})})

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        try:
            self._check(dict(scope["headers"]), scope["path"])
        except RequestError as error:
            return await refusal(error.status, str(error), error.headers)(scope, receive, send_with_headers)
        await self._app(scope, receive, send_with_headers)

    def _check(self, headers, path):
        name = re.sub(r":[0-9]*\Z", "", headers.get(b"host", b"").decode("latin-1")).lower()
        if self._names is not None and name not in self._names:
            who = "for this machine only" if self._names is OWN_NAMES else "asked under its own names only"
            what = f"The server is {who}, as {' or '.join(self._names)}; the request was for {name[:60]!r}."
            raise RequestError(HTTPStatus.FORBIDDEN, what)
        if self._token is None or path in self._open_paths:
            return
        if not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self._token}".encode()):
            what = f"The token is missing or wrong; {ADVICE}."
            raise RequestError(HTTPStatus.UNAUTHORIZED, what, {"WWW-Authenticate": "Bearer"})


def _encoded(headers):
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


# The server


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections to the port, or any free one for 0; a ValueError where it can't be had."""
    if not 0 <= port <= 65535:  # Python would leave its socket open
        raise ValueError(f"Port {port} can't be used; choose one from 1 to 65535, or 0 for any free one.")
    try:
        return socket.create_server((host, port), backlog=WAITING, family=_family(host))
    except OSError as error:
        number = getattr(error, "errno", None) or 0
        if number < 0 or number == errno.EADDRNOTAVAIL:  # below 0 the name can't be resolved
            raise ValueError(f"{host} is no address of this machine; correct --host.") from error
        reason = os.strerror(number) if number else error
        raise ValueError(f"Port {port} can't be used ({reason}); choose another, or 0 for any free one.") from error


def _family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """How uvicorn serves an application: with `Protocol`, and without a word of its own."""
    quiet = {"log_config": None, "log_level": "critical", "access_log": False, "server_header": False}
    own = {"http": Protocol, "ws": "none", "loop": "asyncio", "proxy_headers": False}
    return uvicorn.Config(app, **{**quiet, **own, "timeout_graceful_shutdown": STOP_SECONDS, **options})


class Protocol(H11Protocol):
    """uvicorn's HTTP, with four things it lacks.

    What can't be read as HTTP is refused as everything else is. A client that sends no whole request within SECONDS
    is left. So is one that takes nothing of its answer for as long, which would be kept in memory. One that closes its
    own side of the connection, as it may once it has asked, gets its answer.
    """

    _deadline: asyncio.TimerHandle | None = None
    _left = 0  # bytes that the client had not taken when the deadline was set

    def connection_made(self, transport):
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc):
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self):
        super().on_response_complete()
        self._wait()

    def eof_received(self):
        if self._is_incomplete():
            return False  # closes the connection
        self.cycle.keep_alive = False
        return True

    def send_400_response(self, msg):
        if self.cycle is not None:  # whose body is broken: the application hears that nobody waits for its answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = refusal(HTTPStatus.BAD_REQUEST, "The request must be HTTP/1.1; it can't be read as such.")
            headers = [*response.raw_headers, *_encoded({**HEADERS, "Connection": "close"})]
            status = h11.Response(status_code=response.status_code, headers=headers, reason=b"Bad Request")
            with contextlib.suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
                for event in (status, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event))
        self.transport.close()

    def _is_incomplete(self):
        """Whether a request, or the rest of one, is still to come."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _wait(self):
        self._stop_waiting()
        self._left = self.transport.get_write_buffer_size()
        self._deadline = self.loop.call_later(SECONDS, self._leave)

    def _stop_waiting(self):
        if self._deadline is not None:
            self._deadline.cancel()

    def _leave(self):
        left = self.transport.get_write_buffer_size()
        if left and left >= self._left:
            self.transport.abort()  # closing would wait until it has taken all
        elif not left and self._is_incomplete():
            self.transport.close()
        else:
            self._wait()


# Files


def page_files(path: str, name: str) -> dict[str, tuple[str, bytes]]:
    """Type and content of NAME.html, .js and .css by their addresses, of which the path is the page's.

    The style is the report's, and then its own. drawing.js and .css are what pages share.
    """
    folder = files("mlrh.web")
    page, script, style = (folder.joinpath(f"{name}.{suffix}").read_bytes() for suffix in ("html", "js", "css"))
    shared_script, shared_style = (folder.joinpath(f"drawing.{suffix}").read_bytes() for suffix in ("js", "css"))
    return {
        path: ("text/html; charset=utf-8", page),
        f"/{name}.js": ("text/javascript; charset=utf-8", script),
        f"/{name}.css": ("text/css; charset=utf-8", page_css().encode() + style),
        "/drawing.js": ("text/javascript; charset=utf-8", shared_script),
        "/drawing.css": ("text/css; charset=utf-8", shared_style),
    }


def add_pages(app: fastapi.FastAPI, pages: Mapping[str, tuple[str, bytes]]) -> None:
    """Serve the files of `page_files`."""
    for path, (kind, content) in pages.items():
        app.add_api_route(path, _page(kind, content), methods=["GET"], include_in_schema=False)


def _page(kind, content):
    # Bound by a closure: FastAPI would let an address set a parameter of the route, also one with a default.
    async def page():
        return Response(content, media_type=kind)

    return page
