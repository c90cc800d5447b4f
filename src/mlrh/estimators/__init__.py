"""The scikit-learn classes: validate, compose, expose."""

from mlrh.estimators._held_out import distribution
from mlrh.estimators.auto import MLRHAuto
from mlrh.estimators.boosting import MLRHBoostingClassifier
from mlrh.estimators.calibration import CalibratedSets, isotonic_map
from mlrh.estimators.cv import KernelMLRHClassifierCV, MLRHClassifierCV
from mlrh.estimators.kernel import KernelMLRHClassifier, gamma_scale
from mlrh.estimators.linear import MLRHClassifier
from mlrh.estimators.pool import PooledSets
from mlrh.estimators.thresholds import TunedThresholds, best_thresholds

__all__ = [
    "CalibratedSets",
    "KernelMLRHClassifier",
    "KernelMLRHClassifierCV",
    "MLRHAuto",
    "MLRHBoostingClassifier",
    "MLRHClassifier",
    "MLRHClassifierCV",
    "PooledSets",
    "TunedThresholds",
    "best_thresholds",
    "distribution",
    "gamma_scale",
    "isotonic_map",
]
