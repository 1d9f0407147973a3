"""Large scores, reduced by potentials that shift all structures alike, so that sums do not lose digits of mu.

Only differences between structures matter. Between structures with weight they are at most the number of parts, however
large the scores are. The potentials add up to the same total on every structure. With them subtracted, the best
structure has a score of 0, and the other scores are as small as possible. Potentials are floats and each reduced score
is rounded once, so that sums stay exact enough. `Structure.potentials` gives the potentials of a set.

Dynamic programs are reduced in a similar way by the values of their nodes: kernels/active_set/cpu_derivations.py.
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
    """Smaller scores with the same solution, and the total (*batch,) taken off every structure.

    None if no score is large, or if the set has no potentials.
    """
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
    # instances without a structure, or with infinite scores, are not reduced
    large = large & total.isfinite()
    chosen = tuple(
        torch.where(large.reshape(*large.shape, *[1] * d), y, x) for y, x, d in zip(less, full, dims, strict=True)
    )
    return chosen, torch.where(large, total, 0)
