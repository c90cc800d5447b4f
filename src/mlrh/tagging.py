"""Moved to `mlrh.web`."""

from mlrh._moved import moved

__getattr__ = moved(__name__, "mlrh.web")
