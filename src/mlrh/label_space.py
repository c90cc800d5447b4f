"""Moved to `mlrh.spaces`."""

from mlrh._moved import moved

__getattr__ = moved(__name__, "mlrh.spaces")
