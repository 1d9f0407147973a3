"""Sums over the children of nodes, and copies of nodes for their children: linear maps, transposes of one another.

The children of a node are neighbours, and each has one parent. Nothing is padded to the largest number of children, and
sums have the same order on every device.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function


def child_sums(x: Tensor, parents: Tensor, starts: Tensor) -> Tensor:
    """y_j = sum over children m of j of x_m.

    Shapes: x (m, d); parents (m,), ascending; starts (k,), the place of each node's first child; y (k, d)

    Example:
        >>> child_sums(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 2]), torch.tensor([0, 1, 1]))
        tensor([[1.],
                [0.],
                [6.]])
    """
    return apply_function(_Sums, x, parents, starts)


def for_children(x: Tensor, parents: Tensor, starts: Tensor) -> Tensor:
    """y_m = x_j of the parent j of m.

    Example:
        >>> for_children(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1, 1]), torch.tensor([0, 1]))
        tensor([[1.],
                [2.],
                [2.]])
    """
    return apply_function(_ForChildren, x, parents, starts)


class _Sums(Function):
    @staticmethod
    def forward(x: Tensor, parents: Tensor, starts: Tensor) -> Tensor:
        places = torch.arange(len(parents), device=x.device)
        return torch.nn.functional.embedding_bag(places, x, starts, mode="sum")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return for_children(g, *ctx.saved_tensors), None, None


class _ForChildren(Function):
    @staticmethod
    def forward(x: Tensor, parents: Tensor, starts: Tensor) -> Tensor:
        return x.index_select(0, parents)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return child_sums(g.contiguous(), *ctx.saved_tensors), None, None
