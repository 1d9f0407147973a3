"""Capped-simplex operator: argmax of <x, p> - Omega(p) over lower <= p <= upper, sum p = total.

`entropic` chooses Omega: sum p log p (True) or sum p^2 / 2 (False). -inf scores get 0, whatever their bounds; a row of
-inf gets zeros; a NaN, or bounds that cannot sum to the total, fills its row with NaN.

`capped_backward` is the Jacobian at the weights y, applied to v: only entries strictly between their bounds move.

Shapes: x, y, v `(*batch, n)`; lower, upper `(*batch, n)`, or 1 in every dim; total `(*batch,)`, or 1 in every dim. The
weights are like x, in float32 for half precision; the Jacobian's result is like v.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument, wide_like

capped = declare(
    __name__, "capped(Tensor x, Tensor lower, Tensor upper, Tensor total, bool entropic) -> Tensor", wide_like
)
capped_backward = declare(
    __name__,
    "capped_backward(Tensor y, Tensor v, Tensor lower, Tensor upper, bool entropic) -> Tensor",
    like_argument(1),
)
