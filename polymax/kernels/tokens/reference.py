"""Tokens first, by sorting their places."""

import torch
from torch import Tensor


def token_order(kept: Tensor) -> tuple[Tensor, Tensor]:
    n = kept.shape[1]
    position = torch.arange(n, device=kept.device)
    return torch.where(kept, position, position + n).argsort(1), kept.sum(1)


def tokens_first(x: Tensor, start: Tensor, end: Tensor, order: Tensor | None, lengths: Tensor) -> Tensor:
    y = x if order is None else x.gather(1, order.unsqueeze(-1).expand(x.shape))
    position = torch.arange(x.shape[1], device=x.device).unsqueeze(-1)
    y = y + torch.where(position == 0, start.unsqueeze(1), 0)
    return y + torch.where(position == lengths[:, None, None] - 1, end.unsqueeze(1), 0)


def tokens_back(g: Tensor, order: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = g.clone() if order is None else torch.zeros_like(g).scatter(1, order.unsqueeze(-1).expand(g.shape), g)
    position = torch.arange(g.shape[1], device=g.device).unsqueeze(-1)
    start = torch.where(position == 0, g, 0).sum(1)
    return x, start, torch.where(position == lengths[:, None, None] - 1, g, 0).sum(1)
