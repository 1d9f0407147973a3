"""Entropies: Shannon, Gini and the Tsallis family between and beyond them; and no regularization at all."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.tsallis_slope.reference import sensitivity
from polymax.regularizers.base import Regularizer
from polymax.regularizers.threshold import threshold


@dataclass(frozen=True)
class Zero(Regularizer):
    """No regularization: the maximum, and the first vertex that attains it.

        Omega(p) = 0

    Example:
        >>> Zero().argmax(torch.tensor([1.0, 3.0, 3.0]))
        tensor([0., 1., 0.])
    """

    zero_at_vertices = True

    def argmax_rows(self, x: Tensor) -> Tensor:
        return _Hardmax.apply(x)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        return p.new_zeros(p.shape[:-1])


@dataclass(frozen=True)
class Shannon(Regularizer):
    """Negative Shannon entropy: the mapping is softmax(x / gamma), the value gamma logsumexp(x / gamma).

        Omega(p) = sum p log p

    Example:
        >>> Shannon().argmax(torch.tensor([0.0, 0.0]))
        tensor([0.5000, 0.5000])
    """

    zero_at_vertices = True
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        positive(self.gamma, "gamma")

    def sharded_alpha(self) -> float | None:
        return 1.0

    def argmax_rows(self, x: Tensor) -> Tensor:
        return threshold(x, 1.0, TSALLIS, sensitivity)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        # the derivative at a weight of 0, which is infinite, is left out
        return (p * torch.log(torch.where(p > 0, p, 1))).sum(-1)


@dataclass(frozen=True)
class Gini(Regularizer):
    """Negative Gini entropy: the mapping is sparsemax, the Euclidean projection of x / gamma onto the simplex.

        Omega(p) = (sum p^2 - 1) / 2

    Example:
        >>> Gini().argmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 0.7500])

    See: Martins and Astudillo 2016, From softmax to sparsemax.
    """

    zero_at_vertices = True
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        positive(self.gamma, "gamma")

    def sharded_alpha(self) -> float | None:
        return 2.0

    def argmax_rows(self, x: Tensor) -> Tensor:
        return threshold(x, 2.0, TSALLIS, sensitivity)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        return (p.square().sum(-1) - 1) / 2


@dataclass(frozen=True)
class Tsallis(Regularizer):
    """Negative Tsallis entropy: the mapping is alpha-entmax; alpha = 1 is softmax, alpha = 2 sparsemax.

        Omega(p) = (sum p^alpha - 1) / (alpha (alpha - 1))

    Above alpha = 1 weights can be 0. Below it all are positive, with tails heavier than those of softmax.

    Example:
        >>> Tsallis(alpha=1.5).argmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.3260, 0.6740])

    See: Peters, Niculae and Martins 2019, Sparse sequence-to-sequence models; Correia et al. 2019, Proposition 1.
    """

    zero_at_vertices = True
    alpha: float | Tensor = 1.5
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        positive(self.alpha, "alpha")
        positive(self.gamma, "gamma")

    def sharded_alpha(self) -> float | None:
        return None if isinstance(self.alpha, Tensor) or not 1 <= self.alpha <= 2 else float(self.alpha)

    def argmax_rows(self, x: Tensor) -> Tensor:
        return threshold(x, self.alpha, TSALLIS, sensitivity)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        alpha = torch.as_tensor(self.alpha, dtype=p.dtype, device=p.device)
        log = torch.log(torch.where(p > 0, p, 1))
        # (p^alpha - p) / (alpha - 1) = p log(p) expm1(t) / t, which is smooth at alpha = 1
        return (p * log * expm1_over(log * (alpha - 1)) / alpha).sum(-1)


def positive(value: float | Tensor, name: str) -> None:
    """Raise an error unless the argument is a positive, finite number or tensor."""
    _check.number(value, name, "positive and finite", lambda v: (v > 0) & (v < math.inf))


def expm1_over(t: Tensor) -> Tensor:
    """expm1(t) / t, and 1 at 0."""
    small = t.abs() < 1e-4
    safe = torch.where(small, 1, t)
    return torch.where(small, 1 + t * (0.5 + t / 6), torch.expm1(safe) / safe)


class _Hardmax(Function):
    """The first maximal vertex; piecewise constant, so its gradient is 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        if x.shape[-1] == 0:
            return x.clone()
        top = x.amax(-1, keepdim=True)
        index = torch.arange(x.shape[-1], device=x.device)
        # the smallest index among ties, which argmax does not guarantee
        first = torch.where(x == top, index, x.shape[-1]).amin(-1, keepdim=True)
        y = (index == first) & (top > -torch.inf)
        return torch.where(torch.isnan(top), torch.nan, y.to(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return torch.zeros_like(v)
        # zeros that depend on the scores, with derivative 0
        (y,) = ctx.saved_tensors
        return torch.where(torch.zeros_like(y, dtype=torch.bool), y, 0)
