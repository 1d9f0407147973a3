"""Matrix products and maxima in registers, for Numba, whose loops LLVM does not turn into such code by itself.

Vectors have 64 bytes, 16 float32 or 8 float64; LLVM splits them if registers are smaller. Each entry of a product is
summed over its channels in order, whatever block it is computed in, so that a score has the same bits in every block.
"""

from contextlib import contextmanager

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from polymax.backend.numba_code import TypingError, cgutils
from polymax.backend.numba_compile import PartCompiler

# decorator of functions that only kernels call
inner = njit(nogil=True, error_model="numpy", pipeline_class=PartCompiler)
# bytes of a vector
BYTES = 64
# rows of a product in registers: with two AVX registers for each row, there are enough independent sums to keep the
# units busy
ROWS = 4


@intrinsic
def product(typing_context, a, at_a, row_a, step_a, b, at_b, row_b, c, at_c, row_c, depth, more):
    """Write c[i, :] = sum_t a[i, t] b[t, :] for ROWS rows and the lanes of a vector, added to c if `more`.

    The operands start at `at_*` in their arrays; their rows are `row_*` apart, and the entries of a row of a `step_a`.
    """

    def codegen(context, builder, signature, args):
        _, _, row_a, step_a, _, _, row_b, _, _, row_c, depth, more = args
        vector = _vector(context, signature.args[0])
        a, b, c = (_pointer(context, builder, signature.args[n], args[n], args[n + 1]) for n in (0, 4, 7))
        rows_a = [builder.gep(a, [builder.mul(row_a, _int(i))]) for i in range(ROWS)]
        rows_c = [builder.gep(c, [builder.mul(row_c, _int(i))]) for i in range(ROWS)]
        sums = []
        for row in rows_c:
            before = builder.select(more, _load(builder, row, vector), ir.Constant(vector, None))
            sums.append(cgutils.alloca_once_value(builder, before))
        with cgutils.for_range(builder, depth) as loop:
            lanes = _load(builder, builder.gep(b, [builder.mul(loop.index, row_b)]), vector)
            at = builder.mul(loop.index, step_a)
            for row, total in zip(rows_a, sums):
                weight = _splat(builder, builder.load(builder.gep(row, [at])), vector)
                builder.store(_fma(builder, weight, lanes, builder.load(total)), total)
        for row, total in zip(rows_c, sums):
            _store(builder, builder.load(total), row)
        return context.get_dummy_value()

    _check(a, b, c)
    place = types.int64
    arguments = a, place, place, place, b, place, place, c, place, place, place, types.boolean
    return types.none(*arguments), codegen


@intrinsic
def add_scaled(typing_context, y, at_y, weight, x, at_x, size):
    """Add weight x to y, for `size` entries from `at_x` and `at_y`: a whole number of vectors."""

    def codegen(context, builder, signature, args):
        vector = _vector(context, signature.args[0])
        y = _pointer(context, builder, signature.args[0], args[0], args[1])
        x = _pointer(context, builder, signature.args[3], args[3], args[4])
        weight = _splat(builder, args[2], vector)
        with _vectors(builder, args[5], vector) as at:
            row = builder.gep(y, [at])
            more = _load(builder, builder.gep(x, [at]), vector)
            _store(builder, _fma(builder, weight, more, _load(builder, row, vector)), row)
        return context.get_dummy_value()

    _check(x, y)
    return types.none(y, types.int64, y.dtype, x, types.int64, types.int64), codegen


@intrinsic
def dot(typing_context, x, at_x, y, at_y, size):
    """Return the inner product of `size` entries from `at_x` and `at_y`: a whole number of vectors."""

    def codegen(context, builder, signature, args):
        vector = _vector(context, signature.args[0])
        x = _pointer(context, builder, signature.args[0], args[0], args[1])
        y = _pointer(context, builder, signature.args[2], args[2], args[3])
        total = cgutils.alloca_once_value(builder, ir.Constant(vector, None))
        with _vectors(builder, args[4], vector) as at:
            terms = (_load(builder, builder.gep(p, [at]), vector) for p in (x, y))
            builder.store(_fma(builder, *terms, builder.load(total)), total)
        lanes = builder.load(total)
        # halves are added pairwise, so that the order is the same on every machine
        while lanes.type.count > 1:
            half = lanes.type.count // 2
            low, high = (_part(builder, lanes, start, half) for start in (0, half))
            lanes = builder.fadd(low, high)
        return builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))

    _check(x, y)
    return x.dtype(x, types.int64, y, types.int64, types.int64), codegen


@intrinsic
def lane_maxima(typing_context, x, at_x, count, out, at_out):
    """Write the maximum of each lane over `count` vectors from `at_x` in x, and return True if there is a NaN."""

    def codegen(context, builder, signature, args):
        _, at_x, count, _, at_out = args
        vector = _vector(context, signature.args[0])
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

    _check(x, out)
    return types.boolean(x, types.int64, types.int64, out, types.int64), codegen


def _check(*arrays):
    if len({array.dtype for array in arrays}) > 1 or any(array.layout != "C" for array in arrays):
        raise TypingError(f"vectors are read from contiguous arrays of one dtype; got {arrays}")


def _vector(context, array):
    scalar = context.get_value_type(array.dtype)
    return ir.VectorType(scalar, BYTES // context.get_abi_sizeof(scalar))


def _int(value):
    return ir.Constant(ir.IntType(64), value)


def _pointer(context, builder, kind, array, at):
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def _size(vector):
    return 4 if isinstance(vector.element, ir.FloatType) else 8


def _load(builder, pointer, vector):
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=_size(vector))


def _store(builder, value, pointer):
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=_size(value.type))


@contextmanager
def _vectors(builder, size, vector):
    """Build a loop over the offsets of the vectors in `size` entries."""
    with cgutils.for_range(builder, builder.udiv(size, _int(vector.count))) as loop:
        yield builder.mul(loop.index, _int(vector.count))


def _splat(builder, value, vector):
    blank = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(blank, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, blank, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


def _part(builder, lanes, start, count):
    places = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(start, start + count)))
    return builder.shuffle_vector(lanes, lanes, places)


def _fma(builder, a, b, c):
    vector = a.type
    kind = ir.FunctionType(vector, [vector] * 3)
    name = f"llvm.fma.v{vector.count}f{8 * _size(vector)}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])
