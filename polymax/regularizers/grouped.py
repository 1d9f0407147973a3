"""Group lasso on the simplex: weights of a group shrink together, and whole groups become exactly 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from polymax import _check
from polymax.regularizers.base import Regularizer
from polymax.regularizers.entropies import Gini, positive

# most steps to the threshold: as many as halvings of its interval need for the digits of float64; and when it is there
_HALVINGS, _CLOSEST = 60, 1e-13
# rounds of the alternating directions for groups that overlap, when they end, and what counts as no weight
_ROUNDS, _CLOSE, _NOTHING = 5000, 1e-11, 1e-8


@dataclass(frozen=True)
class Grouped(Regularizer):
    """Gini plus the norms of groups of entries, each times the root of its size. The mapping is groupedmax.

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
        object.__setattr__(self, "groups", _listed(self.groups))
        _check.number(self.strength, "strength", "at least 0", lambda s: s >= 0)
        positive(self.gamma, "gamma")

    def argmax_rows(self, x: Tensor) -> Tensor:
        members = self._members(x)
        scores = x.double()
        keep = scores != -torch.inf
        alive = keep.any(-1, keepdim=True)
        strength = self.strength.double() if isinstance(self.strength, Tensor) else self.strength
        prices = strength * (keep.double() @ members).sqrt()
        top = torch.where(alive, torch.where(keep, scores.detach(), -torch.inf).amax(-1, keepdim=True), 0)
        z = torch.where(keep, scores - top, 0)
        if bool((members.sum(-1) <= 1).all()):
            p = _apart(z, keep, members, prices)
        else:
            p = _overlapping(z, keep, members, prices)
        # a row with a NaN is NaN
        bad = scores.isnan().any(-1, keepdim=True)
        # by the factor, derivatives are NaN in its row, and in no other
        p = torch.where(bad, scores * torch.where(bad, torch.nan, 0.0), p)
        return torch.where(alive & keep, p, 0).to(x.dtype if x.dtype.itemsize >= 4 else torch.float32).to(x.dtype)

    def omega_rows(self, p: Tensor, keep: Tensor | None = None) -> Tensor:
        members = self._members(p)
        kept = torch.ones_like(p, dtype=torch.bool) if keep is None else keep
        sizes = kept.double() @ members
        squares = p.double().square() @ members
        # the norm of a group without weight has no slope that counts
        norms = torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)
        strength = self.strength.double() if isinstance(self.strength, Tensor) else self.strength
        penalty = (strength * (sizes.sqrt() * norms)).sum(-1)
        return ((p.double().square().sum(-1) - 1) / 2 + penalty).to(p.dtype)

    def _members(self, x: Tensor) -> Tensor:
        """(n, groups), 1 where an entry is in a group."""
        groups: tuple[tuple[int, ...], ...] = self.groups  # type: ignore[assignment]
        n = x.shape[-1]
        largest = max((i for g in groups for i in g), default=-1)
        if largest >= n:
            raise ValueError(f"groups must name entries below {n}, the size of x along dim; got {largest}")
        return _membership(groups, n).to(x.device)


