"""Whether tensors are computed with at once, by plain autograd: then the detour through operators is saved."""

import torch
from torch.autograd import forward_ad

PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_eager(*tensors):
    """Whether no compiler, transform or mode watches, and all tensors (or None) hold numbers of their own."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack():
        return False
    return all(tensor is None or (type(tensor) in PLAIN and not tensor.is_meta) for tensor in tensors)


def refuse_forward_mode(*tensors):
    """Raise where a tensor carries a derivative of forward mode, which operators would drop in silence."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "mlrh.torch has no derivatives in forward mode (jvp, forward_ad); use backward, torch.autograd.grad or "
            "torch.autograd.functional.jvp."
        )
