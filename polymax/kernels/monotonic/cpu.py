"""The recursion frame by frame, all tokens of a frame in vector lanes, for Numba; values in float64."""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, plain, run
from polymax.kernels.numba_math import inline, kernel, rows_at


def monotonic_search(x: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    scores, n_of, m_of = plain(x), frames.long().contiguous(), tokens.long().contiguous()
    batch, n, m = x.shape
    path = torch.full((batch, n), -1)
    value = torch.empty(batch, dtype=torch.float64)
    at = (t.data_ptr() for t in (scores, n_of, m_of, path, value))
    run(_search, batch, 2 * n * m, n, m, *at, REALS[scores.dtype])
    return path, value


@kernel
def _search(start, stop, n, m, x_at, frames_at, tokens_at, path_at, value_at, real):
    x, path = rows_at(x_at, stop, n * m, real), rows_at(path_at, stop, n, np.int64(0))
    frames, tokens = rows_at(frames_at, stop, 1, np.int64(0)), rows_at(tokens_at, stop, 1, np.int64(0))
    value = rows_at(value_at, stop, 1, np.float64(0))
    moves = np.empty((n, m), np.uint8)
    old, new = np.empty(m + 1), np.empty(m + 1)
    for i in range(start, stop):
        rows, columns = frames[i, 0], tokens[i, 0]
        if columns == 0 or columns > rows:
            value[i, 0] = 0.0 if rows == columns else -np.inf
        else:
            value[i, 0] = _best(x[i].reshape(n, m), rows, columns, moves, old, new)
            if value[i, 0] > -np.inf:
                _trace(moves, rows, columns, path[i])


@inline
def _best(x, rows, columns, moves, old, new):
    old[:] = -np.inf
    new[:] = -np.inf
    old[1] = x[0, 0]
    bad = x[0, 0] != x[0, 0]
    for t in range(1, rows):
        # cells from which the last one can be reached, and that can be reached from the first
        low, high = max(0, columns - rows + t), min(t, columns - 1)
        row, moved = x[t, low : high + 1], moves[t, low : high + 1]
        # those of token j lie at j + 1
        before, same, after = old[low : high + 1], old[low + 1 : high + 2], new[low + 1 : high + 2]
        for j in range(row.size):
            moved[j] = before[j] > same[j]
            after[j] = row[j] + (before[j] if before[j] > same[j] else same[j])
            bad |= row[j] != row[j]
        old, new = new, old
    return np.nan if bad else old[columns]


@inline
def _trace(moves, rows, columns, path):
    j = columns - 1
    for t in range(rows - 1, 0, -1):
        path[t] = j
        j -= moves[t, j]
    path[0] = 0
