"""Isotonic regression: the non-increasing row nearest to x.

    z = argmin over z_1 >= z_2 >= ... of 1/2 ||z - x||^2

-inf entries are absent and may only stand at the end of a row; z is -inf there. Pooled entries are bit-equal.
NaN or +inf fills its row with NaN.

Shapes: x `(*batch, n)`; z like x.
"""

import torch
from torch import Tensor

from polymax._dispatch import declare


def _fake(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


isotonic = declare(__name__, "isotonic(Tensor x) -> Tensor", _fake)
