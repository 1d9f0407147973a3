"""A row times a matrix, in vector lanes, for Numba: loops this short do not vectorise by themselves."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from polymax.backend.numba_code import cgutils
from polymax.backend.numba_math import inline

# matrices are padded to whole tiles of columns: two vectors of eight
LANES = 8
TILE = 2 * LANES


@inline
def padded(states: int) -> int:
    """Return the columns of a matrix of `states` columns, padded to whole tiles."""
    return -(-states // TILE) * TILE


@intrinsic
def product(typing_context, x, m, count, y):
    """Write y[j] = sum over i < count of x[i] m[i, j] for all columns of m, whole tiles; x may be strided."""

    def codegen(context, builder, signature, args):
        x, m, y = (make_array(signature.args[k])(context, builder, args[k]) for k in (0, 1, 3))
        count = args[2]
        size = context.get_constant(types.intp, signature.args[1].dtype.bitwidth // 8)
        real = context.get_value_type(signature.args[1].dtype)
        lanes = ir.VectorType(real, LANES)
        word = count.type
        x_step = cgutils.unpack_tuple(builder, x.strides)[0]
        m_step = cgutils.unpack_tuple(builder, m.strides)[0]
        columns = cgutils.unpack_tuple(builder, m.shape)[1]
        one = word(1)
        x_base, m_base, y_base = (builder.ptrtoint(a.data, word) for a in (x, m, y))

        def at(base, offset, kind):
            return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

        def load(base, offset, kind):
            return builder.load(at(base, offset, kind), align=real_bytes)

        real_bytes = signature.args[1].dtype.bitwidth // 8
        pairs = builder.sdiv(count, word(2))
        with cgutils.for_range_slice(builder, word(0), columns, word(TILE), word) as (k, _):
            sums = [cgutils.alloca_once_value(builder, ir.Constant(lanes, [real(0.0)] * LANES)) for _ in range(4)]
            for total in sums:
                builder.store(ir.Constant(lanes, [real(0.0)] * LANES), total)
            k_bytes = builder.mul(k, size)

            def accumulate(i, first):
                factor = load(x_base, builder.mul(i, x_step), real)
                factor = builder.insert_element(
                    ir.Constant(lanes, ir.Undefined), factor, ir.Constant(ir.IntType(32), 0)
                )
                zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
                factor = builder.shuffle_vector(factor, factor, zeros)
                row = builder.add(builder.mul(i, m_step), k_bytes)
                for half in range(2):
                    entries = load(m_base, builder.add(row, word(half * LANES * real_bytes)), lanes)
                    term = builder.fmul(factor, entries, flags=("contract",))
                    total = sums[first + half]
                    builder.store(builder.fadd(builder.load(total), term, flags=("contract",)), total)

            with cgutils.for_range(builder, pairs, intp=word) as loop:
                even = builder.mul(loop.index, word(2))
                accumulate(even, 0)
                accumulate(builder.add(even, one), 2)
            with builder.if_then(builder.icmp_signed("<", builder.mul(pairs, word(2)), count)):
                accumulate(builder.sub(count, one), 0)
            for half in range(2):
                total = builder.fadd(builder.load(sums[half]), builder.load(sums[2 + half]))
                place = at(y_base, builder.add(k_bytes, word(half * LANES * real_bytes)), lanes)
                builder.store(total, place, align=real_bytes)
        return context.get_dummy_value()

    return types.none(x, m, types.intp, y), codegen
