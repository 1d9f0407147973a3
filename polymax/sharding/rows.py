"""Softmax, sparsemax and entmax of rows whose own dimension is sharded: exact, without gathering the row.

The threshold of a part of a row is a lower bound of the row's threshold. So each process solves its part; one maximum
over the processes gives the largest score and the largest bound; what is above the bound, a few dozen entries of a row,
is gathered; and every process solves the same short row, with the same bits. Rows with more than `PLACES` entries above
the bound on one process are solved by Newton's method, on two sums over the processes at each step.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from polymax.backend.widen import wide
from polymax.kernels.threshold import TSALLIS, threshold
from polymax.sharding.collectives import gathered, max_over, same_sum, shared, sum_over

# entries of a row that a process may hand to the others
PLACES = 64
# steps of Newton's method: it converges from below, and doubles the digits at each step once it is near
_STEPS = 100

Groups = tuple[Any, ...]


def weights(x: Tensor, alpha: float, groups: Groups) -> Tensor:
    """This process's part of entmax with 1 <= alpha <= 2, for its part x (*batch, n) of the rows."""
    return _ShardedWeights.apply(x, alpha, groups)


def maximum(x: Tensor, y: Tensor, omega: Tensor, groups: Groups) -> Tensor:
    """The smoothed maximum (*batch,) of rows, the same on all processes; its gradient is y.

    `omega` (*batch,) is this process's part of the sum that is Omega(y).
    """
    return _Maximum.apply(x, y, omega, groups)


def tops(x: Tensor, groups: Groups) -> Tensor:
    """The largest score of each row, as a column; 0 for rows of -inf."""
    top = _local_top(x)
    top = max_over(top, groups)
    return torch.where(top == -torch.inf, 0, top)


class _ShardedWeights(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float, groups: Groups) -> Tensor:
        rows = wide(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y = _softmax(rows, groups) if alpha == 1 else _sparse(rows, alpha, groups)
        y = y.reshape(x.shape).to(x.dtype)
        ctx.save_for_backward(y)
        ctx.alpha, ctx.groups = alpha, groups
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return _jacobian(y, v, ctx.alpha, ctx.groups), None, None


class _Maximum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, omega: Tensor, groups: Groups) -> Tensor:
        ctx.save_for_backward(y)
        ctx.groups = groups
        return same_sum((torch.where(x == -torch.inf, 0, x) * y).sum(-1) - omega, groups)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (y,) = ctx.saved_tensors
        # every process has the gradient of the whole value, and uses it for its own part
        return shared(g, ctx.groups).unsqueeze(-1) * y, None, None, None


def _jacobian(y: Tensor, v: Tensor, alpha: float, groups: Groups) -> Tensor:
    """J v: s (v - <s, v> / sum s), with s = y^(2 - alpha) on the support; the sums go over all processes."""
    p, g = wide(y), wide(v)
    support = p > 0
    s = torch.where(support, torch.where(support, p, 1) ** (2 - alpha), 0)
    moved = torch.where(support, s * g, 0).sum(-1, keepdim=True)
    both = sum_over(torch.cat([moved, s.sum(-1, keepdim=True)], -1), groups)
    mean = both[..., :1] / torch.where(both[..., 1:] == 0, 1, both[..., 1:])
    # NaN weights have NaN derivatives
    return torch.where(torch.isnan(p), p, torch.where(support, s * (g - mean), 0)).to(y.dtype)


def _local_top(x: Tensor) -> Tensor:
    rows = wide(x.detach())
    if x.shape[-1] == 0:
        return rows.new_full((*x.shape[:-1], 1), -torch.inf)
    return rows.amax(-1, keepdim=True)


def _softmax(x: Tensor, groups: Groups) -> Tensor:
    top = tops(x, groups)
    e = torch.exp(x - top)
    total = sum_over(e.sum(-1, keepdim=True), groups)
    return e / torch.where(total == 0, 1, total)


