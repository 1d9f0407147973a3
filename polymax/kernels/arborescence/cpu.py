"""The maximum spanning arborescence for Numba."""

import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.arborescence.numba_tree import best_tree, workspace


def arborescence(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    batch, size = scores.shape[:2]
    heads = torch.empty((batch, size - 1), dtype=torch.long, device="cpu")
    args = memory(scores.contiguous()), memory(lengths.contiguous()), single_root, memory(heads)
    parallel(_trees, torch.Size((batch, size * size)), 8, *args)
    return heads


@kernel
def _trees(start, stop, scores, lengths, single_root, heads):
    space = workspace(heads.shape[1])
    for b in range(start, stop):
        heads[b] = -1
        if _undefined(scores[b], lengths[b]):
            heads[b, : lengths[b]] = -2
        else:
            best_tree(scores[b], lengths[b], single_root, heads[b], space)


@inline
def _undefined(scores, n):
    """Return True if the score of an arc is NaN."""
    count = 0
    for u in range(n + 1):
        for v in range(1, n + 1):
            count += scores[u, v] != scores[u, v] and u != v
    return count > 0
