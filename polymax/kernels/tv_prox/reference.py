"""Total-variation prox by level splitting: divide each run into entries above and below its mean.

A run between fixed neighbours, pulled up or down by each, has the mean as its value if no division of it lowers the
cost. Otherwise the cheapest division into entries above and below the mean, a chain with two labels, is a step towards
the solution: in the solution, both sides stay on their side. Split and repeat.

See: Hochbaum 2001 (the division by thresholds); Darbon and Sigelle 2006, Section 4.
"""

import torch
from torch import Tensor

from polymax.backend.widen import unit
from polymax.kernels.segment_mean.reference import run_mean


def tv_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> Tensor:
    n = x.shape[-1]
    if n == 0:
        return x.clone()
    # present entries first, in their order
    present, order = (x != -torch.inf).sort(dim=-1, descending=True, stable=True)
    y = x.to(torch.float32 if x.device.type == "mps" else torch.float64).gather(-1, order)
    top = y.amax(-1, keepdim=True)
    scale = unit(torch.where(present, y, top).amin(-1, keepdim=True), top)
    y = torch.where(present, y * scale - top * scale, 0)
    strength = strength.to(y.dtype).unsqueeze(-1) * scale
    # beyond this the solution is constant
    width = strength.minimum(2 * y.abs().sum(-1, keepdim=True))

    run = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    # the pull of the right neighbour on each entry, after a split between both
    pull = torch.zeros_like(y)
    while True:
        pulled = y + pull - _shifted(pull)
        mean = run_mean(pulled, present, run)
        begins = run != _shifted(run, -1)
        ends = begins.roll(-1, -1)
        ends[..., -1] = True
        gain = torch.where(present, pulled - mean, 0)
        # relative to each run: elsewhere in the row, entries may be larger by any factor
        size = torch.zeros_like(y).scatter_reduce(-1, run, gain.abs(), "amax").gather(-1, run)
        noise = 8 * torch.finfo(y.dtype).eps * (width + mean.abs() + size)
        above = _above(gain, begins, ends, width, noise)
        cut = (above != above.roll(-1, -1)) & ~ends
        if not cut.any():
            break
        pull = torch.where(cut, torch.where(above, -width, width), pull)
        run = run + cut.cumsum(-1) - cut.long()
    z = torch.where(present, torch.where(strength == 0, y, mean), -torch.inf)
    z = (z - z.amax(-1, keepdim=True)) / scale if shifted else z / scale + top
    # a shifted entry may be lower than any finite number
    z = z.clamp(min=torch.finfo(x.dtype).min)
    z = torch.empty_like(z).scatter(-1, order, torch.where(present, z, -torch.inf))
    bad = ~((x < torch.inf).all(-1, keepdim=True) & (strength >= 0))
    return torch.where(bad, torch.nan, z).to(x.dtype)


def _above(gain: Tensor, begins: Tensor, ends: Tensor, width: Tensor, noise: Tensor) -> Tensor:
    """Return labels of each run that maximise sum gain over the entries labelled True, less width per change of
    label.
    """
    n = gain.shape[-1]
    width = width.squeeze(-1)
    # advantage of True over False for entry i, given the best labels before it
    better = gain.clone()
    for i in range(1, n):
        before = better[..., i - 1].clamp(-width, width)
        better[..., i] += torch.where(begins[..., i], 0, before)
    above = better > 0
    for i in range(n - 2, -1, -1):
        sure = ends[..., i] | (better[..., i].abs() > width + noise[..., i])
        above[..., i] = torch.where(sure, above[..., i], above[..., i + 1])
    return above


def _shifted(x: Tensor, fill: int = 0) -> Tensor:
    """Return x shifted by one place to the right."""
    return torch.cat([torch.full_like(x[..., :1], fill), x[..., :-1]], -1)
