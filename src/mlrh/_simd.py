"""Vectors of eight doubles inside compiled kernels: a value type, its arithmetic, and an exponential.

A compiler can't vectorise the recurrences by itself, since for all it knows their arrays overlap. An array of lanes has
shape (n, LANES), C-contiguous, float64. LLVM maps the eight lanes to the vector registers that the machine has.
"""

import math
import operator

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_jitable, register_model

LANES = 8  # doubles of the widest vector register (AVX-512); narrower machines use several registers
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(64), LANES)
_ROUNDING = 6755399441055744.0  # 1.5 * 2**52: added to a number, it leaves the nearest integer in the lowest bits
# log 2 in two parts; the first has 32 bits, so that its product with n is exact and the rest r keeps its digits.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOWEST = -750.0  # exp is 0 there, and the exponent of 2**n still within reach of two factors
_TAYLOR = tuple(  # 1/13!, ..., 1/2!: on |r| <= log(2)/2 the next term is below 5e-18
    1.0 / factorial for factorial in (6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2)
)

_SHORT_TAYLOR = (*_TAYLOR[6:], 1.0, 1.0)  # 1/7!, ..., 1: the next term is below 6e-9
_SHORT_LOWEST = -700.0


class _LanesType(types.Type):
    def __init__(self):
        super().__init__(name="Lanes")


_lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, type_):
        super().__init__(manager, type_, _DOUBLES)


