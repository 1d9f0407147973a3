"""Segment mean: v averaged over each run of equal neighbours in z.

The Jacobian of tv_prox and isotonic at their solution z, applied to v; it is symmetric. With `order`, neighbours are
neighbours in that order, which makes it the Jacobian of the prox of oscarmax. -inf entries of z are absent: they get 0,
and their neighbours are adjacent to each other. NaN in z fills its row.

With `y`, the weights sparsemax gives to z, v first goes through its Jacobian: centred on the support, and 0 beside
it. That is the Jacobian of fusedmax, or of oscarmax; the two projections commute. An order then is that of falling z.

Shapes: z, v, y `(*batch, n)`, order `(*batch, n)` int32, a permutation of each row; the result like v.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

segment_mean = declare(
    __name__, "segment_mean(Tensor z, Tensor v, Tensor? order=None, Tensor? y=None) -> Tensor", like_argument(1)
)
