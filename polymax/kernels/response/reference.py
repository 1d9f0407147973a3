"""The response of weights and mean, in torch."""

import torch
from torch import Tensor

from polymax.kernels.active_set.tolerances import DEPENDENT


def response(
    places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor | None, d: int
) -> tuple[Tensor, Tensor]:
    at = torch.where(places < 0, d, places).long()
    flat = torch.nn.functional.pad(g.double(), (0, d + 1 - g.shape[-1])).unsqueeze(-2)
    moved = flat.expand(*at.shape[:-1], d + 1).gather(-1, at).sum(-1)
    moved = moved if h is None else moved + h
    q = torch.einsum("...kl,...l->...k", sensitivity(overlaps, probs), moved)
    q = torch.where(torch.isnan(probs), torch.nan, q)
    return mixture(places, q, d, g.dtype), q


def dense_response(rows: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the response of structures of any numbers, the rows of M (B, k, d), whose own scores do not change."""
    wide = g.double().unsqueeze(-2)
    moved = torch.where(rows == 0, 0, rows * wide).sum(-1)
    moved = torch.where(existing(overlaps, probs), moved, 0)
    q = torch.einsum("...kl,...l->...k", sensitivity(overlaps, probs), moved)
    q = torch.where(torch.isnan(probs), torch.nan, q)
    return torch.where(rows == 0, 0, rows * q.unsqueeze(-1)).sum(-2).to(g.dtype), q


def mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    at = torch.where(places < 0, d, places).long()
    spread = probs.unsqueeze(-1).expand(at.shape).flatten(-2)
    total = probs.new_zeros(*probs.shape[:-1], d + 1).scatter_add(-1, at.flatten(-2), spread)
    return total[..., :-1].to(dtype)


def sensitivity(overlaps: Tensor, probs: Tensor) -> Tensor:
    """Return Z, (*batch, k, k), 0 at structures that depend on heavier ones, and at places without a structure."""
    kept = existing(overlaps, probs)
    factor, info = torch.linalg.cholesky_ex(_among(kept, overlaps))
    if not bool((info == 0).all()) or not bool((factor.diagonal(dim1=-2, dim2=-1) > 1e-4).all()):
        kept = _independent(overlaps, kept)
        factor = torch.linalg.cholesky(_among(kept, overlaps))
    inverse = torch.where(kept.unsqueeze(-1) & kept.unsqueeze(-2), torch.cholesky_inverse(factor), 0)
    row = inverse.sum(-1)
    total = row.sum(-1, keepdim=True).unsqueeze(-1)
    return inverse - row.unsqueeze(-1) * row.unsqueeze(-2) / torch.where(total == 0, 1, total)


def existing(overlaps: Tensor, probs: Tensor) -> Tensor:
    """Return a mask (*batch, k) of existing structures: those with weight, or at least with parts."""
    return (probs > 0) | (overlaps.diagonal(dim1=-2, dim2=-1) > 0)


def _among(kept: Tensor, overlaps: Tensor) -> Tensor:
    """Return A of the structures kept, and the identity for the others."""
    both = kept.unsqueeze(-1) & kept.unsqueeze(-2)
    return torch.where(both, overlaps.double() + 1, 0) + torch.diag_embed((~kept).double())


def _independent(overlaps: Tensor, used: Tensor) -> Tensor:
    """Return a mask (*batch, k) of structures that are not affine mixes of those before them."""
    both = used.unsqueeze(-1) & used.unsqueeze(-2)
    left = torch.where(both, overlaps.double() + 1, 0)
    size = left.diagonal(dim1=-2, dim2=-1)
    kept = []
    for k in range(left.shape[-1]):
        kept.append(left[..., k, k] > DEPENDENT * size[..., k])
        column = left[..., k] / torch.where(kept[-1], left[..., k, k], 1).sqrt().unsqueeze(-1)
        column = torch.where(kept[-1].unsqueeze(-1), column, 0)
        left = left - column.unsqueeze(-1) * column.unsqueeze(-2)
    return torch.stack(kept, -1)
