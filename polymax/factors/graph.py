"""Factor graphs: variables with scores, and factors that must agree on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polymax.factors.agreement import Agreement, Compiled, compile_graph
from polymax.factors.factor import Factor, Logic, Pair
from polymax.factors.layout import Layout
from polymax.factors.linear import linear_relaxation
from polymax.factors.relaxation import nearest, value_of
from polymax.factors.solution import GraphSolution
from polymax.structures.base import Parts, Structure
from polymax.structures.compact.base import Compact


class GraphParts(tuple[Tensor, ...]):
    """The variables of a graph (*batch, n), then the private parts of its factors, in the order of the scores.

    `variables` is the first tensor. `factors` holds the parts of each factor, with the names of its structure. The
    parts of logic are its variables, inputs first, then the output; the parts of a pair are its variables, then the
    probability that both literals are on.
    """

    graph: "FactorGraph"

    def __new__(cls, graph: "FactorGraph", tensors: Sequence[Tensor]) -> "GraphParts":
        found = super().__new__(cls, tuple(tensors))
        found.graph = graph
        return found

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.graph, tuple(self)

    def _make(self, tensors: Any) -> "GraphParts":
        return GraphParts(self.graph, tuple(tensors))

    @property
    def variables(self) -> Tensor:
        return self[0]

    @property
    def factors(self) -> tuple[Parts, ...]:
        return tuple(self.graph.parts_of(f, self) for f in range(len(self.graph.factors)))


@dataclass(frozen=True, eq=False)
class GraphPoints(Compact):
    """The variables that are on, in order, (*batch, used), -1 after the last; `encode` takes their number."""

    def whole(self, y: Parts) -> bool:
        # losses take variables, and outputs, as points: private parts need not follow from variables
        return False


@dataclass(frozen=True, eq=False)
class FactorGraph(Structure):
    """The settings of variables, each on or off, that all factors allow; a variable may be in several factors.

    Inference is exact over each factor, and a relaxation over all of them: the factors agree on the mean of each
    variable, but not on the structures with that mean. `SparseMap` finds the point nearest to the scores
    (LP-SparseMAP). `HardMax` finds the best point, the linear relaxation; if it is integral, as it always is if the
    factors form a tree, it is the best structure. A variable in no factor is free in [0, 1].

    Factors are a `Factor` for each structure, and the logic of `polymax.factors`.

    Shapes: variables (*batch, n), then the private scores of factors that have some, in their order

    Example:
        >>> triangle = FactorGraph(3, [pm.factors.at_most_one([0, 1]), pm.factors.at_most_one([1, 2])])
        >>> pm.HardMax(triangle)(torch.tensor([1.0, 1.5, 1.0])).variables
        tensor([1., 0., 1.])

    See: Niculae and Martins 2020, LP-SparseMAP: differentiable relaxed optimization for sparse structured prediction.
    """

    variables: int
    factors: Sequence[Any]
    max_iter: int = 1000

    def __post_init__(self) -> None:
        if isinstance(self.variables, bool) or not isinstance(self.variables, int) or self.variables < 0:
            raise ValueError(f"variables must be their number, an integer of at least 0; got {self.variables!r}")
        object.__setattr__(self, "factors", tuple(self.factors))
        for f, factor in enumerate(self.factors):
            if not isinstance(factor, Factor | Logic | Pair):
                raise TypeError(f"factors must be Factor or logic of polymax.factors; number {f} is {factor!r}")
            if factor.at.numel() and int(factor.at.max()) >= self.variables:
                raise ValueError(
                    f"at must name variables below {self.variables}; factor {f} ({factor}) names {int(factor.at.max())}"
                )
        object.__setattr__(self, "_known", {})

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return self.layout.dims

    @cached_property
    def layout(self) -> Layout:
        """The order of the private tensors of the factors."""
        return Layout(self.factors)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        batch = self._batch(scores)
        given = iter(scores[1:])
        found = [scores[0]]
        for f, size in self.layout.owners:
            factor, own = self.factors[f], [next(given) for _ in range(size)]
            if isinstance(factor, Pair):
                found.append(own[0].expand(batch))
            else:
                first = own[0] if factor.mixed else scores[0].new_zeros(()).expand(*batch, *factor.event)
                if factor.mixed:
                    first = first.expand(*batch, *factor.event)
                whole = factor.structure.full(first, *(own[1:] if factor.mixed else own))
                found.extend(whole if factor.mixed else whole[1:])
        return tuple(found)

    def named(self, *parts: Tensor) -> GraphParts:
        return GraphParts(self, parts)

    def map(self, *scores: Tensor) -> GraphParts:
        """The best point of the relaxation; a structure in instances whose `HardMax(graph).solve` is integral."""
        return self.linear_relaxation(*scores).parts

    def linear_relaxation(self, *scores: Tensor) -> GraphSolution:
        """The linear relaxation: the best point on which the factors agree."""
        return linear_relaxation(self, scores)

    def best_score(self, *scores: Tensor) -> Tensor:
        y = self.linear_relaxation(*scores)
        found = self.score(y.parts, *scores)
        return torch.where(y.feasible, found, -torch.inf)

    def projection(self, *scores: Tensor) -> Parts:
        return self.relaxed_projection(*scores).parts

    def relaxed_projection(self, *scores: Tensor) -> GraphSolution:
        """LP-SparseMAP: the nearest point on which the factors agree, differentiable in the scores."""
        return nearest(self, scores)

    def relaxed_projection_value(self, *scores: Tensor) -> Tensor:
        """<scores, mu> - 1/2 ||mu||^2 at the point of `relaxed_projection`, (*batch,); its gradient is mu."""
        return value_of(self, scores)

    def complete(self, first: Tensor) -> GraphParts:
        """Whole structures from variables that are 0 or 1; a ValueError if they do not determine the private parts."""
        found = [first]
        for f, factor in enumerate(self.factors):
            if isinstance(factor, Pair):
                found.append(self._gathered(first, factor, factor.negated).prod(-1))
            elif factor.private:
                if factor.mixed:
                    raise ValueError(f"variables do not say what the private parts of factor {f} ({factor}) are")
                whole = factor.structure.complete(self._gathered(first, factor))
                found.extend(whole[1:])
        return GraphParts(self, found)

    @property
    def compact(self) -> "GraphPoints":
        return GraphPoints(self)

    def parts_of(self, f: int, y: Sequence[Tensor]) -> Parts:
        """The parts of factor f."""
        factor = self.factors[f]
        start = 1 + sum(len(before.private) for before in self.factors[:f])
        own = tuple(y[start : start + len(factor.private)])
        first = self._gathered(y[0], factor)
        if isinstance(factor, Factor):
            if factor.mixed:
                first, own = torch.where(factor.at.to(first.device) >= 0, first, own[0]), own[1:]
            return factor.structure.named(first, *own)
        return torch.cat([first, own[0].unsqueeze(-1)], -1) if own else first

    def _gathered(self, variables: Tensor, factor: Any, negated: Tensor | None = None) -> Tensor:
        """The variables of a factor, in its own shape; 0 for absent ones."""
        batch = variables.shape[:-1]
        dims = factor.at.dim() - len(factor.lead)
        at = factor.at.to(variables.device).expand(*batch, *factor.at.shape[factor.at.dim() - dims :])
        flat = torch.nn.functional.pad(variables, (0, 1))
        places = torch.where(at < 0, self.variables, at).flatten(at.dim() - dims)
        value = flat.gather(-1, places).reshape(at.shape)
        if negated is not None:
            value = torch.where(negated.to(value.device), 1 - value, value)
            value = torch.where(at < 0, 0, value)
        return value

    def _batch(self, scores: tuple[Tensor, ...]) -> torch.Size:
        dims = self.event_dims()
        if len(scores) != len(dims):
            names = ", ".join(str(f) for f in self.factors for _ in f.private) or "none"
            raise TypeError(
                f"the graph takes {len(dims)} score tensors, variables and private ones ({names}); got {len(scores)}"
            )
        if scores[0].dim() < 1 or scores[0].shape[-1] != self.variables:
            raise ValueError(f"variables must be (*batch, {self.variables}); got {tuple(scores[0].shape)}")
        return scores[0].shape[:-1]

    @cached_property
    def _lead(self) -> torch.Size:
        """The batch shape of the factors; () if all instances have the same graph."""
        return torch.broadcast_shapes(*(factor.lead for factor in self.factors))

    @cached_property
    def _lengthy(self) -> bool:
        return any(getattr(getattr(f, "structure", None), "lengths", None) is not None for f in self.factors)

    def _compiled(self, batch: torch.Size, device: torch.device) -> Compiled:
        lead = self._lead
        if lead:
            try:
                fits = torch.broadcast_shapes(lead, batch) == batch
            except RuntimeError:
                fits = False
            if not fits:
                raise ValueError(f"at of the factors has the batch {tuple(lead)}; variables have {tuple(batch)}")
            lead = batch
        # the key has the batch only if lengths or graphs differ between instances
        key = (batch if lead or self._lengthy else torch.Size(), device)
        known: dict[Any, Compiled] = self._known  # type: ignore[attr-defined]
        if key not in known:
            known.clear()
            known[key] = compile_graph(self.variables, self.factors, batch, lead, device)
        return known[key]

    def _agreement(self, scores: tuple[Tensor, ...]) -> Agreement:
        """The problem in flat tensors of float64, from scores in full shape."""
        batch = scores[0].shape[:-1]
        graph = self._compiled(batch, scores[0].device)
        x, pairs, private = self.layout.flat([t.detach() for t in scores], batch, graph.blocks)
        return Agreement(graph, x, private, pairs)
