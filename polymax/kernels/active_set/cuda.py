"""SparseMAP on a GPU by exact weights: one launch for all instances where the device finds structures by itself.

A kind of search has a file of its own, cuda_<kind>.py, with `best`, a function for Triton, and its `plan`, `slots` and
`listed`. Structures are lists of parts of the first tensor in slots: what one structure may have in a slot, no other
has in another slot, and a slot that is not used has -1. `best(problem, p_arounds, p_fresh, height, width, SIZES)` gets
the tensors of all instances and scores less mu, (B, d); it writes to `p_fresh`, and gives the score of parts in other
tensors, -inf where there is no structure. Kinds without a file come from `map`, as cuda_given.py has it.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax._function import recording
from polymax.kernels.active_set import cuda_loop
from polymax.kernels.triton_math import ceil_power, on_device
from polymax.solvers.rules import Solver
from polymax.solvers.search import Search
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure

# room for so many structures at first; more where they do not suffice
_ROOM = 64
# entries of a tile to a thread
_ENTRIES = 16
# iterations before a look at whether all instances are done, where each is a launch; and where none is
_LAUNCHES, _ALL = 8, 2**30
# the most iterations of a search that a CUDA graph records: it has places for all structures from the start
_RECORDED = 255


class Plan(NamedTuple):
    """How structures are found: a function for Triton, its tensors and constants.

    The event is (height, width), the shape of the first tensor; a structure has `slots`, and a program `warps`.
    """

    best: Any
    problem: tuple[Any, ...]
    sizes: tuple[int, ...]
    event: tuple[int, int]
    slots: int
    warps: int


def room(like: Tensor, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Memory of a program for each of the instances (B, ...) of a tensor."""
    return torch.empty(len(like), *shape, dtype=dtype, device=like.device)


def places_of(vertices: Tensor, dims: int) -> Tensor:
    """The place in a flat first tensor, of `dims` dims, of each part that structures use; -1 for the others."""
    event = vertices.shape[vertices.dim() - dims :]
    return torch.where(vertices != 0, torch.arange(event.numel(), device=vertices.device).reshape(event), -1)


@dataclass(frozen=True)
class _State:
    """What the programs know, in the shapes of cuda_loop.py."""

    places: Tensor
    gram: Tensor
    system: Tensor
    fresh: Tensor
    point: tuple[Tensor, Tensor, Tensor, Tensor]
    status: Tensor
    iterations: Tensor
    gap: Tensor

    def with_more_places(self) -> "_State":
        """The same state with twice the places; instances that had too few go on."""
        room, pad = self.places.shape[1], torch.nn.functional.pad
        system = pad(torch.cat([pad(self.system[:, :room], (0, 0, 0, room)), self.system[:, room:]], 1), (0, room))
        system[:, -2, room:] = -1
        status = torch.where(self.status == cuda_loop.FULL.value, cuda_loop.GOING.value, self.status)
        status = torch.where(status == cuda_loop.FACE_FULL.value, cuda_loop.DIRECTION.value, status)
        return replace(
            self,
            places=pad(self.places, (0, 0, 0, room)),
            gram=pad(self.gram, (0, room, 0, room)),
            system=system,
            status=status,
        )


def solve(
    solver: Solver,
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search,
    start: Solution | None,
    whole: bool,
) -> tuple[Solution, Tensor]:
    """The solution, and which instances converged, (*batch,)."""
    name = f"{__package__}.cuda_{search.kind}"
    kind: Any = import_module(name if find_spec(name) else f"{__package__}.cuda_given")
    asked = not find_spec(name)
    scores = tuple(x.double() for x in scores)
    plan = kind.plan(search)
    count = search.batch.numel()
    feasible = structure.best_score(*scores).reshape(count) > -torch.inf if asked else None
    slots = None if start is None else kind.slots(search, start.vertices).reshape(count, -1, plan.slots)
    recorded = recording(scores[0])
    if recorded and solver.max_iter > _RECORDED:
        raise ValueError(
            f"max_iter must be at most {_RECORDED} where a CUDA graph records {type(solver).__name__}; "
            f"got {solver.max_iter}"
        )
    state = _begin(structure, scores, search, start, slots, plan.slots, solver.max_iter + 1 if recorded else 0)
    while True:
        if asked:
            # structures that span a face come after the iterations
            for _ in range(2 * solver.max_iter + 2 if recorded else _LAUNCHES):
                others = kind.question(structure, scores, feasible, state.point[2], state.fresh)
                _launch(plan._replace(problem=others), state, solver, whole, 1)
        else:
            _launch(plan, state, solver, whole, _ALL)
        if recorded:
            # nothing can be read: places for all structures stay, and no one knows who has converged
            return _solution(kind, search, state, state.places.shape[1]), state.status >= cuda_loop.CONVERGED.value
        most, on, largest, least = _progress(state, solver.max_iter)
        if largest >= cuda_loop.FULL.value:
            state = state.with_more_places()
        elif not on:
            break
    if least >= cuda_loop.CONVERGED.value:
        # on the CPU, where to look at it costs nothing
        converged = torch.ones(search.batch, dtype=torch.bool)
    else:
        converged = (state.status >= cuda_loop.CONVERGED.value).reshape(search.batch)
    return _solution(kind, search, state, max(most, 1)), converged


