"""The compilers of kernels and of their helpers: ours for known versions of Numba, or Numba's own."""

import logging

import numba
from numba.core.compiler import Compiler

# the versions of Numba that numba_parts.py supports; with other versions, the same kernels compile more slowly
KNOWN = ("0.68.",)


def compilers(version: str) -> tuple[type[Compiler], type[Compiler]]:
    """Return the compiler of kernels and the compiler of helpers for a version of Numba."""
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
