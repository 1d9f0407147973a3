"""What every Numba kernel is made of: the decorator, sums and maxima of a row, and powers that vectorise.

No fast-math: infinities and NaN keep their meaning everywhere. Sums alone may be reordered, by the explicit `add`.
Powers of float32 are polynomials written out here, because a call into libm stops a loop from vectorising.
"""

import math

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic, overload, register_jitable

from polymax.kernels.numba_cache import keep_compiled
from polymax.kernels.numba_compile import KernelCompiler, PartCompiler

# error_model numpy: a division that may raise is a branch, and a branch stops a loop from vectorising
OPTIONS = {"error_model": "numpy"}
# with the flags of a kernel: Numba compiles a function once more for each set of flags of its callers
PART = {**OPTIONS, "nogil": True, "no_cpython_wrapper": False, "pipeline_class": PartCompiler}
inline = register_jitable(**PART)


def kernel(function):
    """The function, compiled for each type of its arguments, without the interpreter's lock."""
    return keep_compiled(njit(nogil=True, pipeline_class=KernelCompiler, **OPTIONS)(function))


@intrinsic
def _pointer(typing_context, address, real):
    """An address as a pointer to numbers of the type of `real`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(real)(address, real), codegen


@inline
def rows_at(address, count, n, real):
    """The rows (count, n) at an address, of the type of `real`: an array costs more to hand over than a small row."""
    return carray(_pointer(address, real), (count, n))


_ONE_BITS = np.int32(0x3F800000)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_ULP = np.float32(2**-23)
_LOG2_E = np.float32(1 / math.log(2))


@inline
def row_max(x):
    """Maximum of a row; NaN are ignored; -inf when empty."""
    low = x.dtype.type(-np.inf)
    m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = low
    whole = x.size - x.size % 8
    for j in range(0, whole, 8):
        m0 = x[j] if x[j] > m0 else m0
        m1 = x[j + 1] if x[j + 1] > m1 else m1
        m2 = x[j + 2] if x[j + 2] > m2 else m2
        m3 = x[j + 3] if x[j + 3] > m3 else m3
        m4 = x[j + 4] if x[j + 4] > m4 else m4
        m5 = x[j + 5] if x[j + 5] > m5 else m5
        m6 = x[j + 6] if x[j + 6] > m6 else m6
        m7 = x[j + 7] if x[j + 7] > m7 else m7
    for j in range(whole, x.size):
        m0 = x[j] if x[j] > m0 else m0
    return max(max(max(m0, m1), max(m2, m3)), max(max(m4, m5), max(m6, m7)))


@intrinsic
def add(typing_context, a, b):
    """a + b as a term of a sum whose order is free: the one licence LLVM needs to sum in vector lanes."""

    def codegen(context, builder, signature, args):
        return builder.fadd(*args, flags=("reassoc",))

    return a(a, a), codegen


@inline
def row_sum(x):
    """The sum of a row."""
    total = x.dtype.type(0)
    # in blocks, so that rounding grows with the block and not with the row
    for start in range(0, x.size, 256):
        block = x.dtype.type(0)
        for j in range(start, min(start + 256, x.size)):
            block = add(block, x[j])
        total += block
    return total


@inline
def row_dot(x, y):
    """The inner product of two rows."""
    total = x.dtype.type(0)
    for j in range(x.size):
        total = add(total, x[j] * y[j])
    return total


def log2_1p(t):
    """log2(1 + t) for t > -1, accurate relative to t near 0."""
    return math.log1p(t) / math.log(2)


def log2(x):
    """log2(x) for x > 0 and not subnormal."""
    return math.log(x) / math.log(2)


def exp2(x):
    """2 ** x; 0 below the smallest normal number, 2 ** 127 at most."""
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
    # the number is 2^e (1 + f) with |f| small, and log(1 + f) = 2 atanh(f / (2 + f)); where e is 0, f is t
    e = np.int32(np.int32(bits - _SQRT_HALF_BITS) >> np.int32(23))
    mantissa = _from_bits(np.int32(bits - np.int32(e << np.int32(23))))
    f = t if e == np.int32(0) else mantissa - np.float32(1)
    s = f / (np.float32(2) + f)
    q = s * s
    series = _fma(q, np.float32(1 / 9), np.float32(1 / 7))
    series = _fma(q, series, np.float32(1 / 5))
    series = _fma(q, series, np.float32(1 / 3))
    series = _fma(q, series, np.float32(1))
    return _fma(np.float32(2) * s * series, _LOG2_E, np.float32(e))


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
        # 2^x = 2^k 2^f with |f| <= 1/2, the second factor by its Taylor polynomial
        small = np.float32(-126)
        clipped = x if x > small else small
        clipped = clipped if clipped < np.float32(127) else np.float32(127)
        k = np.int32(clipped + (np.float32(0.5) if clipped > np.float32(0) else np.float32(-0.5)))
        f = clipped - np.float32(k)
        series = _fma(f, np.float32(1.5403530e-4), np.float32(1.3333558e-3))
        series = _fma(f, series, np.float32(9.6181291e-3))
        series = _fma(f, series, np.float32(5.5504109e-2))
        series = _fma(f, series, np.float32(2.4022651e-1))
        series = _fma(f, series, np.float32(6.9314718e-1))
        series = _fma(f, series, np.float32(1))
        scale = _from_bits(np.int32(np.int32(k + np.int32(127)) << np.int32(23)))
        return series * scale if x > small else np.float32(0)

    return exp2_float32


def rough_power_1p(t, k):
    """(1 + t) ** k for -1 <= t <= 0 and k >= 0, within about one per cent."""
    return (1 + t) ** k


@overload(rough_power_1p, jit_options=PART)
def _rough_power_1p(t, k):
    if t != types.float32:
        return lambda t, k: (1 + t) ** k

    def rough_power_1p_float32(t, k):
        # the bits of a float, as an integer, are 2^23 (log2(x) + a bump over the mantissa); the same backwards
        log = np.float32(np.int32(_bits(np.float32(1) + t) - _ONE_BITS)) * _ULP
        # what is above the next integer down; log <= 0
        g = log - np.float32(np.int32(log - np.float32(1)))
        log = k * _fma(g, np.float32(0.344) * (np.float32(1) - g), log)
        log = log if log > np.float32(-126) else np.float32(-126)
        g = log - np.float32(np.int32(log - np.float32(1)))
        log = _fma(g, np.float32(-0.337) * (np.float32(1) - g), log)
        power = _from_bits(np.int32(np.int32(log * (np.float32(1) / _ULP)) + _ONE_BITS))
        return power if t > np.float32(-1) else np.float32(0)

    return rough_power_1p_float32


_order = _bitcast(types.float64, types.int64)
_from_order = _bitcast(types.int64, types.float64)


@inline
def middle(a, b):
    """The number halfway from a to b in the order of all float64 numbers: 64 halvings end any search."""
    # the bits of a negative number count down
    p = _order(a)
    q = _order(b)
    p = p if p >= 0 else np.int64(0x7FFFFFFFFFFFFFFF) ^ p
    q = q if q >= 0 else np.int64(0x7FFFFFFFFFFFFFFF) ^ q
    m = (p >> 1) + (q >> 1)
    return _from_order(m if m >= 0 else np.int64(0x7FFFFFFFFFFFFFFF) ^ m)
