"""Paths of a transducer whose steps have durations: a blank or a token at frame t leads to frame t + durations[i].

    a[t, u] = max_Omega over i of a[t - d, u] + blank[t - d, u] + duration[t - d, u, i]
                              and a[t - d, u - 1] + label[t - d, u - 1] + duration[t - d, u - 1, i]
    value = max_Omega over i of a[frames - d, tokens] + blank[frames - d, tokens] + duration[frames - d, tokens, i]

Here d = durations[i], and a[0, 0] = 0; no other cell is reached without a step. Blanks of duration 0 are forbidden, and
the last blank leads to `frames` exactly. The smoothing is the Tsallis entropy of `alpha`; 1 is Shannon. Without a frame
the value is 0; without a path it is -inf. The chart has a[t, u] on line t + u, and the value on its last line.

Shapes: blank (B, n, m + 1), label (B, n, m), duration (B, n, m + 1, durations), frames and tokens (B,), values (B,)

See: Xu et al. 2023, Efficient sequence transduction by jointly predicting tokens and durations, section 3.
"""

import torch
from torch import Tensor

from polymax.kernels.passes import declare_passes


def chart_like(blank: Tensor, *_: object) -> Tensor:
    """Return an empty chart in float64: a line for each diagonal, and one for the value."""
    count, n, states = blank.shape
    return blank.new_empty((count, n + states, states), dtype=torch.float64)


duration_transducer_inside, duration_transducer_outside, duration_transducer_tangent = declare_passes(
    __name__, "blank label duration", "frames tokens", chart_like, "int[] durations"
)
