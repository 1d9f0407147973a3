"""Entropic isotonic regression by pooling adjacent violators, for Numba; float64 inside, O(n) a row."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import parallel, rows
from polymax.backend.numba_math import inline, kernel


def isotonic_kl(s: Tensor, w: Tensor) -> Tensor:
    out = torch.empty(s.shape, dtype=torch.int64, device="cpu")
    parallel(_isotonic_kl, s.shape, 20, rows(s), rows(w), rows(out))
    return out


@kernel
def _isotonic_kl(start, stop, s, w, out):
    n = s.shape[1]
    # the logarithms of the two sums of each run, and its number of entries
    above, below = np.empty(n), np.empty(n)
    widths = np.empty(n, np.int64)
    for i in range(start, stop):
        runs = 0
        for j in range(n):
            if not (np.isfinite(s[i, j]) and np.isfinite(w[i, j])):
                runs = 0
                break
            a, b, width = np.float64(s[i, j]), np.float64(w[i, j]), 1
            while runs > 0 and above[runs - 1] - below[runs - 1] <= a - b:
                runs -= 1
                a, b = _log_add(above[runs], a), _log_add(below[runs], b)
                width += widths[runs]
            above[runs], below[runs], widths[runs] = a, b, width
            runs += 1
        out[i] = 0
        place = 0
        for run in range(runs):
            out[i, place : place + widths[run]] = run
            place += widths[run]


@inline
def _log_add(a, b):
    high, low = max(a, b), min(a, b)
    return high + np.log1p(np.exp(low - high))
