"""One web application: a model as a service, and a page where a person confirms or rejects labels of rows."""

from typing import TYPE_CHECKING

from mlrh.web._store import known_of

if TYPE_CHECKING:
    from mlrh.web._server import serve

__all__ = ["known_of", "serve"]


def __getattr__(name):
    # At first use, since the page needs FastAPI and the file of decisions doesn't.
    if name == "serve":
        from mlrh.web._server import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
