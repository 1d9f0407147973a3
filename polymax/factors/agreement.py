"""LP-SparseMAP: the point nearest to the scores on which all factors agree.

    max  <x, mu> + sum_f <s_f, nu_f> - 1/2 ||mu||^2        (M_f mu, nu_f) in conv(Y_f),  rows of logic hold

ADMM alternates the projections of the structures with that of the variables onto the rows of logic:

    z_f = projection of M_f mu + lambda_f / rho, of private scores s_f / rho
    mu = nearest point to (x + M^T (rho z - lambda)) / (1 + rho degree)        lambda_f = lambda_f + rho (M_f mu - z_f)

The rate rho begins with the size of the scores, which multipliers must reach, and balances the two residuals. Before
each turn, Newton's step is tried: with the faces of the structures, the free variables and the tight rows fixed, the
best point is the solution of one linear system. If they are those of the solution, the point is exact; if the residual
is not halved, the step is not taken. Without structures, only the rows are solved.

See: Niculae and Martins 2020, LP-SparseMAP; Martins et al. 2015, AD3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from polymax.factors.blocks import Block, Projected, blocks
from polymax.factors.magnitudes import largest
from polymax.factors.rows import Rows, compile_rows, places_of
from polymax.factors.subspace import Subspace, sum_edges
from polymax.kernels.constrained import constrained

# the most rounds of the kernel `constrained`, and the residual at which the loop ends, relative to the scores
ROUNDS, TOLERANCE = 500, 1e-12
# after so many rounds without progress, this residual is small enough
IDLE, ENOUGH = 12, 1e-8
# variables closer to 0 or 1 than this are rounded
ROUNDING = 1e-13
# the largest size of scores for which rho begins at 1; the ratio of the two residuals from which rho changes
ORDINARY, UNEVEN = 8.0, 10.0


@dataclass(frozen=True, eq=False)
class Compiled:
    """A graph's rows, blocks and edges on a device, for instances of a batch shape."""

    variables: int
    rows: Rows
    blocks: tuple[Block, ...]
    by_variable: Tensor
    # True for variables kept in [0, 1]: those in logic, and those in no factor; (G, n)
    boxed: Tensor

    @cached_property
    def degree(self) -> Tensor:
        """The number of parts of structures that are each variable, (G, n)."""
        return (self.by_variable >= 0).sum(-1).double()

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The lower and upper bounds of variables, (G, n)."""
        return torch.where(self.boxed, 0.0, -torch.inf).double(), torch.where(self.boxed, 1.0, torch.inf).double()


def compile_graph(variables: int, factors: Any, batch: torch.Size, lead: torch.Size, device: torch.device) -> Compiled:
    """Rows and blocks of the factors; `lead` is the batch shape if graphs differ between instances, else ()."""
    numbered = list(enumerate(factors))
    rows = compile_rows(numbered, variables, lead)
    found = blocks(numbered, batch, lead)
    edges = (
        torch.cat([b.at.flatten(1) for b in found], 1)
        if found
        else torch.zeros(lead.numel(), 0, dtype=torch.long, device="cpu")
    )
    by_variable = places_of(edges, variables)
    boxed = (rows.by_variable >= 0).any(-1) | ~(by_variable >= 0).any(-1)
    moved = tuple(replace(b, at=b.at.to(device), structure=_on(b.structure, device)) for b in found)
    return Compiled(variables, rows.to(device), moved, by_variable.to(device), boxed.to(device))


def _on(structure: Any, device: torch.device) -> Any:
    lengths = getattr(structure, "lengths", None)
    if lengths is None:
        return structure
    moved = tuple(t.to(device) for t in lengths) if isinstance(lengths, tuple) else lengths.to(device)
    return structure.with_lengths(moved)


@dataclass(frozen=True, eq=False)
class Agreed:
    """A solution: variables mu, prices tau of rows, and the projections of the blocks.

    Shapes: mu (B, n), tau (B, R), private parts of pairs (B, P); residual and rounds (B,)
    """

    graph: Compiled
    mu: Tensor
    tau: Tensor
    ends: tuple[Tensor, Tensor]
    projected: tuple[Projected, ...]
    pairs: Tensor
    pair_scores: Tensor
    residual: Tensor
    rounds: Tensor
    forbidden: Tensor
    # the multipliers of rows and of parts after the last round
    last: tuple[Tensor, tuple[Tensor, ...]]

    def subspace(self) -> Subspace:
        graph = self.graph
        free, tight = _sides(graph, self.mu, self.tau, self.ends, self.forbidden)
        bases = tuple(p.basis() for p in self.projected)
        return Subspace(graph.rows, graph.blocks, graph.by_variable, free, tight, bases)


@dataclass(frozen=True, eq=False)
class _Iterate:
    mu: Tensor
    tau: Tensor
    lam: tuple[Tensor, ...]
    projected: tuple[Projected, ...]
    residual: Tensor
    rho: Tensor


class Agreement:
    """The problem of a batch: x (B, n), private score tensors (B, F, ...) of each block, scores (B, P) of pairs."""

    def __init__(self, graph: Compiled, x: Tensor, private: list[tuple[Tensor, ...]], pairs: Tensor) -> None:
        self.graph, self.private, self.pair_scores = graph, private, pairs
        rows, count = graph.rows, len(x)
        self.forbidden = x == -torch.inf
        # a forbidden variable is 0
        self.x, self.lower, self.upper = (torch.where(self.forbidden, 0, t) for t in (x, *graph.bounds))
        least, most = rows.least.expand(count, -1), rows.most.expand(count, -1)
        number = pairs.shape[1]
        if number:
            self.x = self.x + _pair_scores(rows, pairs)
            most = most.clone()
            most[:, -2 * number : -number] = pairs.clamp(min=0)
            most[:, -number:] = (-pairs).clamp(min=0)
        self.ends = least, most
        size = largest([x, *(t for own in private for t in own)], [t.dim() - 1 for t in (x, *chain(*private))])
        self.goal = TOLERANCE * (1 + size / 100)
        self.rho = (size / ORDINARY).clamp(min=1)

    def solve(self, limit: int) -> Agreed:
        """Rounds until the factors agree, at most `limit`."""
        graph, count = self.graph, len(self.x)
        tau = torch.zeros(count, graph.rows.columns.shape[1], dtype=torch.float64, device=self.x.device)
        mu, tau, missed, turns = self._nearest(self.x, torch.ones_like(self.x), tau)
        if not graph.blocks:
            alone = _Iterate(mu, tau, (), (), missed, torch.ones_like(self.rho))
            return self._agreed(alone, alone, turns)
        share = (self.x - graph.rows.spread(tau) - mu) / graph.degree.clamp(min=1)
        state = self._measured(mu, tau, tuple(b.gather(share) for b in graph.blocks), None, self.rho)
        best, rounds = state, torch.zeros(count, dtype=torch.long, device=mu.device)
        idle, least = torch.zeros_like(rounds), best.residual
        for _ in range(limit):
            idle = torch.where(best.residual < 0.9 * least, 0, idle + 1)
            least = torch.minimum(least, best.residual)
            running = (best.residual > self.goal) & ~((idle > IDLE) & (best.residual < ENOUGH))
            if not bool(running.any()):
                break
            rounds = rounds + running
            tried = self._newton(state)
            # a step that does not halve the residual is dropped
            good = tried.residual < state.residual / 2
            state = _chosen(good, tried, state)
            if bool((running & ~good).any()):
                state = _chosen(good, state, self._turn(state))
            best = _chosen(state.residual < best.residual, state, best)
        return self._agreed(best, state, rounds)

    def _nearest(self, x: Tensor, weight: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        rows = self.graph.rows
        return constrained(
            x, weight, self.lower, self.upper, rows.columns, rows.signs, rows.offset, *self.ends, tau, ROUNDS
        )

    def _turn(self, state: _Iterate) -> _Iterate:
        """The state after a round of ADMM."""
        graph = self.graph
        z = [p.z for p in state.projected]
        rho, each = state.rho.unsqueeze(-1), state.rho.reshape(-1, 1, 1)
        pull = sum_edges([each * a - b for a, b in zip(z, state.lam, strict=True)], graph.by_variable)
        mu, tau, _, _ = self._nearest(self.x + pull, 1 + rho * graph.degree.expand(self.x.shape), state.tau)
        apart = [torch.where(b.shared, b.gather(mu) - zf, 0) for b, zf in zip(graph.blocks, z, strict=True)]
        lam = tuple(a + each * r for a, r in zip(state.lam, apart, strict=True))
        # the primal residual, of variables and structures, and the dual residual, of prices, relative to their sizes
        missed = _largest(apart)
        moved = state.rho * (mu - state.mu).abs().amax(1) / _largest(lam).clamp(min=1) if mu.shape[1] else missed
        rho = torch.where(missed > UNEVEN * moved, 2 * state.rho, state.rho)
        rho = torch.where(moved > UNEVEN * missed, state.rho / 2, rho).clamp(min=1)
        return self._measured(mu, tau, lam, state.projected, rho)

    def _measured(
        self, mu: Tensor, tau: Tensor, lam: tuple[Tensor, ...], before: tuple[Projected, ...] | None, rho: Tensor
    ) -> _Iterate:
        """The state at a point: its projections, and the residual of all conditions."""
        graph = self.graph
        found = tuple(
            b.solve(b.gather(mu) + _over(a, rho), own, before[k].solution if before is not None else None)
            for k, (b, a, own) in enumerate(zip(graph.blocks, lam, self._private(rho), strict=True))
        )
        edges = [torch.where(b.shared, p.z - b.gather(mu), 0) for b, p in zip(graph.blocks, found, strict=True)]
        still, tau, missed, _ = self._nearest(
            self.x - sum_edges(list(lam), graph.by_variable), torch.ones_like(mu), tau
        )
        apart = [_largest(edges), (still - mu).abs().amax(1) if mu.shape[1] else missed, missed]
        return _Iterate(mu, tau, lam, found, torch.stack(apart).amax(0), rho)

    def _private(self, rho: Tensor) -> list[tuple[Tensor, ...]]:
        """Private scores, divided by rho (B,)."""
        if bool((rho == 1).all()):
            return self.private
        return [tuple(_over(t, rho) for t in own) for own in self.private]

    def _newton(self, state: _Iterate) -> _Iterate:
        """The best point on the faces, sides and rows of the state."""
        graph = self.graph
        free, tight = _sides(graph, state.mu, state.tau, self.ends, self.forbidden)
        bases = tuple(p.basis() for p in state.projected)
        space = Subspace(graph.rows, graph.blocks, graph.by_variable, free, tight, bases)
        kept, away = [], []
        for k, (b, a, p) in enumerate(zip(graph.blocks, state.lam, state.projected, strict=True)):
            # the scores of the projection less the projection, of which the part along the face is kept
            along = state.rho.reshape(-1, 1, 1) * (b.gather(state.mu) - p.z) + a
            away.append(space.outside(k, a))
            kept.append(torch.where(b.shared, along, 0) - space.outside(k, along) + away[-1])
        c = self.x - sum_edges(kept, graph.by_variable) - graph.rows.spread(state.tau)
        fixed = state.mu.clamp(self.lower, self.upper)
        start = torch.where(free, c, fixed)
        target = [space.outside(k, p.z).flatten(1) for k, p in enumerate(state.projected)]
        offset = torch.where(tight, graph.rows.offset, 0) / space.sizes
        y = space.multipliers(space.violation(start) - torch.cat([*target, offset], 1))
        mu = start - torch.where(free, space.adjoint(y), 0)
        *edges, prices = y.split([*(b.edges for b in graph.blocks), tight.shape[1]], 1)
        lam = tuple(a + space.outside(k, e.reshape(a.shape)) for k, (a, e) in enumerate(zip(kept, edges, strict=True)))
        tau = (state.tau + torch.where(tight, prices / space.sizes, 0)).clamp(*self.ends)
        return self._measured(mu, tau, lam, state.projected, state.rho)

    def _exact(self, state: _Iterate) -> Tensor:
        """The variables, rounded if they are close to 0 or 1, and 0 if no structure with weight uses them."""
        whole = state.mu.round()
        near = (state.mu - whole).abs() <= ROUNDING * (1 + self.goal.unsqueeze(-1) / TOLERANCE)
        # adding 0 turns -0 into 0
        mu = torch.where(near & (whole >= 0) & (whole <= 1), whole + 0.0, state.mu)
        if not state.projected:
            return mu
        unused = [b.shared & (p.z == 0) for b, p in zip(self.graph.blocks, state.projected, strict=True)]
        none = sum_edges([t.double() for t in unused], self.graph.by_variable) > 0
        return torch.where(none & (mu.abs() <= ENOUGH), 0, mu)

    def _agreed(self, state: _Iterate, last: _Iterate, rounds: Tensor) -> Agreed:
        mu = self._exact(state).clamp(self.lower, self.upper)
        pairs = _both(self.graph.rows, mu, self.pair_scores) if self.pair_scores.shape[1] else self.pair_scores
        return Agreed(
            self.graph, mu, state.tau, self.ends, state.projected, pairs, self.pair_scores, state.residual, rounds,
            self.forbidden, (last.tau, last.lam),
        )  # fmt: skip


def _sides(
    graph: Compiled, mu: Tensor, tau: Tensor, ends: tuple[Tensor, Tensor], forbidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Bool tensors: the variables (B, n) that are between their bounds, and the rows (B, R) that are tight."""
    inside = ~graph.boxed | ((mu > 0) & (mu < 1))
    return inside & ~forbidden, (tau > ends[0]) & (tau < ends[1])


