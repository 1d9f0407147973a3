"""SparseMAP on a GPU by exact weights: one launch for all instances where the device finds structures by itself.

A kind of search has a file, kernels/active_set/cuda_<kind>.py, with `best`, a function for Triton, and its `plan`,
`slots` and `listed`. Structures are lists of parts of the first tensor in slots: what one structure may have in a slot,
no other has in another slot, and a slot that is not used has -1. `best(problem, p_arounds, p_fresh, height, width,
SIZES)` gets the tensors of all instances and scores less mu, (B, d); it writes to `p_fresh`, and gives the score of
parts in other tensors, -inf where there is no structure. Structures of kinds without a file come from `map`, which
questions.py asks.

Functions that take and give numbers and addresses alone are `noinline`: the time in which Triton compiles a function
grows with more than the square of its size, and what is called twice is compiled once.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.function import recording
from polymax.backend.triton_ahead import apart, rehearse
from polymax.backend.triton_calls import Remembered
from polymax.backend.triton_math import ceil_power, here, on_device
from polymax.backend.triton_ready import Room, Rooms, alike, possible
from polymax.kernels import active_set
from polymax.kernels.active_set import cuda_loop
from polymax.kernels.active_set.cuda_face import span
from polymax.kernels.active_set.cuda_plan import Plan
from polymax.kernels.active_set.cuda_solution import ordered
from polymax.kernels.active_set.cuda_start import prepare
from polymax.kernels.active_set.cuda_state import State
from polymax.kernels.active_set.problem import Search
from polymax.kernels.response.cuda import mixture, response
from polymax.kernels.response.cuda_kept import add_shared
from polymax.solvers.loops.cuda_known import KnownCall, Memory, mean_shapes
from polymax.solvers.loops.limits import FEW
from polymax.solvers.loops.questions import Questions
from polymax.solvers.loops.rule import Rule
from polymax.solvers.reduced import LARGEST_SCORE, all_small
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure

# room for so many structures at first, 8 at least; more where they do not suffice
_ROOM = 64
# the most places for structures that are likely to come
_LIKELY = 256
# entries of a tile to a thread, where places are few and where they are many: large tiles take longer to compile
_ENTRIES = 16, 32
# kinds whose structures are listed as programs leave them, from tensors of the search alone
_REPEATED = ("tags", "counted_tags", "arcs", "cells")
_CALLS = Remembered()
# iterations before a look at whether all instances are done, where each is a launch; and where none is
_LAUNCHES, _ALL = 8, 2**30
# so few are read as a list
_FEW_INSTANCES = 64
# kinds of problems that were called before
_ahead: set[Any] = set()


@cache
def _kind(name: str) -> tuple[Any, bool]:
    """The file of a kind of search, and if `map` is asked, for want of one."""
    file = f"{active_set.__name__}.cuda_{name}"
    asked = find_spec(file) is None
    return import_module(f"{active_set.__name__}.cuda_given" if asked else file), asked


def solve(
    solver: Rule,
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search,
    start: Solution | None,
    whole: bool,
    wary: bool = False,
) -> tuple[Solution, Tensor | None] | None:
    """The solution, and which instances converged, (*batch,), or None for all; if wary, None where scores are large."""
    # who is wary may read
    recorded = not wary and recording(scores[0])
    if start is not None or recorded or not possible() or not here(scores[0]):
        return _solve(solver, structure, scores, search, start, whole, wary, recorded)
    call = _known_call(solver, len(scores), search, whole, wary)
    if call is None:
        return _solve(solver, structure, scores, search, start, whole, wary, recorded)
    memory = call.run(search)
    most, least_status, largest, on = _progress(memory.known, solver.max_iter)
    if largest == cuda_loop.LARGE.value:
        return None
    if largest >= cuda_loop.FULL.value or on:
        # more places are needed, and will be by the next such call
        call.suffices = False
        return _solve(solver, structure, scores, search, start, whole, False, recorded)
    all_done = least_status >= cuda_loop.CONVERGED.value
    converged = None if all_done else (memory.known[0] >= cuda_loop.CONVERGED.value).reshape(search.batch)
    return call.solution(memory, max(most, 1)), converged


def _known_call(solver: Rule, tensors: int, search: Search, whole: bool, wary: bool) -> KnownCall | None:
    """What calls of this kind launch, found at the first of them; None where they differ from call to call."""
    if search.kind not in _REPEATED:
        return None
    first = search.tensors[0]
    limits: tuple[float, ...] = solver.max_iter, solver.tol, whole, wary
    # tensors that are one at the first call are told apart at no other
    places = [t.data_ptr() for t in search.tensors]
    limits += tuple(map(places.index, places))
    key = search.kind, search.batch, search.events, search.options, limits, first.device, *map(alike, search.tensors)
    found = _CALLS.get(key)
    if found is None:
        found = _CALLS.put(key, (_make_call(solver, tensors, search, whole, wary),))
    (call,) = found
    return call if call is not None and call.suffices else None


def _make_call(solver: Rule, tensors: int, search: Search, whole: bool, wary: bool) -> KnownCall | None:
    kind, _ = _kind(search.kind)
    plan: Plan = kind.plan(search)
    first, count, d = search.tensors[0], search.batch.numel(), search.events[0].numel()
    # programs look at all scores, as they are in memory, or none does
    if not first.is_contiguous() or (wary and tensors > 1 and plan.others is None):
        return None
    places = _places(solver, plan, 0)
    if whole:
        _rehearse_recording(solver, places, search, first.dtype)
    arrays = State.rooms(count, d, plan.slots, places)
    # the last is for the sums of a mean
    sums = sum(map(torch.Size.numel, mean_shapes(search)))
    rooms = Rooms([*arrays, *[x for x in plan.problem if isinstance(x, Room)], Room(torch.float64, (sums,))])
    memory = Memory.of(rooms, count, first.device)
    views = rooms.tensors(memory.own)
    mine = iter(views[len(arrays) :])
    state = State.of(views[: len(arrays)], memory.known)
    plan = plan._replace(problem=tuple(next(mine) if isinstance(x, Room) else x for x in plan.problem))
    launch = _Launcher(solver, first.reshape(count, d), whole, wary)
    _compile_ahead(launch, search, plan, state, 0, known=True)
    launches = launch.calls(plan, state, _ALL, True)
    return KnownCall.of(rooms, memory, launches, search, search.most if plan.states else plan.slots, plan.states)


def _solve(
    solver: Rule,
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search,
    start: Solution | None,
    whole: bool,
    wary: bool,
    recorded: bool,
) -> tuple[Solution, Tensor | None] | None:
    """The same for calls of any kind."""
    kind, asked = _kind(search.kind)
    plan: Plan = kind.plan(search)
    # programs look at all scores, or none does
    looked = not asked and start is None and (len(scores) == 1 or plan.others is not None)
    if wary and not looked and not all_small(scores):
        return None
    if recorded and solver.max_iter > FEW:
        raise ValueError(
            f"max_iter must be at most {FEW} where a CUDA graph records {type(solver).__name__}; got {solver.max_iter}"
        )
    count = search.batch.numel()
    given = scores[0].reshape(count, search.events[0].numel()).contiguous()
    device = given.device
    seeds = 0 if start is None else start.probs.shape[-1]
    places = _places(solver, plan, seeds)
    if whole and not recorded and not asked:
        _rehearse_recording(solver, places, search, scores[0].dtype)
    arrays = [room.new(device) for room in State.rooms(count, given.shape[1], plan.slots, places)]
    state = State.of(arrays, torch.empty((3, count), dtype=torch.int32, device=device))
    plan = plan._replace(problem=tuple(x.new(device) if isinstance(x, Room) else x for x in plan.problem))
    launch = _Launcher(solver, given, whole, wary and looked)
    if not (asked or recorded):
        _compile_ahead(launch, search, plan, state, seeds)
    first = True
    if asked or start is not None:
        launch(plan._replace(problem=(state.gaps, state.gaps)) if asked else plan, state, 0, first)
        first = False
        scores = tuple(x.double() for x in scores)
    if start is not None:
        slots = kind.slots(search, start.found).reshape(count, seeds, plan.slots)
        b = start.rescore(structure, *scores).reshape(count, seeds)
        state = state.with_seeds(slots, b, start.probs.reshape(count, seeds).double())
    ask: Any = Questions(structure, scores, count) if asked else None
    while True:
        if asked:
            # structures that span a face come after the iterations
            for _ in range(2 * solver.max_iter + 2 if recorded else _LAUNCHES):
                launch(plan._replace(problem=ask(state.point[2])), state, 1, False)
        else:
            launch(plan, state, _ALL, first)
        first = False
        if recorded:
            # nothing can be read: places for all structures stay, and no one knows who has converged
            return _solution(kind, search, plan, state, state.held[0].shape[1]), None
        most, least_status, largest, on = _progress(state.known, solver.max_iter)
        if largest == cuda_loop.LARGE.value:
            return None
        if largest >= cuda_loop.FULL.value:
            state = state.with_more_places()
        elif not on:
            break
    all_done = least_status >= cuda_loop.CONVERGED.value
    converged = None if all_done else (state.known[0] >= cuda_loop.CONVERGED.value).reshape(search.batch)
    return _solution(kind, search, plan, state, max(most, 1)), converged


def _places(solver: Rule, plan: Plan, seeds: int) -> int:
    """Places for structures, at first."""
    least = solver.max_iter + 1 if solver.max_iter <= FEW else min(plan.likely, _LIKELY)
    return max(_ROOM, ceil_power(max(seeds + min(seeds, _ROOM), least)))


def _rehearse_recording(solver: Rule, places: int, search: Search, dtype: torch.dtype) -> None:
    """A search that may be recorded takes the same programs before: none can be compiled while a graph is recorded."""
    if solver.max_iter <= FEW:
        _rehearse(places, search.most, sum(map(torch.Size.numel, search.events)), dtype, search.tensors[0].device)


@cache
def _rehearse(places: int, parts: int, d: int, dtype: torch.dtype, device: torch.device) -> None:
    """Respond with all places once, as a recorded call does: its kernel is compiled then."""
    lists = torch.full((1, places, parts), -1, dtype=torch.int32, device=device)
    probs, overlaps = torch.zeros(1, places, dtype=torch.float64, device=device), lists.new_zeros(1, places, places)
    response(lists, overlaps, probs, torch.zeros(1, d, dtype=dtype, device=device), None, d)


def _progress(known: Tensor, max_iter: int) -> tuple[int, int, int, bool]:
    """The most structures of an instance, the least and the largest status, and if any is to go on, in one read."""
    there = known.cpu()
    if there.shape[1] <= _FEW_INSTANCES:
        # lists take less than arrays
        statuses, _, counts = there.tolist()
        least, largest, most = min(statuses), max(statuses), max(counts)
        if least >= cuda_loop.CONVERGED.value:
            return most, least, largest, False
    status, iterations, held = there.numpy()
    least, largest = int(status.min()), int(status.max())
    on = False
    if least < cuda_loop.CONVERGED.value:
        face = (status >= cuda_loop.DIRECTION.value) & (status < cuda_loop.CONVERGED.value)
        on = bool((face | ((status <= cuda_loop.RENEW.value) & (iterations < max_iter))).any())
    return int(held.max()), least, largest, on


class _Launcher(NamedTuple):
    """What all launches of a call share."""

    solver: Rule
    given: Tensor
    whole: bool
    wary: bool

    def __call__(self, plan: Plan, state: State, rounds: int, first: bool) -> None:
        """Up to so many rounds of each instance; at first, nothing is known."""
        with on_device(self.given):
            for kernel, options, args in self.calls(plan, state, rounds, first):
                kernel[(len(state.fresh),)](*args, **options)

    def options(self, plan: Plan, state: State) -> dict[str, Any]:
        """What kernels are compiled for."""
        _, room, slots = state.held[0].shape
        # a vector of weights is spread over threads, too
        warps = max(plan.warps, min(room // 64, 8) if room > 64 else 1)
        width = min(max(ceil_power(slots), 32), 256)
        tile = 32 * warps * _ENTRIES[room > _ROOM]
        rows, some = max(min(tile // room, room), 2), max(min(tile // width, room), 2)
        sizes = {"K": room, "BR": rows, "BP": some, "BU": width, "BS": plan.columns}
        return {"BEST": plan.best, "SIZES": plan.sizes, **sizes, "num_warps": warps, "num_stages": 1}

    def calls(self, plan: Plan, state: State, rounds: int, first: bool) -> list[tuple[Any, dict[str, Any], Any]]:
        """Kernels, what each of them is compiled for, and what it takes."""
        options = self.options(plan, state)
        others = self.given if plan.others is None else plan.others
        total = 0 if plan.others is None else others.numel()
        known = plan.problem, state.held, state.point, state.fresh, state.known
        sizes = *plan.event, state.fresh.shape[1], rounds
        numbers = self.solver.max_iter, self.solver.tol, int(self.whole), int(first)
        look = self.given, others, total, int(self.wary), LARGEST_SCORE
        found = [(cuda_loop.iterate, {**options, "QUICK": plan.quick}, (*known, state.gaps, *sizes, *numbers, *look))]
        return [*found, (span, options, (*known, *sizes))] if self.whole and rounds else found

    def span(self, plan: Plan, state: State) -> None:
        """The faces of instances that have converged."""
        _, (kernel, options, args) = self.calls(plan, state, _ALL, False)
        kernel[(len(state.fresh),)](*args, **options)


def _compile_ahead(
    launch: _Launcher, search: Search, plan: Plan, state: State, seeds: int, known: bool = False
) -> None:
    """Have what comes after the loop compiled meanwhile, at the first call of its kind, known or not."""
    dtype, device = launch.given.dtype, torch.device("meta")
    kind = search.kind, plan.sizes, plan.slots, state.held[0].shape[1], dtype, launch.whole, seeds > 0, known
    if kind in _ahead or not launch.given.is_cuda:
        return
    _ahead.add(kind)
    count, d = search.batch.numel(), sum(map(torch.Size.numel, search.events))
    parts = search.most if plan.states else plan.slots
    # how many structures there will be is not known yet
    k = plan.likely or plan.slots
    lists = torch.empty((count, k, parts), dtype=torch.int32, device=device)
    probs, overlaps = lists.new_empty(count, k, dtype=torch.float64), lists.new_empty(count, k, k)
    sums = probs.new_empty(count, d)
    # what takes longest comes first
    if launch.whole:
        apart(launch.span, plan, state)
        rehearse(response, lists, overlaps, probs, sums.to(dtype), None, d)
    if seeds:
        rehearse(prepare, state.held, seeds)
    rehearse(ordered, state.held, state.known, state.gaps, search.batch, k, parts, plan.states, dtype)
    if not known or not mean_shapes(search):
        rehearse(mixture, lists, probs, d, dtype)
    if known and launch.whole and len(search.events) > 1:
        rehearse(add_shared, sums, sums.to(dtype), (1, 1, d, 0, d))


def _solution(kind: Any, search: Search, plan: Plan, state: State, width: int) -> Solution:
    """The structures in the first `width` places, heaviest first."""
    parts = search.most if plan.states else plan.slots
    dtype = search.tensors[0].dtype
    places, *others = ordered(state.held, state.known, state.gaps, search.batch, width, parts, plan.states, dtype)
    return Solution(kind.listed(search, places), *others)
