"""Isotonic regression: the non-increasing row nearest to x.

    z = argmin over z_1 >= z_2 >= ... of 1/2 ||z - x||^2

-inf entries are absent and may only come at the end of a row; z is -inf there. Pooled entries are bit-equal.
NaN or +inf fills its row with NaN.

Shapes: x `(*batch, n)`; z like x.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

isotonic = declare(__name__, "isotonic(Tensor x) -> Tensor", like_argument(0))
