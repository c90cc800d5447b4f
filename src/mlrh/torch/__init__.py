"""The loss for neural networks: multilabel logistic regression of the whole label set as a last layer, in PyTorch.

An independent implementation with the names of `mlrh.spaces` and `mlrh.decisions`; it needs nothing but torch. Where
numba is installed, compiled code makes the loss faster on the CPU.
`mlrh.torch.hugging_face`, to be imported by itself, has the loss for Trainer and a pipeline of label sets.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('mlrh.torch needs PyTorch; install it with: pip install "torch>=2.9"') from error

from mlrh.torch.decisions import decide
from mlrh.torch.distribution import CardinalitySpace, LabelSetDistribution, LabelSpace
from mlrh.torch.loss import MLRHLoss, mlrh_loss
from mlrh.torch.spaces import GroupSpace, HierarchySpace, ObservedSpace, OpenSpace, label_space

__all__ = [
    "CardinalitySpace",
    "GroupSpace",
    "HierarchySpace",
    "LabelSetDistribution",
    "LabelSpace",
    "MLRHLoss",
    "ObservedSpace",
    "OpenSpace",
    "decide",
    "label_space",
    "mlrh_loss",
]
