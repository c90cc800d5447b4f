"""Comparison methods that scikit-learn lacks, and the probability of a label set under those that it has."""

from mlrh.baselines.chains import ProbabilisticChain, chain_set_log_proba, independent_set_log_proba
from mlrh.baselines.label_powerset import LabelPowerset
from mlrh.baselines.ml_knn import MLkNN
from mlrh.baselines.or_constant import OrConstant

__all__ = [
    "LabelPowerset",
    "MLkNN",
    "OrConstant",
    "ProbabilisticChain",
    "chain_set_log_proba",
    "independent_set_log_proba",
]
