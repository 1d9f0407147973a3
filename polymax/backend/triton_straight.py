"""The shortest way to a compiled kernel: Triton's launchers ask at every launch whether the kernel needs memory.

Most need none, which a launcher knows from the start. What it hands on belongs to Triton, and differs between
versions: tests/test_price.py compares it with what the launcher itself does.
"""

from collections.abc import Callable
from typing import Any

import triton

# how the arguments of a kernel are handed on: one after the other, or as a tuple after what tells how to read them
_APART, _TOGETHER = triton.__version__.startswith("3.6."), triton.__version__.startswith("3.7.")


def straight(run: Any) -> Callable[..., None]:
    """run(x, y, z, stream, function, metadata, None, None, None, *arguments) in fewer steps, where they are known."""
    if type(run).__name__ != "CudaLauncher" or run.global_scratch_size or run.profile_scratch_size:
        return run
    launch, options = run.launch, (run.launch_cooperative_grid, run.launch_pdl)
    if _APART:

        def call(x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
            launch(x, y, z, stream, function, *options, None, None, *rest)

        return call
    if _TOGETHER:
        last = None, None, run.arg_annotations, run.kernel_signature

        def call(x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
            launch(x, y, z, stream, function, *options, *rest[:4], *last, rest[4:])

        return call
    return run
