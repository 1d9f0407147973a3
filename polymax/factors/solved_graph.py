"""A solution of a factor graph, and the derivative of its parts in the scores, a symmetric linear map."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function
from polymax.factors.agreement import Agreed, pair_spread
from polymax.factors.subspace import sum_edges
from polymax.kernels.constrained import constrained_response

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class SolvedGraph:
    """A solution and its response, the derivative of its parts in the scores: a symmetric linear map."""

    graph: "FactorGraph"
    agreed: Agreed
    batch: torch.Size
    feasible: Tensor
    undefined: Tensor
    # True if every instance is feasible, and no score is NaN
    plain: bool

    def parts(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        agreed = self.agreed
        found = self._listed(agreed.mu, agreed.pairs, [p.private for p in agreed.projected])
        return tuple(self._marked(t).to(dtype) for t in found)

    def response(self, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        agreed, graph = self.agreed, self.agreed.graph
        b, pairs, private = self.graph.layout.flat(g, self.batch, graph.blocks)
        moved = [p.response(torch.zeros_like(p.z), s) for p, s in zip(agreed.projected, private, strict=True)]
        space = agreed.subspace()
        shifts = [shared for shared, _ in moved]
        slopes = self._slopes() if pairs.shape[1] else None
        total = b if slopes is None else b + pair_spread(graph.rows, pairs.unsqueeze(-1) * slopes)
        if shifts:
            total = total + sum_edges(shifts, graph.by_variable)
            x = space.projection(total)
        else:
            rows = graph.rows
            x = constrained_response(space.free, space.tight, torch.ones_like(total), rows.columns, rows.signs, total)
        others = []
        for p, (shared, own) in zip(agreed.projected, moved, strict=True):
            # the response to private scores, plus the response to the change of the shared parts
            _, followed = p.response(p.block.gather(x) - shared, tuple(torch.zeros_like(t) for t in own))
            others.append(tuple(o + f for o, f in zip(own, followed, strict=True)))
        both = pairs if slopes is None else (slopes * self._literal_moves(x)).sum(-1)
        found = self._listed(x, both, others)
        return tuple(self._marked(t).to(x0.dtype) for t, x0 in zip(found, g, strict=True))

    def response_with_grad(self, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The response, differentiable in g if gradients are enabled."""
        return apply_function(Response, self, *g) if torch.is_grad_enabled() else self.response(g)

    def factor_scores(self) -> tuple[Tensor, ...]:
        """The scores of shared parts by which each structure was solved, (B, F, d) for each block."""
        return tuple(p.scores[0].reshape(p.z.shape).clone() for p in self.agreed.projected)

    def private_of_blocks(self, w: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """B^T w: the derivatives of private parts along directions w of shared scores, in the order of the scores."""
        agreed = self.agreed
        others = [
            p.response(t, tuple(torch.zeros_like(s) for s in p.private))[1]
            for p, t in zip(agreed.projected, w, strict=True)
        ]
        return self._listed(torch.zeros_like(agreed.mu), torch.zeros_like(agreed.pairs), others)[1:]

    def _slopes(self) -> Tensor:
        """The derivatives of the private part of each pair in its two literals, (B, P, 2)."""
        agreed = self.agreed
        scores, number = agreed.pair_scores, agreed.pair_scores.shape[1]
        reward = scores >= 0
        tau, most = (t[:, t.shape[1] - 2 * number :] for t in (agreed.tau, agreed.ends[1]))
        # the part of a reward is the smaller literal: the first if the price of second - first is at its upper end
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

    def _listed(self, x: Tensor, pairs: Tensor, private: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        return self.graph.layout.listed(x, pairs, private, self.batch, self.agreed.graph.blocks)

    def _marked(self, t: Tensor) -> Tensor:
        """t with 0 in instances whose scores forbid all structures, and NaN in instances with a NaN score."""
        if self.plain:
            return t
        shape = (*self.batch, *[1] * (t.dim() - len(self.batch)))
        t = torch.where(self.feasible.reshape(shape), t, 0)
        return torch.where(self.undefined.reshape(shape), torch.nan, t)


class Response(Function):
    """The symmetric map from changes of scores to changes of parts: its own derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(solved: SolvedGraph, *g: Tensor) -> tuple[Tensor, ...]:
        return solved.response(g)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.solved = inputs[0]

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        return None, *apply_function(Response, ctx.solved, *g)
