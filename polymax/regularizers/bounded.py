"""Entropies on the part of the simplex within bounds: constrained softmax and sparsemax, and budgets."""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling

from polymax import _check
from polymax.backend.cpu_arrays import memory
from polymax.backend.dispatch import bare
from polymax.backend.function import apply_function, keep_tensors
from polymax.backend.widen import constant, wide
from polymax.kernels.capped import capped, capped_backward
from polymax.regularizers.base import Regularizer
from polymax.regularizers.entropies import Gini, Shannon, positive

# tolerance for bounds whose sums miss 1, since bounds are often computed
SLACK = 1e-6
# the dtypes in which numbers of half precision are compared
_WIDE = dict.fromkeys((torch.float16, torch.bfloat16), torch.float32)
# up to this number of weights, one thread is faster than several
_FEW = 1 << 14


@dataclass(frozen=True)
class Bounded(Regularizer):
    """An entropy (Shannon or Gini) on lower <= p <= upper: csoftmax and csparsemax.

        argmax over p in the simplex with lower <= p <= upper of <x, p> - Omega(p)

    Bounds are numbers, or tensors that broadcast to the scores. A fertility of at most 0.4 for each word:

    Example:
        >>> Bounded(Gini(), upper=0.4).argmax(torch.tensor([0.0, 1.0, 3.0]))
        tensor([0.2000, 0.4000, 0.4000])

    See: Martins and Kreutzer 2017, Learning what's easy; Malaviya et al. 2018, Sparse and constrained attention.
    """

    base: Shannon | Gini
    lower: float | Tensor = 0.0
    upper: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.base, Shannon | Gini):
            raise TypeError(f"base must be Shannon or Gini; got {type(self.base).__name__}")
        _check.number(self.lower, "lower", "at least 0", lambda v: v >= 0)
        _check.number(self.upper, "upper", "at least 0", lambda v: v >= 0)

    @property
    def gamma(self) -> float | Tensor:  # type: ignore[override]
        return self.base.gamma

    def argmax_rows(self, x: Tensor) -> Tensor:
        numbers = not isinstance(self.lower, Tensor) and not isinstance(self.upper, Tensor)
        # infeasible numbers give NaN, which is tested afterwards; tensors are tested before
        if not numbers or self.lower > self.upper:
            _feasible(x, self.lower, self.upper)
        # isinstance is slow for abstract classes
        entropic = type(self.base) is not Gini and isinstance(self.base, Shannon)
        if numbers and bare(x) and x.dtype.itemsize >= 4:
            bounds = _numbers.kept(self.lower, self.upper, 1.0, x.dim(), x.dtype, x.device)
            y = capped.cpu(x, *bounds, entropic)
            # the weights are finite or NaN, so that a sum is a test; for few weights NumPy is twice as fast as torch
            few = memory(y) if y.numel() <= _FEW else None
            bad = math.isnan(y.sum() if few is None else np.vdot(few, few))
        else:
            y = _capped_argmax(x, self.lower, self.upper, 1.0, entropic)
            bad = numbers and _check.readable(x) and math.isnan((y.detach() if y.requires_grad else y).sum())
        if bad:
            _feasible(x, self.lower, self.upper)
        return y

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.base.omega_rows(p, keep)

    def _map_tensors(self, change: Any) -> Self:
        # the temperature belongs to the base
        return replace(super()._map_tensors(change), base=self.base._map_tensors(change))


@dataclass(frozen=True)
class Budget(Regularizer):
    """Half the squared norm on weights in [0, 1] that sum to k, the convex hull of the k-subsets.

    Omega(p) = sum p^2 / 2        on 0 <= p <= 1, sum p = k

    k is a number, or a tensor that broadcasts to the scores with size 1 along dim: a budget for each row.
    """

    k: float | Tensor
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.k, Tensor) and not self.k.is_floating_point() and self.k.dtype != torch.bool:
            object.__setattr__(self, "k", self.k.to(torch.get_default_dtype()))
        _check.number(self.k, "k", "at least 0", lambda k: k >= 0)
        positive(self.gamma, "gamma")

    @property
    def mass(self) -> float | Tensor:  # type: ignore[override]
        return self.k.squeeze(-1) if isinstance(self.k, Tensor) and self.k.dim() else self.k

    def argmax_rows(self, x: Tensor) -> Tensor:
        if _check.readable(x):
            alive, count = _alive(x)
            large = alive & (self.mass > count)
            if bool(large.any()):
                few = int(count.broadcast_to(large.shape)[large][0])
                came = torch.as_tensor(self.mass).broadcast_to(large.shape)[large][0]
                raise ValueError(f"k must be at most the number of entries that are not masked, {few}; got {came:g}")
        return _capped_argmax(x, 0.0, 1.0, self.k, entropic=False)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        return p.square().sum(-1) / 2