def _sparse(x: Tensor, alpha: float, groups: Groups) -> Tensor:
    """The weights of rows x (rows, n), in float32 or float64."""
    a = alpha - 1
    own = _local_top(x)
    finite = torch.where(own.isfinite(), own, 0)
    part = threshold(x - finite, alpha, TSALLIS)
    most = part.amax(-1, keepdim=True) if x.shape[-1] else torch.zeros_like(own)
    # a part without a finite score bounds nothing
    bound = torch.where(own == -torch.inf, own, a * finite - most**a)
    top, bound = max_over(torch.cat([own, bound], -1), groups).split(1, -1)
    lost = torch.isnan(top) | (top == torch.inf)
    top = torch.where(top.isfinite(), top, 0)
    eps = torch.finfo(x.dtype).eps
    # what rounding may have added to the bound
    bound = torch.where(bound.isfinite(), bound, -torch.inf) - a * top - 16 * eps * (1 + a * top.abs())
    z = a * (x - top)
    above = (z > bound) & (x > -torch.inf)
    y, crowded = _from_lists(z, above, alpha, groups)
    if bool(crowded.any()):
        y[crowded] = _by_newton(z[crowded], bound[crowded], alpha, groups)
    return torch.where(lost, torch.nan, y)


def _from_lists(z: Tensor, above: Tensor, alpha: float, groups: Groups) -> tuple[Tensor, Tensor]:
    """Weights of rows from all processes' scores above the bound, and the rows with too many entries on a process."""
    rows, n = z.shape
    size = min(PLACES, n)
    lists = z.new_full((rows, PLACES + 1), -torch.inf)
    found, ids = torch.where(above, z, -torch.inf).topk(size, -1)
    lists[:, :size] = found
    lists[:, -1] = above.sum(-1).to(z.dtype)
    everyone = gathered(lists, groups).unflatten(-1, (-1, PLACES + 1))
    crowded = (everyone[..., -1] > PLACES).any(-1)
    short = everyone[..., :-1].flatten(1)
    p = threshold(short / (alpha - 1), alpha, TSALLIS).unflatten(-1, (-1, PLACES))
    mine = p[:, _place(groups), :size]
    return torch.zeros_like(z).scatter(-1, ids, mine), crowded


def _place(groups: Groups) -> int:
    """The index of this process's list among the lists of all processes."""
    place, width = 0, 1
    for group in groups:
        place += dist.get_rank(group) * width
        width *= dist.get_world_size(group)
    return place


def _by_newton(z: Tensor, bound: Tensor, alpha: float, groups: Groups) -> Tensor:
    """Weights (z - tau)^(1 / (alpha - 1)) that sum to 1 over all processes."""
    y = (z.double() - newton_threshold(z, bound, alpha, groups)).clamp(min=0) ** (1 / (alpha - 1))
    total = sum_over(y.sum(-1, keepdim=True), groups)
    return (y / torch.where(total == 0, 1, total)).to(z.dtype)


def newton_threshold(z: Tensor, bound: Tensor, alpha: float, groups: Groups) -> Tensor:
    """The thresholds tau (rows, 1), in float64, for which (z - tau)_+^(1 / (alpha - 1)) sums to 1 over all processes.

    `bound` (rows, 1) is below them. The sum is convex and falls in tau, so that no step goes too far. All processes see
    the same sums, and stop together.
    """
    power = 1 / (alpha - 1)
    exact, tau = z.double(), bound.double()
    for _ in range(_STEPS):
        above = (exact - tau).clamp(min=0)
        inside = above > 0
        slope = torch.where(inside, torch.where(inside, above, 1) ** (power - 1), 0)
        both = torch.stack([(above * slope).sum(-1), power * slope.sum(-1)], -1)
        total, fall = sum_over(both, groups).split(1, -1)
        step = (total - 1) / torch.where(fall == 0, 1, fall)
        moved = torch.where(step > 0, tau + step, tau)
        done = bool((moved == tau).all())
        tau = moved
        if done:
            break
    return tau
