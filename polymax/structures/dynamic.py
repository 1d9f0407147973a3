"""Sets that a dynamic program can search: one recursion gives maxima, sums and smoothed maxima."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from polymax._parts import Parts, checked_scores, narrow, tensors
from polymax.distributions.gibbs import Gibbs
from polymax.hypergraphs import Derivations
from polymax.hypergraphs.entropy import UnknownOmega, omega_of_choices
from polymax.hypergraphs.passes import HARD, SHANNON, Problem
from polymax.kernels.active_set.problem import Search
from polymax.regularizers import Regularizer
from polymax.structures.base import Sampled


class DynamicProgram(Sampled):
    """A set whose structures are the derivations of a hypergraph: one derivation for each structure.

    A subclass defines the hypergraph in `derivations`; a subclass with its own kernels also overrides `problem`.
    """

    # True if no structure uses a part twice: SparseMAP then stores structures as lists of parts, found by derivations
    parts_once: ClassVar[bool] = False

    @abstractmethod
    def derivations(self, *scores: Tensor) -> Derivations:
        """The structures as derivations of a hypergraph."""

    def search(self, *scores: Tensor) -> Search | None:
        if not self.parts_once:
            return None
        tree = self.derivations(*scores)
        events = tuple(x.shape[len(tree.batch) :] for x in self.full(*scores))
        tensors = (tree.scores, tree.roots)
        return Search("derivations", tensors, tree.batch, events, self.most_parts(*events), (tree.graph,))

    def most_parts(self, *events: torch.Size) -> int:
        """The largest number of parts of a structure, for score tensors of these shapes."""
        return sum(event.numel() for event in events)

    def problem(self, *scores: Tensor) -> Problem:
        """The problem for the kernels."""
        return self.derivations(*scores).problem()

    def best_score(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked_scores(scores)).value(HARD).to(scores[0].dtype)

    def map(self, *scores: Tensor) -> Parts:
        with torch.no_grad():
            return narrow(self.problem(*self.full(*checked_scores(scores))).expectation(HARD), scores[0].dtype)

    def logsumexp(self, *scores: Tensor) -> Tensor:
        v = self.problem(*checked_scores(scores)).value(SHANNON)
        return v if v.dtype == scores[0].dtype else v.to(scores[0].dtype)

    def marginals(self, *scores: Tensor) -> Parts:
        mu = self.problem(*self.full(*checked_scores(scores))).expectation(SHANNON)
        return mu if scores[0].dtype.itemsize >= 4 else narrow(mu, scores[0].dtype)

    def gibbs(self, scores: tuple[Tensor, ...], dtype: torch.dtype) -> Gibbs:
        return Gibbs(self, scores, dtype)

    def kbest(self, scores: tuple[Tensor, ...], k: int) -> tuple[Parts, Tensor]:
        """The k best structures and their scores; derivations that use the same parts count as different."""
        tree = self.derivations(*checked_scores(scores))
        best, values = tree.kbest(tree.edge_scores(), k)
        moved = self.named(*(t.movedim(0, len(tree.batch)) for t in tensors(best)))
        return narrow(moved, scores[0].dtype), values.to(scores[0].dtype)

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        used = self.derivations(*(torch.zeros_like(t) for t in parts)).usable()
        return tuple(m != 0 for m in tensors(used))

    def omega(self, mu: Parts, regularizer: Regularizer) -> Tensor:
        """Omega(mu), known at structures, and between them if expected parts determine every choice."""
        found = self.omega_of_structures(mu, regularizer)
        if found is None:
            found = omega_of_choices(self.derivations(*tensors(mu)), regularizer)
        if found is None:
            raise UnknownOmega(f"the expected parts of {type(self).__name__} do not determine its Omega between them")
        return found
