"""Data sets: what they look like in memory and where they come from. Knows nothing of models."""

from mlrh.data.catalogue import load
from mlrh.data.containers import DataError, MultilabelData, Schema
from mlrh.data.digits import load_digit_scenes
from mlrh.data.readers import read, write

__all__ = ["DataError", "MultilabelData", "Schema", "load", "load_digit_scenes", "read", "write"]
