"""The maximum spanning arborescence: the best dependency tree, arcs crossing or not.

    argmax over trees of  sum over tokens m of scores[head(m), m]

Position 0 is the root symbol and only ever a head; with `single_root` exactly one token hangs from it. Heads of tokens
1..n are int64: -1 past the length, and everywhere if no tree exists; -2 up to the length if a score is NaN. The
diagonal, column 0 and entries past the length are not read.

Shapes: scores `(B, n + 1, n + 1)`, [head, modifier]; lengths `(B,)`; heads `(B, n)`.

See: Edmonds 1967; Tarjan 1977, Finding optimum branchings; Stanojević and Cohen 2021, A root of a problem.
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances

# the head of every token if a score is NaN
UNDEFINED = -2


def _fake(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    return scores.new_empty((scores.shape[0], scores.shape[1] - 1), dtype=torch.long)


arborescence = declare_instances(
    __name__, "arborescence(Tensor scores, Tensor lengths, bool single_root) -> Tensor", _fake
)
