"""The compilers of kernels and of their helpers: ours where the insides of Numba are known, or Numba's own."""

import logging

import numba
from numba.core.compiler import Compiler

# the versions of Numba that numba_parts.py is written for. With others, first calls take longer, for the same kernels
KNOWN = ("0.68.",)


def compilers(version: str) -> tuple[type[Compiler], type[Compiler]]:
    """The compiler of kernels, and that of the helpers that are parts of them, for a version of Numba."""
    if not version.startswith(KNOWN):
        # this file is imported at the first call that compiles
        logging.getLogger("polymax").warning(
            "Numba %s compiles kernels of polymax as it does others: first calls take longer, and threads of torch do "
            "not share small calls; both are faster with Numba %sx",
            version,
            KNOWN[0],
        )
        return Compiler, Compiler
    from polymax.backend.numba_parts import KernelCompiler, PartCompiler

    return KernelCompiler, PartCompiler


KernelCompiler, PartCompiler = compilers(numba.__version__)
