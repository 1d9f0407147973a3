"""Numba values that are LANES float64 side by side: arithmetic on them is vector arithmetic, by construction.

A loop over lanes vectorises only if LLVM can show that its arrays do not overlap, and the check is repeated at each of
these short loops. Here a row of an array is loaded as one value, and `+ - * / < != ...` act in every lane; scalars
stand for a value in all lanes. Row -1 of an array is its last. `load`, `store`, `select` and the others take plain
numbers as well, so that one implementation serves a row of numbers and a block of instances.
"""

import math
import operator

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, overload, register_model, type_callable

from polymax.backend.numba_code import cgutils
from polymax.backend.numba_math import PART

# two vectors of AVX2
LANES = 8
_FLOATS = ir.VectorType(ir.DoubleType(), LANES)
_INTS = ir.VectorType(ir.IntType(64), LANES)
_BOOLS = ir.VectorType(ir.IntType(1), LANES)
_LOG2_E = 1 / math.log(2)
# log 2 in two parts, the first with so few digits that its multiples are exact
_LN2_HIGH = float(np.float32(math.log(2)))
_LN2_LOW = -1.9046542999577678785e-9
# adding 1.5 * 2^52 leaves the nearest integer in the low bits
_ROUND = 1.5 * 2.0**52
# polynomials through the Chebyshev points: exp(r) for |r| <= log(2) / 2, and (atanh(s) / s - 1) / s^2 in s^2 for
# |s| <= 3 - sqrt(8), both within 5e-18
_EXP = (
    2.5110037605963777e-08,
    2.763263963904103e-07,
    2.755724091857897e-06,
    2.4801485482328494e-05,
    0.00019841269890047113,
    0.0013888888952314775,
    0.008333333333319601,
    0.0416666666664881,
    0.1666666666666668,
    0.5000000000000019,
    1.0,
    1.0,
)
_ATANH = (
    0.073082248652713,
    0.07665860798102661,
    0.09091444562710857,
    0.11111105567396128,
    0.14285714312987755,
    0.19999999999949752,
    0.3333333333333335,
)


class Lanes(types.Type):
    """The type of LANES float64."""

    def __init__(self):
        super().__init__(name="lanes")


class Mask(types.Type):
    """The type of LANES bool."""

    def __init__(self):
        super().__init__(name="mask")


lanes, mask = Lanes(), Mask()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _FLOATS)


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _BOOLS)


def _constant(x):
    return ir.Constant(_FLOATS, [ir.Constant(ir.DoubleType(), x)] * LANES)


def _integers(i):
    return ir.Constant(_INTS, [ir.Constant(ir.IntType(64), i)] * LANES)


def _spread(context, builder, x, kind):
    """Return the lanes of a scalar; lanes and masks are returned unchanged."""
    if kind in (lanes, mask):
        return x
    x = context.cast(builder, x, kind, types.float64)
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), x, ir.Constant(ir.IntType(32), 0))
    return _shuffle(builder, one, one, [0] * LANES)


def _operate(function, result, emit, of=lanes):
    """Let a Python operator take lanes, or lanes and a number."""

    @type_callable(function)
    def typer(context):
        return lambda a, b: result if of in (a, b) else None

    def codegen(context, builder, signature, args):
        return emit(builder, *(_spread(context, builder, x, t) for x, t in zip(args, signature.args)))

    for kinds in ((of, of),) if of is mask else ((of, of), (of, types.Number), (types.Number, of)):
        lower_builtin(function, *kinds)(codegen)


_operate(operator.add, lanes, lambda builder, a, b: builder.fadd(a, b))
_operate(operator.iadd, lanes, lambda builder, a, b: builder.fadd(a, b))
_operate(operator.sub, lanes, lambda builder, a, b: builder.fsub(a, b))
_operate(operator.mul, lanes, lambda builder, a, b: builder.fmul(a, b))
_operate(operator.truediv, lanes, lambda builder, a, b: builder.fdiv(a, b))
_operate(operator.lt, mask, lambda builder, a, b: builder.fcmp_ordered("<", a, b))
_operate(operator.gt, mask, lambda builder, a, b: builder.fcmp_ordered(">", a, b))
_operate(operator.eq, mask, lambda builder, a, b: builder.fcmp_ordered("==", a, b))
_operate(operator.ne, mask, lambda builder, a, b: builder.fcmp_unordered("!=", a, b))
_operate(operator.and_, mask, lambda builder, a, b: builder.and_(a, b), mask)
_operate(operator.or_, mask, lambda builder, a, b: builder.or_(a, b), mask)


