"""Scores so large that digits of mu would be lost in their sums, with what all structures share taken off.

Only differences of structures matter, and those of structures that have weight are at most the number of their parts,
however large the scores are. Potentials that every structure adds up to the same total make the scores of the best
structure 0, and those of the others as small as they can be. The potentials are floats, and what is left of a score is
rounded once, so that sums lose nothing that counts. A set says which potentials it has: `Structure.potentials`.

Dynamic programs do the same with the values of their nodes, in kernels/active_set/cpu_derivations.py.
"""

import torch
from torch import Tensor

from polymax.backend.function import largest
from polymax.structures.base import Structure

# with scores of this size, sums err by as much as the solvers' own arithmetic
LARGEST_SCORE = 1e3


def all_small(scores: tuple[Tensor, ...]) -> bool:
    """True if no score is large, infinite or NaN."""
    # NaN compares as False
    return largest(scores) <= LARGEST_SCORE


def reduce_scores(structure: Structure, scores: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor] | None:
    """Scores with the same solution, and how much less structures have by them, (*batch,); None where none is large."""
    full = tuple(x.double() for x in structure.full(*scores))
    dims = structure.event_dims(*full)
    sizes = [torch.where(x.isfinite(), x, 0).abs().flatten(x.dim() - d) for x, d in zip(full, dims, strict=True)]
    large = (
        torch.stack([s.amax(-1) > LARGEST_SCORE for s in sizes if s.shape[-1]], -1).any(-1) if full[0].numel() else None
    )
    found = structure.potentials(*full) if large is not None and bool(large.any()) else None
    if large is None or found is None:
        return None
    less, total = found
    # one without a structure, or with infinite scores, stays as it is
    large = large & total.isfinite()
    chosen = tuple(
        torch.where(large.reshape(*large.shape, *[1] * d), y, x) for y, x, d in zip(less, full, dims, strict=True)
    )
    return chosen, torch.where(large, total, 0)
