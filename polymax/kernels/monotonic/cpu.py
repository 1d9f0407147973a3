"""The recursion frame by frame, all tokens of a frame in vector lanes, for Numba; the path is read off the values."""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, plain, run
from polymax.kernels.numba_math import inline, kernel, rows_at


def monotonic_search(x: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    scores, n_of, m_of = plain(x), frames.long().contiguous(), tokens.long().contiguous()
    batch, n, m = x.shape
    # filled by the kernel: torch's threads, once called, wait on cores that the search needs
    path = torch.empty((batch, n), dtype=torch.long)
    value = torch.empty(batch, dtype=torch.float64)
    at = (t.data_ptr() for t in (scores, n_of, m_of, path, value))
    run(_walk, batch, n * m, n, m, *at, REALS[scores.dtype])
    return path, value


# memory for values, which each thread keeps: fresh pages cost more than what is written to them
_kept = threading.local()
MOST_KEPT = 1 << 20


def _walk(start: int, stop: int, n: int, m: int, *args: Any) -> None:
    # token j lies at j + 1; all values of an instance are kept, which costs less than to keep the moves
    real = args[-1].dtype
    v = getattr(_kept, real.name, None)
    if v is None or v.size < n * (m + 2):
        v = np.empty(n * (m + 2), real)
        if v.size <= MOST_KEPT:
            setattr(_kept, real.name, v)
    _search(start, stop, n, m, *args, v)


@kernel
def _search(start, stop, n, m, x_at, frames_at, tokens_at, path_at, value_at, real, memory):
    x, path = rows_at(x_at, stop, n * m, real), rows_at(path_at, stop, n, np.int64(0))
    frames, tokens = rows_at(frames_at, stop, 1, np.int64(0)), rows_at(tokens_at, stop, 1, np.int64(0))
    value = rows_at(value_at, stop, 1, np.float64(0))
    v = memory[: n * (m + 2)].reshape(n, m + 2)
    for i in range(start, stop):
        rows, columns = frames[i, 0], tokens[i, 0]
        path[i] = -1
        if columns == 0 or columns > rows:
            value[i, 0] = 0.0 if rows == columns else -np.inf
        else:
            value[i, 0] = _best(x[i].reshape(n, m), rows, columns, v)
            if value[i, 0] > -np.inf:
                _trace(v, rows, columns, path[i])


@inline
def _best(x, rows, columns, v):
    v[0, 0], v[0, 1], v[0, 2] = -np.inf, x[0, 0], -np.inf
    bad = False
    for t in range(1, rows):
        # cells from which the last one can be reached, and that can be reached from the first
        low, high = max(0, columns - rows + t), min(t, columns - 1)
        row, after = x[t, low : high + 1], v[t, low + 1 : high + 2]
        before, same = v[t - 1, low : high + 1], v[t - 1, low + 1 : high + 2]
        if low:
            # NaN stays in its column, which ends here
            bad |= before[0] != before[0]
        for j in range(row.size):
            after[j] = row[j] + (before[j] if before[j] > same[j] else same[j])
        v[t, 0], v[t, high + 2] = -np.inf, -np.inf
    best = v[rows - 1, columns]
    return np.nan if bad or best != best else np.float64(best)


@inline
def _trace(v, rows, columns, path):
    j = columns - 1
    for t in range(rows - 1, 0, -1):
        path[t] = j
        j -= v[t - 1, j] > v[t - 1, j + 1]
    path[0] = 0
