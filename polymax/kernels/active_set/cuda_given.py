"""Structures of any kind for SparseMAP on a GPU: they come from `map`, and each iteration is a launch.

A structure has a slot for each part of the first tensor.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.active_set.cuda import Plan, places_of
from polymax.solvers.search import Search
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure, tensors


def plan(search: Search) -> Plan:
    """No tensors: `Questions` give the structures."""
    d = search.events[0].numel()
    return Plan(best, (), (512,), (1, d), d, 4)


class Questions:
    """Ask `map` for the best structures of a batch of so many instances, again and again."""

    def __init__(self, structure: Structure, scores: tuple[Tensor, ...], count: int) -> None:
        self._structure = structure
        self._scores = scores
        self._none = torch.zeros_like(scores[0]) if len(scores) > 1 else scores[0]
        self._least = torch.where(structure.best_score(*scores).reshape(count) > -torch.inf, 0.0, -torch.inf).double()

    def __call__(self, around: Tensor) -> tuple[Tensor, Tensor]:
        """The first tensors of the best structures for scores less mu, `around` (B, d); the scores of other parts."""
        first, *rest = self._scores
        y = self._structure.map(around.reshape(first.shape), *rest)
        others = self._least
        if rest:
            others = torch.where(others < 0, others, self._structure.score(y, self._none, *rest).reshape(others.shape))
        return tensors(y)[0].contiguous(), others


def slots(search: Search, start: Solution) -> Tensor:
    """Structures (*batch, k, *event) as the program lists them: (*batch, k, d)."""
    dims = len(search.events[0])
    return places_of(start.vertices, dims).flatten(-dims)


def listed(search: Search, places: Tensor) -> Tensor:
    """Structures in slots (*batch, k, d) as indicators (*batch, k, *event)."""
    return (places >= 0).double().reshape(*places.shape[:-1], *search.events[0])


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """The parts of a structure that is known already; the score of its other parts."""
    p_ys, p_others = problem
    i_b = tl.program_id(0).to(tl.int64)
    for start in range(0, width, SIZES[0]):
        o_d = start + tl.arange(0, SIZES[0])
        b_y = tl.load(p_ys + i_b * width + o_d, mask=o_d < width, other=0)
        tl.store(p_fresh + o_d, tl.where(b_y != 0, o_d, -1), mask=o_d < width)
    return tl.load(p_others + i_b)
