"""The call of a search for the best structure from a compiled loop: by the address of a function, for every set.

The loop is compiled once for all sets, and each search once for itself. All searches have one signature,

    score = best(problem, mu, vertex)

and writes the parts of the best structure around mu to `vertex`: those of the first tensor, then those of other
tensors, numbered on from the first, then -1. The score is that of the structure itself, -inf if there is none.

Shapes of a problem, which is a tuple:
    table (any,), shared by all instances: sizes, or a graph; own (any,), integers of the instance, such as lengths
    scores and others (any,), of the instance: those of the first tensor, and those of other tensors
    grid (any, any), line (any,), marks (any, >= 2): memory of the search. marks[0, 0] is 0 at the first search of an
        instance; the search sets marks[0, 1] to the number of parts of the first tensor, and line[0] to the score that
        it
        has subtracted from every structure.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


class SearchProblem(NamedTuple):
    """The arrays of a batch of problems, and constants of its search.

    Arrays are (B, any), or shared by all instances. `memory` is the shapes of grid, line and marks; `work` the cost of
    one search in units of a pass over a number. Place u of a list holds one of the `choices` parts from u * choices on;
    0 if it may hold any part.
    """

    table: np.ndarray
    own: np.ndarray
    scores: np.ndarray
    others: np.ndarray
    memory: tuple[tuple[int, int], int, tuple[int, int]]
    work: int
    choices: int = 0


_INTEGERS, _NUMBERS = types.int64[::1], types.float64[::1]
_PROBLEM = types.Tuple((_INTEGERS, _INTEGERS, _NUMBERS, _NUMBERS, types.float64[:, ::1], _NUMBERS, types.int64[:, ::1]))
_SIGNATURE = types.float64(_PROBLEM, _NUMBERS, types.int32[::1])


@cache
def address(function):
    """Return the address of the machine code of a search, a kernel of Numba; compile it if necessary."""
    function.compile(_SIGNATURE.args)
    compiled = function.overloads[_SIGNATURE.args]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)


@intrinsic
def ask(typing_context, where, problem, mu, vertex):
    """Return the score from the search at an address."""

    def codegen(context, builder, signature, args):
        given = [context.get_value_type(kind) for kind in signature.args[1:]]
        function = ir.FunctionType(context.get_value_type(signature.return_type), given)
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])

    return types.float64(types.int64, *_SIGNATURE.args), codegen
