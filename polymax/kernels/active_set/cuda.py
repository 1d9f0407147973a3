"""SparseMAP on a GPU, by the active set: one launch for all instances where the device finds structures by itself.

Other structures come from `map`, and each turn is a launch. Structures must use a part once at most.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.active_set import cuda_step, triton_best
from polymax.kernels.arborescence.cuda import _FIELDS
from polymax.kernels.assignment.cuda import LARGEST
from polymax.kernels.chain.cuda_shapes import distinct
from polymax.kernels.triton_math import ceil_power, on_device
from polymax.solvers.rules import ActiveSet, Solution, UsedParts
from polymax.structures.assignment import Assignment
from polymax.structures.base import Structure, checked_lengths, tensors
from polymax.structures.chain import Chain
from polymax.structures.spanning_tree import SpanningTree

# room for so many structures at first; more where they do not suffice
_ROOM = 64
# entries of a tile to a thread
_ENTRIES = 16
# turns before a look at whether all instances are done, where each turn is a launch; and where none is
_TURNS, _ALL = 8, 2**30


@dataclass(frozen=True)
class _Search:
    """How the best structures are found: a function of triton_best.py, its tensors and constants, and how many warps.

    The first tensor is (height, width), flat where structures are given.
    """

    best: Any
    problem: tuple[Any, ...]
    sizes: tuple[int, ...]
    event: tuple[int, int]
    slots: int
    warps: int


@dataclass(frozen=True)
class _State:
    """What the programs know, in the shapes of cuda_step.py."""

    places: Tensor
    gram: Tensor
    system: Tensor
    fresh: Tensor
    point: tuple[Tensor, Tensor, Tensor, Tensor]
    status: Tensor
    turns: Tensor
    gap: Tensor

    def grown(self) -> "_State":
        """Twice the places; instances that had too few go on."""
        room, pad = self.places.shape[1], torch.nn.functional.pad
        system = pad(torch.cat([pad(self.system[:, :room], (0, 0, 0, room)), self.system[:, room:]], 1), (0, room))
        system[:, -2, room:] = -1
        status = torch.where(self.status == cuda_step.FULL.value, cuda_step.GOING.value, self.status)
        status = torch.where(status == cuda_step.FACE_FULL.value, cuda_step.TURN.value, status)
        return replace(
            self,
            places=pad(self.places, (0, 0, 0, room)),
            gram=pad(self.gram, (0, room, 0, room)),
            system=system,
            status=status,
        )


def solve(
    solver: ActiveSet, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None, whole: bool
) -> tuple[Solution, Tensor] | None:
    """The solution and which instances converged, (*batch,); None where there is nothing to launch, or too much."""
    lead = scores[0].dim() - structure.event_dims(*scores)[0]
    batch, event = scores[0].shape[:lead], scores[0].shape[lead:]
    if scores[0].numel() == 0 or max(event) > LARGEST:
        return None
    scores = tuple(x.double() for x in scores)
    search = _search(structure, scores, batch, event)
    state = _begin(structure, scores, start, search.slots)
    while True:
        if search.best is triton_best.best_given:
            _ask(structure, scores, search, state, solver, whole)
        else:
            _launch(search, state, solver, whole, _ALL)
        going = (state.status <= cuda_step.RENEW.value) & (state.turns < solver.max_iter)
        face = (state.status >= cuda_step.TURN.value) & (state.status < cuda_step.CONVERGED.value)
        more, on = torch.stack([(state.status >= cuda_step.FULL.value).any(), (going | face).any()]).tolist()
        if more:
            state = state.grown()
        elif not on:
            converged = (state.status >= cuda_step.CONVERGED.value).reshape(batch)
            return _solution(structure, scores, state, batch, event), converged


def _search(structure: Structure, scores: tuple[Tensor, ...], batch: torch.Size, event: torch.Size) -> _Search:
    count = batch.numel()

    def room(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.empty(count, *shape, dtype=dtype, device=scores[0].device)

    problem: tuple[Any, ...]
    match structure:
        case Chain():
            _, transition, lengths, _ = structure._flat(*scores)
            (n, s), (w, stride_b, stride_t) = event, distinct(transition)
            group = max(count // max(len(transition), 1), 1) if stride_b else 1
            problem = (w, stride_b, stride_t, group, lengths.contiguous(), room(n, s), room(n, s, dtype=torch.int32))
            height = max(ceil_power(s), 16)
            width = max(min(height, 4096 // height), 2)
            warps = min(max(height * width // 512, 1), 8)
            return _Search(triton_best.best_tags, problem, (height, width), (n, s), n, warps)
        case SpanningTree():
            _, lengths, _ = structure._flat(*scores)
            n = event[0]
            heads = torch.full((count, n - 1), -1, dtype=torch.long, device=scores[0].device)
            known = room(n, n), room(n, n, dtype=torch.int32), room(_FIELDS, 2 * n, dtype=torch.int32)
            problem = (lengths.contiguous(), *known, heads)
            sizes = (structure.single_root, _FIELDS, max(ceil_power(n), 32))
            return _Search(triton_best.best_arcs, problem, sizes, (n, n), n - 1, 1)
        case Assignment():
            n, m = event
            problem = (*_sides(structure, batch, event, scores[0].device), room(n, dtype=torch.long), room(n), room(m))
            width = max(ceil_power(max(n, m)), 32)
            return _Search(triton_best.best_cells, problem, (width,), (n, m), min(n, m), min(max(width // 128, 1), 16))
    infeasible = structure.best_score(*scores).reshape(count) == -torch.inf
    problem = (torch.where(infeasible, -torch.inf, 0.0).double(),)
    return _Search(triton_best.best_given, problem, (1,), (1, event.numel()), event.numel(), 4)


def _sides(structure: Assignment, batch: torch.Size, event: torch.Size, device: torch.device) -> list[Tensor]:
    """How many rows and columns instances have, (B,) each."""
    given = structure.lengths or (None, None)
    return [checked_lengths(t, batch, n, device, "lengths").contiguous() for t, n in zip(given, event, strict=True)]


def _begin(structure: Structure, scores: tuple[Tensor, ...], start: Solution | None, slots: int) -> _State:
    """No structure, or those of an earlier solution; the first launch computes what depends on them."""
    lead = scores[0].dim() - structure.event_dims(*scores)[0]
    first = scores[0].flatten(lead).reshape(-1, scores[0].shape[lead:].numel()).contiguous()
    count, device = len(first), first.device
    seeds = 0 if start is None else start.probs.shape[-1]
    room = max(_ROOM, ceil_power(2 * seeds))
    places = torch.full((count, room, slots), -1, dtype=torch.int32, device=device)
    system = torch.zeros(count, room + 3, room, dtype=torch.float64, device=device)
    system[:, -2] = -1
    if start is not None:
        places[:, :seeds] = _slots(structure, start).reshape(count, seeds, slots)
        b = structure.rescore(start.vertices, *scores).reshape(count, seeds)
        p = start.probs.reshape(count, seeds).double()
        # what the scores forbid is dropped
        kept = (p > 0) & (b > -torch.inf)
        system[:, -3, :seeds] = torch.where(kept, b, 0)
        system[:, -2, :seeds] = torch.where(kept, p, -1)
    # the first structure is no turn
    turns = (system[:, -2].amax(-1) >= 0).int() - 1
    return _State(
        places=places,
        gram=torch.zeros(count, room, room, device=device),
        system=system,
        fresh=torch.empty(count, slots, dtype=torch.int32, device=device),
        point=(first, torch.zeros_like(first), first.clone(), torch.empty_like(first)),
        status=torch.full_like(turns, cuda_step.RENEW.value),
        turns=turns,
        gap=torch.zeros(count, dtype=torch.float64, device=device),
    )


def _launch(search: _Search, state: _State, solver: ActiveSet, whole: bool, rounds: int) -> None:
    count, room, slots = state.places.shape
    # a vector of weights is spread over threads, too
    warps = max(search.warps, min(room // 128, 8))
    width = min(max(ceil_power(slots), 32), 256)
    rows, some = (max(min(32 * warps * e // n, room), 2) for e, n in ((_ENTRIES, room), (_ENTRIES // 2, width)))
    held, known = (state.places, state.gram, state.system), (state.status, state.turns, state.gap)
    with on_device(state.places):
        cuda_step.turns[(count,)](
            search.problem, held, state.point, state.fresh, known, *search.event, slots, rounds, solver.max_iter,
            solver.tol, int(whole), BEST=search.best, SIZES=search.sizes, K=room, BR=rows, BP=some, BU=width,
            num_warps=warps, num_stages=1,
        )  # fmt: skip


def _ask(
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: _Search,
    state: _State,
    solver: ActiveSet,
    whole: bool,
) -> None:
    """A few turns, each with the structure that `map` gives."""
    count, d = state.fresh.shape
    everywhere = torch.arange(d, dtype=torch.int32, device=state.fresh.device)
    (infeasible,) = search.problem
    for _ in range(_TURNS):
        y = structure.map(state.point[2].reshape(scores[0].shape), *scores[1:])
        state.fresh.copy_(torch.where(tensors(y)[0].reshape(count, d) != 0, everywhere, -1))
        if len(scores) > 1:
            others = structure.score(y, torch.zeros_like(scores[0]), *scores[1:]).reshape(count)
            search = replace(search, problem=(others + infeasible,))
        _launch(search, state, solver, whole, 1)


def _slots(structure: Structure, start: Solution) -> Tensor:
    """The structures of a solution by slots, (*batch, k, slots)."""
    y, batch = start.vertices, start.gap.shape
    event = y.shape[len(batch) + 1 :]
    places = torch.where(y != 0, torch.arange(event.numel(), device=y.device).reshape(event), -1)
    match structure:
        case Chain():
            return places.amax(-1)
        case SpanningTree():
            return places.amax(-2)[..., 1:]
        case Assignment():
            rows, columns = _sides(structure, batch, event, y.device)
            slots = [places.amax(dim)[..., : min(event)] for dim in (-1, -2)]
            return torch.where((rows > columns).reshape(*batch, 1, 1), slots[1], slots[0])
    return places.flatten(-len(event))


def _solution(
    structure: Structure, scores: tuple[Tensor, ...], state: _State, batch: torch.Size, event: torch.Size
) -> Solution:
    held, b, gram = state.system[:, -2], state.system[:, -3], state.gram.double()
    # heaviest first, then those of weight 0
    held, order = torch.sort(held, dim=-1, descending=True, stable=True)
    width = max(int((held >= 0).sum(-1).max()), 1)
    held, order = held[:, :width], order[:, :width]
    on, p = held >= 0, held.clamp(min=0)
    # a structure that is alone has weight 1, exactly
    total = p.sum(-1, keepdim=True)
    p = p / torch.where(total > 0, total, 1)
    rows = gram.gather(1, order.unsqueeze(-1).expand(*order.shape, gram.shape[-1]))
    overlaps = rows.gather(2, order.unsqueeze(1).expand(len(order), width, width))
    overlaps = torch.where(on.unsqueeze(-1) & on.unsqueeze(-2), overlaps, 0)
    value = (p * (b.gather(-1, order) - torch.einsum("bkl,bl->bk", overlaps, p) / 2)).sum(-1)
    value = torch.where(state.status == cuda_step.INFEASIBLE.value, -torch.inf, value)
    # MAP passes over NaN, but not where nothing else is left
    nan = state.gap.isnan()
    p = torch.where(on & nan.unsqueeze(-1), torch.nan, p)
    places = state.places.gather(1, order.unsqueeze(-1).expand(*order.shape, state.places.shape[-1]))
    places = torch.where(on.unsqueeze(-1), places, -1)
    return Solution(
        _found(structure, scores, places.reshape(*batch, width, places.shape[-1]), event),
        p.reshape(*batch, width),
        overlaps.int().reshape(*batch, width, width),
        torch.where(nan, torch.nan, value).reshape(batch),
        state.turns.clamp(min=0).long().reshape(batch),
        state.gap.clamp(min=0).reshape(batch),
    )


def _found(structure: Structure, scores: tuple[Tensor, ...], places: Tensor, event: torch.Size) -> Tensor | UsedParts:
    """Structures from what they have in the slots of the first tensor, (*batch, k, slots)."""
    if not isinstance(structure, Chain | SpanningTree | Assignment):
        return (places >= 0).double().reshape(*places.shape[:-1], *event)
    if isinstance(structure, Chain):
        n, s = event
        before, after = places[..., :-1], places[..., 1:]
        steps = n * s + (torch.arange(max(n - 1, 0), device=places.device) * s + before % s) * s + after % s
        places = torch.cat([places, torch.where(after < 0, -1, steps).int()], -1)
        if structure.lengths is not None:
            # nothing between the states of a shorter chain and its steps
            places = places.gather(-1, torch.sort((places < 0).byte(), dim=-1, stable=True).indices)
    return UsedParts(places, tuple(x.shape[places.dim() - 2 :] for x in structure.full(*scores)))
