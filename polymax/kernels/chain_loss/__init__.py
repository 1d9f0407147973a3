"""Losses of chains: the smoothed maximum over tag sequences, as of the chain operators, less the score of given tags.

    value = max_Omega over y of <scores, y>  -  sum_t unary[t, tags_t] - sum_t transition[t - 1][tags_(t-1), tags_t]

Its derivatives are those of the chain, less g at the tags: an outside pass writes the expectations and subtracts the
tags from them in place. The recursion runs over scores less those of the tags at each position, which are as small as
the loss, so that it loses no digits. A value below the rounding errors of its terms in float64 is 0. If a score of the
tags is -inf, the value is +inf, and passes count the score as 0; a caller leaves out the gradient of such instances.

Shapes: as for the chain, and tags (B, n) int64, read within the lengths. A tag that is not in [0, s) gives NaN on CUDA.
The chart is in float64 on CUDA.

See: Lafferty, McCallum and Pereira 2001, Conditional random fields.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import Shortcut
from polymax.kernels.passes import declare_passes


def chart_like(unary: Tensor, *_: object) -> Tensor:
    """Return an empty chart for these scores."""
    batch, n, states = unary.shape
    return unary.new_empty(batch, n, 2, states, dtype=torch.float64 if unary.is_cuda else unary.dtype)


chain_loss_inside, chain_loss_outside, chain_loss_tangent = declare_passes(
    __name__, "unary transition", "lengths tags", chart_like
)

# the derivative of the value in fewer calls: see cuda_slopes.py
chain_loss_slope = Shortcut(__name__, "slopes", "slope")
