"""Oscarmax by its parts: the prox, the threshold, and clusters of equal values."""

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.oscarmax import BAD, BEGINS, HEAVY
from polymax.kernels.oscarmax.reference_prox import oscar_prox
from polymax.kernels.segment_mean.reference import run_mean
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.reference import threshold


def oscarmax(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[-1] == 0:
        return x.clone(), torch.empty_like(x, dtype=torch.int32)
    digits = torch.float32 if x.device.type == "mps" else torch.float64
    z, order = oscar_prox(x.to(digits), strength.to(digits), True)
    y = threshold(z, 2.0, TSALLIS)
    return y.to(x.dtype), coded(y, z, order)


def coded(y: Tensor, z: Tensor, order: Tensor) -> Tensor:
    """Return the code of weights y and prox z, in the order of falling scores."""
    index = order.long()
    level, heavy = z.gather(-1, index), y.gather(-1, index) > 0
    begins = torch.ones_like(heavy)
    begins[..., 1:] = level[..., 1:] != level[..., :-1]
    code = 4 * index + HEAVY * heavy + BEGINS * (begins & heavy)
    return torch.where(z.isnan().any(-1, keepdim=True), BAD, code).to(torch.int32)


def oscarmax_backward(code: Tensor, v: Tensor) -> Tensor:
    if v.shape[-1] == 0:
        return v.clone()
    bad = (code == BAD).any(-1, keepdim=True)
    index = torch.where(bad, torch.arange(v.shape[-1], device=v.device), code >> 2).long()
    heavy, begins = (code & HEAVY) != 0, (code & BEGINS) != 0
    ordered = wide(v).gather(-1, index)
    mean = torch.where(heavy, ordered, 0).sum(-1, keepdim=True) / heavy.sum(-1, keepdim=True).clamp(min=1)
    run = (begins.long().cumsum(-1) - 1).clamp(min=0)
    averaged = torch.where(heavy, run_mean(torch.where(heavy, ordered - mean, 0), heavy, run), 0)
    back = torch.zeros_like(averaged).scatter(-1, index, averaged)
    return torch.where(bad, torch.nan, back).to(v.dtype)
