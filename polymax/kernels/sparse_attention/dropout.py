"""Dropout of attention weights by a hash of the seed, the row and the key, equal on every device and in every kernel.

No dropout mask is stored for the gradient: the backward pass computes the hash again.
"""

import torch
from torch import Tensor

LOW = 0xFFFFFFFF


def kept(seed: Tensor, rate: float, rows: int, keys: int) -> Tensor:
    """Return 1 / (1 - rate) for a weight that is kept, 0 for a dropped weight: float64 (rows, keys).

    Rows are counted over all batches and heads.
    """
    state = row_states(seed, torch.arange(rows, device=seed.device))
    drawn = mixed(state[:, None] ^ mixed(torch.arange(keys, device=seed.device))) >> 8
    return (drawn >= threshold(rate)).double() / (1 - rate)


def threshold(rate: float) -> int:
    """Return the 24-bit number below which a hash drops a weight."""
    return round(rate * (1 << 24))


def row_states(seed: Tensor, rows: Tensor) -> Tensor:
    """Return a 32-bit hash state for each row."""
    state = mixed(mixed((seed >> 32) & LOW) ^ (seed & LOW))
    return mixed(mixed(state ^ (rows >> 32)) ^ (rows & LOW))


def mixed(x: Tensor) -> Tensor:
    """Return a 32-bit hash, in which each bit of x flips half of the bits on average.

    See: Wellons 2018, Prospecting for hash functions (lowbias32).
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & LOW
    return x ^ (x >> 16)
