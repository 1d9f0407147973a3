"""Fusedmax by its parts: the prox, the threshold, and runs of equal values."""

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.fusedmax import ABOVE, ABSENT, BAD, BELOW, FIRST, SAME, WITHOUT
from polymax.kernels.segment_mean.reference import run_mean
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.reference import threshold
from polymax.kernels.tv_prox.reference import tv_prox


def fusedmax(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[-1] == 0:
        return x.clone(), torch.empty_like(x, dtype=torch.int8)
    digits = torch.float32 if x.device.type == "mps" else torch.float64
    z = tv_prox(x.to(digits), strength.to(digits), True)
    y = threshold(z, 2.0, TSALLIS)
    present = z != -torch.inf
    last = torch.where(present, torch.arange(x.shape[-1], device=x.device), -1).cummax(-1).values.roll(1, -1)
    last[..., 0] = -1
    before = z.gather(-1, last.clamp(min=0))
    kind = torch.where(z == before, SAME, torch.where(z > before, ABOVE, BELOW))
    mark = torch.where(y > 0, torch.where(last < 0, FIRST, kind), torch.where(present, WITHOUT, ABSENT))
    bad = z.isnan().any(-1, keepdim=True)
    return y.to(x.dtype), torch.where(bad, BAD, mark).to(torch.int8)


def fusedmax_backward(mark: Tensor, v: Tensor) -> Tensor:
    if v.shape[-1] == 0:
        return v.clone()
    support = mark > WITHOUT
    mean = torch.where(support, wide(v), 0).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1)
    # entries before the first run have no weight, so that adding them to the first run changes nothing
    run = ((mark > SAME).long().cumsum(-1) - 1).clamp(min=0)
    averaged = run_mean(torch.where(support, wide(v) - mean, 0), support, run)
    averaged = torch.where(support, averaged, 0)
    return torch.where((mark == BAD).any(-1, keepdim=True), torch.nan, averaged).to(v.dtype)
