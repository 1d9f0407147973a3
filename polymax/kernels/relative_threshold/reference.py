"""Threshold relative to a reference, by Newton's steps within brackets, in float64."""

import torch
from torch import Tensor

# halving the logarithm of the widest bracket of float64 until it is rounding takes 63 steps
HALVINGS = 64


def relative_threshold(x: Tensor, q: Tensor, alphas: Tensor) -> Tensor:
    """Return the weights for each row of x.

    With u = 1 + (alpha - 1) (x - max + t) the root t solves sum q u_+^r = 1, r = 1 / (alpha - 1).
    """
    if x.shape[-1] == 0:
        return x.clone()
    return solve(x, q, alphas)[0].to(x.dtype)


def solve(x: Tensor, q: Tensor, alphas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights (*batch, n), the roots t and the maxima (*batch, 1), in float64 where the device has it."""
    scores, weights = (t if t.device.type == "mps" else t.double() for t in (x, q))
    keep = usable(scores, weights)
    broken = ((weights != 0) & (scores.isnan() | (scores == torch.inf))) | weights.isnan()
    broken = broken.any(-1, keepdim=True)
    top = torch.where(keep & scores.isfinite(), scores, -torch.inf).amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    z = torch.where(keep & scores.isfinite(), scores - top, 0)
    w = torch.where(keep, weights, 0)
    a = alphas.to(z.dtype).unsqueeze(-1)
    # any other alpha keeps the formulas of the root finite
    t = _root(z, w, keep, torch.where(a == 1, 2.0, a))
    alive = keep.any(-1, keepdim=True)
    t = torch.where(a == 1, -torch.log(torch.where(alive, (w * torch.exp(z)).sum(-1, keepdim=True), 1)), t)
    t = torch.where(broken, torch.nan, t)
    y = weights_at(z, w, t, a)
    return y / torch.where(alive, y.sum(-1, keepdim=True), 1), t, top


def usable(scores: Tensor, weights: Tensor) -> Tensor:
    """Return the entries that may get weight."""
    return (scores > -torch.inf) & (weights > 0)


def weights_at(z: Tensor, w: Tensor, t: Tensor, a: Tensor) -> Tensor:
    """Return w (1 + (a - 1) (z + t))_+ ^ (1 / (a - 1)), or w exp(z + t) for a = 1; NaN where t is NaN."""
    b = torch.where(a == 1, 1.0, a - 1)
    u = b * (z + t)
    inside = (w > 0) & (~(u <= -1) | (a == 1))
    power = torch.log1p(torch.where(inside & (a != 1), u, 0)) / b
    found = torch.where(inside, w * torch.exp(torch.where(a == 1, z + t, power)), 0)
    return torch.where(t.isnan(), torch.nan, found)


def _root(z: Tensor, w: Tensor, keep: Tensor, a: Tensor) -> Tensor:
    """Return the root t of each row, as a column; z is at most 0, and w is 0 outside of `keep`."""
    b = a - 1
    eps = torch.finfo(z.dtype).eps
    # an entry alone, and all entries at the top, bound the root from the two sides
    alone = torch.expm1(-b * torch.log(torch.where(keep, w, 1))) / b - z
    alive = keep.any(-1, keepdim=True)
    high = torch.where(keep, alone, torch.inf).amin(-1, keepdim=True)
    low = torch.expm1(-b * torch.log(w.sum(-1, keepdim=True))) / b
    low, high = torch.where(alive, low, 0), torch.where(alive, high, 0)
    # for alpha <= 2 the r-norm is convex or concave, and Newton's steps stay on this side
    t = high
    steep = b > 1
    # a row that has its root keeps it: further steps, which other rows need, could change its last bits
    settled = ~alive
    for step in range(3 * HALVINGS):
        u = b * (z + t)
        inside = keep & (u > -1)
        log = torch.log1p(torch.where(inside, u, 0))
        # sums of w u^(r - 1) and of w u^r
        d = torch.where(inside, w * torch.exp(log * (1 / b - 1)), 0)
        slope, total = d.sum(-1, keepdim=True), (d * torch.exp(log)).sum(-1, keepdim=True)
        above = total >= 1
        high, low = torch.where(above, t, high), torch.where(above, low, t)
        newton = t + total * torch.expm1(-b * torch.log(total)) / (b * slope)
        middle = torch.expm1((torch.log1p(b * low) + torch.log1p(b * high)) / 2) / b
        room = 1e-12 * (low.abs() + high.abs())
        usable = (newton >= low - room) & (newton <= high + room) & ~(steep & (step % 3 == 2))
        new = torch.where(usable, newton.clamp(low, high), middle)
        small = 4 * eps * (1 + t.abs())
        done = (high - low <= small) | (usable & ~steep & ((new - t).abs() <= small))
        t = torch.where(settled | (done & ~usable), t, new)
        settled = settled | done
        if (z.is_cpu or step % 8 == 7) and bool(settled.all()):
            break
    return t
