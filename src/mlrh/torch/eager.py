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
    for tensor in tensors:  # noqa: SIM110, a generator would take twice the time
        if tensor is not None and (type(tensor) not in PLAIN or tensor.is_meta):
            return False
    return True


def refuse_forward_mode(*tensors):
    """Raise where a tensor carries a derivative of forward mode, which operators would drop in silence."""
    if forward_ad._current_level < 0 or torch.compiler.is_compiling():
        return
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "mlrh.torch has no derivatives in forward mode (jvp, forward_ad); use backward or torch.autograd.grad, for "
            "the loss, log_partition and log_prob also torch.autograd.functional.jvp."
        )
