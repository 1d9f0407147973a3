"""The recursion in torch, a frame of all instances at a time."""

import torch
from torch import Tensor

from polymax.backend.widen import wide


def monotonic_search(x: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    batch, n, m = x.shape
    within = _ways(n, m, frames, tokens)
    scores = torch.where(within, wide(x), -torch.inf)
    bad = (within & x.isnan()).any(-1).any(-1)
    end = (tokens - 1).clamp(min=0)[:, None]
    value = torch.where((frames == 0) & (tokens == 0), 0.0, scores.new_full((batch,), -torch.inf))
    moves = torch.zeros(batch, n, m, dtype=torch.bool, device=x.device)
    v = scores.new_full((batch, m), -torch.inf)
    for i in range(n if m else 0):
        moved = torch.nn.functional.pad(v[:, :-1], (1, 0), value=-torch.inf if i else 0.0)
        moves[:, i] = moved > v
        v = scores[:, i] + torch.maximum(v, moved)
        value = torch.where(frames == i + 1, v.gather(1, end)[:, 0], value)
    value = torch.where(bad, torch.nan, value)
    path = torch.full((batch, n), -1, device=x.device)
    at = end[:, 0]
    for i in range(n - 1, -1, -1) if m else ():
        inside = (i < frames) & (value > -torch.inf)
        path[:, i] = torch.where(inside, at, -1)
        at = torch.where(inside & moves[:, i].gather(1, at[:, None])[:, 0], at - 1, at).clamp(min=0)
    return path, value.double()


def monotonic_cells(x: Tensor, path: Tensor, value: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    _, n, m = x.shape
    y = (path.unsqueeze(-1) == torch.arange(m, device=x.device)).to(x.dtype)
    return torch.where(value.isnan()[:, None, None] & _ways(n, m, frames, tokens), torch.nan, y)


def _ways(n: int, m: int, frames: Tensor, tokens: Tensor) -> Tensor:
    """Return True for cells that are reachable from the first cell and from which the last is reachable, (B, n, m)."""
    t, j = torch.arange(n, device=frames.device)[:, None], torch.arange(m, device=frames.device)
    n_of, m_of = frames[:, None, None], tokens[:, None, None]
    return (t < n_of) & (j < m_of) & (j <= t) & (m_of - 1 - j <= n_of - 1 - t) & (m_of <= n_of)
