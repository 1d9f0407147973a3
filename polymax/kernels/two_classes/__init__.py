"""Log-probabilities of two classes of each row: the blank, equal for all rows, and a class given for the row.

    total = log sum over v of exp(x[v])        blank = x[blank] - total        label = x[at] - total

A row of -inf alone has no probabilities: all three are -inf. The backward pass is a product with the Jacobian,

    g[v] = g_blank (v = blank) + g_label (v = at) - (g_blank + g_label) exp(x[v] - total)

whose result has the dtype of x. Other results are in float32 at least.

Shapes: x (*batch, n), at, total and both g (*batch,)
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument


def _results(x: Tensor, at: Tensor, blank: int) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    first, second, third = (x.new_empty(x.shape[:-1], dtype=dtype) for _ in range(3))
    return first, second, third


two_classes = declare(__name__, "two_classes(Tensor x, Tensor at, int blank) -> (Tensor, Tensor, Tensor)", _results)
two_classes_backward = declare(
    __name__,
    "two_classes_backward(Tensor x, Tensor at, Tensor total, Tensor g_blank, Tensor g_label, int blank) -> Tensor",
    like_argument(0),
)
