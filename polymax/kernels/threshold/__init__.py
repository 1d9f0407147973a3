"""Threshold operator: the argmax over the simplex of <x, p> - Omega(p), for entropies and norms Omega.

Three families, all with y proportional to (x - tau)_+ ** (1 / (alpha - 1)), differ in the equation for tau:

    TSALLIS        Omega = (sum p^alpha - 1) / (alpha (alpha - 1))     sum p = 1
    NORM           Omega = norm_alpha(p) - 1                           norm of (x - tau)_+ is 1
    SQUARED_NORM   Omega = (norm_alpha(p)^2 - 1) / 2                   both sums in one equation, see reference.py

alpha is one number, or one per row in `alphas`. -inf entries get 0; a row of -inf gets zeros; NaN fills its row.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

TSALLIS, NORM, SQUARED_NORM = 0, 1, 2
threshold = declare(
    __name__, "threshold(Tensor x, float alpha, int family, Tensor? alphas=None) -> Tensor", like_argument(0)
)
threshold_backward = declare(
    __name__,
    "threshold_backward(Tensor y, Tensor v, float alpha, int family, Tensor? alphas=None) -> Tensor",
    like_argument(0),
)
