"""The linear relaxation of a graph: the best point on which the factors agree."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax._function import functional, outside_transforms
from polymax.factors.relaxation import numbers_of, solve
from polymax.factors.solution import GraphSolution, solution_of
from polymax.factors.solved_graph import SolvedGraph

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph

# how near to 0 and 1 integral variables are
_INTEGRAL = 1e-7
# steps towards the best point, and the size of scores on which they are taken
_STEPS, _SIZE = 200, 4.0


def linear_relaxation(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    """The best point: nearest points to ever further ones in the direction of the scores, until none is better.

    A step from mu goes to the nearest point to mu + scores / gamma; it stays where mu is best, and gets there in
    finitely many steps.
    """
    if functional():
        numbers = numbers_of(scores)
        with outside_transforms():
            return _relaxed(graph, numbers)
    return _relaxed(graph, scores)


def _relaxed(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    with torch.no_grad():
        full = graph.full(*scores)
        solved = _best(graph, full)
        mu = solved.agreed.mu
        wavering = ((mu > _INTEGRAL) & (mu < 1 - _INTEGRAL)).any(-1)
        if bool(wavering.any()):
            solved = _decided(graph, full, solved)
        parts = solved.parts(torch.float64)
        whole = _integral(parts[0])
        rounded = tuple(
            torch.where(whole.reshape((*whole.shape, *[1] * (t.dim() - whole.dim()))), t.round(), t) for t in parts
        )
    return solution_of(solved, tuple(t.to(scores[0].dtype) for t in rounded), full)


def _integral(variables: Tensor) -> Tensor:
    return ((variables - variables.round()).abs() <= _INTEGRAL).all(-1)


def _size(scores: tuple[Tensor, ...]) -> Tensor:
    tops = [torch.where(t.isfinite(), t.abs(), 0).amax() for t in scores if t.numel()]
    return torch.stack([t.double() for t in tops]).amax() if tops else torch.ones(())


def _best(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> SolvedGraph:
    size = _size(scores)
    rate = _SIZE / float(size) if float(size) > 0 else 1.0
    steep = tuple(t.double() * rate for t in scores)
    solved = solve(graph, steep)
    rounds = solved.agreed.rounds
    for _ in range(_STEPS):
        before = solved.agreed.mu
        ahead = steep[0] + before.reshape(steep[0].shape)
        solved = solve(graph, (ahead, *steep[1:]))
        rounds = rounds + solved.agreed.rounds
        if not before.numel() or bool(((solved.agreed.mu - before).abs() <= 1e-9).all()):
            break
    return replace(solved, agreed=replace(solved.agreed, rounds=rounds))


def _decided(graph: "FactorGraph", scores: tuple[Tensor, ...], solved: SolvedGraph) -> SolvedGraph:
    """The point itself if it is the only best one; else one that a nudge of the scores prefers, if it is as good."""
    generator = torch.Generator().manual_seed(0)
    size = float(_size(scores)) or 1.0
    nudge = torch.rand(scores[0].shape[-1], generator=generator, dtype=torch.float64).to(scores[0].device)
    nudged = _best(graph, (scores[0].double() + 1e-3 * size * nudge, *scores[1:]))
    values = [
        graph.score(graph.named(*h.parts(torch.float64)), *(t.double() for t in scores)) for h in (solved, nudged)
    ]
    # as good as the rounding of the scores can tell
    good = values[1] >= values[0] - (1e-9 + 8 * torch.finfo(scores[0].dtype).eps) * (1 + size)
    better = good & _integral(nudged.parts(torch.float64)[0])
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
