"""Multilabel logistic regression that is exact, joint and fast."""

from mlrh.estimators import KernelMLRHClassifier, MLRHClassifier

__all__ = ["KernelMLRHClassifier", "MLRHClassifier"]
__version__ = "0.1.0"
