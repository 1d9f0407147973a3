"""Linear assignment: the best matching of rows and columns, and the prices that prove it.

    max over matchings of  sum of scores[i, match_i]  =  min over u, v of  sum u + sum v,   u_i + v_j >= scores[i, j]

"""

import torch
from torch import Tensor

from polymax._dispatch import declare, fold


def _fake(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, n, m = scores.shape
    match = scores.new_empty((batch, n), dtype=torch.long)
    return match, scores.new_empty((batch, n)), scores.new_empty((batch, m))


assignment = declare(
    __name__, "assignment(Tensor scores, Tensor rows, Tensor columns) -> (Tensor, Tensor, Tensor)", _fake, fold()
)
