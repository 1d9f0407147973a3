"""The shortest call of a compiled kernel: Triton's launchers check at every launch if the kernel needs scratch memory.

Most kernels need none, which is known when they are compiled. The arguments that the launcher passes on are internal to
Triton and differ between versions: tests/backend/test_price.py compares them with those of the launcher itself.
"""

from collections.abc import Callable
from typing import Any

import triton

# _APART: arguments are passed one after the other; _TOGETHER: as a tuple after annotations and signature
_APART, _TOGETHER = triton.__version__.startswith("3.6."), triton.__version__.startswith("3.7.")


def straight(run: Any) -> Callable[..., None]:
    """Return run(x, y, z, stream, function, metadata, None, None, None, *arguments) in fewer steps for known
    versions.
    """
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
