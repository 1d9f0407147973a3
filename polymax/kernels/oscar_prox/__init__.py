"""OSCAR prox: the row nearest to x whose entries cluster, wherever they stand.

    z = argmin 1/2 ||z - x||^2 + strength sum_{i<j} max(z_i, z_j)

In sorted order the penalty is linear: z is the isotonic regression of x_(r) - strength (m - r), r = 1..m. `order` is
that order: `order[r]` is the index of the r-th largest entry, ties by index, absent entries last. -inf entries are
absent, do not count in m, and z is -inf there. Clustered entries are bit-equal. NaN or +inf in a row, or a NaN
strength, fills the row of z with NaN, and order is then the identity.

Shapes: x `(*batch, n)`, strength `(*batch,)`; z like x, order like x in int32.
"""

import torch
from torch import Tensor

from polymax._dispatch import declare


def _fake(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.empty_like(x, memory_format=torch.contiguous_format)
    return z, torch.empty_like(z, dtype=torch.int32)


oscar_prox = declare(__name__, "oscar_prox(Tensor x, Tensor strength) -> (Tensor z, Tensor order)", _fake)
