"""Dependency trees as heads: conversion from and to arcs (n + 1, n + 1), and enumeration of all trees."""

import itertools

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.compact.faults import check_integers


def encode_heads(heads: Tensor) -> Tensor:
    """Arcs (*batch, n + 1, n + 1) of heads (*batch, n) of tokens 1..n, 0 the root symbol, -1 at padding."""
    check_integers(heads)
    if heads.dim() < 1:
        raise ValueError(f"index must be heads (*batch, n) of tokens 1..n; got {tuple(heads.shape)}")
    n = heads.shape[-1]
    if _check.readable(heads) and heads.numel() and bool(((heads < -1) | (heads > n)).any()):
        came = int(heads[(heads < -1) | (heads > n)][0])
        raise ValueError(f"heads must be in [0, {n}], or -1 at padding; got {came}")
    candidates = torch.arange(n + 1, device=heads.device).unsqueeze(-1)
    return torch.nn.functional.pad((heads.unsqueeze(-2) == candidates).float(), (1, 0))


def decode_heads(y: Tensor) -> Tensor:
    """Heads (*batch, n) of tokens 1..n from arcs (*batch, n + 1, n + 1); -1 for tokens without a head."""
    arcs = y[..., 1:]
    return torch.where((arcs == 0).all(-2), -1, arcs.argmax(-2))


def places_of(heads: Tensor) -> Tensor:
    """Heads (*batch, n) as places in flat arcs, -1 at padding."""
    n = heads.shape[-1]
    tokens = torch.arange(1, n + 1, device=heads.device)
    return torch.where(heads < 0, -1, heads * (n + 1) + tokens)


def allowed_heads(heads: Tensor) -> Tensor:
    """A bool tensor (*batch, n + 1, n + 1) of the arcs that agree with heads (*batch, n), in which -2 is unknown."""
    candidates = torch.arange(heads.shape[-1] + 1, device=heads.device).unsqueeze(-1)
    arcs = (heads.unsqueeze(-2) == candidates) | (heads == -2).unsqueeze(-2)
    return torch.nn.functional.pad(arcs, (1, 0))


def trees(n: int, single_root: bool) -> list[tuple[int, ...]]:
    """The heads of every dependency tree over n tokens."""
    found = []
    for heads in itertools.product(range(n + 1), repeat=n):
        rooted = not single_root or n == 0 or heads.count(0) == 1
        if rooted and all(h != m for m, h in enumerate(heads, 1)) and _reaches_root(heads):
            found.append(heads)
    return found


def crosses(heads: tuple[int, ...]) -> bool:
    """True if two arcs cross, with the root symbol to the left of all tokens."""
    arcs = [(min(h, m), max(h, m)) for m, h in enumerate(heads, 1)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


def _reaches_root(heads: tuple[int, ...]) -> bool:
    for m in range(1, len(heads) + 1):
        for _ in heads:
            m = heads[m - 1] if m else 0
        if m:
            return False
    return True
