"""Causal attention once more: float64, all scores of a head at once, without any kernel of polymax."""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.baselines import Mapping
from benchmarks.simplex import oracles


def _head(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return mapping(scores.masked_fill(~seen, -torch.inf)) @ v


def _attention(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # a head of 16,384 tokens has 2 GB of scores: one after the other, and on the GPU where there is one
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads = zip(*(t.to(device) for t in (q, k, v)), strict=True)
    out = [checkpoint(_head, mapping, *head, use_reentrant=False) for head in heads]
    return torch.stack(out).to(q.device)


softmax = partial(_attention, oracles.softmax)
sparsemax = partial(_attention, oracles.sparsemax)
entmax15 = partial(_attention, oracles.entmax(1.5))
