"""Group lasso on the simplex: weights of a group shrink together, and whole groups become exactly 0."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.backend.function import apply_function, keep_tensors
from polymax.backend.widen import constant, wide
from polymax.kernels import grouped as kernels
from polymax.kernels.grouped import reference
from polymax.regularizers.base import Regularizer
from polymax.regularizers.entropies import Gini, positive

# alternating directions for overlapping groups: at most _ROUNDS, until changes are below _CLOSE; norms below _NOTHING
# count as 0
_ROUNDS, _CLOSE, _NOTHING = 5000, 1e-11, 1e-8


@dataclass(frozen=True)
class Grouped(Regularizer):
    """Gini plus the norm of each group of entries, times the square root of its size. The mapping is groupedmax.

        Omega(p) = 1/2 (sum p^2 - 1) + strength sum over groups g of sqrt(|g|) norm_2(p_g)

    `groups` gives the group of each entry, (n,) integers; or lists the entries of each group, which may overlap, and
    leave entries out. The size of a group counts entries that are not masked.

    Example:
        >>> Grouped([0, 0, 1, 1], strength=0.5).argmax(torch.tensor([1.0, 0.9, 0.6, -1.0]))
        tensor([0.5250, 0.4750, 0.0000, 0.0000])

    See: Yuan and Lin 2006, Model selection and estimation in regression with grouped variables.
    """

    groups: Tensor | Sequence[int] | Sequence[Sequence[int]]
    strength: float | Tensor = 0.1
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _plain(self.groups))
        _check.number(self.strength, "strength", "at least 0 and finite", lambda s: (s >= 0) & (s < math.inf))
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        groups = self._groups_of(x.shape[-1])
        if _disjoint(groups):
            order = _order(groups, x.shape[-1], x.device)
            function = Groupedmax if torch.compiler.is_compiling() else ForwardGroupedmax
            y = apply_function(function, wide(x), self._per_row(x), *order)
        else:
            y = self._by_rounds(x)
        return y if y.dtype == x.dtype else y.to(x.dtype)

    def _per_row(self, x: Tensor) -> Tensor:
        """The strength of each row, or one for all of them."""
        if not isinstance(self.strength, Tensor):
            return constant(float(self.strength), x.dim() - 1, torch.float64, x.device)
        return self.strength.double().expand(*x.shape[:-1], 1).squeeze(-1)

    def _by_rounds(self, x: Tensor) -> Tensor:
        """Weights if groups share entries."""
        members = self._members(x)
        if not x.numel():
            return wide(x).clone()
        scores = x.double()
        keep = scores != -torch.inf
        alive = keep.any(-1, keepdim=True)
        strength = self.strength.double() if isinstance(self.strength, Tensor) else self.strength
        prices = strength * (keep.double() @ members).sqrt()
        top = torch.where(alive, torch.where(keep, scores.detach(), -torch.inf).amax(-1, keepdim=True), 0)
        p = _overlapping(torch.where(keep, scores - top, 0), keep, members, prices)
        # a row with a NaN is NaN
        bad = scores.isnan().any(-1, keepdim=True)
        # this factor makes derivatives NaN in rows with NaN, and in no others
        p = torch.where(bad, scores * torch.where(bad, torch.nan, 0.0), p)
        return torch.where(alive & keep, p, 0).to(wide(x).dtype)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        members = self._members(p)
        kept = torch.ones_like(p, dtype=torch.bool) if keep is None else keep
        sizes = kept.double() @ members
        squares = p.double().square() @ members
        # the slope of the norm of a group without weight is not used
        norms = torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)
        strength = self.strength.double() if isinstance(self.strength, Tensor) else self.strength
        penalty = (strength * (sizes.sqrt() * norms)).sum(-1)
        return ((p.double().square().sum(-1) - 1) / 2 + penalty).to(p.dtype)

    def _members(self, x: Tensor) -> Tensor:
        """The matrix (n, groups) with 1 where an entry is in a group."""
        n = x.shape[-1]
        return _membership(self._groups_of(n), n, x.device)

    def _groups_of(self, n: int) -> tuple[tuple[int, ...], ...]:
        """The entries of each group, in rows of n."""
        return _listed(self.groups, n)


class Groupedmax(Function):
    """y = argmax over the simplex of <x, p> - Omega(p), for groups that share no entry."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int) -> Tensor:
        return kernels.grouped(x, strength, entries, first, lone, widest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, strength, entries, first, ctx.lone, ctx.widest = inputs
        saved = x, output, strength, entries, first
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, y, strength, entries, first = ctx.saved_tensors
        dx = _jacobian(x, y, v, strength, entries, first, ctx.lone, ctx.widest)
        dstrength = None
        if ctx.needs_input_grad[1]:
            dstrength = -(dx.double() * _pull(x, y, entries, first, ctx.lone)).sum(-1)
            dstrength = dstrength.sum_to_size(strength.shape).to(strength.dtype)
        return dx, dstrength, None, None, None, None


class ForwardGroupedmax(Groupedmax):
    """Groupedmax with its derivative in forward mode too."""

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dstrength: Tensor | None, *_: None) -> Tensor:
        x, y, strength, entries, first = ctx.saved_tensors
        v = torch.zeros_like(y) if dx is None else torch.where(y == 0, 0, dx)
        if dstrength is not None:
            v = v - (dstrength.unsqueeze(-1) * _pull(x, y, entries, first, ctx.lone)).to(v.dtype)
        return _jacobian(x, y, v, strength, entries, first, ctx.lone, ctx.widest)


