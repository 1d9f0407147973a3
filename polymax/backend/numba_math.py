"""Basics of every Numba kernel: the decorator, sums and maxima of a row, and powers that vectorise.

No fast-math: infinities and NaN keep their meaning everywhere. Only sums by the explicit `add` may be reordered. Powers
of float32 are polynomials written out here, because a call into libm stops a loop from vectorising.
"""

import math

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic, overload, register_jitable

from polymax.backend.numba_cache import keep_compiled
from polymax.backend.numba_compile import KernelCompiler, PartCompiler

# error_model numpy: a division that may raise is a branch, and a branch stops a loop from vectorising
OPTIONS = {"error_model": "numpy"}
# with the flags of a kernel: Numba compiles a function again for each set of flags of its callers
PART = {**OPTIONS, "nogil": True, "no_cpython_wrapper": False, "pipeline_class": PartCompiler}
inline = register_jitable(**PART)
# for helpers called once per short row: a call, with its arrays as arguments, costs as much as the row
within = register_jitable(**PART, forceinline=True)


def kernel(function):
    """Return the function compiled for each type of its arguments, without the interpreter's lock."""
    return keep_compiled(njit(nogil=True, pipeline_class=KernelCompiler, **OPTIONS)(function))


@intrinsic
def _pointer(typing_context, address, real):
    """Return an address as a pointer to numbers of the type of `real`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(real)(address, real), codegen


@inline
def rows_at(address, count, n, real):
    """Return the rows (count, n) at an address, of the type of `real`: passing an array costs more than a small row."""
    return carray(_pointer(address, real), (count, n))


_ONE_BITS = np.int32(0x3F800000)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
# 1.5 * 2^23: adding it rounds to an integer, which then lies in the last bits
_ROUND = np.float32(12582912)


# both in units of the last bit of 1:
# _HALF_ERROR: half the error of a logarithm read off the bits of its number
# _LOWEST_BITS: the logarithm of 2^-126
_HALF_ERROR, _LOWEST_BITS = np.float32(0.043 * 2**23), np.float32(-126 * 2**23)


@intrinsic
def place(typing_context, x):
    """Return an integer of the same width that orders all numbers; NaN come before or after all others."""

    def codegen(context, builder, signature, args):
        return _flipped(builder, builder.bitcast(args[0], ir.IntType(x.bitwidth)))

    return (types.int32 if x == types.float32 else types.int64)(x), codegen


@intrinsic
def positive_place(typing_context, x):
    """Return the bits of a nonnegative number, which are its place in the order of numbers."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(x.bitwidth))

    return (types.int32 if x == types.float32 else types.int64)(x), codegen


