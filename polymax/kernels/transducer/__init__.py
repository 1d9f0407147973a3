"""Paths of a transducer: at each frame it emits tokens, then a blank that leads to the next frame.

    a[t, u] = max_Omega(a[t-1, u] + blank[t-1, u], a[t, u-1] + label[t, u-1])        a[0, 0] = 0
    value = a[frames-1, tokens] + blank[frames-1, tokens]

The smoothing is the Tsallis entropy of `alpha`; 1 is Shannon. Without a frame there is no path, and the value is 0. The
chart has the weights of both choices.

Shapes: blank (B, n, m + 1), label (B, n, m), frames and tokens (B,), values (B,)
"""

from torch import Tensor

from polymax.kernels.passes import declare_passes


def chart_like(blank: Tensor, *_: object) -> Tensor:
    """Return an empty chart: two weights for each cell, those of one diagonal side by side."""
    count, n, states = blank.shape
    return blank.new_empty(count, n, 2, states)


transducer_inside, transducer_outside, transducer_tangent = declare_passes(
    __name__, "blank label", "frames tokens", chart_like
)
