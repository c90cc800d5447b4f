"""Numbers with an integer exponent of their own, mantissa * 2**exponent: no sum or product of them leaves the range.

A number is a pair (float, int); its mantissa is 0 or of magnitude in [0.5, 1).
"""

import math

import numpy as np

from mlrh._parallel import kernel

# log 2 in two parts. The first has 32 bits, so its product with an exponent of up to 21 bits is exact: x - n log 2 then
# keeps its last digits.
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
ZERO = (0.0, 0)
ONE = (0.5, 1)


@kernel
def exp(x):
    """exp(x) as a pair."""
    if x == -np.inf:
        return ZERO
    if abs(x) > 1e15:
        # All numbers beyond exp(1e15) count as equal, so that sums of exponents stay within int64.
        return 0.5, np.int64(math.copysign(2.0**51, x))
    # x = power log 2 + rest with |rest| <= log(2) / 2, whose exponential is an ordinary number.
    power = np.rint(x / math.log(2.0))
    mantissa, shift = math.frexp(math.exp((x - power * LN2_HIGH) - power * LN2_LOW))
    return mantissa, np.int64(power) + shift


@kernel
def log(a):
    """Logarithm of a pair, as a float; the exact product first, the small terms added to each other."""
    return a[1] * LN2_HIGH + (a[1] * LN2_LOW + math.log(a[0]))


@kernel
def number(x):
    """A float as a pair."""
    mantissa, exponent = math.frexp(x)
    return mantissa, np.int64(exponent)


@kernel
def times(a, b):
    # A product of mantissas lies in [0.25, 1); frexp brings it back to [0.5, 1).
    mantissa, shift = math.frexp(a[0] * b[0])
    return mantissa, a[1] + b[1] + shift


@kernel
def plus(a, b):
    if a[0] == 0.0:
        return b
    if b[0] == 0.0:
        return a
    if a[1] < b[1]:
        a, b = b, a
    # 2**-200 is nothing beside a mantissa of 0.5 or more; further shifts would leave the range of int32.
    mantissa, shift = math.frexp(a[0] + math.ldexp(b[0], np.int32(max(b[1] - a[1], -200))))
    return mantissa, a[1] + shift


@kernel
def over(a, b):
    mantissa, shift = math.frexp(a[0] / b[0])
    return mantissa, a[1] - b[1] + shift


@kernel
def ratio(a, b):
    """a / b as a float; 0 or infinite where it is out of range."""
    quotient = over(a, b)
    return math.ldexp(quotient[0], np.int32(min(max(quotient[1], -2000), 2000)))
