"""The nearest point within bounds that satisfies a few linear constraints, and its derivative in the scores.

    argmax over lower <= mu <= upper of  <x, mu> - 1/2 sum weight mu^2 - sum_r max over least_r <= tau_r <= most_r of
    tau_r (<a_r, mu> - offset_r)

    mu = clip((x - A^T tau) / weight, lower, upper)

Rows a_r have coefficients 1 and -1 at a few variables. With tau in (-inf, inf) a row is the equation <a_r, mu> =
offset_r, with tau in [0, inf) the inequality <=, in (-inf, 0] >=; a finite end is a price for each unit by which the
row is exceeded. `constrained_response` is the derivative of mu along g if `free` variables move and `tight` rows keep
their sums: the weighted projection of g onto that subspace, which is symmetric.

Shapes:
    x, weight, lower, upper, g (B, n); columns (G, R, K) variables of rows, packed to the left, -1 after the last;
    signs (G, R, K) +-1; offset (G, R); least, most, start, tau (B, R); free (B, n), tight (B, R) bool
    G divides B: groups of B / G instances share a graph; all numbers are float64
    violation (B,), the largest violation of a row; rounds (B,)
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances
from polymax.backend.widen import like_argument


def _fake(
    x: Tensor, weight: Tensor, lower: Tensor, upper: Tensor, columns: Tensor, signs: Tensor, offset: Tensor,
    least: Tensor, most: Tensor, start: Tensor, rounds: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    done = x.new_empty(x.shape[:1], dtype=torch.long)
    return torch.empty_like(x), torch.empty_like(start), x.new_empty(x.shape[:1]), done


constrained = declare_instances(
    __name__,
    "constrained(Tensor x, Tensor weight, Tensor lower, Tensor upper, Tensor columns, Tensor signs, Tensor offset,"
    " Tensor least, Tensor most, Tensor start, int rounds) -> (Tensor, Tensor, Tensor, Tensor)",
    _fake,
)
constrained_response = declare_instances(
    __name__,
    "constrained_response(Tensor free, Tensor tight, Tensor weight, Tensor columns, Tensor signs, Tensor g) -> Tensor",
    like_argument(5),
)
