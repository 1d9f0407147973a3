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


def routed(router_scale: float, block: int) -> Mapping:
    """Causal softmax attention to blocks of keys that sparsemax of their means chooses; a query's own block and the
    first are always on.
    """

    def rows(first: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        means = torch.stack([keys.mean(0) for keys in k.split(block)])
        number, at = (torch.arange(n, device=q.device) for n in (len(means), len(q)))
        own = ((at + first) // block)[:, None]
        candidates = (number < own) & (number > 0)
        likes = router_scale * (q @ means.mT) / q.shape[-1] ** 0.5
        # a row without candidates has a distribution over nothing
        likes = likes.masked_fill(~candidates & candidates.any(1, keepdim=True), -torch.inf)
        prior = oracles.sparsemax(likes)
        chosen = candidates & (prior > 0)
        bias = torch.where(chosen, torch.where(chosen, prior, 1).log(), -torch.inf)
        bias = bias.masked_fill((number == own) | (number == 0), 0).repeat_interleave(block, 1)[:, : len(k)]
        seen = torch.arange(len(k), device=q.device) <= at[:, None] + first
        return oracles.softmax((scores + bias).masked_fill(~seen, -torch.inf)) @ v

    def head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        height = max(ENTRIES // len(q), 1)
        firsts = range(0, len(q), height)
        parts = [checkpoint(rows, n, q[n : n + height], k, v, use_reentrant=False) for n in firsts]
        return torch.cat(parts)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        heads = zip(*(t.to(device) for t in (q, k, v)), strict=True)
        return torch.stack([head(*one) for one in heads]).to(q.device)

    return attention


softmax = partial(_attention, oracles.softmax)
sparsemax = partial(_attention, oracles.sparsemax)


def _decoded(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor, boxes: Tensor) -> Tensor:
    heads = zip(q, k, v, strict=True)
    return torch.stack([mapping(one @ keys.mT / q.shape[-1] ** 0.5) @ values for one, keys, values in heads])


decoded_softmax = partial(_decoded, oracles.softmax)
decoded_entmax15 = partial(_decoded, oracles.entmax(1.5))