def _jacobian(x: Tensor, y: Tensor, v: Tensor, *groups: Any) -> Tensor:
    """J v, with J symmetric; in differentiable torch if a second derivative may be taken."""
    if torch.is_grad_enabled():
        return reference.grouped_backward(x, y, v, *groups)
    return kernels.grouped_backward(x, y, v, *groups)


def _pull(x: Tensor, y: Tensor, entries: Tensor, first: Tensor, lone: int) -> Tensor:
    """The amount by which a strength lowers the scores of y: sqrt(|g|) y_g / norm(y_g), which J0 does not change."""
    members = reference.membership(entries, first)
    one = torch.ones((1,) * (x.dim() - 1), dtype=torch.float64, device=x.device)
    roots = reference.prices(x != -torch.inf, one, members, lone)
    return reference.units(y.double(), roots, members)[0] * (roots @ members.mT)


def _plain(groups: Any) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
    """The group of each entry, as integers; or the entries of each group, without empty groups."""
    if isinstance(groups, str) or not isinstance(groups, Iterable) or (isinstance(groups, Tensor) and not groups.dim()):
        raise TypeError(f"groups must be integers, one for each entry, or lists of entries; got {groups!r}")
    listed = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if listed and all(_whole(g) for g in listed):
        return tuple(int(g) for g in listed)
    found = []
    for g in listed:
        if isinstance(g, str) or not isinstance(g, Iterable):
            raise TypeError(f"groups must be integers, one for each entry, or lists of entries; got {g!r}")
        members = g.tolist() if isinstance(g, Tensor) else list(g)
        if not all(_whole(i) for i in members):
            raise TypeError(f"groups must be integers, one for each entry, or lists of entries; got {g!r}")
        if len(set(members)) < len(members) or any(i < 0 for i in members):
            raise ValueError(f"groups must name entries of at least 0, each once; got {members}")
        if members:
            found.append(tuple(int(i) for i in members))
    return tuple(found)


def _whole(x: Any) -> bool:
    return isinstance(x, Integral) and not isinstance(x, bool)


@lru_cache(maxsize=64)
def _listed(groups: tuple[Any, ...], n: int) -> tuple[tuple[int, ...], ...]:
    """The entries of each group, in rows of n."""
    if groups and _whole(groups[0]):
        if len(groups) != n:
            raise ValueError(f"groups must have {n} integers, one for each entry of x along dim; got {len(groups)}")
        return tuple(tuple(i for i, g in enumerate(groups) if g == name) for name in sorted(set(groups)))
    largest = max((i for g in groups for i in g), default=-1)
    if largest >= n:
        raise ValueError(f"groups must name entries below {n}, the size of x along dim; got {largest}")
    return groups


def _disjoint(groups: tuple[tuple[int, ...], ...]) -> bool:
    """True if no entry is in two groups."""
    return len({i for g in groups for i in g}) == sum(map(len, groups))


