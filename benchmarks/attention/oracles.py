"""Causal attention once more: float64, all scores at once, without any kernel of polymax."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.baselines import Mapping
from benchmarks.simplex import oracles


def _attention(mapping: Mapping, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return mapping(scores.masked_fill(~seen, -torch.inf)) @ v


softmax = partial(_attention, oracles.softmax)
sparsemax = partial(_attention, oracles.sparsemax)
entmax15 = partial(_attention, oracles.entmax(1.5))
