"""Moved to `mlrh`."""

from mlrh._moved import moved

__getattr__ = moved(__name__, "mlrh", "mlrh.estimators.calibration")
