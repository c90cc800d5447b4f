"""How coefficients are found: features to scores, the objective, and its minimisers."""

from mlrh.fitting.design import Design
from mlrh.fitting.objective import Objective

__all__ = ["Design", "Objective"]
