"""OSCAR prox: sort, isotonic regression, undo the sort."""

import torch
from torch import Tensor

from polymax.kernels.isotonic.reference import isotonic


def oscar_prox(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    # what follows cancels, so it is done in as many digits as the device has
    y = x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    strength = strength.to(y.dtype).unsqueeze(-1)
    bad = ~(x < torch.inf).all(-1, keepdim=True) | torch.isnan(strength)
    y = torch.where(bad, 0, y)
    ordered, order = y.sort(dim=-1, descending=True, stable=True)
    count = (ordered != -torch.inf).sum(-1, keepdim=True)
    rank = torch.arange(1, n + 1, device=x.device)
    lowered = ordered - strength * (count - rank).clamp(min=0)
    z = torch.empty_like(y).scatter(-1, order, isotonic(lowered))
    return torch.where(bad, torch.nan, z).to(x.dtype), order.to(torch.int32)
