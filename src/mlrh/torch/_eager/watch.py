"""Whether a loss was infinite: at once on the CPU, and on a GPU without waiting for it."""

import math

import torch

from mlrh.torch._eager.checks import can_look

# A look at losses of a GPU is six launches, some 50 microseconds of the host. The time between two looks doubles from
# one step to this many, so that an infinite loss of the first step is known soon and later looks cost next to nothing.
LONGEST = 64
MOST_NUMBERS = 1 << 16  # losses that are kept for a look, where each row has its own


class Watch:
    """Looks at the losses of one `MLRHLoss` until one is infinite; shared by the copies that DataParallel makes of it.

    On a GPU they are kept, and now and then become one flag there, which is sent to the host without waiting. Once the
    flag on the host says that a loss was infinite, each loss is waited for, until one is: its row can be named. A flag
    that has not arrived reads as false and is read again with the next loss; it is never taken back.
    """

    def __init__(self):
        self.is_over = False
        self._recent: dict[torch.device, _Recent] = {}

    def __reduce__(self):
        return Watch, ()  # a copy, or what is read from a file, begins anew: what is kept lies on a device

    def sees_infinite(self, loss):
        """Whether this loss, a number or (n_rows,), is known to be infinite, and none was before."""
        if self.is_over or (loss.is_cuda and torch.cuda.is_current_stream_capturing()):
            return False
        self.is_over = self._looks_infinite(loss)
        return self.is_over

    def _looks_infinite(self, loss):
        if can_look(loss):
            return _is_infinite(loss)
        recent = self._recent.get(loss.device)
        if recent is None:
            recent = self._recent[loss.device] = _Recent(loss.device)
        if recent.at_host:
            return _is_infinite(loss)
        recent.keep(loss.detach())
        return False


class _Recent:
    """The losses on one device since the last look at them."""

    def __init__(self, device):
        self.losses: list[torch.Tensor] = []
        self.n_numbers, self.until = 0, 1
        with torch.inference_mode(False):
            self.seen = torch.zeros((), dtype=torch.bool, device=device)
            # Only into pinned memory a GPU can write while the host goes on.
            self.at_host = torch.zeros((), dtype=torch.bool, device="cpu", pin_memory=device.type == "cuda")

    def keep(self, loss):
        self.losses.append(loss)
        self.n_numbers += loss.numel()
        if len(self.losses) >= self.until or self.n_numbers >= MOST_NUMBERS:
            self.look()

    def look(self):
        """Have the device find out whether one is infinite, and tell the host when it knows."""
        with torch.inference_mode(False), torch.no_grad():
            self.seen |= torch.cat([loss.reshape(-1) for loss in self.losses]).isposinf().any()
            self.at_host.copy_(self.seen, non_blocking=True)
        self.losses, self.n_numbers, self.until = [], 0, min(2 * self.until, LONGEST)


def _is_infinite(loss):
    return loss.item() == math.inf if loss.dim() == 0 else bool(loss.isposinf().any())
