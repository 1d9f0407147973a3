"""Sums, maxima and lists over the processes of a group, with their derivatives.

Every process of the group calls each of these functions with tensors of the same shape and dtype. `calls` counts what
was communicated, for tests and for the page on several processes.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

# collectives and bytes that this process has sent, by kind; counted inside of `counting` alone
_counts: Counter[str] | None = None


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the collectives of this process and the bytes of its own part, by kind."""
    global _counts
    before, _counts = _counts, Counter()
    try:
        yield _counts
    finally:
        _counts = before


def count(kind: str, t: Tensor) -> None:
    """Note a collective of this kind with this tensor as the part of the process."""
    if _counts is not None:
        _counts[kind] += 1
        _counts[f"{kind} bytes"] += t.numel() * t.element_size()


def sum_over(t: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """The sum of t over the processes of the groups, the same bits on all of them; differentiable any number of times.

    The gradient of a sum that all processes use is the sum of their gradients.
    """
    for group in groups:
        t = _Sum.apply(t, group)
    return t


def same_sum(t: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """`sum_over` for a result that all processes use alike: each hands the whole gradient back, which is not summed."""
    for group in groups:
        t = _SameSum.apply(t, group)
    return t


def shared(t: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """Return t, which all processes have alike and each uses in its own way: its gradient is the sum of theirs."""
    for group in groups:
        t = _Shared.apply(t, group)
    return t


def max_over(t: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """The largest entries over the processes of the groups, without a derivative; NaN on one of them is NaN on all."""
    t = t.detach().clone()
    # some back ends lose a NaN in a maximum
    invalid = torch.isnan(t)
    both = torch.stack([torch.where(invalid, -torch.inf, t), invalid.to(t.dtype)])
    for group in groups:
        count("all_reduce", both)
        dist.all_reduce(both, dist.ReduceOp.MAX, group)
    return torch.where(both[1] > 0, torch.nan, both[0])


def gathered(t: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """The tensors t (n, k) of all processes of the groups side by side, (n, processes k), without a derivative."""
    t = t.detach()
    for group in groups:
        size = dist.get_world_size(group)
        parts = [torch.empty_like(t, memory_format=torch.contiguous_format) for _ in range(size)]
        count("all_gather", t)
        dist.all_gather(parts, t.contiguous(), group)
        t = torch.cat(parts, -1)
    return t


def joined(t: Tensor, sizes: tuple[int, ...], dim: int, group: Any) -> Tensor:
    """The parts t of all processes side by side along `dim`, where process r has `sizes[r]`; differentiable.

    Every process uses the whole in its own way: the gradient of a part is the sum of its gradients on all processes.
    """
    return _Joined.apply(t, sizes, dim, group)


class _Joined(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, sizes: tuple[int, ...], dim: int, group: Any) -> Tensor:
        ctx.given = sizes, dim, group
        return _gather_parts(t, sizes, dim, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return _Parted.apply(g, *ctx.given), None, None, None


class _Parted(Function):
    """The sum over the processes, of which each keeps its part."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, sizes: tuple[int, ...], dim: int, group: Any) -> Tensor:
        ctx.given = sizes, dim, group
        rank = dist.get_rank(group)
        if dist.get_backend(group) == "gloo":
            # gloo has no reduction that scatters
            return _reduced(g, group).split(sizes, dim)[rank].contiguous()
        widest = max(sizes)
        parts = [_padded(p, widest, dim) for p in g.split(sizes, dim)]
        mine = torch.empty_like(parts[rank])
        count("reduce_scatter", mine)
        dist.reduce_scatter(mine, parts, dist.ReduceOp.SUM, group)
        return mine.narrow(dim, 0, sizes[rank]).contiguous()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        return _Joined.apply(v, *ctx.given), None, None, None


def _gather_parts(t: Tensor, sizes: tuple[int, ...], dim: int, group: Any) -> Tensor:
    part = _padded(t.detach(), max(sizes), dim)
    parts = [torch.empty_like(part) for _ in sizes]
    count("all_gather", part)
    dist.all_gather(parts, part, group)
    return torch.cat([p.narrow(dim, 0, size) for p, size in zip(parts, sizes)], dim)


def _padded(t: Tensor, size: int, dim: int) -> Tensor:
    """t with zeros up to a size along dim, contiguous."""
    missing = size - t.shape[dim]
    if missing:
        t = torch.cat([t, t.new_zeros(*t.shape[:dim], missing, *t.shape[dim:][1:])], dim)
    return t.contiguous()


def sizes_of(sizes: tuple[int, ...], device: torch.device, group: Any) -> list[tuple[int, ...]]:
    """For each of the sizes, those that all processes of a group have, in the order of their ranks."""
    mine = torch.tensor([sizes], device=device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    count("all_gather", mine)
    dist.all_gather(found, mine, group)
    return [tuple(column) for column in torch.cat(found).T.tolist()]


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduced(t, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(g, ctx.group), None


class _SameSum(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _reduced(t, group)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        # the derivative of that is `_SameSum` again
        return _Shared.apply(g, ctx.group), None


class _Shared(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _SameSum.apply(g, ctx.group), None


def _reduced(t: Tensor, group: Any) -> Tensor:
    total = t.detach().clone(memory_format=torch.contiguous_format)
    count("all_reduce", total)
    dist.all_reduce(total, dist.ReduceOp.SUM, group)
    return total
