"""Workspace of a kernel, for Numba: allocated at its start, freed at its end, and cut into arrays.

Numba counts the references to an array that it has allocated whenever the array, a row of it or a tuple with it is
passed on. Each count is an atomic instruction, which takes longer than the arithmetic on a short row, and its code is
compiled in at each such place. A lean kernel allocates no array and counts no references; its arguments live as long as
its call.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from polymax.backend.numba_cache import keep_compiled
from polymax.backend.numba_compile import KernelCompiler
from polymax.backend.numba_math import OPTIONS

_WORD, _BYTES = ir.IntType(64), ir.IntType(8).as_pointer()


def lean_kernel(function):
    """Return the function compiled for each type of its arguments; neither it nor its helpers can make or return an
    array.
    """
    return keep_compiled(njit(nogil=True, _nrt=False, pipeline_class=KernelCompiler, **OPTIONS)(function))


@intrinsic
def array_at(typing_context, address, shape, real):
    """Return the contiguous array of a shape at an address, of the type of `real`."""
    number = types.unliteral(real)
    array = types.Array(number, len(shape), "C")

    def codegen(context, builder, signature, args):
        made = make_array(array)(context, builder)
        sizes = cgutils.unpack_tuple(builder, args[1])
        bytes_of_one = context.get_constant(types.intp, 1 if number == types.boolean else number.bitwidth // 8)
        strides = [bytes_of_one]
        for size in reversed(sizes[1:]):
            strides.insert(0, builder.mul(strides[0], size))
        data = builder.inttoptr(args[0], context.get_data_type(number).as_pointer())
        populate_array(made, data=data, shape=sizes, strides=strides, itemsize=bytes_of_one, meminfo=None)
        return made._getvalue()

    return array(types.int64, types.UniTuple(types.intp, len(shape)), real), codegen


@intrinsic
def taken(typing_context, count):
    """Return the address of so many bytes of memory, filled with 0; free it by `give_back`."""

    def codegen(context, builder, signature, args):
        take = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_BYTES, [_WORD, _WORD]), "calloc")
        return builder.ptrtoint(builder.call(take, [args[0], _WORD(1)]), _WORD)

    return types.int64(types.int64), codegen


@intrinsic
def taken_as_is(typing_context, count):
    """Return the address of so many bytes of uninitialised memory; free it by `give_back`."""

    def codegen(context, builder, signature, args):
        take = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_BYTES, [_WORD]), "malloc")
        return builder.ptrtoint(builder.call(take, args), _WORD)

    return types.int64(types.int64), codegen


@intrinsic
def give_back(typing_context, address):
    """Free memory."""

    def codegen(context, builder, signature, args):
        free = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), [_BYTES]), "free")
        builder.call(free, [builder.inttoptr(args[0], _BYTES)])
        return context.get_dummy_value()

    return types.none(types.int64), codegen
