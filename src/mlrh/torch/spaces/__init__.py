"""The label spaces of torch beside `CardinalitySpace`: tensors in, tensors out, differentiable."""

from mlrh.torch.spaces.from_numpy import label_space
from mlrh.torch.spaces.groups import GroupSpace
from mlrh.torch.spaces.hierarchy import HierarchySpace
from mlrh.torch.spaces.observed import ObservedSpace
from mlrh.torch.spaces.open import OpenSpace

__all__ = ["GroupSpace", "HierarchySpace", "ObservedSpace", "OpenSpace", "label_space"]
