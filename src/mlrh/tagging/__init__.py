"""A page where a person goes through rows, confirms or rejects labels, and sees the others move."""

from mlrh.tagging.serving import serve
from mlrh.tagging.store import known_of

__all__ = ["known_of", "serve"]
