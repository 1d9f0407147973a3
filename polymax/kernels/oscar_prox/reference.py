"""OSCAR prox: sort, isotonic regression, undo the sort."""

import torch
from torch import Tensor

from polymax.kernels.isotonic.reference import isotonic
from polymax.kernels.widen import unit


def oscar_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    if n == 0:
        return x.clone(), torch.empty_like(x, dtype=torch.int32)
    # what follows cancels, so it is done in as many digits as the device has
    y = x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    strength = strength.to(y.dtype).unsqueeze(-1)
    bad = ~(x < torch.inf).all(-1, keepdim=True) | ~(strength >= 0)
    y = torch.where(bad, 0, y)
    ordered, order = y.sort(dim=-1, descending=True, stable=True)
    present = ordered != -torch.inf
    top = torch.where(present, ordered, -torch.inf)[..., :1].clamp(min=torch.finfo(y.dtype).min)
    low = torch.where(present, ordered, top).amin(-1, keepdim=True)
    scale = unit(low, top)
    # beyond this all entries are one cluster
    width = (strength * scale).minimum(top * scale - low * scale)
    rank = torch.arange(1, n + 1, device=x.device)
    lowered = ordered * scale - top * scale - width * ((present.sum(-1, keepdim=True) + 1) / 2 - rank)
    regressed = isotonic(lowered)
    regressed = (regressed - regressed[..., :1]) / scale if shifted else regressed / scale + top
    # a shifted entry may be lower than any finite number
    regressed = torch.where(present, regressed.clamp(min=torch.finfo(x.dtype).min), -torch.inf)
    z = torch.empty_like(y).scatter(-1, order, regressed)
    return torch.where(bad, torch.nan, z).to(x.dtype), order.to(torch.int32)
