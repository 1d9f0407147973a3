"""Rows on the CPU: torch tensors to NumPy rows, and row ranges to threads.

Numba's own threading layers are unsafe when several Python threads call them or after a fork. Our kernels are plain
nogil functions over a range of rows. They run in as many threads as torch uses: in torch's own threads (cpu_team.py),
which call a kernel whose arguments are numbers by its address (numba_team.py), or in a small pool if torch's threads
are not available.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_team import Team, team
from polymax.backend.numba_team import failed, job, task
from polymax.backend.widen import wide

# elements per thread at least: torch's threads, awake between its operations, start within microseconds
GRAIN = 65536
# factor of GRAIN for threads that need the interpreter or sleep: their start takes some 80 us, as long as a light
# kernel
HEAVY = 4
# elements below which one thread does the work, whatever the number of threads
SMALL = 2 * GRAIN

_pool: ThreadPoolExecutor | None = None

# zeros whose type passes the dtype of the rows at an address to a kernel
REALS = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def plain(x: Tensor) -> Tensor:
    """Return x itself if it is contiguous in float32 or float64, else a contiguous copy."""
    return x if x.dtype in REALS and x.is_contiguous() else wide(x).contiguous()


def beside(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Return the numbers expanded to a shape, or a single number for all its entries."""
    if numbers.numel() == 1 and numbers.dtype in REALS:
        return numbers
    return plain(numbers if numbers.numel() == 1 else numbers.expand(shape))


def rows(x: Tensor) -> np.ndarray:
    """Return `(*batch, n)` as contiguous NumPy rows `(rows, n)`, half precision widened to float32."""
    return memory(wide(x).contiguous()).reshape(x.shape[:-1].numel(), x.shape[-1])


def parallel(kernel: Callable[..., None], shape: torch.Size, weight: int, *args: Any) -> None:
    """Run `kernel(start, stop, *args)` over the rows of `shape`, in at most torch.get_num_threads() threads.

    `weight` is the cost of an element in units of a pass over it.
    """
    run(kernel, shape[:-1].numel(), shape[-1] * weight, *args)


def run(kernel: Callable[..., None], count: int, cost: int, *args: Any) -> None:
    """Run `kernel(start, stop, *args)` over `count` rows, in at most torch.get_num_threads() threads.

    `cost` is the cost of a row, in units of a pass over an element.
    """
    threads = min(torch.get_num_threads(), count, count * cost // GRAIN)
    if threads <= 1:
        kernel(0, count, *args)
        return
    # more pieces than threads: a thread that wakes late, or shares its core, takes fewer pieces
    pieces = min(count, 4 * threads)
    together = team()
    if together is None or not _run_code(together, pieces, kernel, count, *args):
        _run_python(together, min(threads, count * cost // (HEAVY * GRAIN)), pieces, kernel, count, *args)


def _run_code(together: Team, pieces: int, kernel: Callable[..., None], count: int, *args: Any) -> bool:
    """Run a kernel with numbers as arguments in torch's threads; return False for other kernels, or if it failed."""
    made = task(kernel, args)
    if made is None:
        return False
    memory = job(made, count, pieces, args)
    # as many threads as torch uses: for a smaller team the library would end the remaining threads
    together.run_code(made[0], memory, torch.get_num_threads())
    return not failed(memory)


def _run_python(
    together: Team | None, threads: int, pieces: int, kernel: Callable[..., None], count: int, *args: Any
) -> None:
    """Run a kernel in threads that call it through the interpreter."""
    if threads <= 1:
        kernel(0, count, *args)
        return
    left = [(count * i // pieces, count * (i + 1) // pieces) for i in range(pieces)]

    def work() -> None:
        while left:
            try:
                start, stop = left.pop()
            except IndexError:
                return
            kernel(start, stop, *args)

    if together is not None:
        together.run(work, threads)
        return
    waiting = [_threads().submit(work) for _ in range(threads - 1)]
    work()
    for future in waiting:
        # a future that has not begun would find no pieces left
        if not future.cancel():
            future.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 2), thread_name_prefix="polymax")
    return _pool


def _forget_threads() -> None:
    # a forked child (a DataLoader worker) has no threads of its parent: make a new pool there
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
