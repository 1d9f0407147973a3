"""Softmax attention as the baseline of the grids: by the fastest of torch's kernels, of all keys or of a window.

Kernels are timed with their gradient on the shape of a training before it begins; those that do not take the shape, or
do not exist in this version of torch, take no part. A window is the last WINDOW keys, the query's own among them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

import polymax as pm
from benchmarks import grid

WINDOW = 256
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# of queries, keys and values (b, heads, n, head), causal
Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def kernels(length: int, window: bool) -> dict[str, Kernel]:
    """Return torch's kernels of causal softmax attention for rows of a length on a GPU, by their names."""
    if not window:
        return {name: partial(_all_keys, backend=backend) for name, backend in BACKENDS.items()}
    found: dict[str, Kernel] = {"flex": _flex(length), "blocks": blocks}
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return found
    return found | {"flash": partial(_flash, varlen_attn)}


def _all_keys(query: Tensor, key: Tensor, value: Tensor, backend: SDPBackend) -> Tensor:
    with sdpa_kernel([backend]):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


@cache
def _flex(length: int) -> Kernel:
    return partial(torch.compile(flex_attention, dynamic=False), block_mask=window_mask(length, "cuda"))


def window_mask(length: int, device: str) -> BlockMask:
    """Return a window as FlexAttention takes it: without the table of all pairs that torch would make of it."""

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < WINDOW)

    size = 128
    number = torch.arange(-(-length // size), dtype=torch.int32, device=device)
    # the first key of a window is at most so many blocks before that of the query
    reach = -(-(WINDOW - 1) // size)
    some = torch.arange(reach + 1, dtype=torch.int32, device=device)
    indices = (number.unsqueeze(-1) - some).clamp(0).expand(1, 1, -1, -1)
    indices = pad(indices, (0, max(0, len(number) - len(some))))[..., : len(number)].contiguous()
    count = (number + 1).clamp(max=len(some)).expand(1, 1, -1).contiguous()
    return BlockMask.from_kv_blocks(count, indices, BLOCK_SIZE=size, mask_mod=sees, seq_lengths=(length, length))


def _flash(varlen: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch, _, length, _ = query.shape
    edges = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=query.device)
    packed = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))
    context: Tensor = varlen(*packed, edges, edges, length, length, window_size=(WINDOW - 1, 0))
    return context.unflatten(0, (batch, length)).transpose(1, 2)


def blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention to a window: each block of WINDOW queries sees its own keys and those of the block before.

    Example:
        >>> blocks(*torch.ones(3, 1, 2, 700, 4)).shape
        torch.Size([1, 2, 700, 4])
    """
    length = query.shape[-2]
    more = -length % WINDOW
    query, key, value = (pad(part, (0, 0, 0, more)).unflatten(-2, (-1, WINDOW)) for part in (query, key, value))
    # (b, heads, blocks, 2 * WINDOW, head)
    key, value = (torch.cat([pad(part, (0, 0, 0, 0, 1, -1)), part], -2) for part in (key, value))
    at = torch.arange(WINDOW, device=query.device).unsqueeze(-1)
    seen = torch.arange(2 * WINDOW, device=query.device)
    sees = ((seen > at) & (seen <= at + WINDOW)).repeat(query.shape[2], 1, 1)
    # nothing is before the first block
    sees[0, :, :WINDOW] = False
    sees = sees.expand(len(query), *sees.shape).flatten(0, 1).unsqueeze(1)
    queries, keys, values = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))
    context = scaled_dot_product_attention(queries, keys, values, sees)
    return context.unflatten(0, (len(query), -1)).transpose(1, 2).flatten(2, 3)[..., :length, :]


def times(found: dict[str, Kernel], size: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, float]:
    """Return the milliseconds of kernels with their gradient on the GPU, for those that take a size."""
    query, key, value = (part.requires_grad_() for part in torch.randn(3, *size, device="cuda", dtype=dtype))
    taken = {}
    for name, kernel in found.items():
        try:
            for timed in (False, True):
                torch.cuda.synchronize()
                began = perf_counter()
                for _ in range(5):
                    kernel(query, key, value).sum().backward()
                torch.cuda.synchronize()
                if timed:
                    taken[name] = 200 * (perf_counter() - began)
        # what a compiler, or a version of torch that lacks an argument, raises is of many types
        except Exception as error:
            grid.tell(f"softmax by {name}: {str(error).splitlines()[0]}")
    if not taken:
        raise ValueError("no kernel of torch's softmax attention takes this shape")
    return taken


@contextmanager
def all_keys(name: str) -> Iterator[None]:
    """Let models attend to all keys by one of torch's kernels, between the compiled parts of a layer.

    While a graph is compiled, tensors have no values: torch's choice among its kernels is another one then.
    """
    outside = torch.compiler.disable(pm.nn.scaled_dot_product_attention)
    with patch.object(pm.nn, "scaled_dot_product_attention", outside), sdpa_kernel([BACKENDS[name]]):
        yield


@contextmanager
def windows(kernel: Kernel) -> Iterator[None]:
    """Let models attend to a window by a kernel, likewise, and let measures of their attention know it."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        # what measures a model has other shapes, which are not worth a compilation
        return (kernel if torch.is_grad_enabled() else blocks)(query, key, value)

    statistics = partial(pm.nn.attention_statistics, window=(WINDOW - 1, 0))
    with (
        patch.object(pm.nn, "scaled_dot_product_attention", torch.compiler.disable(attend)),
        patch.object(pm.nn, "attention_statistics", statistics),
    ):
        yield
