"""Chain operators: the smoothed maximum over tag sequences, its expectations, and their tangent.

    v_0[j] = unary[0, j]
    m_t[j] = max_Omega over i of (v_{t-1}[i] + transition[t-1][i, j])
    v_t[j] = m_t[j] + unary[t, j]
    value  = max_Omega over j of v_{length-1}[j]

Omega is the Tsallis entropy of `alpha`: 1 is Shannon (the forward algorithm), inf no smoothing (Viterbi).
Instance b reads transition b // (B // Bt); a single step of transitions serves all steps.

Shapes: unary (B, n, s); transition (Bt, Nt, s, s), [previous, next], with Nt 1 or n - 1; lengths, value, g (B,); chart
(B, n, 2, s), opaque. Gradients and tangents are shaped like the scores, summed over instances and steps that share a
score. The input tangent of the transitions may be (B, n - 1, s, s), one per instance and step, even if the scores are
shared.

See: Mensch and Blondel 2018, Sections 3 and 4.
"""

from torch import Tensor

from polymax.backend.dispatch import Shortcut
from polymax.kernels.passes import declare_passes


def chart_like(unary: Tensor, *_: object) -> Tensor:
    """Return an empty chart for these scores."""
    batch, n, states = unary.shape
    return unary.new_empty(batch, n, 2, states)


chain_inside, chain_outside, chain_tangent = declare_passes(__name__, "unary transition", "lengths", chart_like)

# derivatives in fewer calls: see cpu_slopes.py and cuda_slopes.py
chain_slope, chain_mean, chain_mean_slope = (
    Shortcut(__name__, "slopes", name) for name in ("slope", "mean", "mean_slope")
)
