"""Numbers without a limit of range, and numbers that carry a derivative: elementwise arithmetic on tensors.

For the rare rows whose sums over sets leave the range of floating point, and for second derivatives. All are float64.
They have those methods of tensors that `tree` uses, so that it runs on tensors and on them alike.
"""

from dataclasses import dataclass
from typing import Any

import torch

LN2_HIGH = 0.693147180369123816490  # the leading 32 bits of log 2: its product with an exponent is exact
LN2_LOW = 1.90821492927058770002e-10
LARGEST_EXPONENT = 2.0**40  # beyond that magnitudes count as equal
OF_ZERO = -(2**60)  # the exponent of 0: below all others, also after many products


class Pair:
    """Numbers that are two tensors, or two numbers, of one shape: what they do part by part."""

    def parts(self):
        return tuple(vars(self).values())

    @property
    def shape(self):
        return self.parts()[0].shape

    def __getitem__(self, index):
        return type(self)(*(part[index] for part in self.parts()))

    def __len__(self):
        return len(self.parts()[0])

    def copy_(self, other):
        """Take the values of others, in place."""
        for part, of_other in zip(self.parts(), other.parts(), strict=True):
            part.copy_(of_other)

    def joined(self, other, axis):
        return type(self)(*(joined(*pair, axis) for pair in zip(self.parts(), other.parts(), strict=True)))

    def new_empty(self, shape):
        return type(self)(*(part.new_empty(shape) for part in self.parts()))


@dataclass(frozen=True, eq=False)
class Scaled(Pair):
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

    def __mul__(self, other):
        return Scaled.normalised(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __add__(self, other):
        top = torch.maximum(self.exponent, other.exponent)
        return Scaled.normalised(self._below(top) + other._below(top), top)

    def __truediv__(self, other):
        """Quotients as a tensor; 0 where both are 0."""
        shift = (self.exponent - other.exponent).clamp(-2000, 2000)  # beyond, a quotient is 0 or inf in any case
        half = torch.div(shift, 2, rounding_mode="floor")
        quotient = self.mantissa / other.mantissa * power_of_two(half) * power_of_two(shift - half)
        return torch.where(self.mantissa == 0, 0.0, quotient)

    def addcmul_(self, first, second):
        """Add the products of two numbers in place."""
        self.copy_(self + first * second)

    def log(self):
        """Logarithms as a tensor; -inf of 0."""
        exponent = self.exponent.to(torch.float64)
        value = exponent * LN2_HIGH + (exponent * LN2_LOW + torch.log(self.mantissa))
        return torch.where(self.mantissa == 0, -torch.inf, value)

    def new_zeros(self, shape):
        return Scaled.of(self.mantissa.new_zeros(shape))

    def _below(self, top):
        return self.mantissa * power_of_two((self.exponent - top).clamp(min=-1000))


@dataclass(frozen=True, eq=False)
class Dual(Pair):
    """A number (a tensor or Scaled) and its derivative along one direction."""

    value: Any
    change: Any

    def __mul__(self, other):
        return Dual(self.value * other.value, self.value * other.change + self.change * other.value)

    def __add__(self, other):
        return Dual(self.value + other.value, self.change + other.change)

    def addcmul_(self, first, second):
        """Add the products of two numbers in place."""
        self.value.addcmul_(first.value, second.value)
        self.change.addcmul_(first.value, second.change)
        self.change.addcmul_(first.change, second.value)

    def new_zeros(self, shape):
        return Dual(self.value.new_zeros(shape), self.change.new_zeros(shape))


def power_of_two(exponent):
    """2**exponent in float64, exactly, for int64 from -1022 to 1023, by writing the bits of the exponent.

    torch.ldexp rounds its power of two to float32, and exp2 is not exact.
    """
    return ((exponent + 1023) << 52).view(torch.float64)


def joined(first, second, axis=0):
    """Numbers of one kind, one after the other along an axis."""
    return torch.cat((first, second), axis) if isinstance(first, torch.Tensor) else first.joined(second, axis)


def add_to(out, first, second):
    """Write first + second; for tensors without a temporary one."""
    return torch.add(first, second, out=out) if isinstance(out, torch.Tensor) else out.copy_(first + second)


def multiply_to(out, first, second):
    """Write first * second."""
    return torch.mul(first, second, out=out) if isinstance(out, torch.Tensor) else out.copy_(first * second)


def addcmul_to(out, start, first, second):
    """Write start + first * second."""
    if isinstance(out, torch.Tensor):
        return torch.addcmul(start, first, second, out=out)
    return out.copy_(start + first * second)


def with_constant(polynomials):
    """Polynomials (degree, ...) with their constant coefficient, 1, before the others."""
    nothing = polynomials.new_zeros((1, *polynomials.shape[1:]))
    ones = torch.ones_like(nothing) if isinstance(nothing, torch.Tensor) else Scaled.of(nothing.mantissa + 1.0)
    return joined(ones, polynomials)


def total(numbers):
    """The sum along the first axis."""
    first, *rest = numbers
    for number in rest:
        first = first + number
    return first
