"""The loops of SparseMAP: find the structure that improves most on mu, shift weight to it, and repeat.

    max over p in the simplex of Y of  sum_y p_y <scores, y> - 1/2 ||mu||^2,        mu = sum_y p_y y (first tensor)

reference.py calls `Structure.map` for a whole batch at each iteration, in torch: it runs any set by any rule on any
device. Sets with a `Structure.search` have compiled loops, whose kernels are in kernels/active_set: cpu.py calls them
for all rules, and cuda.py for exact weights. All loops have the signature

    solver, structure, scores, search, start, whole -> Solution, converged (*batch,), or None if all instances did

and are imported at their first call, so that `import polymax` loads neither Numba nor Triton. The compiled loops also
take `wary`: with True, they check the scores first, and return None if one is large, NaN or +inf.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from polymax.kernels import active_set
from polymax.kernels.active_set.problem import Search
from polymax.solvers.loops import windows
from polymax.solvers.loops.limits import FEW, LARGEST
from polymax.solvers.loops.rule import Rule
from polymax.solvers.reduced import all_small
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure

# the step rules of the compiled loops of each device, and the kernel that the loops call
_STEPS = {"cpu": ("exact", "frank_wolfe", "away", "pairwise"), "cuda": ("exact",)}
_KERNELS = {"cpu": "numba_loop", "cuda": "cuda_loop"}


def solve(
    solver: Rule, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None, whole: bool, wary: bool
) -> tuple[Solution, Tensor | None] | None:
    """The solution by the fastest loop there is, and a bool tensor `converged` (*batch,), or None if all converged.

    With `wary`, return None if a score is large, NaN or +inf.
    """
    device = scores[0].device.type
    search = structure.search(*scores) if solver.step in _steps(device) else None
    if device == "cuda" and search is not None and _fits(search):
        if start is None and solver.max_iter > FEW and windows.is_long(search):
            return _from_windows(solver, structure, scores, search, whole, wary)
        return _file(device).solve(solver, structure, scores, search, start, whole, wary)
    if device == "cpu" and search is not None:
        return _file(device).solve(solver, structure, scores, search, start, whole, wary)
    if wary and not all_small(scores):
        return None
    return _file("reference").solve(solver, structure, scores, search, start, whole)


def _from_windows(
    solver: Rule, structure: Structure, scores: tuple[Tensor, ...], search: Search, whole: bool, wary: bool
) -> tuple[Solution, Tensor | None] | None:
    """Solve long chains on a GPU, starting from the solutions of windows; returns are those of `solve`."""
    if wary and not all_small(scores):
        return None
    solve_all = _file("cuda").solve

    def solve_parts(search: Search, whole: bool) -> Solution:
        return solve_all(solver, structure, search.tensors[:2], search, None, whole)[0]

    return solve_all(solver, structure, scores, search, windows.start(search, solve_parts, whole), whole)


@cache
def _steps(device: str) -> tuple[str, ...]:
    """The step rules of the compiled loops for a device; empty if their kernel is not installed."""
    there = device in _KERNELS and find_spec(f"{active_set.__name__}.{_KERNELS[device]}") is not None
    return _STEPS[device] if there else ()


@cache
def _file(name: str) -> Any:
    """A file of loops, imported at its first call: Numba and Triton are loaded with the first problem."""
    return import_module(f"{__name__}.{name}")


def path(solver: Rule, structure: Structure, scores: tuple[Tensor, ...]) -> str:
    """A sentence that says which loop `solve` takes, and why."""
    device, name, rule = scores[0].device.type, type(structure).__name__, type(solver).__name__
    search = structure.search(*scores)
    if search is None:
        why = f"{name}.search is None"
    elif solver.step not in _steps(device):
        why = f"no compiled loop for {device} has the rule of {rule}"
    elif device == "cuda" and not _fits(search):
        why = f"the scores are empty, or have a side of more than {LARGEST}"
    elif find_spec(f"{active_set.__name__}.{device}_{search.kind}") is None:
        calls = f"and calls {name}.map for the whole batch at each iteration, because"
        return (
            f"A compiled loop for {device} weighs structures, {calls} none of its programs searches by {search.kind}."
        )
    else:
        return f"A compiled loop for {device} solves each instance, because {name}.search is by {search.kind}."
    return f"A loop in torch calls {name}.map for the whole batch at each iteration, because {why}."


def _fits(search: Search) -> bool:
    """True if a problem is not empty and small enough for the programs of a GPU."""
    event = search.events[0]
    return search.batch.numel() * event.numel() > 0 and max(event) <= LARGEST
