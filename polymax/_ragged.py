"""Sequences of different lengths: lists of tensors and torch's PackedSequence, as one padded tensor and back."""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence, pad_sequence

from polymax import _check

# sequences (n_k, ...) of a batch
Ragged = Sequence[Tensor] | PackedSequence


def is_ragged(series: object) -> TypeGuard[Ragged]:
    """True for a list of tensors and for a PackedSequence, which is a tuple itself."""
    return isinstance(series, PackedSequence | list | tuple)


def padded(series: Ragged, name: str, dims: int) -> tuple[Tensor, Tensor]:
    """Sequences of `dims` dims as one tensor (B, n, ...) with zeros at the end, and their lengths (B,)."""
    if isinstance(series, PackedSequence):
        whole, lengths = pad_packed_sequence(series, batch_first=True)
        if whole.dim() != dims + 1:
            raise ValueError(f"{name} must be packed sequences of {dims} dims; got data {tuple(series.data.shape)}")
        return whole, lengths.to(whole.device)
    if not series:
        raise ValueError(f"{name} must be a list of tensors, not an empty one")
    for k, t in enumerate(series):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a list of tensors; got {type(t).__name__} at {k}")
        if t.dim() != dims or t.shape[1:] != series[0].shape[1:]:
            shape = ", ".join(["n", *map(str, series[0].shape[1:])])
            raise ValueError(f"{name} must be a list of tensors ({shape}); got {tuple(t.shape)} at {k}")
        if t.dtype != series[0].dtype or t.device != series[0].device:
            came = f"{t.dtype} on {t.device} at {k}"
            raise TypeError(f"{name} must have one dtype, {series[0].dtype}, on {series[0].device}; got {came}")
    lengths = torch.tensor([len(t) for t in series], device=series[0].device)
    return pad_sequence(list(series), batch_first=True), lengths


def padded_matrices(matrices: Sequence[Tensor], name: str) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Matrices (n_k, m_k) as one tensor (B, n, m), padded with zeros, and their numbers of rows and columns (B,)."""
    if not matrices:
        raise ValueError(f"{name} must be a list of tensors, not an empty one")
    for k, t in enumerate(matrices):
        _check.floating(t, f"{name}[{k}]")
        if t.dim() != 2 or t.dtype != matrices[0].dtype or t.device != matrices[0].device:
            came = f"{tuple(t.shape)} {t.dtype} at {k}"
            raise ValueError(f"{name} must be a list of matrices (n, m) of one dtype and device; got {came}")
    n, m = (max(t.shape[d] for t in matrices) for d in (0, 1))
    whole = torch.stack([torch.nn.functional.pad(t, (0, m - t.shape[1], 0, n - t.shape[0])) for t in matrices])
    rows, columns = (torch.tensor([t.shape[d] for t in matrices], device=whole.device) for d in (0, 1))
    return whole, (rows, columns)


def like(whole: Tensor, lengths: Tensor, given: Ragged) -> Ragged:
    """Split a padded tensor (B, n, ...) into sequences of the kind that was given, in their order."""
    if not isinstance(given, PackedSequence):
        return [t[:n] for t, n in zip(whole, lengths.tolist(), strict=True)]
    order = given.sorted_indices
    if order is not None:
        whole, lengths = whole.index_select(0, order), lengths.index_select(0, order)
    packed = pack_padded_sequence(whole, lengths.cpu(), batch_first=True)
    return PackedSequence(packed.data, packed.batch_sizes, order, given.unsorted_indices)
