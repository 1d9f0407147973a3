"""Smoothed maxima over a set of structures: a set, plus a smoothing.

    max(scores) = max over mu in conv(Y) of <scores, mu> - Omega(mu)        argmax(scores) = its maximizer mu

The gradient of max is argmax.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from polymax.hypergraphs.entropy import UnknownOmega
from polymax.sharding.placements import by_process, only_local, wrap_methods
from polymax.structures.base import Parts, Structure


class Smoothing(ABC):
    """A smoothed maximum over a set of structures; the temperature `gamma` multiplies its Omega, if it has one."""

    structure: Structure

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        wrap_methods(cls, ("max", "argmax", "omega", "__call__"), by_process)
        wrap_methods(cls, ("distribution", "solve"), only_local)
        # a call is argmax, unless a subclass defines __call__
        if "argmax" in cls.__dict__ and "__call__" not in cls.__dict__:
            cls.__call__ = cls.argmax  # type: ignore[method-assign]

    @abstractmethod
    def max(self, *scores: Tensor) -> Tensor:
        """The smoothed maximum, (*batch,); its gradient is argmax."""

    @abstractmethod
    def argmax(self, *scores: Tensor) -> Parts:
        """The maximizer mu, shaped like the structures."""

    def __call__(self, *scores: Tensor) -> Parts:
        return self.argmax(*scores)

    @abstractmethod
    def omega(self, mu: Parts) -> Tensor:
        """Omega(mu), (*batch,)."""

    def omega_at(self, index: Tensor, *scores: Tensor) -> Tensor | float:
        """Omega of structures in compact form, (*batch,); 0 if Omega is unknown: losses then lack a constant."""
        structure = self.structure
        y = structure.complete(structure.compact.first(index, *scores).double())
        try:
            return self.omega(y)
        except UnknownOmega:
            return 0.0

    def loss_at(self, index: Tensor, *scores: Tensor) -> Tensor | None:
        """max(scores) + Omega(y) - <scores, y> for structures in compact form, (*batch,), +inf if the scores forbid y;
        None if there is no kernel for it.
        """
        return None

    def best_of(self, *scores: Tensor) -> Tensor:
        """The value of a target with some known parts: `scores` are -inf at the parts that it forbids.

        Here it is the score, less Omega, of the best allowed structure; subclasses sum over all allowed structures.
        """
        with torch.no_grad():
            y = self.structure.map(*scores)
        try:
            omega: Tensor | float = self.omega(y)
        except UnknownOmega:
            omega = 0.0
        return self.structure.best_score(*scores) - omega

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        return replace(self, structure=self.structure.with_lengths(lengths))  # type: ignore[type-var]
