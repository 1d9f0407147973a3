"""The hash of dropout.py, for Numba."""

import numpy as np

from polymax.kernels.sparse_attention.numba_vectors import inner

LOW = np.uint64(0xFFFFFFFF)


@inner
def _mixed(x):
    x = x ^ (x >> np.uint64(16))
    x = (x * np.uint64(0x7FEB352D)) & LOW
    x = x ^ (x >> np.uint64(15))
    x = (x * np.uint64(0x846CA68B)) & LOW
    return x ^ (x >> np.uint64(16))


@inner
def row_state(seed, row):
    """Return the 32-bit hash state of a row, counted over all batches and heads."""
    seed, row = np.uint64(seed), np.uint64(row)
    state = _mixed(_mixed(seed >> np.uint64(32)) ^ (seed & LOW))
    return _mixed(_mixed(state ^ (row >> np.uint64(32))) ^ (row & LOW))


@inner
def kept(state, key, drop):
    """Return the factor of a key's weight: 1 / (1 - rate) if it is kept, 0 if it is dropped."""
    drawn = _mixed(state ^ _mixed(np.uint64(key))) >> np.uint64(8)
    return drop[2] if drawn >= np.uint64(drop[1]) else 0.0
