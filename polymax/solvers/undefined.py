"""Instances with a NaN or +inf among their scores: their results are NaN, and other instances are not affected.

Such a score counts if a structure of the set can use the part, even if other scores of -inf forbid it. Then the value,
the weights, every part of mu that a structure can use, and all their derivatives are NaN. Parts that no structure can
use stay exactly 0.
"""

import torch
from torch import Tensor

from polymax.structures.base import Structure


def undefined_parts(structure: Structure, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """The parts of mu that are NaN, a bool tensor for each score tensor in its full shape; None if there are none."""
    # a sum is NaN or +inf if a term is, and seldom otherwise
    if all(bool(x.detach().sum() < torch.inf) for x in scores):
        return None
    full = structure.full(*(x.detach() for x in scores))
    dims = structure.event_dims(*full)
    masks = structure.usable(*full)
    found = [(_unknown(x) & m).flatten(x.dim() - d).any(-1) for x, m, d in zip(full, masks, dims, strict=True)]
    undefined = torch.stack(found).any(0)
    if not bool(undefined.any()):
        return None
    return tuple(
        (undefined.reshape(*undefined.shape, *[1] * d) & m).expand(x.shape)
        for x, m, d in zip(full, masks, dims, strict=True)
    )


def _unknown(x: Tensor) -> Tensor:
    """True at scores that are NaN or +inf."""
    return ~(x < torch.inf)


def instances(structure: Structure, undefined: tuple[Tensor, ...]) -> Tensor:
    """A bool tensor (*batch,), True for undefined instances."""
    dims = structure.event_dims(*undefined)[0]
    return undefined[0].flatten(undefined[0].dim() - dims).any(-1)


def infeasible_instead(
    structure: Structure, scores: tuple[Tensor, ...], undefined: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Scores without NaN and +inf; undefined instances get scores that allow no structure, so that loops skip them."""
    dims, bad = structure.event_dims(*undefined), instances(structure, undefined)
    changed = []
    for k, (x, full, d) in enumerate(zip(scores, structure.full(*scores), dims, strict=True)):
        if k == 0 or bool(_unknown(x).any()):
            x = torch.where(bad.reshape(*bad.shape, *[1] * d), 0 if k else -torch.inf, full)
            # the remaining NaN and +inf are at parts that no structure can use
            x = torch.where(_unknown(x), 0, x)
        changed.append(x)
    return tuple(changed)


def with_nan(parts: tuple[Tensor, ...], undefined: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    """The tensors of parts, with NaN at undefined parts."""
    if undefined is None:
        return parts
    return tuple(torch.where(m, torch.nan, x) for x, m in zip(parts, undefined, strict=True))


def nan_of(structure: Structure, scores: tuple[Tensor, ...], undefined: tuple[Tensor, ...]) -> Tensor:
    """NaN for every instance, (*batch,), with derivatives of NaN in the undefined parts and 0 in the others."""
    total: Tensor | float = 0.0
    for x, m, d in zip(structure.full(*scores), undefined, structure.event_dims(*undefined), strict=True):
        total = total + torch.where(m, x.double(), 0).flatten(m.dim() - d).sum(-1)
    return torch.as_tensor(total * torch.nan)
