"""Rows on the CPU: torch tensors to NumPy rows, and row ranges to threads.

Numba's own threading layers are unsafe when several Python threads call them or after a fork. Our kernels are
plain nogil functions over a range of rows. As many threads as torch has run them: torch's own (cpu_team.py), which call
a kernel of numbers by its address (numba_team.py), or, where those cannot be had, a small pool.
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

# torch's threads, which are awake between its operations, come in microseconds: a thread is given no fewer elements
GRAIN = 65536
# so many times that where threads need the interpreter, or sleep: some 80 us, as a light kernel takes for them
HEAVY = 4
# less than this is for one thread, whatever their number
SMALL = 2 * GRAIN

_pool: ThreadPoolExecutor | None = None

# what tells a kernel the dtype of the rows at an address
REALS = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def plain(x: Tensor) -> Tensor:
    """x itself where it is contiguous in float32 or float64, or a copy: its memory holds rows one after the other."""
    return x if x.dtype in REALS and x.is_contiguous() else wide(x).contiguous()


def beside(numbers: Tensor, shape: torch.Size) -> Tensor:
    """A number for each place of a shape, or the one for all of them."""
    if numbers.numel() == 1 and numbers.dtype in REALS:
        return numbers
    return plain(numbers if numbers.numel() == 1 else numbers.expand(shape))


def rows(x: Tensor) -> np.ndarray:
    """`(*batch, n)` as contiguous NumPy rows `(rows, n)`, half precision widened to float32."""
    return memory(wide(x).contiguous()).reshape(x.shape[:-1].numel(), x.shape[-1])


def parallel(kernel: Callable[..., None], shape: torch.Size, weight: int, *args: Any) -> None:
    """Run `kernel(start, stop, *args)` over the rows of `shape`, in at most torch.get_num_threads() threads.

    `weight` is the cost of an element in units of a pass over it.
    """
    run(kernel, shape[:-1].numel(), shape[-1] * weight, *args)


def run(kernel: Callable[..., None], count: int, cost: int, *args: Any) -> None:
    """Run `kernel(start, stop, *args)` over `count` rows, in at most torch.get_num_threads() threads.

    `cost` is that of a row, in units of a pass over an element.
    """
    threads = min(torch.get_num_threads(), count, count * cost // GRAIN)
    if threads <= 1:
        kernel(0, count, *args)
        return
    # more pieces than threads: a thread that wakes late, or shares its core, is given fewer
    pieces = min(count, 4 * threads)
    together = team()
    if together is None or not _run_code(together, pieces, kernel, count, *args):
        _run_python(together, min(threads, count * cost // (HEAVY * GRAIN)), pieces, kernel, count, *args)


def _run_code(together: Team, pieces: int, kernel: Callable[..., None], count: int, *args: Any) -> bool:
    """Run a kernel of numbers in torch's threads; False where it is none, or has failed."""
    made = task(kernel, args)
    if made is None:
        return False
    memory = job(made, count, pieces, args)
    # all of torch's threads, as torch asks for them: the library ends those that a smaller team leaves out
    together.run_code(made[0], memory, torch.get_num_threads())
    return not failed(memory)


def _run_python(
    together: Team | None, threads: int, pieces: int, kernel: Callable[..., None], count: int, *args: Any
) -> None:
    """Run a kernel in threads that call it by way of the interpreter."""
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
        # one that has not begun has nothing left to do
        if not future.cancel():
            future.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=max(os.cpu_count() or 1, 2), thread_name_prefix="polymax")
    return _pool


def _forget_threads() -> None:
    # the threads of the parent do not exist in a forked child (a DataLoader worker): start afresh there
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
