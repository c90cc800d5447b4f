"""Numbers without a limit of range, and numbers that carry a derivative: elementwise arithmetic on tensors.

For the rare rows whose sums over sets leave the range of floating point, and for second derivatives. All are float64.
"""

from dataclasses import dataclass
from typing import Any

import torch

LN2_HIGH = 0.693147180369123816490  # the leading 32 bits of log 2: its product with an exponent is exact
LN2_LOW = 1.90821492927058770002e-10
LARGEST_EXPONENT = 2.0**40  # beyond that magnitudes count as equal
OF_ZERO = -(2**60)


@dataclass(frozen=True, eq=False)
class Scaled:
    """mantissa * 2**exponent, the mantissa 0 or of magnitude in [0.5, 1), the exponent int64."""

    mantissa: torch.Tensor
    exponent: torch.Tensor

    @classmethod
    def normalised(cls, mantissa, exponent):
        """mantissa * 2**exponent for any finite mantissa."""
        mantissa, shift = torch.frexp(mantissa)
        return cls(mantissa, torch.where(mantissa == 0, OF_ZERO, exponent + shift))

    @classmethod
    def of(cls, values):
        """The numbers of a tensor."""
        return cls.normalised(values, torch.zeros_like(values, dtype=torch.int64))

    @classmethod
    def exp(cls, values):
        """Exponentials of a tensor, 0 for -inf."""
        finite = values.nan_to_num(neginf=0.0)
        power = torch.round(finite / (LN2_HIGH + LN2_LOW)).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
        rest = ((finite - power * LN2_HIGH) - power * LN2_LOW).clamp(-1.0, 1.0)
        mantissa = torch.where(values == -torch.inf, 0.0, torch.exp(rest))
        return cls.normalised(mantissa, power.to(torch.int64))

    def __getitem__(self, index):
        return Scaled(self.mantissa[index], self.exponent[index])

    def __len__(self):
        return len(self.mantissa)

    def __mul__(self, other):
        return Scaled.normalised(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __add__(self, other):
        top = torch.maximum(self.exponent, other.exponent)
        return Scaled.normalised(self._below(top) + other._below(top), top)

    def join(self, other):
        """Both, one after the other along the first axis."""
        return Scaled(
            torch.cat((self.mantissa, other.mantissa)),
            torch.cat((self.exponent, other.exponent)),
        )

    def over(self, other):
        """Quotients as a tensor; 0 where both are 0."""
        shift = (self.exponent - other.exponent).clamp(-2000, 2000)
        half = torch.div(shift, 2, rounding_mode="floor")
        quotient = self.mantissa / other.mantissa * power_of_two(half) * power_of_two(shift - half)
        return torch.where(self.mantissa == 0, 0.0, quotient)

    def log(self):
        """Logarithms as a tensor; -inf of 0."""
        exponent = self.exponent.to(torch.float64)
        value = exponent * LN2_HIGH + (exponent * LN2_LOW + torch.log(self.mantissa))
        return torch.where(self.mantissa == 0, -torch.inf, value)

    def _below(self, top):
        return self.mantissa * power_of_two((self.exponent - top).clamp(min=-1000))


@dataclass(frozen=True, eq=False)
class Dual:
    """A number (a tensor or Scaled) and its derivative along one direction."""

    value: Any
    change: Any

    def __getitem__(self, index):
        return Dual(self.value[index], self.change[index])

    def __len__(self):
        return len(self.value)

    def __mul__(self, other):
        return Dual(self.value * other.value, self.value * other.change + self.change * other.value)

    def __add__(self, other):
        return Dual(self.value + other.value, self.change + other.change)

    def join(self, other):
        """Both, one after the other along the first axis."""
        return Dual(join(self.value, other.value), join(self.change, other.change))


def power_of_two(exponent):
    """2**exponent in float64, exactly, for int64 from -1022 to 1023, by writing the bits of the exponent.

    torch.ldexp rounds its power of two to float32, and exp2 is not exact.
    """
    return ((exponent + 1023) << 52).view(torch.float64)


def join(first, second):
    """Both numbers, one after the other along the first axis."""
    return torch.cat((first, second)) if isinstance(first, torch.Tensor) else first.join(second)


def over(first, second):
    """Quotients of numbers as a tensor."""
    return first / second if isinstance(first, torch.Tensor) else first.over(second)


def zeros_like(numbers):
    """Zeros of the same kind and shape."""
    return torch.zeros_like(numbers) if isinstance(numbers, torch.Tensor) else numbers * Scaled.of(numbers.mantissa * 0)
