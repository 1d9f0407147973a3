"""Argmax over the simplex of <x, p> less the alpha-divergence of p from a reference q, for each row.

    p = q ((alpha - 1) (x - tau))_+ ^ (1 / (alpha - 1)), or q exp(x - tau) at alpha = 1, with tau such that p sums to 1

q need not sum to 1: for q = 1 the mapping is that of the Tsallis entropy. Entries with a score of -inf or q = 0 get 0,
a row without other entries gets zeros, and a NaN fills its row unless q = 0 there.

Shapes: x and q (*batch, n); alphas (*batch,)
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

relative_threshold = declare(
    __name__, "relative_threshold(Tensor x, Tensor q, Tensor alphas) -> Tensor", like_argument(0)
)
