"""Chain operators: the smoothed maximum over tag sequences, its expectations, and their tangent.

    v_0[j] = unary[0, j]
    m_t[j] = max_Omega over i of (v_{t-1}[i] + transition[t-1][i, j])
    v_t[j] = m_t[j] + unary[t, j]
    value  = max_Omega over j of v_{length-1}[j]

Omega is the Tsallis entropy of `alpha`: 1 is Shannon (the forward algorithm), inf is none (Viterbi).
Instance b reads transition b // (B // Bt); a single step of transitions serves all steps.

Shapes: unary (B, n, s); transition (Bt, Nt, s, s), [previous, next], with Nt 1 or n - 1; lengths, value, g (B,);
chart (B, n, 2, s), opaque. Gradients and tangents are shaped like the scores, summed over what is shared.

See: Mensch and Blondel 2018, Sections 3 and 4.
"""

import torch
from torch import Tensor

from polymax._dispatch import declare_instances


def _fake_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    batch, n, states = unary.shape
    return unary.new_empty(batch), unary.new_empty(batch, n, 2, states)


def _fake_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    return _like(unary), _like(transition)


def _fake_tangent(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor,
    d_unary: Tensor,
    d_transition: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return unary.new_empty(unary.shape[0]), _like(unary), _like(transition)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


chain_inside = declare_instances(
    __name__,
    "chain_inside(Tensor unary, Tensor transition, Tensor lengths, float alpha) -> (Tensor, Tensor)",
    _fake_inside,
)
chain_outside = declare_instances(
    __name__,
    "chain_outside(Tensor unary, Tensor transition, Tensor lengths, Tensor chart, Tensor g, float alpha)"
    " -> (Tensor, Tensor)",
    _fake_outside,
)
chain_tangent = declare_instances(
    __name__,
    "chain_tangent(Tensor unary, Tensor transition, Tensor lengths, Tensor chart, Tensor g, Tensor d_unary,"
    " Tensor d_transition, float alpha) -> (Tensor, Tensor, Tensor)",
    _fake_tangent,
)
