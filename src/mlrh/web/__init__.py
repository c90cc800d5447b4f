"""A page where a person goes through rows, confirms or rejects labels, and sees the others move."""

from mlrh.web._server import serve
from mlrh.web._store import known_of

__all__ = ["known_of", "serve"]
