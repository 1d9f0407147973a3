"""What a graph's relaxation gives: the nearest point, the best point, and how they follow the scores."""

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax._function import applied, constant, functional, untransformed
from polymax.factors.agreement import Agreed, pair_spread
from polymax.factors.distribution import GraphDistribution, distributions
from polymax.factors.factor import Pair
from polymax.factors.infeasible import refuse_infeasible
from polymax.factors.subspace import collected
from polymax.kernels.constrained import constrained_response

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph

# how near to 0 and 1 integral variables are
_INTEGRAL = 1e-7
# factors that are further apart than this after all rounds may have no common point
_APART = 1e-5
# rounds after which it is asked whether there is a common point at all
_DOUBT = 100
# steps of the linear relaxation towards its best point, and the size of scores on which they are taken
_STEPS, _SIZE = 200, 4.0


@dataclass(frozen=True, eq=False)
class GraphSolution:
    """A point on which the factors of a graph agree, and how well.

    Shapes: (*batch,) all but the parts: iterations, the rounds that were taken; residual, how far the factors are
    apart; integral, True where all variables are 0 or 1; feasible, False where scores of -inf forbid all structures
    """

    parts: Any
    iterations: Tensor
    residual: Tensor
    feasible: Tensor
    held: "Held" = field(repr=False)
    scores: tuple[Tensor, ...] = field(repr=False)

    @property
    def variables(self) -> Tensor:
        return self.parts.variables

    @property
    def factors(self) -> Any:
        return self.parts.factors

    @property
    def integral(self) -> Tensor:
        variables = self.parts.variables
        return ((variables == 0) | (variables == 1)).all(-1) & self.feasible

    def distribution(self) -> GraphDistribution:
        """The distributions over structures of each factor."""
        return GraphDistribution(self.parts, distributions(self.held, self.scores, self.parts[0].dtype))

    @property
    def converged(self) -> Tensor:
        """True where the factors agree; False where the limit of rounds came first."""
        return self.residual <= 1e-8