@keep_tensors(64)
def _order(groups: tuple[tuple[int, ...], ...], n: int, device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    """Entries by group, where groups begin, how many entries are in none, and the size of the largest group."""
    known = {i for g in groups for i in g}
    alone = [(i,) for i in range(n) if i not in known]
    every = [*groups, *alone]
    sizes = [len(g) for g in every]
    entries = torch.tensor([i for g in every for i in g], dtype=torch.int64, device=device)
    first = torch.tensor([0, *sizes], dtype=torch.int64, device=device).cumsum(0)
    return entries, first, len(alone), max(sizes, default=0)


@keep_tensors(32)
def _membership(groups: tuple[tuple[int, ...], ...], n: int, device: torch.device) -> Tensor:
    members = torch.zeros(n, max(len(groups), 1), dtype=torch.float64)
    for k, g in enumerate(groups):
        members[list(g), k] = 1
    return members.to(device)


def _overlapping(z: Tensor, keep: Tensor, members: Tensor, prices: Tensor) -> Tensor:
    """Groups that may share entries: alternating directions find the groups with weight, Newton's steps their weights.

    Each entry has a copy in each of its groups; copies shrink group by group, the entries are projected on the simplex.
    """
    with torch.no_grad():
        p, alive = _alternating(z.detach(), keep, members, prices.detach())
    for _ in range(4):
        p = _newton(p, z, alive, members, prices)
    return torch.where(alive, p, 0)


def _alternating(z: Tensor, keep: Tensor, members: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
    degree = members.sum(-1).amax()
    spare = degree - members.sum(-1)
    # the weight of the distance between entries and copies: with that of the largest price, rounds do not grow with it
    weight = prices.amax(-1, keepdim=True).clamp(min=1)
    shrunk = prices / weight
    forbidden = torch.where(keep, z, -torch.inf)
    p = Gini().argmax(forbidden)
    # copies (*batch, n, groups), and the sums of their differences from the entries
    copies = p.unsqueeze(-1) * members
    apart = torch.zeros_like(copies)
    # each row ends separately, so that the result does not depend on other rows
    going = torch.ones_like(p[..., :1], dtype=torch.bool)
    for _ in range(_ROUNDS):
        pulled = ((copies - apart) * members).sum(-1) + spare * p
        new = Gini().argmax(torch.where(keep, (z + weight * pulled) / (1 + weight * degree), -torch.inf))
        ahead = (new.unsqueeze(-1) + apart) * members
        norms = ahead.square().sum(-2).sqrt()
        share = torch.where(norms > shrunk, 1 - shrunk / torch.where(norms > 0, norms, 1), 0)
        closer = ahead * share.unsqueeze(-2)
        moved = torch.maximum((new - p).abs(), ((new.unsqueeze(-1) - closer) * members).abs().amax(-1))
        p = torch.where(going, new, p)
        copies = torch.where(going.unsqueeze(-1), closer, copies)
        apart = torch.where(going.unsqueeze(-1), (ahead - closer) * members, apart)
        # a row of NaN ends at once
        going = going & (moved.amax(-1, keepdim=True) > _CLOSE)
        if not bool(going.any()):
            break
    # an entry has weight if all of its groups have weight
    used = (copies.square().sum(-2).sqrt() > _NOTHING).double()
    lost = ((1 - used).unsqueeze(-2) * members).sum(-1) > 0
    return p, keep & ~lost & (p > _NOTHING)


def _newton(p: Tensor, z: Tensor, alive: Tensor, members: Tensor, prices: Tensor) -> Tensor:
    """A step towards  p + sum_g price p_g / norm(p_g) + tau = z,  sum p = 1  on the entries that have weight."""
    p = torch.where(alive, p, 0)
    squares = p.square() @ members
    norms = torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 1)
    rate = torch.where(squares > 0, prices / norms, 0)
    own = rate @ members.mT
    bent = members * p.unsqueeze(-1)
    curve = torch.diag_embed(1 + own) - (bent * (rate / norms.square()).unsqueeze(-2)) @ bent.mT
    both = alive.unsqueeze(-1) & alive.unsqueeze(-2)
    n = p.shape[-1]
    # the norm of a group is flat along its weights, and sum p = 1 does not let them move there: a multiple of the
    # constraint changes tau alone, and keeps digits
    steep = prices.detach().amax(-1, keepdim=True).unsqueeze(-1)
    curve = torch.where(both, curve + steep, torch.eye(n, dtype=p.dtype, device=p.device))
    left = torch.where(alive, z - p * (1 + own), 0)
    one = alive.to(p.dtype)
    answer = torch.linalg.solve(curve, torch.stack([left, one], -1))
    step, along = answer[..., 0], answer[..., 1]
    total = torch.where(alive, along, 0).sum(-1, keepdim=True)
    tau = (p.sum(-1, keepdim=True) + torch.where(alive, step, 0).sum(-1, keepdim=True) - 1) / torch.where(
        total > 0, total, 1
    )
    return torch.where(alive, p + step - tau * along, 0)
