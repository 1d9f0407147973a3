"""The linear relaxation of a graph: the best point on which the factors agree."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax.backend.function import functional, outside_transforms
from polymax.factors.magnitudes import largest, without_gaps
from polymax.factors.relaxation import leave_program, numbers_of, solve
from polymax.factors.solution import GraphSolution, solution_of
from polymax.factors.solved_graph import SolvedGraph

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph

# integral variables are at most this far from 0 or 1
_INTEGRAL = 1e-7
# steps towards the best point: _STEPS at most; _FIRST is the length of the first two, the largest score times the rate;
# each step is _LONGER times as long as the one before while the point moves, up to _LONGEST
_STEPS, _FIRST, _LONGER, _LONGEST = 200, 4.0, 8.0, 5e5
# a step does not move the point if no variable moves by more than _STILL + _ROUNDING times the step's length
_STILL, _ROUNDING = 1e-9, 1e-14
# the sizes of nudges that break ties, relative to the largest score: the second is tried after the first
_NUDGES = 1e-3, 1e-6


def linear_relaxation(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    """The best point, by proximal steps of increasing length, until a step does not move the point.

    A step from mu goes to the point nearest to mu + rate * scores; it stays at mu if mu is a best point. It reaches a
    best point in finitely many steps, and the larger the rate, the fewer. The last step is short: short steps have the
    smallest rounding errors.
    """
    if functional():
        numbers = numbers_of(scores)
        with outside_transforms():
            return _relaxed(graph, numbers)
    return _relaxed(graph, scores)


def _relaxed(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    leave_program(scores)
    with torch.no_grad():
        full = graph.full(*scores)
        even = without_gaps(full, graph.event_dims())
        solved = _best(graph, even)
        for nudge in _NUDGES:
            mu = solved.agreed.mu
            wavering = ((mu > _INTEGRAL) & (mu < 1 - _INTEGRAL)).any(-1)
            if not bool(wavering.any()):
                break
            solved = _decided(graph, even, solved, nudge, torch.finfo(full[0].dtype).eps)
        parts = solved.parts(torch.float64)
        whole = _integral(parts[0])
        masks = [whole.reshape((*whole.shape, *[1] * (t.dim() - whole.dim()))) for t in parts]
        # -0.0 + 0.0 is 0.0
        rounded = tuple(torch.where(m, t.round() + 0.0, t) for m, t in zip(masks, parts, strict=True))
    return solution_of(solved, tuple(t.to(scores[0].dtype) for t in rounded), full)


def _integral(variables: Tensor) -> Tensor:
    return ((variables - variables.round()).abs() <= _INTEGRAL).all(-1)


def _best(graph: "FactorGraph", scores: tuple[Tensor, ...], start: Tensor | None = None) -> SolvedGraph:
    """The best point, by steps from `start`, (B, n)."""
    dims = graph.event_dims()
    batch = scores[0].shape[:-1]
    size = largest(scores, dims)
    size = torch.where(size > 0, size, 1)

    def step(mu: Tensor | None, length: Tensor) -> SolvedGraph:
        rate = (length.reshape(batch) / size).double()
        ahead = [t.double() * rate.reshape((*batch, *[1] * d)) for t, d in zip(scores, dims, strict=True)]
        if mu is not None:
            ahead[0] = ahead[0] + mu.reshape(ahead[0].shape)
        return solve(graph, tuple(ahead))

    first = torch.full((batch.numel(),), _FIRST, dtype=torch.float64, device=size.device)
    solved = step(start, first)
    mu, length, rounds = solved.agreed.mu, first, solved.agreed.rounds
    moved = torch.full_like(first, torch.inf)
    for _ in range(_STEPS):
        running = moved > _STILL + _ROUNDING * length
        if not mu.numel() or not bool(running.any()):
            break
        solved = step(mu, length)
        far = (solved.agreed.mu - mu).abs().amax(-1)
        moved = torch.where(running, far, moved)
        mu = torch.where(running.unsqueeze(-1), solved.agreed.mu, mu)
        rounds = rounds + torch.where(running, solved.agreed.rounds, 0)
        running = moved > _STILL + _ROUNDING * length
        length = torch.where(running, (length * _LONGER).clamp(max=_LONGEST), length)
    if bool((length > _FIRST).any()):
        solved = step(mu, first)
        rounds = rounds + solved.agreed.rounds
    # if the point still moves after the last step, the residual is not small
    short = torch.where(moved > _STILL + _ROUNDING * length, moved, 0) if mu.numel() else solved.agreed.residual
    residual = torch.maximum(solved.agreed.residual, short)
    return replace(solved, agreed=replace(solved.agreed, rounds=rounds, residual=residual))


def _decided(
    graph: "FactorGraph", scores: tuple[Tensor, ...], solved: SolvedGraph, nudge: float, eps: float
) -> SolvedGraph:
    """The best point for nudged scores if it is integral and as good as the point `solved`; else the point `solved`."""
    generator = torch.Generator().manual_seed(0)
    size = largest(scores, graph.event_dims())
    size = torch.where(size > 0, size, 1).double()
    tilt = torch.rand(scores[0].shape[-1], generator=generator, dtype=torch.float64, device="cpu").to(scores[0].device)
    tilted = scores[0].double() + nudge * size.unsqueeze(-1) * tilt
    nudged = _best(graph, (tilted, *scores[1:]), solved.agreed.mu)
    values = [
        graph.score(graph.named(*h.parts(torch.float64)), *(t.double() for t in scores)) for h in (solved, nudged)
    ]
    # equal values, up to the rounding of the scores
    good = values[1] >= values[0] - (1e-9 + 8 * eps) * (1 + size)
    better = good & _integral(nudged.parts(torch.float64)[0]) & ~_integral(solved.parts(torch.float64)[0])
    if not bool(better.any()):
        return solved
    mask = better.reshape(-1)

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    a, b = nudged.agreed, solved.agreed
    projected = tuple(
        replace(p, z=pick(p.z, q.z), private=tuple(pick(s, t) for s, t in zip(p.private, q.private, strict=True)))
        for p, q in zip(a.projected, b.projected, strict=True)
    )
    agreed = replace(
        b,
        projected=projected,
        mu=pick(a.mu, b.mu),
        tau=pick(a.tau, b.tau),
        pairs=pick(a.pairs, b.pairs),
        residual=pick(a.residual, b.residual),
        rounds=pick(a.rounds, b.rounds),
    )
    return replace(solved, agreed=agreed)
