"""Several arrays in one piece of memory: torch takes longer for each tensor that it allocates than a launch takes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# alignment of arrays in bytes
ALIGNED = 512


class Array(NamedTuple):
    """The dtype and shape of an array in the workspace of a call."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def size(self) -> int:
        """Return the bytes of the array in a piece of memory."""
        return -(-math.prod(self.shape) * self.dtype.itemsize // ALIGNED) * ALIGNED


class Arena:
    """Offsets of arrays in a piece of memory, one after the other from the byte `start` on."""

    def __init__(self, arrays: Sequence[Array], start: int = 0) -> None:
        self.arrays, self.starts = tuple(arrays), []
        for array in self.arrays:
            self.starts.append(start)
            start += array.size()
        self.end = start

    def memory(self, device: torch.device) -> Tensor:
        """Allocate memory for the arrays."""
        return torch.empty(self.end, dtype=torch.uint8, device=device)

    def tensors(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Return the arrays as views of their memory."""
        return tuple(
            memory[at : at + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for at, (dtype, shape) in zip(self.starts, self.arrays, strict=True)
        )

    def addresses(self, memory: Tensor) -> list[int]:
        """Return the addresses of the arrays, for bound launches that are ready."""
        base = memory.data_ptr()
        return [base + at for at in self.starts]


def new(arrays: Sequence[Array], device: torch.device) -> tuple[Tensor, ...]:
    """Return arrays in one new piece of memory."""
    arena = Arena(arrays)
    return arena.tensors(arena.memory(device))
