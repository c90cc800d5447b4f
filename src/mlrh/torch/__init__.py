"""The loss for neural networks: multilabel logistic regression of the whole label set as a last layer, in PyTorch.

An independent implementation with the names of `mlrh.spaces` and `mlrh.decisions`; it needs nothing but torch.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError('mlrh.torch needs PyTorch; install it with: pip install "mlrh[torch]"') from error

from mlrh.torch.decisions import decide
from mlrh.torch.distribution import CardinalitySpace, LabelSetDistribution
from mlrh.torch.loss import MLRHLoss, mlrh_loss

__all__ = ["CardinalitySpace", "LabelSetDistribution", "MLRHLoss", "decide", "mlrh_loss"]