@intrinsic
def number_at(typing_context, place, real):
    """Return the number at a place, of the type of `real`: the inverse of `place`."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(_flipped(builder, args[0]), context.get_value_type(real))

    return real(place, real), codegen


def _flipped(builder, bits):
    # the bits of negative numbers count down
    width = bits.type.width
    sign = builder.ashr(bits, ir.Constant(bits.type, width - 1))
    return builder.xor(bits, builder.and_(sign, ir.Constant(bits.type, (1 << (width - 1)) - 1)))


@inline
def row_max(x):
    """Return the maximum of a row; NaN are ignored; -inf if the row is empty."""
    # by their places: LLVM vectorises a maximum of integers, but not of floats, because of NaN
    lowest = place(x.dtype.type(-np.inf))
    top = lowest
    for j in range(x.size):
        here = place(x[j]) if x[j] == x[j] else lowest
        top = here if here > top else top
    return number_at(top, x.dtype.type(0))


@intrinsic
def add(typing_context, a, b):
    """Return a + b as a term of a sum in any order, which allows LLVM to sum in vector lanes.

    No loop may both sum and store: if its two arrays happen to lie close to each other, the loop runs without lanes, in
    another order, and the sum has other bits.
    """

    def codegen(context, builder, signature, args):
        return builder.fadd(*args, flags=("reassoc",))

    return a(a, a), codegen


@inline
def row_sum(x):
    """Return the sum of a row."""
    total = x.dtype.type(0)
    # in blocks, so that rounding grows with the block and not with the row
    for start in range(0, x.size, 256):
        # sliced, so that the index starts at 0: LLVM gathers one by one for indices that might be negative
        part = x[start : start + 256]
        block = x.dtype.type(0)
        for j in range(part.size):
            block = add(block, part[j])
        total += block
    return total


@inline
def row_dot(x, y):
    """Return the inner product of two rows."""
    total = x.dtype.type(0)
    for j in range(x.size):
        total = add(total, x[j] * y[j])
    return total


def log2_1p(t):
    """Return log2(1 + t) for t > -1, accurate relative to t near 0."""
    return math.log1p(t) / math.log(2)


def log2(x):
    """Return log2(x) for x > 0 and not subnormal."""
    return math.log(x) / math.log(2)


def exp2(x):
    """Return 2 ** x; 0 below the smallest normal number, 2 ** 127 at most."""
    return math.exp(x * math.log(2))


def _bitcast(source, target):
    @intrinsic
    def cast(typing_context, x):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], context.get_value_type(signature.return_type))

        return target(source), codegen

    return cast


_bits = _bitcast(types.float32, types.int32)
_from_bits = _bitcast(types.int32, types.float32)


@intrinsic
def _fma(typing_context, a, b, c):
    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@inline
def _log2_split(bits, t):
    # the number is 2^e (1 + f) with |f| small, and f = t if e is 0; log2(1 + f) / f is a minimax polynomial
    e = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
    mantissa = _from_bits(np.int32(bits - np.int32(e << np.int32(23))))
    f = t if e == np.int32(0) else mantissa - np.float32(1)
    series = _fma(f, np.float32(0.12583537), np.float32(-0.20726894))
    series = _fma(f, series, np.float32(0.21571584))
    series = _fma(f, series, np.float32(-0.23894495))
    series = _fma(f, series, np.float32(0.28791624))
    series = _fma(f, series, np.float32(-0.36070368))
    series = _fma(f, series, np.float32(0.48091063))
    series = _fma(f, series, np.float32(-0.72134733))
    series = _fma(f, series, np.float32(1.44269502))
    return _fma(f, series, np.float32(e))


@overload(log2_1p, jit_options=PART)
def _log2_1p(t):
    if t != types.float32:
        return lambda t: math.log1p(t) * (1 / math.log(2))
    return lambda t: _log2_split(_bits(np.float32(1) + t), t)


@overload(log2, jit_options=PART)
def _log2(x):
    if x != types.float32:
        return lambda x: math.log(x) * (1 / math.log(2))
    return lambda x: _log2_split(_bits(x), x - np.float32(1))


@overload(exp2, jit_options=PART)
def _exp2(x):
    if x != types.float32:
        return lambda x: math.exp(x * math.log(2))

    def exp2_float32(x):
        # 2^x = 2^k 2^f with |f| <= 1/2; the second factor is its Taylor polynomial
        small = np.float32(-126)
        clipped = x if x > small else small
        clipped = clipped if clipped < np.float32(127) else np.float32(127)
        k = clipped + _ROUND
        f = clipped - (k - _ROUND)
        series = _fma(f, np.float32(1.5403530e-4), np.float32(1.3333558e-3))
        series = _fma(f, series, np.float32(9.6181291e-3))
        series = _fma(f, series, np.float32(5.5504109e-2))
        series = _fma(f, series, np.float32(2.4022651e-1))
        series = _fma(f, series, np.float32(6.9314718e-1))
        series = _fma(f, series, np.float32(1))
        # the last bits of k hold an integer; the shift removes the others
        scale = _from_bits(np.int32(np.int32(_bits(k) << np.int32(23)) + _ONE_BITS))
        return series * scale if x > small else np.float32(0)

    return exp2_float32


def first_power_1p(t, k):
    """Return (1 + t) ** k for -1 <= t <= 0 and k >= 0 as a first guess, within a tenth for small k."""
    return (1 + t) ** k


@overload(first_power_1p, jit_options=PART)
def _first_power_1p(t, k):
    if t != types.float32:
        return lambda t, k: (1 + t) ** k

    def first_power_1p_float32(t, k):
        # the bits of a number, as an integer, are almost linear in its logarithm; subtract half of the largest error
        log = k * (np.float32(np.int32(_bits(np.float32(1) + t) - _ONE_BITS)) + _HALF_ERROR)
        log = log if log > _LOWEST_BITS else _LOWEST_BITS
        power = _from_bits(np.int32(np.int32(log - _HALF_ERROR) + _ONE_BITS))
        return power if t > np.float32(-1) else np.float32(0)

    return first_power_1p_float32


def rough_power_1p(t, k):
    """Return (1 + t) ** k for -1 <= t <= 0 and k >= 0, within about one per cent."""
    return (1 + t) ** k


@overload(rough_power_1p, jit_options=PART)
def _rough_power_1p(t, k):
    if t != types.float32:
        return lambda t, k: (1 + t) ** k

    def rough_power_1p_float32(t, k):
        # as in log2 and exp2, with polynomials of a lower degree
        bits = _bits(np.float32(1) + t)
        e = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
        f = _from_bits(np.int32(bits - np.int32(e << np.int32(23)))) - np.float32(1)
        series = _fma(f, _fma(f, np.float32(-0.32777), np.float32(0.51127)), np.float32(-0.72430))
        series = _fma(f, series, np.float32(1.44227))
        log = k * _fma(f, series, np.float32(e))
        log = log if log > np.float32(-126) else np.float32(-126)
        whole = log + _ROUND
        f = log - (whole - _ROUND)
        series = _fma(f, _fma(f, np.float32(0.2384), np.float32(0.7034)), np.float32(1.0004))
        power = series * _from_bits(np.int32(np.int32(_bits(whole) << np.int32(23)) + _ONE_BITS))
        return power if t > np.float32(-1) else np.float32(0)

    return rough_power_1p_float32


@inline
def middle(a, b):
    """Return the number halfway from a to b in the order of all float64 numbers: 64 halvings end every search."""
    return number_at((place(a) >> 1) + (place(b) >> 1), a)
