"""Group lasso on the simplex, for groups that share no entry.

    argmax of <x, p> - 1/2 ||p||^2 - sum over groups g of price_g norm_2(p_g),      price_g = strength sqrt(|g|)

A single threshold tau gives p_g = q_g (1 - price_g / norm(q_g))_+ with q = (x - tau)_+. The size of a group counts
entries that are not -inf. -inf scores get 0; a row of -inf gets zeros; NaN or +inf in a row, or a strength that is not
>= 0, fills it with NaN.

`grouped_backward` is the Jacobian at the weights y, which is symmetric, applied to v. With u_g = y_g / norm(y_g):

    J0 v = (1 - rate) v + rate u <u, v> on the support of a group,     rate_g = price_g / (norm(y_g) + price_g)
    J v = J0 v - J0 1 <1, J0 v> / <1, J0 1>

Shapes: x, y, v `(*batch, n)`; strength `(*batch,)`, or 1 in every dim; `entries` `(*, n)`, the entries of the first
group, then those of the second, ...; `first` `(*, g + 1)`, the offset of each group in entries, then n. Both are equal
for all rows, and only one row of them is read. The last `lone` groups are single entries of no group, which have no
price. `widest` is the size of the largest group. Results are like x, the weights in float32 for half precision; the
Jacobian's result is like v.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument, wide_like

grouped = declare(
    __name__,
    "grouped(Tensor x, Tensor strength, Tensor entries, Tensor first, int lone, int widest) -> Tensor",
    wide_like,
)
grouped_backward = declare(
    __name__,
    "grouped_backward(Tensor x, Tensor y, Tensor v, Tensor strength, Tensor entries, Tensor first, int lone,"
    " int widest) -> Tensor",
    like_argument(2),
)
