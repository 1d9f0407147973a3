"""Capped simplex by bisection for the threshold, finished in closed form on the free entries."""

import torch
from torch import Tensor


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: float, entropic: bool) -> Tensor:
    """y = clip(x - tau, lower, upper), or of exp(x - tau), with tau such that each row sums to total."""
    if x.shape[-1] == 0:
        return x.clone()
    keep = x > -torch.inf
    # bounds reached far below the maximum need the digits
    z, low, high = (t.double() for t in (x, lower, upper))
    top = torch.where(keep.any(-1, keepdim=True), z.amax(-1, keepdim=True), 0)
    z = torch.where(keep, z - top, 0)
    low, high = torch.where(keep, low, 0), torch.where(keep, high, 0)

    def at(tau: Tensor) -> Tensor:
        inner = torch.exp(z - tau) if entropic else z - tau
        return torch.where(keep, inner.clamp(min=low, max=high), 0)

    if entropic:
        spare = total - low.sum(-1, keepdim=True)
        below = (z - torch.log(high)).masked_fill(~keep, torch.inf).amin(-1, keepdim=True)
        above = torch.logsumexp(z.masked_fill(~keep, -torch.inf), -1, keepdim=True) - torch.log(spare)
        # an upper bound of 0, or no mass to spare above the lower bounds, asks for +inf: any large threshold does
        below, above = below.clamp(max=1e4), above.clamp(max=1e4)
    else:
        below = (z - high).masked_fill(~keep, torch.inf).amin(-1, keepdim=True)
        above = (z - low).masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    for _ in range(100):
        tau = (below + above) / 2
        over = at(tau).sum(-1, keepdim=True) > total
        below, above = torch.where(over, tau, below), torch.where(over, above, tau)
    y = at(above)
    # the free entries share what the bounds leave
    free = keep & (y > low) & (y < high)
    rest = total - torch.where(free, 0, y).sum(-1, keepdim=True)
    if entropic:
        y = torch.where(free, torch.softmax(z.masked_fill(~free, -torch.inf), -1) * rest, y)
    else:
        tau = (torch.where(free, z, 0).sum(-1, keepdim=True) - rest) / free.sum(-1, keepdim=True)
        y = torch.where(free, z - tau, y)
    slack = 1e-6 * max(total, 1.0)
    feasible = (low.sum(-1, keepdim=True) <= total + slack) & (high.sum(-1, keepdim=True) >= total - slack)
    valid = (feasible | ~keep.any(-1, keepdim=True)) & ~torch.isnan(z).any(-1, keepdim=True)
    return torch.where(valid, y, torch.nan).to(x.dtype)
