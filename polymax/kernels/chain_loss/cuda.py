"""Losses of chains on CUDA: the walks of the chain, which read the tags on their way. For Triton.

If the transitions fit into one tile, the walk up subtracts the scores of the tags from the scores that it loads. The
walk down subtracts the tags from the expectations that it stores. The chain's launches remain the only ones. Tangents,
and chains of more states, call the chain's passes and compute the score of the tags in torch.
"""

import torch
from torch import Tensor

from polymax.kernels.chain import cuda as chain
from polymax.kernels.chain import cuda_whole as whole
from polymax.kernels.chain_loss.reference import by_chain

_inside, _outside, chain_loss_tangent = by_chain(
    (chain.chain_inside, chain.chain_outside, chain.chain_tangent), torch.float64
)


def chain_loss_inside(
    unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    shape = whole.shape_of(unary, transition, alpha)
    if shape is not None:
        return whole.inside(shape, unary, transition, lengths, tags)
    return _inside(unary, transition, lengths, tags, alpha)


def chain_loss_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    shape = whole.shape_of(unary, transition, alpha)
    if shape is not None and whole.fused(shape):
        return whole.outside(shape, transition, lengths, chart, g, None, tags)
    return _outside(unary, transition, lengths, tags, chart, g, alpha)