def _place(context, builder, array_type, array, row):
    """Return a pointer to a row of an array (rows, LANES), as lanes, or to an entry of an array of numbers."""
    array = context.make_array(array_type)(context, builder, array)
    if array_type.ndim == 1:
        return builder.gep(array.data, [row])
    count = builder.extract_value(array.shape, 0)
    negative = builder.icmp_signed("<", row, row.type(0))
    row = builder.select(negative, builder.add(row, count), row)
    return builder.bitcast(builder.gep(array.data, [builder.mul(row, row.type(LANES))]), _FLOATS.as_pointer())


@intrinsic
def load(typing_context, array, row):
    """Return a row of an array (rows, LANES), or an entry of an array of numbers."""

    def codegen(context, builder, signature, args):
        return builder.load(_place(context, builder, signature.args[0], *args), align=8)

    return (lanes if array.ndim == 2 else array.dtype)(array, types.int64), codegen


@intrinsic
def store(typing_context, array, row, x):
    """Overwrite a row of an array (rows, LANES), or an entry of an array of numbers."""

    def codegen(context, builder, signature, args):
        x = args[2] if signature.args[0].ndim == 1 else _spread(context, builder, args[2], signature.args[2])
        builder.store(x, _place(context, builder, signature.args[0], *args[:2]), align=8)

    return types.void(array, types.int64, x if array.ndim == 2 else array.dtype), codegen


@intrinsic
def fill(typing_context, array, x):
    """Return a number in the form that `load` returns for an array: in all lanes, or as it is."""

    def codegen(context, builder, signature, args):
        return args[1] if signature.args[0].ndim == 1 else _spread(context, builder, args[1], signature.args[1])

    return (lanes if array.ndim == 2 else types.float64)(array, types.float64), codegen


@intrinsic
def select(typing_context, m, a, b):
    """Return a in each lane whose mask is set, else b."""

    def codegen(context, builder, signature, args):
        a, b = args[1:]
        if signature.args[0] is mask:
            a, b = (_spread(context, builder, x, t) for x, t in zip(args[1:], signature.args[1:]))
        return builder.select(args[0], a, b)

    if m is mask:
        return lanes(mask, a, b), codegen
    return types.float64(types.boolean, types.float64, types.float64), codegen


@intrinsic
def some(typing_context, m):
    """Return True if the mask is set in any lane."""

    def codegen(context, builder, signature, args):
        if signature.args[0] is not mask:
            return args[0]
        bits = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(m), codegen


@intrinsic
def transpose(typing_context, source, i, j, target, k, l):
    """Copy the transpose of a square of LANES^2 numbers, from source[i, j] on, to target[k, l] and on."""

    def codegen(context, builder, signature, args):
        narrow = types.float32 in (source.dtype, target.dtype)
        element = ir.FloatType() if narrow else ir.DoubleType()
        rows = []
        for n in range(LANES):
            x = builder.load(_vector(context, builder, source, *args[:3], n), align=4)
            rows.append(builder.fptrunc(x, ir.VectorType(element, LANES)) if x.type.element != element else x)
        # rows exchange the corners of squares of half the size, then of a quarter, ...
        half = LANES // 2
        while half:
            low = [n if not n & half else n - half + LANES for n in range(LANES)]
            high = [n + half if not n & half else n + LANES for n in range(LANES)]
            for n in range(LANES):
                if not n & half:
                    pair = rows[n], rows[n + half]
                    rows[n], rows[n + half] = (_shuffle(builder, *pair, order) for order in (low, high))
            half //= 2
        for n in range(LANES):
            place = _vector(context, builder, target, *args[3:], n)
            wide = place.type.pointee
            builder.store(builder.fpext(rows[n], wide) if wide.element != element else rows[n], place, align=4)

    return types.void(source, types.int64, types.int64, target, types.int64, types.int64), codegen


