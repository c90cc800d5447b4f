"""Comparison methods that scikit-learn lacks, and the probability of a label set under those that it has."""

from mlrh.baselines.ccnet import CCnet
from mlrh.baselines.chains import chain_set_log_proba, independent_set_log_proba
from mlrh.baselines.corrlog import CorrLog
from mlrh.baselines.iblr import IBLR
from mlrh.baselines.label_powerset import LabelPowerset
from mlrh.baselines.ml_knn import MLkNN
from mlrh.baselines.or_constant import OrConstant
from mlrh.baselines.probabilistic_chain import ProbabilisticChain

__all__ = [
    "IBLR",
    "CCnet",
    "CorrLog",
    "LabelPowerset",
    "MLkNN",
    "OrConstant",
    "ProbabilisticChain",
    "chain_set_log_proba",
    "independent_set_log_proba",
]
