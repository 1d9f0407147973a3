"""Eight frames of monotonic search for a range of tokens, for Numba, in vectors that stay in registers.

A tile is sixteen tokens. Its values are loaded once, carried through eight frames and stored once; the token before is
the lane before, so that a frame needs a shuffle instead of a load that spans two stores. One bit for each token and
frame is 1 if the best path moved on to the token there. The loop is written in LLVM's vectors because its vectoriser
cannot prove that eight rows of scores and two outputs do not overlap.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polymax.backend.numba_code import cgutils

TILE, BLOCK = 16, 8
_BITS, _INT, _WORD = ir.IntType(TILE), ir.IntType(32), ir.IntType(64)
# shifts lanes by one; the last lane of the previous tile comes first
_BEFORE = ir.Constant(ir.VectorType(_INT, TILE), [TILE - 1 + i for i in range(TILE)])
# bytes of a cache line
_LINE = 64


@intrinsic
def walk_tiles(typing_context, x, stride, v, moves, carry, ahead, tiles, real):
    """Process the next tiles through eight frames.

    Addresses: `x` the scores of the first token at the first frame, with rows `stride` numbers apart; `v` the values;
    `moves` eight times sixteen bits for each tile; `carry` eight values of the token before, each from before a frame;
    `ahead` the memory of later blocks, which is prefetched here in order.
    """

    def codegen(context, builder, signature, args):
        _build(builder, context.get_value_type(real), *args[:-1])
        return context.get_dummy_value()

    return types.void(x, stride, v, moves, carry, ahead, tiles, real), codegen


def _build(b, real, x, stride, v, moves, carry, ahead, tiles):
    size = 8 if isinstance(real, ir.DoubleType) else 4
    vector, byte = ir.VectorType(real, TILE), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
    prefetch = b.module.declare_intrinsic("llvm.prefetch", [byte], kind)

    def at(address, index, kind, size=size):
        return b.inttoptr(b.add(address, b.mul(index, _WORD(size))), kind.as_pointer())

    before = [cgutils.alloca_once(b, vector) for _ in range(BLOCK)]
    for k in range(BLOCK):
        last = b.load(at(carry, _WORD(k), real), align=size)
        b.store(b.insert_element(ir.Constant(vector, ir.Undefined), last, _INT(TILE - 1)), before[k])
    with cgutils.for_range(b, tiles) as loop:
        start, first = b.mul(loop.index, _WORD(TILE)), b.mul(loop.index, _WORD(BLOCK))
        value = b.load(at(v, start, vector), align=size)
        for line in range(BLOCK * TILE * size // _LINE):
            place = b.add(b.mul(first, _WORD(TILE * size)), _WORD(line * _LINE))
            # arguments of prefetch: a read, into the second-level cache, of data
            b.call(prefetch, [at(ahead, place, ir.IntType(8), 1), _INT(0), _INT(2), _INT(1)])
        for k in range(BLOCK):
            moved = b.shuffle_vector(b.load(before[k]), value, _BEFORE)
            b.store(value, before[k])
            further = b.fcmp_ordered(">", moved, value)
            bits = at(moves, b.add(first, _WORD(k)), _BITS, TILE // 8)
            b.store(b.bitcast(further, _BITS), bits, align=TILE // 8)
            scores = b.load(at(x, b.add(start, b.mul(stride, _WORD(k))), vector), align=size)
            value = b.fadd(scores, b.select(further, moved, value))
        b.store(value, at(v, start, vector), align=size)
    for k in range(BLOCK):
        last = b.extract_element(b.load(before[k]), _INT(TILE - 1))
        b.store(last, at(carry, _WORD(k), real), align=size)
