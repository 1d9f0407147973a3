"""Graphs whose factors have no point in common: an error that names one of them."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax.factors.agreement import Agreed, Agreement
from polymax.factors.subspace import sum_edges

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph

# with scores of 0, factors that have a common point agree in few rounds: a larger residual than _FAR is a doubt; the
# search for a proof comes after each of these numbers of rounds
_FAR, _ROUNDS = 1e-3, (60, 240, 960)


class Infeasible(ValueError):
    """The factors of a graph have no point in common; `factor` is the index of the factor that is missed most."""

    def __init__(self, message: str, factor: int) -> None:
        super().__init__(message)
        self.factor = factor


def refuse_infeasible(graph: "FactorGraph", scores: tuple[Tensor, ...], apart: Tensor) -> Tensor:
    """A bool tensor (B,), False for instances in which scores of -inf forbid every point.

    Raise Infeasible, which names a factor, if an instance has no point under any scores. `apart` (B,) marks the
    instances to test; an instance counts as infeasible only with a proof.
    """
    batch = scores[0].shape[:-1]
    blank = tuple(torch.zeros_like(t) for t in scores)
    found, proven = _proof(graph, blank, apart)
    if bool(proven.any()):
        i = int(proven.nonzero()[0, 0])
        instance = tuple(int(k) for k in proven.reshape(batch).nonzero()[0]) if batch else ()
        f, miss = _worst(found, i)
        where = f" in instance {instance if len(instance) > 1 else instance[0]}" if instance else ""
        raise Infeasible(
            f"the factors have no point in common{where}: factor {f} ({graph.factors[f]}) is missed by {miss:.2g}", f
        )
    if not any(bool((t == -torch.inf).any()) for t in scores):
        return torch.ones_like(apart)
    _, proven = _proof(graph, tuple(torch.where(t == -torch.inf, t, 0) for t in scores), apart)
    return ~proven


def _proof(graph: "FactorGraph", scores: tuple[Tensor, ...], apart: Tensor) -> tuple[Agreed, Tensor]:
    """A solution for scores that are 0 or -inf, and a bool tensor (B,), True for instances proven to have none."""
    problem = graph._agreement(scores)
    for rounds in _ROUNDS:
        found = problem.solve(min(rounds, max(graph.max_iter, _ROUNDS[0])))
        doubted = apart & (found.residual > _FAR)
        proven = doubted & ((_most_gain(problem, found) < 0) | _out_of_reach(problem))
        if bool((proven == doubted).all()) or rounds >= graph.max_iter:
            break
    return found, proven


def _out_of_reach(problem: Agreement) -> Tensor:
    """A bool tensor (B,), True for instances with a row that no point of [0, 1]^n satisfies."""
    rows = problem.graph.rows
    most = torch.where(problem.forbidden, 0.0, 1.0)
    parts = rows.signs.clamp(min=0), rows.signs.clamp(max=0)
    highest, lowest = (replace(rows, signs=signs).sums(most) for signs in parts)
    # an unbounded price belongs to a sum that must not exceed its offset
    over = (lowest > rows.offset) & (rows.most == torch.inf)
    under = (highest < rows.offset) & (rows.least == -torch.inf)
    return (over | under).any(1)


def _most_gain(problem: Agreement, found: Agreed) -> Tensor:
    """A number (B,) that is at least 0 if all factors have a common point: below 0 it proves that they have none.

    For multipliers tau of rows and lambda of parts, with tau at least 0 for <= and at most 0 for >=,

        sum_v max(0, -(A^T tau + M^T lambda)_v) + <offset, tau> + sum_f max over Y_f of <lambda_f, y>  >=  0

    since a common point mu makes the sum at least -<A^T tau + M^T lambda, mu> + <A mu, tau> + <M mu, lambda>.
    """
    tau, lam = found.last
    graph = found.graph
    total = graph.rows.spread(tau) + sum_edges(list(lam), graph.by_variable)
    gain = torch.where(problem.forbidden, 0, (-total).clamp(min=0)).sum(1)
    gain = gain + (graph.rows.offset * tau).sum(1)
    size = total.abs().sum(1) + tau.abs().sum(1)
    for block, w, private in zip(graph.blocks, lam, problem.private, strict=True):
        given = block.scores(w, private)
        if block.mixed:
            given = (
                torch.where(block.shared.reshape(len(block.at), *given[1].shape[1:]), given[0], given[1]),
                *given[2:],
            )
        gain = gain + block.structure.best_score(*given).sum(1)
        size = size + w.abs().flatten(1).sum(1)
    # a margin above the rounding errors
    return gain + 1e-9 * (1 + size)


def _worst(found: Agreed, i: int) -> tuple[int, float]:
    """The factor that is missed most in instance i, and by how much."""
    rows = found.graph.rows
    most, factor = -1.0, 0
    if rows.columns.shape[1]:
        offset = rows.offset.expand(len(found.mu), -1)[i]
        over = rows.sums(found.mu)[i] - offset
        # rows with prices of at least 0 are sums that must not exceed their bound
        missed = torch.where(rows.least == 0, over, torch.where(rows.most == 0, -over, over.abs()))
        r = int(missed.argmax())
        most, factor = float(missed[r]), int(rows.factor[r])
    for p in found.projected:
        away = torch.where(p.block.shared, p.z - p.block.gather(found.mu), 0)[i].abs().amax(-1)
        k = int(away.argmax())
        if float(away[k]) > most:
            most, factor = float(away[k]), p.block.members[k]
    return factor, most
