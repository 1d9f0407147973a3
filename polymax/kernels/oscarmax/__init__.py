"""Oscarmax: sparsemax of the OSCAR prox, and its Jacobian, without the prox in between.

    y = argmax over the simplex of <x, p> - 1/2 ||p||^2 - strength sum_{i<j} max(p_i, p_j)

`code` records how the row is divided, on which alone the Jacobian depends. It lists the entries of a row so that
entries of equal weight are adjacent and heavier entries come first: 4 times the index, plus HEAVY for an entry with
weight, plus BEGINS for the first entry of its weight. Every code of a bad row is BAD: NaN or +inf among its scores, or
a strength that is not >= 0; its weights and gradients are NaN.

`oscarmax_backward` centres v on the support, averages it over entries of one weight, and is 0 outside the support. It
is symmetric and linear in v.

Shapes: x, y, v `(*batch, n)`, strength `(*batch,)` or 1 in every dim, code like x in int32.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

HEAVY, BEGINS, BAD = 1, 2, -1


def _fake(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, torch.empty_like(y, dtype=torch.int32)


oscarmax = declare(__name__, "oscarmax(Tensor x, Tensor strength) -> (Tensor y, Tensor code)", _fake)
oscarmax_backward = declare(__name__, "oscarmax_backward(Tensor code, Tensor v) -> Tensor", like_argument(1))
