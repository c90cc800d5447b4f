"""Data sets: what they look like in memory, and where they come from."""

from mlrh.data._catalogue import load
from mlrh.data._digits import load_digit_scenes
from mlrh.data._parts import FileParts, schema_of
from mlrh.data._readers import FORMATS, Format, read, write
from mlrh.data._sources import Source
from mlrh.data.containers import DataError, MultilabelData, Schema

__all__ = [
    "FORMATS",
    "DataError",
    "FileParts",
    "Format",
    "MultilabelData",
    "Schema",
    "Source",
    "load",
    "load_digit_scenes",
    "read",
    "schema_of",
    "write",
]