@register_jitable
def empty_lanes(n):
    """An array of lanes (n, LANES) that is not filled, each row within one line of the cache.

    Rows across two lines take up to half as long again to load after they were stored, which recurrences do.
    """
    numbers = np.empty((n + 1) * LANES)
    first = -(numbers.ctypes.data // 8) % LANES
    return numbers[first : first + n * LANES].reshape(n, LANES)


@intrinsic
def load(typing_context, array, row):
    """The lanes in a row of an array (n, LANES)."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature.args[0], arguments), align=8)

    return _lanes(array, types.intp), generate


@intrinsic
def load_from(typing_context, array, entry):
    """The lanes in the entries of an array (n,), C-contiguous and float64, from one on."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), _DOUBLES.as_pointer())
        return builder.load(address, align=8)

    return _lanes(array, types.intp), generate


@intrinsic
def store(typing_context, array, row, value):
    """Write lanes into a row of an array (n, LANES)."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _address(context, builder, signature.args[0], arguments), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


@intrinsic
def splat(typing_context, number):
    """The number in all lanes."""

    def generate(context, builder, signature, arguments):
        first = ir.Constant(ir.IntType(32), 0)
        lanes = builder.insert_element(ir.Constant(_DOUBLES, ir.Undefined), arguments[0], first)
        return builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    return _lanes(types.float64), generate


@intrinsic
def lane(typing_context, value, index):
    """The number in one lane."""

    def generate(context, builder, signature, arguments):
        return builder.extract_element(*arguments)

    return types.float64(_lanes, types.intp), generate


@intrinsic
def minimum(typing_context, a, b):
    """The smaller of each two numbers."""

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return _lanes(_lanes, _lanes), generate


@intrinsic
def maximum(typing_context, a, b):
    """The larger of each two numbers; b where a is NaN."""

    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return _lanes(_lanes, _lanes), generate


@intrinsic
def where_positive(typing_context, condition, a, b):
    """a in the lanes where the condition is above 0, else b."""

    def generate(context, builder, signature, arguments):
        condition, a, b = arguments
        return builder.select(builder.fcmp_ordered(">", condition, _all(0.0)), a, b)

    return _lanes(_lanes, _lanes, _lanes), generate


@intrinsic
def exp_minus_abs(typing_context, x):
    """exp(-|x|), within one unit in the last place; underflow is gradual, as in math.exp.

    x = n log 2 + r with |r| <= log(2)/2, and exp(r) by its Taylor series. 2**n is made from exponent bits, in two
    factors: a single one could not be a denormal number.
    """

    def generate(context, builder, signature, arguments):
        return _exponential(builder, _minus_abs(builder, arguments[0]))

    return _lanes(_lanes), generate


@intrinsic
def exp_of_negative(typing_context, x, numbers):
    """exp(x) of x <= 0, to the digits of the type of an array of numbers.

    For float32 that is a relative error of at most 1e-8, in half the time, and 0 below -700; else `exp_minus_abs`.
    """

    def generate(context, builder, signature, arguments):
        if signature.args[1].dtype == types.float32:
            return _short_exponential(builder, arguments[0])
        return _exponential(builder, _minus_abs(builder, arguments[0]))

    return _lanes(_lanes, numbers), generate


def _minus_abs(builder, x):
    x = builder.select(builder.fcmp_ordered(">", x, _all(0.0)), builder.fsub(_all(-0.0), x), x)
    # NaN compares false both times, and so stays NaN.
    return builder.select(builder.fcmp_ordered("<", x, _all(_LOWEST)), _all(_LOWEST), x)


def _exponential(builder, x):
    # n = x / log 2, rounded by adding and subtracting _ROUNDING; its integer is in the lowest bits of the sum.
    rounded = builder.fadd(builder.fmul(x, _all(1.4426950408889634)), _all(_ROUNDING))
    n = builder.fsub(rounded, _all(_ROUNDING))
    rest = _multiply_add(builder, n, _all(-_LN2_LOW), _multiply_add(builder, n, _all(-_LN2_HIGH), x))
    series = _all(_TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        series = _multiply_add(builder, series, rest, _all(coefficient))
    result = builder.fadd(_all(1.0), _multiply_add(builder, builder.fmul(rest, rest), series, rest))
    power = builder.sub(builder.bitcast(rounded, _INTEGERS), builder.bitcast(_all(_ROUNDING), _INTEGERS))
    half = builder.ashr(power, ir.Constant(_INTEGERS, [1] * LANES))
    for part in (half, builder.sub(power, half)):
        result = builder.fmul(result, _power_of_two(builder, part))
    return result


def _short_exponential(builder, x):
    # 2**n is added to the exponent bits: from _SHORT_LOWEST on nothing is denormal. NaN stays NaN.
    rounded = _multiply_add(builder, x, _all(1.4426950408889634), _all(_ROUNDING))
    rest = _multiply_add(builder, builder.fsub(rounded, _all(_ROUNDING)), _all(-math.log(2.0)), x)
    series = _all(_SHORT_TAYLOR[0])
    for coefficient in _SHORT_TAYLOR[1:]:
        series = _multiply_add(builder, series, rest, _all(coefficient))
    power = builder.shl(builder.bitcast(rounded, _INTEGERS), ir.Constant(_INTEGERS, [52] * LANES))
    result = builder.bitcast(builder.add(builder.bitcast(series, _INTEGERS), power), _DOUBLES)
    return builder.select(builder.fcmp_ordered("<", x, _all(_SHORT_LOWEST)), _all(0.0), result)


def _power_of_two(builder, exponent):
    """2**exponent: the biased exponent (1023 stands for 0) shifted behind the 52 bits of the mantissa."""
    biased = builder.add(exponent, ir.Constant(_INTEGERS, [1023] * LANES))
    return builder.bitcast(builder.shl(biased, ir.Constant(_INTEGERS, [52] * LANES)), _DOUBLES)


def _multiply_add(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def _all(number):
    return ir.Constant(_DOUBLES, [number] * LANES)


def _address(context, builder, array_type, arguments):
    array = context.make_array(array_type)(context, builder, arguments[0])
    offset = builder.mul(arguments[1], ir.Constant(arguments[1].type, LANES))
    return builder.bitcast(builder.gep(array.data, [offset]), _DOUBLES.as_pointer())


def _define(operation, instruction):
    """Make a Python operator work on two values of lanes; "contract" allows fused multiply-adds."""

    @intrinsic
    def apply(typing_context, a, b):
        def generate(context, builder, signature, arguments):
            return getattr(builder, instruction)(*arguments, flags=("contract",))

        return _lanes(_lanes, _lanes), generate

    @overload(operation)
    def on_lanes(a, b):
        if isinstance(a, _LanesType) and isinstance(b, _LanesType):
            return lambda a, b: apply(a, b)
        return None


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.iadd, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_operation, _instruction)
