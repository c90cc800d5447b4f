"""Data sets: what they look like in memory and where they come from. Knows nothing of models."""

from mlrh.data._catalogue import load
from mlrh.data._digits import load_digit_scenes
from mlrh.data._readers import read, write
from mlrh.data.containers import DataError, MultilabelData, Schema

__all__ = ["DataError", "MultilabelData", "Schema", "load", "load_digit_scenes", "read", "write"]
