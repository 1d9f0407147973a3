"""SparseMAP on a GPU by exact weights: one launch for all instances if a kernel finds the best structures.

A kind of search has a file, kernels/active_set/cuda_<kind>.py, with `best`, a function for Triton, and its `plan`,
`slots` and `listed`. Structures are lists of parts of the first tensor in slots: a part can stand in one slot only, and
-1 marks an unused slot. `best(problem, p_arounds, p_fresh, height, width, SIZES)` takes the tensors of all instances
and scores less mu, (B, d). It writes a structure to `p_fresh`, and returns the score of its parts in other tensors, or
-inf if the instance has no structure. For kinds without a file, questions.py calls `map`.

Functions that take and return only numbers and addresses are `noinline`: the time to compile a Triton function grows
faster than the square of its size, and a function called twice is compiled once.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.function import recording
from polymax.backend.triton_math import ceil_power, on_device
from polymax.backend.triton_memory import Array, new
from polymax.kernels import active_set
from polymax.kernels.active_set import cuda_loop
from polymax.kernels.active_set.cuda_face import span
from polymax.kernels.active_set.cuda_plan import Plan
from polymax.kernels.active_set.cuda_solution import ordered
from polymax.kernels.active_set.cuda_state import State
from polymax.kernels.active_set.problem import Search
from polymax.kernels.response.cuda import response
from polymax.solvers.loops.limits import FEW
from polymax.solvers.loops.questions import Questions
from polymax.solvers.loops.rule import Rule
from polymax.solvers.reduced import LARGEST_SCORE, all_small
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure

# places for structures at first, at least 8; increased until they suffice
_ROOM = 64
# the largest number of places for the structures that a plan expects
_LIKELY = 256
# entries of a tile for each thread, with few places and with many: large tiles take longer to compile
_ENTRIES = 16, 32
# iterations between two reads of the progress: _LAUNCHES if each iteration is a launch, _ALL if one launch runs all
_LAUNCHES, _ALL = 8, 2**30
# kinds whose lists of parts are returned as the kernel writes them
_LISTED = ("tags", "counted_tags", "arcs", "cells")
# the largest number of instances whose progress is read as a list
_FEW_INSTANCES = 64
# the largest mean, in numbers, that the launch that orders structures adds up as well
_SMALL = 1 << 16


@cache
def _kind(name: str) -> tuple[Any, bool]:
    """The module of a kind of search, and True if there is none of its own, so that structures come from `map`."""
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
    """The solution, and `converged` (*batch,), or None if all converged.

    With `wary`, return None if a score is large, NaN or +inf.
    """
    # a wary search is never recorded by a CUDA graph
    recorded = not wary and recording(scores[0])
    kind, asked = _kind(search.kind)
    plan: Plan = kind.plan(search)
    # the kernel checks the size of scores only if it reads all of them
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
        _compile_for_recording(solver, places, search, scores[0].dtype)
    arrays = State.arrays(count, given.shape[1], plan.slots, places)
    each = iter(new([*arrays, *[x for x in plan.problem if isinstance(x, Array)]], device))
    state = State.of([next(each) for _ in arrays])
    plan = plan._replace(problem=tuple(next(each) if isinstance(x, Array) else x for x in plan.problem))
    launch = _Launcher(solver, given, whole, wary and looked)
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
            # launches for the structures that span a face follow the iterations
            for _ in range(2 * solver.max_iter + 2 if recorded else _LAUNCHES):
                launch(plan._replace(problem=ask(state.point[2])), state, 1, False)
        else:
            launch(plan, state, _ALL, first)
        first = False
        if recorded:
            # nothing can be read: all places are kept, and convergence is unknown
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
    """The number of places for structures at first."""
    least = solver.max_iter + 1 if solver.max_iter <= FEW else min(plan.likely, _LIKELY)
    return max(_ROOM, ceil_power(max(seeds + min(seeds, _ROOM), least)))


def _compile_for_recording(solver: Rule, places: int, search: Search, dtype: torch.dtype) -> None:
    """Compile the kernels of a search that a CUDA graph may record later: recording cannot compile."""
    if solver.max_iter <= FEW:
        _respond(places, search.most, sum(map(torch.Size.numel, search.events)), dtype, search.tensors[0].device)


@cache
def _respond(places: int, parts: int, d: int, dtype: torch.dtype, device: torch.device) -> None:
    """Call `response` once with all places, as a recorded call does, to compile its kernel."""
    lists = torch.full((1, places, parts), -1, dtype=torch.int32, device=device)
    probs, overlaps = torch.zeros(1, places, dtype=torch.float64, device=device), lists.new_zeros(1, places, places)
    response(lists, overlaps, probs, torch.zeros(1, d, dtype=dtype, device=device), None, d)


def _progress(known: Tensor, max_iter: int) -> tuple[int, int, int, bool]:
    """The largest number of structures, the least and the largest status, and True if an instance is not done.

    One read from the device.
    """
    there = known.cpu()
    if there.shape[1] <= _FEW_INSTANCES:
        # for few instances, a list is faster than an array
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
    """The solver, scores and options that all launches of a call share."""

    solver: Rule
    given: Tensor
    whole: bool
    wary: bool

    def __call__(self, plan: Plan, state: State, rounds: int, first: bool) -> None:
        """Launch the kernels for up to `rounds` rounds of each instance; `first` if the state is not initialized."""
        with on_device(self.given):
            for kernel, options, args in self.calls(plan, state, rounds, first):
                kernel[(len(state.fresh),)](*args, **options)

    def options(self, plan: Plan, state: State) -> dict[str, Any]:
        """The constants for which kernels are compiled."""
        _, room, slots = state.held[0].shape
        # a vector of weights is spread over threads, too
        warps = max(plan.warps, min(room // 64, 8) if room > 64 else 1)
        width = min(max(ceil_power(slots), 32), 256)
        tile = 32 * warps * _ENTRIES[room > _ROOM]
        rows, some = max(min(tile // room, room), 2), max(min(tile // width, room), 2)
        sizes = {"K": room, "BR": rows, "BP": some, "BU": width, "BS": plan.columns}
        return {"BEST": plan.best, "SIZES": plan.sizes, **sizes, "num_warps": warps, "num_stages": 1}

    def calls(self, plan: Plan, state: State, rounds: int, first: bool) -> list[tuple[Any, dict[str, Any], Any]]:
        """The kernels to launch, each with its compile-time constants and its arguments."""
        options = self.options(plan, state)
        others = self.given if plan.others is None else plan.others
        total = 0 if plan.others is None else others.numel()
        known = plan.problem, state.held, state.point, state.fresh, state.known
        sizes = *plan.event, state.fresh.shape[1], rounds
        numbers = self.solver.max_iter, self.solver.tol, int(self.whole), int(first)
        look = self.given, others, total, int(self.wary), LARGEST_SCORE
        found = [(cuda_loop.iterate, {**options, "QUICK": plan.quick}, (*known, state.gaps, *sizes, *numbers, *look))]
        return [*found, (span, options, (*known, *sizes))] if self.whole and rounds else found


def _solution(kind: Any, search: Search, plan: Plan, state: State, width: int) -> Solution:
    """The structures in the first `width` places, heaviest first; the mean of listed parts, if it is small."""
    parts = search.most if plan.states else plan.slots
    count, d = search.batch.numel(), sum(map(torch.Size.numel, search.events))
    # other kinds get no mean from this launch
    d = d if search.kind in _LISTED and count * d <= _SMALL else 0
    held = state.held, state.known, state.gaps
    places, *others, mean = ordered(*held, search.batch, width, parts, plan.states, d)
    probs, overlaps, value, iterations, gap = others
    found = kind.listed(search, places)
    return Solution(found, probs, overlaps, value, iterations, gap, mean=mean if d else None)
