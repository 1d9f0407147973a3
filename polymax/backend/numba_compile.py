"""The compilers of kernels and of their helpers: ours where the insides of Numba are known, or Numba's own."""

import numba
from numba.core.compiler import Compiler

# the versions of Numba that numba_parts.py is written for. With others, first calls take longer, for the same kernels
KNOWN = ("0.68.",)


def compilers(version: str) -> tuple[type[Compiler], type[Compiler]]:
    """The compiler of kernels, and that of the helpers that are parts of them, for a version of Numba."""
    if not version.startswith(KNOWN):
        return Compiler, Compiler
    from polymax.backend.numba_parts import KernelCompiler, PartCompiler

    return KernelCompiler, PartCompiler


KernelCompiler, PartCompiler = compilers(numba.__version__)
