"""Segment mean: v averaged over each run of equal neighbours in z.

This is the Jacobian of tv_prox and isotonic at their solution z, applied to v; it is symmetric. With `order`, entries
are neighbours if they are adjacent in that order, which gives the Jacobian of the prox of oscarmax. -inf entries of z
are absent: they get 0, and their neighbours are adjacent to each other. NaN in z fills its row.

With `y`, the weights sparsemax gives to z, v is first multiplied by sparsemax's Jacobian: centred on the support, and 0
outside it. The result is the Jacobian of fusedmax, or of oscarmax; the two projections commute. An order must then be
that of falling z.

Shapes: z, v, y `(*batch, n)`, order `(*batch, n)` int32, a permutation of each row; the result like v.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

segment_mean = declare(
    __name__, "segment_mean(Tensor z, Tensor v, Tensor? order=None, Tensor? y=None) -> Tensor", like_argument(1)
)
