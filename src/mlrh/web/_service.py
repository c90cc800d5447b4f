"""A model over HTTP: a queue before its answers, what the model is, and how the service is doing.

What is asked about rows is computed in one thread, in the order in which it came. A bounded number of requests waits
for it; one beyond is told to come again.
"""

import asyncio
import contextlib
import copy
import logging
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from mlrh.web._answers import Answers
from mlrh.web._http import Request, RequestError, Response, checked_length, content_type, json_response
from mlrh.web._metrics import Metrics
from mlrh.web._shapes import MAX_TOP, PROMETHEUS, QUESTIONS

LOG = logging.getLogger("mlrh.web")
OPEN_PATHS = ("/health", "/ready")  # for who watches over the process; they tell nothing of the model
RETRY = {"Retry-After": "1"}  # seconds; a place in the queue is free again as soon as an answer is computed


@dataclass(frozen=True)
class Limits:
    """What a request may ask for, and how many may wait.

    Attributes
    ----------
    bytes : int
        Of a request.
    rows : int
    seconds : float
        Until the answer, once the request has come.
    queue : int
        Requests that wait while one is computed.
    """

    bytes: int = 2**23
    rows: int = 10_000
    seconds: float = 30.0
    queue: int = 16


class Service:
    """Answers about rows, one request at a time, and about itself.

    Parameters
    ----------
    model : Model of `mlrh.automatic`
    name : str
        What the model is called.
    limits : Limits
    metrics : Metrics
        Where requests that wait are counted.
    has_tagging : bool, default=False
        Whether rows are tagged in the same program, as /model says.
    """

    def __init__(self, model: Any, name: str, limits: Limits, metrics: Metrics, *, has_tagging: bool = False):
        self._name, self.limits, self.metrics, self._has_tagging = name, limits, metrics, has_tagging
        self.answers = self._answers_of(model)
        self._has_failed = False  # to compile them
        self._waiting = self._received = 0
        self._lock = threading.Lock()

    def adopting(self, model: Any) -> Callable[[], None]:
        """What makes another model of the same labels the one that answers; all that can fail is done before."""
        answers = self._answers_of(model)
        answers.warm_up()
        return lambda: setattr(self, "answers", answers)

    def _answers_of(self, model):
        return Answers(model, self._name, max_rows=self.limits.rows)

    @contextlib.asynccontextmanager
    async def lifespan(self, app):
        """The thread that computes; it first compiles what answers need."""
        with ThreadPoolExecutor(1, "mlrh-answers") as self._thread:
            self._thread.submit(self._warm_up)
            yield

    def _warm_up(self):
        try:
            self.answers.warm_up()
        except Exception as error:
            self._has_failed = True
            LOG.error("The model can't be compiled\n%s", "".join(traceback.format_exception(error)))

    def add_routes(self, app: Any) -> None:
        """Give the application its addresses."""
        shapes = self.answers.shapes
        for path in QUESTIONS:
            about = {"openapi_extra": shapes.request(path), "responses": shapes.responses(path)}
            about |= {"name": path[1:], "response_class": Response}
            app.add_api_route(path, self._asking(path), methods=["POST"], **about)
        handlers = {"/model": self.show_model, "/health": self.health, "/ready": self.ready, "/metrics": self.counts}
        for path, handler in handlers.items():
            about = {"response_class": Response, "responses": shapes.responses(path)}
            about |= {"openapi_extra": {"security": []}} if path in OPEN_PATHS else {}
            app.add_api_route(path, handler, methods=["GET"], name=path[1:], **about)

    def describing(self, document: dict[str, Any], *, has_token: bool) -> Callable[[], dict[str, Any]]:
        """Gives the OpenAPI document of the model that answers now, from that of the addresses."""
        return lambda: self.answers.shapes.add_to(copy.deepcopy(document), has_token=has_token)

    def _asking(self, path):
        # Bound by a closure: FastAPI would let an address set a parameter of the route, also one with a default.
        async def ask(request: Request):
            return await self._answer(request, path)

        return ask

    # Questions about the service

    async def show_model(self):
        """What the model is, and what may be asked of it."""
        self._check_ready()
        limits = {**vars(self.limits), "top": MAX_TOP}
        return json_response({**self.answers.about, "limits": limits, "tagging": self._has_tagging})

    async def health(self):
        """That the process answers."""
        return json_response({"status": "ok"})

    async def ready(self):
        """Whether the model is compiled, so that answers come at once."""
        self._check_ready()
        return json_response({"status": "ready"})

    async def counts(self):
        """Counts for Prometheus."""
        return Response(self.metrics.text(), media_type=PROMETHEUS)

    def _check_ready(self):
        if self._has_failed:
            raise RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, "The model can't be compiled; the log says why.")
        if self.answers.about is None:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "The model is not compiled yet; ask again later.", RETRY)

    # How a question about rows is answered

    async def _answer(self, request, path):
        kind, query = content_type(request), request.url.query
        async with self._body(request) as content:
            n_rows, text = await self._in_turn(lambda: self._computed(path, kind, content, query))
        request.scope["mlrh.rows"] = n_rows
        return Response(text, media_type="application/json")

    @contextlib.asynccontextmanager
    async def _body(self, request):
        """The content of the request, of which what has come counts as received until it is answered."""
        await checked_length(request, self.limits.bytes)
        parts: list[bytes] = []
        try:
            async for part in request.stream():
                if self._received + len(part) > (self.limits.queue + 1) * self.limits.bytes:
                    raise self._busy({"Connection": "close"})  # the rest isn't read
                self._received += len(part)
                parts.append(part)
            yield b"".join(parts)
        finally:
            self._received -= sum(map(len, parts))

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        """What the work gives, once it is its turn; refused where too many wait, or where it takes too long."""
        if self._waiting > self.limits.queue:  # one of them is being computed
            raise self._busy({})
        self._change_waiting(1)
        job = self._thread.submit(work)
        job.add_done_callback(lambda _: self._change_waiting(-1))  # also where nobody waits for the answer any more
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job), self.limits.seconds)
        except TimeoutError as error:
            if job.cancelled():  # its turn hadn't come
                raise self._busy({}) from error
            what = f"The answer takes longer than {self.limits.seconds:g} s; ask for fewer rows."
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, what) from error  # asked again, it would take as long

    def _busy(self, headers):
        what = f"{self.limits.queue} requests wait already; ask again later."
        return RequestError(HTTPStatus.SERVICE_UNAVAILABLE, what, {**RETRY, **headers})

    def _change_waiting(self, by):
        with self._lock:
            self._waiting += by
            self.metrics.set_waiting(self._waiting)

    def _computed(self, path, kind, content, query):
        """Number of rows, and the answer as JSON."""
        taken = ("application/json", "text/csv") if path == "/predict" else ("application/json",)
        if kind not in taken:
            what = f"Rows must be sent as {' or '.join(taken)}; got {kind[:60]}."
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, what)
        try:
            return self.answers.answer(path, kind, content, query)
        except ValueError as error:
            raise RequestError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
