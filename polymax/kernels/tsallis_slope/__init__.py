"""Tsallis slope: the derivative of a Tsallis mapping in its alpha, along a direction.

The scores of weights y are x = grad Omega_alpha(y) + tau on the support; a change of alpha moves y as a change of
scores by -d(grad Omega)/dalpha does. If g is the gradient of the scores, the gradient of alpha is the result:

    - sum over the support of  g log(y)^2 f((alpha - 1) log y)        f(t) = (exp(t) (t - 1) + 1) / t^2

Shapes: y, g `(*batch, n)`, alphas `(*batch,)`; the result like alphas.
"""

from polymax.backend.dispatch import declare
from polymax.backend.widen import like_argument

tsallis_slope = declare(__name__, "tsallis_slope(Tensor y, Tensor g, Tensor alphas) -> Tensor", like_argument(2))
