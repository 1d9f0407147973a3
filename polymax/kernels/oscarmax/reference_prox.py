"""OSCAR prox, the row nearest to x whose entries cluster anywhere: sort, isotonic regression, undo the sort.

    z = argmin 1/2 ||z - x||^2 + strength/2 sum_{i<j} |z_i - z_j|

This is OSCAR's prox up to a constant, since |a - b| = 2 max(a, b) - a - b. In sorted order the penalty is linear: z is
the isotonic regression of x_(r) - strength ((m + 1) / 2 - r), r = 1..m, and has the mean of x. `order` is the sorted
order: `order[r]` is the index of the r-th largest entry, ties by index, absent entries last. -inf entries are absent
and do not count in m; their z is -inf. Clustered entries are bit-equal. If `shifted`, z is less by its own maximum,
without the rounding of that difference, and no lower than the lowest finite number. NaN or +inf in a row, or a strength
that is not >= 0, fills the row of z with NaN, and order is then the identity.

Shapes: x `(*batch, n)`, strength `(*batch,)`, or 1 in every dim; z like x, order like x in int32.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from polymax.backend.widen import unit, wide
from polymax.kernels.isotonic.reference import isotonic


def oscar_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> tuple[Tensor, Tensor]:
    return prox_by(isotonic, x, strength, shifted)


def prox_by(
    regression: Callable[[Tensor], Tensor], x: Tensor, strength: Tensor, shifted: bool
) -> tuple[Tensor, Tensor]:
    """Return the prox and the order, with the isotonic regression given by the caller."""
    n = x.shape[-1]
    if n == 0:
        return x.clone(), torch.empty_like(x, dtype=torch.int32)
    bad = ~((x < torch.inf).all(-1, keepdim=True) & (strength.unsqueeze(-1) >= 0))
    ordered, order = torch.where(bad, 0, wide(x)).sort(dim=-1, descending=True, stable=True)
    # later steps cancel digits: use the widest type of the device
    ordered = ordered.to(torch.float32 if x.device.type == "mps" else torch.float64)
    strength = strength.to(ordered.dtype).unsqueeze(-1)
    present = ordered != -torch.inf
    top = torch.where(present, ordered, -torch.inf)[..., :1].clamp(min=torch.finfo(ordered.dtype).min)
    low = torch.where(present, ordered, top).amin(-1, keepdim=True)
    scale = unit(low, top)
    # beyond this all entries are one cluster
    width = (strength * scale).minimum(top * scale - low * scale)
    rank = torch.arange(1, n + 1, device=x.device)
    lowered = ordered * scale - top * scale - width * ((present.sum(-1, keepdim=True) + 1) / 2 - rank)
    regressed = regression(lowered)
    regressed = (regressed - regressed[..., :1]) / scale if shifted else regressed / scale + top
    # a shifted entry may be lower than any finite number
    regressed = torch.where(present, regressed.clamp(min=torch.finfo(x.dtype).min), -torch.inf)
    z = torch.empty_like(ordered).scatter(-1, order, regressed)
    return torch.where(bad, torch.nan, z).to(x.dtype), order.to(torch.int32)
