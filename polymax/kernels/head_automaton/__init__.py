"""Dependency trees without crossing arcs that score pairs of arcs: the smoothed maximum over the trees of a sentence.

With scores of siblings a head takes its modifiers from the inside to the outside, and remembers the last modifier. With
scores of grandparents half trees have an index g, the head of their head. Over positions i < j, and g outside of them:

    S(g, i, j) = max_Omega over k = i..j-1 of R(g, i, k) + L(g, k+1, j)              between two modifiers of g
    M(g, i, j) = max_Omega of siblings[i, i, j] + L(i, i+1, j)                       the first modifier to the right
                 and, over k = i+1..j-1, of siblings[i, k, j] + I(g, i, k) + S(i, k, j)
    I(g, i, j) = M(g, i, j) + arcs[i, j] + grandparents[g, i, j]                     the arc from i to j
    R(g, i, j) = max_Omega over k = i+1..j of I(g, i, k) + R(i, k, j)                all that i heads to the right

and likewise to the left. Without siblings M(g, i, j) = max_Omega over k = i..j-1 of R(g, i, k) + L(i, k+1, j); without
grandparents there is no g. The value is R(0, 0, length), or with a single root max_Omega over r of
arcs[0, r] + siblings[0, 0, r] + L(0, 1, r) + R(0, r, length). The root symbol has no head, and is its own g.

`order` selects the scored pairs: 1 siblings, 2 grandparents, 3 both, siblings first. The first pass computes the chart
for the other two; all arithmetic is in float64. O(n^3) steps for siblings, O(n^4) with grandparents.

Shapes: arcs `(B, n + 1, n + 1)`, [head, modifier]; pairs `(B, kinds, n + 1, n + 1, n + 1)`, siblings [head, sibling,
modifier], grandparents [grandparent, head, modifier]; lengths, value, g `(B,)`; chart `(B, 3 or 4, lanes, n + 1,
n + 1)` for R, L, I and S, where lanes are n + 1 with grandparents and else 1.

See: Eisner 1996; McDonald and Pereira 2006; Koo and Collins 2010, Efficient third-order dependency parsers, model 1.
"""

import torch
from torch import Tensor

from polymax.kernels.passes import declare_passes

# bits of `order`
SIBLINGS, GRANDPARENTS = 1, 2


def chart_like(arcs: Tensor, pairs: Tensor, lengths: Tensor, single_root: bool, order: int, *_: object) -> Tensor:
    """Return an empty chart for these scores."""
    batch, size = arcs.shape[:2]
    lanes = size if order & GRANDPARENTS else 1
    return arcs.new_empty((batch, 3 + (order & SIBLINGS), lanes, size, size), dtype=torch.float64)


head_automaton_inside, head_automaton_outside, head_automaton_tangent = declare_passes(
    __name__, "arcs pairs", "lengths", chart_like, "bool single_root, int order"
)
