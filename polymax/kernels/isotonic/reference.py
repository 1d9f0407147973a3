"""Isotonic regression by partition: split every run at the point at which its partial sums rise furthest above its
mean.

See: Spouge, Wan and Wilbur 2003.
"""

import torch
from torch import Tensor

from polymax.backend.widen import unit
from polymax.kernels.segment_mean.reference import run_mean


def isotonic(x: Tensor) -> Tensor:
    n = x.shape[-1]
    if n == 0:
        return x.clone()
    # the ends of runs depend on small differences of sums: use the widest type
    y = x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    top = y.amax(-1, keepdim=True)
    present = y != -torch.inf
    scale = unit(torch.where(present, y, top).amin(-1, keepdim=True), top)
    y = torch.where(present, y * scale - top * scale, 0)
    position = torch.arange(n, device=x.device).expand(x.shape)
    run = torch.zeros_like(position)
    while True:
        mean = run_mean(y, present, run)
        # relative to each run: elsewhere in the row, entries may be larger by any factor
        noise = 8 * n * torch.finfo(y.dtype).eps * run_mean(y.abs(), present, run)
        # 0 at the end of each run, except for rounding
        ends = torch.nn.functional.pad(run[..., 1:] != run[..., :-1], (0, 1), value=True)
        excess = torch.where(ends, 0, torch.where(present, y - mean, 0).cumsum(-1))
        best = torch.zeros_like(y).scatter_reduce(-1, run, excess, "amax").gather(-1, run)
        peak = torch.where(excess == best, position, n)
        peak = torch.full_like(run, n).scatter_reduce(-1, run, peak, "amin").gather(-1, run)
        cut = (position == peak) & (best > noise)
        if not cut.any():
            break
        run = run + cut.cumsum(-1) - cut.long()
    bad = ~(x < torch.inf).all(-1, keepdim=True)
    return torch.where(bad, torch.nan, torch.where(present, mean / scale + top, -torch.inf)).to(x.dtype)