def _chosen(mask: Tensor, a: _Iterate, b: _Iterate) -> _Iterate:
    """The state a for instances in the mask (B,), and b for the others."""
    if bool(mask.all()):
        return a
    if not bool(mask.any()):
        return b

    def pick(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(mask.reshape(-1, *[1] * (x.dim() - 1)), x, y)

    lam = tuple(pick(x, y) for x, y in zip(a.lam, b.lam, strict=True))
    projected = tuple(_joined(mask, x, y) for x, y in zip(a.projected, b.projected, strict=True))
    return _Iterate(
        pick(a.mu, b.mu), pick(a.tau, b.tau), lam, projected, pick(a.residual, b.residual), pick(a.rho, b.rho)
    )


def _over(t: Tensor, rho: Tensor) -> Tensor:
    return t / rho.reshape(-1, *[1] * (t.dim() - 1))


def _largest(edges: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of all edges (B, F, d) of each instance, (B,)."""
    return torch.stack([t.abs().flatten(1).amax(1) for t in edges]).amax(0)


def _joined(mask: Tensor, a: Projected, b: Projected) -> Projected:
    from polymax.factors.joined import joined_solutions

    def pick(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(mask.reshape(-1, *[1] * (x.dim() - 1)), x, y)

    return replace(
        a,
        scores=tuple(pick(x, y) for x, y in zip(a.scores, b.scores, strict=True)),
        solution=joined_solutions(mask, a.solution, b.solution),
        z=pick(a.z, b.z),
        private=tuple(pick(x, y) for x, y in zip(a.private, b.private, strict=True)),
    )


def _literals(rows: Rows, mu: Tensor) -> Tensor:
    """The values (B, P, 2) of the literals of pairs; 0 for absent literals."""
    at = rows.pairs.expand(len(mu), *rows.pairs.shape[1:])
    value = torch.nn.functional.pad(mu, (0, 1)).gather(1, torch.where(at < 0, mu.shape[1], at).flatten(1))
    value = value.reshape(at.shape)
    return torch.where(at < 0, 0, torch.where(rows.turned, 1 - value, value))


def _both(rows: Rows, mu: Tensor, scores: Tensor) -> Tensor:
    """The probability that both literals of a pair are on, (B, P): the largest if its score is >= 0, else the least."""
    first, second = _literals(rows, mu).unbind(-1)
    there = (rows.pairs >= 0).all(-1)
    value = torch.where(scores >= 0, torch.minimum(first, second), (first + second - 1).clamp(min=0))
    return torch.where(there, value, 0)


def _pair_scores(rows: Rows, scores: Tensor) -> Tensor:
    """Scores (B, n) added to variables: the positive score of a pair counts at its second literal.

    The prices of the pair's rows correct for the first literal.
    """
    weights = torch.stack([torch.zeros_like(scores), scores.clamp(min=0)], -1)
    return pair_spread(rows, weights)


def pair_spread(rows: Rows, weights: Tensor) -> Tensor:
    """Weights (B, P, 2) of literals, added up at variables (B, n)."""
    signed = torch.where(rows.turned, -weights, weights)
    flat = torch.nn.functional.pad(signed.flatten(1), (0, 1))
    places = torch.where(rows.by_literal < 0, flat.shape[1] - 1, rows.by_literal)
    places = places.expand(len(weights), *places.shape[1:])
    return flat.gather(1, places.flatten(1)).reshape(places.shape).sum(-1)
