"""Sums of exponentials of blocks of scores, for Numba."""

import numpy as np

from polymax.backend.numba_math import add, kernel, row_max
from polymax.kernels.threshold.numba_softmax import exp_below

# terms of a sum whose rounding is that of one number
BLOCK = 256


@kernel
def add_exponentials(start, stop, x, sums):
    """Add exp u and u exp u of the block to the sums of rows, u being the score less the largest score so far."""
    tops, totals, moments = sums
    real = x.dtype.type
    for i in range(start, stop):
        row, old = x[i], tops[i]
        top = max(old, row_max(row))
        at = top if np.isfinite(top) else real(0)
        moved = old - at if old > -np.inf else real(0)
        kept = np.exp(moved) if old > -np.inf else real(0)
        total, moment = real(0), real(0)
        for first in range(0, row.size, BLOCK):
            part = row[first : first + BLOCK]
            few, few_moments = real(0), real(0)
            for j in range(part.size):
                u = part[j] - at
                e = exp_below(u)
                few = add(few, e)
                # an exponential that is 0 has no moment
                few_moments = add(few_moments, e * (u if not u < real(-1e30) else real(0)))
            total += few
            moment += few_moments
        moments[i] = kept * (moments[i] + moved * totals[i]) + moment
        totals[i] = kept * totals[i] + total
        tops[i] = top
