"""Group lasso on the simplex in torch: Newton's steps within an interval for the threshold, in float64.

The Jacobian is differentiable in the weights, the direction and the strength: its derivatives are the second
derivatives of the mapping.
"""

import torch
from torch import Tensor

from polymax.backend.widen import wide

# _HALVINGS: most steps to the threshold, as many as bisection needs for the digits of float64
# _CLOSEST: relative step at which the search ends
_HALVINGS, _CLOSEST = 100, 1e-15


def grouped(x: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int) -> Tensor:
    scores, n = x.double(), x.shape[-1]
    if n == 0:
        return wide(x).clone()
    keep = scores != -torch.inf
    good = (scores < torch.inf).all(-1, keepdim=True) & (strength.unsqueeze(-1) >= 0)
    top = scores.amax(-1, keepdim=True)
    z = torch.where(keep & good, scores - torch.where(top > -torch.inf, top, 0), -torch.inf)
    members = membership(entries, first).to(x.device)
    price = prices(keep, strength, members, lone)
    tau = _threshold(z, torch.where(good, price, 0), members)
    p = _shrunk(z, tau, torch.where(good, price, 0), members)[0]
    # for large prices weights are small differences with a common relative error, so normalise them
    total = p.sum(-1, keepdim=True)
    p = p / torch.where(total > 0, total, 1)
    return torch.where(good, p, torch.nan).to(wide(x).dtype)


def grouped_backward(
    x: Tensor, y: Tensor, v: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int
) -> Tensor:
    if x.shape[-1] == 0:
        return v.clone()
    members = membership(entries, first).to(x.device)
    unit, rate = units(y.double(), prices(x != -torch.inf, strength, members, lone), members)
    # a row of NaN stays NaN
    on = torch.where(y > 0, 1.0, y.double() * 0)
    one = _moved(on, unit, rate, members)
    moved = _moved(on * torch.where(y > 0, v.double(), 0), unit, rate, members)
    total, whole = moved.sum(-1, keepdim=True), one.sum(-1, keepdim=True)
    return (moved - one * (total / torch.where(whole == 0, 1, whole))).to(v.dtype)


def membership(entries: Tensor, first: Tensor) -> Tensor:
    """Return the matrix (n, groups) with 1 if an entry is in a group."""
    order, begins = (t[(0,) * (t.dim() - 1)] for t in (entries, first))
    group = torch.searchsorted(begins, torch.arange(len(order), device=order.device), right=True) - 1
    members = torch.zeros(len(order), len(begins) - 1, dtype=torch.float64, device=order.device)
    members[order, group] = 1
    return members


def prices(keep: Tensor, strength: Tensor, members: Tensor, lone: int) -> Tensor:
    """Return the price of each group, `(*batch, groups)`: 0 for the last `lone` groups, the entries of no group."""
    priced = torch.arange(members.shape[-1], device=members.device) < members.shape[-1] - lone
    return torch.where(priced, strength.double().unsqueeze(-1) * (keep.double() @ members).sqrt(), 0)


def units(y: Tensor, price: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Return y over the norms of its groups, and the share of a group's norm that its price takes; 0 without weight."""
    squares = y.square() @ members
    alive = squares > 0
    norms = torch.where(alive, torch.where(alive, squares, 1).sqrt(), 1)
    rate = torch.where(alive, price / (norms + price), 0)
    return y * (torch.where(alive, 1 / norms, 0) @ members.mT), rate


def _moved(v: Tensor, unit: Tensor, rate: Tensor, members: Tensor) -> Tensor:
    """Return J0 v, for v that is 0 off the support."""
    return v * ((1 - rate) @ members.mT) + unit * ((rate * ((unit * v) @ members)) @ members.mT)


def _shrunk(z: Tensor, tau: Tensor, price: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights at a threshold, and the rate at which their sum falls with it."""
    q = torch.where(z > tau, z - tau, 0)
    squares = q.square() @ members
    norms = torch.where(squares > 0, torch.where(squares > 0, squares, 1).sqrt(), 0)
    alive = norms > price
    safe = torch.where(alive, norms, 1)
    share = torch.where(alive, 1 - price / safe, 0)
    # the slope of q (1 - c / norm) along -1 is (1 - c / norm) count + c sum(q)^2 / norm^3
    count, total = (q > 0).double() @ members, q @ members
    slope = share * count + torch.where(alive, price * total.square() / safe**3, 0)
    return q * (share @ members.mT), slope.sum(-1, keepdim=True)


def _threshold(z: Tensor, price: Tensor, members: Tensor) -> Tensor:
    above = z.new_zeros(*z.shape[:-1], 1)
    # the group of the largest entry has a sum of at least its norm less its price
    below = above - 1 - price.amax(-1, keepdim=True)
    tau = (below + above) / 2
    for _ in range(_HALVINGS):
        p, slope = _shrunk(z, tau, price, members)
        more = p.sum(-1, keepdim=True) - 1
        over = more > 0
        below, above = torch.where(over, tau, below), torch.where(over, above, tau)
        step = tau + more / torch.where(slope > 0, slope, 1)
        inside = (slope > 0) & (step > below) & (step < above)
        close = (slope > 0) & ((step - tau).abs() <= _CLOSEST * (1 + tau.abs()))
        tau = torch.where(close, tau, torch.where(inside, step, (below + above) / 2))
        # a compiled program cannot branch on values
        if not torch.compiler.is_compiling() and bool(close.all()):
            break
    return tau
