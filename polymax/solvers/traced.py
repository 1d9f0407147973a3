"""SparseMAP as two operators of torch, for torch.compile: the solver, and the derivative of its solution.

The number of structures is known only after the solution. The first operator therefore passes them to the second in a
flat tensor, the state, whose size is dynamic. Eager mode uses mixture.py instead.

    sparsemap            scores, the packed problem -> value (B,), mu (B, d), state
    sparsemap_response   state, cotangents of the value (B,) and of mu (B, d) -> cotangent of the scores of parts (B, d)
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.dispatch import declare_function
from polymax.kernels.active_set.problem import UsedParts
from polymax.kernels.response import response
from polymax.kernels.response.reference import dense_response
from polymax.solvers.packed import pack, unpack
from polymax.solvers.rules import Solver
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure, tensors


def traced_value_and_mean(solver: Solver, structure: Structure, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The value (*batch,) in float64, and the tensors of mu; both differentiable once."""
    full = structure.full(*scores)
    dims = structure.event_dims(*full)
    batch = full[0].shape[: full[0].dim() - dims[0]]
    events = [x.shape[x.dim() - d :] for x, d in zip(full, dims, strict=True)]
    sizes = [event.numel() for event in events]
    derived = torch.is_grad_enabled() and any(x.requires_grad for x in full)
    parts = pack((solver, structure))
    value, mu, state = sparsemap(
        [x.detach() for x in scores], parts.tensors, parts.code, parts.reals, math.prod(batch), sum(sizes), derived
    )
    if derived:
        flat = [x.reshape(math.prod(batch), size) for x, size in zip(full, sizes, strict=True)]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        value, mu = _Traced.apply(joined, value, mu, state)
    return value.reshape(batch), *(
        m.reshape(*batch, *event) for m, event in zip(mu.split(sizes, 1), events, strict=True)
    )


class _Traced(Function):
    """The value and mu as functions of the scores (B, d); both are inputs, computed before by `sparsemap`."""

    @staticmethod
    def forward(scores: Tensor, value: Tensor, mu: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return value.clone(), mu.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        # mu is not saved: the compiler may reuse its memory
        ctx.save_for_backward(inputs[3])

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Any, ...]:
        (state,) = ctx.saved_tensors
        return sparsemap_response(state, g, h), None, None, None


def _solve(
    scores: list[Tensor],
    held: list[Tensor],
    code: list[int],
    reals: list[float],
    count: int,
    d: int,
    whole: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from polymax.solvers.mixture import mean

    solver, structure = unpack(code, reals, held)
    solution = solver.solve(structure, tuple(scores), whole=whole)
    with torch.no_grad():
        mu = mean(structure, solution, structure.full(*scores), derived=False)
    joined = torch.cat([m.reshape(count, m.numel() // max(count, 1)) for m in mu], 1).reshape(count, d)
    state = _state(structure, solution, joined) if whole else joined.new_empty(0, dtype=torch.float64)
    return solution.value.reshape(count).clone(), joined, state


def _state(structure: Structure, solution: Solution, mu: Tensor) -> Tensor:
    """A flat tensor of three numbers, then the structures, weights, overlaps and mu.

    The numbers are k, the entries of a structure, and 1 if structures are lists of parts, 0 if they are all of their
    tensors.
    """
    if isinstance(solution.found, UsedParts):
        found, listed = solution.found.places, 1
    else:
        whole = tensors(structure.complete_each(solution.vertices, solution.probs.dim() - 1))
        found, listed = torch.cat([t.flatten(solution.probs.dim()) for t in whole], -1), 0
    head = found.new_tensor([solution.probs.shape[-1], found.shape[-1], listed], dtype=torch.float64)
    return torch.cat([head, *(t.reshape(-1).double() for t in (found, solution.probs, solution.overlaps, mu))])


def _respond(state: Tensor, g: Tensor, h: Tensor) -> Tensor:
    count = len(h)
    k, parts, listed = (int(x) for x in state[:3])
    found, probs, overlaps, mean = state[3:].split([count * k * parts, count * k, count * k * k, h.numel()])
    known = overlaps.reshape(count, k, k), probs.reshape(count, k), h
    found, mu = found.reshape(count, k, parts), mean.reshape(h.shape).to(h.dtype)
    moved = response(found.int(), *known, None, h.shape[1])[0] if listed else dense_response(found, *known)[0]
    # mu is NaN at the undefined parts
    return torch.where(torch.isnan(mu), mu, moved) + mu * g.unsqueeze(-1).to(mu.dtype)


def _fake(
    scores: list[Tensor],
    held: list[Tensor],
    code: list[int],
    reals: list[float],
    count: int,
    d: int,
    whole: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    first = scores[0]
    size = torch.library.get_ctx().new_dynamic_size() if whole else 0
    value, state = (first.new_empty((n,), dtype=torch.float64) for n in (count, size))
    return value, first.new_empty((count, d)), state


def _fake_response(state: Tensor, g: Tensor, h: Tensor) -> Tensor:
    return torch.empty_like(h, memory_format=torch.contiguous_format)


sparsemap = declare_function(
    "sparsemap(Tensor[] scores, Tensor[] held, int[] code, float[] reals, SymInt count, SymInt d, bool whole)"
    " -> (Tensor, Tensor, Tensor)",
    _solve,
    _fake,
)
sparsemap_response = declare_function(
    "sparsemap_response(Tensor state, Tensor g, Tensor h) -> Tensor", _respond, _fake_response
)