def _listed(groups: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Groups as tuples of their entries."""
    plain = groups.tolist() if isinstance(groups, Tensor) else [_plain(g) for g in groups]
    if all(isinstance(g, int) and not isinstance(g, bool) for g in plain):
        names = sorted(set(plain))
        return tuple(tuple(i for i, g in enumerate(plain) if g == name) for name in names)
    found = []
    for g in plain:
        if isinstance(g, str) or not isinstance(g, Sequence) or not all(isinstance(i, int) for i in g):
            raise TypeError(f"groups must be integers, one for each entry, or lists of entries; got {g!r}")
        if len(set(g)) < len(g) or any(i < 0 for i in g):
            raise ValueError(f"groups must name entries of at least 0, each once; got {list(g)}")
        if g:
            found.append(tuple(g))
    return tuple(found)


def _plain(group: Tensor | Sequence[int] | int) -> object:
    return group.tolist() if isinstance(group, Tensor) else group


@lru_cache(maxsize=32)
def _membership(groups: tuple[tuple[int, ...], ...], n: int) -> Tensor:
    members = torch.zeros(n, max(len(groups), 1), dtype=torch.float64)
    for k, g in enumerate(groups):
        members[list(g), k] = 1
    return members


def _shrunk(z: Tensor, tau: Tensor, keep: Tensor, members: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
    """Weights at a threshold, and how fast their sum falls with it.

    q = (z - tau)_+        p_g = q_g (1 - price / norm(q_g))_+
    """
    q = torch.where(keep & (z > tau), z - tau, 0)
    squares = q.square() @ members
    norms = torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)
    alive = norms > prices
    safe = torch.where(alive, norms, 1)
    share = torch.where(alive, 1 - prices / safe, 0)
    lone = 1 - members.sum(-1)
    p = q * (share @ members.mT + lone)
    # the slope of q (1 - c / norm) along -1 is (1 - c / norm) count + c sum(q)^2 / norm^3
    count, total = (q > 0).double() @ members, q @ members
    slope = share * count + torch.where(alive, prices * total.square() / safe**3, 0)
    return p, (slope.sum(-1, keepdim=True) + ((q > 0) * lone).sum(-1, keepdim=True))


def _apart(z: Tensor, keep: Tensor, members: Tensor, prices: Tensor) -> Tensor:
    """Groups that share no entry: one threshold, by Newton's steps within an interval, and by two for autograd.

    Two steps from the root have the first and second derivatives of the root.
    """
    with torch.no_grad():
        fixed, cost = z.detach(), prices.detach()
        above = fixed.new_zeros(*z.shape[:-1], 1)
        # the largest entry's group has a sum of at least its norm less its price
        below = above - 1 - cost.amax(-1, keepdim=True) if cost.shape[-1] else above - 1
        tau = (below + above) / 2
        for _ in range(_HALVINGS):
            p, slope = _shrunk(fixed, tau, keep, members, cost)
            more = p.sum(-1, keepdim=True) - 1
            over = more > 0
            below, above = torch.where(over, tau, below), torch.where(over, above, tau)
            step = tau + more / torch.where(slope > 0, slope, 1)
            inside = (slope > 0) & (step > below) & (step < above)
            close = (slope > 0) & ((step - tau).abs() <= _CLOSEST)
            tau = torch.where(close, tau, torch.where(inside, step, (below + above) / 2))
            # a program that is compiled cannot ask
            if not torch.compiler.is_compiling() and bool(close.all()):
                break
    for _ in range(2):
        p, slope = _shrunk(z, tau, keep, members, prices)
        tau = tau + (p.sum(-1, keepdim=True) - 1) / torch.where(slope > 0, slope, 1)
    return _shrunk(z, tau, keep, members, prices)[0]


def _overlapping(z: Tensor, keep: Tensor, members: Tensor, prices: Tensor) -> Tensor:
    """Groups that may share entries: alternating directions find which have weight, Newton's steps the weights.

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
    forbidden = torch.where(keep, z, -torch.inf)
    p = Gini().argmax(forbidden)
    # copies (*batch, n, groups), and by how much they have differed from the entries
    copies = p.unsqueeze(-1) * members
    apart = torch.zeros_like(copies)
    for _ in range(_ROUNDS):
        pulled = ((copies - apart) * members).sum(-1) + spare * p
        new = Gini().argmax(torch.where(keep, (z + pulled) / (1 + degree), -torch.inf))
        ahead = (new.unsqueeze(-1) + apart) * members
        norms = ahead.square().sum(-2).sqrt()
        share = torch.where(norms > prices, 1 - prices / torch.where(norms > 0, norms, 1), 0)
        copies = ahead * share.unsqueeze(-2)
        apart = (ahead - copies) * members
        moved = torch.maximum((new - p).abs().amax(), ((new.unsqueeze(-1) - copies) * members).abs().amax())
        p = new
        if not bool(moved > _CLOSE):
            break
    # an entry has weight where all of its groups have
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
    curve = torch.where(both, curve, torch.eye(n, dtype=p.dtype, device=p.device))
    left = torch.where(alive, z - p * (1 + own), 0)
    one = alive.to(p.dtype)
    answer = torch.linalg.solve(curve, torch.stack([left, one], -1))
    step, along = answer[..., 0], answer[..., 1]
    total = torch.where(alive, along, 0).sum(-1, keepdim=True)
    tau = (p.sum(-1, keepdim=True) + torch.where(alive, step, 0).sum(-1, keepdim=True) - 1) / torch.where(
        total > 0, total, 1
    )
    return torch.where(alive, p + step - tau * along, 0)
