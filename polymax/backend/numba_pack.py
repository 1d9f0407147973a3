"""The indices of the entries of a row above a bound, for Numba: sixteen at a time if the processor can pack.

LLVM vectorises no loop that packs. With AVX-512 one instruction packs sixteen numbers by a mask; without this
instruction, a loop without branches takes a cycle or two for an entry.
"""

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from polymax.backend.numba_math import within

LANES = 16
# the first LLVM with packing in registers; packing to memory is slow on some processors
_KNOWN = 19


def _packs() -> bool:
    """Return True if this processor packs in registers, and this LLVM has the instruction."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        # some platforms do not report the features of the processor
        return False
    return llvmlite.binding.llvm_version_info[0] >= _KNOWN and bool(features.get("avx512f"))


@intrinsic
def _pack_lanes(typing_context, x, start, top, lowest, index, count):
    """Append the indices of entries from x[start] on, with not x - top <= lowest, to index[count:]; return the new
    count.
    """
    lane, word = ir.IntType(32), ir.IntType(64)
    whole, mask = ir.VectorType(lane, LANES), ir.VectorType(ir.IntType(1), LANES)

    def codegen(context, builder, signature, args):
        real = ir.VectorType(context.get_data_type(x.dtype), LANES)

        def spread(number, kind):
            nothing = ir.Constant(kind, ir.Undefined)
            first = builder.insert_element(nothing, number, ir.Constant(lane, 0))
            return builder.shuffle_vector(first, nothing, ir.Constant(whole, [0] * LANES))

        def at(array, kind, place, vector):
            data = make_array(kind)(context, builder, array).data
            return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())

        entries = builder.load(at(args[0], x, args[1], real), align=x.dtype.bitwidth // 8)
        below = builder.fcmp_ordered("<=", builder.fsub(entries, spread(args[2], real)), spread(args[3], real))
        above = builder.not_(below)
        first = spread(builder.trunc(args[1], lane), whole)
        places = builder.add(first, ir.Constant(whole, list(range(LANES))))
        name = f"llvm.experimental.vector.compress.v{LANES}i32"
        compress = cgutils.get_or_insert_function(builder.module, ir.FunctionType(whole, [whole, mask, whole]), name)
        packed = builder.call(compress, [places, above, ir.Constant(whole, ir.Undefined)])
        builder.store(packed, at(args[4], index, args[5], whole), align=4)
        kept = builder.ctpop(builder.zext(builder.bitcast(above, ir.IntType(LANES)), word))
        return builder.add(args[5], kept)

    return types.int64(x, types.int64, x.dtype, x.dtype, index, types.int64), codegen


@within
def _pack_by_lanes(x, top, lowest, index):
    count, whole = 0, x.size - x.size % LANES
    for start in range(0, whole, LANES):
        count = _pack_lanes(x, start, top, lowest, index, count)
    for j in range(whole, x.size):
        index[count] = j
        count += not x[j] - top <= lowest
    return count


@within
def _pack_by_entries(x, top, lowest, index):
    count = 0
    for j in range(x.size):
        index[count] = j
        count += not x[j] - top <= lowest
    return count


# fill index, which has room for LANES more than the row, with the indices of entries other than x - top <= lowest,
# including NaN; return their count
pack_above = _pack_by_lanes if _packs() else _pack_by_entries
