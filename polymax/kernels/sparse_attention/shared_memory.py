"""A check that the kernels of sparse attention fit into the shared memory of a GPU."""

from functools import cache

import torch

# LEAST: bytes of shared memory that a program may use on every GPU
# MOST: and on the GPUs with the largest limit
LEAST, MOST = 99 << 10, 227 << 10


def fits(dtype: torch.dtype, channels: int, device: torch.device) -> bool:
    """Return True if heads of so many channels fit; a compiled graph assumes the limit MOST."""
    needed = bytes_needed(dtype, channels)
    return needed <= LEAST or needed <= (MOST if torch.compiler.is_compiling() else _bytes_of(device))


def bytes_needed(dtype: torch.dtype, channels: int) -> int:
    """Return the most shared memory in bytes that a kernel uses, as compiled for compute capability 9.0."""
    sizes = (164_608, 229_376, 557_824) if dtype == torch.float32 else (92_160, 163_840, 214_016)
    return sizes[0 if channels <= 64 else 1 if channels <= 128 else 2]


@cache
def _bytes_of(device: torch.device) -> int:
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", MOST))
