"""A page where a person goes through rows, confirms or rejects labels, and sees the others move."""

from mlrh.web.serving import serve
from mlrh.web.store import known_of

__all__ = ["known_of", "serve"]
