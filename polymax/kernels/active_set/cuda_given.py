"""Structures of any kind for SparseMAP on a GPU: they come from `map`, and each iteration is a launch.

A structure has a slot for each part of the first tensor.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.active_set.cuda import Plan, places_of
from polymax.solvers.search import Search
from polymax.structures.base import Structure, tensors


def plan(search: Search) -> Plan:
    """No tensors: `question` gives the structures."""
    d = search.events[0].numel()
    return Plan(best, (), (1,), (1, d), d, 4)


def question(
    structure: Structure, scores: tuple[Tensor, ...], feasible: Tensor, around: Tensor, fresh: Tensor
) -> tuple[Tensor]:
    """Write the best structure for scores less mu, `around` (B, d), to its slots; the scores of its other parts."""
    count, d = fresh.shape
    y = structure.map(around.reshape(scores[0].shape), *scores[1:])
    everywhere = torch.arange(d, dtype=torch.int32, device=fresh.device)
    fresh.copy_(torch.where(tensors(y)[0].reshape(count, d) != 0, everywhere, -1))
    others = structure.score(y, torch.zeros_like(scores[0]), *scores[1:]).reshape(count).double()
    return (torch.where(feasible, others, -torch.inf),)


def slots(search: Search, vertices: Tensor) -> Tensor:
    """Structures (*batch, k, *event) as the program lists them: (*batch, k, d)."""
    dims = len(search.events[0])
    return places_of(vertices, dims).flatten(-dims)


def listed(search: Search, places: Tensor) -> Tensor:
    """Structures in slots (*batch, k, d) as indicators (*batch, k, *event)."""
    return (places >= 0).double().reshape(*places.shape[:-1], *search.events[0])


@triton.jit
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """A structure that is in `p_fresh` already; the score of its other parts."""
    return tl.load(problem[0] + tl.program_id(0))
