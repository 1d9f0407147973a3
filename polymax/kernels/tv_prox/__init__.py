"""Total-variation prox: the row nearest to x with few changes between neighbours.

    z = argmin 1/2 ||z - x||^2 + strength sum |z_{i+1} - z_i|

-inf entries are absent: their neighbours are adjacent to each other, and z is -inf there. Neighbours that the
solution fuses are bit-equal. If `shifted`, z is less by its own maximum, without the rounding of that difference, and
no lower than the lowest finite number. NaN or +inf in a row, or a strength that is not >= 0, fills the row with NaN.

Shapes: x `(*batch, n)`, strength `(*batch,)`, or 1 in every dim; z like x.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

tv_prox = declare(__name__, "tv_prox(Tensor x, Tensor strength, bool shifted=False) -> Tensor", like_argument(0))
