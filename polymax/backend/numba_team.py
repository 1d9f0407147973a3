"""Calls of a kernel by torch's threads: by its address, without the interpreter, piece by piece until none is left.

Threads that run Python functions wait for the interpreter's lock, for longer than a small kernel takes. These threads
instead run a function written here in LLVM's language, one for each tuple of argument types.
"""

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from polymax.backend.numba_compile import KNOWN

# a job in memory, in words of 8 bytes: the next piece, the number of pieces, the number of rows, the number of failed
# pieces, the address of the kernel, and its arguments
_NEXT, _PIECES, _ROWS, _FAILED, _KERNEL, _FIRST = range(6)
_WORD = ir.IntType(64)

Task = tuple[int, Callable[..., bytes], int]


def task(kernel: Any, args: tuple[Any, ...]) -> Task | None:
    """Return the function for the threads, the packer of its arguments, and the address of the kernel compiled for
    them.

    Returns None if an argument is not a number, or for an unknown version of Numba.
    """
    if not isinstance(kernel, Dispatcher) or not numba.__version__.startswith(KNOWN):
        return None
    return _task(kernel, tuple(map(type, args)), args)


# by the kernel and the types of its arguments, which determine the task
_tasks: dict[tuple[Any, ...], Task | None] = {}


def _task(kernel: Any, types: tuple[type, ...], args: tuple[Any, ...]) -> Task | None:
    key = (kernel, types)
    if key not in _tasks:
        _tasks[key] = _made(kernel, args)
    return _tasks[key]


def job(made: Task, count: int, pieces: int, args: tuple[Any, ...]) -> Any:
    """Return the memory of a job, from which threads take pieces."""
    _, pack, kernel = made
    return ctypes.create_string_buffer(pack(0, pieces, count, 0, kernel, *(a for a in args if a is not None)))


def failed(memory: Any) -> bool:
    """Return True if the kernel failed on some piece of a job."""
    return struct.unpack_from("q", memory, 8 * _FAILED)[0] > 0


def _made(kernel: Any, args: tuple[Any, ...]) -> Task | None:
    signature = tuple(map(kernel.typeof_pyval, (0, 0, *args)))
    letters = [_letter(t) for t in signature[2:]]
    if None in letters:
        return None
    # a call with no rows compiles the kernel or loads it from the disk
    kernel(0, 0, *args)
    found = kernel.overloads[signature]
    call = _caller(kernel.targetctx, found.fndesc.restype, found.fndesc.argtypes)
    address = found.library.get_pointer_to_function(found.fndesc.llvm_func_name)
    return call, struct.Struct("=5q" + "".join(letter for letter in letters if letter)).pack, address


def _letter(t: Any) -> str | None:
    """Return the format that packs a number of a type into a word, "" for None, or None for unsupported types."""
    if isinstance(t, numba.types.NoneType):
        return ""
    return {"int64": "q", "bool": "q", "float32": "f4x", "float64": "d"}.get(str(t))


@cache
def _caller(context: Any, result: Any, types: tuple[Any, ...]) -> int:
    """Return the address of a function of a job, which calls a kernel with arguments of these types for piece after
    piece.
    """
    with global_compiler_lock:
        library = context.codegen().create_library("polymax_team")
        module = library.create_ir_module("polymax_team")
        name = f"polymax_team_{abs(hash(types))}"
        _write(module, name, context.call_conv.get_function_type(result, types))
        library.add_ir_module(module)
        library.finalize()
        # the code lives as long as its library: `_libraries` keeps it as long as this cache
        _libraries.append(library)
        return int(library.get_pointer_to_function(name))


_libraries: list[Any] = []


def _write(module: ir.Module, name: str, kernel_type: ir.FunctionType) -> None:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()]), name)
    entry, head, body, last, end = map(function.append_basic_block, ("entry", "head", "body", "last", "end"))
    builder = ir.IRBuilder(entry)
    base = function.args[0]

    def word(i: int) -> ir.Instruction:
        return builder.gep(base, [ir.Constant(_WORD, i)])

    result, error = (builder.alloca(t.pointee) for t in kernel_type.args[:2])
    pieces, count = builder.load(word(_PIECES)), builder.load(word(_ROWS))
    kernel = builder.inttoptr(builder.load(word(_KERNEL)), kernel_type.as_pointer())
    values, place = [], _FIRST
    for t in kernel_type.args[4:]:
        if isinstance(t, ir.PointerType):
            values.append(ir.Constant(t, None))
            continue
        if isinstance(t, ir.IntType):
            whole = builder.load(word(place))
            values.append(whole if t.width == 64 else builder.trunc(whole, t))
        else:
            values.append(builder.load(builder.bitcast(word(place), t.as_pointer())))
        place += 1
    builder.branch(head)

    builder.position_at_end(head)
    piece = builder.atomic_rmw("add", word(_NEXT), ir.Constant(_WORD, 1), "monotonic")
    builder.cbranch(builder.icmp_signed("<", piece, pieces), body, end)

    builder.position_at_end(body)
    start = builder.sdiv(builder.mul(count, piece), pieces)
    stop = builder.sdiv(builder.mul(count, builder.add(piece, ir.Constant(_WORD, 1))), pieces)
    status = builder.call(kernel, [result, error, start, stop, *values])
    builder.cbranch(builder.icmp_signed("!=", status, ir.Constant(status.type, 0)), last, head)

    builder.position_at_end(last)
    builder.atomic_rmw("add", word(_FAILED), ir.Constant(_WORD, 1), "monotonic")
    builder.branch(head)

    builder.position_at_end(end)
    builder.ret_void()
