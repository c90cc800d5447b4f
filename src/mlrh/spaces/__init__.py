"""Which label sets are possible, and exact answers about P(y | scores): arrays in, arrays out."""

from mlrh.spaces.base import LabelSetDistribution, LabelSpace
from mlrh.spaces.cardinality import CardinalitySpace
from mlrh.spaces.observed import ObservedSpace

__all__ = ["CardinalitySpace", "LabelSetDistribution", "LabelSpace", "ObservedSpace"]
