"""Linear assignment for Numba: one matrix after another, a batch in threads."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import kernel
from polymax.kernels.assignment import outputs
from polymax.kernels.assignment.numba_match import MATCHED, UNDEFINED, best_match, workspace

# the cost of a matrix in passes over it
_PASSES = 10


def assignment(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    match, u, v = outputs(scores)
    batch, n, m = scores.shape
    arrays = [memory(x.contiguous()) for x in (scores, rows, columns, match, u, v)]
    # `warm` is False for all calls: passed as an argument, since a literal would make Numba compile best_match again
    parallel(_assignment, torch.Size((batch, n * m)), _PASSES, *arrays, False)
    return match, u, v


@kernel
def _assignment(start, stop, scores, rows, columns, match, u, v, warm):
    n, m = scores.shape[1:]
    space = workspace(n, m, scores.dtype)
    row_duals, column_duals = np.empty(n), np.empty(m)
    for b in range(start, stop):
        height, width = rows[b], columns[b]
        match[b] = -1
        u[b] = 0
        v[b] = 0
        outcome = best_match(scores[b], height, width, match[b], row_duals, column_duals, space, warm)
        if outcome == MATCHED:
            u[b, :height] = row_duals[:height]
            v[b, :width] = column_duals[:width]
            continue
        match[b] = -1
        u[b, :height] = np.nan if outcome == UNDEFINED else -np.inf
        v[b, :width] = np.nan if outcome == UNDEFINED else 0
