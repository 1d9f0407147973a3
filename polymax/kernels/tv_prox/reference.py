"""Total-variation prox by level splitting: which entries of a run lie above its mean, and which below?

A run between fixed neighbours, pulled up or down by each, has the mean as its value if nothing in it wants to part.
Otherwise the cheapest division into entries above and below the mean, a chain with two labels, is a step towards the
solution: the two sides stay on their side. Split and repeat.

See: Hochbaum 2001 (the division by thresholds); Darbon and Sigelle 2006, Section 4.
"""

import torch
from torch import Tensor

from polymax.kernels.segment_mean.reference import run_mean


def tv_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> Tensor:
    n = x.shape[-1]
    if n == 0:
        return x.clone()
    # present entries first, in their order
    present, order = (x != -torch.inf).sort(dim=-1, descending=True, stable=True)
    y = x.to(torch.float32 if x.device.type == "mps" else torch.float64).gather(-1, order)
    top = y.amax(-1, keepdim=True)
    y = torch.where(present, y - top, 0)
    strength = strength.to(y.dtype).unsqueeze(-1)
    # beyond this the solution is constant
    width = strength.minimum(2 * y.abs().sum(-1, keepdim=True))
    noise = 8 * torch.finfo(y.dtype).eps * (width + y.abs().amax(-1, keepdim=True))

    run = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    # what the right neighbour of each entry pulls at it, once they are parted
    pull = torch.zeros_like(y)
    while True:
        pulled = y + pull - _shifted(pull)
        mean = run_mean(pulled, present, run)
        begins = run != _shifted(run, -1)
        ends = begins.roll(-1, -1)
        ends[..., -1] = True
        above = _above(torch.where(present, pulled - mean, 0), begins, ends, width, noise)
        cut = (above != above.roll(-1, -1)) & ~ends
        if not cut.any():
            break
        pull = torch.where(cut, torch.where(above, -width, width), pull)
        run = run + cut.cumsum(-1) - cut.long()
    z = torch.where(strength == 0, y, mean) + (0 if shifted else top)
    z = torch.empty_like(z).scatter(-1, order, torch.where(present, z, -torch.inf))
    bad = ~((x < torch.inf).all(-1, keepdim=True) & (strength >= 0))
    return torch.where(bad, torch.nan, z).to(x.dtype)


def _above(gain: Tensor, begins: Tensor, ends: Tensor, width: Tensor, noise: Tensor) -> Tensor:
    """Labels of each run that maximise sum gain over the entries labelled True, less width per change of label."""
    n = gain.shape[-1]
    width, noise = width.squeeze(-1), noise.squeeze(-1)
    # by how much True is better than False for entry i, the best labels before it given
    better = gain.clone()
    for i in range(1, n):
        before = better[..., i - 1].clamp(-width, width)
        better[..., i] += torch.where(begins[..., i], 0, before)
    above = better > 0
    for i in range(n - 2, -1, -1):
        sure = ends[..., i] | (better[..., i].abs() > width + noise)
        above[..., i] = torch.where(sure, above[..., i], above[..., i + 1])
    return above


def _shifted(x: Tensor, fill: int = 0) -> Tensor:
    """x one place to the right."""
    return torch.cat([torch.full_like(x[..., :1], fill), x[..., :-1]], -1)
