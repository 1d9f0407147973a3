"""Sparsemax and entmax with alpha 1.5 of a short row, for Numba: passes over it are cheaper than packing its support.

The differences to the maximum are kept where the weights will be.
"""

import numpy as np

from polymax.kernels.numba_math import add, inline, row_max, row_sum

# longest row on which the threshold is found without gathering
SHORT = 1024


@inline
def sparsemax_row(x, y):
    """Fill the row y with the weights of the scores x, without gathering."""
    real = x.dtype.type
    top = row_max(x)
    top = top if top > -np.inf else real(0)
    bad = 0
    for j in range(x.size):
        y[j] = x[j] - top
        bad += y[j] != y[j]
    tau = -1.0
    before = x.size + 1
    while bad == 0:
        # Michelot: the threshold of a superset of the support is a lower bound of tau. A count that does not fall any
        # more ends it, whatever rounding does to an entry at the threshold
        count = 0
        total = 0.0
        for j in range(y.size):
            total = add(total, np.float64(y[j] if y[j] > tau else real(0)))
            count += y[j] > tau
        if count == 0 or count >= before:
            break
        before = count
        tau = (total - 1) / count
    for j in range(y.size):
        y[j] = y[j] - real(tau) if y[j] > tau else real(0)
    total = row_sum(y)
    factor = real(1) / total if total > 0 else real(0)
    for j in range(y.size):
        y[j] = y[j] * factor if bad == 0 else real(np.nan)


@inline
def entmax15_row(x, y):
    """Fill the row y with the weights of the scores x for alpha 1.5, without gathering."""
    real = x.dtype.type
    top = row_max(x)
    top = top if top > -np.inf else real(0)
    bad = 0
    for j in range(x.size):
        y[j] = (x[j] - top) * real(0.5)
        bad += y[j] != y[j]
    tau = -1.0
    while bad == 0:
        count = 0
        linear = square = 0.0
        for j in range(y.size):
            u = np.float64(y[j] if y[j] > tau else real(0))
            count += y[j] > tau
            linear = add(linear, u)
            square = add(square, u * u)
        if count == 0:
            break
        root = (linear - np.sqrt(max(linear * linear - count * (square - 1), 0.0))) / count
        tight = 0
        for j in range(y.size):
            tight += y[j] > root
        mass = square - 2 * tau * linear + count * tau * tau
        step = (mass - np.sqrt(mass)) / (linear - count * tau)
        if tight == count:
            tau = root
        if tight == count or not step > 0:
            break
        tau += step
    for j in range(y.size):
        d = y[j] - real(tau) if y[j] > tau else real(0)
        y[j] = d * d
    total = row_sum(y)
    factor = real(1) / total if total > 0 else real(0)
    for j in range(y.size):
        y[j] = y[j] * factor if bad == 0 else real(np.nan)
