"""Entropic isotonic regression by its formula: v_i is the least, over l <= i, of the largest value of runs l..r."""

import torch
from torch import Tensor


def isotonic_kl(s: Tensor, w: Tensor) -> Tensor:
    n = s.shape[-1]
    dtype = torch.float32 if s.device.type == "mps" else torch.float64
    bad = ~(torch.isfinite(s) & torch.isfinite(w)).all(-1, keepdim=True)
    s, w = (torch.where(bad, 0, t.to(dtype)) for t in (s, w))
    v = torch.full_like(s, torch.inf)
    for first in range(n):
        # the value of the runs that begin here, by their last entry
        value = s[..., first:].logcumsumexp(-1) - w[..., first:].logcumsumexp(-1)
        largest = value.flip(-1).cummax(-1).values.flip(-1)
        v[..., first:] = v[..., first:].minimum(largest)
    begins = torch.nn.functional.pad(v[..., 1:] != v[..., :-1], (1, 0)) if n else torch.zeros_like(v)
    return torch.where(bad, 0, begins.long().cumsum(-1))
