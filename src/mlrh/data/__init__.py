"""Data sets: what they look like in memory and where they come from. Knows nothing of models."""

from mlrh.data.containers import MultilabelData
from mlrh.data.digits import load_digit_scenes

__all__ = ["MultilabelData", "load_digit_scenes"]