@dataclass(frozen=True, eq=False)
class Held:
    """A solution and its response: how parts follow scores, a symmetric linear map."""

    graph: "FactorGraph"
    agreed: Agreed
    batch: torch.Size
    feasible: Tensor
    undefined: Tensor

    def parts(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        agreed = self.agreed
        found = self._listed(agreed.mu, agreed.pairs, [p.private for p in agreed.projected])
        return tuple(self._marked(t).to(dtype) for t in found)

    def response(self, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        agreed, graph = self.agreed, self.agreed.graph
        b, pairs, private = self._flat(g)
        moved = [p.response(torch.zeros_like(p.z), s) for p, s in zip(agreed.projected, private, strict=True)]
        space = agreed.subspace()
        shifts = [shared for shared, _ in moved]
        total = b + pair_spread(graph.rows, pairs.unsqueeze(-1) * self._slopes())
        if shifts:
            total = total + collected(shifts, graph.by_variable)
            x = space.projection(total)
        else:
            rows = graph.rows
            x = constrained_response(space.free, space.tight, torch.ones_like(total), rows.columns, rows.signs, total)
        others = []
        for p, (shared, own) in zip(agreed.projected, moved, strict=True):
            # what the scores of the factor move by themselves, but for what the shared parts make of it
            _, followed = p.response(p.block.gather(x) - shared, tuple(torch.zeros_like(t) for t in own))
            others.append(tuple(o + f for o, f in zip(own, followed, strict=True)))
        found = self._listed(x, (self._slopes() * self._literal_moves(x)).sum(-1), others)
        return tuple(self._marked(t).to(x0.dtype) for t, x0 in zip(found, g, strict=True))

    def response_with_grad(self, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The response, whose own derivative autograd may ask for."""
        return applied(_Response, self, *g) if torch.is_grad_enabled() else self.response(g)

    def factor_scores(self) -> tuple[Tensor, ...]:
        """The scores of shared parts by which each structure was solved, (B, F, d) for each block."""
        return tuple(p.scores[0].reshape(p.z.shape).clone() for p in self.agreed.projected)

    def private_of_blocks(self, w: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """B^T w: how private parts follow scores of shared ones alone, in the order of the scores."""
        agreed = self.agreed
        others = [
            p.response(t, tuple(torch.zeros_like(s) for s in p.private))[1]
            for p, t in zip(agreed.projected, w, strict=True)
        ]
        return self._listed(torch.zeros_like(agreed.mu), torch.zeros_like(agreed.pairs), others)[1:]

    def _slopes(self) -> Tensor:
        """How the private part of each pair follows its two literals, (B, P, 2)."""
        agreed = self.agreed
        scores, number = agreed.pair_scores, agreed.pair_scores.shape[1]
        reward = scores >= 0
        tau, most = (t[:, t.shape[1] - 2 * number :] for t in (agreed.tau, agreed.ends[1]))
        # the least literal counts: the first where the price of the second's excess is at its end
        full = (tau[:, :number] >= most[:, :number]) & (most[:, :number] > 0)
        both = (tau[:, number:] >= most[:, number:]) & (most[:, number:] > 0)
        first = torch.where(reward, full, both)
        second = torch.where(reward, ~full, both)
        there = (agreed.graph.rows.pairs >= 0).all(-1).unsqueeze(-1)
        return torch.stack([first, second], -1) * there

    def _literal_moves(self, x: Tensor) -> Tensor:
        rows = self.agreed.graph.rows
        at = rows.pairs.expand(len(x), *rows.pairs.shape[1:])
        flat = torch.nn.functional.pad(x, (0, 1))
        value = flat.gather(1, torch.where(at < 0, x.shape[1], at).flatten(1)).reshape(at.shape)
        return torch.where(rows.turned, -value, value)

    def _marked(self, t: Tensor) -> Tensor:
        """Zeros where scores forbid all structures, NaN where one of them is NaN."""
        shape = (*self.batch, *[1] * (t.dim() - len(self.batch)))
        t = torch.where(self.feasible.reshape(shape), t, 0)
        return torch.where(self.undefined.reshape(shape), torch.nan, t)

    def _flat(self, g: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, list[tuple[Tensor, ...]]]:
        """Tensors in the order of the scores as variables (B, n), pairs (B, P) and those of the blocks."""
        count = self.batch.numel()
        own: dict[int, tuple[Tensor, ...]] = {}
        place = 1
        for f, factor in enumerate(self.graph.factors):
            size = len(factor.private)
            own[f] = tuple(t.double().reshape(count, *t.shape[len(self.batch) :]) for t in g[place : place + size])
            place += size
        pairs = [own[f][0] for f, factor in enumerate(self.graph.factors) if isinstance(factor, Pair)]
        x = g[0].double().reshape(count, g[0].shape[-1])
        each = [tuple(torch.stack(t, 1) for t in zip(*(own[f] for f in b.members))) for b in self.agreed.graph.blocks]
        return x, torch.stack(pairs, 1) if pairs else x.new_zeros(count, 0), each

    def _listed(self, x: Tensor, pairs: Tensor, private: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The inverse of `_flat`."""
        own: dict[int, tuple[Tensor, ...]] = {}
        place = 0
        for f, factor in enumerate(self.graph.factors):
            own[f] = ()
            if isinstance(factor, Pair):
                own[f] = (pairs[:, place],)
                place += 1
        for block, tensors in zip(self.agreed.graph.blocks, private, strict=True):
            for k, f in enumerate(block.members):
                own[f] = tuple(t[:, k] for t in tensors)
        found = [x, *(t for f in range(len(self.graph.factors)) for t in own[f])]
        return tuple(t.reshape(self.batch + t.shape[1:]) for t in found)


def nearest(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    """LP-SparseMAP, differentiable."""
    full = graph.full(*scores)
    held = _solved(graph, full)
    if functional() or (torch.is_grad_enabled() and any(t.requires_grad for t in full)):
        parts = applied(_Mean, held, *full)
    else:
        parts = held.parts(full[0].dtype)
    return _solution(graph, held, parts, full)


def value_of(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> Tensor:
    """<scores, mu> - 1/2 ||mu||^2, (*batch,), -inf where scores forbid all; its gradient is mu."""
    full = graph.full(*scores)
    return applied(_Value, _solved(graph, full), *full)


def linear_relaxation(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    """The best point: nearest points to ever further ones in the direction of the scores, until none is better.

    A step from mu goes to the nearest point to mu + scores / gamma; it stays where mu is best, and gets there in
    finitely many steps.
    """
    if functional():
        numbers = _numbers(scores)
        with untransformed():
            return _relaxed(graph, numbers)
    return _relaxed(graph, scores)


def _relaxed(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    with torch.no_grad():
        full = graph.full(*scores)
        held = _best(graph, full)
        mu = held.agreed.mu
        wavering = ((mu > _INTEGRAL) & (mu < 1 - _INTEGRAL)).any(-1)
        if bool(wavering.any()):
            held = _decided(graph, full, held)
        parts = held.parts(torch.float64)
        whole = _integral(parts[0])
        rounded = tuple(
            torch.where(whole.reshape((*whole.shape, *[1] * (t.dim() - whole.dim()))), t.round(), t) for t in parts
        )
    return _solution(graph, held, tuple(t.to(scores[0].dtype) for t in rounded), full)


def _integral(variables: Tensor) -> Tensor:
    return ((variables - variables.round()).abs() <= _INTEGRAL).all(-1)


def _size(scores: tuple[Tensor, ...]) -> Tensor:
    tops = [torch.where(t.isfinite(), t.abs(), 0).amax() for t in scores if t.numel()]
    return torch.stack([t.double() for t in tops]).amax() if tops else torch.ones(())


def _best(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> Held:
    size = _size(scores)
    rate = _SIZE / float(size) if float(size) > 0 else 1.0
    steep = tuple(t.double() * rate for t in scores)
    held = _solved(graph, steep)
    rounds = held.agreed.rounds
    for _ in range(_STEPS):
        before = held.agreed.mu
        ahead = steep[0] + before.reshape(steep[0].shape)
        held = _solved(graph, (ahead, *steep[1:]))
        rounds = rounds + held.agreed.rounds
        if not before.numel() or bool(((held.agreed.mu - before).abs() <= 1e-9).all()):
            break
    return replace(held, agreed=replace(held.agreed, rounds=rounds))


def _decided(graph: "FactorGraph", scores: tuple[Tensor, ...], held: Held) -> Held:
    """The same where it is the only best point; where several are, one that a nudge prefers, if it is as good."""
    generator = torch.Generator().manual_seed(0)
    size = float(_size(scores)) or 1.0
    nudge = torch.rand(scores[0].shape[-1], generator=generator, dtype=torch.float64).to(scores[0].device)
    nudged = _best(graph, (scores[0].double() + 1e-3 * size * nudge, *scores[1:]))
    values = [graph.score(graph.named(*h.parts(torch.float64)), *(t.double() for t in scores)) for h in (held, nudged)]
    # as good as the rounding of the scores can tell
    good = values[1] >= values[0] - (1e-9 + 8 * torch.finfo(scores[0].dtype).eps) * (1 + size)
    better = good & _integral(nudged.parts(torch.float64)[0])
    if not bool(better.any()):
        return held
    mask = better.reshape(-1)

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(-1, *[1] * (a.dim() - 1)), a, b)

    a, b = nudged.agreed, held.agreed
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
    return replace(held, agreed=agreed)


def _numbers(scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores below what torch.func wraps for derivatives; a ValueError where torch.vmap hides them."""
    mapped = "the solver of a FactorGraph reads the scores, which torch.vmap hides; give them as a batch, (*batch, ...)"
    return tuple(constant(t.detach(), mapped).detach() for t in scores)


def _solved(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> Held:
    """The nearest point to scores of full shape."""
    if functional():
        numbers = _numbers(scores)
        with untransformed():
            return _agreed(graph, numbers)
    return _agreed(graph, scores)


def _agreed(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> Held:
    batch = scores[0].shape[:-1]
    if torch.compiler.is_compiling():
        # rounds end where the numbers say so, which a traced program cannot follow
        torch._dynamo.graph_break()
    with torch.no_grad():
        dims = graph.event_dims()
        # +inf leaves no point that is best, as NaN does
        known = [t.detach() < torch.inf for t in scores]
        bad = [~(k.flatten(k.dim() - d).all(-1) if d else k) for k, d in zip(known, dims, strict=True)]
        undefined = torch.stack(torch.broadcast_tensors(*bad)).any(0)
        clean = scores
        if bool(undefined.any()):
            clean = tuple(
                torch.where(undefined.reshape(*batch, *[1] * d), 0, t.detach())
                for t, d in zip(scores, dims, strict=True)
            )
        problem = graph._agreement(clean)
        agreed = problem.solve(min(graph.max_iter, _DOUBT))
        feasible = torch.ones(batch, dtype=torch.bool, device=scores[0].device)
        apart = agreed.residual > _APART
        if bool(apart.any()):
            # most problems take few rounds: before more are spent, is there a solution at all?
            feasible = refuse_infeasible(graph, clean, apart).reshape(batch)
            apart = apart & feasible.reshape(apart.shape)
            if graph.max_iter > _DOUBT and bool(apart.any()):
                agreed = problem.solve(graph.max_iter)
                apart = (agreed.residual > _APART) & feasible.reshape(apart.shape)
            if bool(apart.any()):
                warnings.warn(
                    f"the factors are {float(agreed.residual[apart].max()):.2g} apart after {graph.max_iter} rounds;"
                    " a larger max_iter of the graph brings them closer",
                    stacklevel=4,
                )
    return Held(graph, agreed, batch, feasible, undefined)


def _solution(graph: "FactorGraph", held: Held, parts: tuple[Tensor, ...], scores: tuple[Tensor, ...]) -> GraphSolution:
    agreed = held.agreed
    shape = held.batch
    residual = torch.where(held.feasible, agreed.residual.reshape(shape), 0)
    return GraphSolution(graph.named(*parts), agreed.rounds.reshape(shape), residual, held.feasible, held, scores)


class _Mean(Function):
    """The parts, of scores."""

    generate_vmap_rule = True

    @staticmethod
    def forward(held: Held, *scores: Tensor) -> tuple[Tensor, ...]:
        return held.parts(scores[0].dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.held = inputs[0]

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return None, *applied(_Response, ctx.held, *g)
        return None, *ctx.held.response(g)


class _Response(Function):
    """The symmetric map from changes of scores to changes of parts: its own derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(held: Held, *g: Tensor) -> tuple[Tensor, ...]:
        return held.response(g)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.held = inputs[0]

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        return None, *applied(_Response, ctx.held, *g)


class _Value(Function):
    """The value, whose derivative is the parts."""

    generate_vmap_rule = True

    @staticmethod
    def forward(held: Held, *scores: Tensor) -> Tensor:
        exact = tuple(t.double() for t in scores)
        parts = held.parts(torch.float64)
        value = held.graph.score(held.graph.named(*parts), *exact) - parts[0].square().sum(-1) / 2
        return torch.where(held.feasible, value, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.held, *scores = inputs
        ctx.save_for_backward(*scores)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        scores = ctx.saved_tensors
        if torch.is_grad_enabled():
            mu = applied(_Mean, ctx.held, *scores)
        else:
            mu = ctx.held.parts(scores[0].dtype)
        return None, *(m * g.to(m.dtype).reshape(*g.shape, *[1] * (m.dim() - g.dim())) for m in mu)
