"""Segment mean by scattering v into its runs. It is linear and symmetric in v: its own derivative and transpose."""

import torch
from torch import Tensor

from polymax.backend.widen import wide


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None, y: Tensor | None = None) -> Tensor:
    if y is not None:
        support = y > 0
        mean = torch.where(support, wide(v), 0).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1)
        return segment_mean(z, torch.where(support, wide(v) - mean, 0), order).to(v.dtype)
    if order is not None:
        index = order.long()
        mean = segment_mean(z.gather(-1, index), v.gather(-1, index))
        return torch.zeros_like(mean).scatter(-1, index, mean)
    if z.shape[-1] == 0:
        return v.clone()
    present = z != -torch.inf
    position = torch.arange(z.shape[-1], device=z.device).expand(z.shape)
    # the last present entry before each entry, or -1
    before = torch.where(present, position, -1).cummax(-1).values.roll(1, -1)
    before[..., 0] = -1
    begins = present & ((before < 0) | (z != z.gather(-1, before.clamp(min=0))))
    # entries before the first run are absent, so that adding them to the first run changes nothing
    run = (begins.cumsum(-1) - 1).clamp(min=0)
    mean = run_mean(torch.where(present, wide(v), 0), present, run)
    bad = torch.isnan(z).any(-1, keepdim=True)
    return torch.where(bad, torch.nan, torch.where(present, mean, 0)).to(v.dtype)


def run_mean(v: Tensor, present: Tensor, run: Tensor) -> Tensor:
    """Return the mean of v over the present entries with the same run number; v is 0 at absent entries."""
    zero = torch.zeros_like(v)
    total = zero.scatter_add(-1, run, v)
    count = zero.scatter_add(-1, run, present.to(v.dtype))
    return (total / count.clamp(min=1)).gather(-1, run)
