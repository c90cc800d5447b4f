"""The web application: a model as a service and, where there are rows to tag, the page for that.

Every answer is a line in the log and in the metrics: addresses, statuses, times and numbers of rows, and nothing that
was sent. Every error is {"error": "one sentence"}.
"""

import time
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from mlrh import __version__
from mlrh.web._http import (
    OWN_NAMES,
    Border,
    ClientDisconnect,
    CORSMiddleware,
    HTTPException,
    RequestError,
    add_pages,
    fastapi,
    page_files,
    refusal,
)
from mlrh.web._metrics import PATHS, Metrics
from mlrh.web._service import LOG, OPEN_PATHS, Limits, Service
from mlrh.web._tagging import Tagging


def make_app(
    model: Any,
    name: str,
    *,
    tagging: Tagging | None = None,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    token: str | None = None,
    names: Sequence[str] | None = OWN_NAMES,
    origins: Sequence[str] = (),
) -> Any:
    """The ASGI application of a model, and of rows to tag where there are some.

    Parameters
    ----------
    model : Model of `mlrh.automatic`, or None
        None: only rows are tagged, with a classifier that knows no columns by name.
    name : str
        What the model is called.
    tagging : Tagging, optional
        Rows to tag. After a fit by its key r the service answers by the new model, too.
    metrics : Metrics, optional
        Where requests are counted.
    token : str, optional
        What a request must send as `Authorization: Bearer TOKEN`.
    names : sequence of str or None
        Host names under which it is asked; None: any.
    origins : sequence of str
        Origins of foreign pages that a browser lets ask.
    """
    metrics = metrics or Metrics()
    pages: dict[str, tuple[str, bytes]] = {}
    service = None
    if model is not None:
        service = Service(model, name, limits or Limits(), metrics, has_tagging=tagging is not None)
    app = _application(name, service)
    if service is not None:
        service.add_routes(app)
        pages |= page_files("/", "start")
        app.openapi = service.describing(app.openapi(), has_token=token is not None)
    if tagging is not None:
        tagging.add_routes(app, service)
        pages |= page_files("/tag", "tag")
    add_pages(app, pages)
    headers = None if tagging is None else tagging.headers()
    border = Border(app, names=names, token=token, open_paths=(*OPEN_PATHS, *pages), headers=headers)
    counted = _Counted(border, metrics)
    if not origins:
        return counted
    allowed = ["Authorization", "Content-Type"]
    return CORSMiddleware(counted, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=allowed)


def _application(name, service) -> Any:
    """A FastAPI application without routes, whose errors are sentences."""
    own: dict[str, Any] = {"title": f"mlrh: {name}", "version": __version__}
    own |= {"openapi_url": None} if service is None else {"lifespan": service.lifespan}
    # The pages of FastAPI that show an OpenAPI load scripts from elsewhere.
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False, **own)
    advice = "the page is at /tag" if service is None else "/openapi.json lists the addresses"

    @app.exception_handler(RequestError)
    async def refused(request, error):
        return refusal(error.status, str(error), error.headers)

    @app.exception_handler(HTTPException)
    async def not_routed(request, error):
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = error.headers["Allow"]
            what = f"This address takes {allowed} only; got {request.method}."
            return refusal(error.status_code, what, {"Allow": allowed})
        return refusal(HTTPStatus.NOT_FOUND, f"There is nothing at this address; {advice}.")

    @app.exception_handler(ClientDisconnect)
    async def gone(request, error):
        return refusal(HTTPStatus.BAD_REQUEST, "The request must be complete; the connection was closed before.")

    @app.exception_handler(Exception)
    async def failed(request, error):
        # Its message may quote what was sent.
        trace = "".join(traceback.format_tb(error.__traceback__))
        LOG.error("%s in %s\n%s", type(error).__name__, _known(request.url.path), trace)
        what = f"The program failed ({type(error).__name__}); its log says where."
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, what)

    return app


class _Counted:
    """The application, with a line in the log and in the metrics for every answer."""

    def __init__(self, app, metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.monotonic(), None

        async def noting(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if status is not None:
                seconds, n_rows = time.monotonic() - start, scope.get("mlrh.rows", 0)
                path = _known(scope["path"])
                self._metrics.add(path, status, seconds, n_rows)
                LOG.info("%s %s %d, %d rows, %.0f ms", _known_method(scope), path, status, n_rows, 1e3 * seconds)


def _known(path):
    """The address, or "other" for one that there isn't, which may hold anything."""
    return path if path in PATHS else "other"


def _known_method(scope):
    return scope["method"] if scope["method"] in ("GET", "POST") else "other"
