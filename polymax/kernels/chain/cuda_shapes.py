"""Tiles and strides of chain kernels, and their limits."""

import torch
from torch import Tensor

from polymax.backend.triton_math import ceil_power
from polymax.kernels.local_max.triton_max import smoothing

# the smallest tile is one column of all previous states
MOST_STATES = 8192
# entries of a tile, and of a tile to a thread
TILE = 8192
ENTRIES = 16


class ChainShapes:
    """Transitions without their repetitions, the maximum of each matrix, and the launch options for `alpha`."""

    def __init__(self, unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> None:
        if unary.shape[2] > MOST_STATES:
            raise ValueError(f"unary must have at most {MOST_STATES} states on this device; got {unary.shape[2]}")
        self.batch, self.n, self.states = unary.shape
        self.transition, self.lengths, self.alpha = transition, lengths.contiguous(), float(alpha)
        self.group = max(self.batch // max(transition.shape[0], 1), 1)
        self.wide = unary.dtype == torch.float64
        w, stride_b, stride_t = distinct(transition)
        # kernels subtract the maximum: far from 0, sums of scores lose digits
        top = w.amax((-2, -1)) if w.numel() else w.new_zeros(1)
        self.matrices = (w, top, stride_b, stride_t, self.group, self.n, self.states)

    def options(self, tile: int = TILE) -> dict[str, object]:
        """Return the constants of a kernel whose tiles have at most so many entries."""
        bi = ceil_power(self.states)
        bj = max(1, min(bi, tile // (2 * bi if self.wide else bi)))
        warps = min(max(bi * bj // (32 * ENTRIES), 1), 16)
        launch = {"num_warps": warps, "num_stages": 1}
        return {**smoothing(self.alpha), "BI": bi, "BJ": bj, **launch}


def distinct(transition: Tensor) -> tuple[Tensor, int, int]:
    """Return transitions without the repetitions of an expanded tensor, and the strides in matrices of instances and of
    steps.

    A single transition (s, s) is also accepted.
    """
    if transition.dim() == 2:
        return transition.contiguous(), 0, 0
    for dim in (0, 1):
        if transition.shape[dim] > 1 and transition.stride(dim) == 0:
            transition = transition.narrow(dim, 0, 1)
    batch, steps = transition.shape[:2]
    return transition.contiguous(), steps if batch > 1 else 0, 1 if steps > 1 else 0
