"""Linear assignment for Numba: one matrix after another, batches in threads."""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.assignment.numba_match import MATCHED, UNDEFINED, best_match, workspace
from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import kernel

# a matrix costs some passes over it, and more the larger it is
_PASSES = 10


def assignment(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, n, m = scores.shape
    match = torch.empty(batch, n, dtype=torch.long)
    u, v = scores.new_empty(batch, n), scores.new_empty(batch, m)
    inputs = (x.detach().contiguous().numpy() for x in (scores, rows, columns))
    parallel(_assignment, torch.Size((batch, n * m)), _PASSES, *inputs, match.numpy(), u.numpy(), v.numpy())
    return match, u, v


@kernel
def _assignment(start, stop, scores, rows, columns, match, u, v):
    n, m = scores.shape[1:]
    space = workspace(n, m)
    row_dual, column_dual = np.empty(n), np.empty(m)
    for b in range(start, stop):
        height, width = rows[b], columns[b]
        match[b] = -1
        u[b] = 0
        v[b] = 0
        outcome = best_match(scores[b], height, width, match[b], row_dual, column_dual, space, False)
        if outcome == MATCHED:
            u[b, :height] = row_dual[:height]
            v[b, :width] = column_dual[:width]
            continue
        match[b] = -1
        # no assignment is worth -inf, the lower bound of the duals
        u[b, :height] = np.nan if outcome == UNDEFINED else -np.inf
        if outcome == UNDEFINED:
            v[b, :width] = np.nan