def _vector(context, builder, array_type, array, i, j, n):
    """Return a pointer to LANES numbers of an array from [i + n, j] on."""
    array = context.make_array(array_type)(context, builder, array)
    width = builder.extract_value(array.shape, 1)
    offset = builder.add(builder.mul(builder.add(i, i.type(n)), width), j)
    element = ir.FloatType() if array_type.dtype == types.float32 else ir.DoubleType()
    return builder.bitcast(builder.gep(array.data, [offset]), ir.VectorType(element, LANES).as_pointer())


def _shuffle(builder, a, b, order):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), LANES), order))


def _call(builder, name, *args):
    kind = ir.FunctionType(_FLOATS, (_FLOATS,) * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f64"), args)


def _fma(builder, a, b, c):
    return _call(builder, "fma", a, b, c)


def _polynomial(builder, coefficients, x):
    total = _constant(coefficients[0])
    for c in coefficients[1:]:
        total = _fma(builder, x, total, _constant(c))
    return total


@intrinsic
def _exp_bounded(typing_context, x):
    def codegen(context, builder, signature, args):
        # exp(x) = 2^k exp(r) with |r| <= log(2) / 2
        shifted = _fma(builder, args[0], _constant(_LOG2_E), _constant(_ROUND))
        k = builder.fsub(shifted, _constant(_ROUND))
        r = _fma(builder, k, _constant(-_LN2_HIGH), args[0])
        r = _fma(builder, k, _constant(-_LN2_LOW), r)
        bits = builder.add(builder.bitcast(shifted, _INTS), _integers(1023))
        scale = builder.bitcast(builder.shl(bits, _integers(52)), _FLOATS)
        return builder.fmul(_polynomial(builder, _EXP, r), scale)

    return lanes(lanes), codegen


@intrinsic
def _log(typing_context, x):
    def codegen(context, builder, signature, args):
        # x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and log(1 + f) = 2 atanh(f / (2 + f))
        bits = builder.bitcast(args[0], _INTS)
        # AVX2 has only an unsigned shift, hence e is 1024 too large
        e = builder.lshr(builder.add(bits, _integers((1024 << 52) - 0x3FE6A09E667F3BCD)), _integers(52))
        mantissa = builder.sub(bits, builder.shl(builder.sub(e, _integers(1024)), _integers(52)))
        f = builder.fsub(builder.bitcast(mantissa, _FLOATS), _constant(1.0))
        k = builder.fsub(
            builder.bitcast(builder.add(e, _integers(0x4338000000000000)), _FLOATS), _constant(_ROUND + 1024)
        )
        s = builder.fdiv(f, builder.fadd(f, _constant(2.0)))
        q = builder.fmul(s, s)
        tail = _fma(builder, q, _polynomial(builder, _ATANH, q), _constant(1.0))
        small = builder.fmul(builder.fadd(s, s), tail)
        return _fma(builder, k, _constant(_LN2_HIGH), _fma(builder, k, _constant(_LN2_LOW), small))

    return lanes(lanes), codegen


@intrinsic
def _sqrt(typing_context, x):
    return lanes(lanes), lambda context, builder, signature, args: _call(builder, "sqrt", *args)


def exp(x):
    """Return exp(x) for x <= 700; in lanes 0 below -700; NaN stays."""
    return math.exp(x)


def log(x):
    """Return log(x) for normal numbers x > 0; in lanes some finite number for other x."""
    return math.log(x)


def sqrt(x):
    """Return the square root."""
    return math.sqrt(x)


@overload(exp, jit_options=PART)
def _exp_of(x):
    return (lambda x: select(x < -700.0, 0.0, _exp_bounded(x))) if x is lanes else (lambda x: math.exp(x))


@overload(log, jit_options=PART)
def _log_of(x):
    return (lambda x: _log(x)) if x is lanes else (lambda x: math.log(x))


@overload(sqrt, jit_options=PART)
def _sqrt_of(x):
    return (lambda x: _sqrt(x)) if x is lanes else (lambda x: math.sqrt(x))
