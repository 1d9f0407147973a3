"""Compilation of kernels: the functions that a kernel calls become parts of it, without machine code of their own.

Numba optimises every function and makes machine code of it, and does so again if the function is a part of another.
Only kernels are called from Python: their helpers are typed and lowered, and then wait to be linked. This takes less
time, and code that is optimised once, as a whole, is no slower.
"""

from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import NativeLowering


class _Part(JITCodeLibrary):
    """Code of a helper that is linked into kernels and never has an address of its own."""

    def _optimize_final_module(self) -> None:
        """Do nothing: a kernel is optimised with all of its helpers in it, which works better than piece by piece."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Lower a helper to its code, without an address and without wrappers for callers in Python and C."""

    _name = "polymax_part_lowering"

    def run_pass(self, state: Any) -> bool:
        own = state.flags
        state.flags = own.copy()
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        try:
            super().run_pass(state)
        finally:
            state.flags = own
        found = state.cr
        # Numba finds compiled code by a function object: create one as the key, which is never called
        name = found.fndesc.qualname.rpartition(".")[2]
        key = _dynfunc.make_function(found.fndesc.lookup_module(), name, "", 0, found.env, (state.library,))
        state.targetctx.insert_user_function(key, found.fndesc, [state.library])
        state.reload_init.extend(state.library._reload_init)
        state.cr = found._replace(cfunc=key)
        return True


class PartCompiler(Compiler):
    """The compiler of helpers."""

    def define_pipelines(self) -> list[Any]:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_PartLowering if made is NativeLowering else made, why) for made, why in pipeline.passes
            ]
        return pipelines


class KernelCompiler(Compiler):
    """The compiler of kernels."""

    def _compile_core(self) -> Any:
        found = super()._compile_core()
        # Python constants that helpers refer to, restored as Numba does for a kernel from its cache
        for variable in found.library._final_module.global_variables:
            environment = lookup_environment(variable.name)
            if environment is not None:
                found.library.codegen.set_env(variable.name, environment)
        return found
