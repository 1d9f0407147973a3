"""The tokens of sequences with gaps, brought to the front, and the scores of starting and ending there.

    token_order     kept (B, n) bool               the places of the tokens in order, then the others; their number
    tokens_first    x, start, end, order, lengths  y[p] = x[order[p]], plus start at p = 0 and end at the last token
    tokens_back     g, order, lengths              the transpose of tokens_first: gradients of x, start and end

Without an order, tokens are at the front already.

Shapes: x, y, g (B, n, s); start, end (B, s); order (B, n) int64, a permutation of each row; lengths (B,) int64
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances


def _order_like(kept: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(kept, dtype=torch.long), kept.new_empty(kept.shape[:1], dtype=torch.long)


def _first_like(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _back_like(g: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    ends = g.shape[0], g.shape[2]
    return _first_like(g), g.new_empty(ends), g.new_empty(ends)


token_order = declare_instances(__name__, "token_order(Tensor kept) -> (Tensor, Tensor)", _order_like)
tokens_first = declare_instances(
    __name__, "tokens_first(Tensor x, Tensor start, Tensor end, Tensor? order, Tensor lengths) -> Tensor", _first_like
)
tokens_back = declare_instances(
    __name__, "tokens_back(Tensor g, Tensor? order, Tensor lengths) -> (Tensor, Tensor, Tensor)", _back_like
)
