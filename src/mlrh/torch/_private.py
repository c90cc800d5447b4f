"""The private parts of torch that are used, each because torch has no public one; nothing else may use such parts.

A test asks for each of them by name and says which is gone.
"""

import torch

PARTS = {
    "torch._C._are_functorch_transforms_active": "tells whether vmap, grad or jvp of torch.func watch the computation",
    "torch._C._len_torch_dispatch_stack": "tells whether a mode, such as that of make_fx, records every operation",
}


def is_watched():
    """Whether a transform or a mode watches: then the loss has to be one registered operator that they can see."""
    return torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0
