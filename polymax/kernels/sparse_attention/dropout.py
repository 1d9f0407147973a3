"""Which weights a seed drops: a hash of the row and the key, the same on every device and in every kernel.

No weight is stored for the gradient: whoever needs it computes again whether it was kept.
"""

import torch
from torch import Tensor

LOW = 0xFFFFFFFF


def kept(seed: Tensor, rate: float, rows: int, keys: int) -> Tensor:
    """1 / (1 - rate) for a weight that is kept, 0 for one that is dropped: float64 (rows, keys).

    Rows are counted over all batches and heads.
    """
    state = row_states(seed, torch.arange(rows, device=seed.device))
    drawn = mixed(state[:, None] ^ mixed(torch.arange(keys, device=seed.device))) >> 8
    return (drawn >= threshold(rate)).double() / (1 - rate)


def threshold(rate: float) -> int:
    """The numbers of 24 bits below it drop a weight."""
    return round(rate * (1 << 24))


def row_states(seed: Tensor, rows: Tensor) -> Tensor:
    """A number of 32 bits for each row."""
    state = mixed(mixed((seed >> 32) & LOW) ^ (seed & LOW))
    return mixed(mixed(state ^ (rows >> 32)) ^ (rows & LOW))


def mixed(x: Tensor) -> Tensor:
    """A hash of 32 bits, in which each bit of x moves half of the bits.

    See: Wellons 2018, Prospecting for hash functions (lowbias32).
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & LOW
    return x ^ (x >> 16)
