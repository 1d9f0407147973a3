"""Capped simplex by bisection for the threshold, finished in closed form on the free entries."""

import torch
from torch import Tensor

from polymax.backend.widen import wide

LARGEST = torch.finfo(torch.float64).max
# distance of the threshold from its anchor beyond which a nearer score becomes the anchor
FAR = 1e3


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> Tensor:
    """Return y = clip(x - tau, lower, upper), or of exp(x - tau), with tau such that each row sums to total."""
    if x.shape[-1] == 0:
        return wide(x).clone()
    keep = x > -torch.inf
    alive = keep.any(-1, keepdim=True)
    # bounds reached far below the maximum need the digits of float64
    scores, low, high, total = (t.double() for t in (x, lower, upper, total.unsqueeze(-1)))
    low, high = torch.where(keep, low, 0), torch.where(keep, high, 0)
    anchor = torch.where(alive, scores.amax(-1, keepdim=True), 0)
    for _ in range(4):
        z = torch.where(keep, scores - anchor, 0).clamp(-LARGEST, LARGEST)
        tau = _threshold(z, low, high, total, keep, entropic)
        # near the threshold, float64 resolves the differences of scores to an anchor among them
        distance = torch.where(keep, (z - tau).abs(), torch.inf)
        # if differences of the largest scores are clipped, halves of them decide
        halved = (scores / 2 - anchor / 2 - tau / 2).abs()
        nearest = torch.where(distance == distance.amin(-1, keepdim=True), halved, torch.inf).argmin(-1, keepdim=True)
        far = tau.abs() > FAR
        if not far.any():
            break
        anchor = torch.where(far & alive, scores.gather(-1, nearest), anchor)
    y = _clipped(z, low, high, tau, entropic)
    # the free entries share the rest of the total
    free = keep & (y > low) & (y < high)
    rest = total - torch.where(free, 0, y).sum(-1, keepdim=True)
    if entropic:
        share = torch.softmax(torch.where(free, z, -torch.inf), -1) * rest
    else:
        top = torch.where(free, z, -torch.inf).amax(-1, keepdim=True)
        above = torch.where(free, z - top, 0)
        share = above + (rest - above.sum(-1, keepdim=True)) / free.sum(-1, keepdim=True).clamp(min=1)
    y = torch.where(free, share, torch.where(keep, y, 0))
    low_sum, high_sum = low.sum(-1, keepdim=True), high.sum(-1, keepdim=True)
    y = torch.where(total <= low_sum, low, torch.where(total >= high_sum, high, y))
    slack = 1e-6 * total.clamp(min=1)
    valid = (
        (low_sum <= total + slack) & (high_sum >= total - slack) & (total >= 0) & (x < torch.inf).all(-1, keepdim=True)
    )
    return torch.where(valid | ~alive & (x == -torch.inf).all(-1, keepdim=True), y, torch.nan).to(wide(x).dtype)


def capped_backward(y: Tensor, v: Tensor, lower: Tensor, upper: Tensor, entropic: bool) -> Tensor:
    """Return w (v - mean of v by w): w is 1, or y if entropic, at the entries strictly between their bounds, else 0."""
    point, direction = wide(y), wide(v)
    # a row of NaN stays NaN
    free = ~((y <= lower.to(y.dtype)) | (y >= upper.to(y.dtype)))
    w = torch.where(free, point if entropic else 0 * point + 1, 0 * point)
    mass = w.sum(-1, keepdim=True)
    mean = (w * direction).sum(-1, keepdim=True) / torch.where(mass == 0, 1, mass)
    return torch.where(w == 0, 0, w * (direction - mean)).to(v.dtype)


def _threshold(z: Tensor, low: Tensor, high: Tensor, total: Tensor, keep: Tensor, entropic: bool) -> Tensor:
    """Return the smallest threshold at which the weights sum to at most the total."""
    if entropic:
        # an upper or lower bound of 0 is met only at infinity; any threshold beyond the others is as good
        below, above = z - torch.log(high), (z - torch.log(low)).minimum(z.amax(-1, keepdim=True) + 800)
    else:
        below, above = z - high, z - low
    below = torch.where(keep, below, torch.inf).amin(-1, keepdim=True).clamp(-LARGEST, LARGEST)
    above = torch.where(keep, above, -torch.inf).amax(-1, keepdim=True).clamp(-LARGEST, LARGEST)
    for _ in range(64):
        tau = _middle(below, above)
        weights = torch.where(keep, _clipped(z, low, high, tau, entropic), 0)
        over = weights.sum(-1, keepdim=True) > total
        below, above = torch.where(over, tau, below), torch.where(over, above, tau)
    return above


def _clipped(z: Tensor, low: Tensor, high: Tensor, tau: Tensor, entropic: bool) -> Tensor:
    return (torch.exp(z - tau) if entropic else z - tau).clamp(min=low, max=high)


def _middle(a: Tensor, b: Tensor) -> Tensor:
    """Return the number halfway from a to b in the order of all float64 numbers: 64 halvings end every search."""
    # the bits of negative numbers count down
    p, q = (torch.where(t >= 0, t, t ^ 0x7FFFFFFFFFFFFFFF) for t in (a.view(torch.int64), b.view(torch.int64)))
    middle = (p >> 1) + (q >> 1)
    return torch.where(middle >= 0, middle, middle ^ 0x7FFFFFFFFFFFFFFF).view(torch.float64)