def _capped_argmax(
    x: Tensor, lower: float | Tensor, upper: float | Tensor, total: float | Tensor, entropic: bool
) -> Tensor:
    """argmax of <x, p> - Omega(p) over lower <= p <= upper, sum p = total, along the last dimension."""
    if isinstance(lower, Tensor) or isinstance(upper, Tensor) or isinstance(total, Tensor) or is_compiling():
        low, high, totals = _bound(lower, x, "lower"), _bound(upper, x, "upper"), _total(total, x)
    else:
        low, high, totals = _numbers(lower, upper, total, x.dim(), x.dtype, x.device)
    if x.dtype in _WIDE:
        return apply_function(RoundedCapped, x, low, high, totals, entropic)[0]
    return apply_function(Capped, x, low, high, totals, entropic)


class Capped(Function):
    """y = clip(x - tau, lower, upper), or of exp(x - tau), with tau such that y sums to the total."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> Tensor:
        return capped(x, lower, upper, total, entropic)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, lower, upper, total, ctx.entropic = inputs
        ctx.save_for_backward(x, lower, upper, output)
        ctx.total_dtype = total.dtype

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        return _capped_gradients(ctx, v)


class RoundedCapped(Function):
    """`Capped` in half precision: the rounded weights, and those before rounding, which tell the entries at a bound."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> tuple[Tensor, Tensor]:
        y = capped(x, lower, upper, total, entropic)
        return y.to(x.dtype), y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        Capped.setup_context(ctx, inputs, output[1])

    @staticmethod
    def backward(ctx: Any, v: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return _capped_gradients(ctx, v)


def _capped_gradients(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of scores, bounds and total."""
    x, lower, upper, y = ctx.saved_tensors
    if not any(ctx.needs_input_grad[1:4]) and not torch.is_grad_enabled():
        return capped_backward(y, v, lower, upper, ctx.entropic), None, None, None, None
    keep = x > -torch.inf
    direction = wide(v)
    at_upper = keep & (y >= upper.to(y.dtype))
    at_lower = keep & (y <= lower.to(y.dtype)) & ~at_upper
    # the Jacobian on the free entries: diag of their weights s, less the mean; s is written so that NaN rows stay NaN
    s = torch.where(keep & ~at_upper & ~at_lower, y if ctx.entropic else 0 * y + 1, 0.0)
    mass = s.sum(-1, keepdim=True)
    mean = (s * direction).sum(-1, keepdim=True) / torch.where(mass == 0, 1, mass)
    centred = direction - mean
    dlower = torch.where(at_lower, centred, 0).to(lower.dtype) if ctx.needs_input_grad[1] else None
    dupper = torch.where(at_upper, centred, 0).to(upper.dtype) if ctx.needs_input_grad[2] else None
    # one more unit of the total goes to the free entries, in proportion to s
    dtotal = mean.squeeze(-1).to(ctx.total_dtype) if ctx.needs_input_grad[3] else None
    return (s * centred).to(x.dtype), dlower, dupper, dtotal, None


@keep_tensors(512)
def _numbers(
    lower: float, upper: float, total: float, dims: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds and a total, given as numbers, as tensors."""
    low, high = (constant(float(bound), dims, _WIDE.get(dtype, dtype), device) for bound in (lower, upper))
    return low, high, constant(float(total), dims - 1, torch.float64, device)


def _total(total: float | Tensor, x: Tensor) -> Tensor:
    if not isinstance(total, Tensor):
        return constant(float(total), x.dim() - 1, torch.float64, x.device)
    return total.to(device=x.device).expand(*x.shape[:-1], 1).squeeze(-1)


def _bound(bound: float | Tensor, x: Tensor, name: str) -> Tensor:
    if not isinstance(bound, Tensor):
        return constant(float(bound), x.dim(), _WIDE.get(x.dtype, x.dtype), x.device)
    _check.broadcasts(bound, x, name)
    return bound.to(device=x.device).expand(x.shape)


def _alive(x: Tensor) -> tuple[Tensor, Tensor]:
    """A mask of the rows without NaN and with an entry that is not masked, and the number of such entries."""
    count = (x != -torch.inf).sum(-1)
    return (count > 0) & ~x.isnan().any(-1), count


def _feasible(x: Tensor, lower: float | Tensor, upper: float | Tensor) -> None:
    """Refuse bounds between which weights cannot sum to 1.

    If values cannot be read, such rows are NaN in the result.
    """
    if not _check.readable(x) or x.numel() == 0:
        return
    keep = x != -torch.inf
    alive, count = _alive(x)
    crossed = lower > upper
    if bool((crossed & keep & alive.unsqueeze(-1)).any() if isinstance(crossed, Tensor) else crossed):
        raise ValueError("lower must be at most upper; got a lower bound above its upper bound")
    low, high = (
        torch.where(keep, b, 0).sum(-1, dtype=torch.float64) if isinstance(b, Tensor) else b * count
        for b in (lower, upper)
    )
    if bool((alive & (low > 1 + SLACK)).any()):
        raise ValueError(f"lower must sum to at most 1 along dim; got {float(low.max()):g}")
    if bool((alive & (high < 1 - SLACK)).any()):
        came = float(torch.where(alive, high, torch.inf).min())
        raise ValueError(f"upper must sum to at least 1 along dim; got {came:g}")
