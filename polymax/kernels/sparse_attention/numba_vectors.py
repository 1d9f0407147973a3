"""Matrix products and maxima in registers, for Numba: what its loops do not become by themselves.

Vectors have 64 bytes, 16 float32 or 8 float64; LLVM splits them where registers are smaller. Each entry of a product is
summed over its channels in order, whatever block it is computed in, so that the same scores come with the same bits.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# bytes of a vector
BYTES = 64
# rows of a product in registers: with two AVX registers for each, all but four of the sixteen
ROWS = 6


@intrinsic
def product(typing_context, a, at_a, row_a, b, at_b, c, at_c, row_c, depth):
    """c[i, :] = sum_t a[i, t] b[t, :] for ROWS rows and the lanes of a vector.

    The operands start at `at_*` in their arrays, and rows of a and c are `row_*` apart; the rows of b are vectors.
    """

    def codegen(context, builder, signature, args):
        at_a, row_a, at_b, at_c, row_c, depth = (args[n] for n in (1, 2, 4, 6, 7, 8))
        scalar, vector = _types(context, signature.args[0])
        a, b, c = (_pointer(context, builder, signature.args[n], args[n], args[n + 1]) for n in (0, 3, 5))
        fma = _function(builder, "fma", vector, 3)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(ROWS)]
        rows = [builder.gep(a, [builder.mul(row_a, _int(i))]) for i in range(ROWS)]
        with cgutils.for_range(builder, depth) as loop:
            lanes = _load(builder, builder.gep(b, [builder.mul(loop.index, _int(vector.count))]), vector)
            for row, total in zip(rows, sums):
                weight = _splat(builder, builder.load(builder.gep(row, [loop.index])), vector)
                builder.store(builder.call(fma, [weight, lanes, builder.load(total)]), total)
        for i, total in enumerate(sums):
            _store(builder, builder.load(total), builder.gep(c, [builder.mul(row_c, _int(i))]))
        return context.get_dummy_value()

    place = types.int64
    return types.none(a, place, place, b, place, c, place, place, place), codegen


@intrinsic
def lane_maxima(typing_context, x, at_x, count, out, at_out):
    """Write the maximum of each lane over `count` vectors from `at_x` in x, and return whether there is a NaN."""

    def codegen(context, builder, signature, args):
        _, at_x, count, _, at_out = args
        scalar, vector = _types(context, signature.args[0])
        x = _pointer(context, builder, signature.args[0], args[0], at_x)
        out = _pointer(context, builder, signature.args[3], args[3], at_out)
        bits = ir.VectorType(ir.IntType(1), vector.count)
        tops = cgutils.alloca_once_value(builder, ir.Constant(vector, [float("-inf")] * vector.count))
        bad = cgutils.alloca_once_value(builder, ir.Constant(bits, None))
        with cgutils.for_range(builder, count) as loop:
            lanes = _load(builder, builder.gep(x, [builder.mul(loop.index, _int(vector.count))]), vector)
            top = builder.load(tops)
            builder.store(builder.select(builder.fcmp_ordered(">", lanes, top), lanes, top), tops)
            builder.store(builder.or_(builder.load(bad), builder.fcmp_unordered("uno", lanes, lanes)), bad)
        _store(builder, builder.load(tops), out)
        any_bad = builder.bitcast(builder.load(bad), ir.IntType(vector.count))
        return builder.icmp_unsigned("!=", any_bad, ir.Constant(any_bad.type, 0))

    return types.boolean(x, types.int64, types.int64, out, types.int64), codegen


def _types(context, array):
    scalar = context.get_value_type(array.dtype)
    return scalar, ir.VectorType(scalar, BYTES // context.get_abi_sizeof(scalar))


def _int(value):
    return ir.Constant(ir.IntType(64), value)


def _pointer(context, builder, kind, array, at):
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def _align(vector):
    return 4 if isinstance(vector.element, ir.FloatType) else 8


def _load(builder, pointer, vector):
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=_align(vector))


def _store(builder, value, pointer):
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=_align(value.type))


def _splat(builder, value, vector):
    blank = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(blank, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, blank, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def _function(builder, name, vector, arguments):
    bits = 8 * _align(vector)
    kind = ir.FunctionType(vector, [vector] * arguments)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{vector.count}f{bits}")
