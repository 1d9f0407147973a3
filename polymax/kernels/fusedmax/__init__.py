"""Fusedmax: sparsemax of the total-variation prox, and its Jacobian, without the prox in between.

    y = argmax over the simplex of <x, p> - 1/2 ||p||^2 - strength sum |p_{i+1} - p_i|

`mark` records how the row is divided, on which alone the Jacobian depends. Entry by entry it is ABSENT (-inf, whose
neighbours are adjacent to each other), WITHOUT weight, or for an entry with weight its relation to the present entry
before it: SAME value, ABOVE it, BELOW it, or FIRST if there is none. Every mark of a bad row is BAD: NaN or +inf among
its scores, or a strength that is not >= 0; its weights and gradients are NaN.

`fusedmax_backward` centres v on the support, averages it over the runs of one value, and is 0 outside the support. It
is symmetric and linear in v.

Shapes: x, y, v `(*batch, n)`, strength `(*batch,)` or 1 in every dim, mark like x in int8.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

ABSENT, WITHOUT, SAME, ABOVE, BELOW, FIRST, BAD = -1, 0, 1, 2, 3, 4, 5


def _fake(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, torch.empty_like(y, dtype=torch.int8)


fusedmax = declare(__name__, "fusedmax(Tensor x, Tensor strength) -> (Tensor y, Tensor mark)", _fake)
fusedmax_backward = declare(__name__, "fusedmax_backward(Tensor mark, Tensor v) -> Tensor", like_argument(1))
