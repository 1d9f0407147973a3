"""Capped-simplex operator: argmax of <x, p> - Omega(p) over lower <= p <= upper, sum p = total.

`entropic` chooses Omega: sum p log p (True) or sum p^2 / 2 (False). -inf scores get 0 and lose their bounds; a row of
-inf gets zeros; a NaN, or bounds that cannot sum to the total, fills its row with NaN.

Shapes: x, lower, upper `(*batch, n)`, total `(*batch,)`; the result like x.
"""

import torch
from torch import Tensor

from polymax._dispatch import declare


def _fake(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


capped = declare(__name__, "capped(Tensor x, Tensor lower, Tensor upper, Tensor total, bool entropic) -> Tensor", _fake)
