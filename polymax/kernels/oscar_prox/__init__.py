"""OSCAR prox: the row nearest to x whose entries cluster, wherever they stand.

    z = argmin 1/2 ||z - x||^2 + strength/2 sum_{i<j} |z_i - z_j|

That is OSCAR's prox but for a constant, since |a - b| = 2 max(a, b) - a - b. In sorted order the penalty is linear: z
is the isotonic regression of x_(r) - strength ((m + 1) / 2 - r), r = 1..m, and has the mean of x. `order` is that
order: `order[r]` is the index of the r-th largest entry, ties by index, absent entries last. -inf entries are absent,
do not count in m, and z is -inf there. Clustered entries are bit-equal. If `shifted`, z is less by its own maximum,
without the rounding of that difference, and no lower than the lowest finite number. NaN or +inf in a row, or a strength
that is not >= 0, fills the row of z with NaN, and order is then the identity.

Shapes: x `(*batch, n)`, strength `(*batch,)`, or 1 in every dim; z like x, order like x in int32.
"""

import torch
from torch import Tensor

from polymax._dispatch import declare


def _fake(x: Tensor, strength: Tensor, shifted: bool = False) -> tuple[Tensor, Tensor]:
    z = torch.empty_like(x, memory_format=torch.contiguous_format)
    return z, torch.empty_like(z, dtype=torch.int32)


oscar_prox = declare(
    __name__, "oscar_prox(Tensor x, Tensor strength, bool shifted=False) -> (Tensor z, Tensor order)", _fake
)
