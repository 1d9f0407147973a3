"""Causal attention, and that of one query, once more: float64, from all scores, without any kernel of polymax."""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.baselines import Mapping
from benchmarks.simplex import oracles

# scores that are held at once: those of 16,384 tokens, or of some rows of more
ENTRIES = 1 << 28


def _rows(mapping: Mapping, first: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Contexts of queries from `first` on, which see the keys up to their own."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(first)
    return mapping(scores.masked_fill(~seen, -torch.inf)) @ v


def _head(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    height, out = max(ENTRIES // len(q), 1), []
    for first in range(0, len(q), height):
        end = min(first + height, len(q))
        out.append(checkpoint(_rows, mapping, first, q[first:end], k[:end], v[:end], use_reentrant=False))
    return torch.cat(out)


def _attention(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads = zip(*(t.to(device) for t in (q, k, v)), strict=True)
    return torch.stack([_head(mapping, *head) for head in heads]).to(q.device)


def causal(alpha: float) -> Mapping:
    """Causal attention by entmax."""
    return partial(_attention, oracles.entmax(alpha))


def padded(alpha: float) -> Mapping:
    """Attention by entmax, or by softmax for alpha 1, to all keys but the last quarter."""
    mapping = oracles.softmax if alpha == 1 else oracles.entmax(alpha)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        kept = k.shape[-2] - k.shape[-2] // 4
        x, y, z = (t.to(device) for t in (q, k[:, :kept], v[:, :kept]))
        return (mapping(x @ y.mT / q.shape[-1] ** 0.5) @ z).to(q.device)

    return attention


softmax = partial(_attention, oracles.softmax)
sparsemax = partial(_attention, oracles.sparsemax)


def _decoded(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor, boxes: Tensor) -> Tensor:
    heads = zip(q, k, v, strict=True)
    return torch.stack([mapping(one @ keys.mT / q.shape[-1] ** 0.5) @ values for one, keys, values in heads])


decoded_softmax = partial(_decoded, oracles.softmax)
decoded_entmax15 = partial(_decoded, oracles.entmax(1.5))
