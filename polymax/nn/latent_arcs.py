"""The gradient of a Tree-LSTM's sums over children in the arcs of its trees, including arcs that are not used."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function, once_differentiable

# numbers in memory at once, for pairs of tokens: few enough for caches, enough for a launch
_AT_ONCE = 1 << 21


def zeros_with_arc_gradient(arcs: Tensor, h: Tensor, c: Tensor, forget: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros whose gradient in the arcs is that of the sums over children, at the arcs that the trees have.

        s_j = sum_m arcs[j, m] h_m,        c_j = sum_m arcs[j, m] sigmoid(forget_j + below_m) c_m

    The caller computes the sums themselves along the tree; all pairs are in memory in the backward pass alone.

    Shapes: arcs (B, n, n); h, c, forget, below (B, n, d), without gradient; both results (B, n, d)

    Example:
        >>> arcs, states = torch.zeros(1, 2, 2, requires_grad=True), torch.tensor([[[1.0], [2.0]]])
        >>> s, c = zeros_with_arc_gradient(arcs, states, torch.zeros_like(states), states, states)
        >>> torch.autograd.grad(s.sum(), arcs)
        (tensor([[[1., 2.],
                 [1., 2.]]]),)
    """
    return apply_function(_Hung, arcs, h, c, forget, below)


class _Hung(Function):
    @staticmethod
    def forward(arcs: Tensor, h: Tensor, c: Tensor, forget: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(h), torch.zeros_like(c)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_s: Tensor, g_c: Tensor) -> tuple[Any, ...]:
        h, c, forget, below = ctx.saved_tensors
        rows = max(_AT_ONCE // max(h.numel(), 1), 1)
        found = []
        for g, f in zip(g_c.split(rows, 1), forget.split(rows, 1), strict=True):
            pairs = (f.unsqueeze(2) + below.unsqueeze(1)).sigmoid_().mul_(c.unsqueeze(1))
            found.append((pairs @ g.unsqueeze(-1)).squeeze(-1))
        return g_s @ h.mT + torch.cat(found, 1), None, None, None, None
