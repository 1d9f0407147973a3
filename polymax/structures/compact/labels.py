"""Arcs with labels: conversion between indicators (n + 1, n + 1, labels) and the head and label of each token."""

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.compact import faults
from polymax.structures.compact.choices import one_hot, one_hot_or_unknown
from polymax.structures.compact.heads import allowed_heads, decode_heads, encode_heads


def encode_labels(index: Tensor, labels: int) -> Tensor:
    """Indicators (*batch, n + 1, n + 1, labels) of heads and labels (*batch, n, 2)."""
    # no label for the root symbol, which has no head
    name = torch.nn.functional.pad(one_hot(index[..., 1], labels), (0, 0, 1, 0))
    return encode_heads(index[..., 0]).unsqueeze(-1) * name.unsqueeze(-3)


def heads_and_labels(y: Tensor) -> Tensor:
    """Heads and labels (*batch, n, 2), -1 at padding, of indicators (*batch, n + 1, n + 1, labels)."""
    heads = decode_heads(y.sum(-1))
    columns = y[..., 1:, :].sum(-3)
    labels = columns.argmax(-1) if y.shape[-1] else torch.full_like(heads, -1)
    return torch.stack([heads, torch.where(heads < 0, -1, labels)], -1)


def places_with_labels(index: Tensor, labels: int) -> Tensor:
    """Heads and labels (*batch, n, 2) as places in flat scores, -1 at padding."""
    n = index.shape[-2]
    tokens = torch.arange(1, n + 1, device=index.device)
    heads, names = index.unbind(-1)
    return torch.where(heads < 0, -1, (heads * (n + 1) + tokens) * labels + names)


def check_form(index: Tensor, shape: torch.Size | None = None) -> None:
    """Refuse an index that is not heads and labels (*batch, n, 2), or does not fit scores of the shape `shape`."""
    faults.check_integers(index)
    if index.dim() < 2 or index.shape[-1] != 2:
        raise ValueError(f"index must be heads and labels of tokens, (*batch, n, 2); got {tuple(index.shape)}")
    if shape is not None:
        faults.check_shape(index, (*shape[:-3], shape[-2] - 1, 2), "heads and labels of tokens 1..n, (*batch, n, 2)")


def check_labels(index: Tensor, labels: int, unknown: bool = False) -> None:
    """Refuse labels unless exactly the tokens with a head have a label in range; `unknown` allows -2."""
    if not _check.readable(index):
        return
    heads, names = index.unbind(-1)
    known = (names >= 0) | ((names == -2) & unknown)
    bad = torch.where(heads == -1, names != -1, ~known | (names >= labels))

    def explain(instance: tuple[int, ...], place: int) -> str:
        came = int(names[(*instance, place)])
        return f"token {place + 1}{faults.of(instance)} has label {came}, not one in [0, {labels}); padding is -1"

    faults.refuse("labelled tree", bad, explain)


def allowed_arcs(index: Tensor, labels: int) -> Tensor:
    """A bool tensor of labelled arcs, shaped like the scores, that agree with heads and labels; -2 is unknown."""
    heads, names = index.unbind(-1)
    name = torch.nn.functional.pad(one_hot_or_unknown(names, labels), (0, 0, 1, 0))
    return allowed_heads(heads).unsqueeze(-1) & name.unsqueeze(-3)