def _progress(state: _State, max_iter: int) -> list[int]:
    """The most structures of an instance, if any is still to go on, and the largest and least status, in one read."""
    going = (state.status <= cuda_loop.RENEW.value) & (state.iterations < max_iter)
    face = (state.status >= cuda_loop.DIRECTION.value) & (state.status < cuda_loop.CONVERGED.value)
    held = (state.system[:, -2] >= 0).sum(-1, dtype=torch.int32)
    most, on, largest, least = torch.stack([held, (going | face).int(), state.status, -state.status]).amax(1).tolist()
    return [most, on, largest, -least]


def _begin(
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search,
    start: Solution | None,
    given: Tensor | None,
    slots: int,
    least: int,
) -> _State:
    """No structure, or those of an earlier solution; the first launch computes what depends on them.

    There are places for at least so many structures.
    """
    count, device = search.batch.numel(), scores[0].device
    first = scores[0].reshape(count, search.events[0].numel()).contiguous()
    seeds = 0 if given is None else given.shape[1]
    room = max(_ROOM, ceil_power(max(2 * seeds, least)))
    places = torch.full((count, room, slots), -1, dtype=torch.int32, device=device)
    system = torch.zeros(count, room + 3, room, dtype=torch.float64, device=device)
    system[:, -2] = -1
    if start is not None:
        places[:, :seeds] = given
        b = structure.rescore(start.vertices, *scores).reshape(count, seeds)
        p = start.probs.reshape(count, seeds).double()
        # what the scores forbid is dropped
        kept = (p > 0) & (b > -torch.inf)
        system[:, -3, :seeds] = torch.where(kept, b, 0)
        system[:, -2, :seeds] = torch.where(kept, p, -1)
    # the first structure is no iteration
    iterations = (system[:, -2].amax(-1) >= 0).int() - 1
    return _State(
        places=places,
        gram=torch.zeros(count, room, room, device=device),
        system=system,
        fresh=torch.empty(count, slots, dtype=torch.int32, device=device),
        point=(first, torch.zeros_like(first), first.clone(), torch.empty_like(first)),
        status=torch.full_like(iterations, cuda_loop.RENEW.value),
        iterations=iterations,
        gap=torch.zeros(count, dtype=torch.float64, device=device),
    )


def _launch(plan: Plan, state: _State, solver: Solver, whole: bool, rounds: int) -> None:
    count, room, slots = state.places.shape
    # a vector of weights is spread over threads, too
    warps = max(plan.warps, min(room // 128, 8))
    width = min(max(ceil_power(slots), 32), 256)
    rows, some = (max(min(32 * warps * e // n, room), 2) for e, n in ((_ENTRIES, room), (_ENTRIES // 2, width)))
    held, known = (state.places, state.gram, state.system), (state.status, state.iterations, state.gap)
    with on_device(state.places):
        cuda_loop.iterate[(count,)](
            plan.problem, held, state.point, state.fresh, known, *plan.event, slots, rounds, solver.max_iter,
            solver.tol, int(whole), BEST=plan.best, SIZES=plan.sizes, K=room, BR=rows, BP=some, BU=width,
            num_warps=warps, num_stages=1,
        )  # fmt: skip


def _solution(kind: Any, search: Search, state: _State, width: int) -> Solution:
    """The structures in the first `width` places, heaviest first."""
    batch = search.batch
    held, b, gram = state.system[:, -2], state.system[:, -3], state.gram.double()
    # heaviest first, then those of weight 0
    held, order = torch.sort(held, dim=-1, descending=True, stable=True)
    held, order = held[:, :width], order[:, :width]
    on, p = held >= 0, held.clamp(min=0)
    # a structure that is alone has weight 1, exactly
    total = p.sum(-1, keepdim=True)
    p = p / torch.where(total > 0, total, 1)
    rows = gram.gather(1, order.unsqueeze(-1).expand(*order.shape, gram.shape[-1]))
    overlaps = rows.gather(2, order.unsqueeze(1).expand(len(order), width, width))
    overlaps = torch.where(on.unsqueeze(-1) & on.unsqueeze(-2), overlaps, 0)
    value = (p * (b.gather(-1, order) - torch.einsum("bkl,bl->bk", overlaps, p) / 2)).sum(-1)
    value = torch.where(state.status == cuda_loop.INFEASIBLE.value, -torch.inf, value)
    # MAP passes over NaN, but not where nothing else is left
    nan = state.gap.isnan()
    p = torch.where(on & nan.unsqueeze(-1), torch.nan, p)
    places = state.places.gather(1, order.unsqueeze(-1).expand(*order.shape, state.places.shape[-1]))
    places = torch.where(on.unsqueeze(-1), places, -1)
    return Solution(
        kind.listed(search, places.reshape(*batch, width, places.shape[-1])),
        p.reshape(*batch, width),
        overlaps.int().reshape(*batch, width, width),
        torch.where(nan, torch.nan, value).reshape(batch),
        state.iterations.clamp(min=0).long().reshape(batch),
        state.gap.clamp(min=0).reshape(batch),
    )
